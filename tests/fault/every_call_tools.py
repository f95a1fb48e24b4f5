"""Programs besides the broker whose files somebody goes on from: each of their disk calls fails once, one at a time.

The repair of ``fastlog fsck``, the offsets of a group that are kept in a file, and the names of a broker's
starts. Run by ``every_call_program``; each try is a process of its own, forked.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fastlog.consumer.offsets import FileOffsets
from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import CoordinationError
from fastlog.log.creators import add_creator
from fastlog.log.files import FileOps
from fastlog.tools.fsck import fsck_command
from fastlog.tools.report import EXIT_DONE
from fastlog.zkpaths import PartitionId
from tests.fault.every_call_rules import TORN, errors, sort_of
from tests.harness import logs, raw_format
from tests.harness.disk_shim import Shim

_PARTITION = TopicPartition("t", PartitionId(1, 0))
_GOOD = [raw_format.entry(b"part %d " % number * 5) * 4 for number in range(3)]
_PLACE = len(_GOOD[1]) // 4 + 20
_BAD = _GOOD[1][:_PLACE] + b"?" + _GOOD[1][_PLACE + 1 :]
_DAMAGED = [_GOOD[0], _BAD, _GOOD[2] + _GOOD[0][:9]]
_BASES = [0, len(_GOOD[0]), len(_GOOD[0]) + len(_BAD)]
_KEPT = _GOOD[0] + _GOOD[1][: len(_BAD) // 4]
"""What is whole before the damage, which is in the second message of the second segment."""
_FAILED = 3
# Program, call, file and error, as in every_call_rules.
_MAY_PASS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\S+ (stat|fstat|access|close|utime|statfs) \S* \S+",
        r"offsets mkdir \S* \S+",  # the directory is there
        r"fsck (open|pwrite) \.fastlog-flushing ENOSPC",  # an empty file is a mark, too
        r"fsck (open|fdatasync) P/N\.kafka \S+",  # a segment that leaves a log need not be synced for it
    )
)


class Tool(NamedTuple):
    """What is there first, what the program does (its exit code: 0 it says so), and what is wrong afterwards."""

    name: str
    prepare: Callable[[Path], None]
    work: Callable[[Path], int]
    wrong: Callable[[Path, bool], str]


def _damaged(directory: Path) -> None:
    logs.write_segments(directory / "t-0", _DAMAGED)


def _repair(directory: Path) -> int:
    code = fsck_command.main([str(directory), "--repair", "--keep", "before", "--no-progress"], standalone_mode=False)
    return 0 if code == EXIT_DONE else _FAILED


def _not_repaired(directory: Path, done: bool) -> str:
    """Never a byte less than before, and whole where the program says so."""
    before = {f"{base:020}.kafka": data for base, data in zip(_BASES, _DAMAGED, strict=True)}
    after = logs.contents(directory / "t-0")
    lost = logs.lost_bytes(before, after)
    if lost:
        return f"of {lost} bytes are gone: { {name: len(data) for name, data in after.items()} }"
    kept = b"".join(data for name, data in after.items() if name.endswith(".kafka"))
    return "it says that all is well" if done and kept != _KEPT else ""


def _commit(directory: Path) -> int:
    store = FileOffsets(directory)
    try:
        store.load("g", _PARTITION)
        store.save("g", {_PARTITION: 2000})
    except CoordinationError as error:
        print(error)
        return _FAILED
    return 0


def _committed(directory: Path) -> None:
    store = FileOffsets(directory)
    store.load("g", _PARTITION)
    store.save("g", {_PARTITION: 1000})


def _not_committed(directory: Path, done: bool) -> str:
    try:
        offset = FileOffsets(directory).load("g", _PARTITION)
    except CoordinationError as error:
        return f"the file is damaged: {error}"
    return "" if offset in ((2000,) if done else (1000, 2000)) else f"the offset is {offset}"


def _known(directory: Path) -> None:
    add_creator(directory, "host-1", FileOps())


def _creator(directory: Path) -> int:
    add_creator(directory, "host-2", FileOps())
    return 0


def _not_known(directory: Path, done: bool) -> str:
    former = add_creator(directory, "host-3", FileOps())
    return "" if {*former} <= {"host-1", "host-2", "host-3"} else f"earlier ones are {former}"


TOOLS = (
    Tool("fsck", _damaged, _repair, _not_repaired),
    Tool("offsets", _committed, _commit, _not_committed),
    Tool("creators", _known, _creator, _not_known),
)


class Tries:
    """Each call of each program, with each error that it may have."""

    def __init__(self, directory: Path, shim: Shim) -> None:
        self._directory = directory
        self._shim = shim
        self.runs = 0
        self.violations: list[str] = []
        self.missed: list[object] = []

    def run(self, action: Callable[[str], int], count: int, seed: int) -> None:
        """``count`` of them, or all that there are."""
        found = []
        for tool in TOOLS:
            code, said = self._try(tool, None)
            if code or tool.wrong(self._directory / "data", True):
                self.violations.append(f"{tool.name}: {code} without a fault: {said}")
            for (_, kind), made in self._shim.counts().items():
                found += [(tool, kind, number, error) for number in range(1, made + 1) for error in errors(kind)]
        random.Random(seed).shuffle(found)
        for tool, kind, number, error in [each for each in found if each[3] != TORN][:count]:
            self._one(tool, kind, number, error, action(error))

    def _one(self, tool: Tool, kind: str, number: int, error: str, action: int) -> None:
        """One try, and another one without a fault."""
        name = f"{tool.name}: {kind} {number} {error}"
        code, said = self._try(tool, ("tool", kind, number, action))
        met = self._shim.fired(0)
        self._shim.disarm(0)
        self.runs += 1
        if met is None:
            self.missed.append(name)
            return
        data = self._directory / "data"
        case = f"{tool.name} {kind} {sort_of(met)} {error}"
        found = [tool.wrong(data, code == 0 and tool.name != "creators")]
        if error in ("EINTR", "short"):
            found.append(f"not gone on with: {said}" if code else "")
        elif code == 0 and os.strerror(action) not in said and not any(each.fullmatch(case) for each in _MAY_PASS):
            found.append(f"nobody noticed: {said}")
        again, said = self._fork(tool)
        left = sorted(path.name for path in data.rglob("*") if path.name.endswith((".tmp", ".new")))
        found += [f"the next time it ends with {again}: {said}" if again else "", f"{left} are left" if left else ""]
        found.append(tool.wrong(data, True))
        self.violations += [f"{name} ({met}): {wrong}" for wrong in found if wrong]

    def _try(self, tool: Tool, fault: tuple[str, str, int, int] | None) -> tuple[int, str]:
        data = self._directory / "data"
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir(parents=True)
        tool.prepare(data)
        self._shim.begin(data)
        if fault is not None:
            self._shim.arm(0, *fault)
        return self._fork(tool)

    def _fork(self, tool: Tool) -> tuple[int, str]:
        said = self._directory / "said"
        pid = os.fork()
        if pid == 0:
            code = 1
            with contextlib.suppress(BaseException):
                out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(out, 1)
                os.dup2(out, 2)
                self._shim.watch("tool")
                try:
                    code = tool.work(self._directory / "data")
                except BaseException:
                    traceback.print_exc()
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return code, said.read_text(errors="replace")
