"""Brokers of real processes for tests: start, knobs, and an end that leaves nothing behind."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fastlog.addresses import host_port
from fastlog.testing.processes import start_time, state, wait_until
from fastlog.testing.proxy import Proxy
from fastlog.testing.start import start_broker

if TYPE_CHECKING:
    from fastlog.consumer.simple import SimpleConsumer

_MONITOR = re.compile(rb"fastlog-broker: ready .*?\bmonitor=(\S+)")
# from the beginning of the line: names of clients stand in others
_STARTED = re.compile(rb"^\S+ \S+ INFO supervisor\[\d+\] started role=(\S+) pid=(\d+)", re.MULTILINE)
_REGISTERED = re.compile(rb"\bregistered path=/brokers/ids/")
_STOP_SECONDS = 8.0
_GONE_SECONDS = 5.0
_LOG_TAIL_BYTES = 4000
_REPORTED_BYTES = 16_000
_PROPERTIES = {
    "group.initial.rebalance.delay.ms": "0"
}  # a test has the members that it starts, and waits for no others

_open: weakref.WeakSet[RunningBroker] = weakref.WeakSet()
_ended: list[tuple[str, str]] = []  # address and log of brokers that an exception ended, since ``begin_test``


class BrokerStartError(Exception):
    """The broker ended before it took connections, or took too long; the message holds the end of its log."""


class RunningBroker:
    """A broker of a test: starts on entering the block, is gone after it. One thread at a time.

    ``directory`` holds its logs (``data``) and what it says (``broker.log``). The port stays the same over restarts: a
    socket of the test's own keeps it, so nobody else gets it meanwhile.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        directory: str | os.PathLike[str] | None = None,
        properties: Mapping[str, object] | None = None,
        settings: Mapping[str, Any] | None = None,
        start_timeout: float = 20.0,
        disk_delay: float = 0.0,
        proxied: bool = False,
    ) -> None:
        self.host = host
        self.port = 0
        self.front: Proxy | None = None
        """The proxy that the broker advertises in its place; None unless it was made with ``proxied``."""
        self._proxied = proxied
        self.disk_delay = disk_delay
        """Seconds that each sync of a file takes longer, from the next ``start`` on."""
        self._given_directory = None if directory is None else Path(directory)
        self._properties = {name: _property(value) for name, value in (properties or {}).items()}
        self._settings = dict(settings or {})
        self._start_timeout = start_timeout
        self._directory: Path | None = None
        self._keeper: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        self._log_start = 0
        self._log_reported = 0
        self._proxies: list[Proxy] = []
        self._seen: dict[int, int] = {}  # process id → start time, which tells it from a later process of that id
        self._pid = os.getpid()
        self._at_exit: Callable[[], object] | None = None

    def __enter__(self) -> RunningBroker:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            _ended.extend(self._reported())
        self.close()

    def __del__(self) -> None:
        if self._keeper is not None:
            self.close()

    def __repr__(self) -> str:
        return f"<RunningBroker {self.address} {'running' if self.running else 'not running'}>"

    # -- life ----------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make the directory, take a port, start. Raises ``BrokerStartError``."""
        if self._keeper is not None:
            raise RuntimeError("it was opened already")
        self._at_exit = atexit.register(partial(_close, weakref.ref(self)))
        if self._given_directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="fastlog-"))
        else:
            self._directory = self._given_directory
            self._directory.mkdir(parents=True, exist_ok=True)
        try:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            self._keeper = socket.socket(family, socket.SOCK_STREAM)
            self._keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                self._keeper.bind((self.host, 0))
            except OSError as error:
                raise BrokerStartError(f"cannot listen on {self.host}: {error.strerror}") from error
            self.port = self._keeper.getsockname()[1]
            if self._proxied:
                self.front = self.proxy()
                self._properties["advertised.listeners"] = f"PLAINTEXT://{self.front.address}"
            self.start()
            _open.add(self)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End it, whatever state it is in, and remove what it left; may be called again. Nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        for proxy in self._proxies:
            proxy.close()
        self._proxies.clear()
        self.front = None
        _open.discard(self)
        try:
            self._end(signal.SIGTERM)
        finally:
            if self._keeper is not None:
                self._keeper.close()
                self._keeper = None
            if self._directory is not None and self._given_directory is None:
                shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
            if self._at_exit is not None:
                atexit.unregister(self._at_exit)
                self._at_exit = None

    def start(self) -> None:
        """Start it on its directory, after ``stop`` or ``kill``; returns when it takes connections.

        Raises:
            BrokerStartError: it did not get there.
        """
        if self._process is not None:
            raise RuntimeError("it runs already")
        settings = {"port": self.port, "host": self.host, "log_dirs": [str(self.data_directory)], "processors": 2}
        given = {"properties": {**_PROPERTIES, **self._properties}, "fields": {**settings, **self._settings}}
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        ready, ready_there = os.pipe()
        lifeline_there, self._lifeline = os.pipe()
        try:
            with self.log_path.open("ab") as log:
                self._process = start_broker(json.dumps(given), self._environment(), lifeline_there, log, ready_there)
        finally:
            os.close(ready_there)
            os.close(lifeline_there)
        try:
            self._wait_ready(ready)
        except BaseException:
            self._end(signal.SIGKILL)
            raise
        finally:
            os.close(ready)

    def stop(self) -> int:
        """Stop it as SIGTERM does: everything is flushed. Returns its exit code; ``start`` starts it again."""
        return self._end(signal.SIGTERM)

    def restart(self) -> None:
        """``stop``, if it runs, and ``start``."""
        self.stop()
        self.start()

    @property
    def running(self) -> bool:
        """Whether the broker's supervisor is alive."""
        return self._process is not None and self._process.poll() is None

    # -- where it is ---------------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """``host:port``, as clients take it; that of ``front`` where there is one."""
        if self.front is not None:
            return self.front.address
        return host_port(self.host, self.port)

    @property
    def monitor_address(self) -> str:
        """``host:port`` where it answers ``/live``, ``/ready``, ``/health`` and ``/metrics``.

        It does when it was started with ``monitor_address``; with port 0 (``monitor_address="127.0.0.1:0"``) it is
        another one after each start.
        """
        found = _MONITOR.search(self._log_bytes())
        if found is None:
            raise RuntimeError('it has none: broker(monitor_address="127.0.0.1:0") gives it one')
        return found[1].decode()

    @property
    def directory(self) -> Path:
        """The directory with everything of it; only while it is open."""
        if self._directory is None:
            raise RuntimeError("it was not opened")
        return self._directory

    @property
    def data_directory(self) -> Path:
        """The broker's log directory."""
        return self.directory / "data"

    @property
    def log_path(self) -> Path:
        """The file to which the broker's standard error goes."""
        return self.directory / "broker.log"

    def log_text(self) -> str:
        """What the broker has logged since it was last started."""
        return self._log_bytes().decode(errors="replace")

    def consumer(self, **options: Any) -> SimpleConsumer:
        """A ``SimpleConsumer`` of this broker; close it."""
        from fastlog.consumer.simple import SimpleConsumer

        return SimpleConsumer(self.host, self.port, **options)

    # -- knobs ---------------------------------------------------------------------------------------------------------

    def pids(self) -> dict[str, int]:
        """The process of each role now: ``supervisor``, ``acceptor``, ``flusher``, ``keeper``, ``processor-0``, …"""
        if self._process is None:
            return {}
        found = {role.decode(): int(pid) for role, pid in _STARTED.findall(self._log_bytes())}
        found["supervisor"] = self._process.pid
        living = {role: pid for role, pid in found.items() if start_time(pid) is not None}
        for pid in living.values():
            self._seen.setdefault(pid, start_time(pid) or 0)
        return living

    def kill(self, role: str | None = None) -> int:
        """SIGKILL for the process of a role, which the broker replaces, or for all of it; returns the process id.

        After the kill of everything ``start`` starts it again on the same files.
        """
        if role is None:
            process = self._process
            if process is None:
                raise RuntimeError("it does not run")
            self._end(signal.SIGKILL)
            return process.pid
        return self._signal(role, signal.SIGKILL)

    def pause(self, role: str) -> int:
        """SIGSTOP for the process of a role; returns its id once it no longer runs."""
        pid = self._signal(role, signal.SIGSTOP)
        wait_until(lambda: state(pid) in "TtZX", 5.0)
        return pid

    def resume(self, role: str) -> int:
        """Let the process of a role go on after ``pause`` (SIGCONT); its id."""
        return self._signal(role, signal.SIGCONT)

    def wait_replaced(self, role: str, old_pid: int, within: float = 5.0) -> int:
        """The id of the process that has taken over from ``old_pid``.

        Raises:
            TimeoutError: none has taken over within ``within`` seconds.
        """
        wait_until(lambda: self.pids().get(role, old_pid) != old_pid, within, f"{role} {old_pid} was not replaced")
        return self.pids()[role]

    def wait_registered(self, within: float = 20.0) -> None:
        """Return once it is registered in ZooKeeper, for clients that find brokers there; it serves others before.

        Raises:
            TimeoutError: it has not registered since it was started; the message holds the end of its log.
        """
        try:
            wait_until(lambda: _REGISTERED.search(self._log_bytes()) is not None, within)
        except TimeoutError:
            end = self.log_text()[-_LOG_TAIL_BYTES:]
            raise TimeoutError(f"not registered in ZooKeeper within {within:g} s\n{end}") from None

    def proxy(self, delay: float = 0.0) -> Proxy:
        """A TCP proxy before it that adds ``delay`` seconds each way, and can do more; closed with the broker."""
        made = Proxy((self.host, self.port), delay=delay)
        self._proxies.append(made)
        return made

    def fill_disk(self) -> None:
        """Let every write to a file fail from now on, as on a full disk, in the processes it has and will have.

        The error is EFBIG instead of ENOSPC, since it is made with a limit (RLIMIT_FSIZE). What it logs is lost, too.
        """
        self._limit_files(0)

    def free_disk(self) -> None:
        """Let the broker write files again after ``fill_disk``."""
        self._limit_files(None)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        if self.disk_delay > 0:
            slow = f"fdatasync@1-=slow:{self.disk_delay * 1000:.0f}"
            environment["FASTLOG_FAULTS"] = ",".join(filter(None, [environment.get("FASTLOG_FAULTS"), slow]))
        return environment

    def _reported(self) -> list[tuple[str, str]]:
        """Its address and the end of what it has said since the test began; nothing where it has said nothing."""
        if self._directory is None or not self.log_path.exists():
            return []
        with self.log_path.open("rb") as log:
            log.seek(max(self._log_reported, os.fstat(log.fileno()).st_size - _REPORTED_BYTES))
            text = log.read().decode(errors="replace")
        return [(self.address, text)] if text else []

    def _limit_files(self, most_bytes: int | None) -> None:
        pids = self.pids()
        if "supervisor" not in pids:
            raise RuntimeError("it does not run")
        for role in ("supervisor", *(role for role in pids if role != "supervisor")):
            with contextlib.suppress(ProcessLookupError):
                _, hard = resource.prlimit(pids[role], resource.RLIMIT_FSIZE)
                resource.prlimit(pids[role], resource.RLIMIT_FSIZE, (hard if most_bytes is None else most_bytes, hard))

    def _signal(self, role: str, number: int) -> int:
        pid = self.pids().get(role)
        if pid is None:
            raise ProcessLookupError(
                f"no process has the role {role!r} now; there are {', '.join(sorted(self.pids()))}"
            )
        os.kill(pid, number)
        return pid

    def _wait_ready(self, ready: int) -> None:
        assert self._process is not None
        waiting = select.poll()
        waiting.register(ready, select.POLLIN)
        if not waiting.poll(self._start_timeout * 1000):
            raise BrokerStartError(f"not ready within {self._start_timeout:g} s\n{self.log_text()[-_LOG_TAIL_BYTES:]}")
        if not os.read(ready, 64):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
            code = self._process.poll()
            raise BrokerStartError(f"it ended with code {code}\n{self.log_text()[-_LOG_TAIL_BYTES:]}")

    def _end(self, number: int) -> int:
        process = self._process
        if process is None:
            return 0
        known = self.pids()
        if number == signal.SIGKILL:
            # First the one that replaces the others; it does not come to reaping them then.
            process.kill()
        else:
            for pid in known.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process = None
        os.close(self._lifeline)
        self._lifeline = -1
        self._end_orphans()
        return process.returncode

    def _end_orphans(self) -> None:
        """Wait until no process is left; the kernel kills those whose supervisor was killed."""
        for pid, started in self._seen.items():
            if start_time(pid) == started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: all(start_time(pid) != started for pid, started in self._seen.items()),
            _GONE_SECONDS,
            "processes of the broker are left",
        )
        self._seen.clear()

    def _log_bytes(self) -> bytes:
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read()


