"""What members meet in their nodes, stores and starts: each trouble has its own answer, and none is for good."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator

import pytest

from fastlog.consumer import group as group_module
from fastlog.consumer.group import Group
from fastlog.consumer.status import GroupState, MemberStatus
from fastlog.consumer.stream import NoMessage
from fastlog.coordination.session import NodeExistsError, UnknownHostError
from fastlog.errors import (
    ArgumentError,
    ClosedError,
    ConfigError,
    CoordinationError,
    ForkedError,
    OwnershipLostError,
    StateError,
)
from fastlog.zkpaths import PartitionId, Subscription, offset_path, owner_path
from tests.harness.fake_session import FakeSession, FakeZooKeeper
from tests.harness.groups import (
    GROUP,
    Cluster,
    FakeReaders,
    FakeStore,
    Member,
    config_of,
    fake_member,
    part,
    wait_until,
)
from tests.harness.reading import Reading
from tests.harness.stepped_group import Clock, Stepped, Steps, run_for
from tests.harness.timing import PATIENCE, sooner_than

ONLY = part("1-0", "s")
OWNER = owner_path(GROUP, "s", PartitionId(1, 0))
OFFSET = offset_path(GROUP, "s", PartitionId(1, 0))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def shown(tree: FakeZooKeeper) -> Iterator[FakeZooKeeper]:
    """A topic ``s`` of one partition."""
    Cluster(tree.open()).show("s", {1: 1})
    yield tree


# -- nodes -----------------------------------------------------------------------------------------------------------


def test_a_node_of_ours_with_another_thread_is_put_right(shown: FakeZooKeeper, clock: Clock) -> None:
    """It was made, the answer was lost, and meanwhile another thread is wanted."""
    member = Stepped(shown, "a", {"s": 1})
    member.open()
    assert member.session is not None
    shown.write(OWNER, b"g_a-7", member.session.id)
    member.settle(clock)
    assert shown.shown()[OWNER] == b"g_a-0" and member.readers.claims[ONLY].thread == "g_a-0"
    shown.write(OWNER, b"g_z-0")  # somebody writes into it
    member.settle(clock)
    assert shown.shown()[OWNER] == b"g_a-0"
    assert member.readers.moves == [("take", ONLY), ("release", ONLY), ("take", ONLY)]


def test_a_node_that_comes_and_goes_is_tried_three_times_at_once(shown: FakeZooKeeper, clock: Clock) -> None:
    member = Stepped(shown, "a", {"s": 1})
    tries = 0

    def flicker(session: FakeSession, name: str, path: str) -> None:
        nonlocal tries
        if path != OWNER or session is not member.session:
            return
        if name == "create":
            tries += 1
            shown.write(OWNER, b"thief-0", 99)
        elif name == "get":
            shown.remove(OWNER)

    shown.before_call = flicker
    member.turn()
    assert tries == 3 and member.readers.claims == {}
    assert member.life is not None
    trouble = member.life._ownership._trouble[ONLY].error
    assert isinstance(trouble, NodeExistsError) and "changes its owner all the time" in str(trouble)
    shown.before_call = lambda session, name, path: None
    clock.now += 1.0
    member.settle(clock)
    assert list(member.readers.claims) == [ONLY]


def test_who_keeps_a_partition_is_named_in_a_few_characters(shown: FakeZooKeeper, clock: Clock) -> None:
    shown.write(OWNER, b"\x1b[2J" + b"x" * 500, 99)
    member = Stepped(shown, "a", {"s": 1}, rebalance_max_retries=1)
    member.turn()
    error = str(member.work.status.error)
    assert "s/1-0 is still owned by" in error and "\x1b" not in error and len(error) < 400


def test_a_partition_that_others_keep_is_not_tried_for_each_note(shown: FakeZooKeeper, clock: Clock) -> None:
    """Before its pause is over, only the owner's letting go is a reason."""
    shown.write(OWNER, b"other-0", 99)
    member = Stepped(shown, "a", {"s": 1}, rebalance_backoff_ms=10_000)
    tries: list[float] = []

    def note(session: FakeSession, name: str, path: str) -> None:
        if (name, path) == ("create", OWNER):
            tries.append(clock.now)

    shown.before_call = note
    for _ in range(9):
        member.turn()
        clock.now += 0.005
        shown.write("/consumers/g/ids/g_x", b'{ "u": 1 }', 98)
        shown.remove("/consumers/g/ids/g_x")
    assert len(tries) == 1
    shown.remove(OWNER)
    member.turn()
    assert len(tries) == 2 and list(member.readers.claims) == [ONLY]


