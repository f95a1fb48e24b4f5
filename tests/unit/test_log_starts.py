"""Records that were deleted: where a log begins afterwards, for readers, on the disk, and after any death."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from fastlog.errors import LogError
from fastlog.log import _files
from fastlog.log._append import end_life
from fastlog.log._arena import STATE_READ_ONLY
from fastlog.log._shared_memory import KEEPER, STAGE_FLUSHER
from fastlog.log.check import check_partition, log_start_of
from fastlog.log.deletion import leave_marker
from fastlog.log.files import FileOps
from fastlog.log.formats import FORMATS
from fastlog.log.formats.record_batches import RECORD_BATCHES
from fastlog.log.log_starts import read_log_starts, write_log_starts
from fastlog.log.recovery import recover_partition
from fastlog.log.slots import SlotView
from fastlog.log.times import TimeLookup
from fastlog.segment_files import LOG_STARTS_NAME
from fastlog.tools.dump_log import dump_log_command
from fastlog.tools.fsck import fsck_command
from fastlog.workers import log_starts
from fastlog.workers.child import Shared
from fastlog.workers.keeper import Keeper
from tests.harness import raw_batches
from tests.harness.faulty_files import FaultyFileOps
from tests.harness.raw_records import Record
from tests.harness.shared_log import DONE, in_child
from tests.harness.stored_batches import batch
from tests.unit.test_manager import manager_of
from tests.unit.test_record_batch_log import TOPIC_ID, BatchLog

pytestmark = pytest.mark.usefixtures("no_faults")

PLACE = ("t", 0)


def filled(directory: Path, batches: int = 12) -> BatchLog:
    """A log of batches of two records each, two batches in a segment; all of it is flushed."""
    log = BatchLog(directory, **{"log.file.size": "150", "log.retention.hours": "1000000"})
    for number in range(batches):
        assert log.append(batch(b"a%d" % number, b"b%d" % number, time_ms=1_700_000_000_000 + number))[0] == DONE
    log.log.flush()
    assert bases(log) == list(range(0, 2 * batches, 4))
    return log


def bases(log: BatchLog) -> list[int]:
    """Of the segments that the broker knows."""
    return [row.base for row in log.arena.segments(log.view.index)]


def files(log: BatchLog, suffix: str = ".log") -> list[int]:
    return sorted(int(path.stem) for path in log.folder.glob(f"*{suffix}"))


def keeper(log: BatchLog, with_files: FileOps | None = None) -> Keeper:
    made = Keeper(Shared(log.config, log.arena, (), (), (), 64))
    if with_files is not None:
        made._files = made._starts._files = with_files
    return made


def delete_to(log: BatchLog, offset: int, by: Keeper | None = None) -> Keeper:
    """Have records deleted, up to the last file."""
    log.arena.want_start(log.view.index, offset)
    by = by or keeper(log)
    assert by._starts.turn() is None
    assert by._starts.moved == {log.view.index}
    by._clean(log.view)
    assert by._starts.moved == set()
    return by


def kept(log: BatchLog) -> dict[tuple[str, int], int]:
    return read_log_starts(log.directory, FileOps())


# -- the file ----------------------------------------------------------------------------------------------------------


def test_the_file_is_kafkas(tmp_path: Path) -> None:
    write_log_starts(tmp_path, {("b", 0): 7, ("a", 10): 0, ("a", 9): 2**63 - 1, ("an odd name", 1): 3}, FileOps())
    text = (tmp_path / LOG_STARTS_NAME).read_text()
    assert text == "0\n4\na 9 9223372036854775807\na 10 0\nan odd name 1 3\nb 0 7\n"
    assert read_log_starts(tmp_path, FileOps()) == {
        ("a", 9): 2**63 - 1,
        ("a", 10): 0,
        ("an odd name", 1): 3,
        ("b", 0): 7,
    }
    write_log_starts(tmp_path, {}, FileOps())
    assert (tmp_path / LOG_STARTS_NAME).read_text() == "0\n0\n"
    assert read_log_starts(tmp_path, FileOps()) == {}


@pytest.mark.parametrize(
    "text",
    ["", "0\n", "1\n1\na 0 5\n", "0\n2\na 0 5\n", "0\n1\na 0 5\na 1 5\n", "0\n1\na 0 x\n", "0\n1\na 0\n", "0\n1\n\n",
     "0\n1\na -1 5\n", "0\n1\na 0 -1\n", "0\n1\na 0 9223372036854775808\n", "0\n1\n\udcff 0 5\n",
     "0\n2\na 0 5\na 0 6\n"],
)  # fmt: skip
def test_a_damaged_file_says_nothing_and_that_is_said(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / LOG_STARTS_NAME).write_bytes(text.encode("utf-8", "surrogateescape"))
    assert read_log_starts(tmp_path, FileOps()) == {}
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_no_file_is_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_log_starts(tmp_path, FileOps()) == {} and not caplog.records
    (tmp_path / LOG_STARTS_NAME).mkdir()
    with pytest.raises(OSError):
        read_log_starts(tmp_path, FileOps())


# -- what readers and the keeper make of it ----------------------------------------------------------------------------


def test_readers_begin_there_at_once_and_it_never_goes_back(tmp_path: Path) -> None:
    log = filled(tmp_path)
    assert log.append(batch(b"not flushed"))[0] == DONE
    view = log.view
    assert (view.log_start, view.kept_start, view.wanted_start, view.visible_offset) == (0, 0, 0, 24)
    for wanted, start in ((5, 5), (4, 5), (6, 6), (24, 24), (25, 24)):
        log.arena.want_start(view.index, wanted)
        assert log.view.log_start == start
    assert (log.view.kept_start, log.view.wanted_start) == (0, 25)
    assert log.arena.starts_wanted == 5
    log.log.flush()
    assert log.view.log_start == 25


def test_the_keeper_is_woken(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.arena.wake_taken(KEEPER)
    log.arena.want_start(log.view.index, 1)
    assert os.eventfd_read(log.arena.eventfd(KEEPER)) == 1


@pytest.mark.parametrize(
    ("offset", "first"),
    [(1, 0), (3, 0), (4, 4), (5, 4), (7, 4), (8, 8), (9, 8), (20, 20), (21, 20), (23, 20)],
)
def test_whole_segments_below_it_go(tmp_path: Path, offset: int, first: int) -> None:
    log = filled(tmp_path)
    delete_to(log, offset)
    left = list(range(first, 24, 4))
    assert bases(log) == files(log) == left
    assert files(log, ".timeindex") == left[:-1], "the newest one has none before a restart"
    assert (log.view.log_start, log.view.kept_start, kept(log)) == (offset, offset, {PLACE: offset})
    log.restart()
    assert (log.view.log_start, log.view.kept_start, bases(log)) == (offset, offset, left)
    assert files(log, ".index") == files(log, ".timeindex") == left
    assert log.view.log_offset == 24 and log.append(batch(b"more"))[1] == [24]


@pytest.mark.parametrize("step", ["", "retention.published@1=kill"])
def test_the_newest_segment_goes_once_an_empty_one_has_its_place(tmp_path: Path, step: str) -> None:
    """Also where a keeper dies before it has said that it comes back to it."""
    log = filled(tmp_path)
    if step:
        assert in_child(lambda: delete_to(log, 24), step) == -9
        by = keeper(log)
        by._finish_deletions(log.view)
    else:
        by = delete_to(log, 24)
    assert bases(log) == [20, 24], "the name of the new one may be lost"
    assert by._again == {log.view.index}
    log.log.flush()
    by._clean(log.view)
    assert bases(log) == files(log) == [24]
    by._clean(log.view)
    assert (bases(log), by._again) == ([24], set()), "and there is nothing more to do"
    log.restart()
    assert (log.view.log_start, log.view.kept_start, bases(log)) == (24, 24, [24])
    assert log.append(batch(b"more"))[1] == [24]


def test_the_newest_segment_stays_with_a_record_behind_the_start(tmp_path: Path) -> None:
    log = filled(tmp_path, 11)
    assert log.append(batch(b"a"))[0] == DONE
    log.log.flush()
    by = delete_to(log, 22)
    by._clean(log.view)
    assert (bases(log), by._again) == ([20], set())
    delete_to(log, 23, by)
    assert (bases(log), by._again) == ([20, 23], {log.view.index})


def test_a_full_segment_below_the_start_goes_however_it_came_there(tmp_path: Path) -> None:
    """The log ended where it was deleted to, and went on in the next segment before the keeper looked again."""
    log = filled(tmp_path)
    view = log.view
    log.arena.want_start(view.index, 24)
    by = keeper(log)
    assert by._starts.turn() is None
    stale = log.view
    assert log.append(batch(b"more", b"and more"))[0] == DONE
    log.log.flush()
    by._clean(stale)
    assert by._again == {view.index}
    by._clean(log.view)
    assert bases(log) == files(log) == [24]


def test_a_roll_that_fails_is_tried_again(tmp_path: Path) -> None:
    log = filled(tmp_path)
    _files.arm("open@1=ENOSPC", "test")
    by = delete_to(log, 24)
    assert (bases(log), by._again) == ([20], {log.view.index})
    by._clean(log.view)
    assert (bases(log), by._again) == ([20, 24], {log.view.index})


def test_what_is_not_flushed_is_not_dropped(tmp_path: Path) -> None:
    log = filled(tmp_path)
    for _ in range(4):
        assert log.append(batch(b"xxxxxx", b"y"))[0] == DONE
    log.arena.want_start(log.view.index, 30)
    by = keeper(log)
    by._starts.turn()
    by._clean(log.view)
    assert (log.view.log_start, kept(log)) == (24, {PLACE: 24})
    assert bases(log)[0] == 20, "the segment behind it has a name that may be lost"
    log.log.flush()
    assert log.view.log_start == 30
    log.arena.want_start(log.view.index, 30)
    delete_to(log, 30, by)
    assert (bases(log)[0], kept(log)) == (28, {PLACE: 30})


def test_a_successor_removes_the_indexes_of_dropped_segments_too(tmp_path: Path) -> None:
    log = filled(tmp_path)
    assert files(log, ".timeindex")[0] == 0
    assert in_child(lambda: delete_to(log, 13), "retention.unlink@1=kill") == -9
    assert files(log)[0] == 0
    keeper(log)._clean(log.view)
    assert files(log)[0] == 12
    assert [base for base in files(log, ".timeindex") if base < 12] == []


def test_retention_and_deletion_each_go_as_far_as_they_would(tmp_path: Path) -> None:
    log = filled(tmp_path)
    by = delete_to(log, 9)
    head = log.arena.segments(log.view.index)[2]
    log.arena.publish_retention(log.view.index, head.index, head.base)
    assert (log.view.log_start, log.view.kept_start) == (16, 9)
    with pytest.raises(LogError):
        log.arena.publish_retention(log.view.index, head.index, 12)
    log.arena.want_start(log.view.index, 10)
    assert by._starts.turn() is None
    assert (log.view.log_start, log.view.kept_start, kept(log)) == (16, 10, {PLACE: 10})
    for start in (9, 25):
        with pytest.raises(LogError):
            log.arena.publish_start(log.view.index, start)
    log.arena.publish_start(log.view.index, 24)
    assert log.view.log_start == 24


def test_a_log_begins_where_readers_see_it(tmp_path: Path) -> None:
    """Not where a flusher has come that died before it told them."""
    log = filled(tmp_path)
    assert log.append(batch(b"x", b"y", time_ms=1_700_000_000_100))[0] == DONE
    assert in_child(log.log.flush, "flush.flushed@1=kill") == -9
    view = log.view
    assert (view.visible_offset, view.flushed_offset) == (24, 26)
    with pytest.raises(LogError):
        log.arena.publish_start(view.index, 26)
    log.log.flush()
    log.arena.publish_start(view.index, 26)
    assert log.view.log_start == 26


def test_a_policy_that_fails_keeps_nothing_that_is_deleted(tmp_path: Path) -> None:
    log = filled(tmp_path)
    by = keeper(log)
    by._policy = lambda held: len(held.segments) + 1
    delete_to(log, 13, by)
    assert files(log) == [12, 16, 20]


def test_what_is_damaged_is_left_as_it_is(tmp_path: Path) -> None:
    log = filled(tmp_path)
    _files.arm("fdatasync@1=EIO", "test")
    assert log.append(batch(b"lost"))[0] == DONE
    assert log.log.flush() == errno.EIO
    assert log.view.state & STATE_READ_ONLY
    log.arena.want_start(log.view.index, 13)
    by = keeper(log)
    assert by._starts.turn() is None
    assert (by._starts.moved, kept(log), log.view.kept_start) == (set(), {}, 0)


def test_a_disk_that_refuses_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path)
    faulty = FaultyFileOps()
    by = keeper(log, faulty)
    log.arena.want_start(log.view.index, 13)
    for kind in ("write", "fdatasync", "rename", "fsync_dir"):
        faulty.fail(kind, 1)
        assert by._starts.turn() == log_starts.RETRY_SECONDS
        assert log.view.kept_start == 0 and not by._starts.moved
        pause = by._starts.turn()
        assert pause is not None and 0 < pause <= log_starts.RETRY_SECONDS
        by._starts._not_before = 0.0
    assert by._starts.turn() is None
    assert (log.view.kept_start, kept(log), by._starts.moved) == (13, {PLACE: 13}, {log.view.index})
    calls = faulty.calls["write"]
    assert by._starts.turn() is None and faulty.calls["write"] == calls


def test_nothing_is_looked_at_again_before_something_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither slots nor the file: a keeper has as many turns as wake-ups, and knows what it has written."""
    log = filled(tmp_path)
    faulty, looks = FaultyFileOps(), []

    class Counting:
        def __getattr__(self, name: str) -> object:
            if name == "unkept_starts":
                looks.append(name)
            return getattr(log.arena, name)

    by = keeper(log, faulty)
    monkeypatch.setattr(by._starts, "_arena", Counting())
    for number, wanted in enumerate((5, 9, 13), 1):
        log.arena.want_start(log.view.index, wanted)
        for _ in range(3):
            assert by._starts.turn() is None
        assert len(looks) == number and kept(log) == {PLACE: wanted}
    assert faulty.calls["read"] == 0 and list(by._starts._written.values()) == [{PLACE: 13}]


