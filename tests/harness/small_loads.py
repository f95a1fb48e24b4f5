"""Whole loads in one process, with a fake broker and no Java: what runs their tasks, and messages to load."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from deltalake import DeltaTable

from fastlog._segment import pack
from fastlog.envelope import Envelope, wrap
from fastlog.spark.jobs.loader import Loader, LoadOptions
from fastlog.spark.lake import Lake
from fastlog.spark.storage import TableLocation
from tests.harness.fake_broker import FakeBroker

DAY_MS = 86_400_000
TIME_MS = 1_700_000_000_000


class Context:
    """Runs tasks here; ``before`` and ``after`` are called with the number of each run and may raise; ``times``
    says how often each task runs: Spark lets slow ones run twice."""

    def __init__(self) -> None:
        self.runs = 0
        self.times = 1
        self.tasks: list[Any] = []
        self.before: Callable[[int], object] = lambda run: None
        self.after: Callable[[int], object] = lambda run: None

    def parallelize(self, tasks: Any, count: int) -> Any:
        assert count == len(tasks)

        def collect(work: Callable[[Any], Any]) -> Any:
            self.runs += 1
            self.before(self.runs)
            self.tasks += tasks
            found = [[work(task) for _ in range(self.times)][-1] for task in tasks]
            self.after(self.runs)
            return found

        return SimpleNamespace(map=lambda work: SimpleNamespace(collect=lambda: collect(work)))


def payloads(first: int, count: int) -> list[bytes]:
    """Messages of two days in turn."""
    return [
        wrap(b"message %d" % number, Envelope(TIME_MS + number % 2 * DAY_MS, 5))
        for number in range(first, first + count)
    ]


def put(broker: FakeBroker, first: int, count: int, partition: int = 0) -> int:
    """Append messages; returns where the log ends now."""
    log = broker.logs.get(("t", partition), b"") + bytes(pack(payloads(first, count)))
    broker.logs["t", partition] = log
    return len(log)


def load_options(broker: FakeBroker, **fields: Any) -> LoadOptions:
    source = {"brokers": f"127.0.0.1:{broker.port}", "subscribe": "t", "envelope": "true"}
    source |= fields.pop("source", {})
    given = {"starting": {"startingOffsets": "earliest"}, "shown": False, **fields}
    return LoadOptions(source=source, **given)


def expected(*parts: tuple[int, int]) -> list[bytes]:
    return [b"message %d" % number for first, count in parts for number in range(first, first + count)]


def loader_of(table: TableLocation, broker: FakeBroker, context: Context | None = None, **fields: Any) -> Loader:
    spark: Any = SimpleNamespace(context=context or Context(), has_ended=False)
    return Loader(Lake(table), load_options(broker, **fields), spark)


def values_in(table: TableLocation) -> list[bytes]:
    """What a reader of the table finds, sorted."""
    rows = DeltaTable(table.text, storage_options=table.given_options).to_pyarrow_table()
    found = zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), rows["value"].to_pylist(), strict=True)
    return [value for _, _, value in sorted(found)]
