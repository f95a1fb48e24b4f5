"""Requests and answers of today's protocol as objects: the one place that knows the library that reads and writes them.

The library (kio) has a class for each version of each message, with frozen fields of its own types. Handlers see a
decoded request, whose field names are the schema's, and return a dictionary of all fields of the newest version;
``encode`` drops those that a version lacks, so that one handler serves every version. Imported at the first request:
a broker that nobody asks does not pay for it.

Source: the schemas of Apache Kafka; ``throttle_time_ms`` and the like are spelled without the unit by the library.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import importlib
import io
import sys
import typing
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fastlog.errors import ProtocolError
from fastlog.workers.coordinator import shape

Fields = Mapping[str, Any]
"""The fields of a message by their names in the schema; nested ones are dictionaries and sequences of them."""

ZERO_ID = bytes(16)


class Request(NamedTuple):
    """A request: which one, in which version, and its fields."""

    key: int
    version: int
    correlation_id: int
    client_id: str
    fields: Any


def decode(frame: bytes) -> Request:
    """Return the request of a frame that begins at the api key.

    Raises:
        ProtocolError: it is malformed, or of a key or version that the library does not know.
    """
    if len(frame) < 8:
        raise ProtocolError("a request without a whole header")
    _load_library()
    from kio.serial import entity_reader

    key, version = (int.from_bytes(frame[at : at + 2], "big", signed=True) for at in (0, 2))
    try:
        schema = _request_schema(key, version)
        shape.check(schema, frame)
        header, used = entity_reader(schema.__header_schema__)(frame, 0)
        fields, read = entity_reader(schema)(frame, used)
    except (KeyboardInterrupt, SystemExit, ProtocolError):
        raise
    except BaseException as error:  # the library's compiled part has panics, which are no exceptions
        raise ProtocolError(f"a request that is not understood key={key} version={version}: {error!r}") from error
    if used + read != len(frame):
        raise ProtocolError(f"a request with bytes behind it key={key} version={version}")
    client_id: Any = getattr(header, "client_id", None)
    return Request(key, version, int.from_bytes(frame[4:8], "big", signed=True), client_id or "", fields)


def encode(request: Request, answer: Fields) -> bytes:
    """Return the whole frame of an answer, its size before it, in the version of its request."""
    from kio.serial import entity_writer

    schema = _answer_schema(request.key, request.version)
    made = io.BytesIO()
    made.write(bytes(4))
    header: Any = schema.__header_schema__
    entity_writer(header)(made, header(correlation_id=request.correlation_id))
    entity_writer(schema)(made, build(schema, answer))
    data = bytearray(made.getvalue())
    data[:4] = (len(data) - 4).to_bytes(4, "big")
    return bytes(data)


@functools.cache
def _request_schema(key: int, version: int) -> Any:
    """The library's class; kept, because the library looks its module up by name each time."""
    from kio.index import load_request_schema

    return load_request_schema(key, version)


@functools.cache
def _answer_schema(key: int, version: int) -> Any:
    from kio.index import load_response_schema

    return load_response_schema(key, version)


@functools.cache
def _load_library() -> None:
    """Import the library without hypothesis, where both are installed: it would load and set up that for a second."""
    if "hypothesis" not in sys.modules:
        sys.modules["hypothesis"] = None  # type: ignore[assignment]  # as Python has it for what cannot be imported
        try:
            importlib.import_module("kio.static.primitive")
        finally:
            del sys.modules["hypothesis"]


def build(schema: type, fields: Fields) -> Any:
    """Return an object of a message's class; fields that the class does not have are left out.

    Numbers of milliseconds, error codes and ids of 16 bytes become what the library has for them.

    Raises:
        KeyError: a field without a default is missing.
    """
    values = {}
    for name, convert, has_default in _plan(schema):
        if name in fields or not has_default:
            values[name] = convert(fields[name])
    return schema(**values)


@functools.cache
def _plan(schema: type) -> list[tuple[str, Callable[[Any], Any], bool]]:
    """By field: its name, what makes its value of a handler's, and whether it has a default."""
    hints = typing.get_type_hints(schema)
    return [
        (field.name, _converter(field, hints[field.name]), field.default is not dataclasses.MISSING)
        for field in dataclasses.fields(schema)
    ]


def _converter(field: dataclasses.Field[Any], hint: Any) -> Callable[[Any], Any]:
    kind = field.metadata.get("kafka_type", "")
    one: Callable[[Any], Any]
    if kind.startswith("timedelta"):
        one = _milliseconds
    elif kind == "error_code":
        from kio.schema.errors import ErrorCode

        one = ErrorCode
    elif kind == "uuid":
        one = _uuid
    else:
        nested = next((each for each in _inner_types(hint) if dataclasses.is_dataclass(each)), None)
        one = functools.partial(build, nested) if isinstance(nested, type) else _same
    if not any(typing.get_origin(each) is tuple for each in (hint, *typing.get_args(hint))):
        return one
    return lambda values: None if values is None else tuple(map(one, values))


def _inner_types(hint: Any) -> list[Any]:
    inner = [hint]
    for each in typing.get_args(hint):
        inner += _inner_types(each)
    return inner


def _milliseconds(value: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=value)


def _uuid(value: bytes) -> uuid.UUID | None:
    return uuid.UUID(bytes=value) if value != ZERO_ID else None


def _same(value: Any) -> Any:
    return value
