"""Which topics a broker has, of 0.7 and of record batches, with how many partitions, for the members of its groups."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from fastlog.client.addresses import Address
from fastlog.client.connection import Broker
from fastlog.client.kafka_connection import NotSpokenError
from fastlog.client.records import RecordBroker
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
        metadata = Broker([address], timeout).metadata_or_none(None if names is None else tuple(sorted(names)))
    except FastlogError as error:
        raise GroupCoordinatorError(f"{address} does not say which topics it has: {error}") from error
    if metadata is None:
        raise GroupCoordinatorError(
            f"{address} does not say which topics it has: it is no broker of fastlog, or its listener is pinned to"
            " today's protocol (listener.protocol.map)"
        )
    counts = {
        topic.name: topic.configured_partitions for topic in metadata.topics if topic.partitions and not topic.error
    }
    failed = [topic.name for topic in metadata.topics if topic.error]
    try:
        counts |= _of_records(address, failed if names is not None else None, timeout, counts)
    except FastlogError as error:
        raise GroupCoordinatorError(f"{address} does not say which topics it has: {error}") from error
    refused: dict[str, FastlogError] = {
        topic.name: error_for(topic.error, topic=topic.name, broker=address)
        for topic in metadata.topics
        if topic.error and topic.name not in counts
    }
    return Found(metadata.broker_id, counts, refused)


def _of_records(
    address: Address, names: Collection[str] | None, timeout: float, others: Collection[str]
) -> dict[str, int]:
    """How many partitions the topics of record batches have: those of these names, or all but the broker's own."""
    if names is not None and not names:
        return {}
    with RecordBroker([address], timeout=timeout) as broker:
        try:
            found = broker.known_topics(names)
        except NotSpokenError:
            return {}
    return {
        name: max(topic.partitions) + 1
        for name, topic in found.items()
        if not topic.code and topic.partitions and name not in others and (names is not None or not topic.is_internal)
    }
