"""What a processor's Python says of topics."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path

import pytest

from fastlog.client.connection import Broker
from fastlog.config import BrokerConfig
from fastlog.errors import (
    InvalidTopicError,
    MalformedRequestError,
    NotAuthorizedError,
    OffsetOutOfRangeError,
    WrongPartitionError,
)
from fastlog.log._arena import STATE_OFFLINE, STATE_READ_ONLY
from fastlog.log._flush import flush_now, make_partition_flusher
from fastlog.log.formats.record_batches import RECORD_BATCHES
from fastlog.log.manager import LogManager
from fastlog.wire import requests, responses
from fastlog.workers.authorization import ANONYMOUS, Client
from fastlog.workers.kafka07 import answers as answers_module
from fastlog.workers.kafka07.answers import Answers
from tests.harness.fake_broker import FakeBroker
from tests.harness.timing import PATIENCE
from tests.unit.test_arena import spec
from tests.unit.test_manager import manager_of

CLIENT = Client(ANONYMOUS, "127.0.0.1")


def test_a_partition_that_is_made_meanwhile_is_not_beyond_the_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes one while the answer is put together."""
    manager = manager_of(tmp_path)
    manager.create_partition("t", 0)
    counted = manager.partition_count

    def count(topic: str) -> int:
        found = counted(topic)
        if manager.slot("t", 5) is None:
            manager.create_partition("t", 5, count=6)
        return found

    monkeypatch.setattr(manager, "partition_count", count)
    answers = Answers(BrokerConfig(), manager._arena, manager, [("h", 1)])
    for expected in ([0], [0, 5]):
        frame = answers.answer(requests.encode_metadata(7, ("t",))[4:], CLIENT)
        assert isinstance(frame, bytes)
        (topic,) = responses.decode_metadata(frame[4:]).topics
        assert [item.partition for item in topic.partitions] == expected
        assert topic.configured_partitions > expected[-1]


def test_topics_are_created_on_request_only_where_that_is_allowed(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    answers = Answers(BrokerConfig(create_topic_requests=False), manager._arena, manager, [("h", 1)])
    frame = answers.answer(requests.encode_create_topic(7, "t", 1)[4:], CLIENT)
    assert isinstance(frame, bytes)
    assert responses.decode_create_topic(frame[4:]).error == NotAuthorizedError.code
    assert not manager.topics()


def described(answers: Answers, names: int) -> bytes | bool | None:
    return answers.answer(requests.encode_metadata(7, ("t",) * names)[4:], CLIENT)


def test_an_answer_describes_no_more_partitions_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic is described as often as its name is given: a small request would have a huge answer."""
    manager = manager_of(tmp_path)
    for partition in range(3):
        manager.create_partition("t", partition, count=3)
    monkeypatch.setattr(answers_module, "MAX_METADATA_PARTITIONS", 6)
    answers = Answers(BrokerConfig(), manager._arena, manager, [("h", 1)])
    allowed, refused = described(answers, 2), described(answers, 3)
    assert isinstance(allowed, bytes)
    assert isinstance(refused, bytes)
    assert len(responses.decode_metadata(allowed[4:]).topics) == 2
    assert responses.decode_metadata(refused[4:]).error == MalformedRequestError.code


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (0, responses.STATE_OK),
        (STATE_READ_ONLY, responses.STATE_READ_ONLY),
        (STATE_OFFLINE, responses.STATE_OFFLINE),
        (STATE_OFFLINE | STATE_READ_ONLY, responses.STATE_OFFLINE),
    ],
)
def test_what_clients_are_told_of_a_partition(state: int, told: int, tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    manager._arena.add(spec(state=state))
    frame = described(Answers(BrokerConfig(), manager._arena, manager, [("h", 1)]), 1)
    assert isinstance(frame, bytes)
    (topic,) = responses.decode_metadata(frame[4:]).topics
    assert [item.state for item in topic.partitions] == [told]


def created_ms(manager: LogManager, topic: str = "t") -> int:
    """When the log of partition 0 was made, as a client is told."""
    answers = Answers(BrokerConfig(), manager._arena, manager, [("h", 1)])
    frame = answers.answer(requests.encode_metadata(7, (topic,))[4:], CLIENT)
    assert isinstance(frame, bytes)
    (found,) = responses.decode_metadata(frame[4:]).topics
    return found.partitions[0].created_ms


def test_when_a_log_was_made_is_told_once_a_power_loss_cannot_take_it(tmp_path: Path) -> None:
    """Before, nothing of the log was visible to anybody; then the same number at every start, until it is made anew."""
    manager = manager_of(tmp_path)
    index = manager.create_partition("t", 0)
    assert created_ms(manager) == 0
    made = manager._arena.view(index).created_ms
    assert flush_now(make_partition_flusher(manager._arena, 4, 0, 0), index) == 0
    assert created_ms(manager) == made > 0
    assert created_ms(manager_of(tmp_path)) == made
    shutil.rmtree(tmp_path / "t-0")
    while time.time_ns() // 1_000_000 == made:
        pass
    again = manager_of(tmp_path)
    again.create_partition("t", 0)
    assert created_ms(manager_of(tmp_path)) > made


def test_a_broker_of_an_earlier_version_tells_the_rest() -> None:
    """A client asks again in the version that every broker knows."""
    asked = []

    def hook(request: requests.Request) -> bytes | None:
        assert isinstance(request, requests.MetadataRequest)
        asked.append(request.version)
        return responses.encode_own_error(request.correlation_id, 104) if request.version > 1 else None

    with FakeBroker(hook=hook) as fake:
        fake.logs["t", 0] = b"x"
        answer = Broker(f"127.0.0.1:{fake.port}", PATIENCE).metadata_or_none(("t",))
    assert answer is not None and asked == [2, 1]
    assert answer.topics[0].partitions == (responses.PartitionMetadata(0, responses.STATE_OK, 0, 1, 1, 0),)


def test_a_request_that_the_disk_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets a code alone; what happened stands in the broker's log."""
    manager = manager_of(tmp_path)

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "t-0")

    monkeypatch.setattr(manager, "create_partition", full)
    frame = Answers(BrokerConfig(), manager._arena, manager, [("h", 1)]).answer(
        requests.encode_create_topic(7, "t", 1)[4:], CLIENT
    )
    assert frame == responses.encode_own_error(7, 103)
    assert caplog.messages == [
        "a request failed kind=CreateTopicRequest topic='t' reason=[Errno 28] No space left on device: 't-0'"
    ]


