"""What compiled code did with files, and which named points it reached, in order: ``_files.record`` read back."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fastlog.log import _files

NAMES = {number: name for name, number in _files.OPS.items()}


class Call(NamedTuple):
    """One call, or with a dot in its name a point; what a call has not is 0 or empty."""

    name: str
    path: Path = Path()
    position: int = 0
    size: int = 0
    result: int = 0
    new_path: Path = Path()
    pid: int = 0

    @property
    def short(self) -> str:
        """What and with which file, in words of a test."""
        return f"{self.name} {self.path.name}".strip()

    @property
    def makes(self) -> bool:
        """Whether it is an open that may make the file."""
        return self.name == "open" and bool(self.size & os.O_CREAT)


def read_calls(path: Path) -> list[Call]:
    """The calls that a record holds so far."""
    calls = []
    for line in path.read_text().splitlines():
        pid, number, position, size, result, name, new = line.split("\t")
        calls.append(Call(NAMES[int(number)], Path(name), int(position), int(size), int(result), Path(new), int(pid)))
    return calls


@contextlib.contextmanager
def recorded_calls(directory: Path) -> Iterator[list[Call]]:
    """A list that is filled when the block has ended, of what this process and its forks did in it."""
    path = directory / "calls.txt"
    calls: list[Call] = []
    _files.record(str(path))
    try:
        yield calls
    finally:
        _files.record(None)
        calls += read_calls(path)
        path.unlink()
