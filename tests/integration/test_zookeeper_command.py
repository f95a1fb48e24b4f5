"""``fastlog zookeeper start``: serves until it is told to stop, and says why when it cannot."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fastlog.coordination.zookeeper import ZooKeeperSession
from tests.harness.ports import unused_port

pytestmark = [pytest.mark.slow, pytest.mark.java]
SECONDS = 60


def command(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fastlog", "zookeeper", "start", *map(str, arguments)], stderr=subprocess.PIPE, text=True
    )


def test_it_serves_and_keeps_what_it_was_told(tmp_path: Path) -> None:
    port = unused_port()
    for expected in (None, b"1"):
        process = command("--data-dir", tmp_path / "data", "--port", port)
        assert process.stderr is not None
        try:
            assert "starting ZooKeeper from" in process.stderr.readline()
            assert f"zk.connect=127.0.0.1:{port}" in process.stderr.readline()
            with ZooKeeperSession(f"127.0.0.1:{port}") as session:
                found = session.get("/x")
                assert (found and found.data) == expected
                session.put("/x", b"1")
            if expected is None:
                second = command("--data-dir", tmp_path / "data", "--port", unused_port())
                _, said = second.communicate(timeout=SECONDS)
                assert second.returncode == 1
                assert "another ZooKeeper runs on it" in said
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--host", "0.0.0.0"), 2, "add --insecure"),
        (("--port", "65535", "--servers", "3"), 2, "need ports up to"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    process = command("--data-dir", tmp_path / "data", *arguments)
    _, text = process.communicate(timeout=SECONDS)
    assert process.returncode == code
    assert said in text
    assert not (tmp_path / "data").exists()


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        process = command("--data-dir", tmp_path / "data", "--port", port)
        _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in said
