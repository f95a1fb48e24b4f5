"""The broker in ZooKeeper: what is shown becomes what is there, whatever anybody does to it in between."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastlog.config import BrokerConfig
from fastlog.coordination.session import Session, SessionLostError, Watch
from fastlog.errors import CoordinationError
from fastlog.log._arena import Arena
from fastlog.log._shared_memory import FIRST_PROCESSOR, KEEPER
from fastlog.log.manager import LogManager
from fastlog.registry import Registration, RegistrationStatus, Registry
from fastlog.workers import child, keeper
from fastlog.workers.child import Listener, Shared
from fastlog.zkpaths import BrokerRegistration
from tests.harness.broker import wait_until
from tests.harness.fake_session import FakeSession, FakeZooKeeper, Stored
from tests.harness.timing import PATIENCE

ID = "/brokers/ids/7"
WORD = "/brokers/fastlog/7"
VALUE = BrokerRegistration("me-5", "me", 9092)
OTHER = BrokerRegistration("you-9", "you", 9093)
FORMER = ("me-4", "me-3")
STRANGER = 77


def values(tree: FakeZooKeeper) -> dict[str, bytes]:
    """What is shown of broker 7 as long as it lives."""
    return {path: value for path, value in tree.shown().items() if path.endswith("/7") and path != WORD}


def owners(tree: FakeZooKeeper) -> set[int]:
    """The sessions that what is shown belongs to."""
    return {node(tree, path).owner for path in values(tree)}


def node(tree: FakeZooKeeper, path: str) -> Stored:
    """A node that is there."""
    found = tree.find(path)
    assert found is not None, path
    return found


class Shown:
    """A registration in a tree of its own; ``settle`` does what the thread would until it has nothing more to do."""

    def __init__(self) -> None:
        self.tree = FakeZooKeeper()
        self.session = self.tree.open()
        self.flag = threading.Event()
        self.table = Registration(self.session, 7, VALUE, FORMER, self.flag.set)

    def settle(self, **topics: int) -> None:
        for _ in range(20):
            self.flag.clear()
            assert self.table.hold_broker() is None
            self.table.hold_topics(topics)
            if not self.flag.is_set():
                return
        raise AssertionError("it never comes to rest")


@pytest.fixture
def shown() -> Shown:
    return Shown()


def test_nodes_are_those_of_0_7(shown: Shown) -> None:
    shown.settle(logs=4, clicks=1)
    assert values(shown.tree) == {
        ID: b"me-5:me:9092",
        "/brokers/topics/logs/7": b"4",
        "/brokers/topics/clicks/7": b"1",
    }
    assert owners(shown.tree) == {shown.session.id}


def test_what_is_settled_costs_nothing(shown: Shown) -> None:
    shown.settle(logs=4)
    before = len(shown.tree.calls)
    shown.settle(logs=4)
    assert len(shown.tree.calls) == before
    shown.settle(logs=4, clicks=1)
    assert {path for _, _, path in shown.tree.calls[before:]} == {"/brokers/topics/clicks/7"}


def test_a_count_that_grows_is_written(shown: Shown) -> None:
    shown.settle(logs=1)
    shown.settle(logs=4)
    assert values(shown.tree)["/brokers/topics/logs/7"] == b"4"


@pytest.mark.parametrize("data", [b"me-4:me:9000", b"me-3:elsewhere:1", VALUE.encode()])
def test_a_node_of_an_earlier_start_or_keeper_is_replaced_at_once(shown: Shown, data: bytes) -> None:
    shown.tree.write(ID, data, owner=STRANGER)
    shown.tree.write("/brokers/topics/logs/7", b"2", owner=STRANGER)
    shown.settle(logs=4)
    assert values(shown.tree) == {ID: VALUE.encode(), "/brokers/topics/logs/7": b"4"}
    assert owners(shown.tree) == {shown.session.id}
    assert "delete" not in {name for _, name, _ in shown.tree.calls}  # in one step: nobody sees the broker missing


@pytest.mark.parametrize("data", [OTHER.encode(), b"me-5:me:9093", b"garbage", b"\xff", b""])
def test_a_node_of_another_broker_stays(shown: Shown, data: bytes) -> None:
    """Also of one that was started in the same millisecond, and of one that writes what nobody understands."""
    shown.tree.write(ID, data, owner=STRANGER)
    other = shown.table.hold_broker()
    assert other is not None
    assert (other.data, other.owner) == (data, STRANGER)
    assert values(shown.tree) == {ID: data}
    shown.flag.clear()
    shown.tree.remove(ID)
    assert shown.flag.is_set(), "nobody noticed that the id is free"
    shown.settle()


@pytest.mark.parametrize("path", [ID, "/brokers/topics/logs/7"])
@pytest.mark.parametrize("data", [VALUE.encode(), b"1", b"garbage"])
def test_a_node_that_was_made_by_hand_is_replaced(shown: Shown, path: str, data: bytes) -> None:
    """It has no session, so it is no broker's, and would stand there for ever."""
    shown.tree.write(path, data, owner=0)
    shown.settle(logs=1)
    assert node(shown.tree, path).owner == shown.session.id
    assert values(shown.tree)[path] == (VALUE.encode() if path == ID else b"1")


