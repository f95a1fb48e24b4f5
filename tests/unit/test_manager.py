"""All partitions of a broker: found at start, made once by whoever comes first, placed, named, refused."""

from __future__ import annotations

import os
import select
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fastlog.config import BrokerConfig
from fastlog.errors import InvalidTopicError, LogError, WrongPartitionError
from fastlog.log._append import Appender, append_batch, append_bytes
from fastlog.log._arena import STATE_OFFLINE, Arena
from fastlog.log._flush import flush_now, make_partition_flusher
from fastlog.log._segments import SegmentFiles
from fastlog.log._shared_memory import FIRST_PROCESSOR
from fastlog.log.files import FileOps
from fastlog.log.formats import Kafka07
from fastlog.log.formats.record_batches import RECORD_BATCHES
from fastlog.log.manager import CreationBusyError, LogManager
from fastlog.log.metadata import CREATED, CREATING, Topic
from fastlog.log.recovered import RecoveredPartition
from fastlog.log.side_file import read_side_file
from fastlog.segment_files import FLUSH_MARKS_NAME
from tests.harness import logs
from tests.harness.faulty_files import FaultyFileOps
from tests.harness.shared_log import SharedLog, in_child, message, start, stop
from tests.harness.stored_batches import batch

pytestmark = pytest.mark.usefixtures("no_faults")

ENTRY = message(14)
NEW_FILES = {"00000000000000000000.kafka", "fastlog.json", ".flushed-00000000000000000000"}


def manager_of(
    *directories: Path, files: FileOps | None = None, known: Sequence[Topic] = (), **properties: str
) -> LogManager:
    """A manager that has loaded these log directories; settings by their 0.7 names, dots as underscores."""
    for directory in directories:
        directory.mkdir(exist_ok=True)
    values = {name.replace("_", "."): value for name, value in properties.items()}
    config = BrokerConfig.from_properties({"log.dir": ",".join(map(str, directories)), **values})
    arena = Arena([str(path) for path in directories], FIRST_PROCESSOR + 2, config.max_partitions, 64)
    manager = LogManager(config, arena, files)
    manager.load([{} for _ in directories], known)
    return manager


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {FLUSH_MARKS_NAME}


def test_looking_for_a_topic_makes_nothing(tmp_path: Path) -> None:
    """0.7: a fetch of, or a question about, an unknown topic leaves no directory behind."""
    manager = manager_of(tmp_path)
    assert manager.slot("t", 0) is None
    assert manager.partition_count("t") == 1
    assert manager.topics() == []
    assert names(tmp_path) == set()


def test_a_new_partition_has_its_files_and_is_found(tmp_path: Path) -> None:
    manager = manager_of(tmp_path, num_partitions="3")
    index = manager.create_partition("t", 2)
    view = manager.slot("t", 2)
    assert view is not None and view.index == index
    assert (view.log_end, view.dir_synced_tail, view.table_tail) == (0, 0, 1)  # the flusher makes it durable
    assert names(tmp_path / "t-2") == NEW_FILES
    side = read_side_file(tmp_path / "t-2", FileOps())
    assert side is not None and side.format == "kafka-0.7" and side.checkpoint == 0
    assert manager.create_partition("t", 2) == index


def test_partition_counts_by_topic(tmp_path: Path) -> None:
    """0.7's vector: topic.partition.count.map t:2 refuses partition 2."""
    manager = manager_of(tmp_path, topic_partition_count_map="t:2", num_partitions="4")
    assert (manager.partition_count("t"), manager.partition_count("u")) == (2, 4)
    manager.create_partition("t", 1)
    for partition in (2, -1, 4):
        with pytest.raises(WrongPartitionError):
            manager.create_partition("t", partition)
    assert manager.create_partition("t", 2, count=3) == 1
    assert manager.partition_count("t") == 3


@pytest.mark.parametrize(
    "name", ["", ".", "..", "x" * 256, *(f"a{c}b" for c in "/\0\x01\x18\x1f\x8f\ufffa"), "a\ud805b", "é" * 127]
)
def test_bad_names_make_nothing(name: str, tmp_path: Path) -> None:
    """0.7's list; and a name whose directory would not fit 255 bytes."""
    manager = manager_of(tmp_path)
    with pytest.raises(InvalidTopicError):
        manager.create_partition(name, 0)
    assert names(tmp_path) == set()


