"""The address that clients are to connect to: is it known, and does it lead to this broker?"""

from __future__ import annotations

import logging
import socket
import threading
import time

from fastlog.addresses import host_port
from fastlog.config import BrokerConfig
from fastlog.errors import ConfigError, ProtocolError
from fastlog.listening import KAFKA, WILDCARDS
from fastlog.wire import requests, responses
from fastlog.workers.child import Listener, Shared

log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
TRIES = 3
TRY_AGAIN_SECONDS = 1.0
MAX_ANSWER_BYTES = 1 << 16


def advertised_host(config: BrokerConfig, host: str, *, first: bool) -> str:
    """What clients of a listener on ``host`` connect to: ``hostname`` for the first; the machine's for a wildcard."""
    if first and config.hostname:
        return config.hostname.strip("[]")
    return socket.gethostname() if host in WILDCARDS else host


def refuse_unknown(listener: Listener, setting: str = "hostname") -> None:
    """Raises ``ConfigError`` when nothing is known here of the advertised name, which ``setting`` has."""
    try:
        socket.getaddrinfo(listener.advertised_host, listener.advertised_port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not a possible host name"
        remedy = "set --advertise HOST[:PORT]" if setting == "hostname" else f"set {setting}"
        raise ConfigError(
            f"{setting}: clients would be told to connect to {listener.advertised_host!r}, a name that cannot be "
            f"looked up here ({reason}); {remedy} to a name or an address of this broker"
        ) from None


def start_check(shared: Shared) -> None:
    """See from a thread for each, once, whether the advertised addresses lead here, where that is in doubt."""
    for listener in shared.listeners:
        # one that is pinned to today's protocol has no request that tells which broker answers
        if listener.protocol != KAFKA and (listener.advertised_host, listener.advertised_port) != (
            listener.host,
            listener.port,
        ):
            _start_check(shared, listener)


def _start_check(shared: Shared, listener: Listener) -> None:
    threading.Thread(target=_check, args=(shared, listener), name="fastlog-advertised", daemon=True).start()


def _check(shared: Shared, listener: Listener) -> None:
    for left in reversed(range(TRIES)):
        problem = problem_or_none(listener, shared.config.broker_id)
        if problem is None or shared.arena.stopping:
            return
        if left:
            time.sleep(TRY_AGAIN_SECONDS)
    log.warning(
        "ADVERTISED ADDRESS: clients are told to connect to %s, which does not lead to this broker, listening on %s: "
        "%s. Set --advertise HOST[:PORT] (hostname, advertised.port; advertised.listeners) to where clients reach this "
        "broker",
        host_port(listener.advertised_host, listener.advertised_port),
        host_port(listener.host, listener.port),
        problem,
    )


def problem_or_none(listener: Listener, broker_id: int, timeout: float = ANSWER_SECONDS) -> str | None:
    """Why a client that connects to the advertised address would not get this broker; None when it does.

    Like a client, takes the first address of the name that can be connected to. ``timeout`` seconds for each.
    """
    expected = (broker_id, listener.advertised_host, listener.advertised_port)
    try:
        candidates = socket.getaddrinfo(*expected[1:], type=socket.SOCK_STREAM)
    except OSError as error:
        return f"the name cannot be looked up: {error.strerror}"
    reasons = []
    for family, kind, protocol, _, target in candidates:
        try:
            with socket.socket(family, kind, protocol) as sock:
                sock.settimeout(timeout)
                sock.connect(target)
                answer = _ask(sock)
        except TimeoutError:
            reasons.append(f"{target[0]} does not answer within {timeout:g} s")
        except OSError as error:
            reasons.append(f"{target[0]}: {error.strerror}")
        except (EOFError, ProtocolError):
            return f"what answers at {target[0]} is no fastlog broker"
        else:
            found = (answer.broker_id, answer.advertised_host, answer.port)
            if found == expected:
                return None
            return (
                f"another broker answers at {target[0]}, with the id {found[0]} and the address "
                f"{host_port(found[1], found[2])}"
            )
    return "; ".join(reasons)


def _ask(sock: socket.socket) -> responses.MetadataAnswer:
    """What the other side says it is. Raises ``EOFError``, ``OSError``, ``ProtocolError``."""
    # version 1: another broker that answers there may be an older one
    sock.sendall(requests.encode_metadata(0, (), requests.OWN_VERSION))
    size = int.from_bytes(_received(sock, 4), "big", signed=True)
    if not 0 < size <= MAX_ANSWER_BYTES:
        raise EOFError
    return responses.decode_metadata(_received(sock, size), requests.OWN_VERSION)


def _received(sock: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = sock.recv(size - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
