"""Error codes of today's protocol, as a producer meets them: which pass, which are of numbers, and their exceptions.

Source of what is tried again: Apache Kafka 4.2 (Errors).
"""

from __future__ import annotations

from fastlog.client.records import RecordsError, meaning_of
from fastlog.errors import (
    FastlogError,
    InvalidMessageError,
    InvalidTopicError,
    MessageTooLargeError,
    NotAuthorizedError,
    StorageError,
    WrongPartitionError,
)

PASSING = frozenset((5, 6, 7, 14, 15, 19, 20, 56, 74))
"""Errors that go by: the broker starts, another one leads, copies or room on the disk are missing."""
LOST = frozenset((45, 47, 59))
"""Errors of a batch that does not follow what the broker has of the producer: it is not stored, nor is what follows."""
_CLASSES: dict[int, type[FastlogError]] = {
    2: InvalidMessageError,
    3: WrongPartitionError,
    10: MessageTooLargeError,
    17: InvalidTopicError,
    18: MessageTooLargeError,
    29: NotAuthorizedError,
    31: NotAuthorizedError,
    32: InvalidMessageError,
    56: StorageError,
    87: InvalidMessageError,
}


def error_of(code: int, detail: str = "") -> FastlogError:
    """The exception for an error code of today's protocol."""
    text = meaning_of(code) + (f"; {detail}" if detail else "")
    kind = _CLASSES.get(code)
    return RecordsError(text, code) if kind is None else kind(text)
