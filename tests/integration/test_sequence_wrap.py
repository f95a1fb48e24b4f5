"""Behind the last number of a batch, 2**31 - 1, 0 follows: in the broker, over its restarts, and in mirrors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fastlog import record_batches, testing
from fastlog.client import group_requests as requests
from fastlog.client.addresses import Address
from fastlog.client.coordinator import Coordinator
from fastlog.client.group_requests import Committed, Identity
from fastlog.client.records import RecordBroker
from fastlog.mirror.records.position import Position
from fastlog.record_batches import Record
from tests.harness.broker import Broker
from tests.harness.timing import PATIENCE
from tests.integration.test_record_mirror import append, client, config, count, records_of, running, stored, wait_for

LAST = 2**31 - 1
OUT_OF_SEQUENCE = 45
PLACE = ("t", 0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path, processors=1) as made:
        with RecordBroker([Address("127.0.0.1", made.port)], timeout=PATIENCE) as there:
            there.create("t", 1, {})
        yield made


def write(broker: Broker, sequence: int, records: int, producer: int = 77) -> tuple[int, int]:
    """The error code and the offset that a numbered batch is answered with."""
    rows = [Record(None, b"%d+%d" % (sequence, number), 1) for number in range(records)]
    data = record_batches.build(rows, producer_id=producer, producer_epoch=0, base_sequence=sequence)
    with RecordBroker([Address("127.0.0.1", broker.port)], timeout=PATIENCE) as there:
        return there.append({PLACE: data}, is_flushed=True)[PLACE]


@pytest.mark.parametrize("restart", ["none", "in order", "kill -9"])
@pytest.mark.parametrize(("first", "following"), [(LAST - 2, 2), (LAST - 4, 0)], ids=["in a batch", "between two"])
def test_behind_the_last_number_0_follows(broker: Broker, first: int, following: int, restart: str) -> None:
    assert write(broker, first, 5) == (0, 0)
    if restart == "in order":
        broker.restart()
    elif restart == "kill -9":
        broker.kill_all()
        broker.start()
    assert write(broker, first, 5) == (0, 0), "it is known again"
    assert write(broker, following + 1, 1)[0] == OUT_OF_SEQUENCE
    assert write(broker, (following - 1) % 2**31, 1)[0] == OUT_OF_SEQUENCE
    assert write(broker, following, 3) == (0, 5)
    assert write(broker, following, 3) == (0, 5)
    assert write(broker, first, 5) == (0, 0)
    assert write(broker, following + 3, 1) == (0, 8)


def test_a_mirror_goes_on_over_the_last_number() -> None:
    """It finds a position of one that has forwarded nearly 2**31 records."""
    with testing.broker(processors=1) as source, testing.broker(processors=1) as target:
        for broker in (source, target):
            with client(broker) as there:
                there.create("t", 1, {})
        with client(source) as there:
            ids = there.known_topics(["t"])["t"].id
        with client(target) as there:
            position = Position(
                source=ids, target=there.known_topics(["t"])["t"].id, producer=there.new_producer().id, epoch=0,
                count=LAST - 6, target_offset=0, is_resting=True, seams=((LAST - 6, 0),),
            )  # fmt: skip
        with Coordinator([Address(target.host, target.port)], "g", client="test", timeout=PATIENCE) as group:
            kept = {("t", 0): Committed(0, position.text)}
            assert group.ask(requests.commit("g", Identity(), kept), requests.parse_commit) == {("t", 0): 0}
        there_now = 0
        for turn in range(4):  # five records a turn: the last number is in the second, the others go on from 0
            append(source, "t", 0, records_of(turn, 5))
            there_now += 5
            # the broker's own least session time is longer than it takes
            with running(config(source, target, "t", group="g", consumer={"session.timeout.ms": "6000"})) as mirror:
                wait_for(mirror, "it came", lambda wanted=there_now: count(target, "t") == wanted)  # type: ignore[misc]
        assert stored(target, "t") == stored(source, "t")
