"""A worker of a mirror of record batches, turn by turn: brokers that answer, are silent, refuse or go away."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from fastlog.client import record_requests
from fastlog.client.addresses import Address
from fastlog.client.kafka_fields import Place
from fastlog.client.record_fetching import Batches
from fastlog.client.record_requests import Appended
from fastlog.client.records import RecordsError
from fastlog.errors import FastlogError, ProtocolError, TransportError
from fastlog.limited_log import LimitedLog
from fastlog.mirror.records import worker as module
from fastlog.mirror.records.cluster import NoLeaderError
from fastlog.mirror.records.finding import StandstillError
from fastlog.mirror.records.lane import RecordLane
from fastlog.mirror.records.place import PlaceLostError
from fastlog.mirror.records.position import PositionError
from fastlog.mirror.records.worker import IN_FLIGHT, Worker
from fastlog.record_batches import BatchHeader
from tests.harness.timing import PATIENCE
from tests.unit.test_mirror_batches import batch
from tests.unit.test_mirror_record_lane import Clock, damaged, position, rules

ONE, TWO = Address("h", 1), Address("h", 2)
T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)
TIMEOUT = 2.0
TOO_LARGE, NOT_LEADER, STALE = 10, 6, 3


class Connection:
    """A broker at the other end, which answers when a test says what."""

    def __init__(self, address: Address) -> None:
        self.peer = str(address)
        self.sent: list[dict[Any, Any]] = []
        self.answers: deque[Any] = deque()
        self.refuses: TransportError | None = None
        self.waited: list[float] = []
        self.when_silent: Any = None

    def send(self, request: Any) -> int:
        if self.refuses is not None:
            raise self.refuses
        self.sent.append(request)
        return len(self.sent)

    def received_view(self, seconds: float) -> Any:
        self.waited.append(seconds)
        if not self.answers:
            if self.when_silent is not None:
                self.when_silent()
            return None
        return self._next()

    def received(self, number: int, seconds: float) -> Any:
        assert seconds == TIMEOUT
        return self._next() if self.answers else None

    def _next(self) -> Any:
        found = self.answers.popleft()
        if isinstance(found, FastlogError):
            raise found
        return found


class Side:
    """One side of the mirror: which broker leads what, and the connections to them."""

    def __init__(self) -> None:
        self.timeout = TIMEOUT
        self.addresses = [ONE, TWO]
        self.view = "nothing"
        self.leaders: dict[Place, Address] = dict.fromkeys((T0, T1, U0), ONE)
        self.at: dict[Address, Connection] = {}
        self.looked: list[set[str]] = []
        self.dropped: list[Address] = []
        self.error: FastlogError | None = None
        self.ids = 0
        self.closed = 0

    def look(self, topics: Iterable[str]) -> str:
        self.looked.append(set(topics))
        if self.error is not None:
            raise self.error
        self.view = f"view {len(self.looked)}"
        return self.view

    def leader(self, place: Place) -> Address:
        if place not in self.leaders:
            raise NoLeaderError("nobody leads it")
        return self.leaders[place]

    def topic(self, name: str) -> Any:
        class Found:
            id = name.encode()

        return Found

    def connection(self, address: Address) -> Connection:
        return self.at.setdefault(address, Connection(address))

    def drop(self, address: Address, connection: Connection | None = None) -> None:
        assert connection in (None, self.at.get(address))
        self.dropped.append(address)

    def new_producer(self) -> tuple[int, int]:
        self.ids += 1
        return 77, self.ids

    def close(self) -> None:
        self.closed += 1


class Group:
    """Where positions are written down."""

    def __init__(self) -> None:
        self.committed: list[dict[Place, Any]] = []
        self.error: FastlogError | None = None

    def commit(self, offsets: dict[Place, Any]) -> None:
        if self.error is not None:
            raise self.error
        self.committed.append(dict(offsets))


class Way:
    """A worker, both sides of it, and what ``find`` says of each partition."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
        self.source, self.questions, self.target, self.group = Side(), Side(), Side(), Group()
        self.found: dict[Place, Any] = {}
        self.asked: list[tuple[Place, Any]] = []
        self.requests: list[dict[Place, tuple[int, int, int]]] = []
        """Of each request to the target, by partition: the numbers of its producer, and its first number."""
        monkeypatch.setattr(module, "RecordCluster", lambda addresses, timeout: self.questions)
        monkeypatch.setattr(module, "find", self._find)
        monkeypatch.setattr(module, "tagged_answer", lambda body, number: body)
        monkeypatch.setattr(module, "parse_several", _checked)
        monkeypatch.setattr(module, "fetch_several", lambda places, **options: {"places": places, **options})
        monkeypatch.setattr(record_requests, "parse_appended", _checked)
        monkeypatch.setattr(record_requests, "produce", self._produce)
        sides: Any = self.source, self.target, self.group
        source, target, given = sides
        self.worker = Worker("w", source, target, given, rules(**changes))

    def _find(self, place: Place, source: object, target: object, group: object, producer: Any, given: Any) -> Any:
        assert (source, target, group) == (self.questions, self.target, self.group)
        self.asked.append((place, producer))
        found = self.found.get(place, (position(), 0))
        if isinstance(found, Exception):
            raise found
        return found

    def _produce(self, batches: dict[Place, bytes], *, acks: int, timeout_ms: int) -> dict[Place, bytes]:
        assert (acks, timeout_ms) == (-1, 1800)
        self.requests.append({})
        for place, data in batches.items():
            header = BatchHeader.parse(bytes(data))
            self.requests[-1][place] = header.producer_id, header.producer_epoch, header.base_sequence
        return dict(batches)

    @property
    def from_source(self) -> Connection:
        return self.source.connection(ONE)

    @property
    def to_target(self) -> Connection:
        return self.target.connection(ONE)

    def lane(self, place: Place = T0) -> RecordLane:
        return next(lane for lane in self.worker.lanes if lane.place == place)

    def begin(self, *places: Place) -> None:
        """The first turn: where partitions go on is found, and what follows is asked for."""
        self.worker.wanted = places
        self.worker.turn()

    def brings(self, *found: tuple[Place, bytes], code: int = 0, end: int = 100) -> None:
        """What the source answers next."""
        rows = [((place[0].encode(), place[1]), Batches(0, end, 0, memoryview(data)), ()) for place, data in found]
        self.from_source.answers.append((code, rows))

    def stores(self, *found: tuple[Place, int, int]) -> None:
        """What the target answers next: partition, error code, offset."""
        self.to_target.answers.append({place: Appended(code, offset) for place, code, offset in found})


