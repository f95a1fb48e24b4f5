"""What holds for every kind of session: run on ZooKeeper, and on the fake that other tests use in its place."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from fastlog.coordination.session import NodeExistsError, NoNodeError, Session, SessionLostError, VersionError
from fastlog.errors import CoordinationError
from tests.harness.timing import PATIENCE

SECONDS = PATIENCE

Open = Callable[[], Session]
Expire = Callable[[int], None]
Case = Callable[[Open, Expire], None]


def a_tree_of_values(open_session: Open, expire: Expire) -> None:
    session = open_session()
    assert session.timeout > 0
    assert session.get("/x/y") is None
    assert session.children("/x") is None
    session.create("/x/y", b"1")
    found = session.get("/x/y")
    assert found is not None
    assert (found.data, found.version, found.owner) == (b"1", 0, 0)
    assert abs(found.modified_ms - time.time() * 1000) < 60_000
    assert session.set("/x/y", b"2") == 1
    assert session.set("/x/y", b"3", 1) == 2
    with pytest.raises(VersionError):
        session.set("/x/y", b"4", 1)
    with pytest.raises(VersionError):
        session.delete("/x/y", 1)
    assert session.children("/x") == ["y"]
    assert session.delete("/x/y", 2)
    assert not session.delete("/x/y")
    with pytest.raises(NoNodeError):
        session.set("/x/y", b"5")
    session.put("/x/y", b"6")
    session.put("/x/y", b"7")
    assert session.get("/x/y").data == b"7"  # type: ignore[union-attr]
    with pytest.raises(CoordinationError, match=r"refuses /x: .*children|NotEmpty"):
        session.delete("/x")


def an_ephemeral_node_is_its_sessions(open_session: Open, expire: Expire) -> None:
    """Making it again is success for the same session and value, and a conflict for any other."""
    session = open_session()
    session.create("/id/1", b"me", ephemeral=True)
    session.create("/id/1", b"me", ephemeral=True)
    found = session.get("/id/1")
    assert found is not None
    assert found.owner == session.id
    with pytest.raises(NodeExistsError, match="/id/1 exists with b'me'"):
        session.create("/id/1", b"you", ephemeral=True)
    other = open_session()
    with pytest.raises(NodeExistsError):
        other.create("/id/1", b"me", ephemeral=True)
    session.close()
    assert session.is_lost
    assert not session.is_connected
    assert other.get("/id/1") is None


def a_watch_fires_once_for_a_change(open_session: Open, expire: Expire) -> None:
    session = open_session()
    for kind in ("children", "get"):
        path = f"/{kind}"
        changes = threading.Semaphore(0)
        read = getattr(session, kind)
        assert read(path, changes.release) is None
        session.create(path, b"1")
        assert changes.acquire(timeout=SECONDS), "nothing said that the node was made"
        for _ in range(2):
            read(path, changes.release)
            if kind == "get":
                session.set(path, b"2")
                session.set(path, b"3")
                session.delete(path)
                session.create(path)
            else:
                session.create(f"{path}/child")
                session.create(f"{path}/other")
                session.delete(f"{path}/child")
                session.delete(f"{path}/other")
            assert changes.acquire(timeout=SECONDS)
            assert not changes.acquire(blocking=False)


def a_watch_of_what_is_below_does_not_see_values(open_session: Open, expire: Expire) -> None:
    session = open_session()
    session.create("/parent/child", b"1")
    changed = threading.Event()
    session.children("/parent", changed.set)
    session.set("/parent/child", b"2")
    session.create("/parent/child/deep")
    session.set("/parent", b"3")
    assert not changed.wait(0.05)
    session.create("/parent/other")
    assert changed.wait(SECONDS)


def an_expired_session_is_over_for_good(open_session: Open, expire: Expire) -> None:
    """Its watches fire, its nodes are gone, and no call goes through; a new session is another one."""
    session, other = open_session(), open_session()
    changed, seen = threading.Event(), threading.Event()
    session.create("/mine", ephemeral=True)
    session.get("/mine", changed.set)
    other.get("/mine", seen.set)
    expire(session.id)
    assert changed.wait(SECONDS)
    assert seen.wait(SECONDS)
    deadline = time.monotonic() + SECONDS
    while not session.is_lost and time.monotonic() < deadline:
        time.sleep(0.01)
    for _ in range(3):
        with pytest.raises(SessionLostError):
            session.put("/x", b"1")
    assert other.get("/mine") is None
    assert other.get("/x") is None
    assert other.id != session.id


def a_node_is_replaced_in_one_step(open_session: Open, expire: Expire) -> None:
    """Its watch fires once, and whoever looks finds either the old or the new one."""
    session, other = open_session(), open_session()
    other.create("/id/1", b"old", ephemeral=True)
    other.set("/id/1", b"older")
    for version in (0, 2):
        with pytest.raises(VersionError):
            session.replace("/id/1", b"new", version)
    with pytest.raises(VersionError):
        session.replace("/id/2", b"new", 0)
    with pytest.raises(CoordinationError, match=r"refuses /id: .*children|NotEmpty"):
        session.replace("/id", b"new", 0)
    found: list[list[str] | None] = []
    over = threading.Event()

    def look() -> None:
        reader = open_session()
        found.append(reader.children("/id"))
        while not over.is_set():
            found.append(reader.children("/id"))

    looking = threading.Thread(target=look)
    looking.start()
    changed = threading.Event()
    other.get("/id/1", changed.set)
    while not found:
        time.sleep(0.001)
    session.replace("/id/1", b"new", 1)
    assert changed.wait(SECONDS)
    over.set()
    looking.join(SECONDS)
    assert all(names == ["1"] for names in found)
    node = other.get("/id/1")
    assert node is not None
    assert (node.data, node.version, node.owner) == (b"new", 0, session.id)
    other.close()
    assert session.get("/id/1") is not None


CASES: list[Case] = [
    a_tree_of_values,
    an_ephemeral_node_is_its_sessions,
    a_watch_fires_once_for_a_change,
    a_watch_of_what_is_below_does_not_see_values,
    an_expired_session_is_over_for_good,
    a_node_is_replaced_in_one_step,
]
