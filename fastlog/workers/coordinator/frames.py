"""What goes between a processor and the coordinator: frames in pieces, in the machine's byte order.

A piece is one packet of a socket pair, so its bounds are kept, and is sent whole or not at all:

| position | width | meaning |
|---|---|---|
| 0 | 8 | number of the frame, by the processor, never used again in its life; an answer has that of its request |
| 8 | 8 | name of the connection, by the processor |
| 16 | 8 | incarnation of the processor |
| 24 | 8 | incarnation of the coordinator |
| 32 | 4 | bytes of the whole frame; 0: there is no answer, and the connection is to close |
| 36 | 4 | where in the frame the bytes of this piece begin |
| 40 | 4 | principal: its place in ``authorization.PRINCIPALS`` |
| 44 | 2 | listener: its place in ``Shared.listeners`` |
| 46 | 2 | port of the other end |
| 48 | 46 | address of the other end as text, filled up with 0 |
| 94 | 2 | 0 |
| 96 | | bytes |

The fields about the client are 0 in answers. The pieces of a frame come one after the other, those of the next behind
them: a frame whose sender was killed half-way is known by the next one's beginning. Who receives a piece drops it
unless both incarnations are those of now. ``_forward.pyx`` is the processor's side, with the same table as a struct.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from fastlog.workers._forward import MOST_REQUEST_BYTES, PIECE_BYTES

LAYOUT = struct.Struct("=QQQQIIiHH46s2x")
HEAD_BYTES = LAYOUT.size
BODY_BYTES = PIECE_BYTES - HEAD_BYTES


class Head(NamedTuple):
    """The head of one piece of a frame between processor and coordinator."""

    number: int
    connection: int
    processor: int
    coordinator: int
    total: int
    place: int
    principal: int = 0
    listener: int = 0
    port: int = 0
    host: bytes = b""

    def pack(self) -> bytes:
        return LAYOUT.pack(*self)


class Frame(NamedTuple):
    """A whole request: who asks, by which connection, and its bytes without the size before them.

    Without any bytes it is none: its pieces did not fit together, and its connection is to close.
    """

    number: int
    connection: int
    incarnation: int
    principal: int
    listener: int
    host: str
    port: int
    body: bytes


class Assembly:
    """Puts the requests of one processor together from their pieces; for one thread."""

    def __init__(self, incarnation: int) -> None:
        """``incarnation`` is the coordinator's own."""
        self._incarnation = incarnation
        self._begun: Head | None = None
        self._body = bytearray()
        self.dropped = 0
        """Pieces so far that were for somebody else, or no pieces."""

    @property
    def held(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return len(self._body)

    def forget(self) -> None:
        """Its sender has died: nothing more comes of what has begun."""
        self._begun, self._body = None, bytearray()

    def take(self, piece: bytes, processor: int) -> Frame | None:
        """Add a piece; the frame that it makes whole, or without bytes that it spoils. ``processor`` is the incarnation
        that counts now: a piece of or for another one is dropped.
        """
        head = Head._make(LAYOUT.unpack_from(piece)) if len(piece) >= HEAD_BYTES else None
        if head is None or (head.processor, head.coordinator) != (processor, self._incarnation):
            self.dropped += 1
            return None
        size = len(piece) - HEAD_BYTES
        if not 0 < size <= head.total - head.place or head.total > MOST_REQUEST_BYTES:
            return self._spoil(head)
        if head.place == 0:
            self._begun, self._body = head, bytearray()
        elif self._begun is None or head != self._begun._replace(place=len(self._body)):
            return self._spoil(head)
        self._body += memoryview(piece)[HEAD_BYTES:]
        if len(self._body) < head.total:
            return None
        body = bytes(self._body)
        self.forget()
        return _frame(head, body)

    def _spoil(self, head: Head) -> Frame:
        self.dropped += 1
        self.forget()
        return _frame(head, b"")


def _frame(head: Head, body: bytes) -> Frame:
    host = head.host.rstrip(b"\0").decode("ascii", "replace")
    return Frame(head.number, head.connection, head.processor, head.principal, head.listener, host, head.port, body)


def pieces_of(frame: Frame, coordinator: int, answer: bytes | None, place: int) -> tuple[list[bytes | memoryview], int]:
    """The buffers of the piece of an answer that begins at ``place``, and where the next one begins.

    None for an answer: the connection is to close.
    """
    total = 0 if answer is None else len(answer)
    head = Head(frame.number, frame.connection, frame.incarnation, coordinator, total, place)
    if answer is None:
        return [head.pack()], 0
    end = min(total, place + BODY_BYTES)
    return [head.pack(), memoryview(answer)[place:end]], end
