"""T-25: a broker that lies. Clients raise what they declare, in bounded time and memory, and invent nothing."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fastlog import EARLIEST, LATEST, Producer, SimpleConsumer
from fastlog.client.connection import Broker
from fastlog.errors import FastlogError
from fastlog.message import DeepLimits
from fastlog.producer.hooks import Delivery
from tests.fault.registry import Outcome, scenario
from tests.harness import raw_client as raw
from tests.harness.hostile_answers import POISON
from tests.harness.hostile_broker import HostileBroker, known_payloads
from tests.harness.logs import write_segments
from tests.harness.timing import PATIENCE

MOST_CALL_SECONDS = 30.0
"""For calls whose time-outs add up to a few tenths of a second, on a machine that does other things as well."""
HANG_SECONDS = 600.0
MOST_GROWTH_BYTES = 200 * 2**20
FEW_RAISED = 5
LIMITS = DeepLimits(max_inflated_bytes=2**22, max_messages=100_000)
TIMEOUT = 0.04
ROUND = 10_000
SHARES = (("consumer", 0.4), ("old consumer", 0.3), ("producer", 0.1), ("producer", 0.1), ("probe", 0.1))


@scenario(
    "hostile-broker", "answers that lie, to consumers and producers", small=10_000, nightly=1_000_000, release=10**7
)
def hostile_broker(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` lies, in rounds; each kind of client has a thread and a broker of its own."""
    import numpy  # noqa: F401
    import pyarrow  # noqa: F401 - the time that the first import takes is not that of a call

    known_payloads()  # nor what is prepared once
    outcome = Outcome()
    decoy = directory / "t-0"
    decoy.mkdir()
    write_segments(decoy, [raw.message_set([POISON] * 100)])
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    try:
        while outcome.runs < count:
            wanted = min(ROUND, count - outcome.runs)
            _round(outcome, f"{seed} round {outcome.runs // ROUND}", wanted, str(decoy))
    finally:
        faulthandler.cancel_dump_traceback_later()
    return outcome


def _round(outcome: Outcome, seed: str, count: int, decoy: str) -> None:
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = _peak_bytes()
    lanes = [
        _LANES[name](f"{seed} {name} {number}", round(share * count), decoy)
        for number, (name, share) in enumerate(SHARES)
    ]
    threads = [threading.Thread(target=lane.run, daemon=True) for lane in lanes]
    for thread in threads:
        thread.start()
    for lane, thread in zip(lanes, threads, strict=True):
        thread.join()
        outcome.runs += lane.lies
        outcome.violations += [f"{lane.seed}: {line}" for line in lane.violations]
        outcome.expect(lane.worked > 0, f"{lane.seed}: nothing ever worked: {lane.raised}")
        # a producer that sends again raises little of what it is told
        several = len(lane.raised) > 1 or lane.raised.total() < FEW_RAISED
        outcome.expect(several, f"{lane.seed}: only {lane.raised} was raised")
    grown = _peak_bytes() - before
    outcome.expect(grown < MOST_GROWTH_BYTES, f"{seed}: memory grew by {grown >> 20} MiB")
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)


class _Lane(ABC):
    """One client after the other, until its broker has told so many lies."""

    own = True
    truth = 0.3
    metadata_truth = 0.7

    def __init__(self, seed: str, count: int, decoy: str) -> None:
        self.seed = seed
        self.violations: list[str] = []
        self.raised: Counter[str] = Counter()
        self.worked = 0
        self.lies = 0
        self._count = count
        self._decoy = decoy
        self._random = random.Random(seed)

    def run(self) -> None:
        hostile = HostileBroker(
            self._random.getrandbits(32),
            own=self.own,
            truth=self.truth,
            metadata_truth=self.metadata_truth,
            decoy=self._decoy,
        )
        try:
            with hostile:
                while hostile.lies < self._count:
                    self._session(hostile)
                    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        except BaseException as error:
            self.violations.append(f"not an error of fastlog: {error!r}")
            if not isinstance(error, Exception):
                raise
        self.lies = hostile.lies

    @abstractmethod
    def _session(self, hostile: HostileBroker) -> None:
        """One conversation with the broker that lies."""

    def _call(self, what: str, call: Callable[[], object]) -> None:
        started = time.monotonic()
        try:
            call()
            self.worked += 1
        except FastlogError as error:
            self.raised[type(error).__name__] += 1
        except Exception as error:
            self.violations.append(f"{what} raised {error!r}")
        seconds = time.monotonic() - started
        if seconds > MOST_CALL_SECONDS:
            self.violations.append(f"{what} took {seconds:.1f} s")


