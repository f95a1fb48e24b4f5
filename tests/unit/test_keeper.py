"""The keeper: segments that go, those that must stay, side files, and a keeper that died in the middle."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from fastlog.config import BrokerConfig
from fastlog.log import _files, retention
from fastlog.log._append import Appender, append_bytes, end_life
from fastlog.log._arena import Arena
from fastlog.log._flush import flush_now, make_partition_flusher, release_now, run_ahead_now
from fastlog.log._segments import SegmentFiles
from fastlog.log._shared_memory import FIRST_PROCESSOR, FLUSHER, KEEPER, STAGE_FLUSHER, STAGE_KEEPER
from fastlog.log.files import FileOps
from fastlog.log.manager import LogManager
from fastlog.log.recovery import recover_partition
from fastlog.log.side_file import read_side_file
from fastlog.registry import Registry
from fastlog.workers import keeper as keeper_module
from fastlog.workers._flusher import make_flusher_loop
from fastlog.workers.child import MAY_NOT_RUN, Shared
from fastlog.workers.keeper import Keeper
from tests.harness import logs
from tests.harness.descriptors import open_descriptors
from tests.harness.faulty_files import FaultyFileOps
from tests.harness.shared_log import DONE, FULL, in_child, message, start, wait, wait_until
from tests.harness.timing import PATIENCE

pytestmark = pytest.mark.usefixtures("no_faults")

ENTRY = message(14)
HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk may be so slow that a keeper leaves the rest to its next turn; here none is so slow."""
    monkeypatch.setattr(keeper_module, "DELETE_SECONDS", 3600.0)


class ManualTime:
    """Wall and steady time of a keeper; files and arena go by the real ones."""

    def __init__(self) -> None:
        self.jumped_ns = 0
        self.passed_ns = 0

    def clock(self) -> retention.SteadyClock:
        return retention.SteadyClock(
            lambda: time.time_ns() + self.passed_ns + self.jumped_ns,
            lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME) + self.passed_ns,
        )


class House:
    """A broker's arena with one keeper and one topic ``t``, flushed by hand; settings by their 0.7 names."""

    def __init__(self, directory: Path, **properties: str) -> None:
        self.directory = directory
        values = {name.replace("_", "."): value for name, value in properties.items()}
        self.config = BrokerConfig.from_properties(
            {"log.dir": str(directory), "log.file.size": "130", "log.cleanup.interval.mins": "0.0005", **values}
        )
        self.arena = Arena([str(directory)], FIRST_PROCESSOR + 1, 8, 256)
        self.manager = LogManager(self.config, self.arena)
        self.manager.load([{}])
        if self.manager.slot("t", 0) is None:
            self.manager.create_partition("t", 0)
        self.open_segments = SegmentFiles(self.arena, 8)
        self.appender = Appender(self.arena, self.open_segments, FIRST_PROCESSOR)
        self.flusher = make_partition_flusher(self.arena, 8, 0, 0)
        self.time = ManualTime()
        self.clock = self.time.clock()

    def keeper(self, files: FileOps | None = None) -> Keeper:
        keeper = Keeper(Shared(self.config, self.arena, (), (), (), 64), self.clock)
        if files is not None:
            keeper._files = files
        return keeper

    def fill(self, count: int) -> None:
        for _ in range(count):
            while (status := append_bytes(self.appender, 0, ENTRY, 1)[0]) == FULL:  # it took longer than twice S
                self.flush()
            assert status == DONE
        self.flush()

    def flush(self) -> None:
        assert flush_now(self.flusher, 0) == 0

    def clean(self, keeper: Keeper) -> None:
        keeper._clean(self.arena.view(0))

    def files(self) -> list[int]:
        return sorted(int(path.stem) for path in (self.directory / "t-0").glob("*.kafka"))

    def bases(self) -> list[int]:
        return [item.base for item in self.arena.segments(0)]


def test_by_size_at_least_the_limit_stays(tmp_path: Path) -> None:
    """0.7's vector: 1000 messages of 14 bytes in segments of 140, limit 710: six segments stay."""
    house = House(tmp_path, log_retention_size="710")
    house.fill(1000)
    assert len(house.bases()) == 100
    house.clean(house.keeper())
    assert house.bases() == house.files() == list(range(94 * 140, 14_000, 140))
    view = house.arena.view(0)
    assert (view.log_start, view.log_end, view.flushed_end) == (94 * 140, 14_000, 14_000)


