"""Making and deleting topics of record batches: intent, work, done, each flushed before the next.

And what can be done of that with topics of 0.7, whose partitions are all that says that they are there.

What was answered is there after any crash; what was not is finished or taken back by the next coordinator. Nothing here
is a lock that others could wait for: the name is taken by the first partition that is made under it, whoever makes it
(``LogManager.create_partition``), and the creation lock is held for one partition at a time.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fastlog import logs
from fastlog.config import BrokerConfig
from fastlog.errors import FastlogError, LogError
from fastlog.kafka_codes import Code
from fastlog.log import _files
from fastlog.log._append import Appender
from fastlog.log._arena import Arena
from fastlog.log._segments import SegmentFiles
from fastlog.log._shared_memory import COORDINATOR
from fastlog.log.deletion import is_marked, leave_marker, marker_name, put_away_topics
from fastlog.log.files import FileOps
from fastlog.log.formats import format_name
from fastlog.log.formats.record_batches import RECORD_BATCHES
from fastlog.log.manager import CreationBusyError, LogManager, OtherTopicError
from fastlog.log.metadata import CREATED, CREATING, DELETED, DELETING, Topic, topic_change
from fastlog.log.slots import SlotView
from fastlog.segment_files import KAFKA_0_7
from fastlog.workers.coordinator import topic_settings
from fastlog.workers.coordinator.internal_log import Disk
from fastlog.workers.coordinator.loop import Loop, Step, Until, Wait
from fastlog.workers.coordinator.metadata_log import MetadataLog
from fastlog.workers.coordinator.producer_ids import ProducerIds

log = logging.getLogger(__name__)

STEP_PARTITIONS = 16
"""Made in one step of the thread: each costs some files and their syncs, and others have a turn in between."""
PAUSE_SECONDS = 0.005
NAMES_SECONDS = 60.0
"""What the names of new directories may take to become durable."""
RETRY_SECONDS = 5.0
"""After what a dead coordinator left open could not be finished."""
ADOPT_SECONDS = 0.5
"""After a topic has appeared that others made: its partitions come one after the other."""
MOST_PARTITIONS = 4096
"""The most partitions of a topic that one request creates."""
ILLEGAL_NAME = "Topic name is invalid: the legal characters are ASCII alphanumerics, '.', '_' and '-', 249 at most"
_LEGAL_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
OF_KAFKA07 = "a topic of Kafka 0.7, whose settings are those of the broker (topic.*)"


class Outcome(NamedTuple):
    """The result of a change to topics: an error code, and what the answer says of it."""

    code: Code = Code.NONE
    message: str | None = None
    topic: Topic | None = None


Work = Generator[Wait, Any, Outcome]


def is_legal_name(name: str) -> bool:
    """Whether Kafka lets a topic have this name."""
    return _LEGAL_NAME.fullmatch(name) is not None and name not in (".", "..")


class Pending:
    """Work that goes on whoever waits for it."""

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        self.creates = self.deletes = False

    def wait(self, deadline: float) -> Work:
        """What came of it; REQUEST_TIMED_OUT when nothing has by then."""
        yield Until(lambda: self.outcome is not None, deadline)
        return self.outcome or Outcome(Code.REQUEST_TIMED_OUT, "it is still under way, and goes on")


class Topics:
    """For the loop's thread; ``Step`` runs on the worker's."""

    def __init__(self, config: BrokerConfig, arena: Arena, loop: Loop) -> None:
        self._config = config
        self._arena = arena
        self._loop = loop
        self._files = FileOps()
        self._directories = [Path(path) for path in arena.log_dirs]
        self._manager = LogManager(config, arena, self._files)
        self._workers_manager = LogManager(config, arena, self._files)
        appender = Appender(arena, SegmentFiles(arena, 16), COORDINATOR)
        self.disk = Disk(arena, self._files, self._workers_manager, self._manager, appender)
        self._log = MetadataLog(config, self.disk, loop)
        self.producer_ids = ProducerIds(arena, self._log)
        self._busy: dict[str, Pending] = {}  # names in transition
        self._is_adopting = False
        self._adopted_at = -1  # changes of the arena that were looked at
        self.on_deleted: Callable[[str], object] = lambda _: None
        """Called with the name of each topic that is gone."""
        self.is_ready = False
        """Whether what the log says is known, and what was open has been begun to be finished."""

    # -- looking up ----------------------------------------------------------------------------------------------------

    def partitions(self, name: str) -> list[SlotView]:
        """The partitions of a topic of record batches; empty where there is none that clients may know of."""
        views = self._manager.partitions(name)
        return views if views and format_name(views[0].format) == RECORD_BATCHES else []

    def is_known(self, name: str) -> bool:
        """Whether clients can know of a topic of record batches, or one of 0.7 has the name."""
        view = self._manager.first(name)
        return view is not None and view.settled

    def is_of_kafka07(self, name: str) -> bool:
        """Whether a topic is there that is none of record batches."""
        view = self._manager.first(name)
        return view is not None and format_name(view.format) != RECORD_BATCHES

    def of_kafka07(self, name: str) -> list[SlotView]:
        """The partitions of a topic of 0.7 that somebody has written to.

        Empty where there is none that clients of today may know of.
        """
        if not is_legal_name(name) or name.startswith("__"):
            return []
        views = self._manager.partitions(name)
        return views if views and format_name(views[0].format) == KAFKA_0_7 else []

    def takes_offsets(self, name: str, partitions: Iterable[int]) -> dict[int, bool]:
        """Whether groups can commit how far they have read partitions of a topic: by number.

        Partitions of a topic of 0.7 come with what is written to them, so each is taken of which the topic is there.
        """
        if self.is_of_kafka07(name):
            return dict.fromkeys(partitions, True)
        return {partition: self._manager.slot(name, partition) is not None for partition in partitions}

    def deletes_records(self, name: str) -> bool:
        """Whether the records of a topic may go before it is compacted."""
        return "delete" in self.settings(name).get("cleanup.policy", "delete")

    def names(self) -> list[str]:
        """The topics of record batches, in order; the broker's own are not among them."""
        return [name for name, _ in self._found()]

    def names_of_kafka07(self) -> list[str]:
        """The topics of 0.7 that clients of today may know of, in order."""
        return [name for name in self._manager.topics() if self.of_kafka07(name)]

    def by_id(self, topic_id: bytes) -> str | None:
        """The name of the topic that has an id."""
        every = ((name, self.partitions(name) or self.of_kafka07(name)) for name in self._manager.topics())
        return next((name for name, views in every if views and views[0].topic_id == topic_id), None)

    def _found(self) -> Iterator[tuple[str, list[SlotView]]]:
        """Each topic with its partitions, of which it has one at least: others delete while this is read."""
        for name in self._manager.topics():
            if not name.startswith("__") and (views := self.partitions(name)):
                yield name, views

    def settings(self, name: str) -> Mapping[str, str]:
        """What a topic was given, by Kafka's names."""
        known = self._log.state.topics.get(name)
        return known.settings if known is not None else {}

    def is_settled(self, name: str) -> bool:
        """Whether it is known that a topic is there, or is not."""
        return self.is_ready and name not in self._busy

    def is_there(self, name: str) -> bool:
        """Whether a topic of any kind has the name, or is about to."""
        return name in self._busy or bool(self._manager.partitions(name))

    def shown_count(self, name: str) -> int:
        """The number of a topic's partitions in answers to clients; of one of 0.7, as many as it may have."""
        return self._manager.partition_count(name) if self.of_kafka07(name) else len(self.partitions(name))

    def partition_count(self, name: str) -> int:
        """How many partitions a topic was made with; 0: it was not."""
        known = self._log.state.topics.get(name)
        return known.partitions if known is not None else 0

    # -- starting ------------------------------------------------------------------------------------------------------

    def begin(self) -> Generator[Wait, Any, None]:
        """At the start of the process: know what the log says, and finish what a predecessor left open."""
        while True:
            try:
                yield Step(self.disk.appender.take_over)
                yield from self._log.take_over()
                break
            except (OSError, FastlogError) as error:
                log.error("the metadata log cannot be read: %s; requests for topics are refused until it can", error)
                yield Until(lambda: False, time.monotonic() + RETRY_SECONDS)
        # what a predecessor wrote down of settings, and may not have come to
        yield from self._apply([topic for topic in self._log.state.topics.values() if topic.phase == CREATED])
        self.is_ready = True
        for topic in list(self._log.state.topics.values()):
            if topic.phase == CREATING:
                self._start(topic.name, self._finish_creation(topic))
            elif topic.phase == DELETING:
                self._start(topic.name, self._finish_deletion(topic))
            else:  # a predecessor may not have come to it
                self._settle(topic)

    def adopt(self) -> None:
        """Write down topics that others made: processors when they were asked for, or a person with a directory."""
        if self.is_ready and not self._is_adopting and self._adopted_at != self._arena.change_count:
            self._is_adopting = True
            self._loop.at(time.monotonic() + ADOPT_SECONDS, lambda: self._loop.start(self._adopt()))

    def shorten(self) -> None:
        """Have the metadata log begin anew, if it has become long."""
        if self.is_ready and self._log.is_long:
            self._loop.start(self._log.begin_anew())

    def _adopt(self) -> Generator[Wait, Any, None]:
        seen = self._arena.change_count
        changes = []
        for name, views in self._found():
            known = self._log.state.topics.get(name)
            count = views[-1].partition + 1
            if name in self._busy or not any(views[0].topic_id):
                continue
            if known is None or known.topic_id != views[0].topic_id:
                changes.append(topic_change(CREATED, Topic(name, views[0].topic_id, count)))
            elif known.phase == CREATED and known.partitions < count:
                changes.append(topic_change(CREATED, Topic(name, known.topic_id, count, known.settings)))
        # what somebody deleted by fastlog's own request; one whose directory is missing at a start is there, offline
        for known in self._log.state.topics.values():
            if known.phase == CREATED and known.name not in self._busy and not self._manager.partitions(known.name):
                changes.append(topic_change(DELETED, known))
        try:
            if changes:
                yield from self._log.write(changes)
            for known in self._log.state.topics.values():
                if known.phase == CREATED:
                    self._settle(known)
            self._adopted_at = seen
        except (OSError, FastlogError) as error:
            log.error("topics not written down topics=%d reason=%s: tried again", len(changes), error)
        self._is_adopting = False

    # -- creating ------------------------------------------------------------------------------------------------------

    def refusal(self, name: str, count: int) -> Outcome | None:
        """Why a topic with that number of partitions cannot be made now; None: it can."""
        if not self.is_ready:
            return Outcome(Code.COORDINATOR_LOAD_IN_PROGRESS, "the metadata log is being read")
        if name in self._busy or name in self._log.state.topics or self._manager.partitions(name):
            return Outcome(Code.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        return self._no_room(count)

    def _no_room(self, more: int) -> Outcome | None:
        if more > min(self._arena.room, MOST_PARTITIONS):
            room = f"there is room for {self._arena.room} (max.partitions), and for {MOST_PARTITIONS} in one request"
            return Outcome(Code.INVALID_PARTITIONS, f"{more} partitions more: {room}")
        return None

    def wanted(self, name: str) -> Pending | Code:
        """Make a topic that a client has asked for, unless it is there: what is to be said of it, or to be waited for.

        What goes on under its name comes first, also a deletion: then ask again.
        """
        if not self.is_ready:
            return Code.LEADER_NOT_AVAILABLE
        pending = self._busy.get(name)
        if pending is not None:
            return pending
        views = self._manager.partitions(name)
        if views:
            return Code.NONE
        count = self._config.partition_count(name)
        refused = self.refusal(name, count)
        if refused is not None:
            _say(name, "created", LogError(str(refused.message)))
            return Code.KAFKA_STORAGE_ERROR
        return self.create(name, count, {})

    def create(self, name: str, count: int, settings: Mapping[str, str]) -> Pending:
        """Make a topic that ``refusal`` has nothing against."""
        topic = Topic(name, uuid.uuid4().bytes, count, dict(settings), CREATING)
        pending = self._start(name, self._create(topic))
        pending.creates = True
        return pending

    def _create(self, topic: Topic) -> Work:
        yield from self._log.write([topic_change(CREATING, topic)])
        return (yield from self._finish_creation(topic))

    def _finish_creation(self, topic: Topic) -> Work:
        """Finish a creation whose intent is flushed."""
        _files.reach("topic.creating")
        try:
            yield from self._make(topic, 0)
        except (OSError, FastlogError) as error:
            is_there = any(view.topic_id == topic.topic_id for view in self._manager.partitions(topic.name))
            if isinstance(error, OtherTopicError) and not is_there:
                # the other's first partition came first
                yield from self._log.write([topic_change(DELETED, topic)], needs_room=False)
                return Outcome(Code.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
            _say(topic.name, "created", error)
            yield from self._log.write([topic_change(DELETING, topic)], needs_room=False)
            yield from self._finish_deletion(topic)
            return Outcome(Code.KAFKA_STORAGE_ERROR, str(error))
        _files.reach("topic.made")
        settings = {name: value for name, value in topic.settings.items() if name != topic_settings.FIRST_OFFSETS}
        topic = replace(topic, settings=settings)
        yield from self._log.write([topic_change(CREATED, topic)])
        self._settle(topic)
        log.info("created topic=%r partitions=%d", topic.name, topic.partitions)
        return Outcome(topic=topic)

    def _settle(self, topic: Topic) -> None:
        """Let clients see the partitions that are recorded."""
        for view in self._manager.partitions(topic.name):
            if not view.settled and view.topic_id == topic.topic_id and view.partition < topic.partitions:
                self._arena.settle(view.index)

    def _make(self, topic: Topic, first: int) -> Generator[Wait, Any, None]:
        """Make partitions from ``first`` on, in steps; returns once their names are durable."""
        settings = topic_settings.applied(self._config, topic.name, topic.settings)
        text = topic.settings.get(topic_settings.FIRST_OFFSETS)
        begins = topic_settings.first_offsets(text, topic.partitions) if text else [0] * topic.partitions
        number, made = first, list[int]()
        while number < topic.partitions:

            def make(begin: int = number) -> list[int]:
                found = []
                for partition in range(begin, min(topic.partitions, begin + STEP_PARTITIONS)):
                    try:
                        index = self._workers_manager.create_partition(
                            topic.name,
                            partition,
                            count=topic.partitions,
                            format_name=RECORD_BATCHES,
                            topic_id=topic.topic_id,
                            settings=settings,
                            settled=False,
                            first_offset=begins[partition],
                        )
                    except CreationBusyError:
                        break
                    self._arena.demand_flush(index)
                    found.append(index)
                return found

            found = yield Step(make)
            made += found
            number += len(found)
            if not found:
                yield Until(lambda: False, time.monotonic() + PAUSE_SECONDS)
        waiting = set(made)

        def are_durable() -> bool:
            for index in list(waiting):
                self._arena.wait_for_end(index, COORDINATOR)
                view = self._arena.live_view(index)
                if view is None or view.state or view.dir_synced_tail > view.table_head:
                    waiting.discard(index)
                    problems.extend([] if view is not None and not view.state else [index])
            return not waiting

        problems = list[int]()
        done = yield Until(are_durable, time.monotonic() + NAMES_SECONDS)
        if problems or not done:
            raise LogError(f"the names of {len(problems) or len(waiting)} partitions are not on the disk")

    # -- more partitions -----------------------------------------------------------------------------------------------

    def grow(self, name: str, count: int) -> Pending:
        """Make the partitions of a topic that are missing to ``count``."""
        return self._start(name, self._grow(name, count))

    def refusal_to_grow(self, name: str, count: int) -> Outcome | None:
        """Why the topic cannot have ``count`` partitions; None: it can."""
        views = self.partitions(name)
        if not self.is_ready or name in self._busy:
            return Outcome(Code.COORDINATOR_LOAD_IN_PROGRESS, "the topic is being changed")
        if self.of_kafka07(name):
            held = self._manager.partition_count(name)
            if count <= held:
                text = f"Topic may have {held} partitions already (num.partitions), {count} is no increase."
                return Outcome(Code.INVALID_PARTITIONS, text)
            return self._no_room(count - held)
        if not views or name.startswith("__"):
            return Outcome(Code.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        held = self._count(name, views)
        if count <= held:
            return Outcome(Code.INVALID_PARTITIONS, f"Topic currently has {held} partitions, {count} is no increase.")
        return self._no_room(count - held)

    def _grow(self, name: str, count: int) -> Work:
        if self.of_kafka07(name):
            return (yield from self._grow_of_kafka07(name, count))
        views = self.partitions(name)
        if not views:
            return Outcome(Code.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        held = self._count(name, views)
        topic = Topic(name, views[0].topic_id, count, self.settings(name))
        try:
            yield from self._make(topic, held)
        except (OSError, FastlogError) as error:
            _say(name, "grown", error)
            return Outcome(Code.KAFKA_STORAGE_ERROR, str(error))
        yield from self._log.write([topic_change(CREATED, topic)])
        self._settle(topic)
        return Outcome(topic=topic)

    def _grow_of_kafka07(self, name: str, count: int) -> Work:
        """Make the last partitions: that they are there is what says how many the topic has."""
        number = self._manager.partition_count(name)
        while number < count:

            def make(begin: int = number) -> int:
                made = begin
                for partition in range(begin, min(count, begin + STEP_PARTITIONS)):
                    try:
                        self._arena.demand_flush(self._workers_manager.create_partition(name, partition, count=count))
                    except CreationBusyError:
                        break
                    made = partition + 1
                return made

            try:
                made = yield Step(make)
            except (OSError, FastlogError) as error:
                _say(name, "grown", error)
                return Outcome(Code.KAFKA_STORAGE_ERROR, str(error))
            if made == number:
                yield Until(lambda: False, time.monotonic() + PAUSE_SECONDS)
            number = made
        return Outcome()

    def _count(self, name: str, views: list[SlotView]) -> int:
        known = self._log.state.topics.get(name)
        return max(views[-1].partition + 1, known.partitions if known is not None else 0)

    # -- other settings ------------------------------------------------------------------------------------------------

    def alter(self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]], validate_only: bool) -> Work:
        """Give a topic the settings that ``change`` makes of those it has, which hold for its partitions from then on.

        What goes on under the name comes first; it is not waited for without end.

        Raises:
            InvalidSettingError: by ``change``.
        """
        until = time.monotonic() + NAMES_SECONDS
        while (pending := self._busy.get(name)) is not None:
            if time.monotonic() >= until:
                return Outcome(Code.REQUEST_TIMED_OUT, "the topic is being changed; try again later")
            yield from pending.wait(until)
        if not self.is_ready:
            return Outcome(Code.COORDINATOR_LOAD_IN_PROGRESS, "the metadata log is being read")
        views = self.partitions(name)
        if self.of_kafka07(name):
            return Outcome(Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, OF_KAFKA07)
        if not views or name.startswith("__"):
            return Outcome(Code.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        settings = change(self.settings(name))
        if validate_only or settings == self.settings(name):
            return Outcome()
        topic = Topic(name, views[0].topic_id, self._count(name, views), dict(settings))
        return (yield from self._start(name, self._alter(topic)).wait(until))

    def _alter(self, topic: Topic) -> Work:
        yield from self._log.write([topic_change(CREATED, topic)])
        _files.reach("topic.altered")
        yield from self._apply([topic])
        log.info("settings changed topic=%r settings=%s", topic.name, topic.settings)
        return Outcome(topic=topic)

    def _apply(self, topics: list[Topic]) -> Generator[Wait, Any, None]:
        """Let the settings that are written down hold for partitions that are there."""
        left = list(topics)

        def apply() -> None:
            while left:
                topic = left[-1]
                settings = topic_settings.applied(self._config, topic.name, topic.settings)
                self._workers_manager.change_settings(topic.name, topic.topic_id, settings)
                left.pop()

        while left:
            try:
                yield Step(apply)
            except CreationBusyError:
                yield Until(lambda: False, time.monotonic() + PAUSE_SECONDS)
        self._arena.wake_all()  # the flusher sleeps until something is due by the settings of before

    # -- deleting ------------------------------------------------------------------------------------------------------

    def delete(self, name: str) -> Pending | Outcome:
        """Delete a topic of record batches; what is against it, or what goes on."""
        views = self.partitions(name)
        old = self.of_kafka07(name)
        if not self.is_ready:
            return Outcome(Code.COORDINATOR_LOAD_IN_PROGRESS, "the metadata log is being read")
        pending = self._busy.get(name)
        if pending is not None and pending.deletes:
            return pending
        known = self._log.state.topics.get(name)
        if old and pending is None:
            pending = self._start(name, self._delete_of_kafka07(Topic(name, old[0].topic_id, len(old))))
            pending.deletes = True
            return pending
        if pending is not None or not views or name.startswith("__"):
            return Outcome(Code.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        if known is None or known.topic_id != views[0].topic_id:
            known = Topic(name, views[0].topic_id, views[-1].partition + 1)
        pending = self._start(name, self._delete(known))
        pending.deletes = True
        return pending

    def _delete(self, topic: Topic) -> Work:
        changes = [topic_change(DELETING, topic)]
        recorded = self._log.state.topics.get(topic.name)
        if recorded is None or recorded.topic_id != topic.topic_id:
            changes.insert(0, topic_change(CREATED, topic))
        yield from self._log.write(changes, needs_room=False)
        return (yield from self._finish_deletion(topic))

    def _finish_deletion(self, topic: Topic) -> Work:
        """From the flushed intent on. Not of a topic that came to the name after this one had gone."""
        _files.reach("topic.deleting")
        yield from self._put_away(topic)
        _files.reach("topic.gone")
        yield from self._log.write([topic_change(DELETED, topic)], needs_room=False)
        self.on_deleted(topic.name)
        return Outcome(topic=topic)

    def _delete_of_kafka07(self, topic: Topic) -> Work:
        """Nothing is written down of it: the marker in its log directories is what a crash does not undo."""
        yield from self._put_away(topic)
        self.on_deleted(topic.name)
        return Outcome(topic=topic)

    def _put_away(self, topic: Topic) -> Generator[Wait, Any, None]:
        """Have the keeper put all partitions of a topic away, durably; returns once its name is free."""
        while True:
            try:
                is_there = any(view.topic_id == topic.topic_id for view in self._manager.partitions(topic.name))
                if is_there:
                    yield Step(lambda: leave_marker(topic.name, self._directories, self._files))
                    self._arena.want_deletion()
                while not (yield Step(lambda: self._is_gone(topic))):
                    yield Until(lambda: False, time.monotonic() + PAUSE_SECONDS)
                while not (yield Step(lambda: self._put_rest_away(topic))):
                    yield Until(lambda: False, time.monotonic() + PAUSE_SECONDS)
                break
            except OSError as error:
                _say(topic.name, "deleted", error)
                yield Until(lambda: False, time.monotonic() + RETRY_SECONDS)

    def _is_gone(self, topic: Topic) -> bool:
        """Whether the keeper has put all of it away, durably; on the worker's thread."""
        views = self._workers_manager.partitions(topic.name)
        if any(view.topic_id == topic.topic_id for view in views):
            return False
        # in this order: a slot says that it leaves before its life ends
        is_leaving = any(row.topic == topic.name for row in self._arena.leaving())
        return not is_leaving and not is_marked(topic.name, self._directories)

    def _put_rest_away(self, topic: Topic) -> bool:
        """Put away what a creation left that was stopped before it had a slot; False: try again.

        On the worker's thread. Under the creation lock, and only while nobody has the name: what lies under it is
        nobody's then.
        """
        if not self._arena.create_lock():
            return False
        try:
            is_taken = bool(self._workers_manager.partitions(topic.name))
            is_taken = is_taken or any(row.topic == topic.name for row in self._arena.leaving())
            if not is_taken:
                put_away_topics([marker_name(topic.name)], self._directories, self._files)
        finally:
            self._arena.create_unlock()
        return True

    # -- work ----------------------------------------------------------------------------------------------------------

    def _start(self, name: str, work: Work) -> Pending:
        pending = Pending()
        self._busy[name] = pending
        self._loop.start(self._run(name, work, pending))
        return pending

    def _run(self, name: str, work: Work, pending: Pending) -> Generator[Wait, Any, None]:
        try:
            pending.outcome = yield from work
        except (OSError, FastlogError) as error:
            _say(name, "settled", error)
            pending.outcome = Outcome(Code.KAFKA_STORAGE_ERROR, str(error))
        finally:
            pending.outcome = pending.outcome or Outcome(Code.UNKNOWN_SERVER_ERROR)
            self._busy.pop(name, None)


def _say(name: str, what: str, error: Exception) -> None:
    line = "topic not %s topic=%r reason=%s"
    log.error(line, what, name, error, extra=logs.about("topic", what, type(error)))
