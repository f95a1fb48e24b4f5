"""``fastlog.Consumer``: reading topics together with the other members of a group."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from fastlog import arguments, escaping
from fastlog.client.addresses import Address
from fastlog.consumer.assignment import TopicFilter
from fastlog.consumer.broker_logs import described_extents
from fastlog.consumer.config import ConsumerConfig
from fastlog.consumer.feed import Jump, PartitionState
from fastlog.consumer.fetcher import EARLIEST, LATEST
from fastlog.consumer.fetchers import Fetchers
from fastlog.consumer.fields import ConsumerFields
from fastlog.consumer.group import Group, make_consumer_id
from fastlog.consumer.offsets import OffsetStore
from fastlog.consumer.partitions import Lease, TopicPartition
from fastlog.consumer.simple import SimpleConsumer
from fastlog.consumer.status import GroupState
from fastlog.consumer.stream import Stream
from fastlog.errors import (
    ArgumentError,
    ClosedError,
    ConfigError,
    FastlogError,
    ForkedError,
    OwnershipLostError,
    StateError,
)
from fastlog.zkpaths import MOST_STREAMS, PartitionId, Subscription, thread_ids

log = escaping.logger(__name__)

Settings = str | Path | Mapping[str, Any] | ConsumerConfig
Decoder = Callable[[bytes], Any]

_ANSWER_SECONDS = 10.0
_LOOK_SECONDS = 0.005
_KEPT_JUMPS = 1000


class Consumer:
    """A member of a group: gives streams of messages, and shares the partitions of its topics with the other members.

    ``Consumer(brokers="localhost:9092", group_id="g")`` for a group that a broker keeps;
    ``Consumer("localhost:2181", group_id="g")``, ``Consumer({"zk.connect": "localhost:2181", "groupid": "g"})``,
    ``Consumer(Path("consumer.properties"))`` for one in ZooKeeper; keywords are the fields of ``ConsumerConfig``. It
    joins when its streams are created, once, and leaves with ``close()``, at the end of a ``with`` block, or at the end
    of the program. Safe in any number of threads, each stream in one at a time; not across a fork.

    Source: Kafka 0.7.2 (ZookeeperConsumerConnector).
    """

    def __init__(
        self,
        settings: Settings | None = None,
        /,
        *,
        store: OffsetStore | None = None,
        **fields: Unpack[ConsumerFields],
    ) -> None:
        """Connects to nothing yet. ``store``: where offsets are kept instead of with the group.

        Raises:
            ConfigError: a setting is unknown, out of range, or missing.
        """
        self.config = _config(settings, fields)
        self.consumer_id = make_consumer_id(self.config)
        self._store = store
        self._lease = Lease(self.config.session_timeout)
        self._fetchers = Fetchers(self.config, self._stream_of, self._note_jump, self._note_begin)
        self._streams: dict[tuple[str, str], Stream] = {}
        self._group: Group | None = None
        self._jumps: deque[Jump] = deque(maxlen=_KEPT_JUMPS)
        self._is_over = False
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"<Consumer {self.consumer_id} of {self.config.group_id}: {self.state.value}>"

    # -- streams -------------------------------------------------------------------------------------------------------

    def create_message_streams(
        self, topics: Mapping[str, int], *, decoder: Decoder | None = None, acknowledge: bool = False
    ) -> dict[str, list[Stream]]:
        """Join the group and return the given number of streams of each topic, each with its share of the partitions.

        ``decoder``: called with each payload; what it returns is the message's ``value``. ``acknowledge``: messages
        count as consumed when ``stream.done()`` says so, and only then.

        Raises:
            CoordinationError: ZooKeeper or the broker cannot be reached, or the consumer id is in use.
            ConfigError: no topic, a name that cannot be one, or a number of streams below 1.
            UnsupportedFeatureError: with ``zk.connect``, a topic is one of record batches. Of one that is made later,
                its streams raise that once.
            StateError: streams were created before.
        """
        if not isinstance(topics, Mapping):
            raise ArgumentError(f"topics: numbers of streams by topic, as {{'t': 2}}, not {type(topics).__name__}")
        if not topics:
            raise ConfigError("no topic is named")
        for topic, count in topics.items():
            if not arguments.text("topic", topic) or "/" in topic:
                raise ConfigError(f"{topic!r} is no name of a topic")
            _check_count(count)
        subscription = Subscription(dict(topics))
        streams = {
            topic: [self._new_stream(f"{topic} {thread}", decoder, acknowledge) for thread in self._threads(count)]
            for topic, count in topics.items()
        }
        named = {
            (topic, thread): stream
            for topic, found in streams.items()
            for thread, stream in zip(self._threads(len(found)), found, strict=True)
        }
        self._join(subscription, named)
        return streams

    def create_message_streams_by_filter(
        self,
        *,
        whitelist: str | None = None,
        blacklist: str | None = None,
        streams: int = 1,
        decoder: Decoder | None = None,
        acknowledge: bool = False,
    ) -> list[Stream]:
        """The same for all topics whose whole name a regular expression matches, or none of those it matches.

        Topics that come later join by themselves. Commas stand for ``|``, as in 0.7. Raises as
        ``create_message_streams``.
        """
        if (whitelist is None) == (blacklist is None):
            raise ConfigError("give either whitelist or blacklist")
        arguments.text("whitelist or blacklist", whitelist if whitelist is not None else blacklist)
        _check_count(streams)
        chosen = TopicFilter(whitelist if whitelist is not None else blacklist or "", whitelist is not None)
        subscription = Subscription({}, chosen.pattern, chosen.is_whitelist, streams)
        named = {("", thread): self._new_stream(thread, decoder, acknowledge) for thread in self._threads(streams)}
        self._join(subscription, named)
        return list(named.values())

    def wait_assigned(self, timeout: float) -> bool:
        """Wait until exactly the assigned partitions are read, and it is known where each of them begins.

        So what is appended afterwards is read whatever ``autooffset.reset`` says. False after ``timeout`` seconds.
        """
        group = self._joined()
        deadline = time.monotonic() + arguments.seconds("timeout", timeout)
        while group.wait_settled(max(0.0, deadline - time.monotonic())):
            if group.owned.keys() <= self._fetchers.consumed().keys():
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_SECONDS)
        return False

    # -- offsets -------------------------------------------------------------------------------------------------------

    def commit_offsets(self, offsets: Mapping[TopicPartition, int] | None = None, *, wait: bool = True) -> None:
        """Save how far every partition has been consumed, or these offsets; what has not changed is not written.

        The message a stream gave last is not counted until the next one is asked for, or ``done`` says so. With
        ``wait=False`` it returns at once, and failures are counted and logged.

        Raises:
            OwnershipLostError: names partitions that are not owned (any more); the others are saved.
            CoordinationError: nothing was saved, or it is not known whether something was.
            ClosedError, ForkedError: after ``shutdown()``, or in a child after ``fork``.
            ArgumentError: an offset is negative.
        """
        group = self._joined()
        if offsets is not None:
            _check_offsets(offsets)
        group.commit(offsets, wait=wait)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at this offset, which may be ``EARLIEST`` or ``LATEST``: the next message of it comes from there.

        It has to be the start of a message. It counts as consumed up to there from now on, and the next commit says so.

        Raises:
            OwnershipLostError: it is not read by this consumer now.
            TransportError, BrokerError: the broker does not say where its log begins or ends.
        """
        self._joined()
        _check_source(partition)
        arguments.offset("offset", offset)
        if offset < 0:
            if offset not in (EARLIEST, LATEST):
                raise ConfigError(f"offset: {offset} is neither an offset nor EARLIEST or LATEST")
            offset = self._offset_at(partition, offset)
        if not self._fetchers.seek(partition, offset):
            raise _not_ours(partition)

    def seek_to_time(self, partition: TopicPartition, time_ms: int) -> None:
        """Go on at the last segment that began before this time (ms since 1970), or where the log begins.

        So nothing that was appended since is left out; some older messages come, too. Raises as ``seek``.
        """
        self._joined()
        _check_source(partition)
        arguments.offset("time_ms", time_ms)
        if not self._fetchers.seek(partition, self._offset_at(partition, max(0, time_ms))):
            raise _not_ours(partition)

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """How far each partition that is read here has been consumed, as far as it is known."""
        return self._fetchers.consumed()

    @property
    def committed(self) -> dict[TopicPartition, int]:
        """The committed offset of each partition that is owned, as far as it is known."""
        return self._group.committed if self._group is not None else {}

    def lag(self, timeout: float = _ANSWER_SECONDS) -> dict[TopicPartition, int | None]:
        """For each partition read here the bytes that can be read and have not been consumed; the brokers are asked.

        None where the broker does not answer within ``timeout`` seconds, or the first offset is not known yet.
        """
        self._joined()
        arguments.seconds("timeout", timeout)
        consumed = self._fetchers.consumed()
        by_broker: dict[int, list[TopicPartition]] = {}
        for source in self._fetchers.feeds():
            by_broker.setdefault(source.partition.broker, []).append(source)
        found: dict[TopicPartition, int | None] = {}
        for broker, sources in by_broker.items():
            ends = self._ends(broker, sources, timeout)
            for source in sources:
                end, start = ends.get(source), consumed.get(source)
                found[source] = None if end is None or start is None else max(0, end - start)
        return found

    # -- how it stands -------------------------------------------------------------------------------------------------

    @property
    def state(self) -> GroupState:
        """The state of the membership now."""
        if self._group is None:
            return GroupState.STOPPED if self._is_over else GroupState.JOINING
        return self._group.state

    @property
    def error(self) -> Exception | None:
        """The last error of the membership that has not been recovered from; None: there is none."""
        return self._group.error if self._group is not None else None

    @property
    def failed_commits(self) -> int:
        """How many commits have failed that nobody waited for."""
        return self._group.failed_commits if self._group is not None else 0

    @property
    def owned(self) -> dict[TopicPartition, str]:
        """The partitions of this member, with the name of the thread; none while that is not certain."""
        return self._group.owned if self._group is not None else {}

    @property
    def topics(self) -> Mapping[str, list[PartitionId]]:
        """Every partition of the topics that are read, whoever reads it, as last announced."""
        return self._group.topics if self._group is not None else {}

    @property
    def brokers(self) -> Mapping[int, Address]:
        """The brokers' addresses by id, as last announced."""
        return self._group.brokers if self._group is not None else {}

    @property
    def partitions(self) -> dict[TopicPartition, PartitionState]:
        """The state of fetching for each partition that is read here, with the error where it fails."""
        return self._fetchers.states()

    @property
    def jumps(self) -> tuple[Jump, ...]:
        """Where reading could not go on and went on elsewhere, by ``autooffset.reset``; the last thousand."""
        return tuple(self._jumps)

    # -- the end -------------------------------------------------------------------------------------------------------

    def shutdown(self, timeout: float = 5.0) -> None:
        """Hand out nothing any more, commit unless auto-commit is off, leave the group; within ``timeout`` seconds.

        Every iteration ends. May be called again, from any thread and from signal handlers. ``shutdown`` is 0.7's name
        for ``close``.
        """
        if os.getpid() != self._pid:
            return
        self._is_over = True
        for stream in list(self._streams.values()):
            stream.end()
        group = self._group
        if group is not None:
            group.stop(timeout)
        self._fetchers.close()
        _live.discard(self)

    def close(self, timeout: float = 5.0) -> None:
        """The same as ``shutdown``."""
        self.shutdown(timeout)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _threads(self, count: int) -> list[str]:
        return thread_ids(self.consumer_id, count)

    def _new_stream(self, name: str, decoder: Decoder | None, acknowledge: bool) -> Stream:
        seconds = self.config.consumer_timeout_ms
        return Stream(
            name,
            self._lease,
            timeout=None if seconds is None else seconds / 1000,
            decode=decoder,
            acknowledge=acknowledge,
            shallow=self.config.shallow,
        )

    def _stream_of(self, topic: str, thread: str) -> Stream:
        return self._streams.get((topic, thread)) or self._streams["", thread]

    def _join(self, subscription: Subscription, streams: dict[tuple[str, str], Stream]) -> None:
        self._check()
        if self._group is not None:
            raise StateError("this consumer has its streams: make another one for others")
        self._streams = streams
        group = self._group = Group(
            self.config,
            subscription,
            self._fetchers,
            consumer_id=self.consumer_id,
            store=self._store,
            lease=self._lease,
            on_refused=self._refuse,
        )
        _register(self)
        try:
            group.start()
        except BaseException:
            self.shutdown()
            raise

    def _joined(self) -> Group:
        self._check()
        if self._group is None:
            raise StateError("this consumer has no streams yet: create them first")
        return self._group

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(f"this consumer belongs to the process {self._pid}: make a new one after fork")
        if self._is_over:
            raise ClosedError("this consumer was shut down")

    def _refuse(self, topic: str, error: FastlogError) -> None:
        for (name, _), stream in self._streams.items():
            if name == topic:
                stream.refuse(error)

    def _note_jump(self, jump: Jump) -> None:
        self._jumps.append(jump)
        if self._group is not None:
            self._group.note_jump(jump.source, jump.old, jump.new)

    def _note_begin(self, source: TopicPartition) -> None:
        if self._group is not None:
            self._group.note_begin(source)

    def _simple(self, broker: int, timeout: float) -> SimpleConsumer:
        address = self._fetchers.link(broker).address
        return SimpleConsumer(address.host, address.port, timeout=timeout, local="off")

    def _offset_at(self, source: TopicPartition, time_ms: int) -> int:
        if source not in self._fetchers.feeds():
            raise _not_ours(source)
        number = source.partition.partition
        with self._simple(source.partition.broker, self.config.socket_timeout_ms / 1000) as simple:
            found = simple.get_offsets_before(source.topic, number, time_ms)
            return (found or simple.get_offsets_before(source.topic, number, EARLIEST) or [0])[0]

    def _ends(self, broker: int, sources: list[TopicPartition], timeout: float) -> dict[TopicPartition, int]:
        """Up to where these partitions of a broker can be read, as far as it says."""
        ends = {}
        try:
            with self._simple(broker, timeout) as simple:
                metadata = simple.metadata(sorted({source.topic for source in sources}))
                if metadata is not None:
                    extents = described_extents(metadata)
                    counts = {topic.name: topic.configured_partitions for topic in metadata.topics}
                    for source in sources:
                        place = source.topic, source.partition.partition
                        if place in extents:
                            ends[source] = extents[place].end
                        elif place[1] < counts.get(source.topic, 0):
                            ends[source] = 0  # nothing was written to it yet
                    return ends
                for source in sources:
                    found = simple.get_offsets_before(source.topic, source.partition.partition, LATEST)
                    if found:
                        ends[source] = found[0]
        except FastlogError as error:
            log.debug("broker=%d does not tell where its logs end: %s", broker, error)
        return ends

    def _leave_to_parent(self) -> None:
        for stream in self._streams.values():
            stream.end()
        self._fetchers.close()