def test_topics_that_are_not_of_07_are_no_partitions_for_its_clients(tmp_path: Path) -> None:
    """Whatever is asked of them; the broker's own are not even deleted, nor is any where that is forbidden."""
    manager = manager_of(tmp_path)
    for topic in ("records", "__own"):
        manager.create_partition(topic, 0, count=1, format_name=RECORD_BATCHES, topic_id=bytes(15) + b"1")
    answers = Answers(BrokerConfig(), manager._arena, manager, [("h", 1)])

    def asked(frame: bytes) -> bytes:
        answer = answers.answer(frame[4:], CLIENT)
        assert isinstance(answer, bytes)
        return answer[4:]

    (topic,) = responses.decode_metadata(asked(requests.encode_metadata(7, ("records",)))).topics
    assert (topic.error, topic.partitions) == (WrongPartitionError.code, ())
    cut = asked(requests.encode_cut_points(7, "records", 0, 0, 0, 1, 1))
    assert responses.decode_cut_points(cut).error == WrongPartitionError.code
    created = asked(requests.encode_create_topic(7, "records", 2))
    assert responses.decode_create_topic(created).error == WrongPartitionError.code
    assert error_of_offsets(answers, "records", 0) == WrongPartitionError.code
    deleted = asked(requests.encode_delete_topic(7, "__own"))
    assert responses.decode_delete_topic(deleted).error == InvalidTopicError.code
    answers = Answers(BrokerConfig(delete_topic_enable=False), manager._arena, manager, [("h", 1)])
    deleted = asked(requests.encode_delete_topic(7, "records"))
    assert responses.decode_delete_topic(deleted).error == NotAuthorizedError.code
    assert {view.topic for view in manager._arena.views()} == {"records", "__own"}


def error_of_offsets(answers: Answers, topic: str, partition: int, when: int = requests.TIME_LATEST) -> int:
    """What OFFSETS is answered, of which the body alone comes here."""
    frame = answers.offsets(requests.encode_offsets(topic, partition, when, 5)[6:])
    assert frame is not None
    return int.from_bytes(frame[4:6], "big", signed=True)


def test_offsets_of_partitions_that_are_there_that_are_not_and_that_cannot_be(tmp_path: Path) -> None:
    """One that is offline says so; of one that nobody has written to there is the beginning, and nothing before it."""
    manager = manager_of(tmp_path)
    manager.create_partition("t", 0, count=2)
    arena = manager._arena
    arena.add(spec(topic="away", partition=0, state=STATE_OFFLINE))
    answers = Answers(BrokerConfig(), arena, manager, [("h", 1)])
    for topic, partition, error in (("t", 0, 0), ("t", 7, 3), ("t", -1, 3), ("a/b", 0, -1), ("away", 0, -1)):
        assert error_of_offsets(answers, topic, partition) == error, (topic, partition)
    for topic in ("t", "nobody"):
        for when, found in ((requests.TIME_LATEST, [0]), (requests.TIME_EARLIEST, [0]), (0, [])):
            frame = answers.offsets(requests.encode_offsets(topic, 0, when, 5)[6:])
            assert frame is not None and list(responses.decode_offsets(frame[4:]).offsets) == found, (topic, when)
    frame = answers.offsets(requests.encode_offsets("nobody", 0, requests.TIME_LATEST, 0)[6:])
    assert frame is not None and responses.decode_offsets(frame[4:]) == responses.OffsetsAnswer(0)
    assert answers.offsets(requests.encode_offsets("t", 0, requests.TIME_LATEST, -1)[6:]) is None


def test_cut_points_beyond_what_there_is(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    manager.create_partition("t", 0)
    answers = Answers(BrokerConfig(), manager._arena, manager, [("h", 1)])
    for start, end, error in ((0, 0, 0), (0, 1, OffsetOutOfRangeError.code), (1, 0, MalformedRequestError.code)):
        frame = answers.answer(requests.encode_cut_points(7, "t", 0, start, end, 1, 1)[4:], CLIENT)
        assert isinstance(frame, bytes)
        assert responses.decode_cut_points(frame[4:]).error == error
