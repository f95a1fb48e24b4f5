"""Requests byte for byte as in Kafka 0.7, and fastlog's own; damaged ones raise only what is declared."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastlog.errors import InvalidRequestError, UnsupportedVersionError
from fastlog.wire import requests as rq
from tests.harness import wire07

HELLO = bytes.fromhex("0000000b01003610a68668656c6c6f")
TEST_0 = "0004 74657374 00000000"
# Golden frames, checked against kafka-python's vectors and a live librdkafka 0.7.
GOLDEN: dict[str, tuple[bytes, str, rq.Request]] = {
    "produce": (
        rq.encode_produce("test", 0, HELLO),
        f"0000001f 0000 {TEST_0} 0000000f {HELLO.hex()}",
        wire07.ProduceRequest("test", 0, HELLO),
    ),
    "produce to any partition": (
        rq.encode_produce("test", -1, HELLO),
        f"0000001f 0000 0004 74657374 ffffffff 0000000f {HELLO.hex()}",
        wire07.ProduceRequest("test", -1, HELLO),
    ),
    "multiproduce": (
        rq.encode_multiproduce([("test", 0, HELLO), ("test", -1, HELLO)]),
        f"0000003e 0003 0002 {TEST_0} 0000000f {HELLO.hex()} 0004 74657374 ffffffff 0000000f {HELLO.hex()}",
        wire07.MultiProduceRequest((wire07.ProduceRequest("test", 0, HELLO), wire07.ProduceRequest("test", -1, HELLO))),
    ),
    "fetch": (
        rq.encode_fetch("test", 0, 0, 2**20),
        f"00000018 0001 {TEST_0} 0000000000000000 00100000",
        wire07.FetchRequest("test", 0, 0, 2**20),
    ),
    "multifetch": (
        rq.encode_multifetch([("test", 0, 0, 2**20), ("test", 1, 15, 2**20)]),
        f"00000030 0002 0002 {TEST_0} 0000000000000000 00100000000474657374 00000001 000000000000000f 00100000",
        wire07.MultiFetchRequest((wire07.FetchRequest("test", 0, 0, 2**20), wire07.FetchRequest("test", 1, 15, 2**20))),
    ),
    "offsets, latest": (
        rq.encode_offsets("test", 0, rq.TIME_LATEST, 10),
        f"00000018 0004 {TEST_0} ffffffffffffffff 0000000a",
        rq.OffsetsRequest("test", 0, -1, 10),
    ),
    "offsets, earliest": (
        rq.encode_offsets("test", 0, rq.TIME_EARLIEST, 10),
        f"00000018 0004 {TEST_0} fffffffffffffffe 0000000a",
        rq.OffsetsRequest("test", 0, -2, 10),
    ),
    # fastlog's own, from the tables of docs/protocol.md
    "produce ack": (
        rq.encode_produce_ack(7, rq.ACKS_FLUSHED, "test", 0, HELLO),
        f"00000034 03e8 0001 00000007 02 ffffffffffffffff ffff ffffffff {TEST_0} 0000000f {HELLO.hex()}",
        wire07.ProduceAckRequest(7, 2, "test", 0, HELLO),
    ),
    "held fetch": (
        rq.encode_held_fetch(8, 500, 1, "test", 0, 15, 2**20),
        f"00000026 03e9 0001 00000008 000001f4 00000001 {TEST_0} 000000000000000f 00100000",
        wire07.HeldFetchRequest(8, 500, 1, "test", 0, 15, 2**20),
    ),
    "metadata of all": (
        rq.encode_metadata(9),
        "0000000c 03ea 0002 00000009 ffffffff",
        rq.MetadataRequest(9, None),
    ),
    "metadata of none": (
        rq.encode_metadata(9, []),
        "0000000c 03ea 0002 00000009 00000000",
        rq.MetadataRequest(9, ()),
    ),
    "metadata of two": (
        rq.encode_metadata(9, ["a", "é"]),
        "00000013 03ea 0002 00000009 00000002 000161 0002c3a9",
        rq.MetadataRequest(9, ("a", "é")),
    ),
    "metadata of two, version 1": (
        rq.encode_metadata(9, ["a", "é"], 1),
        "00000013 03ea 0001 00000009 00000002 000161 0002c3a9",
        rq.MetadataRequest(9, ("a", "é"), 1),
    ),
    "cut points": (
        rq.encode_cut_points(10, "test", 0, 15, 300, 64, 100),
        f"0000002e 03eb 0001 0000000a {TEST_0} 000000000000000f 000000000000012c 0000000000000040 00000064",
        rq.CutPointsRequest(10, "test", 0, 15, 300, 64, 100),
    ),
    "local read": (
        rq.encode_local_read(11, "test", 0),
        f"00000012 03ec 0001 0000000b {TEST_0}",
        rq.LocalReadRequest(11, "test", 0),
    ),
    "create topic": (
        rq.encode_create_topic(12, "test", 4),
        "00000012 03ed 0001 0000000c 0004 74657374 00000004",
        rq.CreateTopicRequest(12, "test", 4),
    ),
    "delete topic": (
        rq.encode_delete_topic(13, "test"),
        "0000000e 03ee 0001 0000000d 0004 74657374",
        rq.DeleteTopicRequest(13, "test"),
    ),
}
each_golden = pytest.mark.parametrize("name", GOLDEN)


@each_golden
def test_encodes_to_the_golden_bytes(name: str) -> None:
    encoded, golden, _ = GOLDEN[name]
    assert encoded.hex() == golden.replace(" ", "")


@each_golden
def test_decodes_the_golden_bytes(name: str) -> None:
    _, golden, request = GOLDEN[name]
    assert wire07.decode_request(bytes.fromhex(golden)[4:]) == request


@each_golden
def test_every_truncation_is_refused(name: str) -> None:
    body = GOLDEN[name][0][4:]
    for size in range(len(body)):
        with pytest.raises(InvalidRequestError):
            wire07.decode_request(body[:size])


@each_golden
def test_trailing_bytes(name: str) -> None:
    """0.7.2 ignores bytes behind the last field; fastlog's own requests end exactly."""
    encoded, _, request = GOLDEN[name]
    if struct.unpack_from(">h", encoded, 4)[0] < rq.LOWEST_OWN:
        assert wire07.decode_request(encoded[4:] + b"more") == request
    else:
        with pytest.raises(InvalidRequestError):
            wire07.decode_request(encoded[4:] + b"more")


