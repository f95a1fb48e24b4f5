"""A member of a group for as long as one session lasts: what its worker does, whatever keeps the group."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from fastlog import escaping
from fastlog.client.addresses import Address
from fastlog.consumer.config import ConsumerConfig
from fastlog.consumer.holdings import Holdings
from fastlog.consumer.offsets import OffsetStore, lost_error
from fastlog.consumer.partitions import Lease, Readers, TopicPartition
from fastlog.consumer.status import CommitRequest, GroupState, MemberStatus, WorkerInbox
from fastlog.coordination.session import SessionLostError
from fastlog.errors import ClosedError, CoordinationError, FastlogError, OwnershipLostError
from fastlog.limited_log import LimitedLog
from fastlog.retry import pause_after
from fastlog.zkpaths import Subscription

log = escaping.logger(__name__)

LEAST_PAUSE, MOST_PAUSE = 0.05, 1.0
_BEGIN_SECONDS = 1.0
PROOFS = 4
"""How often a member proves in the time of a session that it is one."""


class AnySession(Protocol):
    """What a member has for as long as it is one: a session with ZooKeeper, or a place in a broker's group."""

    @property
    def id(self) -> int | str:
        """The session's id, or the member's."""

    @property
    def timeout(self) -> float:
        """Seconds without a request after which it ends."""

    @property
    def is_lost(self) -> bool:
        """Whether it has ended. Never becomes False again."""

    @property
    def is_connected(self) -> bool:
        """Whether a server answers. While False, the session may have ended without this process knowing yet."""

    def close(self) -> None:
        """End it, from any thread. May be called again."""


class GroupWork:
    """What a group's worker needs in every session, and what it reports."""

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
        self.status = MemberStatus()
        self.inbox = WorkerInbox()
        self.limited_log = LimitedLog(log)
        self.source = random.Random()
        self.failures_in_a_row = 0
        self.has_been_member = False
        self.refusal: FastlogError | None = None
        """Why it can never be a member with these settings; None: nothing is known against it."""
        self.on_refused: Callable[[str, FastlogError], None] = lambda topic, error: None

    def answer(self, request: CommitRequest, error: Exception | None) -> None:
        """Answer a commit; an error that nobody waits for is counted and logged."""
        if error is not None and not request.is_waited_for:
            self.commit_failed(error)
        request.answer(error)

    def commit_failed(self, error: Exception) -> None:
        """Count a failed commit, and log one at intervals."""
        self.status.failed_commits += 1
        self.limited_log.warning("commit", "event=commit_failed group=%s: %s", self.config.group_id, error)

    def auto_commit_failed(self, error: Exception) -> None:
        """Count a failed automatic commit; ``auto_commit_max_failures`` in a row stop the streams until one works."""
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
        """Note that offsets were saved: streams that failed commits have stopped may go on."""
        self.failures_in_a_row = 0
        self.lease.objection = None

    def lost_error_for(self, partitions: frozenset[TopicPartition]) -> OwnershipLostError:
        """The error to raise for partitions that were taken away; each of them is reported once."""
        self.status.unsaved -= partitions
        return lost_error(list(partitions))

    def refuse_commits(self) -> None:
        """Answer every request to commit with an error, as there is no session."""
        while (request := self.inbox.next_commit()) is not None:
            self.answer(request, self._refusal(request.offsets))

    def _refusal(self, offsets: Mapping[TopicPartition, int] | None) -> Exception:
        if self.inbox.is_stopping:
            return ClosedError("the consumer was shut down")
        lost = self.status.unsaved if offsets is None else frozenset(offsets)
        if lost:
            return self.lost_error_for(lost)
        why = f": {self.status.error}" if self.status.error else ""
        return CoordinationError(f"not committed: there is no session with {self.config.kept_by}{why}")

    def refuse(self, topic: str, error: FastlogError) -> None:
        """Report, once, that a topic asked for by name cannot be read here."""
        self.status.refused = {**self.status.refused, topic: error}
        log.error("event=topic_refused group=%s: %s", self.config.group_id, error)
        self.on_refused(topic, error)

    def pause(self, failures: int) -> float:
        """Seconds to wait after ``failures`` in a row."""
        return pause_after(failures, LEAST_PAUSE, MOST_PAUSE) * self.source.uniform(0.5, 1.0)


