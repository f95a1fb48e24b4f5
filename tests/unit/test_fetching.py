"""Fetching for streams: none stops another, what is given up is silent, and every wait can be interrupted."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from fastlog._segment import pack
from fastlog.codecs import GZIP
from fastlog.consumer.feed import Jump, Phase
from fastlog.consumer.partitions import TopicPartition
from fastlog.consumer.stream import NoMessage, Stream
from fastlog.errors import ConsumerTimeout, ForkedError, TransportError
from fastlog.message import encode_set
from fastlog.wire import requests as rq
from tests.harness import wire07
from tests.harness.reading import SEVERAL, Reading, fetching_threads, held_lease, served, source_of, take, wait_until
from tests.harness.timing import PATIENCE, sooner_than

FETCHES = wire07.FetchRequest | wire07.HeldFetchRequest


# -- reading ---------------------------------------------------------------------------------------------------------


def test_partitions_take_turns_and_keep_their_order(own: bool) -> None:
    logs = [pack([b"%d %03d" % (number, count) for count in range(100)]) for number in range(3)]
    with served(*logs, own=own) as fake, Reading(fetch_bytes=200) as reading:
        for number in range(3):
            reading.own(fake.port, number)
        wait_until(lambda: all(state.queued >= 5 for state in reading.fetchers.states().values()))
        found = take(reading.stream(), 300)
        for number in range(3):
            mine = [payload for payload in found if payload.startswith(b"%d " % number)]
            assert mine == sorted(mine) and len(mine) == 100
        turns = [payload[:1] for payload in found[:60]]
        assert set(turns[:30]) == {b"0", b"1", b"2"}
        assert reading.stream().poll(0.1) is NoMessage.AT_END
        assert reading.fetchers.consumed() == {source_of(number): len(logs[number]) for number in range(3)}


def test_growing_logs_and_compressed_sets(own: bool) -> None:
    with served(b"", own=own) as fake, Reading() as reading:
        reading.own(fake.port)
        for number in range(3):
            fake.logs["t", 0] += pack([b"%d" % number])
            assert take(reading.stream(), 1) == [b"%d" % number]


def test_a_slow_stream_stops_nobody() -> None:
    """Its partition is fetched until its queue is full, and goes on when something is taken; others never wait."""
    data = pack(SEVERAL * 3)
    with served(data, data) as fake, Reading(fetch_bytes=500, queued_chunks=3) as reading:
        slow = reading.own(fake.port, 0, stream="slow")
        reading.own(fake.port, 1, stream="fast")
        take(reading.stream("slow"), 1)
        assert take(reading.stream("fast"), 300) == SEVERAL * 3
        wait_until(lambda: reading.state(slow).phase is Phase.PAUSED)
        assert reading.state(slow).queued == 3
        assert take(reading.stream("slow"), 299) == (SEVERAL * 3)[1:]


def test_two_streams_of_one_topic_have_their_own_partitions() -> None:
    with served(pack([b"a"]), pack([b"b"])) as fake, Reading() as reading:
        reading.own(fake.port, 0, stream="a")
        reading.own(fake.port, 1, stream="b")
        assert take(reading.stream("b"), 1) == [b"b"] and take(reading.stream("a"), 1) == [b"a"]
        assert reading.stream("b").partitions == (source_of(1),)


def test_runs_are_the_bytes_of_the_log_and_come_from_what_is_wanted(own: bool) -> None:
    """Compressed sets closed, no message cut, each run behind the one before; what is not wanted holds up nobody."""
    wrapper = encode_set(SEVERAL, GZIP)
    logs = [pack(SEVERAL) + wrapper + pack(SEVERAL, 0, 0), pack([b"other"])]
    with served(*logs, own=own) as fake, Reading(fetch_bytes=400) as reading:
        stream = reading.stream()
        stream.take_from(lambda place: place.source == source_of(1))
        reading.own(fake.port, 0)
        reading.own(fake.port, 1)
        run = stream.run(10.0)
        assert run is not None
        assert (run.place.source, bytes(run.data), run.entries) == (source_of(1), logs[1], 1)
        with pytest.raises(ConsumerTimeout):
            stream.run(0.1)
        stream.take_from(lambda place: True)
        found, entries, wrappers = b"", 0, 0
        while len(found) < len(logs[0]):
            run = stream.run(10.0)
            assert run is not None
            assert (run.offset, run.next_offset) == (len(found), len(found) + len(run.data))
            found += bytes(run.data)
            entries, wrappers = entries + run.entries, wrappers + run.wrappers
        assert found == logs[0]
        assert (entries, wrappers) == (201, 1)


# -- silence ---------------------------------------------------------------------------------------------------------


def test_polling_tells_why_nothing_comes() -> None:
    release = threading.Event()

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, FETCHES):
            release.wait(30)
        return None

    with Reading() as reading, served(b"", hook=hook) as fake:
        stream = reading.stream()
        assert stream.poll() is NoMessage.NOT_ASSIGNED
        source = reading.own(fake.port)
        assert stream.poll() is NoMessage.NO_DATA
        release.set()
        wait_until(lambda: stream.poll() is NoMessage.AT_END)
        reading.lease.drop()
        time.sleep(0.02)
        assert stream.poll() is NoMessage.NOT_ASSIGNED
        reading.lease.extend(reading.lease.now())
        fake.logs["t", 0] = pack([b"a"])
        assert take(stream, 1) == [b"a"]
        reading.fetchers.release([source])
        assert stream.poll() is NoMessage.NOT_ASSIGNED
        stream.end()
        assert stream.poll() is NoMessage.ENDED and not NoMessage.ENDED


def test_no_broker_is_another_silence_than_no_message() -> None:
    with Reading(fetcher_backoff_ms=50, options={"timeout": 0.05}) as reading:
        with served(pack([b"a", b"b"])) as fake:
            source = reading.own(fake.port)
            assert take(reading.stream(), 2) == [b"a", b"b"]
            wait_until(lambda: reading.stream().poll() is NoMessage.AT_END)
        wait_until(lambda: reading.state(source).failures > 2)
        with pytest.raises(ConsumerTimeout, match=f"(?s)broker of every.*127.0.0.1:{fake.port}: Connection") as caught:
            next(reading.stream())
        assert caught.value.reason is NoMessage.NO_BROKER
        state = reading.state(source)
        assert state.phase is Phase.FAILING and isinstance(state.error, TransportError) and state.failing_since
        assert state.position == 22


@pytest.mark.parametrize("way", ["messages", "batches", "arrays"])
def test_a_stream_can_be_used_after_a_time_out(way: str) -> None:
    with served(b"") as fake, Reading(options={"timeout": 0.02}) as reading:
        reading.own(fake.port)
        stream = reading.stream()
        found = {"messages": stream, "batches": stream.batches(), "arrays": stream.numpy_batches()}[way]
        for _ in range(2):
            with pytest.raises(ConsumerTimeout, match=r"no message within 0.02 s"):
                next(found)
        fake.logs["t", 0] = pack([b"a"])
        wait_until(lambda: reading.state(source_of()).queued == 1)
        assert next(found) is not None


# -- giving up and repositioning -------------------------------------------------------------------------------------


def test_release_stops_a_partition_in_the_middle_of_a_chunk() -> None:
    with served(pack(SEVERAL), pack(SEVERAL)) as fake, Reading() as reading:
        source = reading.own(fake.port, 0)
        messages = iter(reading.stream())
        for _ in range(10):
            message = next(messages)
        assert reading.fetchers.release([source, source_of(5)]) == {source: message.offset}
        assert not reading.stream().done(message)
        kept = reading.own(fake.port, 1)
        assert {next(messages).source for _ in range(100)} == {kept}
        reading.own(fake.port, 0, offset=message.offset)
        assert next(messages).payload == message.payload


def test_release_while_another_thread_reads() -> None:
    """Again and again, at any moment: what comes after it returns is only what the next claim begins with."""
    with served(pack(SEVERAL * 50)) as fake, Reading(fetch_bytes=3000) as reading:
        stream = reading.stream()
        seen: list[tuple[int, int]] = []
        claim = [0]
        ended = threading.Event()

        def read() -> None:
            for message in stream:
                seen.append((claim[0], message.offset))
                time.sleep(0.0001)
            ended.set()

        threading.Thread(target=read, daemon=True).start()
        offset = 0
        for number in range(1, 30):
            source = reading.own(fake.port, offset=offset)
            wait_until(lambda: reading.fetchers.consumed()[source] > offset)  # noqa: B023
            offset = reading.fetchers.release([source])[source]
            claim[0] = number
            count = len(seen)
            time.sleep(0.001)
            # One may have been given before, and be noted only now.
            assert len(seen) - count <= 1
        stream.end()
        assert ended.wait(30)
        offsets = [offset for _, offset in seen]
        assert set(offsets) == set(range(0, max(offsets) + 21, 21))
        assert len(offsets) - len(set(offsets)) <= 29  # of each claim, the one in hand may come again


def test_what_is_acquired_again_while_it_is_given_up_is_given_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A close that no longer waits for the group's worker meets it at work."""
    with served(pack(SEVERAL)) as fake, Reading() as reading:
        source = reading.own(fake.port)
        first = reading.fetchers.feeds()[source].fetch
        begun = []

        def stop() -> None:
            monkeypatch.undo()
            first.stop()
            reading.own(fake.port)
            begun.append(reading.fetchers.feeds()[source])

        monkeypatch.setattr(first, "stop", stop)
        reading.fetchers.release([source])
        assert begun[0].is_released
        assert reading.fetchers.feeds() == {}


