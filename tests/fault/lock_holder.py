"""The holder of an append lock is killed at every named point, while others append to and read that very partition.

Each point has processors of its own, and every successor dies there again, so that one broker dies hundreds of times.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path

from tests.fault.registry import Outcome, scenario
from tests.harness.broker import Broker
from tests.harness.load import Load, stored

STABLE = 2
POINTS = {
    "append.after_lock": 4,
    "append.mid_write": 4,
    "append.after_write": 4,
    "roll.created": 4,
    "append.before_unlock": 4,
    "repair.inside": 6,
}
"""Named points, and how many processors die there: few repairs fall to a process that dies in them."""
DIES_AT_CALL = 3
KILLS_OF_ONE_BROKER = 100
LONGEST_ANSWER = 30.0
STARTED = re.compile(r"supervisor\[\d+\] started role=processor-(\d+) pid=")
DIED = re.compile(r"died role=processor-(\d+) exit=(\S+)")
PLACE = ("locked", 0)


def victims() -> dict[int, str]:
    """The point at which each processor dies that is not to live."""
    points = [point for point, count in POINTS.items() for _ in range(count)]
    return dict(enumerate(points, STABLE))


def faults() -> str:
    """The rules of ``FASTLOG_FAULTS`` for all victims."""
    calls = {point: 1 if point in ("roll.created", "repair.inside") else DIES_AT_CALL for point in POINTS}
    return ",".join(f"processor-{number}:{point}@{calls[point]}=kill" for number, point in victims().items())


def deaths(broker: Broker) -> tuple[Counter[str], list[str]]:
    """How many processors died at each point so far, and deaths that no rule asked for."""
    points = victims()
    log = broker.log_text()
    starts = Counter(int(number) for number in STARTED.findall(log))
    at: Counter[str] = Counter()
    for number, point in points.items():
        at[point] += max(0, starts[number] - 1)
    strange = {
        f"processor-{number} ended with {code}"
        for number, code in DIED.findall(log)
        if code != "-9" or int(number) not in points
    }
    return at, sorted(strange)


@scenario("lock-holder", "kill -9 of the lock holder at each of six points", small=100, nightly=1000, release=10_000)
def lock_holder(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` kills at each point."""
    outcome = Outcome()
    for number, begin in enumerate(range(0, count, KILLS_OF_ONE_BROKER)):
        kills = min(KILLS_OF_ONE_BROKER, count - begin)
        kill_at_every_point(kills, seed + number, directory / str(number), outcome)
    return outcome


def kill_at_every_point(count: int, seed: int, directory: Path, outcome: Outcome) -> None:
    """One broker whose processors die ``count`` times at each point, and what became of its log."""
    processors = STABLE + len(victims())
    settings = {"log.file.size": 1500}
    environment = {"FASTLOG_FAULTS": faults()}
    deadline = time.monotonic() + 60 + count * 1.5
    with Broker(directory, processors=processors, settings=settings, environment=environment) as broker:
        with Load(broker, [PLACE], producers=processors - 1, consumers=2, batch=3, pause=0.001, seed=seed) as load:
            while True:
                at, strange = deaths(broker)
                if min(at[point] for point in POINTS) >= count or time.monotonic() > deadline:
                    break
                time.sleep(0.05)
        for point in POINTS:
            outcome.expect(at[point] >= count, f"{at[point]} kills at {point} in time, {count} were wanted")
        outcome.runs += sum(at.values())
        outcome.violations += strange
        outcome.expect(not load.errors, f"appends were refused: {dict(load.errors)}")
        slowest = load.longest_answer
        outcome.expect(slowest < LONGEST_ANSWER, f"an append took {slowest:.1f} s: the partition stayed locked")
        with broker.connect() as client:
            end = client.log_end(*PLACE)
            client.wait_visible(*PLACE, end)
            load.history.visible(PLACE, end, load.history.known_end(PLACE))
            everything = client.read_all(*PLACE)
        outcome.expect(everything == broker.stored_bytes(*PLACE)[:end], "what is read is not what is stored")
        broker.kill_all()
        outcome.violations += load.history.check(stored(broker, load.history))
