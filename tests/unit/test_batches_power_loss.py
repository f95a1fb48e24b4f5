"""Power loss between any two file calls of a log of record batches: what was flushed is there, and its numbers go on.

As ``test_log_power_loss.py`` tries it for the log of messages; here with the files that only record batches have.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fastlog.log import kafka_files
from fastlog.log._append import roll_now
from fastlog.log.files import FileOps
from fastlog.log.metadata import CREATED, CREATING, Topic
from tests.harness.calls import recorded_calls
from tests.harness.power import Disk, Left, Step, WrittenDown, after_power_loss, steps_of
from tests.harness.shared_log import DONE
from tests.harness.stored_batches import Batch, batch
from tests.unit.test_record_batch_log import TOPIC_ID, BatchLog

pytestmark = pytest.mark.usefixtures("no_faults")

SMALL_SEGMENTS = {"log.file.size": "10000"}


@pytest.fixture
def root(memory: Path) -> Path:
    """The log directory that loses power."""
    (memory / "log").mkdir()
    return memory / "log"


@pytest.fixture
def after(memory: Path) -> Path:
    """Where what is left is looked at."""
    return memory / "after"


def told(batches: list[Batch]) -> list[tuple[int, bytes]]:
    """What readers see of batches: where they begin, and their bytes behind what a broker stores."""
    return [(one.base, one.data[16:]) for one in batches]


def epochs(log: BatchLog) -> list[tuple[int, int]]:
    return kafka_files.read_epochs(log.folder, FileOps())


def begun_again(directory: Path, files: FileOps | None, phase: str) -> BatchLog:
    """The log after a start that knows from the metadata log how far the topic had come."""
    log = BatchLog.__new__(BatchLog)
    log.directory, log.files, log.properties = directory, files, {"log.dir": str(directory)} | SMALL_SEGMENTS
    log.start({}, [Topic("t", TOPIC_ID, 1, phase=phase)])
    return log


def check_start(log_then: list[Batch], visible: int, left: Left, after: Path, phase: str = CREATED) -> None:
    """A start finds all batches that were flushed, no other ones, sound indexes, and gives no offset twice."""
    left.put(after)
    log = begun_again(after, None, phase)
    if log.manager.slot("t", 0) is None:
        assert (visible, phase) == (0, CREATING), left
        log.create()
    found = log.batches()
    assert told(found) == told(log_then)[: len(found)], left
    ends = [one.last + 1 for one in found]
    assert (ends[-1] if ends else 0) == log.view.log_offset >= visible, left
    log.check_indexes()
    begun = epochs(log)
    assert begun == sorted(set(begun)), left
    assert begun[-1][0] >= max([one.epoch for one in found], default=0), left
    assert log.view.topic_id == TOPIC_ID, left
    assert log.append(batch(b"later"))[:2] == (DONE, [log.view.log_offset - 1]), left
    assert log.batches()[-1].epoch == begun[-1][0], left


def flushed_at(steps: list[Step], ends: list[int]) -> Callable[[int], int]:
    """The offset that was flushed behind so many steps."""
    moments = [number for number, step in enumerate(steps) if step.path.name == "flush.published"]
    assert len(moments) == len(ends)
    return lambda after: max([end for end, moment in zip(ends, moments, strict=True) if moment < after], default=0)


def test_what_was_flushed_survives_a_power_loss_whenever_it_comes(root: Path, after: Path) -> None:
    """Through a creation, which is told once it is flushed, rolls before and behind flushes, and both indexes."""
    disk, files = Disk(root), WrittenDown()
    log = BatchLog(root, files, **SMALL_SEGMENTS)
    ends = []
    with recorded_calls(root.parent) as calls:
        number = 0
        for size in (0, 1, 3, 8, -1, 2, 6, 1):
            for _ in range(max(size, 0)):
                number += 1
                values = [bytes([number]) * 700] * (1 + number % 2)
                assert log.append(batch(*values, time_ms=1_700_000_000_000 + number * 1000))[0] == DONE
            if size < 0:
                assert roll_now(log.log.appender, log.view.index)
            assert log.log.flush(log.view.index) == 0
            ends.append(log.view.log_offset)
    assert len(log.segments()) >= 3
    assert any(path.stat().st_size for path in log.folder.glob("*.timeindex"))
    steps = files.steps + [step for step in steps_of(calls) if not step.path.name.endswith(".txt")]
    visible = flushed_at(steps, ends)
    created = next(number for number, step in enumerate(steps) if step.path.name == "flush.published")
    states = list(after_power_loss(disk, steps, lambda after: (visible(after), after > created)))
    assert visible(len(steps)) == log.view.log_offset
    stored = log.batches()
    for left in states:
        # the topic counts as created once its names are durable: with the first flush
        phase = CREATED if left.after > created else CREATING
        check_start(stored, visible(left.after), left, after, phase)
    assert len(states) > 300


@pytest.mark.parametrize("cut", [0, 1, 100])
def test_a_start_that_loses_power_is_made_again(cut: int, root: Path, after: Path) -> None:
    """After an unclean end with a torn batch, which is cut, and with a lost index, which is made anew."""
    log = BatchLog(root, **SMALL_SEGMENTS)
    for number in range(14):
        assert log.append(batch(bytes([number]) * 1500))[0] == DONE
    assert log.log.flush(log.view.index) == 0
    flushed = log.view.log_offset
    assert log.append(batch(b"torn" * 100))[0] == DONE
    whole = log.batches()
    newest = log.segments()[-1].path
    with newest.open("r+b") as file:
        file.truncate(newest.stat().st_size - cut)
    for path in log.folder.glob("*index"):
        path.unlink()
    before = epochs(log)
    disk, files = Disk(root), WrittenDown()
    with recorded_calls(root.parent) as calls:
        again = begun_again(root, files, CREATED)
    assert again.view.log_offset == flushed + (cut == 0)
    assert epochs(again)[-1][0] == before[-1][0] + 1
    assert {step.kind for step in steps_of(calls)} <= {"note"}  # all of it is told by files.steps
    states = list(after_power_loss(disk, files.steps))
    for left in states:
        check_start(whole, flushed, left, after)
    assert len(states) > 10
