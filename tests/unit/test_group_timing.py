"""When a member's worker does what, to the second: signs of life, audits, commits, tries; and that it waits in between.

Time is the test's: a wait that ends too early, too late or not at all shows in the times, a spin in the count of looks.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Iterator
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from fastlog import limited_log
from fastlog.consumer import membership as membership_module
from fastlog.consumer.group import Group
from fastlog.consumer.member_session import GroupWork
from fastlog.consumer.membership import Membership
from fastlog.consumer.ownership import Ownership
from fastlog.consumer.partitions import Lease
from fastlog.consumer.status import CommitRequest, GroupState, WorkerInbox
from fastlog.coordination.session import NodeExistsError
from fastlog.coordination.watched import Watched
from fastlog.errors import CoordinationError
from fastlog.limited_log import LimitedLog
from fastlog.zkpaths import PartitionId, Subscription, member_path, offset_path, owner_path
from tests.harness.fake_session import FakeSession, FakeZooKeeper
from tests.harness.groups import GROUP, Cluster, FakeStore, part
from tests.harness.stepped_group import Clock, Stepped, run_for
from tests.harness.timing import PATIENCE, sooner_than

MINE = member_path(GROUP, "g_a")
ONLY = part("1-0", "s")
OWNER = owner_path(GROUP, "s", PartitionId(1, 0))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def shown(tree: FakeZooKeeper) -> Iterator[FakeZooKeeper]:
    """A topic ``s`` of one partition."""
    Cluster(tree.open()).show("s", {1: 1})
    yield tree


def times_of(tree: FakeZooKeeper, clock: Clock, name: str, path: str) -> list[float]:
    """When this call comes from now on, in seconds from now."""
    found: list[float] = []
    began = clock.now

    def note(session: FakeSession, called: str, at: str) -> None:
        if (called, at) == (name, path):
            found.append(round(clock.now - began, 6))

    tree.before_call = note
    return found


# -- an idle member --------------------------------------------------------------------------------------------------


def test_an_idle_member_gives_signs_of_life_and_looks_for_nothing_else(shown: FakeZooKeeper, clock: Clock) -> None:
    """Four in the time of a session, one audit in a minute, and not a look more."""
    member = Stepped(shown, "a", {"s": 1})
    signs = times_of(shown, clock, "set", MINE)
    audits = times_of(shown, clock, "children", "/brokers/ids")
    signs = _both(shown, clock, signs, audits)
    turns = run_for(member, clock, 599.0)
    assert signs == pytest.approx([1.5 * number for number in range(400)])
    assert audits == [0.0, *(60.0 * number for number in range(1, 10))]
    assert 400 <= turns <= 402
    assert member.work.status.state is GroupState.JOINING, "the session is closed"


def test_who_hears_that_a_session_was_closed_sees_that_another_one_is_joined(
    shown: FakeZooKeeper, clock: Clock
) -> None:
    member = Stepped(shown, "a", {"s": 1})
    member.settle(clock)
    status, session = member.work.status, member.session
    assert session is not None and status.state is GroupState.ASSIGNED
    noted: list[GroupState] = []
    close = session.close
    session.close = lambda: (noted.append(status.state), close())  # type: ignore[method-assign]
    member.end()
    assert noted == [GroupState.JOINING]


def test_who_leaves_waits_a_second_for_a_broker_that_does_not_say_where_to_begin(
    shown: FakeZooKeeper, clock: Clock
) -> None:
    """And not at all once the session is over: nothing could be committed then."""
    for is_lost in (False, True):
        member = Stepped(shown, "a", {"s": 1}, auto_commit=True)
        member.settle(clock)
        member.readers.unknown.add(ONLY)
        leaves = clock.now + 6.0  # with a sign of life, each second and a half

        def at(now: float, member: Stepped = member, is_lost: bool = is_lost, leaves: float = leaves) -> None:
            if is_lost and now >= leaves and member.session is not None:
                shown.expire(member.session.id)

        run_for(member, clock, 6.0, at)
        assert clock.now == pytest.approx(leaves if is_lost else leaves + 1.0)
        assert is_lost or member.work.status.error is None


def test_who_waits_to_leave_gives_signs_of_life(shown: FakeZooKeeper, clock: Clock) -> None:
    """Or what it is about to commit would be another's by then."""
    member = Stepped(shown, "a", {"s": 1}, auto_commit=True)
    member.settle(clock)
    member.readers.unknown.add(ONLY)
    signs = _both(shown, clock, [], [])
    run_for(member, clock, 6.7)
    assert [sign for sign in signs if sign > 6.7], signs


