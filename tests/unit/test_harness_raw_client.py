"""The tests' own client: its bytes are those of Kafka 0.7, and its codecs agree with other implementations.

Source: frames exchanged by Kafka 0.7 clients (librdkafka's 0.7 branch, kafka-python), recorded as hexadecimal.
"""

from __future__ import annotations

import gzip
import random
import socket
import struct

import pytest
import snappy

from tests.harness import raw_client as raw
from tests.harness.data import LENGTHS, LONGEST, generated_lines

HELLO0 = "0000000a 00 3610a686 68656c6c6f"
HELLO1 = "0000000b 01 00 3610a686 68656c6c6f"
BODY_P0 = "0004 74657374 00000000 0000000f 0000000b01003610a68668656c6c6f"
BODY_ANY = "0004 74657374 ffffffff 0000000f 0000000b01003610a68668656c6c6f"
INNER = "0000000901007a6c86f16f6e65 00000009010011ca8a6674776f 0000000b010046c5d8f57468726565"
SNAPPY_WRAPPER = (
    "00000042 01 02 4231e2d3 82534e41505059000000000100000001 00000028"
    "29300000000901007a6c86f16f6e65090d5411ca8a6674776f0000000b010046c5d8f57468726565"
)
HELLO_SET = raw.entry(b"hello")

GOLDEN = [
    ("message magic 0", raw.entry(b"hello", 0), HELLO0),
    ("message magic 1", HELLO_SET, HELLO1),
    ("empty message", raw.entry(b""), "00000006 01 00 00000000"),
    ("produce", raw.produce_frame("test", 0, HELLO_SET), "0000001f 0000" + BODY_P0),
    ("produce anywhere", raw.produce_frame("test", -1, HELLO_SET), "0000001f 0000" + BODY_ANY),
    (
        "multiproduce",
        raw.multiproduce_frame([("test", 0, HELLO_SET), ("test", -1, HELLO_SET)]),
        "0000003e 0003 0002" + BODY_P0 + BODY_ANY,
    ),
    ("fetch", raw.fetch_frame("test", 0, 0, 1 << 20), "00000018 0001 0004 74657374 00000000 0000000000000000 00100000"),
    (
        "multifetch",
        raw.multifetch_frame([("test", 0, 0, 1 << 20), ("test", 1, 15, 1 << 20)]),
        "00000030 0002 0002 000474657374 00000000 0000000000000000 00100000"
        "000474657374 00000001 000000000000000f 00100000",
    ),
    ("latest", raw.offsets_frame("test", 0, -1, 10), "00000018 0004 0004 74657374 00000000 ffffffffffffffff 0000000a"),
    ("earliest", raw.offsets_frame("test", 0, -2, 10), "00000018 0004 000474657374 00000000 fffffffffffffffe 0000000a"),
    ("inner set", raw.message_set([b"one", b"two", b"three"]), INNER),
    (
        "own request",
        raw.own_frame(1002, raw.metadata_body(None), correlation=7),
        "0000000c 03ea 0001 00000007 ffffffff",
    ),
]


@pytest.mark.parametrize(("encoded", "expected"), [case[1:] for case in GOLDEN], ids=[case[0] for case in GOLDEN])
def test_encoder_gives_the_recorded_bytes(encoded: bytes, expected: str) -> None:
    """What this client sends is what 0.7's clients send."""
    assert encoded == bytes.fromhex(expected)


def test_recorded_snappy_wrapper_is_opened() -> None:
    """A wrapper made by snappy-java opens to its three messages, copies across literals included."""
    assert raw.deep_payloads(bytes.fromhex(SNAPPY_WRAPPER)) == [b"one", b"two", b"three"]


def test_recorded_answers_are_decoded() -> None:
    """The parts of a MULTIFETCH answer and the values of an OFFSETS answer come out as they were recorded."""
    parts = raw.decode_multifetch(bytes.fromhex("00000011 0000" + HELLO1 + "00000002 0001"))
    assert parts == [raw.Answer(0, bytes.fromhex(HELLO1)), raw.Answer(1, b"")]
    body = "00000004 00000000000000f0 00000000000000d8 000000000000006c 0000000000000000"
    assert raw.decode_offsets(bytes.fromhex(body)) == [240, 216, 108, 0]


