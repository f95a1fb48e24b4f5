"""A registered broker, and everything that happens to ZooKeeper, to its sessions and to its data."""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import NotEmptyError
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from fastlog import testing
from fastlog.testing import Proxy, RunningZooKeeper
from fastlog.zkpaths import broker_path, topic_broker_path
from tests.fault.registry import Outcome, scenario
from tests.harness import raw_client as raw
from tests.harness.broker import Broker, BrokerDidNotStart, wait_until
from tests.harness.load import Load, stored
from tests.harness.registration import BACK_SECONDS, SESSION_SECONDS, Tree, registered_broker

PLACES = [("a", 0), ("b", 1)]
PARTITIONS = {"num.partitions": 2}
ID = broker_path(0)
SERVED_ANSWERS = 20
PAUSE, LONG_PAUSE = 0.005, 0.05
"""Of a producer after an answer; the longer one where outages take half an hour, because all that was sent is kept."""
LONG_SESSION_MS = 20_000
TOPIC_SECONDS = 0.5
"""Two round trips for each topic, through an ensemble that is busy with other tests."""


class Cell:
    """A broker under load and what ZooKeeper shows of it; ``check`` at the end holds the history against the log."""

    def __init__(self, broker: Broker, tree: Tree, load: Load, outcome: Outcome) -> None:
        self.broker = broker
        self.tree = tree
        self.load = load
        self.outcome = outcome
        self.topics = {topic: 2 for topic, _ in PLACES}

    def new_topic(self) -> None:
        """The broker gets a topic now, whatever ZooKeeper does."""
        name = f"new{len(self.topics)}"
        with self.broker.connect() as client:
            answer = client.produce_ack(name, 0, raw.entry(b"x"))
        self.outcome.expect(answer.error == 0, f"topic {name} was not made: {answer.error}")
        self.topics[name] = 2

    def expect_shown(self, what: str, within: float = BACK_SECONDS) -> None:
        """ZooKeeper shows all of the broker in time."""
        try:
            self.tree.wait_shows(self.broker, 0, self.topics, within)
        except AssertionError as error:
            node = self.tree.id_node()
            self.outcome.violations.append(f"{what}: {error}; {ID} is {node}, topics {self.tree.counts()}")

    def expect_served(self, what: str) -> None:
        """Connected clients go on."""
        lost = self.load.lost_connections
        try:
            self.load.wait_acked(SERVED_ANSWERS)
        except AssertionError as error:
            self.outcome.violations.append(f"{what}: {error}")
        self.outcome.expect(self.load.lost_connections == lost, f"{what}: connections broke")


@contextlib.contextmanager
def cell(
    directory: Path,
    connect: str,
    tree_connect: str,
    seed: int,
    outcome: Outcome,
    session_ms: int | None = None,
    pause: float = PAUSE,
) -> Iterator[Cell]:
    """A registered broker under load, checked when the block ends."""
    settings = PARTITIONS if session_ms is None else {**PARTITIONS, "zk.sessiontimeout.ms": session_ms}
    with (
        registered_broker(directory / "broker", connect, settings=settings) as broker,
        Tree(tree_connect) as tree,
    ):
        with Load(broker, PLACES, pause=pause, seed=seed) as load:
            load.wait_acked(SERVED_ANSWERS)
            made = Cell(broker, tree, load, outcome)
            made.expect_shown("at the start")
            yield made
            outcome.expect(not load.errors, f"appends were refused: {dict(load.errors)}")
        code = broker.stop()
        outcome.expect(code == 0, f"the stop ended with {code}")
        outcome.expect(tree.id_node() is None, "the clean stop left the broker in ZooKeeper")
        outcome.violations += load.history.check(stored(broker, load.history))


# --- T-27 ---