@pytest.mark.parametrize("path", [ID, "/brokers/topics/logs/7"])
@pytest.mark.parametrize("harm", ["remove", "garbage", "stranger"])
def test_what_somebody_does_to_a_node_is_noticed_and_undone(shown: Shown, path: str, harm: str) -> None:
    shown.settle(logs=1)
    before = dict(values(shown.tree))
    for _ in range(3):
        shown.flag.clear()
        if harm == "remove":
            shown.tree.remove(path)
        elif harm == "garbage":
            shown.tree.write(path, b"garbage", owner=shown.session.id)
        else:
            shown.tree.write(path, VALUE.encode(), owner=STRANGER)
        assert shown.flag.is_set()
        shown.settle(logs=1)
        assert values(shown.tree) == before
        assert owners(shown.tree) == {shown.session.id}


def test_a_change_right_after_the_read_is_not_lost(shown: Shown) -> None:
    """The node goes while its good value is on the way to us: the watch has fired before the value is noted."""
    removed = []

    def remove_once(path: str) -> None:
        if path == ID and not removed:
            removed.append(path)
            shown.tree.remove(path)

    shown.tree.after_read = remove_once
    shown.settle()
    assert removed
    assert ID in values(shown.tree)


def test_a_node_that_somebody_changes_all_the_time_is_an_error_and_no_endless_loop(shown: Shown) -> None:
    shown.settle()
    shown.tree.write(ID, b"garbage")
    shown.tree.after_read = lambda path: shown.tree.write(path, b"garbage")
    with pytest.raises(CoordinationError, match=ID):
        shown.table.hold_broker()


def test_reading_everything_again_leaves_no_second_watch(shown: Shown) -> None:
    shown.settle(logs=1)
    watches = shown.tree.watch_count()
    node(shown.tree, "/brokers/topics/logs/7").data = b"2"  # without a watch's firing
    for _ in range(3):
        shown.table.recheck()
        shown.settle(logs=1)
    assert values(shown.tree)["/brokers/topics/logs/7"] == b"1"
    assert shown.tree.watch_count() == watches


def test_a_topic_that_is_refused_keeps_no_other_one_back(shown: Shown) -> None:
    shown.tree.refused.add("/brokers/topics/a/7")
    assert shown.table.hold_broker() is None
    with pytest.raises(CoordinationError, match="refuses /brokers/topics/a/7"):
        shown.table.hold_topics({"a": 1, "b": 2})
    assert values(shown.tree)["/brokers/topics/b/7"] == b"2"
    shown.tree.refused.clear()
    shown.settle(a=1, b=2)
    assert values(shown.tree)["/brokers/topics/a/7"] == b"1"


def test_a_silent_server_is_asked_once_and_not_for_every_topic(shown: Shown) -> None:
    shown.tree.is_silent = True
    before = len(shown.tree.calls)
    with pytest.raises(CoordinationError, match="refuses"):
        shown.table.hold_topics({"a": 1, "b": 2})
    assert len(shown.tree.calls) == before + 1


