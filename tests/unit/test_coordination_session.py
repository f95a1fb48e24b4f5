"""Sessions of ZooKeeper through kazoo, with a server of our own: lost answers, refusals, silence, expiry, release."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kazoo.client import KazooClient

from fastlog.coordination import zookeeper
from fastlog.coordination.session import NodeExistsError, NoNodeError, SessionLostError, UnknownHostError, VersionError
from fastlog.coordination.zookeeper import ZooKeeperSession
from fastlog.errors import CoordinationError
from tests.harness.ports import unused_port
from tests.harness.reading import wait_until
from tests.harness.session_cases import CASES, Case
from tests.harness.timing import PATIENCE, sooner_than
from tests.harness.zookeeper_wire import (
    BAD_VERSION,
    NO_AUTH,
    NODE_EXISTS,
    SESSION_MOVED,
    RefusedError,
    WireZooKeeper,
)


@pytest.fixture
def server() -> Iterator[WireZooKeeper]:
    with WireZooKeeper() as running:
        yield running


@pytest.fixture
def session(server: WireZooKeeper) -> Iterator[ZooKeeperSession]:
    with ZooKeeperSession(server.connect, session_timeout=PATIENCE) as made:
        server.calls.clear()
        yield made


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_holds_for_every_session(server: WireZooKeeper, case: Case) -> None:
    with ExitStack() as stack:
        case(lambda: stack.enter_context(ZooKeeperSession(f"{server.connect}/tree", session_timeout=5)), server.expire)


# -- life after an error ---------------------------------------------------------------------------------------------

USES: dict[str, Callable[[ZooKeeperSession], Any]] = {
    "create": lambda session: session.create("/a/new", b"1", ephemeral=True),
    "get": lambda session: session.get("/a/there"),
    "set": lambda session: session.set("/a/there", b"2"),
    "put": lambda session: session.put("/a/there", b"3"),
    "delete": lambda session: session.delete("/a/there"),
    "children": lambda session: session.children("/a"),
    "replace": lambda session: session.replace("/a/there", b"4", 0),
}
WIRE = {"put": "set", "replace": "multi"}


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("use", list(USES))
def test_a_lost_connection_is_waited_out_and_the_call_done(
    server: WireZooKeeper, session: ZooKeeperSession, use: str, moment: str
) -> None:
    """Whether the server acted on it is not known then; asking twice does no harm, and the next call goes on."""
    server.tree.write("/a/there", b"0")
    losses = 2

    def lose(number: int, name: str, path: str) -> None:
        nonlocal losses
        if name == WIRE.get(use, use) and losses:
            losses -= 1
            raise ConnectionError

    setattr(server, moment, lose)
    USES[use](session)
    # what was done already is seen at the second try
    assert losses == (1 if (use, moment) in (("create", "after"), ("delete", "after")) else 0)
    expected = {
        "create": b"0",
        "get": b"0",
        "set": b"2",
        "put": b"3",
        "delete": None,
        "children": b"0",
        "replace": b"4",
    }
    there = server.tree.find("/a/there")
    assert (there and there.data) == expected[use]
    new = server.tree.find("/a/new")
    assert (new is not None and (new.data, new.owner)) == ((b"1", session.id) if use == "create" else False)
    assert session.is_connected and not session.is_lost
    assert session.children("/a") is not None
    assert set(server.greetings[1:]) == {session.id}, "it went on with its session"


def test_what_others_made_is_not_taken_for_ours(server: WireZooKeeper, session: ZooKeeperSession) -> None:
    """A node of the same name: with other data, of another session, or a lasting one where ours would be ephemeral."""
    for owner, data in ((session.id, b"other"), (99, b"1"), (0, b"1")):
        server.tree.remove("/a")
        server.tree.write("/a", data, owner)
        with pytest.raises(NodeExistsError, match=r"/a exists with b'(other|1)'"):
            session.create("/a", b"1", ephemeral=True)
    session.create("/a", b"1")  # lasting, with the same data: nothing is missing
    server.tree.remove("/a")
    server.tree.write("/a", b"1", session.id)
    session.create("/a", b"1", ephemeral=True)
    with pytest.raises(NodeExistsError):
        session.create("/a", b"1")

    def vanish(number: int, name: str, path: str) -> None:
        if name == "create":
            raise RefusedError(NODE_EXISTS)

    server.before = vanish
    with pytest.raises(NodeExistsError, match="/b exists and went"):
        session.create("/b", b"1")


def test_a_put_meets_who_makes_and_removes_the_node_meanwhile(server: WireZooKeeper, session: ZooKeeperSession) -> None:
    seen: list[str] = []

    def others(number: int, name: str, path: str) -> None:
        seen.append(name)
        if seen == ["set", "create"]:
            server.tree.write("/p", b"theirs")

    server.before = others
    session.put("/p", b"mine")
    assert seen[:2] == ["set", "create"] and seen[-1] == "set"
    node = server.tree.find("/p")
    assert node is not None and node.data == b"mine"


@pytest.mark.parametrize("use", list(USES))
def test_a_refusal_names_the_path_and_ends_nothing(server: WireZooKeeper, session: ZooKeeperSession, use: str) -> None:
    server.tree.write("/a/there", b"0")

    def refuse(number: int, name: str, path: str) -> None:
        raise RefusedError(NO_AUTH)

    server.before = refuse
    with pytest.raises(CoordinationError, match=rf"ZooKeeper at {server.connect} refuses /a\S*: NoAuth") as raised:
        USES[use](session)
    assert not isinstance(raised.value, SessionLostError | NodeExistsError | VersionError | NoNodeError)
    server.before = lambda number, name, path: None
    USES[use](session)


def test_a_replacement_is_refused_as_a_whole(server: WireZooKeeper, session: ZooKeeperSession) -> None:
    """Each answer of a transaction is looked at: one that is no version's is no ``VersionError``."""
    for code, error in ((BAD_VERSION, VersionError), (-101, VersionError), (NO_AUTH, CoordinationError)):
        answer = server._multi
        server._multi = lambda number, body, code=code: _failed(code)  # type: ignore[method-assign, assignment, misc]
        with pytest.raises(CoordinationError) as raised:
            session.replace("/a", b"", 0)
        assert type(raised.value) is error
        server._multi = answer  # type: ignore[method-assign]


