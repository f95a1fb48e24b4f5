"""Static members of a group: who comes back, who is fenced, and what the next coordinator knows of them."""

from __future__ import annotations

import pytest

from fastlog.kafka_codes import Code
from fastlog.workers.coordinator.groups.machine import Group, Limits, State
from fastlog.workers.coordinator.groups.members import Joined, Joining, Synced
from fastlog.workers.coordinator.promises import Promise
from tests.harness.played_group import BOTH, RANGE, REBALANCE, SESSION, Played, joined, stable


def test_a_static_member_comes_back_and_nobody_notices() -> None:
    group = stable("a-1", "a-2", instance_id=None, client_id="a")
    third = group.come(instance_id="i")
    group.come("a-1", client_id="a")
    group.come("a-2", client_id="a")
    former = joined(third).member_id
    for member_id, instance in (("a-1", None), ("a-2", None), (former, "i")):
        group.ask(member_id, {former: b"mine"}, instance_id=instance)
    group.settle()
    back = group.come(instance_id="i")
    assert back.value is None
    group.settle()
    now = joined(back)
    assert (now.code, now.generation, now.members, group.state) == (Code.NONE, 3, (), State.STABLE)
    assert now.member_id != former and group.kept[-1].members[-1].member_id == now.member_id
    assert group.ask(now.member_id, instance_id="i") == Synced(Code.NONE, "consumer", "range", b"mine")
    for member_id, instance, code in (
        (former, "i", Code.FENCED_INSTANCE_ID),
        (former, None, Code.UNKNOWN_MEMBER_ID),
        (now.member_id, "i", Code.NONE),
    ):
        assert group.heartbeat(member_id, instance, 3, 0) is code
        assert group.refusal_to_commit(member_id, instance, 3, 0) is code
    assert joined(group.come(former, instance_id="i")).code is Code.FENCED_INSTANCE_ID
    assert group.leave([(former, "i")], 0) == [(former, Code.FENCED_INSTANCE_ID)]
    assert group.leave([("", "i")], 0) == [(now.member_id, Code.NONE)]


def test_a_static_member_that_comes_back_with_another_assignor_has_all_join_again() -> None:
    """It cannot go on with what was assigned by the former one."""
    group = Played()
    group.come(instance_id="i", protocols=BOTH)
    group.ask("i-1", instance_id="i")
    group.settle()
    assert (group.state, group.protocol) == (State.STABLE, "range")
    back = group.come(instance_id="i", protocols=BOTH[::-1])
    group.settle()
    assert (joined(back).generation, joined(back).protocol, group.state) == (2, "sticky", State.COMPLETING)


def test_a_static_member_that_comes_back_is_as_it_says_now() -> None:
    """With a session of its own from now on; whether its former self asked for an assignment is no matter any more."""
    group = stable("c-1")
    former = group.come(instance_id="i")
    group.come("c-1")
    group.ask("c-1", {joined(former).member_id: b"1"})
    group.settle()
    assert group.state is State.STABLE
    now = {"client_id": "other", "client_host": "/10.0.0.9", "session_ms": REBALANCE, "rebalance_ms": 2 * REBALANCE}
    back = group.come(instance_id="i", now=SESSION - 1, **now)
    group.settle()
    (kept,) = (each for each in group.kept[-1].members if each.instance_id == "i")
    assert {name: getattr(kept, name) for name in now} == now
    assert (kept.member_id, kept.assignment) == (joined(back).member_id, b"1")
    for moment in range(SESSION - 1, REBALANCE + SESSION - 1, SESSION - 1):
        group.heartbeat("c-1", None, 2, moment)
        group.tick(moment)
        assert (group.state, set(group.members)) == (State.STABLE, {"c-1", kept.member_id})
    group.heartbeat("c-1", None, 2, REBALANCE + SESSION - 1)
    group.tick(REBALANCE + SESSION - 1)
    assert kept.member_id not in group.members


@pytest.mark.parametrize("skips", [True, False])
def test_a_static_leader_comes_back(skips: bool) -> None:
    """One that knows of it sees the members and assigns nothing; one that does not is told that another leads."""
    group = Played()
    former = joined(group.come(instance_id="i")).member_id
    group.ask(former, {former: b"1"}, instance_id="i")
    group.settle()
    back = group.come(instance_id="i", skips_assignment=skips)
    group.settle()
    now = joined(back)
    assert (now.skip_assignment, len(now.members), now.leader == now.member_id) == (skips, int(skips), skips)
    assert group.leader == now.member_id
    assert group.ask(now.member_id, {now.member_id: b"2"}, instance_id="i") == Synced(
        Code.NONE, "consumer", "range", b"1"
    )


