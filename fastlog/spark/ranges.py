"""Reads the bytes of one task, completely or not at all. Runs in Spark's workers; knows no Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, cast

from fastlog.client.addresses import Address
from fastlog.client.topics import check_described
from fastlog.consumer.fetched import MessageSet
from fastlog.consumer.simple import EARLIEST, SimpleConsumer
from fastlog.errors import DataLossError, FastlogError, OffsetOutOfRangeError, RangeIncompleteError, TransportError
from fastlog.message import Span
from fastlog.spark.discovery import RetryBackoff
from fastlog.spark.options import SourceOptions
from fastlog.spark.plans import Task

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]

    from fastlog.spark.columns import BatchMaker

log = logging.getLogger(__name__)

_LOCAL = {"auto": "auto", "shared": "shared", "only": "shared", "off": "off"}
_SHORT_SECONDS = 2.0  # a broker that was just started again may need a moment to show what it had shown before


def read_task(task: Task, options: SourceOptions, maker: BatchMaker) -> Iterator[pyarrow.RecordBatch]:
    """The messages of a task's range, as record batches.

    A broker that cannot be reached is tried again from where reading stands.

    Raises:
        RangeIncompleteError: not every byte of the range could be read; names the range and where it ended.
        DataLossError: the same, because retention was faster, unless ``failOnDataLoss`` is switched off.
    """
    for found in _sets(task, options):
        try:
            yield from maker.batches(cast(Iterator[Span], found.spans()))  # of record batches others read
        except FastlogError as error:
            raise _incomplete(task, found.offset, error) from error
    if maker.without_envelope:
        log.warning(
            "%s: %d messages without a valid envelope are all value, the first: %s",
            task,
            maker.without_envelope,
            maker.first_without,
        )


def _sets(task: Task, options: SourceOptions) -> Iterator[MessageSet]:
    # the driver has just asked this broker
    backoff = RetryBackoff(options.retries, options.retry_interval, options.retry_timeout)
    at = task.start
    with closing(
        SimpleConsumer(
            task.host,
            task.port,
            timeout=options.fetch_timeout,
            fetch_bytes=options.fetch_bytes,
            max_message_bytes=options.max_message_bytes,
            local=_LOCAL[options.direct],
        )
    ) as consumer:
        while at < task.end:
            wanted = min(options.fetch_bytes, task.end - at)
            try:
                found = consumer.fetch(task.topic, task.partition, at, wanted, wait=_SHORT_SECONDS)
                if not found:
                    raise RangeIncompleteError("the log ends there")
                if found.next_offset > task.end:
                    raise RangeIncompleteError(f"the message there ends at {found.next_offset}, behind the range")
                if options.direct == "only":
                    _require_direct(consumer, task)
            except TransportError as error:
                try:
                    backoff.failed(error)
                except TransportError:
                    raise _incomplete(task, at, error) from error
                continue
            except OffsetOutOfRangeError as error:
                at = _behind_the_gap(consumer, task, options, at, error)
                continue
            except FastlogError as error:
                raise _incomplete(task, at, error) from error
            backoff.worked()
            yield found
            at = found.next_offset
        _check_log(consumer, task, backoff)


def _check_log(consumer: SimpleConsumer, task: Task, backoff: RetryBackoff) -> None:
    """Raise ``RangeIncompleteError`` unless the log is the one that was planned for: it was so all the time then."""
    while task.created_ms:
        try:
            answer = consumer.metadata((task.topic,))
            topics = answer.topics if answer is not None else ()
            for topic in topics:
                check_described(topic, Address(task.host, task.port))
        except TransportError as error:
            try:
                backoff.failed(error)
            except TransportError:
                raise _incomplete(task, task.end, error) from error
            continue
        except FastlogError as error:
            raise _incomplete(task, task.end, error) from error
        found = [item.created_ms for topic in topics for item in topic.partitions if item.partition == task.partition]
        if any(created_ms not in (0, task.created_ms) for created_ms in found):
            raise RangeIncompleteError(f"{task}: the log was deleted and made anew while it was read")
        return


def _behind_the_gap(
    consumer: SimpleConsumer, task: Task, options: SourceOptions, at: int, error: OffsetOutOfRangeError
) -> int:
    """Where the range goes on, or its end, after its next bytes were removed."""
    try:
        begin = consumer.get_offsets_before(task.topic, task.partition, EARLIEST, 1)
    except FastlogError as second:
        raise _incomplete(task, at, second) from error
    if not begin or begin[0] <= at:
        raise _incomplete(task, at, error) from error
    there = min(begin[0], task.end)
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{task}: bytes {at} to {there} cannot be read any more: the log begins at {begin[0]};"
            f" {options.loss_option} goes on without them"
        ) from error
    log.warning("%s: going on without the %d bytes from %d to %d", task, there - at, at, there)
    return there


def _require_direct(consumer: SimpleConsumer, task: Task) -> None:
    source, why = consumer.source_of(task.topic, task.partition)
    if source == "socket":
        raise RangeIncompleteError(f"direct=only, and its files cannot be read here: {why}")


def _incomplete(task: Task, at: int, error: FastlogError) -> RangeIncompleteError:
    return RangeIncompleteError(f"{task}: could not be read beyond {at}: {error}")
