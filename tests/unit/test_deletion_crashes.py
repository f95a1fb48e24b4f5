"""A deletion of which any call fails, whose keeper is killed anywhere, or whose machine loses power."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fastlog.log import deletion
from fastlog.log._append import Appender
from fastlog.log._arena import Arena
from fastlog.log._segments import SegmentFiles
from fastlog.log._shared_memory import FIRST_PROCESSOR, KEEPER
from fastlog.log.deletion import (
    leave_marker,
    marker_name,
    put_away_wanted,
)
from fastlog.log.files import FileOps
from fastlog.log.manager import LogManager
from fastlog.segment_files import split_directory_name
from fastlog.workers import deletions
from tests.harness import logs
from tests.harness.deleted_site import COUNT, NEW, SEGMENT, SLOTS, Site, held, stored
from tests.harness.power import Disk, Step, WrittenDown, after_power_loss
from tests.harness.shared_log import in_child

pytestmark = pytest.mark.usefixtures("no_faults")


@pytest.fixture
def site(memory: Path) -> Site:
    return Site(memory)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a disk refused is tried again without a pause."""
    monkeypatch.setattr(deletions, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(deletions, "REMOVE_RETRY_SECONDS", 0.0)


# -- one call fails ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("kind", ["listdir", "fsync_dir", "rename", "unlink", "rmdir"])
def test_whatever_call_fails_is_made_again(kind: str, code: int, memory: Path, at_once: None) -> None:
    """Each of them in its turn; the broker goes on, and so does the deletion."""
    nth = 0
    while True:
        nth += 1
        site = Site(memory / str(nth))
        files = logs.QuickFaultyFiles()
        site.mark()
        files.fail(kind, nth, code)
        site.run(files)
        site.expect_gone()
        if files.calls[kind] < nth:
            break
    assert nth > 3 or kind in ("listdir", "fsync_dir")


@pytest.mark.parametrize("kind", ["open", "fsync_dir"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_marker_that_cannot_be_left_is_an_error(kind: str, nth: int, site: Site) -> None:
    files = logs.QuickFaultyFiles()
    files.fail(kind, nth, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        leave_marker("t", site.roots, files)


@pytest.mark.parametrize("kind", ["listdir", "fsync_dir", "rename", "unlink"])
def test_a_start_that_cannot_finish_a_deletion_says_so_and_serves(kind: str, site: Site) -> None:
    """And its keeper, or the next start, goes on."""
    site.mark()
    files = logs.QuickFaultyFiles()
    files.fail(kind, 1)
    arena = Arena(list(map(str, site.roots)), FIRST_PROCESSOR + 1, SLOTS, 16)
    report = LogManager(site.config, arena, files).load([{}, {}])
    assert any("to be deleted" in line for line in report.warnings)
    assert put_away_wanted(site.roots, logs.QuickFiles()) in (["t"], [])
    assert sorted(stored(site.roots)) == ["t-0-0", "u-0", "u-1"]


# -- somebody is killed ------------------------------------------------------------------------------------------------


POINTS = [
    f"{name}@{nth}"
    for name, count in (
        ("life.marked", COUNT),
        ("life.ended", COUNT),
        ("life.announced", COUNT),
        ("delete.past", 1),
        ("delete.renamed", COUNT),
        ("delete.done", 1),
        ("delete.settled", 1),
        ("delete.unlink", 7),
    )
    for nth in range(1, count + 1)
]


@pytest.mark.parametrize("point", POINTS)
def test_the_next_keeper_finishes(point: str, site: Site) -> None:
    site.look()
    site.mark()
    assert in_child(site.run, f"{point}=kill") == -9
    site.look()
    site.run()
    site.expect_gone()


@pytest.mark.parametrize("second", ["life.ended@1", "delete.renamed@1", "delete.settled@1", "delete.unlink@1"])
@pytest.mark.parametrize("first", ["life.ended@2", "life.announced@3", "delete.renamed@2"])
def test_a_keeper_after_one_that_died_may_die_too(first: str, second: str, site: Site) -> None:
    site.mark()
    assert in_child(site.run, f"{first}=kill") == -9
    in_child(site.run, f"{second}=kill")  # or it had none of those left to do
    site.look()
    site.run()
    site.expect_gone()


@pytest.mark.parametrize("point", ["delete.wanted@1", *POINTS])
def test_the_next_start_finds_it_gone(point: str, site: Site) -> None:
    """All of it, because the marker was durable; what waits for its removal goes with the first keeper."""
    leave = point.startswith("delete.wanted")
    if not leave:
        site.mark()
    assert in_child(site.mark if leave else site.run, f"{point}=kill") == -9
    arena = Arena(list(map(str, site.roots)), FIRST_PROCESSOR + 1, SLOTS, 16)
    report = LogManager(site.config, arena, logs.QuickFiles()).load([{}, {}])
    assert report.warnings == ()
    assert sorted({found.topic for found in report.partitions}) == ["t-0", "u"]
    site.arena, site.files = arena, SegmentFiles(arena, 16)
    site.appender = Appender(arena, site.files, KEEPER)
    site.run()
    site.expect_gone()


class DeadError(Exception):
    """Killed here."""


class Dying(logs.QuickFiles):
    """File calls of which the n-th is never made, nor any behind it."""

    def __init__(self, nth: int) -> None:
        self.left = nth

    def _begin(self, kind: str, path: Path | None) -> bool:
        self.left -= 1
        if self.left <= 0:
            raise DeadError
        return False


@pytest.mark.parametrize("who", ["client", "keeper", "start"])
def test_before_every_file_call(who: str, memory: Path) -> None:
    """Whoever is killed there leaves a topic whole or gone after the next start; gone, when the marker stood."""
    nth, alive = 0, False
    while not alive:
        nth += 1
        site = Site(memory / str(nth))
        dying = Dying(nth)
        try:
            if who == "client":
                leave_marker("t", site.roots, dying)
            else:
                site.mark()
                if who == "keeper":
                    site.run(dying)
                else:
                    put_away_wanted(site.roots, dying)
            alive = True
        except DeadError:
            pass
        stood = who != "client" or any(place.joinpath(marker_name("t")).exists() for place in site.roots)
        put_away_wanted(site.roots, logs.QuickFiles())
        expected = {"t-0-0": held("t-0", 0), "u-0": held("u", 0), "u-1": held("u", 1)}
        if not stood:
            expected |= {f"t-{partition}": held("t", partition) for partition in range(COUNT)}
        assert stored(site.roots) == expected, nth
        assert not any(name.startswith(deletion.MARKER_PREFIX) for name in site.names())
    assert nth > (4 if who == "client" else 10)


# -- the power goes ----------------------------------------------------------------------------------------------------


def make_anew(directory: Path, files: FileOps) -> None:
    """What a creation and a flush do on the disk, in their order."""
    files.mkdir(directory)
    with files.open(directory / SEGMENT, os.O_RDWR | os.O_CREAT) as fd:
        files.write_all(fd, NEW, 0)
        files.fdatasync(fd)
    files.fsync_dir(directory)
    files.fsync_dir(directory.parent)


def deleted_and_made_anew(
    site: Site, where: int, monkeypatch: pytest.MonkeyPatch, marked: Sequence[int] = (0, 1)
) -> list[Step]:
    """The steps of a deletion until it is answered, of the topic's next life, and of the removal of the former one.

    It is marked in these log directories, and the next life lies in one.
    """
    files = WrittenDown()
    leave_marker("t", [site.roots[number] for number in marked], files)
    site.arena.want_deletion()
    keeper = site.keeper(files)
    with monkeypatch.context() as patch:
        patch.setattr(keeper, "_remove", lambda: None)
        while keeper.turn() is not None:
            site.look()
    files.note("answered")
    make_anew(site.roots[where] / "t-0", files)
    files.note("made")
    assert keeper.turn() is None
    return files.steps


def violations(disk: Disk, steps: list[Step], after: Path) -> Iterator[str]:
    """What a power loss may leave that it must not."""
    notes = {str(step.path): number for number, step in enumerate(steps, 1) if step.kind == "note"}
    old = {f"t-{partition}": held("t", partition) for partition in range(COUNT)}
    others = {"t-0-0": held("t-0", 0), "u-0": held("u", 0), "u-1": held("u", 1)}
    roots = [after / "0", after / "1"]
    for left in after_power_loss(disk, steps, lambda after: (after >= notes["answered"], after >= notes["made"])):
        left.put(after)
        put_away_wanted(roots, logs.QuickFiles())
        found = {
            item.name: (item / SEGMENT).read_bytes() if (item / SEGMENT).exists() else b""
            for place in roots
            for item in place.iterdir()
            if split_directory_name(item.name) is not None
        }
        anew = found.get("t-0") in (b"", NEW, NEW[: len(NEW) // 2], bytes(len(NEW)))
        kept = {name: data for name, data in found.items() if name not in others and not (anew and name == "t-0")}
        if {name: found.get(name) for name in others} != others:
            yield f"others: {left}"
        elif kept not in ({}, old):
            yield f"half of it: {left}"
        elif kept and left.after >= notes["answered"]:
            yield f"answered and there: {left}"
        elif left.after >= notes["made"] and found.get("t-0") != NEW:
            yield f"the next life is lost: {left}"


@pytest.mark.slow
@pytest.mark.parametrize("where", [0, 1])
def test_a_power_loss_leaves_it_whole_or_gone(where: int, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gone when it was answered; what is made under its name afterwards stays, whichever log directory it lies in."""
    site = Site(memory / "disk")
    disk = Disk(memory / "disk")
    steps = deleted_and_made_anew(site, where, monkeypatch)
    assert list(violations(disk, steps, memory / "after")) == []
    removed = [step for step in steps if step.kind == "unlink" and not step.path.name.startswith(".fastlog")]
    assert len(removed) > COUNT
    assert all(step.path.parent.name.endswith("-delete") or step.path.name.endswith("-delete") for step in removed)


def syncs(steps: list[Step], name: str) -> list[int]:
    return [number for number, step in enumerate(steps) if step.kind == "names" and step.path.name == name]


@pytest.mark.slow
@pytest.mark.parametrize("forgotten", ["marker", "names in 0", "names in 1", "withdrawn in 0", "withdrawn in 1"])
def test_no_sync_may_be_forgotten(forgotten: str, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each log directory: as the marker is left and again as it is found, as names change, and as it is withdrawn.

    One that the sync behind it would make good, as it does in some cases, is needed in others.
    """
    site = Site(memory / "disk")
    disk = Disk(memory / "disk")
    what, _, number = forgotten.rpartition(" ")
    # where the next life lies, its own sync makes the withdrawal durable, too; and a marker elsewhere stands for longer
    steps = deleted_and_made_anew(
        site, 0 if number == "1" else 1, monkeypatch, [int(number)] if what == "names in" else (0, 1)
    )
    by_root = [syncs(steps, "0"), syncs(steps, "1")]
    if forgotten == "marker":
        left_out = {step for numbers in by_root for step in numbers[:2]}
    else:
        left_out = {by_root[int(number)][2 if what == "names in" else 3]}
    shorter = [step for place, step in enumerate(steps) if place not in left_out]
    assert next(violations(disk, shorter, memory / "after"), None) is not None


@pytest.mark.slow
def test_a_start_may_lose_power_too(memory: Path) -> None:
    """It finds a marker that nobody made durable, and is as careful as the keeper."""
    site = Site(memory / "disk")
    disk = Disk(memory / "disk")
    leave_marker("t", site.roots[1:], logs.QuickFiles())
    disk.do(Step("create", site.roots[1] / marker_name("t")))
    files = WrittenDown()
    put_away_wanted(site.roots, files)
    for notes in ("answered", "made"):
        files.note(notes)
    steps = [*files.steps[:-1]]
    found = [one for one in violations(disk, [*steps, files.steps[-1]], memory / "after") if "next life" not in one]
    assert found == []


def test_the_marker_is_durable_before_anything_else_is_done(site: Site) -> None:
    """The keeper does not rely on whoever left it, who may have been killed in the middle."""
    leave_marker("t", site.roots[1:], logs.QuickFiles())
    files = WrittenDown()
    site.run(files)
    (synced,) = syncs(files.steps, "1")[:1]
    (renamed, *_) = [number for number, step in enumerate(files.steps) if step.kind == "rename"]
    assert synced < renamed
