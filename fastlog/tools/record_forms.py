"""Records as bytes on stdout, in the form that is wanted."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable

from fastlog.consumer.stream import GroupMessage
from fastlog.escaping import in_json
from fastlog.record_batches import NO_TIMESTAMP, Record
from fastlog.tools.lines import LENGTH
from fastlog.tools.printing import Form, record_fields, text_or_none

RecordForm = Callable[[str, int, Record], bytes]
"""Makes the bytes of a record out of its topic, partition and itself."""

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_TOKEN = re.compile(r"\\(x[0-9A-Fa-f]{2}|.)|%(.)|([^\\%]+)|([\\%])", re.DOTALL)
_TEXTS: dict[str, RecordForm] = {
    "S": lambda topic, partition, record: b"%d" % _length(record.value),
    "K": lambda topic, partition, record: b"%d" % _length(record.key),
    "T": lambda topic, partition, record: b"%d" % record.timestamp,
    "h": lambda topic, partition, record: b",".join(
        name + b"=" + (b"NULL" if value is None else value) for name, value in record.headers
    ),
    "t": lambda topic, partition, record: topic.encode(),
    "p": lambda topic, partition, record: b"%d" % partition,
    "o": lambda topic, partition, record: b"%d" % record.offset,
    "%": lambda topic, partition, record: b"%",
}


def template_form(template: str, null: bytes = b"") -> RecordForm:
    """The form of a template as kcat's ``-f`` has it: ``%s`` value, ``%k`` key, or ``null`` for none, and so on.

    Raises:
        ValueError: it has a token that means nothing.
    """
    parts: list[bytes | RecordForm] = []
    texts: dict[str, RecordForm] = {
        "s": lambda topic, partition, record: null if record.value is None else record.value,
        "k": lambda topic, partition, record: null if record.key is None else record.key,
        **_TEXTS,
    }
    for escape, token, text, alone in _TOKEN.findall(template):
        if alone or (token and token not in texts) or (escape and len(escape) == 1 and escape not in _ESCAPES):
            wrong = f"%{token}" if token else f"\\{escape}" if escape else alone
            known = f"%{', %'.join(texts)}, \\n, \\t, \\r, \\0, \\\\ and \\xHH"
            raise ValueError(f"{wrong} means nothing: there are {known}")
        if token:
            parts.append(texts[token])
        elif escape:
            parts.append(bytes.fromhex(escape[1:]) if len(escape) > 1 else _ESCAPES[escape].encode())
        else:
            parts.append(text.encode())

    def form(topic: str, partition: int, record: Record) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(topic, partition, record) for part in parts)

    return form


def of_messages(form: RecordForm) -> Form:
    """The same form for messages of Kafka 0.7: values without key, time and headers."""
    return lambda topic, partition, found: form(topic, partition, Record(None, found.payload, offset=found.offset))


def of_group_messages(form: RecordForm) -> Callable[[GroupMessage], bytes]:
    """The same for messages and records that a group reads; ``%p`` is the partition's number on its broker."""

    def made(found: GroupMessage) -> bytes:
        _, number = found.partition
        time = NO_TIMESTAMP if found.timestamp is None else found.timestamp
        record = Record(found.key, found.payload, time, found.headers or (), found.offset)
        return form(found.topic, number, record)

    return made


def value_line(topic: str, partition: int, record: Record) -> bytes:
    """The value; nothing for a record without one, a tombstone."""
    return record.value or b""


def prefixed_value(topic: str, partition: int, record: Record) -> bytes:
    """The value behind its length, as ``produce --length-prefixed`` reads it."""
    return LENGTH.pack(len(record.value or b"")) + (record.value or b"")


def offsets_line(topic: str, partition: int, record: Record) -> bytes:
    """Partition, offset, and the value, between tabs."""
    return b"%d\t%d\t%b" % (partition, record.offset, record.value or b"")


def checksum_line(topic: str, partition: int, record: Record) -> bytes:
    """The CRC-32 of the value, as 0.7's formatter prints it of a payload."""
    return b"checksum:%d" % zlib.crc32(record.value or b"")


def checksum_form(prefix: str) -> RecordForm:
    """``checksum_line`` with a text and a dash before it."""
    start = f"{prefix}-".encode()
    return lambda topic, partition, record: start + checksum_line(topic, partition, record)


def json_line(topic: str, partition: int, record: Record) -> bytes:
    """An object with everything; bytes that are not UTF-8 in base64, and marked."""
    value, is_base64 = text_or_none(record.value)
    return in_json(
        {
            "topic": topic,
            "partition": partition,
            "offset": record.offset,
            "next_offset": record.offset + 1,
            "payload": value,
            "base64": is_base64,
            **record_fields(record.key, record.timestamp, record.headers),
        }
    ).encode()


FORMS: dict[str, RecordForm] = {
    "text": value_line,
    "json": json_line,
    "offsets": offsets_line,
    "checksum": checksum_line,
}
"""By the name that ``--format`` takes: the function that makes a record's line."""


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)
