"""A stream that is quicker than the thread that fetches for it fetches by itself, and nothing is lost on the way."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fastlog._segment import pack
from fastlog.consumer import fetcher
from fastlog.consumer.fetcher import Fetch
from fastlog.consumer.reader import Chunk, Reader
from fastlog.consumer.stream import NoMessage, Stream
from fastlog.errors import ConsumerTimeout
from fastlog.wire import requests as rq
from tests.harness import wire07
from tests.harness.fake_broker import FakeBroker
from tests.harness.reading import Reading, source_of, wait_until
from tests.harness.timing import PATIENCE, sooner_than

COUNT = 4000
MANY = [b"%06d" % number for number in range(COUNT)]
LOG = pack(MANY)


class Driven:
    """How often, and in whose thread, pieces were fetched."""

    def __init__(self) -> None:
        self.by_stream = self.by_thread = 0


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch) -> Driven:
    """Counts the pieces of all readers."""
    counts, taken = Driven(), Reader._taken
    stream = threading.current_thread()

    def counting(self: Reader, *given: object) -> Chunk:
        if threading.current_thread() is stream:
            counts.by_stream += 1
        else:
            counts.by_thread += 1
        return taken(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Reader, "_taken", counting)
    return counts


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread waits for the stream as long as it takes, on a busy machine as well."""
    monkeypatch.setattr(fetcher, "_STAND_BY_SECONDS", PATIENCE)


@contextmanager
def reading(log: bytes = LOG, *, own: bool = True, **fields: object) -> Iterator[tuple[FakeBroker, Reading]]:
    """A topic of one partition, fetched in small pieces."""
    fake = FakeBroker(partitions=1, own=own)
    fake.logs["t", 0] = log
    with fake, Reading(**{"fetch_bytes": 1000, **fields}) as made:
        made.own(fake.port)
        yield fake, made


def payloads(stream: Stream) -> list[bytes]:
    """All of the log, without a pause; fails when one takes too long."""
    found = []
    for message in itertools.islice(iter(lambda: stream.message(PATIENCE), None), COUNT):
        assert message is not None
        found.append(message.payload)
    return found


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("own", [True, False], ids=["fastlog", "plain 0.7"])
def test_a_starved_stream_fetches_by_itself(driven: Driven, own: bool) -> None:
    with reading(own=own) as (_, made):
        assert payloads(made.stream()) == MANY
        assert driven.by_stream > driven.by_thread > 0
        assert made.stream().poll(0.05) is NoMessage.AT_END
        assert made.fetchers.consumed() == {source_of(): len(LOG)}
        assert made.state(source_of()).gaps == 0


@pytest.mark.usefixtures("patient")
def test_who_finds_the_reading_free_may_drive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch that says it is driven when its reading is given back would turn away who comes just then."""
    begin, stream = Fetch.__init__, threading.current_thread()
    noted: list[bool] = []

    class Noting:
        def __init__(self, fetch: Fetch) -> None:
            self._fetch, self._lock = fetch, fetch._reading
            self.acquire = self._lock.acquire

        def release(self) -> None:
            if threading.current_thread() is stream:
                noted.append(self._fetch._is_driven)
            self._lock.release()

        def __enter__(self) -> None:
            self.acquire()

        def __exit__(self, *_: object) -> None:
            self.release()

    def noting(self: Fetch, *given: Any) -> None:
        begin(self, *given)
        self._reading = Noting(self)  # type: ignore[assignment]

    monkeypatch.setattr(Fetch, "__init__", noting)
    with reading() as (_, made):
        assert payloads(made.stream()) == MANY
    assert noted
    assert not any(noted)


@pytest.mark.usefixtures("patient")
def test_who_comes_before_the_reading_is_given_back_drives_once_it_is(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread says that it stands by, and the stream has used up what there was before it does."""
    fetch, give, late = Fetch._fetch, Fetch._left_to_the_stream, [True]

    def begins(self: Fetch, link: Any) -> None:
        wait_until(lambda: self.is_starved)  # so that it has not fetched all before anybody wants it
        fetch(self, link)

    def gives(self: Fetch) -> Any:
        if late and not self._is_paused:
            late.clear()
            self._wake()  # it may have found nothing before the thread said that it stands by
            wait_until(lambda: self.is_starved)
        return give(self)

    monkeypatch.setattr(Fetch, "_fetch", begins)
    monkeypatch.setattr(Fetch, "_left_to_the_stream", gives)
    with reading() as (_, made):
        assert payloads(made.stream()) == MANY
    assert not late and driven.by_stream


