"""The classic protocol of one consumer group: requests and time in, answers and what is to be stored out, no I/O.

    Empty ── join ──> PreparingRebalance ── all have joined, or time is over ──> CompletingRebalance
      ^                 ^    ^                                                       │ the leader's assignment is stored
      │ the last one    │    └── join, leave, expiry, a member that does not sync ───┤
      └─────────────────┴──────────────── join, leave, expiry ─────────────────── Stable

A join waits until the rebalance completes, a sync until the assignment of its generation is stored; a ``Promise`` is
the answer to come. What is to be made durable is taken with ``take_stores`` after each call, in order, and each is
settled with what came of it: until then nobody gets an answer. Times are milliseconds of any steady clock. ``due`` says
when to call ``tick`` at the latest.

Source: Apache Kafka 4.2 (GroupMetadataManager's classic groups, ClassicGroup), for the order of checks and the codes;
KIP-345 (static members), KIP-394 (an id before a member).
"""

from __future__ import annotations

import enum
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from fastlog.kafka_codes import Code
from fastlog.workers.coordinator.groups.members import (
    NEVER,
    Joined,
    JoinedMember,
    Joining,
    Member,
    Stored,
    StoredMember,
    Synced,
)
from fastlog.workers.coordinator.promises import Promise

NEW_MEMBER_MS = 300_000
"""What the first join of a member waits at most; the rebalances of others may delay it."""


