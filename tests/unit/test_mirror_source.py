"""A mirror's sources: how they begin, what stops one, damage, and how they end."""

from __future__ import annotations

import itertools
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fastlog.audit.events import SeenEvent, decode
from fastlog.client import addresses
from fastlog.client.addresses import Address
from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import ClosedError, ConfigError, CoordinationError, OwnershipLostError, TransportError
from fastlog.mirror import Forwarded, Mirror
from fastlog.mirror import mirror as mirror_module
from fastlog.mirror import source as source_module
from fastlog.mirror.report import MirrorReport
from fastlog.mirror.source import MessageSource
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from fastlog.zkpaths import PartitionId
from tests.harness import raw_format as raw
from tests.harness import wire07
from tests.harness.broker import wait_until
from tests.harness.fake_broker import stored
from tests.harness.small_mirrors import Site, Told, pieces
from tests.harness.timing import PATIENCE
from tests.unit.test_auditor import numbers

PAYLOADS = [b"message %03d" % number for number in range(30)]
SET = raw.message_set(PAYLOADS[:20])
MORE = raw.message_set(PAYLOADS[20:])
ENTRY = len(SET) // 20


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Site]]:
    """Makes a site, once."""
    made: list[Site] = []

    def make(**options: Any) -> Site:
        made.append(Site(monkeypatch, **options).__enter__())
        return made[0]

    yield make
    made[0].__exit__()


# -- beginning ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_source_that_is_the_target_is_refused_before_anything_of_it_is_forwarded(
    site: Callable[..., Site], host: str
) -> None:
    """Whatever its address is written like. Another source, whose brokers are known first, goes on until then."""
    found = site(names=("other", "one"))
    target, found.target = found.target, found.sources["one"]
    for name, data in (("other", MORE), ("one", SET)):
        found.put(data, name=name)
        found.show("t", name)
    config = found.config()
    object.__setattr__(
        config.target.producer, "broker_list", f"0:{host}:{found.target.port}"
    )  # as a list that nobody compares
    mirror = Mirror(config)
    mirror.start()
    try:
        with pytest.raises(ConfigError, match="one is the target itself"):
            mirror.wait(PATIENCE)
        with pytest.raises(ConfigError, match="again and again"):
            mirror.wait(0.0)
    finally:
        mirror.stop()
        found.target = target
    has = found.sources["one"].logs["t", 0]
    assert has.startswith(SET) and MORE.startswith(has[len(SET) :])
    assert not found.committed()


