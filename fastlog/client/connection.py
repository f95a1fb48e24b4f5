"""Plain blocking connections to a broker: requests and answers in order."""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from types import TracebackType
from typing import TYPE_CHECKING

from fastlog.client._inbox import Inbox
from fastlog.client.addresses import Address, parse_brokers, resolve
from fastlog.client.slices import sleep, slice_of, wait_ready
from fastlog.errors import ProtocolError, TransportError, UnsupportedVersionError, error_for
from fastlog.retry import Backoff
from fastlog.wire import requests, responses

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_METADATA_BYTES = 64 * 2**20
MAX_ANSWER_BYTES = 2**31 - 1
_RECEIVE_BYTES = 256 * 1024
_PROBES = 2
_METADATA_ID = 0x4D444154
_LEAST_PAUSE = 0.02

Waiting = Callable[[], AbstractContextManager[object]]
"""Entered around each call that may block and takes nothing when it is interrupted."""


def _send_unpaced(sock: socket.socket) -> None:
    # BBR, the default of some systems, paces even between two sockets of one machine, which costs a tenth of the
    # speed. The broker chooses for its own direction (workers/net/_handoff.h).
    if hasattr(socket, "TCP_CONGESTION"):
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


class ConnectionEnded(TransportError):
    """The other side closed or reset the connection."""

    is_silent = False
    """It was closed in order, and no byte had come that was not taken: as Kafka 0.7 ends it on an unknown request."""


class ConnectionRefused(TransportError):
    """No address of a broker answers, and at least one refuses: there is a machine, and nothing listens on it yet."""


