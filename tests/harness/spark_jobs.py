"""Streaming queries of a real Spark session, and messages for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastlog.message import encode_set
from tests.harness.broker import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_STARTS = 5


def produce(broker: Broker, topic: str, partition: int, start: int, stop: int) -> None:
    """Messages that are numbers of ten digits: 20 bytes each in the log."""
    with broker.connect() as client:
        client.produce_ack(topic, partition, encode_set([b"%010d" % n for n in range(start, stop)]), acks=2)


def run_to_end(start: Callable[[], StreamingQuery], timeout: float = 120) -> StreamingQuery:
    """Start a query with ``availableNow`` and wait for its end.

    Spark gives the Python process of a source ten seconds to start, whatever else the machine does; a query that fails
    by that has done nothing and is started again.
    """
    for left in reversed(range(_STARTS)):
        try:
            query = start()
            assert query.awaitTermination(timeout)
            return query
        except Exception as error:
            if "failed to connect back" not in str(error) or not left:
                raise
    raise AssertionError("unreachable")


class Job:
    """A query that collects its batches; each start of it is a new one from the same checkpoint."""

    def __init__(self, spark: SparkSession, broker: Broker | None, topic: str, directory: Path, **given: Any) -> None:
        """Of a topic of a broker, or of what the options in ``given`` say when there is none."""
        self._spark = spark
        self._checkpoint = directory / "checkpoint"
        self._options = {"columns": "topic,partition,offset,value"}
        if broker is not None:
            self._options |= {"brokers": f"127.0.0.1:{broker.port}", "subscribe": topic}
        self._options |= {name: str(value) for name, value in given.items()}
        self.batches: dict[int, list[int]] = {}
        self.fail_in: int | None = None

    def start(self, **trigger: Any) -> StreamingQuery:
        """Collect until it ends; a batch that ``fail_in`` names fails once it was read."""

        def collect(frame: DataFrame, number: int) -> None:
            rows = frame.collect()
            if number == self.fail_in:
                raise RuntimeError("the sink has failed")
            self.batches[number] = [int(row.value) for row in rows]

        frame = self._spark.readStream.format("fastlog").options(**self._options).load()
        writer = frame.writeStream.foreachBatch(collect).option("checkpointLocation", str(self._checkpoint))
        return writer.trigger(**trigger).start()

    def run(self, timeout: float = 90) -> StreamingQuery:
        """Run the stream until all that is there now is read."""
        return run_to_end(lambda: self.start(availableNow=True), timeout)

    @property
    def numbers(self) -> list[int]:
        """The messages of all batches, in the order of their numbers."""
        return sorted(number for batch in self.batches.values() for number in batch)