def test_topics_wait_for_the_server_together(shown: Shown) -> None:
    """Two of them are under way at the same time; else neither would go on."""
    both = threading.Barrier(2, timeout=PATIENCE)

    def meet(session: FakeSession, name: str, path: str) -> None:
        if name == "create" and path in ("/brokers/topics/b/7", "/brokers/topics/c/7"):
            both.wait()

    shown.tree.before_call = meet
    shown.settle(a=1, b=2, c=3)
    assert values(shown.tree) == {
        ID: VALUE.encode(),
        **{f"/brokers/topics/{name}/7": b"%d" % count for name, count in (("a", 1), ("b", 2), ("c", 3))},
    }


def test_nothing_is_done_in_a_lost_session(shown: Shown) -> None:
    shown.settle(logs=1)
    shown.tree.expire(shown.session.id)
    with pytest.raises(SessionLostError):
        shown.table.hold_broker()
    assert values(shown.tree) == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["remove", "ours", "stranger", "by hand"]),
            st.sampled_from([ID, "/brokers/topics/a/7", "/brokers/topics/b/7"]),
            st.sampled_from([b"", b"1", b"2", VALUE.encode(), b"me-4:x:1"]),
        ),
        max_size=12,
    ),
    st.lists(st.dictionaries(st.sampled_from("ab"), st.integers(1, 3)), min_size=1, max_size=4),
)
def test_any_history_ends_in_what_is_wanted(harms: list[tuple[str, str, bytes]], wanted: list[dict[str, int]]) -> None:
    shown = Shown()
    topics: dict[str, int] = {}
    for number, (harm, path, data) in enumerate(harms):
        topics |= wanted[number % len(wanted)]
        if number % 2:
            shown.settle(**topics)
        if harm == "remove":
            shown.tree.remove(path)
        else:
            stale = data if path != ID or harm != "stranger" else b"me-4:x:1"
            shown.tree.write(path, stale, {"ours": shown.session.id, "stranger": STRANGER, "by hand": 0}[harm])
    topics |= wanted[-1]
    shown.settle(**topics)
    found = values(shown.tree)
    for path, data in {ID: VALUE.encode(), **{f"/brokers/topics/{t}/7": b"%d" % n for t, n in topics.items()}}.items():
        assert found[path] == data
        assert node(shown.tree, path).owner == shown.session.id


# --- the thread ---


class Running:
    """A registry over a tree in memory, with a real arena."""

    def __init__(self, directory: Path, *, session_ms: int = 100) -> None:
        self.tree = FakeZooKeeper(timeout=session_ms / 1000)
        self.sessions: list[FakeSession] = []
        self.failures = 0
        config = BrokerConfig(
            broker_id=7,
            log_dirs=(str(directory),),
            zk_connect="h:1",
            zk_session_timeout_ms=session_ms,
            zk_sync_time_ms=0,
        )
        self.arena = Arena([str(directory)], FIRST_PROCESSOR + 1, 16, 16)
        self.manager = LogManager(config, self.arena)
        self.manager.load([{}])
        listener = Listener("default", "kafka-0.7", "me", 9092, "me", 9092, -1)
        self.shared = Shared(
            config, self.arena, (listener,), (), (), 64, supervisor_pid=os.getppid(), creators=("me-5", *FORMER)
        )
        self.registry = Registry(self.shared, self._open)

    def _open(self, on_change: Watch, is_wanted: Callable[[], bool]) -> Session:
        if self.failures:
            self.failures -= 1
            raise CoordinationError("nobody answers")
        session = self.tree.open(on_change)
        self.sessions.append(session)
        return session

    def registrations(self) -> int:
        return self.arena.counters(KEEPER)["zookeeper_registrations"]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path)
    yield made
    made.registry.stop()
    made.registry.wait_stopped(5)


def test_it_registers_when_zookeeper_comes_and_again_after_expiry(running: Running) -> None:
    running.manager.create_partition("logs", 0)
    running.failures = 2
    running.registry.start()
    for number in (1, 2, 3):
        wait_until("it is shown", lambda: set(values(running.tree)) == {ID, "/brokers/topics/logs/7"})
        wait_until("it is counted", lambda n=number: running.registrations() == n)  # type: ignore[misc]
        running.tree.expire(running.sessions[-1].id)
    assert running.arena.counters(KEEPER)["zookeeper_failures"] == 2


