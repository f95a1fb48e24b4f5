"""A member of a broker's group, turn by turn: what it asks for, when it reads, and what it makes of each answer."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from fastlog.client import group_requests as requests
from fastlog.client import kafka_fields
from fastlog.client.addresses import Address
from fastlog.client.coordinator import CoordinatorError, NotReachedError
from fastlog.client.group_requests import Committed, Identity
from fastlog.client.kafka_fields import Answer, Place, Request
from fastlog.consumer import holdings, member_session, partitions
from fastlog.consumer.broker_groups import session as module
from fastlog.consumer.broker_groups.assignor import Given, MemberView
from fastlog.consumer.broker_groups.offsets import BrokerOffsets
from fastlog.consumer.broker_groups.session import BrokerGroupSession
from fastlog.consumer.broker_groups.session import CoordinatorSession as Membership
from fastlog.consumer.broker_groups.topics import Found
from fastlog.consumer.config import ConsumerConfig
from fastlog.consumer.member_session import GroupWork
from fastlog.consumer.partitions import Claim, Lease, TopicPartition
from fastlog.consumer.status import GroupState
from fastlog.coordination.session import SessionLostError
from fastlog.errors import ConfigError, CoordinationError, OwnershipLostError
from fastlog.workers.coordinator import codec
from fastlog.zkpaths import PartitionId, Subscription
from tests.harness.groups import FakeReaders

SESSION = 10.0
JOIN, SYNC, BEAT, LEAVE, COMMIT, FETCH = 11, 14, 12, 13, 8, 9


class Clock:
    """Stands in for the module ``time``, and for the clock of leases."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for each in (module, member_session, holdings):
            monkeypatch.setattr(each, "time", self)
        monkeypatch.setattr(partitions.Lease, "now", staticmethod(self.monotonic))

    def monotonic(self) -> float:
        return self.now


class Stub:
    """A coordinator that answers what it is told to. ``events`` has everything in order, as readers add to it."""

    address = Address("h", 9)
    is_connected = True
    is_closed = False

    def __init__(self, events: list[str]) -> None:
        codec._load_library()
        self.events = events
        self.codes: dict[int, list[int]] = {}
        """By key: the codes of the next answers, 0 when there are none left."""
        self.refused: dict[Place, int] = {}
        self.kept: dict[Place, Committed] = {}
        self.posted: Request | None = None
        self.coming: list[Answer | Exception | None] = []
        self.asked: list[Request] = []

    def ask(self, request: Request, parse: Any, code_of: Any = None, timeout: float | None = None) -> Any:
        assert self.posted is None, "an answer is waited for"
        self.asked.append(request)
        code = self._code(request.key)
        if code < -1:
            raise NotReachedError("away")
        match request.key:
            case 12 | 13:
                self.events.append({12: "beat", 13: "leave"}[request.key])
                return code
            case 8:
                fields = read(request)
                rows = {
                    (topic.name, row.partition_index): Committed(row.committed_offset, row.committed_metadata)
                    for topic in fields.topics
                    for row in topic.partitions
                }
                self.events += [f"commit {number}={row.offset}" for (_, number), row in sorted(rows.items())]
                told = {place: self.refused.get(place, code) for place in rows}
                self.kept.update({place: row for place, row in rows.items() if not told[place]})
                return told
            case 9:
                places = [(topic.name, number) for topic in read(request).topics for number in topic.partition_indexes]
                self.events.append(f"fetch {sorted(number for _, number in places)}")
                return code, {place: (0, self.kept.get(place, Committed(-1, ""))) for place in places}
        raise AssertionError(request)

    def post(self, request: Request) -> None:
        assert self.posted is None
        self.events.append({JOIN: "join", SYNC: "sync"}[request.key])
        if self._code(request.key) < -1:
            raise NotReachedError("away")
        self.posted = request

    def poll(self, seconds: float) -> Answer | None:
        found = self.coming.pop(0) if self.coming else None
        if found is not None:
            self.posted = None
        if isinstance(found, Exception):
            raise found
        return found

    def forget(self) -> None:
        self.posted = None

    def close(self) -> None:
        self.events.append("close")

    interrupt = close

    def _code(self, key: int) -> int:
        codes = self.codes.get(key)
        return codes.pop(0) if codes else 0