class _ConsumerLane(_Lane):
    def _session(self, hostile: HostileBroker) -> None:
        choose = self._random.choice
        with SimpleConsumer(
            "127.0.0.1",
            hostile.port,
            timeout=TIMEOUT,
            fetch_bytes=choose([10, 1000, 10**6]),
            local=choose(["off", "off", "read", "map"]),
            limits=LIMITS,
        ) as consumer:
            calls: dict[str, Callable[[], object]] = {
                "fetch": lambda: self._check(consumer.fetch("t", 0, 7), 7),
                "fetch wait": lambda: self._check(consumer.fetch("t", 0, 0, wait=0.01), 0),
                "shallow": lambda: self._check(consumer.fetch("t", 0, 0).shallow(), 0),
                "arrow": lambda: self._check_payloads(consumer.fetch_arrow("t", 0, 0).column("payload").to_pylist()),
                "multifetch": lambda: self._check_parts(consumer),
                "offsets": lambda: self._check_offsets(consumer.get_offsets_before("t", 0, LATEST, 3), 3),
                "messages": lambda: self._check(_first(consumer.messages("t", 0, EARLIEST), 60_000), 0),
                "shallow messages": lambda: self._check(_first(consumer.messages("t", 0, 0, shallow=True), 1000), 0),
                "batches": lambda: [
                    self._check_payloads(batch) for batch in _first(consumer.batches("t", 0, 0, wait=0.01), 20)
                ],
                "numpy": lambda: [
                    self._check_payloads(batch.payload(number) for number in range(min(len(batch), 50)))
                    for batch in _first(consumer.numpy_batches("t", 0, 0), 20)
                ],
            }
            for _ in range(10):
                name = choose(list(calls))
                self._call(name, calls[name])

    def _check_parts(self, consumer: SimpleConsumer) -> None:
        parts = consumer.multifetch([("t", 0, 0), ("t", 0, 5)])
        if len(parts) != 2:
            self.violations.append(f"a multifetch of 2 gives {len(parts)}")
        for part, offset in zip(parts, (0, 5), strict=False):
            self._check(part, offset)

    def _check(self, messages: Iterable[object], offset: int) -> None:
        for message in messages:
            if not offset <= message.offset <= message.next_offset:  # type: ignore[attr-defined]
                self.violations.append(f"{message} behind offset {offset}")
            offset = message.offset  # type: ignore[attr-defined]
            self._check_payloads([message.payload])  # type: ignore[attr-defined]

    def _check_payloads(self, payloads: Iterable[bytes]) -> None:
        self.violations += [
            f"invented message {payload[:50]!r}" for payload in payloads if payload not in known_payloads()
        ]

    def _check_offsets(self, offsets: list[int], most: int) -> None:
        if len(offsets) > most:
            self.violations.append(f"{len(offsets)} offsets where {most} were asked for")


class _OldConsumerLane(_ConsumerLane):
    own = False


class _ProducerLane(_Lane):
    """What counts as delivered was acknowledged by an answer that says so, for this very request."""

    truth = 0.55
    metadata_truth = 0.85

    def __init__(self, seed: str, count: int, decoy: str) -> None:
        super().__init__(seed, count, decoy)
        self._number = 0

    def _session(self, hostile: HostileBroker) -> None:
        choose = self._random.choice
        acks = choose(["appended", "appended", "appended", "flushed", None, "none"])
        kind = choose(["async", "async", "sync"])
        sent: list[bytes] = []
        delivered: set[bytes] = set()
        settled: Counter[bytes] = Counter()
        producer = Producer(
            hostile.address,
            producer_type=kind,
            acks=acks,
            compression=choose(["none", "none", "gzip", "snappy"]),
            batch_messages=choose([1, 1, 3, 10]),
            queue_time_ms=5,
            queue_messages=200,
            connect_timeout_ms=60,
            socket_timeout_ms=30,
            delivery_timeout_ms=80,
            close_timeout_ms=500,
        )

        def send() -> None:
            self._number += 1
            payload = b"%d" % self._number

            def note(delivery: Delivery) -> None:
                settled[payload] += delivery.messages
                if delivery.error is None:
                    delivered.add(payload)

            key = choose([None, None, b"key"])
            if kind == "sync":
                producer.send("t", payload, key=key)
                delivered.add(payload)
                return
            producer.send("t", payload, key=key, on_delivery=note)
            sent.append(payload)

        for _ in range(choose([5, 40]) if kind == "sync" else 60):
            self._call("send", send)
            if len(self.violations) > 100:
                break
        self._call("flush", lambda: producer.flush(0.2))
        self._call("close", lambda: producer.close(0.5))
        deadline = time.monotonic() + PATIENCE
        while not all(settled[payload] for payload in sent) and time.monotonic() < deadline:
            time.sleep(
                0.01
            )  # one that the producer's thread has in its hands when the time is over comes a little later
        self.violations += [
            f"{payload!r} was settled {settled[payload]} times" for payload in sent if settled[payload] != 1
        ]
        if acks in ("appended", "flushed"):
            invented = delivered - hostile.acknowledged
            self.violations += [f"{payload!r} counts as delivered and was not acknowledged" for payload in invented]
        hostile.acknowledged.clear()


class _ProbeLane(_Lane):
    """Metadata, and the question whether a broker speaks more than 0.7."""

    metadata_truth = 0.3

    def __init__(self, seed: str, count: int, decoy: str) -> None:
        super().__init__(seed, count, decoy)
        self._ids: set[int] = set()

    def _session(self, hostile: HostileBroker) -> None:
        broker = Broker(hostile.address, TIMEOUT)
        for _ in range(10):
            self._call("metadata", lambda: self._check(broker, self._random.choice([None, (), ("t",)])))

    def _check(self, broker: Broker, topics: tuple[str, ...] | None) -> None:
        answer = broker.metadata_or_none(topics)
        if answer is not None:
            self._ids.add(answer.correlation_id)  # each is asked for on a connection of its own, with the same one
            if len(self._ids) > 1:
                self.violations.append(f"metadata of another request: {self._ids}")


_LANES: dict[str, type[_Lane]] = {
    "consumer": _ConsumerLane,
    "old consumer": _OldConsumerLane,
    "producer": _ProducerLane,
    "probe": _ProbeLane,
}


def _first(found: Iterator[object], most: int) -> Iterator[object]:
    with contextlib.closing(found):  # type: ignore[type-var]
        for number, item in enumerate(found):
            if number >= most:
                return
            yield item


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
