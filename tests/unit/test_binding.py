"""The address that answers health: bound and guarded before anything else starts, or refused with the remedy."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastlog.binding import bind, bind_monitor
from fastlog.config import BrokerConfig
from fastlog.errors import ConfigError, LogError

SECRET = "0123456789abcdef"
ANY_PORT = "127.0.0.1:0"


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as made:
        yield made


def secret_file(directory: Path, data: bytes, mode: int = 0o600) -> str:
    path = directory / "token"
    path.write_bytes(data)
    path.chmod(mode)
    return str(path)


def test_nothing_is_bound_where_nothing_is_asked_for(stack: contextlib.ExitStack) -> None:
    assert bind_monitor(BrokerConfig(), stack) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_free_port_is_named(stack: contextlib.ExitStack, host: str) -> None:
    found = bind_monitor(BrokerConfig(monitor_address=f"{host}:0"), stack)
    assert found is not None and found.port and found.token == b""
    assert str(found) in (f"127.0.0.1:{found.port}", f"[::1]:{found.port}")


@pytest.mark.parametrize(
    ("data", "token"),
    [
        (SECRET.encode(), SECRET),
        (f" {SECRET}\r\n".encode(), SECRET),
        (b"x" * 1024, "x" * 1024),
    ],
)
def test_a_secret_is_read_and_never_shown(
    stack: contextlib.ExitStack, tmp_path: Path, data: bytes, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = BrokerConfig(monitor_address="0.0.0.0:0", monitor_token_file=secret_file(tmp_path, data))
    found = bind_monitor(config, stack)
    assert found is not None and found.token == token.encode()
    assert token not in repr(found) + str(found) + repr(config)
    assert not caplog.records


@pytest.mark.parametrize(
    "data",
    [b"", SECRET[:15].encode(), b"x" * 1025, b"two words of a secret", f"{SECRET}\n{SECRET}".encode(), b"\xff" * 20],
)
def test_what_is_no_secret_is_refused_without_being_shown(
    stack: contextlib.ExitStack, tmp_path: Path, data: bytes
) -> None:
    config = BrokerConfig(monitor_address=ANY_PORT, monitor_token_file=secret_file(tmp_path, data))
    with pytest.raises(ConfigError, match=r"holds no secret of 16 to 1024 .*openssl rand -hex 32") as raised:
        bind_monitor(config, stack)
    assert "words" not in str(raised.value) and SECRET[:15] not in str(raised.value)


def test_a_secret_that_everybody_can_read_is_a_warning(
    stack: contextlib.ExitStack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = secret_file(tmp_path, SECRET.encode(), 0o644)
    with caplog.at_level(logging.WARNING):
        bind_monitor(BrokerConfig(monitor_address=ANY_PORT, monitor_token_file=path), stack)
    assert f"everybody on this machine can read {path}" in caplog.text and SECRET not in caplog.text


def test_a_file_that_is_not_there_and_a_name_that_nobody_knows(stack: contextlib.ExitStack, tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"cannot read .*gone: No such file"):
        bind_monitor(BrokerConfig(monitor_address=ANY_PORT, monitor_token_file=gone), stack)
    path = secret_file(tmp_path, SECRET.encode())
    with pytest.raises(ConfigError, match=r"monitor\.address: no-such-name\.invalid: .*an address of this machine"):
        bind_monitor(BrokerConfig(monitor_address="no-such-name.invalid:1", monitor_token_file=path), stack)


def test_a_localhost_that_is_elsewhere_is_refused(stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the name stands for counts, and not the name."""
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("0.0.0.0", 0))]
    )
    with pytest.raises(ConfigError, match=r"localhost is 0\.0\.0\.0 here, which is not loopback"):
        bind_monitor(BrokerConfig(monitor_address="localhost:0"), stack)


# -- the address for clients -------------------------------------------------------------------------------------------


