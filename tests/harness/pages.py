"""Pages whose commands are run as they stand, in one shell, as somebody does who pastes them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from tests.harness.broker import ROOT
from tests.harness.ports import unused_port
from tests.harness.timing import PATIENCE

COMMANDS = {
    "fastlog": "fastlog",
    "fastlog-broker": "fastlog.tools.broker_command",
    "producer-perf": "fastlog.tools.producer_perf",
}
_MARK = "=== step"


def free_ports(names: Sequence[str]) -> dict[str, str]:
    """One on which nobody listens for each port of a page."""
    return {name: str(unused_port()) for name in names}


def run_steps(bodies: Sequence[str], directory: Path, seconds: float, timer: float = PATIENCE) -> tuple[list[str], str]:
    """What each step prints, and all of stderr: in one shell that ends at the first command that fails.

    It starts in an empty directory below ``directory``, where ``mktemp`` makes its own ones too. Fails when a step
    does, and when a process is left.
    """
    programs, work = directory / "bin", directory / "work"
    programs.mkdir()
    work.mkdir()
    for name, module in {**COMMANDS, "python": ""}.items():
        path = programs / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {f"-m {module} " if module else ""}"$@"\n')
        path.chmod(0o755)
    script = ["set -euo pipefail", *(f"{body}echo '{_MARK}'" for body in bodies)]
    search = {"PYTHONPATH": str(ROOT), "PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(work)}
    with (
        (directory / "out").open("w+b") as out,
        (directory / "err").open("w+b") as err,
        subprocess.Popen(
            ["bash", "-c", "\n".join(script)],
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, **search},
            start_new_session=True,
        ) as shell,
    ):
        try:
            code = shell.wait(seconds)
        finally:
            left = _end_all(shell.pid, work, timer)
        out.seek(0)
        err.seek(0)
        said = err.read().decode()
        printed = out.read().decode().split(f"{_MARK}\n")
    assert code == 0, f"step {len(printed)}:\n{bodies[len(printed) - 1]}\n{printed[-1]}\n{said[-3000:]}"
    assert not left, left
    return printed, said


def _end_all(group: int, work: Path, seconds: float) -> list[str]:
    """End what is left of a shell's group, and what runs in its directory; what that was, once everything had the time
    to end by itself."""
    deadline = time.monotonic() + seconds
    while (left := _living(group, work)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in left:
        with suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)
    return [" ".join(process.info["cmdline"] or ()) for process in left]


def _living(group: int, work: Path) -> list[psutil.Process]:
    """What has ended and is not collected yet is none of it."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with suppress(psutil.Error, ProcessLookupError):
            is_ours = os.getpgid(process.pid) == group or Path(process.cwd()).is_relative_to(work)
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
