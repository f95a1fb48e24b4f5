"""Deleting a topic: what stands in the log directories meanwhile, so that it goes as a whole or not at all.

    .fastlog-deleting-<32 hexadecimal digits>         the marker, an empty file: the topic with this digest of its
                                                      name is to go
    <topic>-<partition>.<32 hexadecimal digits>-delete  a partition that has gone, and whose files are to be removed

The order: the marker, durable → no process looks at the topic's partitions any more → each directory gets its other
name, durable → the marker goes, durable → the topic's name is free, the client is answered → the files are removed. A
start that finds a marker does the same before it looks for partitions; so what was answered is gone, and what was not
is whole or gone. An empty file needs no room for data, so that a full disk can be made empty.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from fastlog.log import _files
from fastlog.log.files import FileOps
from fastlog.segment_files import split_directory_name

MARKER_PREFIX = ".fastlog-deleting-"
MAX_NAME_BYTES = 255

_MARKER = re.compile(re.escape(MARKER_PREFIX) + r"[0-9a-f]{32}", re.ASCII)
_PUT_AWAY = re.compile(r".+\.[0-9a-f]{32}-delete", re.ASCII | re.DOTALL)


def marker_name(topic: str) -> str:
    """The name of the file that marks a topic as to be deleted; a digest, because a topic's name may fill a file's."""
    return MARKER_PREFIX + hashlib.sha256(topic.encode()).hexdigest()[:32]


def is_deletions_own(name: str) -> bool:
    """Whether a name in a log directory is one of those that stand there while a topic is being deleted."""
    return _MARKER.fullmatch(name) is not None or _PUT_AWAY.fullmatch(name) is not None


def leave_marker(topic: str, directories: Iterable[Path], files: FileOps) -> None:
    """Mark a topic as to be deleted, durably, in each of the log directories that have a partition of it.

    Raises:
        OSError: in one of them it cannot be. In others it may stand already: then the topic goes all the same.
    """
    for directory in directories:
        with files.open(directory / marker_name(topic), os.O_WRONLY | os.O_CREAT):
            pass
        files.fsync_dir(directory)
    _files.reach("delete.wanted")


def is_marked(topic: str, directories: Iterable[Path]) -> bool:
    """Whether the topic's marker stands in any of the log directories."""
    return any((directory / marker_name(topic)).exists() for directory in directories)


def find_markers(directories: Iterable[Path], files: FileOps) -> set[str]:
    """The names of the markers that stand in any of the log directories, durable from now on.

    Whoever left one may have been killed before it was: if a power loss took it away while the topic goes, half
    of a topic would come back.

    Raises:
        OSError: a log directory cannot be read or synced.
    """
    found = set()
    for directory in directories:
        here = {item.name for item in files.listdir(directory) if _MARKER.fullmatch(item.name)}
        if here:
            files.fsync_dir(directory)
        found |= here
    return found


def withdraw(markers: Collection[str], directories: Iterable[Path], files: FileOps) -> None:
    """Remove markers of topics that are gone, durably."""
    for directory in directories:
        here = [directory / name for name in markers if (directory / name).exists()]
        for path in here:
            files.unlink(path)
        if here:
            files.fsync_dir(directory)


def put_away(directory: Path, files: FileOps) -> None:
    """Give a partition's directory the name under which its files wait to be removed.

    The names are durable once the directory above is synced.
    """
    kept = directory.name.encode()[: MAX_NAME_BYTES - len(".-delete") - 32].decode(errors="ignore")
    path = directory.with_name(f"{kept}.{uuid.uuid4().hex}-delete")
    files.rename(directory, path)
    _files.reach("delete.renamed")


def put_away_topics(
    markers: Collection[str], directories: Iterable[Path], files: FileOps, turn: Callable[[], object] = lambda: None
) -> set[str]:
    """Put away all that lies in the log directories of topics that are marked, durably; the topics it was of.

    Also what the broker does not serve, such as a directory whose creation was stopped half-way: the next start would
    take it for a partition. ``turn`` is called before each.

    Raises:
        OSError: a log directory cannot be read or changed. Some may have been put away.
    """
    gone = set()
    for directory in directories:
        for item in files.listdir(directory):
            name = split_directory_name(item.name)
            if name is None or marker_name(name[0]) not in markers or not _is_directory_or_link(item):
                continue
            turn()
            put_away(directory / item.name, files)
            gone.add(name[0])
        files.fsync_dir(directory)  # also where nothing was left to do: somebody may have been killed before this
    return gone


def put_away_wanted(directories: Sequence[Path], files: FileOps) -> list[str]:
    """At the start, before partitions are looked for: delete every topic that is marked. Those that went.

    Raises:
        OSError: a log directory cannot be read or changed. The markers stay.
    """
    markers = find_markers(directories, files)
    if not markers:
        return []
    gone = put_away_topics(markers, directories, files)
    withdraw(markers, directories, files)
    return sorted(gone)


def find_put_away(directories: Iterable[Path], files: FileOps) -> list[Path]:
    """The partitions whose files are to be removed."""
    return [
        directory / item.name
        for directory in directories
        for item in files.listdir(directory)
        if _PUT_AWAY.fullmatch(item.name) and _is_directory_or_link(item)
    ]


def _is_directory_or_link(item: os.DirEntry[str]) -> bool:
    """A partition's directory may be a link to where it has been moved to."""
    return item.is_symlink() or item.is_dir(follow_symlinks=False)


def remove_put_away(path: Path, files: FileOps, is_enough: Callable[[], bool]) -> bool:
    """Remove the files of a partition that was put away; False when ``is_enough`` ended it before the last.

    Of a link, the link: whoever can make one in a log directory must not choose what is removed elsewhere.

    Raises:
        OSError: something cannot be removed, for example because it is a directory.
    """
    try:
        if path.is_symlink():
            files.unlink(path)
            return True
        for item in files.listdir(path):
            _files.reach("delete.unlink")
            files.unlink(path / item.name)
            if is_enough():
                return False
        files.rmdir(path)
    except FileNotFoundError:
        pass  # somebody else removes it, too
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        return False
    return True
