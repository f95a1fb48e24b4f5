"""Answers byte for byte as in Kafka 0.7, and fastlog's own; damaged ones raise only what is declared."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastlog.errors import ProtocolError
from fastlog.wire import responses as rs
from tests.harness import wire07

HELLO = bytes.fromhex("0000000b01003610a68668656c6c6f")
METADATA = rs.MetadataAnswer(
    correlation_id=5,
    error=0,
    broker_id=1,
    advertised_host="h",
    port=9092,
    max_message_bytes=1_000_000,
    max_request_bytes=2**20,
    max_wait_ms=30_000,
    lowest_own_id=1000,
    highest_own_id=1006,
    topics=(
        rs.TopicMetadata("a", 0, 2, (rs.PartitionMetadata(1, rs.STATE_READ_ONLY, 10, 20, 30, 1_700_000_000_000),)),
        rs.TopicMetadata("/", 100, 0),
    ),
)
NOT_KNOWN = METADATA.topics[0]._replace(partitions=(rs.PartitionMetadata(1, rs.STATE_READ_ONLY, 10, 20, 30),))
"""What version 1 says of the first topic: nothing of the log's creation."""
OFFSETS_HEX = "00000004 00000000000000f0 00000000000000d8 000000000000006c 0000000000000000"


def decode_metadata_1(body: bytes) -> rs.MetadataAnswer:
    return rs.decode_metadata(body, 1)


# encoded, golden bytes, decoder, what it gives
Case = tuple[bytes, str, Callable[[bytes], Any], Any]
GOLDEN: dict[str, Case] = {
    "fetch, one message": (
        wire07.encode_fetch(0, HELLO),
        f"00000011 0000 {HELLO.hex()}",
        wire07.decode_fetch,
        wire07.FetchAnswer(0, HELLO),
    ),
    "fetch, empty": (wire07.encode_fetch(0), "00000002 0000", wire07.decode_fetch, wire07.FetchAnswer(0)),
    "fetch, error 1": (wire07.encode_fetch(1), "00000002 0001", wire07.decode_fetch, wire07.FetchAnswer(1)),
    "fetch, error -1": (wire07.encode_fetch(-1), "00000002 ffff", wire07.decode_fetch, wire07.FetchAnswer(-1)),
    "multifetch": (
        wire07.encode_multifetch([wire07.FetchAnswer(0, HELLO), wire07.FetchAnswer(1)]),
        f"0000001d 0000 00000011 0000 {HELLO.hex()} 00000002 0001",
        wire07.decode_multifetch,
        (wire07.FetchAnswer(0, HELLO), wire07.FetchAnswer(1)),
    ),
    "offsets": (
        rs.encode_offsets(0, [240, 216, 108, 0]),
        f"00000026 0000 {OFFSETS_HEX}",
        rs.decode_offsets,
        rs.OffsetsAnswer(0, (240, 216, 108, 0)),
    ),
    "offsets, none": (
        rs.encode_offsets(0),
        "00000006 0000 00000000",
        rs.decode_offsets,
        rs.OffsetsAnswer(0),
    ),
    # fastlog's own, from the tables of docs/protocol.md
    "produce ack": (
        wire07.encode_produce_ack(rs.ProduceAckAnswer(7, 0, 3, 15, 30)),
        "0000001a 00000007 0000 00000003 000000000000000f 000000000000001e",
        rs.decode_produce_ack,
        rs.ProduceAckAnswer(7, 0, 3, 15, 30),
    ),
    "produce ack, error": (
        wire07.encode_produce_ack(rs.ProduceAckAnswer(7, 102)),
        "0000001a 00000007 0066 ffffffff ffffffffffffffff ffffffffffffffff",
        rs.decode_produce_ack,
        rs.ProduceAckAnswer(7, 102),
    ),
    "held fetch": (
        wire07.encode_held_fetch(rs.HeldFetchAnswer(8, 0, 30, 15, HELLO)),
        f"00000025 00000008 0000 000000000000001e 000000000000000f {HELLO.hex()}",
        rs.decode_held_fetch,
        rs.HeldFetchAnswer(8, 0, 30, 15, HELLO),
    ),
    "held fetch, error": (
        wire07.encode_held_fetch(rs.HeldFetchAnswer(8, 1, 30, 15, HELLO)),
        "00000016 00000008 0001 000000000000001e 000000000000000f",
        rs.decode_held_fetch,
        rs.HeldFetchAnswer(8, 1, 30, 15),
    ),
    "metadata": (
        rs.encode_metadata(METADATA),
        "00000065 00000005 0000 00000001 000168 00002384 000f4240 00100000 00007530 03e8 03ee 00000002"
        "000161 0000 00000002 00000001 00000001 0001 000000000000000a 0000000000000014 000000000000001e"
        "0000018bcfe56800"
        "00012f 0064 00000000 00000000",
        rs.decode_metadata,
        METADATA,
    ),
    "metadata, version 1": (
        rs.encode_metadata(METADATA, 1),
        "0000005d 00000005 0000 00000001 000168 00002384 000f4240 00100000 00007530 03e8 03ee 00000002"
        "000161 0000 00000002 00000001 00000001 0001 000000000000000a 0000000000000014 000000000000001e"
        "00012f 0064 00000000 00000000",
        decode_metadata_1,
        METADATA._replace(topics=(NOT_KNOWN, METADATA.topics[1])),
    ),
    "cut points": (
        rs.encode_cut_points(rs.CutPointsAnswer(10, 0, (15, 30))),
        "0000001a 0000000a 0000 00000002 000000000000000f 000000000000001e",
        rs.decode_cut_points,
        rs.CutPointsAnswer(10, 0, (15, 30)),
    ),
    "local read": (
        rs.encode_local_read(rs.LocalReadAnswer(11, 0, "/d/a-0", "kafka-0.7", 0, 30, (0, 15))),
        "0000003d 0000000b 0000 0006 2f642f612d30 0009 6b61666b612d302e37 0000000000000000 000000000000001e"
        "00000002 0000000000000000 000000000000000f",
        rs.decode_local_read,
        rs.LocalReadAnswer(11, 0, "/d/a-0", "kafka-0.7", 0, 30, (0, 15)),
    ),
    "create topic": (
        rs.encode_create_topic(rs.CreateTopicAnswer(12, 0, 4)),
        "0000000a 0000000c 0000 00000004",
        rs.decode_create_topic,
        rs.CreateTopicAnswer(12, 0, 4),
    ),
    "delete topic": (
        rs.encode_delete_topic(rs.DeleteTopicAnswer(13, 0, 4)),
        "0000000a 0000000d 0000 00000004",
        rs.decode_delete_topic,
        rs.DeleteTopicAnswer(13, 0, 4),
    ),
}
DECODERS = sorted({case[2] for case in GOLDEN.values()}, key=lambda decode: decode.__name__)
OWN = {
    rs.decode_produce_ack,
    rs.decode_metadata,
    decode_metadata_1,
    rs.decode_cut_points,
    rs.decode_local_read,
    rs.decode_create_topic,
    rs.decode_delete_topic,
}
each_golden = pytest.mark.parametrize("name", GOLDEN)


