"""Ctrl-C wherever Python takes one: the same object then gives exactly what is next, or closes for good.

A signal is looked at when a function begins and when one has returned, before its result is taken. Each of these
moments in clients and consumers is chosen once, by a profile function of the reading thread that raises there.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import pytest

import fastlog
from fastlog._segment import pack
from fastlog.codecs import GZIP, compress
from fastlog.consumer import fetcher
from fastlog.consumer._delivery import GroupMessage
from fastlog.consumer.simple import EARLIEST, LATEST, SimpleConsumer
from fastlog.consumer.stream import Stream
from fastlog.errors import ClosedError
from tests.harness.consumers import consumer_of, with_log
from tests.harness.reading import Reading, fetching_threads, served, wait_until
from tests.harness.timing import PATIENCE, sooner_than

# A socket whose closing was interrupted is closed when the last one forgets it, which Python warns of.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
_FOLDERS = tuple(str(Path(fastlog.__path__[0]) / name) for name in ("consumer", "client"))


def ctrl_c() -> None:
    raise KeyboardInterrupt


class Interrupt:
    """Has a signal handled once, at a moment of this thread."""

    def __init__(self, at: int, handler: Callable[[], object]) -> None:
        self.left = at
        self.where = ""
        self._handler = handler

    def profile(self, frame: FrameType, event: str, argument: object) -> None:
        """For ``sys.setprofile``: only what belongs to clients and consumers is looked at."""
        if event == "c_call" or event == "c_exception" or not frame.f_code.co_filename.startswith(_FOLDERS):
            return
        if frame.f_code.co_name == "__del__":
            return
        self.left -= 1
        if not self.left:
            self.where = f"{event} {Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
            self._handler()

    @property
    def has_come(self) -> bool:
        """The moment was there."""
        return self.left <= 0


@contextmanager
def interrupted(at: int, handler: Callable[[], object] = ctrl_c) -> Iterator[Interrupt]:
    """At this moment of the block, which then ends, unless the handler is another."""
    made = Interrupt(at, handler)
    profile = made.profile  # kept: Python calls it once more after it has raised, when it has let go of it already
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield made
    except KeyboardInterrupt:
        assert made.has_come
    finally:
        sys.setprofile(before)


@pytest.fixture(autouse=True)
def short_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring that an interrupt has swallowed is made good when this is over."""
    monkeypatch.setattr(fetcher, "_HOLD_SECONDS", 0.01)
    monkeypatch.setattr(fetcher, "_STAND_BY_SECONDS", 0.01)


COUNT = 3000
MANY = [b"%05d" % number for number in range(COUNT)]
PLAIN = pack(MANY)
SETS = b"".join(
    pack([compress(GZIP, pack(MANY[at : at + 7]))], GZIP) if at % 2 else pack(MANY[at : at + 7])
    for at in range(0, COUNT, 7)
)


def one(stream: Stream) -> list[bytes]:
    message = stream.message(PATIENCE)
    assert message is not None
    return [message.payload]


def polled(stream: Stream) -> list[bytes]:
    message = stream.poll(PATIENCE)
    assert isinstance(message, GroupMessage)
    return [message.payload]


def listed(stream: Stream) -> list[bytes]:
    batch = stream.batch(3, 10**6, PATIENCE)
    assert batch is not None
    return list(batch)


def as_arrays(stream: Stream) -> list[bytes]:
    batch = stream.made(stream._arrays, PATIENCE)
    assert batch is not None
    places = zip(batch.starts.tolist(), batch.lengths.tolist(), strict=True)
    return [batch.buffer[start : start + length].tobytes() for start, length in places]  # nothing of fastlog is called


