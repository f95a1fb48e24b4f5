"""Sessions against a real ZooKeeper: what is promised of them holds through outages, expiry and stopped processes."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fastlog import testing
from fastlog.coordination.addresses import parse_connect
from fastlog.coordination.zookeeper import ZooKeeperSession, _OneSessionClient
from fastlog.errors import ConfigError, CoordinationError, MissingDependencyError
from fastlog.java import find_java
from fastlog.testing import RunningZooKeeper
from fastlog.zkserver import jars
from fastlog.zkserver.server import ServerStartError
from tests.harness.broker import wait_until
from tests.harness.descriptors import count_descriptors
from tests.harness.session_cases import CASES, Case
from tests.harness.timing import PATIENCE, sooner_than

pytestmark = [pytest.mark.slow, pytest.mark.java]


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[RunningZooKeeper]:
    with testing.zookeeper() as running:
        yield running


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_holds_for_every_session(zookeeper: RunningZooKeeper, fastlog_topic: str, case: Case) -> None:
    """The same cases as for the fake that other tests use."""
    with ExitStack() as stack:
        connect = f"{zookeeper.connect}/{fastlog_topic}"
        case(lambda: stack.enter_context(ZooKeeperSession(connect, session_timeout=2.0)), zookeeper.expire)


def test_a_session_says_how_long_it_may_be_silent(zookeeper: RunningZooKeeper) -> None:
    """The server keeps to its own bounds, whatever is asked for."""
    for asked, granted in ((0.05, 0.2), (3.0, 3.0), (600.0, 20.0)):
        with ZooKeeperSession(zookeeper.connect, session_timeout=asked) as session:
            assert session.timeout == granted


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
            with sooner_than(2 * PATIENCE):
                with pytest.raises(CoordinationError, match=rf"ZooKeeper at {zookeeper.connect} does not answer.*/x"):
                    session.get("/x")
                with pytest.raises(CoordinationError, match="is it running"):
                    ZooKeeperSession(zookeeper.connect, connection_timeout=0.5)
        finally:
            zookeeper.resume()


def test_a_connection_that_breaks_at_once_leaves_a_session(
    zookeeper: RunningZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its number although no server answers when it is asked for."""
    with zookeeper.proxy() as proxy:

        class Broken(threading.Event):
            """Tells that the session is there once the connection has gone again."""

            def wait(self, timeout: float | None = None) -> bool:
                if not live.wait(timeout):
                    return False
                proxy.answers = False
                proxy.cut()
                wait_until("the connection is gone", lambda: not client.connected)
                return True

        def start(self: _OneSessionClient) -> threading.Event:
            nonlocal client, live
            client, live = self, start_async(self)
            return Broken()

        client: _OneSessionClient
        live: threading.Event
        start_async = _OneSessionClient.start_async
        monkeypatch.setattr(_OneSessionClient, "start_async", start)
        with ZooKeeperSession(proxy.address, session_timeout=15.0) as session:
            proxy.answers = True
            proxy.cut()
            session.create("/broken", ephemeral=True)
            found = session.get("/broken")
            assert found is not None
            assert found.owner == session.id


def test_an_ensemble_loses_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions can be ended meanwhile; and what it was goes with it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = count_descriptors()
    with testing.zookeeper(3) as running, ZooKeeperSession(running.connect, session_timeout=15.0) as session:
        session.put("/x", b"1")
        proxy = running.proxy()
        leader = next(number for number, server in enumerate(running.servers) if "leader" in server.ask(b"srvr"))
        running.kill(leader)
        session.put("/x", b"2")
        running.expire(1)  # of nobody, which the first that answers says
        running.start(leader)
        assert session.get("/x").data == b"2"  # type: ignore[union-attr]
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((proxy.host, proxy.port))
    assert count_descriptors() == before


def test_one_that_does_not_come_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = count_descriptors()
    with pytest.raises(ServerStartError):
        RunningZooKeeper(start_timeout=0.0).open()
    assert (list(tmp_path.iterdir()), count_descriptors()) == ([], before)


def test_a_forked_child_leaves_it_to_its_parent(zookeeper: RunningZooKeeper) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            zookeeper.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert "Mode: standalone" in zookeeper.servers[0].ask(b"srvr")


def test_no_thread_or_descriptor_is_left(zookeeper: RunningZooKeeper) -> None:

    def counted() -> tuple[int, int]:
        return threading.active_count(), count_descriptors()

    ZooKeeperSession(zookeeper.connect).close()
    before = counted()
    for _ in range(5):
        session = ZooKeeperSession(zookeeper.connect)
        session.close()
        session.close()
    assert counted() == before


def test_options_that_hold_for_every_java_hold_for_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Java does not start with two collectors."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseG1GC")
    with testing.zookeeper() as running, ZooKeeperSession(running.connect) as session:
        assert session.children("/")


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
    with pytest.raises(MissingDependencyError, match=r"pip install 'fastlog-broker\[zookeeper\]'.*490 MB"):
        jars.find_class_path()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match="no Java is on this machine"):
        find_java()
