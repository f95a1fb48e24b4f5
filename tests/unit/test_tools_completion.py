"""What bash completes, with the line of README."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fastlog.message import encode_set
from tests.harness.broker import ROOT
from tests.harness.fake_broker import FakeBroker

COMPLETE = """
try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _fastlog_completion fastlog; echo "${COMPREPLY[*]}"; }
try fastlog pro
try fastlog zookeeper st
try fastlog consume --form
try fastlog consume --format ""
try fastlog consume --connect-timeout 30s --topic ""
try fastlog topics describe --connect-timeout 30s lo
try fastlog replay --connect-timeout 30s --input-topic v
"""


@pytest.mark.slow
def test_bash(tmp_path: Path) -> None:
    """Commands, options, their values, and the topics of the broker."""
    (line,) = re.findall(r'`(eval "\$\(_FASTLOG_COMPLETE=bash_source fastlog\)")`', (ROOT / "README.md").read_text())
    program = tmp_path / "fastlog"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m fastlog "$@"\n')
    program.chmod(0o755)
    with FakeBroker() as broker:
        broker.logs["logs", 0] = broker.logs["views", 0] = encode_set([b"x"])
        where = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "FASTLOG_BROKERS": broker.address}
        done = subprocess.run(
            ["bash", "-c", line + COMPLETE], env={**os.environ, **where}, capture_output=True, text=True, check=True
        )
    assert done.stdout.splitlines() == [
        "produce",
        "start stop",
        "--format --formatter",
        "text json offsets checksum",
        "logs views",
        "logs",
        "views",
    ]