@pytest.mark.parametrize(
    ("take", "log"),
    [(one, PLAIN), (polled, SETS), (listed, SETS), (as_arrays, PLAIN)],
    ids=["one", "poll", "list", "arrays"],
)
def test_a_stream_loses_nothing_and_gives_nothing_twice(
    own: bool, log: bytes, take: Callable[[Stream], list[bytes]]
) -> None:
    """Wherever it comes, whatever is waited for; and nothing counts as consumed that was not handed out."""
    with served(log, own=own) as fake, Reading(fetch_bytes=200, queued_chunks=2, fetcher_backoff_ms=5) as reading:
        source = reading.own(fake.port)
        stream = reading.stream()
        found: list[bytes] = []
        places: set[str] = set()
        at = 0
        while len(found) < COUNT - 60 and at < 80:
            at += 1
            with interrupted(at) as interrupt:
                while not interrupt.has_come and len(found) < COUNT - 60:
                    found += take(stream)
            places.add(interrupt.where)
            assert found == MANY[: len(found)], interrupt.where
        assert len(places) > 25, places
        while len(found) < COUNT:
            found += take(stream)
        assert found == MANY
        assert reading.state(source).gaps == 0 and reading.jumps == []
        with interrupted(10**9):
            stream.poll(0.01)
        assert reading.fetchers.consumed() == {source: len(log)}


def test_giving_up_and_ending_can_be_interrupted_and_done_again(own: bool) -> None:
    """Whatever was done of it: afterwards nothing is handed out, and no thread and no connection is left."""
    at = 0
    is_through = False
    while not is_through:
        at += 1
        with served(PLAIN, PLAIN, own=own) as fake, Reading(fetch_bytes=200) as reading:
            for number in (0, 1):
                reading.own(fake.port, number)
            found = one(reading.stream())
            with interrupted(at) as interrupt:
                reading.fetchers.close()
                reading.stream().end()
            is_through = not interrupt.has_come
            reading.fetchers.close()
            reading.stream().end()
            assert reading.stream().message(0.0) is None and len(found) == 1
            assert reading.fetchers.consumed() == {}
            wait_until(lambda: not fetching_threads())
        if at % 10 == 0 or is_through:
            wait_until(lambda: not fetching_threads())
    assert at > 10


MESSAGES = [b"%d" % number * (number % 7 + 1) for number in range(20)]
LOG = pack(MESSAGES)
OF_A_FETCH = 6
"""At most so many of these fit into 60 bytes."""
STARTS = [len(pack(MESSAGES[:number])) for number in range(20)]


def test_a_call_that_was_interrupted_shifts_no_answer(own: bool) -> None:
    """Each call asks for something else, so that an answer to an earlier one would show."""
    with with_log(LOG, own=own) as fake, consumer_of(fake, local="off", timeout=PATIENCE) as consumer:
        calls: list[Callable[[int], None]] = [
            lambda number: _check(consumer.fetch("t", 0, STARTS[number], 1000).payloads(), MESSAGES[number:]),
            lambda number: _check(consumer.fetch("t", 0, STARTS[number], 5).payloads(), MESSAGES[number : number + 1]),
            lambda number: _check(
                [part.payloads() for part in consumer.multifetch([("t", 0, STARTS[number]), ("t", 0, 0, 11)])],
                [MESSAGES[number:], MESSAGES[:1]],
            ),
            lambda number: _check(
                consumer.get_offsets_before("t", 0, LATEST, number % 2 + 1), [len(LOG), 0][: number % 2 + 1]
            ),
        ]
        calls[0](0)
        for call in calls:
            for at in range(1, 200):
                with interrupted(at) as interrupt:
                    call(at % 20)
                for other in calls:
                    other((at + 7) % 20)
                if not interrupt.has_come:
                    break
            else:
                pytest.fail("a call has more moments than were tried")
        wait_until(lambda: len(fake._sockets) <= 1)
        assert not consumer._channel._lock.locked()


def _check(found: object, expected: object) -> None:
    assert found == expected


def test_an_iteration_that_was_interrupted_is_begun_again_behind_its_last_message(own: bool) -> None:
    with with_log(LOG, own=own) as fake, consumer_of(fake, local="off", timeout=PATIENCE) as consumer:
        consumer.fetch("t", 0, 0)
        for at in (*range(1, 150), *range(150, 3000, 5)):
            found: list[bytes] = []
            offset = 0
            with interrupted(at) as interrupt:
                for message in consumer.messages("t", 0, 0, fetch_bytes=60):
                    found.append(message.payload)
                    offset = message.next_offset
            if interrupt.has_come:
                found += [message.payload for message in consumer.messages("t", 0, offset, fetch_bytes=60)]
            assert found == MESSAGES, interrupt.where
            if not interrupt.has_come:
                break
        else:
            pytest.fail("an iteration has more moments than were tried")
        wait_until(lambda: len(fake._sockets) <= 1)