def _config(settings: Settings | None, fields: Mapping[str, Any]) -> ConsumerConfig:
    if isinstance(settings, ConsumerConfig):
        if fields:
            raise ConfigError("give a ConsumerConfig or single settings, not both")
        return settings
    if isinstance(settings, str):
        if "zk_connect" in fields:
            raise ConfigError("ZooKeeper is named twice")
        return ConsumerConfig.from_fields({**fields, "zk_connect": settings})
    if isinstance(settings, Mapping):
        return ConsumerConfig.from_properties(settings, **fields)
    if isinstance(settings, os.PathLike):
        return ConsumerConfig.from_file(settings, **fields)
    if settings is not None:
        raise ArgumentError(
            f"settings are 'host:port', a mapping, a Path or ConsumerConfig, not {type(settings).__name__}"
        )
    return ConsumerConfig.from_fields(fields)


def _check_count(streams: int) -> None:
    if not 1 <= arguments.whole("streams", streams) <= MOST_STREAMS:
        raise ConfigError(f"{streams} is no number of streams: it is 1 to {MOST_STREAMS}")


def _check_offsets(offsets: Any) -> None:
    if not isinstance(offsets, Mapping):
        raise ArgumentError(f"offsets: offsets by TopicPartition, not {type(offsets).__name__}")
    for source, offset in offsets.items():
        _check_source(source)
        arguments.offset("offset", offset)


def _check_source(source: Any) -> None:
    if not isinstance(source, TopicPartition) or not isinstance(source.partition, PartitionId):
        raise ArgumentError(f"a partition is a TopicPartition, with a PartitionId: {source!r:.100}")


def _not_ours(partition: TopicPartition) -> OwnershipLostError:
    return OwnershipLostError(f"{partition} is not read by this consumer now", (partition,))


# --- the end of the program, and forks ---

_live: set[Consumer] = set()


def _register(consumer: Consumer) -> None:
    _live.add(consumer)
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        # Such a process ends without atexit; its own list of things to do at the end is gone through.
        from multiprocessing import util

        util.Finalize(None, _shutdown_all, exitpriority=-100)


def _shutdown_all() -> None:
    for consumer in list(_live):
        consumer.shutdown()


def _after_fork_in_child() -> None:
    for consumer in list(_live):
        consumer._leave_to_parent()
    _live.clear()


atexit.register(_shutdown_all)
os.register_at_fork(after_in_child=_after_fork_in_child)
