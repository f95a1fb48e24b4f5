"""Groups through the coordinator: what clients ask for and are told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fastlog.kafka_codes import Code
from fastlog.log import _files
from fastlog.record_batches import Record
from fastlog.workers.authorization import Operation, ResourceType
from fastlog.workers.coordinator import internal_log
from fastlog.workers.coordinator.frames import Frame
from fastlog.workers.coordinator.groups import groups as keeping
from fastlog.workers.coordinator.groups import records
from fastlog.workers.coordinator.groups.groups import TOPIC
from fastlog.workers.coordinator.groups.records import Offset, OffsetKey
from fastlog.workers.coordinator.requests.join_group import _ms
from tests.harness.coordinated import encoded
from tests.harness.coordinated_groups import (
    COMMIT,
    DELETE,
    DESCRIBE,
    FETCH,
    FIND,
    HEARTBEAT,
    JOIN,
    LEAVE,
    LIST,
    OFFSET_DELETE,
    SECOND,
    SYNC,
    Asked,
    subscribed,
)


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
    group = running.groups.group("g")
    assert group is not None and group.members[first.member_id].rebalance_ms == (60_000 if version else 10_000)
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
    rows = [(second.member_id, None), ("nobody", "i")]
    who = [{"member_id": member, "group_instance_id": instance} for member, instance in rows]
    left = running.ask(LEAVE, min(version, 5), group_id="g", member_id=second.member_id, members=who)
    assert left.error_code == 0
    if version >= 3:
        told = [(row.member_id, row.group_instance_id, row.error_code) for row in left.members]
        assert told == [(*rows[0], 0), (*rows[1], Code.UNKNOWN_MEMBER_ID)]
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


def test_whoever_is_allowed_less_silence_than_the_others_is_gone_sooner(tmp_path: Path) -> None:
    with Asked(tmp_path / "log", group_min_session_ms=1) as running:
        long = {"session_timeout": 600_000, "version": 3}
        member = running.join(**long).member_id
        joining = running.begin_to_join(session_timeout=100, version=3)
        running.turn()
        assert running.join(member, **long).generation_id == 2
        other = running.answer(joining).member_id
        asked = [running.begin_to_sync(member, 2, {member: b"a", other: b"b"}), running.begin_to_sync(other, 2, {})]
        for each in asked:
            running.answer(each)
        running.turn_until("it is gone", lambda: list(running.groups._groups["g"].members) == [member])


def test_who_never_came_leaves_nothing(tmp_path: Path) -> None:
    with Asked(tmp_path / "log", group_min_session_ms=1) as running:
        assert running.join(session_timeout=20).error_code == Code.MEMBER_ID_REQUIRED
        assert running.groups.names() == ["g"], "until the loop's next turn, however long that takes to come"
        assert running.join("nobody", group="h").error_code == Code.UNKNOWN_MEMBER_ID
        assert running.join(protocols=[], group="i").error_code == Code.INCONSISTENT_GROUP_PROTOCOL
        assert running.groups.group("h") is None and running.groups.group("i") is None
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


def test_whose_subscription_nobody_understands_reads_all(running: Asked) -> None:
    running.commit({("t", 0): 5})
    running.join(version=3, protocols=[{"name": "range", "metadata": b"?"}])
    topics = [{"name": "t", "partitions": [{"partition_index": 0}]}]
    (found,) = running.ask(OFFSET_DELETE, 0, group_id="g", topics=topics).topics
    assert found.partitions[0].error_code == Code.GROUP_SUBSCRIBED_TO_TOPIC
    assert running.committed() == {("t", 0): 5}


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


@pytest.mark.parametrize("full", ["ENOSPC", "EDQUOT"])
def test_on_a_full_disk_groups_and_offsets_can_be_deleted(running: Asked, full: str) -> None:
    """What is kept takes no more room then, and nothing is committed that does."""
    running.commit({("t", 0): 1, ("t", 1): 1}, group_id="h")
    running.turn_until("all is written", lambda: not running.loop.tasks)
    for shard in running.groups._shards:
        shard.log._reserved = (-1, -1, 0)  # it asks the disk with the next write
    _files.arm(f"fallocate@1-={full}", "test")
    for group in ("h", "new"):
        assert running.commit({("t", 0): 2}, group_id=group) == {("t", 0): Code.COORDINATOR_NOT_AVAILABLE}
    assert [row.group_id for row in running.ask(LIST, 4, states_filter=()).groups] == ["h"]
    topics = [{"name": "t", "partitions": [{"partition_index": 0}]}]
    assert running.ask(OFFSET_DELETE, 0, group_id="h", topics=topics).error_code == 0
    assert running.committed("h") == {("t", 1): 1}
    assert [row.error_code for row in running.ask(DELETE, 2, groups_names=("h",)).results] == [0]
    _files.arm("", "test")
    assert running.committed("h") == {}


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
        for version in (1, 2, 7):  # an error is each partition's at first, and then the whole answer's
            only = {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}], "require_stable": False}
            found = running.ask(FETCH, version, **only)
            told = [int(part.error_code) for each in found.topics for part in each.partitions]
            assert told == ([denied] if version < 2 else []) and getattr(found, "error_code", denied) == denied
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
