from typing import Any, final

from typing_extensions import Buffer

_Array = Any  # whatever gives a buffer of the right type; numpy's arrays do not tell mypy that they do

@final
class ConsumedMessage:
    """One message as a consumer gets it; read-only, cheap to make.

    ``offset`` is where the message starts in its partition, ``next_offset`` where to go on once it has been consumed
    (what Kafka 0.7 calls the offset of ``MessageAndOffset``). Messages of one wrapper all have the wrapper's offset,
    and go on at it too, except for the last one: who stops in the middle gets the whole wrapper again.
    """

    payload: bytes
    offset: int
    next_offset: int
    magic: int
    attributes: int
    def __init__(self, payload: bytes, offset: int, next_offset: int, magic: int = 1, attributes: int = 0) -> None: ...
    @property
    def codec(self) -> int:
        """0, or the number of the codec of a wrapper, which only shallow iteration yields."""

def payloads(entries: Buffer, count: int) -> list[bytes]:
    """The payloads of the first ``count`` of these checked entries.

    Raises:
        BufferError: the span holds fewer.
    """

def messages(entries: Buffer, count: int, offset: int, next_offset: int, inner: bool) -> list[ConsumedMessage]:
    """The first ``count`` of these checked entries as messages, wrappers as they are; offsets as the module says.

    Raises:
        BufferError: the span holds fewer.
    """

def index(
    entries: Buffer,
    offset: int,
    next_offset: int,
    inner: bool,
    shift: int,
    offsets: _Array,
    next_offsets: _Array,
    starts: _Array,
    lengths: _Array,
) -> None:
    """Write where these checked entries and their payloads lie into int64, int64, int64 and int32 arrays.

    As many as the arrays have room for. ``starts`` count from ``shift``. The GIL is released.

    Raises:
        BufferError: the span holds fewer entries.
        ValueError: the arrays differ in length, or are of another type.
    """

def gather(buffer: _Array, starts: _Array, lengths: _Array, ends: _Array, out: _Array) -> None:
    """Copy the payloads at ``starts`` (int64) and ``lengths`` (int32) of ``buffer`` behind one another into ``out``.

    ``ends`` (int32, one item more) gets 0 and then where each ends: what Arrow calls the offsets of a binary array.

    Raises:
        ValueError: something lies outside, or does not fit.
    """
