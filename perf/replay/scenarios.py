"""What a scenario is. The scenarios themselves are data: ``table.py``; what runs them: ``runners``.

A scenario is one thing to do; its figures are what is kept of it, each a series of the result file. Sizes are shares
of ``--messages``, so that a short replay runs the same code as a long one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perf.figures.results import OURS, Better, Goal

BROKER_ALONE = "fastlog-broker"
PEERS = "peers"
"""Stands for every peer that is installed."""

PAGE_CACHE: Mapping[str, object] = {
    "log.flush.interval": 1_000_000,
    "log.default.flush.interval.ms": 1000,
    "flush.max.unflushed.bytes": 268_435_456,
}
"""The flush policy of the throughput figures: a flush starts at half of it, far behind what is appended."""

ENTRY_OVERHEAD = 10
"""Bytes that a message takes on the wire and on disk beside its payload (magic 1)."""

SPARK_KAFKA = "spark-kafka"
"""Spark's own source, reading Apache Kafka."""

BLOCKS = ("producer", "consumer", "latency", "curves", "batches", "spark", "storage", "stored", "sweep")
"""Scenarios of a block take turns, round by round; blocks follow each other."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One series of the result file; ``takes`` names the number among those that a run of the scenario gives."""

    name: str
    title: str
    section: str
    takes: str = "rate"
    unit: str = "messages/s"
    better: Better = "higher"
    goal: Goal | None = None
    paper: float | None = None
    x: float | None = None
    x_title: str | None = None


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Something to run: its figures, its part of the messages, the systems it runs on, and the broker's settings."""

    figures: tuple[Figure, ...]
    block: str
    share: float = 1.0
    systems: tuple[str, ...] = (OURS,)
    settings: Mapping[str, object] = field(default_factory=lambda: PAGE_CACHE)
    least_rounds: int = 1
    """How many rounds are run at least, whatever was asked for."""

    most_rounds: int | None = None
    """How many rounds are run at most; None: as many as the options say."""

    def turns(self, rounds: int) -> int:
        """How many rounds it has when so many are asked for."""
        return max(self.least_rounds, min(rounds, self.most_rounds or rounds))

    @property
    def name(self) -> str:
        """The name of the first figure."""
        return self.figures[0].name

    def parameters(self) -> dict[str, Any]:
        """The parameters of the scenario, for the result file."""
        shared = {one.name for one in dataclasses.fields(Scenario)}
        own = {name: value for name, value in dataclasses.asdict(self).items() if name not in shared}
        return {**own, "settings": dict(self.settings)}


@dataclass(frozen=True, kw_only=True)
class Produce(Scenario):
    """One producing process. ``how``: ``send`` once per message; ``list``: lists of messages in one call; ``rotate``:
    such lists to each topic in turn.

    The clock runs from the first call until the broker's log end has reached the last byte (``acks`` "none"), or until
    everything is acknowledged. ``threads`` producers share the messages, each with a connection of its own. ``lines``
    sends access-log lines instead of random bytes.
    """

    how: str = "list"
    batch: int = 50
    acks: str = "none"
    compression: str = "none"
    topics: int = 1
    partitions: int = 1
    threads: int = 1
    message_bytes: int = 200
    lines: bool = False


@dataclass(frozen=True, kw_only=True)
class Consume(Scenario):
    """``consumers`` processes that each read the whole backlog, in one ``mode``, all at once.

    ``mode``: "payloads" one by one in Python, "lists", "numpy" or "arrow". ``local``: reading the files. ``group``: as
    members of a group each, timed from when the partition was assigned.
    """

    mode: str = "lists"
    fetch_bytes: int = 2**20
    local: bool = False
    group: bool = False
    consumers: int = 1


@dataclass(frozen=True, kw_only=True)
class FanOut(Scenario):
    """``consumers`` processes read one topic at once, then again while a producer writes another one."""

    consumers: int
    fetch_bytes: int = 2**20
    batch: int = 50