def _both(tree: FakeZooKeeper, clock: Clock, signs: list[float], audits: list[float]) -> list[float]:
    began = clock.now

    def note(session: FakeSession, called: str, at: str) -> None:
        if (called, at) == ("set", MINE):
            signs.append(round(clock.now - began, 6))
        if (called, at) == ("children", "/brokers/ids"):
            audits.append(round(clock.now - began, 6))

    tree.before_call = note
    return signs


def test_a_watch_that_never_came_is_made_good_by_the_next_audit(shown: FakeZooKeeper, clock: Clock) -> None:
    member = Stepped(shown, "a", {"s": 1})
    began = clock.now
    seen: list[tuple[float, int]] = [(0.0, 0)]

    def at(now: float) -> None:
        if now - began >= 30 > seen[-1][0]:
            shown._watches.clear()
            shown.write("/brokers/topics/s/1", b"3")
        seen.append((now - began, len(member.readers.claims)))

    run_for(member, clock, 100.0, at)
    counts = dict(seen)
    assert max(when for when, count in seen if count == 1) < 60.0
    assert counts[60.0] == 3


def test_auto_commits_come_at_their_interval_and_not_for_nothing(shown: FakeZooKeeper, clock: Clock) -> None:
    member = Stepped(shown, "a", {"s": 1}, auto_commit=True, auto_commit_interval_ms=10_000)
    commits = times_of(shown, clock, "put", offset_path(GROUP, "s", PartitionId(1, 0)))
    began = clock.now

    def at(now: float) -> None:
        if now - began < 45 and member.readers.claims:
            member.readers.consume(ONLY, int(now))

    run_for(member, clock, 95.0, at)
    assert commits[:5] == [10.0, 20.0, 30.0, 40.0, 50.0]
    assert len(commits) == 5, "what has not changed is not written, at the end neither"


@pytest.mark.parametrize(("interval_ms", "pause"), [(10_000, 1.0), (1000, 1.0), (200, 0.2)])
def test_a_failing_auto_commit_that_stops_the_streams_is_tried_every_second(
    shown: FakeZooKeeper, clock: Clock, interval_ms: int, pause: float
) -> None:
    store = FakeStore()
    settings = {"auto_commit": True, "auto_commit_interval_ms": interval_ms, "auto_commit_max_failures": 3}
    member = Stepped(shown, "a", {"s": 1}, store=store, **settings)
    tries: list[float] = []
    began = clock.now

    def save(group: str, offsets: object) -> None:
        tries.append(round(clock.now - began, 6))
        raise RuntimeError("full")

    store.save = save  # type: ignore[method-assign, assignment]
    objections: list[bool] = []

    def at(now: float) -> None:
        if member.readers.claims:
            member.readers.consume(ONLY, 5)
        objections.append(member.work.lease.objection is not None)

    run_for(member, clock, 3 * interval_ms / 1000 + 5, at)
    every = interval_ms / 1000
    assert tries[:4] == pytest.approx([every, 2 * every, 3 * every, 3 * every + pause])
    assert len(tries) >= 8 and objections.count(False) < objections.index(True) + 2
    assert member.work.failures_in_a_row >= 3 and str(member.work.lease.objection).startswith("3 automatic commits")


def test_without_auto_commit_nothing_is_written_at_any_time(shown: FakeZooKeeper, clock: Clock) -> None:
    member = Stepped(shown, "a", {"s": 1}, auto_commit=False)
    commits = times_of(shown, clock, "put", offset_path(GROUP, "s", PartitionId(1, 0)))
    run_for(member, clock, 100.0, lambda now: member.readers.claims and member.readers.consume(ONLY, int(now)))  # type: ignore[arg-type, func-returns-value]
    assert commits == []


# -- tries -----------------------------------------------------------------------------------------------------------


