"""Messages on stdout: one line each, in the form that is wanted, many in one write."""

from __future__ import annotations

import base64
import contextlib
import os
import select
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fastlog._batch import ConsumedMessage, MessageStream, PayloadStream
from fastlog._record_batch import RecordSpan
from fastlog.consumer.fetched import MessageSet
from fastlog.errors import FastlogError
from fastlog.escaping import in_json
from fastlog.message import AnySpan
from fastlog.record_batches import NO_TIMESTAMP
from fastlog.tools import signals
from fastlog.tools.lines import LENGTH, NEWLINE
from fastlog.tools.progress import ConsoleProgress

_MESSAGES_AT_ONCE = 65536
_BYTES_AT_ONCE = 4 * 2**20
_STDOUT = 1

Form = Callable[[str, int, ConsumedMessage], bytes]
Headers = Sequence[tuple[bytes, bytes | None]]


class _Shown(Protocol):
    """A message of a consumer or of a group's stream; of a topic of record batches it has headers."""

    @property
    def payload(self) -> bytes: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers | None: ...
    @property
    def timestamp(self) -> int | None: ...
    @property
    def offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...


def json_text(data: bytes) -> tuple[str, bool]:
    """Bytes as text for JSON, and whether they are in base64, which they are unless they are UTF-8."""
    try:
        return data.decode("utf-8"), False
    except UnicodeDecodeError:
        return base64.b64encode(data).decode("ascii"), True


def text_or_none(data: bytes | None) -> tuple[str | None, bool]:
    """As ``json_text``, for data that may be null: None, which is not in base64."""
    return (None, False) if data is None else json_text(data)


def json_fields(partition: int, found: _Shown) -> str:
    """The fields of a message behind its topic; a payload that is not UTF-8 in base64, and marked."""
    text, encoded = text_or_none(found.payload)
    fields = (
        f'"partition": {partition}, "offset": {found.offset}, "next_offset": {found.next_offset},'
        f' "payload": {in_json(text)}, "base64": {"true" if encoded else "false"}'
    )
    if found.headers is None:
        return fields
    time = NO_TIMESTAMP if found.timestamp is None else found.timestamp
    of_record = in_json(record_fields(found.key, time, found.headers))
    return f"{fields}, {of_record[1:-1]}"


def record_fields(key: bytes | None, timestamp: int, headers: Headers) -> dict[str, Any]:
    """What a record has besides its value, for JSON."""
    text, encoded = text_or_none(key)
    rows = []
    for name, content in headers:
        value, is_base64 = text_or_none(content)
        rows.append({"name": name.decode("utf-8", "replace"), "value": value, "base64": is_base64})
    return {"key": text, "key_base64": encoded, "timestamp": timestamp, "headers": rows}


def json_line(topic: str, partition: int, found: _Shown) -> bytes:
    """A JSON object with topic, partition, offsets, and all that the message has."""
    return f'{{"topic": {in_json(topic)}, {json_fields(partition, found)}}}'.encode()


def offsets_line(topic: str, partition: int, found: ConsumedMessage) -> bytes:
    """Partition, offset, and the payload, between tabs."""
    return b"%d\t%d\t%b" % (partition, found.offset, found.payload or b"")


def null_or_value(topic: str, partition: int, found: ConsumedMessage) -> bytes:
    """The payload, and NULL where there is none."""
    return b"NULL" if found.payload is None else found.payload


def checksum_line(topic: str, partition: int, found: _Shown) -> bytes:
    """The CRC-32 of the payload. Source: Kafka 0.7.2, ``ChecksumMessageFormatter``."""
    return b"checksum:%d" % zlib.crc32(found.payload or b"")


def checksum_form(prefix: str) -> Form:
    """``checksum_line`` with a text and a dash before it, as 0.7's formatter does for its property ``topic``."""
    start = f"{prefix}-".encode()
    return lambda topic, partition, found: start + checksum_line(topic, partition, found)


def prefixed_line(topic: str, partition: int, found: _Shown) -> bytes:
    """The payload behind its length, as ``produce --length-prefixed`` reads it."""
    payload = found.payload or b""
    return LENGTH.pack(len(payload)) + payload


FORMS: dict[str, Form | None] = {"text": None, "json": json_line, "offsets": offsets_line, "checksum": checksum_line}
"""What ``--format`` names; None: the payload itself, for which no object is made."""


