"""Members of a group that are killed, stopped and expired, that come and go while brokers and topics do.

Whatever happens: no message that was acknowledged is lost, only what was not committed is given again, nobody gives or
commits what is another's, and what is left shares all partitions by the formula.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from fastlog import testing
from fastlog.consumer.partitions import Lease
from fastlog.testing import RunningZooKeeper
from tests.fault.registry import Outcome, scenario
from tests.harness.broker import Broker
from tests.harness.crew import Crew, MemberProcess, saved_offsets
from tests.harness.load import Load, stored
from tests.harness.raw_format import deep_payloads
from tests.harness.registration import SESSION_SECONDS, Tree, registered_broker

BROKERS = 2
PARTITIONS = 6
"""On each broker."""
MEMBERS = 3
ALL = BROKERS * PARTITIONS
TAKEN_OVER_SECONDS = 5 * (SESSION_SECONDS + 2.0)
QUIET_SECONDS = 5 * 10.0
READ_SECONDS = 60.0
AT_ONCE = 50
"""Faults on the same brokers and members, so that what is written down stays small."""
PACE_SECONDS = 1.0
QUICK_PACE_SECONDS = 0.4
"""Of a storm that is over soon."""
MOST_MEMBERS = 20
MOST_TOPICS = 6


class Cell:
    """A ZooKeeper, brokers under load, and a crew that reads all of it."""

    def __init__(self, zookeeper: RunningZooKeeper, tree: Tree, crew: Crew, source: random.Random) -> None:
        self.zookeeper = zookeeper
        self.tree = tree
        self.crew = crew
        self.source = source
        self.brokers: list[Broker] = []
        self.loads: list[Load] = []
        self.topics = {"t": ALL}
        self.excused: dict[str, list[tuple[float, float]]] = {}

    @property
    def partitions(self) -> list[str]:
        """Their names."""
        return [
            f"{topic}/{broker}-{number}"
            for topic in self.topics
            for broker in range(BROKERS)
            for number in range(PARTITIONS)
        ]

    def expire(self, member: MemberProcess, session: int) -> None:
        """End a member's session by its id: sooner than the member's lease, which only a time-out never overtakes."""
        began = Lease.now()
        self.zookeeper.expire(session)
        self.excused.setdefault(member.name, []).append((began, Lease.now() + SESSION_SECONDS))

    def new_topic(self) -> None:
        """The producers begin with one more."""
        name = f"t{len(self.topics)}"
        self.topics[name] = ALL
        for load in self.loads:
            load.places += _places(name)

    def stored(self) -> dict[str, list[bytes]]:
        """What each partition holds. Nobody appends."""
        return {
            f"{topic}/{broker}-{partition}": deep_payloads(data)
            for broker, load in enumerate(self.loads)
            for (topic, partition), data in stored(self.brokers[broker], load.history).items()
        }

    def expect_progress(self, outcome: Outcome) -> None:
        """Every partition has messages that are given from now on."""
        now = Lease.now()
        try:
            self.crew.wait_diaries(
                "every partition goes on",
                lambda found: all(found.last_given().get(name, 0.0) > now for name in self.partitions),
                READ_SECONDS,
            )
        except AssertionError as error:
            last = self.crew.diaries().last_given()
            stuck = [name for name in self.partitions if last.get(name, 0.0) <= now]
            outcome.violations.append(f"{error}; not {stuck}")

    def finish(self, outcome: Outcome) -> None:
        """Let everything be read, and hold what was written down against the logs."""
        for load in self.loads:
            load.stop()
        held = {name: set(payloads) for name, payloads in self.stored().items()}
        with contextlib.suppress(AssertionError):  # what is missing is found below
            self.crew.wait_diaries(
                "all is read",
                lambda found: all(payloads <= found.payloads(name) for name, payloads in held.items()),
                READ_SECONDS,
            )
        self.crew.leave(list(self.crew.living))
        diaries = self.crew.diaries()
        for broker, load in zip(self.brokers, self.loads, strict=True):
            broker.stop()
            outcome.violations += load.history.check(stored(broker, load.history))
        outcome.violations += diaries.check(self.stored(), self.excused) + self.crew.complaints()
        commits = diaries.commits
        # some faults leave a kind no time for any
        fewest = (min if outcome.runs >= AT_ONCE else sum)(commits.values())
        outcome.expect(fewest > 0, f"commits of the programs' own and others: {commits}")


@contextlib.contextmanager
def cell(directory: Path, seed: int, outcome: Outcome, members: int = MEMBERS) -> Iterator[Cell]:
    """With so many members that have shared everything; checked when the block ends."""
    with ExitStack() as stack:
        zookeeper = stack.enter_context(testing.zookeeper())
        tree = stack.enter_context(Tree(zookeeper.connect))
        crew = stack.enter_context(Crew(directory / "members", zookeeper.connect, tree, seed))
        place = Cell(zookeeper, tree, crew, random.Random(seed))
        for number in range(BROKERS):
            broker = registered_broker(
                directory / f"broker{number}", zookeeper.connect, number, settings={"num.partitions": PARTITIONS}
            )
            place.brokers.append(stack.enter_context(broker))
            load = Load(
                broker,
                _places("t"),
                producers=1,
                consumers=0,
                compressed=0.3,
                pause=0.01,
                seed=seed + number,
                name=f"{number}p",
            )
            place.loads.append(stack.enter_context(load))
        for _ in range(members):
            crew.start()
        try:
            crew.wait_shared(place.topics, READ_SECONDS)
        except AssertionError as error:  # it goes on: this is reported with all that follows from it
            outcome.violations.append(f"at the start: {error}")
        try:
            yield place
            place.finish(outcome)
        except AssertionError as error:
            outcome.violations += [str(error), *crew.complaints()]


def _places(topic: str) -> list[tuple[str, int]]:
    return [(topic, number) for number in range(PARTITIONS)]


def _rounds(count: int) -> list[int]:
    return [min(AT_ONCE, count - done) for done in range(0, count, AT_ONCE)]


# --- T-31 ---


@scenario("group-kill", "kill -9 of members of a group of three", small=20, nightly=1000, release=5000)
def group_kill(count: int, seed: int, directory: Path) -> Outcome:
    """One at a time, or two; some start again at once, some under their old name, some when others have taken over."""
    outcome = Outcome()
    for number, kills in enumerate(_rounds(count)):
        with cell(directory / str(number), seed + number, outcome) as place:
            _kill_members(place, kills, outcome)
    return outcome


def _kill_members(place: Cell, count: int, outcome: Outcome) -> None:
    crew, source = place.crew, place.source
    done = 0
    while done < count:
        time.sleep(source.uniform(0.0, 0.5))
        victims = source.sample(crew.living, min(count - done, 2 if source.random() < 0.2 else 1))
        for victim in victims:
            crew.kill(victim)
        names = [victim.consumer_id.removeprefix("g_") if source.random() < 0.3 else None for victim in victims]
        if source.random() < 0.5:
            crew.wait_shared(place.topics, TAKEN_OVER_SECONDS)
        for name in names:
            crew.start(name)
        crew.wait_shared(place.topics, TAKEN_OVER_SECONDS)
        done += len(victims)
        outcome.runs += len(victims)
    place.expect_progress(outcome)


# --- T-32 ---


@scenario("group-storm", "members come and go, and so do brokers and topics", small=20, nightly=600, release=7200)
def group_storm(count: int, seed: int, directory: Path) -> Outcome:
    """One event a second, in a short storm more; then it is quiet."""
    outcome = Outcome()
    for number, events in enumerate(_rounds(count)):
        with cell(directory / str(number), seed + number, outcome) as place:
            _storm(place, events, outcome)
    return outcome


def _storm(place: Cell, count: int, outcome: Outcome) -> None:
    crew, source = place.crew, place.source
    most = min(MOST_MEMBERS, MEMBERS + count // 3)
    pace = PACE_SECONDS if count > 10 else QUICK_PACE_SECONDS
    for number in range(count):
        due = time.monotonic() + pace
        if len(crew.living) > 1 and (len(crew.living) >= most or source.random() < 0.4):
            victim = source.choice(crew.living)
            if source.random() < 0.5:
                crew.kill(victim)
            else:
                crew.leave([victim])
        else:
            crew.start()
        if number % 10 == 2:
            broker = source.choice(place.brokers)
            if source.random() < 0.5:
                broker.kill_all()
                broker.start()
            else:
                broker.restart()
        if number % 10 == 5 and len(place.topics) < MOST_TOPICS:
            place.new_topic()
        outcome.runs += 1
        time.sleep(max(0.0, due - time.monotonic()))
    crew.wait_shared(place.topics, QUIET_SECONDS)
    place.expect_progress(outcome)


# --- T-27 ---


@scenario("group-expiry", "sessions of members and brokers expire, members stop", small=5, nightly=200, release=2000)
def group_expiry(count: int, seed: int, directory: Path) -> Outcome:
    """In turn: a member's session, a member that is stopped until others have its share, both, a broker's session."""
    outcome = Outcome()
    for number, faults in enumerate(_rounds(count)):
        with cell(directory / str(number), seed + number, outcome) as place, Watcher(place) as watcher:
            _expire_sessions(place, faults, outcome)
        outcome.violations += watcher.violations
    return outcome


def _expire_sessions(place: Cell, count: int, outcome: Outcome) -> None:
    crew, source = place.crew, place.source
    for number in range(count):
        time.sleep(source.uniform(0.0, 0.3))
        victim = source.choice(crew.living)
        others = [member for member in crew.living if member is not victim]
        session = crew.session_of(victim)
        kind = number % 4
        if kind == 3:
            node = place.tree.id_node(source.randrange(BROKERS))
            if node is not None:
                place.zookeeper.expire(node.owner)
        elif session is None:
            outcome.violations.append(f"fault {number}: {victim.name} is not registered")
            break
        elif kind == 1:
            with crew.stopped(victim):
                crew.wait_shared(place.topics, TAKEN_OVER_SECONDS, others)
                # others have got further by when it wakes
                time.sleep(source.uniform(0.1, 0.5))
        elif kind == 2:
            with crew.stopped(victim):
                place.expire(victim, session)
                time.sleep(source.uniform(0.0, 0.5))
        else:
            place.expire(victim, session)
        # rather the first look behind the fault than the last one before it
        time.sleep(0.05)
        crew.wait_shared(place.topics, TAKEN_OVER_SECONDS)
        if kind < 3:
            outcome.expect(crew.session_of(victim) != session, f"fault {number}: the session of {victim.name} goes on")
        outcome.runs += 1
    place.expect_progress(outcome)


class Watcher:
    """Looks at the offsets in ZooKeeper all the time: none of them ever goes back."""

    def __init__(self, place: Cell) -> None:
        self.violations: list[str] = []
        self._names = place.partitions
        self._tree = Tree(place.zookeeper.connect)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(READ_SECONDS)
        self._tree.close()

    def _watch(self) -> None:
        highest: dict[str, int] = {}
        while not self._is_over.wait(0.005):
            for name, offset in saved_offsets(self._tree, self._names).items():
                if offset < highest.get(name, 0):
                    self.violations.append(f"the offset of {name} went back from {highest[name]} to {offset}")
                highest[name] = offset
