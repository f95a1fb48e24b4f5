"""One source cluster: a member of a group that reads it, and a lane for each partition it has."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from fastlog.consumer._delivery import Place
from fastlog.consumer.connector import Consumer
from fastlog.consumer.partitions import TopicPartition
from fastlog.consumer.stream import Run, Stream
from fastlog.errors import (
    ClosedError,
    ConfigError,
    ConsumerTimeout,
    FastlogError,
    InvalidMessageError,
    OwnershipLostError,
)
from fastlog.mirror.committing import Committer
from fastlog.mirror.config import MirrorConfig, SourceConfig
from fastlog.mirror.damage import behind_damage
from fastlog.mirror.lane import MessageLane, StoredRanges
from fastlog.mirror.pieces import Forwarded, MirrorPiece, Observer, TargetPartition
from fastlog.mirror.target import MirrorTarget, Pipes
from fastlog.mirror.totals import Counts, Totals
from fastlog.zkpaths import PartitionId

log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0


class Way(NamedTuple):
    """The partitions of a topic in the target, and the number of each partition of the source."""

    places: list[TargetPartition]
    numbers: dict[PartitionId, int]


class MessageSource:
    """Reads a cluster from ``start`` to ``stop``; ``look`` is to be called from time to time by one thread."""

    def __init__(
        self,
        config: SourceConfig,
        mirror: MirrorConfig,
        target: MirrorTarget,
        pipes: Pipes,
        observer: Observer | None,
        wake: Callable[[], None],
    ) -> None:
        self.name = config.name
        self.config = config
        self.consumer: Consumer | None = None
        self.fatal: FastlogError | None = None
        self.error: FastlogError | None = None
        """Why it has not begun, or what damage stops a partition."""
        self.is_checked = False
        """Whether it is known not to be the target itself; nothing is forwarded before."""
        self._mirror = mirror.settings
        self._skips = mirror.settings.bad_messages == "skip"
        self._target = target
        self._pipes = pipes
        self._observer = observer
        self._wake = wake
        self._streams: list[Stream] = []
        self._lanes: dict[TopicPartition, MessageLane] = {}
        self._lanes_lock = threading.Lock()
        self._counts: dict[str, Counts] = {}
        self._counts_lock = threading.Lock()
        self._repeated = self._doubtful = 0  # by lanes that are no more
        self._stored: dict[TopicPartition, StoredRanges] = {}
        self._damage_due: float | None = None
        self._known: dict[str, set[PartitionId]] = {}
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._committer = Committer(self.name, observer, self._wants_commit)

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Join the group, as soon as that can be done."""
        self._thread(self._join, "join")

    def hold(self) -> None:
        """Take nothing more; what is under way goes on."""
        self._over.set()
        self._committer.stop()

    @property
    def is_under_way(self) -> bool:
        """Something was sent and is not settled."""
        return any(lane.is_under_way for lane in list(self._lanes.values()))

    @property
    def is_busy(self) -> bool:
        """Something is under way, or waits to be sent again."""
        return any(lane.is_under_way or lane.is_failed for lane in list(self._lanes.values()))

    def stop(self, seconds: float) -> FastlogError | None:
        """Commit what was acknowledged and leave the group; why it could not be committed. After ``hold``."""
        self.hold()
        error: FastlogError | None = None
        consumer = self.consumer
        if consumer is not None:
            for step in (self._committer.keep, consumer.commit_offsets):
                try:
                    step()
                except (OwnershipLostError, ClosedError) as failure:
                    log.info("source=%s: %s", self.name, failure)  # whoever has them now goes on where they were saved
                except FastlogError as failure:
                    error = error or failure
            consumer.shutdown(seconds)
        for thread in self._threads:
            thread.join(seconds)
        return error

    def _thread(self, work: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=work, name=f"fastlog-mirror-{self.name}-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _join(self) -> None:
        while not self._over.is_set():
            consumer = Consumer(self.config.consumer)
            try:
                streams = consumer.create_message_streams_by_filter(
                    whitelist=self._mirror.whitelist,
                    blacklist=self._mirror.blacklist,
                    streams=self._mirror.streams,
                    acknowledge=True,
                )
            except ConfigError as error:
                self.fatal = error
                self._wake()
                return
            except FastlogError as error:
                if self.error is None:
                    log.warning("source=%s: %s: tried again", self.name, " ".join(str(error).split()))
                self.error = error
                self._over.wait(_RETRY_SECONDS)
                continue
            self.error = None
            for stream in streams:
                stream.take_from(self._wants)
            self._streams = streams
            self.consumer = consumer
            if self._over.is_set():  # looked at behind that: whoever ends it meanwhile sees the consumer
                consumer.shutdown()
                return
            for number, stream in enumerate(streams):
                self._thread(partial(self._forward, stream), str(number))
            self._thread(partial(self._committer.run, consumer, self._committed), "commit")
            self._wake()
            return

    # -- the streams' threads ------------------------------------------------------------------------------------------

    def _forward(self, stream: Stream) -> None:
        while True:
            try:
                run = stream.run()
            except ConsumerTimeout:
                continue
            except ClosedError:
                return
            except FastlogError as error:
                self._damaged(error)
                continue
            except Exception as error:
                log.exception("source=%s stream=%s", self.name, stream.name)
                self.fatal = FastlogError(f"{self.name}: {error!r}")
                self._wake()
                return
            if run is None:
                return
            self._take(run)

    def _wants(self, place: Place) -> bool:
        if self._over.is_set() or not self.is_checked:
            return False
        lane = self._lanes.get(place.source)
        if lane is None:
            with self._lanes_lock:
                lane = self._lanes[place.source] = MessageLane(
                    place.source, self._mirror.uncommitted_bytes, self._done, self._stored, skips=self._skips
                )
            self._wake()
        return lane.wants(place)

    def _take(self, run: Run) -> None:
        lane = self._lanes.get(run.place.source)
        if lane is not None:
            lane.take(run)

    def _damaged(self, error: FastlogError) -> None:
        """A partition stops at a message that cannot be read; the consumer tries it again by itself."""
        log.error("source=%s: a partition waits: %s", self.name, " ".join(str(error).split()))
        self._damage_due = time.monotonic()
        self._wake()

    # -- the pipes' threads --------------------------------------------------------------------------------------------

    def _done(self, lane: MessageLane, piece: MirrorPiece, error: FastlogError | None) -> None:
        self._tell(
            Forwarded(
                self.name,
                lane.source,
                piece.offset,
                piece.next_offset,
                piece.data,
                piece.entries,
                piece.target,
                piece.target_offset,
                error,
            )
        )
        self._committer.settled(piece.place, piece.next_offset)
        if lane.wants_commit:
            self._committer.wake()

    def _tell(self, run: Forwarded) -> None:
        """Count what was forwarded or left out, and let the observer do so."""
        if self._observer is not None:
            try:
                self._observer(run)
            except Exception:
                log.exception("an observer failed source=%s", run.source)
        with self._counts_lock:
            counts = self._counts.setdefault(run.source.topic, Counts())
            if run.error is None:
                counts.entries += run.entries
                counts.bytes += len(run.data)
            else:
                counts.left_out += run.entries

    # -- the committer's thread ----------------------------------------------------------------------------------------

    def _wants_commit(self) -> bool:
        return any(lane.wants_commit for lane in list(self._lanes.values()))

    def _committed(self) -> None:
        if self.consumer is not None:
            self._learn_committed(self.consumer)
        self.wake_streams()

    def _learn_committed(self, consumer: Consumer) -> None:
        for source, offset in consumer.committed.items():
            lane = self._lanes.get(source)
            if lane is not None:
                lane.committed = max(lane.committed, offset)

    # -- the mirror's thread -------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Give lanes their places in the target, and let go on what can."""
        consumer = self.consumer
        if consumer is None or not self.is_checked:
            return
        for topic, partitions in consumer.topics.items():
            self._known.setdefault(topic, set()).update(partitions)
        owned = {source for stream in self._streams for source in stream.partitions}
        self._learn_committed(consumer)
        ways: dict[str, Way | None] = {}
        for source, lane in list(self._lanes.items()):
            if source not in owned:
                self._forget(lane)
                continue
            if lane.wants_commit:
                self._committer.wake()  # again, if it failed before
            if source.topic not in ways:
                ways[source.topic] = self._way(source.topic)
            self._place(lane, ways[source.topic])
            offset = lane.resume_at()
            if offset is not None and not self._over.is_set():
                self._resume(consumer, lane, offset)
        if self._skips and self._damage_due is not None and time.monotonic() >= self._damage_due:
            self._leave_out_damage(consumer)
        self.wake_streams()

    def wake_streams(self) -> None:
        """Have every stream ask again which partitions are wanted."""
        for stream in self._streams:
            stream.wake()

    def _way(self, topic: str) -> Way | None:
        """Where the partitions of a topic go; None while that is not known."""
        places = self._target.partitions(topic)
        if not places:
            return None
        return Way(places, {partition: index for index, partition in enumerate(sorted(self._known.get(topic, ())))})

    def _place(self, lane: MessageLane, way: Way | None) -> None:
        index = way.numbers.get(lane.source.partition) if way is not None else None
        if way is not None and index is not None:
            place = place_of(index, way.places)
            lane.assign(self._pipes.get(place.broker, index), place)

    def _resume(self, consumer: Consumer, lane: MessageLane, offset: int) -> None:
        try:
            consumer.seek(lane.source, offset)
        except FastlogError as error:  # it belongs to another member now, or the consumer is over
            log.debug("not resumed %s: %s", lane.source, error)

    def _leave_out_damage(self, consumer: Consumer) -> None:
        """Go on behind messages that are damaged, once what is before them was acknowledged."""
        self._damage_due = None
        for source, state in consumer.partitions.items():
            if not isinstance(state.error, InvalidMessageError) or state.position is None:
                continue
            self._damage_due = time.monotonic() + _RETRY_SECONDS
            lane = self._lanes.get(source)
            if state.consumed != state.position or lane is None or lane.target is None:
                continue
            seconds = self.config.consumer.socket_timeout_ms / 1000
            try:
                end = behind_damage(state.address, source, state.position, seconds)
                if end is None:
                    continue
                consumer.seek(source, end)
            except FastlogError as error:
                log.warning("not left out source=%s offset=%d: %s", source, state.position, error)
                continue
            log.error(
                "left out source=%s offset=%d bytes=%d: %s", source, state.position, end - state.position, state.error
            )
            nothing = memoryview(b"")
            self._tell(Forwarded(self.name, source, state.position, end, nothing, 1, lane.target, -1, state.error))

    def _forget(self, lane: MessageLane) -> None:
        if not lane.is_under_way:
            with self._lanes_lock:
                if self._lanes.get(lane.source) is lane:
                    del self._lanes[lane.source]
            self._repeated += lane.repeated
            self._doubtful += lane.doubtful

    # -- how it stands -------------------------------------------------------------------------------------------------

    @property
    def totals(self) -> Totals:
        """Counts of what was mirrored since the start."""
        lanes = list(self._lanes.values())
        with self._counts_lock:
            by_topic = {
                topic: Counts(found.entries, found.bytes, found.left_out) for topic, found in self._counts.items()
            }
        return Totals(
            sum(found.entries for found in by_topic.values()),
            sum(found.bytes for found in by_topic.values()),
            sum(found.left_out for found in by_topic.values()),
            self._repeated + sum(lane.repeated for lane in lanes),
            self._doubtful + sum(lane.doubtful for lane in lanes),
            by_topic,
        )

    @property
    def waiting(self) -> dict[TopicPartition, FastlogError]:
        """The partitions that do not go on, and why."""
        found = {lane.source: lane.error for lane in list(self._lanes.values()) if lane.error is not None}
        consumer = self.consumer
        states = consumer.partitions if consumer is not None else {}
        return {**found, **{source: state.error for source, state in states.items() if state.error is not None}}

    def lag(self, seconds: float) -> dict[TopicPartition, int | None]:
        """Bytes behind the visible end of each partition; None where its broker does not answer in time."""
        consumer = self.consumer
        try:
            return consumer.lag(seconds) if consumer is not None else {}
        except (FastlogError, RuntimeError):
            return {}


def place_of(index: int, places: list[TargetPartition]) -> TargetPartition:
    """Where partition number ``index`` of a source goes: to the one with its number, where there are as many.

    All of a partition goes to one place, so the order of the messages of a key, which are in one partition, is kept.
    """
    return places[index % len(places)]
