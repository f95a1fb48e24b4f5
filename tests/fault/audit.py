"""The audit under faults: producers and counters that are killed, clocks minutes apart, lost and doubled messages.

Nothing that is there is ever called missing, and everything that was lost or doubled on purpose is found.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import fastlog.testing
from fastlog import Producer
from fastlog.audit.events import SentEvent, decode
from fastlog.testing import RunningBroker
from tests import reference
from tests.fault.audit_program import STAGE
from tests.fault.programs import ROOT, environment
from tests.fault.registry import Outcome, scenario
from tests.harness.audit import audit, consumer_of, copy_topic, totals

Number = tuple[int, int]
"""A message: its producer's id, and its number there."""
_LIFE_SECONDS = 0.3
_CATCH_UP_SECONDS = 60.0


@scenario(
    "audit-many",
    "one message of so many lost, one doubled",
    small=300_000,
    nightly=10_000_000,
    release=10_000_000,
)
def lost_among_many(count: int, seed: int, directory: Path) -> Outcome:
    """Both in one window, so that its count is right; a copy without faults has none."""
    source, outcome = random.Random(seed), Outcome()
    lost, twice = source.sample(range(count), 2)
    options: dict[str, Any] = {"partitions": 2, "log_file_size": 256 * 2**20}
    with (
        fastlog.testing.broker(directory=directory / "source", **options) as first,
        fastlog.testing.broker(directory=directory / "target", **options) as second,
    ):
        fields: dict[str, Any] = {"queue_messages": 10**6, "batch_messages": 5000, "audit_window_ms": 2**31 - 1}
        with Producer(first.address, producer_type="async", audit_topic="audit", **fields) as producer:
            values = [b"%d" % number for number in range(1000)]
            for start in range(0, count, 1000):
                producer.send("t", values[: min(1000, count - start)])
        copy_topic(first.address, second.address, "t", lost=[lost], twice=[twice])
        copy_topic(first.address, second.address, "audit")
        for broker, expected in ((first, (0, count, count, 0, 0)), (second, (1, count, count, 1, 1))):
            code, rows, said = audit("--brokers", broker.address, timeout=600)
            sums = totals(rows)
            found = (code, sums["sent"], sums["received"], sums["missing"], sums["duplicates"])
            outcome.runs += 1
            outcome.expect(found == expected, f"{found} instead of {expected}: {said}")
    return outcome


@scenario(
    "audit-kills",
    "producers and counters killed, clocks minutes apart, messages lost",
    small=4,
    nightly=40,
    release=200,
)
def kills(count: int, seed: int, directory: Path) -> Outcome:
    """Kill ``count`` programs, then audit what is there, and a copy in which messages are missing and doubled."""
    source, outcome = random.Random(seed), Outcome()
    options: dict[str, Any] = {"partitions": 2}
    with (
        fastlog.testing.broker(directory=directory / "source", **options) as first,
        fastlog.testing.broker(directory=directory / "target", **options) as second,
        contextlib.ExitStack() as stack,
    ):
        told = [
            {"role": "producer", "address": first.address, "shift_ms": shift} for shift in (0, -420_000, 300_000)
        ] + [
            {"role": "counter", "address": first.address, "partition": number, "place": str(directory / f"at-{number}")}
            for number in range(2)
        ]
        crew = [_Program(stack, item) for item in told]
        _wait_reports(first, 3)
        for _ in range(count):
            time.sleep(source.uniform(0.0, _LIFE_SECONDS))
            source.choice(crew).kill_and_restart()
            outcome.runs += 1
        for member in crew[:3]:
            member.kill()
        _wait_counted(first, directory)
        for member in crew[3:]:
            member.kill()
        _check_whole(outcome, first)
        _check_damaged(outcome, source, first, second)
    return outcome


