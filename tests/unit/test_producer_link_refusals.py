"""A link whose requests are refused for now, in every company: what waits keeps its place, is tried when it is due, and
comes to one end."""

from __future__ import annotations

import struct

import pytest

from fastlog._segment import payloads
from fastlog.errors import CLASS_BY_CODE, FastlogError, StorageError, TransportError
from fastlog.producer.refusals import RETRIED
from tests.harness import wire07
from tests.harness.still_link import NEVER, Peer, StillLink, answer_to, still_link

FULL = StorageError.code


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def take_all(link: StillLink, peer: Peer, count: int) -> list[bytes]:
    """Answer so many requests one by one; their messages."""
    found = []
    for _ in range(count):
        request = peer.request()
        assert isinstance(request, wire07.ProduceAckRequest)
        found += payloads(request.message_set)
        link.say(peer, answer_to(request)).step()
    return found


@pytest.mark.parametrize("chance", [0.75, 1.0])
def test_a_refused_request_is_tried_when_it_is_due_and_the_pauses_grow(chance: float) -> None:
    """Alone, while what came behind it waits; once stored, all goes out in its order, and nothing is left."""
    with still_link(chance=chance) as link:
        link.put(numbers(1))
        peer = link.step().accept()
        link.answer(peer, FULL).step()
        link.put([b"1", b"2"])
        for pause in (20, 40, 80, 160, 320, 640, 1000, 1000):
            assert link.counts() == (0, 0, 3 if pause > 20 else 1)
            link.step()
            assert link.sleeps_ms() == pytest.approx(pause * chance)
            link.clock.move(round(pause * chance) - 1)
            link.step()
            assert peer.is_quiet()
            link.clock.move(2)
            link.step()
            assert link.sleeps_ms() == 30_000
            link.answer(peer, FULL)
            assert peer.is_quiet(), "what waits behind it waits"
            link.step()
        link.clock.move(2000)
        link.step()
        assert take_all(link, peer, 3) == numbers(3)
        assert link.counts() == (3, 0, 0)
        assert link.sleeps_ms() == NEVER
        assert [told.error for told in link.told] == [None] * 3
        assert link.link.possible_duplicates == 0


@pytest.mark.parametrize("code", sorted(set(CLASS_BY_CODE) | {5, 77, 32767, -32768}))
def test_after_every_code_the_link_goes_on(code: int) -> None:
    """It fails the request or tries it again, never both; the next one is stored, and nothing is left behind."""
    with still_link() as link:
        link.put([b"first"])
        peer = link.step().accept()
        link.answer(peer, code).step()
        retried = code in RETRIED
        assert link.counts() == ((0, 0, 1) if retried else (0, 1, 0))
        event = link.flush()
        link.put([b"second"])
        link.clock.move(1000)
        link.step()
        expected = [b"first", b"second"] if retried else [b"second"]
        assert take_all(link, peer, len(expected)) == expected
        assert event.is_set()
        assert link.counts() == (len(expected), 1 - retried, 0)
        told = [None if each.error is None else each.error_code for each in link.told]
        known = code if code in CLASS_BY_CODE else -1
        assert told == ([None, None] if retried else [known, None]) or told[0] == code
        assert (link.sleeps_ms(), link.link.connections) == (NEVER, 1)


NONSENSE = struct.pack(">i", 3) + b"abc"


@pytest.mark.parametrize("way", ["nonsense", "another id", "reset", "end"])
@pytest.mark.parametrize("later", [0, 2])
def test_a_refusal_with_a_break_behind_it_keeps_its_place(way: str, later: int) -> None:
    """What was refused is tried again before what was on its way behind it; a flush waits for all of it."""
    with still_link() as link:
        link.put(numbers(1 + later))
        peer = link.step().accept()
        event = link.flush()
        request = peer.request()
        assert isinstance(request, wire07.ProduceAckRequest)
        refusal = answer_to(request, FULL)
        if way == "nonsense":
            link.say(peer, refusal + NONSENSE)
        elif way == "another id":
            link.say(peer, refusal + answer_to(request._replace(correlation_id=999)))
        else:
            link.say(peer, refusal)
            if way == "reset":
                peer.connection.setsockopt(*SO_RESET)
            peer.connection.close()
        link.step()
        assert not event.is_set()
        assert link.counts() == (0, 0, 1 + later)
        link.clock.move(2000)
        peer = link.step().accept()
        assert take_all(link, peer, 1 + later) == numbers(1 + later)
        assert event.is_set()
        assert link.counts() == (1 + later, 0, 0)
        assert link.sleeps_ms() == NEVER


def test_what_a_break_gives_back_from_several_writes_keeps_its_order() -> None:
    """Behind what was refused before it, and before what came later."""
    with still_link() as link:
        link.put([b"0"])
        peer = link.step().accept()
        for payload in (b"1", b"2", b"3"):
            link.put([payload])
            link.step()
        link.answer(peer, FULL)
        peer.connection.close()
        link.step()
        link.put([b"4"])
        link.step().clock.move(2000)
        peer = link.step().accept()
        assert take_all(link, peer, 5) == numbers(5)
        assert link.counts() == (5, 0, 0)


