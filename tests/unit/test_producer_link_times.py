"""When a link of a producer acts: at the moment that its settings say, not before, not after, and asleep till then."""

from __future__ import annotations

import contextlib

import pytest

from fastlog.client.connection import Connection
from fastlog.errors import ClosedError, FastlogError, TransportError
from tests.harness.still_link import NEVER, still_link


def test_nothing_to_do_is_slept_through() -> None:
    """No connection, no end of the sleep; and the same again once all is answered."""
    with still_link() as link:
        assert link.step().step().sleeps_ms() == NEVER
        assert not link.is_connected
        link.put([b"x"])
        peer = link.step().accept()
        assert link.sleeps_ms() == 30_000
        link.answer(peer, 0).step()
        assert link.sleeps_ms() == NEVER
        link.clock.move(10**8)
        assert link.step().step().is_connected
        assert (link.link.connections, link.counts()) == (1, (1, 0, 0))


def test_room_to_write_is_waited_for_while_there_is_something_to_write() -> None:
    """At other times there always is room, and waiting for it would be no sleep."""
    with still_link() as link:
        link.put([b"x"])
        peer = link.step().accept()
        assert not link.waits_to_write()
        link.answer(peer, 0).step()
        assert not link.waits_to_write()
        link.put([bytes(900_000)] * 25)
        assert link.step().waits_to_write()
        link.link.move()
        assert not link.step().waits_to_write()


def test_a_link_takes_the_place_of_one_that_asks_for_the_same_answers() -> None:
    """While its broker is registered, and as long as it is not known to be away; not that of itself."""
    with still_link() as link, still_link() as other, still_link(acks=0) as silent:
        assert link.link.can_replace(other.link)
        assert not link.link.can_replace(silent.link)
        assert not link.link.can_replace(link.link)
        link.link.set_registered(False)
        assert not link.link.can_replace(other.link)
        link.link.set_registered(True)
        assert link.link.can_replace(other.link)
        link.refuse()
        link.put([b"x"])
        assert not link.step().link.can_replace(other.link)


def test_a_new_address_is_changed_to_once() -> None:
    with still_link() as link:
        link.put([b"1"])
        peer = link.step().accept()
        link.answer(peer, 0).step()
        link.link.move()
        link.step()
        assert peer.is_at_end()
        peer.connection.close()
        assert not link.step().is_connected
        link.put([b"2"])
        peer = link.step().accept()
        link.answer(peer, 0).step()
        link.put([b"3"])
        link.step().answer(peer, 0).step()
        assert (link.link.connections, link.counts()) == (2, (3, 0, 0))


@pytest.mark.parametrize("early", [0, 1])
def test_a_connection_that_stands_still_is_replaced_when_it_is_due(early: int) -> None:
    with still_link(socket_timeout_ms=750) as link:
        link.put([b"x"])
        peer = link.step().accept()
        link.clock.move(750 - early)
        link.step()
        assert link.is_connected == bool(early)
        if early:
            assert link.sleeps_ms() == 1
            assert link.link.possible_duplicates == 0
            link.clock.move(1)
            link.step()
        assert peer.messages() == [b"x"]
        assert peer.is_at_end()
        assert link.link.possible_duplicates == 1
        link.clock.move(20)
        assert link.step().accept().messages() == [b"x"]


def test_each_answer_and_each_write_begins_the_time_anew() -> None:
    with still_link(socket_timeout_ms=1000) as link:
        link.put([b"1", b"2"])
        peer = link.step().accept()
        link.clock.move(900)
        link.answer(peer, 0).step()
        assert link.sleeps_ms() == 1000
        link.clock.move(600)
        link.put([b"3"])
        assert link.step().sleeps_ms() == 1000
        link.clock.move(999)
        assert link.step().sleeps_ms() == 1
        assert link.is_connected
        link.clock.move(1)
        link.step()
        assert not link.is_connected


