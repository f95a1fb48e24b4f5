"""Scenarios in which several clients work at once, or a fixed rate is timed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from perf.figures.results import Run
from perf.machine.probes import late_ns
from perf.replay.runners.clients import together
from perf.replay.scenarios import FanOut, Latency, Tail
from perf.replay.stage import (
    MESSAGE_BYTES,
    TOPIC,
    ReplayError,
    Stage,
    cpu_per_message,
    cpu_seconds,
    create_topic,
)
from tests.harness.broker import Broker

_SLEEPS = 1000
_SYNCS = 500
_SYNC_BYTES = 2100  # ten messages


def fan_out(stage: Stage, scenario: FanOut) -> dict[str, Run]:
    """All consumers read the backlog at once; then a producer writes alone; then again while they read."""
    backlog = stage.backlog()
    port = backlog.broker.port
    reading = {"port": port, "topic": TOPIC, "fetch_bytes": scenario.fetch_bytes}
    options = {**reading, "mode": "lists", "local": False, "messages": backlog.messages}
    used = cpu_seconds(backlog.broker)
    found = together(stage, [("consume", options)] * scenario.consumers)
    used = cpu_seconds(backlog.broker) - used
    total = sum(one["messages"] for one in found)
    if total != scenario.consumers * backlog.messages:
        raise ReplayError(f"{total} messages were read instead of {scenario.consumers * backlog.messages}")
    seconds = (max(one["ended_ns"] for one in found) - min(one["started_ns"] for one in found)) / 1e9
    stored = sum(path.stat().st_size for path in backlog.broker.segments(TOPIC, 0).values())
    detail = {"messages": total, "seconds": seconds, "copies_on_disk": stored / backlog.bytes}
    detail |= cpu_per_message(found, used, total)

    alone = _produced(stage, backlog.broker, scenario, f"alone-{scenario.consumers}", [])
    meanwhile = _produced(
        stage,
        backlog.broker,
        scenario,
        f"meanwhile-{scenario.consumers}",
        [("consume-again-and-again", reading)] * scenario.consumers,
    )
    return {
        "rate": Run(value=total / seconds, detail=detail),
        "produce_alone_rate": alone,
        "produce_rate": meanwhile,
    }


def _produced(
    stage: Stage, broker: Broker, scenario: FanOut, topic: str, readers: list[tuple[str, dict[str, object]]]
) -> Run:
    messages = max(scenario.batch, stage.options.messages // 5)
    file, size = stage.options.payloads()
    stage.warm(messages, size)
    create_topic(broker.port, topic, 1)
    producing = {
        "port": broker.port,
        "topics": [topic],
        "messages": messages,
        "batch": scenario.batch,
        "how": "list",
        "acks": "none",
        "compression": "none",
        "threads": 1,
        "message_bytes": size,
        "payload_file": str(file) if file else None,
        "seed": stage.options.seed,
    }
    with stage.clients([("produce", producing), *readers]) as (producer, *others):
        used, began = cpu_seconds(broker), time.monotonic()
        for client in others:
            client.go()
        time.sleep(0.2 if others else 0)  # until all of them are in the middle of it
        producer.go()
        made = producer.result()
        for client in others:
            client.stop()
        read = [client.result() for client in others]
        used, seconds = cpu_seconds(broker) - used, time.monotonic() - began
    used += sum(one["client_cpu_seconds"] for one in (made, *read))
    consumed = sum(one["messages"] / max(1e-9, (one["ended_ns"] - one["started_ns"]) / 1e9) for one in read)
    return Run(value=made["rate"], detail={"messages": messages, "consumed_rate": consumed, "cores": used / seconds})


def tail(stage: Stage, scenario: Tail) -> dict[str, Run]:
    """Through means consumed: from the first list until the consumer has the last one."""
    messages = max(scenario.batch, stage.options.messages // scenario.batch * scenario.batch)
    stage.warm(messages)
    with stage.broker(scenario.settings) as broker:
        create_topic(broker.port, TOPIC, 1)
        place = {"port": broker.port, "topic": TOPIC, "message_bytes": MESSAGE_BYTES}
        made = {
            **place,
            "messages": messages,
            "batch": scenario.batch,
            "rate": scenario.rate,
            "seed": stage.options.seed,
        }
        kinds = [("follow", {**place, "fetch_bytes": scenario.fetch_bytes}), ("produce-stamped", made)]
        with stage.clients(kinds) as (consumer, producer):
            consumer.go()
            producer.go()
            sent, read = producer.result(), consumer.result()
    if read["messages"] != messages:
        raise ReplayError(f"{read['messages']} messages were read instead of {messages}")
    seconds = (read["ended_ns"] - sent["started_ns"]) / 1e9
    lag = {f"lag_{name}": value for name, value in read["lag"].items()}
    detail = {"messages": messages, "seconds": seconds, **lag}
    return {
        "rate": Run(value=messages / seconds, detail=detail),
        "lag_p99_9_ms": Run(value=lag["lag_p99_9_ms"], detail=detail),
    }


def latency(stage: Stage, scenario: Latency) -> dict[str, Run]:
    """fdatasync is timed just before, in the directory of the log; the limit allows twice its p99. So are sleeps."""
    with stage.broker(scenario.settings) as broker:
        create_topic(broker.port, TOPIC, 1)
        sync_ms = sync_p99_ms(broker.partition_directory(TOPIC, 0).parent)
        late_ms = float(np.percentile(late_ns(_SLEEPS), 99)) / 1e6
        detail = paced(stage, broker, scenario.rate, scenario.seconds, scenario.acks)
    detail["fdatasync_p99_ms"] = sync_ms
    detail["sleep_late_p99_ms"] = late_ms
    beside = max(0.0, detail["p99_ms"] - 2 * sync_ms)
    return {
        "p99_ms": Run(value=detail["p99_ms"], detail=detail),
        "beside_disk_ms": Run(value=beside, detail={"p99_ms": detail["p99_ms"], "fdatasync_p99_ms": sync_ms}),
    }


def paced(stage: Stage, broker: Broker, rate: int, seconds: float, acks: str) -> dict[str, float]:
    """Percentiles in ms from the intended send until consumed, and until acknowledged (``acknowledged_…``)."""
    place = {"port": broker.port, "topic": TOPIC, "message_bytes": MESSAGE_BYTES}
    made = {**place, "rate": rate, "seconds": seconds, "acks": acks, "seed": stage.options.seed}
    kinds = [("follow", {**place, "fetch_bytes": 2**20}), ("produce-paced", made)]
    with stage.clients(kinds) as (consumer, producer):
        consumer.go()
        producer.go()
        sent, read = producer.result(), consumer.result()
    if read["messages"] != sent["messages"]:
        raise ReplayError(f"{read['messages']} messages were read instead of {sent['messages']}")
    acknowledged = {f"acknowledged_{name}": value for name, value in sent["acknowledged"].items() if name != "count"}
    return {**read["lag"], **acknowledged}


def sync_p99_ms(directory: Path) -> float:
    """p99 of the time that fdatasync of ten appended messages takes in a directory, alone."""
    path = directory / "sync-probe"
    taken = []
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        for _ in range(_SYNCS):
            os.write(descriptor, bytes(_SYNC_BYTES))
            started = time.monotonic_ns()
            os.fdatasync(descriptor)
            taken.append(time.monotonic_ns() - started)
    finally:
        os.close(descriptor)
        path.unlink()
    return float(np.percentile(taken, 99)) / 1e6