def read(request: Request) -> Any:
    """The fields of a request, as the broker reads them."""
    return codec.decode(request.frame(1, "me")[4:]).fields


def answer(request: Request, fields: dict[str, Any]) -> Answer:
    asked = codec.Request(request.key, request.version, 1, "me", None)
    return kafka_fields.answer(codec.encode(asked, fields)[4:], 1)


class Readers(FakeReaders):
    """Tells what it does."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events

    def acquire(self, claims: Mapping[TopicPartition, Claim]) -> None:
        super().acquire(claims)
        self.events += [f"take {each.partition.partition}" for each in sorted(claims)]

    def release(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        self.events += [f"release {each.partition.partition}" for each in sorted(partitions)]
        return super().release(partitions)


class Member:
    """One, with its stub. ``counts``: the topics that there are."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        subscription: Subscription | None = None,
        store: Any = None,
        **settings: Any,
    ) -> None:
        subscription = subscription or Subscription({"t": 2})
        self.clock = Clock(monkeypatch)
        self.events: list[str] = []
        self.stub = Stub(self.events)
        self.readers = Readers(self.events)
        self.counts = {"t": 4}
        self.looks: list[Collection[str] | None] = []
        monkeypatch.setattr(module, "find_topics", self._look)
        given = {"auto_commit": False, "session_timeout_ms": round(SESSION * 1000)} | settings
        config = ConsumerConfig(brokers="h:9", group_id="g", **given)
        self.work = GroupWork(config, "g_me", subscription, self.readers, store, Lease(SESSION))
        self.work.source.uniform = lambda low, high: high  # type: ignore[method-assign]
        self.place = Membership(self.stub, SESSION)  # type: ignore[arg-type]
        self.life = BrokerGroupSession(self.work, self.place)

    def _look(self, address: Address, names: Collection[str] | None, timeout: float) -> Found:
        assert address == Stub.address and timeout == SESSION / 2
        self.looks.append(None if names is None else sorted(names))
        return Found(3, {name: count for name, count in self.counts.items() if names is None or name in names}, {})

    def turn(self) -> list[str]:
        """What happened in one."""
        self.events.clear()
        self.life.turn()
        return list(self.events)

    def joined(self, generation: int = 1, code: int = 0, member: str = "m", **members: MemberView) -> None:
        """The next answer to a join; with other members it leads."""
        rows = [
            {"member_id": name, "group_instance_id": None, "metadata": view.encode(["t"])}
            for name, view in members.items()
        ]
        fields = {
            "throttle_time": 0, "error_code": code, "generation_id": generation, "protocol_name": "fastlog-range",
            "leader": member if members else "other", "member_id": member, "members": rows,
        }  # fmt: skip
        self.stub.coming.append(answer(requests.join("g", "", 1, 1, "", []), fields))

    def given(self, *numbers: int, code: int = 0, whole: bool = True, refused: str = "", **streams: int) -> None:
        """The next answer to a sync: these partitions, read by stream 0."""
        data = Given({("t", number): 0 for number in numbers}, 2, whole, refused).encode()
        fields = {"throttle_time": 0, "error_code": code, "assignment": b"" if code else data}
        self.stub.coming.append(answer(requests.sync("g", Identity(), {}), fields))

    def settled(self, *numbers: int, generation: int = 1) -> Member:
        """After it has joined and reads these, when its next heartbeat is due."""
        self.joined(generation)
        self.given(*numbers)
        self.turn()
        self.turn()
        assert {each.partition.partition for each in self.readers.claims} == set(numbers)
        assert self.status.state is (GroupState.ASSIGNED if numbers else GroupState.NOTHING)
        self.clock.now += 1
        self.events.clear()
        return self

    @property
    def status(self) -> Any:
        return self.work.status

    def view(self) -> MemberView:
        """What it has said of itself when it joined last."""
        assert self.stub.posted is not None and self.stub.posted.key == JOIN
        return MemberView.parse(read(self.stub.posted).protocols[0].metadata)

    def ends(self, *, says_goodbye: bool) -> None:
        """The membership is over: nothing is read or committed any more."""
        self.events.clear()
        with pytest.raises(SessionLostError):
            self.life.turn()
        assert self.place.is_lost
        self.life.end()
        assert not self.readers.claims and not self.work.lease.is_valid and not self.status.is_member
        assert not any(event.startswith("commit") for event in self.events[self.events.index("beat") :])
        assert ("leave" in self.events) is says_goodbye and self.events[-1] == "close"