SO_RESET = (1, 13, struct.pack("ii", 1, 0))  # SOL_SOCKET, SO_LINGER: a close resets


def test_a_probe_that_is_given_up_without_a_connection_blocks_nobody() -> None:
    """Its time ends while no broker is there; the partition takes messages again when there is one."""
    with still_link(delivery_timeout_ms=1000) as link:
        link.put([b"old"])
        peer = link.step().accept()
        link.answer(peer, FULL).step()
        link.refuse()
        peer.connection.close()
        link.wait_readable().step()
        link.clock.move(500)
        link.step()
        link.clock.move(500)
        link.step()
        assert link.counts() == (0, 1, 0)
        link.put([b"new"])
        link.listen_again()
        link.clock.move(100)
        peer = link.step().accept()
        assert take_all(link, peer, 1) == [b"new"]
        assert link.counts() == (1, 1, 0)
        assert link.sleeps_ms() == NEVER
        link.link.stop()
        link.step()
        link.end(peer)
        assert link.ends()


@pytest.mark.parametrize("early", [0, 1])
def test_what_waits_is_given_up_when_it_is_due(early: int) -> None:
    """Each message by its own time; the sleep ends then."""
    with still_link(delivery_timeout_ms=60) as link:
        link.put([b"1"])
        peer = link.step().accept()
        link.clock.move(10)
        link.put([b"2"])
        link.step()
        link.answer(peer, FULL, FULL).step()
        link.clock.move(9)
        link.turn()
        assert link.sleeps_ms() == pytest.approx(31)  # the next try: two refusals, two pauses
        link.clock.move(41 - early)
        link.turn()
        if early:
            assert link.counts() == (0, 0, 2)
            assert link.sleeps_ms() <= 1
            link.clock.move(1)
            link.turn()
        assert link.counts()[:2] == (0, 1)
        link.clock.move(9)
        assert link.turn().counts()[:2] == (0, 1)
        link.clock.move(1)
        assert link.turn().counts() == (0, 2, 0)
        link.link.stop()
        assert link.ends(), "nothing is left that it waits for"
        assert all(isinstance(told.error, StorageError | TransportError) for told in link.told)


def test_the_sleep_ends_with_the_delivery_time_though_the_next_try_is_later() -> None:
    with still_link(delivery_timeout_ms=1500) as link:
        link.put([b"x"])
        peer = link.step().accept()
        link.answer(peer, FULL).step()
        for pause in (20, 40, 80, 160, 320, 640):
            link.clock.move(pause + 1)
            link.step()
            link.answer(peer, FULL).step()
        assert link.sleeps_ms() == 234
        link.clock.move(234)
        assert link.step().counts() == (0, 1, 0)
        assert link.sleeps_ms() == NEVER


def test_a_flush_waits_for_what_was_refused_while_it_is_tried_again() -> None:
    with still_link() as link:
        link.put(numbers(2))
        event = link.flush()
        peer = link.step().accept()
        link.answer(peer, FULL, FULL).step()
        assert not event.is_set()
        link.clock.move(1000)
        link.step()
        assert peer.messages() == [b"0"]
        assert not event.is_set()
        link.end(peer).step()
        link.clock.move(2000)
        peer = link.step().accept()
        assert not event.is_set()
        link.answer(peer, 0).step()
        assert not event.is_set()
        link.answer(peer, 0).step()
        assert event.is_set()


@pytest.mark.parametrize("retries", [1, 2, 5])
def test_as_many_tries_as_are_allowed(retries: int) -> None:
    with still_link(num_retries=retries) as link:
        link.put([b"x", b"y"])
        peer = link.step().accept()
        link.answer(peer, FULL, FULL).step()
        for _ in range(retries - 1):
            link.clock.move(1000)
            link.step()
            link.answer(peer, FULL).step()
        assert link.counts() == (0, 0, 2)
        link.clock.move(1000)
        link.step()
        link.answer(peer, FULL).step()
        assert link.counts() == (0, 1, 1)
        assert f"1 messages were refused {retries + 1} times" in str(link.told[0].error)
        link.clock.move(1000)
        link.step()
        assert take_all(link, peer, 1) == [b"y"]
        assert link.counts() == (1, 1, 0)


def test_no_try_means_the_first_refusal_is_the_end() -> None:
    with still_link(num_retries=0) as link:
        link.put(numbers(3))
        peer = link.step().accept()
        link.answer(peer, FULL, 0, FULL).step()
        assert link.counts() == (1, 2, 0)
        assert link.sleeps_ms() == NEVER


