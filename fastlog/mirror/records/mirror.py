"""``RecordMirror``: topics of record batches of one or several clusters into another one, until it is stopped."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from fastlog.client.addresses import parse_brokers
from fastlog.client.coordinator import NotReachedError
from fastlog.client.kafka_fields import Place
from fastlog.client.records import RecordsError
from fastlog.consumer.assignment import TopicFilter
from fastlog.errors import FastlogError
from fastlog.limited_log import LimitedLog
from fastlog.mirror.config import MirrorConfig, SourceConfig, loop_error
from fastlog.mirror.records.cluster import RecordCluster
from fastlog.mirror.records.finding import Rules
from fastlog.mirror.records.place import GroupPlace, PlaceLostError, Share
from fastlog.mirror.records.worker import Worker
from fastlog.mirror.totals import Counts, Totals
from fastlog.producer.brokers import parse_broker_list
from fastlog.retry import Backoff

log = logging.getLogger(__name__)
limited_log = LimitedLog(log)

_COPIED = frozenset({"max.message.bytes", "retention.ms", "retention.bytes"})
"""Settings that a topic gets in the target which has them of its own in the source."""
_OWN = "__"
_DEFAULT_BATCH_BYTES = 1_000_000
_LEAVE_SECONDS = 5.0
_LEAST_PAUSE, _MOST_PAUSE = 0.1, 2.0


class RecordSource:
    """One source, from ``start`` to ``stop``: a member of the group that its name has in the target."""

    def __init__(self, config: SourceConfig, mirror: MirrorConfig) -> None:
        consumer, producer, settings = config.consumer, mirror.target.producer, mirror.settings
        assert producer.broker_list is not None
        self.name = config.name
        self.fatal: FastlogError | None = None
        self.error: FastlogError | None = None
        """Why it does not mirror anything at this moment."""
        self._streams = settings.streams
        self._sources = parse_brokers(consumer.brokers)
        self._targets = [broker.address for broker in parse_broker_list(producer.broker_list)]
        self._timeout = consumer.socket_timeout_ms / 1000, producer.socket_timeout_ms / 1000
        self._group_id = consumer.group_id
        self._session_ms = consumer.session_timeout_ms
        self._beat_seconds = consumer.heartbeat_interval_ms / 1000
        self._look_seconds = consumer.metadata_max_age_ms / 1000
        pattern = settings.whitelist if settings.whitelist is not None else settings.blacklist or ""
        self._filter = TopicFilter(pattern, settings.whitelist is not None)
        self._rules = Rules(
            fetch_bytes=consumer.fetch_bytes,
            most_bytes=mirror.target.max_message_bytes or _DEFAULT_BATCH_BYTES,
            begins_at_end=consumer.auto_offset_reset == "largest",
            appends_to_others=settings.existing_records == "append",
            leaves_out=settings.bad_messages == "skip",
            commit_seconds=consumer.auto_commit_interval_ms / 1000,
        )
        self._workers: list[Worker] = []
        self._done = Totals()
        self._share: Share | None = None
        self._places: list[Place] = []
        self._topic_errors: dict[str, FastlogError] = {}
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._place: GroupPlace | None = None
        self._threads = [
            threading.Thread(target=self._keep_place, name=f"fastlog-mirror-{self.name}-place", daemon=True),
            threading.Thread(target=self._scout, name=f"fastlog-mirror-{self.name}-topics", daemon=True),
        ]

    def start(self) -> None:
        """Start the threads; returns at once."""
        for thread in self._threads:
            thread.start()

    def hold(self) -> None:
        """Take nothing more from the source, and let what is under way finish; returns at once."""
        self._over.set()
        place = self._place
        if place is not None:
            place.interrupt()
        for worker in list(self._workers):
            worker.stop()

    def stop(self, seconds: float) -> str | None:
        """End it; a line where something was left undone."""
        self.hold()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            return "not all was acknowledged"
        return None

    # -- how it stands -------------------------------------------------------------------------------------------------

    @property
    def totals(self) -> Totals:
        """Counts of what was mirrored since the start."""
        by_topic: dict[str, Counts] = {}
        with self._lock:
            for counted in [self._done.by_topic, *(worker.counts for worker in self._workers)]:
                _add(by_topic, counted)
        return Totals(
            sum(found.entries for found in by_topic.values()),
            sum(found.bytes for found in by_topic.values()),
            sum(found.left_out for found in by_topic.values()),
            by_topic=by_topic,
        )

    @property
    def waiting(self) -> dict[str, FastlogError]:
        """The partitions and topics that do not go on, and why."""
        found = dict(self._topic_errors)
        for worker in list(self._workers):
            for lane in worker.lanes:
                if lane.error is not None:
                    found[f"{lane.place[0]}:{lane.place[1]}"] = lane.error
        return found

    @property
    def lag(self) -> dict[Place, int | None]:
        """What of each partition that is mirrored here the target has not acknowledged, in records."""
        return {lane.place: lane.lag for worker in list(self._workers) for lane in worker.lanes}

    @property
    def state(self) -> str:
        """Why nothing is mirrored, in words; empty while something is."""
        if self._share is not None and self.error is None:
            return ""
        return "begins" if self.error is None else f"waits: {' '.join(str(self.error).split())}"

    # -- the place in the group ----------------------------------------------------------------------------------------

    def _keep_place(self) -> None:
        timeout = max(1.0, self._session_ms / 3000)
        place = self._place = GroupPlace(self._targets, self._group_id, session_ms=self._session_ms, timeout=timeout)
        backoff = Backoff(_LEAST_PAUSE, _MOST_PAUSE, 0.25)
        if self._over.is_set():
            place.interrupt()
        while not self._over.is_set():
            try:
                self._share = place.join()
                if self._share is None:
                    break
                log.info("source=%s share=%d of=%d", self.name, self._share.number, self._share.of)
                backoff.reset()
                self.error = None
                self._serve(place)
            except PlaceLostError as error:
                log.info("source=%s shares anew: %s", self.name, error)
            except FastlogError as error:
                self.error = error
                limited_log.warning("place", "source=%s waits: %s", self.name, " ".join(str(error).split()))
                self._over.wait(backoff.next())
            except Exception as error:
                log.exception("mirroring")
                self.fatal = FastlogError(f"mirroring failed: {error!r}")
                break
            finally:
                self._share = None
        place.leave()
        place.close()

    def _serve(self, place: GroupPlace) -> None:
        """Forward until the place is lost. Raises ``PlaceLostError``."""
        with self._lock:
            self._workers = [
                Worker(
                    f"{self.name}-{number}",
                    RecordCluster(self._sources, self._timeout[0]), RecordCluster(self._targets, self._timeout[1]),
                    place, self._rules,
                )
                for number in range(self._streams)
            ]  # fmt: skip
        try:
            self._deal()
            for worker in self._workers:
                worker.start()
            while not self._over.wait(self._beat_seconds):
                try:
                    place.beat()
                    self.error = next((worker.error for worker in self._workers if worker.error is not None), None)
                except NotReachedError as error:
                    self.error = error  # a coordinator that comes back tells whether this is still a member
                if any(worker.is_lost for worker in self._workers):
                    return
        finally:
            for worker in self._workers:
                worker.stop()
            for worker in self._workers:
                while not worker.join(_LEAVE_SECONDS) and not self._over.is_set():
                    log.warning("source=%s waits for an answer before it shares anew", self.name)
            with self._lock:
                for worker in self._workers:
                    _add(self._done.by_topic, worker.counts)
                self._workers = []

    def _deal(self) -> None:
        """Have the workers read the partitions that are this member's."""
        share, workers = self._share, self._workers
        if share is None:
            return
        mine = [place for place in self._places if share.has(place)]
        for number, worker in enumerate(workers):
            worker.wanted = mine[number :: len(workers)]

    # -- the topics ----------------------------------------------------------------------------------------------------

    def _scout(self) -> None:
        """From time to time look which topics there are, and have them in the target."""
        source, target = RecordCluster(self._sources, self._timeout[0]), RecordCluster(self._targets, self._timeout[1])
        try:
            while not self._over.is_set():
                pause = self._look_seconds
                try:
                    self._look(source, target)
                except FastlogError as error:
                    pause = min(pause, 1.0)
                    limited_log.warning("topics", "source=%s topics: %s", self.name, " ".join(str(error).split()))
                    self._topic_errors["topics"] = error
                except Exception as error:
                    log.exception("mirroring")
                    self.fatal = FastlogError(f"mirroring failed: {error!r}")
                    return
                if self.fatal is not None:
                    return
                self._over.wait(pause)
        finally:
            source.close()
            target.close()

    def _look(self, source: RecordCluster, target: RecordCluster) -> None:
        here, there = source.look(None), target.look(None)
        shared = set(here.brokers.values()) & set(there.brokers.values())
        if here.id == there.id and shared:
            self.fatal = loop_error(self.name, f"{min(shared)} is a broker of both")
            return
        errors: dict[str, FastlogError] = {}
        places = []
        for name, topic in sorted(here.topics.items()):
            if topic.code or topic.is_internal or name.startswith(_OWN) or not self._filter.allows(name):
                continue
            try:
                self._make(source, target, name, len(topic.leaders))
            except RecordsError as error:
                errors[name] = error
                continue
            places += [(name, partition) for partition in sorted(topic.leaders)]
        self._topic_errors = errors
        self._places = places
        self._deal()

    def _make(self, source: RecordCluster, target: RecordCluster, name: str, partitions: int) -> None:
        """Have the topic in the target, with at least as many partitions. Raises as ``RecordCluster``."""
        found = target.view.topics.get(name)
        if found is None:
            settings = {
                key: setting.value
                for key, setting in source.settings(name).items()
                if key in _COPIED and setting.is_own and setting.value is not None
            }
            log.info("source=%s topic=%s partitions=%d is made in the target", self.name, name, partitions)
            target.create(name, partitions, settings)
        elif len(found.leaders) < partitions and not found.code:
            log.info("source=%s topic=%s has %d partitions from now on", self.name, name, partitions)
            target.add_partitions(name, partitions)


