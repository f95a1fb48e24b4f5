"""The coordinator's end of its socket pairs: answers that a death cuts off, and what counts as held."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastlog.log._arena import Arena
from fastlog.log._shared_memory import COORDINATOR, FIRST_PROCESSOR
from fastlog.workers.coordinator import frames, process
from fastlog.workers.coordinator.frames import HEAD_BYTES, PIECE_BYTES, Frame, Head
from fastlog.workers.coordinator.link import Link
from fastlog.workers.coordinator.loop import Loop
from fastlog.workers.coordinator.process import Coordinator


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    return Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 4, 16)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The coordinator's, which does not block, and the processor's."""
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own.setblocking(False)
    other.settimeout(10)
    with own, other:
        yield own, other


def frame_of(arena: Arena, number: int) -> Frame:
    return Frame(number, 9, arena.incarnation(FIRST_PROCESSOR), 0, 0, "", 0, b"")


def test_what_a_dead_processor_got_half_of_leaves_the_next_answer_whole(
    arena: Arena, ends: tuple[socket.socket, socket.socket]
) -> None:
    link = Link(arena, 0, ends[0].fileno())
    link.answer(frame_of(arena, 1), bytes(5_000_000))
    assert link.has_answers and link.queued > 0
    arena.end_incarnation(FIRST_PROCESSOR)
    ends[1].setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            ends[1].recv(PIECE_BYTES)
    link.answer(frame_of(arena, 2), b"whole")
    piece = ends[1].recv(PIECE_BYTES)
    head = Head._make(frames.LAYOUT.unpack_from(piece))
    assert (head.number, head.total, head.place, piece[HEAD_BYTES:]) == (2, 5, 0, b"whole")
    assert (link.has_answers, link.queued) == (False, 0)
    link.close()


def test_a_request_that_was_let_go_counts_once(
    arena: Arena, ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held bounds what is received, also behind one that let go of its bytes before its answer."""
    monkeypatch.setattr(process, "MOST_REQUEST_BYTES_HELD", 100)
    held: list[int] = []

    def handle(frame: Frame, answer: Callable[[bytes | None], None], let_go: Callable[[], None]) -> None:
        if frame.number == 1:
            let_go()
            answer(b"done")
        else:
            held.append(frame.number)

    shared: Any = SimpleNamespace(arena=arena, forward_coordinator=[ends[0].fileno()])
    coordinator = Coordinator(shared, Loop(), handle)
    own, processor = arena.incarnation(COORDINATOR), arena.incarnation(FIRST_PROCESSOR)
    for number in range(1, 7):
        ends[1].send(Head(number, 9, processor, own, 60, 0).pack() + bytes(60))
        coordinator.turn(0)
    assert held == [2, 3]
    coordinator.close()
