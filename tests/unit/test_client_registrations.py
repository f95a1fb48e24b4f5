"""What clients read of brokers in ZooKeeper, how partitions of a plain broker are counted, and memory for answers."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from fastlog.client import buffers as buffers_module
from fastlog.client.addresses import Address, parse_brokers
from fastlog.client.buffers import Buffers
from fastlog.client.counting import count_partitions
from fastlog.client.registrations import (
    MOST_PARTITIONS,
    address_hint,
    none_registered,
    read_addresses,
    read_partitions,
    registered_brokers,
)
from fastlog.coordination import zookeeper
from fastlog.errors import ConfigError, CoordinationError, TransportError, UnsupportedFeatureError
from fastlog.zkpaths import BrokerRegistration, broker_path, encode_number, topic_broker_path
from tests.harness.fake_session import FakeSession, FakeZooKeeper
from tests.harness.timing import PATIENCE, sooner_than


class Garbage:
    """Notes what made no sense."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def __call__(self, path: str, so: str, error: CoordinationError) -> None:
        self.told.append((path, so))


def shown(tree: FakeZooKeeper, broker: int, host: str, port: int) -> None:
    tree.write(broker_path(broker), BrokerRegistration(f"c-{broker}", host, port).encode())


def test_addresses_of_the_brokers_that_live() -> None:
    """One that makes no sense counts as gone, and is told of; one that goes while it is read is just gone."""
    tree, garbage = FakeZooKeeper(), Garbage()
    session = tree.open()
    assert read_addresses(session, garbage) == {}
    shown(tree, 2, "two", 22)
    shown(tree, 1, "one", 11)
    tree.write("/brokers/ids/3", b"\xff")
    tree.write("/brokers/ids/x", b"")
    shown(tree, 4, "four", 44)
    tree.before_call = lambda session, name, path: tree.remove(path) if path.endswith("/4") else None
    assert read_addresses(session, garbage) == {1: Address("one", 11), 2: Address("two", 22)}
    assert garbage.told == [
        ("/brokers/ids/x", "the node is left out"),
        ("/brokers/ids/3", "the broker counts as gone"),
    ]


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (encode_number(0), 0),
        (encode_number(3), 3),
        (encode_number(MOST_PARTITIONS), MOST_PARTITIONS),
        (encode_number(MOST_PARTITIONS + 1), None),
        (b"-1", None),
        (b"three", None),
        (b"", None),
    ],
)
def test_partitions_that_brokers_announce(data: bytes, count: int | None) -> None:
    tree, garbage = FakeZooKeeper(), Garbage()
    tree.write(topic_broker_path("t", 5), data)
    tree.write(topic_broker_path("t", 6), encode_number(2))
    found = read_partitions(tree.open(), "t", garbage)
    assert found == ({5: count, 6: 2} if count is not None else {6: 2})
    told = [(topic_broker_path("t", 5), "the broker counts as without the topic")]
    assert garbage.told == ([] if count is not None else told)
    assert read_partitions(tree.open(), "other", garbage) == {}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> FakeZooKeeper:
    """The ZooKeeper that whoever looks there finds."""
    tree = FakeZooKeeper()

    def session(connect: str, **options: Any) -> FakeSession:
        assert connect == "z:1"
        assert not options["makes_root"]
        return tree.open(options["on_change"])

    monkeypatch.setattr(zookeeper, "ZooKeeperSession", session)
    return tree


def test_the_first_broker_is_waited_for_without_asking_again_and_again(opened: FakeZooKeeper) -> None:
    """Each change is one look; the session ends."""
    timer = threading.Timer(0.1, lambda: shown(opened, 7, "seven", 77))
    timer.start()
    with sooner_than(PATIENCE):
        assert registered_brokers("z:1", 2 * PATIENCE) == {7: Address("seven", 77)}
    assert len(opened.calls) < 12
    assert opened.sessions == {}


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_no_broker_is_said_when_the_time_is_over(opened: FakeZooKeeper, seconds: float) -> None:
    with sooner_than(PATIENCE), pytest.raises(TransportError, match="no broker is registered in ZooKeeper z:1"):
        registered_brokers("z:1", seconds)
    assert len(opened.calls) < 8
    assert opened.sessions == {}
    shown(opened, 1, "one", 1)
    assert registered_brokers("z:1", seconds) == {1: Address("one", 1)}