def _failed(code: int) -> bytes:
    head = b"".join(struct.pack(">iBii", -1, 0, each, each) for each in (0, code, -2))
    return head + struct.pack(">iBi", -1, 1, -1)


def test_a_session_that_moved_is_asked_again(server: WireZooKeeper, session: ZooKeeperSession) -> None:
    left = 2

    def moved(number: int, name: str, path: str) -> None:
        nonlocal left
        if left:
            left -= 1
            raise RefusedError(SESSION_MOVED)

    server.before = moved
    assert session.get("/nothing") is None
    assert server.names("/nothing") == ["get"] * 3


def test_without_a_version_any_is_changed(session: ZooKeeperSession) -> None:
    for number in range(4):
        session.put("/any", b"%d" % number)
    assert session.set("/any", b"5") == 4
    assert session.delete("/any")


def test_pauses_between_tries_grow_to_half_a_second(server: WireZooKeeper) -> None:
    pauses: list[float] = []

    class Lost(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0.0)
            return super().wait(0.001)

    with ZooKeeperSession(server.connect, session_timeout=PATIENCE) as session:
        session._lost = Lost()
        left = 7

        def moved(number: int, name: str, path: str) -> None:
            nonlocal left
            if left:
                left -= 1
                raise RefusedError(SESSION_MOVED)

        server.before = moved
        assert session.get("/a") is None
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5, 0.5]


def test_a_connection_that_goes_on_breaking_is_tried_for_the_time_of_a_session(server: WireZooKeeper) -> None:
    """From when the call began, however often it breaks."""
    with ZooKeeperSession(server.connect, session_timeout=PATIENCE) as session:
        session._timeout = 0.8  # more than the longest pause

        def moved(number: int, name: str, path: str) -> None:
            raise RefusedError(SESSION_MOVED)

        server.before = moved
        with sooner_than(PATIENCE), pytest.raises(CoordinationError, match=r"does not answer within 0.8 s"):
            session.get("/a")
        assert len(server.names("/a")) > 2 and not session.is_lost


def test_silence_is_an_error_that_says_how_long_and_costs_no_session(server: WireZooKeeper) -> None:
    """The call ends when the session's time has passed since it began; what comes late is nobody's answer."""
    with ZooKeeperSession(server.connect, session_timeout=PATIENCE) as session:
        session._timeout = 0.2  # as the caller's patience; the connection itself goes on
        entered, release = threading.Event(), threading.Event()

        def hang(number: int, name: str, path: str) -> None:
            if not entered.is_set():
                entered.set()
                release.wait(PATIENCE)

        server.before = hang
        with pytest.raises(CoordinationError, match=r"does not answer within 0.2 s \(asked about /slow\)"):
            session.get("/slow")
        assert entered.is_set() and not session.is_lost
        release.set()
        session._timeout = PATIENCE
        session.put("/next", b"1")
        assert server.names("/slow") == ["get"]
        node = session.get("/next")
        assert node is not None and node.data == b"1"


