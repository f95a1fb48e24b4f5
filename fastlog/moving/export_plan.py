"""What there is to be taken of a stopped broker's log directories into an Apache Kafka, and what cannot be."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastlog.errors import CorruptLogError, LogError
from fastlog.log import metadata
from fastlog.log.clean_marker import read_clean_marker
from fastlog.log.discovery import FoundPartition, scan_log_dirs
from fastlog.log.files import FileOps
from fastlog.log.formats import FORMATS, format_of_files
from fastlog.log.formats.record_batches import RECORD_BATCHES
from fastlog.log.kafka_files import NO_TOPIC_ID, read_epochs, read_topic_id
from fastlog.log.log_starts import Starts, read_log_starts
from fastlog.log.metadata import CREATED, Metadata
from fastlog.log.side_file import read_side_file
from fastlog.moving import kafka_groups
from fastlog.moving.import_plan import Turn
from fastlog.moving.kafka_directory import parse_uuid, read_meta
from fastlog.moving.kraft_log import BOOTSTRAP_NAME, DIRECTORY_NAME, read_bootstrap
from fastlog.moving.log_survey import survey
from fastlog.moving.partition_files import MovedPartition
from fastlog.moving.stored_records import segments_of
from fastlog.moving.topic_plan import MovingPlan, TopicPlan
from fastlog.segment_files import KAFKA_0_7, META_PROPERTIES_NAME, split_directory_name

INTERNAL = (metadata.TOPIC, kafka_groups.TOPIC)
UNKNOWN_THERE = ("message.format.version", "message.downconversion.enable")
"""Settings that Kafka 4 has no more, and that do nothing here."""
LEAST_SEGMENT_BYTES = 1 << 20
"""Kafka 4 takes no topic with a smaller ``segment.bytes``."""


@dataclass(frozen=True, slots=True)
class Formatted:
    """The log directory of an Apache Kafka that was formatted, and never started."""

    path: Path
    node_id: int
    directory_id: bytes


def read_formatted(path: Path, files: FileOps) -> Formatted:
    """Look at the directory that topics are to come to.

    Raises:
        LogError: it is not formatted, or was used already.
        OSError: it cannot be read.
    """
    meta = read_meta(path, files)
    node, directory_id = meta.get("node.id", ""), parse_uuid(meta.get("directory.id", ""))
    if not node.isdigit() or directory_id is None:
        raise LogError(
            "it names no node.id and directory.id: have kafka-storage of 3.7 or later format it", path=str(path)
        )
    read_bootstrap(path, files)
    used = [item.name for item in files.listdir(path) if item.name not in (META_PROPERTIES_NAME, BOOTSTRAP_NAME)]
    kraft = path / DIRECTORY_NAME
    if any(name != DIRECTORY_NAME and split_directory_name(name) for name in used) or (
        kraft.is_dir() and segments_of(kraft)
    ):
        raise LogError(
            "a Kafka was started on it, and nothing is put into one that has its topics: name one that has only been "
            "formatted, or copy topics by a client",
            path=str(path),
        )
    return Formatted(path, int(node), directory_id)


def plan_export(
    paths: Sequence[Path],
    topics: Collection[str],
    without: Collection[str],
    files: FileOps,
    turn: Turn = lambda *_: None,
) -> MovingPlan:
    """Look at all that is there and read every record that is to be taken; writes nothing.

    Raises:
        LogError: the broker was not stopped in order, or a name is none of a topic's.
        OSError: a directory cannot be read.
    """
    ends: dict[str, int] = {}
    starts: Starts = {}
    for path in paths:
        marker = read_clean_marker(path, files)
        if marker is None:
            raise LogError("the broker was not stopped in order: start it and stop it once more", path=str(path))
        ends |= marker
        starts |= read_log_starts(path, files)
    state = metadata.read_metadata(paths, files)
    found, notes = scan_log_dirs(paths)
    by_topic: dict[str, list[FoundPartition]] = {}
    for one in found:
        by_topic.setdefault(one.topic, []).append(one)
    names = {*by_topic, *(name for name, topic in state.topics.items() if topic.phase == CREATED)} - {*INTERNAL}
    for name in (*topics, *without):
        if name not in names:
            raise LogError(f"there is no topic {name!r}")
    plans = []
    for name in sorted(names):
        if (not topics or name in topics) and name not in without:
            plans.append(_plan_topic(name, by_topic.get(name, []), state, ends, starts, files, turn))
    groups = kafka_groups.read_groups(
        [one.directory for one in sorted(by_topic.get(kafka_groups.TOPIC, []), key=lambda each: each.partition)], files
    )
    left_out = groups.topics() - {each.name for each in plans if not each.problems}
    if left_out:
        notes.append(f"offsets of topics that are not taken are not either: {', '.join(sorted(left_out))}")
    met = [each.survey.largest_producer for plan in plans for each in plan.partitions]
    largest = max(met, default=-1)
    return MovingPlan(plans, groups.without(left_out), max(state.next_producer_id, largest + 1), notes)


def _plan_topic(
    name: str,
    found: Sequence[FoundPartition],
    state: Metadata,
    ends: Mapping[str, int],
    starts: Starts,
    files: FileOps,
    turn: Turn,
) -> TopicPlan:
    known = state.topics.get(name)
    ids = {read_topic_id(one.directory, files) for one in found} - {NO_TOPIC_ID}
    plan = TopicPlan(name, known.topic_id if known else next(iter(ids), NO_TOPIC_ID))
    formats = {_format_of(one.directory, files) for one in found}
    if formats - {RECORD_BATCHES}:
        plan.problems.append(
            "its messages are those of Kafka 0.7, which no Kafka of today reads from files; what fastlog consume "
            "prints, a producer can send"
            if formats == {KAFKA_0_7}
            else f"its log format is {', '.join(sorted(formats))}"
        )
        return plan
    if len(ids) > 1 or ids - {plan.topic_id}:
        plan.problems.append("its directories are those of several topics of this name")
    there = {one.partition: one for one in found}
    plan.count = max([known.partitions - 1 if known else -1, *there]) + 1
    missing = [str(number) for number in range(plan.count) if number not in there]
    if missing:
        plan.problems.append(f"partition {', '.join(missing)} is missing: name all log directories of the broker")
    for key, value in sorted((known.settings if known else {}).items()):
        if key == "segment.bytes" and int(value) < LEAST_SEGMENT_BYTES:
            plan.refused_settings.append(f"{key}={value}: Kafka takes {LEAST_SEGMENT_BYTES} at least")
        elif key not in UNKNOWN_THERE:
            plan.settings[key] = value
    if plan.problems:
        return plan
    for number in range(plan.count):
        try:
            plan.partitions.append(_look_at(plan, there[number], ends, starts, files, turn))
        except CorruptLogError as error:
            plan.problems.append(f"partition {number}: {error}")
            plan.is_damaged = True
    return plan


def _format_of(directory: Path, files: FileOps) -> str:
    side = read_side_file(directory, files)
    if side is not None:
        return side.format
    return (format_of_files(item.name for item in files.listdir(directory)) or FORMATS[KAFKA_0_7]).name


def _look_at(
    plan: TopicPlan, one: FoundPartition, ends: Mapping[str, int], starts: Starts, files: FileOps, turn: Turn
) -> MovedPartition:
    """Read a partition.

    Raises:
        CorruptLogError: it is damaged, or does not end where it was flushed.
        OSError: it cannot be read.
    """
    segments = segments_of(one.directory)
    if not segments:
        raise CorruptLogError("it has no segment", path=str(one.directory))
    log_start = max(starts.get((one.topic, one.partition), 0), segments[0].base)
    while len(segments) > 1 and segments[1].base <= log_start:
        segments.pop(0)
    found = survey(segments, log_start, files, turn)
    if ends.get(one.directory.name) != found.end:
        expected = ends.get(one.directory.name)
        raise CorruptLogError(
            "it does not end where it did at the stop", path=str(one.directory), found=found.end, expected=expected
        )
    epochs = read_epochs(one.directory, files) or [(0, segments[0].base)]
    return MovedPartition(
        one.topic, one.partition, plan.topic_id, one.directory, segments, found, min(log_start, found.end), epochs
    )
