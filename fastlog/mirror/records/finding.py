"""Where a partition goes on: what the group has written down, and what the target turns out to have beside it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from fastlog import record_batches
from fastlog.client.kafka_fields import Place
from fastlog.client.records import EARLIEST, LATEST
from fastlog.errors import FastlogError, InvalidFetchSizeError, TransportError
from fastlog.mirror.records.cluster import RecordCluster
from fastlog.mirror.records.place import GroupPlace
from fastlog.mirror.records.position import Position

log = logging.getLogger(__name__)

_SCAN_BYTES = 1 << 20


class StandstillError(FastlogError):
    """A partition cannot go on by itself: somebody has to decide."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What holds for all partitions of a source."""

    fetch_bytes: int
    most_bytes: int
    """The largest batch that is made; one that comes and is larger is taken apart."""
    begins_at_end: bool
    """Where there is no position: what comes from now on, and not what the source has."""
    appends_to_others: bool
    """A topic of the target may have records of others when its mirroring begins."""
    leaves_out: bool
    """What is damaged or refused is left out, and not waited for."""
    commit_seconds: float


def find(
    place: Place,
    source: RecordCluster,
    target: RecordCluster,
    group: GroupPlace,
    producer: tuple[int, int],
    rules: Rules,
) -> tuple[Position, int]:
    """The true position in the target, and the offset in the source at which to go on.

    ``producer``: the id and the epoch for a partition that is new to the group.

    Raises:
        StandstillError: it cannot be known what the target has of the source.
        TransportError, RecordsError, CoordinatorError: a broker is unavailable, or refuses what was asked.
    """
    source_id, target_id = source.topic(place[0]).id, target.topic(place[0]).id
    kept = group.committed([place]).get(place)
    position = None if kept is None else Position.parse(kept.offset, kept.text)
    end = target.offset(place, LATEST)
    first, last = source.offset(place, EARLIEST), source.offset(place, LATEST)
    if position is None or position.target != target_id:
        if end and not rules.appends_to_others:
            raise StandstillError(
                f"the target has {end} records here, and the group {group.group!r} has no position: either they are not"
                " of this mirror, or it was stopped for longer than the target keeps offsets"
                " (offsets.retention.minutes). mirror.existing.records=append mirrors the source behind them, from"
                " where autooffset.reset says"
            )
        begin = last if rules.begins_at_end else first
        made = Position(
            source=source_id, target=target_id, producer=producer[0], epoch=producer[1],
            count=0, target_offset=end, is_resting=True, seams=((0, begin),),
        )  # fmt: skip
        return made, begin
    position = _counted(position, place, target, end)
    offset = position.source_offset(position.count)
    if position.source != source_id:
        log.warning("topic=%s partition=%d was made anew in the source: from its beginning", *place)
        position, offset = replace(position, source=source_id).with_run(position.count, first, 1), first
    if offset < first:
        log.error("topic=%s partition=%d: the source has lost offsets %d to %d: left out", *place, offset, first - 1)
        position, offset = position.with_run(position.count, first, 1), first
    if offset > last:
        raise StandstillError(
            f"the source ends at offset {last}, and all before {offset} is in the target: it has lost records, or is"
            " another one under the same name"
        )
    return position, offset


def _counted(position: Position, place: Place, target: RecordCluster, end: int) -> Position:
    """The position with what the target has behind it."""
    if end < position.target_offset:
        raise StandstillError(
            f"the target ends at offset {end}, and had acknowledged everything before {position.target_offset}: it has"
            " lost records"
        )
    first = target.offset(place, EARLIEST)
    at = max(first, position.target_offset)
    count = position.count
    while at < end:
        before = at
        try:
            for header, _ in record_batches.batches(target.batches(place, at, _SCAN_BYTES).data):
                if header.next_offset <= at:
                    continue
                at = header.next_offset
                if (header.producer_id, header.producer_epoch) == (position.producer, position.epoch):
                    count = position.count_of(header.base_sequence + header.last_offset_delta)
        except InvalidFetchSizeError as error:
            raise TransportError(f"the target does not show what it has at offset {at}: {error}") from error
        if at == before:
            raise TransportError(f"the target shows nothing at offset {at}, and ends at {end}")
    if first > position.target_offset and not position.is_resting and count == position.count:
        raise StandstillError(
            f"the target has nothing before offset {first} any more, and it is not known what this mirror had appended"
            f" from {position.target_offset} on: delete the topic there, or reset the group and set"
            " mirror.existing.records=append"
        )
    return position.at(count, end, is_resting=position.is_resting and count == position.count)