@scenario("zk-expiry", "the broker's ZooKeeper session expires, again and again", small=5, nightly=200, release=2000)
def expiry(count: int, seed: int, directory: Path) -> Outcome:
    """Every tenth by a keeper that is stopped for longer than its session, the others by a second client."""
    outcome = Outcome()
    source = random.Random(seed)
    with (
        testing.zookeeper() as zookeeper,
        cell(directory, zookeeper.connect, zookeeper.connect, seed, outcome) as place,
    ):
        sleeper = source.randrange(min(count, 10))
        for number in range(count):
            node = place.tree.id_node()
            if node is None:
                outcome.violations.append(f"expiry {number}: the broker is not there to begin with")
                break
            if number % 10 == sleeper:
                place.broker.pause("keeper")
                with contextlib.suppress(AssertionError):
                    place.tree.wait_gone()
                place.broker.resume("keeper")
            else:
                time.sleep(source.uniform(0, 0.05))
                zookeeper.expire(node.owner)
            if source.random() < 0.3:
                place.new_topic()
            place.expect_shown(f"expiry {number}")
            after = place.tree.id_node()
            outcome.expect(after is not None and after.owner != node.owner, f"expiry {number}: the session goes on")
            outcome.runs += 1
        place.expect_served("after the expiries")
        outcome.expect(place.load.lost_connections == 0, "connections of clients broke")
    return outcome


# --- T-28 ---


@scenario("zk-outage", "ZooKeeper is away, slow, resets, flaps, loses a member", small=5, nightly=100, release=500)
def outage(count: int, seed: int, directory: Path) -> Outcome:
    """The kinds in turn; a topic is made in each. Outages last up to 0.5 s, 20 s at night, 120 s before a release."""
    outcome = Outcome()
    source = random.Random(seed)
    longest = 0.5 if count <= 5 else 20.0 if count <= 100 else 120.0
    pause = PAUSE if count <= 5 else LONG_PAUSE
    with ExitStack() as stack:
        zookeeper = stack.enter_context(testing.zookeeper(3))
        proxies = [zookeeper.proxy(number=number) for number in range(3)]
        connect = ",".join(proxy.address for proxy in proxies)
        place = stack.enter_context(cell(directory, connect, zookeeper.connect, seed, outcome, pause=pause))
        kinds = (_silent, _slow, _resets, _flaps, _loses_a_member)
        for number in range(count):
            kind = kinds[number % len(kinds)]
            seconds = min(longest, 0.1 * 1200 ** source.random())
            what = f"outage {number}, {kind.__name__.strip('_')} for {seconds:.1f} s"
            keeper = place.broker.pids()["keeper"]
            with kind(zookeeper, proxies, source):
                place.new_topic()
                place.expect_served(what)
                time.sleep(seconds)
                place.expect_served(what)
            place.expect_shown(what, BACK_SECONDS + 5.0 + TOPIC_SECONDS * len(place.topics))
            outcome.expect(place.broker.pids()["keeper"] == keeper, f"{what}: the keeper was replaced")
            outcome.runs += 1
        outcome.expect(place.load.lost_connections == 0, "connections of clients broke")
    return outcome


@contextlib.contextmanager
def _silent(zookeeper: RunningZooKeeper, proxies: list[Proxy], source: random.Random) -> Iterator[None]:
    """Requests arrive, and nobody hears of them."""
    for proxy in proxies:
        proxy.answers = False
    yield
    for proxy in proxies:
        proxy.answers = True
        proxy.cut()  # what was swallowed would make garbage of what follows


@contextlib.contextmanager
def _slow(zookeeper: RunningZooKeeper, proxies: list[Proxy], source: random.Random) -> Iterator[None]:
    for proxy in proxies:
        proxy.delay = source.uniform(0.05, 0.4 * SESSION_SECONDS)
    yield
    for proxy in proxies:
        proxy.delay = 0.0


@contextlib.contextmanager
def _resets(zookeeper: RunningZooKeeper, proxies: list[Proxy], source: random.Random) -> Iterator[None]:
    with _meanwhile(lambda: [proxy.cut() for proxy in proxies], lambda: source.uniform(0.02, 0.3)):
        yield


@contextlib.contextmanager
def _flaps(zookeeper: RunningZooKeeper, proxies: list[Proxy], source: random.Random) -> Iterator[None]:
    def turn() -> None:
        for proxy in proxies:
            proxy.answers = not proxy.answers
            proxy.cut()

    with _meanwhile(turn, lambda: source.uniform(0.05, 2 * SESSION_SECONDS)):
        yield
    for proxy in proxies:
        proxy.answers = True
        proxy.cut()


