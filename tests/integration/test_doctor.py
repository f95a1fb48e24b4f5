"""``fastlog doctor``: each fault, made for real where that can be done, is named, and nothing else is called wrong."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import resource
import socket
import threading
import time
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
from tests.harness.checkout import ROOT
from tests.harness.command_line import Commands, Ran
from tests.harness.descriptors import count_descriptors
from tests.harness.fake_broker import FakeBroker
from tests.harness.ports import unused_port
from tests.harness.timing import PATIENCE, patch_time
from tests.harness.zookeeper_wire import WireZooKeeper

EXPECTED_HERE = {
    "directory-temporary", "directory-in-memory", "clock-not-kept", "space-low", "space-scarce", "sync-slow",
    "disk-discards",
}  # fmt: skip
"""What the machine of the tests may have, whatever the test makes; tests of these look at them alone."""


DOCUMENT = (ROOT / "docs" / "commands.md").read_text().split("## Doctor")[1].split("\n## ")[0]
LEVELS = {name: levels.split(", ") for name, levels in re.findall(r"^\| `([a-z-]+)` \| ([a-z, ]+) \|", DOCUMENT, re.M)}
"""Of each fault, as documented: they decide on the exit code."""


class Doctor:
    """Runs the command on a log directory of its own and a free port, unless told otherwise."""

    def __init__(self, commands: Commands, directory: Path) -> None:
        self._commands = commands
        self.directory = directory

    def run(self, *arguments: str) -> Ran:
        defaults = [] if "--log-dir" in arguments else ["--log-dir", str(self.directory)]
        if not any(item == "--port" or item.startswith(("port=", "listeners=")) for item in arguments):
            defaults += ["--port", "0"]
        return self._commands("doctor", "--json", "--timeout", "10s", *defaults, *arguments)

    def names(self, *arguments: str, keep: tuple[str, ...] = ()) -> list[str]:
        """The faults that are found, each of which says what to do; the exit code is that of the worst."""
        ran = self.run(*arguments)
        rows = ran.rows
        assert ran.code == any(row["level"] == "bad" for row in rows)
        for row in rows:
            assert (row["level"] == "ok") == ("name" not in row) == ("remedy" not in row), row
            assert "name" not in row or row["level"] in LEVELS[row["name"]], row
        return [row["name"] for row in rows if "name" in row and row["name"] not in EXPECTED_HERE - set(keep)]

    def row(self, check: str, *arguments: str) -> dict[str, str]:
        (found,) = [row for row in self.run(*arguments).rows if row["check"] == check]
        assert "name" not in found or found["level"] in LEVELS[found["name"]], found
        return found


@pytest.fixture
def doctor(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Doctor:
    return Doctor(Commands(capfd), tmp_path / "data")


@contextmanager
def listening(host: str = "127.0.0.1", *, accepts: bool = True) -> Iterator[int]:
    """A port that somebody has: ``accepts`` each connection and ends it in order, or is bound and does not listen."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(accepts))
        server.bind((host, 0))
        if accepts:
            server.listen()
            server.settimeout(0.05)
        done = threading.Event()

        def serve() -> None:
            while not done.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                with connection, suppress(OSError):
                    connection.settimeout(PATIENCE)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(4096):  # what is closed with bytes unread is reset
                        pass

        thread = threading.Thread(target=serve) if accepts else None
        if thread is not None:
            thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            done.set()
            if thread is not None:
                thread.join()


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


# --- directories and disks ---


def test_directories_that_cannot_be_made(doctor: Doctor, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert doctor.names("--log-dir", str(file)) == ["directory-unusable"]
    assert doctor.names("--log-dir", "/proc/self/logs") == ["directory-unusable", "write-refused"]
    beneath = doctor.row("directory", "--log-dir", str(file / "logs"))
    assert (beneath["name"], beneath["remedy"]) == ("directory-unusable", "name another --log-dir")


@pytest.mark.parametrize(
    ("flags", "found", "remedy"),
    [(os.ST_RDONLY | os.ST_NODEV, "mounted for reading only", "mount it"), (os.ST_NODEV, "may not write", "chown it")],
)
def test_a_directory_that_cannot_be_made_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int, found: str, remedy: str
) -> None:
    """Nobody is told to chown what is mounted for reading only."""
    monkeypatch.setattr(doctor_machine.os, "access", lambda path, mode: False)
    monkeypatch.setattr(doctor_machine.os, "statvfs", lambda path: SimpleNamespace(f_flag=flags))
    subject = Subject(BrokerConfig(), [tmp_path / "data"], 1.0)
    (finding, *_) = doctor_machine.check_directories(subject)
    assert finding.name == "directory-unusable" and found in finding.found and finding.remedy.startswith(remedy)


