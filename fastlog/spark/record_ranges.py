"""Reads the records of one task, completely or not at all. Runs in Spark's workers; knows no Spark.

A record batch is asked for by Fetch, or read from the broker's files. In files the first batch is compared with what
the broker sends of it: so they are its own, and the batches that follow have their checksums and their offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from fastlog._record_batch import BATCHES_OK, BATCHES_TAIL, RecordSpan, RecordSpans, scan_batches
from fastlog.client.addresses import Address
from fastlog.client.record_requests import Fetched
from fastlog.client.records import EARLIEST, RecordBroker, RecordsError, require
from fastlog.errors import (
    DataLossError,
    FastlogError,
    OffsetOutOfRangeError,
    RangeIncompleteError,
    TransportError,
)
from fastlog.kafka_codes import Code
from fastlog.message import DEFAULT_LIMITS
from fastlog.spark.discovery import RetryBackoff
from fastlog.spark.options import SourceOptions
from fastlog.spark.plans import Task
from fastlog.spark.record_files import NotHereError, RecordFiles
from fastlog.spark.record_logs import kind_of

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]

    from fastlog.spark.record_columns import RecordMaker

log = logging.getLogger(__name__)

_SHORT_SECONDS = 2.0  # a broker that was just started again may need a moment to show what it had shown before


def read_record_task(task: Task, options: SourceOptions, maker: RecordMaker) -> Iterator[pyarrow.RecordBatch]:
    """The records of a task's range, as Arrow batches. Raises as ``ranges.read_task``."""
    with closing(_TaskReading(task, options)) as reading:
        yield from maker.batches(reading.spans(), task.end)
        reading.check_log()


class _TaskReading:
    """Reads the record batches of one task. For one thread."""

    def __init__(self, task: Task, options: SourceOptions) -> None:
        self._task = task
        self._options = options
        self._place = task.topic, task.partition
        self._backoff = RetryBackoff(options.retries, options.retry_interval, options.retry_timeout)
        self._records = RecordBroker(
            [Address(task.host, task.port)], timeout=options.fetch_timeout, client="fastlog-spark"
        )
        self._files: RecordFiles | None = None
        self._at = task.start

    def close(self) -> None:
        self._records.close()
        if self._files is not None:
            self._files.close()

    def spans(self) -> Iterator[RecordSpan]:
        """The records of the range, and what its last batch has behind it."""
        direct = self._options.direct != "off"
        while self._at < self._task.end:
            data = self._read_file() if self._files is not None else self._fetched(first=direct)
            if data is None:
                continue
            if direct and self._files is None:
                self._open_files(data)
            direct = False
            yield from self._opened(data)

    def _opened(self, data: bytes | memoryview) -> Iterator[RecordSpan]:
        at = self._at
        scan = scan_batches(data, at)
        # What is whole is checked now; else the spans find what is wrong, and where.
        is_whole = bool(scan.valid_bytes) and scan.status in (BATCHES_OK, BATCHES_TAIL)
        data = memoryview(data)[: scan.valid_bytes] if is_whole else data
        try:
            yield from RecordSpans(data, at, DEFAULT_LIMITS, scan.valid_bytes)
        except FastlogError as error:
            raise self._incomplete(error) from error
        if scan.next_offset <= at:
            raise self._incomplete(RangeIncompleteError("the log ends there"))
        self._at = scan.next_offset

    def _fetched(self, *, first: bool) -> bytes | None:
        """What the broker sends; the one batch in turn, if it is the first. None: it is to be asked again."""
        size = 1 if first else self._options.fetch_bytes
        try:
            found = self._records.fetch({self._place: self._at}, max_wait=_SHORT_SECONDS, max_bytes=size)[self._place]
            self._require(found)
        except TransportError as error:
            self._failed(error)
            return None
        except OffsetOutOfRangeError as error:
            self._at = self._behind_the_gap(error)
            return None
        except FastlogError as error:
            raise self._incomplete(error) from error
        self._backoff.worked()
        return found.batches

    def _require(self, found: Fetched) -> None:
        if not found.code and not found.batches:
            raise RangeIncompleteError("the log ends there")
        try:
            require(found.code, *self._place)
        except RecordsError as error:
            if error.code == Code.OFFSET_OUT_OF_RANGE and self._at >= found.high_watermark >= 0:
                raise RangeIncompleteError(f"the log ends at {found.high_watermark}") from error
            raise kind_of(error) from error

    # -- files ---------------------------------------------------------------------------------------------------------

    def _open_files(self, data: bytes | memoryview) -> None:
        """Go on in the files behind the first batch, if they are here and have it."""
        assert self._task.records is not None
        mode, source = self._options.direct, self._task.records
        files = None
        try:
            if mode == "auto" and not self._records.reaches_this_host():
                raise NotHereError("the broker is not on this machine")
            files = RecordFiles(source.directory, *self._place, source.topic_id)
            files.seek(self._at)
            scan = scan_batches(data, self._at)
            found = files.read(self._at)
            if bytes(found[: scan.valid_bytes]) != data[: scan.valid_bytes] or not scan.valid_bytes:
                raise NotHereError(f"{files.path} has not the bytes that the broker sends")
            if scan.next_offset < self._task.end:
                files.seek(scan.next_offset)
            self._files = files
        except (NotHereError, FastlogError) as error:
            if files is not None:
                files.close()
            if mode == "only":
                raise self._incomplete(
                    RangeIncompleteError(f"direct=only, and its files cannot be read here: {error}")
                ) from error
            log.debug("%s: read by the socket: %s", self._task, error)

    def _read_file(self) -> memoryview | None:
        assert self._files is not None
        try:
            return self._files.read(self._at)
        except NotHereError as error:
            if self._options.direct == "only":
                raise self._incomplete(
                    RangeIncompleteError(f"direct=only, and its files cannot be read here: {error}")
                ) from error
            log.debug("%s: going on by the socket: %s", self._task, error)
            self._files.close()
            self._files = None
            return None
        except FastlogError as error:
            raise self._incomplete(error) from error

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    def check_log(self) -> None:
        """Raise ``RangeIncompleteError`` unless the topic is the one that was planned for: it was so all the time."""
        assert self._task.records is not None
        while True:
            try:
                found = self._records.known_topics([self._task.topic]).get(self._task.topic)
            except TransportError as error:
                self._failed(error)
                continue
            if found is None or found.id != self._task.records.topic_id:
                raise RangeIncompleteError(f"{self._task}: the topic was deleted, or made anew, while it was read")
            return

    def _failed(self, error: TransportError) -> None:
        try:
            self._backoff.failed(error)
        except TransportError:
            raise self._incomplete(error) from error

    def _behind_the_gap(self, error: OffsetOutOfRangeError) -> int:
        """Where the range goes on, or its end, after its next records were removed."""
        task, at = self._task, self._at
        try:
            begin = self._records.offsets([self._place], EARLIEST)[self._place]
        except FastlogError as second:
            raise self._incomplete(second) from error
        if begin <= at:
            raise self._incomplete(error) from error
        there = min(begin, task.end)
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{task}: records {at} to {there} cannot be read any more: the log begins at {begin};"
                f" {self._options.loss_option} goes on without them"
            ) from error
        log.warning("%s: going on without the %d records from %d to %d", task, there - at, at, there)
        return there

    def _incomplete(self, error: FastlogError) -> RangeIncompleteError:
        return RangeIncompleteError(f"{self._task}: could not be read beyond {self._at}: {error}")
