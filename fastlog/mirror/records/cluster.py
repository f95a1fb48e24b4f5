"""One side of a mirror: the brokers of a cluster, each asked over one connection, by who leads what."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from fastlog.client import record_requests as requests
from fastlog.client.addresses import Address
from fastlog.client.kafka_connection import KafkaConnection, connected
from fastlog.client.kafka_fields import Answer, Place, Request, tagged_answer
from fastlog.client.record_fetching import Batches, fetch_several, parse_several
from fastlog.client.record_topics import ClusterView, LedTopic, known_topics, parse_cluster
from fastlog.client.records import require
from fastlog.errors import ProtocolError, TransportError

_T = TypeVar("_T")

CLIENT = "fastlog-mirror"
_PURPOSE = "topics of record batches are mirrored"
_NOBODY = ClusterView("", {}, {})


class NoLeaderError(TransportError):
    """The topic or the partition is not there, or nobody leads it now."""


class RecordCluster:
    """For one thread.

    Raises (every call):
        TransportError: a broker cannot be reached, or does not answer in time; its connection is made anew then.
        ProtocolError: it answers what cannot be.
        RecordsError: it refuses.
    """

    def __init__(self, addresses: Sequence[Address], timeout: float) -> None:
        """``addresses``: of any of the brokers, tried in their order. ``timeout``: seconds for one answer."""
        self.view = _NOBODY
        self.timeout = timeout
        self.addresses = list(addresses)
        self._connections: dict[Address, KafkaConnection] = {}

    def close(self) -> None:
        """End all connections; the next call makes others."""
        while self._connections:
            self._connections.popitem()[1].close()

    def look(self, topics: Iterable[str] | None) -> ClusterView:
        """What there is of these topics, or of all; kept as ``view``."""
        wanted = None if topics is None else list(topics)
        reasons = []
        for address in dict.fromkeys([*self.view.brokers.values(), *self.addresses]):
            try:
                self.view = self._ask(address, known_topics(wanted), parse_cluster)
            except TransportError as error:
                reasons.append(str(error.reason))
                continue
            return self.view
        raise TransportError("; ".join(reasons))

    def topic(self, name: str) -> LedTopic:
        """What the view has of a topic. Raises ``NoLeaderError``: it is not there."""
        found = self.view.topics.get(name)
        if found is None or not found.leaders:
            raise NoLeaderError(f"there is no topic {name!r} of record batches at {self}")
        return found

    def leader(self, place: Place) -> Address:
        """Where the partition is led. Raises ``NoLeaderError``: nowhere, as far as the view knows."""
        topic, partition = place
        address = self.view.brokers.get(self.topic(topic).leaders.get(partition, -1))
        if address is None:
            raise NoLeaderError(f"nobody leads partition {partition} of topic {topic!r} at {self}")
        return address

    def connection(self, address: Address) -> KafkaConnection:
        """The connection to a broker, made if there is none."""
        found = self._connections.get(address)
        if found is None:
            deadline = time.monotonic() + self.timeout
            found = self._connections[address] = connected(address, CLIENT, deadline)
            try:
                found.begin(_PURPOSE, deadline)
            except BaseException:
                self.drop(address)
                raise
        return found

    def drop(self, address: Address, connection: KafkaConnection | None = None) -> None:
        """End a connection, only if it is still this one: what was asked over it is not answered any more."""
        found = self._connections.get(address)
        if found is not None and connection in (None, found):
            del self._connections[address]
            found.close()
        elif connection is not None:
            connection.close()

    def any_address(self) -> Address:
        """The address of some broker that the cluster named last, or of the list before it has named any."""
        return next(iter(self.view.brokers.values()), self.addresses[0])

    # -- what is asked -------------------------------------------------------------------------------------------------

    def offset(self, place: Place, time_ms: int) -> int:
        """``EARLIEST`` or ``LATEST`` of a partition."""
        found = self._ask(self.leader(place), requests.list_offsets([place], time_ms), requests.parse_offsets)
        if place not in found:
            raise ProtocolError(f"{self} says nothing of {place[0]}, partition {place[1]}")
        code, offset = found[place]
        require(code, *place)
        return offset

    def offsets(self, places: Iterable[Place], time_ms: int) -> dict[Place, int]:
        """The same of several, without those that do not tell."""
        found: dict[Place, int] = {}
        by_leader: dict[Address, list[Place]] = {}
        for place in places:
            by_leader.setdefault(self.leader(place), []).append(place)
        for address, led in by_leader.items():
            answer = self._ask(address, requests.list_offsets(led, time_ms), requests.parse_offsets)
            found |= {place: offset for place, (code, offset) in answer.items() if not code}
        return found

    def batches(self, place: Place, offset: int, max_bytes: int) -> Batches:
        """What a partition has from an offset on, transactions or not."""
        key = self.topic(place[0]).id, place[1]
        request = fetch_several(
            {key: offset}, max_wait_ms=0, min_bytes=1, max_bytes=max_bytes, partition_bytes=max_bytes
        )
        connection = self.connection(self.leader(place))
        try:
            number = connection.send(request)
            body = connection.received_view(self.timeout)
            if body is None:
                raise TransportError(f"{connection.peer} did not answer in time")
            code, found = parse_several(tagged_answer(body, number))
        except BaseException:
            self.drop(self.leader(place))
            raise
        require(code, *place)
        batches = next((batches for where, batches, _ in found if where == key), None)
        if batches is None:
            raise ProtocolError(f"{connection.peer} says nothing of {place[0]}, partition {place[1]}")
        require(batches.code, *place)
        return batches

    def new_producer(self) -> tuple[int, int]:
        """An id for a producer that numbers its batches, and its epoch."""
        found = self._ask(self.any_address(), requests.new_producer(), requests.parse_producer)
        require(found.code, "")
        return found.id, found.epoch

    def create(self, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
        """Create a topic with these settings of its own. Raises ``RecordsError`` where the cluster refuses."""
        request = requests.create_topic(topic, partitions, settings, round(self.timeout * 900))
        refusal = self._controlled(request, requests.parse_created)
        require(refusal.code, topic, text=refusal.text)

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Raise the number of a topic's partitions to ``partitions``. Raises ``RecordsError``: the cluster refuses."""
        refusal = self._controlled(
            requests.create_partitions(topic, partitions, round(self.timeout * 900)), requests.parse_created
        )
        require(refusal.code, topic, text=refusal.text)

    def settings(self, topic: str) -> dict[str, requests.TopicSetting]:
        """All settings of a topic, by name. Raises ``RecordsError`` where the cluster refuses."""
        refusal, found = self._ask(self.any_address(), requests.describe_settings(topic), requests.parse_settings)
        require(refusal.code, topic, text=refusal.text)
        return found

    def __str__(self) -> str:
        return ",".join(map(str, self.addresses))

    def _controlled(self, request: Request, parse: Callable[[Answer], _T]) -> _T:
        """Brokers that do not change topics themselves pass such requests on to the one that does."""
        return self._ask(self.any_address(), request, parse)

    def _ask(self, address: Address, request: Request, parse: Callable[[Answer], _T]) -> _T:
        try:
            return parse(self.connection(address).ask(request, time.monotonic() + self.timeout))
        except BaseException:
            self.drop(address)
            raise
