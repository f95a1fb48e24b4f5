"""The receiving half of a connection: frames out of a socket with few calls and few copies."""

from __future__ import annotations

import socket

from fastlog.client.buffers import Buffers
from fastlog.errors import ProtocolError
from fastlog.wire.fields import INT32

SIZE_BYTES = 4
_SCRATCH_BYTES = 64 * 1024
_LEAST_BODY_BYTES = 1 << 20


class Inbox:
    """Cuts what a socket gives into frame bodies. For one thread.

    Small frames come through a scratch buffer, many in one read; the body of a larger one is received where it stays.
    An announced size is a claim: beyond ``trusted_bytes``, which is what the caller itself asked for, memory grows
    with the bytes that came, and a size above ``max_bytes`` is refused.
    """

    def __init__(self, max_bytes: int, least_bytes: int = 2) -> None:
        self.max_bytes = max_bytes
        self.trusted_bytes = 0
        self._least_bytes = least_bytes
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._start = 0  # of what is not taken yet in the scratch buffer
        self._end = 0
        self._buffers = Buffers()
        self._body: bytearray | None = None  # of a frame that does not fit the scratch buffer
        self._size = 0
        self._filled = 0

    @property
    def held_bytes(self) -> int:
        """Bytes received and not yet handed out."""
        return self._end - self._start + (SIZE_BYTES + self._filled if self._body is not None else 0)

    def frame_or_none(self) -> memoryview | None:
        """The body of the next frame, or None until it is whole. The bytes are the caller's.

        Raises:
            ProtocolError: the announced size is out of bounds. The stream cannot be followed any further.
        """
        if self._body is not None:
            if self._filled < self._size:
                return None
            body, self._body = self._body, None
            return memoryview(body)[: self._size]
        held = self._end - self._start
        if held < SIZE_BYTES:
            return None
        size: int = INT32.unpack_from(self._scratch, self._start)[0]
        if not self._least_bytes <= size <= self.max_bytes:
            raise ProtocolError(f"a frame announces {size} bytes, allowed are {self._least_bytes} to {self.max_bytes}")
        at = self._start + SIZE_BYTES
        if size <= held - SIZE_BYTES:
            self._start = at + size
            with memoryview(self._scratch) as view:
                return memoryview(bytes(view[at : self._start]))
        if size > _SCRATCH_BYTES - SIZE_BYTES:
            self._begin_body(size, at)
        return None

    def rest(self) -> None:
        """Keep no memory for many large frames."""
        self._buffers.rest()

    def receive(self, sock: socket.socket) -> bool:
        """Take what one read of the socket gives; False when the other side has closed.

        Raises:
            BlockingIOError: nothing is there.
            OSError: the connection broke.
        """
        if self._body is not None:
            return self._receive_body(sock, self._body)
        if self._start:
            held = self._end - self._start
            self._scratch[:held] = self._scratch[self._start : self._end]
            self._start, self._end = 0, held
        with memoryview(self._scratch) as view:
            came = sock.recv_into(view[self._end :])
        self._end += came
        return came > 0

    def _begin_body(self, size: int, at: int) -> None:
        believed = size <= self.trusted_bytes
        self._body = self._buffers.take(size) if believed else bytearray(min(size, _LEAST_BODY_BYTES))
        self._size = size
        self._filled = self._end - at
        self._body[: self._filled] = self._scratch[at : self._end]
        self._start = self._end = 0

    def _receive_body(self, sock: socket.socket, body: bytearray) -> bool:
        if self._filled == len(body):
            body.extend(bytes(min(self._size - len(body), len(body))))
        with memoryview(body) as view:
            came = sock.recv_into(view[self._filled : self._size])
        self._filled += came
        return came > 0