def _property(value: object) -> str:
    """As it stands in a file of properties."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def broker(
    *,
    host: str = "127.0.0.1",
    directory: str | os.PathLike[str] | None = None,
    properties: Mapping[str, object] | None = None,
    start_timeout: float = 20.0,
    disk_delay: float = 0.0,
    proxied: bool = False,
    **settings: Any,
) -> Iterator[RunningBroker]:
    """A broker for the length of the block.

    ``settings`` are fields of ``BrokerConfig`` (``partitions=4``) or property names with underscores
    (``log_file_size=1000``); ``properties`` are property names as they are. Without ``directory`` its files lie in a
    temporary one. Each sync of a file takes ``disk_delay`` seconds longer. With ``proxied`` all clients come through
    the proxy ``front``, today's as well, which go to the advertised address. The first rebalance of a group
    waits for no further members, unless ``group_initial_rebalance_delay_ms`` says so. With ``zk_connect`` the block
    begins once ZooKeeper shows the broker; a ``RunningBroker`` of your own does not wait for that.

    Raises:
        BrokerStartError: it did not start, or did not register in time; the message says why.
    """
    with RunningBroker(
        host=host,
        directory=directory,
        properties=properties,
        settings=settings,
        start_timeout=start_timeout,
        disk_delay=disk_delay,
        proxied=proxied,
    ) as running:
        if _registers({**(properties or {}), **settings}):
            try:
                running.wait_registered(start_timeout)
            except TimeoutError as error:
                raise BrokerStartError(str(error)) from None
        yield running


@contextmanager
def cluster(count: int, **settings: Any) -> Iterator[list[RunningBroker]]:
    """Several brokers with the ids 0, 1, …; otherwise as ``broker``."""
    with ExitStack() as stack:
        yield [stack.enter_context(broker(broker_id=number, **settings)) for number in range(count)]


def begin_test() -> None:
    """What brokers have said so far is not of the test that begins now."""
    _ended.clear()
    for running in list(_open):
        running._log_reported = running.log_path.stat().st_size


def logs_of_test() -> list[tuple[str, str]]:
    """Address and log of each broker that the test has or had: those that are open, and those that its error ended."""
    found = [*_ended, *(part for running in list(_open) for part in running._reported())]
    _ended.clear()
    return found


def _registers(settings: Mapping[str, Any]) -> bool:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return bool(named.get("zk.connect")) and str(named.get("enable.zookeeper")).lower() != "false"


def _close(reference: weakref.ref[RunningBroker]) -> None:
    running = reference()
    if running is not None:
        running.close()
