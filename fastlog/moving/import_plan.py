"""What there is to be taken of a stopped Apache Kafka, and what cannot be: all is known before anything is written."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fastlog.errors import CorruptLogError, LogError
from fastlog.log.files import FileOps
from fastlog.log.kafka_files import NO_TOPIC_ID, read_epochs
from fastlog.moving import kafka_groups
from fastlog.moving.kafka_directory import KafkaDirectory, read_kafka_directory
from fastlog.moving.kafka_groups import KeptGroups
from fastlog.moving.kraft_records import KraftState
from fastlog.moving.kraft_records import Topic as KraftTopic
from fastlog.moving.log_survey import Survey, survey
from fastlog.moving.partition_files import Epochs, MovedPartition
from fastlog.moving.staging import unused_by_kafka
from fastlog.moving.stored_records import segments_of
from fastlog.moving.topic_plan import MovingPlan, TopicPlan
from fastlog.topics import OWN_PREFIX
from fastlog.workers.coordinator.topic_settings import InvalidSettingError, checked

INTERNAL = {
    kafka_groups.TOPIC: "",  # its groups and offsets are taken
    "__transaction_state": "transactions are not taken: there are none here",
    "__share_group_state": "share groups are not taken: there are none here",
    "__remote_log_metadata": "what is in remote storage is not taken",
}
_CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]{22}", re.ASCII)

Turn = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Choices:
    """What the person who imports has chosen."""

    topics: Collection[str] = ()
    """The topics to import; empty: all."""
    without: Collection[str] = ()
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By topic: settings that replace those that it has."""
    offsets_partitions: int = 1


@dataclass(slots=True)
class Plan(MovingPlan):
    """What an import is going to do: which partitions and offsets it takes, and what stands against it."""

    cluster_id: str
    """The cluster's id, which is kept; empty where there is none to keep."""
    choices: Choices


@contextlib.contextmanager
def kafka_held(paths: Sequence[Path]) -> Iterator[None]:
    """Keep Kafkas from starting on these log directories; ``LogError`` where one runs."""
    with contextlib.ExitStack() as stack:
        for path in paths:
            stack.enter_context(unused_by_kafka(path))
        yield


def plan_import(paths: Sequence[Path], choices: Choices, files: FileOps, turn: Turn = lambda *_: None) -> Plan:
    """Look at all that is there and read every record that is to be taken; writes nothing.

    Raises:
        LogError: the directories are none of a Kafka, or of several.
        OSError: one cannot be read.
    """
    sources = [read_kafka_directory(path, files) for path in paths]
    clusters = {each.cluster_id for each in sources}
    if len(clusters) > 1:
        raise LogError(f"the directories belong to {len(clusters)} clusters", path=str(paths[0]))
    newest = max(sources, key=lambda each: each.state_end)
    state = newest.state
    notes = _notes(sources, state)
    topics = []
    for name, topic in sorted(_topics(sources, state).items()):
        if (choices.topics and name not in choices.topics) or name in choices.without:
            continue
        plan = TopicPlan(name, topic.topic_id)
        _find_partitions(plan, topic, sources, state is not None, files, turn)
        _take_settings(plan, {**(state.topic_settings.get(name, {}) if state else {})}, choices.settings.get(name, {}))
        topics.append(plan)
    _look_for_unknown(choices, {each.name for each in topics}, {**_topics(sources, state)})
    groups = _groups(sources, state, files)
    left_out = groups.topics() - {each.name for each in topics if not each.problems}
    if left_out:
        notes.append(f"offsets of topics that are not taken are not either: {', '.join(sorted(left_out))}")
    if groups.others:
        notes.append(
            f"members of groups of the new protocol begin anew, with their offsets: {', '.join(sorted(groups.others))}"
        )
    if groups.open:
        notes.append(f"{groups.open} transactions with offsets had not ended: these offsets are not taken")
    cluster_id = newest.cluster_id if _CLUSTER_ID.fullmatch(newest.cluster_id) else ""
    next_id = state.next_producer_id if state else 0
    return Plan(topics, groups.without(left_out), next_id, notes, cluster_id, choices)


def _notes(sources: Sequence[KafkaDirectory], state: KraftState | None) -> list[str]:
    notes = []
    for source in sources:
        if not source.is_clean:
            notes.append(f"{source.path} was not stopped in order; every record in it is checked, as always")
        notes += [f"{source.path / name} is not taken: it is on its way out, or in" for name in source.passing]
        for topic, why in INTERNAL.items():
            if why and any(name == topic for name, _ in source.partitions):
                notes.append(f"{topic} is not taken: {why}")
    if state is None:
        notes.append("no metadata log: topics are what their directories say, and have the settings that are given")
    else:
        notes += [
            f"setting of {f'broker {broker}' if broker else 'all brokers'} not taken: {name}={value}; "
            "the broker's own are in its properties"
            for broker, settings in sorted(state.broker_settings.items())
            for name, value in sorted(settings.items())
            if (name, value) != ("min.insync.replicas", "1")  # which newer clusters write down for themselves
        ]
    return list(dict.fromkeys(notes))


def _topics(sources: Sequence[KafkaDirectory], state: KraftState | None) -> dict[str, KraftTopic]:
    """All topics but Kafka's own, by name; with their partitions where there is a metadata log."""
    if state is not None:
        return {topic.name: topic for topic in state.topics.values() if topic.name not in INTERNAL}
    found: dict[str, KraftTopic] = {}
    for source in sources:
        for (name, _), topic_id in source.partitions.items():
            known = found.setdefault(name, KraftTopic(name, topic_id))
            if known.topic_id == NO_TOPIC_ID:
                known.topic_id = topic_id
    return {name: topic for name, topic in found.items() if name not in INTERNAL}


