"""Processes that stand still at a named point of the code (``FASTLOG_FAULTS``) until a test lets them go on.

A point lies between two steps, so whatever other processes do meanwhile happens between these two: no chance is needed.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fastlog.log import _files
from tests.harness.timing import PATIENCE


class StoppedProcess:
    """A forked process that stands at a point of its work; ``stopped_at`` makes it."""

    def __init__(self, work: Callable[[], Any], rules: str) -> None:
        self._result, child_end = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            _do_and_tell(work, rules, child_end)
        os.close(child_end)
        self._running = True

    def wait_for_stop(self) -> None:
        """Return once it stands at its next point; one that ends before fails the test."""
        status = self._wait(os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"ended with {os.waitstatus_to_exitcode(status)} before the point: {self._told()}"

    def go_on(self) -> Any:
        """Let it run to its end; what the work returned, or its exception raised here."""
        os.kill(self.pid, signal.SIGCONT)
        status = self._wait(0)
        assert status == 0, f"ended with {os.waitstatus_to_exitcode(status)}"
        result, error = self._told()
        if error is not None:
            raise error
        return result

    def go_on_to_next(self) -> None:
        """Let it run to its next point."""
        os.kill(self.pid, signal.SIGCONT)
        self.wait_for_stop()

    def kill(self) -> None:
        """SIGKILL, which a process that stands still gets too; it is gone on return. Nothing when it was gone."""
        if self._running:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._running = False

    def _wait(self, options: int) -> int:
        deadline = time.monotonic() + PATIENCE
        while True:
            done, status = os.waitpid(self.pid, options | os.WNOHANG)
            if done:
                self._running = os.WIFSTOPPED(status)
                return status
            assert time.monotonic() < deadline, f"pid {self.pid} neither came to its point nor to its end"
            time.sleep(0.0005)

    def _told(self) -> tuple[Any, BaseException | None]:
        with os.fdopen(self._result, "rb") as pipe:
            self._result = -1
            told: tuple[Any, BaseException | None] = pickle.loads(pipe.read() or pickle.dumps((None, None)))
            return told

    def close(self) -> None:
        """End the process; it is gone on return."""
        self.kill()
        if self._result >= 0:
            os.close(self._result)


def _do_and_tell(work: Callable[[], Any], rules: str, pipe: int) -> None:
    told: tuple[Any, BaseException | None] = (None, None)
    try:
        _files.arm(rules, "test")
        told = (work(), None)
    except BaseException as error:
        told = (None, error)
    finally:
        with contextlib.suppress(OSError):
            os.write(pipe, pickle.dumps(told))
        os._exit(0)


@contextlib.contextmanager
def stopped_at(rules: str, work: Callable[[], Any]) -> Iterator[StoppedProcess]:
    """Do ``work`` in a forked process that stands at a point for the length of the block, or until it may go on.

    ``rules`` are the names of points, divided by commas, where it stops once each; ``name@n`` is the n-th time, and
    what has an ``=`` is any rule of ``FASTLOG_FAULTS``.
    """
    parts = [rule if "=" in rule else f"{rule}=stop" if "@" in rule else f"{rule}@1=stop" for rule in rules.split(",")]
    process = StoppedProcess(work, ",".join(parts))
    try:
        process.wait_for_stop()
        yield process
    finally:
        process.close()


def stands_still(pid: int) -> bool:
    """Whether a process has stopped: one of a broker, for example, that met a rule of its environment."""
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False
