"""Membership of a group: who reads what is agreed on, through ZooKeeper or a broker, again whenever anything changes.

One worker thread owns all state. Watches, timers and calls from outside only leave a note and wake it; it reads what
holds now and acts. How long a program takes over a message does not matter to it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping

from fastlog import escaping
from fastlog.client.addresses import Address
from fastlog.consumer.assignment import streams_by_topic
from fastlog.consumer.config import ConsumerConfig
from fastlog.consumer.group_kinds import OpenSession, kind_of
from fastlog.consumer.member_session import AnySession, GroupWork
from fastlog.consumer.offsets import OffsetStore
from fastlog.consumer.partitions import Lease, Readers, TopicPartition
from fastlog.consumer.status import GroupState
from fastlog.coordination.session import UnknownHostError
from fastlog.errors import ArgumentError, ClosedError, CoordinationError, FastlogError, ForkedError, StateError
from fastlog.zkpaths import PartitionId, Subscription, new_consumer_id

log = escaping.logger(__name__)

_LATE_SECONDS = 2.0
_CLOSE_SECONDS = 2.0
_PATIENT_CHANGES = 3  # a session, its loss and the next session are each waited for; nobody waits for ever
_LOOK_SECONDS = 0.005
_TOPICS_SECONDS = 2.0
"""How long a new member waits for brokers to say what a topic is that none of them has announced."""


class Group:
    """A member of a group, from ``start`` to ``stop``. Safe in every thread of the process that made it.

    Nothing ends it but ``stop``: lost connections, expired sessions, partitions that others keep and failing stores
    are tried again for ever, with growing pauses, and reported by ``state`` and ``error``.

    Source: Kafka 0.7.2 (ZookeeperConsumerConnector), whose nodes these are.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        subscription: Subscription,
        readers: Readers,
        *,
        consumer_id: str | None = None,
        store: OffsetStore | None = None,
        lease: Lease | None = None,
        open_session: OpenSession | None = None,
        on_refused: Callable[[str, FastlogError], None] | None = None,
    ) -> None:
        """``store``: where offsets are kept unless with the group. ``consumer_id``: made as 0.7 does unless given.

        ``on_refused``: called by the worker, once, with a topic of the subscription that turns out to be none that the
        group can read, and with why; at ``start`` that is raised as well.

        ``readers`` are to deliver only while ``lease`` is valid.

        Raises:
            ConfigError: the subscription's filter is no regular expression.
        """
        streams_by_topic(subscription, ())
        self.config = config
        self.consumer_id = consumer_id or make_consumer_id(config)
        self.lease = lease or Lease(config.session_timeout)
        self._work = GroupWork(config, self.consumer_id, subscription, readers, store, self.lease)
        if on_refused is not None:
            self._work.on_refused = on_refused
        self._inbox = self._work.inbox
        self._status = self._work.status
        self._kind = kind_of(config, self.consumer_id, open_session)
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name=f"fastlog-group-{config.group_id}", daemon=True)
        self._session: AnySession | None = None
        self._fatal: Exception | None = None
        self._is_over = False

    # --- for everybody ---

    def start(self) -> None:
        """Become a member; what is then owned follows by itself.

        Raises:
            CoordinationError: no server answers within ``zk.connectiontimeout.ms``, or this consumer id is in use.
            ConfigError: an address cannot be read, or the broker does not take such a member.
            UnsupportedFeatureError: a topic is one of record batches, which a group in ZooKeeper cannot read.
        """
        self._check()
        self._thread.start()
        session, timeout = None, self.config.zk_connection_timeout_ms / 1000
        since, changes = time.monotonic(), 0
        while not self._status.is_member and not self._is_over:
            if self._session is not session:
                session = self._session
                changes += 1
                if changes <= _PATIENT_CHANGES:
                    since = time.monotonic()
                    timeout = self.config.zk_connection_timeout_ms / 1000
                    if session is not None:
                        # A member of this id that died a moment ago is still there.
                        timeout = self._kind.seconds_to_join(session) + _LATE_SECONDS
            if time.monotonic() - since > timeout:
                self._fatal = self._status.error or self._kind.silence(timeout)
                break
            time.sleep(_LOOK_SECONDS)
        deadline = time.monotonic() + _TOPICS_SECONDS
        while not (self._fatal or self._status.knows_topics or self._is_over or time.monotonic() >= deadline):
            time.sleep(_LOOK_SECONDS)
        error = self._fatal or next(iter(self._status.refused.values()), None)
        if error is not None:
            self.stop()
            raise error

    def stop(self, timeout: float = 5.0) -> None:
        """Stop reading, commit unless auto-commit is off, and leave; may be called again, also in a signal handler.

        Returns within ``timeout`` seconds. If nobody answers by then, what was owned is free when the
        session ends.
        """
        if os.getpid() != self._pid:
            return
        self._inbox.stop()
        if self._thread.ident is None:
            self._is_over = True
        if not self._thread.is_alive() or self._thread is threading.current_thread():
            return
        deadline = time.monotonic() + timeout
        self._thread.join(max(0.0, timeout - min(_CLOSE_SECONDS, timeout / 2)))
        session = self._session
        if self._thread.is_alive() and session is not None:
            # It waits for an answer; without a session there is none to wait for.
            threading.Thread(target=session.close, name="fastlog-group-close", daemon=True).start()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            log.warning("event=group_stop_late group=%s consumer=%s", self.config.group_id, self.consumer_id)

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None, *, wait: bool = True) -> None:
        """Save how far what is owned was consumed, or these offsets; what has not changed is not written.

        With ``wait=False`` it returns at once, and a failure is counted and logged.

        Raises:
            OwnershipLostError: names partitions that are not owned; the others are saved. Without ``offsets`` these
                are the ones taken away since the last commit though they had been consumed further than was saved;
                each is raised for once.
            CoordinationError: it could not be saved, or it is not known whether it was.
            ClosedError: the group was stopped.
            ArgumentError: an offset is negative.
        """
        self._check()
        if self._inbox.is_stopping:
            raise ClosedError("the consumer was shut down")
        if offsets is not None and any(offset < 0 for offset in offsets.values()):
            raise ArgumentError(f"a negative offset cannot be committed: {dict(offsets)}")
        if wait and self._thread is threading.current_thread():
            raise StateError("readers cannot wait for the worker that calls them")
        request = self._inbox.ask(None if offsets is None else dict(offsets), wait)
        if self._is_over or self._thread.ident is None:
            self._work.refuse_commits()
        if wait:
            request.wait(3 * self.config.session_timeout + _LATE_SECONDS)

    def note_jump(self, partition: TopicPartition, from_offset: int, to_offset: int) -> None:
        """Keep beside the offsets that the messages between were gone. Returns at once."""
        self._inbox.jumps[partition] = (from_offset, to_offset)
        self._inbox.wake()

    def note_begin(self, partition: TopicPartition) -> None:
        """Commit how far this one counts as consumed, unless auto-commit is off: the broker has said where it begins.

        Returns at once; the worker does it next.
        """
        if self.config.auto_commit:
            self._inbox.begun[partition] = None
            self._inbox.wake()

    def wait_settled(self, timeout: float) -> bool:
        """Wait until it reads exactly what it is to read; False when ``timeout`` seconds have passed before."""
        deadline = time.monotonic() + timeout
        while self.state not in (GroupState.ASSIGNED, GroupState.NOTHING):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    @property
    def state(self) -> GroupState:
        """The state of the membership at this moment."""
        if self._is_over:
            return GroupState.STOPPED
        session = self._session
        if session is None or not session.is_connected or (self._status.is_member and not self.lease.is_valid):
            return self._kind.away
        return self._status.state

    @property
    def error(self) -> Exception | None:
        """The last error that has not been recovered from; None: there is none."""
        return self._status.error

    @property
    def session_id(self) -> int | str | None:
        """The session that owns what is owned; None while there is none."""
        session = self._session
        return None if session is None else session.id

    @property
    def owned(self) -> dict[TopicPartition, str]:
        """The partitions read by this member, with the name of the thread; none while that is not certain."""
        owned = dict(self._status.owned)
        return owned if self.lease.is_valid else {}

    @property
    def committed(self) -> dict[TopicPartition, int]:
        """The offsets that are saved, of the partitions owned, where there are any."""
        return dict(self._status.committed)

    @property
    def topics(self) -> Mapping[str, list[PartitionId]]:
        """Every partition of the topics that are read, whoever reads it, as last announced."""
        return self._status.partitions

    @property
    def brokers(self) -> Mapping[int, Address]:
        """The brokers' addresses by id, as last announced."""
        return self._status.addresses

    @property
    def failed_commits(self) -> int:
        """Commits that failed and that nobody waited for."""
        return self._status.failed_commits

    @property
    def rebalances(self) -> int:
        """How often partitions were assigned or taken away."""
        return self._status.rebalances

    @property
    def sessions(self) -> int:
        """How many sessions this member has had so far."""
        return self._status.sessions

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError("the consumer belongs to the parent process; make a new one after fork")

    # --- the worker ---

    def _run(self) -> None:
        work, inbox, status = self._work, self._inbox, self._status
        failures = 0
        try:
            while not inbox.is_stopping:
                failures += 1
                try:
                    session = self._kind.open(inbox.wake, lambda: not inbox.is_stopping)
                except CoordinationError as error:
                    status.error = error
                    if isinstance(error, UnknownHostError) and not status.sessions:
                        self._fatal = error
                        return
                except FastlogError as error:  # a setting; trying again does not mend it
                    status.error = self._fatal = error
                    return
                except Exception as error:
                    log.exception("event=group_failed group=%s: no session", self.config.group_id)
                    status.error = error
                else:
                    status.sessions += 1
                    self._session = session
                    try:
                        was_member = self._kind.run(work, session)
                    finally:
                        self._session = None
                    failures = 0 if was_member else failures
                    if work.refusal is not None:
                        self._fatal = work.refusal
                        return
                work.refuse_commits()
                if failures and not inbox.is_stopping:
                    inbox.wait(work.pause(failures))
        finally:
            inbox.is_stopping = self._is_over = True
            work.refuse_commits()


def make_consumer_id(config: ConsumerConfig) -> str:
    """The member's id as 0.7 forms it: the group's, and the given one or else a unique one."""
    return f"{config.group_id}_{config.consumer_id}" if config.consumer_id else new_consumer_id(config.group_id)
