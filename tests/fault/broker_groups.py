"""Groups of fastlog's consumers that a broker keeps: members, the coordinator and the broker are killed and stopped.

Whatever happens: no message that was acknowledged is lost, only what was not committed is given again, nobody gives or
commits what is another's, and those that are left share all partitions by the formula.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import psutil

from fastlog.consumer.partitions import Lease
from fastlog.errors import CoordinationError
from tests.fault.registry import Outcome, scenario
from tests.harness.broker import Broker
from tests.harness.crew import BrokerCrew
from tests.harness.load import Load, stored
from tests.harness.ports import unused_port
from tests.harness.raw_format import deep_payloads
from tests.harness.registration import SESSION_SECONDS

PARTITIONS = 8
MEMBERS = 3
MOST_MEMBERS = 8
AT_ONCE = 30
"""Faults on the same broker and members, so that what is written down stays small."""
SHARED_SECONDS = 60.0
READ_SECONDS = 60.0
SHOWN = 3000
"""Characters at the end of a broker's log."""
TOPICS = {"t": PARTITIONS}
SETTINGS = {
    "num.partitions": PARTITIONS,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "log.default.flush.interval.ms": 50,
}


@scenario(
    "broker-group-kill",
    "kill -9 and SIGSTOP of fastlog's members of a broker's group, kill -9 of its coordinator, processes and all of it",
    small=12,
    nightly=600,
    release=5000,
)
def broker_group_kill(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` faults; now and then those that are left are waited for until they have shared everything."""
    outcome = Outcome()
    for number, done in enumerate(range(0, count, AT_ONCE)):
        _round(min(AT_ONCE, count - done), seed + number, directory / str(number), outcome)
    return outcome


def _round(count: int, seed: int, directory: Path, outcome: Outcome) -> None:
    source = random.Random(seed)
    places = [("t", number) for number in range(PARTITIONS)]
    with (
        Broker(directory / "broker", settings=SETTINGS, port=unused_port()) as broker,
        BrokerCrew(directory / "members", f"127.0.0.1:{broker.port}", None, seed) as crew,
        Load(broker, places, producers=1, consumers=0, compressed=0.3, pause=0.01, seed=seed, name="p") as load,
    ):
        for _ in range(MEMBERS):
            crew.start()
        try:
            crew.wait_shared(TOPICS, SHARED_SECONDS)
            for number in range(count):
                _fault(source, broker, crew)
                outcome.runs += 1
                if source.random() < 0.4 or number == count - 1:
                    crew.wait_shared(TOPICS, SHARED_SECONDS)
                else:
                    time.sleep(source.uniform(0.0, 1.0))
            _finish(broker, crew, load, outcome)
        except (AssertionError, CoordinationError) as error:
            said = f"the broker's processes are {_states(broker)}, and it said {broker.log_text()[-SHOWN:]}"
            outcome.violations += [str(error), *crew.complaints(), said]


def _fault(source: random.Random, broker: Broker, crew: BrokerCrew) -> None:
    kinds = ["kill", "kill", "stop", "leave"] if len(crew.living) > 1 else []
    kinds += ["start", "start"] if len(crew.living) < MOST_MEMBERS else []
    match source.choice([*kinds, "coordinator", "coordinator", "processor-0", "broker"]):
        case "kill":
            victim = source.choice(crew.living)
            crew.kill(victim)
            if source.random() < 0.3:  # under its old name, which its former self still has
                crew.start(victim.consumer_id.removeprefix("g_"))
        case "stop":
            with crew.stopped(source.choice(crew.living)):
                time.sleep(source.uniform(0.5, 2.5) * SESSION_SECONDS)
        case "leave":
            crew.leave([source.choice(crew.living)])
        case "start":
            crew.start()
        case "broker":
            broker.kill_all()
            time.sleep(source.choice([0.0, 1.5 * SESSION_SECONDS]))
            broker.start()
        case role:
            pid = broker.pids()[role]
            broker.kill(role)
            broker.wait_replaced(role, pid)


def _finish(broker: Broker, crew: BrokerCrew, load: Load, outcome: Outcome) -> None:
    """All goes on; then let everything be read, and hold what was written down against the logs."""
    names = [f"t/0-{number}" for number in range(PARTITIONS)]
    now = Lease.now()
    crew.wait_diaries(
        "every partition goes on",
        lambda found: all(found.last_given().get(name, 0.0) > now for name in names),
        READ_SECONDS,
    )
    load.stop()
    found = stored(broker, load.history)
    held = {f"{topic}/0-{number}": deep_payloads(data) for (topic, number), data in found.items()}
    try:
        crew.wait_diaries(
            "all is read",
            lambda found: all(set(payloads) <= found.payloads(name) for name, payloads in held.items()),
            READ_SECONDS,
        )
    except AssertionError as error:
        outcome.violations.append(str(error))  # what is missing is named below
    crew.leave(list(crew.living))
    diaries = crew.diaries()
    code = broker.stop()
    outcome.expect(code == 0, f"the stop ended with {code}")
    outcome.violations += load.history.check(stored(broker, load.history))
    outcome.violations += diaries.check(held) + crew.complaints()
    commits = diaries.commits
    # some faults leave a kind no time for any
    fewest = (min if outcome.runs >= AT_ONCE else sum)(commits.values())
    outcome.expect(fewest > 0, f"commits of the programs' own and others: {commits}")


def _states(broker: Broker) -> dict[str, str]:
    """What each process of it does, and how many connections wait to be taken: why nobody reaches it, if so."""
    found = {}
    for role, pid in broker.pids().items():
        try:
            found[role] = f"{psutil.Process(pid).status()} in {Path(f'/proc/{pid}/wchan').read_text()}"
        except (psutil.NoSuchProcess, OSError):
            found[role] = "gone"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [row[4] for row in rows if row[1].endswith(f":{broker.port:04X}") and row[3] == "0A"]
    return {**found, "listening sockets, queues": str(listening)}
