"""One server of ZooKeeper, or several that form an ensemble: started, asked, stopped."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from fastlog.errors import FastlogError
from fastlog.java import find_java
from fastlog.zkserver.jars import find_class_path

MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
_SMALL_COLLECTOR = "-XX:+UseSerialGC"
_USER_OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
_LOG_CONFIGURATION = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""
_PR_SET_PDEATHSIG = 1
_STOP_SECONDS = 5.0
_PROBE_SECONDS = 1.0
_POLL_SECONDS = 0.02


class ServerStartError(FastlogError):
    """A server ended before it served, or took too long; the message holds the end of what it said."""


class Server:
    """One process. ``peers``: for an ensemble, the (quorum port, election port) of every member, itself included."""

    def __init__(
        self,
        directory: Path,
        port: int,
        *,
        host: str = "127.0.0.1",
        number: int = 1,
        peers: Sequence[tuple[int, int]] = (),
        tick_ms: int = 2000,
        max_session_ms: int | None = None,
        heap_mb: int = 128,
        sync: bool = True,
    ) -> None:
        self.host = host
        self.port = port
        self.directory = directory
        self._number = number
        self._peers = tuple(peers)
        self._tick_ms = tick_ms
        self._max_session_ms = max_session_ms
        self._heap_mb = heap_mb
        self._sync = sync
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The id of the running process; None where there is none."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def log_path(self) -> Path:
        """The file that its output goes to."""
        return self.directory / "zookeeper.log"

    def start(self) -> None:
        """Start the process without waiting for it to serve.

        Raises:
            MissingDependencyError: there is no Java or no jars.
        """
        class_path = find_class_path()
        java = find_java()
        self.directory.mkdir(parents=True, exist_ok=True)
        options = [*_JVM_OPTIONS, f"-Xmx{self._heap_mb}m", f"-Dzookeeper.forceSync={'yes' if self._sync else 'no'}"]
        if not any(_COLLECTOR.search(os.environ.get(name, "")) for name in _USER_OPTIONS):
            options.insert(0, _SMALL_COLLECTOR)  # Java does not start with two
        if class_path.can_log:
            log_file = self.directory / "log4j2.properties"
            log_file.write_text(_LOG_CONFIGURATION)
            options.append(f"-Dlog4j2.configurationFile={log_file}")
        configuration = self.directory / "zoo.cfg"
        configuration.write_text(self._configuration())
        if self._peers:
            (self.directory / "data").mkdir(exist_ok=True)
            (self.directory / "data" / "myid").write_text(f"{self._number}\n")
        command = [java, *options, "-cp", str(class_path), MAIN_CLASS, str(configuration)]
        with self.log_path.open("ab") as output:
            self._process = _started(command, output)

    def wait_ready(self, timeout: float = 20.0, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Wait until it serves. An open port is not enough: a request that comes too early is never answered.

        Raises:
            ServerStartError: it ended, or took longer than ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while not self.is_serving():
            if self.pid is None:
                raise ServerStartError(f"ZooKeeper ended at once: {self._last_words()}")
            if time.monotonic() > deadline or not is_wanted():
                raise ServerStartError(f"ZooKeeper does not serve within {timeout:g} s: {self._last_words()}")
            time.sleep(_POLL_SECONDS)

    def is_serving(self) -> bool:
        """Whether it answers ``srvr`` as one that serves."""
        return "Mode:" in self.ask(b"srvr")

    def ask(self, word: bytes) -> str:
        """The answer to one of its four-letter words; empty when there is none within a second."""
        try:
            with socket.create_connection((self.host, self.port), timeout=_PROBE_SECONDS) as connection:
                connection.sendall(word)
                parts = []
                while part := connection.recv(65536):
                    parts.append(part)
        except OSError:
            return ""
        return b"".join(parts).decode(errors="replace")

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def stop(self) -> None:
        """End it and wait until it is gone; killed after five seconds. May be called again."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def wait_exit(self) -> int | None:
        """The exit code once it has ended; None while it runs."""
        return None if self._process is None else self._process.poll()

    def _configuration(self) -> str:
        lines = {
            "tickTime": self._tick_ms,
            "initLimit": 20,
            "syncLimit": 10,
            "dataDir": self.directory / "data",
            "clientPort": self.port,
            "clientPortAddress": self.host,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr,ruok,mntr,stat",
            "autopurge.snapRetainCount": 3,
            "autopurge.purgeInterval": 24,
        }
        if self._max_session_ms is not None:
            lines["maxSessionTimeout"] = self._max_session_ms
        if self._peers:
            lines |= {
                f"server.{number}": f"{self.host}:{quorum}:{election}"
                for number, (quorum, election) in enumerate(self._peers, 1)
            }
        return "".join(f"{name}={value}\n" for name, value in lines.items())

    def _last_words(self) -> str:
        try:
            text = self.log_path.read_text(errors="replace")[-2000:].strip()
        except OSError:
            text = ""
        return text or "it said nothing"


class Ensemble:
    """One server, or several that need more than half of them alive."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = tuple(servers)

    @property
    def connect(self) -> str:
        """The ``zk.connect`` of clients: all servers, with commas between them."""
        return ",".join(f"{server.host}:{server.port}" for server in self.servers)

    def start(self, timeout: float = 30.0, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Start all and wait until they serve; none runs when it fails. Raises as ``Server``."""
        with ExitStack() as undo:
            for server in self.servers:
                undo.callback(server.stop)
                server.start()
            for server in self.servers:
                server.wait_ready(timeout, is_wanted)
            undo.pop_all()

    def stop(self) -> None:
        """Stop all servers. May be called twice."""
        for server in self.servers:
            server.stop()


def make_ensemble(directory: Path, ports: Sequence[int], spare_ports: Sequence[int] = (), **options: Any) -> Ensemble:
    """An ensemble of a server for each of ``ports``, each in its own directory below when there are several.

    ``spare_ports``: two for each server, with which several speak to each other. ``options``: those of ``Server``.
    """
    if len(ports) == 1:
        return Ensemble([Server(directory, ports[0], **options)])
    pairs = list(zip(spare_ports[::2], spare_ports[1::2], strict=True))
    return Ensemble(
        [
            Server(directory / f"server-{number}", port, number=number, peers=pairs, **options)
            for number, port in enumerate(ports, 1)
        ]
    )


def _started(command: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """A process that is killed when this one ends.

    The kernel does so when the *thread* that started it ends: hence one that does nothing else and waits for it.
    """
    made: Future[subprocess.Popen[bytes]] = Future()

    def start_and_wait() -> None:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a Ctrl-C at the terminal is for whoever started it
                preexec_fn=_die_with_parent(),
            )
        except BaseException as error:
            made.set_exception(error)
            return
        made.set_result(process)
        process.wait()

    threading.Thread(target=start_and_wait, name="fastlog-zookeeper-server", daemon=True).start()
    return made.result()


def _die_with_parent() -> Callable[[], None]:
    try:
        import ctypes  # Python may be built without it, and all that does not start a server works there
    except ImportError as error:
        raise ServerStartError(
            "this Python has no ctypes, which lets the server end with its parent: build Python where libffi's headers"
            " are, or run fastlog zookeeper with another"
        ) from error
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return ask
