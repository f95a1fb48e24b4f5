"""Load for a broker that is being hurt: threads that send and read, and write down what happened in a history.

A producer never sends a message again, so that each lies in the log at most once; a consumer goes on where it was, and
now and then reads from the beginning, to see that nothing changed. Both reconnect when they lose their connection.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Self

from tests.harness import raw_client as raw
from tests.harness.broker import Broker
from tests.harness.history import History, Place
from tests.harness.timing import PATIENCE

ANSWER_SECONDS = 60.0
FILL_BYTES = 4 << 20


def filled(broker: Broker, topic: str, size: int, payload: bytes = bytes(1000)) -> int:
    """Writes about ``size`` flushed bytes to partition 0 and returns the end."""
    entry = raw.entry(payload)
    messages = entry * max(1, min(size, FILL_BYTES) // len(entry))
    end = 0
    with broker.connect(timeout=30) as client:
        while end < size:
            answer = client.produce_ack(topic, 0, messages, raw.FLUSHED)
            assert answer.error == 0
            end = answer.next_offset
    return end


class Load:
    """Runs producers and consumers against ``places`` while the ``with`` block lasts.

    ``acks``: raw.APPENDED or raw.FLUSHED. ``compressed``: the share of batches that are. ``pause``: seconds each
    producer rests after an answer. Places may be added while it runs.
    """

    def __init__(
        self,
        broker: Broker,
        places: Sequence[Place],
        *,
        producers: int = 2,
        consumers: int = 2,
        acks: int = raw.APPENDED,
        batch: int = 5,
        size: int = 40,
        compressed: float = 0.0,
        pause: float = 0.0005,
        seed: int = 1,
        history: History | None = None,
        name: str = "p",
    ) -> None:
        self.broker = broker
        self.places = list(places)
        self.acks = acks
        self.batch = batch
        self.size = size
        self.compressed = compressed
        self.pause = pause
        self.seed = seed
        self.history = history or History()
        self.name = name
        self.errors: Counter[int] = Counter()
        self.lost_connections = 0
        self.longest_answer = 0.0
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
        self.stop(raise_failures=kind is None)

    def stop(self, *, raise_failures: bool = True) -> None:
        """Ends all threads; raises what one of them did not expect."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(ANSWER_SECONDS + 5)
                assert not thread.is_alive(), "a load thread hangs"
        if raise_failures and self._failures:
            raise self._failures[0]

    def wait_acked(self, more: int, within: float = PATIENCE) -> None:
        """Returns once ``more`` further answers came."""
        wanted = self.history.acked_count() + more
        deadline = time.monotonic() + within
        while self.history.acked_count() < wanted:
            assert time.monotonic() < deadline, f"not {more} answers within {within} s"
            assert not self._failures, self._failures[0]
            time.sleep(0.002)

    # --- threads ---

    def _thread(self, target: object, number: int) -> threading.Thread:
        return threading.Thread(target=self._guarded, args=(target, number), daemon=True)

    def _guarded(self, target, number: int) -> None:  # type: ignore[no-untyped-def]
        try:
            target(number)
        except BaseException as error:
            self._failures.append(error)

    def _connect(self) -> raw.RawClient | None:
        """A connection as soon as the broker takes one; None when the load ends first."""
        while not self._stop.is_set():
            try:
                return self.broker.connect(timeout=ANSWER_SECONDS)
            except OSError:
                time.sleep(0.002)
        return None

    def _lost(self) -> None:
        with self._lock:
            self.lost_connections += 1

    def _produce(self, number: int) -> None:
        sender = f"{self.name}{number}"
        source = random.Random(f"{self.seed} {sender}")
        sent = 0
        client = None
        while not self._stop.is_set():
            client = client or self._connect()
            if client is None:
                return
            place = source.choice(self.places)
            payloads = [
                b"%s %d " % (sender.encode(), sent + index) + b"x" * source.randrange(self.size)
                for index in range(self.batch)
            ]
            sent += self.batch
            codec = raw.GZIP if source.random() < self.compressed else raw.NONE
            data = raw.message_set(payloads, codec=codec)
            self.history.sent(place, sender, payloads)
            begun = time.monotonic()
            try:
                answer = client.produce_ack(*place, data, self.acks)
            except TimeoutError:
                raise AssertionError(f"{sender}: no answer within {ANSWER_SECONDS} s") from None
            except (raw.ConnectionClosed, OSError):
                client.close()
                client = None
                self._lost()
                continue
            self.longest_answer = max(self.longest_answer, time.monotonic() - begun)
            if answer.error:
                with self._lock:
                    self.errors[answer.error] += 1
            else:
                self.history.acked(
                    place, answer.base_offset, answer.next_offset, data, flushed=self.acks == raw.FLUSHED
                )
            self._stop.wait(self.pause if not answer.error else 0.01)
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
            known = self.history.known_end(place)
            try:
                held = client.held_fetch(*place, offsets[place], 1 << 18, max_wait_ms=20)
            except TimeoutError:
                raise AssertionError(f"consumer {number}: no answer within {ANSWER_SECONDS} s") from None
            except (raw.ConnectionClosed, OSError):
                client.close()
                client = None
                self._lost()
                continue
            assert held.error == 0, f"consumer {number}: {place} at {offsets[place]} answered {held.error}"
            self.history.visible(place, held.high_watermark, known)
            found = raw.entries(held.messages, offsets[place])
            if found:
                length = found[-1].next_offset - offsets[place]
                self.history.shown(place, offsets[place], held.messages[:length])
                offsets[place] += length
        if client is not None:
            client.close()


def stored(broker: Broker, history: History) -> dict[Place, bytes]:
    """What the segment files hold of every partition of a history; the broker has stopped, or nobody appends."""
    return {place: broker.stored_bytes(*place) if broker.has_directory(*place) else b"" for place in history.places()}
