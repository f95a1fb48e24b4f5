"""One run of ``fastlog load``: checks a dump, decides where its partitions go, and appends what is not there yet."""

from __future__ import annotations

import os
import stat
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

from fastlog._segment import scan
from fastlog.client.records import RecordsError
from fastlog.client.topics import create_topic, what_to_do
from fastlog.errors import FastlogError, meaning_of
from fastlog.tools import dump_file, options
from fastlog.tools.appending import MessageAppender, OtherBytesError, explained
from fastlog.tools.progress import ConsoleProgress
from fastlog.tools.record_appending import RecordAppender, storable
from fastlog.tools.record_topics import records_at
from fastlog.tools.report import EXIT_FAILED, EXIT_USAGE, CommandError
from fastlog.tools.topic_places import PartitionPlace, Site, find_all_sites
from fastlog.zkpaths import PartitionId

_Appender = TypeVar("_Appender", MessageAppender, RecordAppender)
_FIRST_OFFSETS = "fastlog.first.offsets"
"""The setting of a new topic that says at which offset each partition begins."""


def load(
    topic: str | None,
    file: Path,
    brokers: str,
    zookeeper: str | None,
    timeout: float,
    *,
    resume: bool,
    shown: bool,
    as_json: bool = False,
) -> None:
    """Append what is in the file. Raises ``CommandError``, ``TransportError``; what is loaded by then is said."""
    with sys.stdin.buffer if str(file) == "-" else file.open("rb") as source:
        _check(file, source)
        reader = dump_file.DumpReader(str(file), source)
        if topic is not None and reader.head.following:
            raise CommandError(
                f"{file} has {reader.head.following + 1} topics, which cannot all be loaded as {topic!r}",
                "--topic renames the topic of a file that has one",
                "load it without --topic, or dump the topics one by one",
                EXIT_USAGE,
            )
        while True:
            name = topic or reader.head.topic
            kind = RecordDump if reader.head.is_of_records else MessageDump
            appender: DumpAppender[Any] = kind(name, reader, resume, timeout, ConsoleProgress("loaded", shown=shown))
            sites = find_all_sites(name, brokers, zookeeper, timeout)
            try:
                appender.prepare(sites)
                appender.run()
            finally:
                appender.summary(as_json=as_json)
            if not reader.goes_on():
                return


def _check(file: Path, source: IO[bytes]) -> None:
    """Read a file to its end before anything is sent; a pipe cannot be read twice."""
    if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
        return
    try:
        reader = dump_file.DumpReader(str(file), source)
        while True:
            for _ in reader.pieces():
                pass
            if not reader.goes_on():
                break
    except CommandError as error:
        what, why, what_to_do = str(error).split("\n")
        raise CommandError(f"{what}; nothing was loaded", why, what_to_do, error.exit_code) from None
    source.seek(0)