def _checked(body: Any) -> Any:
    if isinstance(body, str):
        raise ProtocolError(body)
    return body


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Of lanes and workers: it goes on by a second with each answer that does not come."""
    from fastlog.mirror.records import lane

    made = Clock()
    monkeypatch.setattr(lane, "time", made)
    monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(module, "log", LimitedLog(logging.getLogger(module.__name__)))
    monkeypatch.setattr(module, "_IDLE_SECONDS", 0.0)
    monkeypatch.setattr(module, "_PAUSE_SECONDS", 0.0)
    return made


@pytest.fixture
def way(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Iterator[Way]:
    made = Way(monkeypatch)

    def later() -> None:
        clock.now += 1

    made.from_source.when_silent = later
    yield made


# -- which partitions --------------------------------------------------------------------------------------------------


def test_partitions_come_and_go(way: Way) -> None:
    """Brokers are looked at when there are others; a producer is asked for once."""
    way.worker.turn()
    assert way.questions.looked == way.target.looked == [] and way.target.ids == 0
    way.begin(T0, U0)
    assert way.questions.looked == way.target.looked == [{"t", "u"}]
    assert way.source.view == "view 1" and way.source.looked == []
    assert way.asked == [(T0, (77, 1)), (U0, (77, 1))]
    way.brings()
    way.worker.turn()
    assert len(way.questions.looked) == 1
    way.brings()
    way.begin(U0, T1)
    assert {lane.place for lane in way.worker.lanes} == {U0, T1}
    assert len(way.questions.looked) == 2 and way.asked[2:] == [(T1, (77, 1))]
    way.brings()
    way.begin(U0)
    assert {lane.place for lane in way.worker.lanes} == {U0} and len(way.questions.looked) == 2


@pytest.mark.parametrize(
    ("error", "pause", "looks"),
    [
        (StandstillError("somebody has to decide"), 5.0, False),
        (PositionError("damaged"), 5.0, False),
        (TransportError("away"), 0.02, True),
    ],
)
def test_what_cannot_go_on_is_tried_again_after_a_pause(
    way: Way, clock: Clock, error: FastlogError, pause: float, looks: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Others go on. Where a broker may be at fault, it is looked again which there are."""
    way.found[T0] = error
    with caplog.at_level(logging.WARNING):
        way.begin(T0, T1)
    assert str(way.lane().error) == f"topic t, partition 0: {error}" and way.lane(T1).error is None
    assert "source=w waits: " in caplog.text and str(error) in caplog.text
    assert [sorted(sent["places"]) for sent in way.from_source.sent] == [[(b"t", 1)]]
    clock.now += pause * 0.7
    for _ in range(2):
        way.brings((T1, b""))
        way.worker.turn()
    assert [place for place, _ in way.asked] == [T0, T1]
    assert len(way.questions.looked) == (2 if looks else 1)
    del way.found[T0]
    clock.now += pause
    way.brings((T1, b""))
    way.worker.turn()
    assert [place for place, _ in way.asked] == [T0, T1, T0] and way.lane().is_ready