def test_by_age_everything_goes_and_the_end_stays(tmp_path: Path) -> None:
    """The active segment is replaced by an empty one first, which goes only when its name is durable."""
    house = House(tmp_path, log_retention_hours="1")
    house.fill(25)
    keeper = house.keeper()
    house.clean(keeper)
    assert house.bases() == [0, 140, 280]
    house.time.passed_ns += 2 * HOUR_MS * 10**6
    house.clean(keeper)
    assert house.bases() == house.files() == [280, 350]
    house.clean(keeper)  # the new name is not durable yet
    assert house.bases() == house.files() == [280, 350]
    house.flush()
    house.clean(keeper)
    assert house.bases() == house.files() == [350]
    house.clean(keeper)
    assert house.bases() == house.files() == [350]
    house.fill(1)
    assert house.arena.view(0).flushed_end == 364
    house.open_segments.close_unused()
    assert not [name for name in open_descriptors().values() if "(deleted)" in name and str(tmp_path) in name]


def test_unflushed_bytes_never_go(tmp_path: Path) -> None:
    house = House(tmp_path, log_retention_policy=f"{__name__}:drop_all")
    house.fill(10)
    for _ in range(25):
        append_bytes(house.appender, 0, ENTRY, 1)
    keeper = house.keeper()
    house.clean(keeper)
    view = house.arena.view(0)
    assert (view.log_start, view.flushed_end) == (0, 140)
    assert house.files() == [0, 140, 280, 420]
    assert keeper._again == {0}
    house.flush()
    house.clean(keeper)
    house.flush()
    house.clean(keeper)
    assert house.bases() == house.files() == [35 * 14]


def test_what_no_reader_has_seen_stays(tmp_path: Path) -> None:
    """A flusher has died between the two ends: the bytes are durable, and a log begins no later than it can be read."""
    house = House(tmp_path, log_retention_policy=f"{__name__}:drop_all")
    house.fill(10)
    for _ in range(15):
        assert append_bytes(house.appender, 0, ENTRY, 1)[0] == DONE
    assert in_child(house.flush, "flush.flushed@1=kill") == -9
    view = house.arena.view(0)
    assert (view.visible_end, view.flushed_end) == (140, 350)
    keeper = house.keeper()
    house.clean(keeper)
    assert house.arena.view(0).log_start <= 140
    house.flush()
    house.clean(keeper)
    house.flush()
    house.clean(keeper)
    assert house.arena.view(0).log_start == 350


def test_a_clock_that_jumps_deletes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Z-9; also for a keeper that begins after the jump, which is said once and not at every look."""
    house = House(tmp_path, log_retention_hours="1")
    house.fill(25)
    keeper = house.keeper()
    house.time.jumped_ns = 365 * 24 * HOUR_MS * 10**6
    for each in (keeper, keeper, house.keeper()):
        house.clean(each)
    assert house.files() == [0, 140, 280]
    assert sum("jumped" in record.getMessage() for record in caplog.records) == 2
    house.time.jumped_ns = -365 * 24 * HOUR_MS * 10**6
    house.clean(keeper)
    assert house.files() == [0, 140, 280]


def test_file_times_say_nothing_about_age(tmp_path: Path) -> None:
    """Z-9: a copy or restore with old file times must not delete, as 0.7 does."""
    house = House(tmp_path, log_retention_hours="1")
    house.fill(25)
    for path in (tmp_path / "t-0").glob("*.kafka"):
        os.utime(path, (1, 1))
    house.clean(house.keeper())
    assert house.files() == [0, 140, 280]
    house.keeper()._look(final=True)
    again = House(tmp_path, log_retention_hours="1")
    for path in (tmp_path / "t-0").glob("*.kafka"):
        os.utime(path, (1, 1))
    again.clean(again.keeper())
    assert again.files() == [0, 140, 280]


def drop_all(held: retention.Held) -> int:
    return len(held.segments)


def keep_one(held: retention.Held) -> int:
    return len(held.segments) - 1


def bad_policy(held: retention.Held) -> object:
    return BAD[0]


BAD: list[object] = [None]


def test_a_policy_of_the_users_own(tmp_path: Path) -> None:
    house = House(tmp_path, log_retention_policy=f"{__name__}:keep_one")
    house.fill(25)
    house.clean(house.keeper())
    assert house.files() == [280]


@pytest.mark.parametrize("answer", [None, -1, 4, "2", 1.5, float("nan"), [1]])
def test_a_policy_that_answers_nonsense_drops_nothing(
    answer: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And the keeper goes on: the next partition may have a better one."""
    house = House(tmp_path, log_retention_policy=f"{__name__}:bad_policy")
    house.fill(25)
    BAD[0] = answer
    house.clean(house.keeper())
    assert house.files() == [0, 140, 280]
    assert any("policy" in record.getMessage() and record.levelno == logging.ERROR for record in caplog.records)