def test_a_source_that_does_not_come_holds_up_no_other(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it turns out to be the target once it does: the other one is forwarded until then, and it never is."""
    found = site(names=("other", "one"))
    target, found.target = found.target, found.sources["one"]
    for name, data in (("other", MORE), ("one", SET)):
        found.put(data, name=name)
        found.show("t", name)
    config = found.config()
    object.__setattr__(config.target.producer, "broker_list", f"0:127.0.0.1:{found.target.port}")
    comes, join = threading.Event(), MessageSource._join

    def joins(self: MessageSource) -> None:
        if self.name == "one":
            comes.wait(PATIENCE)
        join(self)

    monkeypatch.setattr(MessageSource, "_join", joins)
    mirror = Mirror(config)
    mirror.start()
    try:
        wait_until("the other is forwarded", lambda: found.target.logs["t", 0] == SET + MORE)
        comes.set()
        with pytest.raises(ConfigError, match="one is the target itself"):
            mirror.wait(PATIENCE)
    finally:
        comes.set()
        mirror.stop()
        found.target = target
    assert found.sources["one"].logs["t", 0] == SET + MORE
    assert not found.committed()


def test_what_cannot_be_looked_up_now_may_be_the_target(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for again before anything is forwarded, however long the resolver takes."""
    monkeypatch.setattr(mirror_module, "_CHECK_SECONDS", 0.01)
    asked: list[Address] = []

    def resolve(address: Address, timeout: float) -> list[Any]:
        asked.append(address)
        if len(asked) < 6:
            raise OSError(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return addresses.resolve(address, timeout)

    monkeypatch.setattr(mirror_module, "resolve", resolve)
    found = site()
    target, found.target = found.target, found.sources["one"]
    found.put(SET)
    found.show("t")
    config = found.config()
    object.__setattr__(config.target.producer, "broker_list", f"0:localhost:{found.target.port}")
    mirror = Mirror(config)
    mirror.start()
    try:
        with pytest.raises(ConfigError, match="one is the target itself"):
            mirror.wait(PATIENCE)
    finally:
        mirror.stop()
        found.target = target
    assert found.sources["one"].logs["t", 0] == SET


def test_a_source_that_begins_later_is_waited_for_as_long(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the time for names that could not be looked up at the beginning is over by then."""
    monkeypatch.setattr(mirror_module, "_CHECK_SECONDS", 0.01)
    later = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + later[0], sleep=time.sleep)
    monkeypatch.setattr(mirror_module, "time", clock)
    fails = [6]

    def resolve(address: Address, timeout: float) -> list[Any]:
        if fails[0]:
            fails[0] -= 1
            raise OSError(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return addresses.resolve(address, timeout)

    monkeypatch.setattr(mirror_module, "resolve", resolve)
    found = site(names=("one", "two"), consumer={"zk.connectiontimeout.ms": "50"})
    monkeypatch.setattr(source_module, "_RETRY_SECONDS", 0.01)
    target, found.target = found.target, found.sources["two"]
    found.put(SET)
    for name in ("one", "two"):
        found.show("t", name)
    found.trees["two"].is_silent = True
    config = found.config()
    object.__setattr__(config.target.producer, "broker_list", f"0:localhost:{found.target.port}")
    mirror = Mirror(config)
    mirror.start()
    try:
        wait_until("the first one is forwarded", lambda: found.target.logs.get(("t", 0)) == SET)
        later[0], fails[0] = 100.0, 6
        found.trees["two"].is_silent = False
        with pytest.raises(ConfigError, match="two is the target itself"):
            mirror.wait(PATIENCE)
    finally:
        mirror.stop()
        found.target = target
    assert found.sources["two"].logs["t", 0] == SET


def test_a_name_that_nobody_knows_is_not_waited_for_for_ever(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked up again all the same: once it has an address, that may be one of the target."""
    for name, seconds in (("_LOOKUP_PATIENCE", 0.05), ("_CHECK_SECONDS", 0.01), ("_RECHECK_SECONDS", 0.01)):
        monkeypatch.setattr(mirror_module, name, seconds)
    known = threading.Event()

    def resolve(address: Address, timeout: float) -> list[Any]:
        if not known.is_set():
            raise OSError(socket.EAI_NONAME, "Name or service not known")
        return addresses.resolve(Address("127.0.0.1", 1), timeout)

    monkeypatch.setattr(mirror_module, "resolve", resolve)
    found = site()
    port = found.sources["one"].port
    monkeypatch.setattr(mirror_module, "Address", lambda host, _: Address(host, port))  # as if it were one broker
    found.put(SET)
    found.show("t")
    mirror = Mirror(found.config())
    mirror.start()
    try:
        wait_until("it goes on without", lambda: found.target.logs.get(("t", 0)) == SET)
        known.set()
        with pytest.raises(ConfigError, match="is a broker of both"):
            mirror.wait(PATIENCE)
    finally:
        mirror.stop()


def test_it_begins_when_zookeeper_is_there(site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said once, and in the report; another source does not wait for it."""
    monkeypatch.setattr(source_module, "_RETRY_SECONDS", 0.01)
    found = site(names=("one", "two"), consumer={"zk.connectiontimeout.ms": "50"})
    for name in ("one", "two"):
        found.put(SET, name=name)
        found.show("t", name)
    found.trees["two"].is_silent = True
    warnings: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warnings.append(record.getMessage())

    handler = Handler(logging.WARNING)
    logging.getLogger(source_module.__name__).addHandler(handler)
    try:
        with found.running() as mirror:
            found.wait_committed(len(SET))
            two = mirror.sources[1]
            wait_until("it is said", lambda: two.error is not None)
            state = list(MirrorReport(mirror).objects(asks=False))[1]["state"]
            assert state.startswith("has not begun: ")
            assert two.lag(1.0) == {}
            assert not two.is_checked, "nobody knows its brokers yet: they may be the target's"
            opened = len(found.trees["two"].sessions)
            found.trees["two"].is_silent = False
            found.wait_committed(len(SET), name="two")
            assert two.error is None
            assert len(found.trees["two"].sessions) == opened + 1
    finally:
        logging.getLogger(source_module.__name__).removeHandler(handler)
    assert len([line for line in warnings if line.startswith("source=two: ") and "tried again" in line]) == 1
    assert pieces(found.stored()) == 2 * pieces(SET)


def test_a_setting_that_cannot_be_used_ends_it(site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> None:
    found = site()

    def refuse(*_: object, **__: object) -> None:
        raise ConfigError("no such thing")

    monkeypatch.setattr(source_module.Consumer, "create_message_streams_by_filter", refuse)
    mirror = Mirror(found.config())
    mirror.start()
    try:
        with pytest.raises(ConfigError, match="no such thing"):
            mirror.wait(PATIENCE)
    finally:
        mirror.stop()


@pytest.mark.parametrize("step", ["made", "joined", "streams"])
def test_an_end_while_it_joins_leaves_no_member(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Between any two steps of it."""
    found = site()
    consumers: list[Any] = []
    over: list[bool] = []

    def end() -> None:
        over.append(True)
        assert source.stop(0.0) is None

    class Joining:
        def __init__(self, config: object) -> None:
            self.shutdowns = 0
            consumers.append(self)
            if step == "made":
                end()

        def create_message_streams_by_filter(self, **options: object) -> list[Any]:
            if step == "joined":
                end()
            return [SimpleNamespace(take_from=self.take_from)]

        def take_from(self, wants: object) -> None:
            if step == "streams":
                end()

        def commit_offsets(self) -> None:
            pass

        def shutdown(self, seconds: float = 0.0) -> None:
            self.shutdowns += 1

    monkeypatch.setattr(source_module, "Consumer", Joining)
    config = found.config()
    source = MessageSource(config.sources[0], config, None, None, None, lambda: None)  # type: ignore[arg-type]
    thread = threading.Thread(target=source._join, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert over == [True]
    assert len(consumers) == 1
    assert consumers[0].shutdowns >= 1
    assert [thread for thread in source._threads if thread.is_alive()] == []


# -- damage ------------------------------------------------------------------------------------------------------------


def damage(entry: bytes) -> bytes:
    """The same entry with a wrong checksum."""
    changed = bytearray(entry)
    changed[-1] ^= 1
    return bytes(changed)


@pytest.mark.parametrize("gives", [True, False], ids=["given out", "refused"])
@pytest.mark.parametrize("wrong", [(5,), (5, 7), (0, 19)], ids=str)
def test_damaged_messages_are_left_out_one_by_one(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch, wrong: tuple[int, ...], gives: bool
) -> None:
    """Counted, told and named; each message behind them is forwarded once. What is not damaged is not looked at."""
    monkeypatch.setattr(source_module, "_RETRY_SECONDS", 0.01)
    looked_at: set[int] = set()
    behind = source_module.behind_damage

    def looks(address: Address, source: TopicPartition, offset: int, seconds: float) -> int | None:
        looked_at.add(offset)
        return behind(address, source, offset, seconds)

    monkeypatch.setattr(source_module, "behind_damage", looks)
    found = site()
    data = b"".join(damage(entry) if index in wrong else entry for index, entry in enumerate(pieces(SET)))
    source = found.sources["one"]
    source.logs["t", 0] = data
    if not gives:

        def hook(request: rq.Request) -> bytes | None:
            """As fastlog does: it gives out nothing that is damaged."""
            if isinstance(request, wire07.HeldFetchRequest | wire07.FetchRequest) and request.topic == "t":
                log = source.logs["t", 0]
                end = min([index * ENTRY for index in wrong if index * ENTRY >= request.offset] or [len(log)])
                if end == request.offset and end < len(log):
                    if isinstance(request, wire07.FetchRequest):
                        return wire07.encode_fetch(2)
                    return wire07.encode_held_fetch(rs.HeldFetchAnswer(request.correlation_id, 2, len(log), 0))
                given = log[request.offset : end][: request.max_bytes]
                if given and isinstance(request, wire07.FetchRequest):
                    return wire07.encode_fetch(0, given)
                if given:
                    return wire07.encode_held_fetch(rs.HeldFetchAnswer(request.correlation_id, 0, len(log), 0, given))
            return None

        source.hook = hook
    found.show("t")
    told = Told(found)
    with found.running(told, bad_messages="skip") as mirror:
        found.wait_committed(len(SET))
        found.put(MORE)
        found.wait_committed(len(SET + MORE))
        totals = mirror.sources[0].totals
        assert mirror.sources[0].waiting == {}
    assert found.stored() == b"".join(entry for index, entry in enumerate(pieces(SET)) if index not in wrong) + MORE
    assert looked_at == {index * ENTRY for index in wrong}
    assert (totals.entries, totals.left_out) == (30 - len(wrong), len(wrong))
    assert totals.bytes == (30 - len(wrong)) * ENTRY
    assert totals.by_topic["t"].left_out == len(wrong)
    left_out = [run for run in told.runs if run.error is not None]
    assert [(run.offset, run.next_offset, run.entries, run.target_offset) for run in left_out] == [
        (index * ENTRY, (index + 1) * ENTRY, 1, -1) for index in wrong
    ]
    assert all(bytes(run.data) == b"" for run in left_out)
    in_order = sorted(told.runs, key=lambda run: run.offset)  # what follows is forwarded by another thread
    assert [run.offset for run in in_order] == [0, *(run.next_offset for run in in_order)][:-1]


def test_two_damaged_messages_in_a_row_are_not_left_out(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The length of the first one may be what is wrong: nobody knows where the next one begins. It is tried again.

    Nobody looks for damage in the other partition, which has none.
    """
    monkeypatch.setattr(source_module, "_RETRY_SECONDS", 0.01)
    found = site(partitions=2)
    entries = pieces(SET)
    found.put(b"".join([*entries[:5], damage(entries[5]), damage(entries[6]), *entries[7:]]))
    found.put(SET, partition=1)
    found.show("t")
    looked_for: list[int] = []  # the mirror reads by requests that are held
    found.sources["one"].after = lambda request: (
        looked_for.append(request.partition) if isinstance(request, wire07.FetchRequest) else None
    )
    with found.running(bad_messages="skip") as mirror:
        found.wait_committed(5 * ENTRY)
        found.wait_committed(len(SET), partition=1)
        before = len(looked_for)
        wait_until("it was looked at twice", lambda: len(looked_for) >= before + 4)
        assert set(looked_for) == {0}
        assert mirror.sources[0].totals.left_out == 0
        found.sources["one"].logs["t", 0] = SET
        found.wait_committed(len(SET))
    assert found.stored() == SET


def test_damage_stops_its_partition_alone(site: Callable[..., Site]) -> None:
    """What is before it counts as done, what is behind it is not forwarded; it is said which it is and why."""
    found = site(partitions=2)
    entries = pieces(SET)
    found.put(b"".join([*entries[:5], damage(entries[5]), *entries[6:]]))
    found.put(SET, partition=1)
    found.show("t")
    with found.running() as mirror:
        found.wait_committed(5 * ENTRY)
        found.wait_committed(len(SET), partition=1)
        wait_until("it is said", lambda: len(mirror.sources[0].waiting) == 1)
        ((partition, error),) = mirror.sources[0].waiting.items()
        assert (str(partition), "damaged" in str(error)) == ("t/0-0", True)
        (found_now,) = MirrorReport(mirror).objects(asks=False)
        assert list(found_now["waiting"]) == ["t/0-0"]
        found.put(MORE, partition=1)
        found.wait_committed(len(SET + MORE), partition=1)
        assert mirror.sources[0].totals.left_out == 0
    assert found.stored() == SET[: 5 * ENTRY]
    assert found.stored(partition=1) == SET + MORE
    assert found.committed() == 5 * ENTRY


# -- observers ---------------------------------------------------------------------------------------------------------


def test_an_observer_that_fails_stops_nothing(site: Callable[..., Site], caplog: pytest.LogCaptureFixture) -> None:
    found = site()
    found.put(SET)
    found.show("t")

    def fail(run: Forwarded) -> None:
        raise ValueError("a mistake")

    with found.running(fail) as mirror:
        found.wait_committed(len(SET))
        assert mirror.sources[0].totals.entries == 20
    assert "an observer failed" in caplog.text


class Keeping:
    """Keeps nothing until it may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.refused = 0
        self.entries = 0

    def __call__(self, run: Forwarded) -> None:
        self.entries += run.entries

    def keep(self) -> None:
        if not self.may.is_set():
            self.refused += 1
            raise TransportError("not now")


def test_nothing_is_committed_before_the_observer_has_kept_it(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the clock, and not at the end; the next mirror does it again."""
    monkeypatch.setattr("fastlog.mirror.committing._RETRY_SECONDS", 0.01)
    monkeypatch.setattr("fastlog.mirror.committing._GATHER_SECONDS", 0.01)
    found = site(autocommit_ms="5")
    found.put(SET)
    found.show("t")
    keeping = Keeping()
    mirror = Mirror(found.config(), keeping)
    mirror.start()
    wait_until("it was asked twice", lambda: keeping.refused > 1)
    left = mirror.stop()
    assert len(left) == 1
    assert left[0].startswith("one: not now")
    assert not found.committed()
    assert keeping.entries == 20
    keeping.may.set()
    with found.running(keeping):
        found.wait_committed(len(SET))
    assert keeping.entries == 40
    assert found.stored() == SET + SET


def test_a_stage_of_the_audit_counts_what_is_forwarded_and_tells_another_observer(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events are in the target before the offsets move; the audit topic itself is not counted."""
    monkeypatch.setattr("fastlog.mirror.committing._GATHER_SECONDS", 0.01)
    found = site()
    data = numbers(0, 1, 2, 2)
    found.put(data)
    found.show("t")
    found.put(numbers(7, producer=9), "audit")
    found.show("audit")
    other = Keeping()
    other.may.set()
    with found.running(other, audit_stage="the mirror"):
        found.wait_committed(len(data))
        found.wait_committed(len(numbers(7)), "audit")
        events = [decode(item) for item in stored(found.target, "audit")[0:9] if item.startswith(b"{")]
        assert len(events) == 1
        (event,) = events
        assert isinstance(event, SeenEvent)
        assert (event.stage, event.topic) == ("the mirror", "t")
        assert [page[:3] for page in event.pages] == [(1, 5, 0)]
        assert int.from_bytes(event.pages[0].bits, "little") == 0b111
        assert [item.messages for item in event.duplicates] == [1]
    assert other.entries == 5


def test_a_commit_that_leaves_a_lane_waiting_is_asked_for_again(site: Callable[..., Site]) -> None:
    """The first one saves nothing of the partition and reports no error: who looks at the lanes sees that one waits."""
    config, one = site().config(), TopicPartition("t", PartitionId(0, 0))
    saved: dict[TopicPartition, int] = {}
    calls: list[None] = []

    def commit() -> None:
        calls.append(None)
        if len(calls) > 1:
            saved[one] = 100

    class Waiting:
        committed = 0
        wants_commit = property(lambda self: self.committed < 100)
        resume_at = staticmethod(lambda: None)

    target: Any = SimpleNamespace(partitions=lambda topic: [])
    source = MessageSource(config.sources[0], config, target, None, None, lambda: None)  # type: ignore[arg-type]
    consumer: Any = SimpleNamespace(commit_offsets=commit, committed=saved, topics={})
    source.consumer, source.is_checked = consumer, True
    source._streams = [SimpleNamespace(partitions={one}, wake=lambda: None)]  # type: ignore[list-item]
    lane: Any = Waiting()
    source._lanes[one] = lane
    thread = threading.Thread(target=source._committer.run, args=(consumer, source._committed), daemon=True)
    thread.start()
    try:
        source._committer.wake()
        wait_until("a commit", lambda: len(calls) == 1)
        source.look()
        wait_until("another one", lambda: lane.committed == 100)
    finally:
        source._committer.stop()
        thread.join(PATIENCE)
    assert len(calls) == 2


def test_what_was_committed_is_known_to_the_lanes_at_once(site: Callable[..., Site]) -> None:
    """Not only when somebody looks at them; a smaller offset than is known is not believed."""
    config, one, other = site().config(), TopicPartition("t", PartitionId(0, 0)), TopicPartition("t", PartitionId(0, 1))
    target: Any = SimpleNamespace(partitions=lambda topic: [])
    source = MessageSource(config.sources[0], config, target, None, None, lambda: None)  # type: ignore[arg-type]
    consumer: Any = SimpleNamespace(committed={one: 7, other: 9})
    lane: Any = SimpleNamespace(committed=5)
    source.consumer, source._lanes[one] = consumer, lane
    for committed in (7, 6):
        consumer.committed[one] = committed
        source._committed()
        assert lane.committed == 7


@pytest.mark.parametrize("is_under_way", [False, True])
def test_a_partition_that_another_member_has_is_forgotten_once_nothing_of_it_is_under_way(
    is_under_way: bool, site: Callable[..., Site]
) -> None:
    """What was counted of it stays counted, once."""
    config, one = site().config(), TopicPartition("t", PartitionId(0, 0))
    target: Any = SimpleNamespace(partitions=lambda topic: [])
    source = MessageSource(config.sources[0], config, target, None, None, lambda: None)  # type: ignore[arg-type]
    consumer: Any = SimpleNamespace(committed={}, topics={})
    source.consumer, source.is_checked = consumer, True
    lane: Any = SimpleNamespace(source=one, is_under_way=is_under_way, repeated=2, doubtful=3, error=None)
    lane.wants_commit, lane.resume_at = False, lambda: None
    source._lanes[one] = lane
    for _ in range(2):
        source.look()
        assert list(source._lanes) == ([one] if is_under_way else [])
        assert (source.totals.repeated, source.totals.doubtful) == (2, 3)


# -- the end -----------------------------------------------------------------------------------------------------------


def test_a_mirror_that_is_forgotten_keeps_no_program_from_ending(site: Callable[..., Site]) -> None:
    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith("fastlog-mirror-")]

    with site().running():
        # the one that joins the group has ended by then, or not
        wait_until("commits have theirs", lambda: any(thread.name.endswith("-commit") for thread in threads()))
        assert len(threads()) >= 2
        assert all(thread.daemon for thread in threads())


@pytest.mark.parametrize(
    ("keep", "commit", "left"),
    [
        (None, None, None),
        (OwnershipLostError("gone"), ClosedError("over"), None),
        (TransportError("not kept"), None, "not kept"),
        (None, CoordinationError("not saved"), "not saved"),
        (TransportError("not kept"), CoordinationError("not saved"), "not kept"),
        (OwnershipLostError("gone"), CoordinationError("not saved"), "not saved"),
    ],
)
def test_what_cannot_be_saved_at_the_end_is_said(
    site: Callable[..., Site], keep: Exception | None, commit: Exception | None, left: str | None
) -> None:
    """The first of it; what somebody else has now is nothing to be said. It leaves the group in any case."""
    config = site().config()

    def step(error: Exception | None) -> Callable[[], None]:
        def act() -> None:
            calls.append("step")
            if error is not None:
                raise error

        return act

    calls: list[Any] = []
    source = MessageSource(config.sources[0], config, None, None, None, lambda: None)  # type: ignore[arg-type]
    source._committer.keep = step(keep)  # type: ignore[method-assign]
    source.consumer = SimpleNamespace(commit_offsets=step(commit), shutdown=calls.append)  # type: ignore[assignment]
    error = source.stop(1.5)
    assert (str(error).splitlines()[0] if error is not None else None) == left
    assert calls == ["step", "step", 1.5]


def test_a_stop_that_waits_does_not_spin(site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> None:
    """Something stays under way: it is looked at a hundred times a second at most, and named in the end."""
    looks = itertools.count()
    monkeypatch.setattr(MessageSource, "is_under_way", property(lambda source: next(looks) >= 0))
    mirror = Mirror(site().config())
    (left,) = mirror.stop(0.3)
    assert left == "one: not all was acknowledged"
    assert next(looks) <= 32


def test_who_is_woken_by_the_stop_sees_it(site: Callable[..., Site]) -> None:
    """Woken before it was noted, the thread would look once more and wait again."""
    mirror = Mirror(site().config())
    noted: list[bool] = []

    class News(threading.Event):
        def set(self) -> None:
            noted.append(mirror._stop.is_set())

    mirror._news = News()
    assert mirror.stop() == []
    assert noted == [True]
