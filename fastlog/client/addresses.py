"""Names of brokers: ``host:port`` lists, and what a name resolves to."""

from __future__ import annotations

import socket
import threading
import time
from typing import NamedTuple

from fastlog import arguments
from fastlog.addresses import host_port, port_or_none
from fastlog.errors import ConfigError

DEFAULT_PORT = 9092
_ADDRESS_FORM = "an address is host:port, [IPv6]:port or a host alone; several are separated by commas"
_LOOK_SECONDS = 0.1


class Address(NamedTuple):
    """The host, a name or an IP address, and the port of a broker; as text ``host:port``."""

    host: str
    port: int

    def __str__(self) -> str:
        return host_port(self.host, self.port)


Resolved = tuple[int, int, int, tuple[str, int] | tuple[str, int, int, int]]
"""Family, kind and protocol for ``socket.socket``, and the address for ``connect``."""


def parse_brokers(text: str) -> list[Address]:
    """``host:port,host,[::1]:port`` as addresses; a missing port is 9092.

    Raises:
        ConfigError: an address is malformed, or there is none.
    """
    found = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = item.rpartition(":")
        if not colon or item.endswith("]"):
            host, port = item, str(DEFAULT_PORT)
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ConfigError(f"{item!r} is no address\n{_ADDRESS_FORM}\nput the IPv6 address in brackets")
        number = port_or_none(port)
        if not host or not number:
            raise ConfigError(f"{item!r} is no address\n{_ADDRESS_FORM}\nwrite for example localhost:9092")
        found.append(Address(host, number))
    if not found:
        raise ConfigError(f"no broker is named\n{_ADDRESS_FORM}\nwrite for example --brokers localhost:9092")
    return found


def one_broker(host: str, port: int | None) -> Address:
    """A host and a port (None: 9092), or a host that is ``host:port``.

    Raises:
        ConfigError: it is no broker, or several, or the port is not from 1 to 65535.
        ArgumentError: it is no text or number.
    """
    arguments.text("host", host)
    if port is not None:
        arguments.whole("port", port, 1, 65535)
    if host and host.count(":") != 1 and not host.startswith("[") and "," not in host:
        return Address(host, DEFAULT_PORT if port is None else port)  # an IPv6 address may stand without brackets
    found = parse_brokers(host)
    if len(found) > 1:
        raise ConfigError(f"host: {host!r} names {len(found)} brokers, and one is wanted")
    if port is None or host.endswith("]"):
        return found[0] if port is None else Address(found[0].host, port)
    if port != found[0].port:
        raise ConfigError(f"host: {host!r} contradicts port {port}")
    return found[0]


def resolve(address: Address, timeout: float) -> list[Resolved]:
    """What to connect to, in the order the system prefers.

    A name is looked up in a thread of its own: the system's resolver can neither be interrupted nor be given a time
    limit, and Ctrl-C must not wait for it.

    Raises:
        OSError: the name is not known, or the lookup took longer than ``timeout`` seconds.
    """
    try:
        return _looked_up(address, socket.AI_NUMERICHOST)
    except OSError:
        pass  # a name, not a number
    found: list[Resolved] = []
    failures: list[OSError] = []
    done = threading.Event()

    def look_up() -> None:
        try:
            found.extend(_looked_up(address, 0))
        except OSError as error:
            failures.append(error)
        done.set()

    threading.Thread(target=look_up, name="fastlog-resolver", daemon=True).start()
    deadline = time.monotonic() + timeout
    while not done.wait(_LOOK_SECONDS):
        if time.monotonic() >= deadline:
            raise TimeoutError(None, f"its name was not looked up within {timeout:g} s")
    if failures:
        raise failures[0]
    return found


def _looked_up(address: Address, flags: int) -> list[Resolved]:
    try:
        listed = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=flags)
    except ValueError:  # a label that is too long, or a NUL
        raise OSError(socket.EAI_NONAME, "not a possible host name") from None
    return [(family, kind, protocol, target) for family, kind, protocol, _, target in listed]  # type: ignore[misc]
