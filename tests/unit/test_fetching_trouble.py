"""Fetching while brokers go and come back, and what cannot be read: no broker stops a partition for good."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import accumulate
from typing import Any

import pytest

from fastlog._segment import pack
from fastlog.client.addresses import Address
from fastlog.consumer.channel import Channel
from fastlog.consumer.feed import Phase
from fastlog.consumer.fetcher import EARLIEST, Fetch
from fastlog.consumer.reader import Chunk
from fastlog.consumer.stream import NoMessage
from fastlog.errors import InvalidMessageError, MessageTooLargeError
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.reading import SEVERAL, Reading, fetching_threads, served, take, wait_until
from tests.harness.timing import PATIENCE

FETCHES = wire07.FetchRequest | wire07.HeldFetchRequest


# -- brokers that come and go ----------------------------------------------------------------------------------------


def test_a_broker_that_is_back_is_read_on_at_the_same_offset(caplog: pytest.LogCaptureFixture) -> None:
    """At the same address, and at another one when that is told; also when it is told while the old one hangs."""
    caplog.set_level(logging.INFO, "fastlog.consumer")
    data = pack(SEVERAL)
    with ExitStack() as stack:
        reading = stack.enter_context(Reading(fetch_bytes=200, queued_chunks=2, fetcher_backoff_ms=50))
        deaths = 5

        def hook(request: rq.Request) -> bytes | None:
            nonlocal deaths
            if isinstance(request, FETCHES) and request.offset > 400 and deaths:
                deaths -= 1
                raise ConnectionError
            return None

        first = stack.enter_context(served(data, hook=hook))
        source = reading.own(first.port)
        found = take(reading.stream(), 60)
        assert not deaths
        assert "failures=1" in caplog.text and "is read again" in caplog.text
        hung = threading.Event()
        first.hook = lambda request: hung.wait(30) and None
        second = stack.enter_context(served(data))
        reading.fetchers.moved({0: Address("127.0.0.1", second.port), 7: Address("127.0.0.1", 1)})
        found += take(reading.stream(), 40)
        assert found == SEVERAL
        assert reading.state(source).address.port == second.port
        hung.set()


def test_a_broker_that_was_replaced_by_an_older_one_is_asked_anew_what_it_offers() -> None:
    with served(pack(SEVERAL)) as fake, Reading(fetcher_backoff_ms=20) as reading:
        source = reading.own(fake.port)
        take(reading.stream(), 100)
        fake.own = False
        fake.cut()
        fake.logs["t", 0] += pack([b"later"])
        assert take(reading.stream(), 1) == [b"later"]
        assert reading.state(source).error is None


@pytest.mark.parametrize(("reset", "first"), [("smallest", SEVERAL[0]), ("largest", b"later")])
def test_where_nothing_was_committed_the_broker_says_where_to_begin(own: bool, reset: str, first: bytes) -> None:
    """However long it takes until it answers; nothing counts as consumed before that."""
    failures = 3

    def hook(request: rq.Request) -> bytes | None:
        nonlocal failures
        if isinstance(request, rq.OffsetsRequest) and failures:
            failures -= 1
            return rs.encode_offsets(0, []) if failures else rs.encode_offsets(0, [-1])
        return None

    data = pack(SEVERAL)
    with (
        served(data, own=own, hook=hook) as fake,
        Reading(auto_offset_reset=reset, fetcher_backoff_ms=20) as reading,
    ):
        source = reading.own(fake.port, offset=None)
        begin = 0 if reset == "smallest" else len(data)
        wait_until(lambda: reading.fetchers.consumed().get(source, begin) == begin and not failures)
        wait_until(lambda: source in reading.fetchers.consumed())
        fake.logs["t", 0] += pack([b"later"])
        assert take(reading.stream(), 1) == [first]
        assert reading.jumps == []


@pytest.mark.parametrize("reset", ["smallest", "largest"])
def test_an_offset_that_is_gone_is_jumped_from_and_reported(
    own: bool, reset: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What was fetched before comes first; then the new place counts as consumed though no message of it has come."""
    data = pack(SEVERAL)
    start = len(pack(SEVERAL[:50]))

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.OffsetsRequest):
            return rs.encode_offsets(0, [start if request.time == EARLIEST else len(data)])
        if isinstance(request, FETCHES) and 200 <= request.offset < start:
            if isinstance(request, wire07.FetchRequest):
                return wire07.encode_fetch(1)
            return wire07.encode_held_fetch(rs.HeldFetchAnswer(request.correlation_id, 1, len(data), start))
        return None

    with served(data, own=own, hook=hook) as fake, Reading(fetch_bytes=105, auto_offset_reset=reset) as reading:
        source = reading.own(fake.port)
        before = take(reading.stream(), 10)
        assert before == SEVERAL[:10]
        if reset == "smallest":
            assert take(reading.stream(), 50) == SEVERAL[50:]
        wait_until(lambda: reading.stream().poll(0.02) is NoMessage.AT_END, 20)
        (jump,) = reading.jumps
        assert jump[:3] == (source, 210, start if reset == "smallest" else len(data))
        assert reading.fetchers.consumed() == {source: len(data)}
        assert f"offsets 210 to {jump.new} are lost" in caplog.text


