"""``fastlog fsck``: finds what is wrong, changes nothing unasked, and repairs without removing a byte."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import click
import pytest

from fastlog.log.check import check_partition
from fastlog.log.files import FileOps
from fastlog.log.recovery import recover_partition
from fastlog.log.repair import keep_span
from fastlog.segment_files import list_segments
from fastlog.tools import signals
from fastlog.tools.fsck import fsck_command
from fastlog.tools.report import CommandError
from tests.fault.foreign_files import CASES, ENTRY_BYTES, PARTS, TORN, Case, Ground
from tests.harness import logs, raw_format
from tests.harness.faulty_files import FaultyFileOps

QUARANTINED = re.compile(r"[0-9]+\.kafka(\.[0-9]+)?\.(truncated|bad)(\.tmp)?", re.ASCII)
DAMAGED = PARTS[1][: ENTRY_BYTES + 20] + b"?" + PARTS[1][ENTRY_BYTES + 21 :]


def fsck(*arguments: str | Path) -> int:
    """The exit code of the command."""
    code = fsck_command.main([str(argument) for argument in arguments], standalone_mode=False)
    assert isinstance(code, int)
    return code


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "t-0"


def test_a_sound_log_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0, a line for each partition, and what is none is named."""
    logs.write_segments(tmp_path / "t-0", PARTS)
    bases = logs.write_segments(tmp_path / "u-x-3", PARTS[:1], base=1000)
    logs.write_side_file(tmp_path / "u-x-3", bases[1])
    (tmp_path / "lost+found").mkdir()
    assert fsck(tmp_path) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"{tmp_path}/t-0: ok, 3 segment(s), {3 * len(PARTS[0])} bytes, 15 messages"
    assert out[1] == f"{tmp_path}/u-x-3: ok, 1 segment(s), {len(PARTS[0])} bytes, 5 messages"
    assert "lost+found" in out[2]
    assert not (tmp_path / ".lock").exists(), "looking leaves nothing behind"


