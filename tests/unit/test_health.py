"""What is said of a broker: for whom it is alive and ready, and the report, from an arena that says what it should."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest

from fastlog.config import BrokerConfig
from fastlog.durability import durability, flush_policy, promise
from fastlog.errors import ConfigError
from fastlog.log._append import Appender, append_bytes
from fastlog.log._arena import STATE_OFFLINE, Arena
from fastlog.log._segments import SegmentFiles
from fastlog.log._shared_memory import ACCEPTOR, COORDINATOR, FIRST_PROCESSOR, FLUSHER, KEEPER, SUPERVISOR
from fastlog.log.manager import LogManager
from fastlog.log.slots import SlotSpec
from fastlog.registry import RegistrationStatus
from fastlog.supervisor import Supervisor
from fastlog.tools.broker_command import make_config
from fastlog.workers import disk_probe, health
from fastlog.workers.child import Listener, MonitorSocket, Shared
from fastlog.workers.disk_probe import DiskProbe
from fastlog.workers.health import Health
from fastlog.workers.http_server import JSON, Request, encode_answer
from fastlog.workers.metrics import Metrics
from fastlog.workers.monitor import Pages
from tests.harness.broker import wait_until
from tests.harness.shared_log import message
from tests.harness.timing import patch_time

SECRET = "a-secret-of-some-length"
EVERYBODY = (SUPERVISOR, FLUSHER, KEEPER, COORDINATOR, ACCEPTOR, FIRST_PROCESSOR, FIRST_PROCESSOR + 1)


class Disks(DiskProbe):
    """Disks that say what the test wants."""

    def __init__(self) -> None:
        super().__init__([])
        self.lines: list[str] = []

    def problems(self) -> list[str]:
        return self.lines


class Inside:
    """The arena of a broker with two processors, in which every loop has just turned, and its health."""

    def __init__(self, directory: Path, registration: RegistrationStatus | None = None, **settings: Any) -> None:
        self.config = BrokerConfig(log_dirs=(str(directory),), processors=2, **settings)
        self.arena = Arena([str(directory)], FIRST_PROCESSOR + 2, 64, 16)
        self.now_ns = time.monotonic_ns()
        listener = Listener("default", "kafka-0.7", "127.0.0.1", 9092, "here", 9093, -1)
        monitor = MonitorSocket("127.0.0.1", 9080, -1, SECRET.encode())
        self.shared = Shared(
            self.config,
            self.arena,
            (listener,),
            (),
            (),
            64,
            monitor=monitor,
            sync_seconds=0.0037,
            version="1.2",
            started_ns=self.now_ns - 5_000_000_000,
        )
        for number in EVERYBODY:
            self.arena.clear_cell(number, 100 + number, self.now_ns)
        self.manager = LogManager(self.config, self.arena)
        self.registration = registration
        self.disks = Disks()
        source = None if registration is None else lambda: self.registration or registration
        self.health = Health(self.shared, source, self.disks, lambda: self.now_ns)
        self.metrics = Metrics(self.shared, self.health, source, lambda: self.now_ns)
        self.pages = Pages(self.health, self.metrics)

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        found = self.pages.answer(Request(method, path, headers, "test"))
        return found.status, found.body

    def add(self, topic: str, partition: int, state: int) -> None:
        spec = SlotSpec(topic, partition, 0, 0, 0, 2**20, 2**40, 10, 2**20, 10**9, [(0, 0, 0)], 0, state)
        self.arena.add(spec)


@pytest.fixture
def inside(tmp_path: Path) -> Inside:
    return Inside(tmp_path)


def test_a_stop_is_said_before_the_mirror_takes_its_time(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mirror may write for more than a second before the first process is asked to leave."""

    class EnoughError(Exception):
        pass

    def stop_mirror() -> None:
        assert (inside.health.is_stopping, inside.arena.stopping) == (True, 0)
        raise EnoughError

    supervisor = Supervisor(inside.shared)
    monkeypatch.setattr(supervisor, "_stop_mirror", stop_mirror)
    assert not inside.health.is_stopping
    with pytest.raises(EnoughError):
        supervisor._stop()
    for fd in (supervisor._signal_fd, supervisor._signal_send):
        os.close(fd)


def registered(problem: str = "", session: str = "registered", **topics: int) -> RegistrationStatus:
    return RegistrationStatus(session, problem, topics)


def test_a_broker_that_is_well(inside: Inside) -> None:
    assert inside.get("/live") == (200, "live\n")
    assert inside.get("/ready") == (200, "ready\n")


