"""``fastlog.testing`` without a broker: its proxy between two plain sockets, and what it leaves behind."""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastlog.testing import BrokerStartError, running
from fastlog.testing.proxy import Proxy
from tests.harness.broker import wait_until
from tests.harness.descriptors import count_descriptors
from tests.harness.timing import PATIENCE

zookeeper = importlib.import_module("fastlog.testing.zookeeper")  # which a function of that name hides


@pytest.mark.parametrize("kind", ["broker", "zookeeper"])
def test_nothing_is_called_at_the_end_for_what_was_closed_before(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept: list[object] = []
    ends = SimpleNamespace(register=lambda call: kept.append(call) or call, unregister=kept.remove)
    monkeypatch.setattr(running if kind == "broker" else zookeeper, "atexit", ends)
    if kind == "broker":
        with pytest.raises(BrokerStartError):
            running.RunningBroker(host="127.0.0.1.1", directory=tmp_path).open()
    else:
        monkeypatch.setattr(zookeeper, "make_ensemble", lambda *_, **__: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            zookeeper.RunningZooKeeper().open()
    assert kept == []


class Server:
    """Stands for one of ZooKeeper."""

    pid = os.getpid()

    def __init__(self, number: int, calls: list[tuple[int, str]]) -> None:
        for name in ("start", "stop", "kill", "signal", "wait_ready"):
            setattr(self, name, lambda *_, name=name: calls.append((number, name)))


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, list[tuple[int, str]]]]:
    """A ZooKeeper of two servers that are none, and what they were asked for."""
    calls: list[tuple[int, str]] = []
    made = SimpleNamespace(servers=[Server(number, calls) for number in (0, 1)], start=lambda timeout: None)
    monkeypatch.setattr(zookeeper, "make_ensemble", lambda *_, **__: made)
    with zookeeper.RunningZooKeeper(2) as found:
        yield found, calls


def test_one_server_is_stopped_and_has_started_when_it_serves(servers: tuple[Any, list[tuple[int, str]]]) -> None:
    found, calls = servers
    found.stop(1)
    found.start(1)
    found.kill()
    assert calls == [(1, "stop"), (1, "start"), (1, "wait_ready"), (0, "kill")]


def test_a_server_is_paused_when_each_of_its_threads_stands(
    servers: tuple[Any, list[tuple[int, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of this process's: it stands when it has been looked at three times."""
    found, _ = servers
    goes_on = threading.Event()
    thread = threading.Thread(target=goes_on.wait)
    thread.start()
    looks: list[int] = []

    def state(task: int) -> str:
        looks.append(task)
        return "S" if task == thread.native_id and looks.count(task) < 3 else "T"

    monkeypatch.setattr(zookeeper, "state", state)
    try:
        found.pause()
        assert thread.native_id is not None and looks.count(thread.native_id) == 3
    finally:
        goes_on.set()
        thread.join()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(PATIENCE)
        yield made


@pytest.fixture
def proxy(listener: socket.socket) -> Iterator[Proxy]:
    with Proxy(listener.getsockname()) as made:
        yield made


@contextlib.contextmanager
def connected(proxy: Proxy, listener: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection through the proxy."""
    with socket.create_connection((proxy.host, proxy.port), timeout=PATIENCE) as client:
        server, _ = listener.accept()
        with server:
            server.settimeout(PATIENCE)
            yield client, server


def test_a_cut_resets_both_ends_once(proxy: Proxy, listener: socket.socket) -> None:
    with connected(proxy, listener) as ends:
        proxy.cut()
        for end in ends:
            with pytest.raises(ConnectionResetError):
                end.recv(1)
    with connected(proxy, listener) as (client, server):
        for _ in range(3):
            client.sendall(b"x")
            assert server.recv(10) == b"x"
            server.sendall(b"y")
            assert client.recv(10) == b"y"


def test_where_nobody_listens_the_connection_ends(listener: socket.socket, proxy: Proxy) -> None:
    listener.close()
    with socket.create_connection((proxy.host, proxy.port), timeout=PATIENCE) as client:
        assert client.recv(1) == b""


def test_nothing_is_left_of_a_connection_that_has_ended_on_both_sides(proxy: Proxy, listener: socket.socket) -> None:
    before = count_descriptors()
    for _ in range(3):
        with connected(proxy, listener) as (client, server):
            client.shutdown(socket.SHUT_WR)
            assert server.recv(1) == b""
            server.sendall(b"late")
            server.shutdown(socket.SHUT_WR)
            assert client.recv(10, socket.MSG_WAITALL) == b"late"
    wait_until("all are closed", lambda: count_descriptors() == before)


def test_what_does_not_fit_comes_whole_and_in_order(proxy: Proxy, listener: socket.socket) -> None:
    data = os.urandom(12 * 2**20)
    with connected(proxy, listener) as (client, server):
        client.setblocking(False)
        sent = 0
        while sent < len(data) and select.select([], [client], [], 0.1)[1]:  # until it does not fit
            with contextlib.suppress(BlockingIOError):
                sent += client.send(data[sent : sent + 2**18])
        client.settimeout(PATIENCE)
        sender = threading.Thread(target=client.sendall, args=(data[sent:],))
        sender.start()
        found = bytearray()
        while len(found) < len(data):
            part = server.recv(2**18)
            assert part
            found += part
        sender.join()
        assert found == data


def test_only_so_much_is_kept(proxy: Proxy, listener: socket.socket) -> None:
    """Whoever sends faster than it goes on has to wait."""
    proxy.delay = 2 * PATIENCE
    with connected(proxy, listener) as (client, _):
        client.setblocking(False)
        sent, piece = 0, bytes(2**20)
        while sent < 2**26 and select.select([], [client], [], 0.1)[1]:
            with contextlib.suppress(BlockingIOError):
                sent += client.send(piece)
        assert sent < 2**26
