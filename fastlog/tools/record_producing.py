"""``fastlog produce`` into a topic of record batches: each line a record, stored once whatever is sent again."""

from __future__ import annotations

import os
import select
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fastlog.batch_codecs import CODEC_NAMES
from fastlog.client.kafka_fields import Place
from fastlog.client.record_requests import Appended
from fastlog.client.records import RecordBroker, meaning_of
from fastlog.errors import TransportError
from fastlog.record_batches import HEADER_BYTES, Record, build
from fastlog.tools import signals
from fastlog.tools.keys import KeyRule
from fastlog.tools.lines import Batches
from fastlog.tools.progress import Progress
from fastlog.tools.report import EXIT_DONE, EXIT_FAILED, EXIT_UNREACHABLE, EXIT_USAGE, CommandError, note

CODECS = {name: number for number, name in CODEC_NAMES.items()}
_PAUSE_SECONDS = 0.2
_PASSING = (5, 6, 7, 14, 15, 74)
_SEQUENCES = 2**31
_RECORD_BYTES = 40  # of a record besides key, value and headers, at most: lengths and differences
_HEADER_BYTES = 10
BATCH_BYTES = 256 * 1024
"""Of lines that are read and sent at once, unless otherwise asked for."""


def largest_batch(records: RecordBroker, topic: str) -> int:
    """The bytes that the records of a batch may have, before they are compressed; codecs may add a little to them."""
    told = records.settings(topic)["max.message.bytes"].value
    return (int(told or 0) - HEADER_BYTES) * 6 // 7


@dataclass(frozen=True)
class RecordSettings:
    """What to make of lines: ``headers`` stand in each record, ``codec`` is a number of ``batch_codecs``."""

    topic: str
    partition: int | None
    rule: KeyRule | None
    headers: tuple[tuple[bytes, bytes], ...]
    codec: int
    is_flushed: bool
    patience: float
    """Seconds for which a broker may be away."""