@pytest.mark.parametrize("number", EVERYBODY)
def test_a_loop_that_does_not_turn_is_named(inside: Inside, number: int) -> None:
    inside.arena.clear_cell(number, 77, inside.now_ns - int((health.SILENT_SECONDS - 0.001) * 1e9))
    assert inside.get("/live")[0] == 200
    inside.arena.clear_cell(number, 77, inside.now_ns - int(health.SILENT_SECONDS * 1e9))
    status, body = inside.get("/live")
    names = {SUPERVISOR: "supervisor", FLUSHER: "flusher", KEEPER: "keeper", ACCEPTOR: "acceptor"}
    name = (names | {COORDINATOR: "coordinator"}).get(number, f"processor-{number - FIRST_PROCESSOR}")
    assert (status, body) == (503, f"{name}: its loop has not turned for 5.0 s (pid 77)\n")
    assert inside.get("/ready") == (503, body)
    assert inside.health.report()["state"] == "not live"
    inside.arena.clear_cell(number, 0, inside.now_ns - int(health.SILENT_SECONDS * 1e9))
    ended = f"{name}: its loop has not turned for 5.0 s (ended, and not replaced yet)\n"
    assert inside.get("/live") == (503, ended)
    inside.arena.clear_cell(number, 0, 0)
    assert inside.get("/live") == (503, f"{name}: not started yet\n")


def test_without_an_acceptor_none_is_missed(tmp_path: Path) -> None:
    inside = Inside(tmp_path, accept_mode="direct")
    inside.arena.clear_cell(ACCEPTOR, 0, 0)
    assert inside.get("/live")[0] == 200
    assert "acceptor" not in [item["name"] for item in inside.health.report()["processes"]]


@pytest.mark.parametrize("begin", [lambda arena: arena.set_ending(), lambda arena: arena.set_stopping(1)])
def test_a_stop_is_said_and_is_no_lack_of_life(inside: Inside, begin: Any) -> None:
    begin(inside.arena)
    inside.arena.clear_cell(ACCEPTOR, 0, 0)
    inside.disks.lines = ["full"]
    assert inside.get("/ready") == (503, "stopping\n")
    assert inside.get("/live") == (200, "live\n")
    assert inside.health.report()["state"] == "stopping"


def test_partitions_out_of_service_are_named_up_to_a_number(inside: Inside) -> None:
    inside.add("fine", 0, 0)
    inside.add("logs", 3, STATE_OFFLINE)
    assert inside.get("/ready") == (503, "partition 'logs' 3 offline: found damaged at start\n")
    for number in range(24):
        inside.add("logs", 10 + number, STATE_OFFLINE)
    lines = inside.get("/ready")[1].splitlines()
    assert len(lines) == health.MOST_NAMED + 1 and lines[-1] == "and 5 more partitions"
    found = inside.health.report()
    assert found["state"] == "not ready"
    assert found["partitions"]["by_state"] == {"ok": 1, "read-only": 0, "offline": 25}
    assert len(found["partitions"]["first_not_ok"]) == health.MOST_NAMED
    first = {"topic": "logs", "partition": 3, "state": "offline", "reason": "found damaged at start"}
    assert found["partitions"]["first_not_ok"][0] == first


def test_a_disk_that_takes_no_write_is_named(inside: Inside) -> None:
    inside.disks.lines = ["log directory /data: No space left on device"]
    assert inside.get("/ready") == (503, "log directory /data: No space left on device\n")
    assert inside.get("/live")[0] == 200


def test_topics_that_zookeeper_does_not_show_are_named(tmp_path: Path) -> None:
    """Also one that it shows with another number of partitions."""
    inside = Inside(tmp_path, registered(), partitions_by_topic={"b": 2})
    assert inside.get("/ready")[0] == 200
    inside.manager.create_partition("a", 0)
    inside.manager.create_partition("b", 1)
    names = ["zookeeper: topic 'a' is not shown yet", "zookeeper: topic 'b' is not shown yet"]
    assert inside.get("/ready")[1].splitlines() == names
    assert inside.health.report()["zookeeper"]["topics_not_announced"] == {"count": 2, "first": ["a", "b"]}
    inside.registration = registered(a=1, b=1)
    assert inside.get("/ready")[1].splitlines() == names[1:]
    inside.registration = registered("refused", a=1)
    assert inside.get("/ready")[1].splitlines() == ["zookeeper: the last try failed: refused", *names[1:]]
    inside.registration = registered(a=1, b=2)
    assert inside.get("/ready") == (200, "ready\n")


