"""Messages, wrapper messages, and walks over message sets: shallow, deep, and the broker's deep count.

A wrapper is one message whose payload is a compressed message set, to any depth. A shallow walk yields wrappers as they
are; a deep one opens them. ``docs/format.md`` describes the bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fastlog import _segment, codecs
from fastlog._deep import DeepCount
from fastlog._record_batch import RecordSpan
from fastlog._segment import (
    ENTRY_HEADER_BYTES,
    LEAST_ENTRY_BYTES,
    LENGTH_BYTES,
    SCAN_CODEC,
    SCAN_CRC,
    SCAN_MAGIC,
    SCAN_OK,
    SCAN_SIZE,
    SCAN_TAIL,
    ScanResult,
)
from fastlog.errors import (
    BrokerError,
    DecompressionLimitError,
    InvalidFetchSizeError,
    InvalidMessageError,
    UnknownCodecError,
    UnknownMagicError,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

HEADER_BYTES = {0: LEAST_ENTRY_BYTES, 1: ENTRY_HEADER_BYTES}  # of an entry with this magic, its length field included
MAX_DEPTH = 100

_REASONS = {
    SCAN_SIZE: "a length that is negative or too small",
    SCAN_MAGIC: "an unknown magic byte",
    SCAN_CODEC: "attributes with an unknown codec or a reserved bit",
    SCAN_CRC: "a wrong checksum",
}


@dataclass(frozen=True, slots=True)
class Message:
    """One message: the payload as stored (compressed in a wrapper), the format version, and the attributes byte."""

    payload: bytes
    magic: int = 1
    attributes: int = 0

    @property
    def codec(self) -> int:
        """The number of the codec the payload is compressed with: 0 for a plain message, else this is a wrapper."""
        return self.attributes & 3

    @property
    def size_bytes(self) -> int:
        """The bytes of the whole entry, its length field included: how far the offset moves over it."""
        return HEADER_BYTES[self.magic] + len(self.payload)

    def encode(self) -> bytes:
        """Return the entry's bytes.

        Raises:
            UnknownMagicError: the magic is not 0 or 1.
            UnknownCodecError: the attributes are not 0, 1 or 2, or not 0 with magic 0.
        """
        if self.magic not in HEADER_BYTES:
            raise UnknownMagicError(f"magic {self.magic} is not 0 or 1")
        if self.attributes not in codecs.CODEC_NAMES or (self.magic == 0 and self.attributes):
            raise UnknownCodecError(f"attributes {self.attributes} are not possible with magic {self.magic}")
        return _segment.pack([self.payload], self.attributes, self.magic)


class MessageAndOffset(NamedTuple):
    """A message and the offset to fetch from once it has been consumed."""

    message: Message
    offset: int


@dataclass(frozen=True, slots=True)
class DeepLimits:
    """How much may come out of compressed sets, so that a few hostile bytes cannot use up memory or time.

    A wrapper at the top has depth 1. Messages are counted where they came out of a wrapper, inner wrappers included;
    those that were sent uncompressed are bounded by the size of the request.
    """

    max_inflated_bytes: int = 64 * 1024 * 1024
    max_depth: int = 8
    max_messages: int = 10_000_000

    def __post_init__(self) -> None:
        if self.max_inflated_bytes < 0 or self.max_messages < 0 or not 0 <= self.max_depth <= MAX_DEPTH:
            raise ValueError(f"{self} has a negative limit or a depth above {MAX_DEPTH}")


DEFAULT_LIMITS = DeepLimits()


class Span(NamedTuple):
    """Whole, checked entries in one piece, no wrapper among them unless they were asked for.

    At the top each entry has its own offset, ``offset`` that of the first, ``next_offset`` behind the last. Inside a
    wrapper (``inner``) all have the wrapper's; the last entry goes on at ``next_offset``, which is that of the wrapper
    too until its last span.
    """

    entries: memoryview
    count: int  # type: ignore[assignment]  # tuple.count is of no use here
    offset: int
    next_offset: int
    inner: bool


AnySpan = Span | RecordSpan
"""What consumers hand out: messages of Kafka 0.7, or records of a batch."""


def encode_set(payloads: Sequence[bytes], codec: int = 0, magic: int = 1) -> bytes:
    """Return the payloads as a message set: one wrapper with all of them when ``codec`` is not 0.

    ``magic`` is that of the messages; a wrapper itself always has magic 1. No payloads give no bytes, and no wrapper.

    Raises:
        UnknownCodecError, MissingCodecError: as for ``codecs.compress``.
        ValueError: ``magic`` is not 0 or 1.
    """
    plain = _segment.pack(payloads, 0, magic)
    if codec == codecs.NONE or not plain:
        return plain
    return _segment.pack([codecs.compress(codec, plain)], codec, 1)


def shallow(buffer: Buffer, base_offset: int = 0) -> Iterator[MessageAndOffset]:
    """Yield each whole top-level message with the offset after it; wrappers stay closed.

    The bytes may end inside a message, as a fetch does: that one is left out. ``base_offset`` is the offset of the
    first byte.

    Raises:
        InvalidFetchSizeError: already the first message is longer than the bytes: the fetch was too small for it.
        InvalidMessageError: on reaching a message with a bad length, magic, attributes or checksum.

    Source: Kafka 0.7.2 (ByteBufferMessageSet), which raises InvalidMessageSizeException for the first.
    """
    result = _segment.scan(buffer)
    for _, next_offset, magic, attributes, payload in _segment.entries(buffer, base_offset):
        yield MessageAndOffset(Message(payload, magic, attributes), next_offset)
    raise_if_stopped(buffer, result, base_offset)


def deep(buffer: Buffer, base_offset: int = 0, limits: DeepLimits = DEFAULT_LIMITS) -> Iterator[MessageAndOffset]:
    """Yield each message with the offset to go on from, opening wrappers to any depth within the limits.

    All messages of a wrapper but the last carry the wrapper's own offset, the last the offset after the wrapper: who
    stops in the middle gets the whole wrapper again, and never loses a part. A wrapper with nothing in it is passed
    over. A set inside a wrapper may end inside a message as at the top, and that message is left out. The limits are
    for each top-level wrapper: the bytes of a fetch may hold many sets that were within them one by one. Memory holds
    one slice of decompressed bytes for each depth, not the whole set.

    Raises:
        InvalidFetchSizeError, InvalidMessageError: as for ``shallow``, and for what is inside wrappers.
        DecompressionLimitError: a wrapper goes over a limit.
        MissingCodecError: the library for a codec is not installed.

    Source: Kafka 0.7.2 (ByteBufferMessageSet); librdkafka reports the same offsets.
    """
    result = _segment.scan(buffer)
    for offset, next_offset, magic, attributes, payload in _segment.entries(buffer, base_offset):
        if not attributes:
            yield MessageAndOffset(Message(payload, magic), next_offset)
            continue
        last: Message | None = None
        try:
            for message in _inner_messages(attributes, payload, _Budget(limits), 1):
                if last is not None:
                    yield MessageAndOffset(last, offset)
                last = message
        except (InvalidMessageError, InvalidFetchSizeError) as error:
            raise _in_wrapper(error, offset) from error
        if last is not None:
            yield MessageAndOffset(last, next_offset)
    raise_if_stopped(buffer, result, base_offset)


def spans(
    buffer: Buffer, base_offset: int = 0, limits: DeepLimits = DEFAULT_LIMITS, result: ScanResult | None = None
) -> Iterator[Span]:
    """Yield what ``deep`` yields, in pieces of many messages each and without an object for any of them.

    ``result`` saves the scan of ``buffer`` where the caller has done it. What is before damage is yielded first.
    Raises as ``deep``.
    """
    result = result or _segment.scan(buffer)
    view = memoryview(buffer).cast("B")[: result.valid_bytes]
    if not result.wrappers:
        if result.count:
            yield Span(view, result.count, base_offset, base_offset + result.valid_bytes, False)
        raise_if_stopped(buffer, result, base_offset)
        return
    position = 0
    while (found := _segment.find_wrapper(view, position)) is not None:
        end, start, codec = found
        entry_start = start - HEADER_BYTES[1]
        if entry_start > position:
            yield _plain_span(view[position:entry_start], base_offset + position)
        yield from _wrapper_spans(codec, view[start:end], base_offset + entry_start, base_offset + end, limits)
        position = end
    if position < result.valid_bytes:
        yield _plain_span(view[position:], base_offset + position)
    raise_if_stopped(buffer, result, base_offset)


def shallow_spans(buffer: Buffer, base_offset: int = 0, result: ScanResult | None = None) -> Iterator[Span]:
    """Yield what ``shallow`` yields as one span, in which wrappers stay closed. Raises as ``shallow``."""
    result = result or _segment.scan(buffer)
    if result.count:
        view = memoryview(buffer).cast("B")[: result.valid_bytes]
        yield Span(view, result.count, base_offset, base_offset + result.valid_bytes, False)
    raise_if_stopped(buffer, result, base_offset)


def count_deep(buffer: Buffer, limits: DeepLimits = DEFAULT_LIMITS) -> int:
    """Return the number of messages in a set, those inside wrappers counted and the wrappers not, checking each.

    A message cut off at the end of the set is not counted, unless it is the first: that is damage. Inside a wrapper any
    cut is damage, since nothing cuts a compressed set but a fault of its writer. The limits are over the whole set.
    Costs no Python object for a plain message, and memory for one slice of decompressed bytes at each depth.

    Raises:
        InvalidMessageError: a message at any depth is damaged, or a compressed payload is.
        DecompressionLimitError: the wrappers together go over a limit.
        MissingCodecError: the library for a codec is not installed.
    """
    counting = deep_count(buffer, limits)
    counting.step(sys.maxsize, sys.maxsize)
    return counting.count


def deep_count(buffer: Buffer, limits: DeepLimits = DEFAULT_LIMITS, *, bytes_per_piece: int = 0) -> DeepCount:
    """Begin to count as ``count_deep`` does, for whoever does it step by step; raises what is wrong at the top.

    ``bytes_per_piece`` above 0 bounds the work by what was sent: besides the first ``codecs.FREE_PIECES``, so many
    bytes of the set admit one gzip member or snappy block, those of wrappers inside wrappers included.
    """
    result = _segment.scan(buffer)
    if result.status not in (SCAN_OK, SCAN_TAIL):
        raise _damaged(result, 0)
    view = memoryview(buffer).cast("B")
    if result.status == SCAN_TAIL and not result.valid_bytes and len(view) >= LENGTH_BYTES:
        raise InvalidMessageError("the first message is longer than the set")
    budget = _Budget(limits)
    if bytes_per_piece:
        budget.pieces_left = min(budget.pieces_left, codecs.FREE_PIECES + len(view) // bytes_per_piece)
    plain = result.count - result.wrappers
    return DeepCount(view, plain, result.valid_bytes if result.wrappers else 0, budget, _damaged_inside)


class _Budget(codecs.DecompressionBudget):
    """The limits of one walk, used up across all its wrappers."""

    __slots__ = ("max_depth", "max_messages", "messages_left")

    def __init__(self, limits: DeepLimits) -> None:
        super().__init__(limits.max_inflated_bytes)
        self.max_depth = limits.max_depth
        self.max_messages = self.messages_left = limits.max_messages

    def enter(self, depth: int) -> None:
        if depth > self.max_depth:
            raise DecompressionLimitError(f"compressed sets are nested more than {self.max_depth} deep")

    def take_messages(self, count: int) -> None:
        self.messages_left -= count
        if self.messages_left < 0:
            raise DecompressionLimitError(f"the compressed sets hold more than {self.max_messages} messages")


def _inner_messages(codec: int, data: Buffer, budget: _Budget, depth: int) -> Iterator[Message]:
    """The plain messages inside a wrapper at this depth, wrappers inside it opened as well."""
    budget.enter(depth)
    for span, _ in _decompressed_spans(codec, data, budget):
        for _, _, magic, attributes, payload in _segment.entries(span):
            if attributes:
                yield from _inner_messages(attributes, payload, budget, depth + 1)
            else:
                yield Message(payload, magic)


def _plain_span(entries: memoryview, offset: int) -> Span:
    return Span(entries, _segment.scan(entries).count, offset, offset + len(entries), False)


def _wrapper_spans(codec: int, data: memoryview, offset: int, next_offset: int, limits: DeepLimits) -> Iterator[Span]:
    """The spans of one top-level wrapper; each is held back until it is known whether it is the last."""
    held: tuple[memoryview, int] | None = None
    try:
        for piece in _inner_pieces(codec, data, _Budget(limits), 1):
            if held is not None:
                yield Span(*held, offset, offset, True)
            held = piece
    except (InvalidMessageError, InvalidFetchSizeError) as error:
        if held is not None:
            yield Span(*held, offset, offset, True)
        raise _in_wrapper(error, offset) from error
    if held is not None:
        yield Span(*held, offset, next_offset, True)


def _inner_pieces(codec: int, data: Buffer, budget: _Budget, depth: int) -> Iterator[tuple[memoryview, int]]:
    """The plain entries inside a wrapper at this depth and how many they are, wrappers inside it opened as well."""
    budget.enter(depth)
    for span, result in _decompressed_spans(codec, data, budget):
        if not result.wrappers:
            yield span, result.count
            continue
        position = 0
        while (found := _segment.find_wrapper(span, position)) is not None:
            end, start, inner_codec = found
            entry_start = start - HEADER_BYTES[1]
            if entry_start > position:
                yield span[position:entry_start], _segment.scan(span[position:entry_start]).count
            yield from _inner_pieces(inner_codec, span[start:end], budget, depth + 1)
            position = end
        if position < len(span):
            yield span[position:], _segment.scan(span[position:]).count


def _decompressed_spans(codec: int, data: Buffer, budget: _Budget) -> Iterator[tuple[memoryview, ScanResult]]:
    """The set inside a wrapper as spans of whole, checked entries, each as soon as its bytes are decompressed."""
    parts: list[bytes] = []  # joined once the next entry is complete, so that a long one is not copied again and again
    held_bytes = position = 0
    needed_bytes = LENGTH_BYTES
    for part in codecs.decompress_slices(codec, data, budget):
        parts.append(part)
        held_bytes += len(part)
        if held_bytes < needed_bytes:
            continue
        span = parts[0] if len(parts) == 1 else b"".join(parts)
        result = _segment.scan(span)
        budget.take_messages(result.count)
        if result.valid_bytes:
            yield memoryview(span)[: result.valid_bytes], result
        if result.status not in (SCAN_OK, SCAN_TAIL):
            raise _damaged(result, position)
        position += result.valid_bytes
        rest = span[result.valid_bytes :]
        held_bytes = len(rest)
        parts = [rest] if rest else []
        needed_bytes = LENGTH_BYTES
        if held_bytes >= LENGTH_BYTES:
            needed_bytes += int.from_bytes(rest[:LENGTH_BYTES], "big")
    if held_bytes >= LENGTH_BYTES and not position:
        raise InvalidFetchSizeError("the first message of the compressed set is longer than the set")


def raise_if_stopped(buffer: Buffer, result: ScanResult, base_offset: int) -> None:
    """Raise when a walk did not stop where 0.7 stops quietly."""
    if result.status == SCAN_OK:
        return
    if result.status != SCAN_TAIL:
        raise _damaged(result, base_offset)
    size = memoryview(buffer).nbytes
    # Fewer bytes than a length field say nothing about the message; 0.7 takes them for "no message yet".
    if not result.valid_bytes and size >= LENGTH_BYTES:
        error = InvalidFetchSizeError(f"the message at offset {base_offset} is longer than the {size} bytes fetched")
        error.offset = base_offset
        raise error


def _damaged(result: ScanResult, base_offset: int) -> InvalidMessageError:
    offset = base_offset + result.valid_bytes
    error = InvalidMessageError(f"the message at byte {offset} has {_REASONS[result.status]}")
    error.offset = offset
    return error


def _damaged_inside(status: int, position: int) -> InvalidMessageError:
    return InvalidMessageError(f"the message at byte {position} has {_REASONS[status]}")


def _in_wrapper(error: BrokerError, offset: int) -> BrokerError:
    found = type(error)(f"{error}; in the wrapper at offset {offset}")
    found.offset = offset
    return found
