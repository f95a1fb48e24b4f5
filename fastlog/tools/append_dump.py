"""One run of ``fastlog load``: checks a dump, decides where its partitions go, and appends what is not there yet."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import IO

from fastlog._segment import scan
from fastlog.client.topics import create_topic, what_to_do
from fastlog.errors import FastlogError, meaning_of
from fastlog.tools import dump_file, options
from fastlog.tools.appending import Appender, OtherBytesError, explained
from fastlog.tools.progress import Progress
from fastlog.tools.report import EXIT_FAILED, EXIT_USAGE, CommandError
from fastlog.tools.topic_places import Place, Site, find_all_sites
from fastlog.zkpaths import PartitionId


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
        reader = dump_file.Reader(str(file), source)
        name = topic or reader.head.topic
        appender = DumpAppender(name, reader, resume, timeout, Progress("loaded", shown=shown))
        sites = find_all_sites(name, brokers, zookeeper, timeout)
        try:
            appender.prepare(sites)
            appender.run()
        finally:
            appender.summary(as_json=as_json)


def _check(file: Path, source: IO[bytes]) -> None:
    """Read a file to its end before anything is sent; a pipe cannot be read twice."""
    if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
        return
    try:
        for _ in dump_file.Reader(str(file), source).pieces():
            pass
    except CommandError as error:
        what, why, what_to_do = str(error).split("\n")
        raise CommandError(f"{what}; nothing was loaded", why, what_to_do, error.exit_code) from None
    source.seek(0)


class DumpAppender:
    """Appends a dump to a topic whose logs are empty, or hold the beginning of the same bytes."""

    def __init__(self, topic: str, reader: dump_file.Reader, resume: bool, timeout: float, progress: Progress) -> None:
        self._topic = topic
        self._reader = reader
        self._resume = resume
        self._timeout = timeout
        self._progress = progress
        self._targets: dict[PartitionId, tuple[PartitionId, Appender]] = {}
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
        goes_to = assigned([held.partition for held in self._reader.head.partitions], sites)
        by_id = {site.broker: site for site in sites}
        counts: dict[int, int] = {}
        for target in goes_to.values():
            counts[target.broker] = max(counts.get(target.broker, 0), target.partition + 1)
        for broker, count in counts.items():
            if len(by_id[broker].places) < count:
                _create(self._topic, by_id[broker], count, self._timeout)
        for held in self._reader.head.partitions:
            target = goes_to[held.partition]
            site = by_id[target.broker]
            place = next((item for item in site.places if item.partition == target), Place(target, site.address, 0, 0))
            self._check_room(place, held)
            appender = Appender(self._topic, target.partition, site.address, self._timeout, place.end)
            self._targets[held.partition] = target, appender

    def run(self) -> None:
        """Append everything. Raises ``CommandError``; what was loaded until then stays and is said."""
        lasts = {held.partition: held.end for held in self._reader.head.partitions}
        starts = {held.partition: held.start for held in self._reader.head.partitions}
        for piece in self._reader.pieces():
            target, appender = self._targets[piece.partition]
            is_last = piece.offset + len(piece.data) == lasts[piece.partition]
            try:
                self._take(appender, piece.offset - starts[piece.partition], piece.data, is_last)
            except FastlogError as error:
                raise explained(
                    error,
                    f"{self._topic}, partition {target}: loading stopped at offset {appender.end}; --resume goes on",
                ) from error
            self._progress.reached += len(piece.data)
        for _, appender in self._targets.values():
            appender.close()

    def summary(self, *, as_json: bool = False) -> None:
        """Print what is there now."""
        shown = ", ".join(
            f"{target}:{appender.end}" + (f" (was {source})" if source != target else "")
            for source, (target, appender) in self._targets.items()
        )
        before = f"; {self._compared} bytes were there already and are the same" if self._compared else ""
        found = {
            "topic": self._topic,
            "bytes_there_before": self._compared,
            "partitions": [
                {**target._asdict(), "end": appender.end, "of": source._asdict()}
                for source, (target, appender) in self._targets.items()
            ],
        }
        text = f"{before}; ends by partition: {shown or 'nothing was loaded'}"
        self._progress.summary(text, found if as_json else None)

    def _take(self, appender: Appender, at: int, data: bytes, is_last: bool) -> None:
        there = min(max(0, appender.end - at), len(data))
        if there:
            if not appender.holds(at, data[:there]):
                raise OtherBytesError(f"from offset {at} on the log holds other bytes than the file")
            self._compared += there
        rest = data[there:]
        if rest:
            appender.append(rest, flushed=is_last)
            self._progress.add(scan(rest).count, len(rest))

    def _check_room(self, place: Place, held: dump_file.Held) -> None:
        size = held.end - held.start
        where = f"{self._topic}, partition {place.partition}"
        if place.end and not self._resume:
            raise CommandError(
                f"{where} is not empty: it ends at offset {place.end}; nothing was loaded",
                "the log would not be that of the file",
                "use another --topic; or, if an earlier load of this file was ended, go on with --resume",
                EXIT_FAILED,
            )
        if place.start or place.end > size:
            raise CommandError(
                f"{where} cannot become that of the file; nothing was loaded",
                f"it goes from offset {place.start} to {place.end}, and that of the file has {size} bytes",
                "use another --topic",
                EXIT_FAILED,
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


def _create(topic: str, site: Site, count: int, timeout: float) -> None:
    with options.broker_at(str(site.address), timeout).connect() as connection:
        answer = create_topic(connection, topic, count)
    if answer.error:
        raise CommandError(
            f"{topic} was not made with {count} partitions on {site.address}; nothing was loaded",
            meaning_of(answer.error),
            what_to_do(answer.error, f"let the broker have so many: topic.partition.count.map={topic}:{count}"),
        )
