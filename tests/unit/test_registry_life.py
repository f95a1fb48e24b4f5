"""A broker's registration when any one call to ZooKeeper fails: not done, its answer lost, or with the session.

What is shown at the end is what is wanted, by one watch for each node, and nothing is asked for again for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastlog import registry as registry_module
from fastlog.coordination import outage
from fastlog.coordination.session import SessionLostError
from fastlog.errors import CoordinationError
from fastlog.registry import Registration, RegistrationStatus, Registry
from fastlog.zkpaths import BrokerRegistration, encode_holdings
from tests.harness.broker import wait_until
from tests.harness.fake_session import FakeSession, FakeZooKeeper
from tests.unit.test_registry import FORMER, ID, OTHER, STRANGER, VALUE, WORD, Running, node, values

ONE, TWO = "/brokers/topics/one/7", "/brokers/topics/two/7"
REGISTERED = RegistrationStatus("registered", "", {"one": 1})
MOST_CALLS = 60


class Failing:
    """The ``number``-th call of a session fails, and no other."""

    def __init__(self, tree: FakeZooKeeper, number: int, way: str) -> None:
        self.tree = tree
        self.left = number
        self.way = way
        self.happened = False
        self._lock = threading.Lock()
        if way == "its answer is lost":
            tree.after_change = lambda session, name, path: self._call(session)
            tree.after_read = lambda path: self._call(None)
        else:
            tree.before_call = lambda session, name, path: self._call(session)

    def _call(self, session: FakeSession | None) -> None:
        with self._lock:
            self.left -= 1
            if self.left != 0:
                return
            self.happened = True
        if self.way == "the session ends":
            assert session is not None
            self.tree.expire(session.id)
            return
        raise CoordinationError("it failed")


def settle(
    table: Registration, topics: dict[str, int], flag: threading.Event, failures: list[CoordinationError]
) -> None:
    """What the thread does, which begins anew after each failure."""
    for _ in range(20):
        flag.clear()
        try:
            assert table.hold_broker() is None
            table.leave_word(topics)
            table.hold_topics(topics)
        except CoordinationError as error:
            failures.append(error)
            continue
        if not flag.is_set():
            return
    raise AssertionError("it never comes to rest")


@pytest.mark.parametrize("way", ["it is not done", "its answer is lost"])
def test_any_one_call_may_fail_and_the_next_try_completes_it(way: str) -> None:
    for number in range(1, MOST_CALLS):
        tree, flag, failures = FakeZooKeeper(), threading.Event(), []  # type: ignore[var-annotated]
        table = Registration(tree.open(), 7, VALUE, FORMER, flag.set)
        failing = Failing(tree, number, way)
        settle(table, {"one": 1}, flag, failures)
        settle(table, {"one": 3, "two": 2}, flag, failures)
        tree.remove(ONE)
        tree.write(ID, b"me-4:x:1", STRANGER)
        settle(table, {"one": 3, "two": 2}, flag, failures)
        assert values(tree) == {ID: VALUE.encode(), ONE: b"3", TWO: b"2"}, number
        assert {path: node(tree, path).owner for path in values(tree)} == dict.fromkeys(values(tree), table._session.id)
        assert table.announced == {"one": 3, "two": 2}
        word = tree.find(WORD)
        if not failing.happened:
            assert failures == []
            assert word is not None
            assert word.data == encode_holdings({"one": 3, "two": 2})
            assert tree.watch_count() == 3
            assert number > 10
            return
        assert tree.watch_count() <= 4, "each read leaves one watch"
        table.recheck()
        settle(table, {"one": 3, "two": 2}, flag, failures)
        word = tree.find(WORD)
        assert word is not None
        assert word.data == encode_holdings({"one": 3, "two": 2}), number
        before = len(tree.calls)
        settle(table, {"one": 3, "two": 2}, flag, failures)
        assert len(tree.calls) == before, "what is settled costs nothing"
    raise AssertionError("more calls than there should be")


def test_a_session_that_ends_at_any_call_says_so() -> None:
    """To whoever calls: nothing is made in it any more."""
    for number in range(1, MOST_CALLS):
        tree, flag = FakeZooKeeper(), threading.Event()
        table = Registration(tree.open(), 7, VALUE, FORMER, flag.set)
        failing = Failing(tree, number, "the session ends")
        try:
            assert table.hold_broker() is None
            table.leave_word({"one": 1})
            table.hold_topics({"one": 1, "two": 2})
        except SessionLostError:
            assert failing.happened
            assert values(tree) == {}
            continue
        assert not failing.happened
        return
    raise AssertionError("more calls than there should be")


@pytest.mark.parametrize("count", [0, 1])
def test_a_word_is_left_where_there_is_something_to_say(count: int) -> None:
    """None of a broker without topics, unless one of earlier topics stands there; the same is not written twice."""
    tree, flag = FakeZooKeeper(), threading.Event()
    table = Registration(tree.open(), 7, VALUE, FORMER, flag.set)
    topics = {"one": 1} if count else {}
    table.leave_word(topics)
    assert (tree.find(WORD) is not None) == bool(count)
    before = len(tree.calls)
    table.leave_word(topics)
    assert len(tree.calls) == before
    tree.write(WORD, encode_holdings({"old": 1}))
    table.recheck()
    table.leave_word({})
    assert node(tree, WORD).data == encode_holdings({})
    table.recheck()
    version = node(tree, WORD).version
    table.leave_word({})
    assert node(tree, WORD).version == version


@pytest.mark.parametrize(("more", "is_written"), [(0, True), (1, False)])
def test_a_word_is_as_long_as_a_node_may_be(
    more: int, is_written: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tree, flag = FakeZooKeeper(), threading.Event()
    table = Registration(tree.open(), 7, VALUE, FORMER, flag.set)
    monkeypatch.setattr(registry_module, "MOST_HOLDINGS_BYTES", len(encode_holdings({"one": 1})) - more)
    table.leave_word({"one": 1})
    assert (tree.find(WORD) is not None) == is_written
    assert ("not written" in caplog.text) != is_written


def test_a_word_that_is_refused_is_left_out_until_all_is_read_again(caplog: pytest.LogCaptureFixture) -> None:
    tree, flag = FakeZooKeeper(), threading.Event()
    table = Registration(tree.open(), 7, VALUE, FORMER, flag.set)
    tree.refused = {WORD}
    for _ in range(3):
        table.leave_word({"one": 1})
    assert len([call for call in tree.calls if call[2] == WORD]) == 1
    assert "not written" in caplog.text
    tree.refused = set()
    table.recheck()
    table.leave_word({"one": 1})
    assert node(tree, WORD).data == encode_holdings({"one": 1})


# --- the thread ---


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path)
    yield made
    made.registry.stop()
    made.registry.wait_stopped(5)


@pytest.mark.parametrize("way", ["it is not done", "its answer is lost", "the session ends"])
def test_after_any_one_failure_the_thread_registers_again(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says that nothing is wrong any more."""
    monkeypatch.setattr(registry_module, "LEAST_PAUSE", 0.001)
    for number in range(1, MOST_CALLS):
        directory = tmp_path / str(number)
        directory.mkdir()
        made = Running(directory)
        made.manager.create_partition("one", 0)
        failing = Failing(made.tree, number, way)
        made.registry.start()
        wait_until("it is shown", lambda m=made: m.registry.status() == REGISTERED)  # type: ignore[misc]
        assert values(made.tree) == {ID: b"me-5:me:9092", ONE: b"1"}
        assert len(made.sessions) == (2 if failing.happened and way == "the session ends" else 1)
        made.registry.stop()
        made.registry.wait_stopped(30)
        assert values(made.tree) == {}
        assert made.registry.status().session == "none"
        if not failing.happened:
            assert number > 4
            return
    raise AssertionError("more calls than there should be")


