"""What ``python -m perf.beside_kafka`` measures with: its clients, its brokers, and the order of its rounds."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import psutil
import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaException

from fastlog import record_batches
from perf.beside_kafka import __main__ as command
from perf.beside_kafka import clients, steps, systems
from perf.peers.base import PeerFailed
from perf.peers.kafka import COLUMNS
from tests.harness.broker import Broker
from tests.harness.server import Server

MESSAGES, PARTITIONS = 300, 3


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = {"group.initial.rebalance.delay.ms": 0}
    with Broker(tmp_path_factory.mktemp("broker"), processors=1, settings=settings) as running:
        yield running


@pytest.fixture
def load(broker: Broker, request: pytest.FixtureRequest) -> Iterator[steps.Load]:
    """A topic of its own."""
    topic = f"t{abs(hash(request.node.name))}"
    system: Any = SimpleNamespace(address=f"127.0.0.1:{broker.port}")
    command.create(system, topic, PARTITIONS)
    yield steps.Load(system.address, topic, PARTITIONS, MESSAGES)
    command.delete(system, topic)
    with broker.connect() as client:
        assert not client.metadata([topic]).topics[topic].partitions


def stored(broker: Broker, topic: str) -> list[list[bytes | None]]:
    """The values of each partition's records."""
    found = []
    for number in range(PARTITIONS):
        data = b"".join(path.read_bytes() for path in broker.log_dirs[0].glob(f"{topic}-{number}/*.log"))
        batches = (bytes(each) for _, each in record_batches.batches(data))
        found.append([record.value for each in batches for record in record_batches.records(each)])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("client", ["confluent", "kafka-python", "aiokafka"])