def test_a_partition_that_others_keep_is_tried_with_growing_pauses(shown: FakeZooKeeper, clock: Clock) -> None:
    """50 ms, doubled up to ``rebalance.backoff.ms``; at once when the owner lets go; named after so many tries."""
    foreign = shown.open()
    foreign.create(OWNER, b"g_java-0", ephemeral=True)
    member = Stepped(shown, "a", {"s": 1}, rebalance_backoff_ms=1000, rebalance_max_retries=4)
    tries = times_of(shown, clock, "create", OWNER)
    states: dict[float, GroupState] = {}
    began = clock.now

    def at(now: float) -> None:
        states[round(now - began, 6)] = member.work.status.state
        if now - began > 7.0 and foreign.id in shown.sessions:
            shown.expire(foreign.id)

    run_for(member, clock, 9.0, at)
    expected = [0.0, 0.05, 0.15, 0.35, 0.75, 1.55, 2.55, 3.55, 4.55, 5.55, 6.55]
    assert tries[: len(expected)] == pytest.approx(expected)
    assert len(tries) == len(expected) + 1 and tries[-1] < 7.56
    assert states[0.15] is GroupState.JOINING and states[0.35] is GroupState.FAILING
    assert list(states.values())[-1] is GroupState.ASSIGNED


def test_tries_against_another_owner_are_counted_from_the_first_of_them(shown: FakeZooKeeper, clock: Clock) -> None:
    """What failed before for another reason neither makes their pauses longer nor the owner named too soon."""
    shown.write(OWNER, b"g_java-0", 99)
    member = Stepped(shown, "a", {"s": 1}, rebalance_backoff_ms=1000, rebalance_max_retries=4)
    tries: list[float] = []
    states: dict[float, GroupState] = {}
    began = clock.now

    def refuse(session: FakeSession, name: str, path: str) -> None:
        if (name, path) == ("create", OWNER):
            tries.append(round(clock.now - began, 6))
            if tries[-1] < 1:
                raise CoordinationError("refused")

    def at(now: float) -> None:
        states[round(now - began, 6)] = member.work.status.state

    shown.before_call = refuse
    run_for(member, clock, 2.0, at)
    assert tries == pytest.approx([0.0, 0.05, 0.15, 0.35, 0.75, 1.55, 1.6, 1.7, 1.9])
    assert [states[found] for found in tries] == [GroupState.FAILING] * 5 + [GroupState.JOINING] * 3 + [
        GroupState.FAILING
    ]


def test_a_store_that_fails_for_one_partition_is_asked_again_with_growing_pauses(
    shown: FakeZooKeeper, clock: Clock
) -> None:
    store = FakeStore()
    asked: list[float] = []
    began = clock.now

    def load(group: str, partition: object) -> int:
        asked.append(round(clock.now - began, 6))
        if clock.now - began < 3:
            raise RuntimeError("locked")
        return 17

    store.load = load  # type: ignore[method-assign, assignment]
    member = Stepped(shown, "a", {"s": 1}, store=store, rebalance_backoff_ms=400)
    errors: list[str] = []
    run_for(member, clock, 10.0, lambda now: errors.append(str(member.work.status.error)))
    assert asked[:8] == pytest.approx([0.0, 0.05, 0.15, 0.35, 0.75, 1.15, 1.55, 1.95])
    assert asked[-1] >= 3.0 and asked[-2] < 3.0, "it is loaded once, and asked for no more"
    assert "no offset of s/1-0" in errors[0] and errors[-1] == "None"


