"""``fastlog doctor``: each fault, made for real where that can be done, is named, and nothing else is called wrong."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import resource
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fastlog import __version__
from fastlog.config import BrokerConfig
from fastlog.errors import FastlogError, ProtocolError, TransportError
from fastlog.listening import ListenAddress
from fastlog.segment_files import LOCK_NAME
from fastlog.testing import Proxy, broker
from fastlog.tools import doctor_machine, doctor_network
from fastlog.tools.doctor import subject_of
from fastlog.tools.doctor_machine import satisfies
from fastlog.tools.findings import Subject
from tests.harness.command_line import Commands
from tests.harness.doctor import DOCUMENT, EXPECTED_HERE, LEVELS, Doctor, listening
from tests.harness.fake_broker import FakeBroker
from tests.harness.ports import unused_port
from tests.harness.timing import PATIENCE, patch_time
from tests.harness.zookeeper_wire import WireZooKeeper


@pytest.fixture
def doctor(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Doctor:
    return Doctor(Commands(capfd), tmp_path / "data")


# --- a machine on which nothing is wrong ---


def test_a_good_machine_has_a_line_for_each_thing(doctor: Doctor) -> None:
    ran = doctor.run("--port", str(unused_port()), "--set", "max.connections=100")
    assert [row["check"] for row in ran.rows] == [
        "settings", "versions", "port", "advertised", "monitor", "zookeeper", "directory", "disk", "space",
        "descriptors", "clock", "memory",
    ]  # fmt: skip
    assert {row["name"] for row in ran.rows if "name" in row} <= EXPECTED_HERE
    assert not doctor.directory.exists()  # nothing was made


def test_lines_for_people_have_an_arrow_before_the_remedy(
    doctor: Doctor, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening() as port:
        ran = Commands(capfd)("doctor", "--log-dir", str(doctor.directory), "--port", str(port), "--timeout", "1s")
    (line,) = [line for line in ran.out.splitlines() if line.startswith("bad ")]
    assert line.startswith(f"bad   port         127.0.0.1:{port} is taken by ") and " -> stop it, or choose" in line
    assert str(os.getpid()) in line
    assert ran.code == 1 and ran.err.startswith("1 wrong, ") and "\x1b" not in ran.out


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colour_is_for_terminals(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], coloured: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    shown: list[str] = []
    monkeypatch.setattr("builtins.print", lambda *words, **options: shown.append(str(words[0])))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    doctor._commands("doctor", "--log-dir", str(doctor.directory), "--port", "0")
    assert shown[0].startswith("\x1b[32mok  \x1b[0m  settings" if coloured else "ok    settings")


# --- settings, ports, names ---


@pytest.mark.parametrize(
    "arguments",
    [["--set", "log.flush.intervl=5"], ["--host", "0.0.0.0"], ["--config", "/no/such/file"], ["--advertise", "h:"]],
)
def test_settings_that_cannot_be_used(doctor: Doctor, arguments: list[str]) -> None:
    ran = doctor.run(*arguments)
    assert [row.get("name") for row in ran.rows] == ["settings-unusable"] and ran.code == 1


@pytest.mark.parametrize("accepts", [False, True])
def test_another_program_has_the_port(doctor: Doctor, accepts: bool) -> None:
    with listening(accepts=accepts) as port:
        assert doctor.names("--port", str(port)) == ["port-taken"]


def test_a_broker_of_other_directories_has_the_port(doctor: Doctor) -> None:
    with FakeBroker() as fake:
        port = fake.address.rpartition(":")[2]
        assert doctor.names("--port", port) == ["port-taken"]
        assert "a fastlog broker with the id" in doctor.row("port", "--port", port)["found"]


def test_a_port_whose_connections_have_just_ended_is_free() -> None:
    """The kernel keeps them for a minute, which is in no broker's way."""
    with listening() as port, socket.create_connection(("127.0.0.1", port)) as client:
        assert client.recv(1) == b""
    assert doctor_network._cannot_bind(ListenAddress("127.0.0.1", port)) is None


