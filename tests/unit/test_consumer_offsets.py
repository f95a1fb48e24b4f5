"""Where offsets are kept: each store keeps them, and takes none from who has lost the partition."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastlog.consumer._delivery import Place
from fastlog.consumer.database import DatabaseOffsets, _in_style
from fastlog.consumer.exactly_once import ExactlyOnce
from fastlog.consumer.offsets import FileOffsets, OffsetStore, ZooKeeperOffsets
from fastlog.consumer.partitions import TopicPartition
from fastlog.coordination.session import SessionLostError
from fastlog.errors import ArgumentError, ConfigError, CoordinationError, OwnershipLostError
from fastlog.zkpaths import PartitionId
from tests.harness.fake_session import FakeZooKeeper

P0, P1, P10 = (TopicPartition("t", PartitionId(0, number)) for number in (0, 1, 10))
MakeStore = Callable[[], OffsetStore]


class Message(NamedTuple):
    source: TopicPartition
    offset: int
    next_offset: int


class Located(list[bytes]):
    """A batch that knows its place; as a message, too."""

    def __init__(self, place: Place, offset: int, next_offset: int) -> None:
        super().__init__([b"x"])
        self.place, self.source, self.offset, self.next_offset = place, place.source, offset, next_offset


class Batch(list[bytes]):
    """As streams give them: of one partition."""

    def __init__(self, source: TopicPartition, offset: int, next_offset: int) -> None:
        super().__init__(str(number).encode() for number in range(offset, next_offset))
        self.source, self.offset, self.next_offset = source, offset, next_offset
        self.place = types.SimpleNamespace(is_over=False)


def messages(source: TopicPartition, begin: int, end: int) -> list[Message]:
    return [Message(source, number, number + 1) for number in range(begin, end)]


@pytest.fixture(params=["files", "database", "zookeeper"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    """Makes a store, each time for another member of the same groups."""
    tree = FakeZooKeeper()
    return {
        "files": lambda: FileOffsets(tmp_path / "offsets"),
        "database": lambda: DatabaseOffsets(lambda: sqlite3.connect(tmp_path / "offsets.db")),
        "zookeeper": lambda: ZooKeeperOffsets(tree.open()),
    }[request.param]


def test_offsets_are_kept(make_store: MakeStore) -> None:
    store = make_store()
    assert [store.load("g", partition) for partition in (P0, P1, P10)] == [None, None, None]
    store.save("g", {P0: 10, P10: 2**62})
    store.save("g", {P0: 11})
    store.save("g", {P0: 11})
    store.save("g", {})
    other = make_store()
    assert [other.load("g", partition) for partition in (P0, P1, P10)] == [11, None, 2**62]
    assert other.load("another group", P0) is None


@pytest.fixture(params=["files", "database"])
def make_fenced(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    """The stores that no session fences."""
    return {
        "files": lambda: FileOffsets(tmp_path),
        "database": lambda: DatabaseOffsets(lambda: sqlite3.connect(tmp_path / "offsets.db")),
    }[request.param]


def test_which_log_an_offset_is_of_is_kept_beside_it(make_fenced: MakeStore) -> None:
    """Until another one is told; by the same save that keeps the offset."""
    store: Any = make_fenced()
    for partition in (P0, P1):
        assert store.load("g", partition) is None and store.log_of("g", partition) == 0
    store.note_logs("g", {P0: 1_346_000_000_000, P1: 0})
    store.save("g", {P0: 5, P1: 6})
    store.note_logs("g", {P0: 1_346_000_000_999})
    other: Any = make_fenced()
    assert [(other.load("g", partition), other.log_of("g", partition)) for partition in (P0, P1)] == [
        (5, 1_346_000_000_000),
        (6, 0),
    ]
    other.save("g", {P0: 7})
    third: Any = make_fenced()
    assert (third.load("g", P0), third.log_of("g", P0)) == (7, 1_346_000_000_000)


def test_a_table_without_logs_gets_them(path: Path) -> None:
    """It was made by an earlier version, and keeps what it holds."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TABLE fastlog_offsets (consumer_group VARCHAR(255) NOT NULL, topic VARCHAR(255) NOT NULL,"
            " broker_partition VARCHAR(32) NOT NULL, next_offset BIGINT, owner VARCHAR(32) NOT NULL,"
            " PRIMARY KEY (consumer_group, topic, broker_partition))"
        )
        connection.execute("INSERT INTO fastlog_offsets VALUES ('g', 't', '0-0', 5, 'x')")
        connection.commit()
    store = DatabaseOffsets(lambda: sqlite3.connect(path))
    assert (store.load("g", P0), store.log_of("g", P0)) == (5, 0)
    store.note_logs("g", {P0: 7})
    store.save("g", {P0: 6})
    assert DatabaseOffsets(lambda: sqlite3.connect(path)).load("g", P0) == 6


