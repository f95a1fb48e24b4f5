"""What the first request of a connection decides: which protocol it speaks from then on, or that it is none."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from fastlog.workers.kafka import kinds
from tests.harness import raw_client as raw
from tests.harness import today
from tests.harness.workers import Workers, drain

VERSIONS = today.request(today.API_VERSIONS, 0, {})
METADATA = today.request(today.METADATA, 1, {"topics": []})
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


def test_a_client_of_today_that_does_not_ask_for_versions_needs_a_listener_of_its_own(workers: Workers) -> None:
    """Its METADATA begins as a MULTIPRODUCE does, which has no answer."""
    with workers.connect() as client:
        before = workers.count("kafka_requests")
        client.socket.sendall(METADATA + FETCH)
        assert drain(client) in (b"", NOTHING)
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
    assert [said in record.message for record in caplog.records] == [True]


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
    assert [said in record.message for record in caplog.records] == [True]
