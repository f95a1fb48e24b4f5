"""The way back into service of a partition: what it may touch, what it waits for, and what it leaves where it fails."""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from fastlog.config import BrokerConfig
from fastlog.log import _files
from fastlog.log._append import Appender, append_batch, end_life
from fastlog.log._arena import Arena
from fastlog.log._segments import SegmentFiles
from fastlog.log._shared_memory import FIRST_PROCESSOR, FLUSHER, KEEPER
from fastlog.log.formats.record_batches import RECORD_BATCHES
from fastlog.log.manager import LogManager
from fastlog.log.slots import SlotView
from fastlog.segment_files import FLUSH_MARKS_NAME, KAFKA_0_7, SIDE_FILE_NAME
from fastlog.workers import recoveries
from fastlog.workers.recoveries import MOST_SECONDS, TURN_SECONDS, Recoveries
from tests.harness.faulty_files import FaultyFileOps
from tests.harness.shared_log import DONE, FULL, OFFLINE, SharedLog, message
from tests.harness.stored_batches import batch
from tests.harness.timing import PATIENCE, patch_time

ENTRY = message(12)
RETRY_SECONDS = 0.05


class Files(FaultyFileOps):
    """Remembers from where on files were written again."""

    def __init__(self) -> None:
        super().__init__()
        self.again: list[int] = []

    def write_again(self, fd: int, position: int) -> None:
        self.again.append(position)
        super().write_again(fd, position)


class Case:
    """A partition with two messages that are flushed and one whose flush has failed, and what brings it back."""

    def __init__(self, directory: Path, format_name: str = KAFKA_0_7, **settings: Any) -> None:
        config = BrokerConfig.from_properties({"log.dir": str(directory)})
        self.arena = Arena([str(directory)], FIRST_PROCESSOR + 1, 4, 16)
        self.files = Files()
        self.manager = LogManager(config, self.arena, self.files)
        self.manager.load([{}])
        own = config.for_topic("t")._replace(**settings)
        self.manager.create_partition("t", 0, format_name=format_name, settings=own)
        self.log = SharedLog.over(self.arena)

        def append() -> int:
            if format_name == KAFKA_0_7:
                return self.log.append(ENTRY)
            return append_batch(self.log.appender, 0, bytearray(batch(b"x")), 1, 1)[0]

        assert [append() for _ in range(2)] == [DONE, DONE]
        assert self.log.flush() == 0
        assert append() == DONE
        _files.arm("fdatasync@1=EIO", "test")
        assert self.log.flush() == errno.EIO
        _files.arm("", "test")
        assert append() == OFFLINE
        appender = Appender(self.arena, SegmentFiles(self.arena, 4), KEEPER)
        self.recoveries = Recoveries(self.arena, appender, self.manager, self.files, RETRY_SECONDS)

    @property
    def view(self) -> SlotView:
        found = self.manager.slot("t", 0)
        assert found is not None
        return found

    def turn_until_taken_out(self) -> None:
        """Take turns until the partition lives no longer, and many more."""
        life = self.view.life
        while self.view.life == life:
            self.turn_until(turns=1)
        self.turn_until(turns=300)

    def turn_until(self, state: int | None = None, *, turns: int = 10_000) -> None:
        """Take turns until the partition lives with that state, or so often."""
        deadline = time.monotonic() + PATIENCE
        for _ in range(turns):
            self.recoveries.turn()
            if state is not None and self.view.life % 2 and self.view.state == state:
                return
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert state is None, f"state {self.view.state:#x} after {turns} turns"


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    yield Case(tmp_path)
    _files.arm("", "test")


def test_its_settings_are_those_that_it_had(tmp_path: Path) -> None:
    """Not those of the configuration, where the topic was made with its own."""
    own = {"retention_bytes": 12345, "retention_ms": 54321, "max_message_bytes": 77, "append_time": True}
    case = Case(tmp_path, **own, flush_interval_messages=9)
    case.recoveries.consider(case.view)
    case.turn_until(0)
    view = case.view
    assert {name: getattr(view, name) for name in own} == own
    statuses = [case.log.append(ENTRY, slot=view.index) for _ in range(10)]
    assert statuses == [DONE] * 9 + [FULL]


def test_all_that_was_appended_is_there_and_durable(case: Case) -> None:
    """What the failed sync was about is written again before the next one: the kernel may take it for clean."""
    case.recoveries.consider(case.view)
    case.turn_until(0)
    assert (case.view.flushed_offset, case.view.visible_offset, case.view.log_offset) == (36, 36, 36)
    assert case.files.again == [24]
    assert case.log.append(ENTRY, slot=case.view.index) == DONE


class Meanwhile:
    """An arena in which something happens just before its first slot is looked at."""

    def __init__(self, arena: Arena, happens: Callable[[], None]) -> None:
        self._arena = arena
        self._happens = [happens]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._arena, name)

    def shown_view(self, index: int) -> SlotView | None:
        if self._happens:
            self._happens.pop()()
        return self._arena.shown_view(index)


