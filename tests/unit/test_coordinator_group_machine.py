"""One group: who joins, who waits, who is fenced, at which millisecond; and a model that plays members against it."""

from __future__ import annotations

import pytest

from fastlog.kafka_codes import Code
from fastlog.workers.coordinator.groups.machine import NEW_MEMBER_MS, Group, Limits, State
from fastlog.workers.coordinator.groups.members import NEVER, Joined, Joining, Stored, Synced
from fastlog.workers.coordinator.promises import Promise
from tests.harness.group_model import Simulation
from tests.harness.played_group import BOTH, REBALANCE, SESSION, Played, joined, stable

# -- joining -----------------------------------------------------------------------------------------------------------


def test_the_first_leads_and_is_told_of_all() -> None:
    group = Played()
    one = joined(group.come())
    assert one == Joined(Code.NONE, "c-1", 1, "consumer", "range", "c-1", one.members)
    assert [tuple(each) for each in one.members] == [("c-1", None, b"r")]
    two = group.come()
    assert two.value is None and group.state is State.PREPARING
    again = joined(group.come("c-1"))
    assert (again.generation, again.leader, len(again.members)) == (2, "c-1", 2)
    assert (joined(two).generation, joined(two).leader, joined(two).members) == (2, "c-1", ())


def test_a_new_member_is_told_its_id_first() -> None:
    group = Played()
    told = joined(group.come(needs_id=True))
    assert (told.code, told.member_id, group.state) == (Code.MEMBER_ID_REQUIRED, "c-1", State.EMPTY)
    assert not group.is_idle and group.due == SESSION
    assert joined(group.come("c-2")).code is Code.UNKNOWN_MEMBER_ID
    assert joined(group.come("c-1")).generation == 1


def test_an_id_that_is_not_used_is_forgotten() -> None:
    group = Played()
    group.come(needs_id=True)
    group.tick(SESSION - 1)
    assert not group.is_idle
    group.tick(SESSION)
    assert group.is_idle and group.due == NEVER
    assert joined(group.come("c-1")).code is Code.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_who_has_an_id() -> None:
    group = stable("c-1", "c-2")
    told = joined(group.come(needs_id=True, now=100)).member_id
    first, second = group.come("c-1"), group.come("c-2")
    assert first.value is None and second.value is None
    group.tick(100 + SESSION - 1)
    assert first.value is None
    group.tick(100 + SESSION)
    assert joined(first).generation == joined(second).generation == 3
    assert joined(group.come(told)).code is Code.UNKNOWN_MEMBER_ID


def test_who_leaves_with_no_more_than_an_id_has_nobody_join_again() -> None:
    """A consumer that is closed while it starts; where others wait for it, they wait no longer."""
    group = stable("c-1", "c-2")
    told = joined(group.come(needs_id=True)).member_id
    assert group.leave([(told, None)], 0) == [(told, Code.NONE)]
    assert group.state is State.STABLE and group.heartbeat("c-1", None, 2, 0) is Code.NONE
    assert group.leave([(told, None)], 0) == [(told, Code.UNKNOWN_MEMBER_ID)]
    assert group.state is State.STABLE
    told = joined(group.come(needs_id=True)).member_id
    first, second = group.come("c-1"), group.come("c-2")
    assert group.leave([(told, None)], 0) == [(told, Code.NONE)]
    assert joined(first).generation == joined(second).generation == 3


def test_a_lost_answer_changes_nothing() -> None:
    """A follower that joins again with the same is told the generation there is; the leader may have seen something."""
    group = stable("c-1", "c-2")
    again = joined(group.come("c-2"))
    assert (again.generation, again.members, group.state) == (2, (), State.STABLE)
    assert joined(group.come("c-2")).generation == 2
    assert group.come("c-2", protocols=BOTH).value is None
    assert group.state is State.PREPARING
    group = stable("c-1", "c-2")
    assert group.come("c-1").value is None and group.state is State.PREPARING


