"""One group: who joins, who waits, who is fenced, at which millisecond; and a model that plays members against it."""

from __future__ import annotations

import itertools

import pytest

from fastlog.workers.coordinator.groups.machine import NEW_MEMBER_MS, Group, Limits, State
from fastlog.workers.coordinator.groups.members import NEVER, Joined, Joining, Stored, Synced
from fastlog.workers.coordinator.promises import Promise
from fastlog.workers.kafka.codes import Code
from tests.harness.group_model import Simulation

SESSION, REBALANCE = 10_000, 60_000
RANGE = (("range", b"r"),)
BOTH = (("range", b"r"), ("sticky", b"s"))


class Played(Group):
    """A group whose stores succeed at once, unless a test holds them."""

    def __init__(self, delay: int = 0, most: int = 100) -> None:
        count = itertools.count(1)
        super().__init__(Limits(delay, most), lambda: str(next(count)))
        self.kept: list[Stored] = []

    def settle(self, code: Code = Code.NONE, now: int = 0) -> None:
        for store in self.take_stores():
            self.kept.append(store.record)
            store.settle(code, now)

    def come(self, member_id: str = "", now: int = 0, **given: object) -> Promise[Joined]:
        asked = Joining(member_id, None, "c", "h", SESSION, REBALANCE, "consumer", RANGE, needs_id=False)
        return self.join(asked._replace(**given), now)  # type: ignore[arg-type]

    def ask(self, member_id: str, given: dict[str, bytes] | None = None, now: int = 0, **more: object) -> Synced | None:
        generation = more.pop("generation", self.generation)
        waiting = self.sync(member_id, more.pop("instance_id", None), generation, None, None, given or {}, now, **more)  # type: ignore[arg-type]
        return waiting.value


def joined(waiting: Promise[Joined]) -> Joined:
    assert waiting.value is not None
    return waiting.value


def stable(*ids: str, **given: object) -> Played:
    """A group of members c-1, c-2 … that each own a byte of their number."""
    group = Played()
    first = joined(group.come(**given)).member_id
    others = [group.come(**given) for _ in ids[1:]]
    again = group.come(first, **given)
    members = [joined(again).member_id, *(joined(each).member_id for each in others)]
    assert tuple(members) == ids
    share = {member_id: b"%d" % number for number, member_id in enumerate(ids)}
    for member_id in ids:
        group.ask(member_id, share)
    group.settle()
    assert group.state is State.STABLE
    return group


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


# -- static members ----------------------------------------------------------------------------------------------------


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
