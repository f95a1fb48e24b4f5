"""A start with something wrong: exit code, what it says, what it leaves untouched; and the last line of a stop."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import json
import logging
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from fastlog import broker as broker_module
from fastlog.binding import bind
from fastlog.broker import BACKLOG, MONITOR_BACKLOG, pids_with, run_broker
from fastlog.config import BrokerConfig
from fastlog.errors import ConfigError, LogError
from fastlog.log._arena import Arena
from fastlog.log._shared_memory import FIRST_PROCESSOR
from fastlog.log.clean_marker import consume_clean_marker, write_clean_marker
from fastlog.log.files import FileOps
from fastlog.supervisor import Stop
from fastlog.workers.child import Listener, Shared
from tests.harness import command_process
from tests.harness.descriptors import open_descriptors
from tests.harness.faulty_files import FaultyFileOps
from tests.harness.shared_log import SharedLog, in_child, message, start, stop, wait_until

MARKER = ".kafka_cleanshutdown"


@pytest.fixture(autouse=True)
def _unchanged() -> Iterator[None]:
    """What a broker sets for its process: the handlers of the log, and the limit of descriptors."""
    root = logging.getLogger()
    handlers, level, limits = list(root.handlers), root.level, resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def config(directory: Path, **settings: Any) -> BrokerConfig:
    return BrokerConfig(**{"log_dirs": (str(directory / "data"),), "port": 0, "processors": 1, **settings})


def stopped_cleanly(directory: Path) -> Path:
    """A log directory as a clean stop leaves it."""
    (directory / "data").mkdir()
    write_clean_marker(directory / "data", {}, FileOps())
    return directory / "data" / MARKER


# -- something is wrong ------------------------------------------------------------------------------------------------


def failed(found: BrokerConfig, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and last line of a start that fails; it leaves no descriptor, lock or mask behind.

    In a process of its own: in this one, threads and objects of earlier tests open and close what they like.
    """
    given, taken = os.pipe()
    gc.collect()  # what earlier tests left goes here: it may end by a last word to a server

    def begin() -> None:
        before, mask = open_descriptors(), os.umask(0o022)
        os.umask(mask)
        code = run_broker(found, lambda port: pytest.fail(f"it is ready at {port}"))
        gc.collect()  # the shared memory goes with its last user
        same_mask = os.umask(mask) == mask
        os.write(taken, json.dumps([code, same_mask, open_descriptors() == before]).encode())

    try:
        assert in_child(begin) == 0
        code, same_mask, same_descriptors = json.loads(os.read(given, 4096))
    finally:
        os.close(given)
        os.close(taken)
    assert same_mask
    assert same_descriptors
    return code, capfd.readouterr().err.splitlines()[-1]


