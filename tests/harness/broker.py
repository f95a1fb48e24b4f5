"""A real broker in processes of its own, for tests and measurements.

It is started by the command a user would type (in the suite mostly by a fork: ``nursery``), watched through its log,
and always ended: by process id, in bounded time, whatever the test did to it. For one thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol, Self

import psutil

from tests.harness.raw_client import RawClient
from tests.harness.timing import PATIENCE

READY = re.compile(r"fastlog-broker: ready\b.*?\bport=(\d+)")
STARTED = re.compile(r"supervisor\[\d+\] started role=(\S+) pid=(\d+)")
ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 4 * PATIENCE
"""Of a start, which reads all its modules first: at the lowest priority a busy machine gives it little time for it."""
BROKER_COMMAND = (sys.executable, "-m", "fastlog.tools.broker_command")
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl

open_brokers: list[Broker] = []
"""Every broker that was started and not yet closed; a failed test prints their logs."""


KEPT = {"log.retention.hours": 1_000_000}
"""For a broker whose records say that they are older than a week: its first clean-up comes after a minute."""


class BrokerDidNotStart(Exception):
    """The command ended, or was not ready in time; the message holds its log."""


def wait_until(what: str, condition: Callable[[], object], within: float = PATIENCE, pause: float = 0.002) -> None:
    """Returns once ``condition`` is true; fails with ``what`` after ``within`` seconds."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not within {within} s: {what}"
        time.sleep(pause)


class Started(Protocol):
    """A broker's first process, as ``Popen`` has it."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int, /) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def own_environment() -> dict[str, str]:
    """That of this process, in which the checkout comes first."""
    path = dict.fromkeys([str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def start_command(command: Sequence[str], directory: Path, environment: Mapping[str, str], log: IO[bytes]) -> Started:
    """Start a broker as a user does, in ``directory``; what it says goes to ``log``."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environment,
        cwd=directory,
        preexec_fn=die_with_parent,
    )


