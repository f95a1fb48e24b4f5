"""A thread that forwards some of the partitions of a source, all of them in one turn: fetch, write down, append."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable
from typing import NamedTuple

from fastlog.client import record_requests as requests
from fastlog.client.addresses import Address
from fastlog.client.group_requests import Committed
from fastlog.client.kafka_connection import KafkaConnection
from fastlog.client.kafka_fields import Place, tagged_answer
from fastlog.client.record_fetching import Batches, IdPlace, fetch_several, parse_several
from fastlog.errors import FastlogError, ProtocolError, TransportError
from fastlog.limited_log import LimitedLog
from fastlog.mirror.records.batches import numbered
from fastlog.mirror.records.cluster import NoLeaderError, RecordCluster
from fastlog.mirror.records.finding import Rules, StandstillError, find
from fastlog.mirror.records.lane import RecordLane, Sent
from fastlog.mirror.records.place import GroupPlace, PlaceLostError
from fastlog.mirror.records.position import PositionError
from fastlog.mirror.totals import Counts

log = LimitedLog(logging.getLogger(__name__))

IN_FLIGHT = 5
"""Requests under way on one connection: as many batches as a broker remembers of a producer."""
_REQUEST_BYTES = 8 * 2**20
_ROUND_BYTES = 16 * 2**20
_HOLD_MS = 250
_IDLE_SECONDS = 0.05
_LOOK_SECONDS = 0.5
_PAUSE_SECONDS = 0.25
_STANDSTILL_SECONDS = 5.0


_NOTHING = Batches(0, -1, -1, memoryview(b""))
"""Stands for a partition that is missing in an answer."""


class _Asked(NamedTuple):
    """A fetch request whose answer has not come yet."""

    connection: KafkaConnection
    number: int
    lanes: dict[IdPlace, tuple[RecordLane, int, int]]


class _Request(NamedTuple):
    """A produce request whose answer has not come yet."""

    address: Address
    connection: KafkaConnection
    number: int
    sent: list[Sent]


class Worker:
    """Forwards the partitions that ``wanted`` names, from ``start`` until ``stop``, or until its place is lost."""

    def __init__(
        self, name: str, source: RecordCluster, target: RecordCluster, group: GroupPlace, rules: Rules
    ) -> None:
        self.wanted: Collection[Place] = ()
        """The partitions to forward; any thread may replace the collection."""
        self.counts: dict[str, Counts] = {}
        """By topic, since the start. Written by this worker alone."""
        self.is_lost = False
        """Whether the group rebalances, or has done so without this member."""
        self.error: FastlogError | None = None
        self._name = name
        self._source = source
        self._questions = RecordCluster(source.addresses, source.timeout)
        """The same brokers over connections of their own: on the others a fetch is nearly always under way."""
        self._target = target
        self._group = group
        self._rules = rules
        self._lanes: dict[Place, RecordLane] = {}
        self._asked: dict[Address, _Asked] = {}
        self._producer: tuple[int, int] | None = None
        self._looks = True
        self._commit_due = 0.0
        self._turns = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"fastlog-mirror-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Finish what is under way, write down where it is, and end."""
        self._over.set()

    def join(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for the thread; whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def lanes(self) -> list[RecordLane]:
        """The partitions that are forwarded now; for any thread to look at."""
        return list(self._lanes.values())

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._over.is_set() and not self.is_lost:
                try:
                    self.turn()
                    self.error = None
                except PlaceLostError:
                    raise
                except FastlogError as error:
                    self.error = error
                    self._looks = True
                    self._warn("all", error)
                    self._over.wait(_PAUSE_SECONDS)
            if not self.is_lost:
                self._keep(self._lanes.values(), only_planned=False)
        except PlaceLostError:
            self.is_lost = True
        except FastlogError as error:
            self.error = error
        except Exception as error:
            logging.getLogger(__name__).exception("mirroring")
            self.error = FastlogError(f"mirroring failed: {error!r}")
        finally:
            self.is_lost = self.is_lost or not self._over.is_set()
            for cluster in (self._source, self._questions, self._target):
                cluster.close()

    def turn(self) -> None:
        """Everything once. Raises ``FastlogError``: something that concerns all partitions."""
        self._adopt()
        self._find_due()
        self._collect()
        self._ask_ahead()
        if self._keep(self._lanes.values(), only_planned=True):
            self._write()
        if time.monotonic() >= self._commit_due:
            self._keep(self._lanes.values(), only_planned=False)
            self._commit_due = time.monotonic() + self._rules.commit_seconds
        if not self._asked:
            self._over.wait(_IDLE_SECONDS)

    def _adopt(self) -> None:
        wanted = self.wanted
        for place in wanted:
            if place not in self._lanes:
                self._lanes[place] = RecordLane(place, self._rules)
                self._looks = True
        for place in self._lanes.keys() - set(wanted):
            del self._lanes[place]
        if self._looks and self._lanes:
            topics = {topic for topic, _ in self._lanes}
            self._source.view = self._questions.look(topics)
            self._target.look(topics)
            self._looks = False

    def _find_due(self) -> None:
        now = time.monotonic()
        for lane in self._lanes.values():
            if self._over.is_set() or not lane.is_due(now):
                continue
            try:
                if self._producer is None:
                    self._producer = self._target.new_producer()
                lane.begin(*find(lane.place, self._questions, self._target, self._group, self._producer, self._rules))
            except PlaceLostError:
                raise
            except (StandstillError, PositionError) as error:
                lane.again(error, _STANDSTILL_SECONDS)
                self._tell(lane)
            except FastlogError as error:
                self._looks = True
                lane.again(error)
                self._tell(lane)

    # -- from the source -----------------------------------------------------------------------------------------------

    def _ask_ahead(self) -> None:
        """Ask for what follows, of every partition that has nothing left to send but what is about to be."""
        by_leader: dict[Address, list[RecordLane]] = {}
        for lane in self._lanes.values():
            if lane.is_ready:
                try:
                    by_leader.setdefault(self._source.leader(lane.place), []).append(lane)
                except NoLeaderError as error:
                    self._looks = True
                    lane.again(error)
        self._turns += 1
        for address, lanes in by_leader.items():
            if address in self._asked:
                continue
            first = self._turns % len(lanes)  # each is the first one some time: only that is sure to get something
            asked: dict[IdPlace, tuple[RecordLane, int, int]] = {}
            for lane in [*lanes[first:], *lanes[:first]]:
                asked[self._source.topic(lane.place[0]).id, lane.place[1]] = lane, lane.turn, lane.offset
            request = fetch_several(
                {key: offset for key, (_, _, offset) in asked.items()},
                max_wait_ms=_HOLD_MS, min_bytes=1, max_bytes=_ROUND_BYTES,
                partition_bytes=self._rules.fetch_bytes, only_committed=True,
            )  # fmt: skip
            try:
                connection = self._source.connection(address)
                self._asked[address] = _Asked(connection, connection.send(request), asked)
            except TransportError as error:
                self._source_fails(address, error, lanes)

    def _collect(self) -> None:
        """What has come of what was asked for."""
        for address, asked in list(self._asked.items()):
            del self._asked[address]
            try:
                body = self._answer_to(asked)
                if body is None:
                    return  # it ends
                code, found = parse_several(tagged_answer(body, asked.number))
            except (TransportError, ProtocolError) as error:
                self._source_fails(address, error, [lane for lane, _, _ in asked.lanes.values()])
                continue
            of_place = {key: (batches, aborted) for key, batches, aborted in found}
            for key, (lane, turn, offset) in asked.lanes.items():
                if lane.turn != turn or lane.offset != offset or lane.has_plan or not lane.is_ready:
                    continue
                batches, aborted = of_place.get(key, (_NOTHING, ()))
                if code or batches.code:
                    self._looks = True
                    lane.refused_by_source(code or batches.code)
                    self._tell(lane)
                elif batches is not _NOTHING:
                    lane.end = batches.high_watermark
                    lane.take(batches.data, aborted)
                    self._count_left_out(lane)

    def _answer_to(self, asked: _Asked) -> memoryview | None:
        """What was answered; None where this worker is to end."""
        deadline = time.monotonic() + self._source.timeout
        while time.monotonic() < deadline:
            body = asked.connection.received_view(_LOOK_SECONDS)
            if body is not None or self._over.is_set():
                return body
        raise TransportError(f"{asked.connection.peer} did not answer in time")

    def _source_fails(self, address: Address, error: FastlogError, lanes: Iterable[RecordLane]) -> None:
        self._source.drop(address)
        self._looks = True
        for lane in lanes:
            if lane.position is not None and not lane.has_plan:
                lane.again(error)
                self._tell(lane)

    # -- to the target -------------------------------------------------------------------------------------------------

    def _keep(self, lanes: Iterable[RecordLane], *, only_planned: bool) -> bool:
        """Write positions down: those without which nothing may be sent, or all. False: it cannot be done now."""
        found = {}
        for lane in lanes:
            position = None
            if not only_planned:
                position = lane.position_to_keep()
            elif lane.has_to_keep:
                position = lane.position_to_send
            if position is not None:
                found[lane] = position
        if not found:
            return True
        try:
            self._group.commit(
                {lane.place: Committed(position.target_offset, position.text) for lane, position in found.items()}
            )
        except PlaceLostError:
            raise
        except FastlogError as error:
            self.error = error
            self._warn("positions", error)
            self._over.wait(_PAUSE_SECONDS)
            return False
        for lane, position in found.items():
            lane.kept(position)
        return True

    def _write(self) -> None:
        """Append what is planned, several requests to each broker at a time, until all is answered."""
        by_leader: dict[Address, list[RecordLane]] = {}
        for lane in self._lanes.values():
            if lane.has_plan:
                try:
                    by_leader.setdefault(self._target.leader(lane.place), []).append(lane)
                except NoLeaderError as error:
                    self._target_fails(error, [lane])
        waiting: deque[_Request] = deque()
        on_its_way: Counter[Address] = Counter()
        while True:
            has_sent = False
            for address, lanes in by_leader.items():
                if on_its_way[address] < IN_FLIGHT:
                    request = self._send(address, lanes)
                    if request is not None:
                        waiting.append(request)
                        on_its_way[address] += 1
                        has_sent = True
            if has_sent:
                continue
            if not waiting:
                return
            request = waiting.popleft()
            on_its_way[request.address] -= 1
            self._answered(request)

    def _send(self, address: Address, lanes: list[RecordLane]) -> _Request | None:
        """Send the next batch of each of these partitions, as far as there are any and one request may be large."""
        sent: list[Sent] = []
        size = 0
        for lane in lanes:
            if lane.may_send and (not sent or size + lane.next_bytes <= _REQUEST_BYTES):
                size += lane.next_bytes
                sent.append(lane.next_to_send())
        if not sent:
            return None
        batches = {}
        for one in sent:
            position = one.lane.position
            assert position is not None
            batches[one.lane.place] = numbered(one.batch, position.producer, position.epoch, one.number)
        request = requests.produce(batches, acks=-1, timeout_ms=round(self._target.timeout * 900))
        try:
            connection = self._target.connection(address)
            return _Request(address, connection, connection.send(request), sent)
        except TransportError as error:
            self._target.drop(address)
            self._target_fails(error, [one.lane for one in sent])
            return None

    def _answered(self, request: _Request) -> None:
        try:
            found = request.connection.received(request.number, self._target.timeout)
            if found is None:
                raise TransportError(f"{request.connection.peer} did not answer in time")
            answers = requests.parse_appended(found)
        except (TransportError, ProtocolError) as error:
            self._target.drop(request.address, request.connection)
            self._target_fails(error, [one.lane for one in request.sent if one.lane.turn == one.turn])
            return
        for one in request.sent:
            if one.lane.turn != one.turn:
                continue
            result = answers.get(one.lane.place)
            if result is not None and not result.code and result.offset >= 0:
                one.lane.acknowledged(one, result.offset)
                self._count(one)
            elif result is None or not result.code:
                self._target_fails(ProtocolError("the target does not say where it has put a batch"), [one.lane])
            else:
                self._looks = True
                one.lane.refused(one, result.code)
                self._count_left_out(one.lane)
                self._tell(one.lane)

    def _target_fails(self, error: FastlogError, lanes: Iterable[RecordLane]) -> None:
        self._looks = True
        for lane in lanes:
            lane.again(error)
            self._tell(lane)

    # -- counts and log lines ------------------------------------------------------------------------------------------

    def _count(self, sent: Sent) -> None:
        counts = self.counts.setdefault(sent.lane.place[0], Counts())
        counts.entries += sent.batch.records
        counts.bytes += len(sent.batch.data)

    def _count_left_out(self, lane: RecordLane) -> None:
        while lane.left_out:
            error = lane.left_out.pop()
            self.counts.setdefault(lane.place[0], Counts()).left_out += 1
            logging.getLogger(__name__).error("left out source=%s %s", self._name, " ".join(str(error).split()))

    def _tell(self, lane: RecordLane) -> None:
        if lane.error is not None:
            self._warn(str(lane.place), lane.error)

    def _warn(self, kind: str, error: FastlogError) -> None:
        log.warning(f"{self._name} {kind}", "source=%s waits: %s", self._name, " ".join(str(error).split()))