def test_a_static_member_that_cannot_be_kept_is_told_so() -> None:
    group = Played()
    former = joined(group.come(instance_id="i")).member_id
    group.ask(former, {former: b"1"}, instance_id="i")
    group.settle()
    back = group.come(instance_id="i")
    group.settle(Code.COORDINATOR_NOT_AVAILABLE)
    assert joined(back).code is Code.COORDINATOR_NOT_AVAILABLE
    again = group.come(instance_id="i")
    group.settle()
    assert joined(again).code is Code.NONE


def test_a_static_member_that_waits_is_fenced_by_its_next_process() -> None:
    group = stable("c-1")
    first = group.come(instance_id="i")
    second = group.come(instance_id="i")
    assert joined(first).code is Code.FENCED_INSTANCE_ID and second.value is None
    group.come("c-1")
    assert joined(second).generation == 2
    third = group.come(instance_id="i")
    assert group.state is State.PREPARING and third.value is None


def test_static_members_are_waited_for_and_not_left_out() -> None:
    group = stable("c-1")
    static = group.come(instance_id="i")
    group.come("c-1")
    former = joined(static).member_id
    group.ask(former, instance_id="i")
    group.ask("c-1", {former: b"1"})
    group.settle()
    again = group.come("c-1", now=0)
    group.heartbeat(former, "i", 2, REBALANCE - SESSION + 1)
    group.tick(REBALANCE)
    assert joined(again).generation == 3
    assert [each.instance_id for each in joined(again).members] == [None, "i"]


def test_without_anybody_who_could_lead_it_waits_on() -> None:
    group = Played()
    static = joined(group.come(instance_id="i", session_ms=5 * REBALANCE)).member_id
    group.ask(static, {}, instance_id="i")
    group.settle()
    gone = group.come(session_ms=1)
    group.leave([("c-2", None)], 0)
    assert joined(gone).code is Code.UNKNOWN_MEMBER_ID
    group.tick(REBALANCE)
    assert group.state is State.PREPARING and group.due == 2 * REBALANCE
    back = group.come(static, instance_id="i", now=REBALANCE)
    assert joined(back).generation == 2


def test_a_static_member_may_join_with_a_place_in_a_full_group() -> None:
    group = Played(most=1)
    group.come(instance_id="i")
    group.ask("i-1", {}, instance_id="i")
    group.settle()
    assert joined(group.come(instance_id="j")).code is Code.GROUP_MAX_SIZE_REACHED
    back = group.come(instance_id="i")
    group.settle()
    assert joined(back).code is Code.NONE


def test_the_next_coordinator_but_one_knows_a_static_member_that_the_log_still_has() -> None:
    """It left, what is kept without it is on its way, and it is back: until its new id is kept it has not joined."""
    group = stable("c-1")
    static = group.come(instance_id="i")
    group.come("c-1")
    group.ask("c-1", {joined(static).member_id: b"1"})
    group.settle()
    after = Group.restored(group.kept[-1], Limits(0, 9), 0, lambda: "new")
    asked = Joining("c-1", None, "c", "h", SESSION, REBALANCE, "consumer", RANGE, needs_id=False)
    assert after.leave([("", "i")], 0) == [(joined(static).member_id, Code.NONE)]
    assert joined(after.join(asked, 0)).generation == 3
    after.sync("c-1", None, 3, None, None, {}, 0)
    assert len(after.take_stores()) == 1
    back = after.join(asked._replace(member_id="", instance_id="i"), 0)
    assert back.value is None and len(after.take_stores()) == 1


