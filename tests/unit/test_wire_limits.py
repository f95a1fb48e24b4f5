"""Every field of every request and answer at its limits: written and read back at the limit, refused one beyond it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fastlog.errors import InvalidRequestError, ProtocolError, UnsupportedVersionError
from fastlog.wire import fields
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from fastlog.wire.fields import NotTextError, Reader
from tests.harness import wire07

BITS = {"b": 8, "h": 16, "i": 32, "q": 64}
SET = b"a set"


def limits(kind: str) -> tuple[int, int]:
    return -(2 ** (BITS[kind] - 1)), 2 ** (BITS[kind] - 1) - 1


# name, the widths of the numbers, how it is written with them, what is read back
REQUESTS: dict[str, tuple[str, Callable[..., bytes], Callable[..., Any]]] = {
    "produce": ("i", lambda p: rq.encode_produce("t", p, SET), lambda p: wire07.ProduceRequest("t", p, SET)),
    "fetch": ("iqi", lambda *n: rq.encode_fetch("t", *n), lambda *n: wire07.FetchRequest("t", *n)),
    "multifetch": (
        "iqi",
        lambda *n: rq.encode_multifetch([("t", *n), ("u", 1, 2, 3)]),
        lambda *n: wire07.MultiFetchRequest((wire07.FetchRequest("t", *n), wire07.FetchRequest("u", 1, 2, 3))),
    ),
    "multiproduce": (
        "i",
        lambda p: rq.encode_multiproduce([("t", p, SET), ("u", 1, b"")]),
        lambda p: wire07.MultiProduceRequest((wire07.ProduceRequest("t", p, SET), wire07.ProduceRequest("u", 1, b""))),
    ),
    "offsets": ("iqi", lambda *n: rq.encode_offsets("t", *n), lambda *n: rq.OffsetsRequest("t", *n)),
    "produce ack": (
        "iiqhi",
        lambda c, p, i, e, s: rq.encode_produce_ack(c, 1, "t", p, SET, producer_id=i, epoch=e, sequence=s),
        lambda c, p, i, e, s: wire07.ProduceAckRequest(c, 1, "t", p, SET, i, e, s),
    ),
    "held fetch": (
        "iiiiqi",
        lambda c, w, m, *n: rq.encode_held_fetch(c, w, m, "t", *n),
        lambda c, w, m, *n: wire07.HeldFetchRequest(c, w, m, "t", *n),
    ),
    "metadata": ("i", lambda c: rq.encode_metadata(c, ["t"]), lambda c: rq.MetadataRequest(c, ("t",))),
    "cut points": (
        "iiqqqi",
        lambda c, *n: rq.encode_cut_points(c, "t", *n),
        lambda c, *n: rq.CutPointsRequest(c, "t", *n),
    ),
    "local read": ("ii", lambda c, p: rq.encode_local_read(c, "t", p), lambda c, p: rq.LocalReadRequest(c, "t", p)),
    "create topic": (
        "ii",
        lambda c, p: rq.encode_create_topic(c, "t", p),
        lambda c, p: rq.CreateTopicRequest(c, "t", p),
    ),
    "delete topic": ("i", lambda c: rq.encode_delete_topic(c, "t"), lambda c: rq.DeleteTopicRequest(c, "t")),
}


def at_their_limits(widths: str) -> list[tuple[int, ...]]:
    """Each number at its least and its most while the others differ from one another."""
    found = []
    for place, width in enumerate(widths):
        for value in limits(width):
            numbers = [10 + number for number in range(len(widths))]
            numbers[place] = value
            found.append(tuple(numbers))
    return found


def beyond_their_limits(widths: str) -> list[tuple[int, ...]]:
    found = []
    for place, width in enumerate(widths):
        least, most = limits(width)
        for value in (least - 1, most + 1):
            numbers = [10 + number for number in range(len(widths))]
            numbers[place] = value
            found.append(tuple(numbers))
    return found


@pytest.mark.parametrize("name", REQUESTS)
def test_numbers_of_requests(name: str) -> None:
    widths, encode, expected = REQUESTS[name]
    for numbers in at_their_limits(widths):
        assert wire07.decode_request(encode(*numbers)[4:]) == expected(*numbers)
    for numbers in beyond_their_limits(widths):
        with pytest.raises(InvalidRequestError, match="out of range"):
            encode(*numbers)


WRITTEN = {
    "produce": lambda text: rq.encode_produce(text, 0, b""),
    "fetch": lambda text: rq.encode_fetch(text, 0, 0, 0),
    "offsets": lambda text: rq.encode_offsets(text, 0, 0, 0),
    "produce ack": lambda text: rq.encode_produce_ack(0, 1, text, 0, b""),
    "held fetch": lambda text: rq.encode_held_fetch(0, 0, 0, text, 0, 0, 0),
    "cut points": lambda text: rq.encode_cut_points(0, text, 0, 0, 0, 0, 0),
    "local read": lambda text: rq.encode_local_read(0, text, 0),
    "create topic": lambda text: rq.encode_create_topic(0, text),
    "delete topic": lambda text: rq.encode_delete_topic(0, text),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_the_longest_topic_and_one_byte_more(name: str) -> None:
    for text in ("", "x" * (2**15 - 1), "é" * (2**14 - 1) + "x"):
        assert wire07.decode_request(WRITTEN[name](text)[4:]).topic == text  # type: ignore[union-attr]
    for text in ("x" * 2**15, "é" * 2**14, "\ud800"):
        with pytest.raises(InvalidRequestError):
            WRITTEN[name](text)


def test_the_most_parts_of_a_request() -> None:
    most = 2**15 - 1
    fetches, produces = [("", 0, 0, 0)] * most, [("", 0, b"")] * most
    assert len(wire07.decode_request(rq.encode_multifetch(fetches)[4:]).fetches) == most  # type: ignore[union-attr]
    assert len(wire07.decode_request(rq.encode_multiproduce(produces)[4:]).produces) == most  # type: ignore[union-attr]
    with pytest.raises(InvalidRequestError):
        rq.encode_multifetch([*fetches, ("", 0, 0, 0)])
    with pytest.raises(InvalidRequestError):
        rq.encode_multiproduce([*produces, ("", 0, b"")])


@pytest.mark.parametrize("acks", range(-128, 128))
def test_acks(acks: int) -> None:
    body = rq.encode_produce_ack(1, acks, "t", 0, SET)[4:]
    if acks in (1, 2):
        assert wire07.decode_request(body).acks == acks  # type: ignore[union-attr]
    else:
        with pytest.raises(InvalidRequestError, match=f"acks is {acks}, known are 1 and 2"):
            wire07.decode_request(body)


@pytest.mark.parametrize("kind", range(1000, 1007))
@pytest.mark.parametrize("version", [-(2**15), -1, 0, 1, 2, 3, 2**15 - 1])
def test_versions(kind: int, version: int) -> None:
    name = ["produce ack", "held fetch", "metadata", "cut points", "local read", "create topic", "delete topic"][
        kind - 1000
    ]
    widths, encode, _ = REQUESTS[name]
    body = bytearray(encode(*range(10, 10 + len(widths)))[4:])
    assert int.from_bytes(body[:2], "big") == kind
    body[2:4] = version.to_bytes(2, "big", signed=True)
    newest = 2 if kind == rq.METADATA else 1
    if 1 <= version <= newest:
        found = wire07.decode_request(bytes(body))
        assert not isinstance(found, rq.MetadataRequest) or found.version == version
    else:
        with pytest.raises(UnsupportedVersionError, match=f"request {kind} has version {version}, .* is {newest}$"):
            wire07.decode_request(bytes(body))


@pytest.mark.parametrize("count", [-(2**31), -2, -1, 0, 1, 2, 3, 2**31 - 1])
@pytest.mark.parametrize("names", [0, 1, 2])
def test_counts_of_topics(count: int, names: int) -> None:
    """-1 asks for all, and then nothing follows; a count is refused where not so many names, or more, follow."""
    head = rq.encode_metadata(5, ["a", "b"][:names])[4:12]
    body = head + count.to_bytes(4, "big", signed=True) + b"\0\1a\0\1b"[: 3 * names]
    if count == names:
        assert wire07.decode_request(body) == rq.MetadataRequest(5, ("a", "b")[:names])
    elif count == -1 and not names:
        assert wire07.decode_request(body) == rq.MetadataRequest(5, None)
    else:
        with pytest.raises(InvalidRequestError):
            wire07.decode_request(body)


@pytest.mark.parametrize(("kind", "least"), [(rq.MULTIFETCH, 18), (rq.MULTIPRODUCE, 10)])
def test_a_count_is_compared_with_what_can_follow(kind: int, least: int) -> None:
    """A part has at least so many bytes: with one byte less than that for all of them nothing is read."""
    for count in (1, 2, 5):
        head = kind.to_bytes(2, "big") + count.to_bytes(2, "big")
        assert wire07.decode_request(head + bytes(least * count))
        with pytest.raises(InvalidRequestError, match=rf"is {count}, with {least * count - 1} bytes left"):
            wire07.decode_request(head + bytes(least * count - 1))


# -- answers -----------------------------------------------------------------------------------------------------------

ANSWERS: dict[str, tuple[str, Callable[..., bytes], Callable[[bytes], Any], Callable[..., Any]]] = {
    "offsets": (
        "qq",
        lambda *n: rs.encode_offsets(0, n),
        rs.decode_offsets,
        lambda *n: rs.OffsetsAnswer(0, n),
    ),
    "produce ack": (
        "ihiqq",
        lambda *n: wire07.encode_produce_ack(rs.ProduceAckAnswer(*n)),
        rs.decode_produce_ack,
        lambda *n: rs.ProduceAckAnswer(*n),
    ),
    "held fetch": (
        "iqq",
        lambda c, *n: wire07.encode_held_fetch(rs.HeldFetchAnswer(c, 0, *n, SET)),
        rs.decode_held_fetch,
        lambda c, *n: rs.HeldFetchAnswer(c, 0, *n, SET),
    ),
    "metadata": (
        "iiiiiihh",
        lambda c, b, p, m, r, w, lo, hi: rs.encode_metadata(rs.MetadataAnswer(c, 0, b, "h", p, m, r, w, lo, hi)),
        rs.decode_metadata,
        lambda c, b, p, m, r, w, lo, hi: rs.MetadataAnswer(c, 0, b, "h", p, m, r, w, lo, hi),
    ),
    "metadata of a topic": (
        "hi",
        lambda e, c: rs.encode_metadata(rs.MetadataAnswer(1, 0, topics=(rs.TopicMetadata("t", e, c),))),
        rs.decode_metadata,
        lambda e, c: rs.MetadataAnswer(1, 0, topics=(rs.TopicMetadata("t", e, c),)),
    ),
    "cut points": (
        "iqq",
        lambda c, *n: rs.encode_cut_points(rs.CutPointsAnswer(c, 0, n)),
        rs.decode_cut_points,
        lambda c, *n: rs.CutPointsAnswer(c, 0, n),
    ),
    "local read": (
        "iqqqq",
        lambda c, a, b, *n: rs.encode_local_read(rs.LocalReadAnswer(c, 0, "d", "f", a, b, n)),
        rs.decode_local_read,
        lambda c, a, b, *n: rs.LocalReadAnswer(c, 0, "d", "f", a, b, n),
    ),
    "create topic": (
        "ii",
        lambda c, p: rs.encode_create_topic(rs.CreateTopicAnswer(c, 0, p)),
        rs.decode_create_topic,
        lambda c, p: rs.CreateTopicAnswer(c, 0, p),
    ),
    "delete topic": (
        "ii",
        lambda c, p: rs.encode_delete_topic(rs.DeleteTopicAnswer(c, 0, p)),
        rs.decode_delete_topic,
        lambda c, p: rs.DeleteTopicAnswer(c, 0, p),
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_numbers_of_answers(name: str) -> None:
    widths, encode, decode, expected = ANSWERS[name]
    for numbers in at_their_limits(widths):
        assert decode(encode(*numbers)[4:]) == expected(*numbers)
    for numbers in beyond_their_limits(widths):
        with pytest.raises(InvalidRequestError, match="out of range"):
            encode(*numbers)


@pytest.mark.parametrize("version", [1, 2])
def test_numbers_of_a_partition(version: int) -> None:
    widths = "ihqqqq"
    for numbers in at_their_limits(widths):
        partition = rs.PartitionMetadata(*numbers)
        answer = rs.MetadataAnswer(1, 0, topics=(rs.TopicMetadata("t", 0, 1, (partition, partition)),))
        told = partition if version == 2 else partition._replace(created_ms=0)
        expected = answer._replace(topics=(rs.TopicMetadata("t", 0, 1, (told, told)),))
        assert rs.decode_metadata(rs.encode_metadata(answer, version)[4:], version) == expected


@pytest.mark.parametrize("error", [-(2**15), -1, 1, 2**15 - 1])
def test_errors_are_fields_and_nothing_follows_them(error: int) -> None:
    """Of one's own requests those that carry positions have them behind an error, or leave them out."""
    head = (7).to_bytes(4, "big") + error.to_bytes(2, "big", signed=True)
    assert rs.encode_own_error(7, error)[4:] == head
    assert rs.decode_metadata(head) == rs.MetadataAnswer(7, error)
    assert rs.decode_cut_points(head) == rs.CutPointsAnswer(7, error)
    assert rs.decode_local_read(head) == rs.LocalReadAnswer(7, error)
    assert rs.decode_create_topic(head) == rs.CreateTopicAnswer(7, error)
    assert rs.decode_produce_ack(head) == rs.ProduceAckAnswer(7, error)
    assert rs.decode_held_fetch(head) == rs.HeldFetchAnswer(7, error)
    for size in range(1, 16):
        with pytest.raises(ProtocolError):
            rs.decode_held_fetch(head + bytes(size))
    for size in (*range(1, 20), 21):
        with pytest.raises(ProtocolError):
            rs.decode_produce_ack(head + bytes(size))
    held = rs.decode_held_fetch(head + bytes(16) + b"ignored")
    assert held == rs.HeldFetchAnswer(7, error, 0, 0)