@pytest.mark.parametrize(
    "look", [lambda at: at.slot("t", 0), lambda at: at.first("t"), lambda at: at.partitions("t")[0]]
)
def test_who_looks_for_it_just_when_it_comes_back_finds_it(
    case: Case, look: Callable[[LogManager], SlotView | None]
) -> None:
    """The slot that is known has it no more, and the other one is not known yet."""
    manager = LogManager(BrokerConfig(), case.arena)
    former = look(manager)
    manager._arena = cast(Arena, Meanwhile(case.arena, lambda: case.turn_until(0)))
    case.recoveries.consider(case.view)
    found = look(manager)
    assert former is not None and found is not None
    assert (found.index != former.index, found.state, found.log_offset) == (True, 0, 36)
    assert manager.slot("t", 1) is None


def test_nothing_below_the_flushed_end_is_looked_at_or_cut(case: Case) -> None:
    """The side file's checkpoint is older than what the broker knows, and a byte below that has changed."""
    path = case.log.path(0)
    data = path.read_bytes()
    path.write_bytes(data[:10] + b"?" + data[11:])
    case.recoveries.consider(case.view)
    case.turn_until(0)
    assert case.view.log_offset == 36
    assert path.stat().st_size == 36


def test_it_is_the_same_log_also_without_its_side_file(case: Case) -> None:
    """Readers take a log that was made at another time for another one."""
    created = case.view.created_ms
    (case.log.folder() / SIDE_FILE_NAME).unlink()
    time.sleep(0.005)
    case.recoveries.consider(case.view)
    case.turn_until(0)
    assert case.view.created_ms == created


def test_the_flusher_must_be_past_it_first(case: Case) -> None:
    """A sync that it is at would tell of an end that is being cut."""
    case.arena.see(FLUSHER, case.arena.change_count)
    before = case.view.life
    case.recoveries.consider(case.view)
    case.turn_until_taken_out()
    assert case.view.life == before + 1
    assert case.files.again == []
    case.arena.see(FLUSHER, case.arena.change_count)
    case.turn_until(0)


def test_where_it_fails_it_lives_on_as_it_was_and_is_tried_again(case: Case) -> None:
    before = case.view
    case.files.fail("fdatasync", 1)
    case.recoveries.consider(before)
    case.turn_until(before.state, turns=1)
    while case.view.life == before.life:
        case.turn_until(turns=1)
    case.turn_until(before.state)
    assert case.view._replace(life=before.life) == before
    assert case.arena.returning() == []
    began = time.monotonic()
    case.turn_until(0)
    assert time.monotonic() - began > RETRY_SECONDS / 2
    assert case.view.log_offset == 36


def test_it_may_be_left_to_the_next_start(case: Case) -> None:
    """By a time of 0 until the first try: no look has it tried, and nothing is due."""
    appender = Appender(case.arena, SegmentFiles(case.arena, 4), KEEPER)
    case.recoveries = Recoveries(case.arena, appender, case.manager, case.files, 0)
    before = case.view
    for _ in range(2):
        case.recoveries.consider(before)
        case.turn_until(turns=300)
    assert case.view == before and case.arena.returning() == []
    pause = case.recoveries.turn()
    assert pause is not None and pause > MOST_SECONDS / 2


def test_the_next_keeper_goes_on_with_what_was_taken_out(case: Case) -> None:
    case.arena.see(FLUSHER, case.arena.change_count)
    case.recoveries.consider(case.view)
    case.turn_until_taken_out()
    assert len(case.arena.returning()) == 1
    appender = Appender(case.arena, SegmentFiles(case.arena, 4), KEEPER)
    case.recoveries = Recoveries(case.arena, appender, case.manager, case.files, RETRY_SECONDS)
    case.turn_until(turns=100)
    assert case.files.again == [], "the flusher may still be at it"
    case.arena.see(FLUSHER, case.arena.change_count)
    case.turn_until(0)
    assert case.arena.returning() == []


def test_what_was_found_damaged_at_the_start_is_for_a_person(case: Case) -> None:
    case.recoveries.consider(case.view._replace(state=case.view.state & ~0xFF00 | 0x100))
    case.turn_until(turns=200)
    assert case.view.state