def test_a_partition_that_others_keep_is_tried_at_pauses_that_grow_to_the_longest(
    shown: FakeZooKeeper, clock: Clock
) -> None:
    shown.write(OWNER, b"other-0", 99)
    member = Stepped(shown, "a", {"s": 1}, rebalance_backoff_ms=500)
    tries: list[float] = []

    def note(session: FakeSession, name: str, path: str) -> None:
        if (name, path) == ("create", OWNER):
            tries.append(clock.now)

    shown.before_call = note
    member.open()
    run_for(member, clock, 10.0)
    pauses = [round(later - earlier, 3) for earlier, later in itertools.pairwise(tries)]
    assert pauses[:5] == [0.05, 0.1, 0.2, 0.4, 0.5] and set(pauses[5:]) == {0.5}


def test_where_brokers_are_is_told_to_readers_when_it_is_news(shown: FakeZooKeeper, clock: Clock) -> None:
    member = Stepped(shown, "a", {"s": 1})
    told: list[dict[int, tuple[str, int]]] = []
    moved = member.readers.moved

    def noting(addresses: dict[int, tuple[str, int]]) -> None:
        told.append(dict(addresses))
        moved(addresses)  # type: ignore[arg-type]

    member.readers.moved = noting  # type: ignore[method-assign, assignment]
    member.settle(clock)
    shown.write("/consumers/g/ids/g_x", b'{ "u": 1 }', 98)
    member.settle(clock)
    assert [list(addresses.values()) for addresses in told] == [[("127.0.0.1", 9001)]]
    shown.write("/brokers/ids/1", b"c:10.0.0.1:7")
    member.settle(clock)
    assert [list(addresses.values()) for addresses in told][1:] == [[("10.0.0.1", 7)]]
    assert member.readers.moves == [("take", ONLY)], "who reads it is told by that"
    shown.remove("/brokers/ids/1")
    member.settle(clock)
    assert told[2:] == [{}]


def test_signs_of_life_come_while_many_partitions_are_taken(tree: FakeZooKeeper, clock: Clock) -> None:
    """Each step takes a while; the session is kept by a sign between them, and the lease never ends."""
    Cluster(tree.open()).show("s", {1: 40})
    member = Stepped(tree, "a", {"s": 1})
    signs: list[float] = []
    invalid: list[float] = []

    def slow(session: FakeSession, name: str, path: str) -> None:
        if session is not member.session:
            return
        clock.now += 0.1
        if name == "set":
            signs.append(clock.now)
        elif signs and not member.work.lease.is_valid:
            invalid.append(clock.now)

    tree.before_call = slow
    member.settle(clock)
    assert len(member.readers.claims) == 40 and invalid == []
    gaps = [after - before for before, after in itertools.pairwise(signs)]
    assert len(gaps) >= 5 and max(gaps) <= 2.5
    member.readers.moves.clear()
    signs.clear()
    Stepped(tree, "0", {"s": 1}).turn()
    member.settle(clock)
    assert len(member.readers.claims) == 20 and invalid == []


def test_watches_are_as_many_after_a_hundred_changes_as_before(shown: FakeZooKeeper, clock: Clock) -> None:
    """And none is left of a session that is over."""
    member = Stepped(shown, "b", {"s": 1})
    member.settle(clock)
    before = shown.watch_count()
    for number in range(100):
        other = Stepped(shown, "a", {"s": 1})
        other.turn()
        member.turn()
        clock.now += 0.1
        other.settle(clock)
        other.end()
        member.settle(clock)
        shown.write("/brokers/topics/s/1", b"%d" % (1 + number % 3))
        member.settle(clock)
    shown.write("/brokers/topics/s/1", b"1")
    member.settle(clock)
    assert shown.watch_count() == before and list(member.readers.claims) == [ONLY]
    member.end()
    assert shown.watch_count() == 0