def test_a_lost_answer_while_all_wait_for_the_leader() -> None:
    group = Played()
    group.come()
    assert joined(group.come("c-1")).generation == 1 and group.state is State.COMPLETING
    assert len(joined(group.come("c-1")).members) == 1
    group.come("c-1", protocols=BOTH)
    assert group.generation == 2


def test_what_members_have_in_common_decides() -> None:
    group = stable("c-1", "c-2", protocols=BOTH)
    assert group.protocol == "range"
    assert joined(group.come(protocols=(("own", b""),))).code is Code.INCONSISTENT_GROUP_PROTOCOL
    assert joined(group.come(protocol_type="connect")).code is Code.INCONSISTENT_GROUP_PROTOCOL
    third = group.come(protocols=(("sticky", b"s"),))
    group.come("c-1", protocols=BOTH)
    group.come("c-2", protocols=BOTH)
    assert joined(third).protocol == group.protocol == "sticky"


def test_most_votes_win_and_the_leader_decides_between_equals() -> None:
    turned = BOTH[::-1]
    for liked, expected in (((BOTH, turned), "range"), ((turned, BOTH), "sticky"), ((BOTH, turned, turned), "sticky")):
        group = Played()
        group.come(protocols=liked[0])
        for each in liked[1:]:
            group.come(protocols=each)
        group.come("c-1", protocols=liked[0])
        assert group.protocol == expected


@pytest.mark.parametrize("given", [{"protocols": ()}, {"protocol_type": ""}])
def test_without_an_assignor_nobody_joins(given: dict[str, object]) -> None:
    group = Played()
    assert joined(group.come(**given)).code is Code.INCONSISTENT_GROUP_PROTOCOL
    assert joined(group.come()).code is Code.NONE


def test_a_group_has_so_many_members_and_no_more() -> None:
    group = Played(delay=5, most=2)
    waiting = [group.come() for _ in range(3)]
    assert joined(waiting[2]).code is Code.GROUP_MAX_SIZE_REACHED
    group.tick(5)
    group.tick(10)
    assert [joined(each).code for each in waiting[:2]] == [Code.NONE, Code.NONE]
    assert joined(group.come()).code is Code.GROUP_MAX_SIZE_REACHED
    assert joined(group.come("c-1")).code is Code.NONE


def test_in_a_rebalance_the_places_are_for_who_joins_first() -> None:
    """As in Kafka: of members that may be dead nobody knows whether they come back."""
    group = Played(most=2)
    group.come()
    assert group.come().value is None and group.come().value is None
    assert joined(group.come("c-1")).code is Code.GROUP_MAX_SIZE_REACHED
    group.tick(SESSION)
    assert set(group.members) == {"c-2", "c-3"} and group.state is State.COMPLETING


def test_so_many_ids_are_promised_and_no_more() -> None:
    group = Played(most=2)
    codes = [joined(group.come(needs_id=True)).code for _ in range(3)]
    assert codes == [Code.MEMBER_ID_REQUIRED] * 2 + [Code.GROUP_MAX_SIZE_REACHED]


# -- times -------------------------------------------------------------------------------------------------------------


def test_an_empty_group_waits_for_more_as_long_as_more_come() -> None:
    group = Played(delay=3_000)
    first = group.come(now=0)
    group.tick(2_999)
    second = group.come(now=2_999)
    group.tick(3_000)
    assert first.value is None
    group.tick(5_999)
    assert first.value is None
    group.tick(6_000)
    assert joined(first).generation == joined(second).generation == 1


def test_where_nobody_else_comes_it_waits_once() -> None:
    group = Played(delay=3_000)
    first = group.come(now=0)
    group.tick(2_999)
    assert first.value is None
    group.tick(3_000)
    assert joined(first).generation == 1


def test_it_does_not_wait_longer_than_a_rebalance_may_take() -> None:
    group = Played(delay=3_000)
    first = group.come(now=0, rebalance_ms=4_000)
    group.come(now=1, rebalance_ms=4_000)
    group.tick(3_000)
    assert first.value is None and group.due == 4_000
    group.tick(4_000)
    assert joined(first).generation == 1


