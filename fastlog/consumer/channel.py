"""One connection of a consumer: made when needed, made again once when it breaks, closed from any thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, Protocol, TypeVar

from fastlog.client.connection import Broker, Connection
from fastlog.errors import ClosedError, ForkedError, ProtocolError, TransportError

_Given = ParamSpec("_Given")
_T = TypeVar("_T")


@dataclass(slots=True)
class _Pending:
    frame: bytes
    max_bytes: int
    extra_wait: float
    sent: bool


class Closable(Protocol):
    """Something that is closed with a channel, such as files that it reads."""

    def close(self) -> None:
        """Free what it holds; may be called again."""


class Channel:
    """Requests and answers in order, one thread at a time inside ``alone()``.

    ``close()`` is safe from any thread and from a signal handler, takes no lock and waits for nobody: a call that is
    under way in another thread raises ``ClosedError`` at once.
    """

    def __init__(
        self,
        broker: Broker,
        owner: str,
        receive_buffer_bytes: int | None = None,
        greet: Callable[[Connection], None] | None = None,
    ) -> None:
        """``greet`` is called with each new connection, before anything else goes over it."""
        self._broker = broker
        self._greet = greet
        self._owner = owner
        self._receive_buffer_bytes = receive_buffer_bytes
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._connection: Connection | None = None
        self.connected_at = 0.0
        """When the present connection was made (``time.monotonic``). Another broker may answer on another one."""
        self._pending: _Pending | None = None
        self._failure: TransportError | None = None
        self._closed = False
        self.owned: set[Closable] = set()
        """Closed with it, once nobody is inside ``alone()``."""

    def __del__(self) -> None:
        self._drop()

    @property
    def closed(self) -> bool:
        """Whether ``close()`` was called."""
        return self._closed

    @property
    def broker(self) -> str:
        """The broker's addresses, separated by commas."""
        return ", ".join(map(str, self._broker.addresses))

    def reaches_this_host(self) -> bool:
        """Whether the connection, made for the question if need be, has the same address at both ends."""
        return self._connected().same_host

    def alone(self, call: Callable[_Given, _T], *given: _Given.args, **named: _Given.kwargs) -> _T:
        """What ``call`` returns, which has the channel alone meanwhile.

        Raises:
            ClosedError: it is closed, or another thread closes it meanwhile.
            ForkedError: this process is not the one that made it.
        """
        self.check()
        try:
            with self._lock:
                try:
                    self.check()
                    return call(*given, **named)
                except TransportError:
                    self.check()  # it broke because it was closed
                    raise
        finally:
            self._drop_if_closed()

    def check(self) -> None:
        """Raise ``ClosedError`` or ``ForkedError`` where a call would."""
        if self._closed:
            raise ClosedError(f"this {self._owner} is closed")
        if os.getpid() != self._pid:
            raise ForkedError(f"this {self._owner} belongs to the process {self._pid}: make a new one after fork")

    def close(self) -> None:
        """End the connection; may be called again."""
        self._closed = True
        if os.getpid() != self._pid:
            self._drop()  # the parent's connection stays as it is, and its lock may be held by nobody here
            self._close_owned()
            return
        connection = self._connection
        if connection is not None:
            connection.interrupt()
        self._drop_if_closed()

    def request(self, frame: bytes, max_bytes: int, extra_wait: float = 0.0) -> memoryview:
        """The body of the answer, at most ``max_bytes`` long; a broken connection is made again once.

        Raises:
            TransportError: that failed too; the addresses tried are listed with their reasons.
            ProtocolError: what came is no answer to this.
        """
        self.post(frame, max_bytes, extra_wait)
        return self.collect()

    def post(self, frame: bytes, max_bytes: int, extra_wait: float = 0.0) -> None:
        """Send a request whose answer ``collect`` takes later. A broken connection shows there."""
        if self._pending is not None:
            # Somebody was interrupted before he collected it: what comes would be taken for the answer to this.
            self._drop()
        self._failure = None
        pending = self._pending = _Pending(frame, max_bytes, extra_wait, False)
        try:
            if self._connection is not None and not self._connection.is_quiet():
                # Taken for the answer to this request, what came unasked would shift every later one as well.
                self._drop(keep_pending=True)
            self._connected().send(frame)
            pending.sent = True
        except TransportError as error:
            self._failure = error
            self._drop(keep_pending=True)
        except BaseException:
            self._drop()
            raise

    @property
    def has_pending(self) -> bool:
        """Whether the answer to a posted request was not collected yet."""
        return self._pending is not None

    def collect(self) -> memoryview:
        """The body of the answer to what was posted. Raises as ``request``."""
        pending = self._pending
        assert pending is not None, "nothing was posted"
        while True:
            try:
                connection = self._connected()
                if not pending.sent:
                    connection.send(pending.frame)
                body = connection.receive_view(pending.max_bytes, pending.extra_wait)
                self._pending = None
                return body
            except ProtocolError as error:
                self._drop()
                raise ProtocolError(f"{self.broker}: {error}") from error
            except TransportError as error:
                self._drop()
                self.check()
                if self._failure is not None:
                    raise TransportError(f"{error}\nthe first try: {self._failure}") from error
                self._failure = error
                pending.sent = False
            except BaseException:
                self._drop()
                raise

    def collect_soon(self, seconds: float) -> memoryview | None:
        """The same if it has come whole within ``seconds``; else None, to be collected later. Nothing is sent again.

        Raises:
            TransportError, ProtocolError: the connection broke, or is of no use; what was posted is forgotten.
        """
        pending, connection = self._pending, self._connection
        if pending is None or not pending.sent or connection is None:
            return None
        try:
            body = connection.receive_soon(pending.max_bytes, seconds)
        except BaseException:
            self._drop()
            raise
        if body is not None:
            self._pending = None
        return body

    def connect(self) -> None:
        """Be connected. Raises as ``request``."""
        self._connected()

    def rest(self) -> None:
        """Free most of the buffers that are kept for later answers; for when little comes."""
        if self._connection is not None:
            self._connection.rest()

    def drop(self) -> None:
        """Close the connection; the next request makes a new one. What was posted is forgotten."""
        self._drop()

    def _connected(self) -> Connection:
        if self._connection is None:
            self.check()
            self._connection = self._broker.connect(receive_buffer_bytes=self._receive_buffer_bytes)
            self.connected_at = time.monotonic()
            if self._closed:
                self._drop()
                self.check()
            if self._greet is not None:
                try:
                    self._greet(self._connection)
                except BaseException:
                    self._drop(keep_pending=True)
                    raise
        return self._connection

    def _drop(self, *, keep_pending: bool = False) -> None:
        connection, self._connection = self._connection, None
        if not keep_pending:
            self._pending = None
        if connection is not None:
            connection.close()

    def _drop_if_closed(self) -> None:
        # Whoever holds the lock comes here once more after giving it back, so one of the two closes.
        if self._closed and self._lock.acquire(blocking=False):
            try:
                self._drop()
                self._close_owned()
            finally:
                self._lock.release()

    def _close_owned(self) -> None:
        for item in self.owned:
            item.close()
        self.owned.clear()
