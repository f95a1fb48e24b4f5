"""The groups of this broker: what members ask for goes to the group's machine, and what it keeps goes to the log.

``__consumer_offsets`` is a topic of the broker's own, made with the first group. What stands in it is known three
times: as bytes by key, up to what is appended, for snapshots; as offsets, up to what is flushed, which is what clients
are shown; and as groups, which are ahead of it, and tell nobody of what is not flushed. After a failed flush nobody
knows what stands there: everything is read again.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fastlog import logs, record_batches
from fastlog.config import BrokerConfig
from fastlog.errors import FastlogError, LogError
from fastlog.kafka_codes import Code
from fastlog.log import _files
from fastlog.log.formats import log_format
from fastlog.log.formats.record_batches import RECORD_BATCHES
from fastlog.log.internal_logs import MOST_SEGMENT_BYTES, SNAPSHOT, SNAPSHOT_END, whole_batches
from fastlog.log.slots import SlotView
from fastlog.record_batches import Record
from fastlog.segment_files import list_segments
from fastlog.workers.coordinator.groups import records
from fastlog.workers.coordinator.groups.machine import Group, Limits, State, Store
from fastlog.workers.coordinator.groups.members import NEVER, Joined, Joining, Synced
from fastlog.workers.coordinator.groups.records import GroupState, Offset, OffsetKey
from fastlog.workers.coordinator.internal_log import BATCH_BYTES, DONE, InternalLog, Outcome, Written
from fastlog.workers.coordinator.loop import Given, Loop, Step, Timer, Until, Wait
from fastlog.workers.coordinator.topic_settings import UNLIMITED_MS
from fastlog.workers.coordinator.topics import Topics

TOPIC = "__consumer_offsets"
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(2**31 - 1),
    "segment.ms": str(UNLIMITED_MS),
    "flush.ms": "50",
}
"""The coordinator alone begins segments: with a snapshot."""
READY_SECONDS = 5.0
"""How long a request waits until the log has been read."""
COMMIT_SECONDS = 5.0
"""How long a commit waits for its flush."""
MAKE_SECONDS = 30.0
RETRY_SECONDS = 1.0
"""After the log could not be read: it is out of service, and comes back by itself."""
MOST_STATE_BYTES = 64 << 20
"""Of all groups together: keys and values in the log, and what members have said; beyond, nothing new is taken."""
MOST_GROUP_BYTES = 16 << 20
"""Of one group's record: with all members' metadata and assignments."""
MOST_QUEUED_BYTES = 16 << 20
"""Of commits that are not flushed: a disk that stands still must not fill the memory."""
ROW_BYTES = 200
"""What a key takes in memory besides its bytes and its value's, about."""
STEP_RECORDS = 5_000
"""Records that are read in one step."""

Work = Generator[Wait, Any, None]
Partition = tuple[str, int]

log = logging.getLogger(__name__)


class Shard:
    """A partition of the log, and what stands in it by key."""

    def __init__(self, kept: InternalLog) -> None:
        self.log = kept
        self.latest: dict[bytes, bytes] = {}
        self.bytes = 0
        """Bytes of keys and values."""

    def put(self, key: bytes, value: bytes | None) -> None:
        """Take in a record that stands in the log."""
        former = self.latest.pop(key, None)
        if former is not None:
            self.bytes -= len(key) + len(former)
        if value is not None:
            self.latest[key] = value
            self.bytes += len(key) + len(value)

    def parts(self) -> Iterator[Sequence[Record]]:
        """A snapshot: each part of what stands there when it is asked for."""
        now_ms = _wall_ms()
        part, size = [Record(SNAPSHOT, b"", now_ms)], 0
        for key in list(self.latest):
            value = self.latest.get(key)
            if value is not None:
                part.append(Record(key, value, now_ms))
                size += len(key) + len(value)
            if size > BATCH_BYTES:
                yield part
                part, size = [], 0
        if part:
            yield part
        yield [Record(SNAPSHOT_END, b"", now_ms)]


