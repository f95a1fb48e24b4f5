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
from fastlog.log._append import Appender, append_bytes
from fastlog.log._arena import STATE_OFFLINE, STATE_READ_ONLY
from fastlog.log._flush import flush_now, make_partition_flusher
from fastlog.log._segments import SegmentFiles
from fastlog.log._shared_memory import FIRST_PROCESSOR
from fastlog.log.formats.record_batches import RECORD_BATCHES
from fastlog.log.manager import CreationBusyError, LogManager
from fastlog.wire import requests, responses
from fastlog.workers.authorization import ANONYMOUS, Client
from fastlog.workers.kafka07 import answers as answers_module
from fastlog.workers.kafka07.answers import Answers
from tests.harness import raw_format
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


def asked(answers: Answers, frame: bytes) -> bytes:
    """The body of the answer to a frame."""
    answer = answers.answer(frame[4:], CLIENT)
    assert isinstance(answer, bytes)
    return answer[4:]


def test_what_is_there_needs_nothing_made(tmp_path: Path) -> None:
    """Asking for the partitions that a topic has is no request to make one, nor one for too many."""
    manager = manager_of(tmp_path)
    for partition in range(3):
        manager.create_partition("t", partition, count=3)
    answers = Answers(BrokerConfig(create_topic_requests=False), manager._arena, manager, [("h", 1)])
    created = responses.decode_create_topic(asked(answers, requests.encode_create_topic(7, "t", 2)))
    assert created == responses.CreateTopicAnswer(7, 0, 3)
    more = responses.decode_create_topic(asked(answers, requests.encode_create_topic(7, "t", 4)))
    assert more.error == NotAuthorizedError.code


def test_how_many_partitions_one_request_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are there do not count; what has no room leaves nothing behind; and who creates at the time is waited
    for."""
    manager = manager_of(tmp_path, max_partitions="20")
    answers = Answers(BrokerConfig(), manager._arena, manager, [("h", 1)])

    def create(count: int) -> bytes | bool | None:
        return answers.answer(requests.encode_create_topic(7, "t", count)[4:], CLIENT)

    assert create(21) == responses.encode_own_error(7, 103) and manager.topics() == []
    assert create(2) == responses.encode_create_topic(responses.CreateTopicAnswer(7, 0, 2))
    monkeypatch.setattr(requests, "MAX_MADE_PARTITIONS", 2)
    assert create(5) == responses.encode_own_error(7, MalformedRequestError.code)
    assert create(4) == responses.encode_create_topic(responses.CreateTopicAnswer(7, 0, 4))
    with monkeypatch.context() as patch:
        patch.setattr(manager, "create_partition", busy)
        assert create(5) is False


def busy(*_: object, **__: object) -> int:
    raise CreationBusyError("another process makes one")


def test_names_that_are_none(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    answers = Answers(BrokerConfig(), manager._arena, manager, [("h", 1)])
    deleted = responses.decode_delete_topic(asked(answers, requests.encode_delete_topic(7, "a/b")))
    assert deleted.error == InvalidTopicError.code
    names = requests.encode_metadata(7, ["t"] * 10_001)
    assert responses.decode_metadata(asked(answers, names)).error == MalformedRequestError.code
    assert len(responses.decode_metadata(asked(answers, requests.encode_metadata(7, ["t"] * 10_000))).topics) == 10_000
    raw = requests.encode_offsets("tt", 0, requests.TIME_LATEST, 1)[6:].replace(b"tt", b"t\xff")
    assert answers.offsets(raw) == responses.encode_offsets(-1)
    assert answers.offsets(raw[:-1]) is None


def appended(manager: LogManager, topic: str, *sizes: int) -> None:
    """Messages of these sizes, the last of which is not flushed."""
    view = manager.slot(topic, 0)
    assert view is not None
    appender = Appender(manager._arena, SegmentFiles(manager._arena, 8), FIRST_PROCESSOR)
    for size in sizes:
        assert flush_now(make_partition_flusher(manager._arena, 8, 0, 0), view.index) == 0
        assert append_bytes(appender, view.index, raw_format.entry(bytes(size)), 1)[0] == 0


def test_split_points_of_what_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the visible end, as many as may be, and of a partition that takes no messages any more, too."""
    manager = manager_of(tmp_path, num_partitions="2")
    manager.create_partition("t", 0)
    appended(manager, "t", 90, 190, 290)
    answers = Answers(BrokerConfig(), manager._arena, manager, [("h", 1)])

    def points(end: int, partition: int = 0, limit: int = 100) -> responses.CutPointsAnswer:
        return responses.decode_cut_points(
            asked(answers, requests.encode_cut_points(7, "t", partition, 0, end, 1, limit))
        )

    assert points(300) == responses.CutPointsAnswer(7, 0, (0, 100, 300))
    assert points(301).error == OffsetOutOfRangeError.code
    assert points(0, 1) == responses.CutPointsAnswer(7, 0)
    assert points(0, 2).error == WrongPartitionError.code
    monkeypatch.setattr(answers_module, "MAX_CUT_POINTS", 2)
    assert points(300).offsets == (0, 100)
    for topic, state, error in (("r", STATE_READ_ONLY, 0), ("o", STATE_OFFLINE, 101)):
        manager._arena.add(spec(topic=topic, state=state))
        found = responses.decode_cut_points(asked(answers, requests.encode_cut_points(7, topic, 0, 0, 0, 1, 1)))
        assert found.error == error


def test_split_points_of_what_retention_has_just_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the partition and that at its segments."""
    manager = manager_of(tmp_path)
    arena = manager._arena
    index = arena.add(spec(segments=[(0, 1, 1), (100, 1, 1)], log_end=200))
    before = arena.view(index)
    arena.publish_retention(index, 1, 100)
    monkeypatch.setattr(manager, "slot", lambda *_: before)
    answers = Answers(BrokerConfig(), arena, manager, [("h", 1)])
    found = responses.decode_cut_points(asked(answers, requests.encode_cut_points(7, "t", 0, 0, 100, 1, 9)))
    assert found.error == OffsetOutOfRangeError.code


def test_where_the_files_of_a_partition_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the log directory that has it, for whoever stands elsewhere; segments up to the visible end."""
    monkeypatch.chdir(tmp_path)
    Path("c").mkdir()
    Path("b").symlink_to("c")
    manager = manager_of(Path("a"), Path("b"), log_file_size="50")
    manager.create_partition("other", 0)
    manager.create_partition("t", 0)
    appended(manager, "t", 90, 190, 290)
    answers = Answers(BrokerConfig(), manager._arena, manager, [("h", 1)])
    found = responses.decode_local_read(asked(answers, requests.encode_local_read(7, "t", 0)))
    assert found.directory == str(tmp_path.resolve() / "c" / "t-0")
    assert (found.high_watermark, found.base_offsets) == (300, (0, 100, 300))
    appended(manager, "t", 390, 490)
    found = responses.decode_local_read(asked(answers, requests.encode_local_read(7, "t", 0)))
    assert (found.high_watermark, found.base_offsets) == (1000, (0, 100, 300, 600, 1000))
