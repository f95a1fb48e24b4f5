"""All partitions of a broker: found and recovered at start, made on the first produce, counted per topic.

The supervisor loads; processors look up and create, one of them at a time by the creation lock of the arena.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fastlog.config import BrokerConfig, TopicSettings
from fastlog.errors import InvalidTopicError, LogError, WrongPartitionError
from fastlog.log import _files
from fastlog.log._arena import STATE_OFFLINE, STATE_READ_ONLY, WHY_ROOM, Arena
from fastlog.log.deletion import put_away_wanted
from fastlog.log.discovery import shown
from fastlog.log.files import FileOps
from fastlog.log.flush_marks import FlushMarks
from fastlog.log.flushed_mark import flushed_marks, put_flushed_mark
from fastlog.log.formats import FORMATS, LogFormat, format_number, is_for_kafka07, log_format
from fastlog.log.formats.record_batches import RECORD_BATCHES
from fastlog.log.kafka_files import (
    EPOCHS_NAME,
    METADATA_NAME,
    NO_TOPIC_ID,
    messages_topic_id,
    topic_id_text,
    write_epochs,
    write_metadata,
)
from fastlog.log.log_starts import Starts, read_log_starts, write_log_starts
from fastlog.log.metadata import CREATED, CREATING, Topic
from fastlog.log.recovery import RecoveredPartition, recover_all
from fastlog.log.side_file import SideFile, read_side_file, write_side_file
from fastlog.log.slots import SlotSettings, SlotSpec, SlotView
from fastlog.segment_files import (
    KAFKA_0_7,
    SIDE_FILE_NAME,
    parse_segment_name,
    partition_directory_name,
    segment_name,
)
from fastlog.topics import OWN_PREFIX, valid_topic

log = logging.getLogger(__name__)

MOST_PRODUCERS = 1 << 62
"""Above any id that a broker gives out."""
_STATES = {"ok": 0, "read-only": STATE_READ_ONLY, "offline": STATE_OFFLINE}


class CreationBusyError(LogError):
    """Another process creates a partition at this moment: try again when woken."""


class OtherTopicError(LogError):
    """Another topic has the name, made at the same time: of another format, or of another id."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What the start found: partitions as recovered, and lines about names that were passed over."""

    partitions: tuple[RecoveredPartition, ...]
    warnings: tuple[str, ...]


