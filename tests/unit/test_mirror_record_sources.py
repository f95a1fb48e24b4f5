"""A source of a mirror of record batches without a broker: its topics, its place in the group, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from fastlog.client.addresses import Address
from fastlog.client.coordinator import CoordinatorError, NotReachedError
from fastlog.client.kafka_fields import Place
from fastlog.client.record_topics import ClusterView, LedTopic
from fastlog.client.records import RecordsError
from fastlog.errors import FastlogError, TransportError
from fastlog.mirror import MirrorConfig, MirrorSettings, SourceConfig, TargetConfig
from fastlog.mirror.records import RecordMirror
from fastlog.mirror.records import mirror as module
from fastlog.mirror.records.mirror import RecordSource
from fastlog.mirror.records.place import PlaceLostError, Share
from fastlog.mirror.totals import Counts
from tests.harness.timing import PATIENCE

HERE, THERE = Address("here", 1), Address("there", 2)
WORKERS = 3


def config(**settings: str) -> MirrorConfig:
    given = {"bootstrap.servers": "here:1", "groupid": "g", "session.timeout.ms": "9000", "heartbeat.interval.ms": "10"}
    wanted = {"mirror.topics.whitelist": "t.*|__own", "mirror.consumer.numthreads": str(WORKERS), **settings}
    return MirrorConfig(
        sources=(SourceConfig.from_properties("one", {**given, "metadata.max.age.ms": "20"}),),
        target=TargetConfig.from_properties({"bootstrap.servers": "there:2", "max.message.size": "5000"}),
        settings=MirrorSettings.from_properties({key: value for key, value in wanted.items() if value}),
    )


class Side:
    """The brokers of one side, and what was made there."""

    def __init__(self, address: Address, cluster: str, **topics: int) -> None:
        self.view = ClusterView(cluster, {0: address}, {})
        self.looks = 0
        self.error: Exception | None = None
        self.refuses: dict[str, RecordsError] = {}
        self.made: list[tuple[Any, ...]] = []
        self.settings_of: dict[str, tuple[str | None, bool]] = {}
        self.closed = 0
        for name, partitions in topics.items():
            self.add(name, partitions)

    def add(self, name: str, partitions: int, code: int = 0, *, is_internal: bool = False) -> None:
        self.view.topics[name] = LedTopic(code, b"", dict.fromkeys(range(partitions), 0), is_internal)

    def look(self, topics: Iterable[str] | None) -> ClusterView:
        assert topics is None
        self.looks += 1
        if self.error is not None:
            raise self.error
        return self.view

    def settings(self, topic: str) -> dict[str, Any]:
        return {name: SimpleNamespace(value=value, is_own=own) for name, (value, own) in self.settings_of.items()}

    def create(self, topic: str, partitions: int, settings: dict[str, str]) -> None:
        if topic in self.refuses:
            raise self.refuses[topic]
        self.made.append((topic, partitions, settings))

    def add_partitions(self, topic: str, partitions: int) -> None:
        self.made.append((topic, partitions))

    def close(self) -> None:
        self.closed += 1


class Worker:
    """One of a source: what it is to read, and how it stands."""

    def __init__(self, name: str = "", source: Any = None, target: Any = None, group: Any = None, rules: Any = None):
        self.name, self.rules = name, rules
        self.wanted: list[Place] = []
        self.counts: dict[str, Counts] = {}
        self.lanes: list[Any] = []
        self.error: FastlogError | None = None
        self.is_lost = False
        self.said: list[str] = []

    def start(self) -> None:
        self.said.append("start")

    def stop(self) -> None:
        self.said.append("stop")

    def join(self, seconds: float) -> bool:
        self.said.append("join")
        return self.said.count("join") > 1


def lane(place: Place, lag: int | None, error: str = "") -> SimpleNamespace:
    return SimpleNamespace(place=place, lag=lag, error=FastlogError(error) if error else None)


def source(**settings: str) -> RecordSource:
    (made,) = RecordMirror(config(**settings)).sources
    return made


# -- topics ------------------------------------------------------------------------------------------------------------


def looked(made: RecordSource, here: Side, there: Side) -> None:
    made._look(here, there)  # type: ignore[arg-type]


def test_topics_are_made_as_they_are_in_the_source() -> None:
    """With settings of their own that are copied, and more partitions where the target has fewer."""
    here, there = Side(HERE, "a", t1=2, t2=3, t3=1, t4=2), Side(THERE, "b", t2=2, t3=1, t4=3)
    here.settings_of = {
        "retention.ms": ("5", True),
        "retention.bytes": ("7", False),
        "max.message.bytes": (None, True),
        "segment.bytes": ("9", True),
    }
    made = source()
    looked(made, here, there)
    assert there.made == [("t1", 2, {"retention.ms": "5"}), ("t2", 3)] and here.made == []
    assert made._places == [(f"t{n}", p) for n, count in ((1, 2), (2, 3), (3, 1), (4, 2)) for p in range(count)]
    assert made.waiting == {} and made.fatal is None


def test_topics_that_are_not_mirrored() -> None:
    """Others, those of the broker, those that it refuses; and one that cannot be made, which is said."""
    here, there = Side(HERE, "a", other=1, t1=1, t2=1), Side(THERE, "b")
    here.add("__own", 1)
    here.add("t-internal", 1, is_internal=True)
    here.add("t-refused", 1, code=29)
    there.refuses["t1"] = RecordsError("no", 40)
    made = source()
    looked(made, here, there)
    assert made._places == [("t2", 0)] and made.waiting == {"t1": there.refuses["t1"]}
    there.refuses.clear()
    looked(made, here, there)
    assert made._places == [("t1", 0), ("t2", 0)] and made.waiting == {}
    other = source(**{"mirror.topics.whitelist": "", "mirror.topics.blacklist": "t.*"})
    looked(other, here, there)
    assert other._places == [("other", 0)]


def test_a_topic_that_the_target_refuses_to_show_is_not_made_larger() -> None:
    here, there = Side(HERE, "a", t1=3), Side(THERE, "b")
    there.add("t1", 0, code=29)
    looked(source(), here, there)
    assert there.made == []


@pytest.mark.parametrize(
    ("cluster", "address", "is_loop"), [("a", HERE, True), ("b", HERE, False), ("a", THERE, False)]
)
def test_a_source_that_is_the_target(cluster: str, address: Address, is_loop: bool) -> None:
    """By its id and a broker of both: two clusters may be at one address one after the other, and share an id."""
    here, there = Side(HERE, "a", t1=1), Side(address, cluster)
    made = source()
    looked(made, here, there)
    assert (made.fatal is not None) is is_loop and (made._places == []) is is_loop
    if made.fatal is not None:
        assert "here:1 is a broker of both" in str(made.fatal)


def test_it_looks_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nobody answers; it is told until somebody does. A fault ends it."""
    sides = [Side(HERE, "a", t1=1), Side(THERE, "b")]
    here, there = sides
    monkeypatch.setattr(module, "RecordCluster", lambda addresses, timeout: sides.pop(0))
    made = source()
    waits: list[float] = []
    waiting: list[dict[str, FastlogError]] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        waiting.append(made.waiting)
        here.error = {1: TransportError("away"), 3: ZeroDivisionError("fault")}.get(len(waits))
        return False

    monkeypatch.setattr(made, "_over", SimpleNamespace(is_set=lambda: False, wait=wait))
    made._look_seconds = 50.0
    made._scout()
    assert waits == [50.0, 1.0, 50.0]
    assert [set(found) for found in waiting] == [set(), {"topics"}, set()]
    assert "mirroring failed: ZeroDivisionError" in str(made.fatal)
    assert here.closed == there.closed == 1 and (here.looks, there.looks) == (4, 2)


