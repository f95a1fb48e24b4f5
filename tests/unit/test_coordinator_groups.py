"""Groups through the coordinator: what clients ask for and are told, what stands in the log, what a kill leaves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fastlog import record_batches
from fastlog.errors import LogError
from fastlog.log import _files
from fastlog.log.files import FileOps
from fastlog.log.internal_logs import newest_snapshot, whole_batches
from fastlog.record_batches import Record
from fastlog.workers.authorization import Operation, ResourceType
from fastlog.workers.child import Shared
from fastlog.workers.coordinator import internal_log
from fastlog.workers.coordinator.frames import Frame
from fastlog.workers.coordinator.groups import groups as keeping
from fastlog.workers.coordinator.groups import records
from fastlog.workers.coordinator.groups.groups import TOPIC, shard_of
from fastlog.workers.coordinator.groups.members import Stored, StoredMember
from fastlog.workers.coordinator.groups.records import GroupState, Offset, OffsetKey
from fastlog.workers.coordinator.requests.join_group import _ms
from fastlog.workers.kafka.codes import Code
from fastlog.workers.keeper import Keeper
from tests.harness.coordinated import Coordinated, encoded

COMMIT, FETCH, FIND, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST, DELETE, OFFSET_DELETE = (
    8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 47,
)  # fmt: skip
SECOND = 1000


class Asked(Coordinated):
    """A coordinator and clients of groups."""

    def __init__(self, directory: Path, **given: Any) -> None:
        super().__init__(directory, **({"group_initial_rebalance_delay_ms": 0} | given))

    def begin_to_join(self, member: str = "", version: int = 9, group: str = "g", **more: Any) -> list[Any]:
        fields = {
            "group_id": group, "session_timeout": 10 * SECOND, "rebalance_timeout": 60 * SECOND, "member_id": member,
            "group_instance_id": None, "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": subscribed("t")}], "reason": None,
        }  # fmt: skip
        return self.begin_to_ask(JOIN, version, **(fields | more))

    def answer(self, asked: list[Any]) -> Any:
        self.turn_until("an answer", lambda: bool(asked))
        return asked[0]

    def join(self, member: str = "", version: int = 9, **more: Any) -> Any:
        return self.answer(self.begin_to_join(member, version, **more))

    def begin_to_sync(self, member: str, generation: int, given: dict[str, bytes], version: int = 5) -> list[Any]:
        rows = [{"member_id": each, "assignment": data} for each, data in given.items()]
        more = {"group_instance_id": None, "protocol_type": "consumer", "protocol_name": "range"}
        return self.begin_to_ask(
            SYNC, version, group_id="g", generation_id=generation, member_id=member, assignments=rows, **more
        )

    def alone(self, group: str = "g") -> str:
        """The id of a group's one member, which is in generation 1."""
        member: str = self.join(self.join(group=group).member_id, group=group).member_id
        more = {"group_instance_id": None, "protocol_type": None, "protocol_name": None}
        rows = [{"member_id": member, "assignment": b"all"}]
        found = self.ask(SYNC, 5, group_id=group, generation_id=1, member_id=member, assignments=rows, **more)
        assert (found.error_code, found.assignment) == (0, b"all")
        return member

    def beat(self, member: str, generation: int = 1, group: str = "g", version: int = 4) -> int:
        fields = {"group_id": group, "generation_id": generation, "member_id": member, "group_instance_id": None}
        return int(self.ask(HEARTBEAT, version, **fields).error_code)

    def begin_to_commit(self, rows: dict[tuple[str, int], int], version: int = 9, **more: Any) -> list[Any]:
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, partition), offset in rows.items():
            row = {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": 3}
            topics.setdefault(topic, []).append(row | {"committed_metadata": more.get("text", "m")})
        fields = {
            "group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
            "retention_time": -1, "topics": [{"name": name, "partitions": found} for name, found in topics.items()],
        }  # fmt: skip
        return self.begin_to_ask(COMMIT, version, **(fields | more))

    def commit(self, rows: dict[tuple[str, int], int], version: int = 9, **more: Any) -> dict[tuple[str, int], int]:
        found = self.answer(self.begin_to_commit(rows, version, **more))
        return {(t.name, p.partition_index): int(p.error_code) for t in found.topics for p in t.partitions}

    def committed(self, group: str = "g") -> dict[tuple[str, int], int]:
        asked = [{"group_id": group, "topics": None}]
        (found,) = self.ask(FETCH, 8, groups=asked, require_stable=False).groups
        assert found.error_code == 0
        return {(t.name, p.partition_index): p.committed_offset for t in found.topics for p in t.partitions}

    def again(self) -> None:
        """The coordinator is killed, and its successor takes over."""
        self.loop.close()
        self.begin()
        self.turn_until("it is ready", lambda: self.groups.is_ready)

    def state(self, group: str = "g") -> Any:
        (found,) = self.ask(DESCRIBE, 5, groups=[group], include_authorized_operations=False).groups
        return found

    def stored(self) -> list[Record]:
        """All records of the log, as they stand there."""
        found = []
        for path in sorted((self.directory / f"{TOPIC}-0").glob("*.log")):
            for batch in whole_batches(path.read_bytes()):
                found += list(record_batches.records(batch))
        return found


def subscribed(*topics: str) -> bytes:
    """What a consumer says of itself: version 1, its topics, no more."""
    names = b"".join(len(each).to_bytes(2, "big") + each.encode() for each in topics)
    return b"\0\1" + len(topics).to_bytes(4, "big") + names + bytes(8)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Asked]:
    with Asked(tmp_path / "log") as made:
        made.create("t", 3)
        yield made


# -- members -----------------------------------------------------------------------------------------------------------


def test_the_coordinator_is_this_broker_for_every_group(running: Asked) -> None:
    for version in range(5):
        found = running.ask(FIND, version, key="g", key_type=0, coordinator_keys=("g", "h"))
        rows = found.coordinators if version == 4 else [found]
        assert [(row.error_code, row.node_id, row.host, row.port) for row in rows] == [(0, 7, "told", 9093)] * len(rows)
        if version:
            found = running.ask(FIND, version, key="x", key_type=1, coordinator_keys=("x",))
            (row,) = found.coordinators if version == 4 else [found]
            assert (row.error_code, row.node_id) == (Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)
            found = running.ask(FIND, version, key="x", key_type=2, coordinator_keys=("x",))
            (row,) = found.coordinators if version == 4 else [found]
            assert row.error_code == Code.INVALID_REQUEST


