"""The demo of the pipeline: an access log through a compressed topic into a Delta table, with a kill on the way.

    publish    a producer sends the lines, compressed, to a topic of four partitions, and tells another how many
    load       the load job brings them into a table until its driver, its JVM and its workers are killed with SIGKILL
    load       the same command once more goes on where the table ends: each line is in it as often as it was sent
    ask        top pages, errors by hour and bytes by client, of the table by Spark and of the file by plain Python
    audit      the audit job holds what the producer counted against the topic and the table

Everything of Spark has processes of its own, as when a user starts it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from fastlog import Producer, SimpleConsumer
from fastlog.testing import RunningBroker
from perf import interrupts
from scripts import demo_spark_ask
from scripts.demo_command import Say, parser_of, show
from scripts.demo_spark_ask import Answers
from scripts.demo_text import CheckFailed, DemoFailed, Source, find_source

TOPIC, AUDITED = "access", "audit"
PARTITIONS = 4
BATCHES = 6
KILL_AT = 3
LEAST_LINES = 200_000
MADE_UP_LINES = 10_000
LOGS = ("/var/log/nginx/access.log", "/var/log/apache2/access.log", "/var/log/httpd/access_log")
SLICE_LINES = 50
WINDOW_MS = 200
SHOWN = 5
MOST_SHOWN = 60
STEP_SECONDS = 0.02
JOB_SECONDS = 600.0
GONE_SECONDS = 20.0
BATCH = re.compile(r"batch \d+: \d+ bytes")
"""What the load job says when it begins one."""

_CONF = [word for name, value in demo_spark_ask.SETTINGS.items() for word in ("--conf", f"{name}={value}")]


class Spark(NamedTuple):
    """How the demo has things done."""

    job: Callable[[str, Sequence[str]], Mapping[str, Any]]
    """Runs a job, by its name and arguments, for its summary."""
    killed_load: Callable[[Sequence[str]], int]
    """Runs the load until its batch ``KILL_AT`` has begun, and kills it there; how many processes it had."""
    ask: Callable[[Path], Answers]
    """Puts the questions to a table."""


def find_log(file: Path | None) -> Source:
    """The file that was asked for, else the access log of this machine or of the tests, else made up lines."""
    folder = os.environ.get("FASTLOG_TEST_DATA")
    candidates = [*([Path(folder) / "apache_access.log"] if folder else []), *map(Path, LOGS)]
    for candidate in candidates if file is None else []:
        if candidate.is_file() and os.access(candidate, os.R_OK) and candidate.stat().st_size:
            file = candidate
            break
    return Source("a made up access log", made_up) if file is None else find_source(file)


def made_up() -> Iterator[bytes]:
    """Lines of a site with a few pages that most ask for, and some requests that fail."""
    chance = random.Random(7)
    for number in range(MADE_UP_LINES):
        client = f"10.{number % 3}.0.{int(250 * chance.random() ** 3)}"
        page = f"/page/{int(400 * chance.random() ** 4)}"
        status = chance.choices((200, 304, 404, 500), (90, 5, 4, 1))[0]
        at = f"{17 + number * 4 // MADE_UP_LINES}/May/2015:{chance.randrange(24):02}:{chance.randrange(60):02}:00 +0000"
        size = chance.randint(100, 99_999) if status == 200 else "-"
        yield f'{client} - - [{at}] "GET {page} HTTP/1.1" {status} {size} "-" "Mozilla/5.0"'.encode()


def publish(lines: Sequence[bytes], passes: int, broker: RunningBroker) -> float:
    """Send all lines so often; returns the seconds until the broker has said of all that they are flushed.

    The last ones are sent a while later: for the audit, a window is over when a message of another one has come.
    """
    fields = {"compression": "gzip", "acks": "flushed", "producer_type": "async", "server": "web-1"}
    audited = {"audit_topic": AUDITED, "audit_window_ms": WINDOW_MS}
    slices = [list(lines[start : start + SLICE_LINES]) for start in range(0, len(lines), SLICE_LINES)] * passes
    pause = 2 * WINDOW_MS / 1000
    began = time.monotonic()
    with Producer(f"127.0.0.1:{broker.port}", **fields, **audited) as producer:
        for some in slices[:-1]:
            producer.send(TOPIC, some)
        time.sleep(pause)
        producer.send(TOPIC, slices[-1])
    return time.monotonic() - began - pause


def stored_bytes(broker: RunningBroker) -> int:
    """What the topic's partitions have in the log."""
    with SimpleConsumer("127.0.0.1", broker.port) as consumer:
        answer = consumer.metadata([TOPIC])
    assert answer is not None
    return sum(each.log_end for topic in answer.topics for each in topic.partitions)


