"""A cluster of Spark that shares nothing loads topics into an object store while its workers are killed: each message
is in the table once.

Driver and workers know fastlog from the package alone (``fastlog spark package``). Executors come and go (dynamic
allocation), and tasks run twice (speculation). Producers go on all the time, as in ``spark_load``, and in the end what
is in the table is what lies in the segment files.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.fault.registry import Outcome, scenario
from tests.fault.spark_load import PARTITIONS, TOPIC, Row, _broker, _stored_rows
from tests.harness import raw_client as raw
from tests.harness.broker import Broker
from tests.harness.history import History
from tests.harness.load import Load, stored
from tests.harness.object_store import ObjectStore, open_object_store
from tests.harness.spark_cluster import SPARK, SparkCluster, why_not
from tests.harness.spark_driver import Driver, as_arguments
from tests.harness.spark_start import LOCAL_SETTINGS

BROKERS = 2
BATCHES = ("20kB", "200kB")
SETTINGS = {
    **LOCAL_SETTINGS,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    "spark.dynamicAllocation.executorIdleTimeout": "10s",
    "spark.speculation": "true",
    "spark.speculation.interval": "20ms",
    "spark.speculation.minTaskRuntime": "1ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.1",
}


def submit(cluster: SparkCluster, package: Path, job: str, *arguments: object) -> list[str]:
    """The command that ``fastlog spark package`` prints for a job, with more settings of Spark."""
    command = [str(SPARK / "bin" / "spark-submit"), "--master", cluster.url, "--archives", "fastlog.tar.gz#fastlog"]
    command += as_arguments(SETTINGS)
    return [*command, f"fastlog/lib/fastlog/spark/jobs/{job}.py", *map(str, arguments)]


class Submitted(Driver):
    """A job that was submitted, from the directory of the package."""

    def __init__(self, cluster: SparkCluster, package: Path, log: Path, job: str, *arguments: object) -> None:
        known = {**cluster.environment, "PYSPARK_PYTHON": "./fastlog/python"}
        command = submit(cluster, package, job, *arguments)
        super().__init__(command, log, directory=package, environment=known, errors=False)


def rows_of(store: ObjectStore, name: str) -> Counter[Row]:
    """The rows of the topic in a table."""
    from deltalake import DeltaTable

    table = DeltaTable(store.url(name), storage_options=store.options).to_pyarrow_table()
    columns = [table.column(column).to_pylist() for column in ("broker", "partition", "offset", "idx", "value")]
    return Counter(zip(*columns, strict=True))


def make_package(directory: Path) -> Path:
    """Of this checkout, below a directory."""
    from fastlog.spark.packaging import make_package as make

    return make(directory / "package").directory


@scenario(
    "spark-cluster",
    "kill -9 of workers, executors, drivers and brokers of a cluster that shares nothing",
    small=3,
    nightly=12,
    release=40,
)
def spark_cluster(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` kills while topics are loaded into an object store."""
    outcome = Outcome()
    reason = why_not()
    if reason is not None:
        print(f"spark-cluster: not tried: {reason}")
        return outcome
    source = random.Random(seed)
    package = make_package(directory)
    with ExitStack() as stack:
        store = stack.enter_context(open_object_store())
        brokers = [stack.enter_context(_broker(directory, number)) for number in range(BROKERS)]
        cluster = stack.enter_context(SparkCluster(directory / "cluster"))
        outcome.expect(not any(cluster.sees(number, package) for number in range(2)), "workers see the package")
        histories = [History() for _ in brokers]
        producers = [_producer(stack, broker, number, histories[number], seed) for number, broker in enumerate(brokers)]
        addresses = ",".join(f"127.0.0.1:{broker.port}" for broker in brokers)
        arguments = ["--brokers", addresses, "--topic", TOPIC, "--table", store.url("t"), *store.arguments]
        arguments += ["--attempts", "50", "-o", "fetch.numRetries=3"]
        job: Submitted | None = None
        try:
            for number in range(count):
                if job is None:
                    size = source.choice(BATCHES)
                    log = directory / f"load{number}.log"
                    more = ("--every", "100ms", "--max-bytes", size, "-o", "maxBytesPerPartition=10kB")
                    job = Submitted(cluster, package, log, "load", *arguments, *more)
                job.wait_said(r"batch \d+: \d+ rows", job.count(r"batch \d+: \d+ rows") + 1)
                job.wait_said(r"batch \d+: \d+ bytes", job.count(r"batch \d+: \d+ bytes") + 1)
                time.sleep(source.uniform(0, 0.5))
                # Each kind comes soon: the first three are one of each.
                kind = number % 3 if number < 3 else source.randrange(4)
                if kind == 0:
                    worker = source.randrange(2)
                    cluster.kill_worker(worker)
                    cluster.start_worker(worker)
                    cluster.wait_registered(worker)
                elif kind == 1:
                    for executor in [one for worker in range(2) for one in cluster.executors(worker)][:1]:
                        executor.kill()
                elif kind == 2:
                    job.kill()
                    job = None
                else:
                    broker = source.choice(brokers)
                    broker.kill_all()
                    broker.start()
                outcome.runs += 1
        finally:
            if job is not None:
                job.kill()
        for producer in producers:
            producer.stop()
        last = Submitted(cluster, package, directory / "last.log", "load", *arguments)
        code, summary = last.end()
        outcome.expect(code == 0, f"the last run ended with {code}")
        outcome.expect(not summary["lost"], f"the last run found messages lost: {summary['lost']}")
        for broker, history in zip(brokers, histories, strict=True):
            outcome.violations += history.check(stored(broker, history))
        begun = {(number, partition): 0 for number in range(BROKERS) for partition in range(PARTITIONS)}
        expected = Counter(row for number, broker in enumerate(brokers) for row in _stored_rows(number, broker, begun))
        outcome.expect(len(expected) > 0, "nothing was sent")
        seen = rows_of(store, "t")
        missing, extra = expected - seen, seen - expected
        outcome.expect(
            not missing and not extra,
            f"{missing.total()} missing, {extra.total()} too many, such as"
            f" {[row[:4] for row in [*missing, *extra][:5]]}",
        )
    return outcome


def _producer(stack: ExitStack, broker: Broker, number: int, history: History, seed: int) -> Load:
    places = [(TOPIC, partition) for partition in range(PARTITIONS)]
    for place in places:
        with broker.connect() as client:
            payloads = [b"first %d" % place[1]]
            history.sent(place, f"first {place[1]}", payloads)
            client.produce_ack(*place, raw.message_set(payloads), raw.FLUSHED)
    return stack.enter_context(
        Load(
            broker,
            places,
            producers=1,
            consumers=0,
            acks=raw.FLUSHED,
            batch=10,
            size=200,
            compressed=0.3,
            pause=0.05,
            seed=seed + number,
            history=history,
            name=f"b{number}p",
        )
    )
