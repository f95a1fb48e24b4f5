"""SIGTERM with something already wrong: the exit code, the marker and the last line say so, nothing is left or lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.fault.kills import backlog_of
from tests.harness import raw_client as raw
from tests.harness.broker import READY, ROOT, Broker, die_with_parent, wait_until

MESSAGE = raw.entry(b"not to be lost")
LATEST_END = 60.0
NO_FLUSH = {"log.default.flush.interval.ms": 600_000}
"""What is appended stays unflushed until the stop."""
NO_HEARTBEAT = {"FASTLOG_HEARTBEAT_MS": "300000"}
"""Nobody looks again by itself: who is not woken stays where it is."""


def ends(broker: Broker) -> dict[str, int] | None:
    """What the clean marker says; None without one."""
    path = broker.log_dirs[0] / ".kafka_cleanshutdown"
    return json.loads(path.read_text())["ends"] if path.exists() else None


def assert_gone(broker: Broker) -> None:
    """No process of it is left, though nobody killed any."""
    pids = [int(pid) for _, pid in broker.started()]
    assert len(pids) >= 4
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def asked_to_stop_when(broker: Broker, kills: list[str]) -> None:
    """SIGTERM and the ends of these processes come to the supervisor in one turn."""
    broker.pause("supervisor")
    for role in kills:
        pid = broker.kill(role)
        wait_until(f"{role} is dead", lambda pid=pid: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    assert broker.process is not None
    broker.process.terminate()
    broker.resume("supervisor")


@contextlib.contextmanager
def waiting_clients(broker: Broker, taker: str) -> Iterator[list[raw.RawClient]]:
    """Clients that have connected and sent while this process took nothing."""
    broker.pause(taker)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(broker.connect()) for _ in range(3)]
        for client in clients:
            client.produce("t", 0, MESSAGE)
        if taker != "acceptor":
            wait_until("they are handed over", lambda: not backlog_of(broker.port))
        yield clients


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills",
    [["flusher"], ["keeper"], ["acceptor"], ["processor-0"], ["acceptor", "processor-0", "flusher", "keeper"]],
    ids="+".join,
)
def test_whoever_died_a_moment_before(kills: list[str], start_broker: Callable[..., Broker]) -> None:
    """Exit 0, and the marker names every byte: of those that were served, and of those that waited for the dead."""
    broker = start_broker(processors=1, settings=NO_FLUSH, environment=NO_HEARTBEAT)
    with broker.connect() as client:
        assert client.produce_ack("t", 0, MESSAGE).error == 0
    waits_for = next((role for role in kills if role in ("acceptor", "processor-0")), None)
    with waiting_clients(broker, waits_for) if waits_for else contextlib.nullcontext([]) as clients:
        asked_to_stop_when(broker, kills)
        assert broker.process is not None and broker.process.wait(LATEST_END) == 0
    whole = MESSAGE * (1 + len(clients))
    assert broker.stored_bytes("t", 0) == whole
    assert ends(broker) == {"t-0": len(whole)}
    assert_gone(broker)
    broker.kill_all()
    broker.start()
    assert ends(broker) is None
    with broker.connect() as client:
        assert client.read_all("t", 0) == whole


@pytest.mark.slow
def test_whoever_hangs(tmp_path: Path) -> None:
    """Exit 1 without a marker; the last line names who hung and nobody else; all is flushed, but by a flusher."""
    with contextlib.ExitStack() as stack:
        brokers = {
            role: stack.enter_context(
                Broker(tmp_path / role, processors=1, settings=NO_FLUSH, environment=NO_HEARTBEAT)
            )
            for role in ("acceptor", "processor-0", "flusher", "keeper")
        }
        for role, broker in brokers.items():
            with broker.connect() as client:
                assert client.produce_ack("t", 0, MESSAGE).error == 0
            broker.pause(role)
            assert broker.process is not None
            broker.process.terminate()
        for role, broker in brokers.items():
            assert broker.process is not None and broker.process.wait(LATEST_END) == 1
            last = broker.log_text().splitlines()[-1]
            missing = f"; not flushed: t-0 offsets 0 to {len(MESSAGE)}" if role == "flusher" else ""
            assert last == (
                f"fastlog-broker: stopped without the clean marker: role={role} did not finish in time{missing}; "
                "the next start recovers"
            )
            assert ends(broker) is None
            assert_gone(broker)
            broker.kill_all()
            broker.start()
            with broker.connect() as client:
                assert client.read_all("t", 0) == MESSAGE
            assert broker.stop(LATEST_END) == 0
            assert ends(broker) == {"t-0": len(MESSAGE)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "code", "said"),
    [
        ("keeper:side_file.write@1-=ENOSPC", 0, "side file not written"),
        ("supervisor:marker.write@1=ENOSPC", 1, "clean marker not written: "),
        ("flusher:fdatasync@1-=ENOSPC", 1, "not flushed: t-0 offsets 0 to "),
    ],
    ids=["side file", "marker", "flush"],
)
def test_a_disk_that_is_full_at_the_stop(
    faults: str, code: int, said: str, start_broker: Callable[..., Broker]
) -> None:
    broker = start_broker(processors=1, settings=NO_FLUSH, environment={"FASTLOG_FAULTS": faults})
    with broker.connect() as client:
        assert client.produce_ack("t", 0, MESSAGE).error == 0
    assert broker.stop(LATEST_END) == code
    assert said in broker.log_text()
    assert (ends(broker) is None) == (code == 1)
    broker.environment.clear()
    broker.start()
    with broker.connect() as client:
        assert client.read_all("t", 0) == MESSAGE
    assert broker.stop(LATEST_END) == 0


@pytest.mark.slow
@pytest.mark.parametrize("answers", ["refused", "silent"])
def test_a_zookeeper_that_is_away(answers: str, start_broker: Callable[..., Broker]) -> None:
    """The broker is ready without it, and its stop is in order and in time, whatever the keeper is in the middle of."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if answers == "refused":
            server.close()
        settings = {"zk.connect": f"127.0.0.1:{port}", "brokerid": 1, **NO_FLUSH}
        broker = start_broker(processors=1, settings=settings, environment=NO_HEARTBEAT)
        with broker.connect() as client:
            assert client.produce_ack("t", 0, MESSAGE).error == 0
        assert broker.stop(LATEST_END) == 0
        assert ends(broker) == {"t-0": len(MESSAGE)}
        assert "did not finish" not in broker.log_text()


