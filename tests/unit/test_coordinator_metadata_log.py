"""Topics and the metadata log: what a start finds, what others made is written down, and how the log begins anew."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastlog.kafka_codes import Code
from fastlog.log import _files
from fastlog.log.deletion import leave_marker
from fastlog.log.files import FileOps
from fastlog.log.internal_logs import newest_snapshot
from fastlog.log.metadata import CREATED, CREATING, Topic, read_metadata, topic_change
from fastlog.log.metadata import TOPIC as METADATA_TOPIC
from fastlog.workers.child import Shared
from fastlog.workers.coordinator import dispatch, internal_log
from fastlog.workers.coordinator import topics as topics_module
from fastlog.workers.coordinator.metadata_log import Work
from fastlog.workers.keeper import Keeper
from tests.harness.coordinated import Coordinated


@pytest.fixture
def running(memory: Path) -> Iterator[Coordinated]:
    with Coordinated(memory / "log") as made:
        yield made


def test_topics_and_their_settings_are_there_after_a_start(memory: Path) -> None:
    with Coordinated(memory / "log") as first:
        made = first.create("t", 2, configs={"retention.bytes": "5000"})
    with Coordinated(memory / "log") as second:
        views = second.topics.partitions("t")
        assert {(view.topic_id, view.retention_bytes) for view in views} == {(made.topic_id.bytes, 5000)}
        assert second.topics.settings("t") == {"retention.bytes": "5000"}
        assert second.create("t").error_code == Code.TOPIC_ALREADY_EXISTS


def test_a_partition_whose_directory_is_missing_is_offline_and_named(
    memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its disk may not be mounted: it must not become an empty one."""
    with Coordinated(memory / "log") as first:
        first.create("t", 2)
    (memory / "log" / "t-1").rename(memory / "away")
    with Coordinated(memory / "log") as second:
        states = [second.arena.describe_state(view.state)[:7] for view in second.topics.partitions("t")]
        assert states == ["ok", "offline"]
        assert "topic='t' partition=1: no log directory has it" in caplog.text
        assert not (memory / "log" / "t-1").exists()
        assert second.delete("t") == Code.NONE
        assert second.recorded() == {}
    with Coordinated(memory / "log") as third:
        assert third.topics.names() == []


def test_a_directory_of_another_topic_is_never_mixed_in(memory: Path) -> None:
    with Coordinated(memory / "log") as first:
        first.create("t", 2)
    with Coordinated(memory / "other") as other:
        other.create("t", 2)
    (memory / "log" / "t-1").rename(memory / "away")
    (memory / "other" / "t-1").rename(memory / "log" / "t-1")
    with Coordinated(memory / "log") as second:
        states = [second.arena.describe_state(view.state)[:7] for view in second.topics.partitions("t")]
        assert states == ["ok", "offline"]


def test_a_topic_that_others_made_is_written_down(memory: Path) -> None:
    topic_id = uuid.uuid4().bytes
    with Coordinated(memory / "log") as first:
        for partition in range(3):
            first.manager.create_partition("t", partition, count=3, format_name="record-batches", topic_id=topic_id)
        first.topics.adopt()
        first.turn_until("it is written down", lambda: first.recorded() == {"t": ("created", 3)})
    with Coordinated(memory / "log") as second:
        assert {view.topic_id for view in second.topics.partitions("t")} == {topic_id}


def test_what_others_add_and_delete_is_written_down(running: Coordinated) -> None:
    """What is under way is left to who began it; the settings of a topic that grows are kept."""
    running.create("grows", 1, configs={"retention.ms": "1000"})
    running.create("goes", 2)
    running.create("stays", 1)
    (first,) = running.topics.partitions("grows")
    for partition in (1, 2):
        running.manager.create_partition(
            "grows",
            partition,
            count=3,
            format_name="record-batches",
            topic_id=first.topic_id,
            settled=partition == 1,
        )
    leave_marker("goes", [running.directory], FileOps())
    running.arena.want_deletion()
    running.turn_until("it has gone", lambda: not running.topics.partitions("goes"))
    asked = running.begin_to_ask(20, 6, topics=[{"name": "stays", "topic_id": bytes(16)}], timeout=30_000)
    running.topics.adopt()
    expected = {"grows": ("created", 3)}
    running.turn_until("it is written down", lambda: running.recorded() == expected and bool(asked))
    assert asked[0].responses[0].error_code == Code.NONE
    assert read_metadata([running.directory], FileOps()).topics["grows"].settings == {"retention.ms": "1000"}
    running.turn_until("all are shown", lambda: all(view.settled for view in running.topics.partitions("grows")))


