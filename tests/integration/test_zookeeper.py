"""Sessions against a real ZooKeeper: what is promised of them holds through outages, expiry and stopped processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from fastlog import testing
from fastlog.coordination.addresses import parse_connect
from fastlog.coordination.session import NodeExistsError, NoNodeError, SessionLostError, VersionError
from fastlog.coordination.zookeeper import ZooKeeperSession
from fastlog.errors import ConfigError, CoordinationError, MissingDependencyError
from fastlog.testing import RunningZooKeeper
from fastlog.zkserver import jars

pytestmark = [pytest.mark.slow, pytest.mark.java]
SECONDS = 5 * 2.0


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[RunningZooKeeper]:
    with testing.zookeeper() as running:
        yield running


@pytest.fixture
def session(zookeeper: RunningZooKeeper, fastlog_topic: str) -> Iterator[ZooKeeperSession]:
    """Below a chroot of the test's own, which is made by connecting."""
    with ZooKeeperSession(f"{zookeeper.connect}/a/{fastlog_topic}", session_timeout=2.0) as made:
        yield made


def test_a_tree_of_values(session: ZooKeeperSession) -> None:
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


def test_an_ephemeral_node_is_its_sessions(zookeeper: RunningZooKeeper, session: ZooKeeperSession) -> None:
    """Making it again is success for the same session and value, and a conflict for any other."""
    session.create("/id/1", b"me", ephemeral=True)
    session.create("/id/1", b"me", ephemeral=True)
    found = session.get("/id/1")
    assert found is not None
    assert found.owner == session.id
    with pytest.raises(NodeExistsError, match="/id/1 exists with b'me'"):
        session.create("/id/1", b"you", ephemeral=True)
    with ZooKeeperSession(str(session.servers)) as other:
        with pytest.raises(NodeExistsError):
            other.create("/id/1", b"me", ephemeral=True)
        session.close()
        assert other.get("/id/1") is None


def test_a_watch_fires_once_for_a_change(session: ZooKeeperSession) -> None:
    for read in (session.children, session.get):
        path = f"/{read.__name__}"
        changed = threading.Event()
        assert read(path, changed.set) is None  # type: ignore[operator]
        session.create(path, b"1")
        assert changed.wait(SECONDS), "nothing said that the node was made"
        changed.clear()
        read(path, changed.set)  # type: ignore[operator]
        if read == session.get:
            session.set(path, b"2")
        else:
            session.create(f"{path}/child")
        assert changed.wait(SECONDS)


def test_an_expired_session_is_over_for_good(zookeeper: RunningZooKeeper, session: ZooKeeperSession) -> None:
    """Its watches fire, its nodes are gone, and no call goes through; a new session is another one."""
    changed = threading.Event()
    session.create("/mine", ephemeral=True)
    session.get("/mine", changed.set)
    zookeeper.expire(session.id)
    assert changed.wait(SECONDS)
    deadline = time.monotonic() + SECONDS
    while not session.is_lost and time.monotonic() < deadline:
        time.sleep(0.01)
    for _ in range(3):
        with pytest.raises(SessionLostError):
            session.put("/x", b"1")
    with ZooKeeperSession(str(session.servers)) as other:
        assert other.get("/mine") is None
        assert other.get("/x") is None
        assert other.id != session.id


def test_calls_wait_for_a_server_that_comes_back(zookeeper: RunningZooKeeper) -> None:
    heard = threading.Event()
    with ZooKeeperSession(zookeeper.connect, session_timeout=15.0, on_change=heard.set) as session:
        session.create("/survivor", b"1", ephemeral=True)
        zookeeper.kill()
        starting = threading.Thread(target=zookeeper.start)
        starting.start()
        found = session.get("/survivor")
        starting.join()
        assert found is not None
        assert (found.data, found.owner) == (b"1", session.id)
        assert heard.is_set()
        assert not session.is_lost


def test_a_silent_server_is_one_clear_error(zookeeper: RunningZooKeeper) -> None:
    with ZooKeeperSession(zookeeper.connect, session_timeout=1.0) as session:
        zookeeper.pause()
        try:
            began = time.monotonic()
            with pytest.raises(CoordinationError, match=rf"ZooKeeper at {zookeeper.connect} does not answer.*/x"):
                session.get("/x")
            with pytest.raises(CoordinationError, match="is it running"):
                ZooKeeperSession(zookeeper.connect, connection_timeout=0.5)
            assert time.monotonic() - began < 5 * 1.5
        finally:
            zookeeper.resume()


def test_an_ensemble_loses_one() -> None:
    with testing.zookeeper(3) as running, ZooKeeperSession(running.connect, session_timeout=15.0) as session:
        session.put("/x", b"1")
        leader = next(number for number, server in enumerate(running.servers) if "leader" in server.ask(b"srvr"))
        running.kill(leader)
        session.put("/x", b"2")
        running.start(leader)
        assert session.get("/x").data == b"2"  # type: ignore[union-attr]


def test_no_thread_or_descriptor_is_left(zookeeper: RunningZooKeeper) -> None:
    from pathlib import Path

    def counted() -> tuple[int, int]:
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    ZooKeeperSession(zookeeper.connect).close()
    before = counted()
    for _ in range(5):
        session = ZooKeeperSession(zookeeper.connect)
        session.close()
        session.close()
    assert counted() == before


@pytest.mark.parametrize(
    "text", ["", "host:", "host:x", "host:0", "host:65536", ":2181", "a:1,,b:2", "a:1/x//y", "a:1/.."]
)
def test_a_connect_string_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"zk\.connect"):
        parse_connect(text)


def test_connect_strings() -> None:
    assert parse_connect("a:1,b:2/c/d/") == ((("a", 1), ("b", 2)), "/c/d")
    assert str(parse_connect("a, b:2")) == "a:2181,b:2"


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv(jars.CLASS_PATH_VARIABLE, f"{tmp_path}/none.jar")
    with pytest.raises(MissingDependencyError, match=r"none\.jar"):
        jars.find_class_path()
    monkeypatch.delenv(jars.CLASS_PATH_VARIABLE)
    monkeypatch.setattr(jars.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(jars, "SYSTEM_JAR", jars.Path("/nowhere/zookeeper.jar"))
    with pytest.raises(MissingDependencyError, match=r"pip install 'fastlog\[zookeeper\]'.*490 MB"):
        jars.find_class_path()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match="no Java is on this machine"):
        jars.find_java()
