"""What a power loss can leave, worked out from the file calls that were made: every moment, every order, every choice.

Bytes survive that a sync of their file came after, names that a sync of their directory came after. Of the others each
may be there or not, written bytes also in half or as zeros (assumptions A1 to A6 of ``docs/crash-safety.md``).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fastlog.log.files import FILE_MODE, FileOps
from tests.harness.calls import Call


class Step(NamedTuple):
    """One call that changes files or makes them durable; ``note`` is none, but a moment that a test wants to find."""

    kind: str  # create, write, cut, sync, names, rename, unlink, mkdir, note
    path: Path
    position: int = 0
    data: bytes = b""
    new: Path = Path()

    @property
    def short(self) -> str:
        return f"{self.kind} {self.path.name}" + (f" {self.new.name}" if self.kind == "rename" else "")


class WrittenDown(FileOps):
    """File calls that are made, and remembered as steps."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def note(self, text: str) -> None:
        """Note a moment, so that a failing test can name it."""
        self.steps.append(Step("note", Path(text)))

    @contextlib.contextmanager
    def open(self, path: Path, flags: int, mode: int = FILE_MODE) -> Iterator[int]:
        missing = not os.path.lexists(path)
        with super().open(path, flags, mode) as fd:
            if flags & os.O_CREAT and missing:
                self.steps.append(Step("create", path))
            if flags & os.O_TRUNC:
                self.steps.append(Step("cut", path))
            yield fd

    def write_all(self, fd: int, data: bytes | memoryview, position: int) -> None:
        super().write_all(fd, data, position)
        self.steps.append(Step("write", _path(fd), position, bytes(data)))

    def fdatasync(self, fd: int) -> None:
        self.steps.append(Step("sync", _path(fd)))

    def fsync_dir(self, path: Path) -> None:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
        self.steps.append(Step("names", path))

    def ftruncate(self, fd: int, size: int) -> None:
        super().ftruncate(fd, size)
        self.steps.append(Step("cut", _path(fd), size))

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self.steps.append(Step("rename", old, new=new))

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self.steps.append(Step("unlink", path))

    def mkdir(self, path: Path) -> None:
        super().mkdir(path)
        self.steps.append(Step("mkdir", path))

    def rmdir(self, path: Path) -> None:
        super().rmdir(path)
        self.steps.append(Step("unlink", path))


def _path(fd: int) -> Path:
    return Path(f"/proc/self/fd/{fd}").readlink()


KINDS = {"pwrite": "write", "ftruncate": "cut", "fdatasync": "sync", "fsync": "names", "rename": "rename"}


def steps_of(calls: Sequence[Call]) -> list[Step]:
    """The steps of compiled code; written bytes are those that the files hold now. Points are notes."""
    steps = []
    for call in calls:
        if "." in call.name:
            steps.append(Step("note", Path(call.name)))
        elif call.result < 0:
            continue
        elif call.makes:
            steps.append(Step("create", call.path))
        elif call.name == "pwrite":
            data = call.path.read_bytes()[call.position : call.position + call.result]
            steps.append(Step("write", call.path, call.position, data))
        elif call.name in KINDS:
            steps.append(Step(KINDS[call.name], call.path, call.position, new=call.new_path))
    return steps


Names = dict[str, int]


@dataclass
class _File:
    durable: bytes = b""
    pending: list[Step] = field(default_factory=list)


@dataclass
class _Directory:
    durable: Names = field(default_factory=dict)
    pending: list[tuple[str, str, int]] = field(default_factory=list)  # what, name, number of the file or directory

    def now(self) -> Names:
        return _named(self.durable, self.pending)


def _named(before: Names, changes: Sequence[tuple[str, str, int]]) -> Names:
    names = dict(before)
    for what, name, number in changes:
        if what == "gone":
            names.pop(name, None)
        elif what.startswith("from "):  # one step: the old name goes as the new one comes
            names.pop(what.removeprefix("from "), None)
            names[name] = number
        else:
            names[name] = number
    return names


class Left(NamedTuple):
    """What is left on the disk after so many steps, and which choice that is."""

    after: int
    choice: str
    files: dict[str, bytes | None]  # by path below the root; None is a directory

    def put(self, root: Path) -> None:
        """Make a directory hold this and nothing else."""
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        for name, data in self.files.items():
            if data is None:
                (root / name).mkdir(parents=True, exist_ok=True)
            else:
                (root / name).write_bytes(data)


