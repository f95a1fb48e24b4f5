"""What the engine of a processor asks Python for: partitions to make, sets to decompress, lines in the log."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fastlog import logs, segment_files
from fastlog._deep import DeepCount
from fastlog._deep_batch import DeepBatch
from fastlog._upconvert import SetBatches
from fastlog.config import BrokerConfig
from fastlog.errors import (
    BrokerError,
    DecompressionLimitError,
    FastlogError,
    InvalidMessageError,
    InvalidTopicError,
    LogError,
    MessageTooLargeError,
    WrongPartitionError,
)
from fastlog.log import _files
from fastlog.log._arena import Arena
from fastlog.log.files import FileOps
from fastlog.log.formats import FORMATS, format_name
from fastlog.log.manager import CreationBusyError, LogManager
from fastlog.message import DeepLimits, deep_count
from fastlog.workers._authorizer import Authorizer
from fastlog.workers.authorization import Rule

Made = TypeVar("Made")

log = logging.getLogger(__name__)
request_log = logging.getLogger(logs.REQUEST_LOGGER)

STEP_BYTES = 1 << 20
"""Decompressed in one step; a set of no more is looked at where it arrives."""
BYTES_PER_PIECE = 16
"""Of a produced set, for each compressed set in it: a wrapper with a message in it takes more, so that only those are
refused that are nested by the thousand."""
BYTES_PER_BATCH_PIECE = 1024
"""The same of a batch, where nothing is nested: clients write one member or frame, or blocks of 32 kB."""
STEP_WRAPPERS = 128
"""Opened in one step, for those with little in them."""
BUSY, FAILED, NOT_CREATED = -2, -3, -4
NOT_CONVERTED, TOO_LARGE_FOR_BATCH = 1, 2
REFUSED, OFF_LOOP, TOO_LARGE, MISTIMED = -1, -2, -3, -4
NO_RECORD = -1
NO_TIMESTAMP = -1
"""Of a record of today's clients that has no time."""
MOST_TIMESTAMP = 2**63 - 1
MOST_REASONS = 1024
MAX_NAME_BYTES = 255
"""Of a topic's name in the log; a client may send 32 kB."""
BYTES = (
    "a message larger than max.message.size was dropped",
    "a batch larger than message.max.bytes",
    "a message larger than max.message.bytes of its topic was dropped",
    "the announced request size is not allowed",
)
"""Reasons whose detail is a number of bytes."""


