"""A log of the coordinator's own: what goes out together, when it is long, and that what is out of service says so."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fastlog.errors import LogError
from fastlog.log import _files
from fastlog.log.slots import SlotView
from fastlog.record_batches import Record
from fastlog.workers.coordinator import internal_log
from fastlog.workers.coordinator.groups.groups import TOPIC
from fastlog.workers.coordinator.internal_log import DONE, InternalLog, Written
from tests.harness.coordinated_groups import Asked

ROW = Record(b"no key of Kafka's", b"x" * 100, 1)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Asked]:
    with Asked(tmp_path / "log", offsets_partitions=1) as made:
        made.create("t")
        made.commit({("t", 0): 1})
        made.turn_until("all is written", lambda: not made.loop.tasks)
        yield made
        _files.arm("", "test")


def log_of(running: Asked) -> InternalLog:
    return running.groups._shards[0].log


def outcomes_of(running: Asked, writes: Sequence[Written]) -> list[Any]:
    """What each has come to, when all have."""
    found: dict[int, Any] = {}
    for number, written in enumerate(writes):
        written.flushed.then(partial(found.__setitem__, number))
    running.turn_until("all have an outcome", lambda: len(found) == len(writes))
    return [found[number] for number in range(len(writes))]


def fail(running: Asked) -> SlotView:
    """A flush of the log fails, which puts it out of service."""
    kept = log_of(running)
    _files.arm("fdatasync=EIO", "test")
    (outcome,) = outcomes_of(running, [kept.write([ROW])])
    _files.arm("", "test")
    assert isinstance(outcome, LogError)
    (view,) = [view for view in running.arena.views() if view.topic == TOPIC]
    assert view.state and view.visible_offset < view.log_offset
    return view


def batches(running: Asked) -> int:
    """How many have been appended."""
    (view,) = [view for view in running.arena.views() if view.topic == TOPIC]
    return sum(1 for _ in _batch_ends(running, view.log_end))


def _batch_ends(running: Asked, end: int) -> Iterator[int]:
    data = b"".join(path.read_bytes() for path in sorted((running.directory / f"{TOPIC}-0").glob("*.log")))[:end]
    at = 0
    while at < len(data):
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        yield at


@pytest.mark.parametrize(("more", "expected"), [(-1, 3), (0, 2), (1, 2)])
def test_as_much_goes_out_together_as_a_batch_may_have(
    running: Asked, monkeypatch: pytest.MonkeyPatch, more: int, expected: int
) -> None:
    """The first goes at once, alone; two behind it are one batch if they are no larger together."""
    kept, before = log_of(running), batches(running)
    monkeypatch.setattr(internal_log, "BATCH_BYTES", 2 * Written([ROW], True).size + more)
    assert outcomes_of(running, [kept.write([ROW]) for _ in range(3)]) == [DONE] * 3
    assert batches(running) - before == expected


def test_what_is_out_of_service_takes_nothing(running: Asked) -> None:
    """And says so: a write that nobody refused would be answered as if it stood there."""
    kept, view = log_of(running), fail(running)
    before = batches(running)
    kept._make = lambda: view
    written = kept.write([ROW])
    appended: list[Any] = []
    written.appended.then(appended.append)
    (outcome,) = outcomes_of(running, [written])
    assert isinstance(outcome, LogError) and "out of service" in str(outcome)
    assert appended == [outcome] and batches(running) == before
    assert kept.queued_bytes == 0


def test_what_has_another_life_than_was_found_is_looked_up_again(running: Asked) -> None:
    """The life that was found ended before the append: nothing is written into the next one as if it were the same."""
    kept, before = log_of(running), batches(running)
    looks: list[SlotView] = []
    find = kept._make

    def find_another_life_first() -> SlotView:
        looks.append(find())
        return looks[0]._replace(life=looks[0].life + 2) if len(looks) == 1 else looks[-1]

    kept._make = find_another_life_first
    assert outcomes_of(running, [kept.write([ROW])]) == [DONE]
    assert len(looks) == 2 and batches(running) == before + 1


def test_what_the_disk_refuses_is_said_with_its_reason(running: Asked) -> None:
    kept, before = log_of(running), batches(running)
    _files.arm("pwrite=EIO", "test")
    (outcome,) = outcomes_of(running, [kept.write([ROW])])
    _files.arm("", "test")
    assert isinstance(outcome, OSError) and outcome.errno == errno.EIO and outcome.filename == TOPIC
    assert batches(running) == before
    assert outcomes_of(running, [kept.write([ROW])]) == [DONE]
    assert batches(running) == before + 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_what_gives_room_back_goes_without_room_and_nothing_else_with_it(running: Asked, number: int) -> None:
    """Also where both were waiting at once."""
    running.again()  # which knows of no room that it has
    kept = log_of(running)
    name = errno.errorcode[number]
    _files.arm(f"fallocate@1-={name}", "test")
    first = kept.write([ROW], needs_room=False)
    found = outcomes_of(running, [first, kept.write([ROW], needs_room=False), kept.write([ROW])])
    _files.arm("", "test")
    assert found[:2] == [DONE] * 2 and isinstance(found[2], OSError) and found[2].errno == number


def test_of_what_is_out_of_service_no_snapshot_is_due(running: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = log_of(running)
    monkeypatch.setattr(internal_log, "SHORT_BYTES", 10)
    assert kept.is_long(0)
    fail(running)
    assert not kept.is_long(0)


def test_what_was_flushed_before_it_went_out_of_service_is(running: Asked) -> None:
    """Up to the very end; nothing is to be waited for."""
    kept, view = log_of(running), fail(running)
    ended: list[Exception | None] = []

    def waiting(offset: int) -> Iterator[Any]:
        try:
            yield from kept._until_flushed(view, offset)
            ended.append(None)
        except LogError as error:
            ended.append(error)

    running.loop.start(waiting(view.visible_offset))  # type: ignore[arg-type]
    running.turn_until("it is known", lambda: len(ended) == 1)
    running.loop.start(waiting(view.visible_offset + 1))  # type: ignore[arg-type]
    running.turn_until("it is known", lambda: len(ended) == 2)
    assert ended[0] is None and "not flushed" in str(ended[1])


def test_what_another_life_has_flushed_says_nothing_of_this_one(running: Asked) -> None:
    """Nor has it the room that the disk keeps free for this one."""
    kept = log_of(running)
    (view,) = [view for view in running.arena.views() if view.topic == TOPIC]
    other = view._replace(life=view.life - 2)
    ended: list[str] = []

    def waiting() -> Iterator[Any]:
        try:
            yield from kept._until_flushed(other, view.visible_offset)
        except LogError as error:
            ended.append(str(error))

    running.loop.start(waiting())  # type: ignore[arg-type]
    running.turn_until("it is known", lambda: not running.loop.tasks)
    assert "it has gone" in ended[0]
    _files.arm("fallocate@1-=ENOSPC", "test")
    kept._reserve(view, 1, True)
    with pytest.raises(OSError):
        kept._reserve(other, 1, True)


def test_a_log_is_long_by_what_came_behind_its_newest_snapshot(running: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segments before it go later, and do not count."""
    kept = log_of(running)
    monkeypatch.setattr(internal_log, "SHORT_BYTES", 2000)
    while not kept.is_long(0):
        outcomes_of(running, [kept.write([ROW] * 5)])
    done: list[Any] = []
    kept.snapshot(iter([[ROW], [ROW]])).then(done.append)
    running.turn_until("it is written", lambda: bool(done))
    assert done == [DONE]
    (view,) = [view for view in running.arena.views() if view.topic == TOPIC]
    assert view.log_end > 2000 and not kept.is_long(0)
    while not kept.is_long(0):
        outcomes_of(running, [kept.write([ROW] * 5)])
    (later,) = [view for view in running.arena.views() if view.topic == TOPIC]
    assert 2000 < later.log_end - kept._snapshot_at < 2000 + 1500
    assert not kept.is_long(10_000)


