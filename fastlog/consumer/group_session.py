"""A member of a group for as long as one session lasts: what its worker does, in one thread."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping

from fastlog import escaping
from fastlog.client.addresses import Address
from fastlog.consumer.config import ConsumerConfig
from fastlog.consumer.membership import Membership, Registrations
from fastlog.consumer.offsets import OffsetStore, ZooKeeperOffsets, lost_error
from fastlog.consumer.ownership import Ownership
from fastlog.consumer.partitions import Lease, Readers, TopicPartition
from fastlog.consumer.rare_log import RareLog
from fastlog.consumer.standing import CommitRequest, GroupState, Inbox, Standing
from fastlog.coordination.session import Session, SessionLostError
from fastlog.coordination.watched import Watched
from fastlog.errors import ClosedError, CoordinationError, FastlogError, OwnershipLostError
from fastlog.zkpaths import Subscription, lost_path

log = escaping.logger(__name__)

AUDIT_SECONDS = 60.0
"""How often everything is read again that no watch has reported."""
LEAST_PAUSE, MOST_PAUSE = 0.05, 1.0
_BEGIN_SECONDS = 1.0
_PROOFS = 4
"""In the time of a session."""


class GroupWork:
    """What a group's worker goes by in every session."""

    def __init__(
        self,
        config: ConsumerConfig,
        consumer_id: str,
        subscription: Subscription,
        readers: Readers,
        store: OffsetStore | None,
        lease: Lease,
    ) -> None:
        self.config = config
        self.consumer_id = consumer_id
        self.subscription = subscription
        self.readers = readers
        self.store = store
        self.lease = lease
        self.standing = Standing()
        self.inbox = Inbox()
        self.rare_log = RareLog(log)
        self.source = random.Random()
        self.failures_in_a_row = 0

    def answer(self, request: CommitRequest, error: Exception | None) -> None:
        """Answer a commit; an error that nobody waits for is counted and logged."""
        if error is not None and not request.is_waited_for:
            self.commit_failed(error)
        request.answer(error)

    def commit_failed(self, error: Exception) -> None:
        """Count it, and log one in a while."""
        self.standing.failed_commits += 1
        self.rare_log.warning("commit", "event=commit_failed group=%s: %s", self.config.group_id, error)

    def auto_commit_failed(self, error: Exception) -> None:
        """Count it; too many in a row stop what would have to be done again."""
        self.commit_failed(error)
        if isinstance(error, OwnershipLostError):
            return  # the store works
        self.failures_in_a_row += 1
        most = self.config.auto_commit_max_failures
        if most is not None and self.failures_in_a_row >= most and self.lease.objection is None:
            objection = CoordinationError(
                f"{self.failures_in_a_row} automatic commits in a row have failed, and nothing more is handed out until"
                f" one works: {error}"
            )
            objection.__cause__ = error
            log.error("event=commits_fail group=%s: %s", self.config.group_id, objection)
            self.lease.objection = objection

    def commit_worked(self) -> None:
        """Streams may go on."""
        self.failures_in_a_row = 0
        self.lease.objection = None

    def told_lost(self, partitions: frozenset[TopicPartition]) -> OwnershipLostError:
        """What to raise for partitions that are gone; each is raised for once."""
        self.standing.unsaved -= partitions
        return lost_error(list(partitions))

    def refuse_commits(self) -> None:
        """Answer everybody while there is no session."""
        while (request := self.inbox.next_commit()) is not None:
            self.answer(request, self._refusal(request.offsets))

    def _refusal(self, offsets: Mapping[TopicPartition, int] | None) -> Exception:
        if self.inbox.is_stopping:
            return ClosedError("the consumer was shut down")
        lost = self.standing.unsaved if offsets is None else frozenset(offsets)
        if lost:
            return self.told_lost(lost)
        why = f": {self.standing.error}" if self.standing.error else ""
        return CoordinationError(f"not committed: there is no session with ZooKeeper at {self.config.zk_connect}{why}")

    def pause(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row."""
        return min(MOST_PAUSE, LEAST_PAUSE * 2.0 ** min(failures - 1, 30)) * self.source.uniform(0.5, 1.0)


class GroupSession:
    """One session of a group's worker."""

    def __init__(self, work: GroupWork, session: Session) -> None:
        config = work.config
        self._work = work
        self._session = session
        self._watched = Watched(session, work.inbox.wake)
        self._membership = Membership(
            session, config.group_id, work.consumer_id, work.subscription, work.lease, work.rare_log
        )
        self._registrations = Registrations(
            session, self._watched, config.group_id, work.consumer_id, work.subscription, work.rare_log
        )
        self._ownership = Ownership(
            session,
            self._watched,
            config.group_id,
            work.readers,
            work.store or ZooKeeperOffsets(session),
            work.rare_log,
            auto_commit=config.auto_commit,
            most_pause=config.most_backoff,
            trusts_readers=work.store is None,
            between=self._prove_if_due,
            source=work.source,
        )
        self._addresses: Mapping[int, Address] = {}
        self._failures = 0
        now = time.monotonic()
        self._proof_due = now
        self._settle_due: float | None = now
        self._commit_due = now + config.auto_commit_interval_ms / 1000
        self._begin_due = now
        self._audit_due = now + AUDIT_SECONDS

    @property
    def is_settled(self) -> bool:
        """It reads what it is to read, as far as it knows."""
        return self._settle_due is None and not self._watched.is_stale

    def run(self) -> bool:
        """Act until the session or the member ends; whether it ever was a member.

        Afterwards nothing is read or owned any more, and the session is closed.
        """
        work = self._work
        standing = work.standing
        was_member = False
        try:
            while not work.inbox.is_stopping:
                if self._session.is_lost:
                    raise SessionLostError("the session with ZooKeeper is over")
                self.turn()
                was_member |= standing.is_member
                if not self._watched.is_stale or self._failures:
                    work.inbox.wait(self._next_due() - time.monotonic())
            self._leave()
        except SessionLostError as error:
            standing.error = error
        except Exception as error:  # of a store or of readers: better to begin anew than to leave a dead member behind
            log.exception("event=group_failed group=%s: starting over", work.config.group_id)
            standing.error = error
        finally:
            self.end()
        return was_member

    def turn(self) -> None:
        """Everything that is due. Raises ``SessionLostError``; other trouble with ZooKeeper is noted."""
        standing = self._work.standing
        try:
            self._prove_if_due()
            standing.is_member = True
            self._ownership.note_logs()
            self._serve()
            self._do_what_is_due()
            self._failures = 0
        except SessionLostError:
            raise
        except CoordinationError as error:
            standing.error = error
            standing.state = GroupState.FAILING
            self._work.rare_log.warning("waits", "event=group_waits group=%s: %s", self._work.config.group_id, error)
            while (request := self._work.inbox.next_commit()) is not None:
                self._work.answer(request, error)  # rather now than after one more silence
            self._failures += 1
            self._settle_due = time.monotonic() + self._work.pause(self._failures)

    def _do_what_is_due(self) -> None:
        config = self._work.config
        now = time.monotonic()
        if self._work.inbox.begun and now >= self._begin_due:
            self._commit_beginnings()
        if config.auto_commit and now >= self._commit_due:
            self._auto_commit()
            pause = config.auto_commit_interval_ms / 1000
            self._commit_due = now + (pause if self._work.lease.objection is None else min(pause, MOST_PAUSE))
        if now >= self._audit_due:
            self._audit_due = now + AUDIT_SECONDS
            if self._watched.audit():
                log.warning("event=watch_missed group=%s", config.group_id)
        if (
            self._watched.is_stale
            or self._ownership.is_fenced()
            or (self._settle_due is not None and now >= self._settle_due)
        ):
            self._settle()

    def _next_due(self) -> float:
        due = [self._settle_due] if self._settle_due is not None else []
        if not self._failures:
            due += [self._proof_due, self._audit_due]
            if self._work.config.auto_commit:
                due.append(self._commit_due)
            if self._work.inbox.begun:
                due.append(self._begin_due)
        return min(due)

    def _prove_if_due(self) -> None:
        now = time.monotonic()
        if now >= self._proof_due:
            self._membership.prove()
            self._proof_due = now + self._session.timeout / _PROOFS

    def _settle(self) -> None:
        """Read what holds, and make it so."""
        work, ownership = self._work, self._ownership
        cluster = self._registrations.read()
        if work.consumer_id not in cluster.members:
            self._membership.prove()
        wanted = self._registrations.wanted(cluster)
        work.standing.partitions, work.standing.addresses = cluster.partitions, cluster.addresses
        if not cluster.addresses:
            work.rare_log.warning(
                "no brokers",
                "event=no_brokers group=%s zookeeper=%s: no broker is registered there; does one run with --zookeeper,"
                " and with the same path behind the servers?",
                work.config.group_id,
                work.config.zk_connect,
            )
        if cluster.addresses != self._addresses:
            self._addresses = cluster.addresses
            work.readers.moved(cluster.addresses)
        changes = ownership.changes
        try:
            ownership.settle(wanted, cluster.addresses)
        finally:
            self._show()
        if ownership.changes != changes:
            work.standing.rebalances += 1
            log.info(
                "event=group_changed group=%s consumer=%s owned=%d of=%d members=%d",
                work.config.group_id,
                work.consumer_id,
                len(work.standing.owned),
                len(wanted),
                len(cluster.members),
            )
        self._watched.end_round()
        self._settle_due = ownership.next_try()
        error = ownership.error(work.config.rebalance_max_retries)
        work.standing.error = error
        if ownership.is_settled:
            work.standing.state = GroupState.ASSIGNED if wanted else GroupState.NOTHING
        else:
            work.standing.state = GroupState.JOINING if error is None else GroupState.FAILING

    def _show(self) -> None:
        standing, ownership = self._work.standing, self._ownership
        standing.owned = ownership.read
        standing.committed = ownership.saved
        standing.unsaved |= ownership.unsaved
        standing.failed_commits += ownership.failed_saves
        ownership.unsaved.clear()
        ownership.failed_saves = 0

    def _serve(self) -> None:
        """Commits that were asked for, and jumps to be kept."""
        inbox = self._work.inbox
        while (request := inbox.next_commit()) is not None:
            error: Exception | None = None
            try:
                self._commit(request.offsets)
            except SessionLostError:
                inbox.commits.appendleft(request)  # answered with what was lost
                raise
            except FastlogError as failure:
                error = failure
            except Exception as failure:
                error = CoordinationError(f"offsets could not be committed: {failure!r}")
                error.__cause__ = failure
            self._work.answer(request, error)
        for partition, (from_offset, to_offset) in list(inbox.jumps.items()):
            self._session.put(lost_path(self._work.config.group_id, *partition), b"%d %d" % (from_offset, to_offset))
            inbox.jumps.pop(partition, None)

    def _commit(self, offsets: Mapping[TopicPartition, int] | None) -> None:
        work, ownership = self._work, self._ownership
        if offsets is None:
            offsets = work.readers.consumed()
            lost = work.standing.unsaved
        else:
            lost = frozenset(partition for partition in offsets if not ownership.holds(partition))
        try:
            ownership.save(offsets)
        except OwnershipLostError as error:
            lost |= frozenset(error.partitions)
        else:
            work.commit_worked()
        finally:
            work.standing.committed = ownership.saved
        if lost:
            raise work.told_lost(lost)

    def _auto_commit(self) -> None:
        try:
            self._ownership.save(self._work.readers.consumed())
        except SessionLostError:
            raise
        except Exception as error:  # a store may be the user's own; the next turn tries again
            self._work.auto_commit_failed(error)
        else:
            self._work.commit_worked()
        finally:
            self._work.standing.committed = self._ownership.saved

    def _commit_beginnings(self) -> None:
        """The broker would say something else to who owns them next, and what was not handed out yet be left out."""
        work, begun = self._work, self._work.inbox.begun
        noted = list(begun)
        for partition in noted:  # before it is read how far they are: what a jump changes meanwhile is noted again
            begun.pop(partition, None)
        consumed = work.readers.consumed()
        try:
            self._ownership.begin({partition: consumed[partition] for partition in noted if partition in consumed})
        except Exception as error:  # a store may be the user's own
            begun.update(dict.fromkeys(noted))
            if isinstance(error, SessionLostError):
                raise
            work.auto_commit_failed(error)
            self._begin_due = time.monotonic() + min(MOST_PAUSE, work.config.auto_commit_interval_ms / 1000)
        finally:
            work.standing.committed = self._ownership.saved

    def _wait_for_beginnings(self) -> None:
        """A broker that is being asked where a partition begins may still say so, and that is committed then."""
        if not self._work.config.auto_commit:
            return
        deadline = time.monotonic() + _BEGIN_SECONDS
        while self._ownership.without_offset.intersection(self._work.readers.beginning()):
            left = deadline - time.monotonic()
            if left <= 0 or self._session.is_lost:
                return
            self._work.inbox.wait(left)
            self._prove_if_due()

    def _leave(self) -> None:
        """In the order of 0.7: end reading, commit; closing the session then frees everything at once."""
        try:
            self._serve()
            self._wait_for_beginnings()
            self._commit_beginnings()
            self._ownership.leave()
        except CoordinationError as error:
            self._work.commit_failed(error)

    def end(self) -> None:
        """Read and own nothing more, and close the session."""
        standing = self._work.standing
        self._work.lease.drop()
        try:
            self._ownership.drop()
        except Exception:
            log.exception("event=readers_failed group=%s", self._work.config.group_id)
        self._show()
        standing.owned, standing.committed, standing.is_member = {}, {}, False
        standing.state = GroupState.JOINING
        self._session.close()