def part(number: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, PartitionId(3, number))


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> Member:
    return Member(monkeypatch)


def test_joining(member: Member) -> None:
    """An id first, a generation, an assignment, offsets in one request; then it reads from where was committed."""
    member.stub.kept["t", 1] = Committed(55, "log=77 lost=1-2")
    assert member.turn() == ["join"] and member.status.state is GroupState.JOINING
    asked = read(member.stub.posted)  # type: ignore[arg-type]
    assert (asked.member_id, asked.protocol_type, asked.protocols[0].name) == ("", "consumer", "fastlog-range")
    assert (asked.session_timeout.seconds, asked.rebalance_timeout.seconds) == (10, 20)
    assert member.view() == MemberView("g_me", Subscription({"t": 2}))
    assert member.turn() == [] and not member.status.is_member
    member.joined(code=79, generation=-1)
    assert member.turn() == [] and member.place.id == "m"
    assert member.turn() == ["join"] and read(member.stub.posted).member_id == "m"  # type: ignore[arg-type]
    member.joined(4)
    sent = member.clock.now
    assert member.turn() == ["sync"] and not member.work.lease.is_valid
    assert read(member.stub.posted).generation_id == 4 and not read(member.stub.posted).assignments  # type: ignore[arg-type]
    member.clock.now += 2
    member.given(0, 1)
    member.stub.codes[BEAT] = [27]  # it may be told that it rebalances already before all is begun
    assert member.turn() == ["fetch [0, 1]", "beat", "take 0", "take 1"]
    assert member.status.state is GroupState.JOINING and member.work.lease.seconds_left == pytest.approx(9 - 2)
    claims = member.readers.claims
    assert claims == {part(0): Claim("g_me-0", Stub.address, None), part(1): Claim("g_me-0", Stub.address, 55, 77)}
    assert member.status.addresses == {3: Stub.address} and member.status.owned.keys() == {part(0), part(1)}
    assert member.status.partitions == {"t": [PartitionId(3, number) for number in range(4)]}
    assert member.turn() == ["join"] and member.status.is_member and member.work.has_been_member
    member.joined(5)
    member.given(0, 1)
    assert member.turn() == ["sync"] and member.status.state is GroupState.ASSIGNED
    member.clock.now = sent + 3
    assert member.turn() == ["beat"] and member.work.lease.seconds_left == pytest.approx(9)
    assert member.life._next_due() == pytest.approx(member.clock.now + 1)


def test_the_leader_deals_out(member: Member) -> None:
    """By what all have said, of topics that any of them reads; who says nonsense gets nothing."""
    member.counts = {"t": 2, "u": 1, "v": 1}
    member.turn()
    other = MemberView("g_z", Subscription({}, "u|t", True, 1), True, frozenset({("t", 0)}), 3)
    member.joined(m=MemberView("g_me", Subscription({"t": 2})), z=other)
    assert member.turn() == ["sync"]
    assert member.looks[-1] is None
    rows = {row.member_id: Given.parse(row.assignment) for row in read(member.stub.posted).assignments}  # type: ignore[arg-type]
    assert rows == {"m": Given({("t", 1): 1}, 2, False), "z": Given({("u", 0): 0}, 2, True)}
    member.given(1, whole=False)
    member.turn()
    assert member.status.state is GroupState.JOINING and set(member.readers.claims) == {part(1)}  # more is to come
    member.clock.now += 6
    member.counts["v"] = 5
    assert member.turn() == ["beat"]  # nobody reads that
    member.counts["u"] = 2
    member.clock.now += 6
    assert member.turn() == ["beat", "join"]
    member.joined(2)  # another one leads now
    assert member.turn() == ["sync"] and not read(member.stub.posted).assignments  # type: ignore[arg-type]


