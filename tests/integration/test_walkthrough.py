"""docs/walkthrough.md, run as it stands from top to bottom, with ports of its own; what it says is printed is."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from tests.harness.broker import ROOT
from tests.harness.timing import PATIENCE

PAGE = ROOT / "docs" / "walkthrough.md"
PORTS = ("2181", "9091", "9092", "9093")
SECONDS = 150
MARK = "=== step"
COMMANDS = {
    "fastlog": "fastlog",
    "fastlog-broker": "fastlog.tools.broker_command",
    "producer-perf": "fastlog.tools.producer_perf",
}


def free_ports() -> dict[str, str]:
    """One that is free for each port of the page."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in PORTS]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return dict(zip(PORTS, (str(probe.getsockname()[1]) for probe in probes), strict=True))


def steps(text: str) -> list[tuple[str, str | None]]:
    """What is run, as lines for bash, and what it prints: None where the page does not say."""
    found: list[tuple[str, str | None]] = []
    for kind, body in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S):
        if kind == "text":
            assert found and found[-1][1] is None, "what is printed follows what is run"
            found[-1] = (found[-1][0], body)
        elif kind == "python":
            found.append((f"python - <<'END'\n{body}END\n", None))
        else:
            assert kind == "sh", kind
            found.append((body, None))
    return found


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(SECONDS + 30)
def test_the_page_runs_from_top_to_bottom(tmp_path: Path) -> None:
    """In one shell that ends at the first command that fails; nothing is left running."""
    ports = free_ports()
    text = re.sub(rf"\b({'|'.join(PORTS)})\b", lambda found: ports[found[1]], PAGE.read_text())
    plan = steps(text)
    assert len(plan) > 12
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, module in {**COMMANDS, "python": ""}.items():
        path = programs / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {f"-m {module} " if module else ""}"$@"\n')
        path.chmod(0o755)
    script = ["set -euo pipefail", *(f"{body}echo '{MARK}'" for body, _ in plan)]
    work = tmp_path / "work"
    work.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{programs}:{os.environ['PATH']}"}
    with (
        (tmp_path / "out").open("w+b") as out,
        (tmp_path / "err").open("w+b") as err,
        subprocess.Popen(
            ["bash", "-c", "\n".join(script)], cwd=work, stdout=out, stderr=err, env=environment, start_new_session=True
        ) as shell,
    ):
        try:
            code = shell.wait(SECONDS)
        finally:
            left = _kill_group(shell.pid)
        out.seek(0)
        err.seek(0)
        said = err.read().decode()
        printed = out.read().decode().split(f"{MARK}\n")
    assert code == 0, f"step {len(printed)}:\n{plan[len(printed) - 1][0]}\n{printed[-1]}\n{said[-3000:]}"
    for (body, expected), shown in zip(plan, printed, strict=False):
        if expected is not None:
            pattern = ".*".join(map(re.escape, expected.split("…")))
            assert re.fullmatch(pattern, shown), f"{body}\nprints\n{shown}\ninstead of\n{expected}"
    assert not left, left


def _kill_group(group: int) -> list[str]:
    """End what is left of the shell's session; what that was, once everything had the time to end by itself."""
    deadline = time.monotonic() + PATIENCE
    while (left := _living(group)) and time.monotonic() < deadline:
        time.sleep(0.05)
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    return left


def _living(group: int) -> list[str]:
    """The command lines of a process group; what has ended and is not collected yet is none of it."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
    return found
