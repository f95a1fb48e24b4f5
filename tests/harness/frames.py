"""Cutting a byte stream into frames.

| position | width | meaning |
|---|---|---|
| 0 | 4 | int32 size: the bytes that follow; a claim until they came |
| 4 | size | the body: a request from its id on, an answer from its error or correlation id on |
"""

from __future__ import annotations

from collections.abc import Iterator

from fastlog.errors import ProtocolError
from fastlog.wire.fields import INT32

SIZE_BYTES = 4


class FrameReader:
    """Turns received bytes, however they are split, into whole frame bodies. For one thread.

    The memory held grows with the bytes that came, never with the size that was announced. ``max_bytes`` and
    ``min_bytes`` bound the announced size; both are inclusive.
    """

    def __init__(self, max_bytes: int, min_bytes: int = 2) -> None:
        self._max_bytes = max_bytes
        self._min_bytes = min_bytes
        self._buffer = bytearray()

    @property
    def held_bytes(self) -> int:
        """Bytes fed and not yet returned in a frame."""
        return len(self._buffer)

    @property
    def missing_bytes(self) -> int:
        """How many more bytes the next frame needs at least: the rest of its size field or, that known, of its body."""
        held = self.held_bytes
        if held < SIZE_BYTES:
            return SIZE_BYTES - held
        return max(0, SIZE_BYTES + self._size() - held)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes as they came from the other side."""
        self._buffer += data

    def frame_or_none(self) -> bytes | None:
        """The body of the next frame, or None until it is whole.

        Raises:
            ProtocolError: the announced size is outside the bounds. The stream cannot be followed any further: each
                later call raises again.
        """
        held = self.held_bytes
        if held < SIZE_BYTES:
            return None
        size = self._size()
        if size > held - SIZE_BYTES:
            return None
        with memoryview(self._buffer) as view:
            body = bytes(view[SIZE_BYTES : SIZE_BYTES + size])
        del self._buffer[: SIZE_BYTES + size]  # moves nothing: a bytearray keeps where its bytes begin
        return body

    def frames(self) -> Iterator[bytes]:
        """The whole frames held now."""
        while (body := self.frame_or_none()) is not None:
            yield body

    def _size(self) -> int:
        size: int = INT32.unpack_from(self._buffer)[0]
        if not self._min_bytes <= size <= self._max_bytes:
            raise ProtocolError(f"a frame announces {size} bytes, allowed are {self._min_bytes} to {self._max_bytes}")
        return size
