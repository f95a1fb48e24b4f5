"""Data frames over rows that are dictionaries, and so much of Spark's functions as the jobs say their conditions with.

For tests of which rows a condition takes, at its limits: no Java is started for them. Null is None, and as in SQL what
is compared with it is null; a frame keeps the rows for which a condition is true.
"""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import pytest

Row = dict[str, Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INTERVAL = re.compile(r"(?:INTERVAL )?(\d+) milliseconds")

_ADDED = re.compile(r"aggregate\((\w+), 0L, \(sum, event\) -> sum \+ event\.(\w+)\)")


def moment(seconds: float) -> datetime:
    """So long after 1970 began."""
    return EPOCH + timedelta(seconds=seconds)


def _known(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of a null something is null."""
    return lambda *values: None if None in values else function(*values)


def _all_of(one: bool | None, other: bool | None) -> bool | None:
    return False if False in (one, other) else None if None in (one, other) else True


class Column:
    """What is worked out of a row; ``many``: a list of values, for a row each."""

    def __init__(self, name: str, value: Callable[[Row], Any], many: bool = False) -> None:
        self.name = name
        self.value = value
        self.many = many

    def _with(self, other: Any, function: Callable[..., Any]) -> Column:
        right = other if isinstance(other, Column) else lit(other)
        return Column("", lambda row: function(self.value(row), right.value(row)))

    def __eq__(self, other: object) -> Column:  # type: ignore[override]
        return self._with(other, _known(lambda a, b: a == b))

    __hash__ = None  # type: ignore[assignment]

    def __le__(self, other: Any) -> Column:
        return self._with(other, _known(lambda a, b: a <= b))

    def __lt__(self, other: Any) -> Column:
        return self._with(other, _known(lambda a, b: a < b))

    def __ge__(self, other: Any) -> Column:
        return self._with(other, _known(lambda a, b: a >= b))

    def __gt__(self, other: Any) -> Column:
        return self._with(other, _known(lambda a, b: a > b))

    def __add__(self, other: Any) -> Column:
        return self._with(other, _known(lambda a, b: a + b))

    def __sub__(self, other: Any) -> Column:
        return self._with(other, _known(lambda a, b: a - b))

    def __and__(self, other: Any) -> Column:
        return self._with(other, _all_of)

    def __or__(self, other: Any) -> Column:
        return ~(~self & ~other)

    def __invert__(self) -> Column:
        return Column("", lambda row: _known(lambda value: not value)(self.value(row)))

    def isNull(self) -> Column:
        return Column("", lambda row: self.value(row) is None)

    def isNotNull(self) -> Column:
        return ~self.isNull()

    def isin(self, values: Sequence[Any]) -> Column:
        return Column("", lambda row: _known(lambda value: value in values)(self.value(row)))

    def alias(self, name: str) -> Column:
        return Column(name, self.value, self.many)

    def when(self, condition: Column, value: Any) -> Column:
        """Where none of the conditions before is true, and this one is."""
        assert isinstance(self, Case)
        return Case([*self.cases, (condition, value if isinstance(value, Column) else lit(value))])

    def otherwise(self, value: Any) -> Column:
        return self.when(lit(True), value)

    def cast(self, kind: str) -> Column:
        return self  # the rows have what an expression would give


class Case(Column):
    """The value of the first condition that is true, or null."""

    def __init__(self, cases: list[tuple[Column, Column]]) -> None:
        self.cases = cases
        super().__init__("", self._chosen)

    def _chosen(self, row: Row) -> Any:
        return next((value.value(row) for condition, value in self.cases if condition.value(row) is True), None)


def col(name: str) -> Column:
    """A column, or a field of one: ``window.start``."""
    first, *fields = name.split(".")

    def value(row: Row) -> Any:
        found = row[first]
        for item in fields:
            found = None if found is None else found[item]
        return found

    return Column(fields[-1] if fields else name, value)


def lit(value: Any) -> Column:
    """The same in each row."""
    return Column("", lambda row: value)


def expr(text: str) -> Column:
    """A span of time, the sum of what is in a list, or the name of a column."""
    found = _INTERVAL.fullmatch(text)
    added = _ADDED.fullmatch(text)
    if added is not None:
        return Column("", lambda row: builtins.sum(item[added[2]] for item in row[added[1]]))
    return col(text) if found is None else lit(timedelta(milliseconds=int(found[1])))


def timestamp_millis(column: Column) -> Column:
    """A time of so many ms since 1970."""
    return Column("", lambda row: _known(lambda ms: moment(ms / 1000))(column.value(row)))


def window(time: str, length: str, slide: str | None = None) -> Column:
    """The windows that a time is in: of a length, and one begins every so often, from 1970 on."""
    step = expr(slide or length).value({})
    long = expr(length).value({})

    def value(row: Row) -> list[Row]:
        at = row[time]
        start = EPOCH + (at - EPOCH) // step * step
        found = []
        while start + long > at:
            found.append({"start": start, "end": start + long})
            start -= step
        return found[::-1]

    return Column("window", value, many=True)


def length(name: str) -> Column:
    """How many bytes."""
    return Column("", lambda row: _known(len)(row[name]))


def coalesce(name: str, other: Column) -> Column:
    """The first that is not null."""
    return Column("", lambda row: other.value(row) if row[name] is None else row[name])


def when(condition: Column, value: Any) -> Case:
    """Null unless the condition is true, or one that follows."""
    return Case([(condition, value if isinstance(value, Column) else lit(value))])


def unix_millis(column: Column) -> Column:
    """The milliseconds of a time since 1970, rounded down."""
    return Column("", lambda row: _known(lambda at: (at - EPOCH) // timedelta(milliseconds=1))(column.value(row)))


def pmod(one: Column, other: Column) -> Column:
    """What is left of a division, never below 0."""
    return Column("", lambda row: _known(lambda a, b: a % b)(one.value(row), other.value(row)))


def collect_set(name: str) -> Column:
    """What there is in a group, each once, without nulls."""

    def value(group: Row) -> list[Any]:
        found: list[Any] = []
        for item in (row[name] for row in group["rows"]):
            if item is not None and item not in found:
                found.append(item)
        return found

    return Column("", value)


def size(name: str) -> Column:
    """How many items are in a list."""
    return Column("", lambda row: len(row[name]))


def max(column: Column) -> Column:
    """Of a group of rows."""
    return Column("max", lambda group: builtins.max(map(column.value, group["rows"]), default=None))


def timestamp_seconds(column: Column) -> Column:
    """A time of so many seconds since 1970."""
    return Column("", lambda row: _known(moment)(column.value(row)))


def unix_micros(column: str | Column) -> Column:
    """The microseconds of a time since 1970."""
    column = col(column) if isinstance(column, str) else column
    return Column("", lambda row: _known(lambda at: (at - EPOCH) // timedelta(microseconds=1))(column.value(row)))


def sum(column: str | Column) -> Column:
    """Of a group of rows, under the name of them all."""
    of = col(column) if isinstance(column, str) else column

    def value(group: Row) -> Any:
        found = [number for number in map(of.value, group["rows"]) if number is not None]
        return builtins.sum(found) if found else None

    return Column("", value)


def count(column: Column) -> Column:
    """How many rows of a group have it."""
    return Column("", lambda group: builtins.sum(column.value(row) is not None for row in group["rows"]))


def broadcast(frame: Frame) -> Frame:
    """The frame."""
    return frame


class _Row(Row):
    """A row that is handed out: its values by name or by number."""

    def __getitem__(self, key: str | int) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else [*self.values()][key]

    def asDict(self) -> Row:
        return dict(self)


class Frame:
    """Rows, of which each has the same columns."""

    def __init__(self, rows: Iterable[Row], columns: Sequence[str] = ()) -> None:
        self.rows = [dict(row) for row in rows]
        self.columns = list(self.rows[0] if self.rows else columns)
        self.delays: dict[str, str] = {}
        """By column, how late its times may be."""
        self.observed: dict[str, Row] = {}

    def _made(self, rows: Iterable[Row], columns: Sequence[str]) -> Self:
        made = type(self)(rows, columns)
        made.delays = dict(self.delays)
        made.observed = dict(self.observed)
        return made

    def observe(self, name: str, *columns: Column) -> Self:
        made = self._made(self.rows, self.columns)
        made.observed[name] = {column.name: column.value({"rows": self.rows}) for column in columns}
        return made

    def groupBy(self, *keys: str | Column) -> Group:
        rows = self.select("*", *(key for key in keys if isinstance(key, Column))).rows
        return Group(rows, [key if isinstance(key, str) else key.name for key in keys])

    def count(self) -> int:
        return len(self.rows)

    def persist(self) -> Self:
        return self

    def unpersist(self) -> Self:
        return self

    def collect(self) -> list[Any]:
        return [_Row(row) for row in self.rows]

    def toLocalIterator(self) -> Iterator[Any]:
        return iter(self.collect())

    def orderBy(self, *names: str) -> Self:
        return self._made(sorted(self.rows, key=lambda row: [row[name] for name in names]), self.columns)

    def distinct(self) -> Self:
        return self.dropDuplicates(self.columns)

    def dropDuplicates(self, names: list[str]) -> Self:
        first = {repr([row[name] for name in names]): row for row in reversed(self.rows)}
        return self._made(reversed(first.values()), self.columns)

    def agg(self, *columns: Column) -> Frame:
        return Frame([{column.name: column.value({"rows": self.rows}) for column in columns}])

    def where(self, condition: Column | str) -> Self:
        if isinstance(condition, str):
            name, _, kind = condition.partition(" ")
            condition = {"IS NULL": col(name).isNull(), "IS NOT NULL": col(name).isNotNull()}[kind]
        return self._made([row for row in self.rows if condition.value(row) is True], self.columns)

    def withColumn(self, name: str, column: Column) -> Self:
        return self._made([{**row, name: column.value(row)} for row in self.rows], [*self.columns, name])

    def select(self, *wanted: str | Column) -> Self:
        columns = self._listed(wanted)
        rows: list[Row] = []
        for row in self.rows:
            made: list[Row] = [{}]
            for column in columns:
                values = column.value(row) if column.many else [column.value(row)]
                made = [{**some, column.name: value} for some in made for value in values]
            rows += made
        return self._made(rows, [column.name for column in columns])

    def _listed(self, wanted: Sequence[str | Column]) -> list[Column]:
        found: list[Column] = []
        for item in wanted:
            if isinstance(item, Column):
                found.append(item)
            else:
                found += [col(name) for name in (self.columns if item == "*" else [item])]
        return found

    def drop(self, name: str) -> Self:
        return self.select(*(column for column in self.columns if column != name))

    def withColumnRenamed(self, old: str, new: str) -> Self:
        return self.select(*(col(name).alias(new if name == old else name) for name in self.columns))

    def withWatermark(self, name: str, delay: str) -> Self:
        made = self._made(self.rows, self.columns)
        made.delays[name] = delay
        return made

    def unionByName(self, other: Frame) -> Self:
        assert set(self.columns) == set(other.columns)
        return self._made([*self.rows, *other.rows], self.columns)

    def join(self, other: Frame, condition: Column, how: str) -> Self:
        assert not set(self.columns) & set(other.columns)
        rows: list[Row] = []
        for left in self.rows:
            found = [{**left, **right} for right in other.rows if condition.value({**left, **right}) is True]
            nobody = {**left, **dict.fromkeys(other.columns)}
            rows += found or ([nobody] if how == "left" else [])
        made = self._made(rows, [*self.columns, *other.columns])
        made.delays.update(other.delays)
        return made


class Group:
    """Rows by the values of keys."""

    def __init__(self, rows: list[Row], keys: list[str]) -> None:
        self._rows = rows
        self._keys = keys

    def count(self) -> Frame:
        return self.agg(count(lit(1)).alias("count"))

    def agg(self, *columns: Column) -> Frame:
        groups: dict[str, list[Row]] = {}
        for row in self._rows:
            groups.setdefault(repr([row[key] for key in self._keys]), []).append(row)
        made = [
            {**{key: rows[0][key] for key in self._keys}, **{item.name: item.value({"rows": rows}) for item in columns}}
            for rows in groups.values()
        ]
        return Frame(made, [*self._keys, *(item.name for item in columns)])


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what asks for Spark's functions get these."""
    pytest.importorskip("pyspark.sql.functions")
    monkeypatch.setattr("pyspark.sql.functions", sys.modules[__name__])