def test_what_lies_on_disk_is_served_whatever_the_count_says(tmp_path: Path) -> None:
    logs.write_segments(tmp_path / "t-5", [ENTRY * 3, ENTRY])
    manager = manager_of(tmp_path, num_partitions="2")
    view = manager.slot("t", 5)
    assert view is not None and (view.flushed_end, view.log_end, view.table_tail) == (56, 56, 2)
    assert manager.partition_count("t") == 6
    assert [item.partition for item in manager.partitions("t")] == [5]
    assert (manager.first("t"), manager.first("u")) == (manager.slot("t", 5), None)
    manager.create_partition("t", 3)
    assert manager.first("t") == manager.slot("t", 3)


def test_a_topic_has_the_same_id_after_each_start(tmp_path: Path) -> None:
    """By which clients of today know it: that of its oldest partition, whichever is found first."""
    manager = manager_of(tmp_path, num_partitions="3")
    for partition in (1, 0, 2):
        manager.create_partition("t", partition)
        time.sleep(0.002)
    ids = {view.topic_id for view in manager.partitions("t")}
    assert len(ids) == 1
    assert {view.topic_id for view in manager_of(tmp_path).partitions("t")} == ids


@pytest.mark.parametrize("missing", range(3))
def test_a_partition_that_is_missing_is_offline_whichever_it_is(tmp_path: Path, missing: int) -> None:
    topic = Topic("t", bytes(range(16)), 3)
    manager = manager_of(tmp_path)
    for partition in range(3):
        manager.create_partition("t", partition, count=3, format_name=RECORD_BATCHES, topic_id=topic.topic_id)
    shutil.rmtree(tmp_path / f"t-{missing}")
    again = manager_of(tmp_path, known=[topic])
    states = {view.partition: bool(view.state & STATE_OFFLINE) for view in again.partitions("t")}
    assert states == {partition: partition == missing for partition in range(3)}
    assert {view.topic_id for view in again.partitions("t")} == {topic.topic_id}, "it can be deleted, and be asked for"


@pytest.mark.parametrize(("phase", "settled"), [(CREATING, False), (CREATED, True)])
def test_clients_see_no_topic_whose_creation_was_stopped(tmp_path: Path, phase: str, settled: bool) -> None:
    """Also where a partition of it is more than half made; whoever goes on with it lets them."""
    topic = Topic("t", bytes(range(16)), 1, phase=phase)
    manager = manager_of(tmp_path)
    index = manager.create_partition("t", 0, format_name=RECORD_BATCHES, topic_id=topic.topic_id)
    log = SharedLog.over(manager._arena)
    assert append_batch(log.appender, index, bytearray(batch(b"x")), 1, 1)[0] == 0
    view = manager_of(tmp_path, known=[topic]).slot("t", 0)
    assert view is not None and (view.settled, view.log_offset) == (settled, 1)


def test_new_partitions_go_where_the_fewest_are(tmp_path: Path) -> None:
    """Several log directories; each partition is found again where it lies."""
    one, two, three = (tmp_path / name for name in "abc")
    logs.write_segments(one / "old-0", [ENTRY])
    logs.write_segments(one / "old-1", [ENTRY])
    manager = manager_of(one, two, three, num_partitions="7")
    for partition in range(7):
        manager.create_partition("t", partition)
    assert [len(names(path)) for path in (one, two, three)] == [3, 3, 3]
    again = manager_of(one, two, three)
    found = {(topic, view.partition): view.directory for topic in again.topics() for view in again.partitions(topic)}
    assert len(found) == 9
    for (topic, partition), directory in found.items():
        assert ((one, two, three)[directory] / f"{topic}-{partition}").is_dir()


def test_a_partition_in_two_directories_is_offline_and_the_others_are_not(tmp_path: Path) -> None:
    for name in "ab":
        logs.write_segments(tmp_path / name / "t-0", [ENTRY])
    logs.write_segments(tmp_path / "a" / "u-0", [ENTRY])
    manager = manager_of(tmp_path / "a", tmp_path / "b")
    twice, once = manager.slot("t", 0), manager.slot("u", 0)
    assert twice is not None and twice.state & STATE_OFFLINE
    assert once is not None and once.state == 0