def test_the_bytes_of_each_snapshot_are_told(running: Asked, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    kept = log_of(running)
    for _ in range(2):
        done: list[Any] = []
        kept.snapshot(iter([[ROW], [ROW]])).then(done.append)
        running.turn_until("it is written", lambda done=done: bool(done))  # type: ignore[misc]
    size = 2 * (len(ROW.key or b"") + len(ROW.value or b""))
    told = [record.getMessage() for record in caplog.records if "begun anew" in record.getMessage()]
    assert [line.rpartition("=")[2] for line in told] == [str(size)] * 2


@pytest.mark.parametrize(
    ("error", "is_told"),
    [(OSError(errno.EIO, "no disk"), False), (LogError("out of service"), False), (KeyError("a mistake"), True)],
)
def test_a_mistake_is_told_of_with_its_place_and_a_refusal_is_not(
    running: Asked, caplog: pytest.LogCaptureFixture, error: Exception, is_told: bool
) -> None:
    caplog.set_level(logging.ERROR)
    kept = log_of(running)

    def refuse(*_: object) -> None:
        raise error

    kept._append_once = refuse  # type: ignore[method-assign,assignment]
    assert outcomes_of(running, [kept.write([ROW]), kept.write([ROW])]) == [error] * 2
    told = [record for record in caplog.records if "not written" in record.getMessage()]
    assert [record.exc_info is not None for record in told] == [True] * (2 if is_told else 0)
