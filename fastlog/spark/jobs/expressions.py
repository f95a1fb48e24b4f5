"""What a user's expressions make of messages, in Spark's SQL: the rows of a table, and what they cannot take."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fastlog.consumer.partitions import TopicPartition
from fastlog.spark import offsets
from fastlog.spark.jobs import command
from fastlog.spark.offsets import OffsetRange

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]
    from pyspark.sql import Column, DataFrame, SparkSession

REASON = "reason"
_DAY_US = 24 * 3600 * 1_000_000
_TRIED = "__fastlog_"
"""Begins the names of columns that are no rows' of a table."""
_TIME = f"{_TRIED}time"
_SHARED = "spark.sql.subexpressionElimination.enabled"
_MOST_EXPLAINED = 100
"""Of a batch: each takes Spark some hundredths of a second."""


@dataclass(frozen=True)
class Expressions:
    """Those of a load. ``kept`` are the columns of the source that a table has beside its topic and date."""

    time: str | None
    columns: Mapping[str, str]
    kept: Sequence[str]

    def rows(self, frame: DataFrame, now: datetime) -> DataFrame:
        """Rows of a table; an error of an expression is one of the frame."""
        from pyspark.sql import functions as f

        if self.time is not None:
            frame = frame.withColumn("timestamp", f.expr(self.time).cast("timestamp"))
        extra = [f.expr(text).alias(name) for name, text in self.columns.items()]
        return frame.select("topic", _date(now).alias("date"), *self.kept, *extra)

    @property
    def computed(self) -> tuple[str, ...]:
        """The columns of ``of_offsets`` behind the offset."""
        return (*(() if self.time is None else ("timestamp",)), *self.columns)

    def of_offsets(self, frame: DataFrame) -> DataFrame:
        """The offset of each message, and what expressions give."""
        from pyspark.sql import functions as f

        if self.time is not None:
            frame = frame.withColumn("timestamp", f.expr(self.time).cast("timestamp"))
        named = {name: f.col(name) if name == "timestamp" else f.expr(self.columns[name]) for name in self.computed}
        return frame.select("offset", *(column.alias(name) for name, column in named.items()))

    def needed(self, frame: DataFrame) -> tuple[str, ...] | None:
        """The columns of the source, but for the offset, that expressions name. None: they do not give one row for each
        message by itself, such as ``explode`` or a window."""
        plan: Any = self.of_offsets(frame)._jdf.queryExecution().analyzed()
        used = {item.exprId().id() for item in _items(plan.output())}
        while plan.nodeName() == "Project":
            made = [item for item in _items(plan.projectList()) if item.exprId().id() in used]
            used = {one.exprId().id() for item in made for one in _items(item.references().toSeq())}
            plan = plan.child()
        if plan.children().nonEmpty():
            return None
        there = [item.name() for item in _items(plan.output()) if item.exprId().id() in used]
        return tuple(name for name in there if name != "offset")

    @contextlib.contextmanager
    def parted(self, frame: DataFrame, now: datetime) -> Iterator[tuple[DataFrame, DataFrame]]:
        """Rows of a table, and the messages of which an expression fails, with what the source says of them; each
        message is in one of the two. What ``refused`` takes is the second."""
        from pyspark import StorageLevel
        from pyspark.sql import functions as f

        tried = [column for name, _, column in self._named if name != "timestamp"]
        known = frame.withColumn(f"{_TRIED}timestamp", f.col("timestamp"))
        if self.time is not None:
            known = known.withColumn(_TIME, _tried(f.expr(self.time).cast("timestamp")))
            known = known.withColumn("timestamp", f.col(_TIME)["v"])
        both = known.select(
            "*", *(_tried(f.expr(text)).alias(name) for name, text in zip(tried, self.columns.values(), strict=True))
        )
        good = f.lit(True)
        for _, _, name in self._named:
            good = good & f.col(name).isNotNull()
        session = frame.sparkSession
        # What two expressions share is worked out before both of them otherwise, where nobody looks after its errors.
        with _set(session, _SHARED, "false"):
            both = both.persist(StorageLevel.DISK_ONLY)  # once: the two are the same messages whatever an expression is
            try:
                extra = [f.col(name)["v"].alias(column) for name, column in zip(tried, self.columns, strict=True)]
                rows = both.where(good).select("topic", _date(now).alias("date"), *self.kept, *extra)
                yield rows, both.where(~good)
            finally:
                both.unpersist()

    def refused(self, session: SparkSession, rows: pyarrow.Table) -> pyarrow.Table:
        """The messages of rows of the second as the source has them, each with the reason."""
        import pyarrow as pa

        plain = rows.select([name for name in rows.column_names if not name.startswith(_TRIED) and name != "timestamp"])
        times = rows[f"{_TRIED}timestamp"]
        failed = {name: rows[column].is_null().to_pylist() for name, _, column in self._named}
        reasons = []
        for number in range(rows.num_rows):
            found = []
            for name, text, _ in self._named:
                if failed[name][number] and number < _MOST_EXPLAINED:
                    time = times if name == "timestamp" or self.time is None else rows["timestamp"]
                    message = plain.slice(number, 1).append_column("timestamp", time.slice(number, 1))
                    found.append(f"{name}: {_why(session, message, text, is_time=name == 'timestamp')}")
                elif failed[name][number]:
                    found.append(f"{name}: fails as in others of this batch")
            reasons.append("; ".join(found))
        kept = plain.append_column("timestamp", times).select(["topic", *self.kept])
        return kept.append_column(REASON, pa.array(reasons, pa.string()))

    @property
    def _named(self) -> list[tuple[str, str, str]]:
        """The name, the text, and the column that ``parted`` has, of each expression."""
        time = [] if self.time is None else [("timestamp", self.time, _TIME)]
        return time + [(name, text, f"{_TRIED}{number}") for number, (name, text) in enumerate(self.columns.items())]


