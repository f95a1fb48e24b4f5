"""Fetches the partitions that a group owns: a thread and a connection for each, so that none waits for another.

A long poll keeps its connection to itself, and a thread that waits costs nothing; so a partition that is full, that
fails or whose broker is unavailable delays no other.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

from fastlog import escaping
from fastlog.consumer._delivery import Place
from fastlog.consumer.channel import Channel
from fastlog.consumer.chunks import AnyChunk
from fastlog.consumer.config import ConsumerConfig
from fastlog.consumer.feed import AutoResetEvent, Failure, Feed, Item, Jump, PartitionState, Phase
from fastlog.consumer.links import BrokerLink, Links
from fastlog.consumer.offered import FetchOffer
from fastlog.consumer.partitions import TopicPartition
from fastlog.consumer.reader import AnyReader, Reader, open_reader
from fastlog.consumer.record_reader import RecordReader, RecordRequests, record_channel
from fastlog.errors import (
    BrokerError,
    ClosedError,
    FastlogError,
    InvalidFetchSizeError,
    InvalidMessageError,
    LogError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    error_for,
)
from fastlog.limited_log import LimitedLog
from fastlog.retry import Backoff, pause_after
from fastlog.wire import requests, responses

log = escaping.logger(__name__)

EARLIEST = requests.TIME_EARLIEST
LATEST = requests.TIME_LATEST
RESET_TIMES = {"smallest": EARLIEST, "largest": LATEST}
_HOLD_SECONDS = 5.0
_LEAST_PAUSE = 0.02
_STAND_BY_SECONDS = 0.05
_LOG_KNOWN_SECONDS = 30.0
_MOST_LOCAL = 2  # a file is there at once, and what is read far ahead has left the cache when its turn comes
_OFFSETS_ANSWER_BYTES = 1024
# What no second try makes better, as long as the bytes are the same: the user has to know.
_OF_THE_DATA = (InvalidMessageError, InvalidFetchSizeError, MessageTooLargeError, LogError)


class Fetch:
    """The thread that fetches one partition, from where its place stands until it is stopped."""

    def __init__(
        self,
        place: Place,
        links: Links,
        config: ConsumerConfig,
        wake: Callable[[], None],
        on_jump: Callable[[Jump], None],
        on_begin: Callable[[TopicPartition], None],
    ) -> None:
        self.place = place
        self.queue: deque[Item] = deque()
        self.wakeup = AutoResetEvent()
        self.at_end = False
        self.is_starved = False
        # Held by the thread but while it waits, and by a stream that drives; it knows whose it is.
        self._reading = threading.RLock()
        self._is_driven = False
        self._handover = AutoResetEvent()
        self._driven_at = 0.0
        self._links = links
        self._config = config
        self._wake = wake
        self._on_jump = on_jump
        self._on_begin = on_begin
        self._broker, self._partition = place.source.partition
        self._offset = place.expected
        self._log = place.log
        self._log_asked = self._connected_at = 0.0
        self._is_log_away = False  # when it was looked for last, and it is known which one it was
        self._channel: Channel | None = None
        self._reader: AnyReader | None = None
        self._of_records = False
        self._is_stopped = False
        self._is_paused = False
        self._has_answered = False
        self._error: FastlogError | None = None
        self._failures = 0
        self._jumps = 0
        self._failing_since: float | None = None
        self._warnings = LimitedLog(log)
        self._reported: tuple[int, type] | None = None

    def __repr__(self) -> str:
        return f"<Fetch of {self.place.source} at {self._offset}>"

    # -- from outside --------------------------------------------------------------------------------------------------

    @property
    def log(self) -> int:
        """When the log was made that is fetched from, in ms since 1970; 0: not known."""
        return self._log

    @property
    def error(self) -> FastlogError | None:
        """Why nothing can be fetched now; None while fetching works."""
        return self._error

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name=f"fastlog-fetch-{self.place.source}", daemon=True).start()

    def stop(self, error: FastlogError | None = None) -> None:
        """Fetch nothing any more; waits for nothing. ``error``: why, as ``state`` is to report it."""
        if error is not None:
            self._error = error
            self._failing_since = time.time()
        self._is_stopped = True
        channel = self._channel
        if channel is not None:
            channel.close()
        self.wakeup.set()
        self._handover.set()

    def drive(self, seconds: float) -> bool:
        """Fetch the next chunk in the calling thread; False unless it is on its way and comes within ``seconds``.

        Two threads that take turns for each piece, and wait for the interpreter lock each time, need a third more.
        """
        try:
            return self._drive(seconds)
        except BaseException:
            with suppress(RuntimeError):  # not its own: it is given back already
                self._reading.release()  # Ctrl-C came between taking it and knowing that
            raise

    def _drive(self, seconds: float) -> bool:
        reader, channel = self._reader, self._channel
        if reader is None or channel is None or self.queue or self._is_driven:
            return False
        if not self._reading.acquire(blocking=False):
            return False
        chunk = None
        try:
            self._is_driven = True
            if (
                not self._is_stopped
                and reader.offset == self._offset
                and channel.connected_at == self._connected_at  # otherwise the thread looks first whose log it is
                and not self._is_log_away
            ):
                chunk = channel.alone(reader.soon, seconds)
                if chunk is not None:
                    self._driven_at = time.monotonic()
                    self._answered(reader, chunk)
        except FastlogError as error:  # the thread meets it again, and knows what to do
            log.debug("partition=%s offset=%d: %s", self.place.source, self._offset, error)
        finally:
            if chunk is None:
                self._driven_at = 0.0
                self._handover.set()
            self._is_driven = False
            self._reading.release()
        return chunk is not None

    def renewed(self) -> Fetch:
        """A new one, not started, that goes on behind the last chunk that the stream has taken."""
        return Fetch(self.place, self._links, self._config, self._wake, self._on_jump, self._on_begin)

    def state(self, feed: Feed) -> PartitionState:
        """The state of the partition as users see it; ``feed`` is the one that this fetches for."""
        reader, place = self._reader, self.place
        if self._is_stopped:
            phase = Phase.STOPPED
        elif self._error is not None:
            phase = Phase.FAILING
        elif not self._has_answered:
            phase = Phase.STARTING
        elif self._is_paused:
            phase = Phase.PAUSED
        else:
            phase = Phase.AT_END if feed.at_end else Phase.READING
        return PartitionState(
            phase=phase,
            address=self._links.get(self._broker).address,
            thread=feed.thread,
            position=self._offset if self._offset >= 0 else None,
            consumed=place.consumed if place.consumed >= 0 else None,
            high_watermark=None if reader is None else reader.high_watermark,
            queued=len(self.queue),
            source="socket" if reader is None else reader.source,
            error=self._error,
            failures=self._failures,
            failing_since=self._failing_since,
            gaps=feed.gaps,
        )

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_stopped:
            link = self._links.get(self._broker)
            try:
                with self._reading:
                    self._fetch(link)
            except ClosedError:
                continue
            except OffsetOutOfRangeError as error:
                self._try_to_jump(link, error)
            except FastlogError as error:
                self._failed(link, error)
            except Exception as error:
                log.exception("fetching partition=%s offset=%d", self.place.source, self._offset)
                self._failed(link, FastlogError(f"{type(error).__name__}: {error}"))

    def _fetch(self, link: BrokerLink) -> None:
        """Until it is stopped, or something fails."""
        topic, config = self.place.source.topic, self._config
        offer = link.offers.get()
        records = link.records_of(topic) if offer.own_requests else None
        self._of_records = records is not None
        channel = self._channel = self._channel_to(link)
        try:
            if self._is_stopped:
                return
            channel.alone(channel.connect)
            self._check_log(link, channel, offer)
            if offer.own_requests and link.records_of(topic) != records:
                return  # made anew since, perhaps as one of the other kind
            if self._offset < 0:
                when = RESET_TIMES[config.auto_offset_reset]
                self._offset = channel.alone(self._asked, channel, when)
                self.place.start(self._offset)
                self._offset = self.place.expected
                self._on_begin(self.place.source)
                if self.place.is_over:  # it was given up just now, and will be stopped
                    self._is_stopped = True
                    return
            reader: AnyReader
            if records is not None:
                reader = RecordReader(
                    channel,
                    RecordRequests(channel),
                    topic,
                    records.id,
                    self._partition,
                    self._offset,
                    config.fetch_bytes,
                    ahead=True,
                )
            else:
                reader = open_reader(
                    channel,
                    offer,
                    topic,
                    self._partition,
                    self._offset,
                    config.fetch_bytes,
                    ahead=True,
                    local=config.local,
                )
            self._reader = reader
            self._read(link, channel, reader, offer)
        finally:
            channel.close()

    def _channel_to(self, link: BrokerLink) -> Channel:
        """A connection to be, for requests of 0.7 and fastlog's own, or for today's protocol."""
        buffer_bytes = self._config.receive_buffer_bytes
        if self._of_records:
            return record_channel(link.broker, "consumer", buffer_bytes)
        return Channel(link.broker, "consumer", buffer_bytes)

    def _check_log(self, link: BrokerLink, channel: Channel, offer: FetchOffer, *, came: bool = False) -> None:
        """Whoever answers on another connection may have another log. Raises ``OffsetOutOfRangeError`` then.

        A log that does not tell when it was made is asked again: one that is new tells it once it is durable. One that
        was away is compared once something ``came``: of one, perhaps, that was made since and has grown beyond the
        offset.
        """
        if channel.connected_at != self._connected_at:
            since = channel.connected_at
        elif came and self._is_log_away:
            since = time.monotonic()
        elif not self._log and time.monotonic() - self._log_asked > _LOG_KNOWN_SECONDS:
            since = time.monotonic() - _LOG_KNOWN_SECONDS
        else:
            return
        if offer.own_requests:
            made = self._compare_log(link, since)
            # who tells nothing though there is something never will
            self._is_log_away = not (came or made) and bool(self._log)
        self._log_asked = time.monotonic()
        self._connected_at = channel.connected_at

    def _compare_log(self, link: BrokerLink, since: float) -> int:
        made = link.log_of(self.place.source.topic, self._partition, since)
        if made and self._log and made != self._log and self._offset >= 0:
            if link.records_of(self.place.source.topic) is not None:
                raise OffsetOutOfRangeError("the topic was made anew, and the offset is of the one before")
            raise OffsetOutOfRangeError(
                f"the log was made anew at {_clock(made)}, and the offset is of the one that was made at"
                f" {_clock(self._log)}"
            )
        self._know_log(made or self._log)
        return made

    def _know_log(self, made: int) -> None:
        self._log = made
        if not any(isinstance(item, Jump) for item in self.queue):  # what is before it was of another log
            self.place.learn(made)

    def _read(self, link: BrokerLink, channel: Channel, reader: AnyReader, offer: FetchOffer) -> None:
        holds = isinstance(reader, RecordReader) or (offer.held_fetch and offer.max_wait_ms > 0)
        wait = 0.0  # the first answer says at once whether there is anything
        backoff = Backoff(_LEAST_PAUSE, self._config.fetcher_backoff_ms / 1000)
        while not self._is_stopped:
            if reader.offset != self._offset:
                reader.go_back(self._offset)  # a stream was interrupted with a piece in its hands
            most = max(1, self._config.queued_chunks // reader.growth)
            if len(self.queue) >= (most if reader.source == "socket" else min(most, _MOST_LOCAL)):
                self._is_paused = True
                with self._left_to_the_stream():
                    self.wakeup.wait(_HOLD_SECONDS)
                self._is_paused = False
                continue
            came = True
            try:
                chunk = channel.alone(reader.next, wait)
                came = chunk is not None
            finally:  # also where an offset of another log is no start of a message in this one
                if isinstance(reader, Reader) and reader.met_no_log:
                    reader.met_no_log, self._is_log_away = False, bool(self._log)
                self._check_log(link, channel, offer, came=came and not self._is_stopped)
            self._answered(reader, chunk)
            if chunk is not None:
                backoff.reset()
                if self.is_starved and reader.is_near:
                    self._stand_by()
                continue
            reader.rest()
            if holds:
                wait = _HOLD_SECONDS
            else:
                self.wakeup.wait(backoff.next())

    def _stand_by(self) -> None:
        """Stand by while the stream fetches in its own thread, until it no longer does."""
        self.is_starved = False
        self._driven_at = time.monotonic()
        with self._left_to_the_stream():
            self._wake()  # it may have come before the reading was given back, and waits for what nobody fetches
            while not self._is_stopped and (left := self._driven_at + _STAND_BY_SECONDS - time.monotonic()) > 0:
                self._handover.wait(left)

    @contextmanager
    def _left_to_the_stream(self) -> Iterator[None]:
        """The reading, while this thread waits."""
        self._reading.release()
        try:
            yield
        finally:
            self._reading.acquire()

    def _answered(self, reader: AnyReader, chunk: AnyChunk | None) -> None:
        if self._failures:
            self._warnings.over("failed")
            log.info("partition=%s is read again from offset=%d", self.place.source, self._offset)
        self._has_answered = True
        self._failures = self._jumps = 0
        self._error = self._failing_since = None
        if chunk is not None:
            # Damage behind is found again by the next fetch, which begins with it, and reported then.
            self._put(chunk.whole())
        self._offset = reader.offset
        self.at_end = reader.offset == reader.high_watermark

    def _put(self, item: Item) -> None:
        self.queue.append(item)
        self._wake()

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    def _failed(self, link: BrokerLink, error: FastlogError) -> None:
        """Note it, say it, and wait a little."""
        if self._is_stopped:
            return
        self._failures += 1
        self._error = error
        self.at_end = False
        self._failing_since = self._failing_since or time.time()
        self._warnings.warning(
            "failed",
            "partition=%s offset=%d failures=%d: %s",
            self.place.source,
            self._offset,
            self._failures,
            "; ".join(str(error).splitlines()),
        )
        if isinstance(error, _OF_THE_DATA) and self._reported != (self._offset, type(error)):
            self._reported = (self._offset, type(error))
            self._put(Failure(error))
        elif not isinstance(error, BrokerError):
            self._links.renew(self._broker, link)
        self._sleep(self._backoff(self._failures))

    def _backoff(self, failures: int) -> float:
        most = self._config.fetcher_backoff_ms / 1000
        return pause_after(failures, 2 * _LEAST_PAUSE, most) * random.uniform(0.5, 1.0)

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._is_stopped and (left := until - time.monotonic()) > 0:
            self.wakeup.wait(left)  # also set when the stream has taken something

    def _try_to_jump(self, link: BrokerLink, error: OffsetOutOfRangeError) -> None:
        """Go on where ``autooffset.reset`` says, and report it."""
        if self._is_stopped or self.place.is_over:
            return
        try:
            own = link.offers.get().own_requests
            self._of_records = own and link.records_of(self.place.source.topic) is not None
            channel = self._channel = self._channel_to(link)
            try:
                channel.alone(channel.connect)
                made = 0
                if own:
                    made = link.log_of(self.place.source.topic, self._partition, channel.connected_at)
                    if self._of_records != (link.records_of(self.place.source.topic) is not None):
                        return  # the next try finds the other kind
                new = channel.alone(self._asked, channel, RESET_TIMES[self._config.auto_offset_reset])
            finally:
                channel.close()
        except ClosedError:
            return
        except FastlogError as failure:
            self._failed(link, failure)
            return
        if new == self._offset and made and self._log and made != self._log:
            self._know_log(made)  # it begins where it was to go on, in another log
            return
        if new == self._offset:
            self._failed(link, error)  # the broker contradicts itself, or retention is at work just now
            return
        jump = Jump(self.place.source, self._offset, new, str(error), time.time(), made)
        log.error("out of range: %s", jump)
        self._on_jump(jump)
        self._offset = new
        self._put(jump)
        self._log = made
        self._jumps += 1
        if self._jumps > 1:  # nothing could be read in between
            self._sleep(self._backoff(self._jumps))

    def _asked(self, channel: Channel, when: int) -> int:
        """The oldest or the newest offset, as the broker says."""
        topic = self.place.source.topic
        if self._of_records:
            return RecordRequests(channel).offset(topic, self._partition, when)
        frame = requests.encode_offsets(topic, self._partition, when, 1)
        answer = responses.decode_offsets(bytes(channel.request(frame, _OFFSETS_ANSWER_BYTES)))
        if answer.error:
            raise error_for(answer.error, topic=topic, partition=self._partition, broker=self._broker)
        if not answer.offsets or answer.offsets[0] < 0:
            raise FastlogError(f"{self.place.source}: the broker names no offset to begin at")
        return answer.offsets[0]


def _clock(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000).astimezone().isoformat(timespec="milliseconds")
