"""A real ZooKeeper inside a test: servers of Apache ZooKeeper on ports and in a directory of the test's own."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from fastlog.coordination.session import session_name
from fastlog.testing.processes import state, wait_until
from fastlog.testing.proxy import Proxy
from fastlog.zkserver.server import Ensemble, Server, make_ensemble

_TICK_MS = 100  # sessions last from 2 to 20 ticks, so tests can have short ones
_MASK48 = (1 << 48) - 1
_EXPIRE_SECONDS = 10.0
_CLOSE_SESSION = -11


class RunningZooKeeper:
    """One server, or an ensemble; runs from ``open`` to ``close``. For one thread at a time.

    ``connect`` is what clients call ``zk.connect``. Sessions may last from 0.2 to 20 seconds.
    """

    def __init__(self, servers: int = 1, *, start_timeout: float = 60.0) -> None:
        self._count = servers
        self._start_timeout = start_timeout
        self._keepers: list[socket.socket] = []
        self._proxies: list[Proxy] = []
        self._ensemble: Ensemble | None = None
        self._directory: Path | None = None
        self._pid = os.getpid()

    def __enter__(self) -> RunningZooKeeper:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Start the servers and wait until they serve.

        Raises:
            MissingDependencyError: there is no Java or no ZooKeeper here; says what to install.
            ServerStartError: one did not come up.
        """
        if self._ensemble is not None:
            raise RuntimeError("it was opened already")
        atexit.register(self.close)
        self._directory = Path(tempfile.mkdtemp(prefix="fastlog-zookeeper-"))
        try:
            ports = [self._keep_port() for _ in range(self._count)]
            spare = [self._keep_port() for _ in range(2 * self._count)] if self._count > 1 else []
            self._ensemble = make_ensemble(
                self._directory, ports, spare, tick_ms=_TICK_MS, max_session_ms=20_000, heap_mb=64, sync=False
            )
            self._ensemble.start(self._start_timeout)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the servers and remove what they left; may be called again. Nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        atexit.unregister(self.close)
        for proxy in self._proxies:
            proxy.close()
        self._proxies.clear()
        if self._ensemble is not None:
            for server in self._ensemble.servers:
                server.kill()
            self._ensemble = None
        for keeper in self._keepers:
            keeper.close()
        self._keepers.clear()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    @property
    def servers(self) -> tuple[Server, ...]:
        """The processes, with ``pid``, ``port`` and what they say."""
        return self._running().servers

    @property
    def connect(self) -> str:
        """The connect string: ``host:port`` of every server, separated by commas."""
        return self._running().connect

    def kill(self, number: int = 0) -> None:
        """Kill one server (SIGKILL)."""
        self.servers[number].kill()

    def stop(self, number: int = 0) -> None:
        """Stop one server, which closes its files first."""
        self.servers[number].stop()

    def start(self, number: int = 0) -> None:
        """Start one server again, on its files, and wait until it serves."""
        self.servers[number].start()
        self.servers[number].wait_ready(self._start_timeout)

    def pause(self, number: int = 0) -> None:
        """SIGSTOP: it takes connections and answers nothing. Returns once none of its threads runs."""
        server = self.servers[number]
        server.signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{server.pid}/task")
        wait_until(lambda: all(state(int(task.name)) in "TtZX" for task in tasks.iterdir()), 5.0)

    def resume(self, number: int = 0) -> None:
        """Let one server go on after ``pause`` (SIGCONT)."""
        self.servers[number].signal(signal.SIGCONT)

    def proxy(self, *, delay: float = 0.0, number: int = 0) -> Proxy:
        """A TCP proxy before one server, whose connections can be delayed and cut; closed with this."""
        server = self.servers[number]
        made = Proxy((server.host, server.port), delay=delay)
        self._proxies.append(made)
        return made

    def expire(self, session_id: int) -> None:
        """End somebody's session, as a time-out would: its ephemeral nodes vanish, its client hears "expired".

        A second connection takes the session over by its id and closes it; the server would grant the same to anybody
        who knows the password, which follows from the id. Both are sent at once: the session's own client comes back
        at once, and takes it over in its turn.

        Raises:
            TimeoutError: no server did it within some seconds.
        """
        deadline = time.monotonic() + _EXPIRE_SECONDS
        while time.monotonic() < deadline:
            for server in self.servers:
                try:
                    with socket.create_connection((server.host, server.port), timeout=_EXPIRE_SECONDS) as connection:
                        if _end_session(connection, session_id):
                            return
                except OSError:
                    continue
            time.sleep(0.02)
        raise TimeoutError(f"the session {session_name(session_id)} was not ended within {_EXPIRE_SECONDS:g} s")

    def _running(self) -> Ensemble:
        if self._ensemble is None:
            raise RuntimeError("it does not run")
        return self._ensemble

    def _keep_port(self) -> int:
        """A port that nobody else gets: it stays bound here, without listening."""
        keeper = socket.socket()
        self._keepers.append(keeper)
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        return int(keeper.getsockname()[1])


@contextmanager
def zookeeper(servers: int = 1, *, start_timeout: float = 60.0) -> Iterator[RunningZooKeeper]:
    """A ZooKeeper for the length of the block; needs a Java, and the jars that the extra ``zookeeper`` brings.

    Raises:
        MissingDependencyError: they are not here; says what to install.
        ServerStartError: a server did not come up.
    """
    with RunningZooKeeper(servers, start_timeout=start_timeout) as running:
        yield running


def _end_session(connection: socket.socket, session_id: int) -> bool:
    """Whether the server says that there is no such session any more, or has ended it."""
    # version, last transaction seen, time-out in ms, session, password, read-only; then the request's number and kind
    greeting = struct.pack(">iqiqi16s?", 0, 0, 10_000, session_id, 16, _password(session_id), False)
    closing = struct.pack(">ii", 1, _CLOSE_SESSION)
    connection.sendall(b"".join(len(part).to_bytes(4, "big") + part for part in (greeting, closing)))
    with connection.makefile("rb") as answers:
        granted = answers.read(int.from_bytes(answers.read(4), "big"))
        if len(granted) >= 8 and struct.unpack_from(">i", granted, 4)[0] <= 0:
            return True
        closed = answers.read(int.from_bytes(answers.read(4), "big"))
        return len(closed) >= 16 and struct.unpack_from(">iqi", closed)[::2] == (1, 0)


def _password(session_id: int) -> bytes:
    """What the server made for a session: sixteen bytes of ``java.util.Random`` seeded with id ^ 0xB3415C00."""
    state = ((session_id ^ 0xB3415C00) ^ 0x5DEECE66D) & _MASK48
    found = bytearray()
    for _ in range(4):
        state = (state * 0x5DEECE66D + 0xB) & _MASK48
        found += (state >> 16).to_bytes(4, "little")
    return bytes(found)
