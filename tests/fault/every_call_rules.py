"""What may come of a disk call, and which of it has to be noticed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

WRITES = {
    "open",
    "write",
    "pwrite",
    "ftruncate",
    "fallocate",
    "fdatasync",
    "fsync",
    "rename",
    "unlink",
    "mkdir",
    "utime",
}
INTERRUPTED = {"open", "read", "write", "pread", "pwrite", "sendfile", "ftruncate", "fallocate", "fdatasync", "fsync"}
INTERRUPTED |= {"flock", "statfs"}
MOVES = {"read", "write", "pread", "pwrite", "sendfile"}
TORN = "torn"
"""Half of a write, and for the rest of it there is no room."""


class Case(NamedTuple):
    """One call of a rehearsal, and what becomes of it."""

    act: int
    role: str
    kind: str
    number: int
    error: str


def errors(kind: str) -> Iterator[str]:
    """What may come of a call of this kind."""
    yield "EIO"
    if kind in WRITES:
        yield "ENOSPC"
    if kind in INTERRUPTED:
        yield "EINTR"
    if kind in MOVES:
        yield "short"
    if kind in ("write", "pwrite"):
        yield TORN


# Role, kind, file (20 digits are N, a partition's directory is P, the log directory itself has no name) and error.
_MAY_PASS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\S+ close \S* \S+",  # all that counts was synced before
        r"flusher (fadvise|fallocate|writeback|statfs|fstat|ftruncate) \S+ \S+",  # a help, and space that is kept
        r"flusher pwrite \.fastlog-flushing \S+",  # a mark that stays, or that finds no room and is tried again
        r"flusher (open \.fastlog-flushing|(open|rename) P/\.flushed-N) ENOSPC",  # likewise
        r"processor pread P/N\.kafka EIO",  # a try whether the bytes are in memory: then they are read by waiting
        r"processor (stat|fstat) \S* EIO",
        r"keeper (open|pread) P/fastlog\.json \S+",  # it is written anew
        r"keeper (open|pwrite|close)  \S+",  # the probe tells whoever asks for health
        r"(keeper|supervisor) stat \S* EIO",  # whether something is there: what comes next finds out
        r"supervisor (open|pwrite) \.fastlog-flushing (ENOSPC|torn)",  # an empty file is a mark, too
        r"flusher (open|pwrite) P/N\.kafka (ENOSPC|torn)",  # what is written again waits for room
        r"supervisor (open|write|pwrite|ftruncate|fdatasync) \.lock \S+",
    )
)
# A sync that is interrupted has failed: nobody knows what it has done (docs/crash-safety.md).
_FAILS_BY_A_SIGNAL = re.compile(r"flusher (fdatasync|fsync) \S* EINTR")


def sort_of(name: str) -> str:
    """A file's name without what tells it from others of its sort."""
    return re.sub(r"\.[0-9]{13}\.", ".", re.sub(r"^[A-Za-z0-9]+-0\b", "P", re.sub(r"[0-9]{20}", "N", name)))


def judge(role: str, kind: str, name: str, error: str, noticed: bool) -> str:
    """What is wrong with how the failure of one call was noticed (refused, logged, an exit code), or was not; or ""."""
    case = f"{role} {kind} {sort_of(name)} {error}"
    if error in ("EINTR", "short") and not _FAILS_BY_A_SIGNAL.fullmatch(case):
        return f"{case}: not gone on with, as if it were a failure" if noticed else ""
    if noticed or any(pattern.fullmatch(case) for pattern in _MAY_PASS):
        return ""
    return f"{case}: nobody noticed"
