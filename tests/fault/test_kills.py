"""Kill -9 of each process, of the supervisor and of the whole broker, under load."""

from __future__ import annotations

import fcntl
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from tests.fault import kills
from tests.fault.registry import Run
from tests.harness import raw_client as raw
from tests.harness.broker import Broker, wait_until

SEED = 20110612


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "count"), [(kills.kill_process, 12), (kills.kill_broker, 6), (kills.kill_supervisor, 2)]
)
def test_killed_under_load(run: Run, count: int, tmp_path: Path) -> None:
    """T-1, T-2, T-3: the others go on, it is back at once, nothing acknowledged is lost, nothing shown is un-shown."""
    outcome = run(count, SEED, tmp_path)
    assert outcome.runs >= count
    assert outcome.violations == [], f"seed {SEED}"


@pytest.mark.slow
def test_connections_that_wait_for_a_dead_processor_are_served_by_its_successor(
    start_broker: Callable[..., Broker], topic: str
) -> None:
    """Requests sent before the hand-over was taken lie in the socket; the successor answers them."""
    broker = start_broker(processors=1)
    pid = broker.pause("processor-0")
    clients = [broker.connect() for _ in range(5)]
    try:
        for client in clients:
            client.send_raw(raw.offsets_frame(topic, 0, raw.LATEST, 1))
        wait_until("the acceptor has handed them over", lambda: not kills.backlog_of(broker.port))
        broker.kill("processor-0")
        broker.wait_replaced("processor-0", pid)
        for client in clients:
            assert raw.decode_offsets(client.recv_answer().body) == [0]
    finally:
        for client in clients:
            client.close()


@pytest.mark.slow
def test_a_start_waits_for_the_last_process_of_the_old_broker(start_broker: Callable[..., Broker]) -> None:
    """As long as anybody holds the lock of the log directory, a new start waits; then it needs no hands."""
    broker = start_broker(processors=1)
    with broker.connect() as client:
        assert client.produce_ack("t", 0, raw.entry(b"kept")).error == 0
    broker.signal("supervisor", signal.SIGKILL)
    # what stands in for a process of the old broker that the kernel does not let go yet
    with (broker.log_dirs[0] / ".lock").open() as lock:
        wait_until("the children left", lambda: _locks(lock))
        broker.kill_all()
        timer = threading.Timer(0.5, fcntl.flock, (lock, fcntl.LOCK_UN))
        begun = time.monotonic()
        timer.start()
        broker.start()
        assert time.monotonic() - begun >= 0.45, "it did not wait"
        timer.join()
    with broker.connect() as client:
        assert client.read_all("t", 0) == raw.entry(b"kept")
    assert broker.stop() == 0


def _locks(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
