"""Addresses to listen on and to give to clients, as the settings have them; nothing is looked up."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from fastlog.addresses import host_port, port_or_none
from fastlog.errors import ConfigError

MAX_LISTENERS = 16
ALL_ADDRESSES = "0.0.0.0"
WILDCARDS = (ALL_ADDRESSES, "::")
PLAINTEXT = "PLAINTEXT"
KAFKA_07 = "kafka-0.7"
KAFKA = "kafka"
ANY_PROTOCOL = "any"
PROTOCOLS = (ANY_PROTOCOL, KAFKA_07, KAFKA)
"""What connections may speak: what their first request says, 0.7's Kafka and fastlog's own, or today's Kafka."""
SECURITY_PROTOCOLS = (PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""What Kafka knows; only PLAINTEXT is served here."""
_NAME = re.compile("[A-Za-z0-9_.-]+")


class ListenAddress(NamedTuple):
    """Where to listen: the host without brackets, and the port, 0 for a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return host_port(self.host, self.port)


def parse_listen(name: str, text: str) -> ListenAddress:
    """``host:port`` or ``[IPv6]:port`` as an address; ``name`` is that of the setting.

    Raises:
        ConfigError: it is neither; the host is never left out, so that nobody opens all of them by accident.
    """
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"{name}: {text!r}: put the IPv6 address in brackets, for example [::1]:9080")
    number = port_or_none(port)
    if not host or not colon or number is None:
        raise ConfigError(f"{name}: {text!r} is no HOST:PORT: write for example 127.0.0.1:9080")
    return ListenAddress(host, number)


def parse_listeners(name: str, text: str) -> dict[str, ListenAddress]:
    """``NAME://host:port,NAME://host:port`` as addresses by name; ``name`` is that of the setting.

    As in Kafka, no host (``NAME://:9092``) stands for all addresses, and names that differ in case are one name.

    Raises:
        ConfigError: one of them is no such address, a name is there twice, or there are more than MAX_LISTENERS.
    """
    found: dict[str, ListenAddress] = {}
    for part in text.split(","):
        listener, divider, address = part.strip().partition("://")
        if not divider or not _NAME.fullmatch(listener):
            raise ConfigError(
                f"{name}: {part.strip()!r} is no NAME://HOST:PORT: write for example local://127.0.0.1:9092"
            )
        if listener.upper() in map(str.upper, found):
            raise ConfigError(f"{name}: {listener} is there twice")
        found[listener] = parse_listen(name, ALL_ADDRESSES + address if address.startswith(":") else address)
    if len(found) > MAX_LISTENERS:
        raise ConfigError(f"{name}: {len(found)} are more than {MAX_LISTENERS}")
    return found


def parse_by_listener(name: str, text: str, values: tuple[str, ...]) -> dict[str, str]:
    """``NAME:VALUE,NAME:VALUE`` by the name of the listener in capitals; ``name`` is that of the setting.

    Raises:
        ConfigError: it is malformed, a name is there twice, or a value is none of ``values``, whatever its case.
    """
    known = {value.upper(): value for value in values}
    found: dict[str, str] = {}
    for part in text.split(",") if text.strip() else []:
        listener, divider, value = (piece.strip() for piece in part.partition(":"))
        if not divider or not _NAME.fullmatch(listener):
            raise ConfigError(f"{name}: {part.strip()!r} is no NAME:VALUE: write for example local:{values[0]}")
        if listener.upper() in found:
            raise ConfigError(f"{name}: {listener} is there twice")
        if value.upper() not in known:
            raise ConfigError(f"{name}: {listener}: {value!r} is none of {', '.join(values)}")
        found[listener.upper()] = known[value.upper()]
    return found


def check_security(name: str, protocols: dict[str, str], listeners: Iterable[str]) -> None:
    """Raise ``ConfigError`` where a listener is to be encrypted, or is to have a login.

    ``protocols`` are those of the setting ``name``, see ``parse_by_listener``. As in Kafka, a listener that has the
    name of a security protocol and does not stand there has that one; any other has PLAINTEXT.
    """
    for listener in listeners:
        own = listener.upper()
        protocol = protocols.get(own, own if own in SECURITY_PROTOCOLS else PLAINTEXT)
        if protocol != PLAINTEXT:
            raise ConfigError(
                f"{name}: listener {listener} is to speak {protocol}, and only {PLAINTEXT} is supported yet: "
                f"name it {PLAINTEXT}, or write {name}={listener}:{PLAINTEXT}, and let another program do the rest"
            )


def is_loopback(host: str) -> bool:
    """Whether an address or name to listen on can be reached from this machine alone; no name is looked up."""
    if host == "localhost":
        return True
    import ipaddress  # 3 ms that a default start does not need

    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_advertised(host: str) -> None:
    """Raise ``ConfigError`` when a name to give to clients cannot be one."""
    if any(character in "/,[] \t\r\n" for character in host.removeprefix("[").removesuffix("]")):
        raise ConfigError(f"hostname: {host!r} is no name of a machine")
    if ":" in host:
        import ipaddress  # as above

        try:
            ipaddress.IPv6Address(host.strip("[]"))
        except ValueError:
            raise ConfigError(
                f"hostname: {host!r} is neither a name nor an address; the port belongs into advertised.port"
            ) from None


def check_monitor(address: ListenAddress | None, *, has_token: bool) -> None:
    """Raise ``ConfigError`` where a token protects nothing, or others than this machine would be answered without."""
    if address is None:
        if has_token:
            raise ConfigError("monitor.token.file: there is no monitor.address to protect: add --monitor HOST:PORT")
    elif not has_token and not is_loopback(address.host):
        raise ConfigError(
            f"monitor.address: refusing to listen on {address.host} without a token\n"
            "everybody who reaches that address could read the names of topics and the state of this broker\n"
            "use --monitor 127.0.0.1:PORT, or add --monitor-token-file FILE with a secret that requests must show"
        )
