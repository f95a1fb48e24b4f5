"""A connection to one broker of the target: runs of bytes out, and what the broker says of them in.

The bytes go from where they were received to the socket as they are, behind the head of a request. A broker that knows
PRODUCE_ACK answers each. One that speaks plain Kafka 0.7 answers no produce; but it handles the requests of a
connection one after the other, so behind each PRODUCE goes an OFFSETS, whose answer shows that the run was handled.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

from fastlog.client.connection import Connection
from fastlog.errors import ClosedError, FastlogError, ProtocolError, TransportError, error_for
from fastlog.limited_log import LimitedLog
from fastlog.mirror.config import TargetConfig
from fastlog.mirror.pieces import MirrorPiece
from fastlog.producer.brokers import Directory, frame_header
from fastlog.retry import Backoff
from fastlog.wire import requests, responses
from fastlog.wire.fields import INT32

log = logging.getLogger(__name__)

_LEAST_PAUSE = 0.02
_MOST_PAUSE = 1.0
_REQUEST_ROOM = 64 * 1024
_IDLE_SECONDS = 1.0
_CORRELATION_AT = 8


class Pipe:
    """Sends in order what it is given, and settles each piece: acknowledged, refused, or unknown.

    After a break nothing is sent again by itself: ``MirrorPiece.settled`` says so, and the source is read again.
    ``submit`` and the properties are safe in any thread; ``MirrorPiece.settled`` is called in the pipe's own.
    """

    def __init__(self, directory: Directory, config: TargetConfig, on_change: Callable[[], None]) -> None:
        """``on_change`` is called when it is connected, or has room again."""
        self.directory = directory
        self.is_connected = False
        self.error: FastlogError | None = None
        """Why it is not connected; None while it is, or has not tried."""
        self.is_acknowledged = True
        """Where a broker does not acknowledge, what it has handled is known, and not whether it has stored it."""
        self.max_payload = 0
        self.max_set = 0
        self._config = config
        self._on_change = on_change
        self._limit = config.producer.in_flight_bytes
        self._bytes = 0  # given and not settled; changed under the lock
        self._lock = threading.Lock()
        self._queue: deque[MirrorPiece] = deque()
        self._in_flight: deque[MirrorPiece] = deque()
        self._heads: dict[tuple[str, int], bytes] = {}
        self._tails: dict[tuple[str, int], bytes] = {}
        self._acks = 0
        self._next_id = 0
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_stopping = False
        self._connection: Connection | None = None
        self._log = LimitedLog(log)
        self._thread = threading.Thread(target=self._run, name=f"fastlog-mirror-to-{directory.broker.id}", daemon=True)
        self._thread.start()

    @property
    def is_full(self) -> bool:
        """What was given is as much as may be under way."""
        return self._bytes >= self._limit

    def submit(self, piece: MirrorPiece) -> None:
        """Send it behind what was given before."""
        with self._lock:
            self._bytes += len(piece.data)
        self._queue.append(piece)
        os.eventfd_write(self._wake_fd, 1)

    def stop(self) -> None:
        """End; what is not settled is settled with ``ClosedError``."""
        self._is_stopping = True
        os.eventfd_write(self._wake_fd, 1)
        connection = self._connection
        if connection is not None:
            connection.interrupt()

    def join(self, seconds: float) -> None:
        """Wait up to ``seconds`` for the thread to end, after ``stop``."""
        self._thread.join(seconds)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        backoff = Backoff(_LEAST_PAUSE, _MOST_PAUSE, 0.25)
        while not self._is_stopping:
            connected_at = 0.0
            try:
                with self._connect() as connection:
                    self._connection = connection
                    connected_at = time.monotonic()
                    self._serve(connection)
            except FastlogError as error:
                self._failed(error)
            except Exception as error:
                log.exception("sending to broker=%s", self.directory.broker.address)
                self._failed(TransportError(f"{type(error).__name__}: {error}"))
            finally:
                self._connection = None
            if self._is_stopping:
                break
            if connected_at and time.monotonic() - connected_at > _MOST_PAUSE:
                backoff.reset()
            self._wait(None, backoff.next())
        self._settle_all(ClosedError("the mirror was stopped"))

    def _connect(self) -> Connection:
        directory, config = self.directory, self._config
        directory.offer = None  # it may be another version, or have other limits, since the last time
        offer = directory.ask()
        self._acks = directory.acks(config.producer.acks)
        self.is_acknowledged = self._acks > 0
        allowed = max(0, offer.max_message_bytes)  # -1 where it says nothing
        self.max_payload = min(filter(None, (allowed, config.max_message_bytes)), default=requests.PLAIN_MESSAGE_BYTES)
        self.max_set = config.producer.batch_bytes
        if offer.max_request_bytes > 0:
            self.max_set = max(1, min(self.max_set, offer.max_request_bytes - _REQUEST_ROOM))
        connection = directory.connector.connect()
        self._heads.clear()
        self.error = None
        self.is_connected = True
        self._on_change()
        return connection

    def _failed(self, error: FastlogError) -> None:
        if self._is_stopping:
            return
        self.is_connected = False
        self.error = error
        self._log.warning("broken", "target broker=%s: %s", self.directory.broker.id, " ".join(str(error).split()))
        self._settle_all(error)

    def _settle_all(self, error: FastlogError) -> None:
        """Settle what is under way as unknown: it may be stored or not."""
        self.is_connected = False
        while self._in_flight or self._queue:
            self._settle((self._in_flight or self._queue).popleft(), error)

    def _settle(self, piece: MirrorPiece, error: FastlogError | None) -> None:
        was_full = self.is_full
        with self._lock:
            self._bytes -= len(piece.data)
        piece.settled(piece, error)
        if was_full and not self.is_full:
            self._on_change()

    def _serve(self, connection: Connection) -> None:
        """Until the connection breaks, or the end."""
        queue, in_flight = self._queue, self._in_flight
        still_since = time.monotonic()
        seconds = self._config.producer.socket_timeout_ms / 1000
        while not self._is_stopping:
            while (body := connection.receive_available()) is not None:
                self._answered(body)
                still_since = time.monotonic()
            if queue:
                if not in_flight:
                    still_since = time.monotonic()
                piece = queue.popleft()
                in_flight.append(piece)  # first: whatever happens from here on, it is settled
                self._send(connection, piece)
                continue
            left = still_since + seconds - time.monotonic() if in_flight else _IDLE_SECONDS
            if left <= 0:
                raise TransportError(f"{connection.peer} stood still for {seconds:g} s")
            self._wait(connection, min(left, _IDLE_SECONDS))

    def _wait(self, connection: Connection | None, seconds: float) -> None:
        waiting = select.poll()
        waiting.register(self._wake_fd, select.POLLIN)
        if connection is not None:
            waiting.register(connection.fileno(), select.POLLIN)
        for fd, _ in waiting.poll(seconds * 1000):
            if fd == self._wake_fd:
                os.eventfd_read(self._wake_fd)

    def _send(self, connection: Connection, piece: MirrorPiece) -> None:
        place = piece.topic, piece.target.partition
        size = len(piece.data)
        head = self._heads.get(place)
        if head is None:
            head = self._heads[place] = frame_header(*place, self._acks)
            number = max(0, piece.target.partition)
            self._tails[place] = requests.encode_offsets(piece.topic, number, requests.TIME_LATEST, 1)
        piece.is_sent = True
        begin = bytearray(head)
        INT32.pack_into(begin, 0, len(head) - INT32.size + size)
        INT32.pack_into(begin, len(head) - INT32.size, size)
        if not self._acks:
            connection.send(begin, piece.data, self._tails[place])
            return
        INT32.pack_into(begin, _CORRELATION_AT, (self._next_id + len(self._in_flight) - 1) & 0x7FFFFFFF)
        connection.send(begin, piece.data)

    def _answered(self, body: bytes) -> None:
        if not self._in_flight:
            raise ProtocolError("an answer came to nothing")
        piece = self._in_flight[0]
        if self._acks:
            answer = responses.decode_produce_ack(body)
            if answer.correlation_id != self._next_id:
                raise ProtocolError(f"the answer to {self._next_id} says it is for {answer.correlation_id}")
            code = answer.error
            piece.target_offset = answer.base_offset
        else:
            code = responses.decode_offsets(body).error
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        self._in_flight.popleft()
        self._settle(piece, error_for(code, topic=piece.topic, broker=self.directory.broker.address) if code else None)