def test_while_no_server_answers_it_is_tried_with_growing_pauses(shown: FakeZooKeeper, clock: Clock) -> None:
    """Up to a second; commits that are asked for meanwhile are answered with why, and nothing is given up."""
    member = Stepped(shown, "a", {"s": 1})
    began = clock.now
    waits: list[float] = []
    asked: list[CommitRequest] = []

    def at(now: float) -> None:
        passed = round(now - began, 6)
        if passed >= 10 and not waits:
            shown.is_silent = True
        if shown.is_silent or waits:
            waits.append(passed)
        if passed > 16 and not asked:
            asked.append(member.work.inbox.ask({ONLY: 5}, True))
        if passed > 20:
            shown.is_silent = passed > 24

    run_for(member, clock, 27.0, at)

    def growing(start: float, count: int) -> list[float]:
        begun = [passed for passed in waits if passed >= start]
        pauses = [after - before for before, after in itertools.pairwise(begun)]
        return [pause for pause in pauses if pause > 0][1:count]

    assert growing(10, 8) == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert growing(24, 5) == pytest.approx([0.05, 0.1, 0.2, 0.4]), "the next silence is a new one"
    with pytest.raises(CoordinationError, match="refuses"):
        asked[0].wait(0)
    assert member.readers.moves == [("take", ONLY), ("release", ONLY)], "it was given up at the end alone"


def test_pauses_between_sessions_grow_to_a_second() -> None:
    work = object.__new__(GroupWork)
    work.source = random.Random(1)
    work.source.uniform = lambda low, high: high  # type: ignore[method-assign]
    assert [work.pause(failures) for failures in (1, 2, 3, 4, 5, 6, 7, 60, 10**6)] == pytest.approx(
        [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0]
    )
    work.source.uniform = lambda low, high: low  # type: ignore[method-assign]
    assert work.pause(1) == pytest.approx(0.025)


# -- the lease -------------------------------------------------------------------------------------------------------


def test_the_lease_is_three_quarters_of_the_session_from_when_the_sign_was_sent(
    tree: FakeZooKeeper, clock: Clock
) -> None:
    """Not from when it was answered, nor by what an answer to something else says."""
    lease = Lease(1.0)
    member = Membership(tree.open(), GROUP, "g_a", Subscription({"s": 1}), lease, LimitedLog(_Silent()))  # type: ignore[arg-type]
    tree.timeout = 8.0

    def slow(session: FakeSession, name: str, path: str) -> None:
        clock.now += 1.0

    tree.before_call = slow
    member.prove()
    assert lease.seconds_left == pytest.approx(5.0)  # 6 from before the last call, which took 1
    assert [name for _, name, path in tree.calls] == ["create", "get", "set"]
    tree.before_call = lambda session, name, path: None
    clock.now += 5.0
    assert not lease.is_valid and lease.seconds_left == 0.0
    member.prove()
    assert lease.seconds_left == pytest.approx(6.0)
    assert [name for _, name, path in tree.calls][3:] == ["set"]
    tree.is_silent = True
    clock.now += 2.0
    with pytest.raises(CoordinationError):
        member.prove()
    assert lease.seconds_left == pytest.approx(4.0), "no answer, no longer lease"


class _Silent:
    def log(self, *given: object) -> None:
        pass


def test_a_sign_of_life_gets_over_what_others_do_to_the_node(tree: FakeZooKeeper, clock: Clock) -> None:
    """Written by others, removed, taken by another session; not for ever."""
    lease = Lease(1.0)
    member = Membership(tree.open(), GROUP, "g_a", Subscription({"s": 1}), lease, LimitedLog(_Silent()))  # type: ignore[arg-type]
    member.prove()
    tree.write(MINE, b"other")
    member.prove()
    assert tree.shown()[MINE] == b'{ "s": 1 }'
    tree.remove(MINE)
    member.prove()
    assert tree.shown()[MINE] == b'{ "s": 1 }'
    times = 0

    def meddle(session: FakeSession, name: str, path: str) -> None:
        nonlocal times
        if name == "set":
            times += 1
            tree.write(MINE, b"other")

    tree.before_call = meddle
    left = lease.seconds_left
    with pytest.raises(CoordinationError, match="somebody else goes on changing it"):
        member.prove()
    assert times == 5 and lease.seconds_left == left
    tree.before_call = lambda session, name, path: None
    member.prove()
    tree.remove(MINE)
    tree.write(MINE, b"thief", 99)
    for _ in range(2):
        with pytest.raises(NodeExistsError, match="is another session's"):
            member.prove()
    tree.remove(MINE)
    member.prove()
    assert membership_module.LEASE_SHARE == 0.75


