"""What brokers show of themselves in ZooKeeper, as clients read it: where they are, and what they have of a topic."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from fastlog.client.addresses import Address
from fastlog.coordination.session import Node
from fastlog.coordination.watched import Watched
from fastlog.errors import CoordinationError, TransportError
from fastlog.escaping import printable
from fastlog.zkpaths import (
    BROKER_IDS,
    BrokerRegistration,
    broker_path,
    parse_broker_id,
    parse_number,
    topic_broker_path,
    topic_path,
)

MOST_PARTITIONS = 100_000
"""The most partitions of a topic on one broker; a larger number is taken for a malformed node."""

Garbage = Callable[[str, str, CoordinationError], None]
"""Called for each malformed node, with its path, what follows from that, and the error."""

_LOOK_SESSION_SECONDS = 6.0
_SHOWN_CHARACTERS = 200


def registered_brokers(connect: str, timeout: float) -> dict[int, Address]:
    """The address of each registered broker by its id, read once; a first one is waited for up to ``timeout`` seconds.

    Raises:
        ConfigError: ``connect`` is not what 0.7 calls ``zk.connect``.
        CoordinationError: no ZooKeeper answers within ``timeout`` seconds.
        TransportError: no broker is registered there.
    """
    from fastlog.coordination.zookeeper import ZooKeeperSession  # only who looks there pays for it

    deadline = time.monotonic() + timeout
    changed = threading.Event()
    with ZooKeeperSession(
        connect,
        session_timeout=_LOOK_SESSION_SECONDS,
        connection_timeout=timeout,
        on_change=changed.set,
        makes_root=False,
    ) as session:
        watched = Watched(session, changed.set)
        while True:
            changed.clear()
            found = read_addresses(watched, lambda path, so, error: None)
            left = deadline - time.monotonic()
            if found or left <= 0:
                break
            changed.wait(left)
    if not found:
        raise none_registered(connect)
    return found


def none_registered(connect: str) -> TransportError:
    """The error for a ZooKeeper in which no broker is registered."""
    return TransportError(
        f"no broker is registered in ZooKeeper {connect}\n{BROKER_IDS} is empty there\n"
        "does a broker run with --zookeeper, and with the same path behind the servers?"
    )


def address_hint(connect: str, broker: int) -> str:
    """What to say of a registered broker that cannot be reached."""
    return (
        f"this is the address that broker {broker} has in ZooKeeper {connect} ({broker_path(broker)}): does the broker"
        " run, and can it be reached from here? fastlog-broker --advertise sets that address"
    )


class Reads(Protocol):
    """What ZooKeeper is read with: ``Watched``, which is notified of changes, or a session."""

    def get(self, path: str) -> Node | None:
        """The node's data and version; None where there is no node. Raises ``CoordinationError``: no answer."""

    def children(self, path: str) -> list[str] | None:
        """The names of the node's children; None where there is no node. Raises ``CoordinationError``: no answer."""


def read_addresses(watched: Reads, garbage: Garbage) -> dict[int, Address]:
    """The address of each live broker, by its id. Raises ``CoordinationError``: no answer."""
    found = {}
    for broker in _ids(watched, BROKER_IDS, garbage):
        path = broker_path(broker)
        node = watched.get(path)
        if node is None:
            continue
        try:
            registration = BrokerRegistration.parse(node.data)
        except CoordinationError as error:
            garbage(path, "the broker counts as gone", error)
            continue
        found[broker] = Address(registration.host, registration.port)
    return found


def read_partitions(watched: Reads, topic: str, garbage: Garbage) -> dict[int, int]:
    """How many partitions of a topic each broker has that announced it. Raises ``CoordinationError``: no answer."""
    found = {}
    for broker in _ids(watched, topic_path(topic), garbage):
        path = topic_broker_path(topic, broker)
        node = watched.get(path)
        if node is None:
            continue
        try:
            count = parse_number(node.data)
            if not 0 <= count <= MOST_PARTITIONS:
                raise CoordinationError(f"{count} partitions")
        except CoordinationError as error:
            garbage(path, "the broker counts as without the topic", error)
            continue
        found[broker] = count
    return found


def _ids(watched: Reads, path: str, garbage: Garbage) -> list[int]:
    found = []
    for name in watched.children(path) or []:
        try:
            found.append(parse_broker_id(name))
        except CoordinationError as error:
            garbage(f"{path}/{printable(name, most=_SHOWN_CHARACTERS)}", "the node is left out", error)
    return found