@given(st.sampled_from(sorted(GOLDEN)), st.data())
def test_mutated_requests_raise_only_what_is_declared(name: str, data: st.DataObject) -> None:
    body = bytearray(GOLDEN[name][0][4:])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InvalidRequestError, UnsupportedVersionError):
        wire07.decode_request(bytes(body))


@given(st.binary(max_size=80))
def test_random_bytes_raise_only_what_is_declared(body: bytes) -> None:
    with contextlib.suppress(InvalidRequestError, UnsupportedVersionError):
        wire07.decode_request(body)


@pytest.mark.parametrize("kind", [-1, 5, 18, 999, 1007])
def test_unknown_ids(kind: int) -> None:
    with pytest.raises(InvalidRequestError, match=str(kind)):
        wire07.decode_request(struct.pack(">h", kind) + b"\0" * 30)


def test_unknown_version_is_told_apart() -> None:
    for frame, version in ((rq.encode_metadata(1), 3), (rq.encode_local_read(1, "t", 0), 2)):
        body = bytearray(frame[4:])
        body[3] = version
        with pytest.raises(UnsupportedVersionError, match=f"version {version}"):
            wire07.decode_request(bytes(body))


@pytest.mark.parametrize(
    "body",
    [
        "0000 ffff 00000000 00000000",  # topic length -1
        "0000 7fff 61 00000000 00000000",  # topic length 32767 with one byte there
        "0000 0001 61 00000000 ffffffff",  # set size -1
        "0000 0001 61 00000000 7fffffff",  # set size beyond the frame
        "0000 0001 ff 00000000 00000000",  # a topic that is not UTF-8
        "0002 ffff",  # count -1
        "0002 7fff 0001 61 00000000 0000000000000000 00000000",  # more fetches than can follow
        "0003 7fff 0001 61 00000000 00000000",
        "03ea 0001 00000000 7fffffff 0000",  # more topics than can follow
        "03ea 0001 00000000 fffffffe",
        "03ea 0001 00000000 ffffffff 0000",  # all topics, then a name
        "03e8 0001 00000000 00 ffffffffffffffff ffff ffffffff 0001 61 00000000 00000000",  # acks 0
        "03e8 0001 00000000 03 ffffffffffffffff ffff ffffffff 0001 61 00000000 00000000",  # acks 3
    ],
)
def test_claims_are_checked(body: str) -> None:
    """T-19: lengths and counts beyond the frame are refused before anything is made for them."""
    with pytest.raises(InvalidRequestError):
        wire07.decode_request(bytes.fromhex(body))


def test_nothing_to_fetch_or_produce_is_a_request() -> None:
    assert wire07.decode_request(rq.encode_multifetch([])[4:]) == wire07.MultiFetchRequest(())
    assert wire07.decode_request(rq.encode_multiproduce([])[4:]) == wire07.MultiProduceRequest(())


@pytest.mark.parametrize(
    "write",
    [
        lambda: rq.encode_produce("x" * 40000, 0, b""),
        lambda: rq.encode_produce("x", 2**31, b""),
        lambda: rq.encode_fetch("x", 0, 2**63, 1),
        lambda: rq.encode_multifetch([("x", 0, 0, 1)] * 2**15),
        lambda: rq.encode_produce_ack(2**31, 1, "x", 0, b""),
    ],
)
def test_fields_out_of_range_are_not_written(write: Callable[[], bytes]) -> None:
    with pytest.raises(InvalidRequestError):
        write()
