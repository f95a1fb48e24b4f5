"""Slow is not dead: the supervisor ends what could run and does not, and leaves alone what waits for a disk."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastlog import supervisor as supervisor_module
from fastlog.config import BrokerConfig
from fastlog.log._shared_memory import FIRST_PROCESSOR
from fastlog.supervisor import (
    POLITE_SECONDS,
    SILENT_HOLDING_SECONDS,
    SILENT_SECONDS,
    Supervisor,
)
from fastlog.workers import stalls
from fastlog.workers.child import Shared
from fastlog.workers.disk_probe import DiskProbe
from fastlog.workers.health import Health
from fastlog.workers.stalls import Sighting, is_dying, look_at, parse_stat
from tests.harness.shared_log import SharedLog, in_child, message, start, stop, wait_until

SLEEPING = (
    "4711 (fastlog-process) S 4700 4700 4700 0 -1 4194624 2263 0 0 0 731 250 0 0 20 0 2 0 123456 214429696 9211 "
    "18446744073709551615 1 1 0 0 0 0 0 16781312 512 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)
PID = 77
IN_DISK = SLEEPING.replace(") S ", ") D ")
"""Recorded while the file system was frozen by fsfreeze."""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (SLEEPING, ("S", 981)),
        (IN_DISK, ("D", 981)),
        (SLEEPING.replace("fastlog-process", "a) R 1 (b"), ("S", 981)),
    ],
)
def test_the_state_of_a_thread(line: str, expected: tuple[str, int]) -> None:
    """A program may have any name, and it stands before the state."""
    assert parse_stat(line) == expected


def test_this_process_is_seen() -> None:
    seen = look_at(os.getpid())
    assert seen is not None
    assert seen.ticks > 0
    assert look_at(2**22 + 1) is None


def test_a_child_that_died_is_dying_until_it_is_reaped() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    wait_until(lambda: is_dying(pid))
    os.waitpid(pid, 0)
    assert not is_dying(pid)
    assert not is_dying(os.getpid())
    assert not is_dying(0)


class Watched:
    """A supervisor whose only processor last turned its loop long ago, and what the kernel says of that one."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = SharedLog(directory)
        self.arena = self.log.arena
        self.seen = Sighting("S", False, 10)
        self.signals: list[str] = []
        config = BrokerConfig(log_dirs=(str(directory),), processors=1)
        monkeypatch.setattr(supervisor_module, "_kill", lambda _pid, number: self.signals.append(number.name))
        monkeypatch.setattr(stalls, "look_at", lambda _pid: self.seen)
        self.arena.clear_cell(FIRST_PROCESSOR, PID, time.monotonic_ns() - int((SILENT_SECONDS + 1) * 1e9))
        self.supervisor = Supervisor(Shared(config, self.arena, (), (), (), 64))
        self.child = self.supervisor._children[FIRST_PROCESSOR]
        self.child.pid = PID

    def watch(self) -> list[str]:
        """The signals it is sent, when it is as silent after it was asked for a sign."""
        for _ in range(2):
            self.supervisor._watch()
            self.child.asked_at -= POLITE_SECONDS if self.child.asked_at else 0
        return self.signals

    def close(self) -> None:
        for fd in (self.supervisor._signal_fd, self.supervisor._signal_send):
            os.close(fd)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    made = Watched(tmp_path, monkeypatch)
    yield made
    made.close()


def test_a_process_that_could_run_is_ended(watched: Watched) -> None:
    assert watched.watch() == ["SIGUSR1", "SIGKILL"]


