"""Where a group keeps how far it has come: ZooKeeper as Kafka 0.7 does it, or files."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import urllib.parse
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from fastlog.consumer.partitions import TopicPartition
from fastlog.coordination.session import NodeExistsError, NoNodeError, Session, SessionLostError, VersionError
from fastlog.errors import CoordinationError, OwnershipLostError
from fastlog.zkpaths import encode_number, offset_path, parse_number

_LOCK_SECONDS = 2.0
_LOOK_SECONDS = 0.01
_VERSION = 1


class OffsetStore(Protocol):
    """Where offsets are kept. Called by a group's worker, which does nothing else meanwhile: seconds, not minutes.

    Whoever loads a partition's offset owns it from then on: a store takes no more saves of it from who loaded it
    before, however late they come. What these calls raise is logged, counted, and tried again.

    A store in which others than the worker save may also have ``fenced(group)``: the partitions whose saves were not
    taken, which the worker loads again if it owns them. One that cannot tell who has loaded a partition may have
    ``begin(group, partition, offset)``, which saves only where there is still no offset and tells whether it did.

    One that has room for it may have ``note_logs(group, logs)``, which is given when the log of each partition was made
    (ms since 1970), to be kept beside the offsets that are saved afterwards, and ``log_of(group, partition)``, which is
    asked behind ``load`` for what was kept (0: nothing). An offset of a log that was deleted and made anew is noticed
    then, as one that the broker does not have any more is.
    """

    def load(self, group: str, partition: TopicPartition) -> int | None:
        """The offset to go on at; None when none was ever saved."""

    def save(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Keep these offsets. Raises ``OwnershipLostError`` naming those it did not take; the others are kept."""


class ZooKeeperOffsets:
    """Where Kafka 0.7 keeps them. Belongs to one session: when that has ended, nothing is written any more.

    Source: Kafka 0.7.2 (ZookeeperConsumerConnector.commitOffsets).
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def load(self, group: str, partition: TopicPartition) -> int | None:
        """What is committed. 0.7 commits -1 where it could not ask the broker: that is nothing.

        Raises:
            CoordinationError: no answer, or what is there is no offset.
        """
        path = offset_path(group, *partition)
        node = self._session.get(path)
        if node is None:
            return None
        try:
            offset = parse_number(node.data)
        except CoordinationError as error:
            raise CoordinationError(f"{path}: {error}: write the offset to go on at, or delete the node") from None
        return offset if offset >= 0 else None

    def begin(self, group: str, partition: TopicPartition, offset: int) -> bool:
        """Write where a partition without an offset begins; False when somebody has written one meanwhile.

        Raises:
            CoordinationError: it was not written, or it is not known whether it was.
        """
        path, data = offset_path(group, *partition), encode_number(offset)
        try:
            node = self._session.get(path)
            if node is None:
                self._session.create(path, data)
            elif node.data != data:
                if parse_number(node.data) >= 0:
                    return False
                self._session.set(path, data, node.version)
        except (NodeExistsError, NoNodeError, VersionError):
            return False
        return True

    def save(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Write each offset.

        Raises:
            SessionLostError: the session is over.
            CoordinationError: some were not written; the others were.
        """
        failed: CoordinationError | None = None
        for partition, offset in offsets.items():
            try:
                self._session.put(offset_path(group, *partition), encode_number(offset))
            except SessionLostError:
                raise
            except CoordinationError as error:
                if not self._session.is_connected:
                    raise
                failed = failed or error
        if failed is not None:
            raise failed


class FileOffsets:
    """A file per group in a directory, for groups whose members all run on one machine. Safe for any thread.

    Replaced as a whole and flushed with every save, under a lock; a process that is stopped while it has the lock
    keeps the others from loading and saving until it goes on or ends.

    Raises (every call):
        CoordinationError: the file cannot be read, written or locked, or is damaged; names it.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        self._logs: dict[tuple[str, TopicPartition], int] = {}
        self._owner = uuid.uuid4().hex
        self._pid = os.getpid()

    def load(self, group: str, partition: TopicPartition) -> int | None:
        """The offset kept; from now on no store object but this one may save it."""
        with self._changing(group) as kept:
            found = kept.get(str(partition))
            offset: int | None = found["offset"] if found else None
            made: int = found.get("log", 0) if found else 0
            kept[str(partition)] = _entry(offset, self._me(), made)
        self._logs[group, partition] = made
        return offset

    def note_logs(self, group: str, logs: Mapping[TopicPartition, int]) -> None:
        """When the logs were made that offsets saved from now on are of."""
        for partition, made in logs.items():
            self._logs[group, partition] = made

    def log_of(self, group: str, partition: TopicPartition) -> int:
        """When the log was made that the offset is of; 0: not known."""
        return self._logs.get((group, partition), 0)

    def save(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Keep these offsets. Raises ``OwnershipLostError`` naming those that another one has loaded since."""
        lost = []
        with self._changing(group) as kept:
            for partition, offset in offsets.items():
                found = kept.get(str(partition))
                if found is None or found["owner"] != self._me():
                    lost.append(partition)
                else:
                    kept[str(partition)] = _entry(offset, self._me(), self.log_of(group, partition))
        if lost:
            raise lost_error(lost)

    def path(self, group: str) -> Path:
        """The file with the group's offsets, whether it exists or not."""
        return self._directory / f"{urllib.parse.quote(group, safe='')}.offsets.json"

    def _me(self) -> str:
        if os.getpid() != self._pid:  # a child after fork is somebody else
            self._owner, self._pid = uuid.uuid4().hex, os.getpid()
        return self._owner

    @contextlib.contextmanager
    def _changing(self, group: str) -> Iterator[dict[str, Any]]:
        path = self.path(group)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with _locked(path.with_suffix(".lock")):
                kept = _read(path)
                before = dict(kept)
                yield kept
                if kept != before:
                    _replace(path, {"version": _VERSION, "group": group, "offsets": kept})
        except OSError as error:
            raise CoordinationError(f"{path}: {error.strerror or error}") from error


def _entry(offset: int | None, owner: str, made: int) -> dict[str, Any]:
    return {"offset": offset, "owner": owner, **({"log": made} if made else {})}


def lost_error(partitions: list[TopicPartition], more: str = "") -> OwnershipLostError:
    """The error that these partitions are not owned any more; ``more`` is added to its text."""
    names = ", ".join(sorted(map(str, partitions)))
    return OwnershipLostError(f"not owned any more, so not committed: {names}{more}", partitions)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise CoordinationError(
                        f"{path}: another process has had the lock for {_LOCK_SECONDS:g} s"
                    ) from None
                time.sleep(_LOOK_SECONDS)
            else:
                break
        yield


def _read(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    try:
        content = json.loads(data)
        kept: dict[str, Any] = content["offsets"]
        if content["version"] != _VERSION:
            raise ValueError(f"its version is {content['version']!r}")
        for name, entry in kept.items():
            offset, owner, made = entry["offset"], entry["owner"], entry.get("log", 0)
            if type(made) is not int or made < 0:
                raise ValueError(f"{name} has {entry!r}")
            if not (offset is None or (type(offset) is int and offset >= 0)) or not isinstance(owner, str):
                raise ValueError(f"{name} has {entry!r}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CoordinationError(
            f"{path} is no file of offsets ({error!r}): mend it, or delete it to begin anew"
        ) from None
    return kept


def _replace(path: Path, content: Mapping[str, Any]) -> None:
    temporary = path.with_suffix(".new")
    with temporary.open("w") as file:
        json.dump(content, file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
