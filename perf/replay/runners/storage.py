"""What is stored: recovery, memory, and throughput behind a long log."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator

from fastlog.segment_files import FLUSH_MARKS_NAME
from perf.ceiling import loadgen
from perf.figures.results import Run
from perf.replay.scenarios import PAGE_CACHE, Memory, Recovery, Stored
from perf.replay.stage import ENTRY_BYTES, MESSAGE_BYTES, TOPIC, ReplayError, Stage
from tests.harness.broker import Broker

_START = re.compile(r"start_seconds=([\d.]+)")
_SIDE_FILE = "fastlog.json"
_READ_BYTES = 2**24
_FILL_STEP = 1_000_000_000
_FIRST_MESSAGES = 20_000
_SETTLE_SECONDS = 0.2


def recovery(stage: Stage, scenario: Recovery) -> dict[str, Run]:
    """One segment, kill -9, no side file (which has the checkpoint), file in the page cache, start.

    ``seconds`` is what the broker says its start took, from its configuration read to ready; what a start without any
    log takes is measured first and is not part of ``seconds_per_gb``.
    """
    messages = max(1, scenario.segment_bytes // ENTRY_BYTES)
    settings = {**scenario.settings, "log.file.size": messages * ENTRY_BYTES + 2**20}
    stage.warm(messages)
    with stage.broker(settings) as broker:
        empty = _start_seconds(broker)
        stage.fill(broker, TOPIC, messages)
        (segment,) = broker.segments(TOPIC, 0).values()
        broker.kill_all()
        (segment.parent / _SIDE_FILE).unlink(missing_ok=True)
        if scenario.in_flush:
            (segment.parent.parent / FLUSH_MARKS_NAME).write_bytes(b"\1")
        with segment.open("rb") as file:
            while file.read(_READ_BYTES):
                pass
        broker.start()
        seconds = _start_seconds(broker)
        (kept,) = broker.segments(TOPIC, 0).values()
        size = kept.stat().st_size
        if size < messages * ENTRY_BYTES:
            raise ReplayError(f"recovery kept {size} bytes of {messages * ENTRY_BYTES}")
    found = messages * ENTRY_BYTES
    detail = {"bytes": found, "empty_start_seconds": empty, "seconds": seconds}
    return {
        "seconds": Run(value=seconds, detail=detail),
        "seconds_per_gb": Run(value=max(0.0, seconds - empty) / found * 1e9, detail=detail),
    }


def _start_seconds(broker: Broker) -> float:
    found = _START.search(broker.log_text())
    if found is None:
        raise ReplayError("the broker does not say how long its start took")
    return float(found[1])


def memory(stage: Stage, scenario: Memory) -> dict[str, Run]:
    """Written by one connection, read by another, then looked at when both are gone: nothing is in flight."""
    messages = max(1, scenario.backlog_bytes // ENTRY_BYTES)
    stage.warm(messages)
    with stage.broker(scenario.settings) as broker:
        stage.fill(broker, TOPIC, messages)
        loadgen.run("fetch", {"port": broker.port, "topic": TOPIC})
        time.sleep(_SETTLE_SECONDS)
        sizes = broker.memory()
    detail = {role.replace("-", "_"): float(size) for role, size in sizes.items()}
    return {"largest_bytes": Run(value=float(max(sizes.values())), detail={**detail, "backlog_messages": messages})}


def stored(stage: Stage, scenario: Stored) -> dict[str, Run]:
    """One pair: into an empty log and behind the backlog, in turn which one comes first.

    Both by the C generator with one connection and the same number of messages, so that what changes is the log alone.
    The backlog is written once, at the first pair.
    """
    messages = max(scenario.batch, int(stage.options.messages * scenario.share))
    full: Broker = stage.kept("stored", lambda: _filled(stage, scenario))
    pair = stage.kept("stored-pairs", lambda: contextlib.nullcontext([0]))
    pair[0] += 1
    rates = {}
    for which in ("full", "empty") if pair[0] % 2 else ("empty", "full"):
        stage.warm(messages)
        if which == "full":
            rates[which] = _rate(stage, full, messages, scenario.batch)
        else:
            with stage.broker(scenario.settings) as empty:
                rates[which] = _rate(stage, empty, messages, scenario.batch)
    detail = {"messages": messages, "stored_bytes": scenario.stored_bytes, "ratio": rates["full"] / rates["empty"]}
    return {"rate": Run(value=rates["full"], detail=detail), "empty_rate": Run(value=rates["empty"], detail=detail)}


def _rate(stage: Stage, broker: Broker, messages: int, batch: int) -> float:
    place = {"port": broker.port, "topic": TOPIC, "batch": batch, "size": MESSAGE_BYTES}
    stage.fill(broker, TOPIC, _FIRST_MESSAGES)  # the topic is there, and under load
    return float(loadgen.run("produce", {**place, "messages": messages})["rate"])


@contextlib.contextmanager
def _filled(stage: Stage, scenario: Stored) -> Iterator[Broker]:
    with stage.broker({**PAGE_CACHE, **scenario.settings}) as broker:
        left = scenario.stored_bytes
        while left > 0:
            messages = max(1, min(left, _FILL_STEP) // ENTRY_BYTES)
            rate = stage.fill(broker, TOPIC, messages)
            left -= _FILL_STEP
            stage.say(f"  stored {(scenario.stored_bytes - max(0, left)) / 1e9:.1f} GB at {rate / 1e6:.2f} Mmsg/s")
        yield broker
