"""The supervisor: starts the other processes, watches them, replaces them, and stops them in order.

It stays single-threaded for life, because it forks. It serves nobody itself; everything that may wait for a disk or a
client happens in its children.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fastlog import acceptor, logs
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
from fastlog.service_manager import ServiceManager
from fastlog.workers import child, flusher, keeper, mirror, processor, stalls
from fastlog.workers.coordinator import process as coordinator

log = logging.getLogger(__name__)
switch_log = logging.getLogger(logs.SWITCH_LOGGER)

TICK_SECONDS = 0.2
SILENT_SECONDS = 40 * child.HEARTBEAT_MS / 1000
SILENT_HOLDING_SECONDS = 2.0
POLITE_SECONDS = 0.5
REMIND_SECONDS = 10.0
"""How often a process that waits for a disk is named again."""
QUICK_DEATH_SECONDS = 1.0
MIRROR_PROVEN_SECONDS = 15.0
"""The mirror is a program that takes its time to begin."""
QUICK_DEATHS_ALLOWED = 5
QUICK_DEATH_PAUSE = 0.25
STOP_SECONDS = 4.6
"""The whole stop has five; what is left then is killed."""
PROCESSORS_SECONDS = 3.0
"""What acceptor and processors have of that. They leave in 2.5 s; one that hangs leaves the flusher its time."""
COORDINATOR_SECONDS = 0.5
"""What the coordinator has of it after them: nobody waits for its answers any more, and it ends between two steps."""
WORKING_SECONDS = 1.0
"""A flusher or a keeper that has finished a partition in that time is not held to the time of a stop."""
WORK_SECONDS = 0.1
"""What a stop waits so for each partition at most; a disk takes a hundredth of that."""
STALLED_STOP_SECONDS = 60.0
"""What a stop waits besides for disks that stall, unless it is asked for again."""
KILLED_SECONDS = 0.2
"""How long a killed process may take to go. One in a call to a disk stays, and takes nothing with it."""
MIRROR_SECONDS = 1.5
"""The first of them has so much of that at most: it writes into this broker."""
KEEPER_SECONDS = 0.4
"""What the last of them has of that in any case."""

Run = Callable[[child.Shared, int], int]


@dataclass(slots=True)
class _Child:
    number: int
    run: Run
    pid: int = 0
    started: float = 0.0
    quick_deaths: int = 0
    proven: bool = False  # one of this role has run for a while: what ends the next one may pass
    start_at: float = 0.0
    asked_at: float = 0.0  # when the polite signal went out
    seen: stalls.Sighting | None = None  # what the kernel said of it then
    named_at: float = 0.0  # when the log last said what it waits for
    is_named: bool = False  # and it has not gone on since
    exit_code: int | None = None


@dataclass(slots=True)
class Stop:
    """How the stop went: whether every process finished its part in time, and whether it was asked for."""

    clean: bool = True
    asked_for: bool = True
    problems: list[str] = field(default_factory=list)


class Supervisor:
    """Owns the processes of one broker; used by one thread, between recovery and the clean marker."""

    def __init__(self, shared: child.Shared) -> None:
        self._shared = shared
        self._manager = ServiceManager()
        self._arena = shared.arena
        roles = ((FLUSHER, flusher.run), (KEEPER, keeper.run), (COORDINATOR, coordinator.run))
        self._children = {number: _Child(number, run) for number, run in roles}
        for number in range(FIRST_PROCESSOR, self._arena.processes):
            self._children[number] = _Child(number, processor.run)
        if shared.config.accept_mode == "handoff":
            self._children[ACCEPTOR] = _Child(ACCEPTOR, acceptor.run)
        if shared.config.mirror_file is not None:
            self._children[child.MIRROR] = _Child(child.MIRROR, mirror.run)
        self._switches_asked: list[int] = []
        self._signal_fd, self._signal_send = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._stop_asked = 0
        self._stop_now = False
        self._stalled_seconds = 0.0  # how much of the stop disks have taken
        self._work_seconds = 0.0  # how much of the stop has been taken by partitions, one after the other
        self._work_seen: tuple[int, int, float] | None = None  # who had come how far, and when
        self._is_work_named = False
        self._stop_began = self._stop_turn = 0.0
        self._failed = ""
        self._may_run = True
        self._last_turn = time.monotonic()

    def start(self) -> None:
        """Start every process; the acceptor last, so that whoever gets in finds somebody who serves."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_stop)
        for told in logs.SIGNALS:
            signal.signal(told, lambda number, _: self._switches_asked.append(number))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._signal_send, warn_on_full_buffer=False)
        self._arena.clear_cell(SUPERVISOR, os.getpid(), time.monotonic_ns())
        gc.collect()
        gc.freeze()  # what is here now is shared with the children and never collected: keeps their pages shared
        last = (ACCEPTOR, child.MIRROR)
        for item in sorted(self._children.values(), key=lambda item: item.number in last):
            self._fork(item)

    def run(self) -> Stop:
        """Watch until a stop is asked for or a child cannot start; then stop all."""
        while not self._stop_asked and not self._failed:
            self._wait(TICK_SECONDS)
            self._arena.beat(SUPERVISOR)
            self._switch()
            self._reap()
            self._watch()
            logs.catch_up()
        if self._failed:
            log.error("%s", self._failed)
        return self._stop()

    def abandon(self) -> None:
        """Kill every child at once: the start failed half-way."""
        for item in self._children.values():
            if item.pid:
                _kill(item.pid, signal.SIGKILL)
        deadline = time.monotonic() + 2.0
        while any(item.pid for item in self._children.values()) and time.monotonic() < deadline:
            self._wait(0.05)
            self._reap(restart=False)

    def _switch(self) -> None:
        """Do what signals have asked for since the last turn, in their order."""
        switches = self._shared.switches
        while self._switches_asked:
            switches.set(self._switches_asked.pop(0))
            switch_log.info("logging level=%s requests=%s", switches.level, "on" if switches.requests else "off")

    # -- starting and replacing ------------------------------------------------------------------------------------

    def _on_stop(self, number: int, _frame: object) -> None:
        self._stop_now = self._arena.ending
        self._stop_asked = self._stop_asked or number

    def _fork(self, item: _Child) -> None:
        item.started = time.monotonic()
        item.asked_at = item.start_at = item.named_at = 0.0
        item.is_named = False
        item.exit_code = None
        if item.number != child.MIRROR:
            self._arena.clear_cell(item.number, 0, time.monotonic_ns())
        pid = os.fork()
        if pid == 0:
            code = child.CANNOT_START
            try:
                code = item.run(self._shared, item.number)
            except BaseException:
                log.exception("role=%s ended by an error", child.role_name(item.number))
                if time.monotonic() - item.started > QUICK_DEATH_SECONDS:
                    code = 1
            finally:
                child.leave(code)
        item.pid = pid
        log.info("started role=%s pid=%d", child.role_name(item.number), pid)
        if item.number == ACCEPTOR:
            # it says so itself when it begins; but processors of a broker that stops leave while they see none
            self._arena.clear_cell(ACCEPTOR, pid, time.monotonic_ns())

    def _reap(self, *, restart: bool = True) -> None:
        now = time.monotonic()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            item = next((found for found in self._children.values() if found.pid == pid), None)
            if item is None:
                continue
            item.pid = 0
            item.exit_code = os.waitstatus_to_exitcode(status)
            if item.number != child.MIRROR:
                self._arena.see_all(item.number)
                self._arena.end_incarnation(item.number)
            if item.number == ACCEPTOR:
                # the processors of a broker that stops leave when nobody hands connections over any more
                self._arena.clear_cell(ACCEPTOR, 0, time.monotonic_ns())
            # whoever waits for what it was to do, or to say
            self._arena.wake_all()
            if restart:
                self._died(item, now)
        if restart:
            for item in self._children.values():
                if not item.pid and item.start_at and now >= item.start_at:
                    self._shared.restarts.count(item.number)
                    self._fork(item)

    def _died(self, item: _Child, now: float) -> None:
        name = child.role_name(item.number)
        lived = now - item.started
        if item.exit_code == child.MAY_NOT_RUN:
            self._failed = f"role={name} found that this broker may not run: see the lines above; it stops"
            self._may_run = False
            return
        item.proven = item.proven or lived >= (
            MIRROR_PROVEN_SECONDS if item.number == child.MIRROR else QUICK_DEATH_SECONDS
        )
        if item.exit_code == child.CANNOT_START and not item.proven:
            self._failed = f"role={name} could not start: see the lines above; the broker stops"
            return
        item.quick_deaths = item.quick_deaths + 1 if lived < QUICK_DEATH_SECONDS else 0
        pause = QUICK_DEATH_PAUSE if item.quick_deaths > QUICK_DEATHS_ALLOWED else 0.0
        log.warning("died role=%s exit=%s lived_s=%.1f: replaced", name, item.exit_code, lived)
        item.start_at = now + pause
        # what it held is somebody else's to finish: the flusher looks at it, waiting processes try the lock again
        self._arena.wake_all()

    # -- watching --------------------------------------------------------------------------------------------------

    def _wait(self, seconds: float) -> None:
        self._manager.alive()
        waiting = select.poll()
        waiting.register(self._signal_fd, select.POLLIN)
        if waiting.poll(seconds * 1000):
            try:
                os.read(self._signal_fd, 4096)
            except BlockingIOError:
                return

    def _watch(self) -> None:
        """Ask a silent child for a sign, then end it: sooner when it holds an append lock that others wait for."""
        now = time.monotonic()
        late = now - self._last_turn > 5 * TICK_SECONDS
        self._last_turn = now
        if late:
            return  # the machine or we ourselves were held up: their silence says nothing yet
        now_ns = time.monotonic_ns()
        for item in self._children.values():
            if not item.pid or item.number == child.MIRROR:
                continue
            _pid, beat_ns, _busy, _open, holding = self._arena.cell(item.number)
            silent = (now_ns - beat_ns) / 1e9
            allowed = SILENT_HOLDING_SECONDS if holding else SILENT_SECONDS
            waits = stalls.disk_wait(self._arena, item.number, now_ns)
            if waits >= SILENT_HOLDING_SECONDS:
                self._name(item, "waits for a disk", waits)
            elif item.is_named and silent < allowed:
                log.warning("goes on role=%s pid=%d", child.role_name(item.number), item.pid)
                item.is_named = False
            if silent < allowed or waits:
                item.asked_at = 0.0
            elif not item.asked_at:
                log.warning(
                    "silent role=%s pid=%d seconds=%.1f: asked where it is",
                    child.role_name(item.number),
                    item.pid,
                    silent,
                )
                item.asked_at = now
                _kill(item.pid, signal.SIGUSR1)
                item.seen = stalls.look_at(item.pid)
            elif now - item.asked_at >= POLITE_SECONDS:
                if stalls.gets_no_time(item.seen, stalls.look_at(item.pid)):
                    self._name(item, "gets no processor time", silent)
                    continue
                log.error("silent role=%s pid=%d: killed", child.role_name(item.number), item.pid)
                _kill(item.pid, signal.SIGKILL)

    def _name(self, item: _Child, what: str, seconds: float) -> None:
        """Say once in a while what keeps a process that is left alone."""
        now = time.monotonic()
        if not item.named_at or now - item.named_at >= REMIND_SECONDS:
            item.named_at, item.is_named = now, True
            place = stalls.what_it_writes(self._arena, item.number)
            name = child.role_name(item.number)
            log.warning("%s role=%s pid=%d seconds=%.1f%s: left alone", what, name, item.pid, seconds, place)

    # -- stopping --------------------------------------------------------------------------------------------------

    def _stop(self) -> Stop:
        """Acceptor and processors, coordinator, flusher, keeper, each after the one before; all within the time.

        A disk that stalls takes nothing of that: what was received and is not written would be lost. Nor do many
        partitions, as long as one after the other is finished: the next start would recover them all.
        """
        self._arena.set_ending()
        self._manager.stopping()
        # a broker that may not run has run well until now, and flushes as every other one
        result = Stop(clean=not self._failed or not self._may_run, asked_for=self._may_run)
        if self._failed:
            result.problems.append(self._failed)
        self._stop_began = time.monotonic()
        deadline = self._stop_began + STOP_SECONDS
        signal_name = (
            signal.Signals(self._stop_asked).name
            if self._stop_asked
            else "a failed start"
            if self._may_run
            else "refused"
        )
        log.info("stopping reason=%s", signal_name)
        self._stop_mirror()
        processors = [number for number in self._children if number >= FIRST_PROCESSOR]
        if not self._failed:
            # what has connected waits for them: in the backlog, or in the queue of one that died a moment ago
            self._start_missing([FLUSHER, COORDINATOR, *processors, ACCEPTOR])
        served = min(time.monotonic() + PROCESSORS_SECONDS, deadline - KEEPER_SECONDS)
        self._arena.set_stopping(STAGE_PROCESSORS)
        self._wait_for([ACCEPTOR, *processors], served, result)
        self._kill([ACCEPTOR, *processors])
        self._arena.set_stopping(STAGE_COORDINATOR)
        self._wait_for([COORDINATOR], min(time.monotonic() + COORDINATOR_SECONDS, deadline - KEEPER_SECONDS), result)
        self._kill([COORDINATOR])  # what is flushed from here on is all there is
        self._arena.set_stopping(STAGE_FLUSHER)
        self._start_missing([FLUSHER])  # or nothing gets flushed
        # a flusher that is stuck leaves the keeper time for its last side files: they make the next start shorter
        self._wait_for([FLUSHER], deadline - KEEPER_SECONDS, result)
        self._arena.set_stopping(STAGE_KEEPER)
        self._wait_for([KEEPER], deadline, result)
        there = [number for number, item in self._children.items() if item.pid]
        self._kill(there)
        self._stop_now, self._stalled_seconds, self._work_seconds = True, 0.0, 0.0  # a disk has had its time
        self._wait_for(there, time.monotonic() + KILLED_SECONDS, Stop())
        return result

    def _start_missing(self, numbers: list[int]) -> None:
        """Start those of these that are not there, before anybody looks for them."""
        children = [self._children[number] for number in numbers if number in self._children]
        until = time.monotonic() + KILLED_SECONDS
        self._reap(restart=False)
        while any(stalls.is_dying(item.pid) for item in children) and time.monotonic() < until:
            self._wait(0.02)  # its other threads are still going, and waitpid answers only after the last of them
            self._reap(restart=False)
        for item in children:
            if item.pid:
                continue
            log.info("started for the stop role=%s", child.role_name(item.number))
            self._fork(item)

    def _kill(self, numbers: list[int]) -> None:
        for number in numbers:
            item = self._children.get(number)
            if item is not None and item.pid:
                _kill(item.pid, signal.SIGKILL)

    def _stop_mirror(self) -> None:
        """First, while the broker still answers it: what it forwarded here it can commit. Killed, it comes again."""
        item = self._children.get(child.MIRROR)
        if item is None or not item.pid:
            return
        _kill(item.pid, signal.SIGTERM)
        self._wait_for([child.MIRROR], time.monotonic() + MIRROR_SECONDS, Stop())
        if item.pid:
            log.warning("role=mirror did not finish in %.1f s: killed", MIRROR_SECONDS)
            _kill(item.pid, signal.SIGKILL)

    def _wait_for(self, numbers: list[int], deadline: float, result: Stop) -> None:
        children = [self._children[number] for number in numbers if number in self._children]
        self._stop_turn = time.monotonic()
        while (
            any(item.pid for item in children)
            and time.monotonic() < deadline + self._stalled_seconds + self._work_seconds
        ):
            self._wait(0.02)
            self._reap(restart=False)
            now = time.monotonic()
            turn, self._stop_turn = now - self._stop_turn, now
            if not self._allow_for_work(children, turn, now - deadline):
                self._allow_for_stalls(turn)
        for item in children:
            name = child.role_name(item.number)
            if item.pid:
                result.clean = False
                waits = stalls.disk_wait(self._arena, item.number, time.monotonic_ns())
                why = f" (it has been waiting for a disk for {waits:.1f} s)" if waits else ""
                result.problems.append(f"role={name} did not finish in time{why}")
            elif item.exit_code not in (0, None):
                # no reason against the clean marker: whether all is flushed is seen in the arena, and a log that is
                # longer than the marker says is scanned
                log.warning("ended role=%s exit=%s", name, item.exit_code)

    def _allow_for_work(self, children: list[_Child], turn: float, late: float) -> bool:
        """Count the time in which the flusher or the keeper finishes one partition after the other, once a turn."""
        now, most = time.monotonic(), WORK_SECONDS * self._arena.slot_count
        item = next((each for each in children if each.pid and each.number in (FLUSHER, KEEPER)), None)
        if item is None or self._stop_now or self._work_seconds >= most:
            return False
        # the keeper's heart beats once for each side file now, and at no other time
        done = self._arena.cell(KEEPER)[1]
        if item.number == FLUSHER:
            counters = self._arena.counters(FLUSHER)
            done = counters["flushes"] + counters["flush_failures"]
        if self._work_seen is None or self._work_seen[0] != item.number:
            self._work_seen = item.number, done, now - WORKING_SECONDS
        elif self._work_seen[1] != done:
            self._work_seen = item.number, done, now
        if now - self._work_seen[2] >= WORKING_SECONDS:
            return False
        if late >= 0 and not self._is_work_named:
            self._is_work_named = True
            log.info(
                "the stop goes on role=%s pid=%d: it finishes one of %d partitions after the other; "
                "%.0f s more at most, and a second signal ends that",
                child.role_name(item.number),
                item.pid,
                self._arena.slot_count,
                most,
            )
        self._work_seconds += turn
        return True

    def _allow_for_stalls(self, turn: float) -> None:
        """Count the time that the stop has been waiting for disks, once a turn."""
        now, now_ns = time.monotonic(), time.monotonic_ns()
        if self._stop_now or self._stalled_seconds >= STALLED_STOP_SECONDS:
            return
        waiting = [item for item in self._children.values() if item.pid and item.number != child.MIRROR]
        waits = {item.number: stalls.disk_wait(self._arena, item.number, now_ns) for item in waiting}
        if not any(waits.values()):
            return
        self._arena.set_stalled(now_ns)
        if not self._stalled_seconds:
            longest = max(waiting, key=lambda item: waits[item.number])
            log.warning(
                "the stop waits for a disk role=%s pid=%d%s: %.0f s at most; a second signal ends that wait",
                child.role_name(longest.number),
                longest.pid,
                stalls.what_it_writes(self._arena, longest.number),
                STALLED_STOP_SECONDS,
            )
            turn = min(waits[longest.number], now - self._stop_began)
        self._stalled_seconds += turn


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        log.debug("already gone pid=%d", pid)