def test_a_port_that_is_taken(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Said at once: the clean marker is still there for the next start."""
    marker = stopped_cleanly(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, line = failed(config(tmp_path, port=port), capfd)
    assert code == 1
    assert line == (
        f"fastlog-broker: cannot listen on 127.0.0.1:{port}: Address already in use; stop what uses it or choose "
        "another --port (0 picks a free one)"
    )
    assert marker.exists()


def test_an_address_of_the_monitor_that_is_taken(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    marker = stopped_cleanly(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        code, line = failed(config(tmp_path, monitor_address=address), capfd)
    assert code == 1
    assert line.startswith(f"fastlog-broker: cannot listen on {address}: Address already in use; stop what uses it or ")
    assert line.endswith("choose another --monitor HOST:PORT (port 0 picks a free one)")
    assert marker.exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"retention_policy": "no_such_module:f"}, "log.retention.policy"),
        ({"mirror_file": "/no/such/file"}, "cannot read /no/such/file: No such file or directory"),
        ({"zk_connect": "host:port:more"}, "zk.connect"),
        ({"host": "no-such-name.invalid", "insecure": True}, "host: no-such-name.invalid: "),
        ({"zk_connect": "127.0.0.1:1", "hostname": "no-such-name.invalid"}, "no-such-name.invalid"),
    ],
)
def test_a_setting_that_cannot_be_used(
    settings: dict[str, Any], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    marker = stopped_cleanly(tmp_path)
    code, line = failed(config(tmp_path, **settings), capfd)
    assert (code, said in line) == (2, True), line
    assert marker.exists()


@pytest.mark.parametrize("given", ["soon", "0", "1.5"])
def test_a_heartbeat_that_is_no_number(given: str, tmp_path: Path) -> None:
    """One line says so, before anything is touched."""
    code, _, said = command_process.run(
        "--log-dir",
        str(tmp_path / "data"),
        module="fastlog.tools.broker_command",
        environment={"FASTLOG_HEARTBEAT_MS": given},
    )
    assert (code, said.count("\n")) == (2, 1)
    assert f"FASTLOG_HEARTBEAT_MS: {given!r} is no whole number" in said
    assert not (tmp_path / "data").exists()


def test_a_directory_that_another_broker_uses(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two directories the second: the first one is free again, and has its marker."""
    monkeypatch.setattr(broker_module, "LOCK_SECONDS", 0.05)
    marker = stopped_cleanly(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    pid = start(_hold_lock(other))
    try:
        wait_until(lambda: (other / "held").exists())
        code, line = failed(config(tmp_path, log_dirs=(str(tmp_path / "data"), str(other))), capfd)
    finally:
        stop(pid)
    assert code == 1
    assert f"another broker uses the log directory (pids {pid}); stop it (fastlog-broker --stop) or choose" in line
    assert str(other) in line
    assert marker.exists()
    with broker_module._locked(tmp_path / "data"), broker_module._locked(other):
        pass


def _hold_lock(directory: Path) -> Any:
    def work() -> None:
        with (directory / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            (directory / "held").touch()
            while True:
                os.read(os.pipe()[0], 1)

    return work


def test_the_lock_is_taken_when_it_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried for as long as it may be held: 5 s, every 20 ms; the last try is at the end of that time."""
    tries: list[float] = []
    now = [100.0]
    real = fcntl.flock

    def flock(fd: int, operation: int) -> None:
        assert operation == fcntl.LOCK_EX | fcntl.LOCK_NB
        tries.append(now[0])
        if now[0] < 105.0:
            raise BlockingIOError(errno.EAGAIN, "taken")
        real(fd, operation)

    class Clock:
        monotonic = staticmethod(lambda: now[0])

        @staticmethod
        def sleep(seconds: float) -> None:
            now[0] = round(now[0] + seconds, 6)

    monkeypatch.setattr(broker_module, "time", Clock)
    monkeypatch.setattr(broker_module.fcntl, "flock", flock)
    with broker_module._locked(tmp_path) as fd:
        assert Path(f"/proc/self/fd/{fd}").readlink() == tmp_path / ".lock"
    assert len(tries) == 251
    tries.clear()
    now[0] = 99.98
    taken = pytest.raises(LogError, match=r"another broker uses the log directory \(pids unknown\)")
    with taken, broker_module._locked(tmp_path):
        pytest.fail("it has it")
    assert tries[-1] == 104.98


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EINVAL])
def test_a_lock_that_cannot_be_had_at_all(
    number: int, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(_fd: int, _operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(broker_module.fcntl, "flock", flock)
    code, line = failed(config(tmp_path), capfd)
    assert (code, os.strerror(number) in line) == (1, True), line


def test_a_log_directory_that_is_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").write_bytes(b"")
    code, line = failed(config(tmp_path), capfd)
    assert code == 1
    assert "cannot use the log directory: " in line and str(tmp_path / "data") in line


def test_a_marker_that_cannot_be_taken_away_stops_the_start(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later start would believe it."""
    stopped_cleanly(tmp_path)
    files = FaultyFileOps()
    files.fail("unlink", 1, errno.EROFS)
    monkeypatch.setattr(broker_module, "FileOps", lambda: files)
    assert failed(config(tmp_path), capfd) == (1, "fastlog-broker: Read-only file system")


# -- parts of a start --------------------------------------------------------------------------------------------------


def test_who_has_the_lock_file_open_is_found(tmp_path: Path) -> None:
    """Others than this process, in order, and not those that have another file of this name."""
    (tmp_path / "lock").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "lock").touch()

    def hold(path: Path, name: str) -> Any:
        def work() -> None:
            with path.open("rb"):
                (tmp_path / name).touch()
                while True:
                    os.read(os.pipe()[0], 1)

        return work

    pids = [start(hold(tmp_path / "lock", "a")), start(hold(tmp_path / "lock", "b"))]
    other = start(hold(tmp_path / "other" / "lock", "c"))
    try:
        wait_until(lambda: all((tmp_path / name).exists() for name in "abc"))
        with (tmp_path / "lock").open("rb"):
            assert pids_with(tmp_path / "lock") == sorted(pids)
    finally:
        for pid in (*pids, other):
            stop(pid)
    assert pids_with(tmp_path / "lock") == []


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    with contextlib.ExitStack() as stack:
        arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 3, 8, 16)
        found = config(tmp_path, processors=3)
        yield broker_module._shared(found, arena, bind(found, stack), ("a", "b"), stack)


def test_each_processor_has_a_queue_of_its_own(shared: Shared) -> None:
    """What is put into one end of a number comes out at the other of the same number, each in one piece."""
    assert len(shared.handoff_send) == len(shared.handoff_receive) == 3
    assert len({*shared.handoff_send, *shared.handoff_receive}) == 6
    for number, fd in enumerate(shared.handoff_send):
        for text in (b"one", b"two"):
            os.write(fd, text + b"%d" % number)
    for number, fd in enumerate(shared.handoff_receive):
        assert [os.read(fd, 100) for _ in range(2)] == [b"one%d" % number, b"two%d" % number]
    for fd in (*shared.handoff_send, *shared.handoff_receive):
        assert not os.get_blocking(fd) and not os.get_inheritable(fd)
    assert shared.creators == ("a", "b")
    assert shared.supervisor_pid == os.getpid()


@pytest.mark.parametrize(
    ("limits", "raised", "told"),
    [
        ((100, 5000), 5000, 5000),
        ((5000, 5000), None, 5000),
        ((100, (1 << 20) + 1), (1 << 20) + 1, 1 << 20),
        ((1 << 20, 1 << 20), None, 1 << 20),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None, 1 << 20),
    ],
)
def test_the_limit_of_open_files_is_raised_to_what_is_allowed(
    limits: tuple[int, int], raised: int | None, told: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Limits:
        RLIMIT_NOFILE, RLIM_INFINITY = resource.RLIMIT_NOFILE, resource.RLIM_INFINITY
        set: tuple[int, int] | None = None

        def getrlimit(self, which: int) -> tuple[int, int]:
            assert which == resource.RLIMIT_NOFILE
            return limits

        def setrlimit(self, which: int, both: tuple[int, int]) -> None:
            assert which == resource.RLIMIT_NOFILE
            self.set = both

    fake = Limits()
    monkeypatch.setattr(broker_module, "resource", fake)
    with contextlib.ExitStack() as stack:
        arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 8, 16)
        made = broker_module._shared(config(tmp_path), arena, (), (), stack)
    assert made.descriptors == told
    assert fake.set == (None if raised is None else (raised, raised))


