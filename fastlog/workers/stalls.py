"""Why a process is silent: it waits for a disk, it gets no processor time, or it could run and does not.

Only the last is a reason to replace it. A process in a call to a stalled disk (a frozen file system, a failing drive)
cannot be replaced: its memory, its sockets and its locks go only when the call comes back, and then what it would have
written is lost for nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from fastlog import segment_files
from fastlog.log._arena import Arena

STALL_SECONDS = 1.0
"""A call to a disk that takes as long is said, and prolongs a stop."""
LOOP_SECONDS = 1.0
"""So much processor time of its own brings every loop around, however little of a second it is given."""
_STATE, _USER_TICKS, _SYSTEM_TICKS = 0, 11, 12
"""Places behind the name of the program in ``/proc/PID/stat``."""


class Sighting(NamedTuple):
    """What the kernel says of a process at one moment."""

    state: str
    """Of its main thread, which runs the loop: one letter, as in ``/proc/PID/stat``."""
    in_disk: bool
    """Whether a thread of it is in uninterruptible sleep."""
    ticks: int
    """Processor time of the main thread so far."""


def parse_stat(text: str) -> tuple[str, int]:
    """State and processor time from the line of a thread's ``stat``; the program's name may hold anything."""
    fields = text.rpartition(")")[2].split()
    return fields[_STATE], int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])


def look_at(pid: int) -> Sighting | None:
    """What the kernel says of this process now; None when it is gone."""
    threads = Path(f"/proc/{pid}/task")
    try:
        state, ticks = parse_stat((threads / str(pid) / "stat").read_text())
        in_disk = any(parse_stat((thread / "stat").read_text())[0] == "D" for thread in threads.iterdir())
    except (OSError, IndexError, ValueError):
        return None
    return Sighting(state, in_disk, ticks)


def is_dying(pid: int) -> bool:
    """Whether the main thread of a child is dead: its parent learns of it when the last of its threads is gone."""
    seen = look_at(pid) if pid else None
    return seen is not None and seen.state in "ZX"


def disk_wait(arena: Arena, number: int, now_ns: int) -> float:
    """Seconds that a process has been waiting for a disk; 0.0 when it does not, or not for ``STALL_SECONDS``.

    It says so itself where it writes. Of other calls the kernel knows, and is asked only when the process is silent.
    """
    pid, beat_ns, *_ = arena.cell(number)
    since_ns = arena.disk_since(number)
    silent = (now_ns - (since_ns or beat_ns)) / 1e9
    if not pid or silent < STALL_SECONDS:
        return 0.0
    seen = look_at(pid)
    if seen is None or seen.state in "Tt":
        return 0.0
    return silent if since_ns or seen.in_disk else 0.0


def gets_no_time(asked: Sighting | None, now: Sighting | None) -> bool:
    """Whether a process wants to run, and since it was asked for a sign has had less than ``LOOP_SECONDS`` to do so."""
    if asked is None or now is None or now.state != "R":
        return False
    return now.ticks - asked.ticks < LOOP_SECONDS * os.sysconf("SC_CLK_TCK")


def what_it_writes(arena: Arena, number: int) -> str:
    """The partition whose append lock a silent process holds, and where it lies; empty: none."""
    holding = arena.cell(number)[4]
    view = arena.shown_view(holding - 1) if holding else None
    if view is None:  # it holds none, or one that is being deleted
        return ""
    name = segment_files.partition_directory_name(view.topic, view.partition)
    directory = Path(arena.log_dirs[view.directory], name)
    return f" topic={view.topic!r} partition={view.partition} path={directory}"