def test_a_gap_between_segments_keeps_one_partition_from_appends(tmp_path: Path) -> None:
    """0.7's vector: segments 0 and 15 where 0 is empty. 0.7 does not start; here the others are served."""
    (tmp_path / "t-0").mkdir()
    for base in (0, 15):
        logs.segment_path(tmp_path / "t-0", base).write_bytes(b"" if base == 0 else ENTRY)
    logs.write_segments(tmp_path / "u-0", [ENTRY])
    manager = manager_of(tmp_path)
    damaged, whole = manager.slot("t", 0), manager.slot("u", 0)
    assert damaged is not None and damaged.state
    assert whole is not None and whole.state == 0 and whole.log_end == 14
    assert logs.segment_path(tmp_path / "t-0", 15).read_bytes() == ENTRY


def test_an_unknown_format_is_offline_and_its_files_stay(tmp_path: Path) -> None:
    logs.write_segments(tmp_path / "t-0", [b"not of 0.7"])
    logs.write_side_file(tmp_path / "t-0", 5, log_format="kafka-9")
    manager = manager_of(tmp_path)
    view = manager.slot("t", 0)
    assert view is not None and view.state & STATE_OFFLINE
    assert logs.segment_path(tmp_path / "t-0", 0).read_bytes() == b"not of 0.7"