def test_it_stops_looking_where_the_source_is_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = [Side(HERE, "a", t1=1), Side(HERE, "a")]
    monkeypatch.setattr(module, "RecordCluster", lambda addresses, timeout: sides.pop(0))
    made = source()
    made._scout()
    assert made.fatal is not None
    with pytest.raises(FastlogError, match="is a broker of both"):
        mirror = RecordMirror(config())
        mirror.sources = [made]
        mirror.wait(0.0)


# -- the place in the group --------------------------------------------------------------------------------------------


class Group:
    """A place in it: each ``join`` and ``beat`` does what a test says."""

    def __init__(self, *joins: Any, beats: Iterable[Any] = ()) -> None:
        self.joins, self.beats = list(joins), list(beats)
        self.said: list[str] = []
        self.given: Any = None

    def __call__(self, addresses: list[Address], group: str, *, session_ms: int, timeout: float) -> Group:
        self.given = addresses, group, session_ms, timeout
        return self

    def join(self) -> Any:
        self.said.append("join")
        return self._next(self.joins)

    def beat(self) -> None:
        self.said.append("beat")
        self._next(self.beats)

    @staticmethod
    def _next(what: list[Any]) -> Any:
        found = what.pop(0) if what else None
        found = found() if callable(found) else found
        if isinstance(found, Exception):
            raise found
        return found

    def interrupt(self) -> None:
        self.said.append("interrupt")

    def leave(self) -> None:
        self.said.append("leave")

    def close(self) -> None:
        self.said.append("close")


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[Worker]:
    made: list[Worker] = []

    def worker(*given: Any) -> Worker:
        made.append(Worker(*given))
        return made[-1]

    monkeypatch.setattr(module, "Worker", worker)
    monkeypatch.setattr(module, "_LEAST_PAUSE", 0.0)
    monkeypatch.setattr(module, "_MOST_PAUSE", 0.0)
    return made


