"""The addresses of a broker: bound before its first fork, and before recovery, so that a taken port is said at once."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from pathlib import Path

from fastlog.addresses import host_port
from fastlog.config import BrokerConfig
from fastlog.errors import ConfigError, LogError
from fastlog.listening import ListenAddress, is_loopback
from fastlog.workers import advertised
from fastlog.workers.child import Listener, MonitorSocket

log = logging.getLogger(__name__)

LEAST_TOKEN, MOST_TOKEN = 16, 1024


def bind(config: BrokerConfig, stack: contextlib.ExitStack) -> tuple[Listener, ...]:
    """Bind every listener; they listen only once the logs are recovered."""
    setting, remedy = "host", "choose another --port (0 picks a free one)"
    if config.listeners:
        setting, remedy = "listeners", "name another port in listeners (0 picks a free one)"
    told = config.advertised_addresses
    made: list[Listener] = []
    for name, (host, port) in config.addresses.items():
        server = _bound(setting, host, port, remedy, stack, config)
        bound = server.getsockname()[1]
        if name in told:
            to_tell = told[name]
        else:
            own_port = config.advertised_port if not made else None
            to_tell = ListenAddress(advertised.advertised_host(config, host, first=not made), own_port or bound)
        made.append(Listener(name, config.spoken[name], host, bound, *to_tell, server.fileno()))
    return tuple(made)


def bind_monitor(config: BrokerConfig, stack: contextlib.ExitStack) -> MonitorSocket | None:
    """The same for the address that answers health; None where there is none."""
    if config.monitor is None:
        return None
    token = token_of(config.monitor_token_file) if config.monitor_token_file is not None else b""
    remedy = "choose another --monitor HOST:PORT (port 0 picks a free one)"
    server = _bound("monitor.address", *config.monitor, remedy, stack)
    host, port = server.getsockname()[:2]
    if not token and not is_loopback(host):
        raise ConfigError(
            f"monitor.address: {config.monitor.host} is {host} here, which is not loopback: write 127.0.0.1"
        )
    return MonitorSocket(host, port, server.fileno(), token)


def _bound(
    setting: str,
    host: str,
    port: int,
    remedy: str,
    stack: contextlib.ExitStack,
    config: BrokerConfig | None = None,
) -> socket.socket:
    """A socket at an address; closed with the broker.

    Raises:
        ConfigError: the name of the host is not known.
        LogError: it cannot be listened on; says what to do.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not a possible host name"
        raise ConfigError(f"{setting}: {host}: {reason}; use an address of this machine") from error
    server = stack.enter_context(socket.socket(family, kind, protocol))
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if config is not None and config.receive_buffer_bytes:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.receive_buffer_bytes)
    try:
        server.bind(address)
    except OSError as error:
        where = host_port(host, port)
        raise LogError(f"cannot listen on {where}: {error.strerror}; stop what uses it or {remedy}") from error
    server.setblocking(False)
    return server


def token_of(path: str) -> bytes:
    """The secret in a file, without the blanks around it. Raises ``ConfigError``, which never shows any of it."""
    try:
        with Path(path).open("rb") as file:
            found = file.read(MOST_TOKEN + 1).strip()
            mode = os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise ConfigError(f"monitor.token.file: cannot read {path}: {error.strerror}") from error
    if not LEAST_TOKEN <= len(found) <= MOST_TOKEN or any(not 33 <= byte <= 126 for byte in found):
        raise ConfigError(
            f"monitor.token.file: {path} holds no secret of {LEAST_TOKEN} to {MOST_TOKEN} letters, digits and signs "
            f"on one line: make one with: openssl rand -hex 32"
        )
    if mode & 0o004:
        log.warning("monitor.token.file: everybody on this machine can read %s: chmod 600 it", path)
    return found
