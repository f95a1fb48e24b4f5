"""Putting topics into the log directory of an Apache Kafka that was formatted and never started.

Its controller begins with what ``bootstrap.checkpoint`` says: the records of the topics are put there, behind those of
Kafka's own tool, as they would stand there if this broker had led them and had been stopped in order. So they keep
their ids, settings and leader epochs, and nothing has to be created by hand.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from fastlog.log import access
from fastlog.log.files import FileOps
from fastlog.log.log_starts import checkpoint_bytes
from fastlog.moving import kafka_groups
from fastlog.moving.export_plan import Formatted
from fastlog.moving.importing import Done
from fastlog.moving.kraft_log import BOOTSTRAP_NAME, bootstrap_with
from fastlog.moving.kraft_records import NewTopic, broker_record, producer_ids_record, topic_records
from fastlog.moving.partition_files import make_own_partition, make_partition
from fastlog.moving.staging import COPY, Staging, staged
from fastlog.moving.topic_plan import MovingPlan
from fastlog.segment_files import CLEAN_MARKER_NAME, LOCK_NAME, LOG_STARTS_NAME, partition_directory_name

WORD, REPLACED = "exporting", "formatted"
BROKER_EPOCH = 1
"""Of the broker's life that never was; the marker of its stop names it, so that it counts as one that was in order."""
RECOVERY_POINTS_NAME, HIGH_WATERMARKS_NAME = "recovery-point-offset-checkpoint", "replication-offset-checkpoint"
GROUP_SETTINGS = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"}
"""The settings of ``__consumer_offsets``, as Kafka itself creates it."""

Turn = Callable[[int, int], None]
Offsets = dict[tuple[str, int], int]


def carry_out_export(
    plan: MovingPlan, into: Formatted, offsets_partitions: int, way: str, files: FileOps, turn: Turn = lambda *_: None
) -> Done:
    """Let the formatted directory have the topics, as a whole, or stay as it is.

    Raises:
        LogError: somebody else does so now.
        OSError: the disk refused; the directory is as it was.
    """
    done = Done()
    partitions = [each for topic in plan.taken for each in topic.partitions]
    with access.umask(access.umask_like(into.path)), staged(into.path, WORD, files, REPLACED) as staging:
        _take_formatted(into.path, staging.path, staging, files)
        for moved in partitions:
            done.ways.add(make_partition(staging, moved, way, files, for_fastlog=False))
            turn(moved.survey.records, moved.survey.size)
        ends = {(each.topic, each.partition): each.survey.end for each in partitions}
        topics = [
            NewTopic(
                each.name,
                each.topic_id,
                {moved.partition: moved.epochs[-1][0] for moved in each.partitions},
                each.settings,
            )
            for each in plan.taken
        ]
        if plan.groups.names:
            topics.append(_make_groups(plan, offsets_partitions, ends, staging, files))
        values = [broker_record(into.node_id, into.directory_id, BROKER_EPOCH)]
        for topic in topics:
            values += topic_records(topic, into.node_id, into.directory_id)
        if plan.next_producer_id:
            values.append(producer_ids_record(into.node_id, plan.next_producer_id))
        staging.write(staging.path / BOOTSTRAP_NAME, bootstrap_with(into.path, values, _now_ms(), files))
        starts = {(each.topic, each.partition): each.log_start for each in partitions if each.begins_inside}
        for name, offsets in ((LOG_STARTS_NAME, starts), (RECOVERY_POINTS_NAME, ends), (HIGH_WATERMARKS_NAME, ends)):
            staging.write(staging.path / name, checkpoint_bytes(offsets))
        marker = {"version": 0, "brokerEpoch": BROKER_EPOCH}
        staging.write(staging.path / CLEAN_MARKER_NAME, json.dumps(marker).encode())
    done.ways.discard("")
    return done


def finish_interrupted(path: Path, files: FileOps) -> bool:
    """Whether an export was interrupted in its last step; it is done then."""
    return Staging(path, WORD, files, REPLACED).finish_interrupted()


def _take_formatted(source: Path, target: Path, staging: Staging, files: FileOps) -> None:
    """What Kafka's own tool has made, but for the file that is written anew."""
    for item in files.listdir(source):
        if item.name in (BOOTSTRAP_NAME, LOCK_NAME):
            continue
        if item.is_dir(follow_symlinks=False):
            files.mkdir(target / item.name)
            _take_formatted(source / item.name, target / item.name, staging, files)
            files.fsync_dir(target / item.name)
        else:
            staging.take(source / item.name, target / item.name, COPY)


def _make_groups(plan: MovingPlan, count: int, ends: Offsets, staging: Staging, files: FileOps) -> NewTopic:
    topic_id = uuid.uuid4().bytes
    for number, data in enumerate(kafka_groups.packed(plan.groups, count, _now_ms())):
        ends[kafka_groups.TOPIC, number] = end = kafka_groups.end_of(data)
        name = partition_directory_name(kafka_groups.TOPIC, number)
        make_own_partition(staging, name, topic_id, data, end, files, for_fastlog=False)
    return NewTopic(kafka_groups.TOPIC, topic_id, dict.fromkeys(range(count), 0), GROUP_SETTINGS)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