class Broker:
    """Starts on entering the ``with`` block and is gone after it.

    ``directory`` gets the log directory ``data`` (unless ``log_dirs`` names others) and the file ``broker.log``.
    ``settings`` are 0.7 property names; ``arguments`` go to the command as they are.
    """

    begin: Callable[[Sequence[str], Path, Mapping[str, str], IO[bytes]], Started] = staticmethod(start_command)

    def __init__(
        self,
        directory: Path,
        *,
        processors: int = 2,
        settings: Mapping[str, object] | None = None,
        log_dirs: Sequence[Path] | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        port: int = 0,
        start_timeout: float = START_SECONDS,
    ) -> None:
        self.directory = Path(directory)
        self.log_dirs = [Path(path) for path in log_dirs] if log_dirs else [self.directory / "data"]
        self.processors = processors
        self.settings = dict(settings or {})
        self.arguments = list(arguments)
        self.environment = dict(environment or {})
        self.port = port
        self.start_timeout = start_timeout
        self.log_path = self.directory / "broker.log"
        self.process: Started | None = None
        self._wanted_port = port
        self._log_start = 0
        self._known: dict[int, psutil.Process] = {}

    # --- life ---

    def __enter__(self) -> Self:
        open_brokers.append(self)
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def command(self) -> list[str]:
        """The command line that starts this broker."""
        command = [*BROKER_COMMAND, "--port", str(self._wanted_port), "--processors", str(self.processors)]
        for path in self.log_dirs:
            command += ["--log-dir", str(path)]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        return command + self.arguments

    def start(self) -> None:
        """Returns when the broker takes connections; raises BrokerDidNotStart with its log otherwise."""
        assert self.process is None, "it runs already"
        self.directory.mkdir(parents=True, exist_ok=True)
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        environment = own_environment() | self.environment
        with self.log_path.open("ab") as log:
            self.process = self.begin(self.command(), self.directory, environment, log)
        self._known = {self.process.pid: psutil.Process(self.process.pid)}
        deadline = time.monotonic() + self.start_timeout
        while (found := READY.search(self.log_text())) is None:
            if self.process.poll() is not None:
                raise BrokerDidNotStart(f"exit code {self.process.returncode}\n{self.log_text()}")
            if time.monotonic() > deadline:
                raise BrokerDidNotStart(f"not ready within {self.start_timeout} s\n{self.log_text()}")
            time.sleep(0.005)
        self.port = int(found[1])
        self.children()

    def stop(self, timeout: float = PATIENCE) -> int:
        """Ends it as a user would (SIGTERM) and returns the exit code; nothing of it is left afterwards."""
        assert self.process is not None, "it does not run"
        self.children()
        self.resume_all()
        self.process.terminate()
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the broker did not end within {timeout} s of SIGTERM") from None
        finally:
            self.kill_all()
        return code

    def restart(self) -> None:
        """Stops it, if it still runs, and starts it again on the same directories; the port may be another one."""
        if self.process is not None:
            self.stop()
        self.start()

    def kill_all(self) -> None:
        """SIGKILL for every process of it that is left; returns when all are gone."""
        if self.process is None:
            return
        self.children()
        for process in self._known.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while left := [process for process in self._known.values() if _alive(process)]:
            assert time.monotonic() < deadline, f"still there after SIGKILL: {left}"
            time.sleep(0.002)
        self.process = None
        self._known = {}

    def close(self) -> None:
        """Ends it in whatever state it is. May be called twice."""
        self.kill_all()
        if self in open_brokers:
            open_brokers.remove(self)

    # --- its processes ---

    def children(self) -> list[psutil.Process]:
        """The processes below the supervisor that live now; remembers them, so that they can be ended later."""
        assert self.process is not None, "it does not run"
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                self._known.setdefault(child.pid, child)
        # A supervisor that was killed has no children any more, but its log still names them.
        for pid in self.pids().values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if pid not in self._known and process.create_time() >= self._known[self.process.pid].create_time():
                    self._known[pid] = process
        return [process for pid, process in self._known.items() if pid != self.process.pid and _alive(process)]

    def pids(self) -> dict[str, int]:
        """The newest process id of each role, the supervisor included, from its log."""
        assert self.process is not None, "it does not run"
        pids = {role: int(pid) for role, pid in STARTED.findall(self.log_text())}
        return {**pids, "supervisor": self.process.pid}

    def started(self) -> list[tuple[str, str]]:
        """Role and process id of everybody that was started, from its log; the supervisor is not among them."""
        return STARTED.findall(self.log_text())

    def is_alive(self, role: str) -> bool:
        """Whether the newest process of this role is alive."""
        try:
            return _alive(psutil.Process(self.pids()[role]))
        except (KeyError, psutil.NoSuchProcess):
            return False

    def signal(self, role: str, number: int) -> int:
        """Sends a signal to a role's process and returns its id."""
        self.children()
        pid = self.pids()[role]
        assert pid in self._known, f"{role} pid={pid} is not a process of this broker"
        self._known[pid].send_signal(number)
        return pid

    def kill(self, role: str) -> int:
        """SIGKILL for one process; returns the id it had."""
        return self.signal(role, signal.SIGKILL)

    def pause(self, role: str) -> int:
        """SIGSTOP for one process; returns once it no longer runs."""
        pid = self.signal(role, signal.SIGSTOP)
        wait_until(f"{role} stopped", lambda: self._known[pid].status() == psutil.STATUS_STOPPED)
        return pid

    def resume(self, role: str) -> int:
        """Let one stopped process go on, with SIGCONT."""
        return self.signal(role, signal.SIGCONT)

    def resume_all(self) -> None:
        """Let every stopped process go on, with SIGCONT."""
        for process in self._known.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() == psutil.STATUS_STOPPED:
                    process.send_signal(signal.SIGCONT)

    def wait_replaced(self, role: str, old_pid: int, within: float = PATIENCE) -> int:
        """The id of the process that took over a role after ``old_pid`` died."""
        wait_until(
            f"{role} replaced after pid {old_pid} died",
            lambda: self.pids().get(role, old_pid) != old_pid and self.is_alive(role),
            within,
        )
        self.children()
        return self.pids()[role]

    def memory(self) -> dict[str, int]:
        """Proportional set size in bytes of each role's process."""
        sizes = {}
        for role, pid in self.pids().items():
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                sizes[role] = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        return sizes

    # --- its log and its files ---

    def log_text(self) -> str:
        """What it logged since it was last started."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def wait_log(self, pattern: str, within: float = PATIENCE) -> re.Match[str]:
        """The first place of the log that matches; waits for it."""
        expression = re.compile(pattern, re.MULTILINE)
        wait_until(f"log line {pattern!r}", lambda: expression.search(self.log_text()), within)
        found = expression.search(self.log_text())
        assert found is not None
        return found

    def partition_directory(self, topic: str, partition: int) -> Path:
        """Where the files of a partition lie; fails when it has none."""
        name = f"{topic}-{partition}"
        found = [path / name for path in self.log_dirs if (path / name).is_dir()]
        assert len(found) == 1, f"{name}: {found}"
        return found[0]

    def has_directory(self, topic: str, partition: int) -> bool:
        """True when the partition has a directory."""
        return any((path / f"{topic}-{partition}").exists() for path in self.log_dirs)

    def segments(self, topic: str, partition: int) -> dict[int, Path]:
        """The segment files of a partition by base offset, in order."""
        files = sorted(self.partition_directory(topic, partition).glob("*.kafka"), key=lambda path: int(path.stem))
        return {int(path.stem): path for path in files}

    def stored_bytes(self, topic: str, partition: int) -> bytes:
        """Everything the segment files of a partition hold, one after the other."""
        return b"".join(path.read_bytes() for path in self.segments(topic, partition).values())

    def connect(self, timeout: float = PATIENCE) -> RawClient:
        """Open a new connection to the broker."""
        return RawClient(self.port, timeout=timeout)


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def die_with_parent() -> None:
    """For ``preexec_fn``: a test run that is killed itself leaves nothing behind."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