@pytest.mark.parametrize("version", range(10))
def test_two_members_share_a_group(running: Asked, version: int) -> None:
    """In each version of all four requests, as far as they go together."""
    first = running.join(version=version)
    if version >= 4:
        assert (first.error_code, first.generation_id) == (Code.MEMBER_ID_REQUIRED, -1)
        first = running.join(first.member_id, version)
    assert (first.error_code, first.generation_id, first.leader) == (0, 1, first.member_id)
    waiting = running.begin_to_join(version=min(version, 3))
    running.turn()
    assert not waiting and running.beat(first.member_id, version=min(version, 4)) == Code.REBALANCE_IN_PROGRESS
    again = running.join(first.member_id, version)
    second = running.answer(waiting)
    assert (again.generation_id, second.generation_id, len(again.members), second.members) == (2, 2, 2, ())
    assert {each.metadata for each in again.members} == {subscribed("t")}
    late = running.begin_to_sync(second.member_id, 2, {}, min(version, 5))
    running.turn()
    assert not late
    given = {first.member_id: b"1", second.member_id: b"2"}
    mine = running.answer(running.begin_to_sync(first.member_id, 2, given, min(version, 5)))
    assert (mine.error_code, mine.assignment) == (0, b"1")
    assert running.answer(late).assignment == b"2"
    assert running.beat(second.member_id, 2) == 0
    gone = {"member_id": second.member_id, "members": [{"member_id": second.member_id, "group_instance_id": None}]}
    left = running.ask(LEAVE, min(version, 5), group_id="g", **gone)
    assert left.error_code == 0
    assert running.beat(second.member_id, 2) == Code.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"group": ""}, Code.INVALID_GROUP_ID),
        ({"group": "x" * 1001}, Code.INVALID_GROUP_ID),
        ({"group": "x" * 1000}, Code.MEMBER_ID_REQUIRED),
        ({"session_timeout": 5_999}, Code.INVALID_SESSION_TIMEOUT),
        ({"session_timeout": 6_000}, Code.MEMBER_ID_REQUIRED),
        ({"session_timeout": 1_800_000}, Code.MEMBER_ID_REQUIRED),
        ({"session_timeout": 1_800_001}, Code.INVALID_SESSION_TIMEOUT),
        ({"member": "nobody"}, Code.UNKNOWN_MEMBER_ID),
        ({"protocols": []}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "x" * 1001}, Code.INVALID_REQUEST),
        ({"group_instance_id": "x" * 1001}, Code.INVALID_REQUEST),
        ({"protocols": [{"name": "x" * 1001, "metadata": b""}]}, Code.INVALID_REQUEST),
        ({"protocols": [{"name": "a", "metadata": bytes(1 << 20)}]}, Code.MEMBER_ID_REQUIRED),
        ({"protocols": [{"name": "a", "metadata": bytes((1 << 20) + 1)}]}, Code.INVALID_REQUEST),
    ],
)
def test_who_may_join(running: Asked, more: dict[str, Any], code: Code) -> None:
    assert running.join(**more).error_code == code
    assert running.join(group="other").error_code == Code.MEMBER_ID_REQUIRED


def test_a_waiting_join_lets_its_bytes_go(running: Asked) -> None:
    first = running.alone()
    gone: list[bool] = []
    waits = running.begin_to_join(version=3)
    fields = {
        "group_id": "g", "session_timeout": 10 * SECOND, "rebalance_timeout": 60 * SECOND, "member_id": "",
        "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}],
    }  # fmt: skip
    answers: list[bytes | None] = []
    frame = Frame(1, 1, 0, 0, 0, "10.1.2.3", 4711, encoded(JOIN, 3, fields))
    running.dispatcher.handle(frame, answers.append, lambda: gone.append(True))
    running.turn_until("its bytes are let go", lambda: bool(gone))
    assert not answers and not waits
    running.join(first)
    running.turn_until("it is answered", lambda: bool(answers) and bool(waits))


def test_groups_are_described_and_listed(running: Asked) -> None:
    member = running.alone()
    running.commit({("t", 0): 5}, group_id="only offsets")
    row = running.state()
    assert (row.error_code, row.group_state, row.protocol_type, row.protocol_data) == (0, "Stable", "consumer", "range")
    (found,) = row.members
    assert (found.member_id, found.client_id, found.client_host) == (member, "test", "/10.1.2.3")
    assert (found.member_metadata, found.member_assignment) == (subscribed("t"), b"all")
    running.begin_to_join(version=3)
    row = running.state()
    assert (row.group_state, row.protocol_data) == ("PreparingRebalance", "")
    assert {(each.member_metadata, each.member_assignment) for each in row.members} == {(b"", b"")}
    assert (running.state("only offsets").group_state, running.state("none").group_state) == ("Empty", "Dead")
    for version in range(5):
        found = {each.group_id: each for each in running.ask(LIST, version, states_filter=()).groups}
        assert set(found) == {"g", "only offsets"}
        assert (found["g"].protocol_type, found["only offsets"].protocol_type) == ("consumer", "")
    for state, names in (("empty", ["only offsets"]), ("Stable", []), ("PREPARINGREBALANCE", ["g"])):
        assert [each.group_id for each in running.ask(LIST, 4, states_filter=(state,)).groups] == names
    for version in range(6):
        (row,) = running.ask(DESCRIBE, version, groups=("g",), include_authorized_operations=True).groups
        if version >= 3:
            assert row.authorized_operations == 1 << Operation.READ | 1 << Operation.DELETE | 1 << Operation.DESCRIBE


def test_a_member_that_is_silent_is_gone_without_anybody_asking(tmp_path: Path) -> None:
    with Asked(tmp_path / "log", group_min_session_ms=1) as running:
        member = running.join(running.join(session_timeout=50).member_id, session_timeout=50).member_id
        running.turn_until("it is gone", lambda: running.groups._groups["g"].state.value == "Empty")
        assert running.beat(member) == Code.UNKNOWN_MEMBER_ID


def test_who_never_came_leaves_nothing(tmp_path: Path) -> None:
    with Asked(tmp_path / "log", group_min_session_ms=1) as running:
        assert running.join(session_timeout=20).error_code == Code.MEMBER_ID_REQUIRED
        assert running.join("nobody", group="h").error_code == Code.UNKNOWN_MEMBER_ID
        assert running.join(protocols=[], group="i").error_code == Code.INCONSISTENT_GROUP_PROTOCOL
        assert running.groups.names() == ["g"] and running.groups.group("h") is None
        running.turn_until("its id is forgotten", lambda: running.groups.names() == [])
        assert (running.groups._timers, running.groups._sizes) == ({}, {})


def test_who_is_refused_makes_no_members_of_a_group_of_offsets(running: Asked) -> None:
    running.commit({("t", 0): 5}, group_id="h")
    assert running.join("nobody", group="h").error_code == Code.UNKNOWN_MEMBER_ID
    assert running.groups.group("h") is None and running.groups.names() == ["h"]
    assert (running.groups._sizes, running.groups._timers) == ({}, {})


# -- offsets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 10))
def test_what_is_committed_is_kept(running: Asked, version: int) -> None:
    assert running.commit({("t", 0): 5, ("t", 2): 9}, version) == {("t", 0): 0, ("t", 2): 0}
    assert running.committed() == {("t", 0): 5, ("t", 2): 9}
    for asked in range(1, 9):
        topics = [{"name": "t", "partition_indexes": [0, 1]}, {"name": "u", "partition_indexes": [0]}]
        groups = [{"group_id": "g", "topics": topics}]
        found = running.ask(FETCH, asked, group_id="g", topics=topics, groups=groups, require_stable=True)
        rows = (found.groups[0] if asked == 8 else found).topics
        assert [(t.name, p.partition_index, p.committed_offset, p.metadata) for t in rows for p in t.partitions] == [
            ("t", 0, 5, "m"), ("t", 1, -1, ""), ("u", 0, -1, ""),
        ]  # fmt: skip
        if asked >= 5:
            assert rows[0].partitions[0].committed_leader_epoch == (3 if version >= 6 else -1)
        if 2 <= asked < 8:
            assert (
                len(running.ask(FETCH, asked, group_id="g", topics=None, require_stable=False).topics[0].partitions)
                == 2
            )
    assert running.committed("none") == {}


