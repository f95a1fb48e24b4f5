"""An access log goes through producers into a compressed topic and a table, which answers as the file itself does."""

from __future__ import annotations

import importlib.util
import re
import runpy
import sys
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fastlog import Producer
from tests.harness.broker import ROOT, Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

LINES = 2000
LINE = re.compile(r'^(\S+) \S+ \S+ \[([^\]]+)\] "\S+ (\S+)[^"]*" (\d+) (\d*)')


def test_the_table_answers_as_the_file_does(
    spark: SparkSession,
    broker: Broker,
    topic: str,
    tmp_path: Path,
    data_lines: tuple[bytes, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The example as a user runs it; then three questions to the table through Arrow, and through polars."""
    data_lines = data_lines[:: max(1, len(data_lines) // LINES)]
    import duckdb
    import polars
    from deltalake import DeltaTable

    with Producer(f"127.0.0.1:{broker.port}", compression="gzip", producer_type="async") as producer:
        for start in range(0, len(data_lines), 100):
            producer.send(topic, data_lines[start : start + 100])
    sizes = sum(len(broker.stored_bytes(topic, number)) for number in range(4) if broker.has_directory(topic, number))
    assert sizes < sum(map(len, data_lines)) / 2, "it is compressed"
    table = str(tmp_path / "access")
    monkeypatch.setattr(sys, "argv", ["access_log.py", f"127.0.0.1:{broker.port}", topic, table])
    runpy.run_path(str(ROOT / "examples" / "access_log.py"))

    pages, errors, sizes_by_client = expected(data_lines)
    shown = capsys.readouterr().out
    top, hits = min(pages.items(), key=lambda item: (-item[1], item[0]))
    assert re.search(rf"\|\s*{re.escape(top[:50])}\S*\s*\|\s*{hits}\|", shown), shown
    assert f"'rows': {len(data_lines)}" in shown

    dataset = DeltaTable(table).to_pyarrow_dataset()
    assert dataset.count_rows() == len(data_lines)
    with closing(duckdb.connect()) as connection:
        ask = connection.sql
        assert dict(ask("SELECT page, count(*) FROM dataset GROUP BY page").fetchall()) == pages
        by_hour = "SELECT epoch_ms(timestamp) // 3600000, count(*) FROM dataset WHERE status >= '400' GROUP BY 1"
        assert dict(ask(by_hour).fetchall()) == errors
        by_client = "SELECT client, sum(coalesce(try_cast(bytes AS bigint), 0)) FROM dataset GROUP BY client"
        assert dict(ask(by_client).fetchall()) == sizes_by_client
    frame = polars.read_delta(table)
    assert dict(frame.group_by("page").len().rows()) == pages
    if importlib.util.find_spec("pandas") is not None:
        by_pandas = DeltaTable(table).to_pandas()
        assert dict(by_pandas.groupby("page").size()) == pages
        assert list(by_pandas["value"]) == [row["value"] for row in dataset.to_table(columns=["value"]).to_pylist()]
    days = {moment.astimezone(UTC).date() for moment in times(data_lines)}
    assert set(frame["date"].unique().to_list()) - {datetime.now(UTC).date()} == days


def expected(lines: tuple[bytes, ...]) -> tuple[Counter[str], Counter[int], Counter[str]]:
    """The three answers, counted line by line. A line that is none of a log has empty columns."""
    pages: Counter[str] = Counter()
    errors: Counter[int] = Counter()
    sizes: Counter[str] = Counter()
    for line in lines:
        found = LINE.match(line.decode("latin-1"))
        client, at, page, status, size = found.groups() if found else ("", "", "", "", "")
        pages[page] += 1
        sizes[client] += int(size or 0)
        if status >= "400":
            errors[int(parsed(at).timestamp()) // 3600] += 1
    return pages, errors, sizes


def times(lines: tuple[bytes, ...]) -> list[datetime]:
    return [parsed(found[2]) for found in (LINE.match(line.decode("latin-1")) for line in lines) if found]


def parsed(text: str) -> datetime:
    return datetime.strptime(text, "%d/%b/%Y:%H:%M:%S %z")
