"""Jobs whose tables are in an object store: with Spark's SQL, with state, and as what other jobs read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

from fastlog.errors import ConfigError
from tests.harness.broker import Broker
from tests.harness.lake import run_job
from tests.harness.object_store import SECRET, ObjectStore, open_object_store
from tests.harness.spark_jobs import produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

TIME = "timestamp_seconds(1431820800 + cast(cast(value as string) as bigint))"


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with open_object_store() as made:
        yield made


@pytest.fixture
def run(spark: SparkSession, broker: Broker, store: ObjectStore) -> Callable[..., dict[str, Any]]:
    """Runs a job with the broker and the store."""

    def runs(name: str, topic: str, *more: object) -> dict[str, Any]:
        given = ["--brokers", f"127.0.0.1:{broker.port}", "--topic", topic, "--no-progress", *store.arguments]
        found = run_job(name, *given, *more)
        assert SECRET not in json.dumps(found)
        return found

    return runs


def rows_of(store: ObjectStore, name: str) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    rows: list[dict[str, Any]] = (
        DeltaTable(store.url(name), storage_options=store.options).to_pyarrow_table().to_pylist()
    )
    return rows


def test_a_load_with_columns_of_its_own_and_again(
    run: Callable[..., dict[str, Any]], store: ObjectStore, broker: Broker, topic: str
) -> None:
    """Rows go through Spark's SQL, and those of the table through Spark where some of a file stay; what an expression
    cannot take goes to a table in the store as well; a request of each kind fails once."""
    produce(broker, topic, 0, 0, 200)
    url = store.url(topic)
    store.fail("PUT", r"\.parquet", "cut")
    store.fail("PUT", r"_delta_log/0*2\.json", "lose")
    summary = run(
        "load", topic, "--table", url, "--time", TIME, "--column", "twice=2 * cast(cast(value as string) as int)"
    )
    assert len(store.done()) == 2
    assert (summary["table"], summary["rows"]) == (url, 200)
    assert sorted((int(row["value"]), row["twice"]) for row in rows_of(store, topic)) == [
        (n, 2 * n) for n in range(200)
    ]
    assert {str(row["date"]) for row in rows_of(store, topic)} == {"2015-05-17"}
    number = "cast(cast(value as string) as int)"
    tripled = ("--time", TIME, "--column", f"twice=3 * {number} + 0 * int(1 div ({number} - 160))")
    rejected = f"rejected-{topic}"
    store.fail("PUT", rf"{rejected}/topic.*\.parquet", "cut")
    store.fail("PUT", rf"{rejected}/_delta_log/0*1\.json", "lose")
    place = json.dumps({topic: {"0-0": 3000}})
    again = run("load", topic, "--table", url, "--from", place, *tripled, "--rejected", store.url(rejected))
    assert (again["replaced_rows"], again["rows"], again["rejected"]) == (50, 49, 1)
    assert len(store.done()) == 2
    found = sorted((int(row["value"]), row["twice"]) for row in rows_of(store, topic))
    assert found == [(n, (3 if n >= 150 else 2) * n) for n in range(200) if n != 160]
    ((value, reason),) = ((row["value"], row["reason"]) for row in rows_of(store, rejected))
    assert int(value) == 160
    assert "DIVIDE_BY_ZERO" in reason


def test_counts_into_a_store_with_their_state_in_a_directory(
    run: Callable[..., dict[str, Any]], store: ObjectStore, broker: Broker, topic: str, tmp_path: Path
) -> None:
    """They go on with that state, and not with another one or without it."""
    produce(broker, topic, 0, 0, 100)
    url = store.url(f"counts-{topic}")
    given = ["--table", url, "--window", "10s", "--late", "1s", "--time", TIME]
    with pytest.raises(ConfigError, match="give a directory with --checkpoint"):
        run("counts", topic, *given)
    first = run("counts", topic, *given, "--checkpoint", tmp_path / "state", "--attempts", 2)
    produce(broker, topic, 0, 100, 200)
    second = run("counts", topic, *given, "--checkpoint", tmp_path / "state", "--attempts", 2)
    windows = sorted((row["window_start"], row["n"]) for row in rows_of(store, f"counts-{topic}"))
    assert len(windows) == len(set(windows)) == first["rows"] + second["rows"] == 19
    assert {count for _, count in windows} == {10}
    with pytest.raises(ConfigError, match="whose state is lost"):
        run("counts", topic, *given, "--checkpoint", tmp_path / "other")
    with pytest.raises(ConfigError, match=r"has nothing of what .* was brought there"):
        run("counts", topic, "--table", f"{url}-anew", *given[2:], "--checkpoint", tmp_path / "state")
    with pytest.raises(ConfigError, match="kept inside it"):
        run_job("counts", "--topic", topic, "--table", tmp_path / "t", *given[2:], "--checkpoint", tmp_path / "s")


def test_what_other_jobs_read(
    run: Callable[..., dict[str, Any]], store: ObjectStore, broker: Broker, new_topic: Callable[[], str], tmp_path: Path
) -> None:
    """The audit counts the rows of a table in a store, and a topic is joined with them."""
    topic, events = new_topic(), new_topic()
    produce(broker, topic, 0, 0, 30)
    url = store.url(topic)
    run("load", topic, "--table", url, "--time", TIME)
    with broker.connect() as client:
        from fastlog.message import encode_set

        event = {"topic": topic, "server": "s", "server_id": 1, "window_start": 1431820800000, "window_ms": 60000}
        client.produce_ack(events, 0, encode_set([json.dumps({**event, "n": 31, "producer_id": 1, "seq": 0}).encode()]))
    audit = run("audit", topic, "--events", events, "--loaded", url, "--time", TIME)
    assert audit["windows"] == {"MISSING": 1} and audit["code"] == 1
    assert [(line["sent"], line["arrived"], line["loaded"]) for line in audit["lines"]] == [(31, 30, 30)]
    on = ("--on", "value", "--with-table", url)
    joined = run("join", topic, *on, "--table", tmp_path / "joined", "--time", TIME)
    assert joined["rows"] == 30


def test_options_of_a_store_without_one(run: Callable[..., dict[str, Any]], topic: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--storage-option: is for tables at URLs, and none is given"):
        run("load", topic, "--table", tmp_path / "t")
    with pytest.raises(ConfigError, match=r"^--storage-option: write --storage-option KEY=VALUE$"):
        run("load", topic, "--table", "s3://b/t", "--storage-option", SECRET)
    with pytest.raises(click.UsageError, match="is neither in a directory"):
        run("load", topic, "--table", "ftp://b/t")
