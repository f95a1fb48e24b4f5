"""Three questions to an access log: asked of a table by Spark's SQL, and answered by plain Python from the lines.

``python -m scripts.demo_spark_ask TABLE`` prints Spark's answers as JSON.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

PATTERN = r'^(\S+) \S+ \S+ \[([^\]]+)\] "\S+ (\S+)[^"]*" (\d+) (\d*)'
_LINE = re.compile(PATTERN, re.ASCII)  # as in Java
_GROUPS = {"client": 1, "page": 3, "status": 4, "bytes": 5}
_PART = f"regexp_extract(decode(value, 'ISO-8859-1'), r'{PATTERN}', %d)"

COLUMNS = {name: _PART % group for name, group in _GROUPS.items()} | {
    "at": f"try_to_timestamp({_PART % 2}, 'dd/MMM/yyyy:HH:mm:ss Z')"
}
"""What the load job makes of each line. One that is not of an access log has empty columns."""

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
}
"""Of Spark, for little data: its programs are over before the best of Java's compilers has been worth its time."""

QUESTIONS = (
    "SELECT page, count(*) FROM access GROUP BY 1",
    "SELECT unix_timestamp(at) div 3600, count(*) FROM access WHERE status >= '400' GROUP BY 1",
    "SELECT client, sum(coalesce(try_cast(bytes AS bigint), 0)) FROM access GROUP BY 1",
)


class Answers(NamedTuple):
    """Hits of each page, failed requests by hour (since 1970, UTC; None: of no known time), bytes to each client."""

    pages: dict[str, int]
    errors: dict[int | None, int]
    sizes: dict[str, int]


def by_spark(table: Path) -> Answers:
    """Ask the table."""
    from fastlog.spark import session
    from fastlog.spark.lake import read_table

    spark = session("demo", settings=SETTINGS)
    read_table(spark, table).createOrReplaceTempView("access")
    return Answers(*({row[0]: row[1] for row in spark.sql(question).collect()} for question in QUESTIONS))


def by_python(lines: Iterable[bytes]) -> Answers:
    """Count line by line."""
    pages: Counter[str] = Counter()
    errors: Counter[int | None] = Counter()
    sizes: Counter[str] = Counter()
    for line in lines:
        found = _LINE.match(line.decode("latin-1"))
        client, at, page, status, size = found.groups() if found else ("",) * 5
        pages[page] += 1
        sizes[client] += int(size or 0)
        if status >= "400":
            errors[_hour(at)] += 1
    return Answers(pages, errors, sizes)


def _hour(text: str) -> int | None:
    try:
        return int(datetime.strptime(text, "%d/%b/%Y:%H:%M:%S %z").timestamp()) // 3600
    except ValueError:
        return None


def encode(answers: Answers) -> str:
    """As JSON, in which the keys keep their kinds."""
    return json.dumps([list(answer.items()) for answer in answers])


def decode(text: str) -> Answers:
    """What ``encode`` made."""
    return Answers(*(dict(map(tuple, items)) for items in json.loads(text)))


if __name__ == "__main__":
    print(encode(by_spark(Path(sys.argv[1]))))