@contextlib.contextmanager
def _loses_a_member(zookeeper: RunningZooKeeper, proxies: list[Proxy], source: random.Random) -> Iterator[None]:
    victim = source.randrange(3)
    zookeeper.kill(victim)
    try:
        yield
    finally:
        zookeeper.start(victim)


@contextlib.contextmanager
def _meanwhile(act: Callable[[], object], pause: Callable[[], float]) -> Iterator[None]:
    """Does something again and again while the block runs."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(pause()):
            act()

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join()


# --- T-29 ---


@contextlib.contextmanager
def _client(connect: str) -> Iterator[KazooClient]:
    client = KazooClient(connect, timeout=10)
    client.start(timeout=20)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def _wipe(zookeeper: RunningZooKeeper) -> None:
    """The data of ZooKeeper is lost while it is down."""
    zookeeper.kill()
    for path in zookeeper.servers[0].directory.glob("data/version-2"):
        shutil.rmtree(path)
    zookeeper.start()


def _removed(place: Cell, client: KazooClient) -> None:
    """Somebody removes everything below the chroot, and the chroot."""
    with contextlib.suppress(NotEmptyError):  # the broker is quicker than the removal
        client.delete("/place", recursive=True)


def _id_removed(place: Cell, client: KazooClient) -> None:
    client.delete(f"/place{ID}")


def _garbage_in_own_nodes(place: Cell, client: KazooClient) -> None:
    client.set(f"/place{ID}", b"\xff\x00garbage")
    client.set(f"/place{topic_broker_path('a', 0)}", b"-1")


def _garbage_in_their_place(place: Cell, client: KazooClient) -> None:
    """Nodes that no session ends, made in the moment the broker has lost its own."""
    node = place.tree.id_node()
    assert node is not None
    transaction = client.transaction()
    for path in (ID, topic_broker_path("b", 0)):
        transaction.delete(f"/place{path}")
        transaction.create(f"/place{path}", b"by hand")
    transaction.commit()


def _refused(place: Cell, client: KazooClient) -> None:
    """Nobody may make nodes below the ids: one clear line, clients served, and registered once it is allowed."""
    read_only = [make_acl("world", "anyone", read=True, delete=True, admin=True)]
    client.set_acls("/place/brokers/ids", read_only)
    client.delete(f"/place{ID}")
    place.broker.wait_log(rf"ZooKeeper at .* refuses {ID}: NoAuth.*; clients are served, and it is tried again")
    place.expect_served("refused by ZooKeeper")
    client.set_acls("/place/brokers/ids", OPEN_ACL_UNSAFE)


def _parent_that_can_have_no_children(place: Cell, client: KazooClient) -> None:
    """A topic's own node belongs to a session; that topic waits, the others do not."""
    name = f"new{len(place.topics)}"
    client.create(f"/place/brokers/topics/{name}", b"?", ephemeral=True)
    place.new_topic()
    place.broker.wait_log(rf"refuses /brokers/topics/{name}/0: NoChildrenForEphemerals")
    place.new_topic()
    others = {topic: count for topic, count in place.topics.items() if topic != name}
    place.tree.wait_shows(place.broker, 0, others)
    client.delete(f"/place/brokers/topics/{name}")


HARMS = (
    _removed,
    _id_removed,
    _garbage_in_own_nodes,
    _garbage_in_their_place,
    _refused,
    _parent_that_can_have_no_children,
)


@scenario("zk-data", "ZooKeeper's data is lost, wiped, garbage or refused", small=7, nightly=7, release=7)
def data(count: int, seed: int, directory: Path) -> Outcome:
    """All of them on one broker, in an order of the seed's; afterwards everything is shown again."""
    outcome = Outcome()
    harms = [*HARMS, None]
    random.Random(seed).shuffle(harms)
    with testing.zookeeper() as zookeeper:
        connect = f"{zookeeper.connect}/place"
        with cell(directory, connect, connect, seed, outcome) as place:
            for harm in harms[:count]:
                what = "wiped" if harm is None else harm.__name__.strip("_")
                if harm is None:
                    _wipe(zookeeper)
                else:
                    with _client(zookeeper.connect) as client:
                        try:
                            harm(place, client)
                        except AssertionError as error:
                            outcome.violations.append(f"{what}: {error}")
                place.expect_shown(what)
                outcome.runs += 1
            place.expect_served("after all")
            outcome.expect(place.load.lost_connections == 0, "connections of clients broke")
    return outcome


