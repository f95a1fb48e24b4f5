"""Threads that fetch wait when there is nothing to do, are woken by what they wait for, and end when they are told.

What a pause is long is made a minute wherever a ring is to end it, so that no pause heals a ring that was lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fastlog._segment import pack
from fastlog.client.addresses import Address
from fastlog.client.record_fetching import Batches
from fastlog.consumer import fetcher, record_reader
from fastlog.consumer._delivery import GroupMessage
from fastlog.consumer.feed import AutoResetEvent, Phase
from fastlog.consumer.record_reader import RecordReader, RecordRequests
from fastlog.consumer.stream import NoMessage
from fastlog.errors import BrokerError, ClosedError, ConsumerTimeout, TransportError
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.consumers import consumer_of, with_log
from tests.harness.fake_broker import FakeBroker
from tests.harness.reading import SEVERAL, Reading, fetching_threads, served, take, wait_until
from tests.harness.timing import PATIENCE, patch_time, sooner_than

LOG = pack(SEVERAL)
LONG_MS = int(PATIENCE * 2000)
FETCHES = wire07.FetchRequest | wire07.HeldFetchRequest


@pytest.fixture
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing goes on by itself within the time of a test."""
    monkeypatch.setattr(fetcher, "_HOLD_SECONDS", PATIENCE * 2)
    monkeypatch.setattr(fetcher, "_STAND_BY_SECONDS", PATIENCE * 2)


def test_an_event_is_set_once_and_waited_for_no_longer_than_asked() -> None:
    wakeup = AutoResetEvent()
    for _ in range(3):
        wakeup.set()
    wakeup.wait(None)
    began = time.monotonic()
    wakeup.wait(0.02)
    assert time.monotonic() - began >= 0.02
    wakeup.wait(0.0)
    wakeup.wait(-1.0)
    threading.Timer(0.01, wakeup.set).start()
    with sooner_than(PATIENCE):
        wakeup.wait(1e300)


@pytest.mark.usefixtures("long_pauses")
@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_full_queue_stops_the_fetching_and_the_next_piece_taken_starts_it(own: bool, most: int) -> None:
    """As many pieces as are allowed, and not one more is asked for than those on their way."""
    with served(LOG, own=own) as fake, Reading(fetch_bytes=105, queued_chunks=most) as reading:
        source = reading.own(fake.port)
        wait_until(lambda: reading.state(source).phase is Phase.PAUSED)
        assert reading.state(source).queued == most
        assert reading.state(source).position == most * 105
        asked = fake.seen["HeldFetchRequest" if own else "FetchRequest"]
        assert most <= asked <= most + 1  # one ahead
        with sooner_than(PATIENCE):
            assert take(reading.stream(), 100) == SEVERAL
            wait_until(lambda: reading.stream().poll(0.01) is NoMessage.AT_END)
        assert reading.state(source).phase is Phase.AT_END


@pytest.mark.usefixtures("long_pauses")
@pytest.mark.parametrize("way", ["release", "end of all", "moved", "seek"])
def test_who_waits_with_a_full_queue_hears_what_becomes_of_its_partition(own: bool, way: str) -> None:
    with served(LOG, own=own) as fake, Reading(fetch_bytes=105, queued_chunks=1) as reading:
        source = reading.own(fake.port)
        wait_until(lambda: reading.state(source).phase is Phase.PAUSED)
        (before,) = fetching_threads()
        if way == "release":
            assert reading.fetchers.release([source]) == {source: 0}
        elif way == "end of all":
            reading.fetchers.close()
        elif way == "moved":
            with served(LOG, own=own) as other:
                reading.fetchers.moved({0: Address("127.0.0.1", other.port)})
                assert take(reading.stream(), 100) == SEVERAL
                assert reading.state(source).address.port == other.port
        else:
            assert reading.fetchers.seek(source, 210)
            assert take(reading.stream(), 90) == SEVERAL[10:]
        with sooner_than(PATIENCE):
            before.join(PATIENCE)
        assert not before.is_alive()
        wait_until(lambda: len(fake._sockets) <= 1)


