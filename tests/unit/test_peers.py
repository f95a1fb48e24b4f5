"""The peers: what is written for them, what is read of them, what an absent one says, and that none is left running."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from perf.peers import PeerFailed, __main__, activemq, all_peers, base, kafka, rabbitmq
from tests.harness.timing import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
PRODUCED = """\
32901 records sent, 6578.9 records/sec (1.25 MB/sec), 1683.6 ms avg latency, 2396.0 ms max latency.
50000 records sent, 8595.495960 records/sec (1.64 MB/sec), 2021.77 ms avg latency, 2849.00 ms max latency, 2225 ms 50th.
"""
CONSUMED = """\
[2026-11-21 19:46:53] WARN something, with, commas (org.apache.kafka.tools)
start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, \
fetch.MB.sec, fetch.nMsg.sec
2026-11-21 19:46:53:922, 2026-11-21 19:46:55:899, 9.5367, 4.8238, 50000, 25290.8447, 1387, 590, 16.1640, 84745.7627
"""
PROPERTY = re.compile(r"^([\w.]+) ?= ?(.*)$", re.MULTILINE)


def gone(pid: int) -> bool:
    """Whether that process has ended, or will not run again."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + PATIENCE
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < deadline, path
        time.sleep(0.01)
    return path.read_text()


def test_every_peer_has_its_own_name() -> None:
    """The names that result files use."""
    assert [peer.name for peer in all_peers()] == ["rabbitmq-classic", "rabbitmq-stream", "activemq", "kafka"]


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any of the peers, whatever is installed here."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(rabbitmq, "SERVERS", ("rabbitmq-server",))
    monkeypatch.setattr(activemq, "HOME", tmp_path)
    monkeypatch.delenv(kafka.HOME_VARIABLE, raising=False)


@pytest.mark.usefixtures("bare_machine")
def test_an_absent_peer_says_what_to_install() -> None:
    """In one line, for each of them, and the command is content with that."""
    reasons = [peer.available() or "" for peer in all_peers()]
    for reason, word in zip(reasons, ("rabbitmq-server", "rabbitmq-server", "activemq"), strict=False):
        assert reason == f"{word} is not installed: apt-get install {word}"
    assert kafka.HOME_VARIABLE in reasons[3]
    run = CliRunner().invoke(__main__.main, [])
    assert run.exit_code == 0
    assert run.output.count("absent: ") == 4


@pytest.mark.usefixtures("bare_machine")
def test_a_peer_without_a_client_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server alone is not enough: neither a compiler nor a Python client, or no JDK."""
    for name in ("rabbitmq-server", "epmd", "java"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "activemq.jar").touch()
    monkeypatch.setattr(rabbitmq.importlib.util, "find_spec", lambda name: None)
    assert "apt-get install librabbitmq-dev" in (rabbitmq.RabbitClassic().available() or "")
    assert "pip install rstream" in (rabbitmq.RabbitStream().available() or "")
    assert "JDK" in (activemq.ActiveMQ().available() or "")
    monkeypatch.setattr(rabbitmq.importlib.util, "find_spec", lambda name: name)
    assert rabbitmq.RabbitClassic().available() is None
    assert rabbitmq.RabbitStream().available() is None


def test_a_directory_that_is_no_kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable names it, and what is missing there is named."""
    monkeypatch.setenv(kafka.HOME_VARIABLE, str(tmp_path))
    assert f"{tmp_path} has no bin/kafka-server-start.sh" in (kafka.Kafka().available() or "")


@pytest.mark.parametrize("peer", all_peers(), ids=lambda peer: peer.name)
def test_a_peer_that_is_not_started_fails(peer: base.Peer) -> None:
    """And may be stopped all the same."""
    peer.stop()
    with pytest.raises(PeerFailed, match="not started"):
        peer.produce(10)
    with pytest.raises(PeerFailed, match="not started"):
        peer.consume(10)


def test_rabbitmq_is_a_node_of_its_own(tmp_path: Path) -> None:
    """Loopback only, every path below its directory, no name or port of a service."""
    settings = dict(PROPERTY.findall(rabbitmq.configuration(1111, 2222)))
    assert settings["listeners.tcp.1"] == "127.0.0.1:1111"
    assert settings["stream.listeners.tcp.1"] == "127.0.0.1:2222"
    assert settings["stream.advertised_port"] == "2222"
    env = rabbitmq.environment(tmp_path, 3333, 4444)
    assert (env["ERL_EPMD_PORT"], env["ERL_EPMD_ADDRESS"], env["RABBITMQ_DIST_PORT"]) == ("3333", "127.0.0.1", "4444")
    assert "{127,0,0,1}" in env["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"]
    paths = [value for value in env.values() if value.startswith("/")]
    assert len(paths) >= 8
    assert all(Path(path).is_relative_to(tmp_path) for path in paths)


