"""Numbers of producers and consumers for Prometheus, by ``prometheus_client``: ``fastlog.metrics.watch(producer)``.

Nothing is counted for it: whoever asks for the page looks at what the clients know of themselves. What a broker tells
of itself is in ``fastlog.workers.metrics``; the dashboard and the alerts beside this file are of that. All names are in
``docs/metrics.md``.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from fastlog.errors import ArgumentError, MissingDependencyError
from fastlog.installation import how_to_install

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from fastlog import aio
    from fastlog.audit.auditor import Auditor
    from fastlog.consumer.connector import Consumer
    from fastlog.consumer.feed import PartitionState
    from fastlog.producer.producer import Producer, ProducerStats

    Client = Producer | Consumer | aio.Producer | aio.Consumer | Auditor

__all__ = ["ClientMetrics", "watch"]

# Name, whether it only grows, meaning, value.
_OF_PRODUCER: tuple[tuple[str, bool, str, Callable[[ProducerStats], int]], ...] = (
    ("accepted_messages", True, "Messages that were taken to be sent.", lambda stats: stats.accepted),
    ("delivered_messages", True, "Those that the broker has taken.", lambda stats: stats.delivered),
    ("failed_messages", True, "Those that were given up.", lambda stats: stats.failed),
    ("dropped_messages", True, "Messages that were dropped, as the queue was full.", lambda stats: stats.dropped),
    (
        "possible_duplicates",
        True,
        "Messages sent again after a broken connection, which may be stored twice.",
        lambda stats: stats.possible_duplicates,
    ),
    ("connections", True, "Connections begun.", lambda stats: stats.connections),
    ("queued_messages", False, "Messages that wait to be sent.", lambda stats: stats.queued),
    ("in_flight_messages", False, "Messages that were sent and not answered.", lambda stats: stats.in_flight),
)
_OF_PARTITION: tuple[tuple[str, bool, str, Callable[[PartitionState], int | None]], ...] = (
    ("consumed_offset", False, "How far the partition has been consumed.", lambda state: state.consumed),
    ("position", False, "How far it has been fetched.", lambda state: state.position),
    (
        "high_watermark",
        False,
        "How far it could be read, when the broker last answered.",
        lambda state: state.high_watermark,
    ),
    ("lag_bytes", False, "Bytes from the consumed offset to that.", lambda state: _lag(state)),
    ("queued_pieces", False, "Fetched pieces that wait to be consumed.", lambda state: state.queued),
    ("fetch_failures", False, "How often in a row fetching has failed.", lambda state: state.failures),
    (
        "gaps",
        True,
        "Pieces that did not begin where the one before had ended, and were fetched again.",
        lambda state: state.gaps,
    ),
)


class ClientMetrics:
    """A collector of ``prometheus_client``: the families of all clients that it watches.

    ``registry.register(ClientMetrics())``, or ``watch`` for that of the process. It keeps no client alive: one that is
    gone leaves the page. Safe in threads.
    """

    def __init__(self) -> None:
        try:
            import prometheus_client.core  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError(f"prometheus_client is not installed: {how_to_install('metrics')}") from error
        self._lock = threading.Lock()
        self._producers: dict[str, weakref.ref[Any]] = {}
        self._consumers: dict[str, weakref.ref[Any]] = {}
        self._auditors: dict[str, weakref.ref[Any]] = {}

    def watch(self, client: Client, name: str) -> None:
        """Show a client, with the label ``client``; the same one again under another name goes by both.

        Raises:
            ArgumentError: it is no producer, consumer or auditor of fastlog's, or another one has the name.
        """
        if hasattr(client, "stats"):
            kind = self._producers
        elif hasattr(client, "partitions") and hasattr(client, "failed_commits"):
            kind = self._consumers
        elif hasattr(client, "latencies"):
            kind = self._auditors
        else:
            raise ArgumentError(f"client: {client!r:.60} is no Producer or Consumer, and no Auditor")
        with self._lock:
            known = kind.get(name)
            other = known() if known is not None else None
            if other is not None and other is not client:
                raise ArgumentError(f"name: there is another client called {name!r}")
            kind[name] = weakref.ref(client)

    def collect(self) -> Iterable[Metric]:
        """All families, as they are now; those of a kind of client that is not there are left out."""
        producers = [(name, client.stats()) for name, client in self._living(self._producers)]
        if producers:
            for short, grows, meaning, value in _OF_PRODUCER:
                family = _family(f"fastlog_producer_{short}", grows, meaning, ["client"])
                for name, stats in producers:
                    family.add_metric([name], value(stats))
                yield family
        consumers = self._living(self._consumers)
        if consumers:
            yield from self._of_consumers(consumers)
        auditors = self._living(self._auditors)
        if auditors:
            yield _latencies(auditors)

    def describe(self) -> Iterable[Metric]:
        """Describe nothing, so that the registry does not collect before there is a client."""
        return ()

    def _of_consumers(self, consumers: list[tuple[str, Any]]) -> Iterator[Metric]:
        from fastlog.consumer.status import GroupState

        states = _family(
            "fastlog_consumer_group_state", False, "1 for what it is about, 0 otherwise.", ["client", "state"]
        )
        commits = _family(
            "fastlog_consumer_failed_commits", True, "Commits that failed and nobody waited for.", ["client"]
        )
        for name, client in consumers:
            for state in GroupState:
                states.add_metric([name, state.value], int(client.state is state))
            commits.add_metric([name], client.failed_commits)
        yield states
        yield commits
        rows = [
            ([name, partition.topic, str(partition.partition)], state)
            for name, client in consumers
            for partition, state in client.partitions.items()
        ]
        for short, grows, meaning, value in _OF_PARTITION:
            family = _family(f"fastlog_consumer_{short}", grows, meaning, ["client", "topic", "partition"])
            for labels, of in rows:
                number = value(of)
                if number is not None:
                    family.add_metric(labels, number)
            yield family

    def _living(self, kind: dict[str, weakref.ref[Any]]) -> list[tuple[str, Any]]:
        with self._lock:
            found = [(name, reference()) for name, reference in kind.items()]
            for name, client in found:
                if client is None:
                    del kind[name]
        return [(name, client) for name, client in sorted(found, key=lambda item: item[0]) if client is not None]


_turn = threading.Lock()
_collectors: weakref.WeakKeyDictionary[Any, ClientMetrics] = weakref.WeakKeyDictionary()
"""The collector of each Prometheus registry that has one."""


def watch(client: Client, name: str = "default", registry: CollectorRegistry | None = None) -> ClientMetrics:
    """Show a producer, consumer or auditor among the metrics of this process, or those of another ``registry``.

    ``name`` is the value of the label ``client`` and tells clients of a kind apart.

    Raises:
        MissingDependencyError: prometheus_client is not installed.
        ArgumentError: as ``ClientMetrics.watch``.
    """
    collector = ClientMetrics()  # raises where the library is missing
    from prometheus_client import REGISTRY

    wanted = registry if registry is not None else REGISTRY
    with _turn:
        known = _collectors.get(wanted)
        if known is None:
            wanted.register(collector)
            _collectors[wanted] = known = collector
    known.watch(client, name)
    return known


def _lag(state: PartitionState) -> int | None:
    if state.high_watermark is None or state.consumed is None:
        return None
    return max(0, state.high_watermark - state.consumed)


def _latencies(auditors: list[tuple[str, Auditor]]) -> Any:
    from prometheus_client.core import HistogramMetricFamily

    from fastlog.audit.auditor import LATENCY_BOUNDS_MS

    family = HistogramMetricFamily(
        "fastlog_audit_latency_seconds",
        "Messages with an envelope that the stage has counted, and the seconds since they were sent.",
        labels=["client", "stage", "topic"],
    )
    bounds = [*(str(bound / 1000) for bound in LATENCY_BOUNDS_MS), "+Inf"]
    for name, auditor in auditors:
        for topic, (counts, seconds) in sorted(auditor.latencies().items()):
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            family.add_metric([name, auditor.stage, topic], buckets, seconds)
    return family


def _family(name: str, grows: bool, meaning: str, labels: list[str]) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    return (CounterMetricFamily if grows else GaugeMetricFamily)(name, meaning, labels=labels)
