"""Listeners of a real broker: what each speaks, and where clients of each are told to connect."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import raw_client as raw
from tests.harness import today
from tests.harness.broker import Broker, wait_until
from tests.harness.timing import PATIENCE

METADATA = {"topics": None, "allow_auto_topic_creation": False}


def connected(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port))
    made.settimeout(PATIENCE)
    return made


@pytest.mark.parametrize("mode", ["handoff", "direct"])
def test_each_listener_speaks_what_it_is_told(start_broker: Callable[..., Broker], mode: str) -> None:
    """One pinned to today's protocol takes a Metadata for what it is, and tells its own clients its own address."""
    broker = start_broker(
        settings={
            "listeners": "BOTH://127.0.0.1:0,OLD://127.0.0.1:0,TODAY://127.0.0.1:0",
            "advertised.listeners": "today://localhost:1234",
            "listener.protocol.map": "old:kafka-0.7,today:kafka",
            "listener.security.protocol.map": "BOTH:PLAINTEXT,OLD:PLAINTEXT,TODAY:PLAINTEXT",
            "accept.mode": mode,
        },
    )
    said = re.search(
        r"listeners=BOTH://127.0.0.1:(\d+),OLD://127.0.0.1:(\d+),TODAY://127.0.0.1:(\d+) ", broker.log_text()
    )
    assert said is not None
    both, old, new = map(int, said.groups())
    with connected(new) as one:
        (told,) = today.asked(one, today.METADATA, 1, **METADATA).brokers
        assert (told.host, told.port) == ("localhost", 1234)
    with connected(both) as one:
        today.asked(one, today.API_VERSIONS, 3, client_software_name="a", client_software_version="1")
        found = today.asked(one, today.METADATA, 12, include_topic_authorized_operations=False, **METADATA)
        assert [(told.host, told.port) for told in found.brokers] == [("127.0.0.1", both)]
        assert len(found.cluster_id) == 22
    for port in (both, old):
        with connected(port) as one:
            one.sendall(raw.fetch_frame("t", 0, 0))
            assert one.recv(6) == struct.pack(">ih", 2, 0)
    with connected(old) as one:
        one.sendall(today.request(today.API_VERSIONS, 0, {}))
        assert one.recv(1) == b""
    with connected(new) as one:
        one.sendall(raw.own_frame(raw.METADATA, raw.metadata_body(["t"])))
        assert one.recv(1) == b""
    wait_until("it is said", lambda: "this listener speaks Kafka 0.7" in broker.log_text())


def test_the_cluster_keeps_its_id(start_broker: Callable[..., Broker], tmp_path: Path) -> None:
    ids = []
    for _ in range(2):
        broker = start_broker(directory=tmp_path)
        with connected(broker.port) as one:
            today.asked(one, today.API_VERSIONS, 0)
            ids.append(today.asked(one, today.METADATA, 2, **METADATA).cluster_id)
        assert broker.stop() == 0
    assert ids[0] == ids[1] and len(ids[0]) == 22


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (bytes.fromhex("16030100c8010000c40303"), "a TLS handshake came to a listener in plain text"),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "an HTTP request came to a port of Kafka's protocols"),
    ],
)
def test_what_is_no_request_is_named_once(start_broker: Callable[..., Broker], sent: bytes, said: str) -> None:
    """However often it comes in a row."""
    broker = start_broker(processors=1)
    for _ in range(20):
        with connected(broker.port) as one:
            one.sendall(sent)
            assert one.recv(1) == b""
    broker.wait_log(said)
    assert broker.log_text().count(said) == 1
