"""A broker in the background: ready when the command returns, its errors when it does not start, and its end."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fastlog import supervisor
from fastlog.errors import TransportError
from fastlog.segment_files import LOCK_NAME
from fastlog.tools import daemon, options, starting_broker
from fastlog.tools.report import CommandError
from tests.harness.command_process import refused, run
from tests.harness.timing import PATIENCE

BROKER = "fastlog.tools.broker_command"


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """For logs; whatever runs there is stopped."""
    found = tmp_path / "data"
    yield found
    run("--stop", "--log-dir", str(found), module=BROKER)


def start(directory: Path, *more: str) -> tuple[int, bytes, str]:
    given = ("--daemon", "--log-dir", str(directory), "--processors", "1", *more)
    return run(*given, module=BROKER)


@pytest.mark.slow
def test_it_is_ready_when_the_command_returns(directory: Path) -> None:
    """And gone when --stop does, with everything flushed; both are said in lines that can be read."""
    code, out, err = start(directory, "--port", "0")
    assert (code, out) == (0, b"")
    ready, background = err.splitlines()
    assert ready.startswith("fastlog-broker: ready host=127.0.0.1 port=") and "promised" not in ready
    output = directory.with_name("data.log")
    assert background.endswith(f"{output}; fastlog-broker --stop --log-dir {directory} ends it")
    assert " promised: acked = page cache" in output.read_text()
    port = ready.partition(" port=")[2].split()[0]
    code, out, _ = run("topics", "list", "--brokers", f"127.0.0.1:{port}", "--no-headers")
    assert (code, out) == (0, b"")
    code, _, err = start(directory.with_name("other"), "--port", port, "--output", f"{directory}.txt")
    assert code == 1 and f"cannot listen on 127.0.0.1:{port}" in err
    assert Path(f"{directory}.txt").read_text() in err
    code, _, err = run("--stop", "--log-dir", str(directory), module=BROKER)
    assert code == 0 and "stopped: process" in err
    assert "everything flushed, clean marker written" in output.read_text()
    code, _, err = run("--stop", "--log-dir", str(directory), module=BROKER)
    assert code == 1 and f"no broker runs on {directory}" in refused(code, err)[0]


@pytest.mark.parametrize("arguments", [["--daemon", "--stop"], ["--output", "x"]])
def test_what_contradicts(arguments: list[str]) -> None:
    assert run(*arguments, module=BROKER)[0] == 2


def test_a_stop_that_waits_for_a_disk_is_waited_for() -> None:
    assert daemon._STOP_SECONDS > supervisor.STALLED_STOP_SECONDS + supervisor.STOP_SECONDS


def test_only_who_has_the_lock_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process id that an earlier start has left in the file may be anybody's by now."""
    lock = tmp_path / LOCK_NAME
    lock.touch()
    waits = [sys.executable, "-c", "input()"]
    monkeypatch.setattr(daemon, "_STOP_SECONDS", 0.0)
    signalled: list[int] = []
    with ExitStack() as stack:
        held = stack.enter_context(lock.open("r+b"))
        fcntl.flock(held, fcntl.LOCK_EX)
        somebody = stack.enter_context(subprocess.Popen(waits, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL))
        holder = stack.enter_context(
            subprocess.Popen(waits, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=[held.fileno()])
        )
        monkeypatch.setattr(os, "kill", lambda pid, _: (signalled.append(pid), fcntl.flock(held, fcntl.LOCK_UN)))
        lock.write_text(f"{somebody.pid}\n")
        with pytest.raises(CommandError, match="has not stopped"):
            daemon.stop(lock, "broker")
        assert not signalled
        lock.write_text(f"{holder.pid}\n45\n")
        monkeypatch.setattr(daemon, "_STOP_SECONDS", PATIENCE)
        daemon.stop(lock, "broker")
        assert signalled == [holder.pid]


def test_partitions_of_all_directories_may_take_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command knows one of them, and whoever holds its lock holds those of the others."""
    monkeypatch.setattr(daemon, "_STOP_SECONDS", 0.0)
    monkeypatch.setattr(daemon, "_ENTRY_SECONDS", 0.05)
    with ExitStack() as stack:
        locks = [tmp_path / name / LOCK_NAME for name in ("one", "other")]
        held = []
        for lock in locks:
            lock.parent.mkdir()
            held.append(stack.enter_context(lock.open("w+b")))
            fcntl.flock(held[-1], fcntl.LOCK_EX)
        for number in range(10):
            (locks[1].parent / f"t-{number}").mkdir()
        holder = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", "input()"],
                stdin=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=[item.fileno() for item in held],
            )
        )
        locks[0].write_text(f"{holder.pid}\n")
        monkeypatch.setattr(os, "kill", lambda *_: None)
        with pytest.raises(CommandError, match="has not stopped within 1 s"):
            daemon.stop(locks[0], "broker")


def test_one_that_is_started_meanwhile_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A service manager starts it anew: what was asked to stop has stopped."""
    lock = tmp_path / LOCK_NAME
    lock.touch()
    monkeypatch.setattr(daemon, "_STOP_SECONDS", 1.0)
    with ExitStack() as stack:
        held = stack.enter_context(lock.open("r+b"))
        fcntl.flock(held, fcntl.LOCK_EX)
        first, second = (
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", "input()"],
                    stdin=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[held.fileno()],
                )
            )
            for _ in range(2)
        )

        def restart(_pid: int, _number: int) -> None:
            first.communicate()
            lock.write_text(f"{second.pid}\n")

        lock.write_text(f"{first.pid}\n")
        monkeypatch.setattr(os, "kill", restart)
        daemon.stop(lock, "broker")
    assert capsys.readouterr().err == f"stopped: process {first.pid}; process {second.pid} has been started since\n"


def test_the_first_connection_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that is started beside the broker says what it waits for; who once listened is not waited for again."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        paused: list[float] = []

        def pause(seconds: float, *_: object) -> None:
            paused.append(seconds)
            if len(paused) == 3:
                listener.listen()

        monkeypatch.setattr(starting_broker, "pause", pause)
        broker = options.broker_at(address, 60.0)
        broker.connect().close()
        assert len(paused) == 3
        assert capsys.readouterr().err == f"nothing listens at {address} yet: trying for 60 s (--connect-timeout)\n"
        with pytest.raises(TransportError, match="cannot reach"):
            options.broker_at("127.0.0.1:1", 60.0, waits=False).connect()
    with pytest.raises(TransportError, match="cannot reach"):
        broker.connect()
    with pytest.raises(TransportError, match="cannot reach"):
        options.broker_at("no.such.host.invalid:1", 60.0).connect()
    assert len(paused) == 3
