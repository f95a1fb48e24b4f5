"""Every exception fastlog raises, and the one table between classes and the wire's error codes.

Source of the codes: Kafka 0.7 (-1 … 4); the codes from 100 up belong to fastlog's own requests (``docs/protocol.md``).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


class FastlogError(Exception):
    """The root: whatever fastlog raises on purpose is one of these."""


class ConfigError(FastlogError):
    """A setting is unknown, malformed, out of range, or contradicts another one."""


class LogError(FastlogError):
    """Something about the files of a log; says path and position where it knows them."""

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        position: int | None = None,
        found: object = None,
        expected: object = None,
    ) -> None:
        parts = [message]
        if path is not None:
            parts.append(f"path={path}")
        if position is not None:
            parts.append(f"position={position}")
        if found is not None:
            parts.append(f"found={found!r}")
        if expected is not None:
            parts.append(f"expected={expected!r}")
        super().__init__(" ".join(parts))
        self.path = path
        self.position = position
        self.found = found
        self.expected = expected


class CorruptLogError(LogError):
    """Stored bytes are not what was written."""


class RecoveryError(LogError):
    """A partition cannot be brought back without a person's decision; nothing was cut."""


class ProtocolError(FastlogError):
    """Bytes from the other side of a connection break the protocol."""


class InvalidRequestError(ProtocolError):
    """A request frame contradicts itself or the limits."""


class UnknownMagicError(ProtocolError):
    """A message has a magic byte other than 0 and 1."""


class UnknownCodecError(ProtocolError):
    """A message's attributes name no known codec."""


class BrokerError(FastlogError):
    """The broker answered with an error code; ``code`` is the number on the wire."""

    code: int = -1


class UnknownServerError(BrokerError):
    code = -1


class OffsetOutOfRangeError(BrokerError):
    """The offset lies below the log start or above the high watermark."""

    code = 1


class InvalidMessageError(BrokerError):
    """A message is damaged: its checksum, size, magic, codec or compressed payload is wrong."""

    code = 2


class WrongPartitionError(BrokerError):
    """The partition does not exist on this broker."""

    code = 3


class InvalidFetchSizeError(BrokerError):
    """The fetch size is negative, or the first message is larger than it."""

    code = 4


class InvalidTopicError(BrokerError):
    """The topic's name is not allowed."""

    code = 100


class PartitionOfflineError(BrokerError):
    """The partition takes no appends: a flush or write failed, or its files are damaged."""

    code = 101


class MessageTooLargeError(BrokerError):
    """A message's payload exceeds ``max.message.size``."""

    code = 102


class StorageError(BrokerError):
    """The broker could not write (for example a full disk); nothing of the request was stored."""

    code = 103


class UnsupportedVersionError(BrokerError):
    """The broker does not know this version of the request."""

    code = 104


class UnsupportedFeatureError(BrokerError):
    """The request uses a field that this version of the broker refuses (producer id, epoch, sequence)."""

    code = 105


class NotAuthorizedError(BrokerError):
    """The connection's principal may not do this."""

    code = 106


class MalformedRequestError(BrokerError):
    """The request's fields contradict each other."""

    code = 107


class TransportError(FastlogError):
    """A connection could not be made, broke, or timed out."""


class CoordinationError(FastlogError):
    """ZooKeeper cannot be reached, refuses, or holds something that makes no sense; names servers and path."""


class InflateLimitError(InvalidMessageError):
    """A compressed set is larger, deeper, or has more messages than the limits allow."""


class AuditError(FastlogError):
    """What an audit topic holds makes no sense, or an audit cannot be made from it."""


class EnvelopeError(FastlogError):
    """A payload that should begin with an envelope does not, or ends inside it."""


class QueueFullError(FastlogError):
    """A producer's queue has no room, and the producer was told not to wait, or not that long."""


class DeliveryError(FastlogError):
    """Messages a producer had taken were not delivered: ``messages`` says how many, ``__cause__`` why the first."""

    def __init__(self, message: str, messages: int = 0) -> None:
        super().__init__(message)
        self.messages = messages


class ConsumerTimeout(FastlogError):
    """No message came within the time the consumer was told to wait; ``reason`` is why, where it is known."""

    def __init__(self, message: str = "", reason: Any = None) -> None:
        super().__init__(message)
        self.reason = reason


class DecodeError(FastlogError):
    """A decoder failed: ``message`` is what it could not decode, and counts as handed out; ``__cause__`` says why."""

    def __init__(self, text: str, message: Any = None) -> None:
        super().__init__(text)
        self.message = message


class OwnershipLostError(FastlogError):
    """Partitions are not owned any more, or not by who asked; ``partitions`` are those."""

    def __init__(self, message: str, partitions: Collection[Any] = ()) -> None:
        super().__init__(message)
        self.partitions = tuple(partitions)


class RebalanceFailedError(FastlogError):
    """The group could not agree on who reads what."""


class ClosedError(FastlogError):
    """The object was closed before this call."""


class ForkedError(FastlogError):
    """The object belongs to the parent process; make a new one after fork."""


class MissingCodecError(FastlogError):
    """The library for a compression codec is not installed."""


class DataLossError(FastlogError):
    """Bytes that were still to be read are not there any more; names the partition and the range."""


class RangeIncompleteError(FastlogError):
    """A range of a partition could not be read to its end; names the partition, the range and how far it went."""


class TableConflictError(FastlogError):
    """Another writer has changed the table in a way that this change does not fit any more."""


class TableWriteError(FastlogError):
    """A table could not be written to, as on a full disk; nothing of the change is in it."""


class MissingDependencyError(FastlogError, ImportError):
    """A library that only this call needs is not installed; the message says what to install."""


CLASS_BY_CODE: dict[int, type[BrokerError]] = {
    cls.code: cls
    for cls in (
        UnknownServerError,
        OffsetOutOfRangeError,
        InvalidMessageError,
        WrongPartitionError,
        InvalidFetchSizeError,
        InvalidTopicError,
        PartitionOfflineError,
        MessageTooLargeError,
        StorageError,
        UnsupportedVersionError,
        UnsupportedFeatureError,
        NotAuthorizedError,
        MalformedRequestError,
    )
}


def error_for(code: int, detail: str = "") -> BrokerError:
    """Return the exception for a non-zero wire code; an unknown code gives ``UnknownServerError`` that says it."""
    cls = CLASS_BY_CODE.get(code)
    if cls is None:
        error: BrokerError = UnknownServerError(f"error code {code}" + (f": {detail}" if detail else ""))
    else:
        first_line = (cls.__doc__ or "the broker reports an unknown error").strip().splitlines()[0]
        error = cls(detail or first_line)
    error.code = code
    return error
