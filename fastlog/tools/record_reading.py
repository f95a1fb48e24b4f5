"""``fastlog consume`` of a topic of record batches: reads, prints, counts, and stops when it should."""

from __future__ import annotations

import time
from dataclasses import dataclass

from fastlog.client.kafka_fields import Place
from fastlog.client.record_requests import Fetched
from fastlog.client.records import (
    EARLIEST,
    LATEST,
    RecordBroker,
    meaning_of,
    records_in,
)
from fastlog.errors import FastlogError, TransportError
from fastlog.kafka_codes import Code
from fastlog.message import DEFAULT_LIMITS, DeepLimits
from fastlog.record_batches import HEADER_BYTES, Record
from fastlog.tools import options, signals
from fastlog.tools.printing import write_all
from fastlog.tools.progress import ConsoleProgress
from fastlog.tools.record_forms import RecordForm
from fastlog.tools.report import EXIT_DAMAGED, EXIT_FAILED, EXIT_UNREACHABLE, EXIT_USAGE, CommandError, unknown

_STEP_SECONDS = 1.0
_BYTES_AT_ONCE = 4 * 2**20
_PAUSE_SECONDS = 0.2
_RESTARTED = (
    Code.LEADER_NOT_AVAILABLE,
    Code.NOT_LEADER_OR_FOLLOWER,
    Code.FENCED_LEADER_EPOCH,
    Code.UNKNOWN_LEADER_EPOCH,
)
"""Codes after which the same offset is asked for again."""
_SHOWN_PARTITIONS = 16


@dataclass
class _Cursor:
    """Where reading of a partition stands; ``end`` is where it stops, None: never."""

    offset: int
    end: int | None
    failed_since: float | None = None

    @property
    def is_done(self) -> bool:
        return self.end is not None and self.offset >= self.end


