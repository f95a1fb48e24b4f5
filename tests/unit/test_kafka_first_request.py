"""What the first request of a connection decides: which protocol it speaks from then on, or that it is none."""

from __future__ import annotations

import socket
import struct
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from fastlog.workers.kafka import kinds
from tests.harness import raw_client as raw
from tests.harness import today
from tests.harness.workers import Workers, drain

VERSIONS = today.request(today.API_VERSIONS, 0, {})
FETCH = raw.fetch_frame("t", 0, 0)
NOTHING = struct.pack(">ih", 2, 0)
TLS_HELLO = bytes.fromhex("16030100c8010000c40303")
MOST = 100 * 2**20


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("log"), flusher=False) as running:
        yield running


def test_one_that_asks_for_versions_speaks_todays_protocol(workers: Workers) -> None:
    """From then on api key 3 is METADATA, and a request of fastlog's own is none."""
    with workers.connect() as client:
        assert today.asked(client.socket, today.API_VERSIONS, 0).error_code == 0
        assert today.asked(client.socket, today.METADATA, 1, topics=[]).topics == ()
        client.socket.sendall(raw.own_frame(raw.METADATA, raw.metadata_body(["t"])))
        assert drain(client) == b""


def test_any_other_speaks_07_from_then_on(workers: Workers) -> None:
    with workers.connect() as client:
        assert client.fetch("t", 0, 0) == (0, b"")
        before = workers.count("protocol_strangers")
        client.socket.sendall(VERSIONS)
        assert drain(client) == b""
        assert workers.count("protocol_strangers") == before + 1


