"""Where a sending thread sleeps: what wakes it, what does not, and no wake-up is lost on either side of the sleep."""

from __future__ import annotations

import errno
import gc
import resource
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fastlog.errors import ClosedError
from fastlog.producer._buffer import Buffer, Quota
from fastlog.producer._outbox import READABLE, WOKEN, WRITABLE, Outbox
from fastlog.producer.brokers import frame_header
from tests.harness.broker import wait_until
from tests.harness.descriptors import open_descriptors
from tests.harness.timing import PATIENCE

HOUR_NS = 3_600_000_000_000
NEVER = -1
PPOLL = "271"


def outbox_with(linger_ns: int = HOUR_NS, *, batch: int = 3, max_messages: int = 10**9) -> tuple[Outbox, Buffer]:
    outbox = Outbox(Quota(max_messages, 10**12), linger_ns)
    return outbox, Buffer(outbox, 0, "t", 0, 0, frame_header("t", 0, 1), True, batch, 1 << 20, 10**6)


class Sleeper:
    """A thread that sleeps once, and what ended it."""

    def __init__(self, outbox: Outbox, *, fd: int = -1, writing: bool = False, full: bool = False, until: int = NEVER):
        self.found: list[int] = []
        self._arguments = fd, writing, full, until
        self._outbox = outbox
        self._thread = threading.Thread(target=self._sleep, daemon=True)
        self._thread.start()
        wait_until("it sleeps", self._is_asleep)

    def _sleep(self) -> None:
        self.found.append(self._outbox.sleep(*self._arguments))

    def _is_asleep(self) -> bool:
        if self.found:
            return True
        try:
            return Path(f"/proc/self/task/{self._thread.native_id}/syscall").read_text().split()[0] == PPOLL
        except OSError:
            return False

    def woke_for(self) -> int:
        self._thread.join(PATIENCE)
        (found,) = self.found
        return found

    def sleeps_on(self) -> bool:
        """Whether what was done before has not ended it: only a bell of the test's own does."""
        time.sleep(0.02)
        still = not self.found
        self._outbox.wake()
        self._thread.join(PATIENCE)
        return still


@pytest.mark.skipif(not Path("/proc/self/syscall").exists(), reason="this system does not say what a thread waits in")
@pytest.mark.parametrize(
    ("what", "linger_ns", "full", "wakes"),
    [
        ("append", HOUR_NS, False, True),  # its time has to be looked at
        ("append", 0, False, True),
        ("append", HOUR_NS, True, False),
        ("fill", HOUR_NS, False, True),
        ("fill", HOUR_NS, True, False),
        ("seal", HOUR_NS, False, True),
        ("seal", HOUR_NS, True, False),
        ("wake", HOUR_NS, False, True),
        ("wake", HOUR_NS, True, True),
    ],
)
def test_what_wakes_a_thread_that_sleeps_for_ever(what: str, linger_ns: int, full: bool, wakes: bool) -> None:
    outbox, buffer = outbox_with(linger_ns)
    does: dict[str, Callable[[], object]] = {
        "append": lambda: buffer.append(b"x"),
        "fill": lambda: buffer.extend([b"x"] * 3),
        "seal": lambda: buffer.extend([b"x"], 0, None, True, True),
        "wake": outbox.wake,
    }
    sleeper = Sleeper(outbox, full=full)
    does[what]()
    if wakes:
        assert sleeper.woke_for() == WOKEN
    else:
        assert sleeper.sleeps_on()


