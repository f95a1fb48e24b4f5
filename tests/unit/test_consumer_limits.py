"""Settings and arguments at their bounds: the last value that is taken, and the first that is not."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastlog._segment import pack
from fastlog.codecs import GZIP, compress
from fastlog.consumer import fetched, offsets
from fastlog.consumer._delivery import Place
from fastlog.consumer.config import ConsumerConfig
from fastlog.consumer.connector import Consumer
from fastlog.consumer.database import DatabaseOffsets
from fastlog.consumer.fetched import MessageSet, payload_lists
from fastlog.consumer.offsets import FileOffsets, ZooKeeperOffsets
from fastlog.consumer.simple import LATEST, SimpleConsumer
from fastlog.errors import (
    ArgumentError,
    ConfigError,
    CoordinationError,
    OwnershipLostError,
    UnsupportedFeatureError,
    WrongPartitionError,
)
from fastlog.message import DeepLimits
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from fastlog.zkpaths import PartitionId, offset_path
from tests.harness.consumers import consumer_of, with_log
from tests.harness.fake_session import FakeSession, FakeZooKeeper
from tests.harness.reading import source_of

NEEDED = {"zk.connect": "h:1", "groupid": "g"}
INT32 = 2**31 - 1
ONLY = source_of()


# -- settings --------------------------------------------------------------------------------------------------------

BOUNDS = {
    "zk.sessiontimeout.ms": (100, INT32),
    "zk.connectiontimeout.ms": (1, INT32),
    "zk.synctime.ms": (1, INT32),
    "rebalance.backoff.ms": (1, INT32),
    "rebalance.retries.max": (1, INT32),
    "socket.timeout.ms": (1, INT32),
    "socket.buffersize": (1, INT32),
    "fetch.size": (1, 2**30),
    "max.message.size": (1, 2**30),
    "fetcher.backoff.ms": (1, INT32),
    "autocommit.interval.ms": (1, INT32),
    "autocommit.failures.max": (1, INT32),
    "queuedchunks.max": (1, INT32),
    "consumer.timeout.ms": (0, INT32),
}
DEFAULTS = {
    "consumer_id": None,
    "zk_session_timeout_ms": 6000,
    "zk_connection_timeout_ms": 6000,
    "zk_sync_time_ms": 2000,
    "rebalance_backoff_ms": None,
    "rebalance_max_retries": None,
    "socket_timeout_ms": 30_000,
    "receive_buffer_bytes": None,
    "fetch_bytes": 2**20,
    "max_message_bytes": None,
    "fetcher_backoff_ms": 1000,
    "auto_commit": True,
    "auto_commit_interval_ms": 10_000,
    "auto_commit_max_failures": 10,
    "queued_chunks": 10,
    "auto_offset_reset": "smallest",
    "consumer_timeout_ms": None,
    "shallow": False,
    "local": "auto",
}


@pytest.mark.parametrize("name", list(BOUNDS))
def test_a_setting_has_its_bounds(name: str) -> None:
    low, high = BOUNDS[name]
    for value in (low, high):
        ConsumerConfig.from_properties({**NEEDED, name: str(value)})
    wrong = [high + 1] if name in ("consumer.timeout.ms", "autocommit.failures.max") else [low - 1, high + 1]
    for value in wrong:
        with pytest.raises(ConfigError, match=name):
            ConsumerConfig.from_properties({**NEEDED, name: str(value)})
    if name == "autocommit.failures.max":
        with pytest.raises(ConfigError, match=name):
            ConsumerConfig.from_properties({**NEEDED, name: "0"})


def test_the_defaults_are_those_of_the_documents() -> None:
    found = ConsumerConfig.from_properties(NEEDED)
    assert {name: getattr(found, name) for name in DEFAULTS} == DEFAULTS
    assert (found.session_timeout, found.most_backoff) == (6.0, 2.0)
    for text in ("-1", "-7", " -1"):
        negative = ConsumerConfig.from_properties(
            {**NEEDED, "consumer.timeout.ms": text, "autocommit.failures.max": text}
        )
        assert (negative.consumer_timeout_ms, negative.auto_commit_max_failures) == (None, None)


@pytest.mark.parametrize("name", ["a/b", "", "a\x00", "a\x1f", "a\x7f", "a\x9f", "\ue000", "\uf8ff", "\ufff0"])
def test_a_name_that_no_path_can_hold_is_refused(name: str) -> None:
    why = "has characters that are no text" if "\0" in name else "cannot be part of a path in ZooKeeper, or is empty"
    for field in ("group_id", "consumer_id"):
        with pytest.raises(ConfigError, match=why):
            ConsumerConfig(**{"zk_connect": "h:1", "group_id": "g", field: name})
    for fine in (" ", "~", "\xa0", "ä", "\uf900", "\uffef", ".", "a b"):
        ConsumerConfig(zk_connect="h:1", group_id=fine, consumer_id=fine)


# -- arguments -------------------------------------------------------------------------------------------------------

FETCH_LIKE: dict[str, Callable[..., Any]] = {
    "fetch": lambda consumer, **given: consumer.fetch(
        given.get("topic", "t"), given.get("partition", 0), given.get("offset", 0), given.get("size"),
        wait=given.get("wait", 0.0),
    ),
    "messages": lambda consumer, **given: list(consumer.messages(
        given.get("topic", "t"), given.get("partition", 0), given.get("offset", 0), wait=given.get("wait", 0.0),
        fetch_bytes=given.get("size"),
    )),
    "unchecked": lambda consumer, **given: consumer.fetch_unchecked(
        given.get("topic", "t"), given.get("partition", 0), given.get("offset", 0), given.get("size") or 100
        if "size" not in given else given["size"],
    ),
    "multifetch": lambda consumer, **given: consumer.multifetch([(
        given.get("topic", "t"), given.get("partition", 0), given.get("offset", 0),
        *([given["size"]] if "size" in given else []),
    )]),
}  # fmt: skip
WRONG = [
    *({"topic": value} for value in (None, b"t", 3, "\ud800")),
    *({"partition": value} for value in (None, "0", True, 0.0, 2**31, -(2**31) - 1)),
    *({"offset": value} for value in (None, "0", True, 0.5, 2**63)),
    *({"size": value} for value in ("1", True, 1.0, 0, -1, 2**30 + 1)),
    *({"wait": value} for value in ("1", True, float("nan"))),
]


@pytest.mark.parametrize("call", list(FETCH_LIKE))
def test_what_cannot_be_a_place_or_a_size_is_refused_before_anything_is_sent(call: str) -> None:
    with with_log(pack([b"a"])) as fake, consumer_of(fake, local="off") as consumer:
        for given in WRONG:
            if "wait" in given and call not in ("fetch", "messages"):
                continue
            with pytest.raises(ConfigError):
                FETCH_LIKE[call](consumer, **given)
        assert not fake.seen
        for size in (1, 2**30):
            assert FETCH_LIKE[call](consumer, size=size)
        assert consumer.fetch("t", 0, 0).payloads() == [b"a"]


def test_arguments_of_the_other_calls(own: bool) -> None:
    with with_log(pack([b"a"]), own=own) as fake, consumer_of(fake, local="off") as consumer:
        for wrong in ((None, 0, LATEST), ("t", None, LATEST), ("t", 0, None), ("t", 0, 2**63), ("t", 0, LATEST, -1),
                      ("t", 0, LATEST, 2**24 + 1), ("t", 0, LATEST, "1")):  # fmt: skip
            with pytest.raises(ConfigError):
                consumer.get_offsets_before(*wrong)  # type: ignore[arg-type]
        assert consumer.get_offsets_before("t", 0, LATEST, 0) == []
        assert consumer.get_offsets_before("t", 0, LATEST, 2**24) == [11, 0]
        for cut in ((None, 0, 0, 1, 1), ("t", None, 0, 1, 1), ("t", 0, None, 1, 1), ("t", 0, 0, None, 1),
                    ("t", 0, 0, 1, None), ("t", 0, 0, 1, 1, -1), ("t", 0, 0, 1, 1, 2**24 + 1)):  # fmt: skip
            with pytest.raises(ConfigError):
                consumer.cut_points(*cut)  # type: ignore[arg-type]
        if own:
            assert consumer.cut_points("t", 0, 0, 11, 1, 0) == []
            assert consumer.cut_points("t", 0, 0, 11, 1, 2**24) == [0, 11]
        else:
            with pytest.raises(UnsupportedFeatureError, match="does not tell message boundaries"):
                consumer.cut_points("t", 0, 0, 11, 1)
        for topics in ("t", b"t", 3, [3], [b"t"]):
            with pytest.raises(ArgumentError):
                consumer.metadata(topics)  # type: ignore[arg-type]
        for fetches in ("t", 3, [3], [("t", 0)], [("t", 0, 0, 1, 1)], ["abc"]):
            with pytest.raises(ArgumentError):
                consumer.multifetch(fetches)  # type: ignore[arg-type]
        for wrong_offset in (-3, -(2**63)):
            with pytest.raises(ConfigError, match="neither an offset nor EARLIEST or LATEST"):
                next(consumer.messages("t", 0, wrong_offset))
        for topic in (None, b"t"):
            with pytest.raises(ArgumentError):
                consumer.partition_count(topic)  # type: ignore[arg-type]
            with pytest.raises(ArgumentError):
                consumer.source_of(topic, 0)  # type: ignore[arg-type]


def test_settings_of_a_simple_consumer_at_their_bounds() -> None:
    for field in ("fetch_bytes", "max_message_bytes"):
        for value in (1, 2**30):
            SimpleConsumer(**{field: value})
        for value in (0, -1, 2**30 + 1, "1", True):
            with pytest.raises(ConfigError, match=field):
                SimpleConsumer(**{field: value})  # type: ignore[arg-type]
    SimpleConsumer(receive_buffer_bytes=1, timeout=0.001, limits=DeepLimits())
    for wrong in ({"receive_buffer_bytes": 0}, {"receive_buffer_bytes": "1"}, {"timeout": 0.0}, {"timeout": -1.0},
                  {"timeout": "1"}, {"limits": None}, {"limits": 7}):  # fmt: skip
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            SimpleConsumer(**wrong)  # type: ignore[arg-type]


def test_arguments_of_a_groups_consumer() -> None:
    made = Consumer("h:1", group_id="g")
    for wrong in ({"whitelist": "a", "blacklist": "b"}, {}, {"whitelist": "a", "streams": 0}, {"whitelist": 3},
                  {"whitelist": "a", "streams": 10**9}, {"whitelist": "("}):  # fmt: skip
        with pytest.raises(ConfigError):
            made.create_message_streams_by_filter(**wrong)  # type: ignore[arg-type]
    for topics in ({}, {"t": 0}, {"t": -1}, {"t": "1"}, {"a/b": 1}, {"": 1}, {3: 1}, ["t"], {"t": 10**9}):
        with pytest.raises((ConfigError, ArgumentError)):
            made.create_message_streams(topics)  # type: ignore[arg-type]
    for settings in (3, [1], ("a",)):
        with pytest.raises(ArgumentError):
            Consumer(settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="named twice"):
        Consumer("h:1", zk_connect="h:2", group_id="g")
    with pytest.raises(ConfigError, match="not both"):
        Consumer(made.config, group_id="g")


def test_a_topic_that_a_broker_refuses_is_its_error() -> None:
    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.MetadataRequest) and request.topics:
            described = rs.TopicMetadata("t", 3, 0, ())
            values = (10**6, 10**8, 30_000, rq.LOWEST_OWN, rq.HIGHEST_OWN, (described,))
            return rs.encode_metadata(rs.MetadataAnswer(request.correlation_id, 0, 0, "h", 1, *values))
        return None

    with with_log(b"", hook=hook) as fake, consumer_of(fake) as consumer, pytest.raises(WrongPartitionError, match="t"):
        consumer.partition_count("t")


# -- pieces ----------------------------------------------------------------------------------------------------------


def test_a_part_of_a_set_ends_where_it_is_told() -> None:
    data = pack([b"a", b"b", b"c"])
    whole = MessageSet("t", 3, 100, memoryview(data))
    assert whole.before(133) is whole and whole.before(200) is whole
    for end, count in ((132, 2), (122, 2), (121, 1), (111, 1), (110, 0), (101, 0), (100, 0), (99, 0), (0, 0)):
        part = whole.before(end)
        assert len(part.data) == max(0, end - 100)
        assert len(list(part)) == count if count else part.valid_bytes == 0
        assert (part.topic, part.partition, part.offset) == ("t", 3, 100)
    assert whole and not MessageSet("t", 3, 100, memoryview(b""))
    assert "bytes=33" in repr(whole) and "offset=100" in repr(whole)


def test_lists_of_payloads_are_of_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    data = memoryview(pack([b"%04d" % number for number in range(2500)]))
    lists = list(payload_lists(MessageSet("t", 0, 0, data).spans()))
    assert [len(batch) for batch in lists] == [1000, 1000, 500]
    assert [one for batch in lists for one in batch] == [b"%04d" % number for number in range(2500)]
    monkeypatch.setattr(fetched, "_LIST_BYTES", 100)
    assert max(len(batch) for batch in payload_lists(MessageSet("t", 0, 0, data).spans())) < 10


def test_arrays_end_before_the_set_that_would_make_them_too_large() -> None:
    """To the byte; the first one is taken whatever it makes."""
    inner = pack([b"x" * 90])
    closed = pack([compress(GZIP, inner)], GZIP)
    data = memoryview(pack([b"a"]) + closed * 2)
    for most, count in ((100, 2), (199, 2), (200, 3)):
        batch = MessageSet("t", 0, 0, data, limits=DeepLimits(max_inflated_bytes=most)).to_numpy()
        assert len(batch) == count
        assert batch.next_offset == 11 + (len(batch) - 1) * len(closed)
        assert [batch.payload(number) for number in range(len(batch))] == [b"a", b"x" * 90, b"x" * 90][: len(batch)]


@pytest.mark.parametrize(("inside", "count"), [(2**29, 2), (2**29 + 1, 1)])
def test_an_array_is_never_larger_than_a_gibibyte(monkeypatch: pytest.MonkeyPatch, inside: int, count: int) -> None:
    """Whatever a set may be inflated to: a set after another is one too many behind 2**30 bytes."""

    def of_sets(*_: object) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(inner=True, entries=range(inside), offset=10 * number, next_offset=10 * number + 10)
            for number in range(2)
        ]

    monkeypatch.setattr(fetched, "spans", of_sets)
    limits = DeepLimits(max_inflated_bytes=2**40)
    taken, next_offset = fetched._whole_spans("t", 0, memoryview(b""), 0, None, limits)
    assert (len(taken), next_offset) == (count, 10 * count)


def test_columns_have_no_gaps() -> None:
    pytest.importorskip("pyarrow")
    table = MessageSet("t", 7, 100, memoryview(pack([b"a", b"", b"ccc"]))).to_arrow()
    assert [(field.name, str(field.type), field.nullable) for field in table.schema] == [
        ("partition", "int32", False), ("offset", "int64", False), ("next_offset", "int64", False),
        ("payload", "binary", False),
    ]  # fmt: skip
    assert table.schema.metadata == {b"topic": b"t"}
    assert table.to_pydict() == {
        "partition": [7] * 3, "offset": [100, 111, 121], "next_offset": [111, 121, 134], "payload": [b"a", b"", b"ccc"],
    }  # fmt: skip


# -- stores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "is_right"),
    [
        ({"offset": 0, "owner": "x"}, True),
        ({"offset": None, "owner": "x"}, True),
        ({"offset": 2**62, "owner": "x", "log": 0}, True),
        ({"offset": 5, "owner": "x", "log": 1}, True),
        ({"offset": -1, "owner": "x"}, False),
        ({"offset": 5.0, "owner": "x"}, False),
        ({"offset": True, "owner": "x"}, False),
        ({"offset": "5", "owner": "x"}, False),
        ({"offset": 5, "owner": None}, False),
        ({"offset": 5, "owner": "x", "log": -1}, False),
        ({"offset": 5, "owner": "x", "log": 1.0}, False),
        ({"offset": 5, "owner": "x", "log": None}, False),
        ({"owner": "x"}, False),
        ({"offset": 5}, False),
        (7, False),
    ],
)
def test_what_a_file_of_offsets_may_hold(tmp_path: Path, entry: object, is_right: bool) -> None:
    store = FileOffsets(tmp_path)
    assert store.log_of("g", ONLY) == 0
    store.path("g").write_text(json.dumps({"version": 1, "group": "g", "offsets": {str(ONLY): entry}}))
    if is_right:
        assert isinstance(entry, dict)
        assert store.load("g", ONLY) == entry["offset"] and store.log_of("g", ONLY) == entry.get("log", 0)
    else:
        with pytest.raises(CoordinationError, match="is no file of offsets"):
            store.load("g", ONLY)
        with pytest.raises(CoordinationError):
            store.save("g", {ONLY: 9})
    store.path("g").write_text(json.dumps({"version": 2, "group": "g", "offsets": {}}))
    with pytest.raises(CoordinationError, match="its version is 2"):
        store.load("g", ONLY)


def test_a_lock_is_waited_for_two_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking each hundredth; a second that another one had it is none too many."""
    now, sleeps = [0.0], []

    class Time:
        @staticmethod
        def monotonic() -> float:
            return now[0]

        @staticmethod
        def sleep(seconds: float) -> None:
            sleeps.append(seconds)
            now[0] += seconds

    monkeypatch.setattr(offsets, "time", Time)
    store = FileOffsets(tmp_path)
    assert store.load("g", ONLY) is None
    with store.path("g").with_suffix(".lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(CoordinationError, match="another process has had the lock for 2 s"):
            store.save("g", {ONLY: 1})
    assert set(sleeps) == {0.01} and 199 <= len(sleeps) <= 201
    store.save("g", {ONLY: 1})
    assert FileOffsets(tmp_path).load("g", ONLY) == 1


def test_a_file_is_written_again_only_where_something_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileOffsets(tmp_path)
    store.load("g", ONLY)
    written: list[object] = []
    replace = offsets._replace

    def noting(path: Path, content: Any) -> None:
        written.append(json.loads(json.dumps(content)))
        replace(path, content)

    monkeypatch.setattr(offsets, "_replace", noting)
    store.save("g", {ONLY: 5})
    store.save("g", {ONLY: 5})
    store.load("g", ONLY)
    assert len(written) == 1
    store.note_logs("g", {ONLY: 77})
    store.save("g", {ONLY: 5})
    assert len(written) == 2 and json.loads(store.path("g").read_text()) == written[1]
    with pytest.raises(OwnershipLostError) as raised:
        store.save("g", {ONLY: 6, source_of(1): 7})
    assert raised.value.partitions == (source_of(1),) and store.load("g", ONLY) == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g.offsets.json", "g.offsets.lock"]


@pytest.mark.parametrize(
    ("there", "is_begun", "left"),
    [(None, True, b"7"), (b"7", True, b"7"), (b"-1", True, b"7"), (b"0", False, b"0"), (b"9", False, b"9")],
)
def test_a_beginning_is_written_over_nothing_only(there: bytes | None, is_begun: bool, left: bytes) -> None:
    tree = FakeZooKeeper()
    path = offset_path("g", "t", PartitionId(0, 0))
    if there is not None:
        tree.write(path, there)
    store = ZooKeeperOffsets(tree.open())
    assert store.begin("g", ONLY, 7) is is_begun
    assert tree.shown()[path] == left


@pytest.mark.parametrize("step", ["create", "set"])
@pytest.mark.parametrize("what", ["written", "removed"])
def test_a_beginning_gives_way_to_who_writes_meanwhile(step: str, what: str) -> None:
    tree = FakeZooKeeper()
    path = offset_path("g", "t", PartitionId(0, 0))
    if step == "set":
        tree.write(path, b"-1")
    elif what == "removed":
        return

    def meanwhile(session: FakeSession, name: str, at: str) -> None:
        if name == step:
            tree.before_call = lambda session, name, path: None
            if what == "written":
                tree.write(path, b"900")
            else:
                tree.remove(path)

    tree.before_call = meanwhile
    assert ZooKeeperOffsets(tree.open()).begin("g", ONLY, 7) is False
    assert tree.shown().get(path) == (b"900" if what == "written" else None)


def test_a_table_is_looked_for_once(tmp_path: Path) -> None:
    statements: list[str] = []

    def connect() -> sqlite3.Connection:
        made = sqlite3.connect(tmp_path / "o.db")
        made.set_trace_callback(statements.append)
        return made

    store = DatabaseOffsets(connect)
    for number in range(3):
        store.load("g", source_of(number))
    assert len([text for text in statements if text.startswith("CREATE TABLE")]) == 1
    store.save("g", {source_of(0): 5})
    assert store.log_of("g", source_of(0)) == store.log_of("g", source_of(99)) == 0
    assert DatabaseOffsets(connect).load("g", source_of(0)) == 5


def test_a_batch_that_ends_inside_a_set_is_refused_wherever_it_begins(tmp_path: Path) -> None:
    """One less, equal, one more: of where the batch ends, and of what the database has."""

    class Batch(list[bytes]):
        def __init__(self, offset: int, next_offset: int) -> None:
            super().__init__([b"x"])
            self.place = Place(ONLY, offset)
            self.source, self.offset, self.next_offset = ONLY, offset, next_offset

    store = DatabaseOffsets(lambda: sqlite3.connect(tmp_path / "o.db", timeout=0.1))
    store.load("g", ONLY)
    with contextlib.closing(sqlite3.connect(tmp_path / "o.db", timeout=0.1)) as connection:
        once = store.exactly_once(connection, "g")
        with pytest.raises(ArgumentError, match="end inside the compressed set at 5"), once(Batch(5, 5)):
            pass
        with once(Batch(5, 6)) as fresh:
            assert fresh
        for begin, end in itertools.product(range(4, 9), repeat=2):
            batch = Batch(begin, end)
            if end <= 6:
                with once(batch) as fresh:
                    assert fresh == [], (begin, end)
            elif begin < 6:
                with pytest.raises(ArgumentError, match="up to 6"), once(batch):
                    pass
        with once(Batch(6, 9)) as fresh:
            assert fresh
    assert store.load("g", ONLY) == 9
