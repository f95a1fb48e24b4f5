"""A broker that says how it is, over HTTP: right in every state, and whatever its clients do to it."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from kazoo.security import ACL, ANYONE_ID_UNSAFE, OPEN_ACL_UNSAFE
from kazoo.security import Permissions as ZooKeeperRights

from fastlog import __version__, testing
from fastlog.config import BrokerConfig
from fastlog.durability import durability
from fastlog.testing import RunningZooKeeper
from tests.harness import raw_client as raw
from tests.harness import today
from tests.harness.broker import Broker, BrokerDidNotStart, wait_until
from tests.harness.metrics_page import MetricsPage, documented
from tests.harness.monitor import Monitor
from tests.harness.registration import Tree, registered_broker

pytestmark = pytest.mark.slow
ANY_PORT = "127.0.0.1:0"
SECRET = "0123456789abcdef-secret"
Start = Callable[..., Broker]


def start_monitored(start_broker: Start, **settings: object) -> tuple[Broker, Monitor]:
    broker = start_broker(settings={"monitor.address": ANY_PORT, **settings})
    return broker, Monitor.of(broker)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for the tests that leave it as it was."""
    settings = {"monitor.address": ANY_PORT, "log.flush.interval": 77, "topic.flush.intervals": "orders:1"}
    with Broker(tmp_path_factory.mktemp("watched"), settings=settings) as running:
        yield running


@pytest.fixture
def monitor(watched: Broker) -> Monitor:
    return Monitor.of(watched)


def test_what_is_asked_is_answered(watched: Broker, monitor: Monitor) -> None:
    live, ready = monitor.wait("/live", 200), monitor.wait("/ready", 200)
    assert (live.body, ready.body) == ("live\n", "ready\n")
    assert live.headers["content-type"].startswith("text/plain")
    head = monitor.get("/health", method="HEAD")
    assert (head.status, head.body) == (200, "") and int(head.headers["content-length"]) > 500
    assert monitor.get("/nowhere").status == 404
    refused = monitor.get("/live", method="POST")
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")
    assert monitor.get("/live", method="BREW").status == 405


def test_the_report_is_that_of_this_broker(watched: Broker, monitor: Monitor, topic: str) -> None:
    with watched.connect() as client:
        assert client.produce_ack(topic, 0, raw.entry(b"x"), raw.FLUSHED).error == 0
        found = monitor.health()
        assert sum(item["connections"] for item in found["processes"] if "connections" in item) >= 1
    assert found["version"] == __version__
    assert found["addresses"][0]["port"] == watched.port
    assert {item["name"]: item["pid"] for item in found["processes"]} == watched.pids()
    assert found["partitions"]["by_state"]["ok"] >= 1
    assert found["flush"]["flushes"] >= 1 and found["flush"]["mean_flush_ms"] > 0
    assert found["zookeeper"] is None


def test_no_other_port_is_open(watched: Broker, monitor: Monitor) -> None:
    """X-2: exactly those that are documented, and on loopback."""
    processes = [psutil.Process(pid) for pid in watched.pids().values()]
    listening = {item.laddr for one in processes for item in one.net_connections("inet") if item.status == "LISTEN"}
    assert listening == {("127.0.0.1", watched.port), monitor.target}


def test_the_durability_line_is_one_and_true(watched: Broker, monitor: Monitor) -> None:
    """That of the start, that of ``/health`` and that of the settings are the same text."""
    line = monitor.health()["durability"]
    assert f" promised: {line}\n" in watched.log_text()
    measured = re.search(r"; measured fdatasync ([0-9]+\.[0-9]{2}) ms$", line)
    assert measured
    config = BrokerConfig(flush_interval_messages=77, flush_interval_messages_by_topic={"orders": 1})
    assert line == durability(config, float(measured[1]) / 1000)
    assert "every 77 messages" in line and "'orders' 1 messages" in line


def test_slow_and_idle_clients_keep_nobody_out(watched: Broker, monitor: Monitor, topic: str) -> None:
    """200 of them, half with a part of a request; others are answered, and what is appended is flushed."""
    with contextlib.ExitStack() as stack:
        for number in range(200):
            sock = stack.enter_context(monitor.connect())
            if number % 2:
                with contextlib.suppress(ConnectionError):
                    sock.sendall(b"GET /live HTTP/1.1\r\nX-Slow: ")
        assert monitor.get("/live").status == 200
        with watched.connect() as client:
            assert client.produce_ack(topic, 0, raw.entry(b"x"), raw.FLUSHED).error == 0
        assert monitor.get("/ready").status == 200
        keeper = next(item for item in monitor.health()["processes"] if item["name"] == "keeper")
        assert keeper["pid"] == watched.pids()["keeper"] and watched.is_alive("keeper")