def test_a_node_whose_making_got_no_answer_is_removed_when_it_is_not_wanted_any_more(
    shown: FakeZooKeeper, clock: Clock
) -> None:
    """It may have been made; whoever is to have the partition next waits for nobody."""
    member = Stepped(shown, "b", {"s": 1})

    def lose(session: FakeSession, name: str, path: str) -> None:
        if (name, path) == ("create", OWNER):
            raise CoordinationError("no answer to what was done")

    shown.after_change = lose
    member.turn()
    assert shown.shown()[OWNER] == b"g_b-0" and member.readers.claims == {}
    shown.after_change = lambda session, name, path: None
    other = Stepped(shown, "a", {"s": 1})
    other.turn()
    clock.now += 1.0
    member.turn()
    assert OWNER not in shown.shown()
    clock.now += 1.0
    other.settle(clock)
    assert list(other.readers.claims) == [ONLY] and member.readers.claims == {}
    member.settle(clock)


def test_a_commit_that_the_end_of_the_session_cuts_off_is_answered(shown: FakeZooKeeper, clock: Clock) -> None:
    """With what was lost by it; nobody waits for an answer that never comes."""
    member = Stepped(shown, "a", {"s": 1})
    member.settle(clock)
    member.readers.consume(ONLY, 7)
    assert member.session is not None
    number = member.session.id

    def expire(session: FakeSession, name: str, path: str) -> None:
        if name == "put" and number in shown.sessions:
            shown.expire(number)

    shown.before_call = expire
    asked, named = member.work.inbox.ask(None, True), member.work.inbox.ask({ONLY: 5}, True)
    member.turn()
    member.work.refuse_commits()
    for request in (asked, named):
        with pytest.raises(OwnershipLostError, match="s/1-0"):
            request.wait(0)
    assert OFFSET not in shown.shown()


# -- stores ----------------------------------------------------------------------------------------------------------


def test_a_release_that_was_saved_is_no_loss(shown: FakeZooKeeper, clock: Clock) -> None:
    """And one that was not is told once to who commits next."""
    for auto_commit in (True, False):
        member = Stepped(shown, "b", {"s": 1}, auto_commit=auto_commit)
        member.settle(clock)
        member.readers.consume(ONLY, 7 + auto_commit)
        other = Stepped(shown, "a", {"s": 1})
        other.turn()
        member.turn()
        assert member.readers.claims == {}
        assert member.work.status.unsaved == (set() if auto_commit else {ONLY})
        requests = [member.work.inbox.ask(None, True) for _ in range(2)]
        member.turn()
        if not auto_commit:
            with pytest.raises(OwnershipLostError, match="s/1-0"):
                requests.pop(0).wait(0)
        for request in requests:
            request.wait(0)
        shown.write("/consumers/g/ids/g_x", b'{ "u": 1 }', 98)  # it looks at everything again
        member.turn()
        last = member.work.inbox.ask(None, True)
        member.turn()
        last.wait(0)
        shown.remove("/consumers/g/ids/g_x")
        for each in (member, other):
            assert each.session is not None
            shown.expire(each.session.id)
            each.end()


@pytest.mark.parametrize("auto_commit", [True, False])
def test_what_was_read_when_a_session_ends_is_told_once(shown: FakeZooKeeper, clock: Clock, auto_commit: bool) -> None:
    member = Stepped(shown, "a", {"s": 1}, auto_commit=auto_commit)
    member.settle(clock)
    member.readers.consume(ONLY, 7)
    assert member.session is not None
    shown.expire(member.session.id)
    member.turn()
    assert member.readers.claims == {} and not member.work.lease.is_valid
    assert member.work.status.unsaved == {ONLY} and OFFSET not in shown.shown()
    assert (member.work.status.owned, member.work.status.is_member) == ({}, False)
    request = member.work.inbox.ask(None, True)
    member.work.refuse_commits()
    with pytest.raises(OwnershipLostError, match="s/1-0"):
        request.wait(0)
    request = member.work.inbox.ask(None, True)
    member.work.refuse_commits()
    with pytest.raises(CoordinationError, match="there is no session with ZooKeeper at fake:1"):
        request.wait(0)
    request = member.work.inbox.ask({ONLY: 3}, True)
    member.work.refuse_commits()
    with pytest.raises(OwnershipLostError):
        request.wait(0)
    unheard = member.work.inbox.ask(None, False)
    member.work.refuse_commits()
    assert member.work.status.failed_commits == 1
    member.work.inbox.is_stopping = True
    last = member.work.inbox.ask(None, True)
    member.work.refuse_commits()
    for each, error in ((unheard, CoordinationError), (last, ClosedError)):
        with pytest.raises(error):
            each.wait(0)


