"""A whole load in one process, with Delta's library, a fake broker and no Java: each message is in the table once,
whatever step it was killed at, and nothing is part of the table before it is on the disk."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from fastlog.errors import ConfigError, DataLossError, TableConflictError, TableWriteError, TransportError
from fastlog.spark.jobs import command, loader
from fastlog.spark.jobs.load_plan import BATCHES, offset_name
from fastlog.spark.jobs.loader import Loader
from fastlog.spark.lake import Lake, NumberStep, TableChange
from fastlog.tools.report import CommandError
from tests.harness.fake_broker import FakeBroker
from tests.harness.small_loads import Context, expected, load_options, put
from tests.harness.spark import partition_of
from tests.harness.timing import patch_time


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(partitions=2) as fake:
        yield fake


def loader_of(path: Path, broker: FakeBroker, context: Context | None = None, **fields: Any) -> Loader:
    spark: Any = SimpleNamespace(context=context or Context(), has_ended=False)
    return Loader(Lake(path / "table"), load_options(broker, **fields), spark)


def values_in(path: Path) -> list[bytes]:
    """What a reader of the table finds, sorted."""
    table = DeltaTable(str(path / "table")).to_pyarrow_table()
    rows = zip(table["partition"].to_pylist(), table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)
    return [value for _, _, value in sorted(rows)]


def test_all_of_it_is_in_the_table_with_where_it_goes_on(tmp_path: Path, broker: FakeBroker) -> None:
    ends = [put(broker, 0, 50), put(broker, 100, 30, 1)]
    made = loader_of(tmp_path, broker)
    made.run()
    assert values_in(tmp_path) == expected((0, 50), (100, 30))
    lake = Lake(tmp_path / "table")
    for number, end in enumerate(ends):
        assert lake.number(offset_name(partition_of(f"t/0-{number}"))) == end
    assert lake.number(BATCHES) == 0
    found = made.totals.to_json()
    assert (found["rows"], found["batches"], found["bytes"], found["failures"]) == (80, 1, sum(ends), 0)
    assert (found["lost"], found["lost_bytes"], found["replaced_rows"]) == ({}, 0, 0)
    assert found["ranges"] == {"t": {"0-0": [0, ends[0]], "0-1": [0, ends[1]]}}
    assert found["files"] == len(lake.files()) == 4  # of two partitions and two days
    assert {(file.values["topic"], file.values["date"]) for file in lake.files()} == {
        ("t", "2023-11-14"), ("t", "2023-11-15"),
    }  # fmt: skip
    assert [notes["rows"] for _, notes in lake.history() if "rows" in notes] == [80]


def test_a_second_run_brings_what_is_new_and_a_third_one_nothing(tmp_path: Path, broker: FakeBroker) -> None:
    put(broker, 0, 20)
    loader_of(tmp_path, broker).run()
    first = Lake(tmp_path / "table").version
    put(broker, 20, 5)
    second = loader_of(tmp_path, broker)
    second.run()
    assert (second.totals.rows, second.totals.batches) == (5, 1)
    third = loader_of(tmp_path, broker)
    third.run()
    assert third.totals.to_json()["batches"] == 0
    assert Lake(tmp_path / "table").version == first + 1
    assert values_in(tmp_path) == expected((0, 25))
    assert Lake(tmp_path / "table").number(BATCHES) == 1


@pytest.mark.parametrize("less", [0, 1])
def test_batches_have_about_so_many_bytes(tmp_path: Path, broker: FakeBroker, less: int) -> None:
    """At the size of the log one is enough, at one byte less there are two."""
    end = put(broker, 0, 40)
    made = loader_of(tmp_path, broker, max_bytes=end - less)
    made.run()
    assert made.totals.batches == 1 + less
    assert values_in(tmp_path) == expected((0, 40))
    assert made.totals.to_json()["ranges"] == {"t": {"0-0": [0, end]}}


# -- killed ------------------------------------------------------------------------------------------------------------

STEPS = (
    "before the beginning is written down",
    "behind that",
    "before the tasks",
    "behind the tasks",
    "before the first file is moved",
    "before the second file is moved",
    "before a directory is synced",
    "before the commit",
    "behind the commit",
)


@pytest.mark.parametrize("step", STEPS)
def test_whatever_step_it_was_killed_at_each_message_is_there_once(
    tmp_path: Path, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    put(broker, 0, 20)
    context = Context()
    with monkeypatch.context() as patch:
        _kill_at(step, context, patch)
        with pytest.raises(Killed):
            loader_of(tmp_path, broker, context).run()
    put(broker, 20, 10)
    made = loader_of(tmp_path, broker)
    made.run()
    assert values_in(tmp_path) == expected((0, 30))
    assert made.totals.rows == (10 if step == "behind the commit" else 30)
    lake = Lake(tmp_path / "table")
    assert [path.name for path in lake.work_directory.iterdir()] == ["lock"]
    active = {file.path for file in lake.files()}
    left = {str(path.relative_to(lake.directory)) for path in lake.directory.glob("topic=*/date=*/*.parquet")}
    assert left >= active
    assert step == "before the commit" or left == active  # those that nobody added wait for a vacuum


def _kill_at(step: str, context: Context, patch: pytest.MonkeyPatch) -> None:
    commits, moves = [0], [0]
    commit, rename, sync = Lake.commit, Path.rename, os.fsync

    def killing_commit(self: Lake, change: Any) -> None:
        commits[0] += 1
        if (step, commits[0]) in (("before the beginning is written down", 1), ("before the commit", 2)):
            raise Killed
        commit(self, change)
        if (step, commits[0]) in (("behind that", 1), ("behind the commit", 2)):
            raise Killed

    def killing_rename(self: Path, target: Any) -> Path:
        moves[0] += 1
        if (step, moves[0]) in (("before the first file is moved", 1), ("before the second file is moved", 2)):
            raise Killed
        return rename(self, target)

    def killing_sync(descriptor: int) -> None:
        if step == "before a directory is synced" and moves[0] == 2:
            raise Killed
        sync(descriptor)

    def kill(run: int) -> None:
        raise Killed

    patch.setattr(Lake, "commit", killing_commit)
    patch.setattr(Path, "rename", killing_rename)
    patch.setattr(os, "fsync", killing_sync)
    if step == "before the tasks":
        context.before = kill
    if step == "behind the tasks":
        context.after = kill


def test_a_task_that_ran_twice_brings_its_rows_once(tmp_path: Path, broker: FakeBroker) -> None:
    put(broker, 0, 20)
    context = Context()
    context.times = 2
    loader_of(tmp_path, broker, context).run()
    assert values_in(tmp_path) == expected((0, 20))
    assert sorted(path.name for path in Lake(tmp_path / "table").work_directory.iterdir()) == ["lock"]


# -- on the disk -------------------------------------------------------------------------------------------------------


def test_files_are_on_the_disk_before_they_are_part_of_the_table(
    tmp_path: Path, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is synced before it is moved, each directory behind the last move into it, and all of that before the
    transaction that names them."""
    put(broker, 0, 20)
    calls: list[tuple[str, Path]] = []
    rename, fsync, commit = Path.rename, os.fsync, Lake.commit
    table = tmp_path / "table"

    def noted_rename(self: Path, target: Path) -> Path:
        calls.append(("move", Path(target)))
        calls.append(("from", self))
        return rename(self, target)

    def noted_sync(descriptor: int) -> None:
        calls.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    def noted_commit(self: Lake, change: Any) -> None:
        if change.added:
            calls.append(("commit", table))
        commit(self, change)

    monkeypatch.setattr(Path, "rename", noted_rename)
    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Lake, "commit", noted_commit)
    loader_of(tmp_path, broker).run()
    committed = calls.index(("commit", table))
    moves = [(index, path) for index, (what, path) in enumerate(calls) if what == "move"]
    assert len(moves) == 2
    for index, target in moves:
        source = calls[index + 1][1]
        assert ("sync", source) in calls[:index]
        directory = target.parent
        while directory != table.parent:
            synced = [at for at, call in enumerate(calls) if call == ("sync", directory)]
            last_move = max(at for at, path in moves if directory in path.parents)
            assert any(last_move < at < committed for at in synced), directory
            directory = directory.parent


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it waited each time; it does not."""
    found: list[float] = []
    monkeypatch.setattr(command, "wait", found.append)
    return found


@pytest.mark.parametrize("attempts", [1, 3, 5])
def test_a_batch_fails_as_often_as_it_may(
    tmp_path: Path, broker: FakeBroker, waits: list[float], attempts: int
) -> None:
    """And not once more; with growing pauses; the table is as it was."""
    put(broker, 0, 20)
    context = Context()

    def fail(run: int) -> None:
        raise OSError(28, "No space left on device")

    context.before = fail
    made = loader_of(tmp_path, broker, context, attempts=attempts)
    with pytest.raises(CommandError, match=f"failed {attempts} times"):
        made.run()
    assert (context.runs, made.totals.failures) == (attempts, attempts)
    assert waits == [pytest.approx(0.2 * 2**number) for number in range(1, attempts)]
    assert values_in(tmp_path) == []


def test_a_spark_that_was_ended_is_not_asked_again(tmp_path: Path, broker: FakeBroker, waits: list[float]) -> None:
    """A cluster ends an application whose executors all fail; every further try would say that it has ended."""
    put(broker, 0, 20)
    context = Context()
    spark: Any = SimpleNamespace(context=context, has_ended=False)

    def fail(run: int) -> None:
        spark.has_ended = True
        raise OSError("Master removed our application: FAILED")

    context.before = fail
    made = Loader(Lake(tmp_path / "table"), load_options(broker, attempts=5), spark)
    with pytest.raises(CommandError, match="Spark has been ended") as found:
        made.run()
    assert "Master removed our application: FAILED" in str(found.value)
    assert (context.runs, waits) == (1, [])


def test_a_batch_that_failed_is_tried_again(tmp_path: Path, broker: FakeBroker, waits: list[float]) -> None:
    """Its failures do not count against the next one's."""
    put(broker, 0, 20)
    context = Context()

    def fail(run: int) -> None:
        if run in (1, 2, 4, 5):
            raise TransportError("a broker is away")

    context.before = fail
    made = loader_of(tmp_path, broker, context, attempts=3, max_bytes=len(broker.logs["t", 0]) - 1)
    made.run()
    assert (made.totals.batches, made.totals.failures) == (2, 4)
    assert values_in(tmp_path) == expected((0, 20))