def test_a_partition_may_be_named_itself(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even by where one stands."""
    logs.write_segments(directory, PARTS)
    logs.write_segments(directory.parent / "other-0", [DAMAGED])
    assert fsck(directory, "--json") == 0
    assert [line["directory"] for line in lines(capsys)] == [str(directory)]
    assert fsck(directory.parent) == 5
    monkeypatch.chdir(directory)
    capsys.readouterr()
    assert fsck(".", "--json") == 0
    assert [line["directory"] for line in lines(capsys)] == [str(directory)]


def test_damage_is_explained_by_file_position_and_offset(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """U23: what is wrong, where, how much of it, and what a repair could keep."""
    bases = logs.write_segments(directory, [PARTS[0], DAMAGED, PARTS[2] + TORN])
    before = logs.contents(directory)
    assert fsck(directory, "--json") == 5
    (report,) = lines(capsys)
    damage, tail = report["problems"]
    assert damage == {
        "kind": "damage",
        "file": str(logs.segment_path(directory, bases[1])),
        "text": f"a wrong checksum, {ENTRY_BYTES} bytes",
        "position": ENTRY_BYTES,
        "offset": bases[1] + ENTRY_BYTES,
        "bytes": ENTRY_BYTES,
    }
    assert (tail["kind"], tail["position"], tail["bytes"]) == ("tail", len(PARTS[2]), len(TORN))
    assert "a broker sets them aside" in tail["text"]
    end = bases[2] + len(PARTS[2])
    assert report["spans"] == [
        {"start": 0, "end": bases[1] + ENTRY_BYTES, "entries": 6},
        {"start": bases[1] + 2 * ENTRY_BYTES, "end": end, "entries": 8},
    ]
    assert logs.contents(directory) == before
    assert fsck(directory) == 5
    text = capsys.readouterr().out
    assert f"--keep before keeps offsets 0 to {bases[1] + ENTRY_BYTES}, 6 entries" in text
    assert f"--keep after  keeps offsets {bases[1] + 2 * ENTRY_BYTES} to {end}, 8 entries" in text


@pytest.mark.parametrize("flushed", [-1, 0, 1])
def test_only_what_was_not_flushed_is_quarantined_at_a_start(
    flushed: int, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tail that begins before the flushed end is no rest of an append."""
    bases = logs.write_segments(directory, [PARTS[0], PARTS[1] + TORN])
    logs.write_side_file(directory, bases[1] + len(PARTS[1]) + flushed)
    assert fsck(directory, "--json") == 5
    (problem,) = lines(capsys)[0]["problems"]
    assert problem["kind"] == "tail"
    assert ("a broker sets them aside" in problem["text"]) == (flushed <= 0)


def test_inside_of_wrappers_is_checked(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Z-2: a wrapper that does not open is damage; a plain message that looks compressed is worth a note."""
    wrapper = raw_format.message_set([b"one", b"two"], codec=raw_format.GZIP)
    broken = raw_format.entry(b"\x1f\x8b\x08 this is not gzip", attributes=raw_format.GZIP)
    lost_codec = wrapper[:5] + b"\0" + wrapper[6:]
    logs.write_segments(directory, [wrapper + broken + lost_codec])
    assert fsck(directory, "--json") == 5
    (report,) = lines(capsys)
    (problem,) = report["problems"]
    assert (problem["kind"], problem["position"]) == ("wrapper", len(wrapper))
    assert [f"position {len(wrapper) + len(broken)}" in line for line in report["notes"]] == [True]
    logs.segment_path(directory, 0).write_bytes(wrapper + lost_codec)
    assert fsck(directory) == 0


def test_a_running_broker_is_left_alone(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reading works beside it and takes an unfinished end for what it is; a repair is refused with exit code 2.

    So it is beside whoever looks: what they read would change.
    """
    logs.write_segments(directory, [PARTS[0] + TORN])
    before = logs.contents(directory)
    lock = os.open(directory.parent / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert fsck(directory, "--json") == 0
        (report,) = lines(capsys)
        assert "not whole yet" in report["notes"][0]
        for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH):
            fcntl.flock(lock, kind)
            with pytest.raises(CommandError, match="a broker has") as refused:
                fsck(directory, "--repair")
            assert refused.value.exit_code == 2
    finally:
        os.close(lock)
    assert logs.contents(directory) == before
    assert fsck(directory) == 5


def test_looking_keeps_no_broker_from_starting(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is asked for and given back before the files are read."""
    logs.write_segments(directory, PARTS)
    (directory.parent / ".lock").touch()
    taken: list[bool] = []

    def check(*arguments: Any, **options: Any) -> Any:
        fd = os.open(directory.parent / ".lock", os.O_RDWR)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken.append(True)
        os.close(fd)
        return check_partition(*arguments, **options)

    monkeypatch.setattr("fastlog.tools.fsck.check_partition", check)
    assert fsck(directory) == 0
    assert taken == [True]


def test_checking_while_messages_are_appended(directory: Path) -> None:
    """No false alarm beside a writer that appends in pieces and rolls."""
    logs.write_segments(directory, [b""])
    stop = threading.Event()

    def append() -> None:
        base = end = 0
        segment = logs.segment_path(directory, 0).open("ab", buffering=0)
        while not stop.is_set():
            entry = raw_format.entry(b"x" * 300)
            for start in range(0, len(entry), 100):
                end += segment.write(entry[start : start + 100])
            if end - base > 30_000:
                segment.close()
                base = end
                segment = logs.segment_path(directory, base).open("ab", buffering=0)
        segment.close()

    writer = threading.Thread(target=append)
    writer.start()
    try:
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            assert check_partition(directory, FileOps(), live=True).problems == []
    finally:
        stop.set()
        writer.join()
    assert len(list(directory.iterdir())) > 1


def test_what_goes_while_it_is_looked_at_is_no_damage(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention takes the oldest segments of a broker that runs, before they are opened or before they are measured."""
    bases = logs.write_segments(directory, PARTS)

    class Opening(FileOps):
        def open(self, path: Path, *arguments: Any) -> Any:
            if path.name == logs.segment_path(directory, bases[0]).name:
                path.unlink(missing_ok=True)
            return super().open(path, *arguments)

    report = check_partition(directory, Opening(), live=True)
    assert (report.problems, report.messages, report.segments) == ([], 10, 3)
    assert report.notes == [f"{bases[0]:020}.kafka is gone since it was listed"]

    def listed(*arguments: Any) -> Any:
        found = list_segments(*arguments)
        found[0].path.unlink()
        return found

    monkeypatch.setattr("fastlog.log.check.list_segments", listed)
    report = check_partition(directory, FileOps(), live=True)
    assert (report.problems, report.messages, report.notes) == ([], 5, [])


def test_what_grows_while_it_is_looked_at_is_no_damage(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that was listed before its last append and its end, and one whose last message comes piece by piece."""
    logs.write_segments(directory, [PARTS[0], PARTS[1] + PARTS[2][:20]])
    newest = logs.segment_path(directory, len(PARTS[0]))

    def listed(*arguments: Any) -> Any:
        first, *others = list_segments(*arguments)
        return [first._replace(size=first.size - ENTRY_BYTES), *others]

    monkeypatch.setattr("fastlog.log.check.list_segments", listed)
    monkeypatch.setattr("fastlog.log.check.time.sleep", lambda _: newest.write_bytes(PARTS[1] + PARTS[2]))
    report = check_partition(directory, FileOps(), live=True)
    assert (report.problems, report.notes, report.messages) == ([], [], 15)
    assert [(span.start_offset, span.end_offset, span.messages) for span in report.spans] == [
        (0, 3 * len(PARTS[0]), 15)
    ]


@pytest.mark.parametrize("live", [False, True])
def test_a_segment_that_others_follow_has_no_unfinished_end(directory: Path, live: bool) -> None:
    logs.write_segments(directory, [PARTS[0] + TORN, PARTS[1]])
    report = check_partition(directory, FileOps(), live=live)
    assert [(problem.kind, problem.bytes) for problem in report.problems] == [("damage", len(TORN))]


@pytest.mark.parametrize(
    ("base", "kept"),
    [(len(PARTS[0]) + 1000, None), (ENTRY_BYTES, (0, len(PARTS[0])))],
    ids=["behind a gap", "inside another one"],
)
def test_an_empty_newest_segment(directory: Path, base: int, kept: tuple[int, int] | None) -> None:
    """Behind a gap a log may go on with it; one that lies inside another one has nothing to offer."""
    logs.write_segments(directory, PARTS[:1])
    logs.write_segments(directory, [b""], base=base)
    assert fsck(directory, "--repair") == (5 if kept is None else 0)
    if kept is None:
        assert fsck(directory, "--repair", "--keep", "after") == 0
    recovered = recover_partition(directory, "t", 0, clean_end=None, files=FileOps())
    assert (recovered.segments[0].base, recovered.log_end) == (kept or (base, base))


@pytest.mark.parametrize(
    ("keep", "end", "starts"),
    [("before", len(PARTS[0]) + ENTRY_BYTES, [0, 1]), ("after", 3 * len(PARTS[0]), [1 + 2 / 5, 2])],
)
def test_repair_keeps_the_side_that_was_asked_for(
    keep: str, end: int, starts: list[float], directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Damage in the middle: without --keep nothing is changed; with it a broker takes the partition up again."""
    size = len(PARTS[0])
    bases = logs.write_segments(directory, [PARTS[0], DAMAGED, PARTS[2] + TORN])
    logs.write_side_file(directory, bases[2])
    before = logs.contents(directory)
    for path in (directory, *directory.iterdir()):
        path.chmod(0o750 if path == directory else 0o640)
    assert fsck(directory, "--repair") == 5
    assert logs.contents(directory) == before
    capsys.readouterr()
    assert fsck(directory, "--repair", "--keep", keep, "--json") == 0
    (report,) = lines(capsys)
    assert (report["ok"], report["problems"]) == (True, [])
    assert report["repaired"]
    recovered = recover_partition(directory, "t", 0, clean_end=None, files=FileOps())
    assert (recovered.state, recovered.log_end, recovered.truncated_bytes) == ("ok", end, 0)
    assert [segment.base for segment in recovered.segments] == [round(start * size) for start in starts]
    after = logs.contents(directory)
    assert logs.lost_bytes(before, after) == []
    assert all(QUARANTINED.fullmatch(name) or name.endswith(".kafka") for name in after)
    assert not any((directory / name).stat().st_mode & 0o007 for name in after), "open to others"
    assert fsck(directory) == 0


def test_missing_flushed_bytes_can_be_given_up_either_way(directory: Path) -> None:
    """ "before" gives the missing offsets out again, "after" goes on behind them with an empty log."""
    for number, (keep, part) in enumerate(itertools.product(("before", "after"), (PARTS[0], b""))):
        end = len(part)
        expected = (0, end) if keep == "before" else (end + 1000, end + 1000)
        target = directory.with_name(f"{keep}-{number}")
        logs.write_segments(target, [part])
        logs.write_side_file(target, end + 1000)
        assert fsck(target, "--repair") == 5
        assert fsck(target, "--repair", "--keep", keep) == 0
        recovered = recover_partition(target, keep, number, clean_end=None, files=FileOps())
        assert (recovered.state, recovered.segments[0].base, recovered.log_end) == ("ok", *expected)


REPAIRABLE = [
    one
    for one in CASES
    if not any(
        word in one.name
        for word in (
            "cannot be",
            "disk f",
            "disk is full",
            "format of the future",
            "later version",
            "64 bits",
            "other files",
        )
    )
    and "no segment" not in one.name
    and "all segments are missing after" not in one.name
    and one.name != "side file is a directory"
]


@pytest.mark.parametrize("keep", ["before", "after"])
@pytest.mark.parametrize("one", REPAIRABLE, ids=lambda one: one.name)
def test_what_recovery_refuses_a_repair_puts_right(one: Case, keep: str, directory: Path) -> None:
    """T-15: after ``fsck --repair`` every such partition is served again, and every byte is still somewhere."""
    ground = Ground(directory)
    directory.mkdir()
    one.build(ground)
    before = logs.contents(directory)
    assert fsck(directory.parent, "--repair", "--keep", keep) == 0
    assert logs.lost_bytes(before, logs.contents(directory)) == []
    recovered = recover_partition(directory, "t", 0, clean_end=None, files=FileOps())
    assert (recovered.state, recovered.truncated_bytes) == ("ok", 0), recovered.reason
    assert fsck(directory.parent) == 0


def test_a_signal_waits_for_a_repair(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked_to_stop(*arguments: Any) -> list[str]:
        signal.raise_signal(signal.SIGTERM)
        return keep_span(*arguments)

    logs.write_segments(directory, [PARTS[0] + TORN])
    monkeypatch.setattr("fastlog.tools.fsck.keep_span", asked_to_stop)
    signals.install()
    try:
        assert fsck(directory, "--repair") == 0
    finally:
        signals.uninstall()
    assert fsck(directory) == 0


def test_the_newest_flushed_mark_counts(directory: Path) -> None:
    """A power loss may leave older ones beside it; without a side file nothing else says what is missing."""
    bases = logs.write_segments(directory, PARTS[:2])
    for base in bases[1:]:
        (directory / f".flushed-{base:020}").touch()
    (problem,) = check_partition(directory, FileOps()).problems
    assert (problem.kind, problem.file) == ("short", str(logs.segment_path(directory, bases[2])))
    (directory / f".flushed-{bases[2] + 1000:020}").touch()
    (problem,) = check_partition(directory, FileOps()).problems
    assert problem.kind == "short" and f"expected at least {bases[2] + 1000}" in problem.text


def test_without_a_side_file_the_segments_tell_the_format(directory: Path) -> None:
    directory.mkdir()
    (directory / f"{0:020}.log").touch()
    report = check_partition(directory, FileOps())
    assert (report.log_format.suffix, report.segments, report.problems) == (".log", 1, [])


@pytest.mark.parametrize("keep", [0, 1])
def test_a_repair_that_stops_anywhere_can_be_repeated(keep: int, tmp_path: Path) -> None:
    """Each file call fails once: no byte is lost, and the next repair comes to the same end."""
    expected = (len(PARTS[0]) + ENTRY_BYTES, 3 * len(PARTS[0]))[keep]
    for number in range(200):
        directory = tmp_path / f"t-{number}"
        bases = logs.write_segments(directory, [PARTS[0], DAMAGED, PARTS[2] + TORN])
        logs.write_side_file(directory, bases[2])
        before = logs.contents(directory)
        files = FaultyFileOps()
        report = check_partition(directory, files)
        kinds = ("open", "read", "write", "fdatasync", "fsync_dir", "ftruncate", "rename")
        kind, nth = kinds[number % len(kinds)], number // len(kinds) + 1
        files.fail(kind, nth)
        with contextlib.suppress(OSError):
            keep_span(report, report.choices[keep], files, 1)
        assert logs.lost_bytes(before, logs.contents(directory)) == [], (kind, nth)
        again = check_partition(directory, FileOps())
        if again.problems:
            keep_span(again, again.choices[min(keep, len(again.choices) - 1)], FileOps(), 2)
        recovered = recover_partition(directory, "t", number, clean_end=None, files=FileOps())
        assert (recovered.state, recovered.log_end) == ("ok", expected), (kind, nth, recovered)
        assert logs.lost_bytes(before, logs.contents(directory)) == [], (kind, nth)


def test_a_damaged_side_file_is_reported_and_taken_away(directory: Path) -> None:
    logs.write_segments(directory, PARTS)
    (directory / "fastlog.json").write_bytes(b"{")
    assert fsck(directory) == 5
    assert fsck(directory, "--repair") == 0
    assert [path.read_bytes() for path in directory.glob("fastlog.json.*.bad")] == [b"{"]


def test_an_unknown_format_is_named_and_not_repaired(directory: Path) -> None:
    logs.write_segments(directory, [PARTS[0] + TORN])
    logs.write_side_file(directory, 0, log_format="kafka-2")
    before = logs.contents(directory)
    assert [problem.kind for problem in check_partition(directory, FileOps()).problems] == ["format"]
    assert fsck(directory, "--repair", "--keep", "before") == 5
    assert logs.contents(directory) == before


def test_wrong_usage(tmp_path: Path) -> None:
    """A directory that is not there, and --keep without --repair."""
    with pytest.raises(click.UsageError):
        fsck(tmp_path / "nowhere")
    with pytest.raises(click.UsageError, match="--repair"):
        fsck(tmp_path, "--keep", "before")


def test_an_unreadable_file_is_a_problem_of_its_own(directory: Path) -> None:
    """EIO in one segment hides nothing about the others, and offers no repair that would guess."""
    bases = logs.write_segments(directory, [PARTS[0], DAMAGED])
    files = FaultyFileOps()
    files.deny(logs.segment_path(directory, bases[0]).name)
    report = check_partition(directory, files)
    assert [problem.kind for problem in report.problems] == ["unreadable", "damage"]
    assert report.choices == ()


def test_a_side_file_that_cannot_be_read_is_named_itself(directory: Path) -> None:
    """Not the directory it is in, and nothing behind it is judged without it."""
    logs.write_segments(directory, [PARTS[0], DAMAGED])
    logs.write_side_file(directory, 0)
    files = FaultyFileOps()
    files.deny("fastlog.json")
    report = check_partition(directory, files)
    assert [(problem.kind, problem.file) for problem in report.problems] == [
        ("unreadable", str(directory / "fastlog.json"))
    ]
    assert report.choices == ()