class Services:
    """The Python side of one processor's engine, whatever its protocols.

    Its loop's thread calls everything but ``count_deep``, ``check_batch``, ``make_batches`` and ``create_partition``,
    which are those of the helper's threads, a queue each; what a log manager remembers is for one thread, so each has
    one.
    """

    def __init__(
        self,
        config: BrokerConfig,
        arena: Arena,
        process: int,
        rule: Rule | None = None,
        tracing: memoryview | None = None,
    ) -> None:
        """``rule`` says who may do what, None: everybody everything.

        ``tracing``: a byte that is not 0 while requests are logged, None: as the setting says.
        """
        self.tracing = memoryview(bytes([config.trace_requests])) if tracing is None else tracing
        self.authorizer = Authorizer(rule)
        self._config = config
        self._arena = arena
        self._process = process
        self._manager = LogManager(config, arena, FileOps())
        self._creation_manager = LogManager(config, arena, FileOps())
        self.limits = self._limits = DeepLimits(
            max_inflated_bytes=config.max_inflated_bytes,
            max_depth=config.max_inflated_depth,
            max_messages=config.max_inflated_messages,
        )
        self.partitions = config.partitions
        self.partitions_by_topic = config.partitions_by_topic
        self.max_name_units = config.max_topic_name_length
        self._reasons: dict[int, str] = {}  # by connection: why its compressed set is invalid

    def create_partition(self, name: bytes, partition: int) -> int:
        """The slot of a new partition; BUSY: ask again when woken; FAILED: by the disk; NOT_CREATED: not allowed."""
        if not self._config.auto_create_topics:
            return NOT_CREATED
        return self.unless_busy(lambda: self._create(name, partition), BUSY)

    def _create(self, name: bytes, partition: int) -> int:
        try:
            return self._creation_manager.create_partition(name.decode(), partition)
        except CreationBusyError:
            return BUSY
        except (InvalidTopicError, WrongPartitionError, UnicodeDecodeError):
            return NOT_CREATED
        except (OSError, LogError) as error:
            line = "partition not created topic=%r partition=%d reason=%s"
            log.error(line, _shown(name), partition, error, extra=logs.about("not created", type(error)))
            return FAILED

    def unless_busy(self, make: Callable[[], Made], busy: object) -> Made:
        """What ``make`` gives; once more when it gives ``busy``: what it met may end before we say that we wait."""
        made = make()
        if made == busy:
            _files.reach("wait.create")
            self._arena.wait_for_creation(self._process)
            made = make()
        return made

    def count_deep_small(self, data: memoryview, connection: int) -> int:
        """Deep messages of a set that is counted in one step; OFF_LOOP: it takes more; REFUSED: it is invalid."""
        try:
            counting = self._begin(data)
            return counting.count if counting.step(STEP_BYTES, STEP_WRAPPERS) else OFF_LOOP
        except BrokerError as error:
            return self._refuse_set(connection, error)

    def count_deep(self, data: memoryview, connection: int, begun: DeepCount | None) -> DeepCount | int:
        """Deep messages of any set within the limits, REFUSED else; after one step of many, what goes on with it."""
        try:
            counting = begun or self._begin(data)
            return counting.count if counting.step(STEP_BYTES, STEP_WRAPPERS) else counting
        except Exception as error:
            return self._refuse_set(connection, error)

    def check_batch_small(self, data: memoryview, connection: int) -> tuple[int, int]:
        """What is found in a compressed batch that is checked in one step.

        Returns:
            1 + the largest time of its records, 0 where none has one, and the number of the first record with it. Or
            OFF_LOOP: it takes more; REFUSED: it is invalid; MISTIMED: its largest time is none; TOO_LARGE: more comes
            out than the limits allow; and the number of the record that is at fault, NO_RECORD where none is.
        """
        checking = None
        try:
            checking = DeepBatch(data, self._limits, BYTES_PER_BATCH_PIECE)
            if checking.whole_bytes > STEP_BYTES or not checking.step(STEP_BYTES):
                return OFF_LOOP, NO_RECORD
            return self._largest(checking, connection)
        except FastlogError as error:
            return self._refuse_batch(connection, error, checking)

    def check_batch(self, data: memoryview, connection: int, begun: DeepBatch | None) -> DeepBatch | tuple[int, int]:
        """The same of any batch; after one step of many, what goes on with it."""
        checking = begun
        try:
            checking = checking or DeepBatch(data, self._limits, BYTES_PER_BATCH_PIECE)
            done = checking.step(STEP_BYTES)
            while not done and checking.held_bytes > STEP_BYTES:
                done = checking.step(STEP_BYTES)  # what one connection holds of a large record, all could hold at once
            return self._largest(checking, connection) if done else checking
        except Exception as error:
            return self._refuse_batch(connection, error, checking)

    def make_batches(
        self, data: memoryview, connection: int, begun: SetBatches | None, time_ms: int, most_bytes: int
    ) -> SetBatches | tuple[bytes, int] | int:
        """The record batches of a set that has been checked, and how many records they have.

        After one step of many, what goes on with it. NOT_CONVERTED: it is damaged; TOO_LARGE_FOR_BATCH: one message
        alone is larger than a batch.
        """
        try:
            making = begun or SetBatches(data, time_ms, most_bytes, self._limits)
            return (making.made, making.count) if making.step(STEP_BYTES) else making
        except MessageTooLargeError:
            return TOO_LARGE_FOR_BATCH
        except Exception as error:
            self._refuse_set(connection, error)
            return NOT_CONVERTED

    def _largest(self, checked: DeepBatch, connection: int) -> tuple[int, int]:
        largest, record = checked.max_timestamp, checked.max_timestamp_delta
        assert largest is not None and record is not None  # a batch has a record
        if not NO_TIMESTAMP <= largest < MOST_TIMESTAMP:
            self._refuse_set(connection, InvalidMessageError(f"a record has the time {largest}, which is none"))
            return MISTIMED, record
        return largest + 1, record

    def _refuse_batch(self, connection: int, error: Exception, checked: DeepBatch | None) -> tuple[int, int]:
        refused = self._refuse_set(connection, error)
        record = checked.refused_record if checked is not None else None
        return TOO_LARGE if isinstance(
            error, DecompressionLimitError
        ) else refused, NO_RECORD if record is None else record

    def _begin(self, data: memoryview) -> DeepCount:
        return deep_count(data, self._limits, bytes_per_piece=BYTES_PER_PIECE)

    def _refuse_set(self, connection: int, error: Exception) -> int:
        if len(self._reasons) >= MOST_REASONS:  # of connections that went away before their answer
            self._reasons.clear()
        self._reasons[connection] = str(error)
        return REFUSED

    def report(self, fd: int, reason: str, detail: int, topic: bytes | None, partition: int) -> None:
        """Say why a request was refused, once in a while for each reason, peer and partition."""
        host = _peer(fd)
        place = "" if topic is None else f" topic={_shown(topic)!r} partition={partition}"
        name = "bytes" if reason in BYTES else "detail"
        extra = logs.about("refused", reason, host, topic, partition)
        log.warning("refused peer=%s%s %s=%d %s", host, place, name, detail, reason, extra=extra)

    def report_set(self, fd: int, connection: int, topic: bytes, partition: int) -> str:
        """Say why ``count_deep`` or ``check_batch`` refused what is compressed, and return it."""
        host, reason = _peer(fd), self._reasons.pop(connection, "it cannot be decompressed")
        line = "refused peer=%s topic=%r partition=%d invalid compressed message set: %s"
        log.warning(line, host, _shown(topic), partition, reason, extra=logs.about("refused", "compressed", host))
        return reason

    def write_failed(self, fd: int, topic: bytes, partition: int, error: int) -> None:
        """Say that a produce was not stored because the disk refused it."""
        line = "a write to the log failed topic=%r partition=%d path=%s errno=%s (%s) peer=%s: not stored"
        name, directory = _shown(topic), self._directory(topic, partition)
        extra = logs.about("write failed", topic, partition, error)
        log.error(line, name, partition, directory, _errno(error), os.strerror(error), _peer(fd), extra=extra)

    def read_failed(self, topic: bytes, partition: int, base: int, position: int, error: int) -> None:
        """Say that bytes of a segment cannot be had; ``error`` 0: the file ends before them."""
        line = "the log cannot be read topic=%r partition=%d offset=%d path=%s position=%d errno=%s (%s)"
        view = self._manager.slot(topic.decode(), partition)
        if view is None:
            return  # deleted meanwhile
        made = FORMATS[str(format_name(view.format))]
        path = self._directory(topic, partition) / segment_files.segment_name(base, made.suffix)
        offset = made.end_offset(segment_files.SegmentFile(base, path, position))
        why = os.strerror(error) if error else "the file is shorter than the log"
        extra = logs.about("read failed", topic, partition, error)
        log.error(line, _shown(topic), partition, offset, path, position, _errno(error), why, extra=extra)

    def not_converted(self, topic: bytes, partition: int, offset: int, reason: str) -> None:
        """Say that clients of today cannot read on in a topic of 0.7, and why."""
        line = "cannot be read by clients of today topic=%r partition=%d offset=%d reason=%s"
        extra = logs.about("not converted", topic, partition)
        log.error(line, _shown(topic), partition, offset, reason, extra=extra)

    def _directory(self, topic: bytes, partition: int) -> Path:
        view = self._manager.slot(topic.decode(), partition)
        root = self._arena.log_dirs[view.directory if view is not None else 0]
        return Path(root, segment_files.partition_directory_name(topic.decode(), partition))

    def trace(self, fd: int, kind: int, size: int) -> None:
        """One line per request, while requests are logged."""
        request_log.info("request peer=%s kind=%d bytes=%d", _peer(fd), kind, size)

    def unexpected(self, error: BaseException) -> None:
        """Something raised that should not have: say it with its traceback. Any thread."""
        log.error("unexpected error in a request: %r", error, exc_info=error)


def _peer(fd: int) -> str:
    """The host at the other end: ports change with every connection and would make every line a new one."""
    try:
        with socket.socket(fileno=os.dup(fd)) as connection:
            return str(connection.getpeername()[0])
    except (OSError, IndexError, TypeError):
        return "?"


def _errno(error: int) -> str:
    return errno.errorcode.get(error, str(error))


def _shown(name: bytes) -> str:
    return name[:MAX_NAME_BYTES].decode(errors="backslashreplace")