class RecordReading:
    """For the main thread, inside ``signals.deferred()``."""

    def __init__(
        self,
        records: RecordBroker,
        topic: str,
        form: RecordForm,
        progress: ConsoleProgress,
        *,
        partition: int | None,
        begin: options.Begin,
        exit_at_end: bool,
        max_messages: int | None,
        timeout: float | None,
        fetch_bytes: int,
        max_message_bytes: int | None,
        delimiter: bytes,
        connect_timeout: float,
    ) -> None:
        """``delimiter`` is behind each record. ``connect_timeout``: how many seconds a broker may be away.

        Raises:
            CommandError: there is no such partition, or the offset is none of it.
        """
        self.timed_out = False
        self._records = records
        self._topic = topic
        self._form = form
        self._progress = progress
        self._left = max_messages
        self._timeout = timeout
        self._fetch_bytes = fetch_bytes
        self._limits = DEFAULT_LIMITS if max_message_bytes is None else DeepLimits(max_inflated_bytes=max_message_bytes)
        self._delimiter = delimiter
        self._connect_timeout = connect_timeout
        self._lines: list[bytes] = []
        self._held_bytes = 0
        self._value_bytes = 0  # of the lines held
        numbers = records.known_topics([topic])[topic].partitions
        if partition is not None and partition not in numbers:
            raise unknown(
                f"topic {topic!r} has no partition {partition}",
                f"it has {len(numbers)}, from 0 on",
                str(partition),
                (),
                f"fastlog topics describe {topic} shows them",
            )
        places = [(topic, number) for number in (numbers if partition is None else [partition])]
        starts, ends = records.offsets(places, EARLIEST), records.offsets(places, LATEST)
        begins = self._begins(begin, places, starts, ends)
        self._cursors = {
            place: _Cursor(begins[place], ends[place] if exit_at_end else None) for place in sorted(places)
        }
        if exit_at_end:
            progress.goal = sum(max(0, ends[place] - begins[place]) for place in places)

    def run(self) -> None:
        """Print records until an end is reached.

        Raises:
            CommandError: a partition cannot be read on; what is before was printed.
            BrokenPipeError: nobody reads what is printed.
        """
        last = time.monotonic()
        step = _STEP_SECONDS if self._timeout is None else min(_STEP_SECONDS, self._timeout)
        while self._left != 0:
            reading = {place: cursor.offset for place, cursor in self._cursors.items() if not cursor.is_done}
            if not reading:
                return
            try:
                with signals.waiting():
                    found = self._records.fetch(reading, max_wait=step, max_bytes=self._fetch_bytes)
            except TransportError as error:
                self._put_up_with(list(reading), error)
                continue
            printed = self._progress.count
            for place, fetched in found.items():
                self._take(place, fetched)
            self._reorder(found)
            if self._progress.count > printed:
                last = time.monotonic()
            elif self._timeout is not None and time.monotonic() - last >= self._timeout:
                self.timed_out = True
                return
            self._progress.idle()

    def summary(self) -> None:
        """Print what was read, and where to go on."""
        rows = sorted(self._cursors.items())
        positions = [f"{partition}:{cursor.offset}" for (_, partition), cursor in rows[:_SHOWN_PARTITIONS]]
        more = ", …" if len(rows) > _SHOWN_PARTITIONS else ""
        self._progress.summary(f"; next offset by partition: {', '.join(positions)}{more}")

    # -- inside --------------------------------------------------------------------------------------------------------

    def _begins(
        self, begin: options.Begin, places: list[Place], starts: dict[Place, int], ends: dict[Place, int]
    ) -> dict[Place, int]:
        if isinstance(begin, options.At):
            found = self._records.offsets(places, begin.time_ms)
            return {place: ends[place] if offset < 0 else offset for place, offset in found.items()}
        if begin == "beginning":
            return starts
        if begin == "end":
            return ends
        assert isinstance(begin, int)
        if begin < 0:
            return {place: max(starts[place], ends[place] + begin) for place in places}
        if len(places) > 1:
            raise CommandError(
                "--offset N needs --partition",
                f"{self._topic} has {len(places)} partitions, and an offset belongs to one",
                "name the partition; --offset -N and --offset TIME work for all of them",
                EXIT_USAGE,
            )
        (place,) = places
        if not starts[place] <= begin <= ends[place]:
            raise CommandError(
                f"offset {begin} is not in {self._topic}, partition {place[1]}",
                f"it begins at {starts[place]} and ends at {ends[place]}",
                "use one of these, or --offset beginning or end",
                EXIT_USAGE,
            )
        return {place: begin}

    def _take(self, place: Place, fetched: Fetched) -> None:
        cursor = self._cursors[place]
        if fetched.code in _RESTARTED:
            self._put_up_with([place], TransportError(meaning_of(fetched.code)))
            return
        if fetched.code:
            raise self._refused(place, fetched.code)
        cursor.failed_since = None
        try:
            for following, records in records_in(fetched, cursor.offset, self._limits):
                self._print(place, records, following)
                if self._left == 0 or cursor.is_done:
                    return
        except BrokenPipeError:
            raise
        except FastlogError as error:
            raise CommandError(
                f"{type(error).__name__}: {self._topic}, partition {place[1]}, offset {cursor.offset}",
                str(error).replace("\n", "; "),
                "go on behind it with --offset; run fastlog fsck on the broker's log directory",
                EXIT_DAMAGED,
            ) from error
        finally:
            self._write()
        if cursor.end is not None and len(fetched.batches) < HEADER_BYTES and fetched.high_watermark < cursor.end:
            cursor.end = max(cursor.offset, fetched.high_watermark)  # what was the end was not flushed, and is lost

    def _print(self, place: Place, records: list[Record], following: int) -> None:
        """Take records up to the number and the end that are wanted; ``following``: where to go on behind them all."""
        cursor = self._cursors[place]
        for record in records:
            if self._left == 0 or (cursor.end is not None and record.offset >= cursor.end):
                break
            self._lines.append(self._form(self._topic, place[1], record))
            self._held_bytes += len(self._lines[-1])
            self._value_bytes += len(record.value or b"")
            self._progress.reached += record.offset + 1 - cursor.offset
            cursor.offset = record.offset + 1
            if self._left is not None:
                self._left -= 1
        else:
            self._progress.reached += following - cursor.offset
            cursor.offset = following
        if self._held_bytes >= _BYTES_AT_ONCE:
            self._write()

    def _write(self) -> None:
        lines, self._lines = self._lines, []
        size, self._value_bytes, self._held_bytes = self._value_bytes, 0, 0
        if lines:
            count = len(lines)
            lines.append(b"")
            write_all(self._delimiter.join(lines))
            self._progress.count += count
            self._progress.size += size

    def _reorder(self, found: dict[Place, Fetched]) -> None:
        """Let the partitions that gave something be the last of the next request, so that none goes without."""
        for place, fetched in found.items():
            if fetched.batches:
                self._cursors[place] = self._cursors.pop(place)

    def _put_up_with(self, places: list[Place], error: TransportError) -> None:
        now = time.monotonic()
        for place in places:
            cursor = self._cursors[place]
            cursor.failed_since = cursor.failed_since or now
            if now - cursor.failed_since >= self._connect_timeout:
                raise CommandError(
                    str(error.reason),
                    f"reading stopped at {self._topic}, partition {place[1]}, offset {cursor.offset}",
                    "start the broker again and go on with --partition and --offset",
                    EXIT_UNREACHABLE,
                ) from error
        with signals.waiting():
            time.sleep(_PAUSE_SECONDS)

    def _refused(self, place: Place, code: int) -> CommandError:
        offset = self._cursors[place].offset
        what = f"cannot read {self._topic}, partition {place[1]}, offset {offset}"
        if code == Code.OFFSET_OUT_OF_RANGE:
            return CommandError(
                what,
                "the records there are gone: by retention, by a deletion, or with what was not flushed",
                f"fastlog topics describe {self._topic} shows where it begins and ends now",
                EXIT_FAILED,
            )
        if code == Code.UNKNOWN_TOPIC_OR_PARTITION:
            return CommandError(what, "the topic has been deleted", "fastlog topics list shows what there is")
        return CommandError(what, meaning_of(code), "the broker's log says more", EXIT_FAILED)
