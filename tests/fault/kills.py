"""Processes of a running broker are killed under load: the others go on, and what was acknowledged stays."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.fault.registry import Outcome, scenario
from tests.harness import raw_client as raw
from tests.harness.broker import Broker, wait_until
from tests.harness.load import Load, stored
from tests.harness.timing import PATIENCE

PLACES = [("a", 0), ("a", 1), ("b", 0)]
BACK_SECONDS = PATIENCE
"""A process is back within one second; a machine that is busy with other things gets more."""
SETTINGS = {"num.partitions": 2}
IDLE_CONNECTIONS = 6


class Sentinels:
    """Connections that do nothing, of which it is known which process serves them."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.clients = [broker.connect() for _ in range(IDLE_CONNECTIONS)]
        for client in self.clients:
            client.metadata([])

    def __enter__(self) -> Sentinels:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.clients:
            client.close()

    def served_by(self, pid: int) -> set[int]:
        """The positions of the connections that this process has."""
        connections = psutil.Process(pid).net_connections("tcp")
        ports = {found.raddr.port for found in connections if found.raddr}
        return {place for place, one in enumerate(self.clients) if one.socket.getsockname()[1] in ports}

    def replace_closed(self, outcome: Outcome, expected: set[int], what: str) -> None:
        """Expect exactly these connections to be closed and all others to answer; opens new ones for them."""
        for place, client in enumerate(self.clients):
            if place in expected:
                outcome.expect(client.is_closed(BACK_SECONDS), f"{what}: a connection of the dead process hangs")
                client.close()
                self.clients[place] = self.broker.connect()
                self.clients[place].metadata([])
                continue
            try:
                client.metadata([])
            except (raw.ConnectionClosed, OSError) as error:
                outcome.violations.append(f"{what}: a connection of another process broke: {error!r}")


@contextlib.contextmanager
def under_load(
    outcome: Outcome,
    directory: Path,
    *,
    processors: int = 2,
    settings: Mapping[str, object] = SETTINGS,
    afterwards: Callable[[Broker, Load], None] = lambda broker, load: None,
    **options: Any,
) -> Iterator[tuple[Broker, Load]]:
    """A broker and its load while the block hurts it; then the load must still get on, and the history must hold.

    ``afterwards`` runs between the end of the load and the stop of the broker.
    """
    with Broker(directory, processors=processors, settings=settings) as broker:
        with Load(broker, PLACES, **options) as load:
            load.wait_acked(20)
            yield broker, load
            load.wait_acked(20)
            outcome.expect(not load.errors, f"appends were refused: {dict(load.errors)}")
        afterwards(broker, load)
        code = broker.stop()
        outcome.expect(code == 0, f"the last stop ended with {code}")
        outcome.violations += load.history.check(stored(broker, load.history))


@scenario("kill-process", "kill -9 of one process under load", small=20, nightly=1000, release=10_000)
def kill_process(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` kills of processors, and a quarter as many of each other process."""
    outcome = Outcome()
    source = random.Random(seed)
    others = [role for role in ("acceptor", "flusher", "keeper", "coordinator") for _ in range(max(1, count // 4))]
    roles = [f"processor-{source.randrange(3)}" for _ in range(count)] + others
    source.shuffle(roles)
    with (
        under_load(outcome, directory, processors=3, acks=raw.APPENDED, seed=seed) as (broker, load),
        Sentinels(broker) as sentinels,
    ):
        for role in roles:
            time.sleep(source.uniform(0.005, 0.1))
            pid = broker.pids()[role]
            serves = sentinels.served_by(pid) if role.startswith("processor") else set()
            broker.kill(role)
            broker.wait_replaced(role, pid, BACK_SECONDS)
            sentinels.replace_closed(outcome, serves, f"{role} killed")
            with broker.connect() as client:
                client.metadata([])
            outcome.runs += 1
    outcome.expect(load.history.shown_bytes() > 0, "the consumers saw nothing")
    return outcome


@scenario(
    "kill-broker", "kill -9 of the whole broker under load, and a new start", small=10, nightly=1000, release=5000
)
def kill_broker(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` kills of every process at once, on the same log."""
    outcome = Outcome()
    source = random.Random(seed)

    def read_all_after_another(broker: Broker, load: Load) -> None:
        broker.kill_all()
        broker.start()
        with broker.connect() as client:
            for place in PLACES:
                load.history.shown(place, 0, client.read_all(*place))

    settings = {**SETTINGS, "log.file.size": 20_000}
    with under_load(
        outcome, directory, settings=settings, afterwards=read_all_after_another, seed=seed, pause=0.001
    ) as (broker, load):
        for _ in range(count):
            load.wait_acked(1)
            time.sleep(source.uniform(0.005, 0.1))
            broker.kill_all()
            broker.start()
            outcome.runs += 1
    outcome.expect(load.lost_connections >= count, "the load did not run while the broker was killed")
    return outcome


@scenario(
    "kill-supervisor", "kill -9 of the supervisor under load, and a new start", small=2, nightly=200, release=2000
)
def kill_supervisor(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` times the others must leave by themselves, and a start right after that needs no hands."""
    outcome = Outcome()
    source = random.Random(seed)
    with under_load(outcome, directory, seed=seed) as (broker, load):
        for _ in range(count):
            load.wait_acked(20)
            time.sleep(source.uniform(0.005, 0.1))
            children = broker.children()
            broker.kill("supervisor")
            with contextlib.suppress(AssertionError):
                wait_until("the children left", lambda pids=children: not any(map(_lives, pids)), BACK_SECONDS)
            left = [child.pid for child in children if _lives(child)]
            outcome.expect(not left, f"still there {BACK_SECONDS} s after the supervisor was killed: {left}")
            broker.kill_all()
            broker.start()
            outcome.runs += 1
    return outcome


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@scenario("stop", "SIGTERM under load, and a new start", small=5, nightly=200, release=1000)
def stop(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` clean stops while producers and consumers go on."""
    outcome = Outcome()
    source = random.Random(seed)
    with under_load(outcome, directory, seed=seed) as (broker, load):
        for _ in range(count):
            load.wait_acked(20)
            time.sleep(source.uniform(0.005, 0.1))
            code = broker.stop()
            outcome.expect(code == 0, f"exit code {code}\n{broker.log_text()}")
            marker = broker.log_dirs[0] / ".kafka_cleanshutdown"
            ends = json.loads(marker.read_text())["ends"] if marker.exists() else {}
            sizes = {f"{topic}-{part}": len(broker.stored_bytes(topic, part)) for topic, part in PLACES}
            outcome.expect(ends == sizes, f"the clean marker says {ends}, the files hold {sizes}")
            damaged = [path for path in broker.log_dirs[0].rglob("*.truncated")]
            outcome.expect(not damaged, f"bytes were quarantined: {damaged}")
            broker.start()
            outcome.expect(not marker.exists(), "the marker outlived the start")
            outcome.expect("tail cut" not in broker.log_text(), "the start after a clean stop recovered something")
            outcome.runs += 1
    return outcome


def backlog_of(port: int) -> int:
    """How many connections to ``port`` nobody has accepted yet."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(f":{port:04X}") and fields[3] == "0A":
            return int(fields[4].split(":")[1], 16)
    raise AssertionError(f"nobody listens on {port}")
