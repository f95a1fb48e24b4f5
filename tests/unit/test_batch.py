"""The compiled forms of a span agree with one another and with the slow reference, and never read outside it."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastlog import _batch
from fastlog._batch import ConsumedMessage, MessageStream, PayloadStream
from fastlog._segment import pack, scan
from fastlog.codecs import GZIP, SNAPPY
from fastlog.errors import DecompressionLimitError, InvalidFetchSizeError, InvalidMessageError
from fastlog.message import DeepLimits, Span, deep, encode_set, spans

PAYLOADS = st.lists(st.binary(max_size=30), max_size=12)


@st.composite
def message_sets(draw: st.DrawFn) -> bytes:
    """Plain messages of both magics, wrappers, wrappers in wrappers, and empty ones."""
    parts = []
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(["plain", "old", "gzip", "snappy", "nested", "empty wrapper"]))
        payloads = draw(PAYLOADS)
        if kind == "nested":
            inner = pack(payloads) + encode_set(payloads, SNAPPY) + pack(payloads[:1], 0, 0)
            parts.append(encode_set([], 0) + pack([_gzip(inner)], GZIP))
        elif kind == "empty wrapper":
            parts.append(pack([_gzip(b"")], GZIP))
        else:
            codec = {"gzip": GZIP, "snappy": SNAPPY}.get(kind, 0)
            parts.append(encode_set(payloads, codec, 0 if kind == "old" else 1))
    whole = b"".join(parts)
    return whole


def _gzip(data: bytes) -> bytes:
    from fastlog.codecs import compress

    return compress(GZIP, data)


@given(message_sets(), st.integers(0, 2**40))
def test_messages_are_those_of_the_deep_walk(data: bytes, base: int) -> None:
    expected = [(item.message.payload, item.message.magic, item.offset) for item in deep(data, base)]
    found = list(MessageStream(spans(data, base)))
    assert [(message.payload, message.magic, message.next_offset) for message in found] == expected
    assert list(PayloadStream(spans(data, base))) == [payload for payload, _, _ in expected]
    for message in found:
        assert base <= message.offset <= message.next_offset <= base + len(data)
        assert not message.codec


@given(message_sets(), st.integers(0, 2**40))
def test_arrays_say_the_same(data: bytes, base: int) -> None:
    for span in spans(data, base):
        places, all_lengths = np.full((3, span.count + 2), -1, np.int64), np.full(span.count + 2, -1, np.int32)
        _batch.index(span.entries, span.offset, span.next_offset, span.inner, 7, 1, span.count, places, all_lengths)
        assert all(row[0] == row[-1] == -1 for row in (*places, all_lengths))
        (offsets, next_offsets, starts), lengths = places[:, 1:-1], all_lengths[1:-1]
        messages = list(MessageStream([span]))
        assert offsets.tolist() == [message.offset for message in messages]
        assert next_offsets.tolist() == [message.next_offset for message in messages]
        assert [
            bytes(span.entries[start - 7 : start - 7 + length]) for start, length in zip(starts, lengths, strict=True)
        ] == [message.payload for message in messages]


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=8), st.data())
def test_a_span_that_is_shorter_than_its_count_is_refused(payloads: list[bytes], data: st.DataObject) -> None:
    whole = pack(payloads)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    arrays = np.empty((3, len(payloads)), np.int64), np.empty(len(payloads), np.int32)
    short = [Span(memoryview(cut), len(payloads), 0, 0, False)]
    for attempt in (
        lambda: list(PayloadStream(short)),
        lambda: PayloadStream(short).take(100, 10**6),
        lambda: list(MessageStream(short)),
        lambda: _batch.index(cut, 0, 0, False, 0, 0, len(payloads), *arrays),
    ):
        with pytest.raises(BufferError):
            attempt()


@pytest.mark.parametrize("kind", [MessageStream, PayloadStream])
def test_a_span_that_changed_is_let_go(kind: type[MessageStream] | type[PayloadStream]) -> None:
    """Said once: nothing of it comes any more, and its memory is free."""
    memory = bytearray(pack([b"a", b"b"]))
    stream = kind([Span(memory, 2, 0, 0, False), Span(pack([b"c"]), 1, 0, 0, False)])
    next(stream)
    memory[len(memory) // 2] = 0x7F
    with pytest.raises(BufferError):
        next(stream)
    memory.append(memory.pop())
    assert len(list(stream)) == 1


def test_gather_packs_payloads_one_behind_the_other() -> None:
    starts, lengths = np.array([3, 0, 5], np.int64), np.array([2, 0, 1], np.int32)
    ends, out = np.empty(4, np.int32), np.empty(3, np.uint8)
    _batch.gather(b"abcdef", starts, lengths, ends, out)
    assert ends.tolist() == [0, 2, 2, 3]
    assert out.tobytes() == b"def"


@pytest.mark.parametrize(
    ("start", "length", "room"), [(-1, 1, 9), (0, 7, 9), (6, 1, 9), (2**62, 1, 9), (0, -1, 9), (0, 5, 4)]
)
def test_gather_stays_inside(start: int, length: int, room: int) -> None:
    with pytest.raises(ValueError, match=r"outside|fit"):
        _batch.gather(
            b"abcdef",
            np.array([start], np.int64),
            np.array([length], np.int32),
            np.empty(2, np.int32),
            np.empty(room, np.uint8),
        )


@pytest.mark.parametrize(("starts", "lengths", "ends"), [(1, 2, 2), (2, 1, 3), (1, 1, 1), (1, 1, 3)])
def test_gather_takes_arrays_that_belong_together(starts: int, lengths: int, ends: int) -> None:
    with pytest.raises(ValueError, match="one item more"):
        _batch.gather(
            b"abcdef",
            np.zeros(starts, np.int64),
            np.zeros(lengths, np.int32),
            np.empty(ends, np.int32),
            np.empty(9, np.uint8),
        )


def test_arrays_of_another_type_or_length_are_refused() -> None:
    data = pack([b"a"])
    places, lengths = np.empty((3, 1), np.int64), np.empty(1, np.int32)
    for arrays in (
        (np.empty((3, 1), np.int32), lengths),
        (places, np.empty(1, np.int64)),
        (np.empty((3, 2), np.int64), lengths),
        (np.empty((2, 1), np.int64), lengths),
        (np.empty(3, np.int64), lengths),
    ):
        with pytest.raises(ValueError, match=r"mismatch|one length|dimensions"):
            _batch.index(data, 0, 0, False, 0, 0, 1, *arrays)
    for first, count in ((0, 2), (1, 1), (-1, 1), (0, -1), (2**62, 2)):
        with pytest.raises(ValueError, match="do not fit"):
            _batch.index(data, 0, 0, False, 0, first, count, places, lengths)


def test_what_precedes_damage_comes_first() -> None:
    """Plain messages, then inner messages of a wrapper that is damaged further in, then the error."""
    inner = pack([b"in"]) + b"\0\0\0\6\1\0\0\0\0\1"
    data = pack([b"out"]) + pack([_gzip(inner)], GZIP) + pack([b"never"])
    found = []
    with pytest.raises(InvalidMessageError, match="wrapper at offset 13"):
        found.extend(MessageStream(spans(data)))
    assert [(message.payload, message.offset, message.next_offset) for message in found] == [
        (b"out", 0, 13),
        (b"in", 13, 13),  # its wrapper is not through: the next read begins with it
    ]


def test_spans_stop_as_the_deep_walk_does() -> None:
    whole = pack([b"abc"])
    for bad, error in ((whole[:8], InvalidFetchSizeError), (whole[:-1] + b"x", InvalidMessageError)):
        with pytest.raises(error):
            list(spans(bad))
    assert list(spans(whole[:3])) == []  # less than a length field says nothing
    (span,) = spans(whole + whole[:9])
    assert span.next_offset == len(whole)
    bomb = pack([_gzip(pack([bytes(100_000)]))], GZIP)
    with pytest.raises(DecompressionLimitError):
        list(spans(bomb, limits=DeepLimits(max_inflated_bytes=1000)))


def test_a_message_is_a_value() -> None:
    message = ConsumedMessage(b"abc", 10, 23)
    assert message == ConsumedMessage(b"abc", 10, 23) != ConsumedMessage(b"abc", 10, 24)
    assert message != (b"abc", 10, 23)
    assert hash(message) == hash(pickle.loads(pickle.dumps(message)))
    assert repr(message) == "ConsumedMessage(offset=10, next_offset=23, payload=b'abc')"
    assert len(repr(ConsumedMessage(bytes(10**6), 0, 1))) < 400
    with pytest.raises(AttributeError):
        message.offset = 3
    with pytest.raises(TypeError):
        ConsumedMessage(None, 0, 1)  # type: ignore[arg-type]


def test_many_messages_at_once() -> None:
    payloads = [random.Random(number).randbytes(number % 300) for number in range(20_000)]
    data = pack(payloads)
    (span,) = spans(data)
    assert list(PayloadStream([span])) == payloads
    assert scan(data).count == span.count


@given(message_sets(), st.integers(1, 9), st.integers(1, 100))
def test_lists_have_every_payload_once_and_are_bounded(data: bytes, count: int, size: int) -> None:
    expected = [item.message.payload for item in deep(data)]
    stream = PayloadStream(spans(data))
    found = []
    while batch := stream.take(count, size):
        assert len(batch) <= count
        assert sum(9 + len(payload) for payload in batch[:-1]) < size
        found += batch
    assert found == expected
    assert stream.take(count, size) == []


def test_lists_give_what_precedes_damage_first() -> None:
    data = pack([b"a", b"b", b"c"]) + b"\0\0\0\7\1\0\0\0\0\1x"
    stream = PayloadStream(spans(data))
    assert stream.take(2, 1000) == [b"a", b"b"]
    assert stream.take(2, 1000) == [b"c"]
    with pytest.raises(InvalidMessageError):
        stream.take(2, 1000)
    assert stream.take(2, 1000) == []


@pytest.mark.parametrize("kind", [MessageStream, PayloadStream])
def test_a_stream_holds_one_span_at_a_time(kind: type[MessageStream] | type[PayloadStream]) -> None:
    """The memory of a span is free again when the next one is asked for: whoever reads fills it anew."""
    memory = bytearray(pack([b"a", b"b"]))

    def source() -> Iterator[Span]:
        for _ in range(3):
            memory.append(memory.pop())  # fails while a view of it is held
            with memoryview(memory) as view:
                yield Span(view, 2, 0, len(view), False)

    assert len(list(kind(source()))) == 6
    stream = kind(source())
    next(stream)
    with pytest.raises(BufferError):
        memory.pop()
    stream.close()
    memory.append(memory.pop())
    assert list(stream) == []
    stream.close()


@pytest.mark.parametrize("kind", [MessageStream, PayloadStream])
def test_a_stream_ends_with_its_source(kind: type[MessageStream] | type[PayloadStream]) -> None:
    ended = []

    def source() -> Iterator[Span]:
        try:
            yield from spans(pack([b"a", b"b"]))
        finally:
            ended.append(True)

    stream = kind(source())
    next(stream)
    assert not ended
    del stream
    assert ended


@pytest.mark.parametrize("kind", [MessageStream, PayloadStream])
def test_a_source_that_others_hold_is_closed_with_the_stream(kind: type[MessageStream] | type[PayloadStream]) -> None:
    """Not only when nobody knows it any more."""
    source = (span for span in spans(pack([b"a", b"b"])))
    stream = kind(source)
    next(stream)
    stream.close()
    assert source.gi_frame is None


@pytest.mark.parametrize("kind", [MessageStream, PayloadStream])
def test_a_span_that_came_while_another_was_asked_for_is_let_go(
    kind: type[MessageStream] | type[PayloadStream],
) -> None:
    """As by another thread that was faster: its memory is free before the next one is looked at."""
    memory = bytearray(pack([b"a", b"b"]))

    class Source:
        """Gives a span while it is asked for one that is none."""

        asked = 0

        def __iter__(self) -> Source:
            return self

        def __next__(self) -> Span:
            self.asked += 1
            if self.asked == 1:
                next(stream)
                with pytest.raises(BufferError):
                    memory.pop()
                return Span(None, 2, 0, 0, False)  # type: ignore[arg-type]
            return Span(memory, 2, 0, len(memory), False)

    stream = kind(Source())
    with pytest.raises(TypeError):
        next(stream)
    memory.append(memory.pop())
