"""Frames between processors and the coordinator, as the coordinator takes them apart: whatever comes, and from whom."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastlog.workers.coordinator import frames
from fastlog.workers.coordinator.frames import BODY_BYTES, HEAD_BYTES, PIECE_BYTES, Assembly, Frame, Head, pieces_of

OWN, PROCESSOR = 3, 5
HOST = b"10.1.2.3".ljust(46, b"\0")


def head(number: int = 1, total: int = 1, place: int = 0, **named: int) -> Head:
    fields = {"processor": PROCESSOR, "coordinator": OWN} | named
    return Head(number, 77 << 24 | 9, fields["processor"], fields["coordinator"], total, place, 0, 1, 4711, HOST)


def cut(body: bytes, number: int = 1, **named: int) -> list[bytes]:
    """A request in pieces, as a processor sends it."""
    places = range(0, len(body), BODY_BYTES)
    return [head(number, len(body), at, **named).pack() + body[at : at + BODY_BYTES] for at in places]


def take_all(assembly: Assembly, pieces: list[bytes]) -> list[Frame]:
    return [frame for piece in pieces if (frame := assembly.take(piece, PROCESSOR)) is not None]


def test_the_head_has_its_table() -> None:
    assert (HEAD_BYTES, PIECE_BYTES) == (96, 65536)
    data = head(2, 3, 4).pack()
    assert [int.from_bytes(data[at : at + 8], "little") for at in (0, 8, 16, 24)] == [2, 77 << 24 | 9, PROCESSOR, OWN]
    assert [int.from_bytes(data[at : at + 4], "little") for at in (32, 36, 40)] == [3, 4, 0]
    assert (data[44], data[46:48], data[48:56]) == (1, (4711).to_bytes(2, "little"), b"10.1.2.3")


@pytest.mark.parametrize("size", [1, 2, BODY_BYTES - 1, BODY_BYTES, BODY_BYTES + 1, 3 * BODY_BYTES, 5_000_000])
def test_a_request_comes_whole(size: int) -> None:
    body = random.Random(size).randbytes(size)
    assembly = Assembly(OWN)
    pieces = cut(body)
    assert max(map(len, pieces)) <= PIECE_BYTES
    assert take_all(assembly, pieces) == [Frame(1, 77 << 24 | 9, PROCESSOR, 0, 1, "10.1.2.3", 4711, body)]
    assert (assembly.held, assembly.dropped) == (0, 0)


def test_what_has_begun_is_counted() -> None:
    assembly = Assembly(OWN)
    assert take_all(assembly, cut(bytes(3 * BODY_BYTES))[:2]) == []
    assert assembly.held == 2 * BODY_BYTES


def test_a_frame_whose_sender_died_ends_with_the_next_one() -> None:
    """The successor's first piece says so."""
    assembly = Assembly(OWN)
    assert take_all(assembly, cut(bytes(2 * BODY_BYTES), processor=PROCESSOR)[:1]) == []
    (found,) = (assembly.take(piece, PROCESSOR + 1) for piece in cut(b"next", 1, processor=PROCESSOR + 1))
    assert found is not None and found.body == b"next"


def test_pieces_of_and_for_others_are_dropped_and_spoil_nothing() -> None:
    """What stands in the socket from before either end was started anew."""
    assembly = Assembly(OWN)
    first, second = cut(b"a" * BODY_BYTES + b"b")
    others = [*cut(b"x", processor=PROCESSOR - 1), *cut(b"x", coordinator=OWN - 1), *cut(b"x", coordinator=OWN + 1)]
    (found,) = take_all(assembly, [first, *others, second])
    assert found.body == b"a" * BODY_BYTES + b"b"
    assert assembly.dropped == 3


@pytest.mark.parametrize(
    "piece",
    [
        head(total=0).pack(),
        head(total=5).pack(),
        head(total=1).pack() + b"ab",
        head(total=3, place=2).pack() + b"ab",
        head(total=3, place=1).pack() + b"a",
        head(total=2**32 - 1, place=2**32 - 2).pack() + b"ab",
        head(total=frames.MOST_REQUEST_BYTES + 1).pack() + b"a",
    ],
)
def test_a_frame_that_cannot_be_is_answered_by_closing(piece: bytes) -> None:
    assembly = Assembly(OWN)
    (found,) = take_all(assembly, [piece])
    assert (found.body, found.number) == (b"", 1)
    (whole,) = take_all(assembly, cut(b"next", 2))
    assert whole.body == b"next"


@pytest.mark.parametrize("change", [{"number": 2}, {"total": BODY_BYTES + 2}, {"place": BODY_BYTES - 1}, {"port": 1}])
def test_a_piece_that_does_not_follow_ends_both(change: dict[str, int]) -> None:
    assembly = Assembly(OWN)
    first, _ = cut(bytes(BODY_BYTES + 1))
    follows = head(1, BODY_BYTES + 1, BODY_BYTES)._replace(**change).pack() + b"\0"
    (found,) = take_all(assembly, [first, follows])
    assert found.body == b"" and assembly.held == 0


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(
    st.binary(max_size=200),
    st.builds(
        lambda total, place, body: head(1, total, place).pack() + body,
        st.integers(0, 300), st.integers(0, 300), st.binary(max_size=300),
    ),
), max_size=12))  # fmt: skip
def test_hostile_bytes_never_hold_more_than_they_announce(pieces: list[bytes]) -> None:
    """Whatever comes: no error, no frame that is longer or shorter than it says, and the next one is taken as it is."""
    assembly = Assembly(OWN)
    for found in take_all(assembly, pieces):
        assert len(found.body) <= 300
    assert assembly.held < 300
    (whole,) = take_all(assembly, cut(b"next", 9))
    assert whole.body == b"next"


@pytest.mark.parametrize("size", [1, BODY_BYTES, BODY_BYTES + 1, 1_000_000])
def test_an_answer_goes_in_pieces(size: int) -> None:
    frame = Frame(8, 9, PROCESSOR, 0, 0, "", 0, b"x")
    answer = random.Random(size).randbytes(size)
    place, sent = 0, b""
    while place < size:
        buffers, end = pieces_of(frame, OWN, answer, place)
        piece = b"".join(buffers)
        assert len(piece) <= PIECE_BYTES
        assert Head._make(frames.LAYOUT.unpack_from(piece))[:6] == (8, 9, PROCESSOR, OWN, size, place)
        sent += piece[HEAD_BYTES:]
        place = end
    assert sent == answer


def test_no_answer_is_one_piece_without_bytes() -> None:
    buffers, end = pieces_of(Frame(8, 9, PROCESSOR, 0, 0, "", 0, b"x"), OWN, None, 0)
    assert Head._make(frames.LAYOUT.unpack(b"".join(buffers)))[:6] == (8, 9, PROCESSOR, OWN, 0, 0) and end == 0