def test_many_topics_are_counted(tmp_path: Path) -> None:
    inside = Inside(tmp_path, registered())
    for number in range(health.MOST_NAMED + 3):
        inside.add(f"topic{number}", 0, 0)
        if number + 1 == health.MOST_NAMED:
            assert "more topics" not in inside.get("/ready")[1]
    lines = inside.get("/ready")[1].splitlines()
    assert len(lines) == health.MOST_NAMED + 1 and lines[-1] == "and 3 more topics that are not shown yet"


@pytest.mark.parametrize(
    ("session", "says"),
    [
        ("none", "zookeeper: no session with ZooKeeper: it hides"),
        ("away", "zookeeper: ZooKeeper does not answer, the session may be over: it hides"),
        ("waiting", "zookeeper: another start of a broker has the id in ZooKeeper: it hides"),
        ("registering", "zookeeper: ZooKeeper does not show this broker yet: it hides"),
    ],
)
def test_a_session_that_is_not_there_is_said(tmp_path: Path, session: str, says: str) -> None:
    inside = Inside(tmp_path, registered("it hides", session))
    assert inside.get("/ready") == (503, says + "\n")
    assert inside.get("/live")[0] == 200
    assert inside.health.report()["zookeeper"]["session"] == session


def test_the_report(tmp_path: Path) -> None:
    inside = Inside(tmp_path, registered(a=1), zk_connect="zk:2181/logs", broker_id=7)
    inside.manager.create_partition("a", 0)
    appender = Appender(inside.arena, SegmentFiles(inside.arena, 8), FIRST_PROCESSOR)
    assert append_bytes(appender, 0, message(14), 1)[0] == 0
    inside.now_ns = time.monotonic_ns()
    answer = inside.pages.answer(Request("GET", "/health", {}, "test"))
    assert (answer.status, answer.content_type) == (200, JSON)
    assert SECRET not in answer.body and SECRET not in repr(inside.shared)
    found = json.loads(answer.body)
    assert (found["state"], found["version"], found["broker_id"], found["problems"]) == ("ready", "1.2", 7, [])
    assert 5.0 <= found["uptime_seconds"] < 500.0
    assert found["addresses"][0]["advertised_port"] == 9093
    assert found["addresses"][1] == {"name": "monitor", "protocol": "http", "host": "127.0.0.1", "port": 9080}
    assert [(item["name"], item["pid"]) for item in found["processes"]] == [
        ("supervisor", 100 + SUPERVISOR),
        ("flusher", 100),
        ("keeper", 101),
        ("coordinator", 103),
        ("acceptor", 102),
        ("processor-0", 100 + FIRST_PROCESSOR),
        ("processor-1", 101 + FIRST_PROCESSOR),
    ]
    assert [item.get("connections") for item in found["processes"]] == [None] * 5 + [0, 0]
    size = len(message(14))
    assert found["flush"]["unflushed_bytes"] == found["flush"]["largest_unflushed_bytes"] == size
    assert found["flush"]["largest_unflushed"] == {"topic": "a", "partition": 0}
    assert 0 <= found["flush"]["oldest_unflushed_seconds"] < 500.0
    assert found["durability"] == durability(inside.config, 0.0037)
    assert found["zookeeper"]["connect"] == "zk:2181/logs" and found["zookeeper"]["topics_announced"] == 1


def test_the_partition_that_waits_for_most_is_named(inside: Inside) -> None:
    """None where nothing waits; of equal ones the first."""

    def largest() -> dict[str, Any] | None:
        flush = json.loads(inside.pages.answer(Request("GET", "/health", {}, "test")).body)["flush"]
        return cast("dict[str, Any] | None", flush["largest_unflushed"])

    for name in "abc":
        inside.manager.create_partition(name, 0)
    assert largest() is None
    appender = Appender(inside.arena, SegmentFiles(inside.arena, 8), FIRST_PROCESSOR)
    for slot, named in ((1, "b"), (2, "b"), (2, "c"), (1, "b"), (0, "b")):
        assert append_bytes(appender, slot, message(14), 1)[0] == 0
        assert largest() == {"topic": named, "partition": 0}