class LogManager:
    """Finds, makes and counts partitions. One per process; safe beside those of other processes."""

    def __init__(
        self,
        config: BrokerConfig,
        arena: Arena,
        files: FileOps | None = None,
        settings: Mapping[str, TopicSettings] | None = None,
    ) -> None:
        """``settings`` are those of topics that have their own, instead of what the configuration says."""
        self._config = config
        self._settings = settings or {}
        self._arena = arena
        self._files = files or FileOps()
        self._directories = [Path(path) for path in arena.log_dirs]
        self._seen: int | None = None  # changes of the slots that the tables below know; None: none yet
        self._slots: dict[str, dict[int, int]] = {}  # topic → partition → index of its slot
        self._held = [0] * len(self._directories)  # how many of these each log directory has
        self._names: dict[int, tuple[str, int, int]] = {}  # of a slot: topic, partition, log directory

    # -- start -------------------------------------------------------------------------------------------------------

    def load(self, clean_ends: Sequence[dict[str, int]], known: Iterable[Topic] = ()) -> LoadReport:
        """Recover every partition of every log directory and give each a slot; supervisor only, before any fork.

        ``known`` are the topics that the metadata log names. A partition of theirs whose directory is missing, or is
        another topic's, is offline and named: it may be on a disk that is not there, and must not begin anew at 0.
        """
        unfinished = self._finish_deletions()
        marks = [FlushMarks(directory, self._files) for directory in self._directories]
        # of all directories: a partition may have been moved from one to another
        in_doubt = any(mark.in_doubt for mark in marks)
        no_room = [mark.no_room for mark in marks]
        starts = [self._log_starts(directory) for directory in self._directories]
        topics = {topic.name: topic for topic in known}
        creating = {topic.name for topic in topics.values() if topic.phase == CREATING}
        found, warnings = recover_all(
            self._directories,
            clean_ends,
            self._files,
            in_doubt,
            no_room,
            starts,
            is_unfinished=lambda found: (
                found.topic in creating and self._is_half_made(found.directory, log_format(RECORD_BATCHES))
            ),
        )
        unfinished += self._forget_starts(starts, found)
        for dir_index, mark in enumerate(marks):
            here = [partition for index, partition in found if index == dir_index]
            if all(not item.sync_failed and (not in_doubt or item.state == "ok") for item in here):
                mark.settle(self._arena.slots)
        ids = _ids_of_messages(partition for _, partition in found)
        found = [
            (index, replace(each, topic_id=ids[each.topic]) if each.topic in ids else each) for index, each in found
        ]
        given = [
            self._give_slot(index, _unless_other(partition, topics), settled=_is_settled(partition, topics))
            for index, partition in found
        ]
        for topic in topics.values():
            if topic.phase == CREATED:
                self._add_missing(topic)
        return LoadReport(tuple(given), (*unfinished, *warnings))

    def _add_missing(self, topic: Topic) -> None:
        held = {view.partition for view in self.partitions(topic.name)}
        for partition in range(topic.partitions):
            if partition in held:
                continue
            line = "partition offline topic=%r partition=%d: no log directory has it; put it back, or delete the topic"
            log.error(line, topic.name, partition)
            spec = self._spec(
                topic.name,
                partition,
                0,
                created_ms=0,
                segments=[(0, 0, 0)],
                log_end=0,
                state=STATE_OFFLINE,
                format_name=RECORD_BATCHES,
                durable=True,
                flushed_base=None,
            )
            self._arena.add(spec._replace(topic_id=topic.topic_id))

    def _log_starts(self, directory: Path) -> Starts:
        try:
            return read_log_starts(directory, self._files)
        except OSError as error:
            log.error("%s: %s; partitions begin with their first segments", error.filename, error.strerror)
            return {}

    def _forget_starts(self, kept: list[Starts], found: list[tuple[int, RecoveredPartition]]) -> list[str]:
        """Forget the starts of partitions that are not there: they would be those of other topics of their names."""
        held = {(index, each.topic, each.partition) for index, each in found}
        for index, (directory, starts) in enumerate(zip(self._directories, kept, strict=True)):
            there = {place: start for place, start in starts.items() if (index, *place) in held}
            try:
                if there != starts:
                    write_log_starts(directory, there, self._files)
            except OSError as error:
                return [f"log starts of partitions that are not there are kept path={directory}: {error.strerror}"]
        return []

    def _finish_deletions(self) -> list[str]:
        """Let go what was being deleted when the broker ended; a line when that cannot be done now."""
        try:
            for topic in put_away_wanted(self._directories, self._files):
                log.info("deleted topic=%r, as was asked for before the start", topic)
        except OSError as error:
            return [f"a topic that is to be deleted is still there path={error.filename}: {error.strerror}"]
        return []

    def _give_slot(self, dir_index: int, found: RecoveredPartition, *, settled: bool) -> RecoveredPartition:
        """Give a partition its slot and return it as it is served: one that cannot be is offline, and no other."""
        if len(found.segments) > self._arena.table_entries:
            found = found.taken_out(
                f"{shown(found.directory)} has {len(found.segments)} segments, and there is room for "
                f"{self._arena.table_entries}: raise max.segments.per.partition and start again"
            )
        if self._arena.room:  # without a slot, nothing could name it
            try:
                spec = self._spec_of(dir_index, found)
                self._arena.add(spec._replace(settled=settled))
            except Exception as error:
                log.exception("cannot be served path=%s", shown(found.directory))
                found = found.taken_out(f"{shown(found.directory)} cannot be served: {error!r}")
                self._arena.add(self._spec_of(dir_index, found))
        else:
            self._arena.add(self._spec_of(dir_index, found))
        if found.state != "ok":
            log.error("partition %s topic=%r partition=%d: %s", found.state, found.topic, found.partition, found.reason)
        return found

    def put_back(self, former: SlotView, found: RecoveredPartition) -> int:
        """Give a partition a slot that was recovered while the broker runs; the caller holds the creation lock."""
        spec = self._spec_of(former.directory, found)
        if spec.topic_id == NO_TOPIC_ID:
            spec = spec._replace(topic_id=former.topic_id)
        return self._arena.add(spec, spare=True, like=former.index)

    def _spec_of(self, dir_index: int, found: RecoveredPartition) -> SlotSpec:
        # what new producers get is above all that were met; an id that nobody gave out does not use up the numbers
        met = [state.id for state in found.producers if state.id < MOST_PRODUCERS]
        self._arena.meet_producer(max(met, default=-1))
        segments = [(item.base, item.first_ms, item.last_ms) for item in found.segments] or [(0, 0, 0)]
        return self._spec(
            found.topic,
            found.partition,
            dir_index,
            created_ms=found.created_ms,
            segments=segments,
            starts=_starts(found),
            log_end=max(found.log_end, segments[0][0]),
            state=_STATES[found.state] | (WHY_ROOM << 8 if found.no_room else 0),
            format_name=found.format,
            durable=True,
            flushed_base=found.flushed_base,
        )._replace(
            indexes=found.indexes,
            epoch=found.epoch,
            topic_id=found.topic_id,
            log_start=found.log_start,
            producers=found.producers,
        )

    def _spec(
        self,
        topic: str,
        partition: int,
        dir_index: int,
        *,
        created_ms: int,
        segments: list[tuple[int, int, int]],
        log_end: int,
        starts: list[int] | None = None,
        state: int = 0,
        format_name: str = KAFKA_0_7,
        durable: bool,
        flushed_base: int | None,
        own: TopicSettings | None = None,
    ) -> SlotSpec:
        settings = own or self._settings.get(topic) or self._config.for_topic(topic)
        return SlotSpec(
            **self._slot_settings(settings)._asdict(),
            topic=topic,
            partition=partition,
            directory=dir_index,
            format=format_number(format_name),
            created_ms=created_ms,
            segments=segments,
            starts=starts,
            log_end=log_end,
            state=state,
            durable=durable,
            flushed_base=flushed_base,
        )

    def _slot_settings(self, settings: TopicSettings) -> SlotSettings:
        return SlotSettings(
            segment_bytes=settings.segment_bytes,
            roll_ms=settings.roll_ms,
            flush_messages=settings.flush_interval_messages,
            flush_bytes=self._config.flush_bytes,
            flush_ns=settings.flush_interval_ms * 1_000_000,
            retention_ms=settings.retention_ms,
            retention_bytes=settings.retention_bytes,
            max_message_bytes=settings.max_message_bytes,
            append_time=settings.append_time,
        )

    def change_settings(self, topic: str, topic_id: bytes, settings: TopicSettings) -> None:
        """Let a topic's partitions have other settings from now on; not those of one that took its name.

        Raises:
            CreationBusyError: somebody else makes or deletes partitions.
        """
        views = [view for view in self.partitions(topic) if view.topic_id == topic_id]
        if not self._arena.create_lock():
            raise CreationBusyError("another process makes or deletes partitions")
        try:
            for view in views:
                self._arena.change_settings(view.index, view.life, self._slot_settings(settings))
        finally:
            self._arena.create_unlock()

    # -- looking up ----------------------------------------------------------------------------------------------------

    def _learn(self) -> None:
        """Take what other processes made or deleted since the last look into the tables."""
        if self._seen == self._arena.change_count:
            return
        seen, changed = self._arena.changed(self._seen) if self._seen is not None else (self._arena.change_count, None)
        if changed is None:
            self._slots.clear()
            self._names.clear()
            self._held = [0] * len(self._directories)
        for index in range(self._arena.slot_count) if changed is None else changed:
            self._forget(index)
            view = self._arena.shown_view(index)
            if view is None or (view.life % 2 == 0 and view.partition in self._slots.get(view.topic, {})):
                continue  # one that is to return, and is back already in another slot
            else:
                self._slots.setdefault(view.topic, {})[view.partition] = index
                self._names[index] = view.topic, view.partition, view.directory
                self._held[view.directory] += 1
        self._seen = seen

    def _forget(self, index: int) -> None:
        name = self._names.pop(index, None)
        if name is None:
            return
        self._held[name[2]] -= 1
        numbers = self._slots[name[0]]
        if numbers.get(name[1]) == index:
            del numbers[name[1]]
        if not numbers:
            del self._slots[name[0]]

    def slot(self, topic: str, partition: int) -> SlotView | None:
        """The slot of a partition that exists, else None."""
        while True:
            self._learn()
            index = self._slots.get(topic, {}).get(partition)
            view = None if index is None else self._arena.shown_view(index)
            if view is not None or self._arena.change_count == self._seen:
                return view
            # it may have come back into service since, in another slot

    def topics(self) -> list[str]:
        """The names of the topics that have a partition here, in order."""
        self._learn()
        return sorted(self._slots)

    def topics_of_kafka07(self) -> list[str]:
        """Of these, the ones that clients of Kafka 0.7 can use."""
        firsts = ((name, self.first(name)) for name in self.topics())
        return [name for name, view in firsts if view is None or is_for_kafka07(view.format)]

    def first(self, topic: str) -> SlotView | None:
        """The slot of a topic's first partition that exists, else None: it tells what kind the topic is."""
        return next(self._each(topic), None)

    def partitions(self, topic: str) -> list[SlotView]:
        """The slots of a topic's partitions that exist, in order."""
        return list(self._each(topic))

    def _each(self, topic: str) -> Iterator[SlotView]:
        self._learn()
        views = (self.slot(topic, partition) for partition in sorted(self._slots.get(topic, ())))
        return (view for view in views if view is not None)

    def partition_count(self, topic: str) -> int:
        """How many partitions the topic has on this broker, written to or not.

        The configured count, or more when more lie on disk: lowering ``num.partitions`` hides nothing.

        Raises:
            InvalidTopicError: the name is not allowed.
        """
        self._learn()
        numbers = self._slots.get(topic)
        if numbers is None:
            reason = valid_topic(topic, self._config.max_topic_name_length)
            if reason is not None:
                raise InvalidTopicError(reason)
            return self._config.partition_count(topic)
        return max(self._config.partition_count(topic), max(numbers) + 1)

    # -- creating ------------------------------------------------------------------------------------------------------

    def create_partition(
        self,
        topic: str,
        partition: int,
        *,
        count: int | None = None,
        format_name: str = KAFKA_0_7,
        topic_id: bytes = NO_TOPIC_ID,
        settings: TopicSettings | None = None,
        settled: bool = True,
        first_offset: int = 0,
    ) -> int:
        """Make the directory, side file and first segment of a partition and give it a slot; returns the slot's index.

        Doing it twice is doing it once: what a dead creator left half-made is finished. The flusher makes the names
        durable before anything in it becomes visible. ``count`` lifts the configured number of partitions;
        ``format_name`` is the log format, ``topic_id`` the 16 bytes that a topic of record batches is known by, and
        ``settings`` what holds instead of the configuration; they count for one that is not there yet, as does
        ``settled``: clients of today may see it, and ``first_offset``: where the log begins. With an id, the
        first partition made under a name decides whose the name is.

        Raises:
            CreationBusyError: another process creates one now.
            OtherTopicError: with an id: partitions that are there are another topic's.
            InvalidTopicError, WrongPartitionError: it may not exist, or its topic has another log format.
            LogError: a directory of that name already holds messages, or no slot is free.
            OSError: the disk refused.
        """
        made = log_format(format_name)
        allowed = self.partition_count(topic) if count is None else count
        if not 0 <= partition < allowed:
            raise WrongPartitionError(
                f"topic {topic!r} has {allowed} partitions, partition {partition} is not one of them"
            )
        reason = valid_topic(topic, self._config.max_topic_name_length, partition=partition)
        if reason is not None:
            raise InvalidTopicError(reason)
        if not self._arena.create_lock():
            raise CreationBusyError("another process creates a partition")
        try:
            self._learn()
            if topic_id != NO_TOPIC_ID and any(
                view.topic_id != topic_id or view.format != format_number(format_name)
                for view in self.partitions(topic)
            ):
                raise OtherTopicError(f"another topic has the name {topic!r}")
            existing = self._slots.get(topic, {}).get(partition)
            if existing is not None:
                return existing
            for other in self.partitions(topic)[:1]:
                if other.format != format_number(format_name):
                    raise WrongPartitionError(f"topic {topic!r} has another log format than {format_name}")
            if any(gone.topic == topic for gone in self._arena.leaving()):
                raise CreationBusyError(f"topic {topic!r} is being deleted")
            if topic.startswith(OWN_PREFIX) and format_name == KAFKA_0_7:
                raise InvalidTopicError(f"topics that begin with {OWN_PREFIX} are the broker's")
            if self._arena.room == 0:
                # before anything is made: directories without a slot would keep the next start from succeeding
                raise LogError(
                    f"all {self._arena.max_partitions} partition slots are taken: raise max.partitions and start again"
                )
            dir_index, directory = self._place(topic, partition)
            now_ms = time.time_ns() // 1_000_000
            self._make_files(directory, now_ms, made, topic_id, first_offset)
            if format_name == KAFKA_0_7:
                others = self.partitions(topic)
                topic_id = others[0].topic_id if others else messages_topic_id(topic, now_ms)
            index = self._arena.add(
                self._spec(
                    topic,
                    partition,
                    dir_index,
                    created_ms=now_ms,
                    segments=[(first_offset, now_ms, 0)],
                    starts=[0, 0],
                    log_end=first_offset,
                    format_name=format_name,
                    durable=False,
                    flushed_base=first_offset,
                    own=settings,
                )._replace(topic_id=topic_id, settled=settled)
            )
        finally:
            self._arena.create_unlock()
        self._learn()
        log.info("created topic=%r partition=%d path=%s", topic, partition, directory)
        return index

    def _place(self, topic: str, partition: int) -> tuple[int, Path]:
        """The log directory for a new partition: where a half-made one lies, else the one with the fewest."""
        name = partition_directory_name(topic, partition)
        for number, parent in enumerate(self._directories):
            if (parent / name).exists():
                return number, parent / name
        number = self._held.index(min(self._held))
        return number, self._directories[number] / name

    def _make_files(self, directory: Path, now_ms: int, made: LogFormat, topic_id: bytes, base: int) -> None:
        try:
            self._files.mkdir(directory)
        except FileExistsError:
            if not self._is_half_made(directory, made, base):
                raise LogError(
                    "a directory for the new partition already holds something; it was put there while the broker "
                    "ran: start again to have it checked",
                    path=str(directory),
                ) from None
        _files.reach("create.directory")
        put_flushed_mark(directory, [], base, self._files)
        write_side_file(directory, SideFile(now_ms, made.name), self._files)
        if topic_id != NO_TOPIC_ID:
            write_metadata(directory, topic_id, self._files)
        if made.has_epochs:
            write_epochs(directory, [(0, base)], self._files)
        _files.reach("create.side_file")
        first = directory / segment_name(base, made.suffix)
        with self._files.open(first, os.O_RDWR | os.O_CREAT) as descriptor:
            if self._files.size(descriptor):
                raise OSError(errno.EEXIST, "the first segment already holds bytes", str(first))
        _files.reach("create.segment")

    def _is_half_made(self, directory: Path, made: LogFormat, base: int | None = None) -> bool:
        """Whether a directory holds at most what a creation leaves that was stopped half-way: that may be finished.

        ``base``: where the log was to begin; None: anywhere.
        """
        for item in self._files.listdir(directory):
            begin = parse_segment_name(item.name, made.suffix)
            (mark,) = flushed_marks([item.name]) or (None,)
            if begin is not None and base in (None, begin):
                if not item.is_file(follow_symlinks=False) or item.stat(follow_symlinks=False).st_size:
                    return False
            elif (mark is None or base not in (None, mark)) and item.name.removesuffix(".tmp") not in (
                SIDE_FILE_NAME,
                METADATA_NAME,
                EPOCHS_NAME,
            ):
                return False
        try:
            side = read_side_file(directory, self._files)
        except OSError:
            return False
        return side is None or (side.format == made.name and side.checkpoint == 0)


