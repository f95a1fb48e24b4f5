"""The coordinator's end of the socket pair to one processor: requests come, answers go, and neither ever blocks."""

from __future__ import annotations

import collections
import os
import socket

from fastlog.log._arena import Arena
from fastlog.log._shared_memory import COORDINATOR, FIRST_PROCESSOR
from fastlog.workers._forward import PIECE_BYTES
from fastlog.workers.coordinator.frames import Assembly, Frame, pieces_of

PIECES_PER_TURN = 32
"""Received from one processor before the others have a turn."""
MOST_ANSWER_BYTES_QUEUED = 32 << 20
"""Answers for a processor that does not take them; beyond, nothing more is received from it."""


class Link:
    """A processor's connection to the coordinator; used by the loop's thread alone."""

    def __init__(self, arena: Arena, number: int, fd: int) -> None:
        """``number`` counts the processors from 0. ``fd`` does not block, and stays the caller's."""
        self._arena = arena
        self._process = FIRST_PROCESSOR + number
        self._socket = socket.socket(fileno=os.dup(fd))
        self._own = arena.incarnation(COORDINATOR)
        self._assembly = Assembly(self._own)
        self._processor = arena.incarnation(self._process)
        self._answers: collections.deque[tuple[Frame, bytes | None]] = collections.deque()
        self._place = 0  # what of the first answer has been sent
        self.queued = 0
        """Bytes of answers that wait to be sent."""

    def close(self) -> None:
        """Give back the descriptor."""
        self._socket.close()

    @property
    def fd(self) -> int:
        return self._socket.fileno()

    @property
    def held(self) -> int:
        """Bytes of a request that has begun to come."""
        return self._assembly.held

    @property
    def wants_requests(self) -> bool:
        """Whether more may be received: not while answers pile up."""
        return self.queued <= MOST_ANSWER_BYTES_QUEUED

    @property
    def has_answers(self) -> bool:
        """Whether answers wait for room in the socket."""
        return bool(self._answers)

    def look(self) -> None:
        """Forget what was for a processor that has died."""
        now = self._arena.incarnation(self._process)
        if now != self._processor:
            self._processor = now
            self._assembly.forget()
            self._answers.clear()
            self._place = self.queued = 0

    def receive(self, most_bytes: int) -> list[Frame]:
        """The requests that have come whole, the last of which may pass ``most_bytes``.

        At most those of some pieces, so that others have a turn. Where there is no room, one that has begun still comes
        to its end.
        """
        self.look()
        frames = []
        for _ in range(PIECES_PER_TURN):
            try:
                piece = self._socket.recv(PIECE_BYTES)
            except BlockingIOError:
                break
            frame = self._assembly.take(piece, self._processor)
            if frame is not None:
                frames.append(frame)
                most_bytes -= len(frame.body)
                if most_bytes < 0:
                    break
        return frames

    def answer(self, frame: Frame, answer: bytes | None) -> None:
        """Send an answer, or have the connection closed; what is for a processor that has died goes nowhere."""
        self.look()
        if frame.incarnation != self._processor:
            return
        self._answers.append((frame, answer))
        self.queued += len(answer or b"")
        self.send()

    def send(self) -> None:
        """Send as much as the socket has room for."""
        self.look()
        while self._answers:
            frame, answer = self._answers[0]
            buffers, place = pieces_of(frame, self._own, answer, self._place)
            try:
                self._socket.sendmsg(buffers)
            except BlockingIOError:
                return
            self.queued -= place - self._place
            self._place = place
            if place == len(answer or b""):
                self._answers.popleft()
                self._place = 0