def test_the_age_of_what_waits_is_that_of_the_oldest_and_what_is_flushed_waits_no_more(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it may not be visible yet."""
    rows = [(90, 90, 80, 10), (100, 40, 30, 5), (100, 60, 50, 2), (7, 7, 7, 20)]
    views = [
        SimpleNamespace(
            topic="a", partition=number, log_end=end, flushed_end=flushed, visible_end=visible, state=0,
            unflushed_since_ns=inside.now_ns - seconds * 1_000_000_000,
        )
        for number, (end, flushed, visible, seconds) in enumerate(rows)
    ]  # fmt: skip

    class Shown:
        def views(self) -> list[SimpleNamespace]:
            return views

        def __getattr__(self, name: str) -> Any:
            return getattr(inside.arena, name)

    monkeypatch.setattr(inside.health, "_arena", Shown())
    flush = inside.health.report()["flush"]
    assert (flush["unflushed_bytes"], flush["largest_unflushed_bytes"], flush["oldest_unflushed_seconds"]) == (
        100,
        60,
        5,
    )


def test_how_long_a_flush_takes_is_told_in_microseconds(inside: Inside) -> None:
    """On the average since the start; nothing before the first one."""

    def mean() -> float | None:
        flush = json.loads(inside.pages.answer(Request("GET", "/health", {}, "test")).body)["flush"]
        return cast("float | None", flush["mean_flush_ms"])

    assert mean() is None
    inside.arena.count(FLUSHER, "flushes", 3)
    inside.arena.count(FLUSHER, "flush_ns", 10_001_000)
    assert mean() == 3.334


def test_the_durability_line_is_that_of_the_configuration() -> None:
    config = BrokerConfig(
        flush_interval_messages=123,
        flush_interval_ms=45,
        flush_bytes=678,
        flush_min_interval_ms=9,
        flush_interval_messages_by_topic={"orders": 1},
        flush_interval_ms_by_topic={"clicks": 5000},
    )
    assert flush_policy(config) == "every 123 messages or 45 ms or 678 bytes, on demand after 9 ms"
    line = durability(config, 0.0037)
    assert line.startswith("acked = page cache, unless the producer asks for flushed; flushed every 123 messages")
    assert line.endswith("; measured fdatasync 3.70 ms")
    assert promise(config) in line
    assert "(but 'clicks' 123 messages, 10000 ms; 'orders' 1 messages, 90 ms)" in promise(config)
    assert durability(config, None).endswith("; fdatasync not measured")
    many = dataclasses.replace(config, flush_interval_messages_by_topic={f"t{number}": 1 for number in range(30)})
    assert "and 21 more topics)" in promise(many)


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/live", "HEAD", 200),
        ("/live", "POST", 405),
        ("/health", "DELETE", 405),
        ("/live", "get", 405),
        ("/", "GET", 404),
        ("/live/", "GET", 404),
        ("/metrics", "GET", 200),
        ("/nowhere", "POST", 404),
    ],
)
def test_pages_and_methods(inside: Inside, path: str, method: str, status: int) -> None:
    assert inside.get(path, method)[0] == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9080", 200),
        ("localhost", 200),
        ("LocalHost:1", 200),
        ("[::1]:9080", 200),
        ("", 200),
        ("evil.example:9080", 403),
        ("10.0.0.1", 403),
        ("localhost.evil.example", 403),
    ],
)
def test_without_a_token_only_names_of_this_machine_are_answered(inside: Inside, host: str, status: int) -> None:
    """A page in a browser that has its name lead here would otherwise read everything."""
    assert inside.get("/live", host=host)[0] == status


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (f"Bearer {SECRET}", 200),
        (f"bearer   {SECRET} ", 200),
        (f"Bearer {SECRET}x", 401),
        (f"Bearer {SECRET[:-1]}", 401),
        ("Bearer ", 401),
        ("", 401),
        (SECRET, 401),
        (f"Basic {SECRET}", 401),
        ("Bearer \xe9", 401),
    ],
)
def test_with_a_token_nothing_is_answered_without_it(inside: Inside, header: str, status: int) -> None:
    pages = Pages(inside.health, inside.metrics, SECRET.encode())
    for path in ("/live", "/ready", "/health", "/metrics"):
        found = pages.answer(Request("GET", path, {"authorization": header, "host": "elsewhere"}, "test"))
        assert found.status == status
        assert SECRET.encode() not in encode_answer(found)
    # who does not show it does not learn either what there is
    for path, method in (("/nowhere", "GET"), ("/live", "POST")):
        found = pages.answer(Request(method, path, {"authorization": header}, "test"))
        assert (found.status == 401) == (status == 401)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"monitor.address": "9080"}, "no HOST:PORT"),
        ({"monitor.address": ":9080"}, "no HOST:PORT"),
        ({"monitor.address": "here:65536"}, "no HOST:PORT"),
        ({"monitor.address": "::1:9080"}, "in brackets"),
        ({"monitor.address": "0.0.0.0:9080"}, "without a token"),
        ({"monitor.address": "[::]:9080"}, "without a token"),
        ({"monitor.address": "here:9080"}, "without a token"),
        ({"monitor.token.file": "x"}, "no monitor.address"),
    ],
)
def test_settings_that_cannot_be(given: Mapping[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_config(dict(given), False, (), None, ())


@pytest.mark.parametrize("text", ["127.0.0.1:0", "localhost:9080", "[::1]:9080", "127.9.9.9:65535"])
def test_settings_that_can_be(text: str) -> None:
    config = make_config({"monitor.address": text}, False, (), None, ())
    assert str(config.monitor) == text


def test_others_than_this_machine_with_a_token() -> None:
    flags: dict[str, str | None] = {"monitor.address": "0.0.0.0:9080", "monitor.token.file": "/secret"}
    assert make_config(flags, False, (), None, ()).monitor == ("0.0.0.0", 9080)


def test_the_probe_of_a_disk_leaves_nothing_and_says_what_the_disk_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = DiskProbe([str(tmp_path), str(tmp_path / "gone")])
    monkeypatch.setattr(disk_probe, "WAIT_SECONDS", 60.0)
    assert probe.problems() == [f"log directory {tmp_path / 'gone'}: No such file or directory"]
    assert list(tmp_path.iterdir()) == []


def test_where_every_file_has_a_name_the_file_system_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on NFS: a file of ours would stay there after a crash."""
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)  # writing to a directory: EISDIR, as without O_TMPFILE
    disk_probe.write_unnamed(str(tmp_path))
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((1, 1, 1, 1, 0, 1, 1, 1, 0, 255)))
    with pytest.raises(OSError, match="No space left"):
        disk_probe.write_unnamed(str(tmp_path))
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((1, 1, 1, 1, 1, 1, 1, 1, os.ST_RDONLY, 255)))
    with pytest.raises(OSError, match="Read-only"):
        disk_probe.write_unnamed(str(tmp_path))