def test_of_several_processes_with_a_port_the_first_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which has made the others; those of other users have no number."""
    ends = [SimpleNamespace(laddr=SimpleNamespace(port=9), pid=pid) for pid in (None, 2**22, os.getpid())]
    monkeypatch.setattr("psutil.net_connections", lambda kind: ends)
    assert doctor_network._listening_process(9).startswith(f" (pid {os.getpid()}, ")
    assert doctor_network._listening_process(10) == " (see: ss -ltnp)"


def test_an_address_of_another_machine(doctor: Doctor) -> None:
    found = doctor.names("--host", "192.0.2.1", "--port", str(unused_port()), "--insecure")
    assert found == ["address-not-here", "port-exposed"]
    assert doctor.names("--host", "0.0.0.0", "--port", "0", "--insecure") == ["port-exposed"], "whichever port it is"
    told = doctor.row("advertised", "--host", "0.0.0.0", "--port", "0", "--insecure")["found"]
    assert told == f"{socket.gethostname()}, as it listens"
    assert "address-unknown" in doctor.names("--host", "no.such.host.invalid", "--port", "9", "--insecure")


def test_a_port_that_needs_a_right(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(socket.socket):
        def bind(self, address: object) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(doctor_network.socket, "socket", Refused)
    assert doctor_network._cannot_bind(doctor_network.ListenAddress("127.0.0.1", 80))[0] == "port-not-allowed"


def test_listeners_have_lines_of_their_own(doctor: Doctor) -> None:
    free = unused_port()
    with listening() as taken:
        rows = doctor.run("--set", f"listeners=in://127.0.0.1:{free},out://127.0.0.1:{taken}",
                          "--set", "listener.protocol.map=out:kafka").rows  # fmt: skip
    by_check = {row["check"]: row.get("name", "") for row in rows}
    assert (by_check["port in"], by_check["port out"]) == ("", "port-taken")
    assert (by_check["told in"], by_check["told out"]) == ("", "")
    rows = doctor.run("--set", f"listeners=in://127.0.0.1:{free},out://127.0.0.1:{unused_port()}",
                      "--advertise", "no.such.host.invalid:9092").rows  # fmt: skip
    by_check = {row["check"]: row.get("name", "") for row in rows}
    assert (by_check["told in"], by_check["told out"]) == ("name-unknown", ""), "that is the first one's"


@pytest.mark.parametrize(
    ("advertise", "name"),
    [
        ("no.such.host.invalid:9092", "name-unknown"),
        ("192.0.2.1:9092", "name-elsewhere"),
        ("127.0.0.1:9092", "name-loopback"),
    ],
)
def test_names_that_lead_elsewhere(doctor: Doctor, advertise: str, name: str) -> None:
    found = doctor.names("--host", "0.0.0.0", "--port", str(unused_port()), "--insecure", "--advertise", advertise)
    assert found == ["port-exposed", name]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TransportError("no broker can be reached:\nh:1: it is tired"), "h:1: it is tired"),
        (TransportError("timed out"), "timed out"),
        (ProtocolError("no answer of a broker\nbut this"), "no answer of a broker"),
    ],
)
def test_why_nobody_answers_is_one_line(error: FastlogError, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(address: ListenAddress, timeout: float) -> None:
        raise error

    monkeypatch.setattr(doctor_network, "_asked", refuses)
    subject = Subject(BrokerConfig(), [], 1.0, [], True, {})
    found = doctor_network._leads("advertised", subject, ListenAddress("h", 1), ListenAddress("h", 2), "do it")
    assert (found.name, found.found) == (
        "name-not-answering", f"clients are told h:1, where no broker answers: {reason}"
    )  # fmt: skip


def test_a_name_of_this_machine_is_fine(doctor: Doctor) -> None:
    assert doctor.names("--port", str(unused_port()), "--advertise", "localhost:9") == []


# --- the monitor, ZooKeeper ---


def test_monitors_that_cannot_be_started(doctor: Doctor, tmp_path: Path) -> None:
    with listening() as port:
        assert doctor.names("--monitor", f"127.0.0.1:{port}") == ["port-taken"]
        remedy = doctor.row("monitor", "--monitor", f"127.0.0.1:{port}")["remedy"]
        assert remedy.startswith("choose another --monitor")
    token = tmp_path / "token"
    monitor = ["--monitor", f"127.0.0.1:{unused_port()}", "--monitor-token-file", str(token)]
    assert doctor.names(*monitor) == ["token-unusable"]
    token.write_text("short")
    assert doctor.names(*monitor) == ["token-unusable"]
    token.write_text("long enough for a secret".replace(" ", "-"))
    token.chmod(0o600)
    assert doctor.names(*monitor) == []


def test_a_zookeeper_that_does_not_answer(doctor: Doctor) -> None:
    port = unused_port()
    row = doctor.row("zookeeper", "--zookeeper", f"127.0.0.1:{port}", "--timeout", "1s")
    assert row["name"] == "zookeeper-unreachable" and str(port) in row["found"]


def test_an_id_that_somebody_has(doctor: Doctor) -> None:
    with WireZooKeeper() as server:
        assert doctor.names("--zookeeper", server.address) == []
        server.tree.write("/brokers/ids/3", b"other-1:10.9.8.7:9092")
        assert doctor.names("--zookeeper", server.address, "--broker-id", "3") == ["id-taken"]
        found = doctor.row("zookeeper", "--zookeeper", server.address, "--broker-id", "3")["found"]
        assert "10.9.8.7:9092" in found
        assert doctor.names("--zookeeper", server.address, "--broker-id", "4") == []
        config = BrokerConfig(zk_connect=server.address, broker_id=3)
        (own,) = doctor_network.check_zookeeper(Subject(config, [], 5.0, [1], is_running=True))
        assert (own.level, own.name) == ("ok", "") and "broker 3 is registered at 10.9.8.7:9092" in own.found


# --- limits, clock, memory, versions ---


@pytest.mark.parametrize(("limit", "names"), [(1255, ["descriptors-few"]), (1256, []), (resource.RLIM_INFINITY, [])])
def test_descriptors(doctor: Doctor, monkeypatch: pytest.MonkeyPatch, limit: int, names: list[str]) -> None:
    """256 of its own, and of 1,000 connections 500 for each of two processors, twice for segments."""
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (64, limit))
    assert doctor.names("--set", "max.connections=1000", "--set", "num.threads=2") == names


def test_the_process_with_the_most_descriptors_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    used = {1: (80, 100, 1), 2: (81, 100, 2), 3: (90, 1000, 3), 4: None}
    monkeypatch.setattr(doctor_machine, "_descriptors_of", used.get)
    config = BrokerConfig(max_connections=1, processors=1)

    def names(*pids: int) -> list[str]:
        subject = Subject(config, [tmp_path], 1.0, pids, is_running=True)
        return [finding.name for finding in doctor_machine.check_descriptors(subject)]

    assert names(1, 2, 3, 4) == names(2) == names(1) == ["descriptors-few"], "few are used, and too few allowed"
    assert names(3) == [""]
    used[5], used[6] = (800, 1000, 5), (801, 1000, 6)
    assert (names(5), names(6)) == ([""], ["descriptors-few"])
    used[1] = (80, 1000, 1)
    assert names(1, 3, 4) == [""]


def test_the_newest_segment_of_all_directories_counts(doctor: Doctor, tmp_path: Path) -> None:
    future = time.time() + 120
    for name in ("one", "two"):
        partition = tmp_path / name / "logs-0"
        partition.mkdir(parents=True)
        (tmp_path / name).chmod(0o700)
        for base, moment in ((0, future if name == "two" else future - 1000), (100, future - 2000)):
            (partition / f"{base:020}.kafka").touch()
            os.utime(partition / f"{base:020}.kafka", (moment, moment))
    paths = ["--log-dir", str(tmp_path / "one"), "--log-dir", str(tmp_path / "two")]
    assert doctor.names(*paths) == doctor.names(*paths[2:], *paths[:2]) == ["clock-behind"]
    assert doctor.names(*paths[:2]) == []


def test_a_clock_that_went_back(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = doctor.directory / "logs-0"
    partition.mkdir(parents=True, mode=0o700)
    doctor.directory.chmod(0o700)
    segment = partition / "00000000000000000000.kafka"
    segment.touch()
    now = time.time()
    os.utime(segment, (now, now + 50))
    assert doctor.names() == []
    os.utime(segment, (now, now + 120))
    assert doctor.names() == ["clock-behind"]
    assert str(segment) in doctor.row("clock")["found"]
    segment.rename(segment.with_suffix(".log"))
    assert doctor.names() == ["clock-behind"]
    segment.with_suffix(".log").unlink()
    patch_time(monkeypatch, doctor_machine, time=lambda: 1000.0)
    assert "1970" in doctor.row("clock")["found"]


def test_a_segment_that_goes_meanwhile_hides_no_other(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = doctor.directory / "logs-0"
    partition.mkdir(parents=True, mode=0o700)
    doctor.directory.chmod(0o700)
    future = time.time() + 120
    for base in range(3):
        (partition / f"{base:020}.kafka").touch()
        os.utime(partition / f"{base:020}.kafka", (future, future))
    look, seen = Path.stat, list[Path]()

    def stat(path: Path, **how: bool) -> os.stat_result:
        if path.suffix == ".kafka":
            seen.append(path)
            if path == seen[0]:
                raise FileNotFoundError(path)
        return look(path, **how)

    monkeypatch.setattr(Path, "stat", stat)
    assert doctor.names() == ["clock-behind"]


@pytest.mark.parametrize(("kept", "level"), [(False, "warn"), (True, "ok")])
def test_a_clock_that_nobody_keeps(doctor: Doctor, monkeypatch: pytest.MonkeyPatch, kept: bool, level: str) -> None:
    monkeypatch.setattr(doctor_machine, "_is_kept", lambda: kept)
    assert doctor.row("clock")["level"] == level


def test_a_kernel_that_does_not_tell_is_taken_to_keep_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: SimpleNamespace())
    assert doctor_machine._is_kept()


@pytest.mark.parametrize(("missing", "name"), [(0, None), (1, "memory-little")])
def test_more_memory_for_requests_than_there_is(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, missing: int, name: str | None
) -> None:
    """Each process may take so much for requests, and as much for answers."""
    monkeypatch.setattr(doctor_machine, "memory", lambda: (6 * 2**30 - missing, 2**30))
    row = doctor.row("memory", "--set", "request.memory.bytes=1GiB", "--set", "num.threads=3")
    assert row.get("name") == name
    assert row["found"].endswith("requests and answers may take 6.0 GiB")


def test_memory_within_a_container(doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc = tmp_path / "meminfo"
    proc.write_text("MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable:  4194304 kB\n")
    assert doctor_machine.memory(proc, tmp_path) == (8 * 2**30, 4 * 2**30)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text(f"{2**30 - 2**20}\n")
    assert doctor_machine.memory(proc, tmp_path) == (8 * 2**30, 4 * 2**30)
    (tmp_path / "memory.max").write_text(f"{2**30}\n")
    assert doctor_machine.memory(proc, tmp_path) == (2**30, 2**20)
    (tmp_path / "memory.max").write_text(f"{7 * 2**30}\n")  # of which less is free than the container may have
    (tmp_path / "memory.current").write_text(f"{2**20}\n")
    assert doctor_machine.memory(proc, tmp_path) == (7 * 2**30, 4 * 2**30)
    (tmp_path / "memory.max").write_text(f"{9 * 2**30}\n")  # more than there is
    assert doctor_machine.memory(proc, tmp_path) == (8 * 2**30, 4 * 2**30)
    for name in ("memory.max", "memory.current"):
        (tmp_path / name).unlink()
    (tmp_path / "memory").mkdir()  # of the first version of control groups, whose use is not asked for
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text(f"{2**30}\n")
    assert doctor_machine.memory(proc, tmp_path) == (2**30, 2**30)
    monkeypatch.setattr(doctor_machine, "memory", lambda: (2**34, 2**27 - 1))
    assert doctor.names() == ["memory-short"]
    monkeypatch.setattr(doctor_machine, "memory", lambda: (2**34, 2**27))
    assert doctor.names() == []


def test_packages_that_are_missing_or_of_other_versions(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = ["kazoo>=2.10", "no-such-package>=1", "no_prometheus>=0.20; extra == 'metrics'", "psutil>=900"]
    monkeypatch.setattr(doctor_machine.metadata, "requires", lambda name: requirements)
    assert doctor.names() == ["package-missing", "package-unfit"]
    assert doctor.names("--monitor", "127.0.0.1:0") == ["package-missing", "package-missing", "package-unfit"]
    requirements[1:] = ["no_prometheus>=0.20; extra == 'metrics'"]
    assert doctor.run("--monitor", "127.0.0.1:0").code == 0  # all but /metrics works
    requirements[1:] = ["psutil>=900; extra == 'metrics'"]
    assert doctor.run("--monitor", "127.0.0.1:0").code == 1


@pytest.mark.parametrize(
    ("version", "specifiers", "fits"),
    [
        ("3.1", ">=3.1,<4", True),
        ("3.1.0", ">=3.1", True),
        ("3.0.9", ">=3.1", False),
        ("4.0", ">=3.1,<4", False),
        ("3.99", "<4,>=3.1", True),
        ("3.10", ">=3.9", True),
        ("5", "", True),
        ("4.0.0rc1", "<4", False),
    ],
)
def test_versions(version: str, specifiers: str, fits: bool) -> None:
    assert satisfies(version, specifiers) is fits


# --- the documents ---


def test_every_name_is_documented() -> None:
    tools = Path(doctor_machine.__file__).parent
    text = "".join(path.read_text() for path in tools.glob("doctor*.py"))
    said = set(re.findall(r"\(\s*\"?[\w ]*\"?,?\s*\"([a-z]+(?:-[a-z]+)+)\",", text))
    said |= set(re.findall(r"return \"([a-z]+(?:-[a-z]+)+)\",", text))
    assert len(said) > 30 and said == set(re.findall(r"^\| `([a-z-]+)` \|", DOCUMENT, re.M)) == set(LEVELS)


# --- a broker that runs ---


@pytest.mark.parametrize("order", [1, -1])
def test_a_broker_runs_that_has_any_of_the_directories(tmp_path: Path, order: int) -> None:
    """Also where another one cannot be looked at."""
    (tmp_path / "file").touch()
    held = tmp_path / "held"
    held.mkdir()
    with (held / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for other in (tmp_path / "file" / "logs", tmp_path / "none"):
            config = BrokerConfig(log_dirs=tuple(map(str, (other, held)[::order])))
            assert subject_of(config, 1.0).is_running


@pytest.mark.parametrize(
    ("problems", "text"),
    [
        (["one: it is late"], "one: it is late"),
        (["one", "two"], "one (and 1 more)"),
        (["a", "b", "c"], "a (and 2 more)"),
    ],
)
def test_of_all_that_a_broker_says_of_itself_the_first_is_told(problems: list[str], text: str) -> None:
    config = BrokerConfig(monitor_address="127.0.0.1:9080")
    (found,) = doctor_network.check_monitor(Subject(config, [], 1.0, [1], True, {"problems": problems}))
    assert (found.name, found.found) == ("not-ready", f"the broker says of itself: {text}")


@pytest.mark.slow
def test_a_broker_that_runs(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is recognized; what it is not, or does not do, is named."""
    with broker(monitor_address="127.0.0.1:0", max_connections=100) as running, WireZooKeeper() as zookeeper:
        port, monitor = ["--port", str(running.port)], ["--monitor", running.monitor_address]
        own = ["--log-dir", str(running.data_directory), *port, "--set", "max.connections=100", *monitor]
        assert doctor.names(*own) == []
        assert f"broker 0 answers at {running.address} (pids " in doctor.row("port", *own)["found"]
        assert "answers: ready" in doctor.row("monitor", *own)["found"]
        assert " open, the most of the broker's" in doctor.row("descriptors", *own)["found"]
        assert doctor.names(*own, "--zookeeper", zookeeper.address) == ["not-registered"]
        assert doctor.names(*own, "--broker-id", "7") == ["broker-silent"]
        assert doctor.names(*own, "--port", str(unused_port())) == ["broker-silent"]
        assert doctor.names(*own, "--advertise", f"127.0.0.1:{running.port}") == []
        assert doctor.names(*own, "--advertise", f"localhost:{running.port}") == ["told-otherwise"]
        monitor_of_others = ["--monitor", f"127.0.0.1:{unused_port()}"]
        assert doctor.names(*own, *monitor_of_others) == ["monitor-silent"]
        monkeypatch.setattr("fastlog.tools.doctor_machine.__version__", "0.0.0")
        assert doctor.names(*own) == ["broker-other-version"]
        assert __version__ in doctor.row("versions", *own)["found"]
        monkeypatch.undo()
        running.fill_disk()
        deadline = time.monotonic() + PATIENCE
        while "not-ready" not in (found := doctor.names(*own)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert found == ["not-ready"]


@pytest.mark.slow
def test_listeners_of_one_protocol(doctor: Doctor) -> None:
    """One for today's protocol alone has no request that says whose it is."""
    old, new = unused_port(), unused_port()
    listeners = f"OLD://127.0.0.1:{old},NEW://127.0.0.1:{new}"
    protocols = "OLD:kafka-0.7,NEW:kafka"
    given = {"listeners": listeners, "listener.protocol.map": protocols, "max.connections": "100"}
    with broker(properties=given) as running:
        own = ["--log-dir", str(running.data_directory), "--set", "max.connections=100"]
        own += ["--set", f"listener.protocol.map={protocols}", "--set"]
        assert doctor.names(*own, f"listeners={listeners}") == []
        assert doctor.row("port NEW", *own, f"listeners={listeners}")["found"] == f"127.0.0.1:{new} takes connections"
        elsewhere = f"listeners=OLD://127.0.0.1:{old},NEW://127.0.0.1:{unused_port()}"
        assert "broker-silent" in doctor.names(*own, elsewhere)
        told = f"advertised.listeners=NEW://localhost:{new}"
        assert doctor.row("told NEW", *own, f"listeners={listeners}", "--set", told)["level"] == "ok"


@pytest.mark.slow
def test_where_clients_are_led(doctor: Doctor) -> None:
    """What they are told leads to this broker, to another one, to another program, or nowhere."""
    with Proxy(("127.0.0.1", 1)) as way, broker(advertised_port=way.port) as running:
        own = ["--log-dir", str(running.data_directory), "--port", str(running.port)]
        own += ["--advertise", way.address, "--set", "max.connections=100"]
        way._target = ("127.0.0.1", running.port)
        assert doctor.names(*own) == []
        assert f"{way.address} leads to this broker" in doctor.row("advertised", *own)["found"]
        with FakeBroker() as other:
            way._target = ("127.0.0.1", int(other.address.rpartition(":")[2]))
            assert doctor.names(*own) == ["name-other-broker"]
        with listening() as plain:
            way._target = ("127.0.0.1", plain)
            assert doctor.names(*own) == ["name-other-broker"]
        way.close()
        assert doctor.names(*own) == ["name-not-answering"]