def still_registry(tmp_path: Path, **times: Any) -> tuple[Running, Registry, list[float]]:
    """A registry whose thread does not run, for what it decides by the clock."""
    made = Running(tmp_path, session_ms=1000)
    now = [1000.0]
    return made, made.registry, now


@pytest.mark.parametrize(("registrations", "early", "may_run"), [(0, 0.125, True), (0, 0.0, False), (1, 0.0, True)])
def test_another_broker_is_waited_for_as_long_as_a_dead_one_would_stay(
    tmp_path: Path, registrations: int, early: float, may_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the moment; one that was registered before never stops for it."""
    made, registry, now = still_registry(tmp_path)
    monkeypatch.setattr(registry_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    if registrations:
        made.arena.count(registry_module.KEEPER, "zookeeper_registrations")
    tree = made.tree
    tree.write(ID, OTHER.encode(), STRANGER)
    other = made.tree.open().get(ID)
    assert other is not None
    registry._disturbed.set()
    assert not registry._has_waited_for(other)
    assert not registry._disturbed.is_set()
    now[0] += 1.0 - early
    assert registry._has_waited_for(other) == (not may_run)
    assert registry.may_not_run == (not may_run)
    if early:
        registry._disturbed.set()  # ZooKeeper was away: the time begins anew
        now[0] += early
        assert not registry._has_waited_for(other)
        now[0] += 0.875
        assert not registry._has_waited_for(other)
        now[0] += 0.125
        assert registry._has_waited_for(other)


def test_the_id_is_looked_at_each_second_and_when_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also once it is over for one that was registered before, which goes on waiting and does not spin."""
    made, registry, now = still_registry(tmp_path)
    monkeypatch.setattr(registry_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    waits: list[float] = []

    class Flag(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            now[0] += timeout
            waits.append(timeout)
            if len(waits) == 6:
                registry._stopping.set()
            return False

    registry._flag = Flag()
    registry._patience = 2.5
    made.arena.count(registry_module.KEEPER, "zookeeper_registrations")
    made.tree.write(ID, OTHER.encode(), STRANGER)
    registry._serve(made.tree.open())
    assert waits == [1.0, 1.0, 0.5, 1.0, 1.0, 1.0]


class Steps(threading.Event):
    """Each wait takes the next step, and no time but what the step lets pass; behind the last one the broker ends."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        super().__init__()
        self.left = list(steps)
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        self.left.pop(0)()
        return False


def test_a_server_that_stays_away_is_given_up_after_two_time_outs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, registry, now = still_registry(tmp_path)
    for module in (registry_module, outage):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def turn(seconds: float, *, is_blocked: bool = False) -> None:
        now[0] += seconds
        made.tree.is_silent = True
        registry._blocked_since = now[0] if is_blocked else registry._blocked_since

    registry._flag = flag = Steps(lambda: turn(0.0, is_blocked=True), lambda: turn(1.875), lambda: turn(0.125))
    registry._serve(made.tree.open())
    assert not flag.left, "it was given up too early"
    assert registry._blocked_since is None, "who holds the id is waited for anew"


def test_the_time_without_a_server_begins_anew_with_each_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, registry, now = still_registry(tmp_path)
    for module in (registry_module, outage):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def turn(seconds: float, is_silent: bool) -> None:
        now[0] += seconds
        made.tree.is_silent = is_silent

    registry._flag = flag = Steps(
        lambda: turn(0.0, True), lambda: turn(1.5, False), lambda: turn(1.0, True), registry._stopping.set
    )
    registry._serve(made.tree.open())
    assert not flag.left, "the session was given up"


def test_pauses_begin_anew_once_all_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, registry, now = still_registry(tmp_path)
    monkeypatch.setattr(registry_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    waited: list[float] = []

    def pause(seconds: float) -> None:
        waited.append(seconds)
        made.tree.refused.clear()
        if len(waited) in (1, 2):
            made.tree.refused.add(ID)
        if len(waited) == 4:
            registry._stopping.set()

    def refuse_the_next_look() -> None:
        assert registry.status().problem == ""
        now[0] += registry_module.AUDIT_SECONDS
        made.tree.refused.add(ID)

    monkeypatch.setattr(registry._stopping, "wait", pause)
    registry._flag = Steps(refuse_the_next_look)
    made.tree.refused.add(ID)
    registry._serve(made.tree.open())
    assert waited == [0.1, 0.2, 0.4, 0.1]


def test_pauses_grow_to_two_seconds_and_begin_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, registry, _ = still_registry(tmp_path)
    waited: list[float] = []
    monkeypatch.setattr(registry._stopping, "wait", waited.append)
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    for _ in range(7):
        registry._pause()
    assert waited == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    monkeypatch.setattr("random.uniform", lambda low, high: low)
    registry._pause()
    assert waited[-1] == 1.0


def test_a_session_that_fails_to_open_is_tried_again_whatever_it_raised(running: Running) -> None:
    """The thread goes on, and what was wrong is told until it is not."""
    errors: list[Exception] = [ValueError("nobody thought of it"), CoordinationError("no server"), OSError("neither")]
    really = running.registry._open

    def opens(on_change: Any, is_wanted: Any) -> Any:
        if errors:
            raise errors.pop(0)
        return really(on_change, is_wanted)

    running.registry._open = opens  # type: ignore[assignment]
    running.registry.start()
    wait_until("nothing is wrong", lambda: not errors and not running.registry.status().problem)
    assert running.registry.status().session == "registered"
    assert running.arena.counters(registry_module.KEEPER)["zookeeper_failures"] == 1


def test_a_registration_that_makes_no_sense_is_somebody_elses() -> None:
    """And the one who looks does not fail on it."""
    tree, flag = FakeZooKeeper(), threading.Event()
    tree.write(ID, b"\xff no registration", STRANGER)
    table = Registration(tree.open(), 7, VALUE, FORMER, flag.set)
    other = table.hold_broker()
    assert other is not None
    assert other.data == b"\xff no registration"
    assert isinstance(BrokerRegistration.parse(VALUE.encode()), BrokerRegistration)