def test_activemq_persists_and_does_not_stall(tmp_path: Path) -> None:
    """A journal without a sync for each message, pages that feed optimizeAcknowledge, loopback only."""
    root = ET.fromstring(activemq.configuration(tmp_path, 1234))
    found = {element.tag.rpartition("}")[2]: element.attrib for element in root.iter()}
    assert found["broker"]["persistent"] == "true"
    assert found["kahaDB"] == {"directory": f"{tmp_path}/data/kahadb", "enableJournalDiskSyncs": "false"}
    assert found["policyEntry"] == {"queue": ">", "maxPageSize": "5000"}
    assert found["transportConnector"]["uri"] == "tcp://127.0.0.1:1234"


def test_kafka_is_one_node_on_loopback(tmp_path: Path) -> None:
    """Broker and controller, one copy, and a producer whose batches hold what was asked for."""
    settings = dict(PROPERTY.findall(kafka.configuration(tmp_path, 1111, 2222)))
    assert settings["listeners"] == "PLAINTEXT://127.0.0.1:1111,CONTROLLER://127.0.0.1:2222"
    assert settings["controller.quorum.voters"] == "1@127.0.0.1:2222"
    assert Path(settings["log.dirs"]).is_relative_to(tmp_path)
    producer = dict(PROPERTY.findall("\n".join(kafka.producer_properties(1111, 200, 50))))
    assert producer["acks"] == "1"
    assert 50 * 200 < int(producer["batch.size"]) < 54 * 200
    assert dict(PROPERTY.findall("\n".join(kafka.producer_properties(1111, 200, 1))))["batch.size"] == "0"


def test_kafkas_figures_are_read() -> None:
    """The total and not the five-second lines; the rate of fetching and not that with the wait for the group."""
    assert kafka.parse_producer(PRODUCED, 50_000) == {
        "messages": 50_000,
        "rate": 8595.49596,
        "seconds": pytest.approx(5.817, abs=0.001),
    }
    assert kafka.parse_consumer(CONSUMED, 50_000) == {
        "messages": 50_000,
        "seconds": 0.59,
        "rate": 84745.7627,
        "rate_with_group": 25290.8447,
    }


@pytest.mark.parametrize("output", ["", PRODUCED.splitlines()[0], "org.apache.kafka.common.errors.TimeoutException"])
def test_a_producer_of_kafka_that_failed(output: str) -> None:
    """No total, or one of fewer messages, is no figure."""
    with pytest.raises(PeerFailed, match="did not send 50000"):
        kafka.parse_producer(output, 50_000)


@pytest.mark.parametrize("output", ["", CONSUMED.rpartition("2026")[0][:-1], CONSUMED.replace("start.time", "start")])
def test_a_consumer_of_kafka_that_failed(output: str) -> None:
    """No header or no row is no figure, and neither are fewer messages."""
    with pytest.raises(PeerFailed, match="no table"):
        kafka.parse_consumer(output, 50_000)
    with pytest.raises(PeerFailed, match="50000 of 50001"):
        kafka.parse_consumer(CONSUMED, 50_001)


def test_a_clients_result_is_checked() -> None:
    """The JSON of the last line, when it counts what was asked for."""
    output = 'a warning\n{"messages": 5, "seconds": 0.5, "rate": 10.0}\n'
    assert base.figures(output, 5, client="c") == {"messages": 5, "seconds": 0.5, "rate": 10.0, "client": "c"}
    with pytest.raises(PeerFailed, match="5 messages instead of 6"):
        base.figures(output, 6)
    for broken in ("", "no figures", '{"messages": 5}', "[5]", '{"messages": 5, "seconds": null, "rate": 1}'):
        with pytest.raises(PeerFailed, match="no result"):
            base.figures(broken, 5)