def test_a_place_that_is_lost_ends_everything(way: Way) -> None:
    way.found[T0] = PlaceLostError("lost", 22)
    with pytest.raises(PlaceLostError):
        way.begin(T0, T1)
    assert [place for place, _ in way.asked] == [T0]


# -- from the source ---------------------------------------------------------------------------------------------------


def test_each_leader_is_asked_for_all_that_it_leads(way: Way) -> None:
    """Once at a time; and in each turn another partition is the first."""
    way.source.leaders[U0] = TWO
    way.begin(T0, T1, U0)
    (first,) = way.from_source.sent
    assert first == {
        "places": {(b"t", 0): 0, (b"t", 1): 0},
        "max_wait_ms": 250,
        "min_bytes": 1,
        "max_bytes": 16 << 20,
        "partition_bytes": 1 << 20,
        "only_committed": True,
    }
    assert [list(sent["places"]) for sent in way.source.at[TWO].sent] == [[(b"u", 0)]]
    orders = [list(first["places"])]
    for _ in range(3):
        way.brings((T0, b""), (T1, b""))
        way.source.at[TWO].answers.append((0, []))
        way.worker.turn()
        orders.append(list(way.from_source.sent[-1]["places"]))
    assert orders[0] == orders[2] != orders[1] == orders[3]
    assert way.lane().end == way.lane(T1).end == 100 and way.lane(U0).end == -1


def test_a_partition_that_nobody_leads_waits_alone(way: Way, clock: Clock) -> None:
    del way.source.leaders[T0]
    way.begin(T0, T1)
    assert list(way.from_source.sent[0]["places"]) == [(b"t", 1)]
    assert "nobody leads it" in str(way.lane().error) and not way.lane().is_ready
    way.source.leaders[T0] = ONE
    clock.now += 1
    way.brings((T1, b""))
    way.worker.turn()
    assert len(way.questions.looked) == 2
    assert set(way.from_source.sent[1]["places"]) == {(b"t", 0), (b"t", 1)}