class DumpAppender(ABC, Generic[_Appender]):
    """Appends a topic of a dump to one whose logs are empty, or hold the beginning of the same bytes."""

    is_of_records = False
    unit = "bytes"
    """What the topic's offsets count, for the summary: bytes or records."""

    def __init__(
        self, topic: str, reader: dump_file.DumpReader, resume: bool, timeout: float, progress: ConsoleProgress
    ) -> None:
        self._topic = topic
        self._reader = reader
        self._resume = resume
        self._timeout = timeout
        self._progress = progress
        self._targets: dict[PartitionId, tuple[PartitionId, _Appender]] = {}
        self._compared = 0
        progress.goal = reader.head.size

    def prepare(self, sites: list[Site]) -> None:
        """Decide where each partition goes, make those that are not there, and see that they are empty.

        Raises:
            CommandError: the brokers cannot hold it, or hold something already.
        """
        for site in sites:
            if site.is_plain:
                raise CommandError(
                    f"{site.address} cannot be loaded into",
                    "it speaks plain Kafka 0.7, which acknowledges nothing: nobody could say what is stored",
                    "load into a fastlog broker",
                    EXIT_USAGE,
                )
            if site.places and site.is_of_records != self.is_of_records:
                kinds = ("messages of Kafka 0.7", "records")
                raise CommandError(
                    f"{self._topic} on {site.address} is a topic of {kinds[site.is_of_records]}; nothing was loaded",
                    f"the file has {kinds[self.is_of_records]}",
                    "use another --topic",
                    EXIT_FAILED,
                )
        goes_to = assigned([held.partition for held in self._reader.head.partitions], sites)
        by_id = {site.broker: site for site in sites}
        wanted: dict[int, dict[int, dump_file.DumpedPartition]] = {}
        for held in self._reader.head.partitions:
            target = goes_to[held.partition]
            wanted.setdefault(target.broker, {})[target.partition] = held
        for broker, partitions in wanted.items():
            if len(by_id[broker].places) < max(partitions) + 1:
                self._create(by_id[broker], partitions)
        for held in self._reader.head.partitions:
            target = goes_to[held.partition]
            site = by_id[target.broker]
            new = self._new_place(target, site, held)
            place = next((item for item in site.places if item.partition == target), new)
            self._check_room(place, held)
            self._targets[held.partition] = target, self._appender(place)

    def run(self) -> None:
        """Append everything. Raises ``CommandError``; what was loaded until then stays and is said."""
        try:
            self._append_all()
        finally:
            for _, appender in self._targets.values():
                appender.close()

    def _append_all(self) -> None:
        by_partition = {held.partition: held for held in self._reader.head.partitions}
        for piece in self._reader.pieces():
            target, appender = self._targets[piece.partition]
            with self._stopping(target, appender):
                self._take(appender, by_partition[piece.partition], piece)
            self._progress.reached += self._reader.head.next_offset(piece.offset, piece.data) - piece.offset
        for partition, (target, appender) in self._targets.items():
            with self._stopping(target, appender):
                self._finish(appender, by_partition[partition])

    @contextmanager
    def _stopping(self, target: PartitionId, appender: _Appender) -> Iterator[None]:
        """Turn an error into one that gives the offset at which loading stopped, and names ``--resume``."""
        try:
            yield
        except FastlogError as error:
            raise explained(
                error, f"{self._topic}, partition {target}: loading stopped at offset {appender.end}; --resume goes on"
            ) from error

    def summary(self, *, as_json: bool = False) -> None:
        """Print where each partition ends now, and what of it was there before."""
        shown = ", ".join(
            f"{target}:{appender.end}" + (f" (was {source})" if source != target else "")
            for source, (target, appender) in self._targets.items()
        )
        before = f"; {self._compared} {self.unit} were there already and are the same" if self._compared else ""
        found = {
            "topic": self._topic,
            f"{self.unit}_there_before": self._compared,
            "partitions": [
                {**target._asdict(), "end": appender.end, "of": source._asdict()}
                for source, (target, appender) in self._targets.items()
            ],
        }
        text = f"{before}; ends by partition: {shown or 'nothing was loaded'}"
        self._progress.summary(text, found if as_json else None)

    @abstractmethod
    def _create(self, site: Site, partitions: dict[int, dump_file.DumpedPartition]) -> None:
        """Make the partitions that are missing on a broker, which are to become these."""

    @abstractmethod
    def _new_place(self, target: PartitionId, site: Site, held: dump_file.DumpedPartition) -> PartitionPlace:
        """The place of a partition that was just created to become ``held``."""

    @abstractmethod
    def _check_room(self, place: PartitionPlace, held: dump_file.DumpedPartition) -> None:
        """Raise ``CommandError`` unless the partition can become that of the file."""

    @abstractmethod
    def _appender(self, place: PartitionPlace) -> _Appender:
        """Make the appender for a partition; the caller closes it."""

    @abstractmethod
    def _take(self, appender: _Appender, held: dump_file.DumpedPartition, piece: dump_file.DumpPiece) -> None:
        """Compare what of a piece is there, and append the rest."""

    @abstractmethod
    def _finish(self, appender: _Appender, held: dump_file.DumpedPartition) -> None:
        """Do what remains for a partition after its last piece."""

    def _require_resume(self, place: PartitionPlace) -> None:
        if not self._resume:
            raise CommandError(
                f"{self._topic}, partition {place.partition} is not empty: it ends at offset {place.end}; nothing was"
                " loaded",
                "the log would not be that of the file",
                "use another --topic; or, if an earlier load of this file was ended, go on with --resume",
                EXIT_FAILED,
            )

    def _no_room(self, place: PartitionPlace, why: str) -> CommandError:
        return CommandError(
            f"{self._topic}, partition {place.partition} cannot become that of the file; nothing was loaded",
            f"it goes from offset {place.start} to {place.end}, and {why}",
            "use another --topic",
            EXIT_FAILED,
        )


