"""A topic, or the files of one, as Arrow: what ``fastlog.scan`` gives.

Where messages come from and what columns they have is behind ``ScanSource`` (``parts.py``): ``broker.py`` and
``files.py`` are those of Kafka 0.7's topics, ``broker_records.py`` and ``record_files.py`` those of record batches.
"""

from __future__ import annotations

import html
import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fastlog import arguments
from fastlog.consumer.fetched import pyarrow_library
from fastlog.errors import ArgumentError, UnsupportedFeatureError
from fastlog.scanning.bars import no_bar, progress_bar
from fastlog.scanning.columns import checked_columns
from fastlog.scanning.parts import Bounds, Offsets, Part, ScanSource
from fastlog.scanning.picking import Picker
from fastlog.scanning.rows import Rows, as_pandas, as_polars, html_table
from fastlog.scanning.sources import folder_source, topic_source
from fastlog.segment_files import MAX_OFFSET

if TYPE_CHECKING:
    import polars
    import pyarrow  # type: ignore[import-untyped]

__all__ = ["Part", "Rows", "Scan", "scan"]

Time = datetime | int | None


def scan(
    source: str | os.PathLike[str],
    *,
    broker: str = "localhost:9092",
    partitions: Sequence[int] | None = None,
    start: Offsets = None,
    end: Offsets = None,
    since: Time = None,
    until: Time = None,
    columns: Sequence[str] | None = None,
    batch_bytes: int = 4 * 2**20,
    timeout: float = 30.0,
) -> Scan:
    """The messages of a topic of ``broker``, or of the segment files that a path names, to be read as Arrow batches.

    A ``source`` with a slash, or of another type than str, is a path: of a partition's directory, or a pattern of such
    (``"data/logs-*"``). What is there now is what the scan has, however often it is read.

    ``start`` and ``end``: offsets, of all partitions or by partition (``{0: 4711}``); messages from the first up to
    before the second. ``since`` and ``until``: times, or ms since 1970. Messages of Kafka 0.7 have none, so whole
    segments are left out that were written before, or begun after: nothing is missing, and there may be more. Records
    come from the first one of ``since`` or later up to before the first that is later than ``until``; where times go
    back and forth, some in between are of other times. ``columns``: some of ``topic``, ``partition``, ``offset``,
    ``next_offset`` and ``payload``, and of record batches also ``key``, ``timestamp`` and ``headers``, in this order;
    what is not asked for costs nothing. ``batch_bytes``: what is read at once.

    Raises:
        MissingDependencyError: pyarrow is not installed.
        WrongPartitionError, TransportError: what the broker answers, or that it does not.
        ArgumentError: the path has no segments, or of two kinds; a column, a number or a time cannot be one.
    """
    pyarrow_library()
    arguments.whole("batch_bytes", batch_bytes, 1, 2**30)
    if isinstance(source, str) and "/" not in source:
        found = topic_source(source, broker, fetch_bytes=batch_bytes, timeout=timeout)
    else:
        found = folder_source(source, window_bytes=batch_bytes)
    bounds = Bounds(
        partitions=None if partitions is None else frozenset(partitions),
        start=start,
        end=end,
        since_ms=_milliseconds("since", since),
        until_ms=_milliseconds("until", until),
    )
    names = checked_columns(columns, found.columns())
    return Scan(found, found.parts(bounds), names)