def test_a_lease_is_over_to_the_instant_and_never_shortened(clock: Clock) -> None:
    lease = Lease(10.0)
    assert not lease.is_valid
    lease.extend(clock.now)
    clock.now += 9.0
    assert lease.is_valid and lease.seconds_left == pytest.approx(1.0)
    lease.extend(clock.now - 5.0, 2.0)
    assert lease.seconds_left == pytest.approx(1.0)
    lease.objection = CoordinationError("full")
    assert lease.seconds_left == 0.0 and lease.is_valid
    lease.objection = None
    clock.now = lease._until
    assert not lease.is_valid and lease.seconds_left == 0.0
    lease.extend(clock.now)
    lease.drop()
    assert not lease.is_valid


# -- notes between threads -------------------------------------------------------------------------------------------


def test_the_worker_is_woken_when_it_can_see_what_for() -> None:
    """Woken before the note, it would look and sleep on."""
    seen: list[tuple[int, int]] = []
    notes = SimpleNamespace(begun={}, jumps={}, wake=lambda: seen.append((len(notes.begun), len(notes.jumps))))
    group: Any = SimpleNamespace(config=SimpleNamespace(auto_commit=True), _inbox=notes)
    Group.note_begin(group, part("0-0"))
    Group.note_jump(group, part("0-0"), 5, 9)
    assert seen == [(1, 0), (1, 1)]


def test_a_note_wakes_the_worker_once_and_is_never_lost() -> None:
    inbox = WorkerInbox()
    for _ in range(5):
        inbox.wake()
    inbox.wait(30.0)
    began = time.monotonic()
    inbox.wait(0.02)  # all five were one
    assert time.monotonic() - began >= 0.02
    inbox.wake()
    inbox.wait(30.0)
    inbox.wait(-1.0)
    inbox.wake()
    inbox.wait(0.0)
    inbox.stop()
    assert inbox.is_stopping
    inbox.wait(30.0)


@pytest.mark.parametrize("line", range(1, 5))
def test_a_worker_that_looks_between_two_lines_of_a_note_is_woken_by_the_next(line: int) -> None:
    """It takes what is there, and forgets that it was woken, at any moment."""
    inbox = WorkerInbox()
    left = line

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if frame.f_code is not WorkerInbox.wake.__code__:
            return None
        left -= 1
        if left == 0:
            inbox.wait(0.0)
        return trace

    outer = sys.gettrace()
    sys.settrace(trace)
    try:
        inbox.wake()
    finally:
        sys.settrace(outer)
    assert left <= 0
    inbox.wait(0.0)
    inbox.wake()
    with sooner_than(PATIENCE, "the wake-up was lost"):
        inbox.wait(2 * PATIENCE)


def test_commits_that_nobody_waits_for_are_asked_once_at_a_time() -> None:
    """Others are not: who waits, or names offsets, gets an answer of its own."""
    inbox = WorkerInbox()
    inbox.ask(None, False)
    inbox.ask(None, False)
    assert len(inbox.commits) == 1
    inbox.ask(None, True)
    inbox.ask({ONLY: 1}, False)
    inbox.ask({ONLY: 2}, False)
    inbox.ask({ONLY: 3}, True)
    inbox.ask(None, False)
    assert [request.offsets for request in inbox.commits] == [None, None, {ONLY: 1}, {ONLY: 2}, {ONLY: 3}]
    first = inbox.next_commit()
    assert first is not None and not first.is_waited_for
    inbox.ask(None, False)
    assert len(inbox.commits) == 5
    for _ in range(4):
        inbox.next_commit()
    inbox.ask(None, False)
    assert len(inbox.commits) == 1, "the one at the end is asked for still"
    assert inbox.next_commit() is not None and inbox.next_commit() is None
    inbox.ask(None, False)
    assert len(inbox.commits) == 1


def test_who_waits_for_a_commit_is_told_or_told_that_nobody_knows() -> None:
    request = CommitRequest(None, True)
    with pytest.raises(CoordinationError, match=r"no answer within 0.01 s; whether it was committed is not known"):
        request.wait(0.01)
    request.answer(None)
    request.wait(30.0)
    request.answer(CoordinationError("full"))
    with pytest.raises(CoordinationError, match="full"):
        request.wait(30.0)


# -- what is logged --------------------------------------------------------------------------------------------------


