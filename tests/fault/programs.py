"""Runs a module of this folder as a program of its own, with what it is told as JSON, and reads what it answers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_SHOWN_CHARACTERS = 4000


def environment() -> dict[str, str]:
    """That of a program that imports this checkout."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def run_program(module: str, most_seconds: float, /, **told: Any) -> dict[str, Any]:
    """The JSON object that ``python -m module '{…}'`` prints last; violations for one that hangs or fails.

    The program has ``most_seconds`` to end; with ``faulthandler.dump_traceback_later`` it can say where it hangs.
    """
    command = [sys.executable, "-m", module, json.dumps(told)]
    program = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    hangs = ""
    try:
        printed, said = program.communicate(timeout=most_seconds)
    except subprocess.TimeoutExpired:
        hangs = f"{module} {told}, or a child of it, did not end within {most_seconds:g} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)  # with what it forked and left
    if hangs:
        printed, said = program.communicate()
        return {"violations": [f"{hangs}\n{said[-_SHOWN_CHARACTERS:]}"]}
    last = printed.strip().rpartition("\n")[2]
    if program.returncode or not last.startswith("{"):
        shown = f"{printed[-_SHOWN_CHARACTERS:]}\n{said[-_SHOWN_CHARACTERS:]}"
        return {"violations": [f"{module} {told} ended with {program.returncode}\n{shown}"]}
    answer: dict[str, Any] = json.loads(last)
    if said:
        answer["violations"] = [*answer.get("violations", []), f"it said {said[-_SHOWN_CHARACTERS:]}"]
    return answer
