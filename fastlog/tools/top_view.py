"""What ``fastlog top`` shows: two pages of metrics, and what happened between them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

_LINE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? (\S+)')
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class MetricsSample:
    """The numbers of a page, by name and labels, and when it was asked for, in seconds."""

    at: float
    values: Mapping[str, Mapping[Labels, float]]

    def of(self, name: str) -> Mapping[Labels, float]:
        """Each series of a name; empty where there is none."""
        return self.values.get(name, {})

    def one(self, name: str) -> float:
        """The sum of all series of a name."""
        return sum(self.of(name).values())

    def by(self, name: str, label: str) -> dict[str, float]:
        """Sums of the series that share a label; those without it are left out."""
        found: dict[str, float] = {}
        for labels, value in self.of(name).items():
            key = dict(labels).get(label)
            if key is not None:
                found[key] = found.get(key, 0.0) + value
        return found


@dataclass(frozen=True)
class TopicRates:
    """A topic of the broker; rates are by second."""

    topic: str
    partitions: int
    messages_rate: float
    bytes_rate: float
    size: int
    unflushed: int


@dataclass(frozen=True)
class GroupLag:
    """How far a group is behind in a topic: records, of a topic of 0.7 bytes."""

    group: str
    topic: str
    members: int
    lag: int
    lag_rate: float


@dataclass(frozen=True)
class ProcessLoad:
    """A process of the broker; ``busy`` is a share, None where it is not measured."""

    process: str
    busy: float | None
    connections: int
    memory: int
    restarts: int


@dataclass(frozen=True)
class TopView:
    """All of it, the busiest topics and the groups that are furthest behind first."""

    messages_rate: float
    bytes_in_rate: float
    bytes_out_rate: float
    requests_rate: Mapping[str, float]
    """By kind; some are of two kinds, see ``fastlog_requests_total`` in docs/metrics.md."""
    failed_rate: float
    connections: int
    unflushed: int
    groups_known: bool
    topics: tuple[TopicRates, ...]
    groups: tuple[GroupLag, ...]
    processes: tuple[ProcessLoad, ...]

    def fields(self) -> dict[str, Any]:
        """The object of ``--json``."""
        return asdict(self)


def parse(page: str, at: float) -> MetricsSample:
    """Read a page in Prometheus's text; lines that are no samples are passed over."""
    values: dict[str, dict[Labels, float]] = {}
    for line in page.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        labels = tuple((name, _unescaped(text)) for name, text in _LABEL.findall(found[2] or ""))
        try:
            values.setdefault(found[1], {})[labels] = float(found[3])
        except ValueError:
            continue
    return MetricsSample(at, values)


def between(before: MetricsSample, now: MetricsSample) -> TopView:
    """What there is now, and the rates since ``before``."""
    seconds = max(now.at - before.at, 1e-3)

    def rate(name: str) -> float:
        return sum(_grown(before.of(name).get(labels, 0.0), value) for labels, value in now.of(name).items()) / seconds

    return TopView(
        messages_rate=rate("fastlog_partition_appended_messages_total"),
        bytes_in_rate=rate("fastlog_received_bytes_total"),
        bytes_out_rate=rate("fastlog_sent_bytes_total"),
        requests_rate={kind: value / seconds for kind, value in _by_kind(before, now).items()},
        failed_rate=rate("fastlog_failed_requests_total"),
        connections=int(now.one("fastlog_process_connections")),
        unflushed=int(now.one("fastlog_unflushed_bytes")),
        groups_known=now.one("fastlog_groups_known") > 0,
        topics=tuple(sorted(_topics(before, now, seconds), key=lambda item: (-item.bytes_rate, item.topic))),
        groups=tuple(sorted(_groups(before, now, seconds), key=lambda item: (-item.lag, item.group, item.topic))),
        processes=tuple(_processes(now)),
    )


def _by_kind(before: MetricsSample, now: MetricsSample) -> dict[str, float]:
    earlier = before.by("fastlog_requests_total", "kind")
    later = now.by("fastlog_requests_total", "kind")
    return {kind: _grown(earlier.get(kind, 0.0), value) for kind, value in later.items()}


def _topics(before: MetricsSample, now: MetricsSample, seconds: float) -> Iterator[TopicRates]:
    names = ("fastlog_partition_appended_messages_total", "fastlog_partition_appended_bytes_total")
    grown: list[dict[str, float]] = []
    for name in names:
        by_topic: dict[str, float] = {}
        for labels, value in now.of(name).items():
            topic = dict(labels)["topic"]
            by_topic[topic] = by_topic.get(topic, 0.0) + _grown(before.of(name).get(labels, 0.0), value)
        grown.append(by_topic)
    sizes, unflushed = now.by("kafka_log_log_size", "topic"), now.by("fastlog_partition_unflushed_bytes", "topic")
    for topic, partitions in now.by("kafka_topic_partitions", "topic").items():
        yield TopicRates(
            topic,
            int(partitions),
            grown[0].get(topic, 0.0) / seconds,
            grown[1].get(topic, 0.0) / seconds,
            int(sizes.get(topic, 0)),
            int(unflushed.get(topic, 0)),
        )


def _groups(before: MetricsSample, now: MetricsSample, seconds: float) -> Iterator[GroupLag]:
    members = now.by("kafka_consumergroup_members", "consumergroup")
    lags = before.of("kafka_consumergroup_lag_sum")
    seen = set()
    for labels, lag in now.of("kafka_consumergroup_lag_sum").items():
        named = dict(labels)
        group = named["consumergroup"]
        seen.add(group)
        change = (lag - lags.get(labels, lag)) / seconds
        yield GroupLag(group, named["topic"], int(members.get(group, 0)), int(lag), change)
    for group in sorted(set(members) - seen):
        yield GroupLag(group, "", int(members[group]), 0, 0.0)


def _processes(now: MetricsSample) -> Iterator[ProcessLoad]:
    by_name = {
        name: now.by(f"fastlog_process_{name}", "process")
        for name in ("busy_ratio", "connections", "resident_memory_bytes", "restarts_total")
    }
    for process in now.by("fastlog_process_heartbeat_age_seconds", "process"):
        yield ProcessLoad(
            process,
            by_name["busy_ratio"].get(process),
            int(by_name["connections"].get(process, 0)),
            int(by_name["resident_memory_bytes"].get(process, 0)),
            int(by_name["restarts_total"].get(process, 0)),
        )


def _grown(before: float, now: float) -> float:
    """By how much a counter grew; one that fell began anew."""
    return now - before if now >= before else now


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], text)
