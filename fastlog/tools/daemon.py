"""Starting a server in the background, and ending one that runs: ``--daemon`` and ``--stop``.

A server holds the lock of its directory as long as one of its processes runs, and the file has the id of the first.
That one is asked to stop if it has the file open: an id that was left by an earlier start may be anybody's by now.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

from fastlog.broker import pids_with
from fastlog.errors import FastlogError
from fastlog.tools import signals
from fastlog.tools.report import EXIT_FAILED, CommandError, discard_output, note, say_error

_STOP_SECONDS = 75.0
"""More than a broker takes that waits for a disk: the supervisor's STALLED_STOP_SECONDS and STOP_SECONDS."""
_ENTRY_SECONDS = 0.1
"""What it may take besides for each partition: WORK_SECONDS."""
_LOOK_SECONDS = 0.02
_SHOWN_LINES = 20
_READY = ("fastlog-broker: ready", "ready:")

Start = Callable[[Callable[[], None]], int]
"""Runs a server to its end and returns the exit code; calls what it is given once it is ready."""


def start(run: Start, output: Path, name: str, how_to_stop: str) -> int:
    """Return 0 when a server in the background is ready, and its exit code when it ends before.

    What it says is appended to ``output``; the line in which it is ready is shown here too, or, if it does not get so
    far, what it said. ``name`` begins its errors. For a process with one thread.

    Raises:
        OSError: ``output`` cannot be written.
        signals.Interrupted: a signal came; it is stopped, too.
    """
    heard, told = os.pipe2(os.O_CLOEXEC)
    with output.open("ab") as file, output.open("rb") as said:
        said.seek(0, os.SEEK_END)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _run(run, file.fileno(), told, name)
        os.close(told)
        try:
            is_ready = bool(os.read(heard, 1))  # nothing: all of its processes are gone
        except signals.Interrupted:
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
            raise
        finally:
            os.close(heard)
        lines = said.read().decode(errors="replace").splitlines()
    if is_ready:
        note("\n".join(line for line in lines if line.startswith(_READY)))
        note(f"in the background; what it says is in {output}; {how_to_stop} ends it")
        return 0
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    note("\n".join(lines[-_SHOWN_LINES:]))
    return code if code > 0 else EXIT_FAILED


def _run(run: Start, output: int, told: int, name: str) -> None:
    """The life of the process in the background; never returns."""
    code = EXIT_FAILED
    try:
        os.setsid()
        discard_output(0)
        for descriptor in (1, 2):
            os.dup2(output, descriptor)

        def ready() -> None:
            os.write(told, b"r")
            os.close(told)

        code = run(ready)
    except FastlogError as error:
        code = say_error(error, name)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def stop(lock: Path, what: str) -> None:
    """Ask whoever holds a lock file to stop, as Ctrl-C does, and return when the lock is free, or somebody else's.

    Raises:
        CommandError: nobody holds it, or it is still held after ``_STOP_SECONDS`` and what partitions may take.
    """
    if not is_held(lock):
        raise CommandError(
            f"no {what} runs on {lock.parent}", "nobody holds the lock on it", "see that it is the directory meant"
        )
    allowed, begun = _allowed([lock.parent]), time.monotonic()
    asked = 0
    while is_held(lock):
        if not asked and (asked := holder(lock)):
            allowed = _allowed(_directories(asked, lock))
            os.kill(asked, signal.SIGTERM)
        if asked and not Path(f"/proc/{asked}").exists() and (other := holder(lock)):
            note(f"stopped: process {asked}; process {other} has been started since")
            return
        if time.monotonic() > begun + allowed:
            raise CommandError(
                f"the {what} on {lock.parent} has not stopped within {allowed:.0f} s",
                f"process {asked} was told to" if asked else "its processes cannot be seen from here",
                "see what its log says; if it is another user's, run this as that user or as root",
            )
        time.sleep(_LOOK_SECONDS)
    note(f"stopped: process {asked}")


def _allowed(directories: Iterable[Path]) -> float:
    """How long a stop may take where these are the server's directories."""
    return _STOP_SECONDS + _ENTRY_SECONDS * sum(1 for path in directories for _ in path.iterdir())


def _directories(pid: int, lock: Path) -> set[Path]:
    """All directories whose locks a process has open: the command that stops it may have been given one of them."""
    found = {lock.parent.resolve()}
    for item in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = item.readlink()
            if target.name == lock.name and target.parent.is_dir():
                found.add(target.parent)
    return found


def holder(lock: Path) -> int:
    """The process whose id is in the lock file, if it has that file open; 0 while a start has not got there yet."""
    line = lock.read_bytes()[:20].partition(b"\n")[0]
    pid = int(line) if line.isdigit() else 0
    return pid if pid in pids_with(lock) else 0


def is_held(lock: Path) -> bool:
    """Whether a server holds a lock file. Raises ``OSError`` where that cannot be seen."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
