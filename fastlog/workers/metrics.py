"""What ``/metrics`` tells: numbers of this broker, read from what its processes share without a lock or a request.

How groups stand is the coordinator's to say, which is asked and waited for a moment.

The names that begin with ``kafka_`` are those of kafka_exporter and of Kafka's beans behind the JMX exporter, so that
dashboards made for them show a fastlog. Nothing stands under such a name that is not what it says there. All of
them are in ``docs/metrics.md``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from fastlog.log._arena import STATE_OFFLINE
from fastlog.log._shared_memory import COORDINATOR, FIRST_PROCESSOR, FLUSH_BUCKETS_US, FLUSHER, KEEPER, SUPERVISOR
from fastlog.log.slots import SlotView
from fastlog.workers import child, stalls
from fastlog.workers.exposition import Family, Sample, labels
from fastlog.workers.group_board import GroupBoard, GroupRow
from fastlog.workers.group_metrics import group_families
from fastlog.workers.metric_tables import COUNTED, OF_PARTITION, ZOOKEEPER, appended_bytes
from fastlog.workers.request_metrics import request_families

if TYPE_CHECKING:
    from fastlog.registry import RegistrationStatus
    from fastlog.workers.health import Health

SESSIONS = ("registered", "registering", "waiting", "away", "none")
GROUPS_SECONDS = 1.0
"""What a page waits for the coordinator to say how the groups stand."""
_STATES = ("ok", "read-only", "offline")


class Metrics:
    """The families of one broker, from inside its keeper. For one thread."""

    def __init__(
        self,
        shared: child.Shared,
        health: Health,
        registration: Callable[[], RegistrationStatus] | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """``registration`` tells how the broker stands with ZooKeeper; None: it registers nowhere."""
        self._shared = shared
        self._arena = shared.arena
        self._health = health
        self._registration = registration
        self._now_ns = now_ns
        # once: clocks are set, and a time that wavers would look like a restart
        self._started = round(time.time() - (now_ns() - shared.started_ns) / 1e9, 3)
        self._starts: dict[int, tuple[int, int, int]] = {}  # slot: life, oldest segment, position of its first byte

    def families(self) -> Iterator[Family]:
        """All metric families with their present values."""
        views = self._views()
        by_process = {number: self._arena.counters(number) for number in self._health.processes}
        total = {name: sum(counts[name] for counts in by_process.values()) for name in by_process[SUPERVISOR]}
        yield from self._broker(views)
        yield from self._topics(views, total)
        yield from self._of_partitions(views)
        if self._shared.groups is not None:
            yield from group_families(
                self._group_rows(self._shared.groups), views, lambda view: self._arena.segments(view.index)
            )
        for name, meaning, counters in COUNTED:
            samples = [Sample(text, total[counter]) for text, counter in counters.items()]
            yield Family(name, "counter", meaning, samples)
        yield from request_families(total, self._arena, self._health.processes)
        yield from self._flushes(views, by_process[FLUSHER])
        yield from self._processes()
        if self._registration is not None:
            yield from self._zookeeper(self._registration(), by_process[KEEPER])

    def _views(self) -> list[SlotView]:
        """Each partition once, also one that is being recovered: in two slots for a moment, of which one is alive."""
        found: dict[tuple[str, int], SlotView] = {}
        for index in range(self._arena.slot_count):
            view = self._arena.shown_view(index)
            if view is not None and (view.life & 1 or (view.topic, view.partition) not in found):
                found[view.topic, view.partition] = view
        return list(found.values())

    def _broker(self, views: list[SlotView]) -> Iterator[Family]:
        shared, config = self._shared, self._shared.config
        listener = shared.listeners[0]
        address = f"{listener.advertised_host}:{listener.advertised_port}"
        offline = sum(1 for view in views if view.state & STATE_OFFLINE)
        yield _gauge("kafka_brokers", "1: each broker tells of itself, so they are added up.", 1)
        yield _gauge(
            "kafka_broker_info",
            "1, with the id of the broker and the address that clients are given.",
            1,
            labels(id=config.broker_id, address=address),
        )
        yield _gauge("kafka_server_replicamanager_partitioncount", "Partitions of this broker.", len(views))
        yield _gauge("kafka_server_replicamanager_leadercount", "Those that are not offline.", len(views) - offline)
        yield _gauge("kafka_server_replicamanager_offlinereplicacount", "Those that are offline.", offline)
        yield _gauge("kafka_server_replicamanager_underreplicatedpartitions", "0: there is one copy of each.", 0)
        yield _gauge(
            "kafka_controller_kafkacontroller_offlinepartitionscount",
            "Partitions of this broker that are offline.",
            offline,
        )
        if self._registration is None:
            # of brokers that share a ZooKeeper none is a controller, and dashboards want exactly one
            text = "1: without a ZooKeeper a broker controls itself. Not there with one."
            yield _gauge("kafka_controller_kafkacontroller_activecontrollercount", text, 1)
        yield _gauge("fastlog_build_info", "1, with the version.", 1, labels(version=shared.version))
        yield _gauge("fastlog_start_time_seconds", "Time of the broker's start, since the epoch.", self._started)
        is_live = not self._health.live_problems()
        yield _gauge("fastlog_live", "Whether the loop of every process turns, as /live says.", int(is_live))
        states = [self._arena.describe_state(view.state).partition(": ")[0] for view in views]
        yield Family(
            "fastlog_partitions",
            "gauge",
            "Partitions by state: ok, read-only or offline.",
            [Sample(labels(state=state), states.count(state)) for state in _STATES],
        )

    def _topics(self, views: list[SlotView], total: Mapping[str, int]) -> Iterator[Family]:
        counts: dict[str, int] = {}
        messages: dict[str, int] = {}
        size: dict[str, int] = {}
        for view in views:
            counts[view.topic] = counts.get(view.topic, 0) + 1
            messages[view.topic] = messages.get(view.topic, 0) + view.appended_messages
            size[view.topic] = size.get(view.topic, 0) + appended_bytes(view)
        texts = {topic: labels(topic=topic) for topic in counts}
        yield Family(
            "kafka_topic_partitions",
            "gauge",
            "Partitions of the topic on this broker.",
            [Sample(texts[topic], count) for topic, count in counts.items()],
        )
        for name, meaning, counter, by_topic in (
            (
                "messagesin",
                "Messages appended; of compressed sets, those inside. By topic: its partitions added up.",
                "messages_in",
                messages,
            ),
            (
                "bytesin",
                "Bytes appended. By topic: its partitions added up, so those of earlier starts are in it.",
                "bytes_in",
                size,
            ),
        ):
            yield Family(
                f"kafka_server_brokertopicmetrics_{name}_total",
                "counter",
                meaning,
                [Sample("", total[counter]), *(Sample(texts[topic], value) for topic, value in by_topic.items())],
            )

    def _of_partitions(self, views: list[SlotView]) -> Iterator[Family]:
        broker = self._shared.config.broker_id
        texts = [labels(topic=view.topic, partition=view.partition) for view in views]
        rows = [(view, self._start(view)) for view in views]
        for name, kind, meaning, value in OF_PARTITION:
            # plain tuples: a Sample is made by a function, and here are nearly all of a page's
            samples = [(text, value(view, start, broker), "") for text, (view, start) in zip(texts, rows, strict=True)]
            yield Family(name, kind, meaning, samples)

    def _group_rows(self, board: GroupBoard) -> list[GroupRow] | None:
        question = board.ask()
        self._arena.wake(COORDINATOR)
        return board.wait(question, GROUPS_SECONDS)

    def _start(self, view: SlotView) -> int:
        """The position of the oldest byte of a partition."""
        known = self._starts.get(view.index)
        if known is None or known[:2] != (view.life, view.table_head):
            oldest = self._arena.segments(view.index)[0]
            known = self._starts[view.index] = (view.life, view.table_head, oldest.start)
        return known[2]

    def _flushes(self, views: list[SlotView], counted: Mapping[str, int]) -> Iterator[Family]:
        waiting = [view for view in views if view.log_end > view.flushed_end]
        oldest = max((self._now_ns() - view.unflushed_since_ns for view in waiting), default=0) / 1e9
        total = sum(view.log_end - view.flushed_end for view in waiting)
        yield _gauge("fastlog_unflushed_bytes", "Bytes appended and not flushed, of all partitions.", total)
        text = "Age of the oldest of these bytes, at most."
        yield _gauge("fastlog_oldest_unflushed_seconds", text, round(max(0.0, oldest), 6))
        yield _histogram(
            "fastlog_flush_seconds",
            "Flushes that made something durable, and the seconds they took.",
            {us / 1e6: counted[f"flushes_within_{us}_us"] for us in FLUSH_BUCKETS_US},
            counted["flushes"],
            counted["flush_ns"] / 1e9,
        )

    def _processes(self) -> Iterator[Family]:
        numbers = self._health.processes
        names = {number: labels(process=child.role_name(number)) for number in numbers}
        cells = {number: self._arena.cell(number) for number in numbers}
        processors = [number for number in numbers if FIRST_PROCESSOR <= number < SUPERVISOR]
        now_ns = self._now_ns()

        def family(name: str, meaning: str, values: Mapping[int, float], kind: str = "gauge") -> Family:
            return Family(name, kind, meaning, [Sample(names[number], value) for number, value in values.items()])

        busy = {number: cells[number][2] / 1000 for number in processors}
        idle = round(1 - sum(busy.values()) / len(busy), 3)
        yield _gauge(
            "kafka_network_socketserver_networkprocessoravgidle_percent",
            "Idle share of the processors in the last second, from 0 to 1.",
            idle,
        )
        yield _gauge(
            "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", "The same: one loop does both.", idle
        )
        listeners = self._shared.listeners
        # a processor counts its connections, whichever listener they came by
        by = {"listener": listeners[0].name} if len(listeners) == 1 else {}
        yield Family(
            "kafka_server_socket_server_metrics_connection_count",
            "gauge",
            "Open connections of clients.",
            [
                Sample(labels(**by, networkProcessor=number - FIRST_PROCESSOR), cells[number][3])
                for number in processors
            ],
        )
        yield family("fastlog_process_busy_ratio", "Share of the last second spent outside the wait.", busy)
        connections = {number: cells[number][3] for number in processors}
        yield family("fastlog_process_connections", "Open connections of clients.", connections)
        ages = {number: round((now_ns - cell[1]) / 1e9, 3) for number, cell in cells.items() if cell[1]}
        yield family("fastlog_process_heartbeat_age_seconds", "Time since the loop of the process turned.", ages)
        waits = {number: round(stalls.disk_wait(self._arena, number, now_ns), 3) for number in numbers}
        yield family(
            "fastlog_process_disk_wait_seconds",
            "How long the process has been waiting for a disk; 0 below a second, or if it does not.",
            waits,
        )
        cpu, memory = _used({number: cell[0] for number, cell in cells.items()})
        text = "Processor time of the process; begins anew when it is replaced."
        yield family("fastlog_process_cpu_seconds_total", text, cpu, "counter")
        text = "Memory of the process, with what it shares with the others."
        yield family("fastlog_process_resident_memory_bytes", text, memory)
        names[child.MIRROR] = labels(process=child.role_name(child.MIRROR))
        mirror = [child.MIRROR] if self._shared.config.mirror_file else []
        replaced = {number: self._shared.restarts.of(number) for number in [*numbers, *mirror] if number != SUPERVISOR}
        yield family(
            "fastlog_process_restarts_total",
            "How often the process was replaced since the broker's start.",
            replaced,
            "counter",
        )

    def _zookeeper(self, registration: RegistrationStatus, counted: Mapping[str, int]) -> Iterator[Family]:
        yield Family(
            "fastlog_zookeeper_session",
            "gauge",
            "1 for how the broker stands with ZooKeeper, 0 for the others.",
            [Sample(labels(state=state), int(state == registration.session)) for state in SESSIONS],
        )
        missing = len(self._health.unannounced(registration))
        yield _gauge("fastlog_zookeeper_topics_announced", "Topics that ZooKeeper shows.", len(registration.announced))
        yield _gauge(
            "fastlog_zookeeper_topics_not_announced", "Topics that ZooKeeper does not show as they are.", missing
        )
        for name, meaning, counter in ZOOKEEPER:
            yield Family(name, "counter", meaning, [Sample("", counted[counter])])


def _gauge(name: str, meaning: str, value: float, text: str = "") -> Family:
    return Family(name, "gauge", meaning, [Sample(text, value)])


def _histogram(name: str, meaning: str, counts: Mapping[float, int], count: int, total: float) -> Family:
    """``counts``: how many lie above the bound before theirs and up to theirs, the bounds rising."""
    samples = []
    within = 0
    for bound, here in counts.items():
        within += here
        samples.append(Sample(labels(le=bound), within, "_bucket"))
    # a flush that is just being counted may stand in one of the words alone
    count = max(count, within)
    samples.append(Sample(labels(le="+Inf"), count, "_bucket"))
    return Family(name, "histogram", meaning, [*samples, Sample("", total, "_sum"), Sample("", count, "_count")])


def _used(pids: Mapping[int, int]) -> tuple[dict[int, float], dict[int, float]]:
    """Seconds of a processor and bytes of memory, of those processes that are there."""
    import psutil  # not before it is asked for

    cpu: dict[int, float] = {}
    memory: dict[int, float] = {}
    for number, pid in pids.items():
        try:
            process = psutil.Process(pid)
            times = process.cpu_times()
            memory[number] = process.memory_info().rss
        except psutil.Error:
            continue  # it has just ended, or has no number yet
        cpu[number] = round(times.user + times.system, 2)
    return cpu, memory