# --- jobs ---


@contextlib.contextmanager
def _started(directory: Path, *command: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A module in a session of its own, and the file with what it says; it and all that it started end here."""
    said = directory / "spark.log"
    with said.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=directory,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(directory / "scratch")},
            start_new_session=True,
            preexec_fn=interrupts.die_with_parent,
        )
    try:
        yield process, said
    finally:
        kill_all(process)
        assert process.stdout is not None
        process.stdout.close()


def kill_all(process: subprocess.Popen[bytes]) -> int:
    """Kill -9 a job with its JVM and workers, which Spark puts into a group of their own; how many they were."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        found = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for one in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait(GONE_SECONDS)
    psutil.wait_procs(found, GONE_SECONDS)
    return len(found)


def _last_line(directory: Path, *command: str) -> str:
    with _started(directory, *command) as (process, said):
        try:
            output, _ = process.communicate(timeout=JOB_SECONDS)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"{command[0]} did not end within {JOB_SECONDS:g} s") from None
        if process.returncode != 0:
            raise DemoFailed(f"{command[0]} ended with {process.returncode}: {_end_of(said)}")
        return output.decode().splitlines()[-1]


def _end_of(said: Path) -> str:
    # An error's own line stands at the margin, its reasons do not.
    lines = [line for line in said.read_text(errors="replace").splitlines() if line.strip() and not line[0].isspace()]
    return lines[-1] if lines else "it said nothing"


def by_themselves(directory: Path) -> Spark:
    """Each job and the questions in a process of its own, as a user starts them."""

    def job(name: str, given: Sequence[str]) -> Mapping[str, Any]:
        summary: dict[str, Any] = json.loads(_last_line(directory, f"fastlog.spark.jobs.{name}", *given, *_CONF))
        return summary

    def ask(table: Path) -> Answers:
        return demo_spark_ask.decode(_last_line(directory, "scripts.demo_spark_ask", str(table)))

    return Spark(job, lambda given: _killed_load(directory, given), ask)


def _killed_load(directory: Path, given: Sequence[str]) -> int:
    with _started(directory, "fastlog.spark.jobs.load", *given, *_CONF) as (process, said):
        deadline = time.monotonic() + JOB_SECONDS
        while len(BATCH.findall(said.read_text(errors="replace"))) < KILL_AT:
            if process.poll() is not None:
                raise DemoFailed(f"the load ended before it could be killed: {_end_of(said)}")
            if time.monotonic() > deadline:
                raise DemoFailed(f"the load did not come to batch {KILL_AT} within {JOB_SECONDS:g} s")
            time.sleep(STEP_SECONDS)
        return kill_all(process)


# --- the check ---


def rows_in(table: Path) -> Counter[bytes]:
    """How often each line is in the table, as delta-rs and pyarrow read it."""
    from deltalake import DeltaTable

    found: Counter[bytes] = Counter()
    for batch in DeltaTable(str(table)).to_pyarrow_dataset().to_batches(columns=["value"]):
        found.update(batch.column("value").to_pylist())
    return found


def check_rows(found: Counter[bytes], sent: Counter[bytes]) -> int:
    """The number of rows; raises ``CheckFailed`` unless each line is there as often as it was sent."""
    missing, extra = sent - found, found - sent
    if missing or extra:
        example = next(iter(missing or extra))
        raise CheckFailed(f"{missing.total()} rows are missing, {extra.total()} too many, such as {example[:60]!r}")
    return found.total()


def check_answers(found: Answers, expected: Answers) -> None:
    """Raises ``CheckFailed`` with the first answer that is not plain Python's."""
    for name, one, other in zip(Answers._fields, found, expected, strict=True):
        different = [key for key in {**one, **other} if one.get(key) != other.get(key)]
        if different:
            key = different[0]
            raise CheckFailed(f"{name}: {key!r} is {one.get(key)} in the table, and {other.get(key)} in the file")