def test_counts_of_answers_are_compared_with_what_follows() -> None:
    """One that announces one more than there are, or one less where an answer ends exactly, is refused."""
    offsets = rs.encode_offsets(0, (1, 2))[4:]
    points = rs.encode_cut_points(rs.CutPointsAnswer(1, 0, (1, 2)))[4:]
    topics = rs.encode_metadata(rs.MetadataAnswer(1, 0, topics=(rs.TopicMetadata("t", 0, 1),) * 2))[4:]
    for body, place, decode in (
        (offsets, 2, rs.decode_offsets),
        (points, 6, rs.decode_cut_points),
        (topics, len(topics) - 2 * 13 - 4, rs.decode_metadata),
    ):
        assert body[place : place + 4] == b"\0\0\0\2"
        for count in (3, 2**31 - 1, -1, -(2**31)):
            with pytest.raises(ProtocolError):
                decode(body[:place] + count.to_bytes(4, "big", signed=True) + body[place + 4 :])  # type: ignore[operator]
        fewer = body[:place] + b"\0\0\0\1" + body[place + 4 :]
        if decode is rs.decode_offsets:  # 0.7 ignores what follows
            assert rs.decode_offsets(fewer) == rs.OffsetsAnswer(0, (1,))
        else:
            with pytest.raises(ProtocolError, match="follow the last field"):
                decode(fewer)  # type: ignore[operator]


