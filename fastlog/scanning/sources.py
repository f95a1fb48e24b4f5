"""Which source a topic or a path is: messages of Kafka 0.7 or record batches, at a broker or in files."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from fastlog.consumer.simple import SimpleConsumer
from fastlog.errors import ArgumentError, WrongPartitionError
from fastlog.scanning.broker import BrokerTopic
from fastlog.scanning.broker_records import BrokerRecords
from fastlog.scanning.files import SegmentFolders
from fastlog.scanning.parts import ScanSource
from fastlog.scanning.record_files import SUFFIX, RecordFolders
from fastlog.segment_files import SEGMENT_SUFFIX, list_segments, split_directory_name


def topic_source(topic: str, broker: str, *, fetch_bytes: int, timeout: float) -> ScanSource:
    """The topic of a broker; one of Kafka 0.7 may not exist as yet.

    Raises:
        WrongPartitionError: it has none, and is no broker of Kafka 0.7.
        RecordsError: it refuses.
        TransportError: it cannot be reached.
    """
    with SimpleConsumer(broker, timeout=timeout) as consumer:
        metadata = consumer.metadata([topic])
    is_of_messages = metadata is not None and any(
        found.name == topic and found.partitions and not found.error for found in metadata.topics
    )
    if not is_of_messages:
        records = BrokerRecords(topic, broker, fetch_bytes=fetch_bytes, timeout=timeout)
        there = records.exists()
        if there:
            return records
        if there is False and metadata is None:  # an Apache Kafka, which has no other topics
            raise WrongPartitionError(f"{broker} has no topic {topic!r}")
    return BrokerTopic(topic, broker, fetch_bytes=fetch_bytes, timeout=timeout)


def folder_source(path: str | os.PathLike[str], *, window_bytes: int) -> ScanSource:
    """The directories of partitions that a path or a pattern names.

    Raises:
        ArgumentError: none that it names has segments, two are of one partition, or some are of messages and others of
            record batches.
        OSError: a directory cannot be read.
    """
    name = os.fspath(path)
    # Path.glob takes no absolute pattern
    paths = sorted(glob.glob(name)) if glob.has_magic(name) else [name]  # noqa: PTH207
    folders = [Path(path).resolve() for path in paths]
    folders = [folder for folder in folders if folder.is_dir() and split_directory_name(folder.name)]
    names = [folder.name for folder in folders]
    if len(set(names)) < len(names):
        twice = next(one for one in names if names.count(one) > 1)
        raise ArgumentError(f"{name} names two directories {twice}: scan those of each broker alone")
    of_messages = [folder for folder in folders if list_segments(folder)]
    of_records = [folder for folder in folders if list_segments(folder, SUFFIX)]
    if of_messages and of_records:
        raise ArgumentError(
            f"{name} names {of_messages[0].name}, which is of messages of Kafka 0.7, and {of_records[0].name}, which is"
            " of record batches, with more columns: scan each of them alone"
        )
    if of_records:
        return RecordFolders(name, of_records, window_bytes=window_bytes)
    if of_messages:
        return SegmentFolders(name, of_messages, window_bytes=window_bytes)
    raise ArgumentError(
        f"{name} names no directory <topic>-<partition> with segments ({SEGMENT_SUFFIX}, or {SUFFIX} of record batches)"
    )
