"""A program that uses everything public is clean for strict type checkers, as they see an installed fastlog."""

from __future__ import annotations

import ast
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fastlog

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "typed" / "program.py"


def test_the_program_uses_every_public_name() -> None:
    tree = ast.parse(PROGRAM.read_text())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {name.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names}
    assert set(fastlog.__all__) <= used


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="without mypy")
def test_mypy_has_nothing_to_say(tmp_path: Path) -> None:
    """Away from the checkout, whose settings it would find; what it has kept of the libraries it finds there."""
    shutil.copy(PROGRAM, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache" / "program"), PROGRAM.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "Success: no issues found in 1 source file\n")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="without pyright")
def test_pyright_has_nothing_to_say(tmp_path: Path) -> None:
    """It runs on Node.js."""
    command = [sys.executable, "-m", "pyright"]
    if subprocess.run([*command, "--version"], capture_output=True, timeout=120).returncode:
        pytest.skip("pyright does not run here, for want of Node.js")
    shutil.copy(PROGRAM, tmp_path)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    done = subprocess.run(
        [*command, "--pythonpath", sys.executable], cwd=tmp_path, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout
    assert "0 errors, 0 warnings" in done.stdout