@pytest.mark.usefixtures("long_pauses")
def test_an_assignment_that_changes_while_everything_waits(own: bool) -> None:
    """What was fetched for the former owner is nobody's; each stream gets what is its own from where it is told."""
    other = [b"other %03d" % number for number in range(100)]
    with served(LOG, pack(other), own=own) as fake, Reading(fetch_bytes=105, queued_chunks=2) as reading:
        first, second = reading.own(fake.port, 0), reading.own(fake.port, 1)
        wait_until(lambda: all(reading.state(each).phase is Phase.PAUSED for each in (first, second)))
        assert reading.fetchers.release([first]) == {first: 0}
        reading.own(fake.port, 0, 210, stream="b")
        with sooner_than(PATIENCE):
            assert take(reading.stream("b"), 90) == SEVERAL[10:]
            assert take(reading.stream("a"), 100) == other
        reading.own(fake.port, 1, 0, stream="b")  # from one of our streams to another, without a release before
        assert reading.stream("a").partitions == ()
        with sooner_than(PATIENCE):
            assert take(reading.stream("b"), 100) == other
        reading.fetchers.close()
        wait_until(lambda: not fetching_threads() and not fake._sockets)


@pytest.mark.parametrize("way", ["release", "moved"])
def test_who_waits_after_a_failure_hears_it_too(way: str) -> None:
    """However long the pause is: a broker that is back elsewhere is read at once."""
    with served(LOG) as fake, Reading(fetch_bytes=105, fetcher_backoff_ms=LONG_MS, queued_chunks=50) as reading:
        source = reading.own(fake.port)
        assert take(reading.stream(), 1) == SEVERAL[:1]
        fake.hook = _refusing
        take(reading.stream(), 4)
        wait_until(lambda: reading.state(source).failures >= 3)
        with sooner_than(PATIENCE):
            if way == "release":
                (thread,) = fetching_threads()
                reading.fetchers.release([source])
                thread.join(PATIENCE)
                assert not thread.is_alive()
            else:
                with served(LOG) as other:
                    reading.fetchers.moved({0: Address("127.0.0.1", other.port)})
                    assert take(reading.stream(), 95)[-1] == SEVERAL[-1]


def _refusing(request: rq.Request) -> bytes | None:
    if isinstance(request, FETCHES):
        raise ConnectionError
    return None


@pytest.mark.usefixtures("long_pauses")
def test_a_stream_that_waits_hears_of_each_kind_of_news(own: bool) -> None:
    """A message, a jump behind which nothing is, the end, a partition that is taken: none is waited for longer."""
    with served(LOG[:0], LOG, own=own) as fake, Reading(fetcher_backoff_ms=20) as reading:
        source = reading.own(fake.port)
        stream = reading.stream()
        events: list[Callable[[], object]] = [
            lambda: fake.logs.update({("t", 0): pack([b"first"])}),
            lambda: reading.own(fake.port, 1),
        ]
        for event, payload in zip(events, (b"first", SEVERAL[0]), strict=True):
            timer = threading.Timer(0.02, event)
            timer.start()
            with sooner_than(PATIENCE):
                assert take(stream, 1, PATIENCE * 2) == [payload]
            timer.join()
        assert reading.state(source).consumed is not None
        reading.fetchers.release([source])
        while isinstance(stream.poll(0.0), GroupMessage):
            pass
        threading.Timer(0.02, stream.end).start()
        with sooner_than(PATIENCE):
            while stream.message(PATIENCE * 2) is not None:
                pass


def test_what_is_done_after_the_end_counts_no_more() -> None:
    """The next owner may have it by then; what was consumed before is what the release says."""
    with served(LOG) as fake, Reading(options={"acknowledge": True}) as reading:
        source = reading.own(fake.port)
        stream = reading.stream()
        first, second = (stream.message(PATIENCE) for _ in range(2))
        assert first is not None and second is not None
        assert stream.done(first) and reading.fetchers.consumed() == {source: first.next_offset}
        stream.end()
        assert not stream.done(second)
        assert reading.fetchers.release([source]) == {source: first.next_offset}