class Groups:
    """For the loop's thread; ``Step`` runs on the worker's."""

    def __init__(self, config: BrokerConfig, loop: Loop, topics: Topics) -> None:
        self._config = config
        self._loop = loop
        self._topics = topics
        self._limits = Limits(config.group_initial_rebalance_delay_ms, config.group_max_size)
        self._shards: list[Shard] = []
        self._groups: dict[str, Group] = {}
        self._sizes: dict[str, int] = {}
        self._timers: dict[str, Timer] = {}
        self._offsets: dict[str, dict[Partition, Offset | None]] = {}  # None: its commit is not flushed yet
        self._committing: Counter[str] = Counter()  # commits under way, by group
        self._since_ms: dict[str, int] = {}  # wall clock: since when a kept group is as it is
        self._life = 0  # what was begun before the log was read again is about nothing any more
        self._is_making = False
        self._sweep_at = time.monotonic() + config.offsets_retention_check_ms / 1000
        self.is_ready = False
        """Whether the log has been read."""
        topics.on_deleted = self._forget_topic

    # -- starting ------------------------------------------------------------------------------------------------------

    def begin(self) -> Work:
        """At the start of the process, and after a failed flush: know what the log says, flushed before."""
        while not self._topics.is_settled(TOPIC):
            yield Until(lambda: self._topics.is_settled(TOPIC), time.monotonic() + RETRY_SECONDS)
        while not self.is_ready:
            try:
                yield from self._load(self._topics.partition_count(TOPIC))
                self.is_ready = True
            except (OSError, FastlogError) as error:
                line = "%s cannot be read: %s; groups are refused until it can"
                log.error(line, TOPIC, error, extra=logs.about(TOPIC, type(error)))
                yield Until(lambda: False, time.monotonic() + RETRY_SECONDS)

    def _load(self, count: int) -> Work:
        self._shards = [self._open(partition) for partition in range(count)]
        for shard in self._shards:
            yield from shard.log.settle()
            for path in (yield Step(partial(_segments_of, shard))):
                data = yield Step(partial(self._topics.disk.files.read_file, path, MOST_SEGMENT_BYTES))
                batches = whole_batches(data)
                while rows := (yield Step(partial(_some_of, batches))):
                    for key, value in rows:
                        shard.put(key, value)
        now = _now()
        for shard in self._shards:
            for key, value in shard.latest.items():
                self._restore(key, value, now)
        for name, group in self._groups.items():
            self._after(name, group)

    def _restore(self, key: bytes, value: bytes, now: int) -> None:
        about = records.read_key(key)
        if isinstance(about, OffsetKey):
            self._offsets.setdefault(about.group, {})[about.topic, about.partition] = records.read_offset(value)
        elif about is not None:
            state = records.read_group(value)
            self._groups[about] = Group.restored(state.stored, self._limits, now)
            self._since_ms[about] = state.since_ms

    def _open(self, partition: int) -> Shard:
        manager = self._topics.disk.manager

        def find() -> SlotView:
            view = manager.slot(TOPIC, partition)
            if view is None or view.state or not view.life & 1:
                raise LogError(f"{TOPIC} is out of service partition={partition}")
            return view

        return Shard(InternalLog(self._topics.disk, self._loop, TOPIC, partition, find, waits_for_disk=True))

    def ready(self) -> Generator[Wait, Any, Code]:
        """Wait until requests can be answered; why they cannot."""
        yield Until(lambda: self.is_ready, time.monotonic() + READY_SECONDS)
        return Code.NONE if self.is_ready else Code.COORDINATOR_LOAD_IN_PROGRESS

    def _writable(self) -> Generator[Wait, Any, Code]:
        """As ``ready``, and the log is created if it does not exist yet."""
        code = yield from self.ready()
        while not code and not self._shards:
            if self._is_making:
                yield Until(lambda: not self._is_making, time.monotonic() + MAKE_SECONDS)
                if self._is_making:
                    return Code.COORDINATOR_NOT_AVAILABLE
                continue
            self._is_making = True
            try:
                count = self._config.offsets_partitions
                outcome = yield from self._topics.create(TOPIC, count, SETTINGS).wait(time.monotonic() + MAKE_SECONDS)
                if not outcome.code:
                    self._shards = [self._open(partition) for partition in range(count)]
                else:
                    line = "%s cannot be made: %s; groups are refused until it can"
                    log.error(line, TOPIC, outcome.message, extra=logs.about(TOPIC, outcome.code))
                    code = Code.COORDINATOR_NOT_AVAILABLE
            finally:
                self._is_making = False
        return code

    def _lose(self, error: Exception) -> None:
        """Nobody knows what of the last writes stands in the log: begin again from what does."""
        if not self.is_ready:
            return
        log.error("%s is read again: %s", TOPIC, error)
        self.is_ready = False
        self._life += 1
        for timer in self._timers.values():
            timer.cancel()
        given_up = list(self._groups.values())
        self._shards = []
        for table in (self._groups, self._sizes, self._timers, self._offsets, self._since_ms, self._committing):
            table.clear()
        for group in given_up:
            group.give_up(Code.COORDINATOR_NOT_AVAILABLE)
        self._loop.start(self.begin())

    # -- members -------------------------------------------------------------------------------------------------------

    def join(self, name: str, asked: Joining) -> Generator[Wait, Any, Joined]:
        """JoinGroup: the member's place in the next generation, once all have joined or their time is up."""
        code = yield from self._writable()
        if not code and self.state_bytes + sum(len(data) for _, data in asked.protocols) > MOST_STATE_BYTES:
            code = Code.GROUP_MAX_SIZE_REACHED
        if code:
            return Joined(code, asked.member_id)
        group = self._groups.get(name)
        if group is None:
            if asked.member_id:
                return Joined(Code.UNKNOWN_MEMBER_ID, asked.member_id)
            group = self._groups[name] = Group(self._limits)
        waiting = group.join(asked, _now())
        self._after(name, group)
        joined: Joined = yield Given(waiting)
        return joined

    def sync(
        self,
        name: str,
        member: tuple[str, str | None, int],
        protocol: tuple[str | None, str | None],
        assignments: Mapping[str, bytes],
    ) -> Generator[Wait, Any, Synced]:
        """A member asks for its assignment: by its id, instance id and generation, for a protocol's type and name."""
        code = yield from self.ready()
        group = self._groups.get(name)
        if code or group is None:
            return Synced(code or Code.UNKNOWN_MEMBER_ID)
        if self.state_bytes + sum(map(len, assignments.values())) > MOST_STATE_BYTES:
            return Synced(Code.UNKNOWN_SERVER_ERROR)
        waiting = group.sync(*member, *protocol, assignments, _now())
        self._after(name, group)
        synced: Synced = yield Given(waiting)
        return synced

    def heartbeat(self, name: str, member: tuple[str, str | None, int]) -> Generator[Wait, Any, Code]:
        """Heartbeat: the code that says whether the member has to join again."""
        code = yield from self.ready()
        group = self._groups.get(name)
        if code or group is None:
            return code or Code.UNKNOWN_MEMBER_ID
        return group.heartbeat(*member, _now())

    def leave(
        self, name: str, who: Sequence[tuple[str, str | None]]
    ) -> Generator[Wait, Any, tuple[Code, list[tuple[str, Code]]]]:
        """Members leave; what is said of all, and of each."""
        code = yield from self.ready()
        if code:
            return code, []
        group = self._groups.get(name)
        if group is None:
            return Code.NONE, [(member_id, Code.UNKNOWN_MEMBER_ID) for member_id, _ in who]
        found = group.leave(who, _now())
        self._after(name, group)
        return Code.NONE, found

    # -- offsets -------------------------------------------------------------------------------------------------------

    def commit(
        self, name: str, member: tuple[str, str | None, int], rows: Mapping[Partition, tuple[int, int, str]]
    ) -> Generator[Wait, Any, Code]:
        """Keep offsets, leader epochs and texts by partition; done when they are flushed, or after COMMIT_SECONDS."""
        code = yield from self._writable()
        if code:
            return code
        group = self._groups.get(name)
        if group is not None:
            code = group.refusal_to_commit(*member, _now())
        elif member[2] >= 0:
            code = Code.ILLEGAL_GENERATION
        if code or not rows:
            return code
        shard = self._shard(name)
        now_ms = _wall_ms()
        given = {place: Offset(*row, now_ms) for place, row in rows.items()}
        made = [Record(_key(name, place), records.offset_value(row), now_ms) for place, row in given.items()]
        held = self._offsets.get(name, {})
        more = sum(len(each.key or b"") + len(each.value or b"") + ROW_BYTES for each in made)
        if not held.keys() >= rows.keys() and self.state_bytes + more > MOST_STATE_BYTES:
            return Code.INVALID_COMMIT_OFFSET_SIZE
        if shard.log.queued_bytes > MOST_QUEUED_BYTES:
            return Code.REQUEST_TIMED_OUT
        offsets = self._offsets.setdefault(name, {})
        for place in given:
            offsets.setdefault(place, None)
        self._committing[name] += 1
        written = self._write(shard, made)
        life = self._life

        def show(outcome: Outcome) -> None:
            if life != self._life:
                return
            self._committing[name] -= 1
            if not self._committing[name]:
                del self._committing[name]
            shown = self._offsets.setdefault(name, {})
            if outcome == DONE:
                shown.update(given)
            for place in [each for each in given if shown.get(each, 0) is None]:
                del shown[place]
            if not shown:
                del self._offsets[name]

        written.flushed.then(show)
        return _code((yield Given(written.flushed, time.monotonic() + COMMIT_SECONDS)))

    def offsets(self, name: str) -> Mapping[Partition, Offset]:
        """What a group has committed and is flushed."""
        return {place: row for place, row in self._offsets.get(name, {}).items() if row is not None}

    def delete_offsets(self, name: str, places: Sequence[Partition]) -> Generator[Wait, Any, tuple[Code, set[str]]]:
        """Forget offsets: what is said of all, and the topics that are left because members read them."""
        code = yield from self.ready()
        group = self._groups.get(name)
        if not code and group is None and name not in self._offsets:
            code = Code.GROUP_ID_NOT_FOUND
        used: set[str] = set()
        if not code and group is not None and group.state is not State.EMPTY:
            found = [records.topics_of_subscription(each.metadata(group.protocol)) for each in group.members.values()]
            if group.protocol_type != "consumer":
                return Code.NON_EMPTY_GROUP, used
            for topics in found:
                used |= topics if topics is not None else {topic for topic, _ in places}
        if not code:
            held = self._offsets.get(name, {})
            going = [place for place in dict.fromkeys(places) if place in held and place[0] not in used]
            code = yield from self._forget(name, going, with_group=False)
        return code, used

    def delete(self, name: str) -> Generator[Wait, Any, Code]:
        """Forget a group without members and all it has committed."""
        code = yield from self.ready()
        if code:
            return code
        group = self._groups.get(name)
        if group is not None and group.state is not State.EMPTY:
            return Code.NON_EMPTY_GROUP
        if group is None and name not in self._offsets:
            return Code.GROUP_ID_NOT_FOUND
        return (yield from self._forget(name, list(self._offsets.get(name, {})), with_group=True))

    def _forget(self, name: str, places: Sequence[Partition], *, with_group: bool) -> Generator[Wait, Any, Code]:
        """Take offsets back, and with them the group; returns when that is flushed, or after COMMIT_SECONDS."""
        written = self._take_back(name, places, with_group=with_group)
        if written is None:
            return Code.NONE
        return _code((yield Given(written.flushed, time.monotonic() + COMMIT_SECONDS)))

    def _take_back(self, name: str, places: Sequence[Partition], *, with_group: bool) -> Written | None:
        """Write that offsets are forgotten, and with them the group; None: nothing of them was ever written."""
        now_ms = _wall_ms()
        made = [Record(_key(name, place), None, now_ms) for place in places]
        if with_group:
            # also where the log does not show it yet: its first record may be on its way
            was_kept = name in self._since_ms
            self._drop(name)
            if self._shards and (was_kept or records.group_key(name) in self._shard(name).latest):
                made.append(Record(records.group_key(name), None, now_ms))
        if not made:
            return None
        written = self._write(self._shard(name), made, needs_room=False)
        life = self._life

        def show(outcome: Outcome) -> None:
            if outcome == DONE and life == self._life:
                offsets = self._offsets.get(name, {})
                for place in places:
                    offsets.pop(place, None)
                if not offsets:
                    self._offsets.pop(name, None)

        written.flushed.then(show)
        return written

    # -- looking -------------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """All groups: those with members, those that had some, and those that have only committed."""
        return sorted({*self._groups, *self._offsets})

    def group(self, name: str) -> Group | None:
        """A group that has, or had, members; one without members that has only committed is None and in ``names``."""
        return self._groups.get(name)

    def is_known(self, name: str) -> bool:
        """Whether there is such a group."""
        return name in self._groups or name in self._offsets

    @property
    def state_bytes(self) -> int:
        """What all groups take of the memory, about."""
        kept = sum(shard.bytes + ROW_BYTES * len(shard.latest) for shard in self._shards)
        return kept + sum(self._sizes.values())

    # -- time ----------------------------------------------------------------------------------------------------------

    def keep_house(self) -> None:
        """Now and then: write snapshots, and forget what is too old."""
        if not self.is_ready:
            return
        for shard in self._shards:
            if shard.log.is_long(shard.bytes):
                shard.log.snapshot(shard.parts())
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + self._config.offsets_retention_check_ms / 1000
            self._loop.start(self._sweep())

    def _forget_topic(self, topic: str) -> None:
        """Forget what groups have committed for a topic that is gone.

        All of it at once: the name can be used again from now on, and what is committed then has to stay.
        """
        for name in self.names() if self.is_ready else ():
            places = [place for place in self._offsets.get(name, {}) if place[0] == topic]
            if places:
                self._take_back(name, places, with_group=False)

    def _sweep(self) -> Work:
        """Forget what is too old, or of topics that are gone, and groups that have nothing left.

        Offsets are too old in groups without members: so long after the commit, and after the last one left.
        """
        for topic in {topic for held in self._offsets.values() for topic, _ in held}:
            if not self._topics.is_there(topic):  # a former coordinator did not come to it
                self._forget_topic(topic)
        limit_ms = self._config.offsets_retention_minutes * 60_000
        for name in self.names():
            group = self._groups.get(name)
            if not self.is_ready or (group is not None and not group.is_idle):
                continue
            if self._committing[name]:  # forgotten behind it, it would be gone although it was answered
                continue
            now_ms = _wall_ms()
            empty_ms = self._since_ms.get(name, -1)
            held = self._offsets.get(name, {})
            old = [place for place, row in held.items() if row and now_ms - max(row.committed_ms, empty_ms) >= limit_ms]
            if old or not held:
                yield from self._forget(name, old, with_group=len(old) == len(held))

    def _after(self, name: str, group: Group) -> None:
        """What a call of a group's has brought about: something to keep, and another time to look at it."""
        for store in group.take_stores():
            self._keep(name, group, store)
        if self._groups.get(name) is not group:
            return
        self._sizes[name] = group.size
        if group.is_idle and name not in self._offsets and name not in self._since_ms:
            self._drop(name)  # nobody came of it
            return
        timer = self._timers.get(name)
        if group.due != NEVER and (timer is None or timer.when > group.due / 1000):
            if timer is not None:
                timer.cancel()
            self._timers[name] = self._loop.at(group.due / 1000, lambda: self._tick(name, group))

    def _tick(self, name: str, group: Group) -> None:
        if self._groups.get(name) is group:
            self._timers.pop(name, None)
            group.tick(_now())
            self._after(name, group)

    def _drop(self, name: str) -> None:
        """Of one that has no members: nobody waits for it."""
        for table in (self._groups, self._sizes, self._since_ms):
            table.pop(name, None)
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _keep(self, name: str, group: Group, store: Store) -> None:
        since_ms = _wall_ms()
        value = records.group_value(GroupState(store.record, since_ms))
        if len(value) > MOST_GROUP_BYTES:
            store.settle(Code.UNKNOWN_SERVER_ERROR, _now())
            self._after(name, group)
            return
        self._since_ms[name] = since_ms
        written = self._write(self._shard(name), [Record(records.group_key(name), value, since_ms)])

        def settle(outcome: Outcome) -> None:
            _files.reach("group.kept")
            store.settle(_code(outcome), _now())
            self._after(name, group)

        written.flushed.then(settle)

    # -- the log -------------------------------------------------------------------------------------------------------

    def _shard(self, name: str) -> Shard:
        return self._shards[shard_of(name, len(self._shards))]

    def _write(self, shard: Shard, made: Sequence[Record], *, needs_room: bool = True) -> Written:
        life = self._life
        written = shard.log.write(made, needs_room=needs_room)

        def take_in(outcome: Outcome) -> None:
            if outcome == DONE:
                for each in made:
                    shard.put(each.key or b"", each.value)

        def look(outcome: Outcome) -> None:
            if isinstance(outcome, Exception):
                line = "not kept topic=%r reason=%s"
                log.error(line, TOPIC, outcome, extra=logs.about(TOPIC, type(outcome)))
                if life == self._life and not isinstance(outcome, OSError):
                    self._lose(outcome)

        written.appended.then(take_in)
        written.flushed.then(look)
        return written


