"""Record batches under the C generator, and what they are compared with."""

from __future__ import annotations

import os
import socket
import statistics
import struct
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fastlog.batch_codecs import CODEC_NAMES
from fastlog.message import DEFAULT_LIMITS
from fastlog.perf.payloads import lines_of
from fastlog.record_batches import DeepBatch, Record, build
from perf.ceiling import batches, loadgen
from perf.figures.results import Run
from perf.replay.scenarios import (
    CheckBatches,
    FetchBatches,
    FirstAnswer,
    OfBatches,
    ProduceBatches,
    Scenario,
    SingleMessages,
)
from perf.replay.stage import MESSAGE_BYTES, TOPIC, ReplayError, Stage, create_topic, numbers

_NUMBERS = {name: number for number, name in CODEC_NAMES.items()}
_RECORD_OVERHEAD = 12
_FILE_BYTES = 2**21
_SYNCS = 51
_SYNC_BYTES = 4096
_TIMEOUT = 10.0
_MEMORY_SETTLES = 0.2

Figures = Mapping[str, Any]


def produce(stage: Stage, scenario: ProduceBatches) -> dict[str, Run]:
    """A fresh broker under the generator; the first batches of each partition make its files, and are not timed."""
    messages = _messages(stage, scenario)
    stage.warm(messages, scenario.message_bytes)
    sync_ms = one_sync_ms(stage.directory)
    sync_ms += scenario.slower_sync_ms
    environment = (
        {"FASTLOG_FAULTS": f"flusher:fdatasync@1-=slow:{scenario.slower_sync_ms}"} if scenario.slower_sync_ms else {}
    )
    with stage.broker({**scenario.settings, "num.partitions": scenario.partitions}, environment) as broker:
        batches.run("produce", {"port": broker.port, **_first_options(scenario)})
        found = batches.run("produce", {"port": broker.port, **_produce_options(stage, scenario, messages)})
    return _produced(found, messages, sync_ms)


def fetch(stage: Stage, scenario: FetchBatches) -> dict[str, Run]:
    """A fresh broker that is filled, which is not timed, and the reader."""
    messages = _messages(stage, scenario)
    stage.warm(messages, scenario.message_bytes)
    with stage.broker({**scenario.settings, "num.partitions": scenario.partitions}) as broker:
        batches.run("produce", {"port": broker.port, **_fill_options(scenario, messages)})
        found = batches.run("fetch", {"port": broker.port, **_fetch_options(scenario, messages)})
    return _fetched(found, messages)


def ceiling(stage: Stage, scenario: OfBatches) -> dict[str, Run]:
    """The same with the C broker, which flushes nothing."""
    messages = _messages(stage, scenario)
    stage.warm(messages, scenario.message_bytes)
    with stage.place() as directory, batches.Ceiling(directory, scenario.partitions) as broker:
        if isinstance(scenario, ProduceBatches):
            broker.run("produce", **_first_options(scenario))
            found = broker.run("produce", **_produce_options(stage, scenario, messages))
            return _produced(found, messages, one_sync_ms(stage.directory))
        if isinstance(scenario, FetchBatches):
            broker.run("produce", **_fill_options(scenario, messages))
            return _fetched(broker.run("fetch", **_fetch_options(scenario, messages)), messages)
    raise ReplayError(f"the ceiling has no {type(scenario).__name__}")


