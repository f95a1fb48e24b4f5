"""Whether a request has the shape that its schema gives it, looked at before the library reads it.

The library (kio) makes room for as many elements as an array says it has, and ends the process where there is no memory
for them; it reads null where a field may not be. So each length is held against the bytes that are left, by a walk over
the schema's classes.

Source: Apache Kafka's protocol guide (primitive types, tagged fields); KIP-482.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

from fastlog.errors import ProtocolError

Skip = Callable[[bytes, int], int]
"""Returns where a value that begins at a position ends. Raises ``ProtocolError``."""

SIZES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}
LONG = {"bytes", "records"}
"""Kinds whose length has four bytes where it is no varint; that of strings has two."""
HEAD_BYTES = 8
MOST_VARINT_BYTES = 5


def check(schema: Any, frame: bytes) -> None:
    """Look at a whole request of this class, from its api key on.

    Raises:
        ProtocolError: a length says more than there is, something that must be there is null, or bytes are left over.
    """
    at = _prefixed(frame, HEAD_BYTES, 2, True)
    if schema.__header_schema__.__flexible__:
        at = _tagged({})(frame, at)
    if of_class(schema)(frame, at) != len(frame):
        raise ProtocolError("bytes behind a request")


@functools.cache
def of_class(schema: Any) -> Skip:
    """What skips one of a schema's classes."""
    hints = typing.get_type_hints(schema)
    plain: list[Skip] = []
    tagged: dict[int, Skip] = {}
    for field in dataclasses.fields(schema):
        skip = _of_field(hints[field.name], field.metadata.get("kafka_type", ""), schema.__flexible__)
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = skip
        else:
            plain.append(skip)
    if schema.__flexible__:
        plain.append(_tagged(tagged))
    return functools.partial(_in_turn, plain)


def _in_turn(skips: Sequence[Skip], data: bytes, at: int) -> int:
    for skip in skips:
        at = skip(data, at)
    return at


def _of_field(hint: Any, kind: str, is_flexible: bool) -> Skip:
    is_nullable = isinstance(hint, types.UnionType)
    if is_nullable:
        hint = next(each for each in typing.get_args(hint) if each is not type(None))
    if typing.get_origin(hint) is tuple:
        element = _of_field(typing.get_args(hint)[0], kind, is_flexible)
        return functools.partial(_array, element, is_nullable, is_flexible)
    if dataclasses.is_dataclass(hint):
        one: Skip = of_class(typing.cast(type, hint))
        return functools.partial(_or_null, one) if is_nullable else one
    if kind in SIZES:
        return functools.partial(_fixed, SIZES[kind])
    if is_flexible:
        return functools.partial(_compact, is_nullable)
    width = 4 if kind in LONG else 2
    return lambda data, at: _prefixed(data, at, width, is_nullable)


def _fixed(size: int, data: bytes, at: int) -> int:
    return _within(data, at + size)


def _within(data: bytes, end: int) -> int:
    if end > len(data):
        raise ProtocolError(f"a length says {end - len(data)} bytes more than there are")
    return end


def _number(data: bytes, at: int, width: int) -> int:
    return int.from_bytes(data[at : _within(data, at + width)], "big", signed=True)


def _prefixed(data: bytes, at: int, width: int, is_nullable: bool) -> int:
    size = _number(data, at, width)
    if size < 0 and not (size == -1 and is_nullable):
        raise ProtocolError(f"a length of {size}")
    return _within(data, at + width + max(size, 0))


def _compact(is_nullable: bool, data: bytes, at: int) -> int:
    size, at = _varint(data, at)
    if not size and not is_nullable:
        raise ProtocolError("null where something must be")
    return _within(data, at + max(size - 1, 0))


def _array(element: Skip, is_nullable: bool, is_flexible: bool, data: bytes, at: int) -> int:
    if is_flexible:
        count, at = _varint(data, at)
        count -= 1
    else:
        count, at = _number(data, at, 4), at + 4
    if count < 0 and not (count == -1 and is_nullable):
        raise ProtocolError(f"an array of {count}")
    _within(data, at + count)  # no element is without bytes
    for _ in range(count):
        at = element(data, at)
    return at


def _or_null(one: Skip, data: bytes, at: int) -> int:
    is_there = _number(data, at, 1)
    return one(data, at + 1) if is_there >= 0 else at + 1


def _tagged(known: dict[int, Skip]) -> Skip:
    def skip(data: bytes, at: int) -> int:
        count, at = _varint(data, at)
        for _ in range(count):
            tag, at = _varint(data, at)
            size, at = _varint(data, at)
            end = _within(data, at + size)
            if tag in known and known[tag](data, at) != end:
                raise ProtocolError(f"tagged field {tag} has another size than its value")
            at = end
        return at

    return skip


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(MOST_VARINT_BYTES):
        byte = data[_within(data, at + 1) - 1]
        at += 1
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, at
    raise ProtocolError("a varint that does not end")