def test_a_stopped_loop_a_killed_keeper_and_a_stop(start_broker: Start) -> None:
    """One broker through all of it: the address is the same all the time."""
    broker, monitor = start_monitored(start_broker)
    monitor.wait("/live", 200)
    pid = broker.pause("processor-0")
    silent = monitor.wait("/live", 503, "processor-0: its loop has not turned for")
    # the supervisor's patience is as long: it may have killed the process in the same moment
    assert any(f"({state})" in silent.body for state in (f"pid {pid}", "ended, and not replaced yet"))
    with contextlib.suppress(psutil.NoSuchProcess):  # on a slow machine the supervisor has replaced it by now
        broker.resume("processor-0")
    monitor.wait("/live", 200)
    monitor.wait("/ready", 200)

    old = broker.kill("keeper")
    assert monitor.wait("/live", 200)
    new = broker.wait_replaced("keeper", old)
    wait_until(
        "the new keeper answers",
        lambda: ("keeper", new) in [(item["name"], item["pid"]) for item in monitor.health()["processes"]],
    )

    broker.pause("flusher")
    assert broker.process is not None
    broker.process.terminate()
    assert monitor.wait("/ready", 503, "stopping").body == "stopping\n"
    broker.stop()


def test_a_failed_partition_is_named(start_broker: Start, topic: str) -> None:
    broker = start_broker(
        settings={"monitor.address": ANY_PORT}, environment={"FASTLOG_FAULTS": "flusher:fdatasync@1=EIO"}
    )
    monitor = Monitor.of(broker)
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, raw.entry(b"x"), raw.FLUSHED).error != 0
    said = monitor.wait("/ready", 503).lines
    assert said == [f"partition '{topic}' 0 read-only: a flush failed (Input/output error)"]
    assert monitor.get("/live").status == 200
    found = monitor.health()
    assert found["partitions"]["first_not_ok"][0]["reason"] == "a flush failed (Input/output error)"
    assert found["flush"]["largest_unflushed"] == {"topic": topic, "partition": 0}
    assert found["flush"]["flush_failures"] == 1


def test_a_full_disk_is_said_and_a_test_can_have_a_monitor(topic: str) -> None:
    with testing.broker(monitor_address=ANY_PORT) as running:
        host, _, port = running.monitor_address.rpartition(":")
        monitor = Monitor(host, int(port))
        monitor.wait("/ready", 200)
        running.fill_disk()
        assert str(running.data_directory) in monitor.wait("/ready", 503, "log directory").body
        running.free_disk()
        monitor.wait("/ready", 200)
    with testing.broker() as plain, pytest.raises(RuntimeError, match="monitor_address"):
        _ = plain.monitor_address


def test_a_token(start_broker: Start, tmp_path: Path) -> None:
    """Asked for with one, on every address of the machine; it stands nowhere."""
    secret = tmp_path / "token"
    secret.write_text(SECRET + "\n")
    secret.chmod(0o644)
    broker = start_broker(arguments=["--monitor", "0.0.0.0:0", "--monitor-token-file", str(secret)])
    broker.wait_log(f"everybody on this machine can read {secret}")
    monitor = Monitor("127.0.0.1", Monitor.of(broker).target[1])
    for path in ("/live", "/ready", "/health", "/nowhere"):
        for header in ("X: y", "Authorization: Bearer wrong", f"Authorization: Basic {SECRET}"):
            refused = monitor.get(path, header)
            assert (refused.status, refused.headers["www-authenticate"]) == (401, 'Bearer realm="fastlog"')
    shown = f"Authorization: Bearer {SECRET}"
    assert monitor.get("/live", shown, "Host: anywhere").status == 400  # twice
    report = monitor.get("/health", shown)
    assert (report.status, monitor.get("/nowhere", shown).status) == (200, 404)
    broker.wait_log(r"monitor: refused peer=127\.0\.0\.1")
    assert SECRET not in report.body + broker.log_text()