def single_messages(stage: Stage, scenario: SingleMessages) -> dict[str, Run]:
    """One load generator for each connection, all at once: all messages in the time of the slowest of them."""
    each = max(1, int(stage.options.messages * scenario.share) // scenario.connections)
    stage.warm(each * scenario.connections)
    with stage.broker(scenario.settings) as broker, ThreadPoolExecutor(scenario.connections) as threads:
        names = [f"{TOPIC}-{number}" for number in range(scenario.connections)]
        for name in names:
            create_topic(broker.port, name, 1)
        options = {"port": broker.port, "messages": each, "batch": 1, "size": MESSAGE_BYTES, "window": scenario.window}
        found = list(threads.map(lambda name: loadgen.run("produce-acked", {**options, "topic": name}), names))
    seconds = max(one["seconds"] for one in found)
    total = sum(one["messages"] for one in found)
    return {"rate": Run(value=total / seconds, detail={"messages": total, "seconds": seconds})}


def check_alone(stage: Stage, scenario: CheckBatches) -> dict[str, Run]:
    """``DeepBatch`` over the batches that ``produce`` sends with this codec, in this process."""
    made = line_batches(stage, scenario.codec, scenario.batch_bytes)
    wanted, done = max(1, int(stage.options.messages * scenario.share)), 0
    started = time.monotonic()
    while done < wanted:
        for data in made:
            checking = DeepBatch(data, DEFAULT_LIMITS, 16)
            while not checking.step(1 << 20):
                pass
            done += checking.count
    seconds = time.monotonic() - started
    return {"rate": Run(value=done / seconds, detail={"messages": done, "seconds": seconds})}


def first_answer(stage: Stage, scenario: FirstAnswer) -> dict[str, Run]:
    """The start of the process to the answer to API_VERSIONS; then everything is written and read once."""
    messages = _messages(stage, scenario)
    stage.warm(messages)
    started = time.monotonic()
    with stage.broker(scenario.settings) as broker:
        ask_versions(broker.port)
        seconds = time.monotonic() - started
        batches.run("produce", {"port": broker.port, "messages": messages})
        batches.run("fetch", {"port": broker.port, "min_messages": messages})
        time.sleep(_MEMORY_SETTLES)
        memory = broker.memory()
    detail = {f"{role}_bytes": float(size) for role, size in memory.items()}
    return {"seconds": Run(value=seconds), "bytes": Run(value=float(sum(memory.values())), detail=detail)}


def ask_versions(port: int) -> None:
    """API_VERSIONS, version 0, and its answer. Raises ``ReplayError`` when it is none."""
    body = struct.pack(">hhih", 18, 0, 7, -1)
    with socket.create_connection(("127.0.0.1", port), _TIMEOUT) as link:
        link.sendall(struct.pack(">i", len(body)) + body)
        answer = link.recv(10, socket.MSG_WAITALL)
    if len(answer) < 10 or answer[4:10] != struct.pack(">ih", 7, 0):
        raise ReplayError(f"API_VERSIONS was answered by {answer.hex() or 'the end of the connection'}")


def one_sync_ms(directory: Path) -> float:
    """What one sync of a few kilobytes takes there now, the median of many."""
    path, taken = directory / "sync", []
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        for _ in range(_SYNCS):
            os.write(fd, bytes(_SYNC_BYTES))
            started = time.monotonic_ns()
            os.fdatasync(fd)
            taken.append((time.monotonic_ns() - started) / 1e6)
    finally:
        os.close(fd)
        path.unlink()
    return statistics.median(taken)


def line_batches(stage: Stage, codec: str, batch_bytes: int) -> list[bytes]:
    """Different batches of access-log lines, each of ``batch_bytes`` before it is compressed."""
    lines, _ = lines_of(stage.lines_file())
    made: list[bytes] = []
    held: list[Record] = []
    size = total = 0
    for line in lines:
        held.append(Record(None, line, 0))
        size += len(line) + _RECORD_OVERHEAD
        if size >= batch_bytes:
            made.append(build(held, codec=_NUMBERS[codec]))
            total += size
            held, size = [], 0
            if total >= _FILE_BYTES:
                break
    return made or [build(held, codec=_NUMBERS[codec])]


def _messages(stage: Stage, scenario: Scenario) -> int:
    return max(1, int(stage.options.messages * scenario.share), getattr(scenario, "connections", 1))


def _first_options(scenario: OfBatches) -> dict[str, object]:
    """Two batches for each partition: the second one begins its indexes."""
    records = scenario.batch_records or max(1, scenario.batch_bytes // (scenario.message_bytes + _RECORD_OVERHEAD))
    messages = max(scenario.connections, 2 * records * scenario.partitions)
    return _fill_options(scenario, messages)


def _fill_options(scenario: OfBatches, messages: int) -> dict[str, object]:
    options: dict[str, object] = {
        "messages": messages,
        "size": scenario.message_bytes,
        "partitions": scenario.partitions,
        "connections": scenario.connections,
    }
    if scenario.batch_records is not None:
        return {**options, "batch_records": scenario.batch_records}
    return {**options, "batch_bytes": scenario.batch_bytes}


def _produce_options(stage: Stage, scenario: ProduceBatches, messages: int) -> dict[str, object]:
    options = {**_fill_options(scenario, messages), "acks": scenario.acks, "window": scenario.window}
    if scenario.codec == "none":
        return options
    path = stage.directory / f"batches-{scenario.codec}-{scenario.batch_bytes}"
    if not path.exists():
        path.write_bytes(b"".join(line_batches(stage, scenario.codec, scenario.batch_bytes)))
    return {**options, "batch_file": path}


def _fetch_options(scenario: FetchBatches, messages: int) -> dict[str, object]:
    return {
        "max_bytes": scenario.fetch_bytes,
        "partitions": scenario.partitions,
        "connections": scenario.connections,
        "min_messages": messages,
    }


def _produced(found: Figures, messages: int, sync_ms: float) -> dict[str, Run]:
    if found["messages"] < messages:
        raise ReplayError(f"{found['messages']} records instead of {messages}")
    p99 = float(found["latency_ms"]["p99"])
    detail = {**numbers(found), "p50_ms": float(found["latency_ms"]["p50"]), "p99_ms": p99, "sync_ms": sync_ms}
    return {
        "rate": Run(value=float(found["rate"]), detail=detail),
        "p99_syncs": Run(value=p99 / sync_ms, detail=detail),
    }


def _fetched(found: Figures, messages: int) -> dict[str, Run]:
    if found["messages"] != messages:
        raise ReplayError(f"{found['messages']} records instead of {messages}")
    return {"rate": Run(value=float(found["rate"]), detail=numbers(found))}
