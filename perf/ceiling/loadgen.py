"""Compiles and runs ``loadgen.c``."""

from __future__ import annotations

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
    return programs.figures(build(), mode, options, timeout)