def test_who_does_not_lead_leaves_new_topics_to_who_does(member: Member) -> None:
    member.settled(0)
    member.counts["t"] = 9
    member.clock.now += 5
    assert member.turn() == ["beat"] and len(member.status.partitions["t"]) == 9
    assert member.looks[-1] == ["t"]


def test_a_rebalance(member: Member) -> None:
    """It reads on, says what it holds, lets go and commits what goes to others, and joins again for these to begin."""
    member.settled(0, 1, 2)
    member.turn()
    member.readers.consume(part(1), 10)
    member.readers.consume(part(2), 20)
    left = member.work.lease.seconds_left
    member.clock.now += 1
    member.stub.codes[BEAT] = [27]
    assert member.turn() == ["beat", "join"]
    assert member.work.lease.seconds_left == pytest.approx(left - 1)  # it says nothing of how long it may go on
    assert member.view() == MemberView("g_me", Subscription({"t": 2}), True, frozenset(("t", n) for n in range(3)), 1)
    assert len(member.readers.claims) == 3 and member.status.state is GroupState.JOINING
    asked = member.work.inbox.ask(None, True)
    member.clock.now += 1
    assert member.turn() == []  # nothing else is asked while it waits
    member.joined(2)
    member.given(0, 1)
    member.work.config.__dict__["auto_commit"] = True
    member.life._holdings._auto_commit = True
    assert member.turn() == ["sync", "release 2", "commit 2=20"]
    assert member.status.state is GroupState.JOINING
    assert member.turn() == ["beat", "commit 1=10", "join"]
    asked.wait(0)
    assert member.view().held == {("t", 0), ("t", 1)} and member.view().generation == 2
    member.joined(3)
    member.given(0, 1)
    member.clock.now += 1
    assert member.turn() == ["sync"] and member.status.state is GroupState.ASSIGNED
    assert member.work.lease.seconds_left == pytest.approx(9)
    assert member.stub.kept["t", 2].offset == 20


def test_another_stream_goes_on_where_the_first_one_stopped(member: Member) -> None:
    member.settled(0)
    member.readers.consume(part(0), 33)
    member.stub.codes[BEAT] = [27]
    member.turn()
    member.joined(2)
    data = Given({("t", 0): 1}, 1).encode()
    fields = {"throttle_time": 0, "error_code": 0, "assignment": data}
    member.stub.coming.append(answer(requests.sync("g", Identity(), {}), fields))
    assert member.turn() == ["sync", "release 0", "beat", "take 0"]
    assert member.readers.claims[part(0)] == Claim("g_me-1", Stub.address, 33, 0)


@pytest.mark.parametrize(("code", "says_goodbye"), [(25, False), (22, True), (82, False)])
def test_who_is_no_member_any_more_has_nothing(member: Member, code: int, says_goodbye: bool) -> None:
    member.settled(0, 1)
    member.readers.consume(part(0), 5)
    member.stub.codes[BEAT] = [code]
    member.ends(says_goodbye=says_goodbye)


@pytest.mark.parametrize("code", [25, 22, 82])
def test_a_commit_may_tell_so(member: Member, code: int) -> None:
    """What was asked for is answered with what was lost."""
    member.settled(0)
    member.turn()
    member.readers.consume(part(0), 5)
    asked = member.work.inbox.ask(None, True)
    member.stub.codes[COMMIT] = [code]
    with pytest.raises(SessionLostError):
        member.life.turn()
    member.life.end()
    member.work.refuse_commits()
    with pytest.raises(OwnershipLostError, match="t/3-0"):
        asked.wait(0)
    assert not member.readers.claims


@pytest.mark.parametrize(("code", "joins"), [(27, True), (7, False), (28, False), (-1, False)])
def test_a_commit_may_be_refused(member: Member, code: int, joins: bool) -> None:
    """It is reported, and what is read goes on."""
    member.settled(0)
    member.turn()
    member.readers.consume(part(0), 5)
    asked = member.work.inbox.ask(None, True)
    member.stub.codes[COMMIT] = [code]
    assert member.turn() == ["commit 0=5", *(["join"] if joins else [])]
    with pytest.raises(CoordinationError, match=r"not committed: t/0: .*\(error"):
        asked.wait(0)
    assert member.readers.claims and part(0) not in member.status.committed