def test_what_is_damaged_is_kept_whole(tmp_path: Path) -> None:
    """No segment goes and none is made while a person has not looked at a partition."""
    house = House(tmp_path, log_retention_policy=f"{__name__}:drop_all")
    house.fill(25)
    append_bytes(house.appender, 0, ENTRY, 1)
    _files.arm("fdatasync@1=EIO", "test")
    assert flush_now(house.flusher, 0) == errno.EIO
    house.clean(house.keeper())
    assert house.files() == [0, 140, 280]


def test_a_file_that_cannot_be_removed_leaves_no_gap(tmp_path: Path) -> None:
    """The oldest stays, so do those behind it, and the next clean-up finishes; a start in between finds a whole log."""
    house = House(tmp_path, log_retention_size="100")
    house.fill(45)
    files = FaultyFileOps()
    files.fail("unlink", 2, errno.EPERM)
    keeper = house.keeper(files)
    house.clean(keeper)
    assert house.bases() == [420, 560]
    assert house.files() == [140, 280, 420, 560]
    found = House(tmp_path, log_retention_size="100").arena.view(0)
    assert (found.state, found.log_start, found.log_end) == (0, 140, 630)
    house.clean(keeper)
    assert house.files() == [420, 560]


class Unlinks(FaultyFileOps):
    """Notes each unlink of a segment and each sync of its directory, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self.log.append(path.name)

    def fsync_dir(self, path: Path) -> None:
        super().fsync_dir(path)
        self.log.append("durable")


@pytest.mark.parametrize("successor", [False, True])
def test_an_unlink_is_durable_before_the_next_one(successor: bool, tmp_path: Path) -> None:
    """A file system may forget any of the unlinks that were not synced: the log that is left has no gap then either."""
    house = House(tmp_path, log_retention_size="100")
    house.fill(85)
    before = logs.contents(tmp_path / "t-0")
    files = Unlinks()
    if successor:
        assert in_child(lambda: house.clean(house.keeper()), "retention.published@1=kill") == -9
        house.keeper(files)._finish_deletions(house.arena.view(0))
    else:
        house.clean(house.keeper(files))
    assert house.files() == [980, 1120]
    gone = [name for name in files.log if name != "durable"]
    assert len(gone) == 7
    for stop in range(len(files.log) + 1):
        done = files.log[:stop]
        sure = len(done) - done[::-1].index("durable") if "durable" in done else 0
        open_ones = [name for name in done[sure:] if name != "durable"]
        for kept in itertools.product([False, True], repeat=len(open_ones)):
            back = {name for name, is_back in zip(open_ones, kept, strict=True) if is_back}
            left = {name: data for name, data in before.items() if name not in set(done) - back}
            place = tmp_path / "after" / "t-0"
            shutil.rmtree(place.parent, ignore_errors=True)
            place.mkdir(parents=True)
            for name, data in left.items():
                (place / name).write_bytes(data)
            found = recover_partition(place, "t", 0, clean_end=None, files=logs.QuickFiles())
            assert (found.state, found.log_end) == ("ok", 1190), (done, back)


def test_many_unlinks_are_divided_among_many_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the disk has not come to is done a second later, and the other work of the keeper is not kept waiting."""
    house = House(tmp_path, log_retention_size="100")
    house.fill(65)
    monkeypatch.setattr(keeper_module, "DELETE_SECONDS", 0.0)
    keeper = house.keeper()
    seen = []
    while not seen or keeper._again:
        house.clean(keeper)
        seen.append(house.files()[0])
    assert seen == [140, 280, 420, 560, 700, 700]
    assert house.files() == [700, 840]