def test_what_waits_counts_as_on_its_way_to_the_byte() -> None:
    with still_link() as probe:
        probe.put([b"x" * 100])
        probe.step()
        frame_bytes = probe.link._flight.bytes
    for room, is_taken in ((0, False), (1, True)):
        with still_link(in_flight_bytes=frame_bytes + room) as link:
            link.put([b"x" * 100])
            peer = link.step().accept()
            link.answer(peer, FULL).step()
            assert link.link._flight.bytes == 0
            link.put([b"y" * 100], partition=1)
            link.step()
            assert (link.counts()[2], link.quota.messages) == ((2, 0) if is_taken else (1, 1))
            assert link.is_full()


def test_what_has_waited_takes_no_room_once_it_is_on_its_way_again() -> None:
    """Else each full disk would leave less room for what may be on its way, and the last one none."""
    with still_link(in_flight_bytes=1000) as link:
        link.put([bytes(200)])
        peer = link.step().accept()
        for _ in range(20):
            link.answer(peer, FULL).step()
            link.put([bytes(200)])
            link.step().clock.move(2000)
            assert len(take_all(link.step(), peer, 2)) == 2
            link.put([bytes(200)])
            link.step()
            assert not link.is_full()
        assert link.counts() == (40, 0, 1)


def test_partitions_are_refused_each_for_itself() -> None:
    """The one that is full waits; the other goes on, also behind it in one chunk of answers."""
    with still_link() as link:
        for number in range(3):
            link.put([b"%d" % number], partition=0)
            link.put([b"%d" % number], partition=1)
        peer = link.step().accept()
        requests = [peer.request() for _ in range(6)]
        assert all(isinstance(request, wire07.ProduceAckRequest) for request in requests)
        said = [
            answer_to(request, FULL if request.partition == 0 else 0)  # type: ignore[arg-type]
            for request in requests
        ]
        link.say(peer, *said).step()
        assert link.counts() == (3, 0, 3)
        assert {told.partition for told in link.told} == {1}
        link.clock.move(1000)
        link.step()
        assert take_all(link, peer, 3) == numbers(3)
        assert link.counts() == (6, 0, 0)


def test_a_break_while_one_is_tried_puts_it_back_in_front() -> None:
    with still_link() as link:
        link.put(numbers(3))
        peer = link.step().accept()
        link.answer(peer, FULL, FULL, FULL).step()
        link.clock.move(1000)
        link.step()
        assert peer.messages() == [b"0"]
        link.put([b"3"])
        link.end(peer).step()
        assert link.link.possible_duplicates == 1
        link.clock.move(2000)
        peer = link.step().accept()
        assert take_all(link, peer, 4) == numbers(4)
        assert link.counts() == (4, 0, 0)


@pytest.mark.parametrize("connected", [True, False])
def test_the_end_fails_what_waits_once(connected: bool) -> None:
    with still_link() as link:
        link.put(numbers(4))
        peer = link.step().accept()
        link.answer(peer, FULL, FULL).step()
        if not connected:
            link.refuse()
            link.end(peer).step()
        event = link.flush()
        link.link.abort(FastlogError("enough"))
        assert link.ends()
        assert event.is_set()
        assert link.counts() == (0, 4, 0)
        assert sum(told.messages for told in link.told) == 4


def test_a_later_one_that_was_stored_fails_what_was_refused_before_it() -> None:
    """In a partition that was named; where the broker chooses one there is no order, and it is tried again."""
    for partition in (0, -1):
        with still_link() as link:
            link.put(numbers(3), partition=partition)
            peer = link.step().accept()
            link.answer(peer, FULL, 0, 0).step()
            if partition == 0:
                assert link.counts() == (2, 1, 0)
                (failed,) = [told for told in link.told if told.error is not None]
                assert "a later request to the partition was stored meanwhile" in str(failed.error)
                assert link.sleeps_ms() == NEVER
                continue
            assert link.counts() == (2, 0, 1)
            link.clock.move(1000)
            link.step()
            assert take_all(link, peer, 1) == [b"0"]
            assert link.counts() == (3, 0, 0)


def test_a_later_one_that_failed_for_good_changes_nothing_for_it() -> None:
    with still_link() as link:
        link.put(numbers(2))
        peer = link.step().accept()
        link.answer(peer, FULL, 2).step()
        assert link.counts() == (0, 1, 1)
        link.clock.move(1000)
        link.step()
        assert take_all(link, peer, 1) == [b"0"]
        assert link.counts() == (1, 1, 0)


def test_it_is_said_once_for_each_time_that_a_partition_is_full(caplog: pytest.LogCaptureFixture) -> None:
    with still_link() as link:
        link.put(numbers(3))
        peer = link.step().accept()
        link.answer(peer, FULL, FULL, FULL).step()
    lines = [record.getMessage() for record in caplog.records if "refused for now" in record.getMessage()]
    assert len(lines) == 1
    assert "tried again topic=t partition=0: " in lines[0]