@pytest.mark.slow
def test_a_successor_is_woken_by_what_it_is_there_for(start_broker: Callable[..., Broker]) -> None:
    """Each role is killed in turn while nobody turns by itself, and work of its kind waits for the next one.

    The supervisor, which forks them, holds no more descriptors afterwards.
    """
    broker = start_broker(processors=1, environment=NO_HEARTBEAT)
    assert broker.process is not None
    supervisor = psutil.Process(broker.process.pid)
    before = supervisor.num_fds()
    for role in ("acceptor", "processor-0", "flusher", "keeper", "acceptor", "processor-0"):
        pid = broker.pause(role)
        client = broker.connect()
        client.send_raw(raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body("t", 0, MESSAGE, raw.FLUSHED)))
        if role == "processor-0":
            wait_until("it is handed over", lambda: not backlog_of(broker.port))
        broker.kill(role)
        with client:
            assert client.recv_own()[1].error == 0
        broker.wait_replaced(role, pid)
    assert supervisor.num_fds() == before
    assert broker.stop(LATEST_END) == 0
    assert broker.stored_bytes("t", 0) == MESSAGE * 6


def keepers_of(pid: int) -> set[int]:
    """The keepers that a supervisor has; one may go while it is looked at."""
    found = set()
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.name() == "fastlog-keeper":
                found.add(child.pid)
    return found


@pytest.mark.slow
def test_a_standard_error_that_nobody_reads(tmp_path: Path) -> None:
    """The dead are replaced, clients are served, and the stop is in order, though no line of the log has any room."""
    broker = Broker(tmp_path, processors=1, settings=NO_FLUSH)
    read_fd, write_fd = os.pipe()
    with contextlib.closing(os.fdopen(read_fd, "rb", buffering=0)) as unread:
        process = subprocess.Popen(
            broker.command(), stderr=write_fd, env={**os.environ, "PYTHONPATH": str(ROOT)}, preexec_fn=die_with_parent
        )
        os.close(write_fd)
        said = b""
        while (ready := READY.search(said.decode())) is None:
            said += unread.read(4096)
        fd = os.open(f"/proc/{process.pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while os.write(fd, b"x"):
                pass
        os.close(fd)
        keepers = keepers_of(process.pid)
        for pid in keepers:
            os.kill(pid, signal.SIGKILL)
        wait_until(
            "the keeper is replaced",
            lambda: keepers_of(process.pid) - keepers,
        )
        with raw.RawClient(int(ready[1])) as client:
            assert client.produce_ack("t", 0, MESSAGE, raw.FLUSHED).error == 0
        process.terminate()
        assert process.wait(LATEST_END) == 0
    assert ends(broker) == {"t-0": len(MESSAGE)}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_each_signal_stops_in_order_and_the_group_may_get_it_again_and_again(
    number: int, start_broker: Callable[..., Broker]
) -> None:
    """A terminal sends them to every process of the group; who presses twice loses nothing where no disk stalls."""
    broker = start_broker(processors=2, settings=NO_FLUSH, environment=NO_HEARTBEAT)
    with broker.connect() as client:
        assert client.produce_ack("t", 0, MESSAGE).error == 0
    assert broker.process is not None
    for pid in [*broker.pids().values(), broker.process.pid] * 2:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    assert broker.process.wait(LATEST_END) == 0
    assert ends(broker) == {"t-0": len(MESSAGE)}
    assert f"stopping reason={signal.Signals(number).name}" in broker.log_text()
