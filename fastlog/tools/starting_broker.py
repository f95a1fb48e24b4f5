"""A broker that may be just starting: the first connection to it is waited for."""

from __future__ import annotations

import time

from fastlog.client.connection import MAX_ANSWER_BYTES, Broker, Connection, ConnectionRefused, pause
from fastlog.retry import Backoff
from fastlog.tools.report import note

_LEAST_PAUSE = 0.05
_MOST_PAUSE = 0.5


class StartingBroker(Broker):
    """Until something has listened there once, a refused connection is tried again within the time-out.

    Only a refusal: an unknown name, or a machine that does not answer, does not come by waiting. For one thread.
    """

    _may_start = True

    def connect(
        self,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        *,
        receive_buffer_bytes: int | None = None,
        send_buffer_bytes: int | None = None,
    ) -> Connection:
        """As ``Broker``; says on stderr what it waits for."""
        deadline = time.monotonic() + self.timeout
        backoff = Backoff(_LEAST_PAUSE, _MOST_PAUSE)
        while True:
            try:
                connection = super().connect(
                    max_answer_bytes, receive_buffer_bytes=receive_buffer_bytes, send_buffer_bytes=send_buffer_bytes
                )
            except ConnectionRefused:
                if not self._may_start or time.monotonic() + backoff.seconds > deadline:
                    self._may_start = False
                    raise
                if backoff.is_first:
                    listed = ", ".join(map(str, self.addresses))
                    note(f"nothing listens at {listed} yet: trying for {self.timeout:g} s (--connect-timeout)")
                pause(backoff.next(), self._waiting)
            else:
                self._may_start = False
                return connection
