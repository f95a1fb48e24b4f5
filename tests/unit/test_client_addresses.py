"""One broker, said as a host and a port or as both in one text."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from fastlog.client import addresses
from fastlog.client.addresses import Address, one_broker, resolve
from fastlog.errors import ArgumentError, ConfigError


@pytest.mark.parametrize(
    ("host", "port", "found"),
    [
        ("h", None, ("h", 9092)),
        ("h", 1, ("h", 1)),
        ("h", 65535, ("h", 65535)),
        ("h:1", None, ("h", 1)),
        ("h:1", 1, ("h", 1)),
        ("h:65535", 65535, ("h", 65535)),
        ("::1", None, ("::1", 9092)),
        ("::1", 7, ("::1", 7)),
        ("[::1]", None, ("::1", 9092)),
        ("[::1]", 7, ("::1", 7)),
        ("[::1]:7", None, ("::1", 7)),
        ("[::1]:7", 7, ("::1", 7)),
    ],
)
def test_one_broker(host: str, port: int | None, found: tuple[str, int]) -> None:
    """An IPv6 address may stand without brackets, and its last number is then no port."""
    assert one_broker(host, port) == Address(*found)


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [
        ("h:1", 2, "'h:1' contradicts port 2"),
        ("h:9092", 9093, "contradicts port 9093"),
        ("[::1]:7", 8, "contradicts port 8"),
        ("h,i", None, "names 2 brokers"),
        ("h:1,i:1,j:1", 1, "names 3 brokers"),
        ("", None, "no broker is named"),
        ("", 9092, "no broker is named"),
        ("h", 0, "port: 0 is not from 1 to 65535"),
        ("h", 65536, "port: 65536 is not"),
        ("h:0", None, "h:0"),
        ("h:65536", None, "65536"),
        ("h:0655350", None, "'h:0655350' is no address"),
        ("h:000001", None, "'h:000001' is no address"),
        (f"h:{'1' * 5000}", None, "is no address"),
        ("h:1٣", None, "is no address"),
        ("h:-1", None, "is no address"),
        (":1", None, "is no address"),
        ("::1:1,h", None, "put the IPv6 address in brackets"),
    ],
)
def test_what_is_not_one_broker(host: str, port: int | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        one_broker(host, port)


@pytest.mark.parametrize(("host", "port"), [("h", "1"), ("h", True), ("h", 1.0), (None, 1)])
def test_what_is_no_host_or_port(host: object, port: object) -> None:
    with pytest.raises(ArgumentError):
        one_broker(host, port)  # type: ignore[arg-type]


def test_a_number_is_looked_up_at_once() -> None:
    """In no thread, and without a time limit: there is nobody to ask."""
    threads = threading.active_count()
    assert resolve(Address("127.0.0.1", 7), 0.0)[0][3] == ("127.0.0.1", 7)
    assert resolve(Address("::1", 7), 0.0)[0][3][:2] == ("::1", 7)
    assert threading.active_count() == threads


@pytest.fixture
def answer() -> Iterator[threading.Event]:
    """Set when a resolver that hangs is to answer; it is gone at the end."""
    go = threading.Event()
    before = set(threading.enumerate())
    yield go
    go.set()
    for thread in set(threading.enumerate()) - before:
        thread.join()


def test_a_lookup_that_hangs_is_given_up(answer: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """The resolver cannot be interrupted: it is left alone with its answer."""
    look_up = socket.getaddrinfo

    def hangs(host: str, *given: object, flags: int = 0, **named: object) -> object:
        if not flags:
            answer.wait()
        return look_up(host if flags else "127.0.0.1", *given, flags=flags, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    monkeypatch.setattr(addresses, "_LOOK_SECONDS", 0.01)
    with pytest.raises(TimeoutError) as told:
        resolve(Address("broker.invalid", 7), 0.02)
    assert told.value.strerror == "its name was not looked up within 0.02 s"
    answer.set()
    assert [found[3] for found in resolve(Address("broker.invalid", 7), 30.0)] == [("127.0.0.1", 7)]


def test_what_the_resolver_says_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **named: object) -> object:
        raise socket.gaierror(socket.EAI_AGAIN, f"flags {named['flags']}")

    monkeypatch.setattr(socket, "getaddrinfo", fails)
    with pytest.raises(socket.gaierror, match="flags 0"):
        resolve(Address("broker", 7), 30.0)


@pytest.mark.parametrize("host", ["a" * 64, ".."])
def test_what_is_no_host_name(host: str) -> None:
    """Python says so with an error of its own, before anybody is asked."""
    with pytest.raises(OSError, match="not a possible host name"):
        resolve(Address(host, 7), 30.0)
