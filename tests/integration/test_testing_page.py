"""docs/testing.md: what it shows runs as it stands, and what it says of reports is so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.broker import ROOT
from tests.harness.timing import PATIENCE

PAGE = ROOT / "docs" / "testing.md"


def run_pytest(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a project that knows nothing of fastlog but the installed plugin."""
    (directory / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:benchmark",
        *arguments,
        str(directory),
    ]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=6 * PATIENCE)


@pytest.mark.slow
@pytest.mark.timeout(7 * PATIENCE)
def test_the_page_runs(tmp_path: Path) -> None:
    """Each block by itself: tests by pytest, in two worker processes, and what is none as a program."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    programs = [block for block in blocks if "\ndef test_" not in block]
    assert len(programs) == 1
    assert len(blocks) == 5
    for number, block in enumerate(block for block in blocks if block not in programs):
        (tmp_path / f"test_block_{number}.py").write_text(block)
    subprocess.run([sys.executable, "-c", programs[0]], check=True, timeout=PATIENCE)
    run = run_pytest(tmp_path, "-n", "2")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "4 passed" in run.stdout


FAILING = """
import fastlog.testing
import pytest
from fastlog.testing.proxy import Proxy

def ask_nonsense(broker):
    import socket
    with socket.create_connection((broker.host, broker.port)) as client:
        client.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
        client.recv(1)

def test_before(fastlog_shared_broker):
    ask_nonsense(fastlog_shared_broker)

def test_quiet(fastlog_shared_broker):
    assert False, "nothing was said in it"

def test_shared(fastlog_shared_broker):
    ask_nonsense(fastlog_shared_broker)
    assert False

def test_own(fastlog_broker):
    assert False

@pytest.fixture
def fails_before(fastlog_shared_broker):
    with fastlog_shared_broker.log_path.open("a") as log:
        log.write("HTTP, as one more refusal would not be logged\\n")
    assert False

def test_setup(fails_before):
    pass

@pytest.fixture
def fails_behind():
    yield
    assert False, "all was told before"

def test_block(fails_behind):
    with fastlog.testing.broker() as broker:
        ask_nonsense(broker)
        assert False

def test_handled():
    with pytest.raises(ValueError), fastlog.testing.broker():
        raise ValueError

def test_after():
    assert False, "no broker of its own"
"""


@pytest.mark.slow
@pytest.mark.timeout(4 * PATIENCE)
def test_a_failure_shows_what_its_brokers_said(tmp_path: Path) -> None:
    """And nothing of other tests: neither what a shared broker said before, nor a log of a test that passed."""
    (tmp_path / "test_it.py").write_text(FAILING)
    run = run_pytest(tmp_path, "-p", "no:randomly", "--setup-show")
    assert "SETUP    S fastlog_shared_broker" in run.stdout, "one for all tests of the process"
    found = re.findall(r"^_+ (?:ERROR at )?(.*?test_\w+) _+\n(.*?)(?=^_+ \w.* _+$|^=+ )", run.stdout, re.M | re.S)
    failures = dict(found)
    logs = {
        name: re.findall(r"^-+ log of the broker [\d.:]+ -+\n(.*?)(?=^-+ |\Z)", text, re.M | re.S)
        for name, text in failures.items()
    }
    assert {name: len(found) for name, found in logs.items()} == {
        "test_quiet": 0,
        "test_shared": 1,
        "setup of test_setup": 1,
        "teardown of test_block": 0,
        "test_own": 1,
        "test_block": 1,
        "test_after": 0,
    }, run.stdout
    assert "fastlog-broker: ready" in logs["test_own"][0]
    assert "ready" not in logs["test_shared"][0]
    for name in ("test_shared", "test_block", "setup of test_setup"):
        assert logs[name][0].count("HTTP") == 1, logs[name]