def test_a_log_that_ends_before_the_offset_is_a_jump_back() -> None:
    with served(pack([b"a"])) as fake, Reading() as reading:
        source = reading.own(fake.port, offset=5000)
        assert take(reading.stream(), 1) == [b"a"]
        assert reading.jumps[0][:3] == (source, 5000, 0) and "goes back to 0" in str(reading.jumps[0])


# -- what cannot be read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["too large", "damaged"])
def test_an_error_of_the_data_is_told_once_and_stops_its_partition_alone(kind: str) -> None:
    start = pack([b"first"])
    bad = pack([bytes(5000)]) if kind == "too large" else b"\0\0\0\x0a\1\0\0\0\0\1spoilt"[:14]
    behind = pack([b"behind"])
    with (
        served(start + bad + behind, pack(SEVERAL), max_message_bytes=1000) as fake,
        Reading(fetch_bytes=300, fetcher_backoff_ms=20) as reading,
    ):
        broken = reading.own(fake.port, 0)
        assert take(reading.stream(), 1) == [b"first"]
        error = MessageTooLargeError if kind == "too large" else InvalidMessageError
        with pytest.raises(error, match=r"t, partition 0, offset 15"):
            reading.stream().poll(30)
        reading.own(fake.port, 1)
        assert take(reading.stream(), 100) == SEVERAL
        wait_until(lambda: reading.state(broken).failures > 3)
        assert reading.stream().poll(0.05) is NoMessage.NO_BROKER
        assert reading.state(broken).phase is Phase.FAILING and isinstance(reading.state(broken).error, error)
        assert reading.fetchers.consumed()[broken] == 15
        assert reading.fetchers.seek(broken, len(start + bad))
        assert take(reading.stream(), 1) == [b"behind"]


def test_another_error_of_the_data_is_told_as_well() -> None:
    """Behind one that has been mended, as by a broker that was restored: the same thread goes on."""
    start, good, bad = pack([b"first"]), pack([b"good"]), b"\0\0\0\x0a\1\0\0\0\0\1spoilt"[:14]
    with served(start + bad) as fake, Reading(fetcher_backoff_ms=20) as reading:
        source = reading.own(fake.port)
        assert take(reading.stream(), 1) == [b"first"]
        with pytest.raises(InvalidMessageError, match="offset 15"):
            reading.stream().poll(PATIENCE)
        fake.logs["t", 0] = start + good
        assert take(reading.stream(), 1) == [b"good"]
        state = reading.state(source)
        assert (state.error, state.failures, state.failing_since) == (None, 0, None)
        fake.logs["t", 0] += bad
        with pytest.raises(InvalidMessageError, match="offset 29"):
            reading.stream().poll(PATIENCE)


def test_a_gap_is_counted_and_fetched_again(caplog: pytest.LogCaptureFixture) -> None:
    with served(pack(SEVERAL)) as fake, Reading(fetch_bytes=200, queued_chunks=3) as reading:
        source = reading.own(fake.port)
        queue = reading.fetchers.feeds()[source].fetch.queue
        wait_until(lambda: len(queue) == 3)
        lost = queue[1]
        assert isinstance(lost, Chunk)
        del queue[1]
        assert take(reading.stream(), 100) == SEVERAL
        assert reading.state(source).gaps == 1
        assert f"expected={lost.offset}" in caplog.text


def test_what_is_left_of_a_partition_that_was_given_up_is_no_gap(caplog: pytest.LogCaptureFixture) -> None:
    """The group's worker ends the place first; the stream may look once more before it forgets the partition."""
    with served(pack(SEVERAL)) as fake, Reading(fetch_bytes=200, queued_chunks=3) as reading:
        source = reading.own(fake.port)
        feed = reading.fetchers.feeds()[source]
        wait_until(lambda: len(feed.fetch.queue) == 3)
        feed.fetch.place.end()
        assert not feed.take_or_none(reading.stream())
        assert not feed.take_or_none(reading.stream())
        assert feed.gaps == 0
        assert "gap" not in caplog.text


