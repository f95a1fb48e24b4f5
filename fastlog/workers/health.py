"""How the broker is, from what its processes share: does it live, may clients be sent to it, and all about it.

Everything here is read; asking changes nothing, and takes no lock that a request could wait for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fastlog.durability import durability
from fastlog.log._arena import STATE_OFFLINE, STATE_READ_ONLY
from fastlog.log._shared_memory import ACCEPTOR, COORDINATOR, FIRST_PROCESSOR, FLUSHER, KEEPER, SUPERVISOR
from fastlog.log.files import FileOps
from fastlog.log.manager import LogManager
from fastlog.log.slots import SlotView
from fastlog.workers import child, stalls
from fastlog.workers.disk_probe import DiskProbe

if TYPE_CHECKING:
    from fastlog.registry import RegistrationStatus

SILENT_SECONDS = 20 * child.HEARTBEAT_MS / 1000
"""Twenty turns of a loop. Less than what the supervisor allows before it replaces a process, which is the remedy."""
MOST_NAMED = 20
"""Of partitions and topics; the others are counted."""
READY, NOT_READY, NOT_LIVE, STOPPING = "ready", "not ready", "not live", "stopping"

_SESSIONS = {
    "none": "no session with ZooKeeper",
    "away": "ZooKeeper does not answer, the session may be over",
    "waiting": "another start of a broker has the id in ZooKeeper",
    "registering": "ZooKeeper does not show this broker yet",
}


class Health:
    """Answers three questions about one broker, from inside its keeper. For one thread."""

    def __init__(
        self,
        shared: child.Shared,
        registration: Callable[[], RegistrationStatus] | None = None,
        disks: DiskProbe | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """``registration`` tells how the broker stands with ZooKeeper; None: it registers nowhere."""
        self._shared = shared
        self._arena = shared.arena
        self._registration = registration
        self._disks = disks or DiskProbe(shared.arena.log_dirs)
        self._now_ns = now_ns
        self._manager = LogManager(shared.config, shared.arena, FileOps())
        acceptor = [ACCEPTOR] if shared.config.accept_mode == "handoff" else []
        processors = range(FIRST_PROCESSOR, shared.arena.processes)
        self.processes: Sequence[int] = [SUPERVISOR, FLUSHER, KEEPER, COORDINATOR, *acceptor, *processors]

    @property
    def is_stopping(self) -> bool:
        """Whether the broker was asked to stop, or stops because it may not run."""
        return self._arena.ending or self._arena.stopping > 0

    def live_problems(self) -> list[str]:
        """A line for each process whose loop does not turn; empty: the broker is alive.

        A stop has its own time limit, and processes leave during it: it is no lack of life. Nor is a disk that stalls:
        whoever restarts the broker for it loses what waits to be written.
        """
        if self.is_stopping:
            return []
        found = []
        for number in self.processes:
            pid, beat_ns, _busy, _connections, _holding = self._arena.cell(number)
            silent = (self._now_ns() - beat_ns) / 1e9
            if not beat_ns:
                found.append(f"{child.role_name(number)}: not started yet")
            elif silent >= SILENT_SECONDS and not stalls.disk_wait(self._arena, number, self._now_ns()):
                process = f"pid {pid}" if pid else "ended, and not replaced yet"
                found.append(f"{child.role_name(number)}: its loop has not turned for {silent:.1f} s ({process})")
        return found

    def ready_problems(self) -> list[str]:
        """A line for each reason to send no client here; empty: it is ready.

        It has recovered and listens, or nobody would answer this.
        """
        if self.is_stopping:
            return [STOPPING]
        damaged = [view for view in self._arena.views() if view.state & (STATE_READ_ONLY | STATE_OFFLINE)]
        partitions = (f"partition {view.topic!r} {view.partition} {self._state(view)}" for view in damaged)
        return [
            *self.live_problems(),
            *self._disks.problems(),
            *self._stalled(),
            *_bounded(partitions, len(damaged), "partitions"),
            *self._zookeeper_problems(),
        ]

    def report(self) -> dict[str, Any]:
        """All that is known, for a person or a program; lists are bounded."""
        live, ready = self.live_problems(), self.ready_problems()
        state = STOPPING if self.is_stopping else NOT_LIVE if live else NOT_READY if ready else READY
        shared, config = self._shared, self._shared.config
        return {
            "state": state,
            "problems": ready,
            "version": shared.version,
            "broker_id": config.broker_id,
            "uptime_seconds": round((self._now_ns() - shared.started_ns) / 1e9, 3),
            "durability": durability(config, shared.sync_seconds),
            "insecure": config.insecure,
            "logging": {"level": shared.switches.level, "requests": shared.switches.requests},
            "addresses": self._addresses(),
            "processes": [self._process(number) for number in self.processes],
            "partitions": self._partitions(),
            "flush": self._flush(),
            "reads": {"failures": sum(self._arena.counters(number)["read_failures"] for number in self.processes)},
            "zookeeper": self._zookeeper(),
        }

    def _stalled(self) -> list[str]:
        """A line for each process that has been waiting for a disk so long that clients notice."""
        waits = {number: stalls.disk_wait(self._arena, number, self._now_ns()) for number in self.processes}
        return [
            f"{child.role_name(number)}: waits for a disk for {seconds:.1f} s (pid {self._arena.cell(number)[0]})"
            f"{stalls.what_it_writes(self._arena, number)}"
            for number, seconds in waits.items()
            if seconds >= SILENT_SECONDS
        ]

    # -- ZooKeeper -----------------------------------------------------------------------------------------------------

    def unannounced(self, registration: RegistrationStatus) -> list[str]:
        """The topics that ZooKeeper does not show as they are.

        Source: hole Z-10 of Kafka 0.7.2, where a topic whose registration failed once stayed hidden until a restart.
        """
        shown = registration.announced
        return [
            name for name in self._manager.topics_of_kafka07() if shown.get(name) != self._manager.partition_count(name)
        ]

    def _zookeeper_problems(self) -> list[str]:
        if self._registration is None:
            return []
        # before the topics: one that is made in between is named, and not missed
        registration = self._registration()
        missing = self.unannounced(registration)
        found = []
        if registration.session != "registered":
            found.append(f"zookeeper: {_SESSIONS[registration.session]}{_because(registration.problem)}")
        elif registration.problem:
            found.append(f"zookeeper: the last try failed{_because(registration.problem)}")
        lines = (f"zookeeper: topic {topic!r} is not shown yet" for topic in missing)
        return [*found, *_bounded(lines, len(missing), "topics that are not shown yet")]

    def _zookeeper(self) -> dict[str, Any] | None:
        if self._registration is None:
            return None
        registration = self._registration()
        missing = self.unannounced(registration)
        return {
            "connect": self._shared.config.zookeeper,
            "session": registration.session,
            "problem": registration.problem,
            "topics_announced": len(registration.announced),
            "topics_not_announced": {"count": len(missing), "first": missing[:MOST_NAMED]},
        }

    # -- details -------------------------------------------------------------------------------------------------------

    def _addresses(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [
            {
                "name": listener.name,
                "protocol": listener.protocol,
                "host": listener.host,
                "port": listener.port,
                "advertised_host": listener.advertised_host,
                "advertised_port": listener.advertised_port,
            }
            for listener in self._shared.listeners
        ]
        monitor = self._shared.monitor
        if monitor is not None:
            found.append({"name": "monitor", "protocol": "http", "host": monitor.host, "port": monitor.port})
        return found

    def _process(self, number: int) -> dict[str, Any]:
        pid, beat_ns, busy, connections, _holding = self._arena.cell(number)
        age = round((self._now_ns() - beat_ns) / 1e9, 3) if beat_ns else None
        found = {"name": child.role_name(number), "pid": pid, "heartbeat_age_seconds": age}
        if number >= FIRST_PROCESSOR and number != SUPERVISOR:
            found |= {"connections": connections, "busy_permille": busy}
        return found

    def _state(self, view: SlotView) -> str:
        return self._arena.describe_state(view.state)

    def _partitions(self) -> dict[str, Any]:
        by_state = {"ok": 0, "read-only": 0, "offline": 0}
        named: list[dict[str, Any]] = []
        for view in self._arena.views():
            state, _, reason = self._state(view).partition(": ")
            by_state[state] += 1
            if state != "ok" and len(named) < MOST_NAMED:
                named.append({"topic": view.topic, "partition": view.partition, "state": state, "reason": reason})
        return {"count": sum(by_state.values()), "by_state": by_state, "first_not_ok": named}

    def _flush(self) -> dict[str, Any]:
        """What is appended and not flushed; bytes that are out of service will not be."""
        total = largest = oldest_ns = 0
        where: dict[str, Any] | None = None
        for view in self._arena.views():
            lag = view.log_end - view.flushed_end
            total += lag
            if lag > largest:
                largest, where = lag, {"topic": view.topic, "partition": view.partition}
            if lag:
                oldest_ns = max(oldest_ns, self._now_ns() - view.unflushed_since_ns)
        counted = self._arena.counters(FLUSHER)
        flushes = counted["flushes"]
        return {
            "unflushed_bytes": total,
            "largest_unflushed_bytes": largest,
            "largest_unflushed": where,
            "oldest_unflushed_seconds": round(oldest_ns / 1e9, 3),
            "flushes": flushes,
            "mean_flush_ms": round(counted["flush_ns"] / flushes / 1e6, 3) if flushes else None,
            "flush_failures": counted["flush_failures"],
        }


def _because(problem: str) -> str:
    return f": {problem}" if problem else ""


def _bounded(lines: Iterable[str], count: int, what: str) -> list[str]:
    """The first of the lines, and one that counts the others."""
    named = [line for line, _ in zip(lines, range(MOST_NAMED), strict=False)]
    return [*named, f"and {count - MOST_NAMED} more {what}"] if count > MOST_NAMED else named