def test_a_write_changes_nothing_but_what_it_is_for(tmp_path: Path) -> None:
    log = filled(tmp_path)
    other = log.manager.create_partition("u", 3, count=4, format_name=RECORD_BATCHES, topic_id=bytes(15) + b"u")
    write_log_starts(tmp_path, {("gone", 0): 4, ("t", 1): 5, ("u", 3): 0}, FileOps())
    delete_to(log, 6)
    assert kept(log) == {("t", 0): 6, ("u", 3): 0}
    assert log.arena.view(other).log_start == 0


# -- starts ------------------------------------------------------------------------------------------------------------


def test_a_start_forgets_what_is_not_there(tmp_path: Path) -> None:
    """Else a topic that is made later would begin where another one of its name did."""
    log = filled(tmp_path)
    write_log_starts(tmp_path, {("t", 0): 6, ("gone", 0): 5, ("t", 1): 5}, FileOps())
    log.restart()
    assert log.view.log_start == 6 and kept(log) == {PLACE: 6}
    assert log.report.warnings == ()


def test_a_start_is_forgotten_where_its_partition_does_not_lie(tmp_path: Path) -> None:
    """It was moved to another log directory; a topic of its name may get a partition here later."""
    places = tmp_path / "a", tmp_path / "b"
    manager = manager_of(*places)
    manager.create_partition("t", 0, format_name=RECORD_BATCHES, topic_id=TOPIC_ID)
    here, other = places if (places[0] / "t-0").exists() else reversed(places)
    for place in places:
        write_log_starts(place, {("t", 0): 5}, FileOps())
    manager_of(*places)
    assert (read_log_starts(here, FileOps()), read_log_starts(other, FileOps())) == ({("t", 0): 5}, {})


