"""T-15: files that are missing, foreign, unreadable or in the wrong place, each with what recovery must make of it.

A case builds a partition and says what must come out. The partition holds three segments of five messages; ``ends`` are
their base offsets and, last, the log end.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fastlog.log.recovery import RecoveredPartition, recover_partition
from tests.fault.registry import Outcome, scenario
from tests.harness import logs, raw_format

PARTS = [b"".join(raw_format.entry(b"segment %d message %d" % (part, n)) for n in range(5)) for part in range(3)]
ENTRY_BYTES = len(PARTS[0]) // 5
TORN = raw_format.entry(b"cut short")[:-3]
OK, READ_ONLY, OFFLINE = "ok", "read-only", "offline"


@dataclass
class Ground:
    """A partition that is being built, and how it will be recovered."""

    directory: Path
    files: logs.QuickFaultyFiles = field(default_factory=logs.QuickFaultyFiles)
    clean_end: int | None = None
    ends: list[int] = field(default_factory=list)

    def sound(self, checkpoint: int | None = None) -> None:
        """Three segments; with a side file when a checkpoint is given (an index into ``ends``)."""
        self.ends = logs.write_segments(self.directory, PARTS)
        if checkpoint is not None:
            logs.write_side_file(self.directory, self.ends[checkpoint])

    def path(self, index: int) -> Path:
        """The file of the n-th segment; of the one that would follow for 3."""
        return logs.segment_path(self.directory, self.ends[index])


Expected = tuple[str, int | None, str]  # state, log end (None when offline), a part of the reason
Build = Callable[[Ground], Expected]


@dataclass(frozen=True)
class Case:
    name: str
    build: Build


CASES: list[Case] = []


def case(name: str) -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        CASES.append(Case(name, build))
        return build

    return register


def play(one: Case, directory: Path) -> tuple[Outcome, RecoveredPartition]:
    """Build the case, recover it, and compare."""
    outcome = Outcome(1)
    ground = Ground(directory / "t-0")
    ground.directory.mkdir(parents=True)
    state, end, reason = one.build(ground)
    before = logs.contents(ground.directory)
    result = recover_partition(ground.directory, "t", 0, clean_end=ground.clean_end, files=ground.files)
    outcome.expect(result.state == state, f"{one.name}: {result.state} instead of {state}: {result.reason}")
    outcome.expect(end is None or result.log_end == end, f"{one.name}: end {result.log_end} instead of {end}")
    outcome.expect(reason in result.reason, f"{one.name}: {reason!r} is not in {result.reason!r}")
    outcome.expect((state == OK) == (result.reason == ""), f"{one.name}: reason {result.reason!r}")
    outcome.expect("\n" not in result.reason, f"{one.name}: the reason has several lines")
    outcome.expect(state == OK or f"fastlog fsck {ground.directory}" in result.reason, f"{one.name}: {result.reason!r}")
    after = logs.contents(ground.directory)
    outcome.expect(not logs.lost_bytes(before, after), f"{one.name}: {logs.lost_bytes(before, after)} lost bytes")
    if state != OK:
        outcome.expect(sorted(before.values()) == sorted(after.values()), f"{one.name}: something was cut")
    for segment in result.segments:
        size = logs.segment_path(ground.directory, segment.base).stat().st_size
        outcome.expect(size >= segment.size, f"{one.name}: segment {segment.base} is shorter than what is served")
    return outcome, result


@scenario("foreign-files", "T-15 missing, foreign, unreadable files", small=1, nightly=1, release=1)
def foreign_files(count: int, seed: int, directory: Path) -> Outcome:
    """Every case once; there is nothing to draw from the seed."""
    outcome = Outcome()
    for number, one in enumerate(CASES):
        played, _ = play(one, directory / str(number))
        outcome.runs += 1
        outcome.violations += played.violations
    return outcome


# --- nothing is wrong -------------------------------------------------------------------------------------------------


@case("a log of 0.7, without a side file")
def _(g: Ground) -> Expected:
    g.sound()
    return OK, g.ends[3], ""


@case("checkpoint at the end")
def _(g: Ground) -> Expected:
    g.sound(3)
    return OK, g.ends[3], ""


@case("checkpoint in an older segment")
def _(g: Ground) -> Expected:
    g.sound()
    logs.write_side_file(g.directory, g.ends[1] - ENTRY_BYTES)
    return OK, g.ends[3], ""


@case("a clean stop")
def _(g: Ground) -> Expected:
    g.sound(3)
    g.clean_end = g.ends[3]
    return OK, g.ends[3], ""


@case("the oldest segment is gone, as after retention")
def _(g: Ground) -> Expected:
    g.sound(3)
    g.path(0).unlink()
    return OK, g.ends[3], ""


@case("the checkpoint lies below the oldest segment")
def _(g: Ground) -> Expected:
    g.sound(0)
    g.path(0).unlink()
    return OK, g.ends[3], ""


@case("an empty newest segment at the end")
def _(g: Ground) -> Expected:
    g.sound(3)
    g.path(3).touch()
    return OK, g.ends[3], ""


@case("names of 11 digits")
def _(g: Ground) -> Expected:
    g.sound()
    for index in range(3):
        g.path(index).rename(g.directory / f"{g.ends[index]:011}.kafka")
    return OK, g.ends[3], ""


@case("names of 1 and of 30 digits")
def _(g: Ground) -> Expected:
    g.sound(2)
    g.path(0).rename(g.directory / "0.kafka")
    g.path(2).rename(g.directory / f"{g.ends[2]:030}.kafka")
    return OK, g.ends[3], ""


@case("foreign files beside the segments")
def _(g: Ground) -> Expected:
    g.sound(3)
    for name in (
        "notes.txt",
        "99999999999999999999.kafka",
        "-1.kafka",
        "1e3.kafka",
        "12.kafka.bak",
        ".kafka",
        "x.kafka",
    ):
        (g.directory / name).write_bytes(b"not ours")
    (g.directory / "folder").mkdir()
    return OK, g.ends[3], ""


@case("temporary files of an interrupted write")
def _(g: Ground) -> Expected:
    g.sound(3)
    (g.directory / "fastlog.json.tmp").write_bytes(b'{"vers')
    (g.directory / f"{g.path(2).name}.truncated.tmp").write_bytes(b"half")
    return OK, g.ends[3], ""


@case("an empty directory: a creation that did not get far")
def _(g: Ground) -> Expected:
    return OK, 0, ""


@case("a side file and no segment yet")
def _(g: Ground) -> Expected:
    logs.write_side_file(g.directory, 0)
    (g.directory / "fastlog.json.tmp").touch()
    return OK, 0, ""


# --- a crash ----------------------------------------------------------------------------------------------------------


@case("a torn end, no side file")
def _(g: Ground) -> Expected:
    g.sound()
    g.path(2).write_bytes(PARTS[2] + TORN)
    return OK, g.ends[3], ""


@case("a torn end at the checkpoint")
def _(g: Ground) -> Expected:
    g.sound(3)
    g.path(2).write_bytes(PARTS[2] + TORN)
    return OK, g.ends[3], ""


@case("the power went between a roll and its flush: the older segment is short")
def _(g: Ground) -> Expected:
    g.sound(1)
    g.path(1).write_bytes(PARTS[1][:-7])
    return OK, g.ends[2] - ENTRY_BYTES, ""


@case("the power went between a roll and its flush: the older segment is short, the new one empty")
def _(g: Ground) -> Expected:
    g.sound(2)
    g.path(2).write_bytes(PARTS[2][:-ENTRY_BYTES])
    logs.segment_path(g.directory, g.ends[3]).touch()
    return OK, g.ends[3] - ENTRY_BYTES, ""


@case("damage above the checkpoint in a sealed segment")
def _(g: Ground) -> Expected:
    g.sound(1)
    g.path(1).write_bytes(PARTS[1][:-1] + b"!")
    return OK, g.ends[2] - ENTRY_BYTES, ""


@case("stale marker: the log went on")
def _(g: Ground) -> Expected:
    g.sound(2)
    g.path(2).write_bytes(PARTS[2] + TORN)
    g.clean_end = g.ends[3]
    return OK, g.ends[3], ""


@case("stale marker: names more than there is")
def _(g: Ground) -> Expected:
    g.sound()
    g.clean_end = g.ends[3] + 1000
    return OK, g.ends[3], ""


@case("a marker of another log with the same name")
def _(g: Ground) -> Expected:
    g.sound(1)
    g.clean_end = 5
    return OK, g.ends[3], ""


# --- the side file ----------------------------------------------------------------------------------------------------


@case("side file cut short")
def _(g: Ground) -> Expected:
    g.sound(3)
    path = g.directory / "fastlog.json"
    path.write_bytes(path.read_bytes()[:-9])
    return OK, g.ends[3], ""


@case("side file empty")
def _(g: Ground) -> Expected:
    g.sound()
    (g.directory / "fastlog.json").touch()
    return OK, g.ends[3], ""


@case("side file of zeros, torn end")
def _(g: Ground) -> Expected:
    g.sound()
    (g.directory / "fastlog.json").write_bytes(bytes(4096))
    g.path(2).write_bytes(PARTS[2] + TORN)
    return OK, g.ends[3], ""


@case("side file is a directory")
def _(g: Ground) -> Expected:
    g.sound()
    (g.directory / "fastlog.json").mkdir()
    return OFFLINE, None, "fastlog.json"


@case("side file cannot be read")
def _(g: Ground) -> Expected:
    g.sound(3)
    g.files.deny("fastlog.json")
    return OFFLINE, None, "fastlog.json: Permission denied"


@case("side file names a format of the future")
def _(g: Ground) -> Expected:
    g.sound()
    g.path(2).write_bytes(PARTS[2] + TORN)
    logs.write_side_file(g.directory, g.ends[3], log_format="kafka-2")
    return OFFLINE, None, "'kafka-2'"


@case("side file of a later version")
def _(g: Ground) -> Expected:
    g.sound()
    logs.write_side_file(g.directory, g.ends[3], version=2)
    return OFFLINE, None, "version 2"


@case("the checkpoint is inside a message")
def _(g: Ground) -> Expected:
    g.sound()
    logs.write_side_file(g.directory, g.ends[3] - 7)
    g.path(2).write_bytes(PARTS[2] + TORN)
    return OK, g.ends[3], ""


@case("the checkpoint is inside a message, and the message before it is damaged")
def _(g: Ground) -> Expected:
    g.sound()
    logs.write_side_file(g.directory, g.ends[3] - 7)
    g.path(2).write_bytes(b"\x7f" + PARTS[2][1:])
    return READ_ONLY, g.ends[3] - ENTRY_BYTES, "no message begins at that offset"


@case("a flipped bit below the checkpoint cuts nothing")
def _(g: Ground) -> Expected:
    g.sound(3)
    g.path(2).write_bytes(PARTS[2][:20] + b"!" + PARTS[2][21:])
    return OK, g.ends[3], ""


@case("a flipped bit below the checkpoint and a torn end above it")
def _(g: Ground) -> Expected:
    g.sound(3)
    g.path(2).write_bytes(PARTS[2][:20] + b"!" + PARTS[2][21:] + raw_format.entry(b"more") + TORN)
    return OK, g.ends[3] + len(raw_format.entry(b"more")), ""


@case("a flipped bit in a sealed segment without a side file")
def _(g: Ground) -> Expected:
    g.sound()
    g.path(0).write_bytes(PARTS[0][:20] + b"!" + PARTS[0][21:])
    return OK, g.ends[3], ""


# --- missing bytes and files ------------------------------------------------------------------------------------------


@case("a segment in the middle is missing")
def _(g: Ground) -> Expected:
    g.sound()
    g.path(1).unlink()
    return READ_ONLY, g.ends[1], f"gap between segments: {g.path(0)}"


@case("a segment in the middle is missing below the checkpoint")
def _(g: Ground) -> Expected:
    g.sound(3)
    g.path(1).unlink()
    return READ_ONLY, g.ends[1], "gap"


@case("a segment in the middle is missing after a clean stop")
def _(g: Ground) -> Expected:
    g.sound(1)
    g.path(1).unlink()
    g.clean_end = g.ends[3]
    return READ_ONLY, g.ends[1], "gap"


@case("the newest segment is missing")
def _(g: Ground) -> Expected:
    g.sound(3)
    g.path(2).unlink()
    return READ_ONLY, g.ends[2], f"expected at least {g.ends[3]}"


@case("the newest segment is shorter than what was flushed")
def _(g: Ground) -> Expected:
    g.sound(3)
    g.path(2).write_bytes(PARTS[2][:-5])
    return READ_ONLY, g.ends[3] - ENTRY_BYTES, g.path(2).name


@case("the newest segment is empty though it was flushed")
def _(g: Ground) -> Expected:
    g.sound(3)
    g.path(2).write_bytes(b"")
    return READ_ONLY, g.ends[2], "expected at least"


@case("all segments are missing")
def _(g: Ground) -> Expected:
    logs.write_side_file(g.directory, 1000)
    return OFFLINE, None, "all segments are missing"


@case("all segments are missing after a clean stop")
def _(g: Ground) -> Expected:
    g.clean_end = 1000
    return OFFLINE, None, "all segments are missing"


@case("no segment, only what was quarantined")
def _(g: Ground) -> Expected:
    (g.directory / "00000000000000000000.kafka.1600000000000.truncated").write_bytes(PARTS[0])
    return OFFLINE, None, "other files"


@case("no segment, only files with another suffix")
def _(g: Ground) -> Expected:
    (g.directory / "00000000000000000000.seg").write_bytes(PARTS[0])
    return OFFLINE, None, "00000000000000000000.seg"


@case("segments 0 and 15, the first one empty")
def _(g: Ground) -> Expected:
    logs.segment_path(g.directory, 0).touch()
    logs.segment_path(g.directory, 15).write_bytes(PARTS[0])
    return OFFLINE, None, "gap"


@case("an empty segment in the middle")
def _(g: Ground) -> Expected:
    g.sound()
    g.path(1).write_bytes(b"")
    return READ_ONLY, g.ends[1], "gap"


@case("an empty newest segment beyond the end, no side file")
def _(g: Ground) -> Expected:
    g.sound()
    logs.segment_path(g.directory, g.ends[3] + 100).touch()
    return READ_ONLY, g.ends[3], "gap"


# --- overlaps ---------------------------------------------------------------------------------------------------------


@case("a segment holds more than the next one's name allows")
def _(g: Ground) -> Expected:
    g.sound(0)
    g.path(0).write_bytes(PARTS[0] + raw_format.entry(b"more"))
    return READ_ONLY, g.ends[1], "overlap"


@case("an empty segment inside another one")
def _(g: Ground) -> Expected:
    g.sound(3)
    logs.segment_path(g.directory, g.ends[2] + ENTRY_BYTES).touch()
    return READ_ONLY, g.ends[2] + ENTRY_BYTES, "overlap"


@case("a segment inside another one, not at a message")
def _(g: Ground) -> Expected:
    g.sound(0)
    logs.segment_path(g.directory, g.ends[2] + ENTRY_BYTES + 3).write_bytes(PARTS[0])
    return READ_ONLY, g.ends[2] + ENTRY_BYTES, "overlap"


@case("two names for the first offset")
def _(g: Ground) -> Expected:
    g.sound(3)
    (g.directory / "0.kafka").write_bytes(PARTS[0])
    return OFFLINE, None, "overlap"


@case("two names for the first offset, one file empty")
def _(g: Ground) -> Expected:
    g.sound(3)
    (g.directory / "0.kafka").touch()
    return OFFLINE, None, "overlap"


@case("two names for the newest offset")
def _(g: Ground) -> Expected:
    g.sound(3)
    (g.directory / f"{g.ends[2]}.kafka").write_bytes(PARTS[2])
    return READ_ONLY, g.ends[2], "overlap"


# --- other things with a segment's name -------------------------------------------------------------------------------


@case("a directory with a segment's name")
def _(g: Ground) -> Expected:
    g.sound(3)
    g.path(3).mkdir()
    return OFFLINE, None, g.path(3).name


@case("a symbolic link with a segment's name")
def _(g: Ground) -> Expected:
    g.sound(3)
    g.path(3).symlink_to(g.path(0))
    return OFFLINE, None, "not a regular file"


@case("a symbolic link to itself")
def _(g: Ground) -> Expected:
    g.sound(3)
    g.path(3).symlink_to(g.path(3))
    return OFFLINE, None, "not a regular file"


@case("a symbolic link to nothing")
def _(g: Ground) -> Expected:
    g.sound(3)
    g.path(3).symlink_to("nowhere")
    return OFFLINE, None, "not a regular file"


@case("a fifo")
def _(g: Ground) -> Expected:
    g.sound(3)
    os.mkfifo(g.path(3))
    return OFFLINE, None, "not a regular file"


@case("a socket")
def _(g: Ground) -> Expected:
    g.sound(3)
    here = os.open(g.directory, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(f"/proc/self/fd/{here}/{g.path(3).name}")  # the whole path may be longer than an address
    os.close(here)
    return OFFLINE, None, "not a regular file"


@case("offsets that leave 64 bits")
def _(g: Ground) -> Expected:
    logs.write_segments(g.directory, [PARTS[0]], base=2**63 - 10)
    return OFFLINE, None, "64 bits"


# --- permissions and failing disks ------------------------------------------------------------------------------------


@case("the directory cannot be listed")
def _(g: Ground) -> Expected:
    g.sound(3)
    g.files.deny("t-0")
    return OFFLINE, None, "t-0: Permission denied"


@case("the newest segment cannot be opened")
def _(g: Ground) -> Expected:
    g.sound(3)
    g.files.deny(g.path(2).name)
    return OFFLINE, None, f"{g.path(2).name}: Permission denied"


@case("the newest segment cannot be opened after a clean stop")
def _(g: Ground) -> Expected:
    g.sound(3)
    g.clean_end = g.ends[3]
    g.files.deny(g.path(2).name, errno.EROFS)
    return OFFLINE, None, "Read-only file system"


@case("a segment with an 11-digit name cannot be renamed")
def _(g: Ground) -> Expected:
    g.sound(3)
    g.path(0).rename(g.directory / f"{0:011}.kafka")
    g.files.fail("rename", 1, errno.EACCES)
    return OFFLINE, None, "Permission denied"


@case("the disk fails while it is read")
def _(g: Ground) -> Expected:
    g.sound()
    g.files.fail("read", 1, errno.EIO)
    return OFFLINE, None, f"{g.path(2).name}: Input/output error"


@case("the disk fails at the flush")
def _(g: Ground) -> Expected:
    g.sound(3)
    g.files.fail("fdatasync", 1, errno.EIO)
    return OFFLINE, None, "Input/output error"


@case("the disk is full when the tail is quarantined")
def _(g: Ground) -> Expected:
    g.sound(3)
    g.path(2).write_bytes(PARTS[2] + raw_format.entry(b"more") + TORN)
    g.files.fail("write", 1, errno.ENOSPC)
    return READ_ONLY, g.ends[3] + len(raw_format.entry(b"more")), "cannot be quarantined: No space left"