class Lines:
    """What was logged, as text."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, level: int, text: str, *given: object) -> None:
        self.lines.append(text % given)


def test_each_kind_of_line_comes_once_in_ten_seconds_and_says_what_was_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [5.0]

    class Time:
        monotonic = staticmethod(lambda: now[0])

    monkeypatch.setattr(limited_log, "time", Time)
    found = Lines()
    rare = LimitedLog(found)  # type: ignore[arg-type]
    for _ in range(4):
        rare.warning("a", "line %d", 1)
    rare.warning("b", "other")
    now[0] += 9.999
    rare.warning("a", "line %d", 2)
    now[0] += 0.001
    rare.warning("a", "line %d", 3)
    rare.warning("a", "line %d", 4)
    now[0] += 10
    rare.warning("a", "line %d", 5)
    now[0] += 10
    rare.warning("a", "line %d", 6)
    assert found.lines == [
        "line 1", "other", "line 3 (and 4 more like it)", "line 5 (and 1 more like it)", "line 6",
    ]  # fmt: skip
    found.lines.clear()
    now[0] += 10
    for number in range(1026):
        rare.warning(str(number), "x")
    assert len(found.lines) == 1026 and len(rare._seen) <= 1024
    rare.warning("1025", "x")
    assert len(found.lines) == 1026
    rare.over("1025")
    rare.over("never logged")
    rare.warning("1025", "at once")
    rare.warning("1025", "x")
    assert found.lines[1026:] == ["at once"]
    rare.warning("long", "%s", "y" * 5000 + "\x1b")
    assert len(found.lines[-1]) <= 2100 and "\x1b" not in found.lines[-1]


# -- ownership alone -------------------------------------------------------------------------------------------------


def owning(tree: FakeZooKeeper, **options: object) -> tuple[Ownership, Stepped]:
    """Ownership of a member without the rest of it."""
    member = Stepped(tree, "a", {"s": 1})
    session = tree.open()
    settings = {"auto_commit": True, "most_pause": 2.0, **options}
    made = Ownership(
        session,
        Watched(session, lambda: None),
        GROUP,
        member.readers,
        FakeStore(),
        LimitedLog(_Silent()),  # type: ignore[arg-type]
        **settings,  # type: ignore[arg-type]
    )
    return made, member


def test_when_to_try_again_is_when_the_first_trouble_is_due(tree: FakeZooKeeper, clock: Clock) -> None:
    made, member = owning(tree)
    assert made.next_try() == clock.now + 2.0, "nothing was tried yet"
    member.readers.addresses = addresses = {1: ("h", 1)}  # type: ignore[dict-item, assignment]
    wanted = {ONLY: "g_a-0"}
    made.reconcile(wanted, addresses)  # type: ignore[arg-type]
    assert made.is_reconciled and made.next_try() is None and made.error(None) is None
    made.reconcile({}, addresses)  # type: ignore[arg-type]
    assert made.is_reconciled and made.changes == 2 and not tree.names("/consumers/g/owners/s")
    made.reconcile(wanted, {})
    assert not made.is_reconciled and made.next_try() == clock.now + 2.0, "its broker is waited for"
    assert made.holds(ONLY) and made.read == {}


def test_slow_partitions_do_not_keep_the_others_from_being_read(tree: FakeZooKeeper, clock: Clock) -> None:
    """What was loaded is handed over after a fifth of a second, and not one by one before."""
    made, member = owning(tree)
    takes: list[int] = []
    member.readers.on_acquire = lambda partitions: takes.append(len(partitions))
    store = made._store
    load = store.load

    def slow(group: str, partition: object) -> int | None:
        clock.now += 0.1
        return load(group, partition)  # type: ignore[arg-type]

    store.load = slow  # type: ignore[method-assign, assignment]
    wanted = {part(f"1-{number}", "s"): "g_a-0" for number in range(6)}
    member.readers.addresses = addresses = {1: ("h", 1)}  # type: ignore[dict-item, assignment]
    made.reconcile(wanted, addresses)  # type: ignore[arg-type]
    assert sum(takes) == 6 and takes[0] in (2, 3) and takes[-1] == 1
    assert made.is_reconciled