class Connection:
    """One connection to a broker. For one thread; close it, or use it as a context."""

    def __init__(
        self,
        sock: socket.socket,
        timeout: float,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        waiting: Waiting = nullcontext,
    ) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._timeout = timeout
        self._inbox = Inbox(max_answer_bytes)
        self._waiting = waiting
        try:
            name = sock.getpeername()
            own = sock.getsockname()
        except OSError as error:
            raise ConnectionEnded(f"the connection broke at once: {error.strerror}") from error
        self.peer = str(Address(name[0], name[1]))
        self.same_host = bool(name[0] == own[0])
        """Both ends have the same address: the other side is on this machine, or is forwarded from it."""
        if self.same_host:
            _send_unpaced(sock)
        self.torn = False
        """A frame went out in part: nothing more can be sent on this connection."""

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fileno(self) -> int:
        """The descriptor, for ``select``; -1 once it is closed."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection; may be called again."""
        self._socket.close()

    def rest(self) -> None:
        """Free most of the buffers that are kept for later answers; for when little comes."""
        self._inbox.rest()

    def interrupt(self) -> None:
        """End the connection without closing its descriptor: whoever waits on it in another thread returns at once.

        Safe from any thread and from a signal handler.
        """
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # not connected any more, or closed

    def is_quiet(self) -> bool:
        """Whether nothing has come that was not taken yet: no bytes, and no end of the connection."""
        return self._inbox.is_quiet(self._socket.fileno())

    def send(self, *frame: Buffer) -> None:
        """Hand a frame to the kernel, which may be in several parts. Raises ``TransportError``."""
        parts = [memoryview(part) for part in frame if part]
        deadline = time.monotonic() + self._timeout
        self.torn = True
        while parts:
            try:
                sent = self._socket.sendmsg(parts)
                while parts and sent >= len(parts[0]):
                    sent -= len(parts.pop(0))
                if sent:
                    parts[0] = parts[0][sent:]
            except BlockingIOError:
                self._wait(max(0.001, deadline - time.monotonic()), for_writing=True)
                deadline = time.monotonic() + self._timeout
            except OSError as error:
                raise self._broken(error) from error
        self.torn = False

    def receive(self, extra_wait: float = 0.0) -> bytes:
        """The body of the next answer, waited for up to the time-out and ``extra_wait`` seconds more.

        Raises:
            TransportError: the connection broke or the time is over.
            ProtocolError: what came is no answer.
        """
        return bytes(self.receive_view(extra_wait=extra_wait))

    def receive_view(self, max_bytes: int | None = None, extra_wait: float = 0.0) -> memoryview:
        """The same without a copy. ``max_bytes``: the largest answer that was asked for; a larger one is refused.

        The whole answer has to be there in time, so that one that comes byte by byte holds nobody for ever.
        """
        if max_bytes is not None:
            self._inbox.max_bytes = self._inbox.trusted_bytes = max_bytes
        allowed = self._timeout + extra_wait
        body = self._body_within(allowed)
        if body is None:
            raise self._late(allowed)
        return body

    def receive_soon(self, max_bytes: int, seconds: float) -> memoryview | None:
        """The same, or None when it has not come whole within ``seconds``; what came is kept for the next call."""
        self._inbox.max_bytes = self._inbox.trusted_bytes = max_bytes
        return self._body_within(seconds)

    def _body_within(self, seconds: float) -> memoryview | None:
        deadline = time.monotonic() + seconds
        left = seconds
        while (body := self._taken(left)) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
        return body

    def receive_available(self) -> bytes | None:
        """The body of the next answer when it is whole after one read of what has come; for use after ``select``."""
        body = self._taken(0.0)
        return None if body is None else bytes(body)

    def request(self, frame: bytes) -> bytes:
        """Send a frame and return the body of its answer."""
        self.send(frame)
        return self.receive()

    def finish(self) -> None:
        """Say that nothing more will be sent and wait until the broker has handled everything and closes too.

        Raises:
            TransportError: the connection broke, or the broker did not close within the time-out.
        """
        deadline = time.monotonic() + self._timeout
        try:
            self.half_close()
            while True:
                self._wait(max(0.0, deadline - time.monotonic()))
                if not self._socket.recv(_RECEIVE_BYTES):
                    return
        except OSError as error:
            raise self._broken(error) from error
        finally:
            self.close()

    def half_close(self) -> None:
        """Say that nothing more will be sent; answers can still come. Raises ``TransportError``."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise self._broken(error) from error

    def _taken(self, seconds: float) -> memoryview | None:
        """The body of the next answer, if it has come whole within the next slice of ``seconds``; else None."""
        try:
            with self._waiting():
                return self._inbox.take(self._socket.fileno(), math.ceil(slice_of(max(0.0, seconds)) * 1000))
        except EOFError:
            raise self._ended() from None
        except OSError as error:
            raise self._broken(error) from error

    def _wait(self, seconds: float, *, for_writing: bool = False) -> None:
        try:
            with self._waiting():
                ready = wait_ready(self._socket, select.POLLOUT if for_writing else select.POLLIN, seconds)
        except ValueError:
            raise ConnectionEnded(f"the connection to {self.peer} was closed") from None
        if not ready:
            raise self._late(self._timeout)

    def _late(self, seconds: float) -> TransportError:
        return TransportError(f"{self.peer} did not answer within {seconds:g} s")

    def _ended(self) -> ConnectionEnded:
        # Whoever raises it has no name for it: with one, the error, its traceback and all frames of the call would hold
        # each other, and sockets among them stay open until the next garbage collection.
        ended = ConnectionEnded(f"{self.peer} closed the connection")
        ended.is_silent = not self._inbox.held_bytes
        return ended

    def _broken(self, error: OSError) -> TransportError:
        # A closed descriptor is what is left after another thread has closed this connection.
        ended = isinstance(error, ConnectionResetError | BrokenPipeError) or error.errno == errno.EBADF
        return (ConnectionEnded if ended else TransportError)(f"the connection to {self.peer} broke: {error.strerror}")


class Broker:
    """A broker by its addresses: makes connections, and asks what the broker offers. Holds no connection itself.

    Safe in several threads.
    """

    hint = "is the broker running? fastlog-broker starts one"
    """The last line of the error when no address answers."""

    def __init__(self, brokers: str | Sequence[Address], timeout: float, waiting: Waiting = nullcontext) -> None:
        self.addresses = parse_brokers(brokers) if isinstance(brokers, str) else list(brokers)
        self.timeout = timeout
        self._waiting = waiting
        self._offers_metadata: bool | None = None
        self._closings = 0

    @property
    def is_plain(self) -> bool:
        """It was taken for one of Kafka 0.7, and no connection has been made since."""
        return self._offers_metadata is False

    def connect(
        self,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        *,
        receive_buffer_bytes: int | None = None,
        send_buffer_bytes: int | None = None,
    ) -> Connection:
        """Connect to the first address that answers; the buffers are the socket's, the system's choice without them.

        Raises:
            ConnectionRefused: none does, and one of them refuses.
            TransportError: none does; every address tried is listed with its own reason.
        """
        made = self._connect(max_answer_bytes, receive_buffer_bytes, send_buffer_bytes)
        if self._offers_metadata is False:
            self._offers_metadata = None  # what looked like Kafka 0.7 may have been a proxy without a broker behind it
        return made

    def _connect(
        self, max_answer_bytes: int, receive_buffer_bytes: int | None = None, send_buffer_bytes: int | None = None
    ) -> Connection:
        reasons = []
        failure: type[TransportError] = TransportError
        for address in self.addresses:
            try:
                with self._waiting():
                    candidates = resolve(address, self.timeout)
            except OSError as error:
                reasons.append(f"{address}: {error.strerror}")
                continue
            for family, kind, protocol, target in candidates:
                sock = None
                try:
                    sock = socket.socket(family, kind, protocol)  # it fails where no descriptor is left
                    if receive_buffer_bytes is not None:
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
                    if send_buffer_bytes is not None:
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
                    with self._waiting():
                        _connect(sock, target, self.timeout)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                    return Connection(sock, self.timeout, max_answer_bytes, self._waiting)
                except OSError as error:
                    if sock is not None:
                        sock.close()
                    if error.errno == errno.ECONNREFUSED:
                        failure = ConnectionRefused
                    reason = error.strerror or f"no answer within {self.timeout:g} s"
                    shown = Address(str(target[0]), address.port)
                    reasons.append(
                        f"{shown}: {reason}" if str(shown) == str(address) else f"{address} ({shown}): {reason}"
                    )
                except TransportError as error:
                    assert sock is not None
                    sock.close()
                    reasons.append(f"{address}: {error}")
                except BaseException:
                    if sock is not None:
                        sock.close()
                    raise
        raise self._unreached(failure, "; ".join(reasons))

    def _unreached(self, failure: type[TransportError], reasons: str) -> TransportError:
        listed = ", ".join(str(address) for address in self.addresses)
        unreached = failure(f"cannot reach a broker at {listed}\n{reasons}\n{self.hint}")
        unreached.broker, unreached.reason = listed, reasons
        return unreached

    def metadata_or_none(self, topics: tuple[str, ...] | None = None) -> responses.MetadataAnswer | None:
        """What the broker says about itself and the topics, on a connection of its own; None from a plain 0.7 broker.

        A 0.7 broker closes the connection on a request it does not know. That looks the same as a process that dies
        just then, so the first refusal is asked for again; and once more after each new connection (``connect``). A
        connection that breaks in another way says nothing of the broker.

        Raises:
            TransportError: no connection, or no answer in time.
            BrokerError: the broker refuses the request.
            ProtocolError: what came is no answer to it.
        """
        failures = 0
        while self._offers_metadata is not False:
            with self._connect(MAX_METADATA_BYTES) as connection:
                try:
                    answer = _metadata(connection, topics, requests.METADATA_VERSION)
                    if answer.error == UnsupportedVersionError.code:  # a broker of an earlier fastlog
                        self._offers_metadata = True
                        answer = _metadata(connection, topics, requests.OWN_VERSION)
                except ConnectionEnded as error:
                    if error.is_silent and not self._offers_metadata:
                        self._closings += 1
                        if self._closings >= _PROBES:
                            self._offers_metadata = False
                        continue
                    failures += 1
                    if failures > _PROBES:
                        raise
                    pause(0.1, self._waiting)
                    continue
            if answer.correlation_id != _METADATA_ID:
                raise ProtocolError(
                    f"metadata was asked for as {_METADATA_ID} and is answered as {answer.correlation_id}"
                )
            if answer.error:
                raise error_for(answer.error, broker=", ".join(map(str, self.addresses)))
            self._offers_metadata = True
            return answer
        return None


class BoundedBackoff:
    """Pauses between retries that grow from 20 ms to 1 s, until ``seconds`` after the first failure in a row."""

    def __init__(self, seconds: float = 30.0) -> None:
        self._seconds = seconds
        self._since: float | None = None
        self._backoff = Backoff(_LEAST_PAUSE, 1.0)

    def worked(self) -> None:
        """Note a success: the next failure is the first in a row again."""
        self._since = None
        self._backoff.reset()

    def failed(self, error: TransportError) -> None:
        """Sleep before the next try; raise ``error`` where that try would come after the ``seconds``."""
        now = time.monotonic()
        self._since = self._since if self._since is not None else now
        if now + self._backoff.seconds - self._since > self._seconds:
            raise error
        pause(self._backoff.next())


def _metadata(connection: Connection, topics: tuple[str, ...] | None, version: int) -> responses.MetadataAnswer:
    body = connection.request(requests.encode_metadata(_METADATA_ID, topics, version))
    return responses.decode_metadata(body, version)


def pause(seconds: float, waiting: Waiting = nullcontext) -> None:
    """Sleep so that a signal can interrupt it where ``waiting`` allows."""
    with waiting():
        sleep(seconds)


def _connect(sock: socket.socket, target: object, timeout: float) -> None:
    """Connect, and leave the socket non-blocking. Raises ``OSError``; one without text when the time is over."""
    sock.setblocking(False)
    code = sock.connect_ex(target)  # type: ignore[arg-type]
    if code == errno.EINPROGRESS:
        if not wait_ready(sock, select.POLLOUT, timeout):
            raise TimeoutError
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