def test_a_commit_may_be_taken_in_part(member: Member) -> None:
    member.settled(0, 1)
    member.stub.refused["t", 1] = 3
    asked = member.work.inbox.ask({part(0): 7, part(1): 8}, True)
    assert "commit 1=8" in member.turn()
    with pytest.raises(CoordinationError, match="not committed: t/1: the topic is not there"):
        asked.wait(0)
    assert member.stub.kept == {("t", 0): Committed(7, "")}


def test_an_offset_is_asked_for_once_more_when_its_partition_comes_back() -> None:
    """Somebody else had it meanwhile: neither the offset nor what was beside it is what was read before."""
    partition = part(1)
    rows = iter([Committed(5, "log=7 lost=1-2"), Committed(9, ""), Committed(11, "log=8")])

    kept: list[str] = []

    def ask(request: Request, *_: object) -> Any:
        if request.key == COMMIT:
            kept.append(request.body.decode("latin1"))
            return {("t", 1): 0}
        return 0, {("t", 1): (0, next(rows))}

    offsets = BrokerOffsets(SimpleNamespace(ask=ask), Identity, lambda code: None)  # type: ignore[arg-type]
    offsets.read_ahead("g", [partition])
    assert offsets.load("g", partition) == 5 and offsets.log_of("g", partition) == 7
    assert offsets.load("g", partition) == 9 and offsets.log_of("g", partition) == 0
    offsets.save("g", {partition: 10})
    assert offsets.load("g", partition) == 11 and offsets.log_of("g", partition) == 8
    offsets.save("g", {partition: 12})
    assert ["lost=" in each for each in kept] == [False, False] and "log=8" in kept[1]


def test_every_row_of_an_answer_counts() -> None:
    """Also one that says of a membership that it is over, behind one that does not, and one that is missing."""
    answers: list[Any] = [{("t", 0): 3, ("t", 1): 25}, {("t", 0): 0}, (0, {("t", 0): (29, Committed(-1, ""))})]
    told: list[int] = []
    coordinator = SimpleNamespace(ask=lambda *_: answers.pop(0))
    offsets = BrokerOffsets(coordinator, Identity, told.append)  # type: ignore[arg-type]
    with pytest.raises(SessionLostError):
        offsets.save("g", {part(0): 1, part(1): 2})
    assert told == [25]
    with pytest.raises(CoordinatorError, match="not committed: t/1: ") as raised:
        offsets.save("g", {part(0): 1, part(1): 2})
    assert raised.value.code == -1
    with pytest.raises(CoordinatorError, match="cannot be read") as raised:
        offsets.load("g", part(0))
    assert raised.value.code == 29


def test_the_text_beside_an_offset(member: Member) -> None:
    """Which log it is of, and what was lost of it; both stay until they change."""
    member.stub.kept["t", 0] = Committed(5, "log=1234 lost=3-9")
    member.settled(0, 1)
    member.readers.made = {part(1): 99}
    member.work.inbox.jumps[part(1)] = (4, 44)
    member.work.inbox.ask({part(0): 7, part(1): 50}, False)
    member.turn()
    member.work.inbox.ask({part(0): 8, part(1): 51}, False)
    member.turn()
    first, second = Committed(8, "log=1234 lost=3-9"), Committed(51, "log=99 lost=4-44")
    assert member.stub.kept == {("t", 0): first, ("t", 1): second}
    assert not member.work.inbox.jumps


@pytest.mark.parametrize("code", [23, 24, 26, 30, 42])
def test_who_cannot_be_a_member_is_told_at_once(member: Member, code: int) -> None:
    """With these settings no second try helps; but who has been a member before goes on trying."""
    member.turn()
    member.joined(code=code)
    with pytest.raises(SessionLostError):
        member.life.turn()
    assert isinstance(member.work.refusal, ConfigError)
    member.work.refusal, member.work.has_been_member = None, True
    again = BrokerGroupSession(member.work, Membership(member.stub, SESSION))  # type: ignore[arg-type]
    again.turn()
    member.joined(code=code)
    again.turn()
    assert member.work.refusal is None and member.status.state is GroupState.FAILING
    assert f"(error {code})" in str(member.status.error)