# -- creation, interrupted or raced ------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["create.directory", "create.side_file", "create.segment"])
def test_what_a_dead_creator_left_is_finished(point: str, tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    assert in_child(lambda: manager.create_partition("t", 0), f"{point}@1=kill") == -9
    assert manager.slot("t", 0) is None
    index = manager.create_partition("t", 0)
    assert manager.slot("t", 0) is not None
    assert index == 0
    assert names(tmp_path / "t-0") == NEW_FILES
    # and the same by the next start
    other = tmp_path / "other"
    second = manager_of(other)
    assert in_child(lambda: second.create_partition("t", 0), f"{point}@1=kill") == -9
    view = manager_of(other).slot("t", 0)
    assert view is not None and (view.state, view.log_end) == (0, 0)
    again = manager_of(other).slot("t", 0)
    assert again is not None and again.created_ms == view.created_ms > 0


def test_what_a_dead_creator_left_is_finished_where_it_lies(tmp_path: Path) -> None:
    """Also when another log directory has fewer partitions by then: in two of them it would be nobody's."""
    manager = manager_of(tmp_path / "a", tmp_path / "b")
    assert in_child(lambda: manager.create_partition("t", 0), "create.side_file@1=kill") == -9
    manager.create_partition("u", 0)
    manager.create_partition("t", 0)
    assert [names(tmp_path / name) for name in "ab"] == [{"t-0", "u-0"}, set()]


@pytest.mark.parametrize("kind", ["mkdir", "open", "write", "fdatasync", "rename"])
def test_what_the_disk_refused_can_be_made_later(kind: str, tmp_path: Path) -> None:
    files = FaultyFileOps()
    manager = manager_of(tmp_path, files=files)
    files.fail(kind, 1)
    with pytest.raises(OSError):
        manager.create_partition("t", 0)
    assert manager.slot("t", 0) is None
    manager.create_partition("t", 0)
    assert manager.slot("t", 0) is not None


def test_two_creators_make_one_partition(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    assert in_child(lambda: manager.create_partition("t", 0)) == 0
    assert manager.create_partition("t", 0) == 0
    ready, told = os.pipe()

    def hold() -> None:
        manager._arena.create_lock()
        os.write(told, b"x")
        select.select([], [], [])

    pid = start(hold)
    assert os.read(ready, 1) == b"x"
    with pytest.raises(CreationBusyError):
        manager.create_partition("u", 0)
    stop(pid)
    os.close(ready)
    os.close(told)
    assert manager.create_partition("u", 0) == 1


def test_a_directory_that_was_put_there_is_left_alone(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    logs.write_segments(tmp_path / "a-0", [ENTRY])
    (tmp_path / "b-0").mkdir()
    logs.write_side_file(tmp_path / "b-0", 5, log_format="kafka-9")
    (tmp_path / "c-0").mkdir()
    (tmp_path / "c-0" / "00000000000000000000.log").touch()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for topic in "abc":
        with pytest.raises(LogError, match="already holds"):
            manager.create_partition(topic, 0)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_without_a_slot_nothing_is_made(tmp_path: Path) -> None:
    """Directories without a slot would keep the next start from succeeding."""
    manager = manager_of(tmp_path, max_partitions="2")
    manager.create_partition("a", 0)
    manager.create_partition("b", 0)
    with pytest.raises(LogError, match=r"max\.partitions"):
        manager.create_partition("c", 0)
    assert names(tmp_path) == {"a-0", "b-0"}
    assert len(manager_of(tmp_path, max_partitions="2").topics()) == 2


def test_more_partitions_than_slots_name_the_setting(tmp_path: Path) -> None:
    for topic in "abc":
        logs.write_segments(tmp_path / f"{topic}-0", [ENTRY])
    with pytest.raises(LogError, match=r"max\.partitions"):
        manager_of(tmp_path, max_partitions="2")


# -- what cannot be opened ---------------------------------------------------------------------------------------------


def test_a_table_that_filled_up_is_taken_at_the_next_start(tmp_path: Path) -> None:
    """What an append allows, a start allows: here a table of 16, and then longer segments."""
    logs.write_segments(tmp_path / "fine-0", [ENTRY])
    settings = {"max.segments.per.partition": "16", "log.file.size": "20", "log.dir": str(tmp_path)}
    config = BrokerConfig.from_properties(settings)
    for _ in range(2):
        arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, config.max_partitions, config.segments_per_partition)
        manager = LogManager(config, arena)
        manager.load([{}])
        index = manager.create_partition("t", 0)
        appender = Appender(arena, SegmentFiles(arena, 8), FIRST_PROCESSOR)
        for _ in range(40):
            assert append_bytes(appender, index, ENTRY, 1)[0] == 0
        assert flush_now(make_partition_flusher(arena, 8, 0, 0), index) == 0
    assert len(arena.segments(index)) == 16
    assert [view.state for view in arena.views()] == [0, 0]
    assert arena.view(index).log_end == 80 * len(ENTRY)


def test_too_many_segments_take_one_partition_out_and_name_the_setting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when the setting was lowered: the others are served, and nothing of this one is touched."""
    logs.write_segments(tmp_path / "many-0", [ENTRY] * 65)
    logs.write_segments(tmp_path / "t-0", [ENTRY])
    manager = manager_of(tmp_path)
    many, one = manager.slot("many", 0), manager.slot("t", 0)
    assert many is not None and many.state & STATE_OFFLINE
    assert one is not None and one.state == 0
    (line,) = [record.getMessage() for record in caplog.records if "offline" in record.getMessage()]
    assert f"{tmp_path / 'many-0'} has 65 segments" in line
    assert "max.segments.per.partition" in line
    assert len(logs.contents(tmp_path / "many-0")) == 65


def test_whatever_goes_wrong_with_one_partition_the_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that nobody thought of, in recovery and in handing out the slot."""
    for topic in ("first", "second", "t"):
        logs.write_segments(tmp_path / f"{topic}-0", [ENTRY])
    scan, add = Kafka07.scan, LogManager._spec_of

    def broken_scan(self: Kafka07, files: FileOps, fd: int, start: int, end: int, **rest: Any) -> object:
        if Path(f"/proc/self/fd/{fd}").readlink().parent.name == "first-0":
            raise ZeroDivisionError("nobody thought of it")
        return scan(self, files, fd, start, end, **rest)

    def broken_spec(self: LogManager, dir_index: int, found: RecoveredPartition) -> object:
        if found.topic == "second" and found.state == "ok":
            raise OverflowError("nor of this")
        return add(self, dir_index, found)

    monkeypatch.setattr(Kafka07, "scan", broken_scan)
    monkeypatch.setattr(LogManager, "_spec_of", broken_spec)
    manager = manager_of(tmp_path)
    states = {topic: view.state & STATE_OFFLINE for topic in manager.topics() for view in manager.partitions(topic)}
    assert states == {"first": STATE_OFFLINE, "second": STATE_OFFLINE, "t": 0}
    text = caplog.text
    assert "nobody thought of it" in text
    assert "nor of this" in text


def test_times_that_no_clock_shows_are_no_reason_not_to_start(tmp_path: Path) -> None:
    """Files from before 1970, and a side file whose numbers are beyond 64 bits."""
    logs.write_segments(tmp_path / "old-0", [ENTRY] * 2)
    os.utime(tmp_path / "old-0" / "00000000000000000000.kafka", (-(10**6), -(10**6)))
    logs.write_segments(tmp_path / "large-0", [ENTRY] * 2)
    logs.write_side_file(tmp_path / "large-0", 0, created_ms=2**70, segments={0: (-5, 2**64)})
    manager = manager_of(tmp_path)
    assert [view.state for topic in manager.topics() for view in manager.partitions(topic)] == [0, 0]