class State(enum.Enum):
    """The states of a group, named as Kafka's ListGroups names them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Limits(NamedTuple):
    """What holds for every group of a broker; times in milliseconds."""

    initial_delay_ms: int
    max_size: int


class Store(NamedTuple):
    """Something to keep: ``settle`` is for the group itself."""

    record: Stored
    settle: Callable[[Code, int], None]


def _unique() -> str:
    return str(uuid.uuid4())


class Group:
    """The state machine of one group; not thread-safe."""

    def __init__(self, limits: Limits, new_id: Callable[[], str] = _unique) -> None:
        self._limits = limits
        self._new_id = new_id
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.due = NEVER
        """Nothing happens by time alone before."""
        self._static: dict[str, str] = {}  # instance id → member id
        self._promised: dict[str, int] = {}  # ids given to members that have not joined with them yet → until when
        self._join_until = NEVER
        self._initial_left_ms: int | None = None  # of the first rebalance of an empty group: what it may wait still
        self._has_more = False  # somebody has joined since the first rebalance began to wait
        self._unsynced: set[str] = set()  # of a generation: those that have not asked for their assignment
        self._sync_until = NEVER
        self._storing = -1  # the generation whose assignment is being stored
        self._stores: list[Store] = []
        self._kept: Stored | None = None  # what was given to be stored last
        self._stored: Stored | None = None  # what a successor finds, if this coordinator dies now

    @classmethod
    def restored(cls, record: Stored, limits: Limits, now: int, new_id: Callable[[], str] = _unique) -> Group:
        """A group as it was kept; every member has its whole time to be heard of."""
        group = cls(limits, new_id)
        group._kept = group._stored = record
        group.generation = record.generation
        group.protocol_type = record.protocol_type
        for kept in record.members:
            protocols = ((record.protocol or "", kept.metadata),)
            asked = Joining(
                kept.member_id,
                kept.instance_id,
                kept.client_id,
                kept.client_host,
                kept.session_ms,
                kept.rebalance_ms,
                record.protocol_type,
                protocols,
            )
            member = group._add(kept.member_id, asked)
            member.assignment = kept.assignment
            group._heard_of(member, now)
        if group.members:
            group.state = State.STABLE
            group.protocol = record.protocol
            group.leader = record.leader
        return group

    # -- asked by members ----------------------------------------------------------------------------------------------

    def join(self, asked: Joining, now: int) -> Promise[Joined]:
        """Have a member join, or join again; given once the generation begins."""
        code = self._refusal(asked)
        if code:
            self._complete_if_all_joined(now)  # the others may have waited for it, with an id that it was promised
            return Promise(Joined(code, asked.member_id))
        if asked.member_id:
            return self._join_known(asked, now)
        if asked.instance_id is not None:
            former = self._static.get(asked.instance_id)
            if former is not None:
                return self._replace(former, asked, now)
        elif asked.needs_id:
            member_id = self._make_id(asked)
            self._promised[member_id] = now + asked.session_ms
            self._at(now + asked.session_ms)
            return Promise(Joined(Code.MEMBER_ID_REQUIRED, member_id))
        return self._join_new(self._make_id(asked), asked, now)

    def sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol_type: str | None,
        protocol: str | None,
        assignments: Mapping[str, bytes],
        now: int,
    ) -> Promise[Synced]:
        """A member asks for its assignment; the leader brings everybody's."""
        code = self._refusal_of(member_id, instance_id, generation)
        if not code and (protocol_type not in (None, self.protocol_type) or protocol not in (None, self.protocol)):
            code = Code.INCONSISTENT_GROUP_PROTOCOL
        if not code and self.state is State.PREPARING:
            code = Code.REBALANCE_IN_PROGRESS
        if code:
            return Promise(Synced(code))
        member = self.members[member_id]
        self._heard_of(member, now)
        self._unsynced.discard(member_id)
        if self.state is State.STABLE:
            return Promise(self._synced(member))
        member.answer_sync(Synced(Code.UNKNOWN_MEMBER_ID))  # whoever asked on a connection that broke
        waiting = member.syncing = Promise()
        if member_id == self.leader and self._storing != generation:
            self._storing = generation
            record = self._record(lambda each: assignments.get(each.member_id, b""))
            self._keep(record, lambda code, then: self._assign(record, code, then))
        return waiting

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: int) -> Code:
        """Extend a member's session; the code says whether it has to join again."""
        code = self._refusal_of(member_id, instance_id, generation)
        if not code:
            self._heard_of(self.members[member_id], now)
            if self.state is State.PREPARING:
                return Code.REBALANCE_IN_PROGRESS
        return code

    def leave(self, who: Sequence[tuple[str, str | None]], now: int) -> list[tuple[str, Code]]:
        """Members leave, given by their ids and instance ids, of which the latter is enough; what is said of each."""
        count = len(self.members)
        answers = [self._leave(member_id, instance_id) for member_id, instance_id in who]
        if len(self.members) < count:
            self._rebalance(now)
        else:
            self._complete_if_all_joined(now)  # the others may have waited for who had an id alone
        return answers

    def refusal_to_commit(self, member_id: str, instance_id: str | None, generation: int, now: int) -> Code:
        """Why an offset may not be committed. Without members, those who are in no group may."""
        if generation < 0 and self.state is State.EMPTY:
            return Code.NONE
        code = self._refusal_of(member_id, instance_id, generation)
        if not code:
            self._heard_of(self.members[member_id], now)
            if self.state is State.COMPLETING:
                return Code.REBALANCE_IN_PROGRESS
        return code

    # -- asked by time and by who stores -------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Do what is due, and find out what is next."""
        if now >= self.due:
            gone = [member_id for member_id, until in self._promised.items() if until <= now]
            for member_id in gone:
                del self._promised[member_id]
            late = [each.member_id for each in self.members.values() if self._expires_at(each) <= now]
            if self._sync_until <= now:
                self._sync_until = NEVER
                late += [member_id for member_id in self._unsynced if member_id not in late]
            for member_id in late:
                self._remove(member_id)
            if late:
                self._rebalance(now)
            elif gone:
                self._complete_if_all_joined(now)
            if self._join_until <= now:
                self._join_time_is_over(now)
        self.due = min(
            self._join_until,
            self._sync_until,
            min(self._promised.values(), default=NEVER),
            min(map(self._expires_at, self.members.values()), default=NEVER),
        )

    def take_stores(self) -> list[Store]:
        """What is to be kept since it was last asked; each is to be settled."""
        taken, self._stores = self._stores, []
        return taken

    def give_up(self, code: Code) -> None:
        """Answer all that waits: nothing more comes of this group."""
        for member in self.members.values():
            member.answer_join(Joined(code, member.member_id))
            member.answer_sync(Synced(code))

    # -- looked at -----------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Bytes that it makes the coordinator keep, about."""
        return sum(each.size for each in self.members.values())

    @property
    def is_idle(self) -> bool:
        """Whether nobody is in it, nor about to be."""
        return self.state is State.EMPTY and not self._promised

    # -- refusing ------------------------------------------------------------------------------------------------------

    def _refusal(self, asked: Joining) -> Code:
        """The error code for a member that cannot join; NONE: it can."""
        known = self.members.get(asked.member_id)
        if self.state is State.PREPARING:
            has_room = (known is not None and known.joining is not None) or self._joined_count() < self._limits.max_size
        else:
            has_room = known is not None or len(self.members) < self._limits.max_size
        if not asked.member_id and asked.instance_id in self._static:
            has_room = True  # it takes its own former place
        elif not asked.member_id and len(self._promised) >= self._limits.max_size:
            has_room = False
        if not has_room:
            self._promised.pop(asked.member_id, None)
            return Code.GROUP_MAX_SIZE_REACHED
        if not self._has_in_common(asked):
            return Code.INCONSISTENT_GROUP_PROTOCOL
        return Code.NONE

    def _has_in_common(self, asked: Joining) -> bool:
        """Whether everybody else has one of its assignors."""
        names = {name for name, _ in asked.protocols}
        if not asked.protocol_type or not names:
            return False
        if not self.members:
            return True
        return asked.protocol_type == self.protocol_type and bool(names & self._common_protocols())

    def _refusal_of(self, member_id: str, instance_id: str | None, generation: int) -> Code:
        """Why somebody is not a member of this generation."""
        code = self._refusal_of_id(member_id, instance_id)
        if not code and generation != self.generation:
            code = Code.ILLEGAL_GENERATION
        return code

    def _refusal_of_id(self, member_id: str, instance_id: str | None) -> Code:
        if instance_id is not None:
            known = self._static.get(instance_id)
            if known is None:
                return Code.UNKNOWN_MEMBER_ID
            return Code.NONE if known == member_id else Code.FENCED_INSTANCE_ID
        return Code.NONE if member_id in self.members else Code.UNKNOWN_MEMBER_ID

    # -- joining -------------------------------------------------------------------------------------------------------

    def _make_id(self, asked: Joining) -> str:
        return f"{asked.instance_id or asked.client_id}-{self._new_id()}"

    def _join_known(self, asked: Joining, now: int) -> Promise[Joined]:
        if asked.member_id in self._promised and asked.instance_id is None:
            return self._join_new(asked.member_id, asked, now)
        code = self._refusal_of_id(asked.member_id, asked.instance_id)
        if code:
            return Promise(Joined(code, asked.member_id))
        member = self.members[asked.member_id]
        is_same = member.protocols == asked.protocols
        is_leader = self.leader == member.member_id
        if is_same and (self.state is State.COMPLETING or (self.state is State.STABLE and not is_leader)):
            # its answer was lost, or it joins without a reason: it is in this generation already
            self._heard_of(member, now)
            return Promise(self._joined(member))
        self._update(member, asked)
        return self._wait_to_join(member, now)

    def _join_new(self, member_id: str, asked: Joining, now: int) -> Promise[Joined]:
        if not self.members:
            self.protocol_type = asked.protocol_type
        self._promised.pop(member_id, None)
        member = self._add(member_id, asked)
        member.is_new = True
        member.expires_at = now + NEW_MEMBER_MS
        self._at(member.expires_at)
        self._has_more = True
        return self._wait_to_join(member, now)

    def _replace(self, former: str, asked: Joining, now: int) -> Promise[Joined]:
        """A static member has started again: it goes on in the place of its former self, which is fenced."""
        member = self.members.pop(former)
        member.answer_join(Joined(Code.FENCED_INSTANCE_ID, former))
        member.answer_sync(Synced(Code.FENCED_INSTANCE_ID))
        self._unsynced.discard(former)
        member.member_id = self._make_id(asked)
        self.members[member.member_id] = member
        self._static[member.instance_id or ""] = member.member_id
        was_leader = self.leader == former
        if was_leader:
            self.leader = member.member_id
        self._update(member, asked)
        self._heard_of(member, now)
        member_id = member.member_id
        waiting: Promise[Joined] = Promise()
        goes_on = self.state is State.STABLE and self._chosen_protocol() == self.protocol
        answer = self._joined(member)  # nobody else notices
        if asked.skips_assignment:
            answer = answer._replace(skip_assignment=was_leader)
        else:  # it would assign anew if it knew that it leads
            answer = answer._replace(leader=former, members=())

        if not goes_on:
            return self._wait_to_join(member, now)

        def settle(code: Code, _now: int) -> None:
            waiting.give(Joined(code, member_id) if code else answer)

        self._keep(self._record(lambda each: each.assignment), settle)
        return waiting

    def _keep(self, record: Stored, settle: Callable[[Code, int], None]) -> None:
        def settled(code: Code, now: int) -> None:
            if not code:
                self._stored = record
            settle(code, now)

        self._kept = record
        self._stores.append(Store(record, settled))

    def _add(self, member_id: str, asked: Joining) -> Member:
        member = self.members[member_id] = Member(member_id, asked)
        if asked.instance_id is not None:
            self._static[asked.instance_id] = member_id
        return member

    def _update(self, member: Member, asked: Joining) -> None:
        member.protocols = asked.protocols
        member.session_ms, member.rebalance_ms = asked.session_ms, asked.rebalance_ms
        member.client_id, member.client_host = asked.client_id, asked.client_host

    def _wait_to_join(self, member: Member, now: int) -> Promise[Joined]:
        member.answer_join(Joined(Code.UNKNOWN_MEMBER_ID, member.member_id))  # whoever asked before
        record = self._kept_with(member)
        if record is None:
            waiting = member.joining = Promise()
            self._rebalance(now)
            return waiting
        # Begun before the new id is kept: the leader's assignment, which may be on its way, gives the former id a part
        # that the new one would be without, and for good if it could not be kept and came again to a stable group.
        self._rebalance(now)
        member_id, asked = member.member_id, Promise[Joined]()

        def settle(code: Code, then: int) -> None:
            if self.members.get(member_id) is not member:
                asked.give(Joined(Code.UNKNOWN_MEMBER_ID, member_id))
            elif code:
                asked.give(Joined(code, member_id))
            else:
                self._wait_to_join(member, then).then(asked.give)

        self._keep(record, settle)
        return asked

    def _kept_with(self, member: Member) -> Stored | None:
        """What is kept, with the id that a static member has now; None where no other id of it is kept.

        Before it joins: else the next coordinator would fence it, because it knows its former self. That may be the one
        in what is stored, too, while what is given to be stored is without it.
        """
        if member.instance_id is None or self._kept is None:
            return None
        known = (*self._kept.members, *(self._stored.members if self._stored is not None else ()))
        others = [
            each for each in known if each.instance_id == member.instance_id and each.member_id != member.member_id
        ]
        if not others:
            return None
        ids = {each.member_id: member.member_id for each in others}
        members = tuple(each._replace(member_id=ids.get(each.member_id, each.member_id)) for each in self._kept.members)
        leader = self._kept.leader
        return self._kept._replace(members=members, leader=ids.get(leader, leader) if leader else leader)

    def _leave(self, member_id: str, instance_id: str | None) -> tuple[str, Code]:
        if instance_id is not None and not member_id:
            member_id = self._static.get(instance_id, "")
        elif instance_id is None and self._promised.pop(member_id, None) is not None:
            return member_id, Code.NONE
        code = self._refusal_of_id(member_id, instance_id)
        if not code:
            self._remove(member_id)
        return member_id, code

    def _remove(self, member_id: str) -> None:
        member = self.members.pop(member_id)
        member.answer_join(Joined(Code.UNKNOWN_MEMBER_ID, member_id))
        member.answer_sync(Synced(Code.UNKNOWN_MEMBER_ID))
        if member.instance_id is not None:
            del self._static[member.instance_id]
        if self.leader == member_id:
            self.leader = next((each.member_id for each in self.members.values() if each.joining), None)

    # -- rebalancing ---------------------------------------------------------------------------------------------------

    def _rebalance(self, now: int) -> None:
        """Somebody came, went or said something new: begin a rebalance, or see whether one under way is complete."""
        if self.state is State.PREPARING:
            self._complete_if_all_joined(now)
            return
        self._answer_syncs(Code.REBALANCE_IN_PROGRESS, now)
        self._sync_until = NEVER
        was_empty = self.state is State.EMPTY
        self.state = State.PREPARING
        most = self._rebalance_ms()
        self._join_until = now + most
        if was_empty:
            delay = min(self._limits.initial_delay_ms, most)
            self._initial_left_ms, self._has_more = most - delay, False
            self._join_until = now + delay
            if not delay:
                self._complete(now)
        self._at(self._join_until)
        self._complete_if_all_joined(now)

    def _join_time_is_over(self, now: int) -> None:
        if self._initial_left_ms and self._has_more:
            # as long as more come, others are likely to
            delay = min(self._limits.initial_delay_ms, self._initial_left_ms)
            self._initial_left_ms -= delay
            self._has_more = False
            self._join_until = now + delay
        else:
            self._complete(now)

    def _complete_if_all_joined(self, now: int) -> None:
        if self.state is not State.PREPARING or (self._initial_left_ms is not None and self.members):
            return
        if not self._promised and self._joined_count() == len(self.members):
            self._complete(now)

    def _complete(self, now: int) -> None:
        """Begin a generation of those that have joined, and of static members, who may be on their way back."""
        for member in list(self.members.values()):
            if member.joining is None and member.instance_id is None:
                self._remove(member.member_id)
        leader = self.members.get(self.leader or "")
        if leader is None or leader.joining is None:
            following = next((each for each in self.members.values() if each.joining is not None), None)
            if following is None and self.members:
                self._join_until, self._initial_left_ms = now + self._rebalance_ms(), None
                return
            self.leader = following.member_id if following is not None else None
        self._join_until, self._initial_left_ms = NEVER, None
        self.generation += 1
        if not self.members:
            self.state, self.protocol = State.EMPTY, None
            self._keep(self._record(lambda _: b""), lambda _code, _now: None)
            return
        self.state, self.protocol = State.COMPLETING, self._chosen_protocol()
        self._unsynced = set(self.members)
        self._sync_until = now + self._rebalance_ms()
        self._at(self._sync_until)
        for member in self.members.values():
            member.is_new = False
            self._heard_of(member, now)
            member.answer_join(self._joined(member))

    def _assign(self, record: Stored, code: Code, now: int) -> None:
        """What the leader assigned is stored, or is not: tell those that wait, unless a rebalance has begun since."""
        if self.state is not State.COMPLETING or self.generation != record.generation:
            return
        if code:
            self._answer_syncs(code, now)
            self._rebalance(now)
            return
        given = {each.member_id: each.assignment for each in record.members}
        self.state = State.STABLE
        for member in self.members.values():
            member.assignment = given.get(member.member_id, b"")
            if member.syncing is not None:
                self._heard_of(member, now)
                member.answer_sync(self._synced(member))

    def _answer_syncs(self, code: Code, now: int) -> None:
        """Have those that wait for an assignment come again; until now they could not be heard of."""
        for member in self.members.values():
            if member.syncing is not None:
                self._heard_of(member, now)
                member.answer_sync(Synced(code))

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _at(self, when: int) -> None:
        self.due = min(self.due, when)

    def _heard_of(self, member: Member, now: int) -> None:
        member.expires_at = now + member.session_ms
        self._at(member.expires_at)

    def _expires_at(self, member: Member) -> int:
        """When a member counts as dead; one that waits for an answer is alive, unless it has never had any."""
        if not member.is_new and (member.joining is not None or member.syncing is not None):
            return NEVER
        return member.expires_at

    def _joined_count(self) -> int:
        return sum(1 for each in self.members.values() if each.joining is not None)

    def _rebalance_ms(self) -> int:
        return max((each.rebalance_ms for each in self.members.values()), default=0)

    def _common_protocols(self) -> set[str]:
        """The assignors that all members have."""
        names = [{name for name, _ in each.protocols} for each in self.members.values()]
        return set.intersection(*names) if names else set()

    def _chosen_protocol(self) -> str:
        """The assignor that most members like best of those that all have; of equals the one the leader prefers."""
        common = self._common_protocols()
        votes = Counter(next(name for name, _ in each.protocols if name in common) for each in self.members.values())
        leader = self.members.get(self.leader or "") or next(iter(self.members.values()))
        order = [name for name, _ in leader.protocols]
        return max(votes, key=lambda name: (votes[name], -order.index(name)))

    def _joined(self, member: Member) -> Joined:
        members: Iterable[Member] = self.members.values() if member.member_id == self.leader else ()
        return Joined(
            Code.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader or "",
            tuple(JoinedMember(each.member_id, each.instance_id, each.metadata(self.protocol)) for each in members),
        )

    def _synced(self, member: Member) -> Synced:
        return Synced(Code.NONE, self.protocol_type, self.protocol, member.assignment)

    def _record(self, assignment: Callable[[Member], bytes]) -> Stored:
        return Stored(
            self.protocol_type,
            self.generation,
            self.protocol,
            self.leader,
            tuple(
                StoredMember(
                    each.member_id,
                    each.instance_id,
                    each.client_id,
                    each.client_host,
                    each.rebalance_ms,
                    each.session_ms,
                    each.metadata(self.protocol),
                    assignment(each),
                )
                for each in self.members.values()
            ),
        )