def test_the_time_begins_with_what_there_is_to_wait_for() -> None:
    """A connection that nobody has asked anything for long stands not still, neither before nor after the next."""
    with still_link(socket_timeout_ms=1000) as link:
        link.put([b"1"])
        peer = link.step().accept()
        link.answer(peer, 0).step()
        link.clock.move(5000)
        link.put([b"2"])
        assert link.step().sleeps_ms() == 1000
        link.answer(peer, 0).step()
        assert (link.link.connections, link.counts()) == (1, (2, 0, 0))


@pytest.mark.parametrize("connected", [True, False])
def test_the_delivery_time_ends_when_it_is_due(connected: bool) -> None:
    """It counts from when the messages left the queue; the connection that they are written to goes with them."""
    with still_link(delivery_timeout_ms=800) as link:
        if not connected:
            link.refuse()
        link.put([b"x"], batch=2)
        link.step()
        link.clock.move(100)
        link.put([b"y", b"z"], batch=2)
        link.step()
        link.clock.move(699)
        link.turn()
        assert link.counts() == (0, 0, 3)
        assert link.sleeps_ms() <= 1
        link.clock.move(1)
        link.turn()
        assert link.counts() == (0, 1, 2)
        (told,) = link.told
        assert told.messages == 1
        assert "not delivered within 800 ms" in str(told.error)
        assert not link.is_connected
        link.clock.move(99)
        link.turn()
        assert link.counts() == (0, 1, 2)
        assert link.sleeps_ms() <= 1
        link.clock.move(1)
        link.turn()
        assert link.counts() == (0, 3, 0)
        assert [told.messages for told in link.told] == [1, 2]


@pytest.mark.parametrize("chance", [0.75, 1.0])
def test_pauses_between_attempts_grow_to_a_second(chance: float) -> None:
    """They begin with 20 ms again once a connection was there and has answered, or was kept for a second."""
    with still_link(chance=chance, connect_timeout_ms=5000) as link:
        link.refuse()
        link.put([b"x"])
        for pause in (20, 40, 80, 160, 320, 640, 1000, 1000):
            link.step()
            assert link.sleeps_ms() == pytest.approx(pause * chance)
            link.clock.move(1)
            attempts = link.link._next_attempt
            link.step()  # not yet
            assert link.link._next_attempt == attempts
            link.clock.move(round(pause * chance + 0.49))
        link.listen_again()
        peer = link.turn().accept()
        link.end(peer).turn().turn()
        assert link.sleeps_ms() == pytest.approx(1000 * chance), "what never answered is no reason to hurry"
        link.clock.move(1000)
        peer = link.turn().accept()
        link.answer(peer, 0).turn()
        link.put([b"y"])
        link.turn()
        link.end(peer).turn()
        assert not link.is_connected
        peer = link.turn().accept()  # what has answered is tried again at once
        link.end(peer).turn().turn()
        assert link.sleeps_ms() == pytest.approx(20 * chance)


@pytest.mark.parametrize(("kept_ms", "at_once"), [(1000, False), (1001, True)])
def test_a_connection_that_held_for_a_second_is_replaced_at_once(kept_ms: int, at_once: bool) -> None:
    with still_link() as link:
        link.put([b"x"])
        peer = link.step().accept()
        link.clock.move(kept_ms)
        link.end(peer).turn().turn()
        assert link.is_connected == at_once
        assert at_once or link.sleeps_ms() == 20


@pytest.mark.parametrize("early", [0, 1])
def test_attempts_end_after_as_many_times_as_are_allowed(early: int) -> None:
    """``num.retries`` more than one time-out of a connection, from the first attempt that failed."""
    with still_link(num_retries=2, connect_timeout_ms=500) as link:
        link.refuse()
        link.put([b"x"])
        link.step()
        link.clock.move(1500 - early)
        link.step()
        assert link.counts() == ((0, 0, 1) if early else (0, 1, 0))
        if not early:
            (told,) = link.told
            assert "cannot reach a broker" in str(told.error)
            link.clock.move(10**6)
            assert link.step().sleeps_ms() > 0, "it looks whether the broker is back"
            link.listen_again()
            link.clock.move(10**6)
            link.step().accept()
            assert link.ups == [False, True]


