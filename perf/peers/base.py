"""What every peer can do, and the processes behind it: on loopback, with directories of their own, always ended."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

Figures = dict[str, Any]
"""One run: ``rate`` (messages a second), ``seconds``, ``messages``, ``client`` and ``broker`` (name and version)."""

_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl


class PeerFailed(RuntimeError):
    """A peer or its client did not do what was asked; the message says which, with the end of its output."""


class Peer(Protocol):
    """A broker to compare with. For one thread; ``stop`` may be called at any time and more than once.

    Every message is persisted, and flushed to the disk asynchronously, as fastlog does with its page-cache policy.
    Clocks run inside the clients, from the first message until the broker says that it has everything.
    """

    @property
    def name(self) -> str:
        """As in result files: ``rabbitmq-stream``."""

    @property
    def title(self) -> str:
        """The system's name for people."""

    @property
    def default_messages(self) -> int:
        """As many as take some seconds, and as the peer can hold."""

    def available(self) -> str | None:
        """None when it can be started here; else the reason in one line, with what to install."""

    def start(self, directory: Path) -> None:
        """Starts the broker, its data below ``directory``. Raises ``PeerFailed``."""

    def produce(self, messages: int, size: int = 200, batch: int = 50) -> Figures:
        """Sends into a new queue or topic; an older one is removed first, which is not timed."""

    def consume(self, messages: int) -> Figures:
        """Reads what ``produce`` sent, from its beginning."""

    def stop(self) -> None:
        """Ends every process that ``start`` began. The files stay with whoever gave the directory."""


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Child:
    """A process in a group of its own, so that what it starts itself can be ended with it; output goes to ``log``."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        self._output: IO[bytes] = log.open("ab")
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **env},
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )

    @property
    def pid(self) -> int:
        """The process's id, which is its group's too."""
        return self._process.pid

    def failure(self, problem: str) -> PeerFailed:
        """The problem with the end of the log."""
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
        return PeerFailed(f"{self.name}: {problem}\n{tail}".rstrip())

    def wait_port(self, port: int, seconds: float = 90.0) -> None:
        """Returns once somebody listens there. Raises ``PeerFailed`` when the process ends or the time is over."""
        deadline = time.monotonic() + seconds
        while True:
            status = self._process.poll()
            if status is not None:
                raise self.failure(f"ended with status {status}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
                return
            if time.monotonic() > deadline:
                raise self.failure(f"does not listen after {seconds:.0f} s")
            time.sleep(0.05)

    def stop(self, seconds: float = 20.0) -> None:
        """Asks it to end, then ends it and whatever is left of its group. May be called twice."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._output.close()


def run(name: str, command: Sequence[str], env: Mapping[str, str] | None = None, timeout: float = 600.0) -> str:
    """The standard output of a command that must succeed. Raises ``PeerFailed`` with the end of what it wrote."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_die_with_parent,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise PeerFailed(f"{name}: not done after {timeout:.0f} s") from None
        raise
    if process.returncode:
        tail = "\n".join((out + err).strip().splitlines()[-15:])
        raise PeerFailed(f"{name}: ended with status {process.returncode}\n{tail}".rstrip())
    return out


def figures(output: str, messages: int, **more: str) -> Figures:
    """What a client printed: the JSON of its last line. Raises ``PeerFailed`` when that counts other messages."""
    try:
        result: Figures = json.loads(output.splitlines()[-1])
        counted = result["messages"]
        float(result["rate"]), float(result["seconds"])
    except (ValueError, LookupError, TypeError):
        raise PeerFailed(f"the client printed no result: {output.strip()[-200:]!r}") from None
    if counted != messages:
        raise PeerFailed(f"the client counted {counted} messages instead of {messages}")
    return {**result, **more}
