"""Load by today's protocol for a broker that is being hurt, and what its log must hold in the end.

A producer never sends a record again, so that each lies in the log at most once. What is checked, with offsets that
count records: an acknowledged record is at its offset; what a consumer was shown stays there and is the same for all;
each sender's records are in its order, none twice, none invented; the high watermark that somebody saw never goes back.
"""

from __future__ import annotations

import gzip
import random
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any, Self

from tests.harness import raw_records, stored_batches, today
from tests.harness.broker import Broker
from tests.harness.timing import PATIENCE

Place = tuple[str, int]
ANSWER_SECONDS = 60.0
PRODUCE_VERSION, FETCH_VERSION, METADATA_VERSION = 9, 12, 9
SHOWN_VIOLATIONS = 5
GZIP = 1


class Client:
    """One connection that speaks today's protocol from its first request on."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.ask(today.API_VERSIONS, 3, client_software_name="test", client_software_version="1")
        except BaseException:
            self.close()
            raise

    def ask(self, key: int, version: int, **fields: Any) -> Any:
        return today.asked(self.socket, key, version, **fields)

    def make_topic(self, topic: str) -> int:
        """Have a topic made by asking for it; its number of partitions."""
        deadline = time.monotonic() + PATIENCE
        while True:
            fields = {
                "topics": [{"topic_id": None, "name": topic}],
                "allow_auto_topic_creation": True,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            }
            (found,) = self.ask(today.METADATA, METADATA_VERSION, **fields).topics
            if not found.error_code:
                return len(found.partitions)
            assert time.monotonic() < deadline, found.error_code
            time.sleep(0.01)

    def produce(self, place: Place, batch: bytes, acks: int) -> tuple[int, int]:
        """Produce a batch; returns error code and base offset."""
        answer = self.ask(today.PRODUCE, PRODUCE_VERSION, **today.produced((*place, batch), acks=acks))
        (part,) = answer.responses[0].partition_responses
        return int(part.error_code), part.base_offset

    def fetch(self, place: Place, offset: int, wait_ms: int) -> tuple[int, int, bytes]:
        """Error code, high watermark, batches."""
        answer = self.ask(
            today.FETCH, FETCH_VERSION, **today.fetched((*place, offset), max_wait=wait_ms, limit=1 << 18)
        )
        (part,) = answer.responses[0].partitions
        return int(part.error_code), part.high_watermark, bytes(part.records or b"")

    def close(self) -> None:
        self.socket.close()


def records_of(data: bytes) -> list[tuple[int, bytes]]:
    """Offset and value of the records of whole batches, each checked; what follows the last whole one is left out."""
    found = []
    position = 0
    while position + 12 <= len(data):
        end = position + 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        if end > len(data):
            break
        (head,) = stored_batches.batches(data[position:end])
        count = head.last - head.base + 1
        stored = data[position + 61 : end]
        if data[position + 22] & 7 == GZIP:
            stored = gzip.decompress(stored)
        records, _, _ = raw_records.decode(stored, count)
        found += [(head.base + delta, record.value or b"") for delta, record in enumerate(records)]
        position = end
    return found


class BatchLoad:
    """Runs producers and consumers against ``places`` while the ``with`` block lasts; ``acks`` 1 or -1."""

    def __init__(
        self,
        broker: Broker,
        places: Sequence[Place],
        *,
        acks: int,
        producers: int = 2,
        consumers: int = 2,
        seed: int = 1,
        may_answer: Collection[int] = (0,),
    ) -> None:
        """``may_answer``: the codes that a fetch may have; what is asked for is asked for again."""
        self.may_answer = may_answer
        self.broker = broker
        self.places = list(places)
        self.acks = acks
        self.seed = seed
        self.lost_connections = 0
        self.errors: list[int] = []
        self.acked: dict[Place, dict[int, bytes]] = defaultdict(dict)
        self.shown: dict[Place, dict[int, bytes]] = defaultdict(dict)
        self.violations: list[str] = []
        self._ends: dict[Place, int] = defaultdict(int)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [self._thread(self._produce, number) for number in range(producers)]
        self._threads += [self._thread(self._consume, number) for number in range(consumers)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(ANSWER_SECONDS + 5)
            assert not thread.is_alive(), "a load thread hangs"
        if kind is None and self._failures:
            raise self._failures[0]

    def acked_count(self) -> int:
        with self._lock:
            return sum(len(records) for records in self.acked.values())

    def end_of(self, place: Place) -> int:
        """The offset behind the last record that was acknowledged."""
        with self._lock:
            return max(self.acked[place], default=-1) + 1

    def wait_acked(self, more: int) -> None:
        """Wait until ``count`` further records were acknowledged."""
        wanted = self.acked_count() + more
        deadline = time.monotonic() + PATIENCE
        while self.acked_count() < wanted:
            assert not self._failures, self._failures[0]
            assert time.monotonic() < deadline, f"not {more} acknowledged records in time; errors {self.errors[-5:]}"
            time.sleep(0.002)

    def check(self, stored: dict[Place, bytes]) -> list[str]:
        """One line for each broken promise, given the bytes of all segments of each partition."""
        found = list(self.violations)
        for place in self.places:
            log = records_of(stored[place])
            by_offset = dict(log)
            lines = []
            if [offset for offset, _ in log] != list(range(len(log))):
                lines.append("offsets are not dense")
            values = [value for _, value in log]
            if len(set(values)) != len(values):
                lines.append("a record is there twice")
            for what, known in (("acknowledged", self.acked[place]), ("shown", self.shown[place])):
                lines += [
                    f"{what} at {offset} and not there: {value[:30]!r}"
                    for offset, value in known.items()
                    if by_offset.get(offset) != value
                ]
            last: dict[bytes, int] = {}
            for value in values:
                sender, number, _ = value.split(b" ", 2)
                if int(number) <= last.get(sender, -1):
                    lines.append(f"out of its sender's order: {value[:30]!r}")
                last[sender] = int(number)
            found += [f"{place[0]}-{place[1]}: {line}" for line in lines[:SHOWN_VIOLATIONS]]
        return found

    def _thread(self, target: Any, number: int) -> threading.Thread:
        return threading.Thread(target=self._guarded, args=(target, number), daemon=True)

    def _guarded(self, target: Any, number: int) -> None:
        try:
            target(number)
        except BaseException as error:
            self._failures.append(error)

    def _connect(self) -> Client | None:
        while not self._stop.is_set():
            try:
                return Client(self.broker.port)
            except (OSError, EOFError):
                time.sleep(0.002)
        return None

    def _lost(self, client: Client) -> None:
        client.close()
        with self._lock:
            self.lost_connections += 1

    def _produce(self, number: int) -> None:
        source = random.Random(f"{self.seed} producer {number}")
        sent = 0
        client = None
        while not self._stop.is_set():
            client = client or self._connect()
            if client is None:
                return
            place = source.choice(self.places)
            values = []
            for _ in range(source.randrange(1, 8)):
                values.append(b"p%d %d " % (number, sent) + b"x" * source.randrange(60))
                sent += 1
            try:
                error, base = client.produce(place, stored_batches.batch(*values), self.acks)
            except TimeoutError:
                raise AssertionError(f"producer {number}: no answer within {ANSWER_SECONDS} s") from None
            except (OSError, EOFError):
                self._lost(client)
                client = None
                continue
            with self._lock:
                if error:
                    self.errors.append(error)
                else:
                    self.acked[place].update(enumerate(values, base))
            self._stop.wait(0.0005 if not error else 0.01)
        if client is not None:
            client.close()

    def _consume(self, number: int) -> None:
        source = random.Random(f"{self.seed} consumer {number}")
        offsets = dict.fromkeys(self.places, 0)
        client = None
        while not self._stop.is_set():
            client = client or self._connect()
            if client is None:
                return
            place = source.choice(self.places)
            if source.random() < 0.02:
                offsets[place] = 0
            elif source.random() < 0.05:  # anywhere, also inside a batch
                offsets[place] = source.randrange(offsets[place] + 1)
            with self._lock:
                known = self._ends[place]
            try:
                error, end, data = client.fetch(place, offsets[place], 20)
            except TimeoutError:
                raise AssertionError(f"consumer {number}: no answer within {ANSWER_SECONDS} s") from None
            except (OSError, EOFError):
                self._lost(client)
                client = None
                continue
            assert error in self.may_answer, f"consumer {number}: {place} at {offsets[place]} answered {error}"
            if error:
                continue
            found = records_of(data)
            with self._lock:
                if end < known:
                    self.violations.append(f"{place}: the high watermark went back from {known} to {end}")
                self._ends[place] = max(self._ends[place], end)
                for offset, value in found:
                    if self.shown[place].setdefault(offset, value) != value:
                        self.violations.append(f"{place}: two records at {offset}")
                    if offset >= end:
                        self.violations.append(f"{place}: record {offset} at or behind the high watermark {end}")
            wanted = [offset for offset, _ in found if offset >= offsets[place]]
            if found and (not wanted or wanted[0] != offsets[place]):
                self.violations.append(f"{place}: asked for {offsets[place]}, got {found[0][0]} to {found[-1][0]}")
            if wanted:
                offsets[place] = wanted[-1] + 1
        if client is not None:
            client.close()
