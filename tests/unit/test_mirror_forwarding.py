"""A whole mirror in one process: what arrives, in which order, what counts as done, and what it says of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastlog.mirror import Mirror
from fastlog.mirror import mirror as mirror_module
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import raw_format as raw
from tests.harness import wire07
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker
from tests.harness.small_mirrors import NEVER_MS, Site, Told, is_in_order, pieces

PAYLOADS = [b"message %03d" % number for number in range(60)]
SET = raw.message_set(PAYLOADS[:20])
MORE = raw.message_set(PAYLOADS[20:40])
LAST = raw.message_set(PAYLOADS[40:])
ENTRY = len(SET) // 20


def numbered(name: str) -> bytes:
    """Five messages and a compressed set that nobody else has: six entries."""
    words = [b"%s%d" % (name.encode(), number) for number in range(14)]
    return raw.message_set(words[:5]) + raw.message_set(words[5:], codec=raw.GZIP)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Site]]:
    """Makes a site, once."""
    made: list[Site] = []

    def make(**options: Any) -> Site:
        made.append(Site(monkeypatch, **options).__enter__())
        return made[0]

    yield make
    made[0].__exit__()


def test_bytes_of_two_clusters_arrive_as_they_are(site: Callable[..., Site]) -> None:
    """Each partition in the one of its number; told in order, counted to the byte, committed to the end, behind it."""
    found = site(names=("one", "two"), partitions=2)
    logs = {
        (name, topic, number): numbered(f"{name} {topic} {number} ")
        for name in ("one", "two")
        for topic in ("t", "u")
        for number in range(2)
    }
    for (name, topic, number), data in logs.items():
        found.put(data, topic, number, name)
    for name in ("one", "two"):
        for topic in ("t", "u"):
            found.show(topic, name)
    told = Told(found)
    with found.running(told) as mirror:
        for (name, topic, number), data in logs.items():
            found.wait_committed(len(data), topic, number, name)
        for source in mirror.sources:
            totals = source.totals
            mine = {key: data for key, data in logs.items() if key[0] == source.name}
            assert totals.entries == 4 * 6
            assert totals.bytes == sum(map(len, mine.values()))
            assert (totals.left_out, totals.repeated, totals.doubtful) == (0, 0, 0)
            for topic in ("t", "u"):
                counts = totals.by_topic[topic]
                assert (counts.entries, counts.left_out) == (12, 0)
                assert counts.bytes == sum(len(data) for key, data in mine.items() if key[1] == topic)
        assert mirror.is_acknowledged
        assert mirror.target_errors == []
    for topic in ("t", "u"):
        for number in range(2):
            stored = found.stored(topic, number)
            assert sorted(pieces(stored)) == sorted(
                entry for name in ("one", "two") for entry in pieces(logs[name, topic, number])
            )
    assert told.early == []
    for (name, topic, number), data in logs.items():
        runs = [
            run
            for run in told.runs
            if (run.cluster, run.source.topic, run.source.partition.partition) == (name, topic, number)
        ]
        assert b"".join(bytes(run.data) for run in runs) == data
        assert [run.offset for run in runs] == [0, *(run.next_offset for run in runs)][:-1]
        assert runs[-1].next_offset == len(data)
        assert sum(run.entries for run in runs) == 6
        for run in runs:
            assert (run.target, run.error) == ((0, number), None)
            assert found.stored(topic, number)[run.target_offset :].startswith(bytes(run.data))


def test_it_needs_no_clock_while_all_goes_well(site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> None:
    """What it waits for wakes it: brokers that answer, room in a connection, a commit. The looks between are rare."""
    monkeypatch.setattr(mirror_module, "_IDLE_SECONDS", 1000.0)
    found = site(autocommit_ms=NEVER_MS, producer={"in.flight.bytes": "40", "batch.bytes": str(ENTRY)})
    found.put(SET)
    found.show("t")
    with found.running(uncommitted_bytes=str(2 * ENTRY)):
        found.wait_stored(len(SET))
        found.put(MORE)
        found.wait_stored(len(SET + MORE))
        found.put(raw.message_set(PAYLOADS[:3]), "u")
        found.show("u")
        found.wait_stored(3 * ENTRY, "u")
    assert found.stored() == SET + MORE
    assert found.committed() == len(SET + MORE)


@pytest.mark.parametrize("bound", [ENTRY, 4 * ENTRY])
def test_no_more_is_sent_beyond_what_is_committed_than_is_allowed(site: Callable[..., Site], bound: int) -> None:
    """One fetched piece more; and that is committed at once, where the clock would take an hour."""
    fetch = 2 * ENTRY
    found = site(autocommit_ms=NEVER_MS, consumer={"fetch.size": str(fetch)})
    ahead: list[int] = []

    def observe(run: Any) -> None:
        ahead.append(run.next_offset - (found.committed() or 0))

    found.put(SET + MORE + LAST)
    found.show("t")
    with found.running(observe, uncommitted_bytes=str(bound)):
        found.wait_stored(len(SET + MORE + LAST))
    assert found.stored() == SET + MORE + LAST
    assert max(ahead) <= bound + fetch
    assert found.committed() == len(found.stored())


def test_what_is_not_acknowledged_is_never_committed(site: Callable[..., Site]) -> None:
    """The first of two pieces is; the second one is stored, and its answer does not come. Then the mirror ends."""
    release = threading.Event()

    def after(request: rq.Request) -> None:
        if isinstance(request, wire07.ProduceAckRequest) and PAYLOADS[10] in request.message_set:
            release.wait(60)

    found = site(target=FakeBroker(after=after), producer={"batch.bytes": str(10 * ENTRY)})
    found.put(SET)
    found.show("t")
    mirror = Mirror(found.config())
    mirror.start()
    try:
        found.wait_committed(10 * ENTRY)
        found.wait_stored(len(SET))
        assert found.stored() == SET
        assert mirror.stop(0.1) == ["one: not all was acknowledged"]
        assert found.committed() == 10 * ENTRY
        assert mirror.sources[0].totals.entries == 10
    finally:
        release.set()
        mirror.stop(0.0)
    with found.running() as again:
        found.wait_committed(len(SET))
        assert again.sources[0].totals.entries == 10
    assert found.stored() == SET + SET[10 * ENTRY :]


def test_the_end_waits_for_what_is_under_way_and_commits_it(site: Callable[..., Site]) -> None:
    release = threading.Event()

    def after(request: rq.Request) -> None:
        if isinstance(request, wire07.ProduceAckRequest):
            release.wait(60)

    found = site(autocommit_ms=NEVER_MS, target=FakeBroker(after=after))
    found.put(SET)
    found.show("t")
    with found.running() as mirror:
        found.wait_stored(len(SET))
        assert mirror.sources[0].is_under_way
        threading.Timer(0.05, release.set).start()
    assert found.committed() == len(SET)
    assert found.stored() == SET
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("fastlog-mirror")]
    assert left == []


# -- life after an error -----------------------------------------------------------------------------------------------


def on_produce(word: bytes, times: int, act: Callable[[wire07.ProduceAckRequest], bytes | None]) -> Any:
    """A hook for produce requests that have the word, so many times."""
    left = [times]

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest) and word in request.message_set and left[0]:
            left[0] -= 1
            return act(request)
        return None

    return hook


def breaks(request: wire07.ProduceAckRequest) -> bytes | None:
    raise ConnectionError


def stands_still(request: wire07.ProduceAckRequest) -> bytes | None:
    threading.Event().wait(0.3)
    raise ConnectionError


def refuses(code: int) -> Callable[[wire07.ProduceAckRequest], bytes]:
    return lambda request: wire07.encode_produce_ack(
        rs.ProduceAckAnswer(request.correlation_id, code, request.partition)
    )


def for_another(request: wire07.ProduceAckRequest) -> bytes:
    return wire07.encode_produce_ack(rs.ProduceAckAnswer(request.correlation_id + 1, 0, request.partition))


TROUBLE: dict[str, tuple[str, Callable[[wire07.ProduceAckRequest], bytes | None]]] = {
    "broken before it was stored": ("hook", breaks),
    "broken behind it": ("after", breaks),
    "no answer in time": ("hook", stands_still),
    "disk full": ("hook", refuses(103)),
    "unknown to the broker": ("hook", refuses(-1)),
    "not its partition": ("hook", refuses(3)),
    "no message, it says": ("hook", refuses(2)),
    "an answer to something else": ("after", for_another),
    "an answer that makes no sense": ("after", lambda request: b"\0\0\0\x02\0\0"),
}

OTHERS_MAY_BE_STORED = {"disk full", "unknown to the broker", "not its partition", "no message, it says"}
"""What was sent behind a refused piece is stored before it, and once more behind it."""


@pytest.mark.parametrize("where", [0, 7, 19])
@pytest.mark.parametrize("name", TROUBLE)
def test_after_an_error_of_the_target_nothing_is_missing_or_out_of_order(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch, name: str, where: int
) -> None:
    """At the first, a middle and the last piece, twice in a row; then it goes on as if nothing had been."""
    monkeypatch.setattr("fastlog.mirror.lane._REFUSED_PAUSE", 0.05)
    when, act = TROUBLE[name]
    target = FakeBroker(**{when: on_produce(PAYLOADS[where], 2, act)})  # type: ignore[arg-type]
    seconds = "200" if act is stands_still else "60000"
    found = site(target=target, producer={"batch.bytes": str(3 * ENTRY), "socket.timeout.ms": seconds})
    found.put(SET)
    found.show("t")
    told = Told(found)
    with found.running(told) as mirror:
        found.wait_committed(len(SET))
        before = found.stored()
        if name in OTHERS_MAY_BE_STORED:
            first = min(entry for entry in range(0, 20) if SET[entry * ENTRY :] == before[-len(SET) + entry * ENTRY :])
            assert first <= where
            assert set(pieces(before)) == set(pieces(SET))
        else:
            assert is_in_order(SET, before)
        found.put(MORE)
        found.wait_committed(len(SET + MORE))
        assert found.stored().startswith(before)
        assert is_in_order(MORE, found.stored()[len(before) :])
        assert mirror.sources[0].waiting == {}
        totals = mirror.sources[0].totals
    assert told.early == []
    runs = [(run.offset, run.next_offset, run.entries) for run in told.runs]
    assert [run[0] for run in runs] == [0, *(run[1] for run in runs)][:-1]
    assert totals.entries == sum(run[2] for run in runs) == 40
    assert totals.left_out == 0
    twice = len(pieces(found.stored())) - 40
    assert totals.repeated <= twice <= totals.repeated + totals.doubtful


@pytest.mark.parametrize("code", [None, -1, 3])
def test_after_an_error_of_the_source_it_goes_on_where_it_was(site: Callable[..., Site], code: int | None) -> None:
    """A connection that breaks, and errors; nothing comes twice."""
    found = site(consumer={"fetch.size": str(3 * ENTRY)})
    left = [4]

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.HeldFetchRequest) and request.offset == 9 * ENTRY and left[0]:
            left[0] -= 1
            if code is None:
                raise ConnectionError
            return wire07.encode_held_fetch(rs.HeldFetchAnswer(request.correlation_id, code, 0, 0))
        return None

    found.sources["one"].hook = hook
    found.put(SET)
    found.show("t")
    with found.running() as mirror:
        found.wait_committed(len(SET))
        assert mirror.sources[0].totals.entries == 20
    assert not left[0]
    assert found.stored() == SET


def test_a_session_that_is_lost_brings_again_what_was_not_committed(site: Callable[..., Site]) -> None:
    """And no more; it is counted."""
    found = site(autocommit_ms=NEVER_MS)
    found.put(SET)
    found.show("t")
    with found.running() as mirror:
        found.wait_stored(len(SET))
        source = mirror.sources[0]
        wait_until("all was acknowledged", lambda: source.totals.entries == 20)
        consumer = source.consumer
        assert consumer is not None
        wait_until("where it began is saved", lambda: found.committed() is not None)
        consumer.commit_offsets({next(iter(consumer.offsets)): 5 * ENTRY})
        wait_until("it is saved", lambda: found.committed() == 5 * ENTRY)
        tree = found.trees["one"]
        (member,) = {
            number for number, _, path in tree.calls if path.startswith("/consumers/m/ids/")
        } & tree.sessions.keys()
        tree.expire(member)
        wait_until("the rest came again", lambda: source.totals.entries == 35)
        assert (source.totals.repeated, source.totals.doubtful) == (15, 0)
        found.put(MORE)
        found.wait_stored(2 * len(SET) - 5 * ENTRY + len(MORE))
        assert source.totals.repeated == 15
    assert found.stored() == SET + SET[5 * ENTRY :] + MORE
    assert found.committed() == len(SET + MORE)


def test_what_was_under_way_when_a_partition_was_lost_is_counted(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection breaks when nobody reads the partition any more: all of it is in doubt, and comes again later."""
    monkeypatch.setattr(mirror_module, "_BUSY_SECONDS", 0.005)
    release = threading.Event()
    left = [1]

    def after(request: rq.Request) -> None:
        if isinstance(request, wire07.ProduceAckRequest) and left[0]:
            left[0] -= 1
            release.wait(60)
            raise ConnectionError

    found = site(target=FakeBroker(after=after))
    found.put(SET)
    found.show("t")
    with found.running() as mirror:
        found.wait_stored(len(SET))
        source = mirror.sources[0]
        consumer = source.consumer
        assert consumer is not None
        tree = found.trees["one"]
        joined = {number for number, _, path in tree.calls if path.startswith("/consumers/m/ids/")}
        (member,) = joined & tree.sessions.keys()
        tree.is_silent = True
        tree.expire(member)
        wait_until("it is lost", lambda: not any(stream.partitions for stream in source._streams))
        assert not threading.Event().wait(0.1)  # it looks several times
        assert source.totals.doubtful == 0
        release.set()
        wait_until("it is counted", lambda: source.totals.doubtful == 20)
        tree.is_silent = False
        found.wait_committed(len(SET))
        assert (source.totals.entries, source.totals.repeated, source.totals.doubtful) == (20, 0, 20)
    assert found.stored() == SET + SET