def test_an_answer_is_waited_for_as_long_as_it_may_take(way: Way, clock: Clock) -> None:
    way.begin(T0)
    before = clock.now
    way.worker.turn()
    assert clock.now - before == TIMEOUT and set(way.from_source.waited) == {0.5}
    assert "did not answer in time" in str(way.lane().error)
    assert way.source.dropped == [ONE] and way.lane().position is None
    clock.now += 1
    way.worker.turn()
    assert len(way.questions.looked) == 2 and len(way.from_source.sent) == 2


@pytest.mark.parametrize("said", [TransportError("broken"), "no answer"])
def test_what_fails_at_the_source_is_asked_again(way: Way, clock: Clock, said: Any) -> None:
    """Of the partitions that were asked for, but for those that have something to send."""
    way.begin(T0, T1)
    way.brings((T0, b""), (T1, b""))
    way.worker.turn()
    way.from_source.answers.append(said)
    way.worker.turn()
    assert way.source.dropped == [ONE]
    assert way.lane().position is None is way.lane(T1).position
    assert str(said) in str(way.lane().error)
    clock.now += 1
    way.worker.turn()
    assert len(way.questions.looked) == 2 and len(way.from_source.sent) == 3


def test_a_connection_that_cannot_be_made_is_one_that_fails(way: Way, clock: Clock) -> None:
    way.from_source.refuses = TransportError("refused")
    way.begin(T0)
    assert way.source.dropped == [ONE] and "refused" in str(way.lane().error)
    way.from_source.refuses = None
    clock.now += 1
    way.worker.turn()
    assert len(way.from_source.sent) == 1


@pytest.mark.parametrize("of_all", [True, False])
def test_what_the_source_refuses_waits(way: Way, clock: Clock, of_all: bool) -> None:
    """One partition, or all that were asked for; brokers are looked at again."""
    way.begin(T0, T1)
    row = (b"t", 0), Batches(0 if of_all else NOT_LEADER, -1, -1, memoryview(b"")), ()
    way.from_source.answers.append((STALE if of_all else 0, [row]))
    way.worker.turn()
    assert "source: " in str(way.lane().error) and (way.lane(T1).error is not None) is of_all
    clock.now += 1
    way.from_source.answers.append((0, []))
    way.worker.turn()
    assert len(way.questions.looked) == 2


def test_an_answer_to_what_was_asked_before_does_not_count(way: Way, clock: Clock) -> None:
    """It is of another turn of its partition: what it brings may be there already."""
    way.begin(T0)
    way.lane().again(TransportError("meanwhile"), 0.0)
    way.brings((T0, batch(0, 3)))
    way.worker.turn()
    assert not way.to_target.sent and not way.lane().has_plan and way.lane().end == -1
    way.lane().offset = 5
    way.brings((T0, batch(0, 3)))
    way.worker.turn()
    assert not way.to_target.sent and way.lane().end == -1


def test_nothing_is_taken_while_a_partition_waits(way: Way, clock: Clock) -> None:
    """Damage is looked at again after a pause."""
    way.begin(T0)
    way.lane()._due = clock.now + 1
    way.brings((T0, batch(0, 3)))
    way.worker.turn()
    assert not way.to_target.sent and not way.lane().has_plan


# -- to the target -----------------------------------------------------------------------------------------------------


def test_what_comes_is_written_down_then_sent_then_counted(way: Way) -> None:
    """And what follows is asked for before it is sent."""
    way.begin(T0)
    way.brings((T0, batch(0, 3)))
    way.stores((T0, 0, 40))
    way.worker.turn()
    sizes = [len(data) for sent in way.to_target.sent for data in sent.values()]
    assert set(way.group.committed[0]) == {T0}
    assert way.requests == [{T0: (5, 0, 0)}]
    assert len(way.from_source.sent) == 2 and list(way.from_source.sent[1]["places"].values()) == [3]
    counts = way.worker.counts["t"]
    assert (counts.entries, counts.bytes, counts.left_out) == (3, sizes[0], 0)
    found = way.lane().position
    assert found is not None and (found.count, found.target_offset) == (3, 43)