def test_one_that_is_slow_finds_its_queue_filled(driven: Driven) -> None:
    """What its thread fetched meanwhile comes first, and the thread takes over again."""
    with reading(queued_chunks=3) as (_, made):
        stream = made.stream()
        found = []
        for _ in range(4):
            for message in itertools.islice(iter(lambda: stream.message(PATIENCE), None), COUNT // 4):
                assert message is not None
                found.append(message.payload)
            if len(found) < COUNT:
                wait_until(lambda: made.state(source_of()).queued == 3)
        assert found == MANY
        assert driven.by_stream and driven.by_thread >= 9


@pytest.mark.usefixtures("patient")
def test_an_interrupt_with_a_piece_in_hand_loses_nothing(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may come anywhere; the piece is fetched again."""
    answered, left = Fetch._answered, [3]
    stream = threading.current_thread()

    def interrupted(self: Fetch, reader: Reader, chunk: Chunk | None) -> None:
        if threading.current_thread() is stream and left[0]:
            left[0] -= 1
            raise KeyboardInterrupt
        answered(self, reader, chunk)

    monkeypatch.setattr(Fetch, "_answered", interrupted)
    with reading() as (_, made):
        found, interrupts = [], 0
        while len(found) < COUNT:
            try:
                message = made.stream().message(PATIENCE)
                assert message is not None
                found.append(message.payload)
            except KeyboardInterrupt:
                interrupts += 1
        assert (found, interrupts, left) == (MANY, 3, [0])
        assert made.state(source_of()).gaps == 0


class Interrupting:
    """A lock whose taking is interrupted once it is taken; in one thread, and so often."""

    def __init__(self, lock: Any, thread: threading.Thread, times: int) -> None:
        self._lock, self._thread, self.times = lock, thread, times

    def acquire(self, blocking: bool = True) -> bool:
        taken: bool = self._lock.acquire(blocking=blocking)
        if taken and self.times and threading.current_thread() is self._thread:
            self.times -= 1
            raise KeyboardInterrupt
        return taken

    def release(self) -> None:
        self._lock.release()


@pytest.mark.usefixtures("patient")
def test_an_interrupt_before_it_knows_that_it_may_read_leaves_the_reading_free(driven: Driven) -> None:
    with reading() as (fake, made):
        (feed,) = made.fetchers.feeds().values()
        fetch = feed.fetch
        assert isinstance(fetch, Fetch)
        lock = Interrupting(fetch._reading, threading.current_thread(), 2)
        fetch._reading = lock  # type: ignore[assignment]
        found: list[bytes] = []
        while len(found) < COUNT:
            try:
                message = made.stream().message(PATIENCE)
            except KeyboardInterrupt:
                continue
            assert message is not None
            found.append(message.payload)
        assert (found, lock.times) == (MANY, 0)
        fake.logs["t", 0] += pack([b"later"])  # which is the thread's to fetch
        message = made.stream().message(PATIENCE)
        assert message is not None and message.payload == b"later"


@pytest.mark.usefixtures("patient")
def test_a_broker_that_stands_still_holds_up_no_stream(driven: Driven) -> None:
    """Its time-out holds though it was fetching by itself; when the broker goes on, so does the thread."""
    stops, release = threading.Event(), threading.Event()

    def hook(request: rq.Request) -> bytes | None:
        if stops.is_set() and isinstance(request, wire07.FetchRequest | wire07.HeldFetchRequest):
            release.wait(PATIENCE)
        return None

    with reading(socket_timeout_ms=60_000) as (fake, made):
        fake.hook = hook
        stream, found = made.stream(), []
        while driven.by_stream < 10:
            message = stream.message(PATIENCE)
            assert message is not None
            found.append(message.payload)
        stops.set()
        with sooner_than(60.0), pytest.raises(ConsumerTimeout):
            while True:
                message = stream.message(0.3)
                assert message is not None
                found.append(message.payload)
        release.set()
        stops.clear()
        rest = iter(lambda: stream.message(PATIENCE), None)
        assert found + [message.payload for message in itertools.islice(rest, COUNT - len(found))] == MANY


@pytest.mark.usefixtures("patient")
def test_a_broken_connection_is_the_threads_business(driven: Driven) -> None:
    """The stream goes on with what the thread then fetches."""
    with reading() as (fake, made):
        stream, found = made.stream(), []
        for number in range(COUNT):
            if number % 500 == 250:
                fake.cut()
            message = stream.message(PATIENCE)
            assert message is not None
            found.append(message.payload)
        assert found == MANY


def test_ending_it_from_outside(driven: Driven) -> None:
    """``end`` and giving the partition up stop a stream that fetches by itself."""
    ways: tuple[Callable[[Reading], object], ...] = (
        lambda made: made.stream().end(),
        lambda made: made.fetchers.close(),
    )
    for way in ways:
        with reading(LOG * 50) as (_, made):
            before = driven.by_stream
            stream = made.stream()
            threading.Timer(0.05, way, (made,)).start()
            began = time.monotonic()
            count = 0
            try:
                while stream.message(0.2) is not None:
                    count += 1
            except ConsumerTimeout:
                assert not stream.partitions
            assert time.monotonic() - began < PATIENCE and driven.by_stream >= before
