"""A member of a group that ZooKeeper keeps, for as long as one session lasts: by the nodes of Kafka 0.7."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fastlog import escaping
from fastlog.consumer.member_session import GroupWork, MemberSession
from fastlog.consumer.membership import Membership, Registrations
from fastlog.consumer.offsets import ZooKeeperOffsets
from fastlog.consumer.ownership import Ownership
from fastlog.consumer.partitions import TopicPartition
from fastlog.consumer.record_lookup import RecordLookup, cannot_be_read
from fastlog.coordination.session import Session
from fastlog.coordination.watched import AUDIT_SECONDS, Watched
from fastlog.counts import listed
from fastlog.zkpaths import lost_path

log = escaping.logger(__name__)

_SHOWN_TOPICS = 10


class GroupSession(MemberSession):
    """One session with ZooKeeper of a group's worker."""

    def __init__(self, work: GroupWork, session: Session) -> None:
        config = work.config
        self._zookeeper = session
        self._watched = Watched(session, work.inbox.wake)
        self._membership = Membership(
            session, config.group_id, work.consumer_id, work.subscription, work.lease, work.limited_log
        )
        self._registrations = Registrations(
            session, self._watched, config.group_id, work.consumer_id, work.subscription, work.limited_log
        )
        self._ownership = Ownership(
            session,
            self._watched,
            config.group_id,
            work.readers,
            work.store or ZooKeeperOffsets(session),
            work.limited_log,
            auto_commit=config.auto_commit,
            most_pause=config.most_backoff,
            trusts_readers=work.store is None,
            between=self._prove_if_due,
            source=work.source,
        )
        super().__init__(work, session, self._ownership)
        self._lookup = RecordLookup(work.inbox.wake)
        self._audit_due = time.monotonic() + AUDIT_SECONDS

    @property
    def is_reconciled(self) -> bool:
        """Whether it reads exactly what it is to read, as far as it knows."""
        return self._reconcile_due is None and not self._watched.is_stale

    @property
    def _has_news(self) -> bool:
        return self._watched.is_stale

    def _prove(self) -> None:
        self._membership.prove()

    def _do_more(self, now: float) -> None:
        if now >= self._audit_due:
            self._audit_due = now + AUDIT_SECONDS
            if self._watched.audit():
                log.warning("event=watch_missed group=%s", self._work.config.group_id)
        found = self._lookup.turn(now)
        if found:
            self._reconcile_due = now  # shows it among the member's errors
        if self._work.subscription.is_filter:
            self._note_unread([topic for topic in sorted(found) if self._registrations.is_passed_by(topic)])
            return
        for topic, address in found.items():
            if topic not in self._work.status.refused:
                self._work.refuse(topic, cannot_be_read(topic, address))

    def _more_due(self) -> list[float]:
        return [self._audit_due, self._lookup.due]

    @property
    def _knows_topics(self) -> bool:
        return self._lookup.has_looked

    def _note_unread(self, topics: Sequence[str]) -> None:
        """A filter means whatever it can get: topics of the other kind are no error."""
        if topics:
            log.warning(
                "event=record_topics_unread group=%s topics=%s: the filter means these, but they are topics of record"
                " batches, and a group in ZooKeeper reads topics of Kafka 0.7 alone",
                self._work.config.group_id,
                listed(topics, _SHOWN_TOPICS, separator=","),
            )

    def _say_goodbye(self) -> None:
        self._lookup.close()

    def _keep_jump(self, partition: TopicPartition, from_offset: int, to_offset: int) -> None:
        path = lost_path(self._work.config.group_id, *partition)
        self._zookeeper.put(path, b"%d %d" % (from_offset, to_offset))

    def _reconcile(self) -> None:
        """Read the registrations, work out what is this member's, and own and read that. Raises as ``_prove``."""
        work = self._work
        cluster = self._registrations.read()
        if work.consumer_id not in cluster.members:
            self._membership.prove()
        wanted = self._registrations.wanted(cluster)
        work.status.partitions = cluster.partitions
        if not cluster.addresses:
            work.limited_log.warning(
                "no brokers",
                "event=no_brokers group=%s zookeeper=%s: no broker is registered there; does one run with --zookeeper,"
                " and with the same path behind the servers?",
                work.config.group_id,
                work.config.zk_connect,
            )
        missing = {topic for topic, partitions in cluster.partitions.items() if not partitions}
        self._lookup.follow(None if work.subscription.is_filter else missing, cluster.addresses.values())
        refused = work.status.refused
        if refused.keys() - missing:  # of Kafka 0.7 now
            work.status.refused = {topic: error for topic, error in refused.items() if topic in missing}
        self._make_so(wanted, cluster.addresses, len(cluster.members))
        if work.status.error is None:
            work.status.error = next(iter(work.status.refused.values()), None)
        self._watched.end_round()