def test_a_directory_that_is_named_twice(doctor: Doctor, tmp_path: Path) -> None:
    """A start would find it locked, by itself."""
    (tmp_path / "link").symlink_to(doctor.directory)
    for other in (doctor.directory, doctor.directory / ".." / doctor.directory.name, tmp_path / "link"):
        row = doctor.row("settings", "--log-dir", str(doctor.directory), "--log-dir", str(other))
        assert row["name"] == "settings-unusable"
        assert f"{other} is the directory {doctor.directory} once more" in row["found"]


def test_a_directory_that_is_beneath_another_users(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **how: bool) -> os.stat_result:
        if path == doctor.directory:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return look(path, **how)

    look = Path.stat
    monkeypatch.setattr(Path, "stat", refuse)
    (found,) = doctor_machine.check_directories(Subject(BrokerConfig(), [doctor.directory], 1.0))
    assert (found.name, found.level) == ("directory-unusable", "bad")
    assert found.remedy.startswith("chown it") and "Permission denied" in found.found


def test_a_kernel_that_does_not_tell_of_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **how: str) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "read_text", refuse)
    assert doctor_machine.mounted(tmp_path) == ("", frozenset())


def test_a_directory_of_another_user(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    doctor.directory.mkdir(mode=0o700)
    monkeypatch.setattr(doctor_machine.os, "access", lambda path, mode: not mode & os.W_OK)
    assert doctor.names() == ["directory-unusable"]
    assert str(os.geteuid()) in doctor.row("directory")["found"]


def test_directories_of_two_clusters(doctor: Doctor, tmp_path: Path) -> None:
    paths = []
    for number, name in enumerate(("one", "two", "three", "four")):
        path = tmp_path / name
        path.mkdir(mode=0o700)
        (path / "meta.properties").write_text(f"version=1\ncluster.id={'AABA'[number] * 22}\n")
        (path / ".kafka_cleanshutdown").touch()
        paths += ["--log-dir", str(path)]
    assert doctor.names(*paths[:4]) == []
    assert doctor.names(*paths[:6]) == ["directory-of-another-cluster"]
    (row,) = [row for row in doctor.run(*paths).rows if row.get("name") == "directory-of-another-cluster"]
    assert (
        row["found"] == f"{tmp_path / 'three'} belongs to the cluster {'B' * 22}, and {tmp_path / 'one'} to {'A' * 22}"
    )
    (tmp_path / "one" / "meta.properties").write_text("version=1\n")
    assert doctor.names(*paths[:2]) == ["directory-of-no-cluster"]


def test_a_stop_out_of_order_and_a_directory_that_is_open(doctor: Doctor) -> None:
    doctor.directory.mkdir(mode=0o700)
    (doctor.directory / "meta.properties").write_text(f"version=1\ncluster.id={'A' * 22}\n")
    assert doctor.names() == ["stop-unclean"]
    doctor.directory.chmod(0o750)
    assert doctor.names() == ["directory-open"]
    assert "stop-unclean" in doctor.names("--set", "log.access=group")
    doctor.directory.chmod(0o770)
    for access, mode in (("owner", "go-rwx"), ("group", "g-w,o-rwx")):
        assert doctor.row("directory", "--set", f"log.access={access}")["remedy"].startswith(f"chmod -R {mode} ")


def test_directories_in_memory_and_far_away(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.names("--log-dir", "/dev/shm/fastlog-doctor", keep=("directory-in-memory",)) == [
        "directory-in-memory"
    ]
    monkeypatch.setattr(doctor_machine, "mounted", lambda path: ("nfs4", frozenset()))
    assert doctor.names() == ["directory-remote"]
    monkeypatch.setattr(doctor_machine, "mounted", lambda path: ("ext4", frozenset()))
    for place in ("/tmp", "/var/tmp"):
        found = doctor.names("--log-dir", f"{place}/fastlog-doctor", keep=("directory-temporary",))
        assert found == ["directory-temporary"]


@pytest.mark.parametrize(("options", "found"), [("rw,discard", ["disk-discards"]), ("rw,nodiscard", []), ("rw", [])])
def test_a_disk_that_discards(options: str, found: list[str], doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    device = doctor.directory.parent.stat().st_dev
    read = Path.read_text

    def read_text(path: Path, **how: str) -> str:
        if path != Path("/proc/self/mountinfo"):
            return read(path, **how)
        return (
            "21 1 99:1 / /other rw - xfs /dev/b rw,discard\n"
            f"22 1 {os.major(device)}:{os.minor(device)} / / rw,relatime shared:1 - ext4 /dev/a {options}\n"
        )

    monkeypatch.setattr(Path, "read_text", read_text)
    assert doctor.names(keep=("disk-discards",)) == found
    assert doctor_machine.mounted(doctor.directory.parent)[0] == "ext4"


def test_a_slow_disk(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    took = iter([0.06, 0.06, 0.06, 0.0, 0.0, 0.0, 0.0, 0.06, 0.06, 0.0])
    monkeypatch.setattr(doctor_machine.os, "fdatasync", lambda fd: time.sleep(next(took)))
    assert doctor.names(keep=("sync-slow",)) == ["sync-slow"]
    assert doctor.names(keep=("sync-slow",)) == []  # two of five are not the rule


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "make room"), (errno.EDQUOT, "make room"), (errno.EROFS, "mount"), (errno.EIO, "dmesg")],
)
def test_a_disk_that_refuses(doctor: Doctor, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(doctor_machine.os, "pwrite", refuse)
    assert doctor.names() == ["write-refused"]
    assert remedy in doctor.row("disk")["remedy"]


@pytest.mark.parametrize("refusal", [0, errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL])
def test_a_try_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int) -> None:
    """Also where every file has a name, and where the disk fills meanwhile."""
    opened, written = os.open, os.pwrite

    def open_file(path: object, flags: int, *more: int, **options: object) -> int:
        if refusal and flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(refusal, os.strerror(refusal))
        return opened(path, flags, *more, **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(doctor_machine.os, "open", open_file)
    before = count_descriptors()
    positions: list[int] = []

    def write(fd: int, data: bytes, position: int) -> int:
        positions.append(position)
        return written(fd, data, position) if len(positions) < 8 else 5

    monkeypatch.setattr(doctor_machine.os, "pwrite", write)
    assert len(doctor_machine.sync_seconds(tmp_path)) == 5
    assert positions == [0, 4096, 8192, 12288, 16384]
    with pytest.raises(OSError, match="No space left"):
        doctor_machine.sync_seconds(tmp_path)
    assert list(tmp_path.iterdir()) == [] and count_descriptors() == before


def test_a_directory_that_cannot_be_opened_is_not_tried_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_machine.tempfile, "mkstemp", lambda **_: pytest.fail("it was"))
    with pytest.raises(FileNotFoundError):
        doctor_machine.sync_seconds(tmp_path / "none")


@pytest.mark.parametrize(
    ("size", "text"),
    [(1023, "1023 bytes"), (1024, "1.0 KiB"), (2**20, "1.0 MiB"), (3 * 2**30, "3.0 GiB"), (2**40, "1.0 TiB")],
)
def test_sizes(size: int, text: str) -> None:
    assert doctor_machine._size(size) == text


@pytest.mark.parametrize(
    ("free", "free_files", "name"),
    [(149, 50, "space-low"), (150, 50, ""), (50, 50, "space-low"), (49, 50, "space-scarce"), (500, 49, "inodes-few")],
)
def test_room(doctor: Doctor, monkeypatch: pytest.MonkeyPatch, free: int, free_files: int, name: str) -> None:
    statistics = namedtuple("statistics", "f_bavail f_blocks f_frsize f_files f_favail")
    monkeypatch.setattr(doctor_machine.os, "statvfs", lambda path: statistics(free, 1000, 2**20, 1000, free_files))
    assert doctor.row("space").get("name", "") == name


@pytest.mark.parametrize(("free", "name"), [(16 * 2**20, ""), (16 * 2**20 - 1, "space-scarce")])
def test_room_on_a_small_disk(monkeypatch: pytest.MonkeyPatch, free: int, name: str) -> None:
    """All of it is free, and that is soon over."""
    statistics = SimpleNamespace(f_bavail=free, f_blocks=free, f_frsize=1, f_files=0, f_favail=0)
    monkeypatch.setattr(doctor_machine.os, "statvfs", lambda path: statistics)
    assert doctor_machine._space(Path("/")).name == name


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
        deadline = time.monotonic() + 5
        while "not-ready" not in (found := doctor.names(*own)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert found == ["not-ready"]


@pytest.mark.slow
def test_listeners_of_one_protocol(doctor: Doctor) -> None:
    """One for today's protocol alone has no request that says whose it is."""
    keeper = [socket.socket() for _ in range(2)]
    for each in keeper:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind(("127.0.0.1", 0))
    old, new = (each.getsockname()[1] for each in keeper)
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
    for each in keeper:
        each.close()


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