def shard_of(group: str, count: int) -> int:
    """The partition of the log that a group is in, as Apache Kafka has it: by Java's hash of its name."""
    value = 0
    data = group.encode("utf-16-be")
    for at in range(0, len(data), 2):
        value = (31 * value + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    if value >= 1 << 31:
        value = (1 << 32) - value
    return 0 if value == 1 << 31 else value % count


def _segments_of(shard: Shard) -> list[Path]:
    return [segment.path for segment in list_segments(shard.log.directory(), log_format(RECORD_BATCHES).suffix)]


def _some_of(batches: Iterator[memoryview]) -> list[tuple[bytes, bytes | None]]:
    """Some keys and values; none at the end of the segment, for no batch is without a record."""
    rows: list[tuple[bytes, bytes | None]] = []
    for batch in batches:
        rows += [(each.key or b"", each.value) for each in record_batches.records(batch)]
        if len(rows) >= STEP_RECORDS:
            break
    return rows


def _code(outcome: Outcome | None) -> Code:
    """Of a write; None: it has not come to its end in time."""
    if outcome is None:
        return Code.REQUEST_TIMED_OUT
    return Code.NONE if outcome == DONE else Code.COORDINATOR_NOT_AVAILABLE


def _key(name: str, place: Partition) -> bytes:
    return records.offset_key(OffsetKey(name, *place))


def _now() -> int:
    return time.monotonic_ns() // 1_000_000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