def test_what_is_given_up_at_the_end_is_not_taken_on_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noted behind it, the end would miss what another thread takes on meanwhile."""
    with served(pack(SEVERAL)) as fake, Reading() as reading:
        reading.own(fake.port)
        noted: list[bool] = []
        release = reading.fetchers.release

        def releasing(sources: list[TopicPartition]) -> None:
            noted.append(reading.fetchers._is_closed)
            release(sources)

        monkeypatch.setattr(reading.fetchers, "release", releasing)
        reading.fetchers.close()
        assert noted == [True]


def test_seek_goes_on_elsewhere_at_once() -> None:
    with served(pack(SEVERAL)) as fake, Reading(fetch_bytes=200) as reading:
        source = reading.own(fake.port)
        stream = reading.stream()
        given = [stream.poll(5) for _ in range(50)]
        assert reading.fetchers.seek(source, 21 * 10)
        assert reading.fetchers.consumed() == {source: 210}
        assert take(stream, 1) == [SEVERAL[10]]
        assert not stream.done(given[-1])  # of before: it would count what was rewound as consumed
        assert reading.fetchers.seek(source, 21 * 90)
        assert take(stream, 10) == SEVERAL[90:]
        assert not reading.fetchers.seek(source_of(7), 0)
        wait_until(lambda: len(fetching_threads()) == 1)


# -- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["next", "poll", "batches", "arrays"])
def test_an_interrupt_ends_a_wait_at_once_and_costs_nothing(call: str) -> None:
    with served(b"") as fake, Reading() as reading:
        reading.own(fake.port)
        stream = reading.stream()
        calls: dict[str, Callable[[], object]] = {
            "next": lambda: next(stream),
            "poll": lambda: stream.poll(60),
            "batches": lambda: next(stream.batches()),
            "arrays": lambda: next(stream.numpy_batches()),
        }
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        with sooner_than(50), pytest.raises(KeyboardInterrupt):
            timer.start()
            calls[call]()
        timer.join()
        fake.logs["t", 0] = pack([b"a"])
        assert take(stream, 1) == [b"a"]


def test_the_end_is_seen_by_every_iteration_and_leaves_nothing() -> None:
    with served(pack([b"a"]), b"") as fake:
        with Reading() as reading:
            for number in range(2):
                reading.own(fake.port, number)
            stream = reading.stream()
            ended = []
            threads = [threading.Thread(target=lambda: ended.append(list(stream))) for _ in range(3)]
            for thread in threads:
                thread.start()
            wait_until(lambda: reading.fetchers.consumed()[source_of()] == 11 and stream.silence() is NoMessage.AT_END)
            stream.end()
            for thread in threads:
                thread.join(PATIENCE)
            assert sorted(map(len, ended)) == [0, 0, 1]
            assert list(stream) == [] == list(stream.batches())
        wait_until(lambda: not fetching_threads())
        wait_until(lambda: not fake._sockets)  # its side of the connections


def test_a_signal_handler_can_end_it() -> None:
    with served(b"") as fake, Reading() as reading:
        reading.own(fake.port)
        stream = reading.stream()
        before = signal.signal(signal.SIGUSR1, lambda *_: stream.end())
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        try:
            assert list(stream) == []
        finally:
            signal.signal(signal.SIGUSR1, before)
            timer.join()


def test_a_stream_belongs_to_its_process() -> None:
    stream = Stream("a", held_lease())
    pid = os.fork()
    if not pid:
        code = 1
        try:
            stream.poll()
        except ForkedError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


def test_what_a_jump_says() -> None:
    jump = Jump(source_of(), 10, 30, "the log goes from 30 to 50", 0.0)
    assert str(jump) == (
        "t/0-0: offset 10 is out of range, offsets 10 to 30 are lost to the group (the log goes from 30 to 50)"
    )
