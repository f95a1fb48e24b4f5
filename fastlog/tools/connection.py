"""A plain blocking client for the commands: one connection, requests and answers in order."""

from __future__ import annotations

import select
import socket
import time
from types import TracebackType
from typing import NamedTuple

from fastlog.errors import ConfigError, TransportError, error_for
from fastlog.tools import signals
from fastlog.wire import requests, responses
from fastlog.wire.framing import FrameReader

DEFAULT_PORT = 9092
MAX_METADATA_BYTES = 64 * 2**20
MAX_ANSWER_BYTES = 2**31 - 1
_RECEIVE_BYTES = 256 * 1024
_PROBES = 2
_LEAST_PAUSE = 0.02
_ADDRESS_FORM = "an address is host:port, [IPv6]:port or a host alone; several are separated by commas"


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_brokers(text: str) -> list[Address]:
    """``host:port,host,[::1]:port`` as addresses; a missing port is 9092.

    Raises:
        ConfigError: an address is malformed, or there is none.
    """
    found = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = item.rpartition(":")
        if not colon or item.endswith("]"):
            host, port = item, str(DEFAULT_PORT)
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ConfigError(f"{item!r} is no address\n{_ADDRESS_FORM}\nput the IPv6 address in brackets")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < 65536:
            raise ConfigError(f"{item!r} is no address\n{_ADDRESS_FORM}\nwrite for example localhost:9092")
        found.append(Address(host, int(port)))
    if not found:
        raise ConfigError(f"no broker is named\n{_ADDRESS_FORM}\nwrite for example --brokers localhost:9092")
    return found


class Connection:
    """One connection to a broker. For one thread; close it, or use it as a context."""

    def __init__(self, sock: socket.socket, timeout: float, max_answer_bytes: int = MAX_ANSWER_BYTES) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._timeout = timeout
        self._reader = FrameReader(max_answer_bytes)
        name = sock.getpeername()
        self.peer = str(Address(name[0], name[1]))
        self.torn = False
        """A frame went out in part: nothing more can be sent on this connection."""

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fileno(self) -> int:
        """The descriptor, for ``select``."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection; may be called again."""
        self._socket.close()

    def send(self, frame: bytes) -> None:
        """Hand a frame to the kernel. Raises ``TransportError``."""
        left = memoryview(frame)
        self.torn = True
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                self._wait(self._timeout, for_writing=True)
            except OSError as error:
                raise self._broken(error) from error
        self.torn = False

    def receive(self, extra_wait: float = 0.0) -> bytes:
        """The body of the next answer, waited for up to the time-out and ``extra_wait`` seconds more.

        Raises:
            TransportError: the connection broke or the time is over.
            ProtocolError: what came is no answer.
        """
        deadline = time.monotonic() + self._timeout + extra_wait
        while (body := self._reader.frame_or_none()) is None:
            self._fill(max(0.001, deadline - time.monotonic()))
        return body

    def receive_available(self) -> bytes | None:
        """The body of the next answer when it is whole after one read of what has come; for use after ``select``."""
        body = self._reader.frame_or_none()
        if body is None:
            self._fill(0.0)
            body = self._reader.frame_or_none()
        return body

    def request(self, frame: bytes) -> bytes:
        """Send a frame and return the body of its answer."""
        self.send(frame)
        return self.receive()

    def finish(self) -> None:
        """Say that nothing more will be sent and wait until the broker has handled everything and closes too.

        Raises:
            TransportError: the connection broke, or the broker did not close within the time-out.
        """
        self.half_close()
        try:
            while True:
                self._wait(self._timeout)
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

    def _fill(self, seconds: float) -> None:
        if seconds:
            self._wait(seconds)
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._broken(error) from error
        if not data:
            raise ConnectionEnded(f"{self.peer} closed the connection")
        self._reader.feed(data)

    def _wait(self, seconds: float, *, for_writing: bool = False) -> None:
        watched = [self._socket.fileno()]
        with signals.waiting():
            ready = select.select([] if for_writing else watched, watched if for_writing else [], [], seconds)
        if not ready[0] and not ready[1]:
            raise TransportError(f"{self.peer} did not answer within {self._timeout:g} s")

    def _broken(self, error: OSError) -> TransportError:
        ended = isinstance(error, ConnectionResetError | BrokenPipeError)
        return (ConnectionEnded if ended else TransportError)(f"the connection to {self.peer} broke: {error.strerror}")