def test_a_taken_port_is_said_at_the_start(start_broker: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(BrokerDidNotStart) as caught:
            start_broker(arguments=["--monitor", address])
    assert "exit code 1" in str(caught.value)
    says = f"fastlog-broker: cannot listen on {address}: Address already in use; stop what uses it or choose another "
    assert says + "--monitor HOST:PORT (port 0 picks a free one)" in str(caught.value)


# -- ZooKeeper ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[RunningZooKeeper]:
    with testing.zookeeper() as running:
        yield running


@pytest.mark.java
def test_zookeeper_away_and_back(zookeeper: RunningZooKeeper, tmp_path: Path, topic: str) -> None:
    """A topic that is made meanwhile is named until it is shown; clients are served all the time."""
    connect = f"{zookeeper.connect}/{topic}"
    settings = {"monitor.address": ANY_PORT}
    with registered_broker(tmp_path / "broker", connect, settings=settings) as broker, Tree(connect) as tree:
        monitor = Monitor.of(broker)
        monitor.wait("/ready", 200)
        before = tree.wait_shows(broker).owner
        zookeeper.expire(before)
        wait_until("another session", lambda: getattr(tree.id_node(), "owner", before) != before)
        monitor.wait("/ready", 200)
        tree.close()
        zookeeper.pause()
        try:
            monitor.wait("/ready", 503, "zookeeper: ")
            with broker.connect() as client:
                assert client.produce_ack(topic, 0, raw.entry(b"x")).error == 0
            named = f"zookeeper: topic '{topic}' is not shown yet"
            assert named in monitor.get("/ready").lines
            assert monitor.get("/live").status == 200
            assert monitor.health()["zookeeper"]["topics_not_announced"] == {"count": 1, "first": [topic]}
            page = MetricsPage(monitor.get("/metrics").body)
            assert page.value("fastlog_zookeeper_topics_not_announced") == 1
            assert page.value("fastlog_zookeeper_session", state="registered") == 0
        finally:
            zookeeper.resume()
        assert monitor.wait("/ready", 200).body == "ready\n"
        tree.wait_shows(broker, topics={topic: 1})
        with broker.connect() as client:
            today.commit_alone(client.socket, "g", topic, 0)
            fields = {"group_id": "g", "generation_id": 3, "member_id": "nobody", "group_instance_id": None}
            assert today.asked(client.socket, 12, 3, **fields).error_code  # a heartbeat
        page = MetricsPage(monitor.get("/metrics").body)
        assert page.value("fastlog_zookeeper_session", state="registered") == 1
        every, with_zookeeper = documented()
        del every["kafka_controller_kafkacontroller_activecontrollercount"]
        assert page.families == every | with_zookeeper


@pytest.mark.java
def test_a_topic_that_zookeeper_refuses_is_named_until_it_is_shown(
    zookeeper: RunningZooKeeper, tmp_path: Path, new_topic: Callable[[], str]
) -> None:
    """Z-10: the session lives, the broker is registered, and one topic of it stays invisible."""
    refused, taken = new_topic(), new_topic()
    connect = f"{zookeeper.connect}/{refused}"
    settings = {"monitor.address": ANY_PORT}
    with registered_broker(tmp_path / "broker", connect, settings=settings) as broker, Tree(connect) as tree:
        monitor = Monitor.of(broker)
        tree.wait_shows(broker)
        path = f"/brokers/topics/{refused}"
        tree.session.create(path)
        tree.session._client.set_acls(path, [ACL(ZooKeeperRights.READ | ZooKeeperRights.ADMIN, ANYONE_ID_UNSAFE)])
        with broker.connect() as client:
            for name in (refused, taken):
                assert client.produce_ack(name, 0, raw.entry(b"x")).error == 0
        tree.wait_shows(broker, topics={taken: 1})
        said = monitor.wait("/ready", 503, "the last try failed").lines
        assert said[1:] == [f"zookeeper: topic '{refused}' is not shown yet"]
        assert f"refuses /brokers/topics/{refused}/0" in said[0]
        assert monitor.health()["zookeeper"]["session"] == "registered"
        tree.session._client.set_acls(path, OPEN_ACL_UNSAFE)
        monitor.wait("/ready", 200)
        tree.wait_shows(broker, topics={refused: 1, taken: 1})