@pytest.mark.parametrize(("error", "comes_back"), [(errno.EIO, False), (errno.ENOSPC, True), (errno.EDQUOT, True)])
def test_its_disk_is_tried_first(
    case: Case, error: int, comes_back: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that takes no write would take no recovery either; one that is full may still be read and synced."""
    tried: list[Path | str] = []

    def refuse(directory: Path | str) -> None:
        tried.append(directory)
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(recoveries, "write_unnamed", refuse)
    before = case.view
    case.recoveries.consider(before)
    if comes_back:
        case.turn_until(0)
        assert len(tried) == 1
        return
    while len(tried) < 2:
        case.turn_until(turns=1)
    assert case.view == before, "nothing is touched"
    assert "stays out of service topic='t' partition=0" in caplog.text
    assert f"reason={os.strerror(error)}: tried again" in caplog.text
    monkeypatch.undo()
    case.turn_until(0)


def test_somebody_who_creates_is_waited_for(case: Case) -> None:
    """Before the partition is taken out, and before it lives again."""
    before = case.view
    case.recoveries.consider(before)
    case.arena.see(FLUSHER, case.arena.change_count)
    assert case.arena.create_lock()
    case.turn_until(turns=200)
    assert case.view == before
    case.arena.create_unlock()
    while case.view.life == before.life:
        case.turn_until(turns=1)
    assert case.arena.create_lock()
    case.arena.see(FLUSHER, case.arena.change_count)
    case.turn_until(turns=200)
    assert case.view.life == before.life + 1 and len(case.arena.returning()) == 1
    case.arena.create_unlock()
    case.turn_until(0)
    assert case.view.log_offset == 36


def test_one_that_is_deleted_while_it_waits_is_tried_no_more(case: Case) -> None:
    """While the deletion is under way, which a disk may hold up for long, the keeper pauses between its looks."""
    view = case.view
    case.recoveries.consider(view)
    time.sleep(RETRY_SECONDS)
    assert end_life(case.log.appender, view.index)
    pauses = [case.recoveries.turn() for _ in range(10)]
    assert all(pause is not None and pause >= TURN_SECONDS for pause in pauses), pauses
    assert case.arena.create_lock()
    case.arena.free(view.index)
    case.arena.create_unlock()
    pause = case.recoveries.turn()
    assert pause is not None and pause > MOST_SECONDS / 2
    assert case.arena.returning() == []


def test_one_that_is_back_is_waited_for_no_more(case: Case) -> None:
    """The keeper rests, and nothing of the log directory is in doubt any more."""
    marks = case.log.folder().parent / FLUSH_MARKS_NAME
    assert any(marks.read_bytes())
    case.recoveries.consider(case.view)
    case.turn_until(0)
    pause = case.recoveries.turn()
    assert pause is not None and pause > MOST_SECONDS / 2
    assert not any(marks.read_bytes()), "a start would write all of it again"


def test_it_is_tried_less_and_less_often(
    case: Case, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each pause is twice the one before, up to a minute; one that is back and fails again begins anew."""

    def refuse(directory: Path | str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(recoveries, "write_unnamed", refuse)
    at = 0.0
    patch_time(monkeypatch, recoveries, monotonic=lambda: at)
    case.recoveries = Recoveries(case.arena, case.log.appender, case.manager, case.files, 10.0)
    case.recoveries.consider(case.view)
    tried = []
    for second in range(1000):
        at = float(second)
        said = len(caplog.records)
        for _ in range(3):
            case.recoveries.turn()
            if case.recoveries._work is not None and case.recoveries._work.thread is not None:
                case.recoveries._work.thread.join()
        if len(caplog.records) > said:
            tried.append(second)
    assert [after - before for before, after in itertools.pairwise([0, *tried])][:6] == [10, 10, 20, 40, 60, 60]
    assert [record.args[-1] for record in caplog.records][:5] == [10, 20, 40, 60, 60]


def test_what_has_been_deleted_stays_deleted(tmp_path: Path) -> None:
    case = Case(tmp_path, format_name=RECORD_BATCHES)
    index = case.view.index
    case.arena.publish_start(index, 1)
    assert case.view.log_start == 1
    case.recoveries.consider(case.view)
    case.turn_until(0)
    assert (case.view.log_start, case.view.kept_start, case.view.log_offset) == (1, 1, 3)


def test_the_places_of_others_that_go_are_waited_for(case: Case) -> None:
    """Those for partitions that come back are as many as come back at once."""
    case.manager.create_partition("other", 0)
    gone = case.manager.slot("other", 0)
    assert gone is not None
    assert end_life(case.log.appender, gone.index)
    before = case.view
    case.recoveries.consider(before)
    case.turn_until(turns=200)
    assert case.view == before
    assert case.arena.create_lock()
    case.arena.free(gone.index)
    case.arena.create_unlock()
    case.turn_until(0)


def test_another_partition_that_has_taken_its_place_is_none_of_it(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its disk was tried, it was deleted."""
    view = case.view
    others = []

    def meanwhile(directory: Path | str) -> None:
        assert end_life(case.log.appender, view.index)
        assert case.arena.create_lock()
        case.arena.free(view.index)
        case.arena.create_unlock()
        case.manager.create_partition("other", 0)
        others.append(case.manager.slot("other", 0))

    monkeypatch.setattr(recoveries, "write_unnamed", meanwhile)
    case.recoveries.consider(view)
    while not others:
        case.turn_until(turns=1)
    case.turn_until(turns=50)
    assert others == [case.manager.slot("other", 0)]
    assert others[0] is not None and others[0].index == view.index
    assert case.arena.returning() == []