class RecordMirror:
    """Forwards what the sources have into the target. ``start``, ``wait`` and ``stop`` for one thread.

    Nothing ends it but ``stop``, and a source that turns out to be the target itself: unavailable brokers are tried
    again for ever. See ``fastlog.mirror.records`` for how each record comes once.
    """

    def __init__(self, config: MirrorConfig) -> None:
        self.config = config
        self.sources = [RecordSource(source, config) for source in config.sources]

    def start(self) -> None:
        """Start the threads of every source; returns at once."""
        for source in self.sources:
            source.start()

    def wait(self, seconds: float) -> None:
        """Return after ``seconds``.

        Raises:
            FastlogError: it cannot go on: a source is the target itself.
        """
        deadline = time.monotonic() + seconds
        while True:
            for source in self.sources:
                if source.fatal is not None:
                    raise source.fatal
            left = deadline - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, 0.1))

    def stop(self, seconds: float = 10.0) -> list[str]:
        """Take nothing more, wait for what is under way, write it down, leave; a line for what was left undone."""
        for source in self.sources:
            source.hold()
        deadline = time.monotonic() + seconds
        left = []
        for source in self.sources:
            undone = source.stop(max(0.1, deadline - time.monotonic()))
            if undone is not None:
                left.append(f"{source.name}: {undone}")
        return left


def _add(to: dict[str, Counts], counted: dict[str, Any]) -> None:
    for topic, counts in list(counted.items()):
        into = to.setdefault(topic, Counts())
        into.entries += counts.entries
        into.bytes += counts.bytes
        into.left_out += counts.left_out
