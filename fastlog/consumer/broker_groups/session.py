"""A member of a group that a broker keeps, from its first join until the coordinator knows it no more.

    JOIN ── post ──> JOINING ── the generation is complete ──> SYNC ── post ──> SYNCING ── what is given ──> MEMBER
      ^                                                                                                        │
      └───── a heartbeat says that the group rebalances; the leader sees new topics; something was let go ─────┘

It reads on while it joins again (``assignor`` says why that is safe), and commits only as a MEMBER: in between its
generation may end at any moment. The coordinator gives its partitions to nobody before it has been silent for a
session, or has not joined for a rebalance's time, which is no shorter; both begin behind the last request that was
answered well, and the lease ends before.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Mapping

from fastlog import escaping
from fastlog.client import group_requests as requests
from fastlog.client.addresses import Address
from fastlog.client.coordinator import PASSING, Coordinator, CoordinatorError, NotReachedError, meaning_of
from fastlog.client.group_requests import Identity
from fastlog.consumer.broker_groups import assignor
from fastlog.consumer.broker_groups.assignor import Given, MemberView
from fastlog.consumer.broker_groups.offsets import GONE, BrokerOffsets, place_of
from fastlog.consumer.broker_groups.topics import Found, find_topics
from fastlog.consumer.holdings import HeldPartition, Holdings
from fastlog.consumer.member_session import GroupWork, MemberSession
from fastlog.consumer.partitions import Lease, TopicPartition
from fastlog.consumer.status import GroupState
from fastlog.coordination.session import SessionLostError
from fastlog.errors import ConfigError, CoordinationError, FastlogError
from fastlog.kafka_codes import Code
from fastlog.zkpaths import PartitionId

log = escaping.logger(__name__)

REBALANCE_SESSIONS = 2
"""How many sessions a rebalance may last. Not fewer than one: see above."""
LEASE_SHARE = 0.9
"""The share of the session's time-out that a lease holds for: two clocks do not run alike."""
_LOOK_SECONDS = 0.05
_GOODBYE_SECONDS = 1.0
_REFUSALS = frozenset(
    (
        Code.INCONSISTENT_GROUP_PROTOCOL,
        Code.INVALID_GROUP_ID,
        Code.INVALID_SESSION_TIMEOUT,
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.INVALID_REQUEST,
    )
)


def refusal_of(error: CoordinatorError) -> FastlogError | None:
    """What no second try makes better, as an error of the settings; None for anything else."""
    return ConfigError(str(error)) if error.code in _REFUSALS else None


class CoordinatorSession:
    """A membership in a broker's group, in place of a session with ZooKeeper (``AnySession``). Made by the worker."""

    def __init__(self, coordinator: Coordinator, timeout: float) -> None:
        self.coordinator = coordinator
        self.timeout = timeout
        self.who = Identity()
        self.is_lost = False
        self._owner = threading.get_ident()

    @property
    def id(self) -> str:
        """The member's id; empty before it has one."""
        return self.who.member

    @property
    def is_connected(self) -> bool:
        """Whether the coordinator answers."""
        return not self.is_lost and self.coordinator.is_connected

    def close(self) -> None:
        """Send no more requests, and end one that waits; from any thread."""
        self.is_lost = True
        if threading.get_ident() == self._owner:
            self.coordinator.close()
        else:
            self.coordinator.interrupt()


class AssignedPartitions(Holdings):
    """What the leader has given: others have let go of it before."""

    def reconcile(self, wanted: Mapping[TopicPartition, str], addresses: Mapping[int, Address]) -> None:
        """Let go of what is not wanted any more, and read the rest."""
        self.is_reconciled = False
        self._trouble = {partition: trouble for partition, trouble in self._trouble.items() if partition in wanted}
        self._load_again()
        for partition in self._stop_leaving(wanted):
            thread = wanted.get(partition)
            if thread is None:
                self._forget(partition)
            else:
                self._held[partition].thread = thread
        for partition, thread in wanted.items():
            if partition not in self._held:
                self._held[partition] = HeldPartition(thread)
        self._begin(wanted, addresses)
        self.is_reconciled = self.read == wanted

    def _begin(self, wanted: Mapping[TopicPartition, str], addresses: Mapping[int, Address]) -> None:
        if isinstance(self._store, BrokerOffsets):
            new = [partition for partition, held in self._held.items() if not held.is_read and held.goes_on_at is None]
            self._store.read_ahead(self._group, new)
        super()._begin(wanted, addresses)


class _Phase(enum.Enum):
    JOIN, JOINING, SYNC, SYNCING, MEMBER = range(5)


