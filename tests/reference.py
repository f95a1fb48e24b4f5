"""A slow, independent reading of the message format, to compare the compiled walkers and the deep walks with.

Shares no code with fastlog: ``struct`` and ``zlib`` only, snappy decoded here. Written from the format's description,
field by field, without regard for speed.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

OK, TAIL, SIZE, MAGIC, CODEC, CRC, TOO_LARGE = range(7)
XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


class DamagedError(Exception):
    """The bytes break the format."""


@dataclass(frozen=True)
class Entry:
    offset: int
    next_offset: int
    magic: int
    attributes: int
    payload: bytes


def encode(payload: bytes, magic: int = 1, attributes: int = 0) -> bytes:
    """One entry."""
    crc = zlib.crc32(payload)
    if magic == 0:
        return struct.pack(">iBI", 5 + len(payload), 0, crc) + payload
    return struct.pack(">iBBI", 6 + len(payload), magic, attributes, crc) + payload


def encode_all(payloads: list[bytes], magic: int = 1) -> bytes:
    return b"".join(encode(payload, magic) for payload in payloads)


def walk(data: bytes, max_payload: int = -1, base: int = 0) -> tuple[list[Entry], int]:
    """The entries before the first bad one, and the status that ended the walk."""
    found: list[Entry] = []
    position = 0
    while position < len(data):
        rest = len(data) - position
        if rest < 4:
            return found, TAIL
        (size,) = struct.unpack_from(">i", data, position)
        if size < 5:
            return found, SIZE
        if size > rest - 4:
            return found, TAIL
        body = data[position + 4 : position + 4 + size]
        if body[0] > 1:
            return found, MAGIC
        if body[0] == 1 and size < 6:
            return found, SIZE
        attributes = body[1] if body[0] == 1 else 0
        if attributes not in (0, 1, 2):
            return found, CODEC
        stored, payload = body[1 + body[0] : 5 + body[0]], body[5 + body[0] :]
        if 0 <= max_payload < len(payload):
            return found, TOO_LARGE
        if struct.unpack(">I", stored)[0] != zlib.crc32(payload):
            return found, CRC
        found.append(Entry(base + position, base + position + 4 + size, body[0], attributes, payload))
        position += 4 + size
    return found, OK


def scan(data: bytes, max_payload: int = -1) -> tuple[int, int, int, int, int]:
    """The five numbers of ``fastlog._segment.scan``."""
    found, status = walk(data, max_payload)
    plain = [entry.payload for entry in found if entry.attributes == 0]
    suspicious = [payload for payload in plain if payload.startswith((b"\x1f\x8b\x08", b"\x82SNAPPY"))]
    valid_bytes = found[-1].next_offset if found else 0
    return valid_bytes, len(found), len(found) - len(plain), len(suspicious), status


def snappy_literal(data: bytes) -> bytes:
    """A valid raw snappy block that compresses nothing: literals only."""
    out = bytearray(varint(len(data)))
    for start in range(0, len(data), 60):
        piece = data[start : start + 60]
        out.append((len(piece) - 1) << 2)
        out += piece
    return bytes(out)


def snappy_run(byte: bytes, count: int) -> bytes:
    """A raw snappy block of ``count`` equal bytes, as small as the format allows: a bomb's block."""
    out = bytearray(varint(count)) + b"\x00" + byte
    left = count - 1
    while left >= 4:
        length = min(left, 64)
        out += bytes([((length - 1) << 2) | 2]) + struct.pack("<H", 1)
        left -= length
    for _ in range(left):
        out += b"\x00" + byte
    return bytes(out)


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def xerial(*blocks: bytes) -> bytes:
    return XERIAL_HEADER + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def unsnappy_block(block: bytes) -> bytes:
    """Decode one raw snappy block."""
    size = shift = position = 0
    while True:
        if position >= len(block) or position == 5:
            raise DamagedError("no preamble")
        byte = block[position]
        position += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    out = bytearray()
    while position < len(block):
        tag = block[position]
        position += 1
        kind = tag & 3
        if kind == 0:
            length = (tag >> 2) + 1
            if length > 60:
                width = length - 60
                length = int.from_bytes(block[position : position + width], "little") + 1
                position += width
            if position + length > len(block):
                raise DamagedError("literal")
            out += block[position : position + length]
            position += length
            continue
        width = (0, 1, 2, 4)[kind]
        if position + width > len(block):
            raise DamagedError("copy")
        if kind == 1:
            length, distance = ((tag >> 2) & 7) + 4, (tag >> 5) << 8 | block[position]
        else:
            length, distance = (tag >> 2) + 1, int.from_bytes(block[position : position + width], "little")
        position += width
        if not 0 < distance <= len(out):
            raise DamagedError("distance")
        for _ in range(length):
            out.append(out[-distance])
    if len(out) != size:
        raise DamagedError("size")
    return bytes(out)