class _Program:
    """One of the programs; killed at the latest when the stack is closed."""

    def __init__(self, stack: contextlib.ExitStack, told: dict[str, Any]) -> None:
        self._command = [sys.executable, "-m", "tests.fault.audit_program", json.dumps(told)]
        self._start()
        stack.callback(self.kill)

    def _start(self) -> None:
        self._process = subprocess.Popen(self._command, cwd=ROOT, env=environment(), stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def kill_and_restart(self) -> None:
        self.kill()
        self._start()


def _ends(broker: RunningBroker, topic: str) -> dict[int, int]:
    with consumer_of(broker.address) as consumer:
        metadata = consumer.metadata([topic])
    assert metadata is not None
    return {item.partition: item.log_end for item in metadata.topics[0].partitions}


def _wait(what: str, holds: Any) -> None:
    deadline = time.monotonic() + _CATCH_UP_SECONDS
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def _wait_reports(broker: RunningBroker, producers: int) -> None:
    _wait("no reports", lambda: len({event.producer_id for event in _reports(broker)}) >= producers)


def _wait_counted(broker: RunningBroker, directory: Path) -> None:
    """Until the counters have committed everything."""

    def is_counted() -> bool:
        places = {number: directory / f"at-{number}" for number in range(2)}
        return all(
            places[number].exists() and int(places[number].read_text()) >= end
            for number, end in _ends(broker, "t").items()
        )

    _wait("the counters do not reach the end", is_counted)


def _payloads(broker: RunningBroker, topic: str) -> list[bytes]:
    """In the order of partitions, as ``copy_topic`` counts them."""
    with consumer_of(broker.address) as consumer:
        return [payload for number in sorted(_ends(broker, topic)) for payload in consumer.payloads(topic, number)]


def _reports(broker: RunningBroker) -> list[SentEvent]:
    found = {}
    for payload in _payloads(broker, "audit"):
        event = decode(payload)
        if isinstance(event, SentEvent):
            found[event.producer_id, event.seq] = event
    return list(found.values())


def _numbers(broker: RunningBroker) -> list[Number]:
    """Of all messages, read without anything of the audit."""
    found = []
    for payload in _payloads(broker, "t"):
        identity = reference.envelope(payload).deduplication_id
        assert identity is not None
        found.append((int.from_bytes(identity[1][1:9], "big"), int.from_bytes(identity[1][9:], "big")))
    return found


def _reported(broker: RunningBroker) -> set[Number]:
    found: set[Number] = set()
    for event in _reports(broker):
        found.update((event.producer_id, number) for number in range(event.first, event.last + 1))
        for low, high in event.failed:
            found.difference_update((event.producer_id, number) for number in range(low, high + 1))
    return found


def _check(outcome: Outcome, what: str, broker: RunningBroker, found: dict[str, int]) -> None:
    """The command says of a broker what sets and counters do."""
    there, reported = Counter(_numbers(broker)), _reported(broker)
    expected = {
        "sent": len(reported),
        "received": sum(there.values()),
        "missing": len(reported - there.keys()),
        "duplicates": sum(there.values()) - len(there),
        "unreported": len(there.keys() - reported),
        "pending": 0,
        "expired": 0,
    }
    outcome.expect(found == expected, f"{what}: {found} instead of {expected}")


def _check_whole(outcome: Outcome, broker: RunningBroker) -> None:
    code, rows, said = audit("--brokers", broker.address, "--grace", "0", timeout=120)
    _check(outcome, "source", broker, totals(rows))
    for stage in ("brokers", STAGE):
        sums = totals(rows, stage)
        outcome.expect(sums["sent"] > 0, f"nothing was audited at {stage}")
        outcome.expect((code, sums["missing"]) == (0, 0), f"false alarm at {stage}: {sums} {said}")


def _check_damaged(outcome: Outcome, source: random.Random, first: RunningBroker, second: RunningBroker) -> None:
    numbers, reported = _numbers(first), _reported(first)
    there = Counter(numbers)
    candidates = [index for index, number in enumerate(numbers) if number in reported and there[number] == 1]
    chosen = source.sample(candidates, 20)
    copy_topic(first.address, second.address, "t", lost=chosen[:10], twice=chosen[10:])
    copy_topic(first.address, second.address, "audit")
    code, rows, _ = audit("--brokers", second.address, timeout=120)
    found = totals(rows)
    _check(outcome, "damaged copy", second, found)
    outcome.expect((code, found["missing"]) == (1, 10), f"10 were lost, the audit says {found}, exit code {code}")
    named = {
        (gap["producer_id"], number)
        for row in rows
        for gap in row["gaps"]
        for number in range(gap["first"], gap["last"] + 1)
    }
    outcome.expect(named == {numbers[index] for index in chosen[:10]}, f"the audit names {named}")