def tables(found: Answers, expected: Answers) -> Iterator[str]:
    """The first of each answer, beside those of plain Python."""
    for title, mine, theirs, text in (
        ("page", found.pages, expected.pages, str),
        ("hour with most errors", found.errors, expected.errors, _hour_text),
        ("client", found.sizes, expected.sizes, str),
    ):
        unit = "bytes" if title == "client" else "hits" if title == "page" else "errors"
        yield f"{title:{MOST_SHOWN}}{unit + ', Spark':>16}{'Python':>16}"
        for key in sorted(mine, key=lambda key: (-mine[key], str(key)))[:SHOWN]:
            yield f"{text(key)[: MOST_SHOWN - 1]:{MOST_SHOWN}}{mine[key]:16,}{theirs[key]:16,}"


def _hour_text(hour: int | None) -> str:
    return "of no known time" if hour is None else f"{datetime.fromtimestamp(hour * 3600, UTC):%Y-%m-%d %H:00}"


def run(file: Path | None, least: int, directory: Path, say: Say, spark: Spark | None = None) -> None:
    """Run the demo in an empty directory; returns when every promise was kept, raises ``DemoFailed`` otherwise."""
    spark = spark or by_themselves(directory)
    source = find_log(file)
    lines = list(source.lines())
    if not lines:
        raise DemoFailed(f"{source.name} has no lines")
    passes = -(-least // len(lines))
    size = sum(map(len, lines)) * passes
    count = len(lines) * passes
    times = f", {passes} times" if passes > 1 else ""
    say(f"text       {count:,} lines, {size / 1e6:.1f} MB: {source.name}{times}")
    expected = demo_spark_ask.by_python(lines)
    expected = Answers(*({key: number * passes for key, number in answer.items()} for answer in expected))
    table = directory / "table"
    with RunningBroker(directory=directory / "broker", settings={"num.partitions": PARTITIONS}) as broker:
        seconds = publish(lines, passes, broker)
        stored = stored_bytes(broker)
        rate = f"{count / seconds:,.0f} lines/s"
        say(f"published  {seconds:.2f} s: {rate}; gzip makes {stored / 1e6:.1f} MB of it, in {PARTITIONS} partitions")
        shared = ["--brokers", f"127.0.0.1:{broker.port}", "--topic", TOPIC, "-o", "envelope=true"]
        given = [*shared, "--table", str(table), "--max-bytes", str(max(1, stored // BATCHES))]
        for name, text in demo_spark_ask.COLUMNS.items():
            given += ["--column", f"{name}={text}"]
        processes = spark.killed_load(given)
        had = rows_in(table).total()
        if not 0 < had < count:
            raise DemoFailed(f"the table had {had} of {count} rows at the kill: this run shows nothing")
        what = f"the load, {processes} processes, with kill -9 in its batch {KILL_AT}"
        say(f"killed     {what}; the table had {had:,} rows")
        done = spark.job("load", given)
        say(f"loaded     by a second run: {done['rows']:,} rows in {done['batches']} batches, {done['seconds']:.1f} s")
        rows = check_rows(rows_in(table), Counter({line: n * passes for line, n in Counter(lines).items()}))
        say(f"checked    {rows:,} rows: none is missing, none is there twice")
        answers = spark.ask(table)
        for line in tables(answers, expected):
            say(line)
        check_answers(answers, expected)
        kinds = f"{len(answers.pages):,} pages, {len(answers.errors):,} hours, {len(answers.sizes):,} clients"
        say(f"answered   by Spark from the table as by plain Python from the file: {kinds}")
        audit = spark.job("audit", [*shared, "--events", AUDITED, "--late", "0s", "--loaded", str(table)])
        if "OK" not in audit["windows"] or not audit["windows"].keys() <= {"OK", "OPEN"}:
            raise CheckFailed(f"the audit found {audit['windows']}")
        windows = f"{audit['windows']['OK']} windows of {WINDOW_MS} ms, all but the one that may still grow"
        say(f"audited    {windows}: what was sent is in the topic and in the table")


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; 0, or 1 with one line on stderr."""
    parser = parser_of(
        "demo-spark",
        "A log into a table, under kill -9.",
        "an access log; by default this machine's, or a made up one",
    )
    parser.add_argument("--lines", type=int, default=LEAST_LINES, help="repeat it to so many (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    return show("demo-spark", lambda directory, say: run(chosen.file, chosen.lines, directory, say))


if __name__ == "__main__":
    sys.exit(main())