# -- answers without a copy --------------------------------------------------------------------------------------------

PARTS = [
    wire07.FetchAnswer(0, b"first"),
    wire07.FetchAnswer(3),
    wire07.FetchAnswer(0, b""),
    wire07.FetchAnswer(0, b"last"),
]


def split(body: bytes) -> tuple[wire07.FetchAnswer, ...]:
    return tuple(wire07.FetchAnswer(error, bytes(data)) for error, data in rs.split_multifetch(memoryview(body)))


def test_a_split_answer_is_that_of_the_decoder_at_every_length() -> None:
    for whole, take_apart, decode in (
        (
            wire07.encode_fetch(0, SET),
            lambda body: wire07.FetchAnswer(*_bytes(rs.split_fetch(body))),
            wire07.decode_fetch,
        ),
        (wire07.encode_fetch(5), lambda body: wire07.FetchAnswer(*_bytes(rs.split_fetch(body))), wire07.decode_fetch),
        (wire07.encode_multifetch(PARTS), split, wire07.decode_multifetch),
        (b"\0\0\0\4\0\7ab", split, wire07.decode_multifetch),  # an error of the whole
        (wire07.encode_held_fetch(rs.HeldFetchAnswer(1, 0, 2, 3, SET)), held, rs.decode_held_fetch),
        (wire07.encode_held_fetch(rs.HeldFetchAnswer(1, 9, 2, 3)) + b"more", held, rs.decode_held_fetch),
    ):
        body = whole[4:]
        for size in range(len(body) + 1):
            assert outcome(take_apart, memoryview(body)[:size]) == outcome(decode, body[:size]), size