def inflate(codec: int, data: bytes) -> bytes:
    if codec == 2:
        if len(data) < 16 or data[:8] != XERIAL_HEADER[:8]:
            return unsnappy_block(data)
        if struct.unpack(">i", data[8:12])[0] < 1:
            raise DamagedError("version")
        out, position = b"", 16
        while position < len(data):
            if len(data) - position < 4:
                raise DamagedError("block length")
            (size,) = struct.unpack(">i", data[position : position + 4])
            if not 0 < size <= len(data) - position - 4:
                raise DamagedError("block")
            out += unsnappy_block(data[position + 4 : position + 4 + size])
            position += 4 + size
        return out
    out = b""
    while True:
        member = zlib.decompressobj(wbits=31)
        try:
            out += member.decompress(data)
        except zlib.error as error:
            raise DamagedError(str(error)) from error
        if not member.eof:
            raise DamagedError("ends early")
        data = member.unused_data
        if not data.startswith(b"\x1f\x8b\x08"):
            return out


def deep_payloads(data: bytes, *, inside: bool = False) -> list[bytes]:
    """Every plain payload at any depth; damage, and a cut inside a wrapper, raises."""
    found, status = walk(data)
    if status not in (OK, TAIL) or (status == TAIL and (inside or (not found and len(data) >= 4))):
        raise DamagedError(f"status {status}")
    out: list[bytes] = []
    for entry in found:
        if entry.attributes:
            out += deep_payloads(inflate(entry.attributes, entry.payload), inside=True)
        else:
            out.append(entry.payload)
    return out


def deep(data: bytes, base: int = 0) -> list[tuple[bytes, int]]:
    """``(payload, offset)`` of an undamaged set with the offset rule of 0.7."""
    out: list[tuple[bytes, int]] = []
    for entry in walk(data, base=base)[0]:
        if not entry.attributes:
            out.append((entry.payload, entry.next_offset))
            continue
        inner = deep_payloads(inflate(entry.attributes, entry.payload), inside=True)
        out += [(payload, entry.offset) for payload in inner[:-1]]
        out += [(payload, entry.next_offset) for payload in inner[-1:]]
    return out


def as_records(data: bytes, base: int = 0) -> list[tuple[int, bytes]] | None:
    """``(offset, payload)`` of an undamaged set as today's consumers get it.

    A message is where it ends, less 1; those of a compressed set stand before its end, one each. None where one has
    more messages than bytes.
    """
    out: list[tuple[int, bytes]] = []
    for entry in walk(data, base=base)[0]:
        inner = [entry.payload]
        if entry.attributes:
            inner = deep_payloads(inflate(entry.attributes, entry.payload), inside=True)
        if len(inner) > entry.next_offset - entry.offset:
            return None
        out += zip(range(entry.next_offset - len(inner), entry.next_offset), inner, strict=True)
    return out


@dataclass(frozen=True)
class EnvelopeFields:
    """An envelope, and where the key, the deduplication id and the value lie in the payload."""

    time_ms: int
    server_id: int
    schema_id: int | None
    key: tuple[int, bytes] | None
    deduplication_id: tuple[int, bytes] | None
    value: tuple[int, bytes]


def envelope(payload: bytes) -> EnvelopeFields:
    """The envelope that a payload begins with."""
    if payload[:2] != b"\xfe\x01":
        raise DamagedError("magic")
    rest = payload[2:]

    def take(count: int) -> bytes:
        nonlocal rest
        if len(rest) < count:
            raise DamagedError("cut off")
        piece, rest = rest[:count], rest[count:]
        return piece

    def field(width: int) -> tuple[int, bytes]:
        length = int.from_bytes(take(width), "big")
        return len(payload) - len(rest), take(length)

    flags = take(1)[0]
    if flags > 7:
        raise DamagedError("flags")
    time_ms, server_id = struct.unpack(">qI", take(12))
    schema_id = int.from_bytes(take(4), "big") if flags & 1 else None
    key = field(4) if flags & 2 else None
    deduplication_id = field(1) if flags & 4 else None
    return EnvelopeFields(time_ms, server_id, schema_id, key, deduplication_id, (len(payload) - len(rest), rest))