def test_nothing_is_sent_that_is_not_written_down(way: Way, caplog: pytest.LogCaptureFixture) -> None:
    way.begin(T0)
    way.group.error = RecordsError("no", 16)
    way.brings((T0, batch(0, 3)))
    with caplog.at_level(logging.WARNING):
        way.worker.turn()
    assert not way.to_target.sent and "source=w waits: no" in caplog.text
    assert way.worker.error is way.group.error and way.lane().has_plan
    way.group.error = None
    way.stores((T0, 0, 0))
    way.worker.turn()
    assert len(way.to_target.sent) == 1 and not way.lane().has_plan
    way.group.error = PlaceLostError("lost", 22)
    way.brings((T0, batch(3, 1)))
    with pytest.raises(PlaceLostError):
        way.worker.turn()
    assert len(way.to_target.sent) == 1


def test_positions_are_written_down_from_time_to_time(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    way = Way(monkeypatch, commit_seconds=10.0)
    way.begin(T0)
    way.brings((T0, batch(0, 3)))
    way.stores((T0, 0, 0))
    way.worker.turn()
    before = len(way.group.committed)
    for passed, more in ((9.9, 0), (0.1, 1), (9.9, 1), (0.1, 1)):
        clock.now += passed
        way.brings((T0, b""))
        way.worker.turn()
        assert len(way.group.committed) == before + more, "not again what stands there"
    assert way.group.committed[-1][T0].offset == 3


def test_each_partition_goes_to_its_leader(way: Way) -> None:
    """Those of one leader in one request; a partition waits that has no leader, or one that cannot be reached."""
    way.target.leaders[U0] = TWO
    way.begin(T0, T1, U0)
    way.brings((T0, batch(0, 1)), (T1, batch(0, 2)), (U0, batch(0, 3)))
    way.stores((T0, 0, 0), (T1, 0, 0))
    way.target.connection(TWO).answers.append({U0: Appended(0, 0)})
    way.worker.turn()
    assert [set(sent) for sent in way.to_target.sent] == [{T0, T1}]
    assert [set(sent) for sent in way.target.connection(TWO).sent] == [{U0}]
    assert {topic: counts.entries for topic, counts in way.worker.counts.items()} == {"t": 3, "u": 3}
    del way.target.leaders[T0]
    way.target.connection(TWO).refuses = TransportError("refused")
    way.brings((T0, batch(1, 1)), (T1, batch(2, 1)), (U0, batch(3, 1)))
    way.stores((T1, 0, 2))
    way.worker.turn()
    assert "nobody leads it" in str(way.lane(T0).error) and "refused" in str(way.lane(U0).error)
    assert way.target.dropped == [TWO] and way.lane(T1).error is None
    assert way.worker.counts["t"].entries == 4


def test_so_many_requests_are_under_way(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """As a broker knows again of one producer; the first of them alone."""
    size = len(batch(0, 1))
    way = Way(monkeypatch, most_bytes=size)
    under_way: list[int] = []
    received = Connection.received

    def counted(self: Connection, number: int, seconds: float) -> Any:
        under_way.append(len(way.to_target.sent) - len(under_way))
        way.to_target.answers.append({T0: Appended(0, len(under_way) - 1)})
        return received(self, number, seconds)

    monkeypatch.setattr(Connection, "received", counted)
    way.begin(T0)
    way.brings((T0, batch(0, 12)))
    way.worker.turn()
    assert [numbers[T0][2] for numbers in way.requests] == list(range(12))
    assert under_way == [1, *[IN_FLIGHT] * 7, 4, 3, 2, 1]
    assert way.worker.counts["t"].entries == 12


def test_a_request_is_no_larger_than_it_may_be(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """But for one batch that is larger alone."""
    size = len(batch(0, 1))
    for most, requests in ((2 * size, [{T0, T1}, {U0}]), (2 * size - 1, [{T0}, {T1}, {U0}]), (1, [{T0}, {T1}, {U0}])):
        way = Way(monkeypatch)
        monkeypatch.setattr(module, "_REQUEST_BYTES", most)
        way.begin(T0, T1, U0)
        way.brings((T0, batch(0, 1)), (T1, batch(0, 1)), (U0, batch(0, 1)))
        for places in requests:
            way.stores(*((place, 0, 0) for place in places))
        way.worker.turn()
        assert [set(sent) for sent in way.to_target.sent] == requests


@pytest.mark.parametrize("said", [None, TransportError("broken"), "no answer"])
def test_what_fails_at_the_target_is_found_out_anew(way: Way, clock: Clock, said: Any) -> None:
    way.begin(T0)
    way.brings((T0, batch(0, 3)))
    if said is not None:
        way.to_target.answers.append(said)
    way.worker.turn()
    assert way.target.dropped == [ONE] and way.lane().position is None
    assert ("did not answer in time" if said is None else str(said)) in str(way.lane().error)
    assert way.worker.counts == {}
    clock.now += 1
    way.brings((T0, batch(0, 3)))  # of the turn before
    way.worker.turn()
    assert [place for place, _ in way.asked] == [T0, T0] and len(way.questions.looked) == 2
    way.brings((T0, batch(0, 3)))
    way.stores((T0, 0, 0))
    way.worker.turn()
    assert way.worker.counts["t"].entries == 3 and way.lane().error is None


@pytest.mark.parametrize("rows", [[], [(T0, 0, -1)]], ids=["nothing", "no offset"])
def test_an_answer_that_does_not_say_where_it_is(way: Way, rows: list[Any]) -> None:
    """Of one partition; another one of the request goes on."""
    way.begin(T0, T1)
    way.brings((T0, batch(0, 3)), (T1, batch(0, 2)))
    way.stores(*rows, (T1, 0, 0))
    way.worker.turn()
    assert "does not say where it has put a batch" in str(way.lane().error)
    assert way.lane().position is None and way.lane(T1).position is not None
    assert way.worker.counts["t"].entries == 2


def test_what_the_target_refuses_is_told(way: Way, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    way.begin(T0)
    way.brings((T0, batch(0, 3)))
    way.stores((T0, NOT_LEADER, -1))
    with caplog.at_level(logging.WARNING):
        way.worker.turn()
    assert "target: " in str(way.lane().error) and "source=w waits: topic t, partition 0: target: " in caplog.text
    assert way.worker.counts == {} and way.target.dropped == []
    clock.now += 1
    way.worker.turn()
    assert len(way.target.looked) == 2


def test_answers_to_what_was_given_up_do_not_count(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """One of several that are under way is refused: those behind it are asked for again, whatever becomes of them."""
    way = Way(monkeypatch, most_bytes=len(batch(0, 1)))
    way.begin(T0)
    way.brings((T0, batch(0, 4)))
    for code, offset in ((0, 0), (NOT_LEADER, -1), (0, 2), (NOT_LEADER, -1)):
        way.stores((T0, code, offset))
    way.worker.turn()
    assert len(way.to_target.sent) == 4 and way.worker.counts["t"].entries == 1
    assert way.lane().position is None and way.lane()._failures == 1


def test_a_connection_that_breaks_gives_up_what_is_under_way_once(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    way = Way(monkeypatch, most_bytes=len(batch(0, 1)))
    way.begin(T0)
    way.brings((T0, batch(0, 4)))
    way.stores((T0, 0, 0))
    way.to_target.answers += [TransportError("broken")] * 3
    way.worker.turn()
    assert way.lane()._failures == 1 and way.worker.counts["t"].entries == 1
    assert way.target.dropped == [ONE] * 3


def test_what_is_left_out_is_counted_and_named(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """What the source has damaged, and what the target refuses alone."""
    way = Way(monkeypatch, leaves_out=True)
    way.begin(T0)
    way.brings((T0, damaged(0, 2) + batch(2, 1)))
    with caplog.at_level(logging.ERROR):
        for _ in range(4):
            if not way.from_source.answers:
                way.brings((T0, damaged(0, 2) + batch(2, 1) if way.lane().offset < 2 else batch(2, 1)))
            way.stores((T0, TOO_LARGE, -1))
            way.worker.turn()
            way.to_target.answers.clear()
            if "t" in way.worker.counts and way.worker.counts["t"].left_out == 2:
                break
    assert (way.worker.counts["t"].left_out, way.worker.counts["t"].entries) == (2, 0)
    assert caplog.text.count("left out source=w") == 2 and way.lane().left_out == []


# -- its life ----------------------------------------------------------------------------------------------------------


def run(way: Way) -> None:
    """Its thread, which comes to an end by itself."""
    way.worker.start()
    assert way.worker.join(PATIENCE)


def closed(way: Way) -> bool:
    return way.source.closed == way.questions.closed == way.target.closed == 1


def test_who_is_stopped_writes_down_where_it_is(way: Way, clock: Clock) -> None:
    """All that was acknowledged; what is under way is not waited for."""
    way.worker.wanted = [T0]
    way.brings((T0, batch(0, 3)))
    way.stores((T0, 0, 0))
    way.worker._commit_due = clock.now + 1000
    way.from_source.when_silent = way.worker.stop
    run(way)
    assert not way.worker.is_lost and way.worker.error is None and closed(way)
    assert way.group.committed[-1][T0].offset == 3
    assert clock.now == 1000.0


def test_who_is_stopped_while_nothing_can_be_written_down_says_so(way: Way) -> None:
    way.worker.wanted = [T0]

    def stopped() -> None:
        way.group.error = PlaceLostError("lost", 22)
        way.worker.stop()

    way.brings((T0, batch(0, 3)))
    way.stores((T0, 0, 0))
    way.worker._commit_due = 10.0**9
    way.from_source.when_silent = stopped
    run(way)
    assert way.worker.is_lost and closed(way)


def test_whose_place_is_lost_ends_by_itself(way: Way) -> None:
    way.worker.wanted = [T0]
    way.found[T0] = PlaceLostError("lost", 22)
    run(way)
    assert way.worker.is_lost and closed(way) and way.group.committed == []


def test_what_concerns_all_is_tried_again(
    way: Way, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And is over with the first turn that works; brokers are looked at again."""
    way.worker.wanted = [T0]
    way.target.error = TransportError("away")
    way.brings()
    way.brings()
    turns: list[FastlogError | None] = []
    turn = Worker.turn

    def counted(self: Worker) -> None:
        turns.append(self.error)
        if len(turns) == 3:
            way.target.error = None
        if len(turns) == 5:
            self.stop()
        turn(self)

    monkeypatch.setattr(Worker, "turn", counted)
    with caplog.at_level(logging.WARNING):
        run(way)
    assert turns[0] is None and turns[1] is turns[2] is not None and turns[3] is None
    assert "source=w waits: away" in caplog.text
    assert len(way.target.looked) == 3 and not way.worker.is_lost


def test_a_fault_ends_it_and_is_told(way: Way, caplog: pytest.LogCaptureFixture) -> None:
    way.worker.wanted = [T0]
    way.found[T0] = ZeroDivisionError("a fault")
    run(way)
    assert way.worker.is_lost and closed(way) and "mirroring" in caplog.text
    assert "mirroring failed: ZeroDivisionError('a fault')" in str(way.worker.error)