def held(body: memoryview) -> rs.HeldFetchAnswer:
    answer, messages = rs.split_held_fetch(body)
    assert answer.message_set == b""
    return answer._replace(message_set=bytes(messages))


def _bytes(found: tuple[int, memoryview]) -> tuple[int, bytes]:
    return found[0], bytes(found[1])


def outcome(call: Callable[[Any], Any], body: Any) -> Any:
    try:
        return call(body)
    except ProtocolError:
        return ProtocolError


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 1, 2, 6, 7, 8, 2**31 - 1])
def test_the_size_of_a_part(size: int) -> None:
    """2 is an error without messages, 7 all that is there."""
    body = b"\0\0" + size.to_bytes(4, "big", signed=True) + b"\0\0" + SET
    for read in (split, wire07.decode_multifetch):
        if size == 7:
            assert read(body) == (wire07.FetchAnswer(0, SET),)  # type: ignore[operator]
        elif size == 2:
            assert read(body[:8]) == (wire07.FetchAnswer(0),)  # type: ignore[operator]
        else:
            with pytest.raises(ProtocolError):
                read(body)  # type: ignore[operator]


def test_what_is_split_is_not_copied() -> None:
    body = bytearray(wire07.encode_multifetch(PARTS)[4:])
    parts = rs.split_multifetch(memoryview(body))
    body[8:13] = b"FIRST"
    assert bytes(parts[0][1]) == b"FIRST"
    for found in (rs.split_fetch(memoryview(body))[1], rs.split_held_fetch(memoryview(bytes(22) + b"x"))[1]):
        assert isinstance(found, memoryview)


