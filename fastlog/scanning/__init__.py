"""A topic, or the files of one, as Arrow: what ``fastlog.scan`` gives.

Where messages come from and what columns they have is behind ``Source`` (``parts.py``): ``broker.py`` and ``files.py``
are those of Kafka 0.7's topics.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fastlog import arguments
from fastlog.consumer.fetched import pyarrow_library
from fastlog.errors import ArgumentError
from fastlog.scanning.broker import BrokerTopic
from fastlog.scanning.files import SegmentFolders
from fastlog.scanning.parts import Bounds, Offsets, Part, Source, checked_columns

if TYPE_CHECKING:
    import polars
    import pyarrow  # type: ignore[import-untyped]

__all__ = ["Part", "Scan", "scan"]

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
    segments are left out that were written before, or begun after: nothing is missing, and there may be more.
    ``columns``: some of ``topic``, ``partition``, ``offset``, ``next_offset`` and ``payload``, in this order; what is
    not asked for costs nothing. ``batch_bytes``: what is read at once.

    Raises:
        MissingDependencyError: pyarrow is not installed.
        WrongPartitionError, TransportError: what the broker answers, or that it does not.
        ArgumentError: the path has no segments; a column, a number or a time cannot be one.
    """
    pyarrow_library()
    arguments.whole("batch_bytes", batch_bytes, 1, 2**30)
    found: Source
    if isinstance(source, str) and "/" not in source:
        found = BrokerTopic(source, broker, fetch_bytes=batch_bytes, timeout=timeout)
    else:
        found = SegmentFolders(source, window_bytes=batch_bytes)
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

    def __init__(self, source: Source, parts: Sequence[Part], columns: Sequence[str]) -> None:
        self._source = source
        self._columns = tuple(columns)
        self._topics = sorted({part.topic for part in parts})
        self.parts = tuple(parts)
        """What is read, in this order."""

    def __repr__(self) -> str:
        return f"<Scan of {self._source!r}: {len(self.parts)} parts, {self.log_bytes:,} bytes>"

    @property
    def log_bytes(self) -> int:
        """How much of the logs it reads."""
        return sum(part.end - part.start for part in self.parts)

    @property
    def schema(self) -> pyarrow.Schema:
        """The columns and their types."""
        return self._source.schema(self._columns, self._topics)

    def select(self, *columns: str) -> Scan:
        """The same with these columns alone."""
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
        """All of it as a table in memory."""
        return self.reader(progress=progress).read_all()

    def to_pandas(self, *, progress: bool = False) -> Any:
        """All of it as a ``pandas.DataFrame``."""
        return self.to_arrow(progress=progress).to_pandas()

    def to_polars(self, *, progress: bool = False) -> polars.DataFrame:
        """All of it as a ``polars.DataFrame``."""
        import polars

        found = polars.from_arrow(self.to_arrow(progress=progress))
        assert isinstance(found, polars.DataFrame)
        return found

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

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Arrow's interface between libraries: a new reader, each time."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def _shown(self) -> Iterator[pyarrow.RecordBatch]:
        advance, close = _progress_bar(self.log_bytes)
        try:
            for came, batch in self._source.batches(self.parts, self._columns, self._topics):
                advance(came)
                yield batch
        finally:
            close()


def _progress_bar(total: int) -> tuple[Callable[[int], object], Callable[[], object]]:
    """What moves a bar on, and what ends it; by whichever library is installed, and nothing where none is."""
    try:
        from tqdm.auto import tqdm

        bar = tqdm(total=total, unit="B", unit_scale=True)
        return bar.update, bar.close
    except ImportError:
        pass
    try:
        from rich.progress import Progress
    except ImportError:
        return lambda came: None, lambda: None
    shown = Progress(transient=True)
    task = shown.add_task("scanning", total=total)
    shown.start()
    return lambda came: shown.advance(task, came), shown.stop


def _milliseconds(name: str, time: Time) -> int | None:
    if isinstance(time, datetime):
        return int(time.timestamp() * 1000)
    if time is None or (isinstance(time, int) and not isinstance(time, bool) and time >= 0):
        return time
    raise ArgumentError(f"{name}: {time!r:.60} is neither a datetime nor ms since 1970")
