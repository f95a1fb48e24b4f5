"""The partitions that a member reads, and their offsets: the same whoever says what is the member's."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from fastlog.client.addresses import Address
from fastlog.consumer.offsets import OffsetStore
from fastlog.consumer.partitions import Claim, Readers, TopicPartition
from fastlog.coordination.session import NodeExistsError, SessionLostError
from fastlog.counts import listed
from fastlog.errors import CoordinationError, OwnershipLostError
from fastlog.limited_log import LimitedLog
from fastlog.retry import pause_after

_LEAST_PAUSE = 0.05
_GATHER_SECONDS = 0.2
_SHOWN = 3


class Connected(Protocol):
    """A session of which only the connection matters."""

    @property
    def is_connected(self) -> bool:
        """Whether a server answers."""


@dataclass(slots=True)
class HeldPartition:
    """A partition that the member owns, whether it is read already or not."""

    thread: str
    is_read: bool = False
    goes_on_at: int | None = None  # where another thread of ours stopped
    log: int = 0  # when the log was made that this is an offset of


@dataclass(slots=True)
class Trouble:
    """Why a partition is not yet where it should be, and when that is looked at again."""

    error: Exception
    is_conflict: bool
    tries: int
    due: float


class Holdings:
    """The partitions that a member owns: taken, read, saved and let go of, one by one. For one thread.

    Subclasses know who else might have a partition: it is held before its offset is looked up and before it is read,
    and let go of after reading has ended and the offset is saved; so there is one reader, and it begins where the last
    one saved.
    """

    def __init__(
        self,
        session: Connected,
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
        """``most_pause``: seconds between two tries at most. ``between`` is called between partitions.

        ``trusts_readers``: a partition that moves from one thread of ours to another goes on where the first one
        stopped. Otherwise it goes on at what the store has, which may be saved by others than the readers.
        """
        self._session = session
        self._group = group
        self._readers = readers
        self._store = store
        self._log = log
        self._auto_commit = auto_commit
        self._trusts_readers = trusts_readers
        self._most_pause = most_pause
        self._between = between
        self._source = source or random.Random()
        self._held: dict[TopicPartition, HeldPartition] = {}
        self._trouble: dict[TopicPartition, Trouble] = {}
        self._saved: dict[TopicPartition, int] = {}
        self._without_offset: set[TopicPartition] = set()
        self._fenced: set[TopicPartition] = set()
        self._store_fenced: Callable[[str], Collection[TopicPartition]] | None = getattr(store, "fenced", None)
        self._store_begin: Callable[[str, TopicPartition, int], bool] | None = getattr(store, "begin", None)
        self._store_log: Callable[[str, TopicPartition], int] | None = getattr(store, "log_of", None)
        self.unsaved: set[TopicPartition] = set()
        """Partitions let go of without saving how far they were consumed; whoever reports them clears it."""
        self.failed_saves = 0
        self.changes = 0
        """How many partitions were taken and let go of."""
        self.is_reconciled = False
        """Whether the last ``reconcile`` has reached what was wanted."""

    @property
    def read(self) -> dict[TopicPartition, str]:
        """The partitions that are owned and read, with the name of the thread."""
        return {partition: held.thread for partition, held in self._held.items() if held.is_read}

    @property
    def held(self) -> set[TopicPartition]:
        """The partitions that are owned, whether they are read already or not."""
        return set(self._held)

    @property
    def saved(self) -> dict[TopicPartition, int]:
        """The offsets that the store has, of the partitions that are owned, as far as they are known."""
        return dict(self._saved)

    @property
    def without_offset(self) -> set[TopicPartition]:
        """The partitions that are read and of which no offset has ever been saved."""
        return {partition for partition in self._without_offset if self._held[partition].is_read}

    def is_fenced(self) -> bool:
        """Whether the store refused the last save of some partition: ``reconcile`` is to load its offset again."""
        if self._store_fenced is not None:
            self._fenced.update(self._held.keys() & self._store_fenced(self._group))
        return bool(self._fenced)

    def holds(self, partition: TopicPartition) -> bool:
        """Whether this session owns the partition."""
        return partition in self._held

    def reconcile(self, wanted: Mapping[TopicPartition, str], addresses: Mapping[int, Address]) -> None:
        """Own and read exactly what is wanted, as far as possible; a partition that fails waits for the next call.

        Raises:
            SessionLostError: the session is over; ``drop`` is to follow.
            CoordinationError: no server answers; what was done stays done.
        """
        raise NotImplementedError

    def next_try(self) -> float | None:
        """When (``time.monotonic``) to call ``reconcile`` again though nothing has changed; None: no need to."""
        if self.is_reconciled:
            return None
        return min((trouble.due for trouble in self._trouble.values()), default=time.monotonic() + self._most_pause)

    def error(self, most_conflicts: int | None) -> Exception | None:
        """Why it is not reconciled; None while others have not let go, for fewer than ``most_conflicts`` tries."""
        for trouble in self._trouble.values():
            if not trouble.is_conflict or (most_conflicts is not None and trouble.tries >= most_conflicts):
                return trouble.error
        return None

    def note_logs(self) -> None:
        """Tell the store which logs the offsets are of that are saved from now on.

        To be called before the readers are asked for these: an offset of a later log may come with the name of the one
        before, which is noticed, but never the other way round.
        """
        if self._store_log is not None:
            self._store.note_logs(self._group, self._readers.logs())  # type: ignore[attr-defined]

    def save(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Save what has changed, of the partitions that are owned. Raises what the store raises."""
        changed = {
            partition: offset
            for partition, offset in offsets.items()
            if partition in self._held and self._saved.get(partition) != offset
        }
        if changed:
            for partition in changed:
                self._saved.pop(partition, None)  # not known until the store has answered
            try:
                self._store.save(self._group, changed)
            except OwnershipLostError as error:
                self._fenced.update(self._held.keys() & error.partitions)
                raise
            self._saved.update(changed)
            self._without_offset.difference_update(changed)

    def begin(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Save where these begin, as the broker said, so that whoever has them next begins at the same place.

        Where nothing was saved before and somebody else has saved an offset meanwhile, that one is taken. Raises what
        the store raises.
        """
        begin = self._store_begin
        if begin is None:
            self.save(offsets)
            return
        left = dict(offsets)
        failed: CoordinationError | None = None
        for partition in self._without_offset.intersection(offsets):
            offset = left.pop(partition)
            try:
                is_saved = begin(self._group, partition, offset)
            except SessionLostError:
                raise
            except CoordinationError as error:
                if not self._session.is_connected:
                    raise
                failed = failed or error
                continue
            self._without_offset.discard(partition)
            if is_saved:
                self._saved[partition] = offset
            else:
                self._fenced.add(partition)
        self.save(left)
        if failed is not None:
            raise failed

    def drop(self) -> None:
        """The session is over: end all reading, and save nothing. Nothing is to follow."""
        self._end_reading([partition for partition, held in self._held.items() if held.is_read], save=False)

    def leave(self) -> None:
        """End all reading and save; closing the session is what lets go."""
        self._end_reading([partition for partition, held in self._held.items() if held.is_read], save=self._auto_commit)

    def _load_again(self) -> None:
        """A member that was stopped while it took a partition may have loaded its offset after us, and be gone."""
        fenced = [partition for partition in self._fenced if partition in self._held]
        self._fenced.clear()
        reading = [partition for partition in fenced if self._held[partition].is_read]
        self._end_reading(reading, save=False, staying=fenced)
        for partition in fenced:
            self._held[partition].goes_on_at = None
            self._saved.pop(partition, None)

    def _stop_leaving(self, wanted: Mapping[TopicPartition, str]) -> list[TopicPartition]:
        """Read nothing more of what goes to another member or another thread, which are returned, and save them."""
        leaving = [partition for partition, held in self._held.items() if wanted.get(partition) != held.thread]
        stopping = [partition for partition in leaving if self._held[partition].is_read]
        if stopping:
            stopped_at = self._end_reading(stopping, save=self._auto_commit, staying=wanted)
            for partition in stopping:
                self._held[partition].goes_on_at = stopped_at.get(partition) if self._trusts_readers else None
        return leaving

    def _end_reading(
        self, partitions: list[TopicPartition], *, save: bool, staying: Collection[TopicPartition] = ()
    ) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        self.changes += len(partitions)
        self.note_logs()
        logs = self._readers.logs()
        stopped_at = self._readers.release(partitions)
        for partition in partitions:
            self._held[partition].is_read = False
            self._held[partition].log = logs.get(partition, 0)
        changed = {
            partition: offset for partition, offset in stopped_at.items() if self._saved.get(partition) != offset
        }
        lost = set(changed)
        if save:
            try:
                self.save(changed)
                lost.clear()
            except SessionLostError:
                self.unsaved |= lost
                raise
            except Exception as error:  # a store may be the user's own; the next owner reads again what was not saved
                self.failed_saves += 1
                self._log.warning(
                    "save", "event=commit_failed group=%s partitions=%s: %s", self._group, names_of(changed), error
                )
        self.unsaved |= lost.difference(staying)
        return stopped_at

    def _forget(self, partition: TopicPartition) -> None:
        self._held.pop(partition, None)
        self._saved.pop(partition, None)
        self._without_offset.discard(partition)

    def _begin(self, wanted: Mapping[TopicPartition, str], addresses: Mapping[int, Address]) -> None:
        claims: dict[TopicPartition, Claim] = {}
        began = time.monotonic()

        def hand_over() -> None:
            if claims:
                self._readers.acquire(dict(claims))
                for partition in claims:
                    self._held[partition].is_read = True
                self.changes += len(claims)
                claims.clear()

        for partition, held in sorted(self._held.items()):
            address = addresses.get(partition.partition.broker)
            if held.is_read or wanted.get(partition) != held.thread or address is None:
                continue  # without an address: its broker is unavailable, and is waited for
            self._between()  # so that who was stopped meanwhile hears of it first, and loads nothing
            if self._attempt(partition, self._look_up):
                claims[partition] = Claim(held.thread, address, held.goes_on_at, held.log)
            if time.monotonic() - began > _GATHER_SECONDS:
                hand_over()  # a slow one does not keep the others
        hand_over()

    def _look_up(self, partition: TopicPartition) -> None:
        held = self._held[partition]
        if held.goes_on_at is None:
            try:
                offset = self._store.load(self._group, partition)
                held.log = self._store_log(self._group, partition) if self._store_log is not None else 0
            except CoordinationError:
                raise
            except Exception as error:
                raise CoordinationError(f"no offset of {partition} to be had: {error!r}") from error
            held.goes_on_at = offset
            if offset is not None:
                self._saved[partition] = offset
                self._without_offset.discard(partition)
            else:
                self._without_offset.add(partition)

    def _attempt(self, partition: TopicPartition, action: Callable[[TopicPartition], None]) -> bool:
        """Do it unless it failed just now. Trouble with one partition is noted, trouble with the server raised."""
        trouble = self._trouble.get(partition)
        now = time.monotonic()
        if trouble is not None and now < trouble.due:
            return False
        try:
            action(partition)
        except SessionLostError:
            raise
        except CoordinationError as error:
            is_conflict = isinstance(error, NodeExistsError)
            tries = trouble.tries + 1 if trouble is not None and trouble.is_conflict == is_conflict else 1
            pause = pause_after(tries, _LEAST_PAUSE, self._most_pause) * self._source.uniform(0.5, 1.0)
            self._trouble[partition] = Trouble(error, is_conflict, tries, time.monotonic() + pause)
            if not is_conflict:
                self._log.warning(
                    f"partition {type(error).__name__}", "event=partition_failed group=%s: %s", self._group, error
                )
            if not self._session.is_connected:
                raise
            return False
        self._trouble.pop(partition, None)
        return True


def names_of(partitions: Iterable[TopicPartition]) -> str:
    """The first of them, sorted, for a line of the log."""
    return listed(sorted(map(str, partitions)), _SHOWN)
