"""The log of groups: what a kill leaves of it, and how it is kept short."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastlog import record_batches
from fastlog.errors import LogError
from fastlog.kafka_codes import Code
from fastlog.log import _files
from fastlog.log.files import FileOps
from fastlog.log.internal_logs import newest_snapshot
from fastlog.log.metadata import TOPIC as METADATA_TOPIC
from fastlog.record_batches import Record
from fastlog.workers.child import Shared
from fastlog.workers.coordinator import internal_log
from fastlog.workers.coordinator.groups import groups as keeping
from fastlog.workers.coordinator.groups.groups import TOPIC
from fastlog.workers.keeper import Keeper
from tests.harness.coordinated_groups import DELETE, FETCH, LEAVE, LIST, OFFSET_DELETE, Asked


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Asked]:
    with Asked(tmp_path / "log") as made:
        made.create("t", 3)
        yield made


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


def test_what_was_under_way_when_the_log_was_lost_keeps_nothing_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that came to its end behind that is not counted among those of the group that is read again."""
    with Asked(tmp_path / "log", offsets_retention_minutes=1, offsets_retention_check_ms=1) as running:
        running.create("t", 3)
        running.commit({("t", 0): 5}, group_id="h")
        shard = running.groups._shards[0]
        asked = running.begin_to_commit({("t", 0): 6}, group_id="h")
        running.turn_until("it is appended", lambda: bool(shard.log._unflushed) or bool(asked))
        for _, _, written in list(shard.log._unflushed):
            written.flushed.give(LogError("the disk refused"))
        running.turn_until("it is ready", lambda: running.groups.is_ready and bool(running.groups.names()))
        later = int(time.time() * 1000) + 60_001
        monkeypatch.setattr(keeping, "_wall_ms", lambda: later)
        running.groups._sweep_at = 0.0
        running.groups.keep_house()
        running.turn_until("they are forgotten", lambda: running.groups.names() == [])


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


@pytest.mark.parametrize("topic", [TOPIC, METADATA_TOPIC])
def test_a_new_coordinator_goes_by_nothing_that_a_power_loss_could_take_away(running: Asked, topic: str) -> None:
    """What its predecessor appended is flushed before it is ready."""

    def ends() -> tuple[int, int]:
        (view,) = (view for view in running.arena.views() if view.topic == topic)
        return view.visible_offset, view.log_offset

    assert running.commit({("t", 0): 1}) == {("t", 0): 0}
    _, before = ends()
    _files.arm("fdatasync@1-=slow:200", "test")
    if topic == TOPIC:
        running.begin_to_commit({("t", 0): 2})
    else:
        running.begin_to_ask(22, 4, transactional_id=None, transaction_timeout=1, producer_id=-1, producer_epoch=-1)
    running.turn_until("it is appended", lambda: ends()[1] > before)
    running.again()
    visible, end = ends()
    _files.arm("", "test")
    assert visible == end


def test_each_part_of_a_snapshot_is_of_what_stands_there_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many records as a batch may have, of what was there when it began."""
    monkeypatch.setattr(keeping, "BATCH_BYTES", 5)
    shard = keeping.Shard(Any)  # type: ignore[arg-type]
    for key in b"abcdefg":
        shard.put(bytes([key]), b"1")
    parts = shard.parts()
    found = [[(each.key, each.value) for each in next(parts)]]
    shard.put(b"a", b"2")
    shard.put(b"d", b"2")
    shard.put(b"e", None)
    found += [[(each.key, each.value) for each in part] for part in parts]
    assert found == [
        [(b"snapshot", b""), (b"a", b"1"), (b"b", b"1"), (b"c", b"1")],
        [(b"d", b"2"), (b"f", b"1"), (b"g", b"1")],
        [(b"snapshot-end", b"")],
    ]


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
        running.again()  # since when it is empty is known all the same
        coming = running.join().member_id
        assert after(120_001) == ["g"], "somebody is about to be in it"
        running.ask(LEAVE, 0, group_id="g", member_id=coming)
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
