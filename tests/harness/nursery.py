"""Brokers forked from a process that has imported all that one needs, which takes a fifth of a second and is done once.

What is forked runs the command's ``main`` with its arguments, its directory, its environment and its log, as a fresh
interpreter does. Where the environment says something to the interpreter or to the C library, or the test's process has
changed what a process inherits (its umask, its limits), a fresh one it is.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.harness.broker import BROKER_COMMAND, ROOT, Started, die_with_parent, own_environment, start_command

_READ_WHEN_NEEDED = ("FASTLOG_FAULTS", "FASTLOG_JAVA", "JAVA_HOME", "PYTEST_", "PYSPARK_", "SPARK_")
"""What names of variables begin with that a broker reads after its imports, or never."""
_INHERITED = ("Umask", "SigIgn", "Cpus_allowed")
_MAX_REQUEST = 1 << 17


def _inherited() -> list[str]:
    """What a process has from the one that starts it, besides descriptors and the environment."""
    status = Path("/proc/self/status").read_text().splitlines()
    kept = [line for line in status if line.partition(":")[0] in _INHERITED]
    return [*kept, Path("/proc/self/limits").read_text(), str(os.nice(0))]


class Nursery:
    """The process that brokers are forked from, begun with the first of them. Any thread may start one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._environment = own_environment()
        self._inherited = _inherited()

    def start(self, command: Sequence[str], directory: Path, environment: Mapping[str, str], log: IO[bytes]) -> Started:
        """As ``start_command``; another command than the broker's is started in that way."""
        program, arguments = command[: len(BROKER_COMMAND)], command[len(BROKER_COMMAND) :]
        if tuple(program) != BROKER_COMMAND:
            return start_command(command, directory, environment, log)
        with self._lock:
            if self._says_more(environment) or _inherited() != self._inherited:
                return start_command(command, directory, environment, log)
            if self._socket is None:
                self._begin()
            request = {"arguments": list(arguments), "directory": str(directory), "environment": dict(environment)}
            return Forked(self, self._ask(request, [log.fileno()]))

    def exit_code(self, pid: int) -> int:
        """That of a broker which has ended, whose process is gone then."""
        with self._lock:
            return self._ask({"ended": pid}, [])

    def close(self) -> None:
        """End it. Brokers that it has started die with it."""
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait()
            self._socket = self._process = None

    def _begin(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.harness.nursery", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env=self._environment,
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                preexec_fn=die_with_parent,
            )

    def _says_more(self, environment: Mapping[str, str]) -> bool:
        """Whether a variable differs that is read before ``main``."""
        different = self._environment.items() ^ environment.items()
        return not all(name.startswith(_READ_WHEN_NEEDED) for name, _ in different)

    def _ask(self, request: Mapping[str, object], descriptors: Sequence[int]) -> int:
        assert self._socket is not None
        socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
        answer = self._socket.recv(64)
        assert answer, "the process that brokers are forked from has died: see what it printed"
        return int(answer)


class Forked:
    """A broker that was forked; what tests ask of a ``Popen``."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery = nursery
        self._end = os.pidfd_open(pid)

    def poll(self) -> int | None:
        return self.returncode if self._ends_within(0) else None

    def wait(self, timeout: float | None = None) -> int:
        if not self._ends_within(timeout):
            raise subprocess.TimeoutExpired(BROKER_COMMAND, timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._end, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ends_within(self, seconds: float | None) -> bool:
        if self.returncode is None:
            ending = select.poll()
            ending.register(self._end, select.POLLIN)
            if not ending.poll(None if seconds is None else seconds * 1000):
                return False
            self.returncode = self._nursery.exit_code(self.pid)
            os.close(self._end)
        return True


def serve(requests: socket.socket) -> list[str] | None:
    """Fork a process for each request: its arguments, in that process; None in the first one, at the end."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _MAX_REQUEST, 1)
        if not message:
            return None
        request = json.loads(message)
        if "ended" in request:
            _, status = os.waitpid(request["ended"], 0)
            requests.send(b"%d" % os.waitstatus_to_exitcode(status))
            continue
        pid = os.fork()
        if pid == 0:
            requests.close()
            die_with_parent()
            for descriptor in (1, 2):
                os.dup2(descriptors[0], descriptor)
            os.close(descriptors[0])
            os.chdir(request["directory"])
            os.environ.clear()
            os.environ.update(request["environment"])
            return [str(argument) for argument in request["arguments"]]
        os.close(descriptors[0])
        requests.send(b"%d" % pid)


def main() -> None:
    """Import what a broker imports, and wait."""
    import encodings.idna  # noqa: F401

    import fastlog.broker
    import fastlog.tools.daemon
    import fastlog.workers.monitor  # noqa: F401
    from fastlog.tools import broker_command

    gc.collect()
    gc.freeze()
    arguments = serve(socket.socket(fileno=int(sys.argv[1])))
    if arguments is not None:
        sys.argv[1:] = arguments
        broker_command.main()


if __name__ == "__main__":
    main()