def _ids_of_messages(found: Iterable[RecoveredPartition]) -> dict[str, bytes]:
    """The ids of the topics of 0.7 among these: by the oldest of their partitions, since others are made later."""
    oldest: dict[str, int] = {}
    for each in found:
        if each.format == KAFKA_0_7:
            oldest[each.topic] = min(each.created_ms, oldest.get(each.topic, each.created_ms))
    return {topic: messages_topic_id(topic, created_ms) for topic, created_ms in oldest.items()}


def _is_settled(found: RecoveredPartition, topics: Mapping[str, Topic]) -> bool:
    """Whether clients may see a partition: not one of a topic whose creation was stopped."""
    topic = topics.get(found.topic)
    return topic is None or topic.phase != CREATING


def _unless_other(found: RecoveredPartition, topics: Mapping[str, Topic]) -> RecoveredPartition:
    """A partition as it was recovered, or taken out of service where its directory is not its topic's."""
    topic = topics.get(found.topic)
    if topic is None or topic.phase != CREATED or found.topic_id == topic.topic_id or found.format not in FORMATS:
        return found
    ids = f"topic id {topic_id_text(found.topic_id)}, and the topic's is {topic_id_text(topic.topic_id)}"
    return found.taken_out(f"{shown(found.directory)} is another topic's: {ids}; move it out of the log directory")


def _starts(found: RecoveredPartition) -> list[int] | None:
    """The positions of a partition's segments and of its end; None where its offsets are positions."""
    made = FORMATS.get(found.format)
    if made is None or not made.is_dense or not found.segments:
        return None
    return list(itertools.accumulate((item.size for item in found.segments), initial=0))
