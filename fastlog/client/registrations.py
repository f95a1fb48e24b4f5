"""What brokers show of themselves in ZooKeeper, as clients read it: where they are, and what they have of a topic."""

from __future__ import annotations

from collections.abc import Callable

from fastlog.client.addresses import Address
from fastlog.coordination.watched import Watched
from fastlog.errors import CoordinationError
from fastlog.zkpaths import (
    BROKER_IDS,
    BrokerRegistration,
    broker_path,
    parse_number,
    topic_broker_path,
    topic_path,
)

MOST_PARTITIONS = 100_000
"""Of a topic on one broker; more of them are taken for a value that means something else."""

Garbage = Callable[[str, str, CoordinationError], None]
"""Told of a node that makes no sense: its path, what follows, and why."""


def read_addresses(watched: Watched, garbage: Garbage) -> dict[int, Address]:
    """Where each broker is that lives, by its id. Raises ``CoordinationError``: no answer."""
    found = {}
    for broker in _numbers(watched.children(BROKER_IDS)):
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


def read_partitions(watched: Watched, topic: str, garbage: Garbage) -> dict[int, int]:
    """How many partitions of a topic each broker has that announced it. Raises ``CoordinationError``: no answer."""
    found = {}
    for broker in _numbers(watched.children(topic_path(topic))):
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


def _numbers(names: list[str] | None) -> list[int]:
    return [int(name) for name in names or [] if name.isascii() and name.isdigit() and str(int(name)) == name]
