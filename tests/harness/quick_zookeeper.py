"""ZooKeepers of tests start in half of the time, with an archive of the classes that one loads, which is made once."""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from kazoo.client import KazooClient

from fastlog.errors import MissingDependencyError
from fastlog.java import find_java
from fastlog.zkserver import server
from tests.harness.broker import ROOT, die_with_parent
from tests.harness.ports import unused_port
from tests.harness.timing import PATIENCE


@contextlib.contextmanager
def quick_zookeepers() -> Iterator[None]:
    """So within the block, where the Java of this machine takes such an archive."""
    plain = server._started
    with contextlib.suppress(MissingDependencyError):
        server._started = QuickStart().started
    try:
        yield
    finally:
        server._started = plain


class QuickStart:
    """Starts ZooKeepers by the Java that there is now; those of another one as ever."""

    def __init__(self) -> None:
        self._plain = server._started
        self._java = find_java()
        self._lock = threading.Lock()

    def started(self, command: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        """As the ``_started`` that it stands for."""
        java, *arguments = command
        if java == self._java:
            with self._lock:
                archive = _archive(command)
            if archive.stat().st_size:
                arguments = [f"-XX:SharedArchiveFile={archive}", *arguments]
        return self._plain([java, *arguments], output)


def _archive(command: Sequence[str]) -> Path:
    """The file for the Java and the class path of a command, made where it is missing; empty where it cannot be."""
    key = zlib.crc32(" ".join([command[0], command[command.index("-cp") + 1]]).encode())
    path = ROOT / ".tmp" / f"zookeeper-{key:08x}.jsa"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                _make(path, command)
    return path


def _make(path: Path, command: Sequence[str]) -> None:
    with TemporaryDirectory(dir=path.parent) as made:
        folder = Path(made)
        new, configuration, port = folder / "new", folder / "zoo.cfg", unused_port()
        configuration.write_text(
            f"dataDir={folder}\nclientPort={port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
            "4lw.commands.whitelist=srvr\n"
        )
        dumping = [command[0], f"-XX:ArchiveClassesAtExit={new}", *command[1:-1], str(configuration)]
        nowhere = subprocess.DEVNULL
        with subprocess.Popen(dumping, stdout=nowhere, stderr=nowhere, preexec_fn=die_with_parent) as process:
            serving, deadline = server.Server(folder, port), time.monotonic() + PATIENCE
            try:
                while process.poll() is None and time.monotonic() < deadline and not serving.is_serving():
                    time.sleep(0.02)
                if process.poll() is None:
                    _be_a_client(port)
            finally:
                process.terminate()
        new.touch()
        new.rename(path)


def _be_a_client(port: int) -> None:
    client = KazooClient(f"127.0.0.1:{port}")
    try:
        client.start()
        client.create("/a/b", ephemeral=True, makepath=True)
        client.get("/a/b", watch=lambda _: None)
        client.get_children("/a")
        client.set("/a/b", b"set")
    finally:
        client.stop()
        client.close()
