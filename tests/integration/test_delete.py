"""Deleting topics: what is answered is gone with its name free, and what is not is whole or gone, whoever is killed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.harness import raw_client as raw
from tests.harness.broker import Broker, wait_until

ONE, TWO = raw.entry(b"one"), raw.entry(b"two two")
WRONG_PARTITION = 3
NOT_AUTHORIZED = 106


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path, settings={"num.partitions": "4"}) as made:
        yield made


@pytest.fixture
def client(broker: Broker) -> Iterator[raw.RawClient]:
    with broker.connect() as made:
        yield made


def left(broker: Broker) -> list[str]:
    """What stands in the log directories beside what the broker always has there."""
    names = {item.name for directory in broker.log_dirs for item in directory.iterdir()}
    return sorted(name for name in names if not name.startswith((".lock", ".fastlog-flushing", ".fastlog-creators")))


def open_files(broker: Broker, name: str) -> list[str]:
    """The descriptors of any process of the broker on files that have this in their path."""
    found = []
    for process in broker.children():
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
            for link in Path(f"/proc/{process.pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if name in str(link.readlink()):
                        found.append(str(link.readlink()))
    return found


def test_a_deleted_topic_is_gone_and_its_name_is_free(broker: Broker, client: raw.RawClient) -> None:
    assert client.create_topic("t") == (0, 4)
    assert client.produce_ack("t", 1, ONE, raw.FLUSHED).error == 0
    assert client.delete_topic("t") == (0, 4)
    assert "t" not in client.metadata().topics
    assert client.fetch("t", 1, 0) == (0, b"")
    assert client.produce_ack("t", 1, TWO, raw.FLUSHED) == (0, 1, 0, len(TWO))
    assert client.fetch_ok("t", 1, 0) == TWO
    wait_until("the files have gone", lambda: left(broker) == ["t-1"])
    wait_until("nobody has a file of it open", lambda: not open_files(broker, "-delete"))


def test_what_is_not_there_is_not_deleted(client: raw.RawClient) -> None:
    assert client.delete_topic("never") == (WRONG_PARTITION, -1)
    assert client.delete_topic("") == client.delete_topic(b"\xff") == (100, -1)


def test_the_others_stay(broker: Broker, client: raw.RawClient) -> None:
    for topic in ("a", "a-1", "b"):
        for partition in range(4):
            assert (
                client.produce_ack(topic, partition, raw.entry(f"{topic} {partition}".encode()), raw.FLUSHED).error == 0
            )
    assert client.delete_topic("a") == (0, 4)
    assert sorted(client.metadata().topics) == ["a-1", "b"]
    for topic in ("a-1", "b"):
        for partition in range(4):
            assert client.fetch_ok(topic, partition, 0) == raw.entry(f"{topic} {partition}".encode())
    broker.restart()
    with broker.connect() as again:
        assert sorted(again.metadata().topics) == ["a-1", "b"]


def test_a_setting_forbids_it(tmp_path: Path) -> None:
    with Broker(tmp_path, settings={"delete.topic.enable": "false"}) as broker, broker.connect() as client:
        assert client.create_topic("t") == (0, 1)
        assert client.delete_topic("t") == (NOT_AUTHORIZED, -1)
        assert "t" in client.metadata().topics


def test_a_reader_that_waits_is_told(broker: Broker, client: raw.RawClient) -> None:
    """A long poll at the end of a partition waits for the topic of that name, whichever it is."""
    assert client.produce_ack("t", 0, ONE, raw.FLUSHED).error == 0
    with broker.connect() as reader:
        reader.send_raw(raw.own_frame(raw.HELD_FETCH, raw.held_fetch_body("t", 0, len(ONE), 1 << 20, 30_000, 1)))
        time.sleep(0.05)
        assert client.delete_topic("t")[0] == 0
        assert client.produce_ack("t", 0, TWO, raw.FLUSHED).error == 0
        # offset 12 of the new one: beyond its end while it is empty, then in the middle of its message
        assert reader.recv_own()[1].error in (1, 2)


def test_slots_are_used_again(tmp_path: Path) -> None:
    """With room for three partitions, and none left for a fourth, topics come and go for ever."""
    with Broker(tmp_path, settings={"max.partitions": "3"}) as broker, broker.connect() as client:
        for name in ("a", "b"):
            assert client.produce_ack(name, 0, raw.entry(name.encode()), raw.FLUSHED).error == 0
        for turn in range(30):
            message = raw.entry(b"turn %d" % turn)
            assert client.produce_ack(f"t{turn}", 0, message, raw.FLUSHED) == (0, 0, 0, len(message))
            assert client.fetch_ok(f"t{turn}", 0, 0) == message
            assert client.produce_ack("one too many", 0, ONE).error == 103
            assert client.delete_topic(f"t{turn}") == (0, 1)
        assert client.fetch_ok("a", 0, 0) == raw.entry(b"a")