@pytest.mark.parametrize("code", [81, 14, 15, 16, -1])
def test_who_cannot_be_a_member_now_tries_again(member: Member, code: int) -> None:
    member.turn()
    member.joined(code=code)
    assert member.turn() == [] and member.status.state is GroupState.FAILING
    assert member.life._next_due() > member.clock.now and f"(error {code})" in str(member.status.error)
    member.clock.now = member.life._next_due()
    assert member.turn() == ["join"]


@pytest.mark.parametrize(("code", "follows"), [(27, "join"), (14, "sync"), (15, "sync"), (16, "sync"), (-1, "join")])
def test_an_assignment_may_not_come(member: Member, code: int, follows: str) -> None:
    member.turn()
    member.joined(2)
    member.given(code=code)
    member.turn()
    assert not member.status.is_member
    assert member.turn() == [follows]


@pytest.mark.parametrize("code", [25, 22])
def test_a_membership_may_end_before_the_assignment(member: Member, code: int) -> None:
    member.turn()
    member.joined(2)
    member.given(code=code)
    with pytest.raises(SessionLostError):
        member.life.turn()


def test_connections_break(member: Member) -> None:
    """What was posted is posted again: a join as a join, a sync as a sync. Heartbeats are tried again."""
    member.turn()
    member.stub.coming.append(NotReachedError("broken"))
    assert member.turn() == [] and member.status.state is GroupState.FAILING
    assert member.turn() == ["join"]
    member.joined(2)
    assert member.turn() == ["sync"]
    member.stub.coming.append(NotReachedError("broken"))
    member.turn()
    member.stub.codes[SYNC] = [-2]
    assert member.turn() == ["sync"] and member.turn() == ["sync"]
    member.given(0)
    member.turn()
    member.clock.now += 1
    member.stub.codes[BEAT] = [-2]
    assert member.turn() == [] and "away" in str(member.status.error) and member.readers.claims
    member.clock.now = member.life._next_due()
    assert member.turn() == ["beat"] and member.status.state is GroupState.ASSIGNED


def test_one_of_two_of_a_name_waits(member: Member) -> None:
    """It is a member whose heartbeats keep its place, reads nothing, says why; and is let in later."""
    member.turn()
    member.joined(2)
    member.given(refused="another one")
    member.turn()
    assert not member.status.is_member and member.status.state is GroupState.FAILING
    assert str(member.status.error) == "another one"
    member.stub.codes[BEAT] = [27]
    assert member.turn() == ["beat", "join"] and not member.view().accepted
    member.joined(3)
    member.given(0)
    member.turn()
    member.turn()
    assert member.status.is_member and member.status.error is None


def test_a_leader_may_lie(member: Member) -> None:
    """A stream that is not there is refused, and no reader hears of it."""
    member.turn()
    member.joined(2)
    data = Given({("t", 0): 2}, 1).encode()
    member.stub.coming.append(
        answer(requests.sync("g", Identity(), {}), {"throttle_time": 0, "error_code": 0, "assignment": data})
    )
    member.turn()
    assert "to stream 2, and there are 2" in str(member.status.error) and not member.readers.claims


def leave(member: Member) -> list[str]:
    member.events.clear()
    member.work.inbox.stop()
    member.life.run()
    return list(member.events)


def test_leaving(member: Member) -> None:
    """Reading ends, what was read is committed, the others are told, and the connection is closed."""
    member.settled(0)
    member.life._holdings._auto_commit = True
    member.readers.consume(part(0), 5)
    assert leave(member) == ["release 0", "commit 0=5", "leave", "close"]


