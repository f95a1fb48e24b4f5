"""Tables in HDFS: each message is in them once through kills of the load and of HDFS, and they can be kept.

Run by ``scripts/compat hdfs``.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from fastlog.errors import TableUnavailableError
from fastlog.spark.lake import Lake
from fastlog.spark.storage import TableLocation, located
from fastlog.spark.upkeep import JoinOptions, join_files
from tests.harness.fake_broker import FakeBroker
from tests.harness.hdfs import Hdfs, is_there
from tests.harness.small_loads import Context, expected, loader_of, put, values_in

pytestmark = [is_there, pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    with Hdfs(tmp_path_factory.mktemp("hdfs") / "files") as made:
        yield made


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(partitions=2) as fake:
        yield fake


@pytest.fixture
def table(hdfs: Hdfs, request: pytest.FixtureRequest) -> TableLocation:
    return located(hdfs.url(request.node.name))


def test_a_load_goes_on_where_the_last_one_ended(table: TableLocation, broker: FakeBroker) -> None:
    put(broker, 0, 50)
    put(broker, 100, 30, 1)
    loader_of(table, broker).run()
    assert values_in(table) == expected((0, 50), (100, 30))
    put(broker, 50, 10)
    second = loader_of(table, broker)
    second.run()
    loader_of(table, broker).run()
    assert values_in(table) == expected((0, 60), (100, 30))
    assert second.totals.rows == 10


def test_of_two_writers_at_once_one_brings_a_batch(table: TableLocation, broker: FakeBroker) -> None:
    put(broker, 0, 15)
    put(broker, 100, 15, 1)
    loaders = [loader_of(table, broker, max_bytes=400, attempts=50) for _ in range(2)]
    threads = [threading.Thread(target=loader.run) for loader in loaders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values_in(table) == expected((0, 15), (100, 15))
    assert sum(loader.totals.rows for loader in loaders) == 30


KILLED = """
import os
import sys
from types import SimpleNamespace
from fastlog.spark.jobs.loader import Loader
from fastlog.spark.lake import Lake
from fastlog.spark.storage import located
from tests.harness.small_loads import Context, load_options
broker = SimpleNamespace(port=int(sys.argv[2]))
lake = Lake(located(sys.argv[1]))
print("begins", flush=True)
Loader(lake, load_options(broker, max_bytes=300), SimpleNamespace(context=Context(), has_ended=False)).run()
os._exit(0)
"""


def test_a_load_that_is_killed_again_and_again(table: TableLocation, broker: FakeBroker) -> None:
    """At whatever moment."""
    put(broker, 0, 60)
    source = random.Random(random.SystemRandom().randrange(2**31))
    kills = 0
    for _ in range(12):
        with subprocess.Popen([sys.executable, "-c", KILLED, table.text, str(broker.port)], stdout=-1) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(source.uniform(0, 0.5))
            if process.poll() is None:
                process.kill()
                kills += 1
        if process.returncode == 0:
            break
    assert kills
    loader_of(table, broker).run()
    assert values_in(table) == expected((0, 60))


def test_hdfs_is_killed_and_comes_back(table: TableLocation, broker: FakeBroker, hdfs: Hdfs) -> None:
    """Between two batches, and between the files of a batch and its commit."""
    put(broker, 0, 20)
    loader_of(table, broker).run()
    for number, moment in enumerate(("before", "after"), 1):
        put(broker, 20 * number, 20)
        context = Context()
        setattr(context, moment, lambda run: hdfs.kill())
        loader = loader_of(table, broker, context, attempts=1)
        try:
            with pytest.raises(TableUnavailableError) as caught:
                loader.run()
            assert str(caught.value).startswith(f"{table}: ") and "\n" not in str(caught.value)
        finally:
            hdfs.start()
        loader_of(table, broker, attempts=20).run()
        assert values_in(table) == expected((0, 20 * number + 20))


def test_hdfs_that_stands_still_is_waited_for(table: TableLocation, broker: FakeBroker, hdfs: Hdfs) -> None:
    put(broker, 0, 20)
    loader_of(table, broker).run()
    put(broker, 20, 20)
    context = Context()
    context.after = lambda run: hdfs.pause()
    loader = loader_of(table, broker, context)
    timer = threading.Timer(3, hdfs.go_on)
    timer.start()
    try:
        loader.run()
    finally:
        timer.join()
    assert values_in(table) == expected((0, 40))


def test_files_are_joined_and_removed(table: TableLocation, broker: FakeBroker) -> None:
    put(broker, 0, 60)
    loader_of(table, broker, max_bytes=300).run()
    lake = Lake(table)
    before = len(lake.files())
    join_files(lake, JoinOptions())
    assert len(lake.files()) < before
    assert values_in(table) == expected((0, 60))
    removed = lake.vacuum(0, dry_run=False)
    assert removed
    assert values_in(table) == expected((0, 60))
