"""What ``/proc`` says of processes, and waiting for it to change."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def _fields(pid: int) -> list[str] | None:
    try:
        # The name in brackets may hold anything; what follows the last bracket does not.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return None


def start_time(pid: int) -> int | None:
    """When the process was started, in the kernel's ticks; None when there is none, or only its exit code is left."""
    fields = _fields(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def state(pid: int) -> str:
    """The letter for what a process does, ``X`` when there is none."""
    fields = _fields(pid)
    return fields[0] if fields else "X"


def wait_until(condition: Callable[[], bool], seconds: float, what: str = "") -> None:
    """Return once the condition holds; raise ``TimeoutError`` with the text ``what`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.002)
