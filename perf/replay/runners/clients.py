"""Throughput of one kind of client: processes that produce, consume or compress, and nothing else."""

from __future__ import annotations

import re
import time
from contextlib import nullcontext
from typing import Any

from perf.figures.results import Run
from perf.replay.runners.shown import shown
from perf.replay.scenarios import CodecAlone, Consume, Produce
from perf.replay.stage import (
    MESSAGE_BYTES,
    TOPIC,
    Backlog,
    ReplayError,
    Stage,
    cpu_per_message,
    cpu_seconds,
    create_topic,
)

_BYTES_OUT = re.compile(r"last \d+ s:.*?\bbytes_out=(\d+)")
_COUNTED = re.compile(r"last \d+ s:")
_COUNTERS_SECONDS = 10.0


def produce(stage: Stage, scenario: Produce) -> dict[str, Run]:
    """A fresh broker and one client process; the clock ends when the broker has everything (see ``Produce``)."""
    messages = max(scenario.batch * scenario.threads, int(stage.options.messages * scenario.share))
    file, size = stage.options.payloads(scenario.message_bytes)
    stage.warm(messages, size)
    settings = {**scenario.settings, "num.partitions": scenario.partitions}
    if scenario.lines:
        file = stage.lines_file()
    with stage.broker(settings) as broker:
        topics = [f"{TOPIC}-{number}" for number in range(scenario.topics)]
        for topic in topics:
            create_topic(broker.port, topic, scenario.partitions)
        before = cpu_seconds(broker)
        found = stage.run(
            "produce",
            port=broker.port,
            topics=topics,
            messages=messages,
            batch=scenario.batch,
            how=scenario.how,
            acks=scenario.acks,
            compression=scenario.compression,
            threads=scenario.threads,
            message_bytes=scenario.message_bytes,
            payload_file=str(file) if file else None,
            seed=stage.options.seed,
        )
        used = cpu_per_message([found], cpu_seconds(broker) - before, messages)
    timeline = tuple((float(at), float(rate)) for at, rate in found.pop("timeline", ()))
    detail = {name: float(value) for name, value in found.items() if name != "rate"} | used
    rate = float(found["rate"])
    return {
        "rate": Run(value=rate, detail=detail, timeline=timeline or None),
        "mb_per_second": Run(value=found["payload_bytes"] / found["seconds"] / 1e6, detail=detail),
    }


def consume(stage: Stage, scenario: Consume) -> dict[str, Run]:
    """Client processes that read the round's backlog; with several, from the first start to the last end."""
    backlog = stage.backlog()
    messages = int(backlog.messages * scenario.share) if scenario.share < 1 else backlog.messages
    options: dict[str, Any] = {
        "port": backlog.broker.port,
        "topic": TOPIC,
        "mode": scenario.mode,
        "local": scenario.local,
        "fetch_bytes": scenario.fetch_bytes,
        "messages": messages,
    }
    before = _next_counters(backlog, 0) if scenario.local else 0
    with shown(stage, backlog.broker.port) if scenario.group else nullcontext("") as connect:
        cpu_before = cpu_seconds(backlog.broker)
        found = together(stage, [("consume", {**options, "connect": connect})] * scenario.consumers)
        broker_seconds = cpu_seconds(backlog.broker) - cpu_before
    for one in found:
        if not messages <= one["messages"] <= backlog.messages:
            raise ReplayError(f"{one['messages']} messages were read instead of {messages}")
    total = sum(one["messages"] for one in found)
    seconds = (max(one["ended_ns"] for one in found) - min(one["started_ns"] for one in found)) / 1e9
    detail = {"messages": total, "seconds": seconds, "mb_per_second": total * MESSAGE_BYTES / seconds / 1e6}
    detail |= cpu_per_message(found, broker_seconds, total)
    if scenario.local:
        detail["broker_bytes_out"] = _bytes_out(backlog, before)
    timeline = tuple((float(at), float(rate)) for at, rate in found[0].get("timeline", ())) if len(found) == 1 else ()
    return {"rate": Run(value=total / seconds, detail=detail, timeline=timeline or None)}


def together(stage: Stage, kinds: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The figures of processes that all start at once."""
    with stage.clients(kinds) as clients:
        for client in clients:
            client.go()
        return [client.result() for client in clients]


def codec_alone(stage: Stage, scenario: CodecAlone) -> dict[str, Run]:
    """One process that compresses, on one core; no broker."""
    found = stage.run(
        "compress",
        compression=scenario.compression,
        batch=scenario.batch,
        messages=max(scenario.batch, int(stage.options.messages * scenario.share)),
        payload_file=str(stage.lines_file()),
    )
    return {"rate": Run(value=found.pop("rate"), detail=found)}


def _bytes_out(backlog: Backlog, before: int) -> float:
    """What the broker has sent since its line of counters number ``before``, from the lines that came after it."""
    now = _next_counters(backlog, _next_counters(backlog, 0))  # the first may have been counted while it still read
    lines = [line for line in backlog.broker.log_text().splitlines() if _COUNTED.search(line)][before:now]
    return float(sum(int(found[1]) for line in lines if (found := _BYTES_OUT.search(line))))


def _next_counters(backlog: Backlog, after: int) -> int:
    """How many lines of counters the broker has logged, once there is a new one (behind number ``after``, if given)."""
    after = after or len(_COUNTED.findall(backlog.broker.log_text()))
    deadline = time.monotonic() + _COUNTERS_SECONDS
    while (found := len(_COUNTED.findall(backlog.broker.log_text()))) <= after:
        if time.monotonic() > deadline:
            raise ReplayError("the broker logs no counters")
        time.sleep(0.05)
    return found