def test_leaving_while_it_joins(member: Member) -> None:
    """A generation that is about to begin is waited for, as it would refuse a commit; not for long."""
    member.settled(0)
    member.life._holdings._auto_commit = True
    member.readers.consume(part(0), 5)
    member.stub.codes[BEAT] = [27]
    member.turn()
    member.joined(2)
    member.given(0, 1)
    assert leave(member) == ["sync", "release 0", "commit 0=5", "leave", "close"]
    assert read(member.stub.asked[-2]).generation_id_or_member_epoch == 2


def test_leaving_without_an_answer(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    member.turn()
    poll = member.stub.poll

    def waiting(seconds: float) -> Answer | None:
        member.clock.now += seconds
        return poll(seconds)

    monkeypatch.setattr(member.stub, "poll", waiting)
    monkeypatch.setattr(member.stub, "ask", lambda *_, **__: pytest.fail("it has no id to leave with"))
    began = member.clock.now
    assert leave(member) == ["close"]
    assert member.clock.now - began == pytest.approx(1.0, abs=0.1)


class Store:
    """Offsets of the user's own, in which others save."""

    def __init__(self) -> None:
        self.kept = {part(0): 5, part(1): 6}
        self.others: set[TopicPartition] = set()

    def load(self, group: str, partition: TopicPartition) -> int | None:
        return self.kept.get(partition)

    def save(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.kept.update(offsets)

    def fenced(self, group: str) -> set[TopicPartition]:
        found, self.others = self.others, set()
        return found


def test_a_store_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets are asked of nobody else; what it did not take is loaded again."""
    store = Store()
    member = Member(monkeypatch, store=store)
    member.settled(0, 1)
    assert not any(request.key in (COMMIT, FETCH) for request in member.stub.asked)
    assert {key: claim.offset for key, claim in member.readers.claims.items()} == store.kept
    store.kept[part(1)] = 66
    store.others = {part(1)}
    assert member.turn() == ["beat", "release 1", "take 1"]
    assert member.readers.claims[part(1)].offset == 66


def test_a_filter_asks_for_all_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    member = Member(monkeypatch, Subscription({}, "t.*", True, 1))
    member.counts = {"t": 1, "ta": 1, "u": 1}
    member.turn()
    assert member.looks == [None] and sorted(member.status.partitions) == ["t", "ta"]
    topics = Answer(read(member.stub.posted).protocols[0].metadata)  # type: ignore[arg-type]
    topics.int16("version")
    assert topics.items("topics", 2, lambda: topics.text("topic")) == ["t", "ta"]


def test_a_broker_that_does_not_say_what_it_has(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is joined for; afterwards it goes on as if nothing had been."""

    def silent(*_: object) -> Found:
        raise CoordinationError("silent")

    with monkeypatch.context() as patch:
        patch.setattr(module, "find_topics", silent)
        assert member.turn() == [] and str(member.status.error) == "silent"
    assert member.turn() == ["join"]


def test_a_filter_that_is_none_is_the_members_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so where it is asked how it stands, and joins nothing."""
    member = Member(monkeypatch, Subscription({}, "(", True, 1))
    assert member.turn() == [] and isinstance(member.status.error, CoordinationError)
    assert "(" in str(member.status.error)


def test_a_place_is_given_up_from_any_thread() -> None:
    """By the worker's own at once; others have it told that nothing comes any more, and leave the closing to it."""

    class Noting:
        is_connected = True

        def __init__(self) -> None:
            self.said: list[str] = []

        def close(self) -> None:
            self.said.append("close")

        def interrupt(self) -> None:
            self.said.append("interrupt")

    noting = Noting()
    place = Membership(noting, SESSION)  # type: ignore[arg-type]
    assert place.is_connected
    other = threading.Thread(target=place.close)
    other.start()
    other.join()
    assert noting.said == ["interrupt"] and place.is_lost and not place.is_connected
    place.close()
    assert noting.said == ["interrupt", "close"]


def test_how_often_it_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its setting, but four times in a session."""
    for interval, expected in ((500, 0.5), (2500, 2.5), (9000, 2.5)):
        member = Member(monkeypatch, heartbeat_interval_ms=interval)
        member.settled()
        member.clock.now += SESSION
        assert member.turn() == ["beat"]
        assert member.life._proof_due - member.clock.now == pytest.approx(expected)