def _items(sequence: Any) -> list[Any]:
    """The items of a Scala sequence."""
    return [sequence.apply(number) for number in range(sequence.length())]


def _why(session: SparkSession, message: pyarrow.Table, text: str, *, is_time: bool) -> str:
    """What Spark says of an expression on a table of one message."""
    import pyarrow as pa
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_type

    values = []
    for item in message.schema:
        value = message[item.name][0]
        if pa.types.is_nested(item.type):
            literal = f.lit(None).cast(
                from_arrow_type(item.type, prefer_timestamp_ntz=True)
            )  # headers: Spark has no literals of these
        elif pa.types.is_timestamp(item.type):
            literal = f.timestamp_micros(f.lit(value.cast(pa.int64()).as_py()))
        else:
            literal = f.lit(value.as_py()).cast(from_arrow_type(item.type, prefer_timestamp_ntz=True))
        values.append(literal.alias(item.name))
    asked = f.expr(text).cast("timestamp") if is_time else f.expr(text)
    try:
        session.sql("SELECT 1").select(*values).select(asked).collect()
    except Exception as error:
        return command.told(error)
    return "it failed, and did not when it was tried again"


def source_frame(
    session: SparkSession, source: Mapping[str, str], ranges: Mapping[TopicPartition, OffsetRange]
) -> DataFrame:
    """The messages of ranges; of no ranges, a frame that is asked for its columns alone."""
    given = dict(source)
    if ranges:
        given = {name: value for name, value in source.items() if not name.lower().startswith("subscribe")}
        topics = offsets.encode_ranges(ranges)["topics"]
        starts = {topic: {name: start for name, (start, _) in items.items()} for topic, items in topics.items()}
        ends = {topic: {name: end for name, (_, end) in items.items()} for topic, items in topics.items()}
        given |= {
            "assign": json.dumps({topic: list(items) for topic, items in topics.items()}),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
            "failOnDataLoss": "true",  # what is lost is for the driver to find, and to write down
        }
    return session.read.format("fastlog").options(**given).load()


def _date(now: datetime) -> Column:
    """The day of ``timestamp`` in UTC, whatever time zone the session has: a table has one idea of what a day is."""
    from pyspark.sql import functions as f

    from fastlog.spark.row_files import FIRST_DAY, LAST_DAY

    days = f.floor(f.unix_micros(f.col("timestamp")) / _DAY_US).cast("int")
    named = f.when(days.between(FIRST_DAY, LAST_DAY), f.date_from_unix_date(days))
    found: Column = f.coalesce(named, f.lit(now.date()))
    return found


def _tried(column: Column) -> Column:
    """A struct with the value of an expression as ``v``; null where the expression fails, whatever it gives elsewhere.

    By what Spark's own ``try_`` functions are made of, which has no name in SQL.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.classic.column import Column as Classic
    from pyspark.sql.utils import get_active_spark_context

    of_java: Any = f.struct(column.alias("v"))
    jvm: Any = get_active_spark_context()._jvm
    utils = jvm.org.apache.spark.sql.classic.ExpressionUtils
    tried = jvm.org.apache.spark.sql.catalyst.expressions.TryEval(utils.expression(of_java._jc))
    made: Column = Classic(utils.column(tried))
    return made


@contextlib.contextmanager
def _set(session: SparkSession, name: str, value: str) -> Iterator[None]:
    """A setting of Spark's SQL, for a while."""
    before = session.conf.get(name, None)
    session.conf.set(name, value)
    try:
        yield
    finally:
        session.conf.unset(name) if before is None else session.conf.set(name, before)
