"""Idempotent producers whose connections, processes and brokers die: each record is in the log once, in its order."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from tests.fault.registry import Outcome, scenario
from tests.harness.batch_load import Client, Place
from tests.harness.broker import Broker
from tests.harness.lossy_proxy import LossyProxy
from tests.harness.numbered_load import NumberedLoad
from tests.harness.timing import PATIENCE

PLACES = [("a", 0), ("a", 1), ("b", 0)]
SETTINGS = {"num.partitions": 2, "log.file.size": 100_000}
PROCESSES = ("processor-0", "processor-1", "processor-2", "flusher", "keeper", "coordinator", "acceptor")
PRODUCERS = 3


def _made(broker: Broker) -> None:
    client = Client(broker.port)
    for topic in ("a", "b"):
        assert client.make_topic(topic) == 2
    client.close()


def _checked(outcome: Outcome, broker: Broker, load: NumberedLoad) -> None:
    code = broker.stop()
    outcome.expect(code == 0, f"the last stop ended with {code}")
    outcome.violations += load.check(_segments(broker))
    outcome.expect(load.lost_connections > 0, "no producer has lost a connection")


def _segments(broker: Broker) -> Callable[[Place], list[Path]]:
    return lambda place: [
        path for directory in broker.log_dirs for path in sorted((directory / f"{place[0]}-{place[1]}").glob("*.log"))
    ]


@scenario(
    "idempotent-proxy",
    "idempotent producers behind a proxy that loses, delays and doubles",
    small=20_000,
    nightly=500_000,
    release=10_000_000,
)
def proxied(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` records by three producers."""
    outcome = Outcome(runs=count)
    settings = SETTINGS | {"log.file.size": 1_000_000}
    with Broker(directory, processors=3, settings=settings) as broker:
        _made(broker)
        with (
            LossyProxy(lambda: broker.port, seed=seed) as proxy,
            NumberedLoad(
                lambda: proxy.port,
                PLACES,
                acks=-1,
                producers=PRODUCERS,
                records=count // PRODUCERS,
                largest_batch=max(8, count // 10_000),
                seed=seed,
            ) as load,
        ):
            pass
        _checked(outcome, broker, load)
        outcome.expect(
            len(proxy.faults) == 5 and all(proxy.faults.values()), f"not every fault was made: {proxy.faults}"
        )
    return outcome


@scenario(
    "idempotent-kill",
    "kill -9 of processes and of the whole broker under idempotent producers",
    small=15,
    nightly=1000,
    release=5000,
)
def killed(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` kills: of a process, or, one in three, of all at once and a new start; now and then a clean one.

    With acks=1 or all, as the seed is odd or even: what is appended outlives a kill.
    """
    outcome = Outcome()
    source = random.Random(seed)
    acks = 1 if seed % 2 else -1
    with Broker(directory, processors=3, settings=SETTINGS) as broker:
        _made(broker)
        with NumberedLoad(lambda: broker.port, PLACES, acks=acks, producers=PRODUCERS, seed=seed) as load:
            for number in range(count):
                load.wait_acked(10)
                time.sleep(source.uniform(0.0, 0.1))
                if number % 3 == 2:
                    if number % 2:
                        broker.kill_all()
                    else:
                        broker.stop()
                    broker.start()
                else:
                    role = source.choice(PROCESSES)
                    broker.wait_replaced(role, broker.kill(role), PATIENCE)
                outcome.runs += 1
            load.wait_acked(10)
        _checked(outcome, broker, load)
    return outcome