def test_a_beginning_that_cannot_be_committed_is_tried_again_within_a_second(
    shown: FakeZooKeeper, clock: Clock
) -> None:
    """One partition's trouble keeps the others' beginnings from nothing; no answer at all ends the try."""
    Cluster(shown.open()).show("u", {2: 1})
    other = part("2-0", "u")
    member = Stepped(shown, "a", {"s": 1, "u": 1}, auto_commit=True, auto_commit_interval_ms=3_600_000)
    tries: list[float] = []
    began = clock.now

    def at(now: float) -> None:
        inbox = member.work.inbox
        if len(member.readers.claims) == 2 and not member.readers.positions:
            member.readers.consume(ONLY, 7)
            member.readers.consume(other, 9)
            inbox.begun.update({ONLY: None, other: None})
            inbox.wake()

    def note(session: FakeSession, name: str, path: str) -> None:
        if path == OFFSET and member.readers.positions:
            tries.append(round(clock.now - began, 6))

    def refuse_begin(session: FakeSession, name: str, path: str) -> None:
        note(session, name, path)
        if path == OFFSET and member.readers.positions and clock.now - began <= 4:
            raise CoordinationError("refused")

    shown.before_call = refuse_begin
    run_for(member, clock, 8.0, at)
    assert shown.shown()[OFFSET] == b"7"
    assert shown.shown()[offset_path(GROUP, "u", PartitionId(2, 0))] == b"9"
    assert member.work.status.failed_commits == 5
    assert tries[:5] == pytest.approx([0.0, 1.0, 2.0, 3.0, 4.0])


def test_what_was_saved_before_a_save_without_an_answer_is_saved_again(shown: FakeZooKeeper, clock: Clock) -> None:
    """The store may hold either; going back to where it stood before is a change."""
    store = FakeStore()
    member = Stepped(shown, "a", {"s": 1}, store=store)
    member.settle(clock)

    def commit(offset: int) -> None:
        member.readers.consume(ONLY, offset)
        request = member.work.inbox.ask(None, True)
        member.turn()
        request.wait(0)

    commit(5)
    save = store.save

    def silent(group: str, offsets: dict[object, int]) -> None:
        save(group, offsets)  # type: ignore[arg-type]
        raise CoordinationError("no answer to what was done")

    store.save = silent  # type: ignore[method-assign, assignment]
    with pytest.raises(CoordinationError, match="no answer"):
        commit(9)
    assert store.offsets == {ONLY: 9}
    store.save = save  # type: ignore[method-assign]
    commit(5)
    assert store.offsets == {ONLY: 5} == member.work.status.committed


def test_where_no_server_answers_a_beginning_waits(shown: FakeZooKeeper, clock: Clock) -> None:
    member = Stepped(shown, "a", {"s": 1}, auto_commit=True)
    member.settle(clock)
    member.readers.consume(ONLY, 7)
    member.work.inbox.begun[ONLY] = None
    shown.is_silent = True
    clock.now += 0.01
    member.turn()
    assert member.work.inbox.begun == {ONLY: None} and member.work.status.failed_commits == 1
    shown.is_silent = False
    clock.now += 1.0
    member.turn()
    assert shown.shown()[OFFSET] == b"7" and not member.work.inbox.begun


def test_beginnings_are_not_tried_one_by_one_where_no_server_answers(shown: FakeZooKeeper, clock: Clock) -> None:
    """Each would be waited for as long as a session lasts."""
    Cluster(shown.open()).show("s", {2: 3})
    member = Stepped(shown, "a", {"s": 1}, auto_commit=True)
    member.settle(clock)
    for partition in member.readers.claims:
        member.readers.consume(partition, 7)
        member.work.inbox.begun[partition] = None
    shown.is_silent = True
    shown.calls.clear()
    clock.now += 0.01
    member.turn()
    assert len([path for _, _, path in shown.calls if "/offsets/" in path]) == 1
    assert len(member.work.inbox.begun) == 4
    assert member.life is not None
    member.work.inbox.jumps[ONLY] = (5, 9)
    failed = member.work.status.failed_commits
    member.life._leave()  # it cannot be kept any more: counted, and the end goes on
    assert member.work.status.failed_commits == failed + 1
    shown.is_silent = False
    member.end()
    assert member.readers.claims == {}


