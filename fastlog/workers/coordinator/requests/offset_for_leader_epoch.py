"""OffsetForLeaderEpoch (23), versions 2 to 4: where the records of a leader epoch end.

After a stop that was not clean a partition has another leader epoch, and clients ask with the epoch of the last record
they have read whether the log still has all up to it, before they read on. kafka-python asks whether or not a broker
says that it answers this, and reads nothing of a partition before it has an answer. A topic of 0.7 has one epoch for
ever: what its readers have seen is flushed, and never cut.

Source: Apache Kafka 4.2 (Partition.lastOffsetForLeaderEpoch, LeaderEpochFileCache.endOffsetFor).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastlog.kafka_codes import Code
from fastlog.log.files import FileOps
from fastlog.log.kafka_files import read_epochs
from fastlog.log.slots import SlotView
from fastlog.segment_files import partition_directory_name
from fastlog.workers.authorization import Operation
from fastlog.workers.coordinator.codec import Request
from fastlog.workers.coordinator.context import Broker, Context, Handler
from fastlog.workers.coordinator.loop import Step

UNDEFINED = -1
"""Kafka's value for an epoch or an offset that is not known."""
STEP_FILES = 64
"""Read in one step of the thread that does the coordinator's disk work: others wait for it."""

Epochs = Sequence[tuple[int, int]]
"""Each with the offset that it begins at, in order."""


class Asked(NamedTuple):
    """A partition of the request, and its slot or why it has no answer."""

    partition: int
    epoch: int
    found: SlotView | Code


def handle(request: Request, context: Context) -> Handler:
    """What the current epoch answers comes from shared memory, what former ones do from the partition's file."""
    topics = []
    for topic in request.fields.topics:
        asked = _looked_up(topic, context)
        former = [view for _, epoch, view in asked if isinstance(view, SlotView) and _is_former(epoch, view)]
        known: dict[int, Epochs | Code] = {}
        for at in range(0, len(former), STEP_FILES):
            some = former[at : at + STEP_FILES]
            known.update((yield Step(functools.partial(_read, context.broker, some))))
        topics.append({"topic": topic.topic, "partitions": [_row(each, known) for each in asked]})
    return {"throttle_time": 0, "topics": topics}


def end_of_epoch(epoch: int, epochs: Epochs, log_end: int) -> tuple[int, int]:
    """The largest known epoch that is not after ``epoch``, and where the next one begins; both -1 where nobody knows.

    ``log_end`` is where the last one ends. One from before all that are known ends where they begin.
    """
    if epochs and epoch == epochs[-1][0]:
        return epoch, log_end
    after = next((start for known, start in epochs if known > epoch), None)
    if epoch == UNDEFINED or after is None:
        return UNDEFINED, UNDEFINED
    return max((known for known, _ in epochs if known <= epoch), default=epoch), after


def _looked_up(topic: Any, context: Context) -> list[Asked]:
    topics = context.broker.topics
    old = topics.of_kafka07(topic.topic)
    views = {view.partition: view for view in topics.partitions(topic.topic) or old}
    refused = Code.NONE
    if not context.may(Operation.DESCRIBE, topic.topic):
        refused = Code.TOPIC_AUTHORIZATION_FAILED
    elif topics.is_of_kafka07(topic.topic) and not old:
        refused = Code.UNSUPPORTED_FOR_MESSAGE_FORMAT
    elif old:
        for partition in range(topics.shown_count(topic.topic)):
            views.setdefault(partition, old[0]._replace(partition=partition, log_start=0, log_offset=0, state=0))
    asked = []
    for each in topic.partitions:
        found: SlotView | Code = refused or views.get(each.partition, Code.UNKNOWN_TOPIC_OR_PARTITION)
        if isinstance(found, SlotView):
            found = _problem(found, each.current_leader_epoch) or found
        asked.append(Asked(each.partition, each.leader_epoch, found))
    return asked


def _problem(view: SlotView, current_epoch: int) -> Code:
    """Why a client that takes this epoch for the current one, -1 for any, gets no answer about a partition."""
    if view.state or not view.life & 1:
        return Code.KAFKA_STORAGE_ERROR
    if UNDEFINED != current_epoch < view.epoch:
        return Code.FENCED_LEADER_EPOCH
    return Code.UNKNOWN_LEADER_EPOCH if current_epoch > view.epoch else Code.NONE


def _is_former(epoch: int, view: SlotView) -> bool:
    return UNDEFINED != epoch < view.epoch


def _read(broker: Broker, views: Sequence[SlotView]) -> dict[int, Epochs | Code]:
    """The epochs of partitions by their slots; runs on the thread."""
    return {view.index: _epochs(broker, view, broker.topics.disk.files) for view in views}


def _epochs(broker: Broker, view: SlotView, files: FileOps) -> Epochs | Code:
    directory = Path(broker.arena.log_dirs[view.directory]) / partition_directory_name(view.topic, view.partition)
    try:
        epochs = read_epochs(directory, files)
    except OSError:
        return Code.KAFKA_STORAGE_ERROR
    # a file without the current epoch is another life's, or could not be written: clients ask again
    return epochs if epochs and epochs[-1][0] == view.epoch else Code.KAFKA_STORAGE_ERROR


def _row(asked: Asked, known: dict[int, Epochs | Code]) -> dict[str, Any]:
    code, epoch, end = Code.NONE, UNDEFINED, UNDEFINED
    if isinstance(asked.found, Code):
        code = asked.found
    else:
        view = asked.found
        epochs = known[view.index] if _is_former(asked.epoch, view) else [(view.epoch, view.log_start)]
        if isinstance(epochs, Code):
            code = epochs
        else:
            epoch, end = end_of_epoch(asked.epoch, epochs, view.log_offset)
    return {"error_code": int(code), "partition": asked.partition, "leader_epoch": epoch, "end_offset": end}