def test_the_time_for_attempts_begins_anew_with_a_connection() -> None:
    """Two times of 300 ms without the broker are no 400."""
    with still_link(num_retries=0, connect_timeout_ms=400) as link:
        for number in range(3):
            link.refuse()
            link.put([b"%d" % number])
            link.step()
            link.clock.move(300)
            link.step()
            assert link.counts() == (number, 0, 1)
            link.listen_again()
            link.clock.move(99)
            peer = link.turn().accept() if link.link._next_attempt <= link.clock.monotonic() else None
            if peer is None:
                link.clock.move(1000)
                peer = link.turn().accept()
            link.answer(peer, 0).step()
            link.end(peer).step()


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_what_is_written_is_given_up_after_so_many_breaks(retries: int) -> None:
    """Only what was written has used a try; what comes behind it has all of its own."""
    with still_link(num_retries=retries, connect_timeout_ms=8000) as link:
        link.put([b"x"])
        for number in range(retries + 1):
            link.refuse()
            for _ in range(3):
                link.clock.move(1000)
                link.step()
            assert link.counts() == (0, 0, 1)
            link.listen_again()
            link.clock.move(1000)
            peer = link.step().accept()
            assert peer.messages() == [b"x"]
            assert link.link.possible_duplicates == number
            link.end(peer).step()
        assert link.counts() == (0, 1, 0)
        link.put([b"behind"])
        link.clock.move(2000)
        peer = link.step().accept()
        assert link.answer(peer, 0).step().counts() == (1, 1, 0)
        assert [type(told.error) for told in link.told] == [TransportError, type(None)]


@pytest.mark.parametrize(("chance", "sends"), [(1.0, 4), (0.75, 3), (0.9, 4)])
def test_a_connection_is_changed_after_so_many_requests(chance: float, sends: int) -> None:
    """All of them are answered on it; the others wait for the next one. Nothing is written twice."""
    with still_link(chance=chance, reconnect_interval_sends=4) as link:
        link.put([b"%d" % number for number in range(9)])
        first = link.step().accept()
        for number in range(sends):
            assert first.messages() == [b"%d" % number]
        assert first.is_at_end()
        assert (link.sleeps_ms(), link.link.in_flight) == (30_000, 9)
        link.step().step()
        link.end(first).step()
        # closed without answers: broken, and what was written goes out again
        assert link.link.possible_duplicates == sends
        link.clock.move(100)
        second = link.step().accept()
        link.answer(second, *([0] * sends)).step()
        assert second.is_at_end()
        assert link.counts() == (sends, 0, 9 - sends)
        link.end(second).step()
        assert link.link.possible_duplicates == sends
        assert link.step().accept().messages() == [b"%d" % sends]
        assert link.link.connections == 3


@pytest.mark.parametrize("end", ["changed", "broken", "aborted"])
def test_a_child_that_is_forked_while_a_connection_ends_closes_it(end: str) -> None:
    """The link names it until it is closed: what it does not name, the child would keep open."""
    left: list[bool] = []

    class Ending(Connection):
        def close(self) -> None:
            left.append(link.link._connection is self)
            super().close()

    with still_link(reconnect_interval_sends=1) as link:
        link.put([b"1"])
        peer = link.step().accept()
        connection = link.link._connection
        assert connection is not None
        connection.__class__ = Ending
        if end == "aborted":
            link.link.abort(ClosedError("over"))
            assert link.ends()
        else:
            if end == "changed":
                link.answer(peer, 0).step()
                assert peer.is_at_end()
            else:
                assert peer.messages() == [b"1"]
            link.end(peer).step()
        assert left == [True]


