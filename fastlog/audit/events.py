"""Monitoring events, as JSON messages of an audit topic: what producers have sent, and what others have seen of it.

A ``SentEvent`` has the fields ``topic``, ``server``, ``server_id``, ``window_start``, ``window_ms``, ``n``,
``producer_id``, ``seq``, ``first``, ``last``, ``failed``, ``time_ms``; a ``SeenEvent`` has ``stage``. Several events of
one window add up, and one that is there twice counts once. ``docs/audit.md`` says what they mean.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from fastlog.errors import AuditError

PAGE_BYTES = 4096
Range = tuple[int, int]
"""Numbers from the first up to and including the second."""


class SentEvent(NamedTuple):
    """Messages of one producer, topic and window were delivered.

    They have the numbers ``first`` … ``last`` without those in ``failed``, whose fate the producer does not know.
    ``producer_id`` is drawn by chance for each topic and life of a producer; ``seq`` counts its events from 0. Times
    are those of the producer's clock, in ms since 1970.
    """

    topic: str
    server: str
    server_id: int
    window_start: int
    window_ms: int
    n: int
    producer_id: int
    seq: int
    first: int
    last: int
    failed: Sequence[Range]
    time_ms: int

    @property
    def clock(self) -> int:
        """Whose ``time_ms`` can be compared with this one's."""
        return self.producer_id

    def encode(self) -> bytes:
        """The payload of the message that brings this event: JSON."""
        return json.dumps(self._asdict(), separators=(",", ":")).encode()


class SeenPage(NamedTuple):
    """Which of 32768 messages of a producer were seen: those whose bits are set, as of ``_tally``."""

    producer_id: int
    server_id: int
    number: int
    bits: bytes


class SeenDuplicates(NamedTuple):
    """How many messages of a window were seen again by one counter, so far."""

    producer_id: int
    window_start: int
    messages: int


class SeenEvent(NamedTuple):
    """What one counter of a stage has seen of a topic.

    Bits and counts only grow, so the same event may be read any number of times. ``counter_id`` is drawn by chance for
    each life of a counter.
    """

    stage: str
    topic: str
    server: str
    counter_id: int
    window_ms: int
    pages: Sequence[SeenPage]
    duplicates: Sequence[SeenDuplicates]
    time_ms: int

    @property
    def clock(self) -> int:
        """Whose ``time_ms`` can be compared with this one's."""
        return self.counter_id

    def encode(self) -> bytes:
        """The payload of the message that brings this event: JSON."""
        pages = [[*page[:3], base64.b64encode(zlib.compress(page.bits, 1)).decode()] for page in self.pages]
        return json.dumps({**self._asdict(), "pages": pages}, separators=(",", ":")).encode()


Event = SentEvent | SeenEvent
_KINDS = {"topic": str, "server": str, "stage": str, "failed": list, "pages": list, "duplicates": list}


def decode(payload: bytes) -> Event | None:
    """Return the event in a message of an audit topic; None for a message that is none.

    Raises:
        AuditError: the message is no JSON object, or an event says what cannot be.
    """
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise AuditError(f"a message of the audit topic is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise AuditError("a message of the audit topic is no JSON object")
    if "stage" in fields:
        return _seen(SeenEvent(*_values(fields, SeenEvent._fields)))
    if "first" in fields:
        return _sent(SentEvent(*_values(fields, SentEvent._fields)))
    return None


def _values(fields: dict[str, Any], names: Iterable[str]) -> list[Any]:
    for name in names:
        value = fields.get(name)
        if type(value) is not _KINDS.get(name, int) or (type(value) is int and abs(value) >= 2**63):
            raise AuditError(f"a monitoring event has {name}={value!r}")
    if fields["window_ms"] < 1:
        raise AuditError(f"a monitoring event has window_ms={fields['window_ms']}")
    return [fields[name] for name in names]


def _sent(event: SentEvent) -> SentEvent:
    if not 0 <= event.first <= event.last < 2**62 or event.producer_id < 0:
        raise AuditError(f"a monitoring event has the numbers {event.first} … {event.last} of {event.producer_id}")
    left, behind, failed = event.last - event.first + 1, event.first, []
    for item in event.failed:
        low, high = _numbers(item, 2, "failed")
        if not behind <= low <= high <= event.last:
            raise AuditError(f"a monitoring event has failed={item!r} within {event.first} … {event.last}")
        behind = high + 1
        left -= high - low + 1
        failed.append((low, high))
    if event.n != left:
        raise AuditError(f"a monitoring event counts {event.n} messages where its numbers are {left}")
    return event._replace(failed=failed)


def _seen(event: SeenEvent) -> SeenEvent:
    return event._replace(
        pages=[_page(item) for item in event.pages], duplicates=[_duplicates(item) for item in event.duplicates]
    )


def _page(item: object) -> SeenPage:
    if not isinstance(item, list) or len(item) != 4 or not isinstance(item[3], str):
        raise AuditError("a monitoring event has pages that are none")
    producer_id, server_id, number = _numbers(item[:3], 3, "pages")
    decompressor = zlib.decompressobj()
    try:
        bits = decompressor.decompress(base64.b64decode(item[3], validate=True), PAGE_BYTES + 1)
    except (ValueError, zlib.error) as error:
        raise AuditError(f"a monitoring event has pages that are none: {error}") from error
    if len(bits) != PAGE_BYTES or not decompressor.eof or server_id >= 2**32 or number >= 2**48:
        raise AuditError("a monitoring event has pages that are none")
    return SeenPage(producer_id, server_id, number, bits)


def _duplicates(item: object) -> SeenDuplicates:
    if not isinstance(item, list) or len(item) != 3:
        raise AuditError(f"a monitoring event has duplicates={item!r}")
    producer_id, messages = _numbers([item[0], item[2]], 2, "duplicates")
    (window,) = _numbers(item[1:2], 1, "duplicates", low=-(2**63))
    return SeenDuplicates(producer_id, window, messages)


def _numbers(item: object, count: int, name: str, low: int = 0) -> list[int]:
    if not isinstance(item, list) or len(item) != count:
        raise AuditError(f"a monitoring event has {name}={item!r}")
    for number in item:
        if type(number) is not int or not low <= number < 2**63:
            raise AuditError(f"a monitoring event has {name}={item!r}")
    return item
