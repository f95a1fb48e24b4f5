"""The address that answers health: bound and guarded before anything else starts, or refused with the remedy."""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastlog.binding import bind_monitor
from fastlog.config import BrokerConfig
from fastlog.errors import ConfigError

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


@pytest.mark.slow
def test_a_broker_that_nobody_asks_loads_nothing_for_it() -> None:
    """Start and memory stay what they are."""
    code = "import sys, fastlog.broker; print(*(name for name in sys.modules if name.startswith('fastlog.workers')))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "fastlog.workers.keeper" in loaded
    assert not {f"fastlog.workers.{name}" for name in ("monitor", "health", "http_server", "disk_probe")} & set(loaded)
