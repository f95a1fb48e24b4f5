"""What others published about Kafka 0.7, and where: the figures that measurements are put beside."""

from __future__ import annotations

from dataclasses import dataclass

PAPER = "Kreps, Narkhede, Rao: Kafka: a Distributed Messaging System for Log Processing. NetDB 2011, section 5"
SITE = "kafka.apache.org, performance page of release 0.7"
SCRIPT = "Kafka 0.7 sources, system_test/producer_perf, README"

PAPER_CONDITIONS = (
    "Two machines, each with 8 cores at 2 GHz, 16 GB of memory and 6 disks in RAID 10, and a link of 1 Gb/s between "
    "them; one is the broker, the other the producer or the consumer. 10 million messages of 200 bytes, flushed in the "
    "background, not acknowledged; the consumer's data are in the page cache and it fetches about 200 kB at a time."
)
SITE_CONDITIONS = (
    "Messages of 200 bytes, batches of 200, fetches of 1 MB, a flush every 600 messages; one broker, one machine for "
    "producers, one for consumers, which read a cold backlog. Its charts were read by eye, to about 2 %."
)
MESSAGES_PER_MB = 5000.0
"""200-byte messages in 10^6 bytes of payload."""


@dataclass(frozen=True)
class Figure:
    """One published number; ``value`` is None where only words or a drawing exist."""

    what: str
    value: float | None
    unit: str
    source: str
    note: str = ""


FIGURES = (
    Figure("Producer, batches of 50", 400_000, "messages/s", PAPER, "close to what 1 Gb/s can carry"),
    Figure("Producer, single messages", 50_000, "messages/s", PAPER),
    Figure("Producer, RabbitMQ 2.4", None, "messages/s", PAPER, "Kafka is at least 2 times as fast"),
    Figure("Producer, ActiveMQ 5.4", None, "messages/s", PAPER, "Kafka is faster by orders of magnitude"),
    Figure("Consumer", 22_000, "messages/s", PAPER, "more than 4 times ActiveMQ and RabbitMQ"),
    Figure("Overhead of a stored message, Kafka", 9, "bytes", PAPER),
    Figure("Overhead of a stored message, ActiveMQ", 144, "bytes", PAPER),
    Figure("Producers together, about", 50, "MB/s", SITE),
    Figure("Consumers together, about", 100, "MB/s", SITE),
    Figure("Producer, asynchronous, batches of 200, expected", 300_000, "messages/s", SCRIPT),
)


_PER_MB = {"MB/s": 1.0, "messages/s": MESSAGES_PER_MB}


@dataclass(frozen=True)
class Curve:
    """Points of a published chart: x, and MB of payload per second."""

    words: tuple[str, ...]
    points: tuple[tuple[float, float], ...]
    note: str = ""
    level: float | None = None
    """Where the chart is flat there is one value and no points."""

    def points_in(self, unit: str) -> list[tuple[float, float]]:
        """The points in a result's unit; empty where there is no way from MB/s to it."""
        factor = _PER_MB.get(unit)
        return [(x, y * factor) for x, y in self.points] if factor else []

    def level_in(self, unit: str) -> float | None:
        """The value of a flat chart in a result's unit."""
        factor = _PER_MB.get(unit)
        return self.level * factor if factor and self.level is not None else None


CURVES = (
    Curve(("batch",), ((1, 17.5), (50, 51.0), (100, 47.0), (150, 62.0), (250, 53.0), (500, 54.0), (1000, 49.5))),
    Curve(("consumer", "fan-out", "fanout"), ((10, 91.0), (20, 112.0), (30, 112.0), (40, 112.0), (50, 111.0))),
    Curve(("topic",), ((1, 43.5), (10, 41.5), (20, 38.5), (30, 38.0), (40, 35.5), (50, 35.5)), "40 producers"),
    Curve(("producer",), ((1, 52.0), (10, 42.0), (20, 43.0), (30, 41.0), (40, 42.0))),
    Curve(
        ("stor", "backlog", "size of the log"),
        (),
        "from 0 to 690 GB: flat, in a band of 125,000 to 165,000 messages a second, with spikes from 80,000 to 220,000",
        level=30.0,
    ),
)


def curve_or_none(name: str) -> Curve | None:
    """The published chart that a curve of a result file repeats, found by a word in the curve's name."""
    return next((curve for curve in CURVES if any(word in name.lower() for word in curve.words)), None)
