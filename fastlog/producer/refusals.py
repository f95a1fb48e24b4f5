"""Which errors of a broker are worth another try, and the requests that wait for one.

A refused request keeps its place: what is behind it in its partition waits with it, and it is tried alone until it is
stored. Other partitions go on meanwhile.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from fastlog.errors import FastlogError, StorageError, error_for, meaning_of
from fastlog.producer._flight import Flight
from fastlog.producer._frames import Chunk
from fastlog.retry import Backoff

RETRIED_BY_CODE = {
    -1: False,  # the broker does not know what went wrong, so neither whether the messages are stored
    1: False,
    2: False,  # the same bytes are damaged the next time as well
    3: False,
    4: False,
    100: False,
    101: False,  # it stays so until the broker is restarted; with acks=flushed the messages may come back then
    102: False,
    103: True,  # nothing is stored, and a disk that was full takes messages again as soon as there is room
    104: False,
    105: False,
    106: False,
    107: False,
}
"""Whether a request that was answered with this error is sent again; no other code is."""

RETRIED = frozenset(code for code, retried in RETRIED_BY_CODE.items() if retried)
_ANY = -1
_LEAST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
_MS_NS = 1_000_000


class Hold:
    """What waits in one partition: the refused requests, and whatever came behind them."""

    def __init__(self) -> None:
        self.refused: deque[Chunk] = deque()
        self.behind: deque[Chunk] = deque()
        self.probe: Chunk | None = None
        self.next_try = 0.0
        self.backoff = Backoff(_LEAST_PAUSE, _LONGEST_PAUSE, 0.25)
        self.is_lost = False
        """The broker does not follow the numbers of the partition's batches: those that wait need others."""

    def chunks(self) -> Iterable[Chunk]:
        yield from self.refused
        yield from self.behind

    def pop(self) -> Chunk:
        return (self.refused or self.behind).popleft()