def test_what_is_said_names_the_place() -> None:
    assert "/brokers/ids is empty there" in str(none_registered("z:1/path"))
    assert "z:1/path" in str(none_registered("z:1/path"))
    assert "address that broker 5 has in ZooKeeper z:1 (/brokers/ids/5)" in address_hint("z:1", 5)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 100, 65_536, 100_000])
def test_partitions_of_a_plain_broker_are_counted_with_few_questions(count: int) -> None:
    asked: list[int] = []

    def exists(number: int) -> bool:
        asked.append(number)
        return number < count

    assert count_partitions(exists) == count
    assert len(asked) <= 40
    assert len(set(asked)) == len(asked)


def test_a_broker_without_an_end_is_none_to_count() -> None:
    with pytest.raises(UnsupportedFeatureError):
        count_partitions(lambda number: True)
    assert count_partitions(lambda number: False) == 0


@pytest.mark.parametrize(("size", "taken"), [(249, False), (250, True), (1000, True), (1001, False)])
def test_memory_is_taken_again_for_a_quarter_of_its_size_and_more(size: int, taken: bool) -> None:
    buffers = Buffers()
    first = buffers.take(1000)
    assert (buffers.take(size) is first) == taken


@pytest.mark.parametrize(("more", "kept"), [(-1, 3), (0, 3), (1, 2)])
def test_as_much_memory_is_kept_as_may_be(more: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go first; two stay, whatever they hold; what is larger than all is not kept."""
    monkeypatch.setattr(buffers_module, "_MOST_KEPT_BYTES", 3000 - more)
    buffers = Buffers()
    held = [memoryview(buffers.take(1000)) for _ in range(3)]
    first = held[0].obj
    for view in held:
        view.release()
    again = [memoryview(buffers.take(1000)) for _ in range(3)]
    assert sum(view.obj is first for view in again) == (kept == 3)
    huge = buffers.take(3001 - more)
    assert buffers.take(3001 - more) is not huge


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("h", [("h", 9092)]),
        ("h:1, i:65535,", [("h", 1), ("i", 65535)]),
        ("[::1]", [("::1", 9092)]),
        ("[::1]:80", [("::1", 80)]),
    ],
)
def test_addresses(text: str, found: list[tuple[str, int]]) -> None:
    assert parse_brokers(text) == [Address(*each) for each in found]


@pytest.mark.parametrize("text", ["", ",", "h:0", "h:65536", "h:", ":1", "::1", "h:1x", "h:-1", "h:٣", "h:1000000"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_brokers(text)


def test_a_frame_that_came_as_the_scratch_was_full_is_cut_where_it_ends() -> None:
    """Frames that fill the scratch buffer to the byte, and one byte less and more."""
    from fastlog.client._inbox import Inbox
    from fastlog.wire.fields import frame

    for size in range(65_536 - 12, 65_536 + 3):
        near, far = socket.socketpair()
        with near, far:
            near.setblocking(False)
            far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            inbox = Inbox(10**6)
            body = bytes([size % 251]) * (size - 4)
            stream = frame(b"ab") + frame(body) + frame(b"cd")
            far.sendall(stream)
            found = []
            while len(found) < 3:
                taken = inbox.take(near.fileno(), 1000)
                assert taken is not None
                found.append(bytes(taken))
            assert found == [b"ab", body, b"cd"]
            assert (inbox.held_bytes, inbox.is_quiet(near.fileno())) == (0, True)