def test_it_says_at_any_time_what_is_shown(running: Running) -> None:
    """Z-10: a topic that could not be registered is known to be missing, until it is there."""
    registry = running.registry
    running.manager.create_partition("logs", 0)
    running.failures = 10**6
    assert registry.status() == RegistrationStatus("none", "", {})
    registry.start()
    wait_until("it says why", lambda: registry.status() == RegistrationStatus("none", "nobody answers", {}))
    running.failures = 0
    wait_until("it is registered", lambda: registry.status() == RegistrationStatus("registered", "", {"logs": 1}))

    running.tree.refused.add("/brokers/topics/clicks/7")
    for topic in ("clicks", "views"):
        running.manager.create_partition(topic, 0)
    registry.look()
    refusal = RegistrationStatus("registered", "the fake refuses /brokers/topics/clicks/7", {"logs": 1, "views": 1})
    wait_until("one is refused", lambda: registry.status() == refusal)
    running.tree.refused.clear()
    everything = {"logs": 1, "views": 1, "clicks": 1}
    wait_until("all are shown", lambda: registry.status() == RegistrationStatus("registered", "", everything))

    running.tree.refused.add("/brokers/topics/clicks/7")
    running.tree.remove("/brokers/topics/clicks/7")
    wait_until("one is shown no more", lambda: registry.status() == refusal)
    running.failures = 10**6
    running.tree.expire(running.sessions[-1].id)
    wait_until("nothing is shown any more", lambda: registry.status().session == "none")
    assert registry.status().announced == {}


def test_a_new_partition_is_announced_and_a_stop_takes_everything_away(running: Running) -> None:
    running.registry.start()
    wait_until("it is shown", lambda: ID in values(running.tree))
    running.manager.create_partition("logs", 0)
    running.registry.look()
    wait_until("the topic is shown", lambda: values(running.tree).get("/brokers/topics/logs/7") == b"1")
    running.registry.stop()
    running.registry.wait_stopped(5)
    assert values(running.tree) == {}
    assert running.tree.shown()[WORD] == b'{"logs":1}', "who reads the topic is told that a broker is missing"
    assert node(running.tree, WORD).owner == 0
    assert running.sessions[-1].is_lost
    assert not running.registry.may_not_run


def test_other_brokers_are_known_while_they_are_there(running: Running) -> None:
    """Processors refuse clients of today's protocol meanwhile: the word in the arena says so."""
    running.tree.write("/brokers/ids/12", OTHER.encode(), STRANGER)
    running.registry.start()
    wait_until("it is known", lambda: running.arena.other_broker == 12)
    running.tree.write("/brokers/ids/3", OTHER.encode(), STRANGER)
    running.tree.write("/brokers/ids/not-a-number", b"", STRANGER)
    running.tree.write("/brokers/ids/\u0663", b"", STRANGER)
    wait_until("the first counts", lambda: running.arena.other_broker == 3)
    running.tree.remove("/brokers/ids/3")
    wait_until("the next one counts", lambda: running.arena.other_broker == 12)
    running.tree.expire(running.sessions[-1].id)
    wait_until("it is registered again", lambda: running.registrations() == 2)
    assert running.arena.other_broker == 12
    running.tree.remove("/brokers/ids/12")
    wait_until("it is alone", lambda: running.arena.other_broker is None)
    running.tree.write("/brokers/ids/0", OTHER.encode(), STRANGER)
    wait_until("0 is an id", lambda: running.arena.other_broker == 0)


def test_a_look_at_other_brokers_that_fails_is_done_again(shown: Shown) -> None:
    shown.settle()
    assert shown.table.others() == []
    shown.tree.write("/brokers/ids/8", OTHER.encode(), STRANGER)
    assert shown.flag.is_set()
    watches = shown.tree.watch_count()

    def fail(_session: FakeSession, name: str, _path: str) -> None:
        raise CoordinationError(f"nobody answers {name}")

    before, shown.tree.before_call = shown.tree.before_call, fail
    with pytest.raises(CoordinationError):
        shown.table.others()
    shown.tree.before_call = before
    assert shown.table.others() == [8] and shown.table.others() == [8]
    assert shown.tree.watch_count() == watches + 1