class MemberSession:
    """One session of a group's worker.

    What differs with what keeps the group is in the methods that have no body here.
    """

    def __init__(self, work: GroupWork, session: AnySession, holdings: Holdings) -> None:
        self._work = work
        self._session = session
        self._holdings = holdings
        self._addresses: Mapping[int, Address] = {}
        self._failures = 0
        now = time.monotonic()
        self._proof_due = now
        self._reconcile_due: float | None = now
        self._commit_due = now + work.config.auto_commit_interval_ms / 1000
        self._begin_due = now

    # -- what keeps the group ------------------------------------------------------------------------------------------

    def _prove(self) -> None:
        """Be a member, and extend the lease. Raises ``CoordinationError``, ``SessionLostError``."""
        raise NotImplementedError

    def _reconcile(self) -> None:
        """Find out what is to be read, and read it. Raises as ``_prove``."""
        raise NotImplementedError

    def _keep_jump(self, partition: TopicPartition, from_offset: int, to_offset: int) -> None:
        """Write down that the messages between were gone. Raises as ``_prove``."""
        raise NotImplementedError

    def _say_goodbye(self) -> None:
        """Let go of the partitions, before the session is closed. Raises nothing."""

    @property
    def _proof_seconds(self) -> float:
        """Seconds between two calls of ``_prove``."""
        return self._session.timeout / PROOFS

    @property
    def _is_member(self) -> bool:
        """Whether the others of the group take it for a member."""
        return True

    @property
    def _has_news(self) -> bool:
        """Whether something has changed that ``_reconcile`` has to look at."""
        return False

    @property
    def _knows_topics(self) -> bool:
        """Whether it is known of every topic, as far as brokers answer, if it can be read here."""
        return True

    @property
    def _takes_commits(self) -> bool:
        """Whether offsets can be saved now; otherwise requests to commit wait."""
        return True

    def _do_more(self, now: float) -> None:
        """Do what else is due for this kind of group. Raises as ``_prove``."""

    def _more_due(self) -> list[float]:
        """The times (``time.monotonic``) at which ``_do_more`` has something to do."""
        return []

    # -- the worker ----------------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """Act until the session or the member ends; whether it ever was a member.

        Afterwards nothing is read or owned any more, and the session is closed.
        """
        work = self._work
        status = work.status
        was_member = False
        try:
            while not work.inbox.is_stopping:
                if self._session.is_lost:
                    raise SessionLostError(f"the session with {work.config.kept_by} is over")
                self.turn()
                was_member |= status.is_member
                if not self._has_news or self._failures:
                    work.inbox.wait(self._next_due() - time.monotonic())
            self._leave()
        except SessionLostError as error:
            status.error = error
        except Exception as error:  # of a store or of readers: better to begin anew than to leave a dead member behind
            log.exception("event=group_failed group=%s: starting over", work.config.group_id)
            status.error = error
        finally:
            self.end()
        return was_member

    def turn(self) -> None:
        """Everything that is due. Raises ``SessionLostError``; other trouble is noted."""
        status = self._work.status
        try:
            self._prove_if_due()
            status.is_member = self._is_member
            self._work.has_been_member |= status.is_member
            self._holdings.note_logs()
            if self._takes_commits:
                self._serve()
            self._do_what_is_due()
            self._failures = 0
            status.knows_topics |= self._knows_topics
        except SessionLostError:
            raise
        except CoordinationError as error:
            status.error = error
            status.state = GroupState.FAILING
            self._work.limited_log.warning("waits", "event=group_waits group=%s: %s", self._work.config.group_id, error)
            while (request := self._work.inbox.next_commit()) is not None:
                self._work.answer(request, error)  # rather now than after one more silence
            self._failures += 1
            self._reconcile_due = time.monotonic() + self._work.pause(self._failures)

    def _do_what_is_due(self) -> None:
        config = self._work.config
        now = time.monotonic()
        if self._takes_commits and self._work.inbox.begun and now >= self._begin_due:
            self._commit_beginnings()
        if self._takes_commits and config.auto_commit and now >= self._commit_due:
            self._auto_commit()
            pause = config.auto_commit_interval_ms / 1000
            self._commit_due = now + (pause if self._work.lease.objection is None else min(pause, MOST_PAUSE))
        self._do_more(now)
        if (
            self._has_news
            or self._holdings.is_fenced()
            or (self._reconcile_due is not None and now >= self._reconcile_due)
        ):
            self._reconcile()

    def _next_due(self) -> float:
        due = [self._reconcile_due] if self._reconcile_due is not None else []
        if not self._failures:
            due += [self._proof_due, *self._more_due()]
            if self._work.config.auto_commit and self._takes_commits:
                due.append(self._commit_due)
            if self._work.inbox.begun and self._takes_commits:
                due.append(self._begin_due)
        return min(due)

    def _prove_if_due(self) -> None:
        now = time.monotonic()
        if now >= self._proof_due:
            self._prove()
            self._proof_due = now + self._proof_seconds

    def _make_so(self, wanted: Mapping[TopicPartition, str], addresses: Mapping[int, Address], members: int) -> None:
        """Own and read what is wanted, as far as possible, and publish the status. Raises as ``Holdings.reconcile``."""
        work, holdings = self._work, self._holdings
        work.status.addresses = addresses
        if addresses != self._addresses:
            self._addresses = addresses
            work.readers.moved(addresses)
        changes = holdings.changes
        try:
            holdings.reconcile(wanted, addresses)
        finally:
            self._show()
        if holdings.changes != changes:
            work.status.rebalances += 1
            log.info(
                "event=group_changed group=%s consumer=%s owned=%d of=%d members=%d",
                work.config.group_id,
                work.consumer_id,
                len(work.status.owned),
                len(wanted),
                members,
            )
        self._reconcile_due = holdings.next_try()
        error = holdings.error(work.config.rebalance_max_retries)
        work.status.error = error
        if holdings.is_reconciled:
            work.status.state = GroupState.ASSIGNED if wanted else GroupState.NOTHING
        else:
            work.status.state = GroupState.JOINING if error is None else GroupState.FAILING

    def _show(self) -> None:
        status, holdings = self._work.status, self._holdings
        status.owned = holdings.read
        status.committed = holdings.saved
        status.unsaved |= holdings.unsaved
        status.failed_commits += holdings.failed_saves
        holdings.unsaved.clear()
        holdings.failed_saves = 0

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
            self._keep_jump(partition, from_offset, to_offset)
            inbox.jumps.pop(partition, None)

    def _commit(self, offsets: Mapping[TopicPartition, int] | None) -> None:
        work, holdings = self._work, self._holdings
        if offsets is None:
            offsets = work.readers.consumed()
            lost = work.status.unsaved
        else:
            lost = frozenset(partition for partition in offsets if not holdings.holds(partition))
        try:
            holdings.save(offsets)
        except OwnershipLostError as error:
            lost |= frozenset(error.partitions)
        else:
            work.commit_worked()
        finally:
            work.status.committed = holdings.saved
        if lost:
            raise work.lost_error_for(lost)

    def _auto_commit(self) -> None:
        try:
            self._holdings.save(self._work.readers.consumed())
        except SessionLostError:
            raise
        except Exception as error:  # a store may be the user's own; the next turn tries again
            self._work.auto_commit_failed(error)
        else:
            self._work.commit_worked()
        finally:
            self._work.status.committed = self._holdings.saved

    def _commit_beginnings(self) -> None:
        """The broker would say something else to who owns them next, and what was not handed out yet be left out."""
        work, begun = self._work, self._work.inbox.begun
        noted = list(begun)
        for partition in noted:  # before it is read how far they are: what a jump changes meanwhile is noted again
            begun.pop(partition, None)
        consumed = work.readers.consumed()
        try:
            self._holdings.begin({partition: consumed[partition] for partition in noted if partition in consumed})
        except Exception as error:  # a store may be the user's own
            begun.update(dict.fromkeys(noted))
            if isinstance(error, SessionLostError):
                raise
            work.auto_commit_failed(error)
            self._begin_due = time.monotonic() + min(MOST_PAUSE, work.config.auto_commit_interval_ms / 1000)
        finally:
            work.status.committed = self._holdings.saved

    def _wait_for_beginnings(self) -> None:
        """A broker that is being asked where a partition begins may still say so, and that is committed then."""
        if not self._work.config.auto_commit:
            return
        deadline = time.monotonic() + _BEGIN_SECONDS
        while self._holdings.without_offset.intersection(self._work.readers.beginning()):
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
            self._holdings.leave()
        except CoordinationError as error:
            self._work.commit_failed(error)

    def end(self) -> None:
        """Read and own nothing more, and close the session."""
        status = self._work.status
        self._work.lease.drop()
        try:
            self._holdings.drop()
        except Exception:
            log.exception("event=readers_failed group=%s", self._work.config.group_id)
        self._show()
        status.owned, status.committed, status.is_member = {}, {}, False
        status.state = GroupState.JOINING
        self._say_goodbye()
        self._session.close()