class Refusals:
    """The refused requests of one link. For its thread; the numbers may be read by any."""

    def __init__(self, flight: Flight, retries: int | None, delivery_timeout_ms: int) -> None:
        self.messages = 0
        self.bytes = 0
        self.readded = False
        """Chunks got a new number since this was last set to False."""
        self._flight = flight
        self._retries = retries
        self._timeout_ms = delivery_timeout_ms
        self._holds: dict[tuple[str, int], Hold] = {}
        flight.retried = self._retried()

    def _retried(self) -> frozenset[int]:
        """The codes after which a request is tried again."""
        return RETRIED if self._retries != 0 else frozenset()

    def _meaning_of(self, code: int) -> str:
        return meaning_of(code)

    def _error_of(self, code: int, detail: str) -> FastlogError:
        return error_for(code, detail)

    def __bool__(self) -> bool:
        return bool(self._holds)

    def keep(self, chunk: Chunk) -> bool:
        """Whether a new chunk waits here, behind refused ones of its partition."""
        hold = self._holds.get((chunk.topic, chunk.partition))
        if hold is None or chunk.frame_count == 0:
            return False
        self._flight.number(chunk)
        self._put(hold.behind, chunk)
        return True

    def handle_answers(self) -> list[str]:
        """Act on the answers that have come; returns a log line for each partition that is refused from now on."""
        lines = []
        for topic, partition, code, chunk in self._flight.take_outcomes():
            place = (topic, partition)
            hold = self._holds.get(place)
            if chunk is not None:
                assert isinstance(code, int)
                if hold is None:
                    hold = self._holds[place] = Hold()
                    self._flight.watched.add(place)  # of a hold that ended since the answer came
                    for later in self._flight.pull_back(topic, partition):
                        self._put(hold.behind, later)
                    lines.append(f"topic={topic} partition={partition}: {self._meaning_of(code)}")
                self._refused(hold, code, chunk)
            elif hold is not None:
                self._answered(hold, code is None, partition)
            if hold is not None and not hold.refused and hold.probe is None:
                self._release(place, hold)
        return lines

    def _refused(self, hold: Hold, code: int, chunk: Chunk) -> None:
        chunk.refusals += 1
        if self._retries is not None and chunk.refusals > self._retries:
            self._flight.give_up(
                chunk, self._error_of(code, f"{chunk.messages} messages were refused {chunk.refusals} times")
            )
            self._pause(hold)
        else:
            self._put_back(hold, chunk)

    def _put_back(self, hold: Hold, chunk: Chunk) -> None:
        self._put(hold.refused, chunk, first=hold.probe is not None)
        self._pause(hold)

    def _pause(self, hold: Hold) -> None:
        hold.probe = None
        hold.next_try = time.monotonic() + hold.backoff.next()

    def _before_probe(self, hold: Hold, probe: Chunk) -> None:
        """Called when a request is about to be tried alone, with nothing of its partition on its way."""

    def _answered(self, hold: Hold, stored: bool, partition: int) -> None:
        """A request of a held partition was stored, or failed for good."""
        if hold.probe is not None:
            hold.probe = None
            if stored:
                for chunk in hold.refused:  # before the ones behind them, which release() adds
                    self._flight_add(chunk)
                hold.refused.clear()
        elif stored and partition != _ANY:
            # It was on its way already. What was refused before it would come behind it now.
            while hold.refused:
                chunk = self._pop(hold)
                detail = _detail(chunk, "refused, and a later request to the partition was stored meanwhile")
                self._flight.give_up(chunk, StorageError(detail))

    def _release(self, place: tuple[str, int], hold: Hold) -> None:
        del self._holds[place]
        self._flight.watched.discard(place)
        for chunk in hold.behind:
            self._flight_add(chunk)

    def _flight_add(self, chunk: Chunk) -> None:
        self.messages -= chunk.messages
        self.bytes -= chunk.size
        self._flight.add(chunk)
        self.readded = True

    def _put(self, chunks: deque[Chunk], chunk: Chunk, *, first: bool = False) -> None:
        self.messages += chunk.messages
        self.bytes += chunk.size
        (chunks.appendleft if first else chunks.append)(chunk)

    def _pop(self, hold: Hold) -> Chunk:
        chunk = hold.pop()
        self.messages -= chunk.messages
        self.bytes -= chunk.size
        return chunk

    def try_again(self, now: float) -> None:
        """Send, for each partition whose pause is over, the first request of those that wait, alone."""
        for (topic, partition), hold in list(self._holds.items()):
            if hold.probe is None and now >= hold.next_try and not self._flight.has_any(topic, partition):
                hold.probe = self._pop(hold)
                self._before_probe(hold, hold.probe)
                self._flight.add(hold.probe)
                self.readded = True

    def after_break(self) -> None:
        """Take back what the flight would write again: its place is behind what was refused."""
        for (topic, partition), hold in self._holds.items():
            pulled = self._flight.pull_back(topic, partition)
            place = hold.behind if hold.probe is None else hold.refused
            hold.probe = None
            for chunk in reversed(pulled):
                self._put(place, chunk, first=True)

    def expire(self, now_ns: int) -> None:
        """Give up what was tried for too long."""
        for place, hold in list(self._holds.items()):
            for chunk in list(hold.chunks()):
                if now_ns - chunk.taken_ns < self._timeout_ms * _MS_NS:
                    break
                self._pop(hold)
                detail = _detail(chunk, f"not delivered within {self._timeout_ms} ms")
                self._flight.give_up(chunk, StorageError(detail))
            if not hold.refused and hold.probe is None:
                self._release(place, hold)

    def give_up(self, error: FastlogError) -> None:
        """Fail every message that is held back."""
        for hold in self._holds.values():
            while hold.refused or hold.behind:
                self._flight.give_up(self._pop(hold), error)
        self._holds.clear()
        self._flight.watched.clear()

    def moments(self) -> list[float]:
        """When there is something to do without an answer, on the monotonic clock."""
        found = []
        for (topic, partition), hold in self._holds.items():
            if hold.probe is None and not self._flight.has_any(topic, partition):
                found.append(hold.next_try)
            for chunk in hold.chunks():
                found.append(chunk.taken_ns / 1e9 + self._timeout_ms / 1000)
                break
        return found

    def finished_up_to(self) -> int:
        """The highest number such that no chunk with it or a lower one is left, here or on its way."""
        waiting = [chunk.sequence for hold in self._holds.values() for chunk in hold.chunks()]
        return min(self._flight.finished_up_to(), min(waiting, default=2**62) - 1)


def _detail(chunk: Chunk, what: str) -> str:
    return f"{chunk.messages} messages for topic {chunk.topic!r}: {what}"