def test_who_does_not_join_again_in_time_is_left_out() -> None:
    group = stable("c-1", "c-2")
    third = group.come(now=100)
    group.heartbeat("c-2", None, 2, 100 + REBALANCE - SESSION + 1)
    first = group.come("c-1", now=100)
    group.tick(100 + REBALANCE - 1)
    assert third.value is None
    group.tick(100 + REBALANCE)
    assert joined(third).generation == joined(first).generation == 3
    assert set(group.members) == {"c-1", "c-3"}
    assert group.heartbeat("c-2", None, 2, 0) is Code.UNKNOWN_MEMBER_ID


def test_a_member_that_is_silent_is_gone() -> None:
    group = stable("c-1", "c-2")
    group.heartbeat("c-1", None, 2, 5_000)
    group.tick(SESSION - 1)
    assert set(group.members) == {"c-1", "c-2"}
    group.tick(SESSION)
    assert set(group.members) == {"c-1"} and group.state is State.PREPARING
    assert group.heartbeat("c-1", None, 2, 9_000) is Code.REBALANCE_IN_PROGRESS
    group.tick(9_000 + SESSION)
    assert group.state is State.EMPTY and group.generation == 3 and group.due == NEVER


def test_who_waits_for_its_first_join_is_not_silent_but_not_for_ever() -> None:
    group = Played()
    group.come(rebalance_ms=2 * NEW_MEMBER_MS)
    group.ask("c-1", {})
    group.settle()
    group.come(now=0)
    for now in range(0, NEW_MEMBER_MS, SESSION - 1):
        group.heartbeat("c-1", None, 1, now)
        group.tick(now)
    group.heartbeat("c-1", None, 1, NEW_MEMBER_MS - 1)
    group.tick(NEW_MEMBER_MS - 1)
    assert "c-2" in group.members
    group.tick(NEW_MEMBER_MS)
    assert "c-2" not in group.members


def test_a_member_that_never_asks_for_its_assignment_is_gone() -> None:
    group = Played()
    group.come()
    second = group.come()
    group.come("c-1")
    group.ask("c-1", {})
    group.settle()
    for now in range(0, REBALANCE, SESSION - 1):
        group.heartbeat("c-1", None, 2, now)
        group.heartbeat(joined(second).member_id, None, 2, now)
        group.tick(now)
    group.heartbeat("c-2", None, 2, REBALANCE - 1)
    group.tick(REBALANCE - 1)
    assert "c-2" in group.members
    group.tick(REBALANCE)
    assert set(group.members) == {"c-1"} and group.state is State.PREPARING


def test_whatever_a_member_asks_for_is_a_sign_of_life() -> None:
    """Also where the answer is what it could have had before."""
    for number in range(2):
        group = stable("c-1", "c-2")
        if number:
            group.ask("c-2", now=SESSION - 1)
        else:
            assert joined(group.come("c-2", now=SESSION - 1)).generation == 2
        group.heartbeat("c-1", None, 2, SESSION - 1)
        group.tick(2 * SESSION - 2)
        assert set(group.members) == {"c-1", "c-2"}
        group.tick(2 * SESSION - 1)
        assert group.members == {}


def test_who_joins_again_is_as_it_says_now() -> None:
    group = stable("c-1")
    more = {"protocols": (("range", b"more"),), "session_ms": 2 * SESSION, "client_id": "other"}
    again = joined(group.come("c-1", **more))
    assert [each.metadata for each in again.members] == [b"more"]
    group.ask("c-1", {"c-1": b"1"})
    group.settle()
    (kept,) = group.kept[-1].members
    assert (kept.metadata, kept.session_ms, kept.client_id) == (b"more", 2 * SESSION, "other")


def test_a_generation_is_looked_at_when_its_assignment_is_due() -> None:
    """However long its members may be silent."""
    group = Played()
    group.come(session_ms=2 * REBALANCE)
    assert (group.state, group.due) == (State.COMPLETING, REBALANCE)
    group.tick(REBALANCE)
    assert group.members == {}


# -- assignments -------------------------------------------------------------------------------------------------------


