"""Monitoring events: what producers say they have sent, as JSON messages of an audit topic.

``{"topic", "server", "server_id", "window_start", "window_ms", "n", "producer_id", "seq", "first", "last", "failed",
"time_ms"}``. Several events of one window add up; one that is there twice has the same ``producer_id`` and ``seq``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from fastlog.errors import AuditError

_KINDS = {"topic": str, "server": str, "failed": list}  # what is no whole number
Range = tuple[int, int]
"""Numbers from the first up to and including the second."""


class SentEvent(NamedTuple):
    """So many messages of one producer, topic and window were delivered.

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

    def encode(self) -> bytes:
        """The bytes of a message."""
        return json.dumps(self._asdict(), separators=(",", ":")).encode()


def decode(payload: bytes) -> SentEvent | None:
    """Return the event in a message of an audit topic; None for a message of another kind.

    Raises:
        AuditError: the message is no JSON object, or says what cannot be.
    """
    try:
        fields = json.loads(payload)
    except ValueError as error:
        raise AuditError(f"a message of the audit topic is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise AuditError("a message of the audit topic is no JSON object")
    if "producer_id" not in fields or "first" not in fields:
        return None
    return _checked(fields)


def _checked(fields: dict[str, Any]) -> SentEvent:
    failed = fields.get("failed", [])
    values: list[Any] = []
    for name in SentEvent._fields:
        value = failed if name == "failed" else fields.get(name)
        if type(value) is not _KINDS.get(name, int):
            raise AuditError(f"a monitoring event has {name}={value!r}")
        values.append(value)
    event = SentEvent(*values)
    if event.window_ms < 1 or not 0 <= event.first <= event.last < 2**63:
        raise AuditError(
            f"a monitoring event has the numbers {event.first} … {event.last}, windows of {event.window_ms} ms"
        )
    left, ranges = event.last - event.first + 1, []
    behind = event.first
    for item in failed:
        if not (isinstance(item, list) and len(item) == 2 and all(type(number) is int for number in item)):
            raise AuditError(f"a monitoring event has failed={item!r}")
        if not behind <= item[0] <= item[1] <= event.last:
            raise AuditError(f"a monitoring event has failed={item!r} within {event.first} … {event.last}")
        behind = item[1] + 1
        left -= item[1] - item[0] + 1
        ranges.append((item[0], item[1]))
    if event.n != left:
        raise AuditError(f"a monitoring event counts {event.n} messages where its numbers are {left}")
    return event._replace(failed=tuple(ranges))