class Scan:
    """Parts of partitions, read anew by everybody who asks: polars, DuckDB and pandas take it as it is.

    ``polars.DataFrame(scan)``, ``duckdb.sql("select … from scan")``, ``for batch in scan``. Made by ``fastlog.scan``.
    It holds no connection and no file; each reader has its own. For any thread; a reader is for one at a time.
    """

    def __init__(self, source: ScanSource, parts: Sequence[Part], columns: Sequence[str]) -> None:
        self._source = source
        self._columns = tuple(columns)
        self._topics = sorted({part.topic for part in parts})
        self.parts = tuple(parts)
        """The ranges of partitions that are read, in this order."""

    def __repr__(self) -> str:
        return f"<Scan of {self._source!r}: {len(self.parts)} parts, {self.offset_count:,} {self._source.unit}>"

    @property
    def offset_count(self) -> int:
        """How many offsets it goes through: of Kafka 0.7's topics bytes of the logs, of record batches records."""
        return sum(part.end - part.start for part in self.parts)

    @property
    def log_bytes(self) -> int:
        """How much of the logs it reads.

        Raises:
            UnsupportedFeatureError: of record batches, which nobody knows the bytes of.
        """
        if self._source.unit != "bytes":
            raise UnsupportedFeatureError("offsets of record batches count records: offset_count says how many")
        return self.offset_count

    @property
    def schema(self) -> pyarrow.Schema:
        """The Arrow schema of what is read: the names and types of the columns."""
        return self._source.schema(self._columns, self._topics)

    def select(self, *columns: str) -> Scan:
        """The same scan with these columns alone, in this order. Raises ``ArgumentError`` for an unknown one."""
        return Scan(self._source, self.parts, checked_columns(columns, self._source.columns()))

    def __iter__(self) -> Iterator[pyarrow.RecordBatch]:
        """The record batches, one part after the other.

        Raises:
            OffsetOutOfRangeError: retention has removed what was there.
            InvalidMessageError, CorruptLogError: damaged messages; what is before them came first.
        """
        for _, batch in self._source.batches(self.parts, self._columns, self._topics):
            yield batch

    def reader(self, *, progress: bool = False) -> pyarrow.RecordBatchReader:
        """The record batches as Arrow's own stream.

        ``progress`` shows a bar, where ``tqdm`` or ``rich`` is installed.
        """
        batches = self._shown() if progress else iter(self)
        return pyarrow_library().RecordBatchReader.from_batches(self.schema, batches)

    def to_arrow(self, *, progress: bool = False) -> pyarrow.Table:
        """Read everything into a table in memory. ``progress``: show a bar on standard error."""
        return self.reader(progress=progress).read_all()

    def to_pandas(self, *, progress: bool = False) -> Any:
        """All of it as a ``pandas.DataFrame``."""
        return as_pandas(self.to_arrow(progress=progress))

    def to_polars(self, *, progress: bool = False) -> polars.DataFrame:
        """All of it as a ``polars.DataFrame``."""
        return as_polars(self.to_arrow(progress=progress))

    def tail(self, count: int = 10, *, progress: bool = False) -> Rows:
        """The last ``count`` messages of each partition, without reading what is before them.

        A topic at a plain broker of Kafka 0.7, which tells no message boundaries, is read from the border of a segment.
        """
        arguments.whole("count", count, 0, MAX_OFFSET)
        picker = Picker(self._source, self.parts, self._columns, progress_bar if progress else no_bar)
        return Rows(picker.last(count))

    def sample(self, count: int = 1000, *, seed: int | None = None, progress: bool = False) -> Rows:
        """``count`` messages at random, in the order of partitions and offsets; all of them where there are fewer.

        Up to 256 MiB of messages of Kafka 0.7, or a million records, are read whole, and each message has the same
        chance. Of more the messages at random offsets are read alone: each record has the same chance still, where
        none is missing in between; of messages, whose offsets count bytes, one that follows a long one comes more
        often. The same ``seed`` finds the same messages.
        """
        arguments.whole("count", count, 0, MAX_OFFSET)
        picker = Picker(self._source, self.parts, self._columns, progress_bar if progress else no_bar)
        return Rows(picker.at_random(count, seed))

    def lazy(self) -> polars.LazyFrame:
        """A ``polars.LazyFrame`` that reads when it is collected: the columns it needs, no further than it must."""
        import polars
        from polars.io.plugins import register_io_source

        def read(
            with_columns: list[str] | None, predicate: polars.Expr | None, n_rows: int | None, batch_size: int | None
        ) -> Iterator[polars.DataFrame]:
            wanted = self._columns if with_columns is None else tuple(with_columns)
            left = n_rows
            for batch in self.select(*wanted) if wanted else self:
                frame = polars.DataFrame(batch)
                if left is not None:
                    frame = frame.head(left)
                    left -= len(frame)
                yield frame if predicate is None else frame.filter(predicate)
                if left == 0:
                    return

        schema = polars.DataFrame(self.schema.empty_table()).schema
        return register_io_source(read, schema=schema)

    def _repr_html_(self) -> str:
        rows = [
            [topic, str(partition), *(f"{number:,}" for number in (start, end, end - start))]
            for topic, partition, start, end in self.parts
        ]
        head = ["topic", "partition", "start", "end", self._source.unit]
        return f"<p>{html.escape(repr(self))}</p>" + html_table(head, rows)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Arrow's interface between libraries: a new reader, each time."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def _shown(self) -> Iterator[pyarrow.RecordBatch]:
        with progress_bar(self.offset_count, self._source.unit) as advance:
            for came, batch in self._source.batches(self.parts, self._columns, self._topics):
                advance(came)
                yield batch


def _milliseconds(name: str, time: Time) -> int | None:
    if isinstance(time, datetime):
        return int(time.timestamp() * 1000)
    if time is None or (isinstance(time, int) and not isinstance(time, bool) and time >= 0):
        return time
    raise ArgumentError(f"{name}: {time!r:.60} is neither a datetime nor ms since 1970")