def test_an_assignment_is_told_when_it_is_kept() -> None:
    group = Played()
    group.come()
    second = group.come()
    group.come("c-1")
    waiting = group.sync("c-2", None, 2, "consumer", "range", {}, 0)
    lost = group.sync("c-1", None, 2, None, None, {"c-1": b"1", "c-2": b"2"}, 0)
    mine = group.sync("c-1", None, 2, None, None, {"c-1": b"another", "c-2": b""}, 0)  # it counts once
    assert lost.value == Synced(Code.UNKNOWN_MEMBER_ID)
    assert (waiting.value, mine.value, joined(second).code) == (None, None, Code.NONE)
    (store,) = group.take_stores()
    assert [(each.member_id, each.assignment, each.metadata) for each in store.record.members] == [
        ("c-1", b"1", b"r"), ("c-2", b"2", b"r"),
    ]  # fmt: skip
    assert group.refusal_to_commit("c-2", None, 2, 0) is Code.REBALANCE_IN_PROGRESS
    store.settle(Code.NONE, 0)
    assert waiting.value == Synced(Code.NONE, "consumer", "range", b"2")
    assert mine.value == Synced(Code.NONE, "consumer", "range", b"1")
    assert group.ask("c-2", {"c-1": b"x"}) == waiting.value
    assert group.take_stores() == []


def test_who_waited_for_an_assignment_has_its_whole_session_after_it() -> None:
    """It could not be heard of while it waited for the disk; who did not wait has what is left of its own."""
    group = Played()
    group.come()
    group.come()
    group.come("c-1")
    group.sync("c-1", None, 2, None, None, {}, 0)
    group.settle(now=SESSION + 5)
    assert group.heartbeat("c-2", None, 2, SESSION + 5) is Code.NONE
    group.tick(2 * SESSION + 4)
    assert set(group.members) == {"c-1", "c-2"}
    group.tick(2 * SESSION + 5)
    assert "c-1" not in group.members


def test_what_cannot_be_kept_is_not_told() -> None:
    group = Played()
    group.come()
    waiting = group.sync("c-1", None, 1, None, None, {"c-1": b"1"}, 0)
    group.settle(Code.COORDINATOR_NOT_AVAILABLE, now=SESSION)
    assert waiting.value is not None and waiting.value.code is Code.COORDINATOR_NOT_AVAILABLE
    assert group.state is State.PREPARING
    group.tick(2 * SESSION - 1)
    assert group.heartbeat("c-1", None, 1, 2 * SESSION - 1) is Code.REBALANCE_IN_PROGRESS
    assert joined(group.come("c-1")).generation == 2
    group.ask("c-1", {"c-1": b"1"})
    group.settle()
    assert group.ask("c-1") == Synced(Code.NONE, "consumer", "range", b"1")


def test_an_assignment_that_a_rebalance_overtook_is_told_nobody() -> None:
    group = Played()
    group.come()
    waiting = group.sync("c-1", None, 1, None, None, {"c-1": b"1"}, 0)
    other = group.come()
    assert waiting.value is not None and waiting.value.code is Code.REBALANCE_IN_PROGRESS
    group.settle()
    assert group.state is State.PREPARING
    again = group.come("c-1")
    assert joined(again).generation == joined(other).generation == 2
    assert group.members["c-1"].assignment == b""


@pytest.mark.parametrize(
    ("member", "given", "code"),
    [
        ("c-3", {}, Code.UNKNOWN_MEMBER_ID),
        ("", {}, Code.UNKNOWN_MEMBER_ID),
        ("c-1", {"generation": 1}, Code.ILLEGAL_GENERATION),
        ("c-1", {"generation": 3}, Code.ILLEGAL_GENERATION),
        ("c-1", {"instance_id": "i"}, Code.UNKNOWN_MEMBER_ID),
    ],
)
def test_who_gets_no_assignment(member: str, given: dict[str, object], code: Code) -> None:
    group = stable("c-1", "c-2")
    assert group.ask(member, **given) == Synced(code)  # type: ignore[arg-type]
    generation = given.get("generation", 2)
    instance = given.get("instance_id")
    assert group.heartbeat(member, instance, generation, 0) is code  # type: ignore[arg-type]
    assert group.refusal_to_commit(member, instance, generation, 0) is code  # type: ignore[arg-type]
    assert group.heartbeat("c-1", None, 2, 0) is Code.NONE