def _find_partitions(
    plan: TopicPlan, topic: KraftTopic, sources: Sequence[KafkaDirectory], is_known: bool, files: FileOps, turn: Turn
) -> None:
    """Fill in the partitions, and what is against the topic."""
    if plan.name.startswith(OWN_PREFIX):
        plan.problems.append(f"names that begin with {OWN_PREFIX} are the broker's own")
    if plan.topic_id == NO_TOPIC_ID:
        plan.topic_id = uuid.uuid4().bytes
    places: dict[int, list[KafkaDirectory]] = {}
    for source in sources:
        for (name, number), topic_id in source.partitions.items():
            if name != plan.name:
                continue
            if topic_id in (plan.topic_id, NO_TOPIC_ID) or topic.topic_id == NO_TOPIC_ID:
                places.setdefault(number, []).append(source)
            else:
                plan.problems.append(f"{source.directory(name, number)} is that of another topic of this name")
    plan.count = max([*topic.partitions, *places], default=-1) + 1
    for number in range(plan.count):
        there = places.get(number, [])
        if len(there) > 1:
            which = " and ".join(str(each.directory(plan.name, number)) for each in there)
            plan.problems.append(f"partition {number} lies in {which}: name the directory of one of them alone")
        elif not there:
            known = topic.partitions.get(number)
            brokers = f" It was on broker {', '.join(map(str, known.replicas))}:" if known else ""
            plan.problems.append(f"partition {number} is missing.{brokers} name that directory too")
        elif is_known and number in topic.partitions:
            replicas, in_sync = topic.partitions[number].replicas, topic.partitions[number].in_sync
            if len(replicas) > 1 and there[0].node_id not in in_sync:
                plan.problems.append(
                    f"partition {number} of broker {there[0].node_id} is behind: that of broker "
                    f"{', '.join(map(str, in_sync)) or 'nobody'} counts"
                )
    if plan.problems:
        return
    for number in range(plan.count):
        known = topic.partitions.get(number)
        try:
            found = _look_at(plan, number, places[number][0], known.leader_epoch if known else -1, files, turn)
        except CorruptLogError as error:
            plan.problems.append(f"partition {number}: {error}")
            plan.is_damaged = not error.args[0].startswith("messages of magic")
        else:
            plan.partitions.append(found)
            plan.problems += _problems_of(found.partition, found.survey)


def _look_at(
    plan: TopicPlan, number: int, source: KafkaDirectory, leader_epoch: int, files: FileOps, turn: Turn
) -> MovedPartition:
    """Read a partition.

    Raises:
        CorruptLogError: it is damaged, or older than record batches.
        OSError: it cannot be read.
    """
    directory = source.directory(plan.name, number)
    segments = segments_of(directory)
    if not segments:
        raise CorruptLogError("it has no segment", path=str(directory))
    log_start = max(source.starts.get((plan.name, number), 0), segments[0].base)
    while len(segments) > 1 and segments[1].base <= log_start:
        segments.pop(0)
    found = survey(segments, log_start, files, turn)
    epochs = _next_epochs(read_epochs(directory, files), leader_epoch, found.end)
    log_start = min(log_start, found.end)
    return MovedPartition(plan.name, number, plan.topic_id, directory, segments, found, log_start, epochs)


def _next_epochs(epochs: Epochs, leader_epoch: int, end: int) -> Epochs:
    """Another epoch begins where the log ends: clients of before know the last one, and take none that is lower."""
    last = max([leader_epoch, *(epoch for epoch, _ in epochs)])
    return [*(each for each in epochs if each[1] < end), (last + 1, end)]


def _problems_of(number: int, found: Survey) -> list[str]:
    problems = []
    if found.missing is not None:
        first, following = found.missing
        problems.append(
            f"partition {number} has been compacted (offsets {first} to {following - 1}), and logs with gaps are not "
            "served; a program that reads it there and writes it here can copy it"
        )
    if found.aborted:
        what = f"partition {number} holds {found.aborted} transactions that were aborted"
        problems.append(f"{what}, whose records would be read as any others")
    if found.open:
        problems.append(f"partition {number} holds {found.open} transactions without an end")
    return problems


def _take_settings(plan: TopicPlan, held: Mapping[str, str], given: Mapping[str, str]) -> None:
    for name, value in sorted({**held, **given}.items()):
        if name == "remote.storage.enable" and value == "true":
            plan.problems.append("a part of it may be in remote storage (remote.storage.enable)")
        try:
            plan.settings |= checked({name: value})
        except InvalidSettingError as error:
            if name in given:
                raise LogError(f"topic {plan.name}: {error}") from error
            plan.refused_settings.append(f"{name}={value}: {error}")


def _look_for_unknown(choices: Choices, taken: set[str], known: Mapping[str, object]) -> None:
    for name in (*choices.topics, *choices.without, *choices.settings):
        if name not in known:
            raise LogError(f"there is no topic {name!r}")
    for name in choices.settings:
        if name not in taken:
            raise LogError(f"topic {name!r} has settings and is not to be taken")


def _groups(sources: Sequence[KafkaDirectory], state: KraftState | None, files: FileOps) -> KeptGroups:
    """The groups: of each partition of theirs what a broker has that was in sync, where several have it."""
    known = next((each for each in (state.topics.values() if state else ()) if each.name == kafka_groups.TOPIC), None)
    places: dict[int, Path] = {}
    for source in sources:
        for name, number in source.partitions:
            if name == kafka_groups.TOPIC:
                in_sync = known.partitions[number].in_sync if known and number in known.partitions else ()
                if number not in places or source.node_id in in_sync:
                    places[number] = source.directory(name, number)
    return kafka_groups.read_groups([places[number] for number in sorted(places)], files)