@pytest.mark.parametrize("second", ["after an error", "while the first waits"])
def test_a_static_member_that_comes_back_twice_while_the_leader_assigns_gets_a_part(second: str) -> None:
    """What the leader gives its first process is nobody's: there has to be another rebalance, not an empty part."""
    group = stable("c-1")
    waiting = group.come(instance_id="i")
    first, old = joined(group.come("c-1")).member_id, joined(waiting).member_id
    share = {first: b"a", old: b"b"}
    group.ask(old, instance_id="i")
    group.ask(first, share)
    group.settle()
    group.come(protocols=BOTH, member_id="c-1")  # something new to say
    group.come(old, instance_id="i")
    assert group.state is State.COMPLETING
    lost = group.come(instance_id="i", skips_assignment=True)  # of the second process
    stores = group.take_stores()
    assert lost.value is None
    assert group.ask(first, share) == Synced(Code.REBALANCE_IN_PROGRESS)
    if second == "after an error":
        for store in stores:
            store.settle(Code.COORDINATOR_NOT_AVAILABLE, 0)
        assert joined(lost).code is Code.COORDINATOR_NOT_AVAILABLE
    waiting = group.come(instance_id="i", skips_assignment=True)
    group.settle()
    again = group.come("c-1")
    members = {each.member_id for each in joined(again).members}
    assert members == {"c-1", joined(waiting).member_id} and old not in members
    assert group.state is State.COMPLETING


def test_a_static_member_is_kept_before_it_joins() -> None:
    """Else a coordinator that dies before the next generation leaves one that takes it for its former self's ghost."""
    group = stable("c-1")
    static = group.come(instance_id="i")
    group.come("c-1")
    former = joined(static).member_id
    group.ask(former, instance_id="i")
    group.ask("c-1", {former: b"1"})
    group.settle()
    group.come()
    back = group.come(instance_id="i")
    assert [each.member_id for each in group.members.values() if each.joining] == ["c-3"]
    group.settle()
    now = next(each for each in group.members.values() if each.instance_id == "i")
    assert group.kept[-1].generation == 2 and now.joining is not None
    after = Group.restored(group.kept[-1], Limits(0, 9), 0)
    assert after.heartbeat(now.member_id, "i", 2, 0) is Code.NONE
    assert after.heartbeat(former, "i", 2, 0) is Code.FENCED_INSTANCE_ID
    assert back.value is None


@pytest.mark.parametrize("code", [Code.NONE, Code.COORDINATOR_NOT_AVAILABLE])
def test_a_static_member_that_left_comes_back_once_the_next_coordinator_knows(code: Code) -> None:
    """What is stored has the id that left, until the next generation is; with that one it would be fenced for good."""
    group = stable("c-1")
    static = group.come(instance_id="i")
    group.come("c-1")
    former = joined(static).member_id
    group.ask(former, instance_id="i")
    group.ask("c-1", {former: b"1"})
    group.settle()
    group.leave([(former, "i")], 0)
    group.come("c-1")
    group.ask("c-1", {"c-1": b"1"})
    stores = group.take_stores()
    back = group.come(instance_id="i")
    again = group.come("c-1")
    assert back.value is None and again.value is None
    for store in stores:
        store.settle(code, 0)
    group.settle()
    if code:
        again = group.come("c-1")
    now = joined(back).member_id
    assert (joined(back).code, now != former, joined(again).generation) == (Code.NONE, True, group.generation)
    after = Group.restored(group.kept[-1], Limits(0, 9), 0)
    asked = Joining(now, "i", "c", "h", SESSION, REBALANCE, "consumer", RANGE, needs_id=False)
    assert Promise(Joined(Code.FENCED_INSTANCE_ID, now)).value != after.join(asked, 0).value


def test_a_first_rebalance_without_anybody_goes_on_for_its_own_time() -> None:
    """A static member waits there to be kept; no time is over again and again meanwhile."""
    group = Played()
    former = joined(group.come(instance_id="i")).member_id
    group.ask(former, {former: b"1"}, instance_id="i")
    group.settle()
    group.leave([(former, "i")], 0)
    stores = group.take_stores()
    back = group.come(instance_id="i")
    for now in (0, REBALANCE):
        group.tick(now)
        assert back.value is None and group.due > now
    for store in stores:
        store.settle(Code.NONE, 0)
    group.settle()
    assert joined(back).code is Code.NONE


def test_a_static_leader_is_kept_as_the_leader() -> None:
    """With its new id: the next coordinator would name one that is nobody."""
    group = Played()
    former = joined(group.come(instance_id="i")).member_id
    group.ask(former, {former: b"1"}, instance_id="i")
    group.settle()
    group.come()
    group.come(instance_id="i")
    group.settle()
    (now,) = [each.member_id for each in group.members.values() if each.instance_id == "i"]
    assert now != former
    assert (group.kept[-1].leader, [each.member_id for each in group.kept[-1].members]) == (now, [now])
