"""Reading and writing the primitive fields of requests and answers; all integers are big-endian.

A length read from bytes is a claim: ``Reader`` compares it with what is left before it moves.
"""

from __future__ import annotations

import struct

from fastlog.errors import InvalidRequestError, ProtocolError

INT8 = struct.Struct(">b")
INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")
MAX_STRING_BYTES = 2**15 - 1
MAX_FRAME_BYTES = 2**31 - 1


class NotTextError(InvalidRequestError):
    """A string field holds bytes that are not UTF-8: a broker treats it as an illegal name, and can answer."""


class Reader:
    """Walks one frame from its start; every read either yields the field or raises ``error_class``."""

    __slots__ = ("_data", "_error_class", "_position")

    def __init__(self, data: bytes | memoryview, error_class: type[ProtocolError] = ProtocolError) -> None:
        self._data = data
        self._error_class = error_class
        self._position = 0

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return len(self._data) - self._position

    def int8(self, name: str) -> int:
        """The next byte, signed."""
        return self._integer(INT8, name)

    def int16(self, name: str) -> int:
        """The next 2 bytes, signed."""
        return self._integer(INT16, name)

    def int32(self, name: str) -> int:
        """The next 4 bytes, signed."""
        return self._integer(INT32, name)

    def int64(self, name: str) -> int:
        """The next 8 bytes, signed."""
        return self._integer(INT64, name)

    def string(self, name: str) -> str:
        """An int16 byte length and that many bytes of UTF-8; a negative length (0.7's null) is refused."""
        length = self.int16(f"length of {name}")
        raw = self.take(length, name)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise NotTextError(f"malformed frame of {len(self._data)} bytes: {name} is not UTF-8") from error

    def sized_bytes(self, name: str) -> bytes:
        """An int32 size and that many bytes."""
        return self.take(self.int32(f"size of {name}"), name)

    def count(self, name: str, least_bytes_each: int) -> int:
        """A number of items, refused when it is negative or more than can follow in the bytes left."""
        count = self.int32(name)
        if count < 0 or count > self.left // least_bytes_each:
            raise self.error(f"{name} is {count}, with {self.left} bytes left")
        return count

    def take(self, size: int, name: str) -> bytes:
        """The next ``size`` bytes."""
        if size < 0 or size > self.left:
            raise self.error(f"{name} claims {size} bytes, {self.left} are left")
        start = self._position
        self._position += size
        return bytes(self._data[start : self._position])

    def rest(self) -> bytes:
        """Everything not read yet."""
        return self.take(self.left, "the rest")

    def end(self) -> None:
        """Raise when bytes are left: fastlog's own requests and answers end exactly."""
        if self.left:
            raise self.error(f"{self.left} bytes follow the last field")

    def error(self, detail: str) -> ProtocolError:
        """The exception for this frame."""
        return self._error_class(f"malformed frame of {len(self._data)} bytes: {detail}")

    def _integer(self, layout: struct.Struct, name: str) -> int:
        if layout.size > self.left:
            raise self.error(f"{name} needs {layout.size} bytes, {self.left} are left")
        value: int = layout.unpack_from(self._data, self._position)[0]
        self._position += layout.size
        return value


def pack(layout: str, *values: int) -> bytes:
    """``struct.pack`` in big-endian order; a value that does not fit raises ``InvalidRequestError``."""
    try:
        return struct.pack(">" + layout, *values)
    except struct.error as error:
        raise InvalidRequestError(f"a field is out of range: {values}: {error}") from error


def string(text: str) -> bytes:
    """An int16 byte length and the UTF-8 bytes of ``text``."""
    try:
        raw = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"{text!r} cannot be written as UTF-8") from error
    if len(raw) > MAX_STRING_BYTES:
        raise InvalidRequestError(f"a string of {len(raw)} bytes is longer than {MAX_STRING_BYTES}")
    return INT16.pack(len(raw)) + raw


def uvarint(number: int) -> bytes:
    """An unsigned varint: seven bits a byte, the lowest first."""
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def compact_string(text: str) -> bytes:
    """The UTF-8 bytes of ``text`` behind an unsigned varint, which is one more than how many they are."""
    data = text.encode()
    return uvarint(len(data) + 1) + data


def frame(*parts: bytes) -> bytes:
    """The parts behind an int32 that counts their bytes."""
    size = sum(map(len, parts))
    if size > MAX_FRAME_BYTES:
        raise InvalidRequestError(f"a frame of {size} bytes is larger than {MAX_FRAME_BYTES}")
    return b"".join((INT32.pack(size), *parts))
