"""Fetch by the id of a topic: what is asked byte by byte, and answers that are none are told apart from others."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastlog.client.kafka_fields import tagged_answer
from fastlog.client.record_fetching import (
    Batches,
    _any_batches,
    fetch,
    fetch_several,
    most_answer_bytes,
    parse_batches,
    parse_several,
)
from fastlog.errors import ProtocolError

TOPIC = bytes(range(16))


def uvarint(number: int) -> bytes:
    """A number without a sign in base 128, written a second time."""
    digits = []
    while True:
        digits.append(number % 128)
        number //= 128
        if not number:
            return bytes([*(digit + 128 for digit in digits[:-1]), digits[-1]])


def compact(data: bytes | None) -> bytes:
    return uvarint(0) if data is None else uvarint(len(data) + 1) + data


def answered(
    data: bytes | None = b"batches", *, code: int = 0, whole: int = 0, topic: bytes = TOPIC, partition: int = 3,
    aborted: list[tuple[int, int]] | None = None, tags: bytes = b"\0", number: int = 7, rows: int = 1,
) -> bytes:  # fmt: skip
    """An answer of version 13."""
    pairs = b"" if aborted is None else b"".join(struct.pack(">qq", *pair) + tags for pair in aborted)
    count = uvarint(0 if aborted is None else len(aborted) + 1)
    one = (
        struct.pack(">ihqqq", partition, code, 100, 90, 5)
        + count
        + pairs
        + struct.pack(">i", -1)
        + compact(data)
        + tags
    )
    of_topic = topic + uvarint(rows + 1) + one * rows + tags
    return struct.pack(">i", number) + tags + struct.pack(">ihi", 0, whole, 0) + uvarint(2) + of_topic + tags


def parsed(answer: bytes, number: int = 7) -> Batches:
    return parse_batches(memoryview(answer), number, TOPIC, 3)


def test_what_is_asked_is_what_the_schema_has() -> None:
    request = fetch(TOPIC, 3, 1234567890123, max_wait_ms=500, min_bytes=1, max_bytes=1 << 20)
    assert (request.key, request.version) == (1, 13)
    expected = b"\0" + struct.pack(">iiiib", -1, 500, 1, 1 << 20, 0) + struct.pack(">ii", 0, -1)
    expected += uvarint(2) + TOPIC + uvarint(2)
    expected += struct.pack(">iiqiqi", 3, -1, 1234567890123, -1, -1, 1 << 20) + b"\0" + b"\0"
    expected += uvarint(1) + compact(b"") + b"\0"
    assert request.body == expected


@pytest.mark.parametrize("only_committed", [False, True])
def test_several_partitions_are_asked_for_by_topic(only_committed: bool) -> None:
    other = bytes(reversed(TOPIC))
    request = fetch_several(
        {(TOPIC, 3): 5, (other, 0): 6, (TOPIC, 4): 7},
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        partition_bytes=1 << 10,
        only_committed=only_committed,
    )
    expected = (
        b"\0" + struct.pack(">iiiib", -1, 500, 1, 1 << 20, only_committed) + struct.pack(">ii", 0, -1) + uvarint(3)
    )
    for topic, rows in ((TOPIC, [(3, 5), (4, 7)]), (other, [(0, 6)])):
        expected += topic + uvarint(len(rows) + 1)
        expected += b"".join(struct.pack(">iiqiqi", n, -1, at, -1, -1, 1 << 10) + b"\0" for n, at in rows) + b"\0"
    expected += uvarint(1) + compact(b"") + b"\0"
    assert request.body == expected


def test_transactions_that_were_aborted_are_told() -> None:
    code, found = parse_several(tagged_answer(memoryview(answered(b"data", aborted=[(9, 100), (8, 50)])), 7))
    assert code == 0
    assert [(place, ended) for place, _, ended in found] == [((TOPIC, 3), ((9, 100), (8, 50)))]


TAGS = st.lists(st.tuples(st.integers(0, 300), st.binary(max_size=200)), max_size=2).map(
    lambda rows: uvarint(len(rows)) + b"".join(uvarint(tag) + uvarint(len(data)) + data for tag, data in rows)
)


@given(st.none() | st.binary(max_size=500), TAGS, st.none() | st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9))))
def test_an_answer_is_read_whatever_tags_it_has(
    data: bytes | None, tags: bytes, aborted: list[tuple[int, int]] | None
) -> None:
    found = parsed(answered(data, tags=tags, aborted=aborted))
    assert found[:3] == (0, 100, 5)
    assert bytes(found.data) == (data or b"")


def test_batches_stay_where_they_were_received() -> None:
    answer = memoryview(bytearray(answered(b"batches")))
    found = parse_batches(answer, 7, TOPIC, 3)
    answer[bytes(answer).index(b"batches")] = ord("B")
    assert bytes(found.data) == b"Batches"


def result(parse: Callable[[memoryview, int, bytes, int], Batches], answer: bytes) -> tuple[int, int, int, bytes] | str:
    """What it makes of an answer, or says of it."""
    try:
        found = parse(memoryview(answer), 7, TOPIC, 3)
    except ProtocolError as error:
        return str(error)
    return (*found[:3], bytes(found.data))


@pytest.mark.parametrize("aborted", [None, [], [(9, 100)]])
@pytest.mark.parametrize(
    "data", [None, b"", b"x" * 126, b"x" * 127, b"x" * 20_000], ids=["null", "0", "126", "127", "20k"]
)
def test_the_short_way_reads_what_the_long_one_does(data: bytes | None, aborted: list[tuple[int, int]] | None) -> None:
    """Cut anywhere, or with any byte of what stands around the batches changed."""
    whole = answered(data, aborted=aborted)
    assert result(parse_batches, whole) == (0, 100, 5, data or b"")
    around = [*range(min(110, len(whole))), *range(max(110, len(whole) - 6), len(whole))]
    others = [whole[:at] for at in (*around, len(whole) - 1)] + [whole + b"\0"]
    others += [
        whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :] for at in around for flip in (1, 0x40, 0x80, 0xFF)
    ]
    for answer in others:
        assert result(parse_batches, answer) == result(_any_batches, answer), answer[:120]


@pytest.mark.parametrize("code", [1, 3, 100])
def test_an_error_of_the_partition_and_one_of_all(code: int) -> None:
    assert parsed(answered(None, code=code)) == (code, 100, 5, b"")
    empty = struct.pack(">i", 7) + b"\0" + struct.pack(">ihi", 0, code, 0) + uvarint(1) + b"\0"
    assert parsed(empty) == (code, -1, -1, b"")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (answered(topic=b"x" * 16), "another partition"),
        (answered(partition=4), "another partition"),
        (answered(rows=2), "another partition"),
        (answered(rows=0), "another partition"),
        (answered() + b"\0", "1 bytes follow"),
        (answered(number=8), "request 7 is answered as 8"),
        (struct.pack(">i", 7) + b"\xff" * 6, "too long a number"),
        (struct.pack(">i", 7) + b"\0" + struct.pack(">ihi", 0, 0, 0) + uvarint(1 << 20), "it announces 1048575 topics"),
    ],
)
def test_what_is_no_answer_is_refused(answer: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        parsed(answer)


@given(st.data())
def test_no_cut_answer_is_read(data: st.DataObject) -> None:
    answer = answered(b"x" * 40, aborted=[(1, 2)], tags=uvarint(1) + uvarint(200) + uvarint(3) + b"abc")
    cut = data.draw(st.integers(0, len(answer) - 1))
    with pytest.raises(ProtocolError):
        parsed(answer[:cut])


def test_a_number_has_32_bits_at_most() -> None:
    assert tagged_answer(struct.pack(">i", 1) + b"\0" + b"\xff\xff\xff\xff\x0f", 1).uvarint("n") == 2**32 - 1
    with pytest.raises(ProtocolError, match="too long a number"):
        tagged_answer(struct.pack(">i", 1) + b"\0" + b"\x80\x80\x80\x80\x80\x00", 1).uvarint("n")


def test_an_answer_may_be_as_long_as_what_was_asked_for_or_one_batch() -> None:
    assert most_answer_bytes(1000, 10) == 1000 + 1024
    assert most_answer_bytes(10, 1000) == 1000 + 1024