def test_an_expired_session_fails_every_call_and_comes_back_never(server: WireZooKeeper) -> None:
    """Kazoo would go on with a new session, and what was queued for the old one would run in it."""
    heard: list[bool] = []
    with ZooKeeperSession(server.connect, session_timeout=PATIENCE, on_change=lambda: heard.append(True)) as session:
        session.create("/mine", ephemeral=True)
        server.expire(session.id)
        wait_until(lambda: session.is_lost)
        assert not session.is_connected
        assert session.timeout == PATIENCE, "what was granted once stays known"
        for use in USES.values():
            with pytest.raises(SessionLostError, match=rf"ZooKeeper at {server.connect} is over"):
                use(session)
        assert server.tree.find("/mine") is None and server.tree.find("/a") is None
        wait_until(lambda: len(heard) >= 2)  # the connection went, the session ended
        greetings = len(server.greetings)
        time.sleep(0.1)
        assert len(server.greetings) == greetings and 0 not in server.greetings[1:]


def test_who_waits_for_the_connection_hears_that_the_session_is_over(server: WireZooKeeper) -> None:
    with ZooKeeperSession(server.connect, session_timeout=PATIENCE) as session:

        def expire(number: int, name: str, path: str) -> None:
            server.expire(number)
            raise ConnectionError

        server.before = expire
        with sooner_than(PATIENCE), pytest.raises(SessionLostError):
            session.get("/a")


def test_changes_of_the_connection_are_told(server: WireZooKeeper, caplog: pytest.LogCaptureFixture) -> None:
    """When it goes and when it is back; not any more once it is closed."""
    states: list[bool] = []
    session = ZooKeeperSession(
        server.connect, session_timeout=PATIENCE, on_change=lambda: states.append(session.is_connected)
    )
    session.get("/a")
    server.cut()
    wait_until(lambda: False in states and states[-1])
    assert [message.split()[0] for message in caplog.messages] == ["event=zookeeper_connection_lost"]
    before = len(states)
    session.close()
    assert len(states) == before, "its own end is no news"
    server.cut()
    time.sleep(0.05)
    assert len(states) == before
    assert session.is_lost


# -- beginning and end -----------------------------------------------------------------------------------------------


def test_a_watch_that_waits_for_a_node_to_be_made_misses_none(server: WireZooKeeper, session: ZooKeeperSession) -> None:
    """It may be made between the answer that it is missing and the question that leaves the watch."""
    for name in ("get", "children"):
        path = f"/made/{name}"

        def make(number: int, called: str, at: str, path: str = path) -> None:
            if called == "exists":
                server.tree.write(path, b"1")
                server.before = lambda number, name, path: None

        server.before = make
        fired = threading.Event()
        read = getattr(session, name)
        found = read(path, fired.set)
        assert found is not None
        server.tree.write(f"{path}/child" if name == "children" else path, b"2")
        assert fired.wait(PATIENCE)
        server.calls.clear()
        assert read("/nowhere") is None
        assert server.names() == [name], "without a watch nothing waits for it"


def test_what_was_granted_counts_and_not_what_was_asked_for(server: WireZooKeeper) -> None:
    server.granted_ms = 4321
    with ZooKeeperSession(server.connect, session_timeout=9) as session:
        assert session.timeout == 4.321
        number = session.id
        assert number in server.tree.sessions
        server.cut()
        wait_until(lambda: session.is_connected and len(server.greetings) == 2)
        assert (session.id, session.timeout) == (number, 4.321)


def test_the_path_behind_the_servers_is_made_by_who_writes(server: WireZooKeeper) -> None:
    with ZooKeeperSession(f"{server.connect}/its/own", makes_root=False) as session:
        assert server.tree.find("/its") is None
        assert session.get("/x") is None
    with ZooKeeperSession(f"{server.connect}/its/own") as session:
        assert server.tree.find("/its/own") is not None
        session.put("/x", b"1")
        session.replace("/x", b"2", 0)
    assert server.tree.find("/its/own/x") is None, "it went with the session"
    assert server.tree.find("/x") is None
    assert {call.path for call in server.calls if call.name == "multi"} == {"/its/own/x"}


def test_no_server_is_said_when_the_time_is_over_and_leaves_nothing() -> None:
    with WireZooKeeper() as server:
        server.stands_still.set()
        before = threading.active_count()
        began = time.monotonic()
        with pytest.raises(CoordinationError, match=rf"no ZooKeeper answers at {server.connect} within 0.3 s"):
            ZooKeeperSession(server.connect, session_timeout=PATIENCE, connection_timeout=0.3)
        assert time.monotonic() - began >= 0.3
        server.stands_still.clear()
        server.cut()
        wait_until(lambda: threading.active_count() <= before)


