"""When a session is given up whose servers do not answer."""

from __future__ import annotations

import time

from fastlog.coordination.session import Session

AWAY_SESSIONS = 2.0
"""After how many time-outs without a server. One that lost its data never says that a session is over: it hangs up on
whoever has seen more than it has."""


class Outage:
    """How long no server has answered; for one thread."""

    def __init__(self) -> None:
        self._since: float | None = None

    def is_for_good(self, session: Session) -> bool:
        """Whether the session is to be given up; asked from time to time, also while a server answers."""
        if session.is_connected:
            self._since = None
            return False
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if now - self._since < AWAY_SESSIONS * session.timeout:
            return False
        self._since = None
        return True