class Disk:
    """The disk below a directory; everything that is there when it is made is durable."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: dict[int, _File] = {}
        self._directories: dict[int, _Directory] = {}
        self._count = 0
        self._top = self._take(root)

    def _number(self) -> int:
        self._count += 1
        return self._count

    def _take(self, path: Path) -> int:
        number = self._number()
        if path.is_dir():
            self._directories[number] = _Directory({item.name: self._take(item) for item in path.iterdir()})
        else:
            self._files[number] = _File(path.read_bytes())
        return number

    def _find(self, path: Path) -> int | None:
        number: int | None = self._top
        for part in path.relative_to(self._root).parts:
            number = None if number is None else self._directories[number].now().get(part)
        return number

    def _parent(self, path: Path) -> _Directory:
        number = self._find(path.parent)
        assert number is not None, path
        return self._directories[number]

    def unsynced(self, path: Path, position: int) -> None:
        """What a file holds from a position on was written just before, and never synced."""
        number = self._find(path)
        assert number is not None
        file = self._files[number]
        file.pending.append(Step("write", path, position, file.durable[position:]))
        file.durable = file.durable[:position]

    def unnamed(self, path: Path) -> None:
        """A name was given just before, and its directory never synced."""
        directory = self._parent(path)
        directory.pending.append(("is", path.name, directory.durable.pop(path.name)))

    def do(self, step: Step) -> None:
        """Carry out one step."""
        if step.kind == "note" or not step.path.is_relative_to(self._root):
            return
        if step.kind == "names":
            number = self._find(step.path)
            assert number is not None
            directory = self._directories[number]
            directory.durable, directory.pending = directory.now(), []
            return
        number = self._find(step.path)
        parent = self._parent(step.path)
        if step.kind in ("create", "mkdir"):
            if number is None:
                number = self._number()
                if step.kind == "create":
                    self._files[number] = _File()
                else:
                    self._directories[number] = _Directory()
                parent.pending.append(("is", step.path.name, number))
            return
        assert number is not None, step
        if step.kind == "rename":
            assert step.new.parent == step.path.parent
            parent.pending.append((f"from {step.path.name}", step.new.name, number))
        elif step.kind == "unlink":
            parent.pending.append(("gone", step.path.name, number))
        elif step.kind == "sync":
            file = self._files[number]
            file.durable, file.pending = _written(file.durable, file.pending), []
        else:
            file = self._files[number]
            if step.kind == "write" and not any(one.kind == "cut" for one in file.pending):
                # flushed bytes stay as they are while the same ones are written over them
                there = file.durable[step.position :]
                same = next((at for at, byte in enumerate(step.data) if there[at : at + 1] != bytes([byte])), None)
                same = len(step.data) if same is None else same
                step = step._replace(position=step.position + same, data=step.data[same:])
            if step.data or step.kind == "cut":
                file.pending.append(step)

    def left(self, after: int) -> Iterator[Left]:
        """What a power loss may leave now: nothing or all of what is pending, each alone, all but each, half, zeros."""
        pending = [(number, at) for number, file in self._files.items() for at in range(len(file.pending))]
        pending += [(number, at) for number, item in self._directories.items() for at in range(len(item.pending))]
        every = frozenset(pending)
        choices = {frozenset[tuple[int, int]](): "nothing", every: "all"}
        for one in pending:
            choices.setdefault(frozenset([one]), f"only {self._said(one)}")
            choices.setdefault(every - {one}, f"all but {self._said(one)}")
        for number in self._directories:
            kept = frozenset(one for one in pending if one[0] != number)
            choices.setdefault(kept, "all bytes and no names of a directory")
            choices.setdefault(every - kept, "names of a directory alone")
        for chosen, said in choices.items():
            yield Left(after, said, self._tree(chosen))
        for one in pending:
            if one[0] in self._files and self._files[one[0]].pending[one[1]].kind == "write":
                for spoil in ("half", "zeros"):
                    yield Left(after, f"{spoil} of {self._said(one)}", self._tree(every, one, spoil))

    def _said(self, one: tuple[int, int]) -> str:
        number, at = one
        if number in self._files:
            return self._files[number].pending[at].short
        return " ".join(map(str, self._directories[number].pending[at]))

    def _tree(
        self, chosen: frozenset[tuple[int, int]], spoiled: tuple[int, int] = (0, 0), spoil: str = ""
    ) -> dict[str, bytes | None]:
        tree: dict[str, bytes | None] = {}

        def add(number: int, name: str) -> None:
            if number in self._files:
                file = self._files[number]
                steps = [
                    _spoiled(step, spoil) if (number, at) == spoiled else step
                    for at, step in enumerate(file.pending)
                    if (number, at) in chosen
                ]
                tree[name] = _written(file.durable, steps)
                return
            directory = self._directories[number]
            if name:
                tree[name] = None
            changes = [change for at, change in enumerate(directory.pending) if (number, at) in chosen]
            for below, inner in _named(directory.durable, changes).items():
                add(inner, f"{name}/{below}" if name else below)

        add(self._top, "")
        return tree


def _spoiled(step: Step, spoil: str) -> Step:
    if spoil == "half":
        return step._replace(data=step.data[: len(step.data) // 2])
    return step._replace(data=bytes(len(step.data)))


def _written(before: bytes, steps: Sequence[Step]) -> bytes:
    data = bytearray(before)
    for step in steps:
        if step.kind == "cut":
            data[step.position :] = bytes(max(step.position - len(data), 0))
        else:
            data.extend(bytes(max(step.position - len(data), 0)))
            data[step.position : step.position + len(step.data)] = step.data
    return bytes(data)


def after_power_loss(
    disk: Disk, steps: Sequence[Step], promised: Callable[[int], object] = lambda after: None
) -> Iterator[Left]:
    """Everything that a power loss can leave before the first of the steps, behind the last, and between any two.

    ``promised`` says what must be there behind so many steps: what is left twice is given once for each promise.
    """
    seen = set()
    disk = deepcopy(disk)
    for number in range(len(steps) + 1):
        if number:
            disk.do(steps[number - 1])
        for left in disk.left(number):
            key = (promised(number), number == len(steps), *sorted(left.files.items()))
            if key not in seen:
                seen.add(key)
                yield left
