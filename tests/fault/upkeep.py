"""Tables are loaded, their files joined, old days let go and unused files removed, all at once, and whoever does it is
killed at random moments: each message of a day that stays is in the table once, whatever became of it.

A Delta table in a directory and an Iceberg table of a catalog in a file, of the same topic. No Java: tasks run in the
process of the load.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from fastlog.envelope import Envelope, wrap
from fastlog.message import encode_set
from fastlog.spark.iceberg import AnyLake, IcebergLake, opened
from fastlog.spark.upkeep import JoinOptions, expire, join_files
from tests.fault.programs import ROOT, environment
from tests.fault.registry import Outcome, scenario
from tests.fault.upkeep_program import loader_of
from tests.harness.broker import Broker, die_with_parent, wait_until
from tests.harness.small_loads import DAY_MS, TIME_MS

PARTITIONS = 2
BEFORE = date(2023, 11, 15)
"""Messages are of this day and of the one before in turn."""
CATALOG = "upkeep"
ICEBERG = f"iceberg:{CATALOG}/lake.logs"
LONG_AGO_SECONDS = 2 * 3600
"""What is so old is removed by a vacuum; the shortest time to keep is an hour."""
_WITHIN = 120.0


class Worker:
    """A process that does one thing with one table again and again."""

    def __init__(self, job: str, table: str, directory: Path, port: int) -> None:
        self.job, self._table = job, table
        self._log = directory / f"{job}-{'iceberg' if table == ICEBERG else 'delta'}.log"
        self._told = json.dumps({"job": job, "table": table, "port": port, "before": BEFORE.isoformat()})
        self._process: subprocess.Popen[bytes] | None = None
        self._start = 0

    def start(self) -> None:
        self._start = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fault.upkeep_program", self._told],
                env=environment(),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )

    def wait_begun(self) -> None:
        wait_until(f"{self.job} of {self._table} begins", lambda: "begun" in self._said(self._start), _WITHIN)

    def wait_done(self) -> None:
        """Returns once it has done something, in this life or in one before."""
        assert self._process is not None
        wait_until(f"{self.job} of {self._table} does something", lambda: "done: " in self._said(), _WITHIN)

    def kill(self) -> None:
        if self._process is not None:
            assert self._process.poll() is None, f"{self.job} has ended:\n{self._said(self._start)[-4000:]}"
            self._process.kill()
            self._process.wait()
            self._process = None

    def _said(self, start: int = 0) -> str:
        with self._log.open("rb") as log:
            log.seek(start)
            return log.read().decode(errors="replace")


@contextlib.contextmanager
def _catalog(directory: Path) -> Iterator[None]:
    """In the environment, as the processes find it; this one has read its own before."""
    import pyiceberg.catalog
    from pyiceberg.utils.config import Config

    known = pyiceberg.catalog._ENV_CONFIG
    names = {
        f"PYICEBERG_CATALOG__{CATALOG.upper()}__URI": f"sqlite:///{directory}/catalog.db",
        f"PYICEBERG_CATALOG__{CATALOG.upper()}__WAREHOUSE": f"file://{directory}/warehouse",
    }
    os.environ.update(names)
    pyiceberg.catalog._ENV_CONFIG = Config()
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]
        pyiceberg.catalog._ENV_CONFIG = known


def _send(broker: Broker, first: int, count: int) -> None:
    with broker.connect() as client:
        for number in range(first, first + count):
            time_ms = TIME_MS + number % 2 * DAY_MS
            message = wrap(b"%d" % number, Envelope(time_ms, 5))
            client.produce_ack("t", number // 2 % PARTITIONS, encode_set([message]), acks=2)


def _rows(lake: AnyLake) -> Counter[tuple[int, str]]:
    """The numbers in a table, with their days."""
    if isinstance(lake, IcebergLake):
        from pyiceberg.catalog import load_catalog

        rows = load_catalog(CATALOG).load_table("lake.logs").scan().to_arrow()
    else:
        from deltalake import DeltaTable

        rows = DeltaTable(str(lake.directory)).to_pyarrow_table()
    return Counter(zip(map(int, rows["value"].to_pylist()), map(str, rows["date"].to_pylist()), strict=True))


def _unused(lake: AnyLake) -> set[Path]:
    """Files with rows that are no part of a table; nobody works on it."""
    there = {lake.location.directory / file.path for file in lake.files()}
    return {path for path in lake.location.directory.glob("topic=*/date=*/*.parquet") if path not in there}


@scenario(
    "table-upkeep",
    "kill -9 of those who load tables, join their files, let days go and remove files",
    small=6,
    nightly=60,
    release=600,
)
def table_upkeep(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` kills. Now and then all of them at once: what they have left is made old, for the next vacuum."""
    outcome = Outcome()
    source = random.Random(seed)
    with ExitStack() as stack:
        stack.enter_context(_catalog(directory))
        broker = stack.enter_context(Broker(directory / "broker", settings={"num.partitions": PARTITIONS}))
        delta = str(directory / "table")
        jobs = [(job, table) for table in (delta, ICEBERG) for job in ("load", "optimize", "expire")]
        workers = [Worker(job, table, directory, broker.port) for job, table in [*jobs, ("vacuum", delta)]]
        sent = 40
        _send(broker, 0, sent)
        try:
            for worker in workers:
                worker.start()
            for number in range(count):
                for worker in workers:
                    worker.wait_begun()
                _send(broker, sent, 20)
                sent += 20
                time.sleep(source.uniform(0, 1))
                together = number % 5 == 4
                killed = workers if together else [source.choice(workers)]
                for worker in killed:
                    worker.kill()
                outcome.runs += len(killed)
                if together:
                    _age(opened(delta))
                for worker in killed:
                    worker.start()
            for worker in workers:
                if worker.job != "vacuum":
                    worker.wait_done()
        finally:
            for worker in workers:
                worker.kill()
        days = {n: str(BEFORE) for n in range(sent) if n % 2}
        for table in (delta, ICEBERG):
            lake = opened(table)
            loader_of(lake, broker.port).run()
            expire(lake, BEFORE)
            join_files(lake, JoinOptions())
            found, wanted = _rows(lake), Counter(days.items())
            missing, extra = wanted - found, found - wanted
            outcome.expect(
                not missing and not extra,
                f"{table}: {missing.total()} missing, {extra.total()} too many, such as {[*missing, *extra][:5]}",
            )
            numbers = Counter(_numbers(lake))
            outcome.expect(max(numbers.values()) == 1, f"{table}: batches are there twice: {numbers.most_common(3)}")
        lake = opened(delta)
        _age(lake)
        lake.vacuum(1, dry_run=False)
        kept = _unused(lake) - _removed_lately(lake)
        outcome.expect(
            not kept, f"a vacuum left {len(kept)} files that are part of no version, such as {min(kept, default='')}"
        )
        outcome.expect(_rows(lake) == Counter(days.items()), "a vacuum took rows away")
    return outcome


def _numbers(lake: AnyLake) -> list[Any]:
    """Of the batches that loads have brought."""
    return [notes["batch"] for _, notes in lake.history() if notes.get("job") == "load" and "batch" in notes]


def _age(lake: AnyLake) -> None:
    """Make files old that nobody is at work on."""
    then = time.time() - LONG_AGO_SECONDS
    for path in _unused(lake) if lake.exists else ():
        os.utime(path, (then, then))


def _removed_lately(lake: AnyLake) -> set[Path]:
    """Those that a version of the table has had: who reads it may read on."""
    log = sorted(lake.location.directory.glob("_delta_log/*.json"))
    actions = [json.loads(line) for path in log for line in path.read_text().splitlines()]
    return {lake.location.directory / unquote(action["remove"]["path"]) for action in actions if "remove" in action}