# -- no spinning -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fastlog", "plain 0.7", "without holding"])
def test_at_the_end_of_a_log_few_requests_are_made(kind: str) -> None:
    """A broker that holds answers is asked again when it has answered; another one with pauses that grow."""

    def hook(request: rq.Request) -> bytes | None:
        if kind == "without holding" and isinstance(request, rq.MetadataRequest) and request.topics == ():
            return rs.encode_metadata(
                rs.MetadataAnswer(request.correlation_id, 0, 0, "h", 1, 10**6, 10**8, 0, rq.LOWEST_OWN, rq.HIGHEST_OWN)
            )
        return None

    with served(LOG, own=kind != "plain 0.7", hook=hook) as fake, Reading(fetcher_backoff_ms=1000) as reading:
        source = reading.own(fake.port)
        assert take(reading.stream(), 100) == SEVERAL
        wait_until(lambda: reading.state(source).phase is Phase.AT_END)
        name = "FetchRequest" if kind == "plain 0.7" else "HeldFetchRequest"
        before, began = fake.seen[name], time.monotonic()
        with pytest.raises(ConsumerTimeout):
            reading.stream().message(0.5)
        made, seconds = fake.seen[name] - before, time.monotonic() - began
        assert made <= 25 * seconds + 5, f"{made} requests in {seconds:.2f} s"
        fake.logs["t", 0] += pack([b"later"])
        assert take(reading.stream(), 1, PATIENCE) == [b"later"]


def test_what_fails_is_tried_with_pauses_that_grow_and_begin_anew() -> None:
    """From 20 ms, doubled, up to ``fetcher.backoff.ms``; one answer, and the next failure is a first one."""
    pauses: list[float] = []
    with served(LOG) as fake, Reading(fetch_bytes=105, fetcher_backoff_ms=200, queued_chunks=50) as reading:
        source = reading.own(fake.port)
        take(reading.stream(), 1)
        fetch = reading.fetchers.feeds()[source].fetch
        sleep = fetch._sleep  # type: ignore[attr-defined]

        def noting(seconds: float) -> None:
            pauses.append(seconds)
            sleep(0.001)

        fetch._sleep = noting  # type: ignore[attr-defined]
        for _ in range(2):
            pauses.clear()
            fake.hook = _refusing
            fake.cut()
            while isinstance(reading.stream().poll(0.0), GroupMessage):
                pass
            wait_until(lambda: len(pauses) >= 7)
            fake.hook = None
            wait_until(lambda: reading.state(source).failures == 0)
            for pause, most in zip(pauses, (0.04, 0.08, 0.16, 0.2, 0.2, 0.2, 0.2), strict=False):
                assert most / 2 <= pause <= most
            if fake.logs["t", 0] is LOG:
                fake.logs["t", 0] = LOG + LOG


def test_a_broker_that_holds_nothing_is_asked_with_pauses_that_grow_and_begin_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From 20 ms, doubled, up to ``fetcher.backoff.ms``; one answer with something in it, and they are short again."""
    pauses: list[float] = []

    class Noting(AutoResetEvent):
        def wait(self, seconds: float | None) -> None:
            pauses.append(seconds or 0.0)
            super().wait(0.001)

    monkeypatch.setattr(fetcher, "AutoResetEvent", Noting)
    with served(LOG, own=False) as fake, Reading(fetcher_backoff_ms=100, queued_chunks=50) as reading:
        reading.own(fake.port)  # its stream takes nothing, and so never fetches itself
        for _ in range(2):
            wait_until(lambda: len(pauses) >= 5)
            assert pauses[:5] == [0.02, 0.04, 0.08, 0.1, 0.1]
            before = len(pauses)
            fake.logs["t", 0] += LOG
            wait_until(lambda before=before: 0.02 in pauses[before:])
            del pauses[: pauses.index(0.02, before)]


def test_jumps_without_anything_between_them_have_pauses_that_grow_and_begin_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that refuses whatever it has just named; the first jump after an answer needs no pause."""
    pauses: list[float] = []
    named = 0

    def away(request: rq.Request) -> bytes | None:
        nonlocal named
        if isinstance(request, rq.OffsetsRequest):
            named = 21 - named
            return rs.encode_offsets(0, [named])
        return wire07.encode_fetch(1, b"") if isinstance(request, wire07.FetchRequest) else None

    def sleep(self: fetcher.Fetch, seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(fetcher.Fetch, "_sleep", sleep)
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    with served(LOG, own=False) as fake, Reading(fetcher_backoff_ms=200, queued_chunks=10**6) as reading:
        source = reading.own(fake.port)
        for _ in range(2):
            wait_until(lambda: reading.state(source).position == len(LOG))
            pauses.clear()
            fake.hook = away
            wait_until(lambda: len(pauses) >= 4)
            fake.hook = None
            assert pauses[:4] == [0.08, 0.16, 0.2, 0.2]


def test_each_series_of_failures_is_logged_once_and_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "fastlog.consumer")
    with served(LOG) as fake, Reading(fetch_bytes=105, fetcher_backoff_ms=1, queued_chunks=50) as reading:
        source = reading.own(fake.port)
        for number in range(2):
            take(reading.stream(), 40)
            fake.hook = _refusing
            fake.cut()
            wait_until(lambda: reading.state(source).failures >= 4)
            fake.hook = None
            wait_until(lambda: reading.state(source).failures == 0)
            lines = [line for line in caplog.messages if "failures=" in line]
            assert len(lines) == number + 1 and all("failures=1:" in line for line in lines)
            assert len([line for line in caplog.messages if "is read again" in line]) == number + 1