@pytest.mark.skipif(not Path("/proc/self/syscall").exists(), reason="this system does not say what a thread waits in")
def test_a_message_wakes_only_who_sleeps_longer_than_it_may_wait() -> None:
    """And of those of one frame the first alone; whoever is awake is not rung for."""
    outbox, buffer = outbox_with(HOUR_NS)
    sleeper = Sleeper(outbox, until=time.monotonic_ns() + HOUR_NS // 2)
    buffer.append(b"x")
    assert sleeper.sleeps_on()
    outbox, buffer = outbox_with(HOUR_NS)
    sleeper = Sleeper(outbox, until=time.monotonic_ns() + 2 * HOUR_NS)
    buffer.append(b"x")
    assert sleeper.woke_for() == WOKEN
    sleeper = Sleeper(outbox)
    buffer.append(b"y")
    assert sleeper.sleeps_on()


def test_no_wake_up_is_lost_before_the_sleep() -> None:
    outbox, buffer = outbox_with()
    for _ in range(2):
        outbox.wake()
    assert outbox.sleep(-1, False, False, NEVER) == WOKEN
    before = time.monotonic_ns()
    assert outbox.sleep(-1, False, False, before + 20_000_000) == 0, "the bell is not rung twice for it"
    assert time.monotonic_ns() - before >= 20_000_000
    outbox.wake()
    assert outbox.sleep(-1, False, True, NEVER) == WOKEN
    buffer.extend([b"x"] * 3)
    assert outbox.sleep(-1, False, False, NEVER) == 0, "a finished frame waits"
    before = time.monotonic_ns()
    assert outbox.sleep(-1, False, True, before + 20_000_000) == 0
    assert time.monotonic_ns() - before >= 20_000_000, "while there is enough on its way, it waits"
    assert [chunk.messages for chunk in outbox.take()] == [3]
    before = time.monotonic_ns()
    assert outbox.sleep(-1, False, False, before + 20_000_000) == 0
    assert time.monotonic_ns() - before >= 20_000_000, "it is taken"


@pytest.mark.parametrize("full", [False, True])
def test_a_sleep_ends_when_the_oldest_message_is_due(full: bool) -> None:
    """Not before, and by the oldest of several buffers."""
    outbox, first = outbox_with(30_000_000, batch=100)
    second = Buffer(outbox, 0, "u", 0, 0, frame_header("u", 0, 1), True, 100, 1 << 20, 10**6)
    before = time.monotonic_ns()
    first.append(b"x")
    time.sleep(0.01)
    second.append(b"y")
    middle = time.monotonic_ns()
    if full:
        assert outbox.sleep(-1, False, True, middle + 60_000_000) == 0
        assert time.monotonic_ns() - middle >= 60_000_000
        return
    assert outbox.sleep(-1, False, False, middle + HOUR_NS) == 0
    assert time.monotonic_ns() - before >= 30_000_000
    assert [chunk.topic for chunk in outbox.take()][:1] == ["t"]
    outbox, first = outbox_with(HOUR_NS, batch=100)
    first.append(b"x")
    before = time.monotonic_ns()
    assert outbox.sleep(-1, False, False, before + 10_000_000) == 0, "what comes first counts"
    assert 10_000_000 <= time.monotonic_ns() - before < PATIENCE * 1e9
    assert outbox.take() == []


def test_a_time_that_is_over_is_no_sleep() -> None:
    outbox, _ = outbox_with()
    for until in (0, 1, time.monotonic_ns() // 2):  # of a clock that begins with the machine
        assert outbox.sleep(-1, False, False, until) == 0


def test_what_a_connection_is_ready_for() -> None:
    outbox, _ = outbox_with()
    soon = time.monotonic_ns()
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            fd = ours.fileno()
            assert outbox.sleep(fd, False, False, soon) == 0
            assert outbox.sleep(fd, True, False, NEVER) == WRITABLE
            theirs.send(b"x")
            assert outbox.sleep(fd, False, False, NEVER) == READABLE
            assert outbox.sleep(fd, True, False, NEVER) == READABLE | WRITABLE
            outbox.wake()
            assert outbox.sleep(fd, False, True, NEVER) == READABLE | WOKEN
            ours.recv(1)
        assert outbox.sleep(fd, False, False, NEVER) == READABLE, "the end is something to read"


def test_a_retired_outbox_rings_nobody_and_takes_nothing() -> None:
    outbox, buffer = outbox_with()
    buffer.append(b"x")
    outbox.retire()
    outbox.retire()
    outbox.wake()
    for call in (
        lambda: buffer.append(b"y"),
        lambda: buffer.extend([b"y"]),
        lambda: buffer.extend([b"y"], 0, object()),
    ):
        with pytest.raises(ClosedError):
            call()
    assert [chunk.messages for chunk in outbox.take(True)] == [1]
    assert outbox.is_empty()


def test_it_closes_when_nothing_is_in_it() -> None:
    outbox, buffer = outbox_with()
    buffer.append(b"x")
    assert not outbox.close_if_empty()
    buffer.append(b"y")
    assert [chunk.messages for chunk in outbox.take(True)] == [2]
    assert outbox.close_if_empty()
    with pytest.raises(ClosedError):
        buffer.append(b"z")
    assert outbox.close_if_empty()


def test_descriptors_of_outboxes_go_with_them() -> None:
    def descriptors() -> int:
        return sum("eventfd" in name for name in open_descriptors().values())

    gc.collect()  # what earlier tests left goes now, and not in between
    before = descriptors()
    made = [outbox_with()[0] for _ in range(20)]
    assert descriptors() == before + 20
    made[0].retire()
    assert descriptors() == before + 19
    del made
    assert descriptors() == before


def test_an_outbox_without_a_bell_is_none() -> None:
    """Its thread could not be woken: whoever makes it is told."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(OSError, match="open files") as raised:
            Outbox(Quota(1, 1), HOUR_NS)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert raised.value.errno == errno.EMFILE


# --- limits to the message and to the byte ---


@pytest.mark.parametrize("batch", [1, 2, 3, 7])
def test_a_frame_is_finished_by_its_last_message_and_not_before(batch: int) -> None:
    outbox, buffer = outbox_with(batch=batch)
    for _ in range(batch - 1):
        buffer.append(b"x")
        assert outbox.take() == []
    buffer.append(b"x")
    (chunk,) = outbox.take()
    assert (chunk.messages, chunk.frame_count) == (batch, 1)
    assert outbox.take(True) == []


def test_a_list_may_finish_the_frame_behind_its_last_message() -> None:
    """It is taken at once, where an open one waits for more; what stood in it before goes with it."""
    outbox, buffer = outbox_with(batch=100)
    assert buffer.extend([b"x"] * 3) == 3
    assert outbox.take() == []
    assert buffer.extend([b"y"] * 2, 0, None, True, True) == 2
    (chunk,) = outbox.take()
    assert (chunk.messages, chunk.frame_count) == (5, 1)
    assert buffer.extend([], 0, None, True, True) == 0
    assert outbox.take(True) == []


@pytest.mark.parametrize(("room", "frames"), [(-1, 2), (0, 1), (1, 1)])
def test_a_set_may_have_as_many_bytes_as_are_allowed(room: int, frames: int) -> None:
    """Two messages of 50 bytes are 120 with their heads."""
    outbox = Outbox(Quota(100, 10**9), HOUR_NS)
    buffer = Buffer(outbox, 0, "t", 0, 0, frame_header("t", 0, 1), True, 100, 120 + room, 10**6)
    buffer.extend([bytes(50)] * 2)
    (chunk,) = outbox.take(True)
    assert (chunk.messages, chunk.frame_count) == (2, frames)


@pytest.mark.parametrize(
    ("held", "count", "fits"), [(0, 1, True), (0, 11, True), (1, 9, True), (1, 10, False), (9, 1, True), (10, 1, False)]
)
def test_the_queue_has_room_for_as_many_messages_as_it_says(held: int, count: int, fits: bool) -> None:
    """An empty one for any number."""
    quota = Quota(10, 10**6)
    outbox = Outbox(quota, HOUR_NS)
    buffer = Buffer(outbox, 0, "t", 0, 0, frame_header("t", 0, 1), True, 100, 1 << 20, 10**6)
    buffer.extend([b"x"] * held)
    assert quota.has_room(count) == fits


def test_the_queue_takes_messages_until_it_is_full_by_count_or_by_bytes() -> None:
    """Bytes count once their frame is finished; the message that comes last may be one too many of them."""
    quota = Quota(5, 10**6)
    outbox = Outbox(quota, HOUR_NS)
    buffer = Buffer(outbox, 0, "t", 0, 0, frame_header("t", 0, 1), True, 2, 1 << 20, 10**6)
    assert buffer.extend([b"x"] * 9) == 5
    assert buffer.extend([b"x"] * 9, 5) == 5
    outbox.take(True)
    assert buffer.extend([b"x"] * 9, 5) == 9
    outbox.take(True)
    frame_bytes = len(frame_header("t", 0, 1)) + 2 * (10 + 90)
    for limit, taken in ((frame_bytes - 1, 2), (frame_bytes, 2), (frame_bytes + 1, 4)):
        quota = Quota(100, limit)
        outbox = Outbox(quota, HOUR_NS)
        buffer = Buffer(outbox, 0, "t", 0, 0, frame_header("t", 0, 1), True, 2, 1 << 20, 10**6)
        assert buffer.extend([bytes(90)] * 9) == taken
        assert quota.bytes == frame_bytes * taken // 2
        outbox.take(True)
        assert (quota.messages, quota.bytes) == (0, 0)


def test_a_take_stops_behind_the_buffer_that_fills_it() -> None:
    """Never inside one; the rest is ready for the next call, in its order."""
    outbox = Outbox(Quota(100, 10**9), HOUR_NS)
    buffers = [Buffer(outbox, 0, f"t{n}", 0, 0, frame_header(f"t{n}", 0, 1), True, 1, 1 << 20, 10**6) for n in range(4)]
    for buffer in buffers:
        buffer.append(bytes(100))
    (first,) = outbox.take(False, 1)
    size = first.size
    assert first.topic == "t0"
    assert outbox.sleep(-1, False, False, NEVER) == 0
    assert [chunk.topic for chunk in outbox.take(False, size + 1)] == ["t1", "t2"]
    assert outbox.sleep(-1, False, False, NEVER) == 0
    assert [chunk.topic for chunk in outbox.take(False, size)] == ["t3"]
    for buffer in buffers:
        buffer.append(bytes(100))
    assert [chunk.topic for chunk in outbox.take(False, 2 * size)] == ["t0", "t1"]
    assert outbox.take(False, 0) == []
    assert len(outbox.take()) == 2
    assert outbox.is_empty()


def test_frames_are_numbered_over_all_buffers_and_begin_again_after_the_last_number() -> None:
    """The number is what answers are matched by; it is positive and has 31 bits."""
    outbox = Outbox(Quota(100, 10**9), HOUR_NS)
    one, other = (
        Buffer(outbox, 0, topic, 0, 0, frame_header(topic, 0, 1), True, 1, 1 << 20, 10**6) for topic in ("a", "b")
    )
    found = []
    for buffer in (one, other, one, one, other):
        buffer.append(b"x")
        (chunk,) = outbox.take()
        found.append(int.from_bytes(bytes(memoryview(chunk))[8:12], "big"))
    assert found == [0, 1, 2, 3, 4]


def test_everything_is_sealed_when_the_queue_is_full() -> None:
    outbox, buffer = outbox_with(batch=100)
    buffer.extend([b"x"] * 4)
    assert outbox.take() == []
    outbox.seal_all()
    (chunk,) = outbox.take()
    assert (chunk.messages, chunk.frame_count) == (4, 1)
    outbox.seal_all()
    assert outbox.take(True) == []


def test_each_request_of_a_chunk_takes_as_many_bytes_as_it_may() -> None:
    """Also those behind the first, which begin where that one ends."""
    outbox = Outbox(Quota(10**9, 10**12), 0)
    buffer = Buffer(outbox, 0, "t", 0, 0, frame_header("t", 0, 1), True, 1000, 9 * 110, 10**6)
    buffer.extend([bytes(100)] * 36, 0, None)
    (chunk,) = outbox.take(True)
    assert (chunk.messages, chunk.frame_count) == (36, 4)