class ConnectionEnded(TransportError):
    """The other side closed or reset the connection."""


class Broker:
    """A broker by its addresses: makes connections, and asks what the broker offers. Holds no connection itself."""

    def __init__(self, brokers: str, timeout: float) -> None:
        self.addresses = parse_brokers(brokers)
        self.timeout = timeout
        self._offers_metadata: bool | None = None

    def connect(self, max_answer_bytes: int = MAX_ANSWER_BYTES) -> Connection:
        """Connect to the first address that answers.

        Raises:
            TransportError: none does; every address tried is listed with its own reason.
        """
        reasons = []
        for address in self.addresses:
            try:
                candidates = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            except OSError as error:
                reasons.append(f"{address}: {error.strerror}")
                continue
            for family, kind, protocol, _, target in candidates:
                sock = socket.socket(family, kind, protocol)
                try:
                    sock.settimeout(self.timeout)
                    with signals.waiting():
                        sock.connect(target)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    return Connection(sock, self.timeout, max_answer_bytes)
                except OSError as error:
                    sock.close()
                    reason = error.strerror or f"no answer within {self.timeout:g} s"
                    shown = Address(str(target[0]), address.port)
                    reasons.append(
                        f"{shown}: {reason}" if str(shown) == str(address) else f"{address} ({shown}): {reason}"
                    )
                except BaseException:
                    sock.close()
                    raise
        listed = ", ".join(str(address) for address in self.addresses)
        raise TransportError(
            f"cannot reach a broker at {listed}\n{'; '.join(reasons)}\n"
            "start one with fastlog-broker, or name another with --brokers host:port"
        )

    def metadata_or_none(self, topics: tuple[str, ...] | None = None) -> responses.MetadataAnswer | None:
        """What the broker says about itself and the topics, on a connection of its own; None from a plain 0.7 broker.

        A 0.7 broker closes the connection on a request it does not know. That looks the same as a process that dies
        just then, so the first refusal is asked for again.

        Raises:
            TransportError: no connection, or no answer in time.
            BrokerError: the broker refuses the request.
        """
        refusals = 0
        while self._offers_metadata is not False:
            with self.connect(MAX_METADATA_BYTES) as connection:
                try:
                    answer = responses.decode_metadata(connection.request(requests.encode_metadata(0, topics)))
                except ConnectionEnded:
                    refusals += 1
                    if self._offers_metadata:
                        if refusals > _PROBES:
                            raise
                        _sleep(0.1)
                    elif refusals == _PROBES:
                        self._offers_metadata = False
                    continue
            if answer.error:
                raise error_for(answer.error)
            self._offers_metadata = True
            return answer
        return None


class Patience:
    """How long failures in a row are put up with: pauses grow, until ``seconds`` after the first of them."""

    def __init__(self, seconds: float = 30.0) -> None:
        self._seconds = seconds
        self._since: float | None = None
        self._pause = _LEAST_PAUSE

    def worked(self) -> None:
        """The next failure is a first one again."""
        self._since = None
        self._pause = _LEAST_PAUSE

    def failed(self, error: TransportError) -> None:
        """Return after a pause, to try again, or raise ``error`` when the time is over."""
        now = time.monotonic()
        self._since = self._since if self._since is not None else now
        if now + self._pause - self._since > self._seconds:
            raise error
        _sleep(self._pause)
        self._pause = min(2 * self._pause, 1.0)


def _sleep(seconds: float) -> None:
    with signals.waiting():
        time.sleep(seconds)
