"""Some messages in memory, as a notebook shows them and as the libraries of data people take them."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fastlog.errors import MissingDependencyError

if TYPE_CHECKING:
    import polars
    import pyarrow  # type: ignore[import-untyped]

_SHOWN_ROWS = 20
_SHOWN_CHARACTERS = 60


class Rows:
    """What ``Scan.tail`` and ``Scan.sample`` give: a table that shows itself, and goes wherever Arrow goes."""

    def __init__(self, table: pyarrow.Table) -> None:
        self._table = table

    def __len__(self) -> int:
        """The number of messages."""
        return int(self._table.num_rows)

    def __repr__(self) -> str:
        head, rows = self._cells()
        widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
        return "\n".join([*(line.rstrip() for line in lines), *self._rest()])

    def _repr_html_(self) -> str:
        head, rows = self._cells()
        return html_table(head, rows) + "".join(f"<p>{html.escape(line)}</p>" for line in self._rest())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Arrow's interface between libraries."""
        return self._table.__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pyarrow.Table:
        """The messages as a ``pyarrow.Table``."""
        return self._table

    def to_pandas(self) -> Any:
        """As a ``pandas.DataFrame``. Raises ``MissingDependencyError`` where pandas is not installed."""
        return as_pandas(self._table)

    def to_polars(self) -> polars.DataFrame:
        """As a ``polars.DataFrame``. Raises ``MissingDependencyError`` where polars is not installed."""
        return as_polars(self._table)

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        rows = self._table.slice(0, _SHOWN_ROWS).to_pylist()
        return list(self._table.column_names), [[cell(value) for value in row.values()] for row in rows]

    def _rest(self) -> list[str]:
        left = len(self) - _SHOWN_ROWS
        return [f"… and {left:,} more"] if left > 0 else []


def as_pandas(table: pyarrow.Table) -> Any:
    """Convert a table to a ``pandas.DataFrame``. Raises ``MissingDependencyError``: pandas is not installed."""
    try:
        import pandas  # type: ignore[import-untyped]  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError("pandas is not installed: pip install pandas") from error
    return table.to_pandas()


def as_polars(table: pyarrow.Table) -> polars.DataFrame:
    """Convert a table to a ``polars.DataFrame``. Raises ``MissingDependencyError``: polars is not installed."""
    try:
        import polars
    except ImportError as error:
        raise MissingDependencyError("polars is not installed: pip install polars") from error
    found = polars.from_arrow(table)
    assert isinstance(found, polars.DataFrame)
    return found


def cell(value: object) -> str:
    """What a table shows of a value: one line, of a bounded length; bytes as text where they are text."""
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = repr(value)
        text = text if text.isprintable() else repr(text)
    elif isinstance(value, datetime):
        text = value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    elif isinstance(value, list):
        text = ", ".join(f"{header['key']}={cell(header['value'])}" for header in value)
    else:
        text = "" if value is None else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows of text as an HTML table; ``head`` has the names of the columns. Text is escaped."""
    names = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    lines = ("".join(f"<td>{html.escape(text)}</td>" for text in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"