def test_another_broker_that_stays_ends_one_that_never_was_registered(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    running.tree.write(ID, OTHER.encode(), owner=STRANGER)
    running.registry.start()
    wait_until("it gives up", lambda: running.registry.may_not_run)
    running.registry.wait_stopped(5)
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    for part in ("broker id 7", "you:9093", "you-9", "h:1", "--broker-id"):
        assert part in line
    assert values(running.tree) == {ID: OTHER.encode()}, "the first one was touched"


def test_another_broker_that_goes_in_time_is_waited_for(tmp_path: Path) -> None:
    running = Running(tmp_path, session_ms=10_000)
    running.tree.write(ID, OTHER.encode(), owner=STRANGER)
    running.registry.start()
    try:
        wait_until("it looked", lambda: ("get", ID) in {call[1:] for call in running.tree.calls})
        wait_until("it says so", lambda: running.registry.status().session == "waiting")
        assert "you:9093" in running.registry.status().problem
        running.tree.remove(ID)
        wait_until("it took the id", lambda: values(running.tree) == {ID: VALUE.encode()})
        wait_until("it says so", lambda: running.registry.status() == RegistrationStatus("registered", "", {}))
        assert not running.registry.may_not_run
    finally:
        running.registry.stop()


@pytest.mark.slow
def test_another_broker_that_takes_the_id_later_ends_nobody(running: Running) -> None:
    """It was this broker's, which lost it while it was cut off: it serves on, and takes it back when it can."""
    running.registry.start()
    wait_until("it is shown", lambda: running.registrations() == 1)
    running.tree.write(ID, OTHER.encode(), owner=STRANGER)
    threading.Event().wait(0.5)
    assert not running.registry.may_not_run
    assert values(running.tree) == {ID: OTHER.encode()}
    running.tree.remove(ID)
    wait_until("it took the id back", lambda: values(running.tree) == {ID: VALUE.encode()})


def test_a_session_that_no_server_answers_is_given_up(running: Running) -> None:
    """A server that lost its data never says that the session is over: it hangs up."""
    running.registry.start()
    wait_until("it is shown", lambda: running.registrations() == 1)
    running.tree.is_silent = True
    running.sessions[-1]._on_change()
    wait_until("the session is given up", lambda: running.sessions[0].is_lost)
    running.tree.is_silent = False
    wait_until("it is shown", lambda: running.registrations() > 1)
    assert values(running.tree) == {ID: VALUE.encode()}


def test_an_error_nobody_thought_of_ends_the_session_and_not_the_thread(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_once(path: str) -> None:
        running.tree.after_read = lambda path: None
        raise ZeroDivisionError

    running.tree.after_read = fail_once
    running.registry.start()
    wait_until("it is shown in a second session", lambda: running.registrations() == 1)
    assert len(running.sessions) == 2
    assert running.sessions[0].is_lost


# --- and the keeper ---


@pytest.mark.slow
def test_a_keeper_whose_zookeeper_hangs_beats_and_leaves_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Running(tmp_path)
    hanging, let_go = threading.Event(), threading.Event()

    def hang(_self: object, _on_change: Watch, _is_wanted: object) -> Session:
        hanging.set()
        let_go.wait(2 * PATIENCE)
        return running.tree.open()

    monkeypatch.setattr(Registry, "_open_zookeeper", hang)
    codes: list[int] = []
    working = threading.Thread(target=lambda: codes.append(keeper.Keeper(running.shared).run()))
    working.start()
    try:
        assert hanging.wait(30)
        beats = set()
        wait_until("it beats", lambda: beats.add(running.arena.cell(KEEPER)[1]) or len(beats) > 3)
        began = time.monotonic()
        for stage in (1, 2, keeper.FINAL):
            running.arena.set_stopping(stage)
        working.join(PATIENCE)
        assert codes == [0]
        assert time.monotonic() - began > keeper.DEREGISTER_SECONDS / 2, "it gave ZooKeeper no chance"
    finally:
        let_go.set()


def test_a_keeper_whose_id_is_taken_ends_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(tmp_path)
    running.tree.write(ID, OTHER.encode(), owner=STRANGER)
    monkeypatch.setattr(Registry, "_open_zookeeper", lambda _, on_change, is_wanted: running.tree.open(on_change))
    assert keeper.Keeper(running.shared).run() == child.MAY_NOT_RUN
