"""What a processor knows of a connection: the same whether it was handed over or accepted there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fastlog.workers.authorization import ANONYMOUS
from fastlog.workers.net.handover import LAYOUT, HandOver
from tests.harness import raw_client as raw
from tests.harness.processor import Processor
from tests.harness.timing import PATIENCE

ADVERTISED = [("first.example", 1111), ("second.example", 2222), ("third.example", 3333)]
LISTEN = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::"), (socket.AF_INET6, "::1")]


@pytest.mark.parametrize(
    ("address", "host"),
    [
        (("10.1.2.3", 77), "10.1.2.3"),
        (("::1", 77, 0, 0), "::1"),
        (("::ffff:10.1.2.3", 77, 0, 0), "10.1.2.3"),
        (("fe80::1%eth0", 77, 0, 2), "fe80::1"),
        (
            ("fe80:1111:2222:3333:4444:5555:6666:7777%schnittstelle-für-alle", 77, 0, 3),
            "fe80:1111:2222:3333:4444:5555:6666:7777",
        ),
        (("fe80:1111:2222:3333:4444:5555:6666:7777", 77, 0, 3), "fe80:1111:2222:3333:4444:5555:6666:7777"),
    ],
)
def test_a_record_names_listener_and_peer(address: tuple[object, ...], host: str) -> None:
    record = HandOver.accepted(3, address)
    assert record == HandOver(3, host, 77, principal=0, transport=0)
    assert HandOver.unpack(record.pack()) == record
    assert len(record.pack()) == LAYOUT.size == 56


def test_a_socket_without_an_address_has_none() -> None:
    """As a Unix socket."""
    assert HandOver.accepted(0, "") == HandOver(0, "", 0)
    assert HandOver.unpack(HandOver(0, "", 0).pack()) == HandOver(0, "", 0)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def listening(stack: ExitStack) -> list[socket.socket]:
    """Listening sockets of IPv4, of both, and of IPv6."""
    made = []
    for family, host in LISTEN:
        server = stack.enter_context(socket.socket(family))
        if host == "::":
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind((host, 0))
        server.listen()
        made.append(server)
    return made


@pytest.mark.parametrize("mode", ["handoff", "direct"])
def test_a_connection_knows_its_listener_and_its_host(mode: str, tmp_path: Path, stack: ExitStack) -> None:
    """Each is told the address of the listener that it came through."""
    asked: list[tuple[str, str]] = []

    def rule(principal: str, host: str, *_: object) -> bool:
        asked.append((principal, host))
        return True

    servers = listening(stack)
    fds: tuple[int, ...] = ()
    if mode == "direct":
        for server in servers:
            server.setblocking(False)
        fds = tuple(server.fileno() for server in servers)
    processor = Processor(tmp_path, listeners=fds, rule=rule, advertised=ADVERTISED)
    stack.callback(processor.close)
    for number, (server, host) in enumerate(zip(servers, ["127.0.0.1", "127.0.0.1", "::1"], strict=True)):
        client = stack.enter_context(raw.RawClient(server.getsockname()[1], host))
        if mode == "handoff":
            accepted, address = server.accept()
            with accepted:
                processor.send_record(accepted, HandOver.accepted(number, address))
        told = client.metadata(["t"])
        assert (told.host, told.port) == ADVERTISED[number]
        assert client.fetch("t", 0, 0) == (0, b"")
        assert asked == [(ANONYMOUS, host)] * 2
        asked.clear()


def test_the_host_of_who_has_gone_is_known(tmp_path: Path, stack: ExitStack) -> None:
    """What it sent is judged as if it were still there."""
    asked: list[tuple[object, ...]] = []

    def rule(*what: object) -> bool:
        asked.append(what)
        return False

    processor = Processor(tmp_path, rule=rule)
    stack.callback(processor.close)
    ours, theirs = socket.socketpair()
    ours.sendall(raw.produce_frame("t", 0, raw.entry(b"one")))
    ours.close()
    with theirs:
        processor.send_record(theirs, HandOver(0, "10.1.2.3", 7))
    processor.close()
    assert [what[1] for what in asked] == ["10.1.2.3"]


@pytest.mark.parametrize("size", [1, LAYOUT.size - 1])
def test_a_record_that_is_cut_short_takes_nobody_with_it(size: int, tmp_path: Path, stack: ExitStack) -> None:
    """Its connection is closed, not served as another's, and the next one is served."""
    processor = Processor(tmp_path)
    stack.callback(processor.close)
    ours, theirs = socket.socketpair()
    stack.callback(ours.close)
    with theirs:
        socket.send_fds(processor.send, [HandOver(0, "10.1.2.3", 7).pack()[:size]], [theirs.fileno()])
    ours.settimeout(PATIENCE)
    assert ours.recv(1) == b""
    with processor.connect() as served:
        served.sendall(raw.fetch_frame("t", 0, 0))
        assert served.recv(6) == b"\0\0\0\2\0\0"
    counted = processor.arena.counters(processor.number)
    assert (counted["handovers"], counted["refused_connections"]) == (1, 1)
