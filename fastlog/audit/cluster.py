"""Reading topics of a whole cluster for an audit, up to where they ended when the reading began."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from fastlog.audit._tally import Tally
from fastlog.audit.compare import Stage
from fastlog.audit.events import Event, decode
from fastlog.client.addresses import Address, parse_brokers
from fastlog.client.connection import Broker
from fastlog.client.topics import check_described, readable_end
from fastlog.consumer.broker_logs import plain_extent
from fastlog.consumer.simple import EARLIEST, SimpleConsumer
from fastlog.errors import AuditError, ConfigError, OffsetOutOfRangeError
from fastlog.wire import responses

_SESSION_SECONDS = 10.0


class PartitionRange(NamedTuple):
    """One partition that exists, from its first offset to the end of what had been appended."""

    address: Address
    partition: int
    start: int
    end: int


class AuditedCluster:
    """Brokers that are all meant: ``host:port,…``, or those that a ZooKeeper shows. For one thread.

    ``timeout``: seconds to connect, and to get one answer.
    """

    def __init__(self, *, brokers: str | None = None, zookeeper: str | None = None, timeout: float = 10.0) -> None:
        if (brokers is None) == (zookeeper is None):
            raise ConfigError("a cluster is either brokers or a ZooKeeper")
        self._addresses = parse_brokers(brokers) if brokers is not None else []
        self._zookeeper = zookeeper
        self._timeout = timeout

    def places(self, topic: str) -> list[PartitionRange]:
        """Every partition of a topic.

        Raises:
            ConfigError: a broker is named twice, or does not tell its partitions and no ZooKeeper does.
            TransportError, CoordinationError: somebody does not answer.
            BrokerError: a partition cannot be read.
        """
        found: list[PartitionRange] = []
        known: dict[tuple[int, str, int], Address] = {}
        for address, count in self._brokers(topic):
            answer = Broker([address], self._timeout).metadata_or_none((topic,))
            if answer is None:
                found += self._plain_places(topic, address, count)
                continue
            other = known.setdefault((answer.broker_id, answer.advertised_host, answer.port), address)
            if other is not address:
                raise ConfigError(f"{other} and {address} are the same broker: name it once")
            found += _places_of(topic, address, answer)
        return found

    def events(self, topic: str) -> tuple[list[list[Event]], int]:
        """The events of an audit topic, by partition and in order; and how many of its messages are malformed."""
        parts: list[list[Event]] = []
        unexpected = 0
        for place in self.places(topic):
            part: list[Event] = []
            with self._consumer(place) as consumer:
                for message in consumer.messages(topic, place.partition, place.start):
                    if message.offset >= place.end:
                        break
                    try:
                        event = decode(message.payload)
                    except AuditError:
                        unexpected += 1
                        continue
                    if event is not None:
                        part.append(event)
            parts.append(part)
        return parts, unexpected

    def count(self, name: str, topic: str, window_ms: int, *, lags: bool = False) -> Stage:
        """Count the messages of a topic. Raises as ``places`` and as a ``SimpleConsumer`` does."""
        tally = Tally(window_ms)
        removed: list[dict[int, int]] = []
        for place in self.places(topic):
            tally.begin_part()
            if self._count_place(topic, place, tally):
                removed.append(tally.firsts())
        first_kept: dict[int, int] | None = None
        if removed:
            # What a partition has nothing of may have been removed from it altogether.
            everywhere = set.intersection(*(set(firsts) for firsts in removed))
            first_kept = {producer: max(firsts[producer] for firsts in removed) for producer in everywhere}
        return Stage(name, topic, tally, lags, first_kept)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _count_place(self, topic: str, place: PartitionRange, tally: Tally) -> bool:
        """Count a partition; True when its beginning is not there any more."""
        offset = place.start
        is_cut = offset > 0
        with self._consumer(place) as consumer:
            while offset < place.end:
                try:
                    for batch in consumer.numpy_batches(topic, place.partition, offset):
                        tally.count_columns(batch.buffer, batch.starts, batch.lengths)
                        offset = batch.next_offset
                        if offset >= place.end:
                            break
                    else:
                        break  # the end of the log came down, as after a crash of its machine
                except OffsetOutOfRangeError:
                    starts = consumer.get_offsets_before(topic, place.partition, EARLIEST)
                    if not starts or starts[0] <= offset:
                        raise
                    # Retention was faster: what is gone now is judged like what was gone before.
                    tally.begin_part()
                    offset, is_cut = starts[0], True
        return is_cut

    def _consumer(self, place: PartitionRange) -> SimpleConsumer:
        return SimpleConsumer(place.address.host, place.address.port, timeout=self._timeout)

    def _brokers(self, topic: str) -> Iterator[tuple[Address, int]]:
        """Each broker, and how many partitions of a topic ZooKeeper knows it to have."""
        if self._zookeeper is None:
            yield from ((address, 0) for address in self._addresses)
            return
        from fastlog.client.registrations import read_addresses, read_partitions
        from fastlog.coordination.watched import Watched
        from fastlog.coordination.zookeeper import ZooKeeperSession

        with closing(
            ZooKeeperSession(self._zookeeper, session_timeout=_SESSION_SECONDS, connection_timeout=self._timeout)
        ) as session:
            watched = Watched(session, lambda: None)
            addresses = read_addresses(watched, _refuse)
            counts = read_partitions(watched, topic, _refuse)
        if not addresses:
            raise ConfigError(f"no broker is registered at {self._zookeeper}")
        for broker, address in sorted(addresses.items()):
            yield address, counts.get(broker, 0)

    def _plain_places(self, topic: str, address: Address, count: int) -> Iterator[PartitionRange]:
        """The partitions of a topic on a broker of Kafka 0.7, which are looked up in ZooKeeper."""
        if self._zookeeper is None:
            raise ConfigError(
                f"{address} speaks plain Kafka 0.7 and does not tell its partitions: find it by ZooKeeper"
            )
        with SimpleConsumer(address.host, address.port, timeout=self._timeout, local="off") as consumer:
            for number in range(count):
                yield PartitionRange(address, number, *plain_extent(consumer, topic, number))


def _places_of(topic: str, address: Address, answer: responses.MetadataAnswer) -> Iterator[PartitionRange]:
    for described in answer.topics:
        if described.name != topic:
            continue
        check_described(described, address)
        for item in described.partitions:
            yield PartitionRange(address, item.partition, item.log_start, readable_end(item))


def _refuse(path: str, then: str, error: Exception) -> None:
    raise AuditError(f"{path} in ZooKeeper is malformed: {error}") from error