PLACES: list[Place] = [("t", number) for number in range(9)]


def kept(monkeypatch: pytest.MonkeyPatch, made: RecordSource, group: Group) -> None:
    monkeypatch.setattr(module, "GroupPlace", group)
    made._places = PLACES
    made._keep_place()


def test_workers_share_what_is_this_members(monkeypatch: pytest.MonkeyPatch, workers: list[Worker]) -> None:
    """As soon as it has a place, and anew when there are others."""
    made = source()
    first, second = Share(0, 2), Share(1, 2)
    states: list[str] = [made.state]

    def noted() -> None:
        states.append(made.state)
        if len(states) == 3:
            made._places = PLACES[:4]
            made._deal()
            assert [place for one in workers for place in one.wanted] == [one for one in PLACES[:4] if first.has(one)]
            workers[0].counts["t"] = Counts(5, 50, 1)
            workers[1].counts["t"] = Counts(1, 2, 3)
            assert made.totals.entries == 6
            workers[2].is_lost = True

    group = Group(first, second, None, beats=[None, noted, PlaceLostError("lost", 22)])
    group.beats[0] = lambda: states.append(made.state)
    kept(monkeypatch, made, group)
    assert group.said == ["join", "beat", "beat", "join", "beat", "join", "leave", "close"]
    assert group.given == ([THERE], "g", 9000, 3.0)
    assert len(workers) == 2 * WORKERS and states == ["begins", "", ""] and made.state == "begins"
    assert [one.name for one in workers] == [f"one-{number}" for number in range(WORKERS)] * 2
    mine = [one for one in PLACES[:4] if second.has(one)]
    assert sorted(place for one in workers[WORKERS:] for place in one.wanted) == mine
    assert [one.wanted for one in workers[WORKERS:]] == [mine[number::WORKERS] for number in range(WORKERS)]
    assert all(one.said[:2] == ["start", "stop"] and one.said.count("join") == 2 for one in workers)
    assert (made.totals.entries, made.totals.bytes, made.totals.left_out) == (6, 52, 4)
    made._deal()  # nobody is there