# -- primitives --------------------------------------------------------------------------------------------------------


class Long(bytes):
    """Bytes that say they are longer than they are: 2 GiB need not be made for a test."""

    length = 0

    def __len__(self) -> int:
        return self.length


def test_the_largest_frame() -> None:
    part = Long(b"x")
    part.length = 2**31 - 1 - 3
    assert fields.frame(b"abc", part) == b"\x7f\xff\xff\xff" + b"abcx"
    part.length += 1
    with pytest.raises(InvalidRequestError, match="a frame of 2147483648 bytes is larger than 2147483647"):
        fields.frame(b"abc", part)


@pytest.mark.parametrize(("name", "size"), [("int8", 1), ("int16", 2), ("int32", 4), ("int64", 8)])
def test_numbers_are_signed_and_big_endian(name: str, size: int) -> None:
    for data in (b"\xff" * size, b"\x80" + bytes(size - 1), b"\x7f" + b"\xff" * (size - 1), bytes(range(1, size + 1))):
        reader = Reader(b"<" + data + b">")
        assert reader.int8("begin") == ord("<")
        assert getattr(reader, name)("value") == int.from_bytes(data, "big", signed=True)
        assert reader.left == 1
        assert reader.rest() == b">"
        reader.end()
    reader = Reader(bytes(size - 1))
    with pytest.raises(ProtocolError, match=f"value needs {size} bytes, {size - 1} are left"):
        getattr(reader, name)("value")
    assert reader.left == size - 1