@each_golden
def test_encodes_to_the_golden_bytes(name: str) -> None:
    encoded, golden, _, _ = GOLDEN[name]
    assert encoded.hex() == golden.replace(" ", "")


@each_golden
def test_decodes_the_golden_bytes(name: str) -> None:
    _, golden, decode, answer = GOLDEN[name]
    assert decode(bytes.fromhex(golden)[4:]) == answer


@each_golden
def test_truncations_are_refused_or_end_in_the_free_part(name: str) -> None:
    """Only a message set has no count: whatever is fetched may be cut, by the broker too."""
    encoded, _, decode, answer = GOLDEN[name]
    body = encoded[4:]
    for size in range(len(body)):
        try:
            short = decode(body[:size])
        except ProtocolError:
            continue
        if short == rs.HeldFetchAnswer(8, 1):
            assert size == 6  # an error needs no body
        elif isinstance(short, wire07.FetchAnswer | rs.HeldFetchAnswer):
            assert answer.message_set.startswith(short.message_set) and len(short.message_set) < len(answer.message_set)
        elif type(short) is tuple:
            assert short == answer[: len(short)] and len(short) < len(answer)
        else:
            assert short == rs.ProduceAckAnswer(7, 102) and size == 6  # an error needs no body


@pytest.mark.parametrize("name", [name for name, case in GOLDEN.items() if case[2] in OWN])
def test_own_answers_end_exactly(name: str) -> None:
    encoded, _, decode, _ = GOLDEN[name]
    with pytest.raises(ProtocolError):
        decode(encoded[4:] + b"x")


@given(st.sampled_from(sorted(GOLDEN)), st.data())
def test_mutated_answers_raise_only_what_is_declared(name: str, data: st.DataObject) -> None:
    encoded, _, decode, _ = GOLDEN[name]
    body = bytearray(encoded[4:])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        decode(bytes(body))


@given(st.sampled_from(DECODERS), st.binary(max_size=80))
def test_random_bytes_raise_only_what_is_declared(decode: Callable[[bytes], Any], body: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode(body)


@pytest.mark.parametrize(
    ("decode", "body"),
    [
        (rs.decode_offsets, "0000 ffffffff"),
        (rs.decode_offsets, "0000 7fffffff 0000000000000000"),
        (wire07.decode_multifetch, "0000 00000001 00"),
        (wire07.decode_multifetch, "0000 ffffffff"),
        (wire07.decode_multifetch, "0000 7fffffff 0000"),
        (rs.decode_cut_points, "00000001 0000 7fffffff 0000000000000000"),
    ],
)
def test_claims_are_checked(decode: Callable[[bytes], Any], body: str) -> None:
    """T-25: a hostile broker's counts and sizes are refused before anything is made for them."""
    with pytest.raises(ProtocolError):
        decode(bytes.fromhex(body))


def test_error_answers_have_no_messages() -> None:
    """Old clients drain a fixed number of bytes after an error; more would put them out of step."""
    assert wire07.encode_fetch(3, HELLO) == wire07.encode_fetch(3)
    for encode, answer in (
        (rs.encode_metadata, rs.MetadataAnswer(1, 3, topics=METADATA.topics)),
        (rs.encode_cut_points, rs.CutPointsAnswer(1, 3, (1,))),
        (rs.encode_local_read, rs.LocalReadAnswer(1, 3, "x")),
        (rs.encode_create_topic, rs.CreateTopicAnswer(1, 3, 1)),
        (rs.encode_delete_topic, rs.DeleteTopicAnswer(1, 3, 1)),
    ):
        assert encode(answer).hex() == "00000006000000010003"  # type: ignore[operator]


def test_offsets_error_without_count_is_read() -> None:
    assert rs.decode_offsets(bytes.fromhex("0003")) == rs.OffsetsAnswer(3)
    assert rs.decode_offsets(bytes.fromhex("000300000000")) == rs.OffsetsAnswer(3)
