"""Messages, message sets and codecs of Kafka 0.7, written a second time with the standard library alone.

Nothing here imports fastlog: what the tests expect must not come from the code under test.

entry    = length(4) magic(1) [attributes(1) when magic is 1] crc(4) payload; big-endian, the CRC covers the payload
gzip     = attributes 1, payload = gzip of a message set
snappy   = attributes 2, payload = xerial stream (header, then blocks of at most 32 KiB) or one raw snappy block
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

NONE, GZIP, SNAPPY = 0, 1, 2
XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_BLOCK_BYTES = 32768


class Entry(NamedTuple):
    """One entry of a message set as it lies in the bytes; ``offset`` is where it starts."""

    offset: int
    next_offset: int
    magic: int
    attributes: int
    payload: bytes


def entry(payload: bytes, magic: int = 1, attributes: int = 0, crc: int | None = None) -> bytes:
    """One entry; a given ``crc`` replaces the right one."""
    crc = zlib.crc32(payload) if crc is None else crc
    head = struct.pack(">B", magic) if magic == 0 else struct.pack(">BB", magic, attributes)
    return struct.pack(">I", len(head) + 4 + len(payload)) + head + struct.pack(">I", crc) + payload


def message_set(payloads: Iterable[bytes], magic: int = 1, codec: int = NONE) -> bytes:
    """A set of entries, or with a codec the one wrapper entry that holds such a set."""
    plain = b"".join(entry(payload, magic) for payload in payloads)
    return plain if codec == NONE or not plain else wrapper(plain, codec)


def wrapper(inner: bytes, codec: int) -> bytes:
    """The entry (always magic 1) whose payload is ``inner`` compressed."""
    return entry(compress(inner, codec), 1, codec)


def compress(data: bytes, codec: int) -> bytes:
    """``data`` as a wrapper's payload: gzip with time 0, or the xerial stream."""
    return gzip.compress(data, mtime=0) if codec == GZIP else xerial_encode(data)


def inflate(data: bytes, codec: int) -> bytes:
    """The message set inside a wrapper's payload."""
    if codec == GZIP:
        return gzip.decompress(data)
    if codec == SNAPPY:
        return xerial_decode(data) if data.startswith(XERIAL_MAGIC) else snappy_decode(data)
    raise ValueError(f"codec {codec}")


def entries(data: bytes, base: int = 0) -> list[Entry]:
    """The whole entries at the front of ``data``; a cut one at the end is left out, a damaged one raises ValueError."""
    found = []
    position = 0
    while len(data) - position >= 4:
        (size,) = struct.unpack_from(">i", data, position)
        if size < 5:
            raise ValueError(f"entry of size {size} at {position}")
        end = position + 4 + size
        if end > len(data):
            break
        magic = data[position + 4]
        if magic > 1 or (magic == 1 and size < 6):
            raise ValueError(f"magic {magic} and size {size} at {position}")
        attributes = data[position + 5] if magic else 0
        header = 5 + magic
        (crc,) = struct.unpack_from(">I", data, position + header)
        payload = data[position + header + 4 : end]
        if zlib.crc32(payload) != crc:
            raise ValueError(f"wrong checksum at {position}")
        found.append(Entry(base + position, base + end, magic, attributes, payload))
        position = end
    return found


def deep_payloads(data: bytes) -> list[bytes]:
    """Every payload of a set, wrappers opened to any depth."""
    payloads: list[bytes] = []
    for item in entries(data):
        codec = item.attributes & 3
        if codec == NONE:
            payloads.append(item.payload)
        else:
            payloads.extend(deep_payloads(inflate(item.payload, codec)))
    return payloads


# --- snappy ---------------------------------------------------------------------------------------------------------


def xerial_encode(data: bytes) -> bytes:
    """The stream of snappy-java: magic, version 1, compatible with 1, then ``length block`` for each 32 KiB."""
    parts = [XERIAL_MAGIC, struct.pack(">ii", 1, 1)]
    for start in range(0, len(data), XERIAL_BLOCK_BYTES):
        block = snappy_encode(data[start : start + XERIAL_BLOCK_BYTES])
        parts.append(struct.pack(">i", len(block)) + block)
    return b"".join(parts)


def xerial_decode(data: bytes) -> bytes:
    """The bytes inside a snappy-java stream."""
    parts = []
    position = len(XERIAL_MAGIC) + 8
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position)
        block = data[position + 4 : position + 4 + length]
        if len(block) != length:
            raise ValueError("a block is cut short")
        parts.append(snappy_decode(block))
        position += 4 + length
    return b"".join(parts)


def snappy_encode(data: bytes) -> bytes:
    """A raw snappy block of literals only: valid, and no smaller than its input."""
    parts = [_varint(len(data))]
    for start in range(0, len(data), 65536):
        piece = data[start : start + 65536]
        last = len(piece) - 1
        if last < 60:
            parts.append(bytes([last << 2]))
        elif last < 256:
            parts.append(bytes([60 << 2, last]))
        else:
            parts.append(bytes([61 << 2]) + struct.pack("<H", last))
        parts.append(piece)
    return b"".join(parts)


def snappy_decode(block: bytes) -> bytes:
    """The bytes inside one raw snappy block; raises ValueError when it contradicts itself."""
    size, position = _read_varint(block)
    out = bytearray()
    while position < len(block):
        tag = block[position]
        position += 1
        if tag & 3 == 0:
            length = tag >> 2
            if length >= 60:
                width = length - 59
                length = int.from_bytes(block[position : position + width], "little")
                position += width
            length += 1
            if position + length > len(block):
                raise ValueError("a literal is cut short")
            out += block[position : position + length]
            position += length
            continue
        if tag & 3 == 1:
            length = 4 + (tag >> 2 & 7)
            distance = (tag >> 5) << 8 | block[position]
            position += 1
        else:
            length = 1 + (tag >> 2)
            width = 2 if tag & 3 == 2 else 4
            distance = int.from_bytes(block[position : position + width], "little")
            position += width
        if not 0 < distance <= len(out):
            raise ValueError("a copy reaches before the start")
        start = len(out) - distance
        if distance >= length:
            out += out[start : start + length]
        else:
            for index in range(length):
                out.append(out[start + index])
    if len(out) != size:
        raise ValueError(f"{len(out)} bytes came out, {size} were announced")
    return bytes(out)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[:5]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, index + 1
    raise ValueError("the length never ends")
