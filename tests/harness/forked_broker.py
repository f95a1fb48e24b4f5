"""A whole broker that is forked from the test's own process, which has imported it already: it starts in no time.

Its processes are its own from there on. For a program that has nothing else to wait for: it waits for every child.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401  # as below
import os
import re
import select
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from fastlog.broker import run_broker
from fastlog.config import BrokerConfig
from fastlog.workers import monitor  # noqa: F401  # what a broker imports late is imported once, here
from tests.harness.broker import die_with_parent
from tests.harness.disk_shim import Shim
from tests.harness.timing import PATIENCE

_OUT_OF_SERVICE = re.compile(r"partition (?:read-only|offline)\b.*? topic='([^']+)'")
_DIED = re.compile(r"died role=(\S+)")
_STARTED = re.compile(r"supervisor\[\d+\] started role=(\S+) pid=(\d+)")


class Broken(Exception):
    """A promise was broken in such a way that nothing more can be tried."""


class Life:
    """One start of a broker, until its end: its processes, and what they say."""

    def __init__(self, directory: Path, shim: Shim, number: int, settings: Mapping[str, str]) -> None:
        self.directory = directory
        self.log_path = directory.with_name(f"log-{number}")
        self._shim = shim
        self.port = 0
        self.pid = 0
        self.exit_code: int | None = None
        config = BrokerConfig.from_properties({**settings, "log.dir": str(directory)})
        ready, told = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            self._be_the_broker(config, ready, told)
        os.close(told)
        try:
            patience = select.poll()
            patience.register(ready, select.POLLIN)
            if not patience.poll(PATIENCE * 1000):
                raise Broken("the start neither succeeds nor fails")
            line = os.read(ready, 16)
        finally:
            os.close(ready)
        if line:
            self.port = int(line)
        else:
            self._wait()

    def _be_the_broker(self, config: BrokerConfig, ready: int, told: int) -> None:
        code = 70
        try:
            os.setsid()
            die_with_parent()
            log = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            os.close(ready)
            self._shim.watch("supervisor")
            code = run_broker(config, lambda port: os.write(told, b"%d\n" % port) and None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    @property
    def has_started(self) -> bool:
        return self.port != 0

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def roles(self) -> dict[str, int]:
        """The process that has each role now."""
        return {"supervisor": self.pid, **{role: int(pid) for role, pid in _STARTED.findall(self.log())}}

    def out_of_service(self) -> set[str]:
        """The topics of which its log says that a partition takes no appends."""
        return set(_OUT_OF_SERVICE.findall(self.log()))

    def died(self) -> list[str]:
        """The roles of processes that were replaced."""
        return sorted(_DIED.findall(self.log()))

    def open_files(self) -> Counter[str]:
        """How often its processes have files of the log directory open: the most for each role and kind of file.

        What is open for the moment of one call is waited for: directories that are synced,
        temporary files, and segments that were dropped.
        """
        deadline = time.monotonic() + 2
        while True:
            found = self._open_files()
            passing = any(what.endswith((".tmp", "a directory", "(deleted)")) for what in found)
            if not passing or time.monotonic() > deadline:
                return found
            time.sleep(0.01)

    def _open_files(self) -> Counter[str]:
        most: Counter[str] = Counter()
        for role, pid in self.roles().items():
            held: Counter[str] = Counter()
            with contextlib.suppress(FileNotFoundError):
                for item in Path(f"/proc/{pid}/fd").iterdir():
                    with contextlib.suppress(FileNotFoundError):
                        held[str(item.readlink())] += 1
            for path, count in held.items():
                if path.startswith(str(self.directory)):
                    name = re.sub(r"[0-9]{20}", "N", path.rpartition("/")[2])
                    key = f"{role} {'a directory' if Path(path).is_dir() else name}"
                    most[key] = max(most[key], count)
        return most

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGTERM)
        self._wait()

    def kill(self) -> None:
        os.killpg(self.pid, signal.SIGKILL)
        self._wait()

    def _wait(self) -> None:
        """Until every process of it is gone; the children of a dead supervisor come to this one (a subreaper)."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == self.pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
            if pid == 0:
                if time.monotonic() > deadline:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(self.pid, signal.SIGKILL)
                    raise Broken(f"a process does not end\n{self.log()}")
                time.sleep(0.001)