@dataclass(frozen=True, kw_only=True)
class Mirrored(Scenario):
    """One process that mirrors the whole backlog into a broker of another cluster, acknowledged when appended."""


@dataclass(frozen=True, kw_only=True)
class Tail(Scenario):
    """One producer and one consumer behind it; each message carries the time of its batch.

    ``rate``: messages a second that are offered, timed from when each batch was meant to be sent; None: as many as can
    be, timed from when it was made.
    """

    rate: float | None = None
    batch: int = 50
    fetch_bytes: int = 2**20


@dataclass(frozen=True, kw_only=True)
class Latency(Scenario):
    """A fixed rate of messages, timed from when each was meant to be sent until a waiting consumer has it."""

    rate: int
    acks: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CodecAlone(Scenario):
    """Compressing sets of ``batch`` access-log lines on one core, with nothing else."""

    compression: str
    batch: int = 50


@dataclass(frozen=True, kw_only=True)
class Stored(Scenario):
    """Producing behind ``stored_bytes`` of backlog, and into an empty log, in turn."""

    stored_bytes: int
    batch: int = 50


@dataclass(frozen=True, kw_only=True)
class Recovery(Scenario):
    """Starting after ``kill -9`` with one segment of ``segment_bytes`` and no checkpoint; page cache warm.

    ``in_flush``: as if it had been killed in the middle of a flush, so that it writes again what memory holds.
    """

    segment_bytes: int
    in_flush: bool = False


@dataclass(frozen=True, kw_only=True)
class Memory(Scenario):
    """Proportional set size of the broker's largest process after a backlog was written and read by ``consumers``."""

    backlog_bytes: int


@dataclass(frozen=True, kw_only=True)
class FlushPolicy(Scenario):
    """One point of the sweep: produce at full speed, then at ``rate`` messages a second for the latency."""

    rate: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class InSpark(Scenario):
    """A ``job`` of a warm Spark session with two cores: "count" a topic, or "write" one; or "load", one into a table.

    The rate is that of the median of ``runs`` in one session, behind some that are not counted. A load has a process
    of its own each time, and its start counts. ``direct`` as the option of the source, ``acks`` as that of the sink.
    """

    job: str
    direct: str = "off"
    acks: str = "flushed"
    partitions: int = 1
    runs: int = 5


@dataclass(frozen=True, kw_only=True)
class OfBatches(Scenario):
    """Something about record batches under the C generator (``perf.ceiling.batches``), in one topic.

    A batch has ``batch_records`` records, or as many as fit ``batch_bytes``.
    """

    partitions: int = 1
    connections: int = 1
    batch_bytes: int = 16_384
    batch_records: int | None = None
    message_bytes: int = 200


@dataclass(frozen=True, kw_only=True)
class ProduceBatches(OfBatches):
    """The generator sends batches, one in each request, ``window`` requests in flight on each connection.

    The clock runs until the last answer: appended (``acks`` 1) or flushed (-1). With a ``codec`` they hold access-log
    lines, compressed once before. With ``slower_sync_ms`` each sync of the broker's flusher takes so much longer.
    """

    acks: int = 1
    slower_sync_ms: int = 0
    window: int = 16
    codec: str = "none"


@dataclass(frozen=True, kw_only=True)
class FetchBatches(OfBatches):
    """The reader reads what was written just before, partitions in turn, and checks every batch."""

    fetch_bytes: int = 2**20


@dataclass(frozen=True, kw_only=True)
class CheckBatches(Scenario):
    """The broker's check of compressed batches on one core, with nothing else."""

    codec: str
    batch_bytes: int = 16_384


@dataclass(frozen=True, kw_only=True)
class SingleMessages(Scenario):
    """Acknowledged requests of one message each, by fastlog's own protocol, over ``connections`` at once."""

    connections: int
    window: int = 16


@dataclass(frozen=True, kw_only=True)
class FirstAnswer(Scenario):
    """From the start of a broker to its first answer; then its whole memory after records were written and read."""
