"""Load by idempotent producers that send again until they are answered, and what a log must hold then.

A producer numbers its batches for each partition, has up to five of one under way, and sends again what was not
answered, byte for byte and in its order, over whatever connection it gets. In the end all are acknowledged, so the
records of each producer are in each partition without a gap, a copy or a change of order, and each at the offset that
was answered.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.harness import raw_records, stored_batches, today
from tests.harness.batch_load import PRODUCE_VERSION, Client, Place
from tests.harness.timing import PATIENCE

UNDER_WAY = 5
INIT_PRODUCER_ID = 22
OUT_OF_SEQUENCE = 45
RETRIABLE = {3, 5, 6, 7, 19, 56}
SHOWN_VIOLATIONS = 5
PAUSE_SECONDS = 0.002


@dataclass
class Sent:
    """A batch that was sent and is not answered yet."""

    data: bytes
    first: int
    count: int


class NumberedLoad:
    """Producers run against ``places`` while the ``with`` block lasts, which ends when all is acknowledged.

    ``port`` says where to connect now, ``records`` how many each producer sends at least; 0: until the block ends.
    """

    def __init__(
        self,
        port: Callable[[], int],
        places: Sequence[Place],
        *,
        acks: int,
        producers: int = 3,
        records: int = 0,
        largest_batch: int = 8,
        seed: int = 1,
    ) -> None:
        self.places = list(places)
        self.acks = acks
        self.lost_connections = 0
        self.violations: list[str] = []
        self.acked: dict[Place, dict[int, tuple[int, int, int]]] = defaultdict(dict)
        """By base offset: producer id, number of the first record, records."""
        self.ends: dict[tuple[Place, int], int] = {}
        """How many records a producer has sent to a place."""
        self._port = port
        self._records = records
        self._largest = largest_batch
        self._seed = seed
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._answered = 0
        self._threads = [
            threading.Thread(target=self._guarded, args=(number,), daemon=True) for number in range(producers)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._records = 0
        if not self._records:
            self._stop.set()
        for thread in self._threads:
            while thread.is_alive():
                before = self._answered
                thread.join(PATIENCE)
                assert not thread.is_alive() or self._answered > before, "a producer hangs"
        if kind is None and self._failures:
            raise self._failures[0]

    def wait_acked(self, more: int) -> None:
        """Wait until ``count`` further batches were acknowledged."""
        wanted, deadline = self._answered + more, time.monotonic() + PATIENCE
        while self._answered < wanted:
            assert not self._failures, self._failures[0]
            assert time.monotonic() < deadline, f"not {more} acknowledged batches in time"
            time.sleep(PAUSE_SECONDS)

    def check(self, segments: Callable[[Place], Iterable[Path]]) -> list[str]:
        """One line for each broken promise, given the segment files of each partition in order."""
        found = list(self.violations)
        for place in self.places:
            lines: list[str] = []
            following: dict[int, int] = defaultdict(int)
            offset = 0
            for path in segments(place):
                for one in stored_batches.batches(path.read_bytes()):
                    producer = int.from_bytes(one.data[43:51], "big", signed=True)
                    count = one.last - one.base + 1
                    records, _, _ = raw_records.decode(one.data[61:], count)
                    first = following[producer]
                    expected = [b"%d" % number for number in range(first, first + count)]
                    if one.base != offset:
                        lines.append(f"a batch at {one.base}, expected at {offset}")
                    if [record.value for record in records] != expected:
                        lines.append(f"producer {producer} at {one.base}: {records[0].value!r}, expected {first}")
                    told = self.acked[place].pop(one.base, None)
                    if told != (producer, first, count):
                        lines.append(f"producer {producer} at {one.base}: {told} was acknowledged")
                    following[producer] = first + count
                    offset = one.last + 1
            lines += [f"acknowledged and not there: {base}" for base in self.acked[place]]
            for (where, producer), end in self.ends.items():
                if where == place and following[producer] != end:
                    lines.append(f"producer {producer}: {following[producer]} of {end} records")
            found += [f"{place[0]}-{place[1]}: {line}" for line in lines[:SHOWN_VIOLATIONS]]
        return found

    # -- a producer ----------------------------------------------------------------------------------------------------

    def _guarded(self, number: int) -> None:
        try:
            self._produce(random.Random(f"{self._seed} {number}"))
        except BaseException as error:
            self._failures.append(error)

    def _connect(self) -> Client:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return Client(self._port())
            except (OSError, EOFError):
                assert time.monotonic() < deadline, "no connection in time"
                time.sleep(PAUSE_SECONDS)

    def _new_id(self) -> int:
        """What InitProducerId gives, asked again until it does."""
        deadline = time.monotonic() + PATIENCE
        while True:
            assert time.monotonic() < deadline, "no producer id in time"
            client = self._connect()
            try:
                answer = client.ask(INIT_PRODUCER_ID, 0, transactional_id=None, transaction_timeout=today.seconds(60))
                if not answer.error_code:
                    return int(answer.producer_id)
            except (OSError, EOFError):
                time.sleep(PAUSE_SECONDS)
            finally:
                client.close()

    def _produce(self, source: random.Random) -> None:
        producer = self._new_id()
        following = dict.fromkeys(self.places, 0)
        waiting: dict[Place, deque[Sent]] = {place: deque() for place in self.places}
        client = None
        while True:
            done = self._stop.is_set() or (self._records and sum(following.values()) >= self._records)
            for place in self.places:
                while not done and len(waiting[place]) < UNDER_WAY and source.random() < 0.7:
                    first, count = following[place], source.randrange(1, self._largest + 1)
                    values = [b"%d" % number for number in range(first, first + count)]
                    now_ms = time.time_ns() // 1_000_000  # an older one would not be retained
                    data = stored_batches.batch(*values, time_ms=now_ms, producer_id=producer, sequence=first)
                    waiting[place].append(Sent(data, first, count))
                    following[place] += count
            if done and not any(waiting.values()):
                break
            client = client or self._connect()
            try:
                self._round(client, producer, waiting, source)
            except (OSError, EOFError):
                client.close()
                client = None
                with self._lock:
                    self.lost_connections += 1
        if client is not None:
            client.close()
        with self._lock:
            self.ends.update({((place), producer): end for place, end in following.items()})

    def _round(self, client: Client, producer: int, waiting: dict[Place, deque[Sent]], source: random.Random) -> None:
        """Send all that waits, some of it twice, and take the answers; a place goes on only in its order."""
        order = [place for place in self.places for _ in waiting[place]]
        source.shuffle(order)
        taken = dict.fromkeys(self.places, 0)
        sent: list[tuple[Place, Sent]] = []
        for place in order:
            sent.append((place, waiting[place][taken[place]]))
            taken[place] += 1
            if source.random() < 0.05:
                sent.append((place, waiting[place][source.randrange(taken[place])]))
        frames = [
            today.request(
                today.PRODUCE, PRODUCE_VERSION, today.produced((*place, one.data), acks=self.acks), correlation=number
            )
            for number, (place, one) in enumerate(sent)
        ]
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sender = threading.Thread(target=_send, args=(client.socket, b"".join(frames)), daemon=True)
        sender.start()
        failed: set[Place] = set()
        try:
            for number, (place, one) in enumerate(sent):
                correlation, answer = today.decoded(today.PRODUCE, PRODUCE_VERSION, today.answer_of(client.socket))
                assert correlation == number
                (part,) = answer.responses[0].partition_responses
                self._take(place, one, producer, int(part.error_code), int(part.base_offset), waiting[place], failed)
        finally:
            sender.join(PATIENCE)

    def _take(
        self,
        place: Place,
        one: Sent,
        producer: int,
        error: int,
        base: int,
        waiting: deque[Sent],
        failed: set[Place],
    ) -> None:
        with self._lock:
            if error:
                if error != OUT_OF_SEQUENCE or place not in failed:
                    if error not in RETRIABLE:
                        self.violations.append(f"{place}: number {one.first} of producer {producer}: error {error}")
                    time.sleep(PAUSE_SECONDS)
                failed.add(place)
                return
            self._answered += 1
            known = self.acked[place].setdefault(base, (producer, one.first, one.count))
            if known != (producer, one.first, one.count):
                self.violations.append(f"{place}: two batches at {base}")
            if waiting and waiting[0] is one:
                waiting.popleft()
            elif one in waiting:
                self.violations.append(f"{place}: number {one.first} of producer {producer} overtook another")


def _send(connection: socket.socket, data: bytes) -> None:
    """What is lost with the connection is noticed by whoever waits for answers."""
    with contextlib.suppress(OSError):
        connection.sendall(data)