def test_one_beginning_that_is_refused_keeps_no_other(shown: FakeZooKeeper, clock: Clock) -> None:
    """Whichever comes first: what others have saved meanwhile stays, and what was saved before goes on."""
    Cluster(shown.open()).show("s", {2: 3})
    shown.write(OFFSET, b"3")
    member = Stepped(shown, "a", {"s": 1}, auto_commit=True)
    member.settle(clock)
    for partition in member.readers.claims:
        member.readers.consume(partition, 7)
        member.work.inbox.begun[partition] = None
    paths = {offset_path(GROUP, *partition) for partition in member.readers.claims}
    assert len(paths) == 4
    refused: list[str] = []

    def refuse_first(session: FakeSession, name: str, path: str) -> None:
        if "/offsets/" in path:
            if not refused:
                refused.append(path)
                for other in paths - {path, OFFSET}:
                    shown.write(other, b"5")
            if path == refused[0]:
                raise CoordinationError("refused")

    shown.before_call = refuse_first
    clock.now += 0.01
    member.turn()
    expected = {path: b"5" for path in paths - {*refused, OFFSET}} | {OFFSET: b"7"}
    assert shown.shown("/consumers/g/offsets/s/") == expected
    assert member.work.status.failed_commits == 1


def test_a_jump_that_could_not_be_kept_is_kept_later(shown: FakeZooKeeper, clock: Clock) -> None:
    member = Stepped(shown, "a", {"s": 1})
    member.settle(clock)
    path = "/consumers/g/fastlog/lost/s/1-0"
    member.work.inbox.jumps[ONLY] = (5, 9)
    shown.refused.add(path)
    member.turn()
    assert member.work.inbox.jumps == {ONLY: (5, 9)} and path not in shown.shown()
    assert member.work.status.state is GroupState.FAILING
    shown.refused.clear()
    clock.now += 1.0
    member.settle(clock)
    assert shown.shown()[path] == b"5 9" and member.work.inbox.jumps == {}
    assert member.work.status.state is GroupState.ASSIGNED and member.work.status.error is None


def test_a_store_of_ones_own_may_raise_anything(shown: FakeZooKeeper, clock: Clock) -> None:
    """Who commits gets it in fastlog's own error; what is automatic is counted; the member stays."""
    store = FakeStore()
    member = Stepped(shown, "a", {"s": 1}, store=store)
    member.settle(clock)
    member.readers.consume(ONLY, 7)
    store.broken[ONLY] = ZeroDivisionError("a bug")
    request, unheard = member.work.inbox.ask(None, True), member.work.inbox.ask({ONLY: 8}, False)
    member.turn()
    with pytest.raises(CoordinationError, match=r"could not be committed: ZeroDivisionError\('a bug'\)") as raised:
        request.wait(0)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    with pytest.raises(CoordinationError):
        unheard.wait(0)
    assert member.work.status.failed_commits == 1 and list(member.readers.claims) == [ONLY]
    assert member.work.status.committed == {}, "what the store has is not known now"
    store.broken.clear()
    request = member.work.inbox.ask(None, True)
    member.turn()
    request.wait(0)
    assert member.work.status.committed == {ONLY: 7} == store.offsets


# -- starts, ends, forks ---------------------------------------------------------------------------------------------