@pytest.mark.slow
def test_a_child_is_ended_with_all_it_started(tmp_path: Path) -> None:
    """Also what does not listen to a polite signal."""
    script = "trap '' TERM; sleep 1000 & echo $! > pids; while :; do sleep 0.05; done"
    child = base.Child("child", ["sh", "-c", script], {}, tmp_path / "log")
    grandchild = int(wait_for(tmp_path / "pids"))
    child.stop(0.3)
    child.stop()
    deadline = time.monotonic() + PATIENCE
    while not (gone(child.pid) and gone(grandchild)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_child_that_does_not_start(tmp_path: Path) -> None:
    """Its own last words are in the message; one that is only slow is not waited for for ever."""
    child = base.Child("broken", ["sh", "-c", "echo no memory >&2; exit 3"], {}, tmp_path / "log")
    with pytest.raises(PeerFailed, match=r"broken: ended with status 3\nno memory"):
        child.wait_port(base.free_port())
    child.stop()
    child = base.Child("slow", ["sleep", "1000"], {}, tmp_path / "log")
    with pytest.raises(PeerFailed, match="slow: does not listen"):
        child.wait_port(base.free_port(), 0.1)
    child.stop()
    assert gone(child.pid)


@pytest.mark.slow
def test_a_client_that_hangs_or_fails(tmp_path: Path) -> None:
    """It is ended with what it started, and said in one line."""
    script = f"sleep 1000 & echo $! > {tmp_path}/pids; wait"
    with pytest.raises(PeerFailed, match="client: not done"):
        base.run("client", ["sh", "-c", script], timeout=0.3)
    pid = int(wait_for(tmp_path / "pids"))
    deadline = time.monotonic() + PATIENCE
    while not gone(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(PeerFailed, match=r"client: ended with status 4\nwhy"):
        base.run("client", ["sh", "-c", "echo why >&2; exit 4"])


SERVER = """\
import re, signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
port = re.search(r"PLAINTEXT://127.0.0.1:(\\d+)", open(sys.argv[1]).read())[1]
with socket.create_server(("127.0.0.1", int(port))) as server:
    while True:
        server.accept()[0].close()
"""


@pytest.mark.slow
def test_kafka_from_its_start_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a distribution whose scripts only write down how they were called: format, start, a new topic each time."""
    home, data = tmp_path / "home", tmp_path / "data"
    (home / "bin").mkdir(parents=True)
    (home / "libs").mkdir()
    (home / "libs" / "kafka-clients-9.8.7.jar").touch()
    data.mkdir()
    (home / "server.py").write_text(SERVER)
    (home / "produced").write_text(PRODUCED)
    (home / "consumed").write_text(CONSUMED)
    does = {
        "storage": "",
        "topics": "",
        "server-start": f'exec {sys.executable} {home}/server.py "$1"',
        "producer-perf-test": f"cat {home}/produced",
        "consumer-perf-test": f"cat {home}/consumed",
    }
    for name, action in does.items():
        script = home / "bin" / f"kafka-{name}.sh"
        script.write_text(f'#!/bin/sh\necho {name} "$@" >> {home}/calls\n{action}\n')
        script.chmod(0o755)
    monkeypatch.setenv(kafka.HOME_VARIABLE, str(home))
    monkeypatch.setenv("JAVA_HOME", str(home))
    peer = kafka.Kafka()
    assert peer.available() is None
    peer.start(data)
    try:
        assert peer._broker is not None
        pid = peer._broker.pid
        with pytest.raises(PeerFailed, match="already started"):
            peer.start(data)
        for _ in range(2):
            assert peer.produce(50_000)["rate"] == 8595.49596
            assert peer.consume(50_000)["broker"] == "Apache Kafka 9.8.7"
    finally:
        peer.stop()
    assert gone(pid)
    calls = (home / "calls").read_text().splitlines()
    kinds = [call.split()[0] for call in calls]
    assert kinds[:2] == ["storage", "server-start"]
    assert kinds[2:] == [*["topics", "producer-perf-test", "consumer-perf-test"], *["topics", *kinds[2:5]]]
    assert re.search(r"format --cluster-id=[\w-]{22} -c .*/data/server.properties", calls[0])
    assert "--create --topic fastlog-peer-1 --partitions 1" in calls[2]
    assert "--delete --topic fastlog-peer-1" in calls[5]
    assert "--topic fastlog-peer-2 --num-records 50000 --record-size 200 --throughput -1" in calls[7]


@pytest.mark.slow
def test_children_do_not_outlive_a_killed_harness(tmp_path: Path) -> None:
    """Whatever happens to the measuring process, the broker gets a signal."""
    script = (
        "import sys, time; from pathlib import Path; from perf.peers.base import Child;"
        "print(Child('c', ['sleep', '1000'], {}, Path(sys.argv[1])).pid, flush=True); time.sleep(1000)"
    )
    harness = base.Child(
        "harness", [sys.executable, "-c", script, str(tmp_path / "log")], {"PYTHONPATH": str(ROOT)}, tmp_path / "out"
    )
    pid = int(wait_for(tmp_path / "out"))
    os.kill(harness.pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while not gone(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    harness.stop()
