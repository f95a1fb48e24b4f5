"""The server of ZooKeeper as a process, without a Java: how it is started, waited for, asked and ended."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from fastlog.zkserver import server as module
from fastlog.zkserver.jars import CLASS_PATH_VARIABLE, ClassPath, find_class_path
from fastlog.zkserver.server import Ensemble, Server, ServerStartError
from tests.harness.timing import PATIENCE, SHORTEST_PROOF, sooner_than


class Process:
    """Stands for the one that is started."""

    pid = 4711

    def __init__(self) -> None:
        self.code: int | None = None
        self.calls: list[object] = []

    def poll(self) -> int | None:
        return self.code

    def send_signal(self, number: int) -> None:
        self.calls.append(number)

    def terminate(self) -> None:
        self.calls.append("terminate")

    def wait(self, timeout: float | None = None) -> None:
        self.calls.append("wait")


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, process: Process) -> list[list[str]]:
    """How each was started."""
    found: list[list[str]] = []

    def started(command: list[str], output: Any) -> Process:
        found.append(command)
        return process

    for name in module._USER_OPTIONS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module, "find_class_path", lambda: ClassPath("here", ("a.jar",), False))
    monkeypatch.setattr(module, "find_java", lambda: "java")
    monkeypatch.setattr(module, "_started", started)
    return found


def test_what_is_acknowledged_is_on_the_disk_unless_a_test_says_otherwise(
    commands: list[list[str]], tmp_path: Path
) -> None:
    Server(tmp_path, 1).start()
    Server(tmp_path, 1, sync=False).start()
    assert ["-Dzookeeper.forceSync=yes" in command for command in commands] == [True, False]
    assert "-Dzookeeper.forceSync=no" in commands[1]


@pytest.mark.parametrize("name", module._USER_OPTIONS)
def test_a_collector_of_ones_own_is_the_only_one(
    commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    Server(tmp_path, 1).start()
    monkeypatch.setenv(name, "-Xss1m -XX:+UseG1GC")
    Server(tmp_path, 1).start()
    assert ["-XX:+UseSerialGC" in command for command in commands] == [True, False]


@pytest.mark.usefixtures("commands")
def test_one_that_ends_says_why_and_is_no_process_any_more(process: Process, tmp_path: Path) -> None:
    server = Server(tmp_path, 1)
    server.start()
    assert server.pid == process.pid
    server.log_path.write_text("Address already in use\n")
    process.code = 1
    assert server.pid is None
    with pytest.raises(ServerStartError, match="ended at once: Address already in use"):
        server.wait_ready(PATIENCE)


@pytest.mark.usefixtures("commands")
def test_nobody_waits_on_who_does_not_want_it_any_more(tmp_path: Path) -> None:
    server = Server(tmp_path, 1)
    server.start()
    with sooner_than(SHORTEST_PROOF), pytest.raises(ServerStartError, match="does not serve"):
        server.wait_ready(2 * SHORTEST_PROOF, lambda: False)


@pytest.mark.usefixtures("commands")
def test_one_that_was_paused_goes_on_to_end(process: Process, tmp_path: Path) -> None:
    server = Server(tmp_path, 1)
    server.start()
    for _ in range(2):
        server.stop()
    assert process.calls == [signal.SIGCONT, "terminate", "wait"] and server.pid is None


@pytest.mark.parametrize("fails", ["start", "wait_ready"])
def test_none_of_an_ensemble_is_left_where_one_does_not_start(fails: str) -> None:
    ended = []

    class Member:
        def __init__(self, number: int) -> None:
            self.number = number

        def start(self) -> None:
            if fails == "start" and self.number == 2:
                raise ServerStartError("no memory")

        def wait_ready(self, *_: object) -> None:
            if fails == "wait_ready" and self.number == 2:
                raise ServerStartError("too late")

        def stop(self) -> None:
            ended.append(self.number)

    members: Any = [Member(number) for number in range(3)]
    with pytest.raises(ServerStartError):
        Ensemble(members).start()
    assert sorted(ended) == [0, 1, 2]


def test_jars_may_be_named_by_their_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CLASS_PATH_VARIABLE, f"{tmp_path}/*:{tmp_path}")
    assert find_class_path().jars == (f"{tmp_path}/*", str(tmp_path))