@pytest.mark.parametrize(("name", "is_one"), [("", False), ("x" * 1001, False), ("x" * 1000, True)])
def test_what_is_the_name_of_no_group_has_no_members(running: Asked, name: str, is_one: bool) -> None:
    """Whatever is asked of it; of one that nobody has joined yet the member is what is unknown."""
    rows = {"group_id": name, "group_instance_id": None, "generation_id": 1, "member_id": "m"}
    for key, version, more in ((HEARTBEAT, 4, {}), (SYNC, 3, {"assignments": ()}), (LEAVE, 0, {})):
        code = running.ask(key, version, **rows, **more).error_code
        assert code == (Code.UNKNOWN_MEMBER_ID if is_one else Code.INVALID_GROUP_ID), key
    assert running.groups.names() == []


def test_only_members_commit_where_there_are_some(running: Asked) -> None:
    member = running.alone()
    for more, code in (
        ({}, Code.UNKNOWN_MEMBER_ID),
        ({"member_id": member, "generation_id_or_member_epoch": 0}, Code.ILLEGAL_GENERATION),
        ({"member_id": "x", "generation_id_or_member_epoch": 1}, Code.UNKNOWN_MEMBER_ID),
        ({"member_id": member, "generation_id_or_member_epoch": 1}, Code.NONE),
        ({"group_id": "none", "generation_id_or_member_epoch": 0}, Code.ILLEGAL_GENERATION),
        ({"group_id": "x" * 1001}, Code.INVALID_GROUP_ID),
    ):
        assert running.commit({("t", 0): 5}, **more) == {("t", 0): code}
    assert running.groups.names() == ["g"]


def test_what_cannot_be_committed_stops_nothing_else(tmp_path: Path) -> None:
    with Asked(tmp_path / "log", offset_metadata_bytes=4) as running:
        running.create("t", 2)
        rows = {("t", 0): 1, ("none", 0): 2, (TOPIC, 0): 3}
        unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
        assert running.commit(rows) == {("t", 0): 0, ("none", 0): unknown, (TOPIC, 0): unknown}
        assert running.commit({("t", 1): 1}, text="äöx") == {("t", 1): Code.OFFSET_METADATA_TOO_LARGE}
        assert running.commit({("t", 1): 1}, text="äö") == {("t", 1): 0}
        assert running.commit({("t", 0): 2}, text=None) == {("t", 0): 0}
        assert running.committed() == {("t", 0): 2, ("t", 1): 1}


def test_positions_in_topics_of_kafka07_are_kept(running: Asked) -> None:
    """As 0.7's consumers have them in ZooKeeper; beside those of record batches, and forgotten as these are."""
    running.manager.create_partition("old", 0)
    assert running.commit({("old", 0): 118_613, ("t", 0): 5}) == {("old", 0): 0, ("t", 0): 0}
    assert running.committed() == {("old", 0): 118_613, ("t", 0): 5}
    topics = [{"name": "old", "partitions": [{"partition_index": 0}]}]
    found = running.ask(OFFSET_DELETE, 0, group_id="g", topics=topics)
    assert (found.error_code, found.topics[0].partitions[0].error_code) == (0, 0)
    assert running.committed() == {("t", 0): 5}


def test_offsets_are_forgotten(running: Asked) -> None:
    running.create("u")
    running.commit({("t", 0): 5, ("t", 1): 6, ("u", 0): 7})

    def forget(*places: tuple[str, int], group: str = "g") -> tuple[int, dict[str, int]]:
        topics = [{"name": topic, "partitions": [{"partition_index": n}]} for topic, n in places]
        found = running.ask(OFFSET_DELETE, 0, group_id=group, topics=topics)
        return found.error_code, {t.name: t.partitions[0].error_code for t in found.topics}

    assert forget(("t", 0), ("none", 0)) == (0, {"t": 0, "none": Code.UNKNOWN_TOPIC_OR_PARTITION})
    assert running.committed() == {("t", 1): 6, ("u", 0): 7}
    assert forget(("t", 0), group="none") == (Code.GROUP_ID_NOT_FOUND, {})
    member = running.alone()
    assert forget(("t", 1), ("u", 0)) == (0, {"t": Code.GROUP_SUBSCRIBED_TO_TOPIC, "u": 0})
    assert running.committed() == {("t", 1): 6} and running.beat(member) == 0
    running.again()
    assert running.committed() == {("t", 1): 6} and running.beat(member) == 0


@pytest.mark.parametrize("all_of_it", [False, True], ids=["offset", "group"])
def test_a_commit_that_is_under_way_goes_with_what_is_forgotten_behind_it(running: Asked, all_of_it: bool) -> None:
    """Else it would come true behind an answer that says it is gone."""
    running.commit({("t", 1): 1})
    committing = running.begin_to_commit({("t", 0): 5}, group_id="h")
    if all_of_it:
        forgetting = running.begin_to_ask(DELETE, 2, groups_names=["h"])
    else:
        topics = [{"name": "t", "partitions": [{"partition_index": 0}]}]
        forgetting = running.begin_to_ask(OFFSET_DELETE, 0, group_id="h", topics=topics)
    assert not committing and not forgetting
    assert running.answer(committing).topics[0].partitions[0].error_code == 0
    found = running.answer(forgetting)
    assert (found.results[0] if all_of_it else found).error_code == 0
    running.turn_until("all is written", lambda: not running.loop.tasks)
    assert running.groups.names() == ["g"]
    running.again()
    assert running.groups.names() == ["g"] and running.committed() == {("t", 1): 1}


def test_a_group_of_which_only_an_id_is_known_is_forgotten_with_it(running: Asked) -> None:
    told = running.join()
    timer = running.groups._timers["g"]
    assert [row.error_code for row in running.ask(DELETE, 0, groups_names=("g",)).results] == [0]
    assert timer.act is None, "it would keep the group in memory until the id's time is over"
    assert running.join(told.member_id).error_code == Code.UNKNOWN_MEMBER_ID
    assert (running.groups.names(), running.groups._timers, running.groups._shards[0].latest) == ([], {}, {})


def test_members_that_are_no_consumers_keep_all_offsets(running: Asked) -> None:
    running.commit({("t", 0): 5})
    running.join(version=3, protocol_type="connect")
    topics = [{"name": "t", "partitions": [{"partition_index": 0}]}]
    assert running.ask(OFFSET_DELETE, 0, group_id="g", topics=topics).error_code == Code.NON_EMPTY_GROUP


