"""What a socket gives becomes the same frames however it is split, and no claim of a size is believed."""

from __future__ import annotations

import random
import socket
import tracemalloc
from collections.abc import Iterator

import pytest

from fastlog.client._inbox import Inbox
from fastlog.errors import ProtocolError
from fastlog.wire.fields import frame


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    near.setblocking(False)
    with near, far:
        yield near, far


def frames_from(inbox: Inbox, near: socket.socket) -> list[bytes]:
    found = []
    while True:
        while (body := inbox.frame_or_none()) is not None:
            found.append(bytes(body))
        if not inbox.receive(near.fileno()):
            return found


@pytest.mark.parametrize("trusted", [0, 10**6])
@pytest.mark.parametrize("seed", range(4))
def test_any_split_gives_the_same_frames(pair: tuple[socket.socket, socket.socket], seed: int, trusted: int) -> None:
    near, far = pair
    generator = random.Random(seed)
    bodies = [generator.randbytes(generator.choice([2, 3, 100, 65_532, 65_533, 200_000])) for _ in range(30)]
    stream = b"".join(map(frame, bodies))
    inbox = Inbox(10**6)
    inbox.trusted_bytes = trusted
    found: list[bytes] = []
    at = 0
    while at < len(stream):
        size = generator.choice([1, 3, 4, 70, 5000, 60_000])
        far.sendall(stream[at : at + size])
        at += size
        found += frames_from(inbox, near)
    assert found == bodies
    assert inbox.held_bytes == 0


def test_frames_stay_what_they_were(pair: tuple[socket.socket, socket.socket]) -> None:
    """A frame that was handed out does not change when the next ones arrive."""
    near, far = pair
    inbox = Inbox(1000)
    far.sendall(frame(b"first"))
    assert inbox.receive(near.fileno())
    first = inbox.frame_or_none()
    far.sendall(frame(b"again") * 20)
    assert frames_from(inbox, near) == [b"again"] * 20
    assert first == b"first"


@pytest.mark.parametrize("size", [-1, 0, 1, 1001, 2**31 - 1, -(2**31)])
def test_sizes_out_of_bounds_are_refused(pair: tuple[socket.socket, socket.socket], size: int) -> None:
    near, far = pair
    inbox = Inbox(1000)
    far.sendall(size.to_bytes(4, "big", signed=True))
    assert inbox.receive(near.fileno())
    for _ in range(2):
        with pytest.raises(ProtocolError, match=str(size)):
            inbox.frame_or_none()


def test_memory_follows_what_came(pair: tuple[socket.socket, socket.socket]) -> None:
    """An announced 2 GiB of which 100 kB come costs a small buffer."""
    near, far = pair
    inbox = Inbox(2**31 - 1)
    inbox.trusted_bytes = 10**6
    tracemalloc.start()
    try:
        far.sendall((2**31 - 1).to_bytes(4, "big") + b"x" * 100_000)
        assert frames_from(inbox, near) == []
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()
    assert inbox.held_bytes == 100_004


@pytest.mark.parametrize("pages", [15, 17, 33])
def test_memory_grows_with_what_came(pair: tuple[socket.socket, socket.socket], pages: int) -> None:
    """Around 1 and 2 MiB of an announced 256: at most twice what is there, and it is copied while it grows."""
    near, far = pair
    inbox = Inbox(2**31 - 1)
    came = pages << 16
    far.sendall((2**28).to_bytes(4, "big"))
    tracemalloc.start()
    try:
        for _ in range(pages):
            far.sendall(b"x" * (1 << 16))
            assert frames_from(inbox, near) == []
        assert tracemalloc.get_traced_memory()[1] < 4 * came + 2**20
    finally:
        tracemalloc.stop()
    assert inbox.held_bytes == came + 4


def test_a_head_that_has_not_come_whole_is_not_read(pair: tuple[socket.socket, socket.socket]) -> None:
    """Behind its first bytes lie those of the head before it, of a frame that was larger than the buffer."""
    near, far = pair
    inbox = Inbox(10**6)
    far.sendall(frame(b"x" * 0x20000))
    assert [len(body) for body in frames_from(inbox, near)] == [0x20000]
    for number, byte in enumerate(frame(b"small"), 1):
        far.sendall(bytes([byte]))
        assert frames_from(inbox, near) == ([b"small"] if number == 9 else [])


def test_whole_frames_that_nobody_takes_are_no_end_of_the_stream(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    inbox = Inbox(1000)
    one = frame(b"x" * 508)
    far.sendall(one * 129)
    while inbox.held_bytes < 128 * len(one):
        assert inbox.receive(near.fileno())
    with pytest.raises(BufferError, match="whole frames wait to be taken"):
        inbox.receive(near.fileno())
    assert len(frames_from(inbox, near)) == 129