def test_the_slowest_directory_says_what_a_sync_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    fds = [os.open(path, os.O_RDWR | os.O_CREAT) for path in paths]
    times = iter([1.0, 1.25, 2.0, 2.75, 3.0, 3.5])
    synced: list[int] = []

    class Clock:
        perf_counter = staticmethod(lambda: next(times))

    monkeypatch.setattr(broker_module, "time", Clock)
    monkeypatch.setattr(broker_module.os, "fdatasync", synced.append)
    try:
        assert broker_module._measured_sync(fds) == 0.75
        assert synced == fds
        assert {path.read_bytes() for path in paths} == {b"%d\n" % os.getpid()}
    finally:
        for fd in fds:
            os.close(fd)


def test_a_sync_that_cannot_be_measured_stops_no_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fd = os.open(tmp_path / "a", os.O_RDONLY | os.O_CREAT)
    try:
        assert broker_module._measured_sync([fd]) is None
    finally:
        os.close(fd)
    assert caplog.messages == ["fdatasync not measured: Bad file descriptor"]


def test_the_socket_holds_as_many_as_were_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits to be accepted while there is no acceptor; and nobody may connect before the logs are recovered."""
    asked: list[tuple[int, int]] = []

    class Listening(socket.socket):
        def listen(self, backlog: int = -1) -> None:  # type: ignore[override]
            assert recovered, "it listens before the logs are recovered"
            asked.append((self.getsockname()[1], backlog))
            super().listen(backlog)

    recovered: list[object] = []
    real = broker_module.LogManager.load

    def load(self: Any, *given: Any) -> Any:
        found = real(self, *given)
        recovered.append(found)
        return found

    monkeypatch.setattr(broker_module.LogManager, "load", load)
    monkeypatch.setattr(broker_module.socket, "socket", Listening)
    monkeypatch.setattr(broker_module, "Supervisor", Nobody)
    ports: list[int] = []
    assert run_broker(config(tmp_path, monitor_address="127.0.0.1:0"), ports.append) == 0
    assert asked[0] == (ports[0], BACKLOG) and BACKLOG == 1024
    assert asked[1][1] == MONITOR_BACKLOG == 128
    assert len(asked) == 2


def test_a_start_that_fails_half_way_kills_who_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    called = (tmp_path / "called").open("a", buffering=1)

    class Half:
        def __init__(self, _shared: Shared) -> None:
            pass

        def start(self) -> None:
            called.write("start\n")
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

        def abandon(self) -> None:
            called.write("abandon\n")

    monkeypatch.setattr(broker_module, "Supervisor", Half)
    marker = stopped_cleanly(tmp_path)
    with called:
        assert failed(config(tmp_path), capfd) == (1, "fastlog-broker: Resource temporarily unavailable")
    assert (tmp_path / "called").read_text().split() == ["start", "abandon"]
    assert not marker.exists()  # taken before, and nothing says that all is as it was


class Nobody:
    """A supervisor without processes: the broker stops as soon as it is ready."""

    made: Shared

    def __init__(self, shared: Shared) -> None:
        Nobody.made = shared

    def start(self) -> None:
        pass

    def run(self) -> Stop:
        return Stop()


def ready_line(found: BrokerConfig, capfd: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What the ready line of a start says, by name."""
    ports: list[int] = []
    assert run_broker(found, ports.append, version="1.2.3") == 0
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("fastlog-broker: ready ")]
    said = dict(item.partition("=")[::2] for item in line.split()[2:])
    assert said["port"] == str(ports[0]) == str(Nobody.made.listeners[0].port)
    return said


