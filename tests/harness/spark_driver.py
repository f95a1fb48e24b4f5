"""A program that drives Spark, as a process of its own that can be killed with all that it has started."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.harness.broker import die_with_parent, wait_until

START_SECONDS = 500.0
"""A Java on a machine that does other things as well."""
END_SECONDS = 900.0


def as_arguments(settings: Mapping[str, str]) -> list[str]:
    """Settings of Spark on a command line."""
    return [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]


class Driver:
    """One life of such a program. What it says goes behind what is in a file already."""

    def __init__(
        self, command: Sequence[str], log: Path, *, directory: Path, environment: Mapping[str, str], errors: bool = True
    ) -> None:
        """``errors``: whether its stderr goes to the file as well as its stdout."""
        self._log = log
        self._start = log.stat().st_size if log.exists() else 0
        with log.open("ab") as said:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said if errors else subprocess.DEVNULL,
                env=dict(environment),
                cwd=directory,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    @property
    def said(self) -> str:
        """What it has said so far."""
        with self._log.open("rb") as log:
            log.seek(self._start)
            return log.read().decode(errors="replace")

    def count(self, pattern: str) -> int:
        """How often it has said something."""
        return len(re.findall(pattern, self.said))

    def wait_said(self, pattern: str, times: int = 1) -> None:
        """Returns once it has said something so often."""

        def there() -> bool:
            code = self.process.poll()
            assert code is None, f"it ended with {code}:\n{self.said[-4000:]}"
            return self.count(pattern) >= times

        wait_until(f"it says {pattern!r} {times} times", there, START_SECONDS)

    def kill(self) -> None:
        """SIGKILL for the program, its Java, and the workers, which Spark puts into a group of their own."""
        with contextlib.suppress(psutil.NoSuchProcess):
            everybody = psutil.Process(self.process.pid).children(recursive=True)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            for process in everybody:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(everybody, 20)
        self.process.wait(20)

    def end(self, number: int | None = None) -> tuple[int, dict[str, Any]]:
        """Its exit code and its summary, after a signal or when it has done all."""
        if number is not None:
            self.process.send_signal(number)
        try:
            code = self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.said[-4000:]}") from None
        finally:
            self.kill()
        lines = [line for line in self.said.splitlines() if line.startswith("{")]
        assert lines, f"no summary, exit code {code}:\n{self.said[-4000:]}"
        return code, json.loads(lines[-1])
