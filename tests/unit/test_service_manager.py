"""What the service manager is told: when the broker serves, that it turns, when it stops; and the unit for systemd."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastlog.service_manager import ServiceManager
from tests.harness.checkout import ROOT

UNIT = ROOT / "packaging" / "fastlog-broker.service"


class Listener:
    """A service manager's socket."""

    def __init__(self, path: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind("\0" + path[1:] if path.startswith("@") else path)
        self.sock.settimeout(20)
        self.path = path

    def heard(self) -> list[str]:
        found = []
        self.sock.setblocking(False)
        while True:
            try:
                found.append(self.sock.recv(4096).decode())
            except BlockingIOError:
                return found


@pytest.fixture(params=["file", "abstract"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Listener]:
    made = Listener(str(tmp_path / "notify") if request.param == "file" else f"@fastlog-{os.getpid()}")
    with made.sock:
        yield made


def test_it_is_told_how_it_goes(listener: Listener) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": listener.path})
    manager.status("recovering")
    manager.ready("serving 3 partitions")
    manager.alive()
    manager.stopping()
    assert listener.heard() == [
        "STATUS=recovering",
        "READY=1\nSTATUS=serving 3 partitions",
        "STOPPING=1\nSTATUS=stopping",
    ]


def test_the_watchdog_hears_three_times_in_its_interval(listener: Listener) -> None:
    now = 100.0
    environment = {"NOTIFY_SOCKET": listener.path, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}
    manager = ServiceManager(environment, lambda: now)
    manager.alive()
    assert listener.heard() == ["WATCHDOG=1"]
    now = 100.99
    manager.alive()
    assert listener.heard() == []
    now = 101.0
    manager.alive()
    manager.alive()
    assert listener.heard() == ["WATCHDOG=1"]


@pytest.mark.parametrize(("name", "value"), [("WATCHDOG_PID", "1"), ("WATCHDOG_USEC", "soon"), ("WATCHDOG_USEC", "")])
def test_there_is_no_watchdog(listener: Listener, name: str, value: str) -> None:
    environment = {"NOTIFY_SOCKET": listener.path, "WATCHDOG_USEC": "3000000"}
    ServiceManager({**environment, name: value}).alive()
    assert listener.heard() == []
    ServiceManager(environment).alive()  # for whoever gets it
    assert listener.heard() == ["WATCHDOG=1"]


def test_nobody_who_listens_is_no_reason_to_stop(tmp_path: Path) -> None:
    for environment in ({}, {"NOTIFY_SOCKET": str(tmp_path / "none")}, {"NOTIFY_SOCKET": "/" + "x" * 200}):
        manager = ServiceManager(environment)
        manager.ready("")
        manager.alive()
        manager.stopping()


def test_a_listener_that_does_not_listen_holds_nobody_up(listener: Listener) -> None:
    """Its queue is full: what finds no room is left out."""
    manager = ServiceManager({"NOTIFY_SOCKET": listener.path})
    for _ in range(10_000):
        manager.status("x" * 100)
    assert 0 < len(listener.heard()) < 10_000


@pytest.mark.slow
def test_a_broker_tells_it(tmp_path: Path) -> None:
    listener = Listener(str(tmp_path / "notify"))
    environment = {**os.environ, "NOTIFY_SOCKET": listener.path, "WATCHDOG_USEC": "300000"}
    command = [sys.executable, "-m", "fastlog.tools.broker_command", "--port", "0", "--log-dir", str(tmp_path / "data")]
    with listener.sock, subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            assert listener.sock.recv(4096) == b"STATUS=recovering"
            heard = [listener.sock.recv(4096).decode() for _ in range(5)]
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()
        (ready,) = [text for text in heard if text.startswith("READY=1\nSTATUS=serving 0 partitions, port ")]
        assert set(heard) == {ready, "WATCHDOG=1"}
        rest = [text for text in listener.heard() if text not in ("WATCHDOG=1", ready)]
        assert rest == ["STOPPING=1\nSTATUS=stopping"]


def test_the_unit_fits_the_broker() -> None:
    text = UNIT.read_text()
    said = dict(re.findall(r"^([A-Za-z]+)=(.*)$", text, re.M))
    assert (said["Type"], said["NotifyAccess"], said["TimeoutStartSec"]) == ("notify", "main", "infinity")
    assert float(said["WatchdogSec"]) > 10 and float(said["TimeoutStopSec"]) > 66
    assert "--config /etc/fastlog/" in said["ExecStart"] and "--log-dir /var/lib/fastlog/" in said["ExecStart"]
    analyze = shutil.which("systemd-analyze")
    if analyze:
        command = [analyze, "security", "--offline=true", "--threshold=25", str(UNIT)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr
