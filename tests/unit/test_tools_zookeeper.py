"""Commands with a ZooKeeper that is not there: the reason is said at once, and of nothing that never was."""

from __future__ import annotations

import socket
import threading

import pytest

from fastlog.coordination import addresses
from fastlog.coordination.zookeeper import ZooKeeperSession
from fastlog.errors import CoordinationError
from fastlog.tools import group_reading
from tests.harness.command_line import Commands
from tests.harness.timing import PATIENCE, sooner_than

UNKNOWN = "no.such.host.invalid:2181,neither.invalid:2181/logs"


@pytest.mark.parametrize(
    "arguments",
    [
        ("consume", "--topic", "t"),
        ("produce", "--topic", "t", "/dev/null"),
        ("lag", "--group", "g"),
        ("tail", "t"),
        ("zookeeper", "ls", "/"),
    ],
)
def test_a_name_that_nobody_knows(arguments: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    """Waiting does not make it known."""
    with sooner_than(60.0):
        ran = Commands(capfd)(*arguments, "--zookeeper", UNKNOWN, "--connect-timeout", "60s")
    what = ran.refused()[0]
    assert ran.code == 3
    assert "cannot resolve no.such.host.invalid: " in what and "cannot resolve neither.invalid: " in what


def test_one_name_that_is_known_is_enough() -> None:
    with pytest.raises(CoordinationError, match="no ZooKeeper answers"):
        ZooKeeperSession("no.such.host.invalid:1,127.0.0.1:1", connection_timeout=0.1)


def test_what_takes_too_long_counts_as_known() -> None:
    """The system's resolver has no time limit; the connection says later what is wrong."""
    found = addresses.unknown_hosts(addresses.parse_connect("no.such.host.invalid:1,[::1]:1"), PATIENCE)
    assert list(found) == ["no.such.host.invalid"]
    assert addresses.unknown_hosts(addresses.parse_connect("127.0.0.1:1"), 0.0) == {}


def test_a_name_server_that_does_not_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the machine starts, the network may come up a moment later: that is no mistake in the name."""
    answers = [socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")]

    def look_up(*_: object, **__: object) -> None:
        if answers:
            raise answers.pop()

    monkeypatch.setattr(addresses.socket, "getaddrinfo", look_up)
    monkeypatch.setattr(addresses, "_AGAIN_SECONDS", 0.0)
    assert addresses.unknown_hosts(addresses.parse_connect("zk:1"), PATIENCE) == {}


def test_who_ends_does_not_wait_for_the_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = threading.Event()
    monkeypatch.setattr(addresses.socket, "getaddrinfo", lambda *_, **__: looked_up.wait())
    with sooner_than(PATIENCE):
        assert addresses.unknown_hosts(addresses.parse_connect("zk:1"), 2 * PATIENCE, lambda: False) == {}
    looked_up.set()


def test_nothing_is_removed_that_never_was(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of its own that could not be made is not looked for, which would take the time once more."""
    removed: list[str] = []
    monkeypatch.setattr(group_reading, "remove_group", lambda _, group: removed.append(group))
    ran = Commands(capfd)("consume", "--zookeeper", "127.0.0.1:1", "--topic", "t", "--connect-timeout", "100ms")
    assert ran.code == 3 and "no ZooKeeper answers at 127.0.0.1:1 within 0.1 s" in ran.refused()[0]
    assert removed == [] and "is left in ZooKeeper" not in ran.err