@pytest.mark.parametrize("chance", [0.75, 1.0])
def test_a_connection_is_changed_when_it_is_so_old(chance: float) -> None:
    """By the first request that is due then, on a connection that is asked for nothing else."""
    with still_link(chance=chance, reconnect_time_interval_ms=1000) as link:
        link.put([b"1"])
        first = link.step().accept()
        link.answer(first, 0).step()
        link.clock.move(int(1000 * chance) - 1)
        link.put([b"2"])
        link.step()
        assert first.messages() == [b"2"]
        link.clock.move(1)
        link.put([b"3"])
        link.step()
        assert first.is_at_end()
        assert link.link.connections == 1
        link.end(first)
        link.step().step()
        assert link.link.connections == 2
        second = link.accept()
        assert (second.messages(), second.messages()) == ([b"2"], [b"3"])


def test_a_request_that_is_half_written_is_finished_before_the_change() -> None:
    with still_link(reconnect_time_interval_ms=1000, send_buffer_bytes=2000) as link:
        messages = [bytes([65 + number]) * 900_000 for number in range(8)]
        link.put(messages)
        first = link.step().accept()
        assert link.link._flight.is_torn()
        link.clock.move(1000)
        seen = []
        link.step()
        while link.link._flight.is_torn():
            first.connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                first._reader.feed(first.connection.recv(1 << 20))
            link.step()
        first.connection.settimeout(30)
        written = link.link._flight.unfinished_frames()
        for _ in range(written):
            seen += first.messages()
        assert seen == messages[:written]
        assert 0 < written < 8
        assert first.is_at_end()


def test_what_is_being_left_may_stand_still_as_long_as_any() -> None:
    """From the half-close on; without anything to be answered as well."""
    with still_link(socket_timeout_ms=500, reconnect_interval_sends=1) as link:
        link.put([b"1"])
        peer = link.step().accept()
        link.answer(peer, 0).step()
        assert link.sleeps_ms() == 500
        link.clock.move(499)
        assert link.step().is_connected
        link.clock.move(1)
        link.step()
        assert not link.is_connected
        assert (link.link.possible_duplicates, link.counts()) == (0, (1, 0, 0))


@pytest.mark.parametrize("room", [-1, 0, 1])
def test_what_is_on_its_way_is_bounded_to_the_byte(room: int) -> None:
    """One byte less than allowed takes more and wakes for it; as much as allowed does neither."""
    with still_link() as probe:
        probe.put([b"x" * 100])
        probe.step()
        frame_bytes = probe.link._flight.bytes
    with still_link(in_flight_bytes=frame_bytes + room) as link:
        link.put([b"x" * 100])
        peer = link.step().accept()
        link.put([b"y" * 100])
        link.step()
        assert link.is_full() == (room <= 0 or True)
        assert link.link._flight.bytes == (frame_bytes if room <= 0 else 2 * frame_bytes)
        assert link.quota.messages == (1 if room <= 0 else 0)
        link.answer(peer, 0).step().step()
        assert link.link._flight.bytes == frame_bytes
        assert link.is_full() == (room <= 0)


def test_a_flush_takes_what_does_not_fit() -> None:
    """flush() and the end are promised in finite time, so the bound is passed over."""
    with still_link(in_flight_bytes=1) as link:
        link.put([b"1"])
        peer = link.step().accept()
        link.put([b"2"])
        link.put([b"3"], partition=1, batch=100, seal=False)
        assert link.step().counts() == (0, 0, 1)
        event = link.flush()
        assert link.step().counts() == (0, 0, 3)
        for _ in range(3):
            assert not event.is_set()
            link.answer(peer, 0).step()
        assert event.is_set()


def test_a_flush_waits_for_what_was_there_and_no_longer() -> None:
    with still_link() as link:
        assert link.flush().is_set() is False
        link.put([b"1", b"2"])
        first = link.flush()
        peer = link.step().accept()
        link.put([b"3"])
        second = link.flush()
        link.put([b"4"])
        link.step()
        third = link.flush()
        link.step()
        opened = []
        for _ in range(4):
            link.answer(peer, 0).step()
            opened.append((first.is_set(), second.is_set(), third.is_set()))
        assert opened == [
            (False, False, False),
            (True, False, False),
            (True, False, False),
            (True, True, True),
        ]


