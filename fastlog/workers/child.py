"""What every process of the broker does first, and the shape they share with the supervisor."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import NoReturn

from fastlog import logs
from fastlog.addresses import host_port
from fastlog.config import BrokerConfig
from fastlog.errors import ConfigError
from fastlog.log import _files
from fastlog.log._arena import Arena
from fastlog.log._shared_memory import ACCEPTOR, COORDINATOR, FIRST_PROCESSOR, FLUSHER, KEEPER, SUPERVISOR
from fastlog.workers.group_board import GroupBoard
from fastlog.workers.net import _process
from fastlog.workers.restarts import Restarts
from fastlog.workers.switches import Switches

_HEARTBEAT = os.environ.get("FASTLOG_HEARTBEAT_MS", "250")
_LONGEST_HEARTBEAT_MS = 24 * 3_600_000
HEARTBEAT_MS = int(_HEARTBEAT) if _HEARTBEAT.isascii() and _HEARTBEAT.isdigit() and len(_HEARTBEAT) < 10 else 0
"""How often a loop that has nothing to do turns; nothing relies on it, so that tests make it long and see that."""
TURN_MS = int(os.environ.get("FASTLOG_TURN_MS", "2"))
"""How long the requests of one connection are handled before others have a turn; long where a clock is simulated."""
CANNOT_START = 78
"""Exit code of a child that could not begin; it is not started again."""
MIRROR = -1
"""The number of the mirror, which is a program of its own and has no place in the arena."""
MAY_NOT_RUN = 79
"""Exit code of a child that found out why this broker may not run; it has said so, and the broker stops."""


@dataclass(frozen=True, slots=True)
class Listener:
    """One address the broker serves: bound here, given to clients as ``advertised_host`` and ``advertised_port``.

    ``protocol`` is one of ``listening.PROTOCOLS``.
    """

    name: str
    protocol: str
    host: str
    port: int
    advertised_host: str
    advertised_port: int
    fd: int


@dataclass(frozen=True, slots=True)
class MonitorSocket:
    """Where the broker answers how it is, bound before the first fork, and what a request has to show for it."""

    host: str
    port: int
    fd: int
    token: bytes = field(repr=False)
    """What a request has to present; empty: nothing."""

    def __str__(self) -> str:
        return host_port(self.host, self.port)


@dataclass(frozen=True, slots=True)
class Shared:
    """What the supervisor made before the first fork and every child inherits."""

    config: BrokerConfig
    arena: Arena
    listeners: tuple[Listener, ...]
    handoff_receive: tuple[int, ...]  # by processor; the supervisor keeps both ends, so a queue outlives its reader
    handoff_send: tuple[int, ...]
    descriptors: int  # soft limit of open files of each process
    supervisor_pid: int = field(default_factory=os.getpid)
    creators: tuple[str, ...] = ()  # what this broker is called in ZooKeeper, and what earlier starts of it were
    monitor: MonitorSocket | None = None
    sync_seconds: float | None = None  # what one fdatasync took at the start
    version: str = ""
    started_ns: int = field(default_factory=time.monotonic_ns)
    restarts: Restarts = field(default_factory=Restarts)
    switches: Switches = field(default_factory=Switches)
    cluster_id: str = ""  # of ``meta.properties``: 22 characters, part of answers to clients
    forward_processor: tuple[int, ...] = ()  # by processor, its end of the socket pair to the coordinator
    forward_coordinator: tuple[int, ...] = ()  # and the coordinator's; the supervisor keeps both, as those of hand-over
    groups: GroupBoard | None = None  # where the coordinator tells the page of metrics how groups stand


def check_heartbeat() -> None:
    """Refuse to start with a heartbeat that is none.

    Raises:
        ConfigError: ``FASTLOG_HEARTBEAT_MS`` is no number of ms.
    """
    if not 0 < HEARTBEAT_MS <= _LONGEST_HEARTBEAT_MS:
        raise ConfigError(
            f"FASTLOG_HEARTBEAT_MS: {_HEARTBEAT!r} is no whole number from 1 to {_LONGEST_HEARTBEAT_MS}, in ms"
        )


def role_name(number: int) -> str:
    """The name of a place in the arena's list of processes, or of the mirror."""
    names = {
        FLUSHER: "flusher",
        KEEPER: "keeper",
        ACCEPTOR: "acceptor",
        COORDINATOR: "coordinator",
        MIRROR: "mirror",
        SUPERVISOR: "supervisor",
    }
    return names.get(number) or f"processor-{number - FIRST_PROCESSOR}"


def begin(shared: Shared, number: int) -> int:
    """Turn a fresh fork into a child of this role; returns the descriptor that wakes it when a signal came.

    A child leaves when the supervisor does: the kernel kills it then, and the check afterwards closes the gap before
    that was asked. Stopping is the supervisor's word in the arena, so the signals of the terminal and of the service
    manager, which reach every process of the group, are ignored here.
    """
    _process.die_with_parent()
    if os.getppid() != shared.supervisor_pid:
        os._exit(0)
    name = role_name(number)
    _process.set_name(f"fastlog-{name}")
    shared.arena.clear_cell(number, os.getpid(), time.monotonic_ns())
    if number != ACCEPTOR:  # which looks at no partition
        # before it looks at any: what goes from now on waits for this process
        shared.arena.see(number, shared.arena.change_count)
    signal.set_wakeup_fd(-1)
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    receive, send = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(send, warn_on_full_buffer=False)
    logs.set_up(name)
    # the supervisor's polite signal: say where it hangs, and not by hanging there
    descriptor = logs.descriptor()
    faulthandler.register(signal.SIGUSR1, file=sys.stderr if descriptor is None else descriptor, all_threads=True)
    _files.arm_from_environment(name)
    gc.enable()
    return receive


def leave(code: int) -> NoReturn:
    """End a child without running what belongs to the supervisor (its exit handlers, its open locks)."""
    logs.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
