"""Every call of a program that reaches files below one directory: counted, recorded, and one of them made to fail.

``disk_shim.c`` stands between the program and the C library, below everything that the program might do about an error:
a call that it interrupts is one that the program itself has to try again. The calls are those of the library by name,
whoever makes them: Python's own, those of the compiled modules, those of a library.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SHORT = -1
KILL = -2
SOURCE = Path(__file__).with_suffix(".c")
CONTROL_VARIABLE = "DISK_SHIM_CONTROL"
RULES = 5
_PATH_BYTES = 4096
_NAME_BYTES = 80
_RECORDS = 16384


class Call(NamedTuple):
    """One call that was made: by a process, under a role, the ``number``-th of its kind there."""

    pid: int
    role: str
    kind: str
    number: int
    action: int
    name: str


def build(directory: Path) -> Path:
    """Compile the shim into a directory, unless it is there already; return the library."""
    library = directory / "disk_shim.so"
    if not library.exists():
        compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
        command = [*compiler.split(), "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"]
        alone = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # as of a sanitizer
        subprocess.run(command, check=True, capture_output=True, text=True, env=alone)
    return library


def environment(library: Path, control: Path) -> dict[str, str]:
    """What a program needs in its environment to run behind the shim; another one that is preloaded stays first."""
    preloaded = os.environ.get("LD_PRELOAD")
    return {
        **os.environ,
        "LD_PRELOAD": f"{preloaded}:{library}" if preloaded else str(library),
        CONTROL_VARIABLE: str(control),
    }


class _Record(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_int32),
        ("role", ctypes.c_int16),
        ("call", ctypes.c_int16),
        ("number", ctypes.c_int32),
        ("action", ctypes.c_int32),
        ("name", ctypes.c_char * _NAME_BYTES),
    ]


class _Rule(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("role", "call", "number", "action", "fired")),
        ("name", ctypes.c_char * _NAME_BYTES),
    ]


class Shim:
    """The shim of the process that runs behind it, and of all that it forks from then on."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)  # what is loaded already
        self._library.disk_calls.restype = self._library.disk_roles.restype = ctypes.c_char_p
        self.kinds: list[str] = self._library.disk_calls().decode().split()
        self.roles: list[str] = self._library.disk_roles().decode().split()

        class Control(ctypes.Structure):
            _fields_ = [
                ("root", ctypes.c_char * _PATH_BYTES),
                ("rules", _Rule * RULES),
                ("counts", ctypes.c_int32 * len(self.kinds) * len(self.roles)),
                ("record_count", ctypes.c_int32),
                ("records", _Record * _RECORDS),
            ]

        fd = os.open(os.environ[CONTROL_VARIABLE], os.O_RDWR)
        self._map = mmap.mmap(fd, ctypes.sizeof(Control))
        os.close(fd)
        self._control = Control.from_buffer(self._map)

    def begin(self, root: Path) -> None:
        """Count from zero, below this directory, without any rule. No process may be watched now."""
        ctypes.memset(ctypes.addressof(self._control), 0, ctypes.sizeof(self._control))
        self._control.root = bytes(root)
        self._library.disk_forget()

    def watch(self, role: str) -> None:
        """Watch the calling process under this role."""
        self._library.disk_role(role.encode())

    def arm(self, rule: int, role: str, kind: str, number: int, action: int) -> None:
        """Let the ``number``-th call of a kind that a role makes fail with an errno, be ``SHORT``, or ``KILL``."""
        control = self._control
        control.rules[rule] = _Rule(self.roles.index(role), self.kinds.index(kind), number, action)

    def disarm(self, rule: int) -> None:
        """Let no call fail by this rule any more."""
        self._control.rules[rule].action = 0

    def has_fired(self, rule: int) -> bool:
        """Whether that call has been made."""
        return bool(self._control.rules[rule].fired)

    def fired(self, rule: int) -> str | None:
        """The file that this call was about, below the root; None when it has not been made."""
        return self._control.rules[rule].name.decode(errors="replace") if self.has_fired(rule) else None

    def count(self, role: str, kind: str) -> int:
        """How many calls of a kind the processes of a role have made."""
        return int(self._control.counts[self.roles.index(role)][self.kinds.index(kind)])

    def counts(self) -> dict[tuple[str, str], int]:
        """The same for every role and kind that was seen."""
        every = ((role, kind) for role in self.roles for kind in self.kinds)
        return {each: count for each in every if (count := self.count(*each))}

    def calls(self) -> Iterator[Call]:
        """What was called, in order; the first ones, where there were more than are kept."""
        for place in range(min(self._control.record_count, _RECORDS)):
            item = self._control.records[place]
            name = item.name.decode(errors="replace")
            yield Call(item.pid, self.roles[item.role], self.kinds[item.call], item.number, item.action, name)


def make_control(path: Path) -> None:
    """Make the file that the shim shares with its harness; larger than what is in it."""
    with path.open("wb") as file:
        file.truncate(4 << 20)