def test_errors_say_what_and_where() -> None:
    for read, said in (
        (lambda r: r.take(-1, "x"), "malformed frame of 3 bytes: x claims -1 bytes, 3 are left"),
        (lambda r: r.take(4, "x"), "malformed frame of 3 bytes: x claims 4 bytes, 3 are left"),
        (lambda r: r.end(), "malformed frame of 3 bytes: 3 bytes follow the last field"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            read(Reader(b"abc", InvalidRequestError))  # type: ignore[no-untyped-call]
        assert str(caught.value) == said
    assert Reader(b"abc").take(3, "x") == b"abc"
    with pytest.raises(NotTextError, match="malformed frame of 3 bytes: x is not UTF-8"):
        Reader(b"\0\1\xff").string("x")
    assert Reader(b"\0\0").string("x") == ""
    assert Reader(b"\0\0\0\2abc").sized_bytes("x") == b"ab"


def test_a_count_and_what_is_left() -> None:
    for count, left, each, fits in ((3, 12, 4, True), (3, 11, 4, False), (0, 0, 4, True), (-1, 100, 1, False)):
        reader = Reader(count.to_bytes(4, "big", signed=True) + bytes(left))
        if fits:
            assert reader.count("x", each) == count
            assert reader.left == left
        else:
            with pytest.raises(ProtocolError, match=f"x is {count}, with {left} bytes left"):
                reader.count("x", each)


# -- numbers that stand for something ----------------------------------------------------------------------------------


def test_the_numbers_of_the_protocol() -> None:
    assert [rq.PRODUCE, rq.FETCH, rq.MULTIFETCH, rq.MULTIPRODUCE, rq.OFFSETS] == [0, 1, 2, 3, 4]
    own = [rq.PRODUCE_ACK, rq.HELD_FETCH, rq.METADATA, rq.CUT_POINTS, rq.LOCAL_READ, rq.CREATE_TOPIC, rq.DELETE_TOPIC]
    assert own == [1000, 1001, 1002, 1003, 1004, 1005, 1006]
    assert (rq.LOWEST_OWN, rq.HIGHEST_OWN) == (1000, 1006)
    assert (rq.ACKS_APPENDED, rq.ACKS_FLUSHED, rq.ANY_PARTITION, rq.TIME_LATEST, rq.TIME_EARLIEST) == (1, 2, -1, -1, -2)
    assert rs.STATE_NAMES == {0: "ok", 1: "read-only", 2: "offline"}
    assert (rs.STATE_OK, rs.STATE_READ_ONLY, rs.STATE_OFFLINE) == (0, 1, 2)


def test_what_is_not_known_is_minus_one_or_nothing() -> None:
    assert wire07.FetchAnswer(1) == (1, b"")
    assert rs.OffsetsAnswer(1) == (1, ())
    assert rs.ProduceAckAnswer(1, 2) == (1, 2, -1, -1, -1)
    assert rs.HeldFetchAnswer(1, 2) == (1, 2, -1, -1, b"")
    assert rs.PartitionMetadata(1, 2, 3, 4, 5) == (1, 2, 3, 4, 5, 0)
    assert rs.TopicMetadata("t", 1, 2) == ("t", 1, 2, ())
    assert rs.MetadataAnswer(1, 2) == (1, 2, -1, "", -1, -1, -1, -1, -1, -1, ())
    assert rs.CutPointsAnswer(1, 2) == (1, 2, ())
    assert rs.LocalReadAnswer(1, 2) == (1, 2, "", "", -1, -1, ())
    assert rs.CreateTopicAnswer(1, 2) == (1, 2, -1)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_least_that_a_topic_and_a_partition_take(count: int) -> None:
    """A count is refused where one byte is missing of the least that so many take, before any of them is read."""
    topics = rs.encode_metadata(rs.MetadataAnswer(1, 0, topics=(rs.TopicMetadata("", 0, 1),) * count))[4:]
    assert len(rs.decode_metadata(topics).topics) == count
    with pytest.raises(ProtocolError, match=f"count of topics is {count}, with {12 * count - 1} bytes left"):
        rs.decode_metadata(topics[:-1])
    for version, size in ((1, 30), (2, 38)):
        parts = (rs.PartitionMetadata(0, 0, 0, 0, 0),) * count
        whole = rs.encode_metadata(rs.MetadataAnswer(1, 0, topics=(rs.TopicMetadata("", 0, 1, parts),)), version)[4:]
        assert len(rs.decode_metadata(whole, version).topics[0].partitions) == count
        with pytest.raises(ProtocolError, match=f"count of partitions is {count}, with {size * count - 1} bytes left"):
            rs.decode_metadata(whole[:-1], version)
