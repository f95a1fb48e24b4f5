"""File calls some of which fail, or move less than they could."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path

from fastlog.log.files import FileOps


class FaultyFileOps(FileOps):
    """The calls of ``FileOps``, some of which fail. For one thread.

    ``calls`` counts by kind, ``order`` lists ``(kind, name of the file)`` where the call has a path.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.order: list[tuple[str, str]] = []
        self._failures: dict[tuple[str, int], BaseException] = {}
        self._short_every: dict[str, int] = {}
        self._denied: dict[str, int] = {}

    def fail(self, kind: str, nth: int, error: int | BaseException = errno.EIO) -> None:
        """Let the n-th call of a kind from now on raise: an ``OSError`` with this errno, or the given exception."""
        failure = OSError(error, os.strerror(error)) if isinstance(error, int) else error
        self._failures[kind, self.calls[kind] + nth] = failure

    def shorten(self, kind: str, every: int = 1) -> None:
        """Let every n-th ``read`` or ``write`` move only half of what it could."""
        self._short_every[kind] = every

    def deny(self, name: str, error: int = errno.EACCES) -> None:
        """Let every call fail that opens, renames, lists or removes something of this name."""
        self._denied[name] = error

    def _begin(self, kind: str, path: Path | None) -> bool:
        self.calls[kind] += 1
        self.order.append((kind, path.name if path is not None else ""))
        if path is not None and path.name in self._denied:
            code = self._denied[path.name]
            raise OSError(code, os.strerror(code), str(path))
        failure = self._failures.pop((kind, self.calls[kind]), None)
        if failure is not None:
            raise failure
        every = self._short_every.get(kind, 0)
        return bool(every) and self.calls[kind] % every == 0