def test_whoever_sees_a_try_end_does_not_begin_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked between any two lines of it: one try is enough for as long as it is fresh."""
    tries: list[str] = []
    monkeypatch.setattr(disk_probe, "write_unnamed", tries.append)
    probe = DiskProbe([str(tmp_path)])

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename != disk_probe.__file__ or frame.f_code.co_name != "_try":
            return None

        def each(frame: FrameType, event: str, argument: object) -> Any:
            probe.problems()
            return each

        return each

    threading.settrace(trace)
    try:
        assert probe.problems() == []
    finally:
        threading.settrace(None)
    wait_until("it has ended", lambda: all(thread.name != "fastlog-disk-probe" for thread in threading.enumerate()))
    assert tries == [str(tmp_path)]


def test_disks_that_hang_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    class Hangs(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waits.append(timeout)
            return False

    nobody: Any = SimpleNamespace(Event=Hangs, Thread=lambda **_: SimpleNamespace(start=lambda: None))
    monkeypatch.setattr(disk_probe, "threading", nobody)
    patch_time(monkeypatch, disk_probe, monotonic=lambda: 1000.0 + sum(waits))
    assert DiskProbe(["/a", "/b", "/c"]).problems() == []
    assert waits == pytest.approx([disk_probe.WAIT_SECONDS, 0.0, 0.0])


def test_a_disk_that_hangs_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said of it at first; later it is named, until the write comes back."""
    goes_on = threading.Event()
    monkeypatch.setattr(disk_probe, "write_unnamed", lambda path: goes_on.wait() and None)
    monkeypatch.setattr(disk_probe, "WAIT_SECONDS", 0.01)
    probe = DiskProbe([str(tmp_path)])
    assert probe.problems() == []
    monkeypatch.setattr(disk_probe, "SLOW_SECONDS", 0.0)
    assert "a write has not come back" in probe.problems()[0]
    assert sum(thread.name == "fastlog-disk-probe" for thread in threading.enumerate()) == 1
    goes_on.set()
    for item in probe._directories:
        assert item.done.wait(30.0)
    assert probe.problems() == []
