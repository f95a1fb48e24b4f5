"""``fastlog logging``: a broker writes more or less while it runs, in each process, also in one that comes later."""

from __future__ import annotations

import fcntl
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer as TodayProducer

import fastlog
from fastlog.testing import RunningBroker, broker
from fastlog.testing.processes import wait_until
from fastlog.tools.logging_command import _catches
from tests.harness.command_line import Commands, Ran

REQUEST = re.compile(r" (?:processor-\d)\[\d+\] request peer=127\.0\.0\.1 kind=(\d+) bytes=\d+")


class Watched:
    """A broker, and the command for it."""

    def __init__(self, running: RunningBroker, commands: Commands) -> None:
        self.running = running
        self._commands = commands

    def tell(self, *arguments: str) -> Ran:
        return self._commands("logging", "--log-dir", str(self.running.data_directory), *arguments)

    def told(self, level: str, requests: str, *arguments: str) -> None:
        """Tell it, and wait until its log says so."""
        line = f"logging level={level} requests={requests}"
        before = self.running.log_text().count(line)
        assert self.tell(*arguments).code == 0
        wait_until(lambda: self.running.log_text().count(line) > before, 5.0, line)

    def produce(self) -> list[int]:
        """A message by each protocol; the kinds of the requests that are lines since then."""
        start = len(self.running.log_text())
        with fastlog.Producer(self.running.address) as producer:
            producer.send("old", b"x")
        today = TodayProducer({"bootstrap.servers": self.running.address})
        today.produce("new", b"x")
        assert today.flush(10) == 0
        return [int(kind) for kind in REQUEST.findall(self.running.log_text()[start:])]

    def health(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{self.running.monitor_address}/health", timeout=5) as page:
            found: dict[str, Any] = json.load(page)["logging"]
        return found


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker(monitor_address="127.0.0.1:0") as running:
        yield running


@pytest.fixture
def watched(running: RunningBroker, capfd: pytest.CaptureFixture[str]) -> Watched:
    return Watched(running, Commands(capfd))


@pytest.mark.slow
def test_requests_are_logged_and_no_longer(watched: Watched) -> None:
    """Of both protocols, whatever the level; a processor that comes later does as the others."""
    assert watched.produce() == [] and watched.health() == {"level": "info", "requests": False}
    watched.told("error", "on", "--requests", "on", "--level", "error")
    assert watched.health() == {"level": "error", "requests": True}
    assert {0, 18, 1000} <= set(watched.produce())
    watched.told("info", "on", "--level", "info")  # only so it is seen who replaces whom
    for role in ("processor-0", "processor-1"):
        watched.running.wait_replaced(role, watched.running.kill(role))
    assert {0, 18, 1000} <= set(watched.produce())
    watched.told("info", "off", "--requests", "off")
    assert watched.produce() == []


@pytest.mark.slow
def test_the_level_is_that_of_all_processes(watched: Watched) -> None:
    """What says that a topic was made has the level info: a processor writes it, and the supervisor what it starts."""
    running = watched.running

    def make(topic: str) -> bool:
        with fastlog.Producer(running.address) as producer:
            producer.send(topic, b"x")
        return f"created topic='{topic}'" in running.log_text()

    assert make("at-info")
    watched.told("warning", "off", "--level", "warning")
    assert not make("at-warning")
    running.kill("flusher")
    wait_until(lambda: "died role=flusher" in running.log_text(), 5.0)
    watched.told("error", "off", "--level", "error")
    watched.told("debug", "off", "--level", "debug")
    assert make("at-debug")
    watched.told("info", "off", "--level", "info")
    assert running.log_text().count("started role=flusher") == 1  # and not that of the second


def test_the_command_says_what_it_needs(watched: Watched, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "say what to change" in watched.tell().refused()[0]
    assert watched.tell("--level", "loud").code == 2
    ran = Commands(capfd)("logging", "--log-dir", str(tmp_path), "--level", "info")
    assert ran.code == 2 and "no broker of this user runs on" in ran.refused()[0]


def test_a_process_that_would_die_of_it_is_not_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A broker of an earlier fastlog has no handler, and the signal would end it."""
    lock = tmp_path / ".lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        older = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=(file.fileno(),))
        try:
            file.write(f"{older.pid}\n")
            file.flush()
            ran = Commands(capfd)("logging", "--log-dir", str(tmp_path), "--requests", "on")
            assert ran.code == 1 and f"process {older.pid} cannot be told" in ran.refused()[0]
            time.sleep(0.05)
            assert older.poll() is None
        finally:
            older.kill()
            older.wait()


def test_a_handler_is_seen_by_its_bit() -> None:
    program = "import signal, sys, time; signal.signal(36, lambda *_: None); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert [number for number in range(33, 40) if _catches(process.pid, number)] == [36]
        finally:
            process.kill()  # else a test that fails waits for its end
