"""Power loss between any two file calls of a log: what was promised is there, nothing is invented, and work goes on.

Every choice that a file system has is tried (``tests/harness/power.py``), of what was recorded while the code ran.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fastlog.config import BrokerConfig
from fastlog.log._append import roll_now
from fastlog.log._arena import Arena
from fastlog.log._shared_memory import FIRST_PROCESSOR
from fastlog.log.check import check_partition
from fastlog.log.clean_marker import consume_clean_marker, write_clean_marker
from fastlog.log.creators import add_creator
from fastlog.log.files import FileOps, make_directory
from fastlog.log.manager import LogManager
from fastlog.log.recovery import RecoveredPartition, recover_partition
from fastlog.log.repair import keep_span, quarantine_unexpected_files
from fastlog.log.side_file import SideFile, read_side_file, write_side_file
from fastlog.segment_files import SIDE_FILE_NAME
from fastlog.workers.child import Shared
from fastlog.workers.keeper import Keeper
from tests.harness import logs, raw_format
from tests.harness.calls import recorded_calls
from tests.harness.faulty_files import FaultyFileOps
from tests.harness.manual_clock import ManualClock
from tests.harness.power import Disk, Left, Step, WrittenDown, after_power_loss, steps_of
from tests.harness.shared_log import DONE, SharedLog, message

pytestmark = pytest.mark.usefixtures("no_faults")

ENTRY = message(20)
PARTS = [b"".join(raw_format.entry(b"part %d entry %d" % (part, n)) for n in range(4)) for part in range(4)]
SIZE = len(PARTS[0])
ENTRY_BYTES = SIZE // 4
BROKEN = PARTS[1][: ENTRY_BYTES + 20] + b"?" + PARTS[1][ENTRY_BYTES + 21 :]
NOW_MS = 1_700_000_000_000


@pytest.fixture
def root(memory: Path) -> Path:
    """The log directory that loses power."""
    (memory / "log").mkdir()
    return memory / "log"


@pytest.fixture
def after(memory: Path) -> Path:
    """Where what is left is looked at."""
    return memory / "after"


def recover(root: Path, *, in_doubt: bool = False, files: FileOps | None = None) -> RecoveredPartition:
    return recover_partition(
        root / "t-0",
        "t",
        0,
        clean_end=None,
        files=files or logs.QuickFiles(),
        clock=ManualClock(NOW_MS),
        in_doubt=in_doubt,
    )


def stored(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.kafka")))


# -- small files that are replaced -------------------------------------------------------------------------------------


def side_file(root: Path, files: FileOps, number: int) -> None:
    write_side_file(root, SideFile(NOW_MS, checkpoint=number), files, sync_directory=True)


def side_file_with_the_next_sync(root: Path, files: FileOps, number: int) -> None:
    write_side_file(root, SideFile(NOW_MS, checkpoint=number), files)
    files.fsync_dir(root)


def clean_marker(root: Path, files: FileOps, number: int) -> None:
    write_clean_marker(root, {"t-0": number}, files)


def creators(root: Path, files: FileOps, number: int) -> None:
    add_creator(root, f"host-{number}", files)


@pytest.mark.parametrize("write", [side_file, side_file_with_the_next_sync, clean_marker, creators])
@pytest.mark.parametrize("before", [False, True], ids=["new", "replaced"])
def test_a_file_that_is_replaced_is_the_old_or_the_new_one(
    write: Callable[[Path, FileOps, int], None], before: bool, root: Path
) -> None:
    """Never a part, never none where there was one; once it counts as written, never the old one again."""
    if before:
        write(root, FileOps(), 1)
    old = {path.name: path.read_bytes() for path in root.iterdir()}
    disk, files = Disk(root), WrittenDown()
    write(root, files, 2)
    new = {path.name: path.read_bytes() for path in root.iterdir()}
    assert len(new) == 1
    count = 0
    for left in after_power_loss(disk, files.steps):
        found = {path: data for path, data in left.files.items() if not path.endswith(".tmp")}
        assert found in (old, new), left
        if left.after == len(files.steps):
            assert found == new, left
        count += 1
    assert count > 4
    assert {step.kind for step in files.steps} >= {"create", "write", "sync", "rename", "names"}
    assert files.steps[-1].kind == "names"


def test_a_side_file_whose_name_waits_for_another_sync_is_one_or_the_other(root: Path) -> None:
    side_file(root, FileOps(), 1)
    disk, files = Disk(root), WrittenDown()
    write_side_file(root, SideFile(NOW_MS, checkpoint=2), files)
    ends = set()
    for left in after_power_loss(disk, files.steps):
        left.put(root)
        side = read_side_file(root, FileOps())
        assert side is not None
        ends.add(side.checkpoint)
    assert ends == {1, 2}


def test_a_clean_marker_that_was_taken_never_comes_back(root: Path) -> None:
    write_clean_marker(root, {"t-0": 5}, FileOps())
    disk, files = Disk(root), WrittenDown()
    assert consume_clean_marker(root, files) == {"t-0": 5}
    found = [(left.after, len(left.files)) for left in after_power_loss(disk, files.steps)]
    assert (len(files.steps), 1) not in found
    assert (len(files.steps), 0) in found


def test_a_log_directory_is_there_once_it_was_made(root: Path) -> None:
    """With every one that had to be made above it."""
    disk, files = Disk(root), WrittenDown()
    make_directory(root / "a" / "b" / "c", files)
    last = [left for left in after_power_loss(disk, files.steps) if left.after == len(files.steps)]
    assert last
    assert all("a/b/c" in left.files for left in last)


# -- appends and flushes -----------------------------------------------------------------------------------------------


def check_against(data: bytes, visible: int, left: Left, after: Path) -> None:
    """A start finds all that was visible, in order, and nothing that nobody appended."""
    left.put(after)
    if not (after / "t-0").exists():
        assert visible == 0, left
        return
    result = recover(after)
    assert result.state == "ok", (left, result.reason)
    assert result.log_end >= visible, left
    assert stored(after / "t-0") == data[: result.log_end], left


def visible_at(steps: list[Step], ends: list[int]) -> Callable[[int], int]:
    """The watermark behind so many steps; ``ends`` are those that the flushes published, in order."""
    moments = [number for number, step in enumerate(steps) if step.path.name == "flush.published"]
    assert len(moments) == len(ends)
    return lambda after: max([end for end, moment in zip(ends, moments, strict=True) if moment < after], default=0)


def test_what_is_visible_survives_a_power_loss_whenever_it_comes(root: Path, after: Path) -> None:
    """Through rolls before and behind flushes, several in one, and one of a segment that was flushed to its end."""
    disk = Disk(root)
    made = [Step("mkdir", root / "t-0"), Step("create", root / "t-0" / f"{0:020}.kafka")]
    log = SharedLog(root, segment_bytes=50, durable=False)
    ends = []
    with recorded_calls(root.parent) as calls:
        for size in (1, 0, 5, 1, -1, 2, -1, 1, 3):
            for _ in range(size):
                assert log.append(ENTRY) == DONE
            if size < 0:
                assert roll_now(log.appender, 0)
            assert log.flush() == 0
            ends.append(log.view().flushed_end)
    names = [call.name for call in calls]
    published = [end for number, end in enumerate(ends) if number == 0 or end > ends[number - 1] or number in (4, 6)]
    assert names.count("flush.published") == len(published)
    steps = made + steps_of(calls)
    visible = visible_at(steps, published)
    states = list(after_power_loss(disk, steps, visible))
    for left in states:
        check_against(ENTRY * 100, visible(left.after), left, after)
    assert visible(len(steps)) == log.view().log_end == 13 * 20
    assert len(states) > 100


def test_a_created_partition_is_whole_with_its_first_flush(root: Path, after: Path) -> None:
    """Before, a start finishes it or knows nothing of it; side file and mark are there when a byte is visible."""
    config = BrokerConfig.from_properties({"log.dir": str(root)})
    disk, files = Disk(root), WrittenDown()
    arena = Arena([str(root)], FIRST_PROCESSOR + 1, 4, 16)
    manager = LogManager(config, arena, files)
    manager.create_partition("t", 0)
    log = SharedLog.over(arena)
    with recorded_calls(root.parent) as calls:
        assert log.append(ENTRY) == DONE
        assert log.flush() == 0
    created = read_side_file(root / "t-0", FileOps())
    assert created is not None
    steps = files.steps + [step for step in steps_of(calls) if not step.path.name.endswith(".txt")]
    visible = visible_at(steps, [20])
    for left in after_power_loss(disk, steps, visible):
        check_against(ENTRY, visible(left.after), left, after)
        if visible(left.after):
            assert read_side_file(after / "t-0", FileOps()) == created
            assert (after / "t-0" / f".flushed-{0:020}").exists()


@pytest.mark.parametrize("leave", [1, 3])
def test_retention_never_leaves_a_gap(leave: int, root: Path, after: Path) -> None:
    """What stays is all there, from the oldest segment that is left to the end."""
    config = BrokerConfig.from_properties(
        {"log.dir": str(root), "log.file.size": "100", "log.retention.size": str(leave * 150)}
    )
    arena = Arena([str(root)], FIRST_PROCESSOR + 1, 4, 16)
    manager = LogManager(config, arena)
    manager.create_partition("t", 0)
    log = SharedLog.over(arena)
    data = b"".join(message(150, b"%d" % number) for number in range(6))
    for number in range(6):
        assert log.append(data[number * 150 : number * 150 + 150]) == DONE
    assert log.flush() == 0
    disk, files = Disk(root), WrittenDown()
    keeper = Keeper(Shared(config, arena, (), (), (), 64))
    keeper._files = files
    keeper._clean(arena.view(0))
    start = (6 - leave) * 150
    assert log.view().log_start == start
    assert [step.kind for step in files.steps] == ["unlink", "names"] * (6 - leave)
    for left in after_power_loss(disk, files.steps):
        left.put(after)
        result = recover(after)
        assert (result.state, result.log_end) == ("ok", 900), left
        assert result.segments[0].base <= start
        assert stored(after / "t-0") == data[result.segments[0].base :]


# -- recovery ----------------------------------------------------------------------------------------------------------


def torn(directory: Path) -> None:
    """A damaged message in the middle of the second segment, whole ones and a whole segment behind it."""
    logs.write_segments(directory, [PARTS[0], BROKEN, PARTS[2]])
    logs.write_side_file(directory, SIZE)


def torn_at_the_end(directory: Path) -> None:
    logs.write_segments(directory, [PARTS[0], PARTS[1] + PARTS[2][:30]])
    logs.write_side_file(directory, SIZE + ENTRY_BYTES)
    (directory / f".flushed-{0:020}").touch()


def torn_apart(directory: Path) -> None:
    """The power went between a roll and its flush: a segment is missing its end."""
    logs.write_segments(directory, [PARTS[0][:-30], PARTS[1], b""])
    for base in (SIZE, 2 * SIZE):
        logs.segment_path(directory, base - 30).rename(logs.segment_path(directory, base))
    logs.write_side_file(directory, ENTRY_BYTES)
    (directory / f".flushed-{0:020}").touch()


def gap_at_the_checkpoint(directory: Path) -> None:
    """What was flushed ends where a segment now ends, short of the next one."""
    logs.write_segments(directory, [PARTS[0]])
    logs.segment_path(directory, SIZE + 50).write_bytes(PARTS[1])
    logs.write_side_file(directory, SIZE)
    (directory / f".flushed-{0:020}").touch()


def marked(directory: Path) -> None:
    """The mark names the newest segment already."""
    logs.write_segments(directory, PARTS[:2])
    (directory / f".flushed-{SIZE:020}").touch()


def whole(directory: Path) -> None:
    logs.write_segments(directory, PARTS)
    logs.write_side_file(directory, SIZE)


def without_side_file(directory: Path) -> None:
    logs.write_segments(directory, PARTS)


def other_widths(directory: Path) -> None:
    logs.write_segments(directory, PARTS[:2])
    logs.write_side_file(directory, SIZE)
    for base in (0, SIZE):
        logs.segment_path(directory, base).rename(directory / f"{base:012}.kafka")


def two_marks(directory: Path) -> None:
    logs.write_segments(directory, PARTS[:3])
    for base in (0, SIZE):
        (directory / f".flushed-{base:020}").touch()


FOUND = [
    torn,
    torn_at_the_end,
    torn_apart,
    gap_at_the_checkpoint,
    marked,
    whole,
    without_side_file,
    other_widths,
    two_marks,
]


@pytest.mark.parametrize("in_doubt", [False, True], ids=["", "in doubt"])
@pytest.mark.parametrize("found", FOUND, ids=lambda found: found.__name__)
def test_a_recovery_that_loses_power_is_made_again(
    found: Callable[[Path], None], in_doubt: bool, root: Path, after: Path
) -> None:
    """It comes to the same end, and no byte that was there is nowhere."""
    directory = root / "t-0"
    found(directory)
    before, size = logs.contents(directory), len(stored(directory))
    disk, files = Disk(root), WrittenDown()
    result = recover(root, in_doubt=in_doubt, files=files)
    assert result.state == "ok"
    expected = stored(directory)
    assert result.truncated_bytes == size - len(expected)
    for left in after_power_loss(disk, files.steps):
        left.put(after)
        again = recover(after)
        assert (again.state, again.log_end) == ("ok", result.log_end), (left, again.reason)
        assert stored(after / "t-0") == expected, left
        if found is not other_widths:
            assert logs.lost_bytes(before, logs.contents(after / "t-0")) == [], left
        if left.after == len(files.steps):
            assert (again.truncated_bytes, again.flushed_base) == (0, result.flushed_base), left


@pytest.mark.parametrize("in_doubt", [False, True], ids=["", "in doubt"])
@pytest.mark.parametrize("found", FOUND, ids=lambda found: found.__name__)
def test_what_recovery_shows_has_been_made_durable(
    found: Callable[[Path], None], in_doubt: bool, root: Path, after: Path
) -> None:
    """What memory held above the checkpoint, and what was cut from it; the same if it is read back from there."""
    directory = root / "t-0"
    found(directory)
    disk = Disk(root)
    side = read_side_file(directory, FileOps())
    marks = [int(path.name.removeprefix(".flushed-")) for path in directory.glob(".flushed-*")]
    checkpoint = max([side.checkpoint if side else 0, *marks])
    for path in directory.glob("*.kafka"):
        disk.unsynced(path, min(max(checkpoint - int(path.stem), 0), path.stat().st_size))
    for path in [directory, *directory.iterdir()]:
        disk.unnamed(path)
    files = WrittenDown()
    result = recover(root, in_doubt=in_doubt, files=files)
    assert result.state == "ok"
    expected = logs.contents(directory)
    for left in after_power_loss(disk, files.steps):
        if left.after == len(files.steps):
            left.put(after)
            assert logs.contents(after / "t-0") == expected, left
            assert (after / "t-0" / f".flushed-{result.flushed_base:020}").exists(), left


def test_a_creation_that_recovery_finishes_is_durable(root: Path, after: Path) -> None:
    (root / "t-0").mkdir()
    disk, files = Disk(root), WrittenDown()
    result = recover(root, files=files)
    assert (result.state, result.log_end, result.created_ms) == ("ok", 0, NOW_MS)
    for left in after_power_loss(disk, files.steps):
        left.put(after)
        again = recover(after)
        assert (again.state, again.log_end) == ("ok", 0), left
        if left.after == len(files.steps):
            assert again == result_of(result, after), left


def test_a_first_segment_that_a_clean_stop_missed_is_durable(root: Path) -> None:
    """Nothing else is synced at such a start: the marker names this end, and the mark stands where it should."""
    directory = root / "t-0"
    directory.mkdir()
    (directory / f".flushed-{0:020}").touch()
    logs.write_side_file(directory, 0)
    disk, files = Disk(root), WrittenDown()
    result = recover_partition(directory, "t", 0, clean_end=0, files=files, clock=ManualClock(NOW_MS))
    assert (result.state, result.log_end) == ("ok", 0)
    for left in after_power_loss(disk, files.steps):
        if left.after == len(files.steps):
            assert left.files[f"t-0/{0:020}.kafka"] == b"", left


def test_a_mark_that_a_clean_start_moves_is_durable(root: Path) -> None:
    """From then on the watermark may be above what it names."""
    directory = root / "t-0"
    logs.write_segments(directory, PARTS[:2])
    (directory / f".flushed-{0:020}").touch()
    disk, files = Disk(root), WrittenDown()
    result = recover_partition(directory, "t", 0, clean_end=2 * SIZE, files=files, clock=ManualClock(NOW_MS))
    assert (result.state, result.flushed_base) == ("ok", SIZE)
    for left in after_power_loss(disk, files.steps):
        if left.after == len(files.steps):
            assert f"t-0/.flushed-{SIZE:020}" in left.files, left
            assert f"t-0/.flushed-{0:020}" not in left.files, left


def test_a_segment_that_ends_at_the_checkpoint_is_left_alone(root: Path) -> None:
    """All of it was flushed."""
    whole(root / "t-0")
    files = WrittenDown()
    assert recover(root, files=files).state == "ok"
    assert [step.path.name for step in files.steps if step.kind == "sync"] == [
        f"{base:020}.kafka" for base in (SIZE, 2 * SIZE, 3 * SIZE)
    ]


def result_of(result: RecoveredPartition, root: Path) -> RecoveredPartition:
    """The same result for the same partition elsewhere; the times of files are those of copies."""
    again = recover(root)
    return replace(result, directory=root / "t-0", segments=again.segments)


# -- repair ------------------------------------------------------------------------------------------------------------


def damaged_below_the_checkpoint(directory: Path) -> None:
    logs.write_segments(directory, [PARTS[0], BROKEN, PARTS[2] + PARTS[3][:11]])
    logs.write_side_file(directory, 2 * SIZE)
    (directory / f".flushed-{2 * SIZE:020}").touch()


def damaged_above_a_low_mark(directory: Path) -> None:
    """A start would cut it there; whoever repairs may keep what stands behind."""
    logs.write_segments(directory, [PARTS[0], BROKEN, PARTS[2]])
    (directory / f".flushed-{0:020}").touch()


def with_a_gap(directory: Path) -> None:
    logs.write_segments(directory, PARTS[:3])
    logs.segment_path(directory, SIZE).unlink()
    logs.write_side_file(directory, 3 * SIZE)


def with_flushed_bytes_missing(directory: Path) -> None:
    logs.write_segments(directory, PARTS[:1])
    logs.write_side_file(directory, SIZE + 100)


def over_one_that_is_damaged(directory: Path) -> None:
    """What is to be kept behind the damage begins where another segment does, whose name it takes."""
    logs.write_segments(directory, [PARTS[0][: -ENTRY_BYTES // 2] + b"?" * (ENTRY_BYTES // 2) + PARTS[1]])
    logs.segment_path(directory, SIZE).write_bytes(b"!" * 50)
    logs.write_side_file(directory, SIZE)


def repair(directory: Path, files: FileOps, keep: str, now_ms: int = NOW_MS) -> None:
    report = check_partition(directory, files)
    quarantine_unexpected_files(report, files, now_ms)
    if report.problems:
        keep_span(report, report.choices[0 if keep == "before" else -1], files, now_ms)


REPAIRS = pytest.mark.parametrize(
    "found",
    [
        damaged_below_the_checkpoint,
        damaged_above_a_low_mark,
        with_a_gap,
        with_flushed_bytes_missing,
        over_one_that_is_damaged,
    ],
    ids=lambda found: found.__name__,
)


@pytest.mark.parametrize("keep", ["before", "after"])
@REPAIRS
def test_a_repair_that_loses_power_can_be_repeated(
    found: Callable[[Path], None], keep: str, root: Path, after: Path
) -> None:
    """No byte is nowhere, the damage is still named or gone, and once it was repaired it stays so."""
    directory = root / "t-0"
    found(directory)
    before = logs.contents(directory)
    disk, files = Disk(root), WrittenDown()
    repair(directory, files, keep)
    result = recover(root)
    assert result.state == "ok"
    expected = stored(directory)
    for left in after_power_loss(disk, files.steps):
        left.put(after)
        assert logs.lost_bytes(before, logs.contents(after / "t-0")) == [], left
        if left.after == len(files.steps):
            assert check_partition(after / "t-0", logs.QuickFiles()).problems == [], left
        else:
            repair(after / "t-0", logs.QuickFiles(), keep, NOW_MS + 1)
        again = recover(after)
        assert (again.state, again.log_end) == ("ok", result.log_end), (left, again.reason)
        assert stored(after / "t-0") == expected, left
        assert logs.lost_bytes(before, logs.contents(after / "t-0")) == [], left


@pytest.mark.parametrize("keep", ["before", "after"])
@REPAIRS
def test_what_a_repair_takes_out_of_a_log_is_durable(found: Callable[[Path], None], keep: str, root: Path) -> None:
    """Nobody else will ever sync it, and memory may be the only place that has it."""
    directory = root / "t-0"
    found(directory)
    disk, files = Disk(root), WrittenDown()
    for path in directory.glob("*.kafka"):
        disk.unsynced(path, 0)
    repair(directory, files, keep)
    expected = {name: data for name, data in logs.contents(directory).items() if not name.endswith(".kafka")}
    assert expected or found is with_flushed_bytes_missing
    for left in after_power_loss(disk, files.steps):
        if left.after == len(files.steps):
            assert {name: left.files.get(f"t-0/{name}") for name in expected} == expected, left


@REPAIRS
def test_a_start_in_the_middle_of_a_repair_takes_no_gap_for_a_harmless_one(
    found: Callable[[Path], None], root: Path, after: Path
) -> None:
    """Files have left the log by then. What the repair is to keep stays in it, unless the start comes first."""
    directory = root / "t-0"
    found(directory)
    disk, files = Disk(root), WrittenDown()
    repair(directory, files, "after")
    expected = stored(directory)
    untouched = None
    for left in after_power_loss(disk, files.steps):
        left.put(after)
        result = recover(after)
        if untouched is None:
            untouched = stored(after / "t-0")
        if result.state == "ok":
            log = stored(after / "t-0")
            assert expected in log or log == untouched, left


def test_a_segment_leaves_the_log_only_once_the_side_file_asks_for_no_byte_of_it(root: Path, after: Path) -> None:
    """A start in between finds a torn tail and goes on; it would miss flushed bytes otherwise, and show nothing."""
    directory = root / "t-0"
    damaged_below_the_checkpoint(directory)
    disk, files = Disk(root), WrittenDown()
    repair(directory, files, "before")
    moments = 0
    for left in after_power_loss(disk, files.steps):
        if f"t-0/{2 * SIZE:020}.kafka" not in left.files:
            left.put(after)
            side = read_side_file(after / "t-0", FileOps())
            assert side is not None and side.checkpoint == SIZE + ENTRY_BYTES, left
            moments += 1
    assert moments > 1


def test_a_file_that_was_no_part_of_the_log_is_out_of_it_for_good(root: Path) -> None:
    """Also where nothing else is wrong, and nothing comes behind it that would sync its name."""
    directory = root / "t-0"
    logs.write_segments(directory, PARTS[:2])
    (directory / SIDE_FILE_NAME).write_bytes(b"?")
    disk, files = Disk(root), WrittenDown()
    report = check_partition(directory, files)
    assert [problem.kind for problem in report.problems] == ["side-file"]
    (line,) = quarantine_unexpected_files(report, files, NOW_MS)
    assert check_partition(directory, files).problems == []
    name = line.rpartition(" ")[2]
    for left in after_power_loss(disk, files.steps):
        if left.after == len(files.steps):
            assert left.files[f"t-0/{name}"] == b"?", left
            assert f"t-0/{SIDE_FILE_NAME}" not in left.files, left


def test_half_a_copy_is_not_left_on_a_full_disk(root: Path) -> None:
    """Its room may be all that is missing."""
    for kind, number in (("write", 1), ("fdatasync", 2), ("rename", 1)):
        directory = root / f"{kind}-0"
        torn(directory)
        files = FaultyFileOps()
        files.fail(kind, number, errno.ENOSPC)
        recover_partition(directory, kind, 0, clean_end=None, files=files, clock=ManualClock(NOW_MS))
        assert files.calls[kind] >= number
        assert not list(directory.glob("*.tmp")), kind
        assert recover_partition(directory, kind, 0, clean_end=None, files=FileOps()).state == "ok"