def test_a_directory_that_cannot_be_synced_keeps_the_rest(tmp_path: Path) -> None:
    house = House(tmp_path, log_retention_size="100")
    house.fill(45)
    files = FaultyFileOps()
    files.fail("fsync_dir", 1)
    keeper = house.keeper(files)
    house.clean(keeper)
    assert house.files() == [140, 280, 420, 560]
    house.clean(keeper)
    assert house.files() == [420, 560]


@pytest.mark.parametrize("point", ["retention.published@1", "retention.unlink@1", "retention.unlink@2"])
def test_a_successor_finishes_what_a_dead_keeper_began(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and file by file at its looks; the next clean-up is far away."""
    house = House(tmp_path, log_retention_size="100", log_cleanup_interval_mins="10")
    house.fill(45)
    assert in_child(lambda: house.clean(house.keeper()), f"{point}=kill") == -9
    assert house.arena.view(0).log_start == 420
    monkeypatch.setattr(keeper_module, "DELETE_SECONDS", 0.0)
    monkeypatch.setattr(keeper_module, "LOOK_SECONDS", 0.01)
    generation = house.arena.retention_generation
    parent = os.getpid()

    def run() -> int:
        shared = Shared(house.config, house.arena, (), (), (), 64, supervisor_pid=parent)
        return Keeper(shared).run()

    pid = start(run)
    wait_until(lambda: house.files() == [420, 560])
    wait_until(lambda: house.arena.retention_generation > generation)
    house.arena.set_stopping(STAGE_KEEPER)
    assert wait(pid) == 0


def test_readers_of_a_dropped_segment_read_on(tmp_path: Path) -> None:
    """Z-8: unlink only; whoever has the file open finishes. 0.7 closes it under him."""
    house = House(tmp_path, log_retention_policy=f"{__name__}:drop_all")
    house.fill(25)
    with (tmp_path / "t-0" / "00000000000000000000.kafka").open("rb") as reader:
        house.clean(house.keeper())
        assert 0 not in house.files()
        assert reader.read() == ENTRY * 10


# -- side files --------------------------------------------------------------------------------------------------------


def side_of(house: House) -> tuple[int, set[int]]:
    side = read_side_file(house.directory / "t-0", FileOps())
    assert side is not None
    return side.checkpoint, set(side.segments)


def test_a_roll_and_the_end_are_written_down(tmp_path: Path) -> None:
    house = House(tmp_path)
    keeper = house.keeper()
    house.fill(5)
    keeper._look(final=False)
    assert side_of(house) == (0, set())  # nothing to hurry for
    house.fill(10)
    keeper._look(final=False)
    assert side_of(house) == (210, {0, 140})
    house.fill(1)
    keeper._look(final=True)
    assert side_of(house) == (224, {0, 140})


def test_unflushed_bytes_are_in_no_checkpoint(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.fill(12)
    for _ in range(12):
        append_bytes(house.appender, 0, ENTRY, 1)
    house.keeper()._look(final=True)
    assert side_of(house)[0] == 12 * 14


def test_a_side_file_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    """Also when nothing more is appended."""
    house = House(tmp_path)
    house.fill(25)
    files = FaultyFileOps()
    files.fail("rename", 1, errno.EIO)
    keeper = house.keeper(files)
    keeper._look(final=False)
    assert side_of(house) == (0, set())
    keeper._look(final=False)
    assert side_of(house) == (350, {0, 140, 280})


def test_a_new_keeper_writes_what_its_predecessor_did_not(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.fill(25)
    house.keeper()._look(final=True)
    assert side_of(house) == (350, {0, 140, 280})
    house.fill(25)
    (tmp_path / "t-0" / "fastlog.json").unlink()
    house.keeper()._look(final=False)
    assert side_of(house) == (700, {0, 140, 280, 420, 560})


def test_the_checkpoint_of_a_damaged_partition_stays(tmp_path: Path) -> None:
    """A lower one would let the next start cut what was flushed."""
    house = House(tmp_path)
    house.fill(25)
    house.keeper()._look(final=True)
    path = tmp_path / "t-0" / "00000000000000000280.kafka"
    path.write_bytes(path.read_bytes()[:30])
    again = House(tmp_path)
    assert again.arena.view(0).state
    again.keeper()._look(final=False)
    again.keeper()._look(final=True)
    assert side_of(house) == (350, {0, 140, 280})


def test_a_partition_that_leaves_service_is_said_once_with_its_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Z-6: the file that stands in the way of a roll is named."""
    house = House(tmp_path)
    house.fill(10)
    (tmp_path / "t-0" / "00000000000000000140.kafka").write_bytes(b"somebody's")
    assert append_bytes(house.appender, 0, ENTRY, 1)[0] == 3
    keeper = house.keeper()
    keeper._look(final=False)
    keeper._look(final=False)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "00000000000000000140.kafka" in record.getMessage()
    assert (tmp_path / "t-0" / "00000000000000000140.kafka").read_bytes() == b"somebody's"


def test_the_next_partition_of_a_slot_is_told_of_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What had left service before has been deleted, and nobody has heard of the other one yet."""
    house = House(tmp_path)
    keeper = house.keeper()
    for topic in ("t", "u"):
        if topic == "u":
            assert end_life(house.appender, 0)
            assert house.arena.create_lock()
            house.arena.free(0)
            house.arena.create_unlock()
            assert house.manager.create_partition("u", 0) == 0
            keeper._forget_gone()
        house.fill(10)
        (tmp_path / f"{topic}-0" / "00000000000000000140.kafka").write_bytes(b"somebody's")
        assert append_bytes(house.appender, 0, ENTRY, 1)[0] == 3
        keeper._look(final=False)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(lines) == 2 and "topic='t'" in lines[0] and "topic='u'" in lines[1]


# -- clocks that were wrong --------------------------------------------------------------------------------------------


def test_a_clock_that_was_a_year_ahead_holds_nothing_for_a_year(tmp_path: Path) -> None:
    house = House(tmp_path, log_retention_hours="1")
    house.fill(25)
    year = 365 * 24 * HOUR_MS
    bases = [item.base for item in house.arena.segments(0)]
    keeper = house.keeper()
    keeper._look(final=True)
    side = read_side_file(tmp_path / "t-0", FileOps())
    assert side is not None
    ahead = {base: (first + year, last + year) for base, (first, last) in side.segments.items()}
    logs.write_side_file(tmp_path / "t-0", side.checkpoint, segments=ahead)
    again = House(tmp_path, log_retention_hours="1")
    keeper = again.keeper()
    again.clean(keeper)
    assert again.files() == bases
    again.time.passed_ns += 2 * HOUR_MS * 10**6
    again.clean(keeper)
    assert again.files() == [280, 350]


def test_a_clock_that_stood_at_1970_drops_nothing_new_and_what_is_old_later(tmp_path: Path) -> None:
    house = House(tmp_path, log_retention_hours="1")
    house.time.jumped_ns = -time.time_ns()
    house.clock = house.time.clock()
    house.fill(25)
    house.keeper()._look(final=True)
    side = read_side_file(tmp_path / "t-0", FileOps())
    assert side is not None
    logs.write_side_file(tmp_path / "t-0", side.checkpoint, segments={base: (1000, 2000) for base in side.segments})
    again = House(tmp_path, log_retention_hours="1")
    again.time, again.clock = house.time, house.clock
    keeper = again.keeper()
    again.clean(keeper)
    again.time.jumped_ns = 0  # the machine has asked for the time
    again.clean(keeper)
    assert again.files() == [0, 140, 280]
    again.time.passed_ns += 2 * HOUR_MS * 10**6
    again.clean(keeper)
    assert again.files() == [280, 350]


# -- a keeper that died under the append lock --------------------------------------------------------------------------


def test_a_successor_does_not_hold_what_a_dead_keeper_held(tmp_path: Path) -> None:
    """Or the supervisor would give every later one two seconds instead of ten."""
    house = House(tmp_path, log_retention_policy=f"{__name__}:drop_all")
    house.fill(25)
    assert in_child(lambda: house.clean(house.keeper()), "roll.created@1=kill") == -9
    assert house.arena.cell(KEEPER)[4] == 1
    house.arena.clear_cell(KEEPER, 0, 1)
    house.arena.set_stopping(STAGE_KEEPER)
    parent = os.getpid()
    shared = Shared(house.config, house.arena, (), (), (), 64, supervisor_pid=parent)
    assert wait(start(lambda: Keeper(shared).run())) == 0
    assert house.arena.cell(KEEPER)[4] == 0
    assert append_bytes(house.appender, 0, ENTRY, 1)[0] == 0


def test_nor_what_a_dead_flusher_held(tmp_path: Path) -> None:
    """It died while it gave reserved space back."""
    house = House(tmp_path)
    house.fill(2)

    def release() -> None:
        flusher = make_partition_flusher(house.arena, 8, 1 << 20, 0)
        run_ahead_now(flusher, 0)
        release_now(flusher, 0)

    assert in_child(release, "ftruncate@1=kill") == -9
    assert house.arena.cell(FLUSHER)[4] == 1
    house.arena.set_stopping(STAGE_FLUSHER)
    parent = os.getpid()
    assert wait(start(lambda: make_flusher_loop(house.arena, 8, 0, 0, 1).run(1, 1, parent))) == 0
    assert house.arena.cell(FLUSHER)[4] == 0
    assert append_bytes(house.appender, 0, ENTRY, 1)[0] == 0


# -- its turns ---------------------------------------------------------------------------------------------------------


def turns(house: House, caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    """Let a keeper of this process turn until it has said something with a word in it; all that it said."""
    keeper = Keeper(Shared(house.config, house.arena, (), (), (), 64, supervisor_pid=os.getppid()))
    with caplog.at_level(logging.INFO, logger=keeper_module.__name__):
        thread = threading.Thread(target=keeper.run, daemon=True)
        thread.start()
        try:
            wait_until(lambda: any(word in line for line in caplog.messages))
        finally:
            house.arena.set_stopping(STAGE_KEEPER)
            thread.join(PATIENCE)
    assert not thread.is_alive()
    return caplog.messages


def test_a_keeper_whose_broker_is_gone_leaves(tmp_path: Path) -> None:
    """It is somebody else's child then; nobody would tell it to stop."""
    house = House(tmp_path)
    assert Keeper(Shared(house.config, house.arena, (), (), (), 64, supervisor_pid=os.getppid() + 1)).run() == 1


def test_what_all_processes_did_since_the_last_time_is_said_now_and_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a second here: what the processors and the flusher counted, and then that nothing happened."""
    house = House(tmp_path, monitoring_period_secs="1")
    house.arena.count(FIRST_PROCESSOR, "messages_in", 5)
    house.arena.count(FLUSHER, "messages_in", 2)
    house.arena.count(FLUSHER, "flushes", 3)
    lines = turns(house, caplog, "nothing happened")
    said = [line for line in lines if line.startswith("last 1 s: ")]
    assert said[:2] == ["last 1 s: messages_in=7 flushes=3", "last 1 s: nothing happened"]


def test_a_partition_whose_directory_cannot_be_read_keeps_no_keeper_from_its_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A successor that has files to finish with: it says so and cleans up what it can."""
    house = House(tmp_path, log_retention_size="100")
    house.fill(45)
    assert in_child(lambda: house.clean(house.keeper()), "retention.published@1=kill") == -9
    (tmp_path / "t-0").rename(tmp_path / "gone")
    lines = turns(house, caplog, "cannot look")
    assert f"cannot look for dropped segments path={tmp_path / 't-0'} reason=" in "\n".join(lines)


# -- the end -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_keeper_ends_once_its_registration_has_ended(is_refused: bool, tmp_path: Path) -> None:
    """Or whoever looks for a broker would find one that is no more; the time for it began with the stop. What is
    flushed then is written down, also where the broker may not run."""
    house = House(tmp_path)
    parent = os.getpid()

    def run() -> int:
        keeper = Keeper(Shared(house.config, house.arena, (), (), (), 64, supervisor_pid=parent))
        waited: list[float] = []
        registry = SimpleNamespace(
            start=lambda: house.fill(5),
            look=lambda: None,
            may_not_run=is_refused,
            stop=lambda: waited.append(-1.0),
            wait_stopped=waited.append,
        )
        keeper._registry = cast(Registry, registry)
        keeper._look(final=False)
        if not is_refused:
            house.arena.set_stopping(STAGE_KEEPER)
        code = keeper.run()
        if is_refused:
            return 7 if (code, waited) == (MAY_NOT_RUN, []) else 1
        stopped, seconds = waited
        return 7 if code == 0 and stopped == -1.0 and 0 < seconds <= keeper_module.DEREGISTER_SECONDS else 1

    assert wait(start(run)) == 7
    assert side_of(house) == (70, {0})
