"""Brokers and commands forked from a process that has imported all that they need, which is done once.

What is forked runs the command's ``main`` with its arguments, its directory, its environment and its files, as a fresh
interpreter does that has read its modules. Where the environment says something to the interpreter or to the C library,
or the test's process has changed what a process inherits (its umask, its limits), a fresh one it is.
"""

from __future__ import annotations

import gc
import importlib
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
from tempfile import TemporaryFile
from typing import IO

from fastlog.testing.start import start_broker as start_testing_broker
from tests.harness import command_process
from tests.harness.broker import ROOT, Started, die_with_parent, own_environment, start_command

_TESTING = "fastlog._broker_main"
_MAINS = {
    "fastlog": "fastlog.tools.cli",
    "fastlog.tools.broker_command": "fastlog.tools.broker_command",
    _TESTING: _TESTING,
}
"""Where each module that is run has its ``main``."""
_READ_WHEN_NEEDED = (
    "COLUMNS", "FASTLOG_BROKERS", "FASTLOG_FAULTS", "FASTLOG_JAVA", "FASTLOG_ZK", "FASTLOG_ZOOKEEPER", "JAVA_HOME",
    "NO_COLOR", "PATH", "PYTEST_", "PYSPARK_", "SPARK_", "TERM",
)  # fmt: skip
"""What names of variables begin with that are read after the imports, or never."""
_MOST_STDIN = 1 << 16
"""Bytes that a pipe takes before anybody reads."""
_INHERITED = ("Umask", "SigIgn", "Cpus_allowed")
_MAX_REQUEST = 1 << 17


def _inherited() -> list[str]:
    """What a process has from the one that starts it, besides descriptors and the environment."""
    status = Path("/proc/self/status").read_text().splitlines()
    kept = [line for line in status if line.partition(":")[0] in _INHERITED]
    return [*kept, Path("/proc/self/limits").read_text(), str(os.nice(0))]


class Nursery:
    """The process that others are forked from, begun with the first of them. Any thread may start one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._environment = own_environment()
        self._inherited = _inherited()

    def start(self, command: Sequence[str], directory: Path, environment: Mapping[str, str], log: IO[bytes]) -> Started:
        """As ``start_command``; a broker that cannot be forked is started in that way."""
        with Path(os.devnull).open() as nothing:
            forked = self._fork(command, directory, environment, [nothing.fileno(), log.fileno(), log.fileno()])
        return forked or start_command(command, directory, environment, log)

    def start_testing(
        self, given: str, environment: Mapping[str, str], lifeline: int, log: IO[bytes], ready: int
    ) -> Forked | subprocess.Popen[bytes]:
        """As the ``start_broker`` of ``fastlog.testing``, whose program looks for no module by their environment."""
        asked = {**environment, "PYTHONPATH": self._environment["PYTHONPATH"]}
        files = [lifeline, log.fileno(), log.fileno(), ready]
        forked = self._fork([sys.executable, "-m", _TESTING, given], Path.cwd(), asked, files)
        return forked or start_testing_broker(given, environment, lifeline, log, ready)

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], data: bytes, timeout: float
    ) -> subprocess.CompletedProcess[bytes]:
        """As ``command_process.run_command``, which runs what cannot be forked."""
        reading, writing = (os.fdopen(end, mode) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True))
        with reading, TemporaryFile() as out, TemporaryFile() as err:
            with writing:
                writing.write(data[:_MOST_STDIN])
            files = [reading.fileno(), out.fileno(), err.fileno()]
            forked = len(data) <= _MOST_STDIN and self._fork(command, Path.cwd(), environment, files)
            if not forked:
                return command_process.run_command(command, environment, data, timeout)
            try:
                code = forked.wait(timeout)
            except BaseException:
                forked.kill()
                forked.wait()
                raise
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(command, code, out.read(), err.read())

    def exit_code(self, pid: int) -> int:
        """That of a process which has ended, and is gone then."""
        with self._lock:
            return self._ask({"ended": pid}, [])

    def close(self) -> None:
        """End it. What it has started dies with it."""
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait()
            self._socket = self._process = None

    def _fork(
        self, command: Sequence[str], directory: Path, environment: Mapping[str, str], files: Sequence[int]
    ) -> Forked | None:
        """Its stdin, stdout and stderr are ``files``, behind which there may be one that the process begins with its
        arguments. None where a fresh interpreter is needed."""
        program, module, *arguments = command[0], command[2], *command[3:]
        if program != sys.executable or command[1] != "-m" or module not in _MAINS:
            return None
        with self._lock:
            if self._says_more(environment) or _inherited() != self._inherited:
                return None
            if self._socket is None:
                self._begin()
            request = {
                "module": module, "arguments": arguments, "directory": str(directory), "environment": dict(environment)
            }  # fmt: skip
            return Forked(self, command, self._ask(request, files))

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
    """A process that was forked; what tests ask of a ``Popen``."""

    def __init__(self, nursery: Nursery, command: Sequence[str], pid: int) -> None:
        self.pid = pid
        self._command = command
        self.returncode: int | None = None
        self._nursery = nursery
        self._end = os.pidfd_open(pid)

    def poll(self) -> int | None:
        return self.returncode if self._ends_within(0) else None

    def wait(self, timeout: float | None = None) -> int:
        if not self._ends_within(timeout):
            raise subprocess.TimeoutExpired(self._command, timeout or 0)
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
    """Fork a process for each request: its module and arguments, in that process; None in the first one, at the end."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _MAX_REQUEST, 4)
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
            for number, descriptor in enumerate(descriptors[:3]):
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.chdir(request["directory"])
            os.environ.clear()
            os.environ.update(request["environment"])
            return [request["module"], *map(str, descriptors[3:]), *request["arguments"]]
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(b"%d" % pid)


def main() -> None:
    """Import what a broker and the commands import, and wait."""
    import encodings.idna  # noqa: F401

    import fastlog.broker
    import fastlog.tools.daemon
    import fastlog.workers.monitor  # noqa: F401
    from fastlog.tools.cli import COMMANDS

    mains = {module: importlib.import_module(place).main for module, place in _MAINS.items()}
    for place, _, _ in COMMANDS.values():
        if not place.startswith("fastlog.spark"):
            importlib.import_module(place)
    gc.enable()  # which the program of fastlog.testing has put off
    gc.collect()
    gc.freeze()
    called = serve(socket.socket(fileno=int(sys.argv[1])))
    if called is not None:
        module, *sys.argv[1:] = called
        if module == _TESTING:
            os.setsid()
        sys.exit(mains[module]())


if __name__ == "__main__":
    main()