def test_starts_that_cannot_be_forgotten_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    log = filled(tmp_path)
    write_log_starts(tmp_path, {("gone", 0): 5}, FileOps())
    monkeypatch.setattr("fastlog.log.manager.write_log_starts", refuse)
    log.restart()
    assert log.report.warnings == (
        f"log starts of partitions that are not there are kept path={tmp_path}: No space left on device",
    )


def test_topics_of_kafka_07_begin_where_their_files_do(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.manager.create_partition("old", 0)
    write_log_starts(tmp_path, {("old", 0): 6}, FileOps())
    log.restart()
    (old,) = log.manager.partitions("old")
    assert (old.state, old.log_start, old.kept_start) == (0, 0, 0)


def test_a_log_that_ends_before_its_start_has_lost_what_was_flushed(tmp_path: Path) -> None:
    log = filled(tmp_path)
    delete_to(log, 23)
    (last,) = (path for path in log.folder.glob("*.log"))
    os.truncate(last, last.stat().st_size // 2)
    log.folder.joinpath("fastlog.json").unlink()
    for mark in log.folder.glob(".flushed-*"):
        mark.unlink()
    log.restart()
    (found,) = log.report.partitions
    assert found.state == "read-only" and "expected at least 23" in found.reason
    assert (log.view.log_start, log.view.kept_start, kept(log)) == (22, 23, {PLACE: 23})


def test_a_partition_that_is_offline_keeps_its_start(tmp_path: Path) -> None:
    log = filled(tmp_path)
    delete_to(log, 9)
    other = log.manager.create_partition("u", 0, count=1, format_name=RECORD_BATCHES, topic_id=bytes(15) + b"u")
    side = log.folder / "fastlog.json"
    whole = side.read_bytes() if side.exists() else b""
    away = log.folder.parent / "away"
    names = [path for path in log.folder.iterdir() if path.suffix == ".log"]
    away.mkdir()
    for path in names:
        path.rename(away / path.name)
    log.restart()
    assert (log.view.state, log.view.kept_start) != (0, 0) and log.view.kept_start == 9
    (other_view,) = log.manager.partitions("u")
    log.arena.want_start(other_view.index, 0)
    by = keeper(log)
    by._starts._keep(0, {("u", 0): 0})
    assert kept(log) == {PLACE: 9, ("u", 0): 0}, other
    for path in names:
        (away / path.name).rename(path)
    side.write_bytes(whole)
    log.restart()
    assert (log.view.state, log.view.log_start) == (0, 9)


@pytest.mark.parametrize("offset", [12, 13])
def test_tools_say_where_it_begins(tmp_path: Path, offset: int) -> None:
    """And look at nothing that lies wholly before it, as a start does."""
    log = filled(tmp_path)
    log.arena.want_start(log.view.index, offset)
    keeper(log)._starts.turn()
    oldest = log.segments()[0].path
    oldest.write_bytes(b"?" * oldest.stat().st_size)
    run = CliRunner()
    found = run.invoke(fsck_command, ["--no-progress", str(log.folder)], standalone_mode=False)
    assert found.return_value == 0 and f"what was before offset {offset} has been deleted" in found.output
    assert "ok, 3 segment(s)" in found.output
    shown = run.invoke(dump_log_command, ["--no-print", str(log.folder)], standalone_mode=False)
    assert f"what is before offset {offset} has been deleted" in shown.output
    assert log_start_of(log.folder, FORMATS["kafka-0.7"], FileOps()) == 0
    assert log_start_of(log.folder / "none", FORMATS[RECORD_BATCHES], FileOps()) == 0
    log.restart()
    assert (log.view.state, log.view.log_start, bases(log)) == (0, offset, [12, 16, 20])


def test_fsck_misses_what_ends_before_its_start(tmp_path: Path) -> None:
    log = filled(tmp_path)
    assert log.report.partitions == ()
    write_log_starts(tmp_path, {PLACE: 24}, FileOps())
    assert check_partition(log.folder, FileOps()).problems == []
    write_log_starts(tmp_path, {PLACE: 25}, FileOps())
    assert [problem.kind for problem in check_partition(log.folder, FileOps()).problems] == ["short"]


STEPS = [
    "starts_file.write@1", "starts.kept@1", "starts.published@1", "retention.start_published@1",
    "retention.published@1", "retention.unlink@1", "retention.unlink@2", "retention.unlink@3", "retention.unlink@5",
    "retention.unlinked@1",
]  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("successor", [True, False], ids=["keeper", "broker"])
def test_whoever_comes_after_a_death_goes_on(tmp_path: Path, step: str, successor: bool) -> None:
    """What was published as kept is the start for ever; where the keeper alone died, what was wanted is done."""
    log = filled(tmp_path)
    log.arena.want_start(log.view.index, 13)
    assert in_child(lambda: delete_to(log, 13), f"{step}=kill") == -9
    was_kept = log.view.kept_start
    assert was_kept == (0 if step in STEPS[:2] else 13)
    if not successor:
        log.restart()
    by = keeper(log)
    by._starts.turn()
    by._finish_deletions(log.view)
    by._clean(log.view)
    if successor or step != STEPS[0]:
        assert (log.view.log_start, log.view.kept_start, kept(log)) == (13, 13, {PLACE: 13})
        assert bases(log) == files(log) == [12, 16, 20]
    else:
        assert (log.view.log_start, bases(log)) == (0, list(range(0, 24, 4)))
    log.restart()
    assert files(log, ".index") == files(log, ".timeindex") == bases(log)
    assert log.view.log_start >= was_kept and log.view.log_offset == 24


@pytest.mark.parametrize("step", ["retention.unlink@1", "retention.unlink@2"])
def test_no_start_waits_for_segments_to_be_removed(tmp_path: Path, step: str) -> None:
    """Not with a keeper that comes to nothing else: each dies at the same unlink, and the next one keeps a start."""
    log = filled(tmp_path)
    parent = os.getpid()
    shared = Shared(log.config, log.arena, (), (), (), 64, supervisor_pid=parent)
    for wanted in (9, 13, 17):
        log.arena.want_start(log.view.index, wanted)
        assert in_child(lambda: Keeper(shared).run(), f"{step}=kill") == -9
        assert (log.view.kept_start, kept(log)) == (wanted, {PLACE: wanted})


def test_a_start_is_kept_between_two_partitions_whose_segments_go(tmp_path: Path) -> None:
    """Of one that was wanted meanwhile, the segments go as well."""
    log = filled(tmp_path)
    by = keeper(log)
    log.arena.want_start(log.view.index, 6)
    by._starts.turn()
    cleaned = by._clean

    def clean(view: SlotView) -> None:
        cleaned(view)
        if view.kept_start == 6:
            assert bases(log) == files(log) == [4, 8, 12, 16, 20]
            log.arena.want_start(view.index, 13)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(by, "_clean", clean)
        by._clean_all([log.view.index])
        assert (log.view.kept_start, by._starts.moved) == (13, {log.view.index})
        by._clean_all(sorted(by._starts.moved))
    assert bases(log) == files(log) == [12, 16, 20] and not by._starts.moved
    log.arena.want_start(log.view.index, 17)
    log.arena.set_stopping(STAGE_FLUSHER)
    by._clean_all([log.view.index])
    assert log.view.kept_start == 13, "a stop writes nothing that nobody waits for"


def test_the_next_topic_of_a_name_begins_at_0(tmp_path: Path) -> None:
    log = filled(tmp_path)
    by = delete_to(log, 13)
    leave_marker("t", [tmp_path], FileOps())
    log.arena.want_deletion()
    for _ in range(10):
        if by._deletions.turn() is None:
            break
        for process in range(log.arena.processes):
            log.arena.see(process, log.arena.change_count)
    assert log.manager.slot("t", 0) is None and kept(log) == {}
    log.manager.create_partition("t", 0, format_name=RECORD_BATCHES, topic_id=TOPIC_ID)
    view = log.view
    assert (view.log_start, view.kept_start, view.wanted_start) == (0, 0, 0)
    log.restart()
    assert (log.view.log_start, log.view.kept_start) == (0, 0)


def test_the_next_topic_begins_at_0_also_when_nobody_knows_what_a_write_came_to(tmp_path: Path) -> None:
    """The file has its name, and that could not be made durable; then the topic is deleted."""
    log = filled(tmp_path)
    faulty = FaultyFileOps()
    by = keeper(log, faulty)
    log.arena.want_start(log.view.index, 13)
    faulty.fail("fsync_dir", 1)
    assert by._starts.turn() == log_starts.RETRY_SECONDS
    assert kept(log) == {PLACE: 13}
    by._starts.forget("t")
    assert kept(log) == {}


def test_a_partition_that_comes_back_keeps_its_start(tmp_path: Path) -> None:
    """Also what was wanted of it while it was away."""
    log = filled(tmp_path)
    delete_to(log, 9)
    log.arena.want_start(log.view.index, 13)
    former = log.view
    assert log.arena.create_lock()
    assert end_life(log.log.appender, former.index, True)
    again = recover_partition(
        log.folder, "t", 0, clean_end=None, files=FileOps(), least=former.flushed_offset, log_start=former.kept_start
    )
    index = log.manager.put_back(former, again)
    log.arena.create_unlock()
    view = log.arena.view(index)
    assert index != former.index and view.life & 1
    assert (view.log_start, view.kept_start, view.wanted_start) == (13, 9, 13)
    assert log.arena.unkept_starts() == [index]
    by = keeper(log)
    assert by._starts.turn() is None
    assert log.arena.view(index).kept_start == 13


# -- times -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", range(0, 12))
def test_nothing_before_the_start_is_found_by_time(tmp_path: Path, start: int) -> None:
    """Its own model: the records from the start on; in the first segment times are larger than behind it."""
    log = BatchLog(tmp_path, **{"log.file.size": "150"})
    times = [9, 8, 7, 6, 50, 4, 1, 2, 3, 3, 2, 5]
    for at in range(0, len(times), 3):
        assert log.append(_batch_of([1_700_000_000_000 + ms for ms in times[at : at + 3]]))[0] == DONE
    log.log.flush()
    assert len(log.segments()) > 1
    left = [(1_700_000_000_000 + ms, offset) for offset, ms in enumerate(times) if offset >= start]
    view = log.view
    for wanted in [*(1_700_000_000_000 + ms for ms in range(0, 53)), None]:
        lookup = TimeLookup(log.folder, log.arena.segments(view.index), (12, view.visible_end), wanted, start)
        while not lookup.step():
            pass
        if wanted is None:
            largest = max(ms for ms, _ in left)
            expected = next((row for row in left if row[0] == largest), None)
        else:
            expected = next((row for row in left if row[0] >= wanted), None)
        assert (lookup.found[:2] if lookup.found else None) == expected, (wanted, start)


def _batch_of(times: list[int]) -> bytes:
    return raw_batches.of([Record(ms, value=b"v") for ms in times]).encode()
