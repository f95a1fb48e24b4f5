"""The partitions that a member owns in one session: letting go of what is not its any more, taking what is."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial

from fastlog.client.addresses import Address
from fastlog.consumer.holdings import HeldPartition, Holdings, names_of
from fastlog.consumer.offsets import OffsetStore
from fastlog.consumer.partitions import Readers, TopicPartition
from fastlog.coordination.session import NodeExistsError, NoNodeError, Session
from fastlog.coordination.watched import Watched
from fastlog.escaping import printable
from fastlog.limited_log import LimitedLog
from fastlog.zkpaths import owner_path

_TRIES = 3
_UNKNOWN = ""


class Ownership(Holdings):
    """Makes ZooKeeper and the readers agree with what is wanted, partition by partition. For one thread.

    A node is made before its partition's offset is looked up and before it is read, and removed after reading has
    ended and the offset is saved; so there is one reader, and it begins where the last one saved.
    """

    def __init__(
        self,
        session: Session,
        watched: Watched,
        group: str,
        readers: Readers,
        store: OffsetStore,
        log: LimitedLog,
        *,
        auto_commit: bool,
        most_pause: float,
        trusts_readers: bool = True,
        between: Callable[[], None] = lambda: None,
        source: random.Random | None = None,
    ) -> None:
        """The session is that of ``watched``; the others are those of ``Holdings``."""
        super().__init__(
            session,
            group,
            readers,
            store,
            log,
            auto_commit=auto_commit,
            most_pause=most_pause,
            trusts_readers=trusts_readers,
            between=between,
            source=source,
        )
        self._zookeeper = session
        self._watched = watched
        self._doubtful: set[TopicPartition] = set()

    def reconcile(self, wanted: Mapping[TopicPartition, str], addresses: Mapping[int, Address]) -> None:
        """Go as far as possible; what fails keeps nothing else back, and waits for the next call.

        Raises:
            SessionLostError: the session is over; ``drop`` is to follow.
            CoordinationError: the server does not answer; what was done stays done.
        """
        self.is_reconciled = False
        self._trouble = {
            partition: trouble
            for partition, trouble in self._trouble.items()
            if partition in wanted or partition in self._held or partition in self._doubtful
        }
        self._check_held()
        self._load_again()
        self._let_go(wanted)
        for partition, thread in sorted(wanted.items()):
            if partition not in self._held:
                self._take(partition, thread)
                self._between()
        self._begin(wanted, addresses)
        self.is_reconciled = self.read == wanted and len(self._held) == len(wanted) and not self._doubtful

    def _check_held(self) -> None:
        """Look for owner nodes that others have removed: their partitions do not belong to this member any more."""
        gone = []
        for partition, held in self._held.items():
            node = self._watched.get(self._path(partition))
            if node is None or node.owner != self._zookeeper.id:
                gone.append(partition)
            elif node.data != held.thread.encode():
                held.thread = _UNKNOWN  # others go by it, so it is put right
        if gone:
            self._log.warning("taken", "event=owner_nodes_gone group=%s partitions=%s", self._group, names_of(gone))
            self._end_reading([partition for partition in gone if self._held[partition].is_read], save=False)
            for partition in gone:
                self._forget(partition)

    def _let_go(self, wanted: Mapping[TopicPartition, str]) -> None:
        leaving = self._stop_leaving(wanted)
        for partition in leaving:
            thread = wanted.get(partition)
            if thread is None:
                self._attempt(partition, self._remove)
            else:
                self._attempt(partition, partial(self._rename, thread))
            self._between()
        for partition in self._doubtful.difference(wanted):
            self._attempt(partition, self._remove_if_mine)

    def _remove(self, partition: TopicPartition) -> None:
        path = self._path(partition)
        self._watched.forget(path)
        self._zookeeper.delete(path)
        self._forget(partition)

    def _remove_if_mine(self, partition: TopicPartition) -> None:
        node = self._zookeeper.get(self._path(partition))
        if node is not None and node.owner == self._zookeeper.id:
            self._zookeeper.delete(self._path(partition))
        self._doubtful.discard(partition)

    def _rename(self, thread: str, partition: TopicPartition) -> None:
        self._watched.forget(self._path(partition))
        self._held[partition].thread = _UNKNOWN  # without an answer it may be either
        try:
            self._zookeeper.set(self._path(partition), thread.encode())
        except NoNodeError:
            self._forget(partition)
        else:
            self._held[partition].thread = thread
            self._watched.get(self._path(partition))

    def _take(self, partition: TopicPartition, thread: str) -> None:
        path = self._path(partition)
        trouble = self._trouble.get(partition)
        if trouble is not None and trouble.is_conflict:
            node = self._watched.get(path)
            if node is None or node.owner == self._zookeeper.id:
                trouble.due = 0.0  # whoever had it has let go
        self._attempt(partition, partial(self._make, path, thread))

    def _make(self, path: str, thread: str, partition: TopicPartition) -> None:
        for _ in range(_TRIES):
            try:
                self._doubtful.add(partition)  # an error does not tell whether the node was made
                self._zookeeper.create(path, thread.encode(), ephemeral=True)
            except NodeExistsError as error:
                node = self._watched.get(path)
                if node is None:
                    continue
                if node.owner != self._zookeeper.id:
                    self._doubtful.discard(partition)
                    holder = printable(node.data[:200].decode(errors="replace"))
                    raise NodeExistsError(f"{partition} is still owned by {holder}") from error
                self._zookeeper.set(path, thread.encode())
            self._doubtful.discard(partition)
            self._held[partition] = HeldPartition(thread)
            self._watched.forget(path)
            self._watched.get(path)
            return
        raise NodeExistsError(f"{partition} changes its owner all the time")

    def _path(self, partition: TopicPartition) -> str:
        return owner_path(self._group, *partition)
