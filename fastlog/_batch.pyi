from collections.abc import Iterable
from typing import Any, Self, final

from typing_extensions import Buffer

from fastlog._record_batch import RecordSpan

_Array = Any  # whatever gives a buffer of the right type; numpy's arrays do not tell mypy that they do
_Span = tuple[memoryview, int, int, int, bool] | RecordSpan  # fastlog.message.AnySpan

@final
class ConsumedMessage:
    """One message as a consumer gets it; read-only, cheap to make.

    ``offset`` is where the message starts in its partition, ``next_offset`` where to go on once it has been consumed
    (what Kafka 0.7 calls the offset of ``MessageAndOffset``). Messages of one wrapper all have the wrapper's offset,
    and go on at it too, except for the last one: who stops in the middle gets the whole wrapper again.

    Of a topic of record batches a message is a record, with ``key``, ``headers`` and ``timestamp`` (milliseconds since
    1970; None: it was made without one). ``payload`` is None where the record's value is null. ``magic`` is 2 then.
    Messages of Kafka 0.7 have None for all three.
    """

    payload: bytes
    offset: int
    next_offset: int
    magic: int
    attributes: int
    key: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] | None
    def __init__(
        self,
        payload: bytes | None,
        offset: int,
        next_offset: int,
        magic: int = 1,
        attributes: int = 0,
        key: bytes | None = None,
        headers: tuple[tuple[bytes, bytes | None], ...] | None = None,
        timestamp: int | None = None,
    ) -> None: ...
    @property
    def timestamp(self) -> int | None:
        """Of a record, in milliseconds since 1970."""

    @property
    def codec(self) -> int:
        """0, or the number of the codec of a wrapper, which only shallow iteration yields."""

class SpanCursor:
    """Walks the entries of spans (``fastlog.message.Span``) or spans of records, one span in hand at a time."""

    def __init__(self, spans: Iterable[_Span]) -> None: ...
    def close(self) -> None:
        """Let the span in hand go, and close the source where it can be closed; nothing comes any more."""

@final
class MessageStream(SpanCursor):
    """The messages of spans, each made when its turn comes; wrappers in a span are handed out as they are.

    Raises what the source raises, and ``BufferError`` where a span holds fewer entries than it says.
    """

    def __iter__(self) -> Self: ...
    def __next__(self) -> ConsumedMessage: ...

@final
class PayloadStream(SpanCursor):
    """The payloads of spans, one at a time or in lists. Raises as ``MessageStream``."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> bytes: ...
    def take(self, count: int, size: int) -> list[bytes]:
        """The next payloads, at most ``count`` and about ``size`` bytes of entries; an empty list at the end.

        What comes before an error of the source is handed out first; the next call raises it.
        """

def index(
    entries: Buffer,
    offset: int,
    next_offset: int,
    inner: bool,
    shift: int,
    first: int,
    count: int,
    places: _Array,
    lengths: _Array,
) -> None:
    """Write where ``count`` checked entries and their payloads lie into two arrays, from column ``first`` on.

    ``places`` (int64) has three rows: offsets, next offsets, and the starts of payloads, which count from ``shift``;
    ``lengths`` (int32) has the lengths of payloads. The GIL is released.

    Raises:
        BufferError: the span holds fewer entries.
        ValueError: the arrays have not the room, differ in length, or are of another type.
    """

def gather(buffer: _Array, starts: _Array, lengths: _Array, ends: _Array, out: _Array) -> None:
    """Copy the payloads at ``starts`` (int64) and ``lengths`` (int32) of ``buffer`` behind one another into ``out``.

    ``ends`` (int32, one item more) gets 0 and then where each ends: what Arrow calls the offsets of a binary array.

    Raises:
        ValueError: something lies outside, or does not fit.
    """
