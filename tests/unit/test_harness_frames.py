"""The frame reader gives the same frames however the bytes are split, and holds no more than came."""

from __future__ import annotations

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastlog.errors import InvalidRequestError, ProtocolError
from fastlog.wire import fields
from tests.harness.frames import FrameReader

BODIES = st.lists(st.binary(min_size=2, max_size=40), max_size=8)


def all_frames(reader: FrameReader) -> list[bytes]:
    return list(reader.frames())


@given(BODIES)
def test_whole_stream_gives_every_frame(bodies: list[bytes]) -> None:
    reader = FrameReader(1000)
    reader.feed(b"".join(fields.frame(body) for body in bodies))
    assert all_frames(reader) == bodies
    assert reader.held_bytes == 0


@given(BODIES)
def test_split_at_every_byte_gives_the_same(bodies: list[bytes]) -> None:
    stream = b"".join(fields.frame(body) for body in bodies)
    for cut in range(len(stream) + 1):
        reader = FrameReader(1000)
        reader.feed(stream[:cut])
        found = all_frames(reader)
        reader.feed(stream[cut:])
        assert found + all_frames(reader) == bodies


def test_byte_by_byte_knows_what_is_missing() -> None:
    reader = FrameReader(1000)
    stream = fields.frame(b"hello!")
    for position, byte in enumerate(stream):
        assert reader.missing_bytes == (4 - position if position < 4 else len(stream) - position)
        assert reader.frame_or_none() is None
        reader.feed(bytes([byte]))
    assert reader.missing_bytes == 0
    assert reader.frame_or_none() == b"hello!"


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 1, 101, 2**31 - 1])
def test_size_outside_the_bounds_is_refused_before_any_body(size: int) -> None:
    """T-19: a length is a claim; frames before the bad one are still given."""
    reader = FrameReader(100)
    reader.feed(fields.frame(b"ok") + fields.INT32.pack(size))
    assert reader.frame_or_none() == b"ok"
    for _ in range(2):
        with pytest.raises(ProtocolError, match=str(size)):
            reader.frame_or_none()


@pytest.mark.parametrize("size", [2, 100])
def test_bounds_are_inclusive(size: int) -> None:
    reader = FrameReader(100)
    reader.feed(fields.frame(b"x" * size))
    assert reader.frame_or_none() == b"x" * size


def test_memory_grows_with_the_bytes_that_came() -> None:
    """Z-12: an announced 2 GiB costs nothing until bytes come."""
    tracemalloc.start()
    try:
        readers = [FrameReader(2**31 - 1) for _ in range(100)]
        for reader in readers:
            reader.feed(fields.INT32.pack(2**31 - 1) + b"x" * 10)
            assert reader.frame_or_none() is None
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert all(reader.held_bytes == 14 for reader in readers)


def test_long_pipeline_does_not_keep_what_was_returned() -> None:
    reader = FrameReader(1 << 20)
    frame = fields.frame(b"x" * 50_000)
    tracemalloc.start()
    try:
        for _ in range(100):
            reader.feed(frame[:-1])
            assert reader.frame_or_none() is None
            reader.feed(frame[-1:] + b"")
            assert reader.frame_or_none() == b"x" * 50_000
        assert tracemalloc.get_traced_memory()[1] < 600_000
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=4))
def test_any_bytes_give_frames_or_the_declared_error(data: bytes, cuts: list[int]) -> None:
    reader = FrameReader(50)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    total = 0
    try:
        for start, end in itertools.pairwise(edges):
            reader.feed(data[start:end])
            total += sum(4 + len(body) for body in reader.frames())
    except ProtocolError:
        return
    assert total + reader.held_bytes == len(data)


def test_fields_that_do_not_fit_are_refused_when_written() -> None:
    for write in (
        lambda: fields.pack("h", 2**15),
        lambda: fields.pack("i", -(2**31) - 1),
        lambda: fields.string("x" * 2**15),
        lambda: fields.string("\ud800"),
    ):
        with pytest.raises(InvalidRequestError):
            write()
    assert fields.string("é") == b"\x00\x02\xc3\xa9"  # bytes are counted, not characters
