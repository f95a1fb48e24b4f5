"""What a reader of record batches asks for, and when: on a channel that gives what a test has ready."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fastlog.client.record_fetching import Batches
from fastlog.client.record_topics import KnownTopic
from fastlog.consumer import record_reader
from fastlog.consumer.record_reader import RecordReader, RecordRequests
from fastlog.errors import BrokerError, ProtocolError
from fastlog.record_batches import Record, build


class Channel:
    """Answers each request with the next of ``answers``; ``interrupted``: the next one is sent, and a signal comes."""

    broker = "there"

    def __init__(self) -> None:
        self.answers: list[Batches] = []
        self.interrupted = False
        self.has_pending = False
        self.asked: list[int] = []
        """At which offset each request began."""
        self.sizes: list[int] = []
        """How many bytes each asked for."""
        self.drops = 0

    def alone(self, work: Callable[[], int]) -> int:
        return work()

    def post(self, frame: bytes, most_bytes: int, wait: float) -> None:
        assert not self.has_pending, "an answer is to come"
        self.has_pending = True
        self.asked.append(int.from_bytes(frame, "big"))
        if self.interrupted:
            raise KeyboardInterrupt

    def collect(self) -> Any:
        self.has_pending = False
        return self.answers.pop(0)

    def collect_soon(self, seconds: float) -> Any:
        return self.collect()

    def connect(self) -> None:
        pass

    def drop(self) -> None:
        self.drops += 1
        self.has_pending = False

    def check(self) -> None:
        pass


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch) -> Channel:
    """Requests are the offset alone, and answers are what they are read as."""
    monkeypatch.setattr(record_reader.record_fetching, "parse_batches", lambda body, *_: body)
    monkeypatch.setattr(RecordRequests, "framed", lambda self, request: (request.to_bytes(8, "big"), 1))
    made = Channel()

    def fetch(topic_id: bytes, partition: int, offset: int, *, max_bytes: int, **_: int) -> int:
        made.sizes.append(max_bytes)
        return offset

    monkeypatch.setattr(record_reader.record_fetching, "fetch", fetch)
    return made


def reader_of(channel: Channel, *, ahead: bool, fetch_bytes: int = 1000) -> RecordReader:
    given: Any = channel
    return RecordReader(given, RecordRequests(given), "t", bytes(16), 0, 0, fetch_bytes, ahead=ahead)


def answer(offset: int, high_watermark: int, *values: bytes) -> Any:
    data = build([Record(None, value, 5) for value in values], base_offset=offset) if values else b""
    return Batches(0, high_watermark, 0, memoryview(data))


def test_the_end_is_asked_for_again_once_something_has_come(channel: Channel) -> None:
    """What was appended meanwhile belongs to it; until then it stays as it was told."""
    reader = reader_of(channel, ahead=False)
    broker: Any = None
    channel.answers += [answer(0, 0), answer(0, 3), answer(0, 3), answer(0, 3, b"a", b"b"), answer(2, 9)]
    for _ in range(2):
        assert reader.next(0.0) is None
        assert reader.log_end(broker) == 3
    assert len(channel.asked) == 3
    assert reader.next(0.0) is not None and reader.offset == 2
    assert reader.log_end(broker) == 9
    assert channel.asked == [0, 0, 0, 0, 2]


def test_the_end_is_not_the_answer_to_what_was_asked_for_ahead(channel: Channel) -> None:
    reader = reader_of(channel, ahead=True)
    broker: Any = None
    channel.answers += [answer(0, 3, b"a", b"b"), answer(2, 9)]
    assert reader.next(0.0) is not None and channel.has_pending
    assert (reader.log_end(broker), channel.drops, channel.asked) == (9, 1, [0, 2, 2])


def test_batches_have_to_lead_on(channel: Channel) -> None:
    """Else the same would be asked for without end."""
    reader = reader_of(channel, ahead=False)
    reader.seek(1, 1000)
    channel.answers += [answer(0, 9, b"a")]
    with pytest.raises(ProtocolError, match="end before offset 1"):
        reader.next(0.0)


def test_a_broker_that_is_just_starting_is_asked_again(channel: Channel) -> None:
    """Also by who waits for nothing."""
    reader = reader_of(channel, ahead=False)
    channel.answers += [Batches(6, -1, -1, memoryview(b"")), answer(0, 1, b"a")]
    chunk = reader.next(0.0)
    assert chunk is not None and len(channel.asked) == 2


def test_behind_an_answer_that_is_none_nothing_is_read(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Batches:
        raise ProtocolError("no answer")

    monkeypatch.setattr(record_reader.record_fetching, "parse_batches", refuse)
    reader = reader_of(channel, ahead=False)
    channel.answers += [answer(0, 1, b"a")]
    with pytest.raises(ProtocolError, match="there: no answer"):
        reader.next(0.0)
    assert channel.drops == 1


def test_what_an_interrupted_call_has_asked_for_is_not_taken_for_another_place(channel: Channel) -> None:
    reader = reader_of(channel, ahead=False)
    channel.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        reader.next(0.0)
    assert reader.is_near
    reader.seek(7, 1000)
    assert not reader.is_near


def test_whoever_goes_back_hears_nothing_of_what_was_asked_for_ahead(channel: Channel) -> None:
    reader = reader_of(channel, ahead=True)
    channel.answers += [answer(0, 3, b"a", b"b"), answer(1, 3, b"b", b"c")]
    assert reader.next(0.0) is not None and channel.asked == [0, 2] and reader.is_near
    reader.go_back(1)
    assert channel.drops == 1
    assert reader.next(0.0) is not None and (channel.asked, reader.offset) == ([0, 2, 1], 3)


@pytest.mark.parametrize(("fetch_bytes", "most"), [(1000, 4), (5 * 2**20, 2), (9 * 2**20, 1)])
def test_as_many_batches_are_asked_for_as_fit_and_more_where_much_is_cut_off(
    channel: Channel, fetch_bytes: int, most: int
) -> None:
    """Twice as much each time, up to four times, and never more than 16 MiB."""
    reader = reader_of(channel, ahead=True, fetch_bytes=fetch_bytes)
    cut = build([Record(None, bytes(300), 5)])
    for offset in range(5):
        whole = build([Record(None, bytes(200), 5)], base_offset=offset)
        channel.answers.append(Batches(0, 99, 0, memoryview(whole + cut[:100])))
        assert reader.next(0.0) is not None
    assert channel.sizes == [
        fetch_bytes, *(fetch_bytes * min(more, most) // len(cut) * len(cut) for more in (1, 2, 4, 8, 16))
    ]  # fmt: skip
    assert reader.growth == most


def test_who_waits_for_no_more_than_a_moment_leaves_a_broker_that_starts_to_the_next_call(channel: Channel) -> None:
    reader = reader_of(channel, ahead=True)
    channel.answers += [answer(0, 3, b"a"), Batches(6, -1, -1, memoryview(b"")), answer(1, 3, b"b")]
    assert reader.next(0.0) is not None and reader.is_near
    assert reader.soon(1.0) is None and not reader.is_near
    assert reader.next(0.0) is not None and reader.offset == 2


@pytest.mark.parametrize(("code", "is_there"), [(0, True), (5, True), (3, False)])
def test_a_topic_without_a_leader_yet_is_there(
    channel: Channel, monkeypatch: pytest.MonkeyPatch, code: int, is_there: bool
) -> None:
    found = KnownTopic(code, b"i" * 16, (0,), is_internal=False)
    monkeypatch.setattr(RecordRequests, "ask", lambda *_: {"t": found})
    given: Any = channel
    assert (RecordRequests(given).topic_or_none("t") == found) == is_there


def test_a_topic_that_may_not_be_seen_is_an_error(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordRequests, "ask", lambda *_: {"t": KnownTopic(29, b"i" * 16, (), is_internal=False)})
    given: Any = channel
    with pytest.raises(BrokerError, match=r"t.*there"):
        RecordRequests(given).topic_or_none("t")