def test_a_flush_of_nothing_is_over_at_once_and_keeps_nobody_awake() -> None:
    with still_link() as link:
        event = link.flush()
        link.step()
        assert event.is_set()
        assert link.step().sleeps_ms() == NEVER


@pytest.mark.parametrize(("sync", "early"), [(True, 0), (True, 1), (False, 0)])
def test_a_broker_that_left_zookeeper(sync: bool, early: int) -> None:
    """Who waits in send() is told after one time-out of a connection; what is queued waits for the broker's return."""
    kind = "sync" if sync else "async"
    fields = {"producer_type": kind, **({"queue_time_ms": 5000} if sync else {})}
    with still_link(connect_timeout_ms=625, socket_timeout_ms=5000, **fields) as link:
        link.put([b"x"], partition=1)
        peer = link.step().accept()
        assert link.sleeps_ms() == 5000
        link.link.set_registered(False)
        link.clock.move(50)
        link.step()
        assert link.sleeps_ms() == pytest.approx(575)
        link.clock.move(575 - early)
        link.step()
        assert link.is_connected == bool(early)
        if early:
            link.clock.move(1)
            link.step()
        if sync:
            link.clock.move(50)
            link.step()
            assert link.counts() == (0, 1, 0)
            (told,) = link.told
            assert "not in ZooKeeper any more, and did not take the messages within 625 ms" in str(told.error)
            return
        assert peer.messages() == [b"x"]
        assert link.counts() == (0, 0, 1)
        link.link.set_registered(True)
        peer = link.step().accept()
        assert link.sleeps_ms() == 5000
        assert link.answer(peer, 0).step().counts() == (1, 0, 0)


def test_a_broker_that_has_moved_is_gone_to_at_once() -> None:
    """What was to be waited for before the next try was about the old address."""
    with still_link() as link:
        link.put([b"x"])
        link.refuse()
        link.step()
        assert not link.is_connected and link.sleeps_ms() > 0
        link.listen_again()
        link.step()
        assert not link.is_connected
        link.link.move()
        assert link.step().accept().messages() == [b"x"]


def test_an_idle_connection_to_a_broker_that_left_zookeeper_is_let_go() -> None:
    with still_link() as link:
        link.put([b"x"])
        peer = link.step().accept()
        link.answer(peer, 0).step()
        link.link.set_registered(False)
        link.step()
        assert peer.is_at_end()
        link.end(peer).step()
        assert not link.is_connected
        assert link.step().sleeps_ms() == NEVER
        link.link.set_registered(True)
        link.put([b"y"])
        assert link.step().accept().messages() == [b"y"]


def test_pauses_begin_anew_behind_a_connection_that_was_changed_on_purpose() -> None:
    with still_link(reconnect_interval_sends=1) as link:
        link.refuse()
        link.put([b"1"])
        for _ in range(8):
            link.step().clock.move(1000)
        link.listen_again()
        peer = link.step().accept()
        link.answer(peer, 0).step()
        assert peer.is_at_end()
        link.end(peer).step()
        link.refuse()
        link.put([b"2"])
        assert link.step().sleeps_ms() == 20


def test_a_flush_waits_for_what_no_other_broker_takes() -> None:
    """It stays with this one, behind whatever came meanwhile."""
    with still_link() as link:
        link.refuse()
        link.put([b"x"], partition=-1)
        flushed = link.flush()
        for _ in range(3):
            link.step().clock.move(1000)
        assert not flushed.is_set()
        link.listen_again()
        peer = link.step().accept()
        assert not flushed.is_set()
        link.answer(peer, 0).step()
        assert flushed.is_set()
        assert link.counts() == (1, 0, 0)