# -- what is left ----------------------------------------------------------------------------------------------------


def test_a_jump_leaves_one_connection_and_counts_from_the_new_place(own: bool) -> None:
    with served(LOG, own=own) as fake, Reading(fetcher_backoff_ms=1) as reading:
        for _ in range(5):
            source = reading.own(fake.port, offset=10**6)
            assert take(reading.stream(), 100) == SEVERAL
            wait_until(lambda: len(fake._sockets) == 1)
            assert reading.state(source).failures == 0
        assert [jump[:3] for jump in reading.jumps] == [(source, 10**6, 0)] * 5
        reading.fetchers.close()
        wait_until(lambda: not fake._sockets and not fetching_threads())


def test_a_request_that_could_not_be_sent_is_sent_on_the_next_connection(
    own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try may fail before anything went out; the second one sends, and does not wait for an answer to it."""
    with with_log(LOG, own=own) as fake, consumer_of(fake, local="off", timeout=PATIENCE * 2) as consumer:
        consumer.fetch("t", 0, 0)
        connect, failures = consumer._broker.connect, [TransportError("once")]

        def failing(*given: object, **options: object) -> object:
            if failures:
                raise failures.pop()
            return connect(*given, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(consumer._broker, "connect", failing)
        fake.cut()
        with sooner_than(PATIENCE):
            assert consumer.fetch("t", 0, 0).payloads() == SEVERAL
        assert not failures


def test_who_is_closed_while_it_connects_leaves_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """``close`` finds no connection yet; whoever made it closes it."""
    with FakeBroker() as fake:
        consumer = consumer_of(fake, local="off")
        connect = consumer._broker.connect

        def closing(*given: object, **options: object) -> object:
            made = connect(*given, **options)  # type: ignore[arg-type]
            consumer.close()
            return made

        monkeypatch.setattr(consumer._broker, "connect", closing)
        with pytest.raises(ClosedError):
            consumer.get_offsets_before("t", 0, -1)
        monkeypatch.undo()
        assert fake.seen["OffsetsRequest"] == 0
        wait_until(lambda: not fake._sockets)


@pytest.mark.parametrize(("wait", "least"), [(0.0, 5.0), (8.0, 8.0)])
def test_a_broker_that_never_comes_to_answer_for_records_is_no_silence(
    monkeypatch: pytest.MonkeyPatch, wait: float, least: float
) -> None:
    """It is asked again for a while, as one that is starting; then the error is told."""
    now = [100.0]
    patch_time(monkeypatch, record_reader, monotonic=lambda: now[0])

    def let_pass(seconds: float) -> None:
        now[0] += seconds
        assert now[0] < 200, "it goes on for ever"

    monkeypatch.setattr(record_reader, "pause", let_pass)
    channel: Any = SimpleNamespace(broker="a broker", check=lambda: None)
    reader = RecordReader(channel, RecordRequests(channel), "t", bytes(16), 3, 70, 1000, ahead=False)
    monkeypatch.setattr(reader, "_fetched", lambda wait: Batches(6, -1, -1, memoryview(b"")))
    with pytest.raises(BrokerError, match=r"t, partition 3, offset 70.*\(error 6\)"):
        reader.next(wait)
    assert least < now[0] - 100 < least + 1
