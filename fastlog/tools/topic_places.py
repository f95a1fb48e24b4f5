"""Where the partitions of a topic are, and how far they go: by ZooKeeper, or by asking the brokers that are named."""

from __future__ import annotations

from typing import Any, NamedTuple

from fastlog.client.addresses import Address, parse_brokers
from fastlog.client.connection import Broker
from fastlog.client.topics import described_in, readable_end
from fastlog.consumer.broker_logs import plain_extent
from fastlog.consumer.simple import SimpleConsumer
from fastlog.coordination.session import Session
from fastlog.errors import error_for, meaning_of
from fastlog.tools import groups_access, options
from fastlog.tools.record_topics import described as described_records
from fastlog.tools.record_topics import record_broker_or_none
from fastlog.tools.report import EXIT_USAGE, CommandError, note_left_out
from fastlog.wire import responses
from fastlog.zkpaths import PartitionId


class PartitionPlace(NamedTuple):
    """A partition that exists: the broker that has it, and its readable range of offsets."""

    partition: PartitionId
    address: Address
    start: int
    """The oldest offset that the broker still has."""
    end: int
    """Up to where it can be read, once what was appended until now is flushed."""


class Site(NamedTuple):
    """One broker, as far as a topic is concerned. ``is_plain``: it speaks 0.7 and nothing else."""

    broker: int
    address: Address
    is_plain: bool
    configured: int
    """How many partitions the topic has there once all of them exist."""
    places: tuple[PartitionPlace, ...]
    is_of_records: bool = False
    """The topic consists of record batches."""


def find_sites(topic: str, brokers: str, zookeeper: str | None, timeout: float) -> list[Site]:
    """Every broker that is named, or that announces the topic in ZooKeeper, by its id.

    Raises:
        CommandError: a broker does not tell what is needed, or two are one.
        TransportError: a broker cannot be reached.
        CoordinationError: ZooKeeper cannot be reached.
    """
    if zookeeper is None:
        found = [_site(topic, address, timeout) for address in parse_brokers(brokers)]
    else:
        found = _registered(topic, zookeeper, timeout)
    by_id: dict[int, Site] = {}
    for site in found:
        if by_id.setdefault(site.broker, site) is not site:
            raise CommandError(
                f"{by_id[site.broker].address} and {site.address} are both broker {site.broker}",
                "a partition is known by the broker's id and its number",
                "name each broker once in --brokers, and give brokers different ids",
                EXIT_USAGE,
            )
    return sorted(by_id.values())


def find_topic_sites(topic: str, brokers: str, zookeeper: str | None, timeout: float) -> list[Site]:
    """The brokers that have partitions of the topic, in their order.

    Raises as ``find_sites``, and when there is none, or when it is of one kind on one broker and of another elsewhere.
    """
    sites = find_sites(topic, brokers, zookeeper, timeout)
    kept = [site for site in sites if site.places]
    if len({site.is_of_records for site in kept}) > 1:
        raise CommandError(
            f"topic {topic!r} has messages of Kafka 0.7 on one broker and records on another",
            "these are two topics of one name",
            "name the brokers of one kind at a time in --brokers",
            EXIT_USAGE,
        )
    if not kept:
        asked = ", ".join(str(site.address) for site in sites) or "no broker announces it"
        raise CommandError(
            f"topic {topic!r} does not exist",
            f"no broker that was asked has it ({asked})",
            "fastlog topics list shows what a broker holds; --zookeeper finds all brokers",
            EXIT_USAGE,
        )
    return kept


def find_all_sites(topic: str, brokers: str, zookeeper: str | None, timeout: float) -> list[Site]:
    """The same for who produces: in ZooKeeper all live brokers, since none may announce the topic yet.

    Of a plain 0.7 broker nobody knows how many partitions it will have then: it has none here.
    """
    if zookeeper is None:
        return find_sites(topic, brokers, None, timeout)
    with groups_access.session_at(zookeeper, timeout) as session:
        addresses, counts = _read(session, topic)
    if not addresses:
        raise CommandError(
            f"no broker is registered in the ZooKeeper at {zookeeper}",
            "so there is none to produce to",
            "start one with fastlog-broker --zookeeper; the path behind the servers counts",
            EXIT_USAGE,
        )
    return [
        _site(topic, address, timeout, broker, counts.get(broker, 0)) for broker, address in sorted(addresses.items())
    ]


def open_consumer(address: Address, timeout: float, **settings: Any) -> SimpleConsumer:
    """A consumer of the broker at an address."""
    return SimpleConsumer(address.host, address.port, timeout=timeout, **settings)


def _registered(topic: str, zookeeper: str, timeout: float) -> list[Site]:
    with groups_access.session_at(zookeeper, timeout) as session:
        addresses, counts = _read(session, topic)
    return [
        _site(topic, addresses[broker], timeout, broker, count)
        for broker, count in sorted(counts.items())
        if broker in addresses
    ]


def _read(session: Session, topic: str) -> tuple[dict[int, Address], dict[int, int]]:
    """Where brokers are, and how many partitions of the topic they announce."""
    from fastlog.client.registrations import read_addresses, read_partitions

    return read_addresses(session, note_left_out), read_partitions(session, topic, note_left_out)


def _site(topic: str, address: Address, timeout: float, broker: int | None = None, count: int = 0) -> Site:
    """Ask a broker; ``broker`` and ``count`` are what ZooKeeper says of it."""
    asked = options.broker_at(str(address), timeout, waits=broker is None)
    metadata = asked.metadata_or_none((topic,))
    if metadata is None:
        if broker is None:
            raise CommandError(
                f"{address} does not tell which partitions it has",
                "it speaks plain Kafka 0.7, which has no such request",
                "use --zookeeper, where it announces them",
                EXIT_USAGE,
            )
        return Site(broker, address, True, count, tuple(_plain_places(topic, address, timeout, broker, count)))
    described = described_in(metadata, topic)
    if described.error and (found := _of_records(topic, asked, address, metadata.broker_id)) is not None:
        return found
    if described.error:
        refused = error_for(described.error)
        raise CommandError(
            f"topic {topic!r} cannot be used", meaning_of(described.error), refused.what_to_do, EXIT_USAGE
        )
    places = tuple(
        PartitionPlace(PartitionId(metadata.broker_id, item.partition), address, item.log_start, readable_end(item))
        for item in sorted(described.partitions, key=_number)
    )
    return Site(metadata.broker_id, address, False, described.configured_partitions, places)


def _of_records(topic: str, asked: Broker, address: Address, broker: int) -> Site | None:
    """Where a topic of record batches is; None when it is none."""
    records = record_broker_or_none(asked, topic)
    if records is None:
        return None
    with records:
        rows = described_records(records, topic)
    places = [
        PartitionPlace(PartitionId(broker, row["partition"]), address, row["log_start"], row["high_watermark"])
        for row in rows
    ]
    return Site(broker, address, False, len(places), tuple(sorted(places)), True)


def _plain_places(topic: str, address: Address, timeout: float, broker: int, count: int) -> list[PartitionPlace]:
    with open_consumer(address, timeout, local="off") as consumer:
        return [
            PartitionPlace(PartitionId(broker, number), address, *plain_extent(consumer, topic, number))
            for number in range(count)
        ]


def _number(item: responses.PartitionMetadata) -> int:
    return item.partition