def test_what_a_jump_back_has_led_to_is_not_taken_for_done(path: Path, connection: sqlite3.Connection) -> None:
    """The database is further on in a log that is gone: that is an error, and no silence."""
    store = DatabaseOffsets(lambda: sqlite3.connect(path))
    assert store.load("g", P0) is None
    once = store.exactly_once(connection, "g")
    place = Place(P0, 0)
    with once(Located(place, 0, 5000)):
        pass
    with once(Located(place, 0, 5000)) as fresh:
        assert fresh == []  # again, as after a doubtful commit
    place.begin(5000)
    place.begin(100)
    for messages in (Located(place, 100, 200), [Located(place, 100, 200)]):
        with pytest.raises(ArgumentError, match=r"gone back to 100.*stands at 5000"), once(messages):
            pass


def test_who_loads_last_is_who_saves(make_fenced: MakeStore) -> None:
    """A member that was stopped and wakes saves nothing over the new owner; the rest of what it has is saved."""
    old, new = make_fenced(), make_fenced()
    for partition in (P0, P1):
        old.load("g", partition)
    old.save("g", {P0: 5, P1: 6})
    assert new.load("g", P0) == 5
    with pytest.raises(OwnershipLostError, match="t/0-0") as raised:
        old.save("g", {P0: 99, P1: 7})
    assert raised.value.partitions == (P0,)
    with pytest.raises(OwnershipLostError):
        old.save("g", {P10: 1})  # never loaded at all
    new.save("g", {P0: 8})
    assert [make_fenced().load("g", partition) for partition in (P0, P1)] == [8, 7]


def test_a_child_is_another_member(make_fenced: MakeStore) -> None:
    store = make_fenced()
    store.load("g", P0)
    child = os.fork()
    if child == 0:
        try:
            store.save("g", {P0: 66})
        except OwnershipLostError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    store.save("g", {P0: 1})


def test_zookeepers_offsets_end_with_the_session() -> None:
    """What a stopped member would still like to write is not written, whoever owns the partition."""
    tree = FakeZooKeeper()
    session = tree.open()
    store = ZooKeeperOffsets(session)
    store.save("g", {P0: 5})
    assert tree.shown()["/consumers/g/offsets/t/0-0"] == b"5"
    tree.expire(session.id)
    with pytest.raises(SessionLostError):
        store.save("g", {P0: 6})
    assert tree.shown()["/consumers/g/offsets/t/0-0"] == b"5"


# --- files ---


def test_a_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that fails half-way leaves what was there; names of groups may be anything."""
    store = FileOffsets(tmp_path)
    group = "über/../group %"
    store.load(group, P0)
    store.save(group, {P0: 5})
    assert store.path(group).parent == tmp_path
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(fd) or (_ for _ in ()).throw(OSError(28, "No space")))
    with pytest.raises(CoordinationError, match=r"offsets\.json: No space"):
        store.save(group, {P0: 6})
    assert synced
    monkeypatch.undo()
    assert json.loads(store.path(group).read_text())["offsets"]["t/0-0"]["offset"] == 5
    store.save(group, {P0: 7})
    assert FileOffsets(tmp_path).load(group, P0) == 7


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"version": 2, "offsets": {}}',
        '{"version": 1, "offsets": []}',
        '{"version": 1, "offsets": {"t/0-0": {"offset": -5, "owner": "x"}}}',
        '{"version": 1, "offsets": {"t/0-0": {"offset": "5", "owner": "x"}}}',
        '{"version": 1, "offsets": {"t/0-0": 5}}',
    ],
)
def test_a_damaged_file_is_an_error_and_not_a_beginning(tmp_path: Path, text: str) -> None:
    """T-29: offsets are never silently reset."""
    store = FileOffsets(tmp_path)
    store.path("g").write_text(text)
    for call in (lambda: store.load("g", P0), lambda: store.save("g", {P0: 1})):
        with pytest.raises(CoordinationError, match=r"g\.offsets\.json is no file of offsets"):
            call()
    assert store.path("g").read_text() == text


def test_a_lock_that_is_kept_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    from fastlog.consumer import offsets

    monkeypatch.setattr(offsets, "_LOCK_SECONDS", 0.02)
    store = FileOffsets(tmp_path)
    store.load("g", P0)
    with store.path("g").with_suffix(".lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(CoordinationError, match="another process has had the lock"):
            store.save("g", {P0: 1})
    store.save("g", {P0: 1})


# --- databases ---


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with a table for effects."""
    with contextlib.closing(sqlite3.connect(tmp_path / "app.db")) as made:
        made.execute("create table seen (number int)")
    return tmp_path / "app.db"


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(path, timeout=0.1)) as made:
        yield made


def seen(path: Path) -> list[int]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return [number for (number,) in connection.execute("select number from seen order by number")]


def offsets_in(path: Path) -> DatabaseOffsets:
    return DatabaseOffsets(lambda: sqlite3.connect(path, timeout=0.1))


def take(once: ExactlyOnce, connection: sqlite3.Connection, batch: Any) -> int:
    with once(batch) as fresh:
        connection.executemany("insert into seen values (?)", [(message.offset,) for message in fresh])
    return len(fresh)


def test_effects_and_offsets_commit_together(path: Path, connection: sqlite3.Connection) -> None:
    store = offsets_in(path)
    assert store.load("g", P0) is None
    assert store.load("g", P1) is None
    once = store.exactly_once(connection, "g")
    take(once, connection, messages(P0, 0, 3) + messages(P1, 10, 12))
    assert seen(path) == [0, 1, 2, 10, 11]
    with pytest.raises(ZeroDivisionError), once(messages(P0, 3, 5)):
        connection.execute("insert into seen values (99)")
        raise ZeroDivisionError
    assert seen(path) == [0, 1, 2, 10, 11]
    other = offsets_in(path)
    assert (other.load("g", P0), other.load("g", P1)) == (3, 12)


def test_what_was_rolled_back_has_to_come_again(path: Path, connection: sqlite3.Connection) -> None:
    """Going on behind it would lose it; trying it again is all right, and so is a new claim."""
    store = offsets_in(path)
    store.load("g", P0)
    once = store.exactly_once(connection, "g")
    take(once, connection, messages(P0, 0, 2))
    with pytest.raises(ZeroDivisionError), once(messages(P0, 2, 4)):
        raise ZeroDivisionError
    with pytest.raises(ValueError, match="began at 2 was rolled back, and these messages begin at 4"):
        take(once, connection, messages(P0, 4, 6))
    take(once, connection, messages(P0, 2, 5))
    take(once, connection, messages(P0, 5, 6))
    take(once, connection, messages(P0, 8, 9))  # what lay between is gone from the broker
    with pytest.raises(ZeroDivisionError), once(messages(P0, 9, 10)):
        raise ZeroDivisionError
    assert store.load("g", P0) == 9
    take(once, connection, messages(P0, 20, 21))
    assert seen(path) == [0, 1, 2, 3, 4, 5, 8, 20]


def test_who_has_lost_a_partition_commits_nothing(path: Path, connection: sqlite3.Connection) -> None:
    """A process that was stopped in its transaction, after another one has read the same messages, and before."""
    with contextlib.closing(sqlite3.connect(path)) as late:
        old, new = offsets_in(path), offsets_in(path)
        for store in (old, new):
            store.load("g", P0)
        once_old, once_new = old.exactly_once(late, "g"), new.exactly_once(connection, "g")
        with pytest.raises(OwnershipLostError, match=r"t/0-0.*rolled back") as raised:
            take(once_old, late, messages(P0, 0, 3))
        assert raised.value.partitions == (P0,)
        take(once_new, connection, messages(P0, 0, 2))
        for begin in (0, 3):  # again, or what the stream still has in hand: none of it is to be done here
            assert take(once_old, late, messages(P0, begin, 5)) == 0
        assert old.fenced("g") == [P0]
        assert old.load("g", P0) == 2
        assert old.fenced("g") == []
        assert take(once_old, late, messages(P0, 2, 3)) == 1
        with pytest.raises(OwnershipLostError):
            take(once_new, connection, messages(P0, 2, 5))
    assert seen(path) == [0, 1, 2]


def test_what_a_consumer_lost_and_got_again_is_done_once(path: Path, connection: sqlite3.Connection) -> None:
    """It was busy with messages meanwhile: they are rolled back, and come again. What it had in hand is left out."""
    store = offsets_in(path)
    store.load("g", P0)
    once = store.exactly_once(connection, "g")
    with pytest.raises(OwnershipLostError), once(messages(P0, 0, 5)) as fresh:
        assert store.load("g", P0) is None  # by the group's worker, which has begun anew
        connection.executemany("insert into seen values (?)", [(message.offset,) for message in fresh])
    old = Batch(P0, 0, 9)
    old.place = types.SimpleNamespace(is_over=True)
    with once(old) as fresh:
        assert fresh == []
    assert take(once, connection, messages(P0, 0, 3)) == 3
    assert take(once, connection, messages(P0, 0, 2)) == 0
    assert take(once, connection, messages(P0, 1, 8)) == 5
    assert seen(path) == list(range(8))


def test_two_transactions_of_one_store_do_not_both_commit(path: Path, connection: sqlite3.Connection) -> None:
    """Two members in one process that share the store, of which one has lost the partition to the other."""
    store = offsets_in(path)
    store.load("g", P0)
    with contextlib.closing(sqlite3.connect(path)) as second:
        once, other = store.exactly_once(connection, "g"), store.exactly_once(second, "g")
        with pytest.raises(OwnershipLostError), other(messages(P0, 0, 5)):
            take(once, connection, messages(P0, 0, 3))
            second.execute("insert into seen values (99)")
    assert seen(path) == [0, 1, 2]


def test_a_commit_without_an_answer_is_looked_up(path: Path) -> None:
    """The connection broke while it committed: whether it did is read before the messages are tried again."""

    class Deaf(sqlite3.Connection):
        is_deaf = False

        def commit(self) -> None:
            super().commit()
            if self.is_deaf:
                raise sqlite3.OperationalError("connection lost")

    with contextlib.closing(sqlite3.connect(path, factory=Deaf)) as connection:
        store = offsets_in(path)
        store.load("g", P0)
        once = store.exactly_once(connection, "g")
        connection.is_deaf = True
        with pytest.raises(sqlite3.OperationalError):
            take(once, connection, messages(P0, 0, 3))
        connection.is_deaf = False
        assert take(once, connection, messages(P0, 0, 3)) == 0
        assert take(once, connection, messages(P0, 3, 4)) == 1
    assert seen(path) == [0, 1, 2, 3]


def test_batches_of_one_partition(path: Path, connection: sqlite3.Connection) -> None:
    store = offsets_in(path)
    store.load("g", P0)
    once = store.exactly_once(connection, "g")
    batch = Batch(P0, 0, 3)
    with once(batch) as fresh:
        assert fresh is batch
    with once(batch) as fresh:
        assert fresh == []
    with pytest.raises(ValueError, match="up to 3"), once(Batch(P0, 1, 5)):
        pass
    with once(Batch(P0, 3, 5)):
        pass
    assert offsets_in(path).load("g", P0) == 5


def test_a_compressed_set_is_not_cut(path: Path, connection: sqlite3.Connection) -> None:
    """Its messages all go on at its start but the last: saved there, those before would come again."""
    store = offsets_in(path)
    store.load("g", P0)
    once = store.exactly_once(connection, "g")
    wrapper = [Message(P0, 5, 5), Message(P0, 5, 5), Message(P0, 5, 90)]
    with pytest.raises(ValueError, match="inside the compressed set at 5"):
        take(once, connection, wrapper[:2])
    assert take(once, connection, wrapper) == 3
    assert take(once, connection, wrapper) == 0


