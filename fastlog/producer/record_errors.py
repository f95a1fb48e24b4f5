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
from fastlog.kafka_codes import Code

PASSING = frozenset(
    (
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REQUEST_TIMED_OUT,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Code.KAFKA_STORAGE_ERROR,
        Code.FENCED_LEADER_EPOCH,
    )
)
"""Errors that go by: the broker starts, another one leads, copies or room on the disk are missing."""
LOST = frozenset((Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.INVALID_PRODUCER_EPOCH, Code.UNKNOWN_PRODUCER_ID))
"""Errors of a batch that does not follow what the broker has of the producer: it is not stored, nor is what follows."""
_CLASSES: dict[int, type[FastlogError]] = {
    Code.CORRUPT_MESSAGE: InvalidMessageError,
    Code.UNKNOWN_TOPIC_OR_PARTITION: WrongPartitionError,
    Code.MESSAGE_TOO_LARGE: MessageTooLargeError,
    Code.INVALID_TOPIC_EXCEPTION: InvalidTopicError,
    Code.RECORD_LIST_TOO_LARGE: MessageTooLargeError,
    Code.TOPIC_AUTHORIZATION_FAILED: NotAuthorizedError,
    Code.CLUSTER_AUTHORIZATION_FAILED: NotAuthorizedError,
    Code.INVALID_TIMESTAMP: InvalidMessageError,
    Code.KAFKA_STORAGE_ERROR: StorageError,
    Code.INVALID_RECORD: InvalidMessageError,
}


def error_of(code: int, detail: str = "") -> FastlogError:
    """The exception for an error code of today's protocol."""
    text = meaning_of(code) + (f"; {detail}" if detail else "")
    kind = _CLASSES.get(code)
    return RecordsError(text, code) if kind is None else kind(text)