# --- T-30 ---


@scenario("duplicate-id", "a second broker with the same id, or on the same files", small=3, nightly=3, release=3)
def duplicate_id(count: int, seed: int, directory: Path) -> Outcome:
    """The second one refuses and says what to do, the first one is not touched; nor does its session end by itself."""
    outcome = Outcome()
    with (
        testing.zookeeper() as zookeeper,
        cell(directory, zookeeper.connect, zookeeper.connect, seed, outcome, LONG_SESSION_MS) as place,
    ):
        first = place.broker
        before = place.tree.id_node()
        with ExitStack() as stack:
            seconds = []
            for kind in (_second_directory, _copied_directory, _same_directory)[:count]:
                second = kind(first, directory / kind.__name__, zookeeper.connect)
                stack.callback(second.close)
                with contextlib.suppress(BrokerDidNotStart):
                    second.start()
                seconds.append((kind, second))
            for kind, second in seconds:
                assert second.process is not None
                code = second.process.wait(30)
                said = second.log_path.read_text()
                expected = ["another broker uses the log directory"]
                if kind is not _same_directory:
                    expected = ["broker id 0 is taken by", f"127.0.0.1:{first.port}", "--broker-id", "marker written"]
                what = kind.__name__.strip("_")
                outcome.expect(code == 1, f"{what}: the second one ended with {code}")
                outcome.expect(all(part in said for part in expected), f"{what}: it said only {said[-1000:]}")
                outcome.runs += 1
        outcome.expect(place.tree.id_node() == before, "the first one's node changed")
        place.expect_served("after the others")
        outcome.expect(place.load.lost_connections == 0, "connections of the first one broke")
    return outcome


def _second_directory(first: Broker, directory: Path, connect: str) -> Broker:
    return registered_broker(directory, connect)


def _copied_directory(first: Broker, directory: Path, connect: str) -> Broker:
    """A copy knows the name of the first one's start, and must not take it for its own."""
    directory.mkdir()
    (directory / "data").mkdir()
    shutil.copy2(first.log_dirs[0] / ".fastlog-creators", directory / "data")
    return registered_broker(directory, connect)


def _same_directory(first: Broker, directory: Path, connect: str) -> Broker:
    return registered_broker(directory, connect, log_dirs=first.log_dirs)


# --- T-3 with ZooKeeper ---


@scenario("kill-registered", "kill -9 of a registered broker, or its keeper", small=6, nightly=200, release=1000)
def kill_registered(count: int, seed: int, directory: Path) -> Outcome:
    """Half of the kills take the keeper, half everything; a session would last 20 s, so its end is not waited for."""
    outcome = Outcome()
    source = random.Random(seed)
    with (
        testing.zookeeper() as zookeeper,
        registered_broker(
            directory / "broker", zookeeper.connect, settings={**PARTITIONS, "zk.sessiontimeout.ms": LONG_SESSION_MS}
        ) as broker,
        Tree(zookeeper.connect) as tree,
    ):
        with Load(broker, PLACES, pause=PAUSE, seed=seed) as load:
            load.wait_acked(SERVED_ANSWERS)
            place = Cell(broker, tree, load, outcome)
            for number in range(count):
                # also before it is registered, and in the middle of it
                if source.random() < 0.5:
                    place.expect_shown(f"before kill {number}")
                else:
                    time.sleep(source.uniform(0, 0.3))
                lost = load.lost_connections
                if number % 2:
                    broker.kill_all()
                    broker.start()
                else:
                    broker.wait_replaced("keeper", broker.kill("keeper"))
                    outcome.expect(load.lost_connections == lost, f"kill {number} of the keeper: connections broke")
                if source.random() < 0.3:
                    place.new_topic()
                outcome.runs += 1
            place.expect_shown("after the last kill")
            outcome.expect(not load.errors, f"appends were refused: {dict(load.errors)}")
        wait_until("the stop", lambda: broker.stop() == 0)
        outcome.expect(tree.id_node() is None, "the clean stop left the broker in ZooKeeper")
        outcome.violations += load.history.check(stored(broker, load.history))
    return outcome
