from collections.abc import Callable, Iterator
from typing import Any, Protocol, Self, TypeVar, final

from fastlog.consumer.chunks import AnyChunk
from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import FastlogError
from fastlog.message import AnySpan
from fastlog.zkpaths import PartitionId

_T = TypeVar("_T")

class _Lease(Protocol):
    @property
    def seconds_left(self) -> float: ...

@final
class Place:
    """Where one partition stands, from being acquired or repositioned until it is given up. Safe in any thread.

    ``consumed``: where the next owner would go on; ``expected``: behind the last chunk a stream has taken in hand; both
    -1 until they are known. ``by_hand``: only ``done`` moves ``consumed``. ``log``: when the log was made that these
    are offsets of, in ms since 1970, 0 while that is not known. ``back``: where a jump has led that went back, else -1.
    """

    source: TopicPartition
    consumed: int
    expected: int
    log: int
    back: int
    is_over: bool
    by_hand: bool
    def __init__(
        self, source: TopicPartition, offset: int | None = None, *, by_hand: bool = False, log: int = 0
    ) -> None: ...
    def start(self, offset: int) -> None:
        """Begin at ``offset``, unless it has begun already; also when it is over, so that this can be committed."""

    def begin(self, offset: int, log: int = 0) -> None:
        """Go on at ``offset``, whatever came before; ``log``: when that log was made, in ms since 1970 (0: unknown)."""

    def learn(self, log: int) -> None:
        """The offsets that it has are of the log that was made then."""

    def end(self) -> int:
        """Nothing of it is handed out from now on; returns ``consumed``, which only ``start`` may still change."""

    def done(self, next_offset: int) -> bool:
        """What lies before this offset has been consumed. False when it is over: somebody else may get it again."""

@final
class GroupMessage:
    """One message as a stream of a group gives it; read-only, cheap to make.

    ``value`` is what the decoder made of ``payload``; without a decoder, the payload itself. ``offset`` is where the
    message starts in its partition, ``next_offset`` where to go on once it has been consumed. Messages of one
    compressed set all have the set's offset, and go on at it too, except for the last one.

    Of a topic of record batches a message is a record, with ``key``, ``headers`` and ``timestamp`` (milliseconds since
    1970; None: it was made without one). ``payload`` is None where the record's value is null. ``magic`` is 2 then.
    Messages of Kafka 0.7 have None for all three.
    """

    payload: bytes
    value: Any
    offset: int
    next_offset: int
    magic: int
    attributes: int
    key: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] | None
    place: Place
    """How far its partition was consumed; for ``Stream.done``."""
    def __init__(
        self,
        source: TopicPartition,
        payload: bytes | None,
        offset: int,
        next_offset: int,
        value: Any = None,
        magic: int = 1,
        attributes: int = 0,
        key: bytes | None = None,
        headers: tuple[tuple[bytes, bytes | None], ...] | None = None,
        timestamp: int | None = None,
    ) -> None: ...
    @property
    def timestamp(self) -> int | None:
        """A record's timestamp in milliseconds since 1970; None for a message of Kafka 0.7."""

    @property
    def source(self) -> TopicPartition:
        """Topic and partition in one: the key for ``commit_offsets``."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> PartitionId:
        """Broker and partition; written ``<broker>-<partition>``."""

    @property
    def codec(self) -> int:
        """0, or the number of the codec of a compressed set, which only shallow iteration gives."""

@final
class Batch(list[bytes]):
    """Payloads of one partition, in order: a list that knows where it is from.

    ``offset`` is where its first message starts, ``next_offset`` where to go on once all of it has been consumed.
    """

    offset: int
    next_offset: int
    place: Place
    @property
    def source(self) -> TopicPartition: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> PartitionId: ...

class Delivery:
    """The compiled half of a stream: what has been taken in hand, and handing it out. For one thread at a time.

    Times are in seconds, negative ones without end. What a call has given counts as consumed when the next one begins,
    unless the place is moved by hand.
    """

    timeout: float
    def __init__(self, lease: _Lease, decode: Callable[[bytes], Any] | None = None, timeout: float = -1.0) -> None: ...
    def __iter__(self) -> Messages: ...
    def __next__(self) -> GroupMessage: ...
    def message(self, timeout: float) -> GroupMessage | None:
        """The next message; None at the end of the stream."""

    def poll(self, timeout: float = 0.0) -> Any:
        """The next message if one comes within ``timeout`` seconds, else what ``_silence`` or the time-out says."""

    def batch(self, count: int, size: int, timeout: float) -> Batch | None:
        """Messages of one chunk, at most ``count`` and about ``size`` bytes; None at the end of the stream."""

    def made(self, make: Callable[[Place, AnyChunk, int, int], tuple[_T | None, int]], timeout: float) -> _T | None:
        """What ``make(place, chunk, offset, passed)`` makes of the rest of a chunk, ``passed`` messages left out.

        It also returns where to go on. None for what it made: there was no message; the next chunk is tried.
        """

    def begin_chunk(self, place: Place, chunk: AnyChunk, start: int, end: int) -> None:
        """Take a chunk in hand, the part between two offsets that are boundaries; nothing when its place is over."""

    # The half that is not compiled:
    def _next_chunk(self, timeout: float) -> bool:
        """Call ``begin_chunk``, or return False at the end of the stream. Raises ``ConsumerTimeout``."""

    def _wait_for_lease(self, timeout: float) -> bool:
        """Return when the lease holds; False at the end of the stream. Raises ``ConsumerTimeout``."""

    def _cut(self, chunk: AnyChunk, offset: int) -> Iterator[AnySpan]:
        """The spans of a chunk from an offset on."""

    def _stopped(self, place: Place, error: FastlogError) -> None:
        """The chunk in hand was given up, since it is damaged from here on. The error is raised next."""

    def _silence(self) -> Any:
        """Why there is no message now: what ``poll`` returns in place of one."""

@final
class Messages:
    """An iteration over a stream. All of a stream see the same messages, each once, and the same end."""

    def __init__(self, stream: Delivery) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> GroupMessage: ...