def test_a_sync_for_another_protocol_is_refused() -> None:
    group = stable("c-1")
    for kind, name in (("connect", None), (None, "sticky")):
        waiting = group.sync("c-1", None, 1, kind, name, {}, 0)
        assert waiting.value == Synced(Code.INCONSISTENT_GROUP_PROTOCOL)


# -- commits -----------------------------------------------------------------------------------------------------------


def test_who_is_in_no_group_commits_where_nobody_is() -> None:
    group = Played()
    assert group.refusal_to_commit("", None, -1, 0) is Code.NONE
    group = stable("c-1")
    assert group.refusal_to_commit("", None, -1, 0) is Code.UNKNOWN_MEMBER_ID
    assert group.refusal_to_commit("c-1", None, -1, 0) is Code.ILLEGAL_GENERATION
    assert group.refusal_to_commit("c-1", None, 1, 0) is Code.NONE
    coming = joined(group.come(needs_id=True)).member_id
    group.leave([("c-1", None)], 0)
    assert group.refusal_to_commit("", None, -1, 0) is Code.UNKNOWN_MEMBER_ID, "somebody is on the way"
    group.leave([(coming, None)], 0)
    assert group.refusal_to_commit("", None, -1, 0) is Code.NONE
    assert group.refusal_to_commit("c-1", None, 1, 0) is Code.UNKNOWN_MEMBER_ID


def test_a_commit_is_a_sign_of_life_and_goes_on_until_the_next_generation() -> None:
    group = stable("c-1", "c-2")
    group.heartbeat("c-2", None, 2, 5_000)
    assert group.refusal_to_commit("c-1", None, 2, 5_000) is Code.NONE
    group.tick(5_000 + SESSION - 1)
    assert len(group.members) == 2
    group.come(now=5_000)
    assert group.state is State.PREPARING
    assert group.refusal_to_commit("c-1", None, 2, 5_000) is Code.NONE


# -- leaving -----------------------------------------------------------------------------------------------------------


def test_several_leave_at_once() -> None:
    group = stable("c-1", "c-2", "c-3")
    told = joined(group.come(needs_id=True)).member_id
    found = group.leave([("c-1", None), ("nobody", None), (told, None), ("", "i"), ("c-2", None)], 0)
    assert [code for _, code in found] == [
        Code.NONE, Code.UNKNOWN_MEMBER_ID, Code.NONE, Code.UNKNOWN_MEMBER_ID, Code.NONE,
    ]  # fmt: skip
    assert group.state is State.PREPARING
    assert joined(group.come("c-3")).leader == "c-3"


def test_the_last_one_leaves_an_empty_group() -> None:
    group = stable("c-1")
    assert group.leave([("c-1", None)], 0) == [("c-1", Code.NONE)]
    assert (group.state, group.generation, group.protocol, group.leader) == (State.EMPTY, 2, None, None)
    (store,) = group.take_stores()
    assert store.record == Stored("consumer", 2, None, None, ())
    assert joined(group.come(protocol_type="connect")).protocol_type == "connect"


def test_who_leaves_while_it_waits_is_told() -> None:
    group = stable("c-1", "c-2")
    waiting = group.come()
    group.leave([("c-3", None)], 0)
    assert joined(waiting).code is Code.UNKNOWN_MEMBER_ID


def test_who_has_joined_already_leads_when_the_leader_goes() -> None:
    """And not whoever is the next in the group."""
    group = stable("c-1", "c-2", "c-3")
    third = group.come("c-3", protocols=BOTH)
    group.leave([("c-1", None)], 0)
    second = group.come("c-2")
    assert joined(second).leader == joined(third).leader == "c-3"
    assert len(joined(third).members) == 2


# -- afterwards --------------------------------------------------------------------------------------------------------


