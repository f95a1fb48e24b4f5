"""Which topics of 0.7 a broker has, with how many partitions, for the members of its groups."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from fastlog.client.addresses import Address
from fastlog.client.connection import Broker
from fastlog.errors import FastlogError, GroupCoordinatorError, error_for


class Found(NamedTuple):
    """The broker's id, and how many partitions each topic has that is there; ``refused``: why others are not read."""

    broker: int
    counts: dict[str, int]
    refused: dict[str, FastlogError]


def find_topics(address: Address, names: Collection[str] | None, timeout: float) -> Found:
    """Ask for these topics, or for all. A topic is there once it has a partition.

    Raises:
        GroupCoordinatorError: the broker does not answer, or speaks 0.7 alone.
    """
    try:
        told = Broker([address], timeout).metadata_or_none(None if names is None else tuple(sorted(names)))
    except FastlogError as error:
        raise GroupCoordinatorError(f"{address} does not say which topics it has: {error}") from error
    if told is None:
        raise GroupCoordinatorError(
            f"{address} does not say which topics it has: it is no broker of fastlog, or its listener is pinned to"
            " today's protocol (listener.protocol.map)"
        )
    counts = {topic.name: topic.configured_partitions for topic in told.topics if topic.partitions and not topic.error}
    refused: dict[str, FastlogError] = {
        topic.name: error_for(topic.error, topic=topic.name, broker=address) for topic in told.topics if topic.error
    }
    return Found(told.broker_id, counts, refused)