def test_a_partition_that_was_given_up_before_its_begin_was_known_makes_no_jump(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise offsets "from -1 on" are reported as lost to the group."""
    asked = Fetch._asked

    def ending(fetch: Fetch, channel: Channel, when: int) -> int:
        found = asked(fetch, channel, when)
        fetch.place.end()
        return found

    monkeypatch.setattr(Fetch, "_asked", ending)
    with served(pack(SEVERAL)) as fake, Reading() as reading:
        source = reading.own(fake.port, offset=None)
        wait_until(lambda: reading.state(source).phase is Phase.STOPPED)
        wait_until(lambda: not fetching_threads())
        assert reading.jumps == []
        assert "HeldFetchRequest" not in fake.seen


@pytest.mark.parametrize("end", [Fetch.stop, lambda fetch: fetch.place.end()], ids=["stopped", "given up"])
def test_nobody_is_asked_where_to_go_on_for_a_partition_that_is_not_read_any_more(
    end: Callable[[Fetch], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another member has it, and goes on where this one was."""
    jump, ended = Fetch._try_to_jump, []

    def ending(fetch: Fetch, *given: Any) -> None:
        end(fetch)
        ended.append(fetch)
        jump(fetch, *given)

    monkeypatch.setattr(Fetch, "_try_to_jump", ending)
    with served(pack(SEVERAL)) as fake, Reading() as reading:
        reading.own(fake.port, offset=10**6)
        wait_until(lambda: len(ended) > 1 or not fetching_threads())
        assert fake.seen["OffsetsRequest"] == 0
        assert reading.jumps == []


def test_an_error_nobody_thought_of_ends_no_fetching(caplog: pytest.LogCaptureFixture) -> None:
    with served(pack(SEVERAL)) as fake, Reading(fetcher_backoff_ms=20) as reading:
        real, failures = reading.fetchers._links.get, [ZeroDivisionError("never thought of")]

        class Broken:
            @property
            def offers(self) -> None:
                raise failures.pop()

        reading.fetchers._links.get = lambda broker: Broken() if failures else real(broker)  # type: ignore
        reading.own(fake.port)
        assert take(reading.stream(), 100) == SEVERAL
        assert "never thought of" in caplog.text


# -- logs that were made anew ----------------------------------------------------------------------------------------


OLD, NEW = 1_346_000_000_000, 1_346_000_000_001
MORE = [b"made anew %03d" % number for number in range(200)]


@pytest.mark.parametrize("reset", ["smallest", "largest"])
def test_a_log_that_is_made_anew_meanwhile_is_not_read_on_in_the_middle(
    reset: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection is made again at once, and the new log reaches beyond the offset: its time tells them apart."""
    with served(pack(SEVERAL)) as fake, Reading(auto_offset_reset=reset, fetcher_backoff_ms=20) as reading:
        fake.made["t", 0] = OLD
        source = reading.own(fake.port)
        assert take(reading.stream(), 100) == SEVERAL
        assert reading.fetchers.logs() == {source: OLD}
        fake.make_anew("t", 0, pack(MORE), NEW)
        if reset == "largest":
            wait_until(lambda: len(reading.jumps) == 1)
            assert reading.stream().poll(0.05) is not None and reading.fetchers.logs() == {source: NEW}
            fake.logs["t", 0] += pack([b"later"])
            assert take(reading.stream(), 1) == [b"later"]
        else:
            assert take(reading.stream(), 200) == MORE
        (jump,) = reading.jumps
        assert jump.old == len(pack(SEVERAL)) and jump.log == NEW and "made anew" in jump.reason
        assert "made anew" in caplog.text
        assert reading.fetchers.logs() == {source: NEW}


def test_a_jump_names_the_log_that_there_is_then() -> None:
    """It was made anew behind a connection that stands, and is shorter: what was known is asked again."""
    with served(pack(SEVERAL)) as fake, Reading(fetcher_backoff_ms=20) as reading:
        fake.made["t", 0] = OLD
        source = reading.own(fake.port)
        assert take(reading.stream(), 100) == SEVERAL
        fake.made["t", 0], fake.logs["t", 0] = NEW, pack(MORE[:10])
        assert take(reading.stream(), 10) == MORE[:10]
        (jump,) = reading.jumps
        assert jump[:3] == (source, len(pack(SEVERAL)), 0) and jump.log == NEW
        assert reading.fetchers.logs() == {source: NEW}


@pytest.mark.parametrize("cut", [True, False], ids=["another connection", "the same connection"])
@pytest.mark.parametrize("begins", [20, 0], ids=["at a message", "inside of one"])
def test_a_log_that_is_away_for_a_while_may_be_another_one_when_it_is_there(cut: bool, begins: int) -> None:
    """Its broker answers as one does where there is no such partition, until it has grown beyond the offset."""
    is_away = threading.Event()

    def absent(request: rq.Request) -> bytes | None:
        if is_away.is_set() and isinstance(request, wire07.HeldFetchRequest):
            time.sleep(0.002)
            return wire07.encode_held_fetch(rs.HeldFetchAnswer(request.correlation_id, 0, 0, 0))
        return None

    more = [b"x" * begins, *MORE]
    assert (len(pack(SEVERAL)) in accumulate(len(pack([payload])) for payload in more)) == bool(begins)
    with served(pack(SEVERAL), hook=absent) as fake, Reading(fetcher_backoff_ms=20) as reading:
        fake.made["t", 0] = OLD
        source = reading.own(fake.port)
        assert take(reading.stream(), 100) == SEVERAL
        is_away.set()
        del fake.logs["t", 0], fake.made["t", 0]
        if cut:
            fake.cut()
        before = fake.seen["HeldFetchRequest"]
        wait_until(lambda: fake.seen["HeldFetchRequest"] > before + 2)
        fake.made["t", 0], fake.logs["t", 0] = NEW, pack(more)
        is_away.clear()
        assert take(reading.stream(), 201) == more
        assert [(jump.source, jump.old, jump.new) for jump in reading.jumps] == [(source, len(pack(SEVERAL)), 0)]
        assert reading.fetchers.logs() == {source: NEW}


def test_who_never_tells_which_log_it_is_is_asked_once_more() -> None:
    """The first thing that comes counts as of the log that was known."""
    asked = []
    for told in ({("t", 0): OLD}, {}):
        with served(pack(SEVERAL)) as fake, Reading(fetcher_backoff_ms=20, fetch_bytes=200) as reading:
            fake.made |= told
            source = reading.own(fake.port, log=OLD)
            assert take(reading.stream(), 100) == SEVERAL
            assert (reading.jumps, reading.fetchers.logs()) == ([], {source: OLD})
            asked.append(fake.seen["MetadataRequest"])
    assert asked[1] == asked[0] + 1


def test_an_offset_of_another_log_is_not_gone_on_at() -> None:
    """As it comes from a store that keeps which log it is of."""
    data = pack(MORE)
    with served(data, data, data, data) as fake, Reading(fetcher_backoff_ms=20) as reading:
        fake.made |= {("t", number): NEW for number in (0, 1, 2)}
        middle = len(pack(MORE[:100]))
        found = {}
        for number, (offset, log) in enumerate([(middle, OLD), (middle, NEW), (0, OLD), (middle, OLD)]):
            found[number] = reading.own(fake.port, number, offset, log=log, stream=str(number))
        assert take(reading.stream("0"), 200) == MORE
        assert take(reading.stream("1"), 100) == MORE[100:]
        assert take(reading.stream("2"), 200) == MORE  # it begins where it was to go on
        assert take(reading.stream("3"), 100) == MORE[100:]  # the broker does not tell: nothing is known against it
        assert [(jump.source, jump.old, jump.new) for jump in reading.jumps] == [(found[0], middle, 0)]
        assert reading.fetchers.logs() == {source: NEW if n != 3 else OLD for n, source in found.items()}


def test_which_log_it_is_is_known_once_what_was_read_before_is_consumed() -> None:
    """So that no offset of the one before is saved as one of the new one."""
    with served(pack(SEVERAL)) as fake, Reading(fetcher_backoff_ms=20, fetch_bytes=200) as reading:
        fake.made["t", 0] = OLD
        source = reading.own(fake.port)
        take(reading.stream(), 1)
        fake.make_anew("t", 0, pack(MORE), NEW)
        found = []
        while not found or found[-1] != MORE[0]:
            logs = reading.fetchers.logs()
            found += take(reading.stream(), 1)
            if found[-1] in SEVERAL:
                assert logs == {source: OLD}
        assert reading.fetchers.logs() == {source: NEW} and len(reading.jumps) == 1
