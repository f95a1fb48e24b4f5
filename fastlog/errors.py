"""Every exception fastlog raises, and the one table between classes and the wire's error codes.

Source of the codes: Kafka 0.7 (-1 … 4); the codes from 100 up belong to fastlog's own requests (``docs/protocol.md``).
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Self

from fastlog.escaping import printable


class FastlogError(Exception):
    """The root: whatever fastlog raises on purpose is one of these.

    What it is about is in attributes where it is known, and in the text; None where it is not, or there is none.
    """

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    broker: str | None = None
    """The broker's address, or its id where only that is known."""
    path: str | None = None
    """The file."""
    position: int | None = None
    """The byte in it."""
    what_to_do: str = ""
    """What a person does about it: the last line of a text that would else say nothing about that."""
    _reason: Any = None

    @property
    def reason(self) -> Any:
        """What is wrong, in one line without the place."""
        return str(self).partition("\n")[0] if self._reason is None else self._reason

    @reason.setter
    def reason(self, reason: Any) -> None:
        self._reason = reason

    def at(
        self,
        *,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        broker: object = None,
        path: str | None = None,
        position: int | None = None,
    ) -> Self:
        """A copy that knows what it is about, before its text and in its attributes; what it knew already stays.

        It also says ``what_to_do``, unless its text has more than one line already.
        """
        given = {
            "topic": topic,
            "partition": partition if partition is None or partition >= 0 else None,
            "offset": offset,
            "broker": None if broker is None else str(broker),
            "path": path,
            "position": position,
        }
        new = {name: value for name, value in given.items() if value is not None and getattr(self, name) is None}
        text = str(self)
        if self.what_to_do and "\n" not in text:
            text += "\n" + self.what_to_do
        made = copy.copy(self)
        made.__cause__, made.__traceback__ = self.__cause__, self.__traceback__
        vars(made).update(new, _reason=self.reason)
        made.args = (f"{_place(new)}: {text}" if new else text, *self.args[1:])
        return made


def _place(parts: Mapping[str, str | int]) -> str:
    """Where something is, in words; names that a terminal would not show as they are, escaped."""
    return ", ".join(f"{name} {printable(str(part))}" for name, part in parts.items())


class ConfigError(FastlogError):
    """A setting, or an argument of a call, is unknown, malformed, out of range, or contradicts another one."""


class ArgumentError(ConfigError, TypeError, ValueError):
    """An argument of a call has a type or a value that it cannot have; both a TypeError and a ValueError."""


class StateError(FastlogError, RuntimeError):
    """The call does not fit the state of the object, or the thread that makes it."""


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


class PartitionGoneError(LogError):
    """The partition has been deleted."""


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
    """The broker reports an unknown error."""

    code = -1
    what_to_do = "the broker's log says more"


class OffsetOutOfRangeError(BrokerError):
    """The offset lies below the log start or above the high watermark."""

    code = 1
    what_to_do = (
        "begin at EARLIEST or LATEST, or at an offset between the log's start and end (fastlog topics describe)"
    )


class InvalidMessageError(BrokerError):
    """A message is damaged: its checksum, size, magic, codec or compressed payload is wrong."""

    code = 2
    what_to_do = "fastlog fsck shows what the log directory holds there; reading can go on behind it"


class WrongPartitionError(BrokerError):
    """The partition does not exist on this broker."""

    code = 3
    what_to_do = "fastlog topics describe shows the partitions that there are"


class InvalidFetchSizeError(BrokerError):
    """The fetch size is negative, or the first message is larger than it."""

    code = 4
    what_to_do = "ask for more bytes at once"


class InvalidTopicError(BrokerError):
    """The topic's name is not allowed."""

    code = 100
    what_to_do = "choose a name of letters, digits, dot, dash and underscore"


class PartitionOfflineError(BrokerError):
    """The partition takes no appends: a flush or write failed, or its files are damaged."""

    code = 101
    what_to_do = (
        "the broker's log and its /health name the cause; it takes appends again once the disk does, or"
        " after fastlog fsck"
    )


class MessageTooLargeError(BrokerError):
    """A message's payload exceeds ``max.message.size``."""

    code = 102
    what_to_do = "send smaller messages, or raise max.message.size of the broker and of its clients"


class StorageError(BrokerError):
    """The broker could not write (for example a full disk); nothing of the request was stored."""

    code = 103
    what_to_do = "make room on the broker's disk; its log says what failed"


class UnsupportedVersionError(BrokerError):
    """The broker does not know this version of the request."""

    code = 104
    what_to_do = "the broker is older or newer than this client: use the same fastlog on both sides"


