"""The thread between one broker's outbox and its connection: writes, takes answers, replaces broken connections."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from fastlog.client.connection import Connection
from fastlog.errors import ClosedError, FastlogError, ProtocolError, TransportError
from fastlog.producer._flight import Flight
from fastlog.producer._frames import Chunk
from fastlog.producer._outbox import READABLE, Outbox
from fastlog.producer.brokers import Directory
from fastlog.producer.config import ProducerConfig
from fastlog.producer.hooks import Delivery
from fastlog.producer.ledger import Ledger, logger
from fastlog.producer.outcomes import Outcomes
from fastlog.producer.refusals import Refusals
from fastlog.producer.waiting import LazyThread, OneShotEvent
from fastlog.retry import Backoff

_LEAST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
_SETTLED_SECONDS = 1.0
_MS_NS = 1_000_000
_NO_END = 2**62


class Link:
    """One broker of a producer. The public methods are safe from any thread; everything else is the link's thread's.

    Frames stay in order. After a break, what was not finished is written again from the first such frame on: with
    acknowledgements that may store messages twice, which ``possible_duplicates`` counts.
    """

    def __init__(
        self, directory: Directory, config: ProducerConfig, ledger: Ledger, acks: int, max_payload: int
    ) -> None:
        self.directory = directory
        self.acks = acks
        self.finished = OneShotEvent()
        self.possible_duplicates = 0
        self.connections = 0
        self.is_up = True
        self.on_state_change: Callable[[], None] = lambda: None
        self.find_other: Callable[[str], Link | None] = lambda topic: None
        self.is_registered = True
        """False while ZooKeeper does not show the broker: what it holds goes elsewhere if it may."""
        self._config = config
        self._ledger = ledger
        self._max_payload = max_payload
        linger_ns = config.queue_time_ms * _MS_NS if config.producer_type == "async" else 0
        self.outbox = Outbox(ledger.quota, linger_ns)
        self._flight = self._new_flight()
        self._flight.broker, self._flight.delivery_type = directory.broker.id, Delivery
        self._flight.report = ledger.on_delivery is not None
        self._flight.keep_failed = ledger.on_failed is not None
        self._outcomes = self._new_outcomes()
        self._refusals = self._new_refusals()
        self._adopted: deque[Chunk] = deque()
        self._flush_requests: deque[OneShotEvent] = deque()
        self._flush_marks: deque[tuple[int, OneShotEvent]] = deque()
        self._stopping = False
        self._was_registered = True
        self._gone_at = float("inf")
        self._has_moved = False
        self._aborted: FastlogError | None = None
        self._connection: Connection | None = None
        self._leaving = False
        self._connected_at = 0.0
        self._answered = False
        self._progress_at = 0.0
        self._last_write = 0.0
        self._frames_left = _NO_END
        self._replace_at = float("inf")
        self._down_since: float | None = None
        self._next_attempt = 0.0
        self._backoff = Backoff(_LEAST_PAUSE, _LONGEST_PAUSE, 0.25)
        self._thread = LazyThread(ledger, self._run, f"fastlog-producer-{self.broker_id}")
        self._thread_id = 0

    # --- for everybody ---

    def start(self) -> None:
        """Begin to send; may be called again. Whatever is asked of the link begins it, too."""
        self._thread.begin()

    @property
    def broker_id(self) -> int:
        """The id of the broker in the producer's list."""
        return self.directory.broker.id

    @property
    def delivered(self) -> int:
        """Messages that were acknowledged, or without acknowledgements handed to the kernel."""
        return self._flight.delivered

    @property
    def failed(self) -> int:
        """How many messages failed."""
        return self._flight.failed + self._outcomes.too_large

    @property
    def in_flight(self) -> int:
        """How many messages have left the queue and are neither acknowledged nor failed."""
        return self._flight.messages + self._refusals.messages

    def is_this_thread(self) -> bool:
        """Whether the caller is this link's thread, which cannot wait for itself."""
        return threading.get_ident() == self._thread_id

    def request_flush(self) -> OneShotEvent:
        """Send everything that is in the outbox now; the event is set when all of it is finished."""
        event = OneShotEvent()
        self._flush_requests.append(event)
        self._wake()
        if self.finished.is_set():
            event.set()
        return event

    def stop(self) -> None:
        """Send what is there, half-close, wait for the broker's FIN, and end."""
        self._stopping = True
        self._wake()

    def abort(self, error: FastlogError) -> None:
        """Give up what is not finished, and end."""
        self._aborted = error
        self._wake()
        connection = self._connection
        if connection is not None:
            connection.interrupt()

    def set_registered(self, is_registered: bool) -> None:
        """Note whether the broker is registered in ZooKeeper; one that is not is given up sooner."""
        if self.is_registered != is_registered:
            self.is_registered = is_registered
            self._wake()

    def move(self) -> None:
        """Change to the broker's new address."""
        self._has_moved = True
        self._wake()

    def can_replace(self, other: Link) -> bool:
        """Whether it seems to work, and speaks the same requests."""
        return (
            self is not other
            and self.is_up
            and self.is_registered
            and self.acks == other.acks
            and not self.finished.is_set()
        )

    def adopt(self, chunk: Chunk) -> bool:
        """Send what another link could not; False when this one has ended meanwhile."""
        self._adopted.append(chunk)
        self._wake()
        if self.finished.is_set():
            with suppress(ValueError):  # unless it has failed there, at the end
                self._adopted.remove(chunk)
                return False
        return True

    def leave_to_parent(self) -> None:
        """In a forked child: close the descriptors, which does not end the parent's connection."""
        if self.finished.is_set():
            return
        self.outbox.retire()
        if self._connection is not None:
            self._connection.close()

    def _wake(self) -> None:
        self.start()
        self.outbox.wake()

    # --- what differs between protocols ---

    def _new_flight(self) -> Flight:
        return Flight(self.acks > 0)

    def _new_outcomes(self) -> Outcomes:
        return Outcomes(self._ledger, self.directory)

    def _new_refusals(self) -> Refusals:
        return Refusals(self._flight, self._config.num_retries, self._config.delivery_timeout_ms)

    def _opened(self) -> Connection:
        """A connection on which requests can be written. Raises ``TransportError``."""
        return self.directory.connector.connect(send_buffer_bytes=self._config.send_buffer_bytes)

    def _after_write(self) -> None:
        """Called when as much was written as can be for now."""

    # --- the thread ---

    def _run(self) -> None:
        self._thread_id = threading.get_ident()
        try:
            while self._step():
                pass
        except Exception as error:
            logger.exception("the sending thread failed broker=%s", self.directory.broker.address)
            self._aborted = TransportError(f"the sending thread failed: {error!r}")
        finally:
            self._end()

    def _step(self) -> bool:
        """Do what can be done now, then sleep; False when the thread may end."""
        if self._aborted is not None:
            return False
        self._follow_registration()
        self._take()
        if not self.is_registered and self._connection is None:
            self._move_on()
        now = time.monotonic()
        self._refusals.try_again(now)
        if self._wants_connection() and now >= self._next_attempt:
            self._connect()
        if self._connection is not None:
            self._write()
        self._after_write()
        if self._flight.has_answers():
            self._read()
        self._expire()
        self._report_outcomes()
        idle = self._flight.head() is None and not self._refusals and not self._adopted
        if idle and not self.is_registered:
            self._leave()
        if self._stopping and idle and self.outbox.is_empty():
            if self._connection is None and self.outbox.close_if_empty():
                return False
            self._leave()
        self._sleep()
        return True

    def _follow_registration(self) -> None:
        if self.is_registered != self._was_registered:
            self._was_registered = self.is_registered
            self._gone_at = float("inf") if self.is_registered else time.monotonic()
            self._next_attempt = 0.0
            self._backoff.reset()
            self._set_up(self.is_registered and self._connection is not None)
        if self._has_moved:
            self._has_moved = False
            self._next_attempt = 0.0
            self._backoff.reset()
            self._leave()

    def _wants_connection(self) -> bool:
        """There is something to send; or the broker was away, and gets nothing before it is known to be back."""
        if self._connection is not None:
            return False
        is_missed = not self.is_up and self.is_registered and not self._stopping
        return is_missed or self._flight.head() is not None

    def _take(self) -> None:
        """Move what is due from the outbox to the flight."""
        asked = len(self._flush_requests)
        window = self._config.in_flight_bytes - self._flight.bytes - self._refusals.bytes
        while self._adopted:
            self._add(self._adopted.popleft())
        chunks: list[Chunk] = []
        if asked or self._stopping or not self.is_registered:
            chunks = self.outbox.take(True)
        elif window > 0:
            chunks = self.outbox.take(False, window)
        if chunks:
            self._ledger.room.notify_all()
            if self._flight.head() is None:
                self._progress_at = time.monotonic()
        for chunk in chunks:
            self._add(self._outcomes.compressed(chunk, self._max_payload) if chunk.codec else chunk)
        for _ in range(asked):
            self._flush_marks.append((self._flight.added_chunks, self._flush_requests.popleft()))

    def _add(self, chunk: Chunk) -> None:
        if not self._refusals.keep(chunk):
            self._flight.add(chunk)

    def _connect(self) -> None:
        try:
            connection = self._opened()
        except TransportError as error:
            self._connect_failed(error)
            return
        config, now = self._config, time.monotonic()
        self._connection = connection
        self._leaving, self._answered, self._down_since = False, False, None
        self._connected_at = self._progress_at = now
        self.connections += 1
        # A little fewer by chance: clients that were started together do not stay in step.
        self._frames_left, self._replace_at = _NO_END, float("inf")
        if config.reconnect_interval_sends is not None:
            self._frames_left = max(1, round(config.reconnect_interval_sends * random.uniform(0.75, 1)))
        if config.reconnect_time_interval_ms is not None:
            self._replace_at = now + config.reconnect_time_interval_ms / 1000 * random.uniform(0.75, 1)
        self._set_up(True)

    def _connect_failed(self, error: TransportError) -> None:
        now = time.monotonic()
        if self._down_since is None:
            self._down_since = now
        if self._flight.head() is not None:
            self._ledger.log(logging.WARNING, f"down {self.broker_id}", f"cannot send: {' '.join(str(error).split())}")
        self._set_up(False)
        self._move_on()
        retries = 0 if self._config.producer_type == "sync" else self._config.num_retries
        if retries is not None and now - self._down_since >= (retries + 1) * self._config.connect_timeout_ms / 1000:
            self._drop_all(error)
        self._back_off(now)

    def _drop_all(self, error: FastlogError) -> None:
        while self._flight.head() is not None:
            self._flight.drop_head(error)
        self._refusals.give_up(error)

    def _back_off(self, now: float) -> None:
        self._next_attempt = now + self._backoff.next()

    def _set_up(self, is_up: bool) -> None:
        if self.is_up != is_up:
            self.is_up = is_up
            self.on_state_change()

    def _move_on(self) -> None:
        """Move the messages whose partition the broker chooses, and that were not sent yet, to other brokers."""
        if self._flight.head() is None:
            return
        for chunk in self._flight.remove_movable():
            other = self.find_other(chunk.topic)
            if other is not None and other.adopt(chunk):
                self._ledger.moves += 1
            else:
                self._flight.add(chunk)
                self._refusals.readded = True

    def _write(self) -> None:
        connection = self._connection
        if connection is None or self._leaving:
            return
        flight = self._flight
        now = time.monotonic()
        if now >= self._replace_at:
            self._frames_left = min(self._frames_left, 1 if flight.is_torn() else 0)
        try:
            if self._frames_left > 0 and flight.has_unsent():
                before = flight.written_frames
                self._last_write = now  # it may raise when a part is out
                written = flight.write(connection.fileno(), self._frames_left)
                self._frames_left -= flight.written_frames - before
                if written:
                    self._progress_at = self._last_write = time.monotonic()
        except OSError as error:
            self._broken(TransportError(f"the connection to {connection.peer} broke: {error.strerror}"))
            return
        if self._frames_left <= 0:
            self._leave()

    def _leave(self) -> None:
        """Begin to change the connection on purpose: the broker handles all it has got, then closes as well."""
        if self._connection is None or self._leaving:
            return
        self._leaving = True
        self._progress_at = time.monotonic()
        try:
            self._connection.half_close()
        except TransportError as error:
            self._broken(error)

    def _read(self) -> None:
        connection = self._connection
        if connection is None:
            return
        before = self._flight.finished_frames
        got, broken = -1, ""
        try:
            got = self._flight.receive(connection.fileno())
        except OSError as error:
            broken = f"the connection to {connection.peer} broke: {error.strerror}"
        except ProtocolError as error:
            broken = f"{connection.peer} does not keep to the protocol: {error}"
        self._handle_refusals()  # also of what came before a break: it has its place before what is written again
        if self._flight.finished_frames > before:
            self._progress_at = time.monotonic()
            self._answered = True
        if broken:
            self._broken(TransportError(broken))
            return
        if got == 0:
            if self._leaving and not self._flight.unfinished_frames():
                connection.close()
                self._connection = None
                self._next_attempt = 0.0
                self._backoff.reset()
            else:
                self._broken(TransportError(f"{connection.peer} closed the connection"))

    def _handle_refusals(self) -> None:
        for line in self._refusals.handle_answers():
            self._ledger.log(logging.WARNING, f"refused {self.broker_id}", f"refused for now, tried again {line}")

    def _broken(self, error: TransportError) -> None:
        """Forget the connection and get ready to write again what is not finished."""
        if self._connection is None:
            return
        now = time.monotonic()
        self._connection.close()
        self._connection = None
        unanswered, handed_over = self._flight.unfinished_frames(), self._flight.handed_over
        doubtful = self._flight.rewind()
        self.possible_duplicates += doubtful
        if self._flight.acknowledged:
            level = logging.WARNING if unanswered else logging.INFO
            fate = ", some may be stored twice" if doubtful else ""
            note = f"; {unanswered} requests are sent again{fate}" if unanswered else ""
        else:
            level = logging.WARNING if handed_over and now - self._last_write < _SETTLED_SECONDS else logging.INFO
            note = "; without acknowledgements, the last messages before that may be lost"
        self._ledger.log(level, f"broken {self.broker_id}", f"{error}{note}")
        self._refusals.after_break()
        if self._answered or now - self._connected_at > _SETTLED_SECONDS:
            self._backoff.reset()
            self._next_attempt = now
        else:
            self._back_off(now)
        retries = self._config.num_retries
        while retries is not None and (head := self._flight.head()) is not None and head.attempts > retries:
            self._flight.drop_head(error)

    def _expire(self) -> None:
        """Give up what was tried for too long, and a connection that stands still."""
        now = time.monotonic()
        if self._connection is not None and self._is_waiting():
            seconds = self._standstill_seconds()
            if now - self._progress_at >= seconds:
                self._broken(TransportError(f"{self._connection.peer} stood still for {seconds:g} s"))
        if now >= self._gone_deadline():
            error = TransportError(
                f"broker {self.broker_id} at {self.directory.broker.address} is not in ZooKeeper any more, and did not"
                f" take the messages within {self._config.connect_timeout_ms} ms"
            )
            self._broken(error)
            self._move_on()
            self._drop_all(error)
        timeout_ns = self._config.delivery_timeout_ms * _MS_NS
        while (head := self._flight.head()) is not None and time.monotonic_ns() - head.taken_ns >= timeout_ns:
            # The connection goes first: bytes of the chunk may be half on their way.
            error = TransportError(f"not delivered within {self._config.delivery_timeout_ms} ms")
            self._broken(error)
            if self._flight.head() is head:
                self._flight.drop_head(error)
                self._handle_refusals()  # it may have been the one that others of its partition wait for
        self._refusals.expire(time.monotonic_ns())

    def _standstill_seconds(self) -> float:
        """How long a connection may stand still; shorter when ZooKeeper says that the broker is gone."""
        limit = self._config.socket_timeout_ms
        return (limit if self.is_registered else min(limit, self._config.connect_timeout_ms)) / 1000

    def _gone_deadline(self) -> float:
        """When (``time.monotonic``) a synchronous send() to a broker that is gone fails; infinite where none waits."""
        if self._config.producer_type != "sync" or self._flight.head() is None:
            return float("inf")
        return self._gone_at + self._config.connect_timeout_ms / 1000

    def _is_waiting(self) -> bool:
        return self._leaving or self._flight.head() is not None

    def _report_outcomes(self) -> None:
        """Report the outcome of messages to their tickets, callbacks and flushes."""
        self._outcomes.tell(self._flight.take_events(), self._flight.take_failures())
        if self._refusals.readded:
            self._flush_marks = deque((self._flight.added_chunks, event) for _, event in self._flush_marks)
            self._refusals.readded = False
        finished = self._refusals.finished_up_to()
        while self._flush_marks and self._flush_marks[0][0] <= finished:
            self._flush_marks.popleft()[1].set()

    def _sleep(self) -> None:
        flight = self._flight
        moments = self._refusals.moments()
        head = flight.head()
        if head is not None:
            moments.append((head.taken_ns + self._config.delivery_timeout_ms * _MS_NS) / 1e9)
            moments.append(self._gone_deadline())
        if self._wants_connection():
            moments.append(self._next_attempt)
        if self._connection is not None and self._is_waiting():
            moments.append(self._progress_at + self._standstill_seconds())
        full = flight.bytes + self._refusals.bytes >= self._config.in_flight_bytes
        writes = self._connection is not None and not self._leaving and flight.has_unsent()
        fd = self._connection.fileno() if self._connection is not None else -1
        until = int(min(moments) * 1e9) if moments else -1
        if self._flush_requests or self._adopted:
            until = 0
        flags = self.outbox.sleep(fd, writes, full, until)
        if flags & READABLE:
            self._read()

    def _fail_rest(self, error: FastlogError) -> None:
        with suppress(IndexError):  # whoever brought it took the last one back
            while self._adopted:
                self._flight.add(self._adopted.popleft())
        while self._flight.head() is not None:
            self._flight.drop_head(error)
        self._report_outcomes()

    def _end(self) -> None:
        """Fail what is left, close everything, let everybody go."""
        self.outbox.close()
        error = self._aborted or ClosedError("the producer was closed")
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self.possible_duplicates += self._flight.rewind()
        self._refusals.give_up(error)
        for chunk in self.outbox.take(True):
            self._flight.add(chunk)
        self._fail_rest(error)
        self.outbox.retire()
        self._set_up(False)
        self.finished.set()
        self._fail_rest(error)  # of what was adopted between the two lines before
        self._ledger.room.notify_all()
        while self._flush_requests:
            self._flush_requests.popleft().set()