def test_a_topic_is_deleted_that_has_the_name_of_one_that_others_deleted(running: Coordinated) -> None:
    """Neither is written down: a crash would leave it half deleted if it were not, before that."""
    running.create("t")
    leave_marker("t", [running.directory], FileOps())
    running.arena.want_deletion()
    running.turn_until("it has gone", lambda: not running.topics.partitions("t") and not running.arena.leaving())
    running.manager.create_partition("t", 0, count=1, format_name="record-batches", topic_id=uuid.uuid4().bytes)
    assert running.delete("t") == Code.NONE
    assert running.recorded() == {} and running.topics.partitions("t") == []
    assert not (running.directory / "t-0").exists()


def test_a_topic_that_is_being_made_is_none_that_others_made(
    running: Coordinated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be written down as made, with the partitions that it has by then."""
    monkeypatch.setattr(topics_module, "ADOPT_SECONDS", 0.0)
    monkeypatch.setattr(topics_module, "STEP_PARTITIONS", 1)
    topic = {"name": "t", "num_partitions": 40, "replication_factor": -1, "assignments": (), "configs": ()}
    asked = running.begin_to_ask(19, 7, topics=[topic], timeout=30_000, validate_only=False)
    running.turn_until("it has a partition", lambda: bool(running.topics.partitions("t")))
    running.topics.adopt()
    running.turn_until("all topics were looked at", lambda: not running.topics._is_adopting)
    assert len(running.topics.partitions("t")) < 40 and running.recorded() == {"t": (CREATING, 40)}
    running.turn_until("it is made", lambda: bool(asked))
    assert running.recorded() == {"t": (CREATED, 40)}


def test_a_name_is_free_when_it_is_written_down_that_its_topic_has_gone(
    running: Coordinated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others deleted it."""
    monkeypatch.setattr(topics_module, "ADOPT_SECONDS", 0.0)
    running.create("t")
    leave_marker("t", [running.directory], FileOps())
    running.arena.want_deletion()
    running.turn_until("it has gone", lambda: not running.topics.partitions("t") and not running.arena.leaving())
    assert running.create("t").error_code == Code.TOPIC_ALREADY_EXISTS
    running.topics.adopt()
    running.turn_until("that is written down", lambda: not running.recorded() and not running.loop.tasks)
    assert running.create("t").error_code == Code.NONE


def test_a_new_coordinator_shows_what_is_written_down_and_no_more(running: Coordinated) -> None:
    """Not a partition that its predecessor was adding, nor another topic that has got the name since."""
    running.create("grows", 1)
    running.create("goes", 1)
    (first,) = running.topics.partitions("grows")
    leave_marker("goes", [running.directory], FileOps())
    running.arena.want_deletion()
    running.turn_until("it has gone", lambda: not running.topics.partitions("goes") and not running.arena.leaving())
    for name, partition, topic_id in (("grows", 1, first.topic_id), ("goes", 0, uuid.uuid4().bytes)):
        running.manager.create_partition(
            name, partition, count=2, format_name="record-batches", topic_id=topic_id, settled=False
        )
    running.loop.close()
    running.begin()
    running.turn_until("it is ready", lambda: running.topics.is_ready and not running.loop.tasks)
    shown = {name: [view.settled for view in running.topics.partitions(name)] for name in ("grows", "goes")}
    assert shown == {"grows": [True, False], "goes": [False]}


def test_a_new_coordinator_shows_what_its_predecessor_did_not_come_to(
    running: Coordinated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wrote down that a topic is there, and was killed before that was flushed."""
    monkeypatch.setattr(topics_module, "ADOPT_SECONDS", 0.0)
    words = {"format_name": "record-batches", "topic_id": uuid.uuid4().bytes}
    running.manager.create_partition("t", 0, count=1, settled=False, **words)  # type: ignore[arg-type]
    _files.arm("fdatasync@1-=slow:100", "test")
    running.topics.adopt()
    running.turn_until("it is appended", lambda: "t" in running.recorded())
    running.loop.close()
    running.begin()
    running.turn_until("it is ready", lambda: running.topics.is_ready)
    _files.arm("", "test")
    assert [view.settled for view in running.topics.partitions("t")] == [True]


def test_what_others_make_while_something_is_written_down_is_next(running: Coordinated) -> None:
    running.create("first")
    for name in ("t", "u"):
        running.manager.create_partition(name, 0, count=1, format_name="record-batches", topic_id=uuid.uuid4().bytes)
        if name == "t":
            running.turn_until("nothing is under way", lambda: not running.loop.tasks)
            running.topics.adopt()
            running.turn_until("it is being written down", lambda: running.loop.tasks > 0)
    running.turn_until("the first is written down", lambda: running.recorded().get("t") == ("created", 1))
    running.turn_until("all is written", lambda: not running.topics._is_adopting)
    running.topics.adopt()
    running.turn_until("it is written down", lambda: running.recorded().get("u") == ("created", 1))


def test_what_cannot_be_written_down_is_tried_again(running: Coordinated, caplog: pytest.LogCaptureFixture) -> None:
    topic_id = uuid.uuid4().bytes
    running.create("first")
    running.manager.create_partition("t", 0, count=1, format_name="record-batches", topic_id=topic_id)
    _files.arm("pwrite@1=ENOSPC", "test")
    running.topics.adopt()
    running.turn_until("it fails", lambda: "topics not written down topics=1 reason=" in caplog.text)
    _files.arm("", "test")
    assert running.recorded() == {"first": ("created", 1)}
    running.topics.adopt()
    running.turn_until("it is written down", lambda: running.recorded().get("t") == ("created", 1))


def test_nothing_is_made_or_deleted_before_the_metadata_log_is_read(
    running: Coordinated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a former coordinator has begun stands in it. Who asks is told to ask again, and has it then."""
    running.create("t")
    monkeypatch.setattr(dispatch, "READY_SECONDS", 0.0)
    running.topics.is_ready = False
    assert running.create("new").error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
    assert running.delete("t") == Code.COORDINATOR_LOAD_IN_PROGRESS
    row = {"name": "t", "count": 2, "assignments": None}
    (found,) = running.ask(37, 3, topics=[row], timeout=30_000, validate_only=False).results
    assert found.error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
    assert running.topics.wanted("new") == Code.LEADER_NOT_AVAILABLE
    assert running.recorded() == {"t": ("created", 1)}
    running.topics.is_ready = True
    assert running.topics.wanted("t") == Code.NONE
    assert running.ask(37, 3, topics=[row], timeout=30_000, validate_only=False).results[0].error_code == Code.NONE
    assert running.create("new").error_code == Code.NONE
    assert running.delete("t") == Code.NONE
    assert running.recorded() == {"new": ("created", 1)}


def test_what_is_written_down_waits_for_no_creation(running: Coordinated) -> None:
    """The lock of creation is somebody's whose disk is slow, or who was stopped: the log is there already."""
    assert len(running.producer_ids(1)) == 1
    assert running.arena.create_lock()
    try:
        written: list[bool] = []

        def work() -> Work:
            yield from running.topics._log.write([topic_change(CREATING, Topic("t", bytes(15) + b"1", 1))])
            written.append(True)

        running.loop.start(work())
        running.turn_until("it is written", lambda: bool(written))
    finally:
        running.arena.create_unlock()
    assert running.recorded() == {"t": (CREATING, 1)}


def test_a_log_that_has_gone_is_made_again(running: Coordinated) -> None:
    """What is known of the slot of before counts no more: the next write stands in the new one."""
    running.create("t")
    (former,) = [view for view in running.arena.views() if view.topic == METADATA_TOPIC]
    leave_marker(METADATA_TOPIC, [running.directory], FileOps())
    running.arena.want_deletion()
    running.turn_until(
        "it has gone", lambda: running.arena.live_view(former.index) is None and not running.arena.leaving()
    )
    assert running.create("u").error_code == Code.NONE
    (view,) = [view for view in running.arena.views() if view.topic == METADATA_TOPIC]
    assert (view.index, view.life) == (former.index, former.life + 2)
    assert running.recorded() == {"u": ("created", 1)}


# -- the log begins anew -----------------------------------------------------------------------------------------------


def test_a_long_log_begins_anew_and_says_the_same(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with changes on their way, and after what is before it has gone."""
    monkeypatch.setattr(internal_log, "SHORT_BYTES", 2000)
    with Coordinated(memory / "log") as first:
        for number in range(10):
            first.create(f"t{number}", 1, configs={"retention.bytes": str(number)})
            first.topics.shorten()
        row = {"name": "late", "num_partitions": 2, "replication_factor": 1, "assignments": (), "configs": ()}
        asked = first.begin_to_ask(19, 7, topics=[row], timeout=30_000, validate_only=False)
        first.topics.shorten()
        first.delete("t3")
        first.turn_until("it is made", lambda: bool(asked))
        first.turn_until("nothing is under way", lambda: not first.loop.tasks)
        (given, expected) = first.producer_ids(1), first.recorded()
        assert set(expected) == {"late", *(f"t{number}" for number in range(10) if number != 3)}
        segments = sorted((first.directory / "__fastlog_metadata-0").glob("*.log"))
        assert len(segments) > 1
        shared = Shared(first.config, first.arena, (), (), (), 64)
        house = Keeper(shared)
        for view in first.arena.views():
            house._clean(view)
        left = sorted((first.directory / "__fastlog_metadata-0").glob("*.log"))
        assert left == segments[-1:]
        assert first.recorded() == expected
    with Coordinated(memory / "log") as second:
        assert second.recorded() == expected
        assert second.topics.settings("t9") == {"retention.bytes": "9"}
        assert set(second.producer_ids(2)).isdisjoint(given)


def test_what_is_changed_beside_a_snapshot_stands_in_it_and_makes_no_other_due(
    running: Coordinated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the log before the snapshot, and not flushed."""
    running.create("t")
    monkeypatch.setattr(internal_log, "SHORT_BYTES", 0)
    wanted = {
        name: "123456789" for name in ("retention.ms", "retention.bytes", "segment.bytes", "segment.ms", "flush.ms")
    }
    configs = [{"name": name, "config_operation": 0, "value": value} for name, value in wanted.items()]
    resource = {"resource_type": 2, "resource_name": "t", "configs": configs}
    _files.arm("fdatasync@1-=slow:50", "test")
    asked = running.begin_to_ask(44, 1, resources=[resource], validate_only=False)
    running.topics.shorten()
    running.turn_until("nothing is under way", lambda: bool(asked) and not running.loop.tasks)
    _files.arm("", "test")
    assert read_metadata([running.directory], FileOps()).topics["t"].settings == wanted
    segments = sorted((running.directory / "__fastlog_metadata-0").glob("*.log"))
    assert len(segments) == 2
    running.topics.shorten()
    running.turn_until("nothing is under way", lambda: not running.loop.tasks)
    assert sorted((running.directory / "__fastlog_metadata-0").glob("*.log")) == segments


def test_a_segment_that_does_not_begin_with_the_state_keeps_what_is_before_it(running: Coordinated) -> None:
    running.create("t")
    segment = next((running.directory / "__fastlog_metadata-0").glob("*.log"))
    assert newest_snapshot([(segment, 1 << 20)], FileOps()) is None
    running.loop.start(running.topics._log.begin_anew())
    running.turn_until("it has begun anew", lambda: not running.loop.tasks)
    newest = sorted((running.directory / "__fastlog_metadata-0").glob("*.log"))[-1]
    assert newest != segment
    size = newest.stat().st_size
    found = [newest_snapshot([(segment, 1 << 20), (newest, seen)], FileOps()) for seen in (size, size - 1, 0)]
    assert found == [1, None, None]
