"""Which partition a key goes to. The same key gives the same number in every process, on every machine, for ever."""

from __future__ import annotations

import zlib
from typing import Protocol

from fastlog.errors import ArgumentError

SIGN_MASK = 0x7FFFFFFF
_MURMUR_SEED = 0x9747B28C
_MURMUR_FACTOR = 0x5BD1E995
_MASK = 0xFFFFFFFF


class Partitioner(Protocol):
    """What a producer asks: an index below ``count`` for a key. Called only for messages with a key."""

    def partition(self, key: object, count: int) -> int:
        """Return an index, 0 to ``count`` - 1, into the topic's sorted list of (broker, partition)."""


def key_bytes(key: object) -> bytes:
    """A key as the bytes that are hashed: bytes as they are, text in UTF-8, a whole number in decimal digits.

    Raises:
        ArgumentError: any other type; its hash would depend on how it is written as text.
    """
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError:
            raise ArgumentError(f"a key that is text has a form in UTF-8, not {key!a}") from None
    if isinstance(key, bytearray | memoryview):
        return bytes(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key).encode()
    raise ArgumentError(f"a key is bytes, str or int, not {type(key).__name__}; give a partitioner that knows it")


class Crc32Partitioner:
    """CRC-32 of the key, without its sign bit, modulo the number of partitions. The default."""

    def partition(self, key: object, count: int) -> int:
        """Return the index of the key's partition, from 0 up to ``count``. Raises as ``key_bytes``."""
        return (zlib.crc32(key_bytes(key)) & SIGN_MASK) % count


class Murmur2Partitioner:
    """Murmur2 as in today's Kafka clients: a topic with the same partitions gets the same distribution."""

    def partition(self, key: object, count: int) -> int:
        """Return the index of the key's partition, from 0 up to ``count``. Raises as ``key_bytes``."""
        return (murmur2(key_bytes(key)) & SIGN_MASK) % count


class JavaHashPartitioner:
    """Java's ``String.hashCode``, as 0.7's default partitioner takes it for text keys.

    Kafka 0.7.2 fails for the one hash whose absolute value is negative, -2³¹; here every other key goes where it goes
    there, and that one to the index of 0.
    """

    def partition(self, key: object, count: int) -> int:
        """The index for a key, which is a str."""
        if not isinstance(key, str):
            raise ArgumentError(f"Java's String.hashCode is for str keys, not {type(key).__name__}")
        return (abs(java_string_hash(key)) & SIGN_MASK) % count


def java_string_hash(text: str) -> int:
    """``String.hashCode`` of Java: 31 h + unit over UTF-16 units, in 32 bits, signed."""
    value = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(raw), 2):
        value = (31 * value + (raw[i] << 8 | raw[i + 1])) & _MASK
    return value - (1 << 32) if value > SIGN_MASK else value


def murmur2(data: bytes) -> int:
    """Murmur2 with the seed that Kafka uses, in 32 bits, unsigned."""
    value = _MURMUR_SEED ^ len(data)
    whole = len(data) // 4 * 4
    for i in range(0, whole, 4):
        piece = int.from_bytes(data[i : i + 4], "little") * _MURMUR_FACTOR & _MASK
        piece = (piece ^ piece >> 24) * _MURMUR_FACTOR & _MASK
        value = value * _MURMUR_FACTOR & _MASK ^ piece
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MURMUR_FACTOR & _MASK
    value = (value ^ value >> 13) * _MURMUR_FACTOR & _MASK
    return value ^ value >> 15