def test_each_client_writes_and_reads_what_it_is_told(
    client: str, broker: Broker, load: steps.Load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All partitions in turn, records of 200 bytes; who asks for more than there is has no figure."""
    load = load._replace(messages=MESSAGES + 1)
    clients.main(client, "produce", json.dumps(load._asdict()))
    assert stored(broker, load.topic) == [[b"x" * 200] * count for count in (101, 100, 100)]
    clients.main(client, "consume", json.dumps(load._asdict()))
    for line in capsys.readouterr().out.splitlines():
        told = json.loads(line)
        assert set(told) == {"rate", "client_cpu_us"}
        assert 0 < told["rate"] < 1e6 and 0 < told["client_cpu_us"] < 1e5
    monkeypatch.setattr(clients, "WAIT_SECONDS", 1.0)
    with pytest.raises(AssertionError, match="301 of 302 records came"):
        clients.main(client, "consume", json.dumps(load._replace(messages=302)._asdict()))


@pytest.mark.slow
def test_the_time_from_produce_to_consume(broker: Broker, load: steps.Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the rate that was asked for; three figures in milliseconds, which grow."""
    monkeypatch.setattr(clients, "LATENCY_RATE", 500)
    began = time.monotonic()
    found = clients.latency(load)
    assert time.monotonic() - began >= 2 + (MESSAGES - 1) / 500
    assert list(found) == ["p50_ms", "p99_ms", "p999_ms"]
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["p999_ms"] < 10_000
    values = stored(broker, load.topic)
    assert [len(each) for each in values] == [100, 100, 100]
    assert {len(value or b"") for each in values for value in each} == {200}


@pytest.mark.slow
def test_a_step_runs_in_a_process_of_its_own(load: steps.Load) -> None:
    written = steps.CLIENTS["confluent-kafka"].produce(load)
    read = steps.CLIENTS["confluent-kafka"].consume(load)
    assert written.rate > 0 and list(read.more) == ["client_cpu_us"]
    with pytest.raises(PeerFailed, match=r"^confluent produce: exit code 1: .*"):
        steps.CLIENTS["confluent-kafka"].produce(load._replace(partitions=0))


def test_what_takes_too_long_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "SECONDS", 0.2)
    with pytest.raises(PeerFailed, match=r"^it: not done in 0.2 s$"):
        steps._run("it", [sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(steps, "SECONDS", 60.0)
    show = "import os; print(os.environ['LC_ALL'], os.environ['MORE'], os.path.isdir('perf'))"
    assert steps._run("it", [sys.executable, "-c", show], MORE="more") == "C more True\n"
    with pytest.raises(PeerFailed, match=r"^it: exit code 3: oops$"):
        steps._run("it", [sys.executable, "-c", "import sys; print('oops', end='', file=sys.stderr); sys.exit(3)"])


def test_what_kafkas_programs_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their last words count, for as many records as were asked for."""
    asked: list[tuple[str, list[str]]] = []
    produced = "1000 records sent, 5000.0 records/sec (0.95 MB/sec), 1.00 ms avg latency, 9.00 ms max latency."
    fetched = ", ".join(["start.time", *COLUMNS]) + "\n" + ", ".join(["now", "1000", "500", "2000.0", "1000.0"])

    def runs(name: str, line: list[str]) -> str:
        asked.append((name, line))
        return produced if "--producer-props" in line else fetched

    monkeypatch.setenv(systems.CLASSPATH, "a.jar:b.jar")
    monkeypatch.setattr(systems, "find_java", lambda: Path("/bin/java"))
    monkeypatch.setattr(steps, "_run", runs)
    load = steps.Load("127.0.0.1:1", "t", 2, 1000)
    assert steps.java_produce(load).rate == 5000
    assert steps.java_consume(load).rate == 2000
    (_, produce), (_, consume) = asked
    assert produce[:3] == consume[:3] == ["/bin/java", "-cp", "a.jar:b.jar"]
    words = " ".join(produce[3:])
    assert words == (
        "org.apache.kafka.tools.ProducerPerformance --topic t --num-records 1000 --record-size 200 --throughput -1"
        " --producer-props bootstrap.servers=127.0.0.1:1 acks=1 linger.ms=5"
    )
    assert " ".join(consume[3:]) == (
        "org.apache.kafka.tools.ConsumerPerformance --bootstrap-server 127.0.0.1:1 --topic t --messages 1000"
        " --timeout 60000"
    )


# -- the brokers -----------------------------------------------------------------------------------------------------


class Slow(Server):
    """Closes its first connection, and answers the second with too little."""

    def __init__(self, *answers: bytes) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked: list[bytes] = []

    def serve(self, connection: socket.socket) -> None:
        self.asked.append(connection.recv(100))
        if self.answers:
            connection.sendall(self.answers.pop(0))


def test_the_first_answer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever closes, or answers less than a length, has not answered."""
    with Slow(b"", b"abc", bytes(10)) as server:
        began = time.monotonic()
        assert 0 <= systems.wait_answer(server.port, began - 5) - 5 <= time.monotonic() - began
        assert server.asked == [struct.pack(">ihhih", 10, 18, 0, 1, -1)] * 3
    monkeypatch.setattr(systems, "START_SECONDS", 0.1)
    with Slow() as server, pytest.raises(PeerFailed, match=rf"^port {server.port}: no answer in 0.1 s$"):
        systems.wait_answer(server.port, time.monotonic())


@pytest.mark.slow
def test_fastlogs_broker_and_what_it_takes(tmp_path: Path) -> None:
    system = systems.Fastlog(tmp_path / "a" / "b", 2)
    try:
        processes = system.processes()
        assert 0 < system.first_answer < 60
        assert len(system.flushing()) == 1 and system.flushing()[0] in processes
        assert len(processes) >= 5  # supervisor, acceptor, flusher, two processors
        assert 2 < systems.memory_bytes(processes) / 2**20 < 1000
        command.create(system, "t", 2)
        with pytest.raises(KafkaException):
            command.create(system, "t", 2)
        load = steps.Load(system.address, "t", 2, 1000)
        before = systems.processor_seconds(processes)
        done = command.measure(system, lambda given: steps.Done(given.messages, {"more": 1.0}), load)
        assert done["rate"] == 1000 and done["more"] == 1
        assert done["broker_cpu_per_million"] >= 0
        assert systems.processor_seconds(processes) >= before > 0
    finally:
        system.stop()
    assert not [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def test_processor_time_for_a_million_records(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [SimpleNamespace(user=1.0), SimpleNamespace(user=4.0)]
    whole = {"user": 5.0, "system": 2.0, "softirq": 0.5, "guest": 1.0, "guest_nice": 1.0, "steal": 1.0}
    made = type(psutil.cpu_times())
    of_all = [
        made(
            **dict.fromkeys(made._fields, 0.0) | whole | {"user": 5.0 + more, "idle": 99.0 * more, "iowait": 7.0 * more}
        )
        for more in (0.0, 4.0)
    ]
    monkeypatch.setattr(systems.psutil, "cpu_times", lambda: of_all.pop(0))

    class Process:
        def cpu_times(self) -> tuple[float, ...]:
            return (times[0].user, 0.5, 100.0)  # of its children: not its own

    system: Any = SimpleNamespace(processes=lambda: [Process(), Process()], flushing=lambda: [Process()])

    def step(load: steps.Load) -> steps.Done:
        del times[0]
        return steps.Done(7.0, {"p50_ms": 1.0})

    found = command.measure(system, step, steps.Load("", "t", 1, 200_000))
    of_each = {"broker_cpu_per_million": 30.0, "broker_cpu_but_flushes": 15.0, "machine_cpu_per_million": 20.0}
    assert found == {"rate": 7.0, **of_each, "p50_ms": 1.0}


def test_how_kafka_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Formatted with a cluster's id that no option looks like, then started, with its own heap."""
    done: list[Any] = []
    monkeypatch.setenv(systems.CLASSPATH, "jars")
    monkeypatch.setattr(systems, "find_java", lambda: Path("java"))
    monkeypatch.setattr(systems.uuid, "uuid4", lambda: SimpleNamespace(bytes=b"\xfb" + bytes(15)))
    monkeypatch.setattr(systems, "wait_answer", lambda port, since: port + 0.5)

    def runs(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        done.append(words)
        return subprocess.CompletedProcess(words, code, "out", "err")

    class Child:
        pid = os.getpid()

        def __init__(self, name: str, words: list[str], environment: dict[str, str], log: Path) -> None:
            done.append((name, words, environment, log))

        def stop(self, seconds: float) -> None:
            done.append(seconds)

    monkeypatch.setattr(systems.subprocess, "run", runs)
    monkeypatch.setattr(systems, "Child", Child)
    code = 1
    with pytest.raises(PeerFailed, match=r"^Kafka's StorageTool: outerr$"):
        systems.Kafka(tmp_path / "refused")
    code = 0
    done.clear()
    system = systems.Kafka(tmp_path / "a" / "b")
    settings = tmp_path / "a" / "b" / "server.properties"
    port = int(system.first_answer)
    assert system.address == f"127.0.0.1:{port}"
    assert f"127.0.0.1:{port}" in settings.read_text()
    assert (system.processes(), system.flushing()) == ([psutil.Process()], [])
    system.stop()
    cluster = "aw" + "A" * 20
    formatting, (name, started, environment, log), seconds = done
    assert formatting == [
        "java",
        "-cp",
        "jars",
        "kafka.tools.StorageTool",
        "format",
        "-t",
        cluster,
        "-c",
        str(settings),
    ]
    assert started == ["java", *systems.HEAP, "-cp", "jars", "kafka.Kafka", str(settings)]
    assert (name, environment, log, seconds) == ("kafka", {}, settings.with_name("kafka.log"), 30.0)


# -- the rounds ------------------------------------------------------------------------------------------------------


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What would have been done, in order."""
    made: list[str] = []
    monkeypatch.setattr(command, "create", lambda system, topic, count: made.append(f"+{system.name} {topic} {count}"))
    monkeypatch.setattr(command, "delete", lambda system, topic: made.append(f"-{system.name} {topic}"))

    def step(what: str) -> steps.Step:
        return lambda load: steps.Done(len(made), {"messages": load.messages})

    def measure(system: Any, step: steps.Step, load: steps.Load) -> dict[str, float]:
        made.append(f"{system.name} {load.topic} {load.partitions} {load.messages} {load.address}")
        return {"rate": step(load).rate}

    monkeypatch.setattr(command, "measure", measure)
    pairs = {"one": steps.Pair(step("p"), step("c")), "two": steps.Pair(step("p"), step("c"), 0.05)}
    monkeypatch.setattr(command, "CLIENTS", pairs)
    monkeypatch.setattr(command, "PACED", (("at a pace", step("l"), 7000),))
    monkeypatch.setattr(command, "settle", lambda: made.append("settled"))
    return made


BOTH: list[Any] = [SimpleNamespace(name="fastlog", address="a"), SimpleNamespace(name="kafka", address="b")]


def test_a_round_has_every_client_at_both_brokers(done: list[str]) -> None:
    """Which is first changes with the round; the first round is not counted."""
    rows: command.Rows = defaultdict(lambda: defaultdict(list))
    command.clients_round(0, BOTH, ["one", "two"], 40_000, 12, rows)
    command.paced_round(0, BOTH, 12, rows)
    assert not rows
    assert done[:4] == ["+kafka one-12-0 12", *["kafka one-12-0 12 40000 b"] * 2, "-kafka one-12-0"]
    assert done[4] == "+fastlog one-12-0 12"
    assert done[9] == "kafka two-12-0 12 2000 b"
    assert done[16:20] == ["+kafka paced-12-0 12", "settled", "kafka paced-12-0 12 7000 b", "-kafka paced-12-0"]
    done.clear()
    command.clients_round(1, BOTH, ["two"], 10_000, 1, rows)
    command.paced_round(1, BOTH, 1, rows)
    assert done[1] == "fastlog two-1-1 1 1000 a"  # never fewer than a thousand
    assert {
        row: {name: [each["rate"] for each in found] for name, found in of.items()} for row, of in rows.items()
    } == {
        "two, written, 1 partitions": {"fastlog": [2], "kafka": [6]},
        "two, read, 1 partitions": {"fastlog": [3], "kafka": [7]},
        "at a pace, 1 partitions": {"fastlog": [11], "kafka": [15]},
    }


class Started:
    """Stands in for a broker."""

    stopped: ClassVar[list[str]] = []

    def __init__(self, directory: Path, *more: int) -> None:
        self.name = self.address = directory.name
        self.more = more
        self.directory = directory
        self.first_answer = 1.23456

    def processes(self) -> list[Any]:
        return [SimpleNamespace(memory_full_info=lambda: SimpleNamespace(pss=6, rss=99)) for _ in range(2)]

    def stop(self) -> None:
        self.stopped.append(self.name)


def test_the_command(done: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each count of partitions has its rounds and one before them; who is not there is named; brokers are ended."""
    monkeypatch.setenv(systems.CLASSPATH, "jars")
    monkeypatch.setattr(command, "Fastlog", Started)
    monkeypatch.setattr(command, "Kafka", Started)
    monkeypatch.setattr(command, "why_not", lambda name: "it is not there" if name == "one" else None)
    Started.stopped = []
    found = CliRunner().invoke(command.beside_kafka, ["--messages", "2000", "--rounds", "2", "--partitions", "3"])
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert (told["messages"], told["rounds"]) == (2000, 2)
    assert list(told["rows"]) == [
        "two, written, 3 partitions",
        "two, read, 3 partitions",
        "at a pace, 3 partitions",
    ]
    assert len(told["rows"]["two, read, 3 partitions"]["rate"]["ratios"]) == 2
    assert told["brokers"]["kafka"] == {"first_answer_seconds": 1.235, "memory_pss_bytes": 12}
    assert Started.stopped == ["fastlog", "kafka"]
    assert "NOT RUN: one: it is not there" in found.stderr
    assert "3 partitions: round 0 of 2, which warms up\n3 partitions: round 1 of 2\n" in found.stderr
    found = CliRunner().invoke(command.beside_kafka, ["--rounds", "1", "--partitions", "3", "--no-paced"])
    assert list(json.loads(found.stdout)["rows"]) == ["two, written, 3 partitions", "two, read, 3 partitions"]
    Started.stopped = []
    monkeypatch.delenv(systems.CLASSPATH)
    found = CliRunner().invoke(command.beside_kafka, [])
    assert (found.exit_code, Started.stopped) == (1, [])
    assert "scripts/compat fetches them" in found.stderr


def test_brokers_are_ended_where_a_round_fails(monkeypatch: pytest.MonkeyPatch, done: list[str]) -> None:
    monkeypatch.setenv(systems.CLASSPATH, "jars")
    monkeypatch.setattr(command, "Fastlog", Started)
    places: list[Path] = []

    def no_kafka(directory: Path) -> None:
        places.append(directory.parent)
        raise PeerFailed("it does not start")

    monkeypatch.setattr(command, "Kafka", no_kafka)
    Started.stopped = []
    found = CliRunner().invoke(command.beside_kafka, ["--only", "aiokafka"])
    assert isinstance(found.exception, PeerFailed)
    assert Started.stopped == ["fastlog"]
    assert not places[0].exists()
