"""What one session has read, each thing read again only when its watch has fired."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fastlog.coordination.session import Node, Session, Watch

AUDIT_SECONDS = 60.0
"""How often everything is read again that no watch has reported."""


class _Found:
    __slots__ = ("is_dropped", "is_stale", "is_used", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.is_stale = False  # set by the watch, in a thread of the session
        self.is_dropped = False
        self.is_used = True


class Watched:
    """For one thread, apart from the watches. Reading twice costs one call, and one watch waits for each thing.

    ``notify`` is called, as a watch is, when something that is still looked at has changed.
    """

    def __init__(self, session: Session, notify: Watch) -> None:
        self._session = session
        self._notify = notify
        self._found: dict[tuple[bool, str], _Found] = {}

    def get(self, path: str) -> Node | None:
        """The node's value and version; None where there is no node. Raises ``CoordinationError``: no answer."""
        found: Node | None = self._read(False, path)
        return found

    def children(self, path: str) -> list[str] | None:
        """The names below, the same list object for as long as nothing has changed; or None."""
        found: list[str] | None = self._read(True, path)
        return found

    @property
    def is_stale(self) -> bool:
        """Something that was looked at in the last round has changed since."""
        return any(found.is_stale for found in self._found.values())

    def forget(self, path: str) -> None:
        """Forget a node that nobody reads any more, and ignore its watch."""
        found = self._found.pop((False, path), None)
        if found is not None:
            found.is_dropped = True

    def end_round(self) -> None:
        """Forget what was not looked at since the last call."""
        for key, found in list(self._found.items()):
            if found.is_used:
                found.is_used = False
            else:
                found.is_dropped = True
                del self._found[key]

    def audit(self) -> bool:
        """Read everything again without a watch; True when something has changed that no watch has reported."""
        missed = False
        for (is_list, path), found in list(self._found.items()):
            if not found.is_stale:
                value = (self._session.children if is_list else self._session.get)(path)
                if not found.is_stale and _comparable(value) != _comparable(found.value):
                    found.is_stale = missed = True
        return missed

    def _read(self, is_list: bool, path: str) -> Any:
        found = self._found.get((is_list, path))
        if found is None or found.is_stale:
            found = _Found()
            read: Callable[..., Any] = self._session.children if is_list else self._session.get
            found.value = read(path, partial(self._changed, found))
            self._found[is_list, path] = found
        found.is_used = True
        return found.value

    def _changed(self, found: _Found) -> None:
        found.is_stale = True
        if not found.is_dropped:
            self._notify()


def _comparable(value: Any) -> Any:
    return sorted(value) if isinstance(value, list) else value
