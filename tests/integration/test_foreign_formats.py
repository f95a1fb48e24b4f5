"""Clients of Kafka 0.7 beside a topic of record batches: they may write to it, and are told that they cannot read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fastlog import record_batches
from fastlog.config import BrokerConfig
from fastlog.log._append import append_sets
from fastlog.log._arena import Arena
from fastlog.log._shared_memory import FIRST_PROCESSOR
from fastlog.log.formats.record_batches import RECORD_BATCHES
from fastlog.log.manager import LogManager
from tests.harness import raw_client as raw
from tests.harness.broker import Broker
from tests.harness.shared_log import DONE, SharedLog
from tests.harness.stored_batches import batch

WRONG_PARTITION = 3
ENTRY = raw.entry(b"a message")
STORED = batch(b"a record")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Topic ``new`` is one of record batches, with one record in its only partition; any other is of 0.7's messages."""
    directory = tmp_path / "data"
    directory.mkdir()
    arena = Arena([str(directory)], FIRST_PROCESSOR + 1, 4, 16)
    manager = LogManager(BrokerConfig.from_properties({"log.dir": str(directory)}), arena)
    manager.load([{}])
    slot = manager.create_partition("new", 0, format_name=RECORD_BATCHES, topic_id=bytes(range(16)))
    log = SharedLog.over(arena)
    assert append_sets(log.appender, slot, [(STORED, 1, 1, 1)])[0] == DONE
    with Broker(tmp_path, settings={"num.partitions": "2"}) as made:
        yield made


@pytest.fixture
def client(broker: Broker) -> Iterator[raw.RawClient]:
    with broker.connect() as made:
        yield made


def test_it_is_not_read(broker: Broker, client: raw.RawClient) -> None:
    """By no kind of fetch: the bytes are no messages. The log says why, once for the client."""
    assert client.fetch("new", 0, 0).error == WRONG_PARTITION
    assert [answer.error for answer in client.multifetch([("new", 0, 0, 100), ("old", 0, 0, 100)])] == [
        WRONG_PARTITION,
        0,
    ]
    assert client.held_fetch("new", 0, 0)[0] == WRONG_PARTITION
    lines = [line for line in broker.log_text().splitlines() if "a topic of record batches, which" in line]
    assert len(lines) == 1 and "topic='new' partition=0" in lines[0]


def test_it_is_not_listed_and_has_no_offsets(client: raw.RawClient) -> None:
    client.create_topic("old")
    assert list(client.metadata().topics) == ["old"]
    assert client.metadata(["new"]).topics["new"][1:3] == (WRONG_PARTITION, 0)
    assert client.ask(raw.offsets_frame("new", 0, raw.LATEST, 1)).error == WRONG_PARTITION
    assert client.create_topic("new", 4)[0] == WRONG_PARTITION
    assert client.cut_points("new", 0, 0, 10, 1)[0] == WRONG_PARTITION


def test_it_is_written_to(broker: Broker, client: raw.RawClient) -> None:
    """What is there stays as it is, and what comes is a batch behind it."""
    told = client.produce_ack("new", 0, ENTRY, raw.FLUSHED)
    assert (told.error, told.base_offset, told.next_offset) == (0, 1, 2)
    stored = (broker.log_dirs[0] / "new-0" / "00000000000000000000.log").read_bytes()
    assert stored[16 : len(STORED)] == STORED[16:]
    (added,) = record_batches.records(stored[len(STORED) :])
    assert (added.key, added.value, added.offset) == (None, b"a message", 1)


def test_no_partition_is_made_that_its_maker_did_not_want(broker: Broker) -> None:
    with broker.connect() as client:
        assert client.produce_ack("new", 1, ENTRY)[0] == WRONG_PARTITION
    with broker.connect() as client:
        client.produce("new", 1, ENTRY)
        assert client.is_closed()
    assert not (broker.log_dirs[0] / "new-1").exists()


def test_it_is_deleted_as_any_other(broker: Broker, client: raw.RawClient) -> None:
    """And its name is free for messages."""
    assert client.delete_topic("new")[0] == 0
    assert client.produce_ack("new", 0, ENTRY)[0] == 0
    client.wait_visible("new", 0, len(ENTRY))
    assert client.fetch_ok("new", 0, 0) == ENTRY
    assert not list((broker.log_dirs[0] / "new-0").glob("*.log"))