class DamageError(Exception):
    """A message cannot be shown; those before it were."""

    def __init__(self, partition: int, offset: int, error: FastlogError) -> None:
        super().__init__(str(error))
        self.partition = partition
        self.offset = offset
        self.error = error


class Printer:
    """Prints sets of messages and knows where to go on. For the main thread, inside ``signals.deferred()``."""

    def __init__(
        self,
        topic: str,
        form: Form | None,
        max_messages: int | None,
        progress: ConsoleProgress,
        delimiter: bytes | None = NEWLINE,
    ) -> None:
        """``delimiter`` is behind each message; None: its length is before it, and ``form`` does not count."""
        self.positions: dict[int, int] = {}
        """By partition: where to go on behind what was printed."""
        self.left = max_messages
        self.skip: dict[int, int] = {}
        """By partition: messages at the beginning that are passed over."""
        self._topic = topic
        self._form = prefixed_line if delimiter is None else form
        self._delimiter = delimiter or b""
        self._progress = progress
        self._lines: list[bytes] = []
        self._held_bytes = 0
        self._extra_bytes = 0  # of the lines held, beyond their payloads

    def print(self, found: MessageSet) -> None:
        """Print the messages of a set, up to the number of them that is wanted.

        Raises:
            DamageError: one of them cannot be shown.
            BrokenPipeError: nobody reads.
        """
        at = found.offset
        damage: FastlogError | None = None
        try:
            for span in found.spans():
                at = self._take(found.partition, span)
                if len(self._lines) >= _MESSAGES_AT_ONCE or self._held_bytes >= _BYTES_AT_ONCE:
                    self._write(found.partition, at)
                if self.left == 0:
                    break
        except FastlogError as error:
            damage = error
        self._write(found.partition, at)
        if damage is not None:
            raise DamageError(found.partition, at, damage) from damage

    def _take(self, partition: int, span: AnySpan) -> int:
        """Make lines of a span; where to go on behind them."""
        skipped = min(self.skip.get(partition, 0), span.count)
        if skipped:
            self.skip[partition] -= skipped
        end = span.count if self.left is None else min(span.count, skipped + self.left)
        if self.left is not None:
            self.left -= end - skipped
        size = len(span.records if isinstance(span, RecordSpan) else span.entries)
        self._held_bytes += size
        if self._form is None and end == span.count:
            payloads = without_nulls(PayloadStream([span]).take(span.count, size + span.count))
            self._lines += payloads[skipped:] if skipped else payloads
            return span.next_offset
        messages = list(MessageStream([span]))
        next_offset = messages[end - 1].next_offset if end else span.offset
        for item in messages[skipped:end]:
            payload = item.payload or b""
            self._extra_bytes -= len(payload)
            self._lines.append(payload if self._form is None else self._form(self._topic, partition, item))
            self._extra_bytes += len(self._lines[-1])
        return next_offset

    def _write(self, partition: int, at: int) -> None:
        """Write what was taken. Only what is out counts: whoever goes on at the position misses nothing."""
        lines, self._lines = self._lines, []
        extra, self._extra_bytes, self._held_bytes = self._extra_bytes, 0, 0
        if lines:
            count = len(lines)
            lines.append(b"")
            data = self._delimiter.join(lines)
            write_all(data)
            self._progress.count += count
            self._progress.size += len(data) - count * len(self._delimiter) - extra
        self._progress.reached += at - self.positions.get(partition, at)
        self.positions[partition] = at
        self._progress.idle()


def without_nulls(payloads: list[bytes]) -> list[bytes]:
    """The payloads; empty for records whose value is null, which only topics of record batches have."""
    return [payload or b"" for payload in payloads] if None in payloads else payloads


def write_all(data: bytes) -> None:
    """Hand bytes to stdout. The reader of a pipe may be slow, so a signal ends it in the middle."""
    left = memoryview(data)
    if len(left) <= select.PIPE_BUF:
        # So much goes out at once where there is room: no signal comes between the bytes and their count.
        with signals.waiting():
            select.select([], [_STDOUT], [])
        with contextlib.suppress(BlockingIOError):
            left = left[os.write(_STDOUT, left) :]
    while left:
        try:
            with signals.waiting():
                left = left[os.write(_STDOUT, left) :]
        except BlockingIOError:  # somebody made the terminal or the pipe non-blocking
            with signals.waiting():
                select.select([], [_STDOUT], [])
