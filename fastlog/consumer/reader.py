"""Reading one partition piece by piece: held or plain fetches, one of them ahead, or the segment files themselves."""

from __future__ import annotations

import time
from typing import Any

from fastlog import escaping
from fastlog._segment import LENGTH_BYTES, SCAN_OK, SCAN_TAIL, ScanResult, scan
from fastlog.client.connection import Broker, pause
from fastlog.client.topics import check_described, readable_end
from fastlog.consumer.channel import Channel
from fastlog.consumer.chunks import Chunk
from fastlog.consumer.local import LocalLog, NotLocalError, NotThereYetError, SegmentsChangedError
from fastlog.consumer.offered import FetchOffer
from fastlog.consumer.record_reader import RecordReader
from fastlog.errors import (
    BrokerError,
    ClosedError,
    FastlogError,
    ForkedError,
    InvalidMessageError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    ProtocolError,
    TransportError,
    error_for,
    meaning_of,
)
from fastlog.message import HEADER_BYTES
from fastlog.retry import Backoff
from fastlog.wire import requests, responses

log = escaping.logger(__name__)

MAX_FETCH_BYTES = 2**30
_MOST_OFFSET = 2**63 - 1
_FRAME_HEAD_BYTES = 64  # more than any head of an answer
_LOCAL_ANSWER_BYTES = 16 * 2**20
_PROOF_BYTES = 512
_LOCAL_TRIES = 3
_HOLD_MS = 5_000
_LEAST_PAUSE = 0.01
_MOST_PAUSE = 0.25


def check_end(offset: int, data: memoryview) -> None:
    """Raise ``ProtocolError`` for bytes that no log can have at an offset: they end beyond the largest number."""
    if len(data) > _MOST_OFFSET - offset:
        raise ProtocolError(f"{len(data)} bytes came for offset {offset}, where no log goes on")