class UnsupportedFeatureError(BrokerError):
    """The request uses a field that this version of the broker refuses (producer id, epoch, sequence)."""

    code = 105
    what_to_do = "use a broker that offers it, or do without"


class NotAuthorizedError(BrokerError):
    """The broker does not let this connection's principal do that, or its settings let nobody."""

    code = 106
    what_to_do = "have the broker's administrator allow it; create.topic.requests=true lets clients create topics"


class MalformedRequestError(BrokerError):
    """The request's fields contradict each other."""

    code = 107
    what_to_do = "this client and the broker do not fit together: use the same fastlog on both sides"


class TransportError(FastlogError):
    """A connection could not be made, broke, or timed out."""


class CoordinationError(FastlogError):
    """ZooKeeper cannot be reached, refuses, or holds a malformed node; names servers and path."""


class GroupCoordinatorError(CoordinationError):
    """The broker that keeps a group cannot be reached, or refuses; names its addresses, or Kafka's error code."""


class DecompressionLimitError(InvalidMessageError):
    """A compressed set is larger, deeper, or has more messages than the limits allow."""


class UnfitSetError(FastlogError):
    """A compressed set of 0.7 that today's offsets cannot tell: it holds more messages than it has bytes."""


class AuditError(FastlogError):
    """An audit topic has malformed messages, or an audit cannot be made from it."""


class EnvelopeError(FastlogError):
    """A payload that should begin with an envelope does not, or ends inside it."""


class QueueFullError(FastlogError):
    """A producer's queue has no room, and its settings allow no wait, or not that long a one."""


class DeliveryError(FastlogError):
    """Messages a producer had taken were not delivered: ``messages`` says how many, ``__cause__`` why the first.

    What it is about, and the reason, are those of the first.
    """

    def __init__(self, message: str, messages: int = 0, first: FastlogError | None = None) -> None:
        super().__init__(message)
        self.messages = messages
        if first is not None:
            self.topic, self.partition, self.broker, self.reason = (
                first.topic,
                first.partition,
                first.broker,
                first.reason,
            )


class ConsumerTimeout(FastlogError):
    """No message came within the time-out; ``reason`` is why, where it is known, or None."""

    reason: Any = None

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


class ClosedError(FastlogError):
    """The object was closed before this call."""


class ForkedError(FastlogError):
    """The object belongs to the parent process; make a new one after fork."""


class MissingCodecError(FastlogError):
    """The library for a compression codec is not installed."""


class BrokerMissingError(FastlogError):
    """A broker that has something of what is to be read is not there; names it and its partitions."""


class DataLossError(FastlogError):
    """Bytes that were still to be read are not there any more."""


class RangeIncompleteError(FastlogError):
    """A range of a partition could not be read to its end; names the partition, the range and how far it went."""


class TableConflictError(FastlogError):
    """Another writer has changed the table in a way that this change does not fit any more."""


class TableWriteError(FastlogError):
    """A table could not be written to, as on a full disk; nothing of the change is in it."""


class TableUnavailableError(FastlogError):
    """Where a table is kept does not answer, or refuses; whether a change is in it, the table says then."""


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


def error_for(
    code: int,
    detail: str = "",
    *,
    topic: str | None = None,
    partition: int | None = None,
    offset: int | None = None,
    broker: object = None,
) -> BrokerError:
    """Return the exception for a non-zero wire code; an unknown code gives ``UnknownServerError`` that says it.

    Its text is the place, as far as it is given, what the code means with ``detail`` behind, and what to do about it.
    """
    cls = CLASS_BY_CODE.get(code, UnknownServerError)
    reason = meaning_of(code) + (f"; {detail}" if detail else "")
    error = cls(reason).at(topic=topic, partition=partition, offset=offset, broker=broker)
    error.code = code
    return error


if not TYPE_CHECKING:  # a name that is misspelt is to be found by type checkers

    def __getattr__(name: str) -> Any:
        """The former name of a class, for one version."""
        if name == "InflateLimitError":
            import warnings

            text = "fastlog.errors.InflateLimitError is called DecompressionLimitError now"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            return DecompressionLimitError
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def meaning_of(code: int) -> str:
    """What a non-zero wire code means, in a line that begins like the middle of a sentence."""
    cls = CLASS_BY_CODE.get(code)
    if cls is None:
        return f"error code {code}"
    meaning = (cls.__doc__ or "").splitlines()[0].rstrip(".")
    return meaning[0].lower() + meaning[1:]