def test_a_broker_that_is_back_in_zookeeper_has_its_time_again() -> None:
    """What was given it since it left counts for nothing any more, however long ago that was."""
    with still_link(producer_type="sync", connect_timeout_ms=100) as link:
        link.link.set_registered(False)
        link.step().link.set_registered(True)
        link.step().clock.move(1000)
        link.put([b"x"])
        peer = link.step().accept()
        assert link.answer(peer, 0).step().counts() == (1, 0, 0)


def test_a_new_address_is_used_for_what_comes_next() -> None:
    """The old connection gives its answers first, and nothing new goes out on it."""
    with still_link() as link, still_link() as elsewhere:
        link.put([b"1"])
        old = link.step().accept()
        address = link.directory.broker.address._replace(port=elsewhere.port)
        link.directory.move(address)
        link.link.move()
        link.put([b"2"])
        link.step().step()
        assert link.answer(old, 0).step().counts() == (1, 0, 1)
        assert old.is_at_end()
        link.end(old)
        link.step().step()
        assert elsewhere.accept().messages() == [b"2"]


@pytest.mark.parametrize("connected", [True, False])
def test_a_stop_delivers_waits_for_the_end_and_ends(connected: bool) -> None:
    with still_link() as link:
        if not connected:
            link.link.stop()
            assert link.ends()
            assert link.link.finished.is_set()
            return
        link.put([b"1"], batch=5, seal=False)
        link.link.stop()
        peer = link.step().accept()
        link.answer(peer, 0).step().step()
        assert peer.is_at_end()
        assert not link.link.finished.is_set()
        link.end(peer)
        assert link.ends()
        assert link.counts() == (1, 0, 0)
        with pytest.raises(ClosedError):
            link.put([b"late"])


def test_a_stop_with_no_broker_does_not_look_for_one_longer_than_for_messages() -> None:
    with still_link(num_retries=0, connect_timeout_ms=250) as link:
        link.refuse()
        link.put([b"x"])
        link.step()
        link.clock.move(250)
        link.step()
        assert link.counts() == (0, 1, 0)
        link.link.stop()
        assert link.ends()


def test_an_abort_fails_everything_there_is() -> None:
    """Written, waiting to be written, in the outbox, open: each once, with the reason."""
    with still_link(in_flight_bytes=1) as link:
        link.put([b"1", b"2"])
        link.step().accept()
        link.put([b"3"])
        link.put([b"4", b"5"], batch=9, seal=False, partition=1)
        event = link.flush()
        reason = FastlogError("enough")
        link.link.abort(reason)
        assert link.ends()
        assert event.is_set()
        assert sum(told.messages for told in link.told) == 5
        assert all("enough" in str(told.error) for told in link.told)
        assert link.counts() == (0, 5, 0)
        assert link.link.possible_duplicates == 2
        assert (link.quota.messages, link.quota.bytes) == (0, 0)
        assert link.flush().is_set()


def test_what_another_link_gives_up_is_sent_before_what_comes_later() -> None:
    with still_link() as link, still_link() as other:
        other.put([b"0", b"1"], partition=-1)
        link.put([b"own"])
        assert all(link.link.adopt(chunk) for chunk in other.link.outbox.take(True))
        peer = link.step().accept()
        link.step()
        assert [peer.messages() for _ in range(3)] == [[b"0"], [b"1"], [b"own"]]


def test_what_is_adopted_at_the_very_end_fails_once_or_goes_back() -> None:
    """Also what comes between the last look and the word that it is over."""
    with still_link() as link, still_link() as from_whom:
        for number in range(3):
            from_whom.put([b"%d" % number], partition=-1)
        (chunk,) = from_whom.link.outbox.take(True)
        taken: list[bool] = []
        link.link.on_state_change = lambda: taken.append(link.link.adopt(chunk))
        link.link.abort(FastlogError("enough"))
        assert link.ends()
        assert taken == [True]
        assert link.counts() == (0, 3, 0)
        assert sum(told.messages for told in link.told) == 3
        from_whom.put([b"late"], partition=-1)
        (late,) = from_whom.link.outbox.take(True)
        assert link.link.adopt(late) is False
        assert link.counts() == (0, 3, 0)
