"""What is measured of each side: its own commands against its own broker, whose files are gone afterwards.

Only what a checkout offers its users is called (the commands' names, options and JSON, and the public API), so that
one driver serves checkouts of other times.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perf import interrupts
from perf.ab.checkouts import Checkout, CheckoutError, SideBroker
from perf.figures.results import Better, Run
from perf.replay.scenarios import PAGE_CACHE
from perf.replay.stage import ENTRY_BYTES, MESSAGE_BYTES, warm_memory

TOPIC = "ab"
BATCH = 50
TOPICS = 100
LATENCY_RATE = 10_000
LATENCY_SECONDS = 5
CLIENT_SECONDS = 900.0
ROTATING = """
import json, sys, time
import fastlog
port, topics, messages, batch, size = map(int, sys.argv[1:])
payloads = [bytes([i % 251]) * size for i in range(batch)]
with fastlog.Producer(f"127.0.0.1:{port}", producer_type="async", acks="appended", batch_messages=batch) as producer:
    for topic in range(topics):
        producer.send(f"ab-{topic}", payloads)
    producer.flush()
    started = time.perf_counter()
    for i in range(messages // batch):
        producer.send(f"ab-{i % topics}", payloads)
    producer.flush()
    seconds = time.perf_counter() - started
print(json.dumps({"complete": True, "messages_per_second": messages // batch * batch / seconds}))
"""
"""Lists of ``batch`` messages to the next of the topics each time, acknowledged."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One thing to measure. ``share`` of the messages; ``takes`` names the figure in what the command prints."""

    name: str
    title: str
    section: str
    script: str = "producer-perf"
    options: tuple[str, ...] = ()
    share: float = 1.0
    unit: str = "messages/s"
    better: Better = "higher"
    takes: tuple[str, ...] = ("messages_per_second",)
    settings: Mapping[str, object] = field(default_factory=lambda: PAGE_CACHE)

    def messages(self, messages: int) -> int:
        """How many of this step, whole batches."""
        return max(BATCH, int(messages * self.share) // BATCH * BATCH)

    def run(self, side: Checkout, messages: int, scratch: Path) -> Run:
        """Measure it once: with as much memory touched and freed before as it will write, on a broker of its own.

        Raises:
            CheckoutError: a command failed, or not every message arrived.
        """
        count = self.messages(messages)
        warm_memory(count * ENTRY_BYTES * 5 // 4)
        with broker_of(side, scratch, self.settings) as broker:
            found = self.drive(side, broker, count)
            broker.stop()
        return Run(value=found)

    def drive(self, side: Checkout, broker: SideBroker, count: int) -> float:
        """Run the command against a broker, filled before where it reads."""
        if self.script == "consumer-perf":
            _run(side, "producer-perf", broker, count, ("--how", "list", "--acks", "flushed"))
        if self.script == "rotating":
            arguments = [str(number) for number in (broker.port, TOPICS, count, BATCH, MESSAGE_BYTES)]
            answer = _json([sys.executable, "-c", ROTATING, *arguments], side)
        else:
            answer = _run(side, self.script, broker, count, self.options)
        value: Any = answer
        for name in self.takes:
            value = value[name]
        return float(value)


STEPS = (
    Step(name="produce-send", title="send() per message, requests of 50", section="producer"),
    Step(name="produce-list", title="lists of 50", section="producer", options=("--how", "list")),
    Step(name="produce-1", title="requests of one message, pipelined", section="producer",
         options=("--batch-size", "1")),
    Step(name="produce-flushed", title="send(), requests of 50, acknowledged when flushed", section="producer",
         options=("--acks", "flushed")),
    Step(name="topics-100", title=f"lists of 50 to {TOPICS} topics in turn, acknowledged when appended",
         section="producer", script="rotating", share=0.5),
    Step(name="consume-payloads", title="payloads one by one", section="consumer", script="consumer-perf"),
    Step(name="consume-lists", title="lists of payloads", section="consumer", script="consumer-perf",
         options=("--mode", "batches")),
    Step(name="consume-numpy", title="numpy arrays", section="consumer", script="consumer-perf",
         options=("--mode", "numpy")),
    Step(name="consume-files", title="the broker's files, mapped", section="consumer", script="consumer-perf",
         options=("--mode", "map")),
    Step(name="latency", title=f"median until flushed, {LATENCY_RATE:,} messages/s, one by one", section="latency",
         options=("--batch-size", "1", "--acks", "flushed", "--rate", str(LATENCY_RATE), "--latency",
                  "--messages", str(LATENCY_RATE * LATENCY_SECONDS)),
         unit="ms", better="lower", takes=("latency_ms", "p50"), settings={}),
)  # fmt: skip


@contextmanager
def broker_of(
    side: Checkout, scratch: Path, settings: Mapping[str, object], prefix: tuple[str, ...] = ()
) -> Iterator[SideBroker]:
    with (
        tempfile.TemporaryDirectory(dir=scratch, prefix="ab-") as place,
        SideBroker(side, Path(place), settings=settings, prefix=prefix) as broker,
    ):
        yield broker


def _run(side: Checkout, script: str, broker: SideBroker, count: int, options: tuple[str, ...]) -> dict[str, Any]:
    place = ["--brokers", f"127.0.0.1:{broker.port}", "--topic", TOPIC, "--json"]
    if script == "producer-perf":
        place += ["--message-size", str(MESSAGE_BYTES), "--batch-size", str(BATCH)]
    # what is given twice counts as it stands last
    return _json([*side.command(script), *place, "--messages", str(count), *options], side)


def _json(command: list[str], side: Checkout) -> dict[str, Any]:
    try:
        run = subprocess.run(
            command,
            env={**os.environ, **side.environment()},
            cwd=side.path,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=CLIENT_SECONDS,
            check=False,
            start_new_session=True,
            preexec_fn=interrupts.die_with_parent,
        )
    except subprocess.TimeoutExpired:
        raise CheckoutError(f"{side}: no result within {CLIENT_SECONDS:g} s") from None
    lines = run.stderr.decode(errors="replace").strip().splitlines()
    if run.returncode:
        raise CheckoutError(f"{side}: {lines[-1] if lines else f'ended with {run.returncode}'}")
    found: dict[str, Any] = json.loads(run.stdout)
    if not found["complete"]:
        raise CheckoutError(f"{side}: not every message arrived: {found.get('error')}")
    return found
