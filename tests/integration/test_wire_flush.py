"""Who has produced on a connection and then asks on it sees what a flush was due for, however long the disk takes."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator

import pytest

from tests.harness import raw_client as raw
from tests.harness.broker import Broker

MESSAGE = raw.entry(b"one")
SIZE = len(MESSAGE)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Flushes each message, as many tests of 0.7 clients have it, on a disk that takes its time."""
    with Broker(
        tmp_path_factory.mktemp("slow"),
        processors=1,
        settings={"log.flush.interval": 1, "num.partitions": 2},
        environment={"FASTLOG_FAULTS": "flusher:fdatasync@1-=slow:100"},
    ) as running:
        yield running


@pytest.mark.parametrize(
    "ask",
    [
        lambda client, topic, end: client.offsets(topic, 0) == [end, 0],
        lambda client, topic, end: client.fetch_ok(topic, 0, end - SIZE) == MESSAGE,
        lambda client, topic, end: (
            client.multifetch([(topic, 0, end - SIZE, 100), (topic, 1, 0, 100)])[0].body == MESSAGE
        ),
    ],
    ids=["OFFSETS", "FETCH", "MULTIFETCH"],
)
def test_what_was_produced_before_is_seen(
    client: raw.RawClient, topic: str, ask: Callable[[raw.RawClient, str, int], bool]
) -> None:
    """0.7.2 flushes in the produce that completes ``log.flush.interval`` messages."""
    for count in (1, 2):
        client.produce(topic, 0, MESSAGE)
        assert ask(client, topic, count * SIZE)


def test_an_empty_set_is_flushed_with_what_came_before_it(client: raw.RawClient, topic: str) -> None:
    """Its answer tells of the log behind the produces before it, also when they came in one piece."""
    body = raw.produce_ack_body
    client.send_raw(
        raw.own_frame(raw.PRODUCE_ACK, body(topic, 0, MESSAGE, raw.APPENDED), correlation=1)
        + raw.own_frame(raw.PRODUCE_ACK, body(topic, 0, b"", raw.FLUSHED), correlation=2)
    )
    places = [
        raw.Appended(answer.error, *raw.Reader(answer.body).take("iqq"))
        for _, answer in (client.recv_own(), client.recv_own())
    ]
    state = client.metadata([topic]).topics[topic].partitions[0]
    assert places == [(0, 0, 0, SIZE), (0, 0, SIZE, SIZE)]
    assert state.high_watermark == SIZE


def test_half_of_what_completes_a_flush_is_waited_for(start_broker: Callable[..., Broker], topic: str) -> None:
    """How many messages 0.7.2 would have counted since its last flush is not known to one; less than half is not."""
    broker = start_broker(processors=1, settings={"log.flush.interval": 4})
    with broker.connect() as client:
        client.produce(topic, 0, 4 * MESSAGE)
        assert client.fetch_ok(topic, 0, 0) == 4 * MESSAGE
        broker.pause("flusher")
        try:
            client.produce(topic, 0, MESSAGE)
            assert client.fetch_ok(topic, 0, 4 * SIZE) == b""
            client.produce(topic, 0, MESSAGE)
            client.send_raw(raw.fetch_frame(topic, 0, 4 * SIZE, 100))
            assert not select.select([client.socket], [], [], 0.2)[0]
        finally:
            broker.resume("flusher")
        assert client.recv_answer().body == 2 * MESSAGE