def test_a_try_begins_with_what_the_table_says_now(tmp_path: Path, broker: FakeBroker, waits: list[float]) -> None:
    """Somebody has brought all of it while the tasks failed: nothing is read again."""
    end = put(broker, 0, 20)
    context = Context()

    def brought(run: int) -> None:
        name = offset_name(partition_of("t/0-0"))
        Lake(tmp_path / "table").commit(TableChange({name: NumberStep(0, end)}))
        raise OSError(28, "No space left on device")

    context.before = brought
    made = loader_of(tmp_path, broker, context)
    made.run()
    assert (context.runs, made.totals.failures, made.totals.batches) == (1, 1, 0)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), DeltaError("checkpoint")])
def test_a_transaction_that_is_in_although_it_failed_is_not_made_again(
    tmp_path: Path, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """What came behind it went wrong."""
    put(broker, 0, 20)
    attempt = Lake._attempt
    attempts: list[int] = []

    def failing(self: Lake, change: Any, identity: str) -> None:
        attempt(self, change, identity)
        attempts.append(len(change.added))
        raise error

    monkeypatch.setattr(Lake, "_attempt", failing)
    made = loader_of(tmp_path, broker)
    made.run()
    assert attempts == [0, 2]
    assert (made.totals.rows, made.totals.failures) == (20, 0)
    assert values_in(tmp_path) == expected((0, 20))


def test_the_longest_pause_is_ten_seconds(tmp_path: Path, broker: FakeBroker, waits: list[float]) -> None:
    put(broker, 0, 1)
    context = Context()

    def fail(run: int) -> None:
        raise TransportError("a broker is away")

    context.before = fail
    with pytest.raises(TransportError):
        loader_of(tmp_path, broker, context, attempts=9).run()
    assert waits[4:] == [pytest.approx(6.4), 10.0, 10.0, 10.0]


@pytest.mark.parametrize("error", [ConfigError("no"), DataLossError("no"), TypeError("no")])
def test_what_the_next_try_would_say_again_is_not_tried(
    tmp_path: Path, broker: FakeBroker, waits: list[float], error: Exception
) -> None:
    put(broker, 0, 1)
    context = Context()

    def fail(run: int) -> None:
        raise error

    context.before = fail
    made = loader_of(tmp_path, broker, context)
    with pytest.raises(type(error)):
        made.run()
    assert (context.runs, made.totals.failures, waits) == (1, 0, [])


@pytest.mark.parametrize("error", [TableConflictError("another one"), TableWriteError("full")])
def test_files_that_did_not_come_into_the_table_are_removed(
    tmp_path: Path, broker: FakeBroker, waits: list[float], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    put(broker, 0, 20)
    commit = Lake.commit

    def refuse(self: Lake, change: Any) -> None:
        if change.added:
            raise error
        commit(self, change)

    monkeypatch.setattr(Lake, "commit", refuse)
    with pytest.raises(type(error)):
        loader_of(tmp_path, broker, attempts=2).run()
    assert list((tmp_path / "table").glob("topic=*/date=*/*")) == []
    monkeypatch.setattr(Lake, "commit", commit)
    loader_of(tmp_path, broker).run()
    assert values_in(tmp_path) == expected((0, 20))


# -- again and again ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("took", "left"), [(0.0, 5.0), (2.0, 3.0), (4.9, 0.1), (5.0, 0.0), (7.0, 0.0)])
def test_a_load_that_goes_on_begins_every_so_often(
    tmp_path: Path, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, took: float, left: float
) -> None:
    """From one beginning to the next, whatever a round takes; a round that takes longer is followed at once."""
    put(broker, 0, 10)
    now = [100.0]
    patch_time(monkeypatch, loader, monotonic=lambda: now[0])
    context = Context()

    def pass_time(run: int) -> None:
        now[0] += took

    context.after = pass_time
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:  # behind the batch it looks for a signal; behind the round it waits
            put(broker, 10, 10)
        if len(waits) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(command, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        loader_of(tmp_path, broker, context).run(every=5.0)
    assert waits == [0, pytest.approx(left), 0, pytest.approx(left)]
    assert values_in(tmp_path) == expected((0, 20))


def test_what_comes_while_a_batch_is_written_waits_for_its_time(
    tmp_path: Path, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch a round, or files would be as small as batches are quick; a backlog is not waited with."""
    put(broker, 0, 10)
    context = Context()
    context.before = lambda run: put(broker, 10 * run, 10) if run < 3 else None
    rounds: list[int] = []
    batches: list[int] = []

    def wait(seconds: float) -> None:
        if seconds:
            rounds.append(going.totals.batches - sum(rounds))
            batches.append(going.totals.batches)
        if len(rounds) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(command, "wait", wait)
    going = loader_of(tmp_path, broker, context)
    with pytest.raises(KeyboardInterrupt):
        going.run(every=1000.0)
    assert rounds == [1, 1, 1, 0]
    assert values_in(tmp_path) == expected((0, 30))
    put(broker, 30, 20)
    rounds.clear()
    context.before = lambda run: None
    going = loader_of(tmp_path, broker, context, max_bytes=100)
    with pytest.raises(KeyboardInterrupt):
        going.run(every=1000.0)
    assert rounds[0] > 1 and rounds[1:] == [0, 0, 0]
    assert values_in(tmp_path) == expected((0, 50))


def test_two_loads_of_one_table_are_refused(tmp_path: Path, broker: FakeBroker) -> None:
    put(broker, 0, 10)
    context = Context()
    refused: list[str] = []

    def second(run: int) -> None:
        with pytest.raises(TableConflictError, match=f"pid {os.getpid()}") as caught:
            loader_of(tmp_path, broker).run()
        refused.append(str(caught.value))

    context.before = second
    loader_of(tmp_path, broker, context).run()
    assert len(refused) == 1
    assert Counter(values_in(tmp_path)) == Counter(expected((0, 10)))
