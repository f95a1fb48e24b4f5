"""The children of a supervisor, played: they begin, turn, die and leave as a test plans it, in virtual time.

The supervisor under test runs as it is, with a real arena; its calls of ``fork``, ``waitpid`` and ``kill`` come here.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fastlog import supervisor as supervisor_module
from fastlog.config import BrokerConfig
from fastlog.log._arena import Arena
from fastlog.log._shared_memory import (
    ACCEPTOR,
    COORDINATOR,
    FIRST_PROCESSOR,
    FLUSHER,
    KEEPER,
    STAGE_COORDINATOR,
    STAGE_FLUSHER,
    STAGE_KEEPER,
    STAGE_PROCESSORS,
    SUPERVISOR,
)
from fastlog.supervisor import Stop, Supervisor
from fastlog.workers import stalls
from fastlog.workers.child import MIRROR, Shared
from fastlog.workers.stalls import Sighting
from tests.harness.virtual_time import VirtualTime

NUMBERS = {
    "flusher": FLUSHER,
    "keeper": KEEPER,
    "acceptor": ACCEPTOR,
    "coordinator": COORDINATOR,
    "mirror": MIRROR,
}
STAGES = {"coordinator": STAGE_COORDINATOR, "flusher": STAGE_FLUSHER, "keeper": STAGE_KEEPER}
"""Of a stop; the others leave at the first."""
TURN_SECONDS = 0.125
_STARTED = re.compile(r"started role=(\S+) pid=(\d+)")


@dataclass
class Played:
    """A simulated process of the broker."""

    role: str
    pid: int
    started: float
    beats: bool = True
    hangs: bool = False
    """It does not leave when it is asked to."""
    unkillable: bool = False
    seen: Sighting = field(default_factory=lambda: Sighting("S", False, 10))
    status: int | None = None
    is_reaped: bool = False

    @property
    def number(self) -> int:
        return NUMBERS[self.role] if self.role in NUMBERS else FIRST_PROCESSOR + int(self.role.rpartition("-")[2])

    @property
    def stage(self) -> int:
        return STAGES.get(self.role, STAGE_PROCESSORS)


class Processes(VirtualTime):
    """A supervisor and its children. ``plan`` says of a role how its processes, one after the other, are to end."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        directory: Path,
        *,
        processors: int = 2,
        arena: Arena | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.arena = arena or Arena([str(directory)], FIRST_PROCESSOR + processors, 8, 16)
        config = BrokerConfig(log_dirs=(str(directory),), processors=processors, **settings)
        self.shared = Shared(config, self.arena, (), (), (), 64)
        self.plans: dict[str, list[tuple[float, int]]] = {}
        self.when_started: dict[str, Callable[[Played], object]] = {}
        self.when_said: dict[str, Callable[[], object]] = {}
        """What happens when the log says a line that begins so."""
        self.leave_seconds: dict[str, float] = {}
        self.leave_codes: dict[str, int] = {}
        self.all: list[Played] = []
        self.said: list[tuple[float, str]] = []
        self.signals: list[tuple[float, str, str]] = []
        self.stages: list[tuple[float, str, int]] = []
        """When a process left that was asked to, and the stage of the stop then."""
        self.strangers: list[tuple[int, int]] = []
        self.handlers: dict[int, Any] = {}
        self._wakeup = -1
        self._unnamed = 0
        real_os, real_signal = os, signal

        class Os:
            fork, kill, waitpid = staticmethod(self._fork), staticmethod(self._kill), staticmethod(self._waitpid)

            def __getattr__(self, name: str) -> Any:
                return getattr(real_os, name)

        class Signals:
            signal, set_wakeup_fd = staticmethod(self.handlers.__setitem__), staticmethod(self._set_wakeup_fd)

            def __getattr__(self, name: str) -> Any:
                return getattr(real_signal, name)

        monkeypatch.setattr(supervisor_module, "time", self)
        monkeypatch.setattr(supervisor_module, "select", self)
        monkeypatch.setattr(supervisor_module, "os", Os())
        monkeypatch.setattr(supervisor_module, "signal", Signals())
        self.collections: list[str] = []
        collector = {name: lambda name=name: self.collections.append(name) for name in ("collect", "freeze")}
        monkeypatch.setattr(supervisor_module, "gc", types.SimpleNamespace(**collector))
        monkeypatch.setattr(supervisor_module, "TICK_SECONDS", 0.25)  # so that a turn comes at an exact time
        monkeypatch.setattr(stalls, "look_at", self._look_at)
        self._handler = logging.Handler()
        self._handler.emit = self._hear  # type: ignore[method-assign]
        logger = logging.getLogger("fastlog.supervisor")
        logger.addHandler(self._handler)
        self._level = logger.level
        logger.setLevel(logging.INFO)  # which also forgets what was decided for the level before
        self.supervisor = Supervisor(self.shared)
        self._pipe = (self.supervisor._signal_fd, self.supervisor._signal_send)

    def close(self) -> None:
        logger = logging.getLogger("fastlog.supervisor")
        logger.removeHandler(self._handler)
        logger.setLevel(self._level)
        for fd in self._pipe:
            os.close(fd)

    # -- what a test asks for ----------------------------------------------------------------------------------------

    def now_running(self, role: str) -> Played:
        """The process that has a role now."""
        (found,) = [each for each in self.all if each.role == role and each.status is None]
        return found

    def now_pid(self, role: str) -> int:
        """The process id of the newest process of a role."""
        return [each.pid for each in self.all if each.role == role][-1]

    def starts(self, role: str) -> list[float]:
        """When the processes of a role were started."""
        return [each.started for each in self.all if each.role == role]

    def started(self) -> list[str]:
        """The roles in the order of all starts."""
        return [each.role for each in self.all]

    def lines(self, beginning: str) -> list[str]:
        """The lines of the log that begin with ``beginning``."""
        return [text for _, text in self.said if text.startswith(beginning)]

    def times(self, beginning: str) -> list[float]:
        """When the log said something that begins so."""
        return [when for when, text in self.said if text.startswith(beginning)]

    def stop_after(self, seconds: float, number: int = signal.SIGTERM) -> Stop:
        """Start the children, let the supervisor run, and send it a signal after a while."""
        self.at(seconds, lambda: self.deliver(number))
        self.supervisor.start()
        return self.supervisor.run()

    def deliver(self, number: int) -> None:
        """Deliver a signal to the process under test."""
        self.handlers[number](number, None)
        os.write(self._wakeup, bytes([number]))

    def die(self, role: str, status: int) -> None:
        """The process of a role ends now: with an exit code, or -signal."""
        self._end(self.now_running(role), status)

    def change(self, role: str, **changes: Any) -> None:
        """Let the process of a role behave differently from now on."""
        process = self.now_running(role)
        for name, value in changes.items():
            setattr(process, name, value)

    # -- the children ------------------------------------------------------------------------------------------------

    def _hear(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.said.append((self.passed, text))
        for beginning, action in self.when_said.items():
            if text.startswith(beginning):
                action()
        found = _STARTED.fullmatch(text)
        if found:
            assert int(found[2]) == self._unnamed, "a start that is not that of the last fork"
            self._unnamed = 0
            self._begin(Played(found[1], int(found[2]), self.passed))

    def _begin(self, process: Played) -> None:
        self.all.append(process)
        if process.role != "mirror":
            assert self.arena.cell(process.number)[:2] == (0, self.monotonic_ns())
            self.arena.clear_cell(process.number, process.pid, self.monotonic_ns())
        plan = self.plans.get(process.role)
        if plan:
            seconds, status = plan.pop(0)
            self.after(seconds, lambda: self._end(process, status))
        self.when_started.get(process.role, lambda _: None)(process)
        self.after(TURN_SECONDS, lambda: self._turn(process))

    def _turn(self, process: Played) -> None:
        if process.status is not None:
            return
        if process.beats and process.role != "mirror":
            self.arena.clear_cell(process.number, process.pid, self.monotonic_ns())
        if self.arena.stopping >= process.stage and process.role != "mirror" and not process.hangs:
            process.hangs = True  # until it leaves
            seconds = self.leave_seconds.get(process.role, 0.0)
            self.after(seconds, lambda: self._leave(process))
        self.after(TURN_SECONDS, lambda: self._turn(process))

    def _leave(self, process: Played) -> None:
        if process.status is None:
            self.stages.append((self.passed, process.role, self.arena.stopping))
            self._end(process, self.leave_codes.get(process.role, 0))

    def _end(self, process: Played, status: int) -> None:
        if process.status is None:
            process.status = status
            self.deliver(signal.SIGCHLD)

    # -- what the supervisor calls -----------------------------------------------------------------------------------

    def _set_wakeup_fd(self, fd: int, *, warn_on_full_buffer: bool = True) -> None:
        assert not warn_on_full_buffer
        self._wakeup = fd

    def _fork(self) -> int:
        assert not self._unnamed, "the last start was not said"
        self._unnamed = 4000 + len(self.all)
        return self._unnamed

    def _kill(self, pid: int, number: int) -> None:
        (process,) = [each for each in self.all if each.pid == pid]
        if process.is_reaped:
            raise ProcessLookupError
        self.signals.append((self.passed, process.role, signal.Signals(number).name))
        if number == signal.SIGKILL and not process.unkillable:
            self.after(0, lambda: self._end(process, -signal.SIGKILL))
        elif number == signal.SIGTERM and process.role == "mirror" and not process.hangs:
            self.after(self.leave_seconds.get("mirror", 0.0), lambda: self._leave(process))

    def _waitpid(self, pid: int, options: int) -> tuple[int, int]:
        assert (pid, options) == (-1, os.WNOHANG)
        if self.strangers:
            return self.strangers.pop()
        for process in self.all:
            if process.status is not None and not process.is_reaped:
                process.is_reaped = True
                return process.pid, process.status << 8 if process.status >= 0 else -process.status
        if any(process.status is None for process in self.all):
            return 0, 0
        raise ChildProcessError

    def _look_at(self, pid: int) -> Sighting | None:
        return next((each.seen for each in self.all if each.pid == pid and not each.is_reaped), None)


def woken(arena: Arena) -> list[int]:
    """Which processes have been woken since this was asked last."""
    found = []
    for number in [number for number in range(arena.processes) if arena.eventfd(number) >= 0]:
        try:
            os.eventfd_read(arena.eventfd(number))
        except BlockingIOError:
            continue
        arena.wake_taken(number)
        found.append(number)
    return found


assert SUPERVISOR not in NUMBERS.values()