ALL_TOPICS = {"topics": [], "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
FIRST_OF_TODAY = {
    "produce": (today.PRODUCE, 3, today.produced(("none", 0, b""))),
    "the last produce": (today.PRODUCE, 11, today.produced(("none", 0, b""))),
    "fetch": (today.FETCH, 4, today.fetched(("none", 0, 0))),
    "the last fetch": (today.FETCH, 16, today.fetched(("none", 0, 0), ids={"none": uuid.UUID(int=1)})),
    "list offsets": (today.LIST_OFFSETS, 1, today.listed(("none", 0, -1))),
    "the last list offsets": (today.LIST_OFFSETS, 9, today.listed(("none", 0, -1))),
    "metadata": (today.METADATA, 1, {"topics": []}),
    "the last metadata": (today.METADATA, 12, ALL_TOPICS),
}


@pytest.mark.parametrize(("key", "version", "fields"), FIRST_OF_TODAY.values(), ids=FIRST_OF_TODAY)
@pytest.mark.parametrize("correlation", [0, 65_535])
@pytest.mark.parametrize("client_id", [None, "", "kafkajs"])
def test_a_connection_that_has_the_versions_from_another_one_need_not_ask(
    workers: Workers, key: int, version: int, fields: dict[str, Any], correlation: int, client_id: str | None
) -> None:
    """kafkajs asks once, on its first connection."""
    with workers.connect() as client:
        client.socket.sendall(today.request(key, version, fields, correlation=correlation, client=client_id))
        assert today.decoded(key, version, today.answer_of(client.socket))[0] == correlation
        assert today.asked(client.socket, today.API_VERSIONS, 0).error_code == 0


def head(key: int, version: int, correlation: int, client_bytes: int, rest: bytes = b"") -> bytes:
    """A frame whose client id may be longer than it."""
    data = struct.pack(">hhih", key, version, correlation, client_bytes) + rest
    return struct.pack(">i", len(data)) + data


@pytest.mark.parametrize(
    "first",
    [
        today.request(today.METADATA, 1, {"topics": []}, correlation=65_536),
        today.request(today.METADATA, 1, {"topics": []}, correlation=-1),
        today.request(today.METADATA, 0, {"topics": []}),
        head(today.METADATA, 13, 0, -1, b"\0\0\0\0"),
        head(today.FETCH, 3, 0, -1, b"\0\0\0\0"),
        head(today.FETCH, 17, 0, -1, b"\0\0\0\0"),
        head(today.FETCH, 4, 0, -2, b"\0\0\0\0"),
        head(today.FETCH, 4, 0, 5, b"\0\0\0\0"),
        head(today.FETCH, 4, 0, -1)[:-1].replace(b"\0\0\0\x0a", b"\0\0\0\x09", 1) + b"\xff" * 9,
        head(10, 5, 0, -1),
        head(10, -1, 0, -1),
        head(4, 1, 0, -1),
        head(36, 1, 0, -1),
    ],
)
def test_what_may_be_0_7_is_taken_for_it(workers: Workers, first: bytes) -> None:
    before = workers.count("kafka_requests")
    with workers.connect() as client:
        client.socket.sendall(first)
        client.socket.shutdown(socket.SHUT_WR)
        assert drain(client) in (b"", NOTHING, struct.pack(">ih", 2, -1))
    assert workers.count("kafka_requests") == before


def test_a_client_id_that_fills_the_request_belongs_to_it(workers: Workers) -> None:
    """It is malformed, but today's."""
    before = workers.count("kafka_requests")
    with workers.connect() as client:
        client.socket.sendall(head(today.FETCH, 4, 0, 4, b"\0\0\0\0"))
        assert drain(client) == b""
    assert workers.count("kafka_requests") == before + 1


@pytest.mark.parametrize("size", range(1, 18))
def test_names_of_any_length_are_those_of_0_7(workers: Workers, size: int) -> None:
    """The length stands where today's requests have their version."""
    name = "n" * size
    several = [(name, 0, 0, 100)] * size
    with workers.connect() as client:
        assert client.fetch(name, 0, 0) == (0, b"")
    with workers.connect() as client:
        assert client.offsets(name, 0) is not None
    with workers.connect() as client:
        assert len(client.multifetch(several)) == size
    before = workers.count("kafka_requests")
    for sent in (raw.produce_frame(name, 0, b""), raw.multiproduce_frame([(name, 0, b"")] * size)):
        with workers.connect() as client:
            client.socket.sendall(sent + FETCH)
            assert client.recv_answer() == (0, b"")
    assert workers.count("kafka_requests") == before


@pytest.mark.parametrize(
    ("first", "answer_bytes"), [(VERSIONS, 4 + 4 + 2 + 4 + 6 * len(kinds.offered())), (FETCH, 6)], ids=["today", "0.7"]
)
@pytest.mark.parametrize("cut", range(1, 12))
def test_the_first_request_comes_in_two_pieces(workers: Workers, first: bytes, answer_bytes: int, cut: int) -> None:
    with workers.connect() as client:
        for piece in (first[:cut], first[cut:]):
            client.socket.sendall(piece)
            workers.wait_still()
        client.socket.shutdown(socket.SHUT_WR)
        assert len(drain(client)) == answer_bytes


@pytest.mark.parametrize("first", [VERSIONS, FETCH, TLS_HELLO, b"GET / HTTP/1.1\r\n\r\n"])
def test_a_connection_that_ends_within_its_first_request_leaves_nothing(workers: Workers, first: bytes) -> None:
    workers.wait_still()
    before = workers.held()
    for cut in (0, 3, 5, len(first) - 1):
        with workers.connect() as client:
            client.socket.sendall(first[:cut])
            client.socket.shutdown(socket.SHUT_WR)
            assert drain(client) == b""
    workers.wait_held(before)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (TLS_HELLO, "a TLS handshake came to a listener in plain text"),
        (b"GET / HTTP/1.1\r\n\r\n", "an HTTP request came"),
        (b"POST /x HTTP/1.1\r\n\r\n", "an HTTP request came"),
        (b"PRI * HTTP/2.0\r\n\r\n", "an HTTP request came"),
        (b"SSH-2.0-x\r\n", "an SSH client came"),
    ],
)
def test_what_is_no_request_is_named_in_one_line(
    workers: Workers, caplog: pytest.LogCaptureFixture, sent: bytes, said: str
) -> None:
    before = workers.count("protocol_strangers")
    with workers.connect() as client:
        client.socket.sendall(sent)
        assert drain(client) == b""
    assert workers.count("protocol_strangers") == before + 1
    assert [said in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"\0\0\0\1", "the announced request size is not allowed"),
        (struct.pack(">i", MOST + 1), "the announced request size is not allowed"),
        (b"rubbish!", "the announced request size is not allowed"),
        (struct.pack(">ih", 2, 36), "unknown request kind"),
        (struct.pack(">ih", 2, -18), "unknown request kind"),
    ],
)
def test_rubbish_is_refused_as_before(
    workers: Workers, caplog: pytest.LogCaptureFixture, sent: bytes, said: str
) -> None:
    before = workers.count("invalid_requests")
    with workers.connect() as client:
        client.socket.sendall(sent)
        assert drain(client) == b""
    assert workers.count("invalid_requests") == before + 1
    assert [said in record.getMessage() for record in caplog.records] == [True]