class MessageDump(DumpAppender[MessageAppender]):
    """A topic of Kafka 0.7. Offsets are bytes, and begin at 0 here."""

    def _create(self, site: Site, partitions: dict[int, dump_file.DumpedPartition]) -> None:
        count = max(partitions) + 1
        with options.broker_at(str(site.address), self._timeout).connect() as connection:
            answer = create_topic(connection, self._topic, count)
        if answer.error:
            otherwise = f"give the topic that many: topic.partition.count.map={self._topic}:{count}"
            raise _not_made(self._topic, site, count, meaning_of(answer.error), what_to_do(answer.error, otherwise))

    def _new_place(self, target: PartitionId, site: Site, held: dump_file.DumpedPartition) -> PartitionPlace:
        return PartitionPlace(target, site.address, 0, 0)

    def _appender(self, place: PartitionPlace) -> MessageAppender:
        return MessageAppender(self._topic, place.partition.partition, place.address, self._timeout, place.end)

    def _take(self, appender: MessageAppender, held: dump_file.DumpedPartition, piece: dump_file.DumpPiece) -> None:
        at, data = piece.offset - held.start, piece.data
        there = min(max(0, appender.end - at), len(data))
        if there:
            if not appender.holds(at, data[:there]):
                raise OtherBytesError(f"from offset {at} on the log holds other bytes than the file")
            self._compared += there
        rest = data[there:]
        if rest:
            appender.append(rest, flushed=piece.offset + len(data) == held.end)
            self._progress.add(scan(rest).count, len(rest))

    def _finish(self, appender: MessageAppender, held: dump_file.DumpedPartition) -> None:
        pass  # the last piece was acknowledged by the disk

    def _check_room(self, place: PartitionPlace, held: dump_file.DumpedPartition) -> None:
        size = held.end - held.start
        if place.end:
            self._require_resume(place)
        if place.start or place.end > size:
            raise self._no_room(place, f"that of the file has {size} bytes")


class RecordDump(DumpAppender[RecordAppender]):
    """A topic of records, whose offsets are those of the source."""

    is_of_records = True
    unit = "records"

    def _create(self, site: Site, partitions: dict[int, dump_file.DumpedPartition]) -> None:
        count = max(partitions) + 1
        begins = [partitions[number].start if number in partitions else 0 for number in range(count)]
        if site.places:
            why = f"it has {len(site.places)} already, and would not begin where the file's do"
            raise _not_made(self._topic, site, count, why, "use another --topic, or delete that one")
        settings = {**(self._reader.head.settings or {})}
        if any(begins):
            settings[_FIRST_OFFSETS] = ",".join(map(str, begins))
        with records_at(options.broker_at(str(site.address), self._timeout)) as records:
            try:
                records.create(self._topic, count, settings)
            except RecordsError as error:
                hint = "make the topic with settings that this broker takes (fastlog topics create), then load it"
                raise _not_made(self._topic, site, count, str(error.reason), hint) from error

    def _new_place(self, target: PartitionId, site: Site, held: dump_file.DumpedPartition) -> PartitionPlace:
        return PartitionPlace(target, site.address, held.start, held.start)

    def _appender(self, place: PartitionPlace) -> RecordAppender:
        number = place.partition.partition
        return RecordAppender(self._topic, number, place.address, self._timeout, place.start, place.end)

    def _take(self, appender: RecordAppender, held: dump_file.DumpedPartition, piece: dump_file.DumpPiece) -> None:
        batches = list(storable(piece.data))
        there = [batch for batch in batches if batch.offset < appender.end]
        if there:
            if there[-1].next_offset > appender.end or not appender.holds(there):
                raise OtherBytesError(f"from offset {there[0].offset} on the log holds other records than the file")
            self._compared += sum(batch.records for batch in there)
        rest = batches[len(there) :]
        if rest:
            appender.append(rest)
            self._progress.add(sum(batch.records for batch in rest), sum(len(batch.data) for batch in rest))

    def _finish(self, appender: RecordAppender, held: dump_file.DumpedPartition) -> None:
        appender.wait_flushed()
        appender.begin_at(held.first)

    def _check_room(self, place: PartitionPlace, held: dump_file.DumpedPartition) -> None:
        if place.end > place.start:
            self._require_resume(place)
        begins = {held.start, held.first}
        if place.start not in begins or place.end > held.end:
            raise self._no_room(
                place, f"that of the file from {held.start} to {held.end}: a topic that load makes begins there"
            )


def assigned(sources: list[PartitionId], sites: list[Site]) -> dict[PartitionId, PartitionId]:
    """Where each partition of the file goes.

    Raises:
        CommandError: the brokers are neither the same, nor as many, nor one.
    """
    from_brokers = sorted({item.broker for item in sources})
    there = sorted(site.broker for site in sites)
    if set(from_brokers) <= set(there):
        return {item: item for item in sources}
    if len(from_brokers) == len(there):
        renamed = dict(zip(from_brokers, there, strict=True))
        return {item: PartitionId(renamed[item.broker], item.partition) for item in sources}
    if len(there) == 1:
        return {item: PartitionId(there[0], number) for number, item in enumerate(sorted(sources))}
    raise CommandError(
        f"the file has partitions of {len(from_brokers)} brokers, and there are {len(there)}",
        f"its brokers have the ids {_names(from_brokers)}, these {_names(there)}",
        "name brokers of the same ids, as many of them, or one for all",
        EXIT_USAGE,
    )


def _names(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _not_made(topic: str, site: Site, count: int, why: str, what_to_do: str) -> CommandError:
    return CommandError(
        f"{topic} was not made with {count} partitions on {site.address}; nothing was loaded", why, what_to_do
    )