def test_the_ready_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Programs read it: names and their order stay."""
    monkeypatch.setattr(broker_module, "Supervisor", Nobody)
    said = ready_line(config(tmp_path), capfd)
    assert list(said) == ["host", "port", "broker", "processors", "directories", "partitions", "start_seconds"]
    assert (said["host"], said["broker"], said["processors"]) == ("127.0.0.1", "0", "1")
    assert said["directories"] == str(tmp_path / "data") and said["partitions"] == "0"
    assert 0 <= float(said["start_seconds"]) < 60
    assert Nobody.made.version == "1.2.3" and Nobody.made.creators == () and Nobody.made.monitor is None
    assert Nobody.made.sync_seconds is not None and Nobody.made.sync_seconds > 0
    (tmp_path / "data" / "t-0").mkdir()
    (tmp_path / "data" / "t-0" / f"{0:020}.kafka").touch()
    both = (str(tmp_path / "data"), str(tmp_path / "more"))
    changed = config(
        tmp_path, log_dirs=both, broker_id=7, processors=2, advertised_port=99, hostname="localhost",
        monitor_address="127.0.0.1:0", zk_connect="127.0.0.1:1",
    )  # fmt: skip
    said = ready_line(changed, capfd)
    assert list(said) == [
        "host", "port", "broker", "advertised", "zookeeper", "monitor", "processors", "directories", "partitions",
        "start_seconds",
    ]  # fmt: skip
    assert (said["broker"], said["processors"], said["partitions"]) == ("7", "2", "1")
    assert (said["advertised"], said["zookeeper"]) == ("localhost:99", "127.0.0.1:1")
    assert said["monitor"] == str(Nobody.made.monitor) and said["directories"] == ",".join(both)
    (creator,) = Nobody.made.creators
    assert creator.startswith("localhost-")
    assert ready_line(changed, capfd) and Nobody.made.creators[1:] == (creator,)
    assert "INSECURE" in ready_line(config(tmp_path, insecure=True), capfd)


def test_an_address_that_old_clients_cannot_use_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for host, warned in (("::1", True), ("localhost", False)):
        listener = Listener("default", "kafka-0.7", host, 1, host, 1, 0)
        broker_module._creators(listener, [tmp_path], FileOps())
        assert bool([line for line in caplog.messages if "is written to ZooKeeper in brackets" in line]) is warned
        caplog.clear()


def test_what_was_cut_off_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(broker_module, "Supervisor", Nobody)
    (tmp_path / "data" / "t-3").mkdir(parents=True)
    (tmp_path / "data" / "t-3" / f"{0:020}.kafka").write_bytes(message(20) + message(30)[:-1])
    assert run_broker(config(tmp_path)) == 0
    assert (
        "torn tail quarantined and cut topic='t' partition=3 bytes=29 whole_messages_behind=0 log_end=20"
        in capfd.readouterr().err
    )
    assert consume_clean_marker(tmp_path / "data", FileOps()) == {"t-3": 20}


# -- the end -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> SharedLog:
    made = SharedLog(tmp_path, partitions=2)
    assert made.append(message(20)) == 0
    return made


def finish(log: SharedLog, files: FileOps | None = None, *, clean: bool = True, problems: tuple[str, ...] = ()) -> int:
    found = BrokerConfig(log_dirs=(str(log.directory),), processors=1)
    return broker_module._finish(found, log.arena, [log.directory], files or FileOps(), clean, list(problems))


def ends(log: SharedLog) -> dict[str, int]:
    return consume_clean_marker(log.directory, FileOps())


def test_the_marker_names_the_end_of_each_partition(log: SharedLog, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log.flush()
    assert finish(log) == 0
    assert ends(log) == {"t-0": 20, "t-1": 0}
    assert caplog.messages == ["stopped: everything flushed, clean marker written"]


def test_what_is_not_flushed_is_named_and_there_is_no_marker(log: SharedLog, capfd: pytest.CaptureFixture[str]) -> None:
    log.flush()
    assert log.append(message(30), slot=1) == 0
    assert log.append(message(14)) == 0
    assert finish(log, problems=("role=flusher did not finish in time",)) == 1
    assert not (log.directory / MARKER).exists()
    assert capfd.readouterr().err == (
        "fastlog-broker: stopped without the clean marker: role=flusher did not finish in time; "
        "not flushed: t-0 offsets 20 to 34; not flushed: t-1 offsets 0 to 30; the next start recovers\n"
    )


def test_whoever_did_not_finish_costs_the_marker(log: SharedLog, capfd: pytest.CaptureFixture[str]) -> None:
    log.flush()
    assert finish(log, clean=False, problems=("role=keeper did not finish in time",)) == 1
    assert not (log.directory / MARKER).exists()
    assert capfd.readouterr().err == (
        "fastlog-broker: stopped without the clean marker: role=keeper did not finish in time; "
        "the next start recovers\n"
    )


@pytest.mark.parametrize("call", ["write", "rename", "fsync_dir"])
def test_a_marker_that_cannot_be_written_is_said(call: str, log: SharedLog, capfd: pytest.CaptureFixture[str]) -> None:
    """A full disk: all is flushed, and the next start scans."""
    log.flush()
    files = FaultyFileOps()
    files.fail(call, 1, errno.ENOSPC)
    assert finish(log, files) == 1
    line = capfd.readouterr().err
    assert line.startswith("fastlog-broker: stopped without the clean marker: clean marker not written: ")
    assert "No space left on device" in line and line.endswith("; the next start recovers\n")


def test_a_partition_out_of_service_has_no_end(log: SharedLog) -> None:
    """It costs the others nothing where it is flushed as far as it goes; the next start looks at it."""
    log.flush()
    assert log.append(message(30), slot=1) == 0
    assert log.append(message(20), slot=0) == 0
    log.flush()
    in_child(lambda: log.flush(1), "fdatasync@1=EIO")
    assert log.view(1).state
    assert finish(log) == 1
    assert not (log.directory / MARKER).exists()
    # whose state was set although all was flushed: nothing is said of it
    whole = log.view(1)._replace(flushed_end=30, log_end=30)

    class Views:
        def views(self) -> list[Any]:
            return [log.view(0), whole]

    found = BrokerConfig(log_dirs=(str(log.directory),), processors=1)
    arena = cast(Arena, Views())
    assert broker_module._finish(found, arena, [log.directory], FileOps(), True, []) == 0
    assert ends(log) == {"t-0": 40}


def test_a_broker_that_may_not_run_says_so_by_its_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All is flushed and the marker written, and still whoever started it learns that it did not stay."""

    class Refused:
        def __init__(self, _shared: Shared) -> None:
            pass

        def start(self) -> None:
            pass

        def run(self) -> Stop:
            return Stop(clean=True, asked_for=False, problems=["role=keeper found that this broker may not run"])

    monkeypatch.setattr(broker_module, "Supervisor", Refused)
    assert run_broker(config(tmp_path)) == 1
    assert (tmp_path / "data" / MARKER).exists()


def test_errors_say_by_their_code_whose_fault_it_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, code, said in [
        (ConfigError("a: b"), 2, "fastlog-broker: a: b\n"),
        (LogError("c"), 1, "fastlog-broker: c\n"),
        (OSError(errno.EIO, "Input/output error", "/x"), 1, "fastlog-broker: Input/output error: /x\n"),
        (OSError("no number"), 1, "fastlog-broker: no number\n"),
    ]:

        def failing(*_: Any, error: Exception = error) -> int:
            raise error

        monkeypatch.setattr(broker_module, "_run", failing)
        assert run_broker(config(tmp_path)) == code
        assert capfd.readouterr().err == said
