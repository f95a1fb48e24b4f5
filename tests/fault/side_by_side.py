"""``fastlog.testing`` in many worker processes at once: each test its own broker, and nothing left of any."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.fault.programs import environment
from tests.fault.registry import Outcome, scenario

MOST_WORKERS = 8
SECONDS_A_TEST = 10.0
GONE_SECONDS = 10.0

TESTS = """
import os
import signal
from pathlib import Path

import pytest

def links():
    found = {{}}
    for link in Path("/proc/self/fd").iterdir():
        try:
            found[link.name] = str(link.readlink())
        except OSError:
            pass  # the descriptor of the listing itself
    return found

@pytest.fixture(autouse=True)
def nothing_left(request):
    before = links()
    yield
    left = {{number: target for number, target in links().items() if before.get(number) != target}}
    left = {{number: target for number, target in left.items() if "libffi" not in target}}  # opened by ctypes
    assert not left, f"descriptors are left: {{left}}"

@pytest.fixture
def started(nothing_left, fastlog_broker):
    yield fastlog_broker

@pytest.mark.parametrize("number", range({count}))
def test_one(started, fastlog_topic, number):
    from fastlog import Producer
    broker = started
    with Producer(broker.address) as producer, broker.consumer() as consumer:
        producer.send(fastlog_topic, b"%d" % number)
        assert [message.payload for message in consumer.messages(fastlog_topic, 0)] == [b"%d" % number]
        assert consumer.metadata().topics[0].name == fastlog_topic
        assert len(consumer.metadata().topics) == 1, "the broker of another test"
    if number % 5 == 0:
        broker.kill()
    elif number % 5 == 1:
        os.kill(broker.pids()["supervisor"], signal.SIGKILL)
    elif number % 5 == 2:
        broker.pause("processor-0")
    elif number % 5 == 3:
        broker.restart()

def test_several(nothing_left, fastlog_cluster):
    first, second = fastlog_cluster(processors=1)
    (third,) = fastlog_cluster(1)
    assert len({{broker.port for broker in (first, second, third)}}) == 3
"""


@scenario("xdist", "brokers inside tests of 8 worker processes at once", small=8, nightly=200, release=2000)
def xdist(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` tests with a broker each, which most of them treat badly, in a project that knows only the plugin."""
    outcome = Outcome()
    project, temporary = directory / "project", directory / "tmp"
    project.mkdir()
    temporary.mkdir()
    (project / "test_it.py").write_text(TESTS.format(count=count))
    (project / "pytest.ini").write_text("[pytest]\n")  # its own root: not the settings of a checkout around it
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(min(count, MOST_WORKERS)), "."]
    process = subprocess.Popen(
        command,
        cwd=project,
        env={**environment(), "TMPDIR": str(temporary), "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=60 + SECONDS_A_TEST * count)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        outcome.violations.append("the tests do not end")
    passed = re.search(r"(\d+) passed", said)
    outcome.runs = int(passed[1]) - 1 if passed else 0
    outcome.expect(process.returncode == 0 and outcome.runs == count, said[-5000:])
    deadline = time.monotonic() + GONE_SECONDS
    while (left := _processes_of(temporary)) and time.monotonic() < deadline:
        time.sleep(0.05)
    outcome.expect(not left, f"processes are left: {left}")
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    files = [path.name for path in temporary.glob("fastlog-*")]
    outcome.expect(not files, f"files are left: {files}")
    return outcome


def _processes_of(directory: Path) -> dict[int, list[str]]:
    """Brokers whose files lie below a directory."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            if any(str(directory) in word for word in line):
                found[process.pid] = line
    return found