class BrokerGroupSession(MemberSession):
    """One membership of a group's worker."""

    def __init__(self, work: GroupWork, place: CoordinatorSession) -> None:
        config = work.config
        self._place = place
        self._coordinator = place.coordinator
        self._offsets = BrokerOffsets(self._coordinator, lambda: self._place.who, self._on_refused)
        holdings = AssignedPartitions(
            place,
            config.group_id,
            work.readers,
            work.store or self._offsets,
            work.limited_log,
            auto_commit=config.auto_commit,
            most_pause=config.most_backoff,
            trusts_readers=work.store is None,
            between=self._prove_if_due,
            source=work.source,
        )
        super().__init__(work, place, holdings)
        self._phase = _Phase.JOIN
        self._must_join = False
        self._generation = requests.NOBODY  # in which it was given what it holds
        self._given = Given({}, whole=False)
        self._wanted: dict[TopicPartition, str] = {}
        self._found = Found(-1, {}, {})
        self._views: dict[str, MemberView] = {}  # of all members, when it leads
        self._dealt: dict[str, int] = {}
        self._posted_at = 0.0
        self._look_due = time.monotonic()

    # -- what the worker asks ------------------------------------------------------------------------------------------

    @property
    def _is_member(self) -> bool:
        return self._generation >= 0 and not self._given.refused

    @property
    def _takes_commits(self) -> bool:
        return self._phase is _Phase.MEMBER

    @property
    def _has_news(self) -> bool:
        return self._phase is not _Phase.MEMBER or self._must_join

    def _prove(self) -> None:
        if self._phase is not _Phase.MEMBER:
            return
        sent = Lease.now()
        group = self._work.config.group_id
        code = self._coordinator.ask(
            requests.heartbeat(group, self._place.who), requests.parse_code, lambda found: found
        )
        if not code:
            self._extend(sent)
        elif code == Code.REBALANCE_IN_PROGRESS:
            self._must_join = True
        else:
            self._refused(code, "the heartbeat")

    def _do_more(self, now: float) -> None:
        """Look for topics; the leader deals out again when that changes anything."""
        if now < self._look_due or self._phase is not _Phase.MEMBER:
            return
        self._look()
        if self._views and self._counts() != self._dealt:
            self._must_join = True

    @property
    def _proof_seconds(self) -> float:
        return min(super()._proof_seconds, self._work.config.heartbeat_interval_ms / 1000)

    def _more_due(self) -> list[float]:
        return [self._look_due] if self._phase is _Phase.MEMBER else []

    def _keep_jump(self, partition: TopicPartition, from_offset: int, to_offset: int) -> None:
        self._offsets.note_lost(partition, from_offset, to_offset)

    def _reconcile(self) -> None:
        status = self._work.status
        if self._phase is _Phase.MEMBER and self._must_join:
            self._phase = _Phase.JOIN
        if self._phase is not _Phase.MEMBER:
            status.state = GroupState.JOINING
            self._reconcile_due = time.monotonic()
            if not self._advance():
                return
        before = self._holdings.held
        addresses = {self._found.broker: self._coordinator.address}
        self._make_so(self._wanted, addresses, self._given.members)
        if before - self._holdings.held:
            self._must_join = True  # others wait for what it has let go of
        if self._given.refused:
            status.error = CoordinationError(self._given.refused)
            status.state = GroupState.FAILING
        elif self._must_join or not self._given.whole:
            status.state = GroupState.JOINING

    def _leave(self) -> None:
        """Commits are taken from a member of a generation, so one that is about to begin is waited for a little."""
        deadline = time.monotonic() + _GOODBYE_SECONDS
        try:
            while self._phase not in (_Phase.MEMBER, _Phase.JOIN) and time.monotonic() < deadline:
                self._advance()
        except CoordinationError as error:
            log.debug("event=left_while_joining group=%s: %s", self._work.config.group_id, error)
        super()._leave()

    def _say_goodbye(self) -> None:
        if not self._place.id or self._coordinator.is_closed:
            return
        group = self._work.config.group_id
        try:
            self._coordinator.ask(requests.leave(group, self._place.id), requests.parse_code, timeout=_GOODBYE_SECONDS)
        except FastlogError as error:  # its session ends by itself
            log.debug("event=goodbye_failed group=%s: %s", group, error)

    # -- joining -------------------------------------------------------------------------------------------------------

    def _advance(self) -> bool:
        """A step or several towards being a member; True when it is one. Waits a moment for an answer."""
        try:
            if self._phase is _Phase.JOIN:
                self._join()
            if self._phase is _Phase.JOINING:
                self._await_joined()
            if self._phase is _Phase.SYNC:
                self._sync()
            if self._phase is _Phase.SYNCING:
                self._await_given()
        except NotReachedError:
            # what was posted is lost with its connection
            self._phase = _Phase.SYNC if self._phase in (_Phase.SYNC, _Phase.SYNCING) else _Phase.JOIN
            raise
        return self._phase is _Phase.MEMBER

    def _join(self) -> None:
        work, config = self._work, self._work.config
        self._look()
        view = MemberView(
            work.consumer_id,
            work.subscription,
            self._is_member,
            frozenset(map(place_of, self._holdings.held)),
            self._generation,
        )
        session_ms = round(config.session_timeout * 1000)
        metadata = view.encode(work.status.partitions)
        self._coordinator.post(
            requests.join(
                config.group_id,
                self._place.id,
                session_ms,
                REBALANCE_SESSIONS * session_ms,
                assignor.PROTOCOL_TYPE,
                [(assignor.NAME, metadata)],
            )
        )
        self._must_join = False
        self._phase = _Phase.JOINING

    def _await_joined(self) -> None:
        answer = self._coordinator.poll(_LOOK_SECONDS)
        if answer is None:
            return
        found = requests.parse_joined(answer)
        self._phase = _Phase.JOIN
        if found.code == Code.MEMBER_ID_REQUIRED:
            self._place.who = Identity(found.member)
            return
        if found.code:
            self._refused(found.code, "joining")
        self._place.who = Identity(found.member, found.generation)
        self._views = self._parsed(found.members) if found.leader == found.member else {}
        self._phase = _Phase.SYNC

    def _parsed(self, members: Mapping[str, bytes]) -> dict[str, MemberView]:
        found = {}
        for member_id, data in members.items():
            try:
                found[member_id] = MemberView.parse(data)
            except CoordinationError as error:
                self._work.limited_log.warning(
                    member_id, "event=garbage member=%s: the member gets nothing: %s", member_id, error
                )
        return found

    def _sync(self) -> None:
        assignments: dict[str, bytes] = {}
        if self._views:
            self._look()
            self._dealt = self._counts()
            dealt = assignor.deal(self._views, self._dealt, self._bad_filter)
            assignments = {member_id: given.encode() for member_id, given in dealt.items()}
        self._posted_at = Lease.now()
        self._coordinator.post(requests.sync(self._work.config.group_id, self._place.who, assignments))
        self._phase = _Phase.SYNCING

    def _await_given(self) -> None:
        answer = self._coordinator.poll(_LOOK_SECONDS)
        if answer is None:
            return
        code, data = requests.parse_synced(answer)
        self._phase = _Phase.JOIN
        if code == Code.REBALANCE_IN_PROGRESS:
            return
        if code:
            self._phase = _Phase.SYNC if code in PASSING else _Phase.JOIN
            self._refused(code, "its assignment")
        given = Given.parse(data)
        self._wanted = self._threads(given)
        self._given = given
        self._generation = self._place.who.generation
        self._extend(self._posted_at)
        self._proof_due = time.monotonic()
        self._phase = _Phase.MEMBER

    def _threads(self, given: Given) -> dict[TopicPartition, str]:
        subscription = self._work.subscription
        found = {}
        for (topic, number), stream in given.streams.items():
            count = subscription.streams if subscription.is_filter else subscription.topics.get(topic, 0)
            if stream >= count:
                raise CoordinationError(f"the leader gives {topic}/{number} to stream {stream}, and there are {count}")
            thread = f"{self._work.consumer_id}-{stream}"
            found[TopicPartition(topic, PartitionId(self._found.broker, number))] = thread
        return found

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _extend(self, sent: float) -> None:
        self._work.lease.extend(sent, self._place.timeout * LEASE_SHARE)

    def _refused(self, code: int, what: str) -> None:
        """Raise what an error code means for the membership."""
        text = f"group {self._work.config.group_id!r}: {what}: {meaning_of(code)}"
        error = CoordinatorError(text, code)
        if code in GONE:
            if code != Code.ILLEGAL_GENERATION:
                self._place.who = Identity()  # there is nobody to say goodbye
            self._place.is_lost = True
            raise SessionLostError(text) from error
        refusal = refusal_of(error)
        if refusal is not None and not self._work.has_been_member:
            self._work.refusal = refusal
            self._place.is_lost = True
            raise SessionLostError(text) from error
        raise error

    def _on_refused(self, code: int) -> None:
        """A commit was refused: what that says of the membership, without raising."""
        if code == Code.REBALANCE_IN_PROGRESS:
            self._must_join = True
        else:
            self._place.is_lost = True

    def _look(self) -> None:
        """Which topics there are, of those that matter here."""
        work = self._work
        config = work.config
        subscriptions = [work.subscription, *(view.subscription for view in self._views.values())]
        names = None
        if not any(each.is_filter for each in subscriptions):
            names = {topic for each in subscriptions for topic in each.topics}
        self._found = found = find_topics(self._coordinator.address, names, config.session_timeout / 2)
        self._look_due = time.monotonic() + config.metadata_max_age_ms / 1000
        for topic, error in found.refused.items():
            work.limited_log.warning(
                f"topic {topic}", "event=topic_not_read group=%s topic=%s: %s", config.group_id, topic, error
            )
        try:
            topics = assignor.topics_of(work.subscription, found.counts)
        except ConfigError as error:
            raise CoordinationError(str(error)) from None
        work.status.partitions = {
            topic: [PartitionId(found.broker, number) for number in range(found.counts.get(topic, 0))]
            for topic in topics
        }

    def _counts(self) -> dict[str, int]:
        """How many partitions each topic has that any member reads."""
        counts = self._found.counts
        names: set[str] = set()
        for view in self._views.values():
            try:
                names.update(assignor.topics_of(view.subscription, counts))
            except ConfigError as error:
                self._bad_filter(view.consumer, error)
        return {name: counts[name] for name in names if name in counts}

    def _bad_filter(self, consumer: str, error: ConfigError) -> None:
        self._work.limited_log.warning(consumer, "event=garbage consumer=%s: it gets nothing: %s", consumer, error)
