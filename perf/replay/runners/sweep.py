"""One flush policy: throughput with what a power loss could take meanwhile, then the latency at a low rate."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from perf.figures.results import Run
from perf.replay.runners import streams
from perf.replay.scenarios import ENTRY_OVERHEAD, FlushPolicy
from perf.replay.stage import TOPIC, Client, Stage, create_topic, link_to, partitions_over

_EVERY_SECONDS = 0.005


@dataclass(frozen=True)
class Sample:
    """What the broker said of the partition at one moment (``time.monotonic``)."""

    moment: float
    high_watermark: int
    log_end: int


def flush_policy(stage: Stage, scenario: FlushPolicy) -> dict[str, Run]:
    """The broker is asked every 5 ms, on a connection of its own, how far it has appended and flushed."""
    messages = max(50, int(stage.options.messages * scenario.share) // 50 * 50)
    file, size = stage.options.payloads()
    stage.warm(messages, size)
    with stage.broker(scenario.settings) as broker:
        create_topic(broker.port, TOPIC, 1)
        producing = {
            "port": broker.port,
            "topics": [TOPIC],
            "messages": messages,
            "batch": 50,
            "how": "list",
            "acks": "none",
            "compression": "none",
            "threads": 1,
            "message_bytes": size,
            "payload_file": str(file) if file else None,
            "seed": stage.options.seed,
        }
        with stage.clients([("produce", producing)]) as (producer,):
            made, samples = _watched(broker.port, producer)
        rate = float(made["rate"])
    with stage.broker(scenario.settings) as broker:
        create_topic(broker.port, TOPIC, 1)
        waits = streams.paced(stage, broker, scenario.rate, scenario.seconds, "appended")
    risk = float(max((sample.log_end - sample.high_watermark for sample in samples), default=0))
    detail = {"messages": messages, "samples": len(samples), "at_risk_messages": risk / (size + ENTRY_OVERHEAD)}
    return {
        "rate": Run(value=rate, detail=detail),
        "p99_ms": Run(value=waits["p99_ms"], detail=waits),
        "at_risk_bytes": Run(value=risk, detail=detail),
        "at_risk_ms": Run(value=longest_unflushed(samples) * 1000, detail=detail),
    }


def _watched(port: int, producer: Client) -> tuple[dict[str, float], list[Sample]]:
    samples: list[Sample] = []
    ended = threading.Event()

    def watch() -> None:
        with link_to(port) as link:
            while not ended.wait(_EVERY_SECONDS):
                (found,) = partitions_over(link, (TOPIC,))
                samples.append(Sample(time.monotonic(), found.high_watermark, found.log_end))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        producer.go()
        made = producer.result()
    finally:
        ended.set()
        watcher.join(10)
    return made, samples


def longest_unflushed(samples: list[Sample]) -> float:
    """The longest time in seconds for which bytes that a sample saw appended were not flushed at a later one.

    A lower bound, as exact as the samples are close.
    """
    longest, first = 0.0, 0
    for sample in samples:
        # The oldest sample whose last byte is not flushed now.
        while first < len(samples) and samples[first].log_end <= sample.high_watermark:
            first += 1
        if first < len(samples) and samples[first].moment < sample.moment:
            longest = max(longest, sample.moment - samples[first].moment)
    return longest