def group_of(opening: object, **settings: object) -> Group:
    """A group whose sessions are made by this."""
    return Group(
        config_of(consumer_id="a", zk_connection_timeout_ms=int(PATIENCE * 1000), **settings),
        Subscription({"s": 1}),
        FakeReaders(),
        open_session=opening,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("error", [UnknownHostError("nobody knows it"), ConfigError("no such thing")])
def test_what_no_second_try_makes_better_ends_a_start_at_once(error: Exception) -> None:
    tries = 0

    def opening(*given: object) -> object:
        nonlocal tries
        tries += 1
        raise error

    group = group_of(opening)
    with sooner_than(PATIENCE), pytest.raises(type(error), match=str(error)):
        group.start()
    assert tries == 1 and group.state is GroupState.STOPPED
    with pytest.raises(ClosedError):
        group.commit()


def test_what_may_pass_is_tried_again_until_it_works(shown: FakeZooKeeper) -> None:
    """Also what nobody thought of, and hosts that were known before."""
    failures: list[Exception] = [CoordinationError("no answer"), ZeroDivisionError("a bug")]

    def opening(on_change: object, is_wanted: object) -> FakeSession:
        if failures:
            raise failures.pop(0)
        return shown.open(on_change)  # type: ignore[arg-type]

    group = group_of(opening)
    group.start()
    try:
        assert group.wait_settled(PATIENCE) and group.sessions == 1
        failures += [UnknownHostError("gone for a while"), CoordinationError("no answer")]
        assert group.session_id is not None
        shown.expire(group.session_id)
        wait_until("a second session", lambda: group.sessions == 2)
        assert group.wait_settled(PATIENCE) and group.error is None
    finally:
        group.stop()


def test_a_group_that_was_never_started_and_one_that_is_over() -> None:
    group = group_of(lambda *given: None)
    assert not group.wait_settled(0.0)
    with pytest.raises(CoordinationError, match="there is no session"):
        group.commit()
    assert group.owned == {} and group.committed == {} and group.session_id is None
    group.stop()
    group.stop()
    assert group.state is GroupState.STOPPED
    with pytest.raises(ClosedError):
        group.commit()


def test_readers_cannot_wait_for_the_worker_that_calls_them(tree: FakeZooKeeper, cluster: Cluster) -> None:
    raised: list[Exception] = []
    member = fake_member(tree, {"t": 1}, "a")

    def commits(partitions: object) -> None:
        try:
            member.group.commit()
        except StateError as error:
            raised.append(error)
        member.group.commit(wait=False)

    member.readers.on_acquire = commits
    with member:
        member.settled()
        assert len(raised) == 1
        with pytest.raises(ArgumentError):
            member.group.commit({part("1-0"): -1})
        member.group.commit({part("1-0"): 0})


def test_a_child_is_told_and_leaves_the_parents_group_alone(tree: FakeZooKeeper, alone: Member) -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:  # pragma: no cover
        try:
            alone.group.stop()
            try:
                alone.group.commit()
                os.write(writing, b"committed")
            except ForkedError:
                os.write(writing, b"forked")
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:  # noqa: PTH123 - a descriptor has no path
        assert answer.read() == b"forked"
    os.waitpid(pid, 0)
    assert len(alone.settled().owned) == 4


def test_a_stop_in_the_middle_of_a_call_closes_the_session_and_ends(
    tree: FakeZooKeeper, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it waits for is an answer; the session is closed under it when the time is nearly over."""
    monkeypatch.setattr(group_module, "_CLOSE_SECONDS", 0.05)
    with fake_member(tree, {"t": 1}, "a") as member:
        member.settled()
        entered, closed = threading.Event(), threading.Event()
        session = tree.sessions[max(tree.sessions)]
        close = session.close

        def closing() -> None:
            closed.set()
            close()

        session.close = closing  # type: ignore[method-assign]

        def hang(_session: FakeSession, name: str, path: str) -> None:
            if name == "put":
                entered.set()
                closed.wait(PATIENCE)

        tree.before_call = hang
        member.group.commit({part("1-0"): 5}, wait=False)
        assert entered.wait(PATIENCE)
        with sooner_than(PATIENCE):
            member.group.stop(0.3)
        assert closed.is_set()
    wait_until("it is over", lambda: member.group.state is GroupState.STOPPED)
    assert member.readers.claims == {}


def test_it_stands_as_nothing_at_first() -> None:
    status = MemberStatus()
    assert (status.state, status.error, status.is_member) == (GroupState.JOINING, None, False)
    assert (status.failed_commits, status.rebalances, status.sessions) == (0, 0, 0)


def test_why_nothing_is_handed_out() -> None:
    with Reading() as reading:
        stream = reading.stream()
        assert stream.silence() is NoMessage.NOT_ASSIGNED
        reading.own(1)
        reading.lease.objection = CoordinationError("full")
        assert stream.silence() is NoMessage.NOT_SAVED
        reading.lease.drop()
        assert stream.silence() is NoMessage.NOT_ASSIGNED
        stream.end()
        assert stream.silence() is NoMessage.ENDED


def test_steps_are_counted_for_one_partition(shown: FakeZooKeeper) -> None:
    """The tests' own tool."""
    steps = Steps(ONLY)
    shown.before_call = steps.call
    session = shown.open()
    session.get(OWNER)
    session.get(OFFSET)
    session.get("/brokers/ids")
    assert steps.take() == ["get owners", "get offsets"] and steps.take() == []