def test_a_server_that_comes_later_is_waited_for_without_spinning() -> None:
    later = WireZooKeeper()
    later.port = unused_port()
    asked: list[float] = []

    def is_wanted() -> bool:
        asked.append(time.monotonic())
        if len(asked) == 4:
            later.__enter__()
        return True

    session = ZooKeeperSession(
        f"127.0.0.1:{later.port}", session_timeout=PATIENCE, connection_timeout=PATIENCE, is_wanted=is_wanted
    )
    try:
        assert session.is_connected
        assert len(asked) < 20 * (asked[-1] - asked[0]) + 20
    finally:
        session.close()
        later.__exit__()


def test_names_that_nobody_knows_are_said_at_once(server: WireZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all of them are unknown; one that is known is enough."""
    unknown = {"no-such-host": "nobody knows it"}
    monkeypatch.setattr(zookeeper, "unknown_hosts", lambda servers, seconds, is_wanted: unknown)
    with sooner_than(PATIENCE), pytest.raises(UnknownHostError, match="cannot resolve no-such-host: nobody knows it"):
        ZooKeeperSession("no-such-host:1,no-such-host:2/x", connection_timeout=600)
    with ZooKeeperSession(f"no-such-host:1,{server.connect}", session_timeout=PATIENCE) as session:
        assert session.is_connected


def test_who_is_not_wanted_any_more_stops_waiting() -> None:
    with WireZooKeeper() as server:
        server.stands_still.set()
        asked: list[None] = []

        def is_wanted() -> bool:
            asked.append(None)
            return len(asked) < 4

        with sooner_than(PATIENCE), pytest.raises(CoordinationError):
            ZooKeeperSession(server.connect, session_timeout=600, connection_timeout=600, is_wanted=is_wanted)
        assert len(asked) == 4


def test_it_is_connected_as_soon_as_it_is_there(server: WireZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though kazoo tells its listeners later."""
    told, change = threading.Event(), KazooClient._make_state_change

    def late(client: KazooClient, state: str) -> None:
        told.wait(PATIENCE)
        change(client, state)

    monkeypatch.setattr(KazooClient, "_make_state_change", late)
    with ZooKeeperSession(server.connect) as session:
        is_connected = session.is_connected
        told.set()
    assert is_connected


def test_a_greeting_that_is_swallowed_is_sent_again_soon(server: WireZooKeeper) -> None:
    """A server that starts takes greetings and answers none of them; a session lasts long, and nobody waits for it."""
    swallowed = threading.Event()
    serve = server.serve

    def swallow(connection: Any) -> None:
        if not swallowed.is_set():
            swallowed.set()
            server._released.wait(PATIENCE)
            return
        serve(connection)

    server.serve = swallow  # type: ignore[method-assign]
    with sooner_than(60.0), ZooKeeperSession(server.connect, session_timeout=600, connection_timeout=600) as session:
        assert swallowed.is_set() and session.is_connected
        assert session.timeout == 600


def test_close_ends_the_session_at_once_and_every_thread(server: WireZooKeeper) -> None:
    threads = set(threading.enumerate())
    for ends_before in (False, True):
        session = ZooKeeperSession(server.connect, session_timeout=PATIENCE)
        session.create("/mine", ephemeral=True)
        if ends_before:
            server.expire(session.id)
            wait_until(lambda session=session: session.is_lost)  # type: ignore[misc]
        session.close()
        session.close()
        assert server.tree.find("/mine") is None
        assert session.is_lost and not session.is_connected
        with pytest.raises(SessionLostError):
            session.get("/mine")
    server.cut()

    def ours() -> list[threading.Thread]:
        return [
            thread
            for thread in set(threading.enumerate()) - threads
            if thread not in server._threads and thread is not threading.current_thread()
        ]

    wait_until(lambda: not ours())


def test_a_session_that_is_lost_by_its_close_is_known_to_be_closing(server: WireZooKeeper) -> None:
    """Noted the other way round, its end could be told in between as one that nobody wanted."""
    noted: list[bool] = []
    session = ZooKeeperSession(server.connect, session_timeout=PATIENCE)

    class Lost(threading.Event):
        def set(self) -> None:
            noted.append(session._is_closing)
            super().set()

    session._lost = Lost()
    session.close()
    assert noted == [True]


def test_where_the_path_cannot_be_made_nothing_is_left(server: WireZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[ZooKeeperSession] = []
    close = zookeeper.ZooKeeperSession.close

    def noting(session: ZooKeeperSession) -> None:
        closed.append(session)
        close(session)

    monkeypatch.setattr(zookeeper.ZooKeeperSession, "close", noting)

    def refuse(number: int, name: str, path: str) -> None:
        raise RefusedError(NO_AUTH)

    server.before = refuse
    with pytest.raises(CoordinationError, match="refuses"):
        ZooKeeperSession(f"{server.connect}/root", session_timeout=PATIENCE)
    (session,) = closed
    assert session.is_lost
    wait_until(lambda: not server._living)