class Handler:
    """Closes something, and soon."""

    def __init__(self, *closing: Callable[[], object]) -> None:
        self._closing = closing

    def __call__(self) -> None:
        with sooner_than(PATIENCE / 2):
            for close in self._closing:
                close()


@pytest.mark.parametrize(
    "call",
    [
        lambda consumer: [consumer.fetch("t", 0, 0, 1000)],
        lambda consumer: [consumer.multifetch([("t", 0, 0), ("t", 0, 0, 11)])],
        lambda consumer: [consumer.get_offsets_before("t", 0, LATEST, 2)],
        lambda consumer: consumer.messages("t", 0, 0, fetch_bytes=60),
        lambda consumer: consumer.numpy_batches("t", 0, EARLIEST, fetch_bytes=60),
    ],
    ids=["fetch", "multifetch", "offsets", "messages", "arrays"],
)
def test_a_handler_closes_the_consumer_at_any_moment(
    call: Callable[[SimpleConsumer], Iterable[object]], own: bool
) -> None:
    """Of its first call: close() waits for nobody, and nothing is fetched afterwards."""
    with with_log(LOG, own=own) as fake:
        for at in (*range(1, 150), *range(150, 3000, 31)):
            consumer = consumer_of(fake, local="off", timeout=PATIENCE)
            found: list[object] = []
            before: list[int] = []
            closing = Handler(consumer.close, lambda found=found, before=before: before.append(len(found)))  # type: ignore[misc]
            with suppress(ClosedError), interrupted(at, closing) as interrupt:
                for one in call(consumer):
                    found.append(one)
            if not interrupt.has_come:
                consumer.close()
                break
            assert len(found) - before[0] <= OF_A_FETCH, interrupt.where
            with pytest.raises(ClosedError):
                consumer.fetch("t", 0, 0)
        else:
            pytest.fail("a call has more moments than were tried")
        assert at > 10
        wait_until(lambda: not fake._sockets)


@pytest.mark.parametrize(
    ("take", "log"),
    [(one, PLAIN), (polled, SETS), (listed, SETS), (as_arrays, PLAIN)],
    ids=["one", "poll", "list", "arrays"],
)
def test_a_handler_ends_a_stream_at_any_moment(log: bytes, take: Callable[[Stream], list[bytes]], own: bool) -> None:
    """As a consumer's close() does: no thread waits for what was interrupted."""
    at = 0
    is_through = False
    while not is_through:
        at += 1 if at < 60 else 7
        with served(log, own=own) as fake, Reading(fetch_bytes=200, queued_chunks=2, fetcher_backoff_ms=5) as reading:
            reading.own(fake.port)
            stream = reading.stream()
            found: list[bytes] = []
            with interrupted(at, Handler(stream.end, reading.fetchers.close)) as interrupt:
                for _ in range(3):
                    try:
                        found += take(stream)
                    except AssertionError:  # there is nothing to take
                        assert interrupt.has_come
            is_through = not interrupt.has_come
            assert found == MANY[: len(found)], interrupt.where
            if not is_through:
                assert stream.message(0.0) is None
                wait_until(lambda: not fetching_threads())
    assert at > 10


def test_close_can_be_interrupted_and_called_again(own: bool) -> None:
    """The second call ends what the first one left, from another thread as well."""
    at, is_through = 0, False
    with with_log(LOG, own=own) as fake:
        while not is_through:
            at += 1
            consumer = consumer_of(fake, local="off", fetch_bytes=60)
            consumer.fetch("t", 0, 0)
            running = consumer.messages("t", 0, 0)
            next(running)
            with interrupted(at) as interrupt:
                consumer.close()
            is_through = not interrupt.has_come
            other = threading.Thread(target=consumer.close)
            other.start()
            other.join(PATIENCE)
            assert not other.is_alive()
            del running, consumer
            wait_until(lambda: not fake._sockets)
    assert at > 10