def blocks() -> list[bytes]:
    source = random.Random(3)
    text = b"\n".join(generated_lines(300))
    sizes = [0, 1, 59, 60, 61, 255, 256, 257, 65535, 65536, 65537]
    return [source.randbytes(size) for size in sizes] + [text, b"a" * 100_000, text[:50] * 900]


@pytest.mark.parametrize("data", blocks(), ids=len)
def test_snappy_agrees_with_the_library(data: bytes) -> None:
    """Each side reads what the other wrote, at every size class of literals and with overlapping copies."""
    assert snappy.decompress(raw.snappy_encode(data)) == data
    assert raw.snappy_decode(snappy.compress(data)) == data
    assert raw.xerial_decode(raw.xerial_encode(data)) == data


@pytest.mark.parametrize("damaged", ["", "ff" * 6, "05", "0500 61", "05f0ff", "0c0061 0105", "021401 0000"])
def test_damaged_snappy_is_refused(damaged: str) -> None:
    """A block that contradicts itself raises instead of giving bytes."""
    with pytest.raises((ValueError, IndexError)):
        raw.snappy_decode(bytes.fromhex(damaged))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [raw.NONE, raw.GZIP, raw.SNAPPY])
def test_sets_come_back(magic: int, codec: int) -> None:
    """Encoding and decoding a set gives its payloads; an empty list gives no bytes, with any codec."""
    payloads = [b"", b"x", *generated_lines(200)]
    data = raw.message_set(payloads, magic, codec)
    assert raw.deep_payloads(data) == payloads
    assert len(raw.entries(data)) == (len(payloads) if codec == raw.NONE else 1)
    assert raw.message_set([], magic, codec) == b""


def test_gzip_wrapper_has_time_zero() -> None:
    """As java.util.zip writes it; any gzip reader opens it."""
    payload = raw.compress(b"abc", raw.GZIP)
    assert payload[4:8] == bytes(4)
    assert gzip.decompress(payload) == b"abc"


def test_entries_stop_at_a_cut_message_and_raise_on_a_damaged_one() -> None:
    """A cut entry at the end is left out; a wrong checksum, size or magic raises."""
    data = raw.message_set([b"one", b"two"])
    assert [item.next_offset for item in raw.entries(data[:-1], 100)] == [113]
    for bad in (raw.entry(b"x", crc=1), struct.pack(">iB", 4, 1) + bytes(3), raw.entry(b"x", 2)):
        with pytest.raises(ValueError):
            raw.entries(data + bad)


def test_client_gives_up_in_time_and_notices_the_end() -> None:
    """A silent server costs the time-out, a closing one raises ConnectionClosed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        with raw.connect(server.getsockname()[1], timeout=0.05) as client, server.accept()[0] as peer:
            with pytest.raises(TimeoutError):
                client.recv_frame()
            assert not client.is_closed(within=0.02)
            peer.sendall(bytes.fromhex("000000020001"))
            assert client.recv_answer() == raw.Answer(1, b"")
            peer.sendall(b"\0\0")
        with raw.connect(server.getsockname()[1]) as client:
            server.accept()[0].close()
            with pytest.raises(raw.ConnectionClosed):
                client.recv_frame()


def test_generated_lines_have_the_lengths_of_the_real_log() -> None:
    """81 to 1,363 bytes, median 231, one line each, the same ones every time."""
    lines = generated_lines(10_000)
    lengths = sorted(map(len, lines))
    assert (lengths[0], lengths[-1]) == (LENGTHS[0], LONGEST)
    assert abs(lengths[5000] - LENGTHS[10]) <= 3
    assert lines == generated_lines(10_000)
    assert not any(b"\n" in line or b"\r" in line for line in lines)