def test_what_keeps_it_from_mirroring_is_its_state(
    monkeypatch: pytest.MonkeyPatch, workers: list[Worker], caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator refuses, or is away; a worker fails. It is over as soon as it works again."""
    made = source()
    states: list[str] = []

    def failing() -> None:
        workers[1].error = FastlogError("a worker's\nerror")

    def well() -> None:
        states.append(made.state)
        workers[1].error = None

    group = Group(
        CoordinatorError("refused", 30), Share(0, 1), None,
        beats=[lambda: states.append(made.state), failing, well, NotReachedError("away"),
               lambda: states.append(made.state), PlaceLostError("lost", 22)],
    )  # fmt: skip
    with caplog.at_level("WARNING"):
        kept(monkeypatch, made, group)
    assert states == ["", "waits: a worker's error", "waits: away"]
    assert "source=one waits: refused" in caplog.text


def test_each_side_has_its_own_time_for_an_answer(monkeypatch: pytest.MonkeyPatch, workers: list[Worker]) -> None:
    """In seconds, for those who look for topics and for those who forward."""
    given = {"bootstrap.servers": "here:1", "groupid": "g", "heartbeat.interval.ms": "10"}
    both = MirrorConfig(
        sources=(SourceConfig.from_properties("one", {**given, "socket.timeout.ms": "7000"}),),
        target=TargetConfig.from_properties({"bootstrap.servers": "there:2", "socket.timeout.ms": "11000"}),
        settings=MirrorSettings.from_properties({"mirror.topics.whitelist": "t"}),
    )
    made: list[tuple[list[Address], float]] = []

    def cluster(addresses: list[Address], timeout: float) -> Side:
        made.append((addresses, timeout))
        return Side(HERE, "a")

    monkeypatch.setattr(module, "RecordCluster", cluster)
    (one,) = RecordMirror(both).sources
    one._scout()  # it ends: both sides are the same
    assert made == [([HERE], 7.0), ([THERE], 11.0)]
    kept(monkeypatch, one, Group(Share(0, 1), None, beats=[PlaceLostError("lost", 22)]))
    assert len(workers) >= 1 and made[2:] == [([HERE], 7.0), ([THERE], 11.0)] * len(workers)


def test_who_has_lost_its_place_begins_anew(monkeypatch: pytest.MonkeyPatch, workers: list[Worker]) -> None:
    """It says so until it has another one."""
    made = source()
    states: list[str] = []

    def join() -> Share:
        states.append(made.state)
        return Share(0, 1)

    lost = PlaceLostError("lost", 22)
    kept(monkeypatch, made, Group(join, join, None, beats=[lost, lambda: states.append(made.state), lost]))
    assert states == ["begins", "begins", ""]


def test_who_is_refused_a_place_asks_with_pauses_that_grow_and_begin_anew(
    monkeypatch: pytest.MonkeyPatch, workers: list[Worker]
) -> None:
    made = source()
    pauses: list[float] = []

    def wait(seconds: float) -> bool:
        if seconds != made._beat_seconds:
            pauses.append(seconds)
        return False

    monkeypatch.setattr(made, "_over", SimpleNamespace(is_set=lambda: False, wait=wait))
    monkeypatch.setattr(module, "_LEAST_PAUSE", 0.1)
    monkeypatch.setattr(module, "_MOST_PAUSE", 0.3)
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    refused = CoordinatorError("refused", 30)
    lost = PlaceLostError("lost", 22)
    kept(monkeypatch, made, Group(*[refused] * 4, Share(0, 1), *[refused] * 2, None, beats=[lost]))
    assert pauses == [0.1, 0.2, 0.3, 0.3, 0.1, 0.2]


def test_a_fault_in_its_place_ends_it(monkeypatch: pytest.MonkeyPatch, workers: list[Worker]) -> None:
    made = source()
    group = Group(ZeroDivisionError("fault"))
    kept(monkeypatch, made, group)
    assert "mirroring failed: ZeroDivisionError" in str(made.fatal)
    assert group.said == ["join", "leave", "close"]


def test_who_is_stopped_before_it_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    made = source()
    made.hold()
    group = Group()
    kept(monkeypatch, made, group)
    assert group.said == ["interrupt", "leave", "close"]
    made._workers = [Worker(), Worker()]  # type: ignore[list-item]
    made.hold()
    assert group.said[-1] == "interrupt" and [one.said for one in made._workers] == [["stop"]] * 2  # type: ignore[attr-defined]


def test_what_waits_and_how_far_it_is() -> None:
    made = source()
    first, second = Worker(), Worker()
    first.lanes = [lane(("t", 0), 5), lane(("t", 1), None, "away")]
    second.lanes = [lane(("u", 0), 0)]
    made._workers = [first, second]  # type: ignore[list-item]
    made._topic_errors = {"v": FastlogError("no")}
    assert made.lag == {("t", 0): 5, ("t", 1): None, ("u", 0): 0}
    assert {name: str(error) for name, error in made.waiting.items()} == {"v": "no", "t:1": "away"}


# -- the end -----------------------------------------------------------------------------------------------------------


def test_a_start_begins_all_of_it() -> None:
    mirror = RecordMirror(config())
    (made,) = mirror.sources
    begun: list[str] = []
    made._threads = [threading.Thread(target=begun.append, args=(name,)) for name in ("place", "topics")]
    mirror.start()
    assert mirror.stop(PATIENCE) == [] and sorted(begun) == ["place", "topics"]


def test_who_does_not_end_in_time_has_left_something(monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = RecordMirror(config())
    (made,) = mirror.sources
    over = threading.Event()
    ended = threading.Thread(target=lambda: None)
    stuck = threading.Thread(target=over.wait, daemon=True)
    not_begun = threading.Thread(target=lambda: None)
    made._threads = [ended, stuck, not_begun]
    ended.start()
    stuck.start()
    assert mirror.stop(0.0) == ["one: not all was acknowledged"]
    over.set()
    assert mirror.stop(PATIENCE) == []


def test_sources_are_held_before_any_is_waited_for() -> None:
    said: list[tuple[str, str]] = []
    mirror = RecordMirror(config())

    def one(name: str) -> Any:
        def stop(seconds: float) -> None:
            assert 0.1 <= seconds <= PATIENCE
            said.append((name, "stop"))

        return SimpleNamespace(name=name, hold=lambda: said.append((name, "hold")), stop=stop)

    mirror.sources = [one("a"), one("b")]
    assert mirror.stop(PATIENCE) == []
    assert said == [("a", "hold"), ("b", "hold"), ("a", "stop"), ("b", "stop")]


def test_waiting_sleeps_no_longer_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    now = [1000.0]

    def sleep(seconds: float) -> None:
        slept.append(round(seconds, 6))
        now[0] += seconds

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    mirror = RecordMirror(config())
    mirror.wait(0.25)
    assert slept == [0.1, 0.1, 0.05]
    mirror.wait(0.0)
    mirror.sources[0].fatal = FastlogError("it is over")
    with pytest.raises(FastlogError, match="it is over"):
        mirror.wait(0.0)
    assert len(slept) == 3


def test_the_rules_are_those_of_the_files() -> None:
    rules = source(**{"mirror.bad.messages": "skip", "mirror.existing.records": "append"})._rules
    assert (rules.most_bytes, rules.leaves_out, rules.appends_to_others, rules.begins_at_end) == (
        5000, True, True, False,
    )  # fmt: skip
    assert rules.commit_seconds == 1.0 and rules.fetch_bytes == 960 * 1024
    other = source()._rules
    assert (other.leaves_out, other.appends_to_others) == (False, False)