def test_misuse_is_refused(path: Path, connection: sqlite3.Connection) -> None:
    store = offsets_in(path)
    with pytest.raises(ConfigError, match="name of a table"):
        DatabaseOffsets(lambda: connection, table="x; drop table seen")
    with pytest.raises(ConfigError, match="paramstyle"):
        DatabaseOffsets(lambda: connection, paramstyle="dollar")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as each, pytest.raises(ConfigError):
        store.exactly_once(each, "g")
    once = store.exactly_once(connection, "g")
    with pytest.raises(OwnershipLostError, match="not loaded"):
        take(once, connection, messages(P0, 0, 1))
    with pytest.raises(CoordinationError, match=r"autocommit\.enable=false"):
        store.save("g", {P0: 1})


def test_placeholders_in_every_style() -> None:
    statement = "a = ? AND b = ?"
    assert _in_style(statement, ["x", 1], "qmark") == (statement, ("x", 1))
    assert _in_style(statement, ["x", 1], "numeric") == ("a = :1 AND b = :2", ("x", 1))
    assert _in_style(statement, ["x", 1], "named") == ("a = :p1 AND b = :p2", {"p1": "x", "p2": 1})
    assert _in_style(statement, ["x", 1], "format") == ("a = %s AND b = %s", ("x", 1))
    assert _in_style(statement, ["x", 1], "pyformat") == ("a = %(p1)s AND b = %(p2)s", {"p1": "x", "p2": 1})


class NumericCursor(sqlite3.Cursor):
    """Of a driver whose style is numeric: to SQLite ``:1`` is a name, which takes no sequence from Python 3.14 on."""

    def execute(self, statement: str, values: Any = (), /) -> NumericCursor:
        places = re.findall(r":(\d)", statement)
        super().execute(re.sub(r":\d", "?", statement), [values[int(place) - 1] for place in places])
        return self


class NumericConnection(sqlite3.Connection):
    def cursor(self, factory: Any = NumericCursor) -> Any:
        return super().cursor(factory)


@pytest.mark.parametrize(("style", "driver"), [("numeric", NumericConnection), ("named", sqlite3.Connection)])
def test_other_styles_work(path: Path, style: str, driver: type[sqlite3.Connection]) -> None:
    for number in (0, 1):
        store = DatabaseOffsets(lambda: sqlite3.connect(path, factory=driver), paramstyle=style, table="other_offsets")
        assert store.load("g", P0) == (5 if number else None)
        store.save("g", {P0: 5})


def test_the_driver_says_its_style(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of the connection's class, or the package around it, has it; otherwise it has to be given."""

    class Wrapped:
        def __init__(self) -> None:
            self.inner = sqlite3.connect(path)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    Wrapped.__module__ = "some_driver.connections"
    make = Wrapped
    with pytest.raises(ConfigError, match="pass paramstyle="):
        DatabaseOffsets(make).load("g", P0)
    driver = types.ModuleType("some_driver")
    driver.paramstyle = "named"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_driver", driver)
    assert DatabaseOffsets(make).load("g", P0) is None


@pytest.mark.slow
@settings(deadline=None)
@given(st.data())
def test_whatever_happens_each_message_is_done_once(data: st.DataObject) -> None:
    """Two processes take turns: loading, taking batches of any size, failing anywhere, coming back late."""
    keeper = sqlite3.connect("file:once?mode=memory&cache=shared", uri=True)
    make = lambda: sqlite3.connect("file:once?mode=memory&cache=shared", uri=True)  # noqa: E731
    try:
        keeper.execute("create table seen (number int)")
        keeper.commit()
        actors = []
        for _ in range(2):
            store, connection = DatabaseOffsets(make), make()
            actors.append([store, connection, store.exactly_once(connection, "g"), None])
        for _ in range(data.draw(st.integers(1, 25))):
            actor = data.draw(st.sampled_from(actors))
            store, connection, once, position = actor
            if position is None or data.draw(st.integers(0, 5)) == 0:
                actor[3] = store.load("g", P0) or 0
                continue
            end = position + data.draw(st.integers(1, 4))
            fails = data.draw(st.integers(0, 4)) == 0
            try:
                with once(messages(P0, position, end)) as fresh:
                    connection.executemany("insert into seen values (?)", [(message.offset,) for message in fresh])
                    if fails:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                continue
            except OwnershipLostError:
                pass
            actor[3] = None if store.fenced("g") else end
        final = DatabaseOffsets(make).load("g", P0) or 0
        assert [number for (number,) in keeper.execute("select number from seen order by number")] == list(range(final))
    finally:
        for actor in actors:
            actor[1].close()
        keeper.close()