def test_a_group_goes_on_after_its_coordinator_as_it_was_kept() -> None:
    group = stable("c-1", "c-2")
    after = Group.restored(group.kept[-1], Limits(0, 9), 1_000)
    assert (after.state, after.generation, after.leader, after.protocol) == (State.STABLE, 2, "c-1", "range")
    assert after.due == 1_000 + SESSION
    assert after.heartbeat("c-2", None, 2, 1_000) is Code.NONE
    assert after.sync("c-2", None, 2, None, None, {}, 1_000).value == Synced(Code.NONE, "consumer", "range", b"1")
    after.tick(1_000 + SESSION - 1)
    assert len(after.members) == 2
    after.tick(1_000 + SESSION)
    assert after.state is State.EMPTY
    again = Group.restored(group.kept[-1], Limits(0, 9), 0)
    again.heartbeat("c-1", None, 2, SESSION - 1)
    waiting = again.join(Joining("c-2", None, "c", "h", SESSION, REBALANCE, "consumer", BOTH), 0)
    again.tick(SESSION)
    assert waiting.value is None and len(again.members) == 2, "who waits for the others to join is there"
    empty = Group.restored(Stored("consumer", 7, None, None, ()), Limits(0, 9), 0)
    assert (empty.state, empty.generation, empty.due) == (State.EMPTY, 7, NEVER)


def test_whoever_asks_again_is_answered_and_so_is_its_first_question() -> None:
    """Which came on a connection that broke, or from a client that asks twice."""
    group = stable("c-1", "c-2")
    first, again = group.come("c-1"), group.come("c-1")
    assert joined(first).code is Code.UNKNOWN_MEMBER_ID
    group.come("c-2")
    assert joined(again).generation == 3
    waiting = group.sync("c-2", None, 3, None, None, {}, 0)
    assert waiting.value is None
    assert group.ask("c-2") is None
    assert waiting.value == Synced(Code.UNKNOWN_MEMBER_ID)


def test_a_refused_one_is_waited_for_no_more() -> None:
    """Others have taken its place while it had an id and had not joined."""
    group = Played(most=2)
    member = joined(group.come()).member_id
    group.ask(member, {member: b"1"})
    group.settle()
    quick, slow = (joined(group.come(needs_id=True)).member_id for _ in range(2))
    waiting = [group.come(quick), group.come(member)]
    assert [each.value for each in waiting] == [None, None]
    assert joined(group.come(slow)).code is Code.GROUP_MAX_SIZE_REACHED
    assert [joined(each).generation for each in waiting] == [2, 2], "nobody is missing any more"
    group.leave([(quick, None)], 0)
    assert joined(group.come(slow)).code is Code.UNKNOWN_MEMBER_ID


def test_nobody_is_left_waiting() -> None:
    group = stable("c-1", "c-2")
    joining = group.come()
    group.give_up(Code.COORDINATOR_NOT_AVAILABLE)
    assert joined(joining).code is Code.COORDINATOR_NOT_AVAILABLE
    group = Played()
    group.come()
    group.come()
    group.come("c-1")
    waiting = group.sync("c-2", None, 2, None, None, {}, 0)
    group.give_up(Code.COORDINATOR_NOT_AVAILABLE)
    assert waiting.value == Synced(Code.COORDINATOR_NOT_AVAILABLE)


def test_who_waits_for_a_promise_is_told_once() -> None:
    told: list[int] = []
    promise: Promise[int] = Promise()
    promise.then(told.append)
    promise.give(1)
    promise.give(2)
    promise.then(told.append)
    assert (told, promise.value) == ([1, 1], 1)


def test_the_bytes_that_a_group_keeps() -> None:
    group = stable("c-1", "c-2", protocols=BOTH)
    assert group.size == 2 * (len("range") + len("sticky") + 2 + 1)


# -- the model ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_members_of_all_kinds_never_break_a_promise() -> None:
    """A million steps; ``python -m tests.fault --only group-model`` makes more of them."""
    committed = assigned = deaths = 0
    for seed in range(1000):
        played = Simulation(seed)
        played.run(1000)
        committed, assigned, deaths = committed + played.committed, assigned + played.assigned, deaths + played.deaths
    assert committed > 50_000 and assigned > 10_000 and deaths > 1_000