class RecordProducing:
    """For the main thread. One request at a time: what was read before is stored when more is read."""

    def __init__(
        self, records: RecordBroker, settings: RecordSettings, batches: Batches, most_bytes: int, progress: Progress
    ) -> None:
        """``most_bytes``: as ``largest_batch`` says. Raises ``CommandError`` when there is no such partition."""
        self.as_json = False
        """The summary is an object on stdout, too."""
        self._records = records
        self._settings = settings
        self._batches = batches
        self._most_bytes = most_bytes
        self._progress = progress
        self._numbers = records.topics([settings.topic])[settings.topic].partitions
        if settings.partition is not None and settings.partition not in self._numbers:
            raise CommandError(
                f"there is no partition {settings.partition} of {settings.topic}",
                f"the broker has {len(self._numbers)} of it",
                f"fastlog topics describe {settings.topic} shows them",
                EXIT_USAGE,
            )
        self._turn = 0
        self._producer = records.new_producer()
        self._sequences: dict[Place, int] = {}

    def run(self, files: Sequence[str]) -> int:
        """Send the lines of all files and print a summary; returns the exit code.

        Raises:
            CommandError: a file cannot be read, a line has no key, or the broker does not take them.
            signals.Interrupted: SIGINT or SIGTERM came.
        """
        try:
            with signals.deferred():
                for name in files:
                    self._send_file(name)
        finally:
            self._summarize()
        return EXIT_FAILED if self._batches.too_long else EXIT_DONE

    def _send_file(self, name: str) -> None:
        shown = "stdin" if name == "-" else name
        fd = -1
        try:
            fd = 0 if name == "-" else os.open(name, os.O_RDONLY)
            for lines in self._batches.read(fd, shown, _wait_input):
                self._send_lines(shown, lines)
                self._progress.idle()
        except OSError as error:
            raise CommandError(f"cannot read {shown}", error.strerror or str(error), "check the file") from error
        finally:
            if fd > 0:
                os.close(fd)

    def _send_lines(self, name: str, lines: list[bytes]) -> None:
        settings = self._settings
        first = self._batches.first_line
        now = round(time.time() * 1000)
        found: dict[int, list[Record]] = {}
        without_key = 0
        anywhere = self._next_partition()
        for number, line in enumerate(lines, first):
            key, value = (None, line) if settings.rule is None else settings.rule.split(line)
            if key is None and settings.rule is not None and settings.rule.keyless_fails:
                without_key = number
                break
            place = anywhere if key is None else self._partition_of(key)
            found.setdefault(place, []).append(Record(key, value, now, settings.headers))
        self._send(found)
        if without_key:
            raise CommandError(
                f"{name}, {self._batches.unit} {without_key} has no key",
                "the separator is not in it, or it has too few fields; the lines behind it were not sent",
                "check --key-separator and --key-field, or let such lines go anywhere with --keyless any",
            )

    def _next_partition(self) -> int:
        if self._settings.partition is not None:
            return self._settings.partition
        self._turn += 1
        return self._numbers[self._turn % len(self._numbers)]

    def _partition_of(self, key: bytes) -> int:
        """As librdkafka, and so kcat and confluent-kafka, choose it by themselves."""
        if self._settings.partition is not None:
            return self._settings.partition
        return self._numbers[zlib.crc32(key) % len(self._numbers)]

    def _send(self, found: dict[int, list[Record]]) -> None:
        """Have the records of each partition stored, in as many batches as they take."""
        left = {(self._settings.topic, number): list(self._cut(records)) for number, records in found.items()}
        while left:
            self._store({place: batches.pop(0) for place, batches in left.items()})
            left = {place: batches for place, batches in left.items() if batches}

    def _cut(self, records: list[Record]) -> Iterator[list[Record]]:
        batch: list[Record] = []
        size = 0
        headers = sum(_HEADER_BYTES + len(name) + len(value) for name, value in self._settings.headers)
        for record in records:
            added = _RECORD_BYTES + len(record.key or b"") + len(record.value or b"") + headers
            if batch and size + added > self._most_bytes:
                yield batch
                batch, size = [], 0
            batch.append(record)
            size += added
        yield batch

    def _store(self, waiting: dict[Place, list[Record]]) -> None:
        """Have a batch for each partition stored. What is sent again has its number, by which the broker knows it."""
        batches = {
            place: build(
                records,
                codec=self._settings.codec,
                producer_id=self._producer.id,
                producer_epoch=self._producer.epoch,
                base_sequence=self._sequences.get(place, 0),
            )
            for place, records in waiting.items()
        }
        since = time.monotonic()
        while batches:
            trouble: str | None = None
            answers: dict[Place, Appended] = {}
            try:
                with signals.waiting():
                    answers = self._records.append(batches, is_flushed=self._settings.is_flushed)
            except TransportError as error:
                trouble = str(error.reason)
            for place, appended in answers.items():
                if appended.code in _PASSING:
                    trouble = meaning_of(appended.code)
                    continue
                if appended.code:
                    raise self._refused(place, appended.code, len(waiting[place]))
                records = waiting[place]
                del batches[place]
                self._sequences[place] = (self._sequences.get(place, 0) + len(records)) % _SEQUENCES
                self._progress.count += len(records)
                self._progress.size += sum(len(record.value or b"") for record in records)
            if trouble is None:
                continue
            if time.monotonic() - since >= self._settings.patience:
                raise CommandError(
                    f"{sum(len(waiting[place]) for place in batches)} records were not acknowledged",
                    trouble,
                    "see that the broker runs; the summary says how many were stored before",
                    EXIT_UNREACHABLE,
                )
            with signals.waiting():
                time.sleep(_PAUSE_SECONDS)

    def _refused(self, place: Place, code: int, count: int) -> CommandError:
        return CommandError(
            f"the broker refused {count} records for {place[0]}, partition {place[1]}",
            meaning_of(code),
            f"fastlog topics settings {place[0]} shows its limits; the broker's log says more",
        )

    def _summarize(self) -> None:
        batches = self._batches
        promised = "flushed (on the broker's disk)" if self._settings.is_flushed else "appended"
        parts = [f"; promised: {promised}, each once"]
        if batches.too_long:
            parts.append(f"; left out as too long: {batches.too_long}")
        told = {"topic": self._settings.topic, "too_long": batches.too_long, "partitions": len(self._sequences)}
        self._progress.summary("".join(parts), told if self.as_json else None)
        if batches.too_long:
            note(f"the first {batches.unit} that is too long: {batches.first_too_long}")


def _wait_input(fd: int) -> None:
    with signals.waiting():
        select.select([fd], [], [])