def test_a_process_in_uninterruptible_sleep_is_left_alone(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """A thread of it is enough: the process would not go before that thread comes back."""
    watched.seen = Sighting("S", True, 10)
    assert watched.watch() == []
    (line,) = caplog.messages
    name, _, rest = line.partition(" seconds=")
    assert name == f"waits for a disk role=processor-0 pid={PID}"
    assert float(rest.split(":")[0]) >= SILENT_SECONDS + 1
    watched.seen = Sighting("S", False, 10)
    assert watched.watch() == ["SIGUSR1", "SIGKILL"]


def test_a_disk_that_is_slow_with_every_write_is_named_once_in_a_while(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.seen = Sighting("D", True, 10)
    for _ in range(3):
        for silent in (SILENT_SECONDS + 1, 0.0):
            watched.arena.clear_cell(FIRST_PROCESSOR, PID, time.monotonic_ns() - int(silent * 1e9))
            assert watched.watch() == []
    assert [line.split(" role=")[0] for line in caplog.messages] == ["waits for a disk", "goes on"]


def test_a_process_that_is_not_let_run_is_left_alone(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """On a machine that has no time for it, the next one would get none either; one that runs and is silent loops.

    What counts is the time since it was asked: a tick now and then does not bring it around.
    """
    watched.seen = Sighting("S", False, 10)
    watched.supervisor._watch()
    enough = int(stalls.LOOP_SECONDS * os.sysconf("SC_CLK_TCK"))
    for ticks in (10, 11, 10 + enough // 2, 10 + enough - 1):
        watched.seen = Sighting("R", False, ticks)
        assert watched.watch() == ["SIGUSR1"]
    assert caplog.messages[-1].startswith("gets no processor time role=processor-0")
    watched.seen = Sighting("R", False, 10 + enough)
    watched.supervisor._watch()
    assert watched.signals == ["SIGUSR1", "SIGKILL"]


def test_a_process_that_sleeps_and_is_silent_is_ended_however_little_it_ran(watched: Watched) -> None:
    watched.seen = Sighting("R", False, 10)
    assert watched.watch() == ["SIGUSR1"]
    watched.seen = Sighting("S", False, 10)
    watched.supervisor._watch()
    assert watched.signals == ["SIGUSR1", "SIGKILL"]


@pytest.mark.parametrize(("state", "signals"), [("S", []), ("T", ["SIGUSR1", "SIGKILL"])])
def test_a_process_that_says_it_writes_is_left_alone(state: str, signals: list[str], watched: Watched) -> None:
    """Whatever sleep the file system chooses for it; but not when somebody has stopped it there."""
    pid = start(lambda: watched.log.append(message(12)), "pwrite@1=slow:60000")
    try:
        wait_until(lambda: watched.arena.disk_since(FIRST_PROCESSOR) > 0)
        watched.seen = Sighting(state, False, 10)
        begun_ns = watched.arena.disk_since(FIRST_PROCESSOR)
        seconds = stalls.disk_wait(watched.arena, FIRST_PROCESSOR, begun_ns + 2_500_000_000)
        assert seconds == (2.5 if state == "S" else 0.0)
        shortest_ns = begun_ns + int(stalls.STALL_SECONDS * 1e9)
        assert stalls.disk_wait(watched.arena, FIRST_PROCESSOR, shortest_ns - 1) == 0.0
        at_once = stalls.disk_wait(watched.arena, FIRST_PROCESSOR, shortest_ns)
        assert at_once == (stalls.STALL_SECONDS if state == "S" else 0.0)
        monotonic_ns = time.monotonic_ns
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "monotonic_ns", lambda: monotonic_ns() + int(SILENT_HOLDING_SECONDS * 1e9))
            assert watched.watch() == signals
    finally:
        stop(pid)


def test_a_long_call_is_a_sign_of_life(tmp_path: Path) -> None:
    """On a disk where every write takes long, one turn of a loop holds many of them."""
    log = SharedLog(tmp_path)
    assert in_child(lambda: log.append(message(12)), "pwrite@1=slow:200") == 0
    _pid, beat_ns, *_ = log.arena.cell(FIRST_PROCESSOR)
    assert beat_ns > 0
    assert log.arena.disk_since(FIRST_PROCESSOR) == 0


def test_health_names_who_waits_and_calls_it_alive(watched: Watched, tmp_path: Path) -> None:
    """Whoever restarts a broker that is not live would lose what waits to be written."""
    beat_ns = watched.arena.cell(FIRST_PROCESSOR)[1]
    health = Health(watched.supervisor._shared, disks=DiskProbe([]), now_ns=lambda: beat_ns + 11 * 10**9)
    others = [line for line in health.live_problems() if "processor-0" not in line]
    watched.seen = Sighting("D", True, 10)
    assert health.live_problems() == others
    assert [line for line in health.ready_problems() if "processor-0" in line] == [
        f"processor-0: waits for a disk for 11.0 s (pid {PID})"
    ]