def test_a_group_is_forgotten_with_all_it_has(running: Asked) -> None:
    member = running.alone()
    running.commit({("t", 0): 5}, member_id=member, generation_id_or_member_epoch=1)
    running.commit({("t", 0): 6}, group_id="h")
    asked = {"groups_names": ("g", "h", "none", "g")}
    codes = [(row.group_id, int(row.error_code)) for row in running.ask(DELETE, 2, **asked).results]
    assert codes == [("g", Code.NON_EMPTY_GROUP), ("h", 0), ("none", Code.GROUP_ID_NOT_FOUND)]
    assert records.group_key("h") not in [each.key for each in running.stored()], "it never had members"
    running.ask(LEAVE, 0, group_id="g", member_id=member)
    assert [row.error_code for row in running.ask(DELETE, 0, groups_names=("g",)).results] == [0]
    assert (running.groups.names(), running.committed()) == ([], {})
    running.turn_until("all is written", lambda: not running.loop.tasks)
    running.again()
    assert (running.groups.names(), running.groups._shards[0].latest, running.groups._shards[0].bytes) == ([], {}, 0)


def test_a_commit_is_not_shown_before_it_is_flushed(running: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that takes too long is told so, and may come true."""
    running.commit({("t", 0): 1})
    monkeypatch.setattr(keeping, "COMMIT_SECONDS", 0.05)
    held = internal_log.InternalLog._until_flushed
    is_held = True

    def until_flushed(self: Any, view: Any, offset: int) -> Any:
        yield internal_log.Until(lambda: not is_held, time.monotonic() + 60)
        yield from held(self, view, offset)

    monkeypatch.setattr(internal_log.InternalLog, "_until_flushed", until_flushed)
    assert running.commit({("t", 0): 2, ("t", 1): 3}) == {("t", 0): 7, ("t", 1): 7}
    assert running.committed() == {("t", 0): 1}
    is_held = False
    running.turn_until("it is flushed", lambda: running.committed() == {("t", 0): 2, ("t", 1): 3})
    monkeypatch.undo()
    assert running.commit({("t", 0): 4}) == {("t", 0): 0}


def test_what_gives_room_back_does_not_wait_for_room_with_others(running: Asked) -> None:
    """On a full disk a commit is refused, and what is taken back behind it, meanwhile, is not."""
    running.commit({("t", 0): 1})
    running.turn_until("all is written", lambda: not running.loop.tasks)
    kept = running.groups._shards[0].log
    kept._reserved = (-1, -1, 0)  # it asks the disk with the next write
    row = Record(b"no key of Kafka's", b"x", 1)
    outcomes: dict[int, object] = {}
    _files.arm("fallocate@1-=ENOSPC", "test")
    # the first is under way, and the others wait together
    for number, needs_room in enumerate((True, True, False, True)):
        kept.write([row], needs_room=needs_room).flushed.then(partial(outcomes.__setitem__, number))
    running.turn_until("all have an outcome", lambda: len(outcomes) == 4)
    _files.arm("", "test")
    assert [type(outcomes[number]) for number in range(4)] == [OSError, OSError, str, OSError]
    assert kept.queued_bytes == 0


def test_a_disk_that_stands_still_does_not_fill_the_memory(running: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    running.commit({("t", 0): 1})
    monkeypatch.setattr(keeping, "MOST_QUEUED_BYTES", -1)
    assert running.commit({("t", 0): 2}) == {("t", 0): Code.REQUEST_TIMED_OUT}
    monkeypatch.undo()
    assert running.commit({("t", 0): 3}) == {("t", 0): 0}
    assert running.groups._shards[0].log.queued_bytes == 0


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_groups_take_so_much_memory_and_no_more(running: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the byte: one that is there may change, nothing is added."""
    member = running.alone()
    running.commit({("t", 0): 1}, group_id="h")
    used = running.groups.state_bytes

    def bound(more: int) -> None:
        monkeypatch.setattr(keeping, "MOST_STATE_BYTES", used + more)

    bound(-1)
    assert running.commit({("t", 0): 2}, group_id="h") == {("t", 0): 0}
    assert running.beat(member) == 0
    said = len(subscribed("t"))
    bound(said - 1)
    assert running.join().error_code == Code.GROUP_MAX_SIZE_REACHED
    bound(said)
    assert running.join().error_code == Code.MEMBER_ID_REQUIRED
    for size, code in ((said + 1, Code.UNKNOWN_SERVER_ERROR), (said, Code.NONE)):
        assert running.answer(running.begin_to_sync(member, 1, {member: bytes(size)})).error_code == code
    key = records.offset_key(OffsetKey("h", "t", 1))
    size = len(key) + len(records.offset_value(Offset(2, 3, "m", 1))) + keeping.ROW_BYTES
    bound(size - 1)
    assert running.commit({("t", 1): 2}, group_id="h") == {("t", 1): Code.INVALID_COMMIT_OFFSET_SIZE}
    bound(size)
    assert running.commit({("t", 1): 2}, group_id="h") == {("t", 1): 0}
    assert running.groups.state_bytes == used + size


def test_an_assignment_that_is_too_large_is_refused(running: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    member = running.join(running.join().member_id).member_id
    monkeypatch.setattr(keeping, "MOST_GROUP_BYTES", 500)
    found = running.answer(running.begin_to_sync(member, 1, {member: bytes(400)}))
    assert found.error_code == Code.UNKNOWN_SERVER_ERROR
    again = running.join(member)
    found = running.answer(running.begin_to_sync(member, again.generation_id, {member: b"1"}))
    assert (found.error_code, found.assignment) == (0, b"1")


# -- the log -----------------------------------------------------------------------------------------------------------

STATE = GroupState(
    Stored(
        "consumer", 5, "range", "m",
        (StoredMember("m", None, "c", "/h", 7, 8, b"said", b"given"), StoredMember("n", "i", "", "", 1, 2, b"", b"")),
    ),
    123,
)  # fmt: skip


def test_records_are_those_of_kafka() -> None:
    """Byte by byte, from the schemas of Apache Kafka."""
    key = bytes.fromhex("0001 0001 67 0002 7475 00000003")
    assert records.offset_key(OffsetKey("g", "tu", 3)) == key
    value = bytes.fromhex("0003 0000000000000009 00000004 0001 6d 0000000000000005")
    assert records.offset_value(Offset(9, 4, "m", 5)) == value
    assert records.group_key("g") == bytes.fromhex("0002 0001 67")
    empty = GroupState(Stored("c", 2, None, None, ()), 1)
    assert records.group_value(empty) == bytes.fromhex("0003 0001 63 00000002 ffff ffff 0000000000000001 00000000")
    for found, expected in (
        (records.read_key(key), OffsetKey("g", "tu", 3)),
        (records.read_key(b"\0\0" + key[2:]), OffsetKey("g", "tu", 3)),
        (records.read_key(records.group_key("g")), "g"),
        (records.read_key(b"\0\3anything"), None),
        (records.read_key(internal_key()), None),
        (records.read_offset(value), Offset(9, 4, "m", 5)),
        (records.read_group(records.group_value(STATE)), STATE),
        (records.read_group(records.group_value(empty)), empty),
    ):
        assert found == expected


def internal_key() -> bytes:
    return b"snapshot"


def test_records_of_other_versions_of_kafka_are_read() -> None:
    offsets = {
        "0000 0000000000000009 0001 6d 0000000000000005": Offset(9, -1, "m", 5),
        "0001 0000000000000009 0001 6d 0000000000000005 0000000000000007": Offset(9, -1, "m", 5),
        "0002 0000000000000009 0001 6d 0000000000000005": Offset(9, -1, "m", 5),
        "0004 0000000000000009 00000004 02 6d 0000000000000005 01 00 10" + "11" * 16: Offset(9, 4, "m", 5),
    }
    for text, expected in offsets.items():
        assert records.read_offset(bytes.fromhex(text)) == expected
    member = "0001 6d {} 0001 63 0001 68 {} 00000008 00000001 73 00000001 61"
    head = "0001 63 00000002 0001 72 0001 6d"
    for version, since, instance, rebalance in (
        (0, "", "", ""),
        (1, "", "", "00000007"),
        (2, "0000000000000003", "", "00000007"),
        (3, "0000000000000003", "0001 69", "00000007"),
    ):
        text = f"{version:04x}" + head + since + "00000001" + member.format(instance, rebalance)
        found = records.read_group(bytes.fromhex(text))
        (one,) = found.stored.members
        assert one == StoredMember("m", "i" if instance else None, "c", "h", 7 if rebalance else 8, 8, b"s", b"a")
        assert (found.since_ms, found.stored[:4]) == (3 if since else -1, ("c", 2, "r", "m"))
    text = "0004 02 63 00000002 00 00 0000000000000003 02 02 6d 00 02 63 02 68 00000007 00000008 02 73 02 61 00 00"
    found = records.read_group(bytes.fromhex(text))
    assert found.stored == Stored("c", 2, None, None, (StoredMember("m", None, "c", "h", 7, 8, b"s", b"a"),))


@pytest.mark.parametrize("version", [3, 4])
def test_a_count_of_more_than_there_are_bytes_is_none(version: int) -> None:
    """It is refused as such, before anything is read that many times."""
    since = "0000000000000003"
    head = f"0003 0001 63 00000002 ffff ffff {since}" if version == 3 else f"0004 02 63 00000002 00 00 {since}"
    size = len(bytes.fromhex(head)) + (4 if version == 3 else 1)
    for more, reason in ((0, "cut short"), (1, "more than it holds")):
        count = f"{size + more:08x}" if version == 3 else f"{size + more + 1:02x}"
        with pytest.raises(LogError, match=reason):
            records.read_group(bytes.fromhex(head + count))


def test_tags_that_nobody_knows_are_passed_over() -> None:
    """In the flexible version: those of each member, whose successor begins behind them."""
    head = "0004 02 63 00000002 00 00 0000000000000003 03"
    member = "02 {} 00 02 63 02 68 00000007 00000008 02 73 02 61"
    tags = "02 00 03 aabbcc 8101 00"  # two: 3 bytes, and none under a number of two bytes
    found = records.read_group(bytes.fromhex(f"{head} {member.format('6d')} {tags} {member.format('6e')} 00 00"))
    assert [each.member_id for each in found.stored.members] == ["m", "n"]
    for cut in ("02 00 03 aabb", "01 00 ff"):
        with pytest.raises(LogError):
            records.read_group(bytes.fromhex(f"{head} {member.format('6d')} {cut}"))


@pytest.mark.parametrize(("size", "is_read"), [("81 80 80 80 00", True), ("81 80 80 80 80 00", False)])
def test_a_length_of_more_than_five_bytes_is_none(size: str, is_read: bool) -> None:
    data = bytes.fromhex(f"0004 0000000000000009 00000004 {size} 0000000000000005 00")
    if is_read:
        assert records.read_offset(data) == Offset(9, 4, "", 5)
    else:
        with pytest.raises(LogError, match="a length that is none"):
            records.read_offset(data)


@pytest.mark.parametrize(
    "data", [records.group_value(STATE), records.offset_value(Offset(9, 4, "m", 5)), b"\0\5" + bytes(99), b"\xff\xff"]
)
def test_records_that_make_no_sense_are_said(data: bytes) -> None:
    read = records.read_group if data == records.group_value(STATE) else records.read_offset
    for size in range(len(data)) if data[1:2] == b"\3" else [len(data)]:
        with pytest.raises(LogError):
            read(data[:size])


def test_the_topics_of_a_subscription() -> None:
    assert records.topics_of_subscription(subscribed("t", "uv")) == {"t", "uv"}
    assert records.topics_of_subscription(subscribed()) == set()
    assert records.topics_of_subscription(b"\0\1\0\0\0\2\0\1t") is None
    assert records.topics_of_subscription(b"\xff\xff\0\0\0\0") is None
    assert records.topics_of_subscription(b"") is None


@pytest.mark.parametrize(
    ("name", "count", "expected"),
    [("", 50, 0), ("a", 50, 47), ("test-group", 50, 12), ("polygenelubricants", 50, 0), ("ä€😀", 50, 1), ("g", 1, 0)],
)
def test_groups_are_spread_as_in_kafka(name: str, count: int, expected: int) -> None:
    """By Java's String.hashCode; of the least there is, that of "polygenelubricants", the absolute value is 0."""
    assert shard_of(name, count) == expected


def test_a_new_coordinator_goes_on(tmp_path: Path) -> None:
    """Members and what they committed: after a kill, and after a start."""
    with Asked(tmp_path / "log") as first:
        first.create("t", 3)
        member = first.alone()
        own = {"member_id": member, "generation_id_or_member_epoch": 1}
        first.commit({("t", 0): 5}, **own)
        first.commit({("t", 0): 6, ("t", 1): 1}, **own)
        first.again()
        assert first.committed() == {("t", 0): 6, ("t", 1): 1}
        assert first.beat(member) == 0 and first.commit({("t", 2): 8}, **own) == {("t", 2): 0}
        assert first.state().members[0].member_assignment == b"all"
        waiting = first.begin_to_join(version=3)
        first.turn()
        first.again()
        assert not waiting and first.state().group_state == "Stable"
    with Asked(tmp_path / "log") as second:
        assert second.committed() == {("t", 0): 6, ("t", 1): 1, ("t", 2): 8}
        assert second.beat(member) == 0
        assert second.join(member).generation_id == 2
        assert second.beat("x", 2) == Code.UNKNOWN_MEMBER_ID


def test_a_member_that_died_with_the_coordinator_is_gone_without_anybody_asking(tmp_path: Path) -> None:
    with Asked(tmp_path / "log", group_min_session_ms=1) as running:
        member = running.join(running.join(session_timeout=300).member_id, session_timeout=300).member_id
        found = running.answer(running.begin_to_sync(member, 1, {member: b"all"}))
        assert found.error_code == 0
        running.again()
        assert running.groups._groups["g"].state.value == "Stable"
        running.turn_until("it is gone", lambda: running.groups._groups["g"].state.value == "Empty")


def test_while_the_log_is_out_of_service_commits_are_refused(running: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """And everything is as it was once it is back."""
    member = running.alone()
    running.commit({("t", 0): 5}, group_id="h")
    manager = running.topics.disk.manager
    with monkeypatch.context() as patched:
        patched.setattr(manager, "slot", lambda *_: None)
        patched.setattr(keeping, "READY_SECONDS", 0.01)
        assert running.commit({("t", 0): 6}, group_id="h") == {("t", 0): Code.COORDINATOR_NOT_AVAILABLE}
        assert running.commit({("t", 0): 7}, group_id="h") == {("t", 0): Code.COORDINATOR_LOAD_IN_PROGRESS}
    running.turn_until("it is ready", lambda: running.groups.is_ready)
    assert running.committed("h") == {("t", 0): 5} and running.beat(member) == 0
    assert running.commit({("t", 0): 8}, group_id="h") == {("t", 0): 0}


def test_the_first_group_makes_the_log_and_no_client_touches_it(tmp_path: Path) -> None:
    with Asked(tmp_path / "log", offsets_partitions=3) as running:
        assert running.committed() == {} and running.groups.names() == []
        assert not list((tmp_path / "log").glob(f"{TOPIC}-*"))
        groups = ["a", "b", "c", "d"]
        asked = [running.begin_to_join(version=3, group=name) for name in groups]
        assert {running.answer(each).error_code for each in asked} == {0}
        assert len(list((tmp_path / "log").glob(f"{TOPIC}-*"))) == 3
        assert running.delete(TOPIC) == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert running.topics.names() == []
        row = {"name": TOPIC, "count": 5, "assignments": None}
        (found,) = running.ask(37, 3, topics=[row], timeout=1, validate_only=False).results
        assert found.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    with Asked(tmp_path / "log", offsets_partitions=5) as running:
        assert len(running.groups._shards) == 3


def test_without_room_for_the_log_groups_are_refused(tmp_path: Path) -> None:
    with Asked(tmp_path / "log", partitions=1) as running:
        assert running.join().error_code == Code.COORDINATOR_NOT_AVAILABLE
        assert running.committed() == {}


def test_while_the_log_is_read_groups_are_refused(running: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    member = running.alone()
    running.commit({("t", 0): 5}, group_id="h")
    running.groups.is_ready = False
    monkeypatch.setattr(keeping, "READY_SECONDS", 0.01)
    assert running.join().error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
    assert running.beat(member) == Code.COORDINATOR_LOAD_IN_PROGRESS
    assert running.commit({("t", 0): 5}) == {("t", 0): Code.COORDINATOR_LOAD_IN_PROGRESS}
    loading = Code.COORDINATOR_LOAD_IN_PROGRESS
    assert running.answer(running.begin_to_sync(member, 1, {})).error_code == loading
    assert running.ask(LEAVE, 3, group_id="g", members=()).error_code == loading
    assert running.state().error_code == loading
    assert running.ask(LIST, 4, states_filter=()).error_code == loading
    assert [row.error_code for row in running.ask(DELETE, 2, groups_names=("h",)).results] == [loading]
    assert running.ask(OFFSET_DELETE, 0, group_id="h", topics=()).error_code == loading
    asked = [{"name": "t", "partition_indexes": [0]}]
    for version in range(1, 8):
        found = running.ask(FETCH, version, group_id="h", topics=asked, require_stable=False)
        assert (found.error_code if version >= 2 else found.topics[0].partitions[0].error_code) == loading
    running.groups.is_ready = True
    assert running.beat(member) == 0
    assert running.committed("h") == {("t", 0): 5}


def test_after_a_failed_flush_the_log_is_read_again(running: Asked) -> None:
    """What was not flushed is not known: nobody was told that it is kept."""
    member = running.alone()
    running.commit({("t", 0): 5}, group_id="h")
    joining = running.begin_to_join(version=3)
    running.turn()
    shard = running.groups._shards[0]
    asked = running.begin_to_commit({("t", 0): 6}, group_id="h")
    running.turn_until("it is appended", lambda: bool(shard.log._unflushed) or bool(asked))
    for _, _, written in list(shard.log._unflushed):
        written.flushed.give(LogError("the disk refused"))
    running.groups._lose(LogError("the disk refused"))
    running.turn_until("it is ready", lambda: running.groups.is_ready and running.groups._shards[0] is not shard)
    assert running.answer(joining).error_code == Code.COORDINATOR_NOT_AVAILABLE
    running.answer(asked)
    assert running.committed("h")[("t", 0)] in (5, 6)
    assert running.beat(member) == 0
    assert running.commit({("t", 0): 7}, group_id="h") == {("t", 0): 0}


# -- kept short --------------------------------------------------------------------------------------------------------


def clean(running: Asked) -> None:
    shared = Shared(running.config, running.arena, (), (), (), 64)
    house = Keeper(shared)
    for view in running.arena.views():
        house._clean(view)


def test_a_long_log_is_kept_short_and_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With commits among the parts of the snapshot, and after what is before it has gone."""
    monkeypatch.setattr(internal_log, "SHORT_BYTES", 3000)
    monkeypatch.setattr(keeping, "BATCH_BYTES", 200)
    with Asked(tmp_path / "log") as first:
        first.create("t", 3)
        member = first.alone()
        expected = {}
        for number in range(60):
            name = f"h{number % 7}"
            asked = first.begin_to_commit({("t", number % 3): number}, group_id=name)
            first.groups.keep_house()
            assert first.answer(asked).topics[0].partitions[0].error_code == 0
            expected[name, number % 3] = number
        first.ask(DELETE, 2, groups_names=("h3",))
        expected = {key: value for key, value in expected.items() if key[0] != "h3"}
        first.groups.keep_house()
        first.turn_until("nothing is under way", lambda: not first.loop.tasks)
        segments = sorted((first.directory / f"{TOPIC}-0").glob("*.log"))
        assert len(segments) > 2
        number = newest_snapshot([(path, 1 << 30) for path in segments], FileOps())
        assert number is not None and number > 0
        clean(first)
        assert sorted((first.directory / f"{TOPIC}-0").glob("*.log")) == segments[number:]
        keys = [each.key for each in first.stored()]
        assert keys[0] == b"snapshot" and b"snapshot-end" in keys
        first.again()
        assert all_of(first) == expected
    with Asked(tmp_path / "log") as second:
        assert all_of(second) == expected
        assert second.beat(member) == 0


def test_a_segment_is_read_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whole batches, so that other work of the coordinator's comes in between."""
    monkeypatch.setattr(keeping, "STEP_RECORDS", 2)
    rows = [Record(b"%d" % number, b"v", 1) for number in range(9)]
    batches = iter([memoryview(record_batches.build(rows[a:b])) for a, b in ((0, 1), (1, 2), (2, 5), (5, 6), (6, 9))])
    steps = []
    while found := keeping._some_of(batches):
        steps.append([int(key) for key, _ in found])
    assert steps == [[0, 1], [2, 3, 4], [5, 6, 7, 8]]


def all_of(running: Asked) -> dict[tuple[str, int], int]:
    names = [name for name in running.groups.names() if name != "g"]
    return {(name, n): offset for name in names for (_, n), offset in running.committed(name).items()}


def test_a_snapshot_that_is_not_whole_keeps_what_is_before_it(running: Asked) -> None:
    for number in range(3):
        running.commit({("t", number): number})
    running.groups._shards[0].log.snapshot(running.groups._shards[0].parts())
    running.turn_until("it is written", lambda: not running.loop.tasks)
    segments = sorted((running.directory / f"{TOPIC}-0").glob("*.log"))
    assert len(segments) == 2
    size = segments[1].stat().st_size
    found = [newest_snapshot([(segments[0], 1 << 20), (segments[1], seen)], FileOps()) for seen in (size, size - 1, 0)]
    assert found == [1, None, None]
    clean(running)
    assert sorted((running.directory / f"{TOPIC}-0").glob("*.log")) == segments[1:]


def test_which_snapshot_counts(tmp_path: Path) -> None:
    """Its end may stand in a later segment, but not behind the beginning of another one."""
    kinds = {"b": b"snapshot", "e": b"snapshot-end", "x": b"\0\1"}

    def newest(*segments: str) -> int | None:
        rows = []
        for number, text in enumerate(segments):
            path = tmp_path / f"{number}"
            path.write_bytes(b"".join(record_batches.build([Record(kinds[kind], b"", 1)]) for kind in text))
            rows.append((path, 1 << 20))
        return newest_snapshot(rows, FileOps())

    assert newest("x", "bxe", "x") == 1
    assert newest("x", "bx", "xe") == 1
    assert newest("bxe", "bx") == 0
    assert newest("bxe", "bx", "bxe") == 2
    assert newest("bx", "bxex") == 1
    assert newest("x", "xe") is None
    assert newest("x", "bx") is None
    assert newest("bxe", "bx", "x") == 0
    assert newest() is None


def test_a_snapshot_that_fails_is_tried_again_later(running: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    running.commit({("t", 0): 5})
    kept = running.groups._shards[0].log
    monkeypatch.setattr(internal_log, "SHORT_BYTES", 1)
    assert kept.is_long(0) and not kept.is_long(1 << 20)

    def broken() -> Iterator[list[Record]]:
        yield [Record(b"snapshot", b"", 1)]
        raise OSError(28, "no room")

    outcome = kept.snapshot(broken())
    assert not kept.is_long(0)
    running.turn_until("it has failed", lambda: outcome.value is not None)
    assert isinstance(outcome.value, OSError) and not kept.is_long(0)
    assert running.commit({("t", 0): 6}) == {("t", 0): 0}
    monkeypatch.setattr(kept, "_no_snapshot_until", 0.0)
    assert kept.is_long(0)
    outcome = kept.snapshot(running.groups._shards[0].parts())
    running.turn_until("it is written", lambda: outcome.value == internal_log.DONE)
    running.again()
    assert running.committed() == {("t", 0): 6}


def test_without_a_segment_of_its_own_there_is_no_snapshot(running: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    running.commit({("t", 0): 5})
    kept = running.groups._shards[0].log
    monkeypatch.setattr(internal_log, "roll_now", lambda *_: False)
    outcome = kept.snapshot(running.groups._shards[0].parts())
    running.turn_until("it has failed", lambda: outcome.value is not None)
    assert isinstance(outcome.value, LogError)
    assert b"snapshot" not in [each.key for each in running.stored()]


@pytest.mark.parametrize("waits", [False, True])
def test_a_disk_that_takes_too_long(running: Asked, monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    """It counts as one that refuses, or is waited for."""
    running.commit({("t", 0): 5})
    kept = running.groups._shards[0].log
    monkeypatch.setattr(internal_log, "FLUSH_SECONDS", 0.02)
    monkeypatch.setattr(kept, "_waits_for_disk", waits)
    (view,) = [each for each in running.arena.views() if each.topic == TOPIC]
    found: list[str] = []

    def waiting() -> Any:
        try:
            yield from kept._until_flushed(view, view.log_offset + 1)
            found.append("flushed")
        except LogError as error:
            found.append(str(error))

    running.loop.start(waiting())
    until = time.monotonic() + 0.2
    running.turn_until("some time has passed", lambda: time.monotonic() > until)
    if not waits:
        assert len(found) == 1 and "takes too long" in found[0]
        return
    assert not found
    assert running.commit({("t", 0): 6}) == {("t", 0): 0}
    running.turn_until("it is flushed", lambda: found == ["flushed"])


def test_old_offsets_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of groups without members, so long after the commit and after the last one left; then the group."""
    with Asked(tmp_path / "log", offsets_retention_minutes=1, offsets_retention_check_ms=1) as running:
        running.create("t", 3)
        member = running.alone()
        running.commit({("t", 0): 5}, member_id=member, generation_id_or_member_epoch=1)
        running.commit({("t", 0): 6}, group_id="h")
        begun = int(time.time() * 1000)

        def after(milliseconds: int) -> list[str]:
            monkeypatch.setattr(keeping, "_wall_ms", lambda: begun + milliseconds)
            time.sleep(0.002)
            running.groups.keep_house()
            running.turn_until("it has looked", lambda: not running.loop.tasks)
            return running.groups.names()

        assert after(50_000) == ["g", "h"]
        assert after(60_000) == ["g"]
        running.ask(LEAVE, 0, group_id="g", member_id=member)
        assert after(60_001) == ["g"]
        assert after(119_000) == ["g"] and running.committed() == {("t", 0): 5}
        assert after(120_001) == []
        monkeypatch.undo()
        running.again()
        assert running.groups.names() == []


def test_offsets_go_with_their_topic(running: Asked) -> None:
    """At once, or, where the coordinator was killed before it came to that, when it looks for what is old."""
    running.create("u")
    member = running.alone("m")
    assert running.commit({("u", 0): 7}, group_id="m", member_id=member, generation_id_or_member_epoch=1) == {
        ("u", 0): 0
    }
    running.commit({("t", 0): 5, ("u", 0): 6})
    running.delete("u")
    running.turn_until("they are gone", lambda: running.committed() == {("t", 0): 5} and running.committed("m") == {})
    assert running.beat(member, group="m") == 0, "its members may read others"
    running.topics.on_deleted = lambda _: None
    running.delete("t")
    assert running.committed() == {("t", 0): 5}
    running.groups._sweep_at = 0.0
    running.groups.keep_house()
    running.turn_until("they are gone", lambda: running.committed() == {})


def test_what_is_too_old_is_looked_for_so_often_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Asked(tmp_path / "log", offsets_retention_check_ms=60_000) as running:
        looks: list[float] = []

        def sweep() -> Iterator[Any]:
            looks.append(time.monotonic())
            yield from ()

        monkeypatch.setattr(running.groups, "_sweep", sweep)
        running.groups.keep_house()
        assert not looks, "not at once: it may be that somebody is about to commit"
        running.groups._sweep_at = 0.0
        for _ in range(3):
            running.groups.keep_house()
        assert len(looks) == 1 and 0 <= running.groups._sweep_at - looks[0] - 60 + 1 <= 1


def test_what_is_committed_behind_a_deletion_stays(running: Asked) -> None:
    """Of a topic that is made again at once, in whichever group; a kill changes nothing."""
    running.create("u")
    for group in ("a", "b", "c"):
        running.commit({("u", 0): 5, ("t", 0): 1}, group_id=group)
    running.topics.on_deleted("u")
    asked = [running.begin_to_commit({("u", 0): 1}, group_id=group) for group in ("b", "c")]
    for each in asked:
        assert running.answer(each).topics[0].partitions[0].error_code == 0
    running.turn_until("all is written", lambda: not running.loop.tasks)
    for _ in range(2):
        assert running.committed("a") == {("t", 0): 1}
        assert running.committed("b") == running.committed("c") == {("t", 0): 1, ("u", 0): 1}
        running.again()


def test_a_commit_that_is_under_way_is_not_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its group's former offsets are: forgotten behind it, they would take it with them."""
    with Asked(tmp_path / "log", offsets_retention_minutes=1, offsets_retention_check_ms=1) as running:
        running.create("t", 3)
        running.commit({("t", 0): 5, ("t", 1): 6}, group_id="h")
        later = int(time.time() * 1000) + 60_001
        monkeypatch.setattr(keeping, "_wall_ms", lambda: later)
        asked = running.begin_to_commit({("t", 0): 7}, group_id="h")
        assert not asked
        running.groups._sweep_at = 0.0
        running.groups.keep_house()
        assert running.answer(asked).topics[0].partitions[0].error_code == 0
        running.turn_until("all is written", lambda: not running.loop.tasks)
        assert running.committed("h")[("t", 0)] == 7
        running.groups._sweep_at = 0.0
        running.groups.keep_house()
        running.turn_until("it has looked", lambda: running.committed("h") == {("t", 0): 7})
        running.again()
        assert running.committed("h") == {("t", 0): 7}


def test_a_group_is_deleted_behind_its_first_record(running: Asked) -> None:
    """It is not there again after a kill."""
    member = running.join(running.join().member_id).member_id
    left = running.begin_to_ask(LEAVE, 0, group_id="g", member_id=member)
    asked = running.begin_to_ask(DELETE, 2, groups_names=["g"])
    assert running.answer(left).error_code == 0
    assert running.answer(asked).results[0].error_code == 0
    running.turn_until("all is written", lambda: not running.loop.tasks)
    assert (running.groups.names(), running.groups._shards[0].latest) == ([], {})
    running.again()
    assert running.groups.names() == []


def test_what_is_kept_of_a_former_group_touches_no_later_one(running: Asked) -> None:
    """One of the same name, whose first member has been told its id, when the former's last record is flushed."""
    member = running.join(running.join().member_id).member_id
    left = running.begin_to_ask(LEAVE, 0, group_id="g", member_id=member)
    asked = running.begin_to_ask(DELETE, 2, groups_names=["g"])
    told = running.begin_to_join()
    assert told and not asked, "it joins before the former group's records are flushed"
    assert running.answer(left).error_code == 0 and running.answer(asked).results[0].error_code == 0
    running.turn_until("all is written", lambda: not running.loop.tasks)
    joined = running.join(told[0].member_id)
    assert (joined.error_code, joined.generation_id) == (0, 1)


# -- who may ask -------------------------------------------------------------------------------------------------------


def test_each_request_asks_for_its_operation(tmp_path: Path) -> None:
    asked: set[tuple[ResourceType, Operation, str]] = set()
    refused: set[tuple[ResourceType, Operation]] = set()

    def rule(_principal: str, _host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        if kind is not ResourceType.CLUSTER:
            asked.add((kind, operation, name))
        return (kind, operation) not in refused

    group, topic = ResourceType.GROUP, ResourceType.TOPIC
    rows = {"group_instance_id": None, "generation_id": 1, "member_id": "m"}
    partitions = [{"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": 1, "committed_metadata": ""}]
    commits = [{"name": "t", "partitions": partitions}]
    fetches = [{"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}]}]
    requests: list[tuple[int, int, dict[str, Any], set[tuple[ResourceType, Operation]]]] = [
        (FIND, 4, {"key_type": 0, "coordinator_keys": ("g",)}, {(group, Operation.DESCRIBE)}),
        (HEARTBEAT, 4, {"group_id": "g", **rows}, {(group, Operation.READ)}),
        (SYNC, 3, {"group_id": "g", "assignments": (), **rows}, {(group, Operation.READ)}),
        (LEAVE, 0, {"group_id": "g", **rows}, {(group, Operation.READ)}),
        (COMMIT, 9, {"group_id": "g", "topics": commits, "generation_id_or_member_epoch": -1, **rows},
         {(group, Operation.READ), (topic, Operation.READ)}),
        (FETCH, 8, {"groups": fetches, "require_stable": False},
         {(group, Operation.DESCRIBE), (topic, Operation.DESCRIBE)}),
        (DESCRIBE, 0, {"groups": ("g",)}, {(group, Operation.DESCRIBE)}),
        (OFFSET_DELETE, 0, {"group_id": "g", "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}]},
         {(group, Operation.DELETE), (topic, Operation.READ)}),
        (DELETE, 0, {"groups_names": ("g",)}, {(group, Operation.DELETE)}),
    ]  # fmt: skip
    with Asked(tmp_path / "log", rule=rule) as running:
        running.create("t")
        running.commit({("t", 0): 1})
        asked.clear()
        running.join()
        assert asked == {(group, Operation.READ, "g")}
        for key, version, fields, expected in requests:
            asked.clear()
            running.ask(key, version, **fields)
            assert {(kind, operation) for kind, operation, _ in asked} == expected, key
        running.commit({("t", 0): 1})
        refused |= {(group, operation) for operation in Operation}
        denied = int(Code.GROUP_AUTHORIZATION_FAILED)
        assert running.join().error_code == denied
        for key, version, fields, _ in requests:
            found = running.ask(key, version, **fields)
            match key:
                case 8:
                    code = found.topics[0].partitions[0].error_code
                case 9:
                    code = found.groups[0].error_code
                    assert found.groups[0].topics == ()
                case 10:
                    code = found.coordinators[0].error_code
                case 15:
                    code = found.groups[0].error_code
                    assert found.groups[0].members == ()
                case 42:
                    code = found.results[0].error_code
                case _:
                    code = found.error_code
            assert code == denied, key
        assert [each.group_id for each in running.ask(LIST, 0).groups] == ["g"]
        refused |= {(ResourceType.CLUSTER, Operation.DESCRIBE)}
        assert running.ask(LIST, 0).groups == ()
        refused.clear()
        refused |= {(topic, operation) for operation in Operation}
        forbidden = int(Code.TOPIC_AUTHORIZATION_FAILED)
        assert running.commit({("t", 0): 2}) == {("t", 0): forbidden}
        assert running.committed() == {}
        found = running.ask(FETCH, 8, groups=fetches, require_stable=False).groups[0].topics[0].partitions[0]
        assert (found.error_code, found.committed_offset) == (forbidden, -1)
        topics = [{"name": "t", "partitions": [{"partition_index": 0}]}]
        deleted = running.ask(OFFSET_DELETE, 0, group_id="g", topics=topics)
        assert (deleted.error_code, deleted.topics[0].partitions[0].error_code) == (0, forbidden)
        refused.clear()
        assert running.committed() == {("t", 0): 1}


def test_times_are_whole_milliseconds() -> None:
    """As the library has them: a time-out of a part of one is none."""
    assert (_ms(timedelta(milliseconds=6_000)), _ms(timedelta(milliseconds=-1))) == (6_000, -1)
