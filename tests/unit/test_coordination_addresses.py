"""What ``zk.connect`` says, and names that no name server knows, with the system's resolver and clock played."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from fastlog.coordination import addresses
from fastlog.coordination.addresses import ConnectString, parse_connect, unknown_hosts
from fastlog.coordination.session import session_name
from fastlog.errors import ConfigError
from tests.harness.timing import PATIENCE, sooner_than


@pytest.mark.parametrize(
    ("text", "servers", "path"),
    [
        ("h", [("h", 2181)], ""),
        ("h:1", [("h", 1)], ""),
        ("h:65535", [("h", 65535)], ""),
        (" a:1 , b ,c:3/x/y/ ", [("a", 1), ("b", 2181), ("c", 3)], "/x/y"),
        ("h/", [("h", 2181)], ""),
        ("[::1]:7/x", [("[::1]", 7)], "/x"),
        ("h/a.b/..c/.d", [("h", 2181)], "/a.b/..c/.d"),
    ],
)
def test_servers_and_a_path(text: str, servers: list[tuple[str, int]], path: str) -> None:
    found = parse_connect(text)
    assert found == (tuple(servers), path)
    assert found.hosts == ",".join(f"{host}:{port}" for host, port in servers)
    assert str(found) == found.hosts + path
    assert parse_connect(str(found)) == found


@pytest.mark.parametrize(
    "text",
    ["", ":1", "h:0", "h:65536", "h:", "h:x", "h:-1", "a,,b", "h:1,", "/x", "h:1.5", "h:٣", "h:000001", "h:0655350"],
)
def test_a_part_that_is_no_server_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"zk.connect: '.*' in '.*' is not host:port"):
        parse_connect(text)


@pytest.mark.parametrize("path", ["//x", "/x//y", "/.", "/..", "/x/.", "/../x", "/x/..//"])
def test_a_part_that_is_no_path_is_named(path: str) -> None:
    with pytest.raises(ConfigError, match="is no path of ZooKeeper"):
        parse_connect(f"h:1{path}")


def test_sessions_are_named_as_zookeeper_names_them() -> None:
    assert [session_name(number) for number in (0, 255, -1, -(2**63))] == [
        "0x0",
        "0xff",
        "0xffffffffffffffff",
        "0x8000000000000000",
    ]


# -- names that nobody knows -----------------------------------------------------------------------------------------


class Resolver:
    """Answers what the test says, and counts; time passes only when somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, list[Exception | None]] = {}
        self.asked: list[tuple[str, int]] = []
        self.now = 0.0
        self.sleeps: list[float] = []
        self.release = threading.Event()
        self.lock = threading.Lock()
        monkeypatch.setattr(addresses.socket, "getaddrinfo", self.look_up)
        monkeypatch.setattr(addresses, "time", self)

    def look_up(self, host: str, port: int, **options: Any) -> object:
        with self.lock:
            self.asked.append((host, port))
            answers = self.answers.get(host, [None])
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, TimeoutError):
            self.release.wait(PATIENCE)
            return ()
        if answer is not None:
            raise answer
        return ()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        with self.lock:
            self.sleeps.append(seconds)
            self.now += seconds


AGAIN = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
UNKNOWN = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    return Resolver(monkeypatch)


def servers(*hosts: str) -> ConnectString:
    return parse_connect(",".join(f"{host}:5" for host in hosts))


def test_each_name_is_asked_for_once_and_the_unknown_are_told(resolver: Resolver) -> None:
    resolver.answers = {"b": [UNKNOWN], "c": [UnicodeError("label too long")], "::1": [None]}
    found = unknown_hosts(servers("a", "b", "c", "[::1]"), 60)
    assert found == {"b": "Name or service not known", "c": "not a possible host name"}
    assert sorted(resolver.asked) == [("::1", 5), ("a", 5), ("b", 5), ("c", 5)]
    assert resolver.sleeps == []


@pytest.mark.parametrize(("seconds", "tries"), [(0.1, 1), (0.2, 1), (0.21, 2), (1.0, 5), (5.0, 25), (600.0, 25)])
def test_a_name_server_without_an_answer_is_asked_for_a_while(resolver: Resolver, seconds: float, tries: int) -> None:
    """Every 0.2 s, for as long as there is time, and for five seconds at most."""
    resolver.answers = {"a": [AGAIN]}
    assert unknown_hosts(servers("a"), seconds) == {"a": AGAIN.strerror}
    assert len(resolver.asked) == tries
    assert all(pause == 0.2 for pause in resolver.sleeps)
    assert len(resolver.sleeps) == len(resolver.asked) - 1


def test_a_name_server_that_comes_up_is_believed(resolver: Resolver) -> None:
    resolver.answers = {"a": [AGAIN, AGAIN, None], "b": [AGAIN, UNKNOWN]}
    assert unknown_hosts(servers("a", "b"), 600) == {"b": "Name or service not known"}
    assert len(resolver.asked) == 5


def test_who_is_not_wanted_any_more_waits_for_nobody(resolver: Resolver) -> None:
    """Neither for a resolver that hangs nor for one that is asked again; nothing counts as unknown then."""
    resolver.answers = {"a": [TimeoutError()], "b": [UNKNOWN]}
    with sooner_than(PATIENCE):
        assert unknown_hosts(servers("a", "b"), 600, lambda: False) == {}
    resolver.release.set()
    resolver.answers = {"a": [AGAIN]}
    resolver.asked.clear()
    wanted = iter([True, False, False])
    unknown_hosts(servers("a"), 600, lambda: next(wanted, False))
    assert len(resolver.asked) <= 2


def test_what_hangs_is_waited_for_until_the_time_is_over(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    """In short looks, so that who is not wanted is noticed; what is not known then counts as known."""
    looks: list[float] = []
    resolver.answers = {"a": [TimeoutError()]}

    class Thread(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            assert timeout is not None
            looks.append(timeout)
            resolver.now += timeout

    monkeypatch.setattr(addresses.threading, "Thread", Thread)
    assert unknown_hosts(servers("a"), 0.25) == {}
    resolver.release.set()
    assert looks == [0.1, 0.1, pytest.approx(0.05)]
