"""Compiles and runs ``loadgen.c``."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perf.ceiling import programs

SOURCE = Path(__file__).with_name("loadgen.c")


def build() -> Path:
    """The compiled program; see ``programs.build``."""
    return programs.build(SOURCE)


def run(mode: str, options: Mapping[str, object], timeout: float = 600.0) -> dict[str, Any]:
    """One run of ``loadgen <mode>``; the option ``max_bytes`` becomes ``--max-bytes``. Returns what it printed.

    Raises ``RuntimeError`` with the program's own line when it fails.
    """
    command = [str(build()), mode]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"loadgen ended with status {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result