def test_a_listener_is_bound_and_closed_with_the_broker() -> None:
    """Free ports are found; the socket does not block, may follow a broker that just ended, and listens only later."""
    with contextlib.ExitStack() as stack:
        (found,) = bind(BrokerConfig(port=0), stack)
        assert (found.name, found.protocol, found.host, found.advertised_host) == (
            "PLAINTEXT", "any", "127.0.0.1", "127.0.0.1",
        )  # fmt: skip
        assert found.port == found.advertised_port > 0
        with socket.socket(fileno=os.dup(found.fd)) as bound:
            assert bound.getsockname() == ("127.0.0.1", found.port)
            assert bound.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 1
            assert bound.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 0
            assert not os.get_blocking(found.fd) and not os.get_inheritable(found.fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(found.fd)


@pytest.mark.parametrize("port", [None, 7])
def test_what_clients_are_told(stack: contextlib.ExitStack, port: int | None) -> None:
    (found,) = bind(BrokerConfig(port=0, hostname="a.name", advertised_port=port), stack)
    assert (found.advertised_host, found.advertised_port) == ("a.name", port or found.port)
    assert found.host == "127.0.0.1"


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_address_of_ipv6_may_have_brackets(stack: contextlib.ExitStack, host: str) -> None:
    try:
        (found,) = bind(BrokerConfig(port=0, host=host), stack)
    except LogError as error:
        pytest.skip(f"no IPv6 here: {error}")
    assert (found.host, found.advertised_host) == ("::1", "::1")
    with socket.socket(fileno=os.dup(found.fd)) as bound:
        bound.listen()
    with pytest.raises(LogError, match=rf"cannot listen on \[::1\]:{found.port}: Address already in use; .* --port "):
        bind(BrokerConfig(port=found.port, host=host), stack)


def test_the_receive_buffer_is_that_of_the_setting(stack: contextlib.ExitStack) -> None:
    """Set before the address is bound, since connections inherit it; and only for clients, not for the monitor."""
    found = {}
    for size in (None, 20_000):
        config = BrokerConfig(port=0, receive_buffer_bytes=size, monitor_address=ANY_PORT)
        monitor = bind_monitor(config, stack)
        assert monitor is not None
        for name, fd in (("clients", bind(config, stack)[0].fd), ("monitor", monitor.fd)):
            with socket.socket(fileno=os.dup(fd)) as bound:
                found[name, size] = bound.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    assert found["clients", 20_000] == 2 * 20_000  # the kernel doubles it
    assert found["clients", None] == found["monitor", None] == found["monitor", 20_000]


def test_the_monitor_does_not_block_either(stack: contextlib.ExitStack) -> None:
    found = bind_monitor(BrokerConfig(monitor_address=ANY_PORT), stack)
    assert found is not None and not os.get_blocking(found.fd)


@pytest.mark.parametrize("size", [15, 16, 1024, 1025])
def test_the_shortest_and_the_longest_secret(stack: contextlib.ExitStack, tmp_path: Path, size: int) -> None:
    for byte, is_allowed in ((32, False), (33, True), (126, True), (127, False)):
        data = b"x" * (size - 2) + bytes([byte]) + b"x"
        config = BrokerConfig(monitor_address=ANY_PORT, monitor_token_file=secret_file(tmp_path, data))
        if is_allowed and 16 <= size <= 1024:
            found = bind_monitor(config, stack)
            assert found is not None and found.token == data
        else:
            with pytest.raises(ConfigError, match="holds no secret of 16 to 1024"):
                bind_monitor(config, stack)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o620, 0o602, 0o604, 0o606])
def test_only_reading_by_everybody_is_warned_of(
    stack: contextlib.ExitStack, tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = secret_file(tmp_path, SECRET.encode(), mode)
    bind_monitor(BrokerConfig(monitor_address=ANY_PORT, monitor_token_file=path), stack)
    assert bool(caplog.records) is bool(mode & 0o004)


@pytest.mark.slow
def test_a_broker_that_nobody_asks_loads_nothing_for_it() -> None:
    """Start and memory stay what they are."""
    code = "import sys, fastlog.broker; print(*(name for name in sys.modules if name.startswith('fastlog.workers')))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "fastlog.workers.keeper" in loaded
    assert not {f"fastlog.workers.{name}" for name in ("monitor", "health", "http_server")} & set(loaded)


def test_every_listener_is_bound_and_told(stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first by ``hostname`` and ``advertised.port``, one that is named there by ``advertised.listeners``."""
    monkeypatch.setattr(socket, "gethostname", lambda: "machine.example")
    config = BrokerConfig(
        listeners="a://127.0.0.1:0,b://127.0.0.1:0,c://0.0.0.0:0,d://[::1]:0",
        advertised_listeners="b://[fe80::1]:7",
        hostname="[::2]",
        advertised_port=99,
        insecure=True,
    )
    found = bind(config, stack)
    assert [(each.name, each.protocol, each.host) for each in found] == [
        ("a", "any", "127.0.0.1"),
        ("b", "any", "127.0.0.1"),
        ("c", "any", "0.0.0.0"),
        ("d", "any", "::1"),
    ]
    assert len({each.port for each in found}) == 4 and all(each.port for each in found)
    assert [(each.advertised_host, each.advertised_port) for each in found] == [
        ("::2", 99),
        ("fe80::1", 7),
        ("machine.example", found[2].port),
        ("::1", found[3].port),
    ]


def test_a_listener_that_is_taken_is_named(stack: contextlib.ExitStack) -> None:
    taken = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
    with pytest.raises(LogError, match=f"cannot listen on 127.0.0.1:{taken}: .* name another port in listeners"):
        bind(BrokerConfig(listeners=f"a://127.0.0.1:0,b://127.0.0.1:{taken}"), stack)