class Reader:
    """Where reading of one partition stands. Used inside ``channel.alone()``."""

    def __init__(
        self,
        channel: Channel,
        offer: FetchOffer,
        topic: str,
        partition: int,
        offset: int,
        fetch_bytes: int,
        *,
        ahead: bool,
        local: LocalLog | None,
    ) -> None:
        self.offset = offset
        self.local = local
        self.anywhere = False
        """Local files count also where the broker is on another machine."""
        self.local_refused = "" if local is not None else "not asked for"
        self._channel = channel
        self.offer = offer
        """What the broker said that it offers."""
        self._topic = topic
        self._partition = partition
        self._fetch_bytes = fetch_bytes
        self._limit_bytes = max(fetch_bytes, offer.max_message_bytes + HEADER_BYTES[1])
        self._ahead = ahead
        self._asked_bytes = 0
        self._correlation_id = 0
        self._proven = False
        self._log_start = 0
        self.high_watermark: int | None = None
        """Up to where the log could be read when the broker last said so; of a plain 0.7 broker when it had no more."""
        self.growth = 1
        """How many times the bytes that it was made with it asks for: of record batches that may change."""
        self.met_no_log = False
        """Set once the broker has answered as it does where there is no such partition."""
        if local is not None:
            channel.owned.add(local)

    def close(self) -> None:
        """Close the local file, if one is open."""
        if self.local is not None:
            self._channel.owned.discard(self.local)
            self.local.close()

    def rest(self) -> None:
        """Free most of the buffers that are kept for later answers; for when little comes."""
        self._channel.rest()
        if self.local is not None:
            self.local.rest()

    def go_back(self, offset: int) -> None:
        """Read on from there; what was asked for is forgotten."""
        self._channel.drop()
        self._asked_bytes = 0
        self.offset = offset

    def seek(self, offset: int, fetch_bytes: int) -> None:
        """Go on at another place; not for a reader that fetches ahead."""
        assert not self._ahead
        self._asked_bytes = 0  # what an interrupted call has asked for is for another place
        self.offset = offset
        self._fetch_bytes = fetch_bytes
        self._limit_bytes = max(fetch_bytes, self.offer.max_message_bytes + HEADER_BYTES[1])

    def log_end(self, broker: Broker) -> int:
        """Up to where the partition can be read once all of it is flushed; the own offset where nobody can say."""
        metadata = broker.metadata_or_none((self._topic,))
        for found in metadata.topics if metadata else ():
            if found.name != self._topic:
                continue
            check_described(found, broker.addresses[0])
            for item in found.partitions:
                if item.partition == self._partition:
                    return readable_end(item)
        return self.offset

    @property
    def source(self) -> str:
        """``read`` or ``map`` while the files are read, else ``socket``."""
        return "socket" if self.local is None or not self._proven else "map" if self.local.mapped else "read"

    def next(self, wait: float) -> Chunk | None:
        """The next whole messages, waited for up to ``wait`` seconds when there are none; None when none came.

        Raises:
            BrokerError: the broker refuses, or the message at this offset is damaged or too large.
            TransportError, ProtocolError: as for ``Channel.request``.
            LogError: a local file cannot be read.
        """
        deadline = time.monotonic() + wait
        backoff = Backoff(_LEAST_PAUSE, _MOST_PAUSE)
        while True:
            left = max(0.0, deadline - time.monotonic())
            data = self._obtain(left)
            # Fewer bytes than a length field are no message yet, in 0.7 too.
            if len(data) >= min(LENGTH_BYTES, self._fetch_bytes):
                result = scan(data)
                if result.valid_bytes:
                    return self._taken(data, result)
                self._grow(data, result)
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            if not self.offer.held_fetch or not self.offer.max_wait_ms:
                pause(min(backoff.next(), left))
                self._channel.check()

    @property
    def is_near(self) -> bool:
        """Whether the next chunk was requested already, or is in a local file."""
        if self.local is not None:
            return self._proven and self.offset < self.local.limit
        return self._channel.has_pending

    def soon(self, seconds: float) -> Chunk | None:
        """The next messages if they were requested, or are in a local file, and come within ``seconds``; else None.

        After None ``next`` has to be called.

        Raises as ``next``, which meets the same again.
        """
        if not self.is_near:
            return None
        data: memoryview | None
        if self.local is not None:
            try:
                data = self.local.piece(self.offset, self._fetch_bytes)
            except (SegmentsChangedError, NotLocalError):
                return None
        else:
            body = self._channel.collect_soon(seconds)
            if body is None:
                return None
            self._asked_bytes = 0
            data = self._opened(body)
        result = scan(data)
        return self._taken(data, result) if result.valid_bytes else None

    def _taken(self, data: memoryview, result: ScanResult) -> Chunk:
        chunk = Chunk(self.offset, data, result)
        self.offset += result.valid_bytes
        if self._ahead and result.status in (SCAN_OK, SCAN_TAIL):
            self._post_ahead(len(data))
        return chunk

    # -- local ---------------------------------------------------------------------------------------------------------

    def _obtain(self, wait: float) -> memoryview:
        if self.local is not None:
            try:
                return self._obtain_local(self.local, wait)
            except NotLocalError as error:
                self._refuse_local(str(error))
            except NotThereYetError:
                log.debug("topic=%r partition=%d has no files yet", self._topic, self._partition)
        return self._fetch(wait)

    def _obtain_local(self, local: LocalLog, wait: float) -> memoryview:
        if not self._proven:
            self._ask_for_files(local)
        changes = 0
        for _ in range(_LOCAL_TRIES):
            try:
                if self.offset < local.limit and self._proven:
                    return local.piece(self.offset, self._fetch_bytes)
                data = self._fetch(wait, _PROOF_BYTES)
                if not data:
                    return data
                if len(data) < _PROOF_BYTES and not scan(data).valid_bytes:
                    raise NotLocalError("the broker sent too little to compare the files with")
                if not local.same_bytes(self.offset, data):
                    raise NotLocalError("the files here hold other bytes than the broker sends")
                if not self._proven:
                    self._proven = True
                    log.debug(
                        "topic=%r partition=%d is read from %s",
                        self._topic,
                        self._partition,
                        local.where(self.offset)["path"],
                    )
            except SegmentsChangedError:
                changes += 1
                self._ask_for_files(local)
        if self._proven and changes == _LOCAL_TRIES and self.offset >= self._log_start:
            raise local.too_short(self.offset)
        raise NotLocalError("what the broker tells of the segments does not fit the files here")

    def _ask_for_files(self, local: LocalLog) -> None:
        frame = requests.encode_local_read(self._next_id(), self._topic, self._partition)
        try:
            if not self.anywhere and not self._channel.reaches_this_host():
                raise NotLocalError("the broker is on another machine")
            body = self._channel.request(frame, _LOCAL_ANSWER_BYTES)
        except TransportError as error:  # if the broker is unavailable altogether, the fetch that follows says so
            raise NotLocalError(f"the broker did not tell where the files are: {error}") from error
        answer = responses.decode_local_read(bytes(body))
        self._check_id(answer.correlation_id)
        if answer.error:
            raise NotLocalError(meaning_of(answer.error))
        self._log_start = answer.log_start
        self.high_watermark = answer.high_watermark
        if local.update(answer):
            self._proven = False

    def _refuse_local(self, reason: str) -> None:
        log.debug("topic=%r partition=%d is read through the socket: %s", self._topic, self._partition, reason)
        self.close()
        self.local = None
        self.local_refused = reason

    # -- socket --------------------------------------------------------------------------------------------------------

    def _fetch(self, wait: float, max_bytes: int | None = None) -> memoryview:
        """Bytes from the offset on; the answer that was posted ahead, when there is one."""
        if not self._channel.has_pending or not self._asked_bytes:
            self._post(wait, max_bytes or self._fetch_bytes)
        self._asked_bytes = 0
        return self._opened(self._channel.collect())

    def _opened(self, body: memoryview) -> memoryview:
        """The bytes of the log in the body of an answer; raises ``BrokerError`` for an error code in it."""
        if not self.offer.held_fetch:
            error, data = responses.split_fetch(body)
            detail = ""
            if not error and not data:
                self.high_watermark = self.offset
        else:
            answer, data = responses.split_held_fetch(body)
            self._check_id(answer.correlation_id)
            error = answer.error
            detail = f"the log goes from {answer.log_start} to {answer.high_watermark}"
            self.high_watermark = answer.high_watermark
            # of a log that there is, that would be an error
            self.met_no_log = self.met_no_log or (not error and answer.high_watermark < self.offset)
            if not error and self.local is not None:
                self.local.limit = max(self.local.limit, answer.high_watermark)
        if error:
            raise self._refused(error, detail)
        check_end(self.offset, data)
        return data

    def _post(self, wait: float, max_bytes: int) -> None:
        self._asked_bytes = max_bytes
        if not self.offer.held_fetch:
            frame = requests.encode_fetch(self._topic, self._partition, self.offset, max_bytes)
            self._channel.post(frame, max_bytes + _FRAME_HEAD_BYTES)
            return
        wait_ms = min(int(wait * 1000), _HOLD_MS, self.offer.max_wait_ms)
        frame = requests.encode_held_fetch(
            self._next_id(), wait_ms, 1, self._topic, self._partition, self.offset, max_bytes
        )
        self._channel.post(frame, max_bytes + _FRAME_HEAD_BYTES, wait_ms / 1000)

    def _post_ahead(self, came: int) -> None:
        """Ask for the next piece while this one is consumed, when there is sure to be one."""
        if self.local is None and came >= self._fetch_bytes:
            self._post(0.0, self._fetch_bytes)

    def _next_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return self._correlation_id

    def _check_id(self, found: int) -> None:
        if found != self._correlation_id:
            self._channel.drop()
            raise ProtocolError(f"the answer to request {self._correlation_id} says it is for {found}")

    # -- what cannot be read -------------------------------------------------------------------------------------------

    def _grow(self, data: memoryview, result: ScanResult) -> None:
        """Make the next fetch large enough for the message at the offset, which is not whole in these bytes."""
        if result.status != SCAN_TAIL:
            raise self._damaged("it is not a valid message, or the offset is not the start of one")
        needed = 2 * LENGTH_BYTES
        if len(data) >= LENGTH_BYTES:
            needed = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "big")
        if needed > self._limit_bytes:
            raise MessageTooLargeError(
                f"the message claims a size of {needed} bytes, above the limit of {self._limit_bytes}\n"
                "the offset is not the start of a message, or max_message_bytes must be larger"
            ).at(**self._where(self.offset))
        if needed <= self._fetch_bytes and len(data) < self._fetch_bytes:
            if self.local is not None and self._proven:
                raise self.local.too_short(self.offset + len(data))
            raise self._damaged(f"the log ends inside it, after {len(data)} of {needed} bytes")
        self._fetch_bytes = min(self._limit_bytes, max(2 * self._fetch_bytes, needed))

    def _damaged(self, why: str) -> InvalidMessageError:
        return InvalidMessageError(f"the message is damaged: {why}").at(**self._where(self.offset))

    def _refused(self, error: int, detail: str) -> BrokerError:
        refused = error_for(error, detail if error == OffsetOutOfRangeError.code else "")
        return refused.at(topic=self._topic, partition=self._partition, offset=self.offset, broker=self._channel.broker)

    def placed(self, error: FastlogError) -> FastlogError:
        """An error of reading, with what it is about; itself where it knows that, or is about the whole consumer."""
        if error.topic is not None or isinstance(error, ClosedError | ForkedError):
            return error
        if isinstance(error, BrokerError):  # in what was fetched last
            return error.at(**self._where(error.offset))
        return error.at(topic=self._topic, partition=self._partition, broker=self._channel.broker)

    def _where(self, offset: int | None) -> dict[str, Any]:
        """What an error in the bytes that were read is about."""
        place = {"topic": self._topic, "partition": self._partition, "offset": offset, "broker": self._channel.broker}
        if offset is not None and self.local is not None and self._proven:
            place.update(self.local.where(offset))
        return place


def open_reader(
    channel: Channel,
    offer: FetchOffer,
    topic: str,
    partition: int,
    offset: int,
    fetch_bytes: int,
    *,
    ahead: bool,
    local: str,
) -> Reader:
    """A reader that reads the broker's files where ``local``, as ``SimpleConsumer`` knows it, and the offer allow."""
    log_files = None
    if local != "off" and offer.local_read and offer.held_fetch:
        log_files = LocalLog(topic, partition, mapped=local == "map")
    reader = Reader(channel, offer, topic, partition, offset, fetch_bytes, ahead=ahead, local=log_files)
    reader.anywhere = local == "shared"
    if local != "off" and log_files is None:
        reader.local_refused = "the broker does not offer it"
    return reader


AnyReader = Reader | RecordReader
"""A reader of messages of Kafka 0.7, or of record batches."""
