"""One run of ``fastlog dump``: reads every partition to where it ended, and writes the file."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from fastlog._record_batch import scan_batches
from fastlog._segment import scan
from fastlog.client.connection import BoundedBackoff
from fastlog.consumer.fetched import MessageSet, RecordSet
from fastlog.errors import (
    BrokerError,
    FastlogError,
    InvalidFetchSizeError,
    InvalidMessageError,
    MessageTooLargeError,
    TransportError,
    WrongPartitionError,
)
from fastlog.tools import dump_file, options
from fastlog.tools.placing import placed
from fastlog.tools.progress import ConsoleProgress
from fastlog.tools.record_topics import records_at
from fastlog.tools.report import EXIT_DAMAGED, EXIT_FAILED, CommandError
from fastlog.tools.same_topic import SameTopic
from fastlog.tools.topic_places import PartitionPlace, Site, find_topic_sites, open_consumer

_FETCH_BYTES = 512 * 1024
_FLUSH_SECONDS = 1.0
_MOST_FLUSH_SECONDS = 30.0


class _Source(NamedTuple):
    """A topic to dump: the head that the file gets, its partitions, and the check that it is still the same topic."""

    head: dump_file.TopicHead
    places: list[PartitionPlace]
    same: SameTopic


def dump(
    topics: Sequence[str],
    file: Path,
    brokers: str,
    zookeeper: str | None,
    timeout: float,
    *,
    shown: bool,
    as_json: bool = False,
) -> None:
    """Write the file. Raises ``CommandError``, ``TransportError``; then there is none."""
    sources = [
        _source(topic, find_topic_sites(topic, brokers, zookeeper, timeout), timeout, len(topics) - number)
        for number, topic in enumerate(topics, 1)
    ]
    progress = ConsoleProgress("dumped", shown=shown)
    progress.goal = sum(source.head.size for source in sources)
    with _opened(file) as out:
        writer = dump_file.DumpWriter(out)
        for source in sources:
            _write(source, writer, progress, timeout)
    told = []
    for head in (source.head for source in sources):
        offsets = ", ".join(f"{held.partition}:{held.first}-{held.end}" for held in head.partitions)
        told.append(f"{head.topic} {offsets}" if len(sources) > 1 else offsets)
    rows = [_as_object(source.head) for source in sources]
    found = {"file": str(file), **(rows[0] if len(rows) == 1 else {"topics": rows})}
    progress.summary(f"; offsets by partition: {'; '.join(told)}", found if as_json else None)


def _as_object(head: dump_file.TopicHead) -> dict[str, Any]:
    partitions = [{**held.partition._asdict(), "start": held.first, "end": held.end} for held in head.partitions]
    return {"topic": head.topic, "partitions": partitions}


def _write(source: _Source, writer: dump_file.DumpWriter, progress: ConsoleProgress, timeout: float) -> None:
    head = source.head
    writer.begin(head)
    for place, held in zip(source.places, head.partitions, strict=True):
        at = held.start
        for data, count, end in _pieces(head.topic, place, timeout, source.same):
            try:
                writer.piece(place.partition, data)
            except ValueError as error:
                source.same.check()
                raise CommandError(
                    f"{head.topic}, partition {place.partition} cannot be dumped; nothing was written",
                    f"it has {error}",
                    "dump it again: it may have been deleted and made anew",
                    EXIT_FAILED,
                ) from error
            progress.reached += end - at
            progress.add(count, len(data))
            at = end
    source.same.check()
    writer.finish()


def _source(topic: str, sites: list[Site], timeout: float, following: int) -> _Source:
    """Where the topic's partitions begin and end now: what is dumped of it, however much is appended meanwhile."""
    places = [place for site in sites for place in site.places]
    same = SameTopic(topic, sites, timeout, "nothing was written", "dump it again")
    now_ms = int(time.time() * 1000)
    if not sites[0].is_of_records:
        held = [dump_file.DumpedPartition(place.partition, place.start, place.end) for place in places]
        return _Source(dump_file.TopicHead(topic, now_ms, tuple(held), None, following), places, same)
    held = [
        dump_file.DumpedPartition(place.partition, _first_batch(topic, place, timeout), place.end, place.start)
        for place in places
    ]
    with records_at(options.broker_at(str(sites[0].address), timeout)) as records:
        settings = {name: one.value or "" for name, one in records.settings(topic).items() if one.is_own}
    return _Source(dump_file.TopicHead(topic, now_ms, tuple(held), settings, following), places, same)


def _first_batch(topic: str, place: PartitionPlace, timeout: float) -> int:
    """Where the batch begins that the log begins in."""
    if place.start == place.end:
        return place.start
    with open_consumer(place.address, timeout) as consumer:
        try:
            found = consumer.fetch(topic, place.partition.partition, place.start, 1, wait=_FLUSH_SECONDS)
        except FastlogError as error:
            raise _explained(topic, place, place.start, error) from error
    return int.from_bytes(found.data[:8], "big") if found else place.start


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The file under another name until it is complete and on the disk."""
    if str(path) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with placed(path) as out:
        yield out


def _pieces(topic: str, place: PartitionPlace, timeout: float, same: SameTopic) -> Iterator[tuple[bytes, int, int]]:
    """The bytes of a partition, whole entries of the log at a time; how many messages they are, and where they end.

    What is compressed counts as one message where it is one of Kafka 0.7.
    """
    number = place.partition.partition
    at = place.start
    most_bytes = _FETCH_BYTES
    backoff = BoundedBackoff()
    waited = time.monotonic()
    with open_consumer(place.address, timeout) as consumer:
        while at < place.end:
            try:
                found = consumer.fetch(topic, number, at, most_bytes, wait=_FLUSH_SECONDS)
                backoff.worked()
            except TransportError as error:
                backoff.failed(error)
                continue
            except FastlogError as error:
                same.check()
                raise _explained(topic, place, at, error) from error
            found = found.before(place.end)
            data = bytes(found.data[: found.valid_bytes])
            if not data:
                same.check()
                if time.monotonic() - waited > _MOST_FLUSH_SECONDS:
                    raise CommandError(
                        f"{topic}, partition {place.partition} ends at {at}, before offset {place.end}",
                        "what was appended there is not visible: the broker does not flush, or has lost it",
                        f"fastlog topics describe {topic} shows its state. Nothing was written",
                    )
                continue
            waited = time.monotonic()
            at = found.next_offset
            yield data, _count(found, data), at


def _count(found: MessageSet, data: bytes) -> int:
    return scan_batches(data).records if isinstance(found, RecordSet) else scan(data).count


def _explained(topic: str, place: PartitionPlace, offset: int, error: FastlogError) -> CommandError:
    damaged = isinstance(error, InvalidMessageError | InvalidFetchSizeError | MessageTooLargeError)
    what_to_do = "run it again: retention removed what was read"
    if damaged:
        what_to_do = "run fastlog fsck on the broker's log directory"
    elif isinstance(error, WrongPartitionError):
        what_to_do = "run it again if the topic is there: it was deleted, or made anew"
    return CommandError(
        f"{topic}, partition {place.partition} cannot be read at offset {offset}; nothing was written",
        str(error).replace("\n", "; "),
        what_to_do,
        EXIT_DAMAGED if damaged or not isinstance(error, BrokerError) else EXIT_FAILED,
    )
