"""Processes of the demo: commands that are killed and started again, and what they have said and printed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self

import psutil

from perf import interrupts
from scripts.demo_text import DemoFailed

ROOT = Path(__file__).resolve().parents[2]
BUCKET = "lake"
GONE_SECONDS = 20.0
STOP_SECONDS = 120.0
START_SECONDS = 60.0
_STOPPED = (0, 128 + signal.SIGTERM, -signal.SIGTERM)
"""Exit codes of what was told to end."""


def kill_all(process: subprocess.Popen[bytes]) -> int:
    """Kill -9 a process with all that it started, such as a Java machine and workers, which Spark puts into a group of
    their own; how many they were."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        found = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for one in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait(GONE_SECONDS)
    psutil.wait_procs(found, GONE_SECONDS)
    return len(found)


class Program:
    """A module of Python in a process of its own, from ``start`` on; may be started again. For one thread at a time."""

    def __init__(self, name: str, command: Sequence[str], directory: Path) -> None:
        self.name = name
        self._command = [sys.executable, "-P", "-m", *command]
        self._directory = directory
        self._log, self._printed = directory / f"{name}.log", directory / f"{name}.out"
        self._begins = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it. It ends with the thread that started it."""
        self._begins = self._log.stat().st_size if self._log.exists() else 0
        local = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(self._directory / "scratch")}
        with self._log.open("ab") as log, self._printed.open("wb") as printed:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=log,
                cwd=self._directory,
                env={**os.environ, **local, "PYTHONPATH": str(ROOT)},
                start_new_session=True,
                preexec_fn=interrupts.die_with_parent,
            )

    @property
    def pid(self) -> int:
        """The id of the running process."""
        assert self._process is not None
        return self._process.pid

    def said(self, pattern: str) -> int:
        """How often it has said something since it was started."""
        with self._log.open("rb") as log:
            log.seek(self._begins)
            return len(re.findall(pattern, log.read().decode(errors="replace")))

    def check(self) -> None:
        """Raise ``DemoFailed`` when it has ended by itself."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            raise DemoFailed(f"{self.name} ended with {code}: {self._end()}")

    def kill(self) -> int:
        """SIGKILL, for all that it started too; how many processes that were."""
        process, self._process = self._process, None
        return 0 if process is None else kill_all(process)

    def stop(self) -> dict[str, Any]:
        """SIGTERM; the JSON object that it printed last, if it did.

        Raises:
            DemoFailed: it did not end in order.
        """
        self.check()
        assert self._process is not None
        self._process.terminate()
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"{self.name} did not end within {STOP_SECONDS:g} s: {self._end()}") from None
        finally:
            self.kill()
        if code not in _STOPPED:
            raise DemoFailed(f"{self.name} ended with {code}: {self._end()}")
        lines = self._printed.read_text(errors="replace").splitlines()
        found: dict[str, Any] = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
        return found

    def _end(self) -> str:
        # An error's own line stands at the margin, its reasons do not.
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        lines = [line for line in text.splitlines() if line.strip() and not line[0].isspace()]
        return lines[-1] if lines else "it said nothing"


class ObjectStore(Program):
    """One that speaks S3, moto's, with an empty bucket. It keeps what it has in memory, so it is not killed."""

    def __init__(self, directory: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.port: int = found.getsockname()[1]
        super().__init__("store", ["moto.server", "-H", "127.0.0.1", "-p", str(self.port)], directory)

    @property
    def options(self) -> dict[str, str]:
        """The options of the object store, for Delta's library."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "demo",
            "AWS_SECRET_ACCESS_KEY": "demo",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def url(self, table: str) -> str:
        """The URL of a table in the store."""
        return f"s3://{BUCKET}/{table}"

    def start(self) -> None:
        """Start it; returns when the bucket is there. Raises ``DemoFailed``."""
        super().start()
        end = time.monotonic() + START_SECONDS
        while True:
            self.check()
            connection = HTTPConnection("127.0.0.1", self.port, timeout=START_SECONDS)
            try:
                connection.request("PUT", f"/{BUCKET}")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                if time.monotonic() > end:
                    raise DemoFailed(f"the object store does not answer: {self._end()}") from None
                time.sleep(0.05)
            finally:
                connection.close()

    def pause(self) -> None:
        """Stop the process with SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let the process go on with SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)
