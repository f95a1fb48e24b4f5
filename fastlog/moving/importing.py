"""Making a log directory of what a plan takes of a Kafka's: there as a whole, durably, or not at all."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fastlog import record_batches
from fastlog.log import access, metadata
from fastlog.log.clean_marker import write_clean_marker
from fastlog.log.files import FileOps
from fastlog.log.log_starts import checkpoint_bytes
from fastlog.log.meta_properties import VERSION, new_id
from fastlog.log.metadata import CREATED, Change, Topic, topic_change
from fastlog.moving import kafka_groups
from fastlog.moving.import_plan import Plan
from fastlog.moving.kafka_directory import MOVED_META_NAME
from fastlog.moving.partition_files import MovedPartition, make_own_partition, make_partition
from fastlog.moving.staging import Staging, refuse_taken, remove_tree, staged
from fastlog.segment_files import LOG_STARTS_NAME, META_PROPERTIES_NAME, partition_directory_name

WORD = "importing"
CLOSED = "owner"
"""Files are made readable by their owner alone, which is what a broker does by default (log.access)."""
CHANGES_IN_BATCH = 500

Turn = Callable[[int, int], None]


@dataclass(slots=True)
class Done:
    """What an import has done."""

    ways: set[str] = field(default_factory=set)
    """The ways in which segments were brought: ``clone``, ``link``, ``copy``."""


def carry_out(plan: Plan, target: Path, way: str, files: FileOps, turn: Turn = lambda *_: None) -> Done:
    """Make the log directory ``target``; ``way`` as for ``Staging.take``.

    ``turn`` is called with the records and bytes of each partition.

    Raises:
        LogError: something is there already, or somebody makes it now.
        OSError: the disk refused; nothing is there.
    """
    refuse_taken(target)
    done = Done()
    partitions = [each for topic in plan.taken for each in topic.partitions]
    with access.umask(access.UMASKS[CLOSED]), staged(target, WORD, files) as staging:
        for moved in partitions:
            done.ways.add(make_partition(staging, moved, way, files, for_fastlog=True))
            turn(moved.survey.records, moved.survey.size)
        ends = {each.name: each.survey.end for each in partitions}
        topics = [Topic(each.name, each.topic_id, each.count, each.settings, CREATED) for each in plan.taken]
        if plan.groups.names:
            topics.append(_make_groups(plan, staging, ends, files))
        _make_metadata(topics, plan.next_producer_id, staging, ends, files)
        _write_log_directory(plan, partitions, staging)
        write_clean_marker(staging.path, ends, files)
    done.ways.discard("")
    return done


def _make_groups(plan: Plan, staging: Staging, ends: dict[str, int], files: FileOps) -> Topic:
    count, topic_id = plan.choices.offsets_partitions, uuid.uuid4().bytes
    for number, data in enumerate(kafka_groups.packed(plan.groups, count, _now_ms())):
        name = partition_directory_name(kafka_groups.TOPIC, number)
        ends[name] = kafka_groups.end_of(data)
        make_own_partition(staging, name, topic_id, data, ends[name], files, for_fastlog=True)
    return Topic(kafka_groups.TOPIC, topic_id, count, kafka_groups.SETTINGS, CREATED)


def _make_metadata(
    topics: Sequence[Topic], next_producer_id: int, staging: Staging, ends: dict[str, int], files: FileOps
) -> None:
    """Write what topics there are as the coordinator would have done."""
    changes: list[Change] = [topic_change(CREATED, topic) for topic in topics]
    if next_producer_id:
        changes.append(metadata.producer_ids(next_producer_id))
    data, offset = b"", 0
    for at in range(0, len(changes), CHANGES_IN_BATCH):
        rows = metadata.records(changes[at : at + CHANGES_IN_BATCH], _now_ms())
        data += record_batches.build(rows, base_offset=offset, leader_epoch=0)
        offset += len(rows)
    name = partition_directory_name(metadata.TOPIC, 0)
    ends[name] = offset
    make_own_partition(staging, name, metadata.TOPIC_ID, data, offset, files, for_fastlog=True)


def _write_log_directory(plan: Plan, partitions: Iterable[MovedPartition], staging: Staging) -> None:
    starts = {(each.topic, each.partition): each.log_start for each in partitions if each.begins_inside}
    if starts:
        staging.write(staging.path / LOG_STARTS_NAME, checkpoint_bytes(starts))
    text = f"cluster.id={plan.cluster_id or new_id()}\nversion={VERSION}\n"
    staging.write(staging.path / META_PROPERTIES_NAME, text.encode())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def remove_sources(plan: Plan, files: FileOps) -> None:
    """Take away from the Kafka what has been taken: it does not start any more, and its partitions go.

    Raises:
        OSError: some are still there; they can be removed by hand.
    """
    directories = [each.directory for topic in plan.taken for each in topic.partitions]
    for source in {each.parent for each in directories}:  # first, so that no Kafka finds less than it knows of
        files.rename(source / META_PROPERTIES_NAME, source / MOVED_META_NAME)
        files.fsync_dir(source)
    for directory in directories:
        remove_tree(directory, files)
    for source in {each.parent for each in directories}:
        files.fsync_dir(source)
