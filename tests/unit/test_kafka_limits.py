"""What one client of today can cost: bounds of requests, and of the work that they are."""

from __future__ import annotations

import logging
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastlog import record_batches
from fastlog.record_batches import Record
from fastlog.workers.kafka import kinds
from fastlog.workers.kafka.control import Control
from tests.harness import processor, today
from tests.harness import raw_client as raw
from tests.harness.broker import wait_until
from tests.harness.workers import Workers, drain

MOST_ITEMS = 65536
PARTITIONS = 40


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("log"), partitions=PARTITIONS) as running:
        yield running


@pytest.fixture
def client(workers: Workers) -> Iterator[raw.RawClient]:
    with workers.connect() as connected:
        today.asked(connected.socket, today.API_VERSIONS, 0)
        yield connected


def metadata(*names: str) -> bytes:
    fields = {"topics": [{"topic_id": None, "name": name} for name in names], "allow_auto_topic_creation": True}
    return today.request(today.METADATA, 4, fields)


def answered(client: raw.RawClient, request: bytes) -> bytes:
    client.socket.sendall(request)
    return today.answer_of(client.socket)


def head(key: int, version: int, body: bytes) -> bytes:
    """A request of a version that is not flexible, without a client's id."""
    return today.framed(struct.pack(">hhih", key, version, 1, -1) + body)


TOO_MANY: dict[str, bytes] = {
    "topics of METADATA": head(3, 4, struct.pack(">i", MOST_ITEMS + 1) + b"\0\1a" * (MOST_ITEMS + 1) + b"\0"),
    "partitions of LIST_OFFSETS": head(
        2, 1, struct.pack(">iih1si", -1, 1, 1, b"a", MOST_ITEMS + 1) + bytes(12) * (MOST_ITEMS + 1)
    ),
    "topics of LIST_OFFSETS": head(2, 1, struct.pack(">ii", -1, MOST_ITEMS + 1) + b"\0\1a\0\0\0\0" * (MOST_ITEMS + 1)),
    "partitions of FETCH": head(
        1, 4, struct.pack(">iiiibih1si", -1, 0, 0, 0, 0, 1, 1, b"a", MOST_ITEMS + 1) + bytes(16) * (MOST_ITEMS + 1)
    ),
    "partitions of PRODUCE": head(
        0, 3, struct.pack(">hhiih1si", -1, 1, 0, 1, 1, b"a", MOST_ITEMS) + bytes(8) * MOST_ITEMS
    ),
    "less than none": head(3, 4, struct.pack(">ib", -2, 0)),
    "tagged fields": today.framed(struct.pack(">hhih", 18, 3, 1, -1) + b"\x11" + b"\x64\0" * 17 + b"\2a\2b\0"),
    "a varint without an end": today.framed(struct.pack(">hhih", 18, 3, 1, -1) + b"\xff" * 20),
    "a varint above 32 bits": today.framed(struct.pack(">hhih", 18, 3, 1, -1) + b"\x80\x80\x80\x80\x10" + bytes(20)),
}


@pytest.mark.parametrize("request_bytes", TOO_MANY.values(), ids=TOO_MANY)
def test_more_than_any_client_asks_for_is_malformed(
    client: raw.RawClient, caplog: pytest.LogCaptureFixture, request_bytes: bytes
) -> None:
    with caplog.at_level(logging.WARNING):
        client.socket.sendall(request_bytes)
        assert drain(client) == b""
    assert ["malformed request" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.slow
def test_one_answer_describes_so_many_partitions(client: raw.RawClient, caplog: pytest.LogCaptureFixture) -> None:
    """A topic is described as often as its name is given."""
    answered(client, metadata("wide"))
    times = 131_072 // PARTITIONS
    most = answered(client, metadata(*["wide"] * times))
    found = today.decoded(today.METADATA, 4, most)[1]
    assert sum(len(topic.partitions) for topic in found.topics) == times * PARTITIONS
    client.socket.sendall(metadata(*["wide"] * (times + 1)))
    assert drain(client) == b""
    assert "more partitions are asked for than one answer describes" in caplog.text


@pytest.mark.slow
def test_a_large_request_lets_others_have_their_turns(workers: Workers, client: raw.RawClient) -> None:
    """A fetch of very many partitions is looked at, and answered, some of them at a time."""
    answered(client, metadata("wide"))
    parts = [("wide", number % PARTITIONS, 0) for number in range(20_000)]
    fields = today.fetched(*parts)
    topic = fields["topics"][0]
    topic["partitions"] = [one["partitions"][0] for one in fields["topics"]]
    turns = workers.turns()
    found = today.asked(client.socket, today.FETCH, 12, **fields | {"topics": [topic]})
    assert len(found.responses[0].partitions) == 20_000
    assert workers.turns() - turns >= 2 * 20_000 // 512


@pytest.mark.slow
def test_mutated_requests_are_answered_or_end_their_connection(workers: Workers, client: raw.RawClient) -> None:
    """Bytes changed, taken out, doubled and cut: whatever comes of it, others are served and nothing is kept."""
    answered(client, metadata("t"))
    batch = record_batches.build([Record(b"k", b"v" * 50, 1)])
    whole = {
        today.PRODUCE: today.produced(("t", 0, batch), ("t", 1, batch)),
        today.FETCH: today.fetched(("t", 0, 0), ("t", 1, 0)) | {"forgotten_topics_data": []},
        today.LIST_OFFSETS: today.listed(("t", 0, -1), ("t", 0, 5)),
        today.METADATA: {"topics": [{"topic_id": None, "name": "t"}], "allow_auto_topic_creation": False},
        today.API_VERSIONS: {"client_software_name": "a", "client_software_version": "1"},
    }
    for fields in whole.values():
        fields |= {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    workers.wait_still()
    source = random.Random(17)
    before = workers.processors[0].loop.held
    for _ in range(1500):
        key = source.choice(list(kinds.APIS))
        version = source.randint(kinds.APIS[key].served, kinds.APIS[key].last)
        data = bytearray(today.request(key, version, whole[key])[4:])
        for _ in range(source.randint(1, 4)):
            at = source.randrange(4, len(data))
            change = source.randrange(4)
            if change == 0:
                data[at] = source.choice((0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)))
            elif change == 1:
                del data[at : at + source.randint(1, 8)]
            elif change == 2:
                data[at:at] = data[at : at + source.randint(1, 30)]
            else:
                data[at : at + 4] = source.randbytes(4)
            if len(data) < 12:
                break
        with workers.connect() as one:
            today.asked(one.socket, today.API_VERSIONS, 0)
            one.socket.sendall(today.framed(bytes(data)) + today.request(today.API_VERSIONS, 0, {}))
            one.socket.shutdown(1)
            drain(one)
    wait_until("all is given back", lambda: workers.processors[0].loop.held == before)
    assert today.asked(client.socket, today.API_VERSIONS, 0).error_code == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # sockets of the half-made processor
def test_more_answers_to_api_versions_than_there_is_room_for_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each version, and the one that refuses: a processor that cannot keep them all does not begin."""

    class Many(Control):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.api_versions = self.api_versions * 100

    monkeypatch.setattr(processor, "KafkaControl", Many)
    with pytest.raises(ValueError, match="too many versions of API_VERSIONS"):
        processor.Processor(tmp_path)
