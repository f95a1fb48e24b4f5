"""What a consumer asks a broker for, request by request: how much, from where, for how long, and when not at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from fastlog._segment import pack
from fastlog.consumer import reader as reader_module
from fastlog.consumer import walking
from fastlog.consumer.offered import FetchOffer, Offers
from fastlog.consumer.simple import LATEST, SimpleConsumer
from fastlog.errors import InvalidMessageError, MessageTooLargeError, ProtocolError, TransportError
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.consumers import consumer_of, with_log
from tests.harness.fake_broker import FakeBroker
from tests.harness.reading import wait_until

FETCHES = wire07.FetchRequest | wire07.HeldFetchRequest


class Asked:
    """A broker with a log, and what it was asked for."""

    def __init__(self, log: bytes, **options: Any) -> None:
        self.fetches: list[tuple[int, int]] = []
        self.waits: list[int] = []
        self.ids: list[int] = []
        self.broker = with_log(log, hook=self._note, **options)

    def _note(self, request: rq.Request) -> bytes | None:
        if isinstance(request, FETCHES):
            self.fetches.append((request.offset, request.max_bytes))
        if isinstance(request, wire07.HeldFetchRequest):
            self.waits.append(request.max_wait_ms)
            self.ids.append(request.correlation_id)
        return None

    def __enter__(self) -> Asked:
        self.broker.__enter__()
        return self

    def __exit__(self, *given: object) -> None:
        self.broker.__exit__(*given)


# -- how much --------------------------------------------------------------------------------------------------------

PAYLOAD = bytes(range(90))
ENTRY = pack([PAYLOAD])
SIZE = len(ENTRY)


@pytest.mark.parametrize(
    ("fetch_bytes", "asked"),
    [
        (1, [1, 8, SIZE]),  # a length field first, and room for one more
        (3, [3, 8, SIZE]),
        (4, [4, SIZE]),
        (5, [5, SIZE]),
        (SIZE // 2, [SIZE // 2, SIZE]),
        (SIZE // 2 + 1, [SIZE // 2 + 1, SIZE + 2]),  # twice as much where that is more than it needs
        (SIZE - 1, [SIZE - 1, 2 * SIZE - 2]),
        (SIZE, [SIZE]),
        (SIZE + 1, [SIZE + 1]),
    ],
)
def test_a_fetch_grows_until_the_message_is_whole(own: bool, fetch_bytes: int, asked: list[int]) -> None:
    with Asked(ENTRY * 3, own=own) as made, consumer_of(made.broker, local="off") as consumer:
        for offset in (0, SIZE):  # and each call begins with its own size again
            found = consumer.fetch("t", 0, offset, fetch_bytes)
            assert found.payloads() == [PAYLOAD] * len(found.payloads()) and found
            assert made.fetches == [(offset, size) for size in asked]
            made.fetches.clear()


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_the_largest_message_is_the_limit_to_the_byte(own: bool, more: int) -> None:
    """A message of exactly that size comes; one byte more is refused without asking for it; no fetch is larger."""
    with (
        Asked(pack([bytes(1000 + more)]), own=own) as made,
        consumer_of(made.broker, local="off", max_message_bytes=1000) as consumer,
    ):
        if more <= 0:
            assert consumer.fetch("t", 0, 0, 600).payloads() == [bytes(1000 + more)]
            assert made.fetches == [(0, 600), (0, 1010)]  # not 1200
        else:
            with pytest.raises(MessageTooLargeError, match=r"1011 bytes, above the limit of 1010"):
                consumer.fetch("t", 0, 0, 600)
            assert made.fetches == [(0, 600)]
        made.fetches.clear()
        assert consumer.fetch("t", 0, 0, 2000).payloads() == [bytes(1000 + more)]  # who asks for more may have it


def test_a_message_that_the_log_has_not_whole_is_damage(own: bool) -> None:
    """Only where the broker had room for more and sent less; else it is asked for more."""
    cut = ENTRY[:-1]
    for size, asked in ((SIZE, 1), (SIZE + 1, 1), (SIZE - 1, 2), (SIZE - 2, 2)):
        with Asked(cut, own=own) as made, consumer_of(made.broker, local="off") as consumer:
            with pytest.raises(InvalidMessageError, match=rf"the log ends inside it, after {SIZE - 1} of {SIZE} bytes"):
                consumer.fetch("t", 0, 0, size)
            assert len(made.fetches) == asked, size


@pytest.mark.parametrize("left", [0, 1, 3, 4])
def test_what_is_less_than_a_length_is_no_message_yet(own: bool, left: int) -> None:
    with Asked(ENTRY + ENTRY[:left], own=own) as made, consumer_of(made.broker, local="off") as consumer:
        if left == 4:
            with pytest.raises(InvalidMessageError):
                consumer.fetch("t", 0, SIZE)
        else:
            assert not consumer.fetch("t", 0, SIZE)
        assert len(made.fetches) == 1


# -- ahead -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fetch_bytes", "ahead"), [(SIZE * 2, True), (SIZE * 2 + 1, True), (SIZE * 4 + 1, False)])
def test_the_next_piece_is_asked_for_where_there_is_sure_to_be_one(own: bool, fetch_bytes: int, ahead: bool) -> None:
    """An answer as long as it may be has more behind it; a shorter one has not, and nothing is asked in vain."""
    with Asked(ENTRY * 4, own=own) as made, consumer_of(made.broker, local="off", fetch_bytes=fetch_bytes) as consumer:
        found = consumer.messages("t", 0, 0)
        next(found)
        consumer.get_offsets_before("t", 0, LATEST)  # on the other connection: what was posted before is there by then
        expected = [(0, fetch_bytes), (2 * SIZE, fetch_bytes)] if ahead else [(0, fetch_bytes)]
        for _ in range(1000):
            if made.fetches == expected:
                break
            consumer.get_offsets_before("t", 0, LATEST)
        assert made.fetches == expected
        assert [message.payload for message in found] == [PAYLOAD] * 3
        starts = [offset for offset, _ in made.fetches]
        assert starts == sorted(starts) and len(set(starts[:-1])) == len(starts[:-1]), "a piece was fetched twice"


def test_what_was_asked_for_ahead_is_not_asked_again_with_another_size(own: bool) -> None:
    """A message that is longer than a piece makes the following pieces larger, too; each offset is asked once."""
    long = pack([bytes(500)])
    with (
        Asked(ENTRY + long + ENTRY * 5, own=own) as made,
        consumer_of(made.broker, local="off", fetch_bytes=150) as consumer,
    ):
        assert len(list(consumer.messages("t", 0, 0))) == 7
        assert made.fetches[:4] == [(0, 150), (SIZE, 150), (SIZE, 510), (SIZE + 510, 510)]


# -- for how long ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wait", "most_ms", "sent"),
    [(0.0, 30_000, 0), (0.25, 30_000, 250), (4.999, 30_000, 4999), (5.0, 30_000, 5000), (9.0, 30_000, 5000),
     (9.0, 4000, 4000), (3.0, 4000, 3000)],
)  # fmt: skip
def test_a_wait_is_the_brokers_as_far_as_it_goes(
    monkeypatch: pytest.MonkeyPatch, wait: float, most_ms: int, sent: int
) -> None:
    """Up to five seconds at once, and up to what the broker allows; the first answer comes late, so one is enough."""
    now = [0.0]
    monkeypatch.setattr(reader_module, "time", _Clock(now))

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.HeldFetchRequest):
            asked.append(request.max_wait_ms)
            now[0] += max(0.5, wait)  # the broker's wait is over
            return wire07.encode_held_fetch(rs.HeldFetchAnswer(request.correlation_id, 0, 0, 0))
        if isinstance(request, rq.MetadataRequest):
            return _metadata(request.correlation_id, max_wait_ms=most_ms)
        return None

    asked: list[int] = []
    with with_log(b"", hook=hook) as fake, consumer_of(fake, local="off") as consumer:
        assert not consumer.fetch("t", 0, 0, wait=wait)
    assert asked == [sent]


class _Clock:
    """Time as far as the test lets it go on."""

    def __init__(self, now: list[float]) -> None:
        self._now = now

    def monotonic(self) -> float:
        return self._now[0]


@pytest.mark.parametrize("own", [True, False], ids=["without holding", "plain 0.7"])
def test_a_broker_that_holds_nothing_is_asked_with_growing_pauses(monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    """10 ms, doubled up to 250, and the last one ends when the wait is over."""
    now, pauses = [0.0], []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(reader_module, "time", _Clock(now))
    monkeypatch.setattr(reader_module, "pause", pause)

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.MetadataRequest):
            return _metadata(request.correlation_id, max_wait_ms=0) if own else None
        return None

    with Asked(b"", own=own) as made, consumer_of(made.broker, local="off") as consumer:
        note = made.broker.hook
        made.broker.hook = lambda request: hook(request) or (note and note(request))
        assert not consumer.fetch("t", 0, 0, wait=1.0)
    assert pauses == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16, 0.25, 0.25, 0.19])
    assert len(made.fetches) == len(pauses) + 1
    assert set(made.waits) <= {0}


def test_an_iteration_waits_in_steps_and_ends_when_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the last piece on; 0 and None are no waits of this kind."""
    now = [0.0]
    clock = _Clock(now)
    monkeypatch.setattr(walking, "time", clock)
    monkeypatch.setattr(reader_module, "time", clock)
    asked: list[int] = []

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.HeldFetchRequest) and request.offset == SIZE:
            asked.append(request.max_wait_ms)
            now[0] += request.max_wait_ms / 1000
            return wire07.encode_held_fetch(rs.HeldFetchAnswer(request.correlation_id, 0, SIZE, 0))
        return None

    with with_log(ENTRY, hook=hook) as fake, consumer_of(fake, local="off") as consumer:
        found = consumer.messages("t", 0, 0, wait=12.0)
        assert next(found).payload == PAYLOAD
        now[0] += 100.0  # what the program does with a piece is no wait
        assert list(found) == []
        assert asked == [5000, 5000, 2000]


def test_an_iteration_to_the_end_does_not_run_after_a_log_that_grows() -> None:
    """What had been appended when it first came to nothing is its end, whatever is appended while it is waited for."""
    asked = -1  # the first time it is to know what kind of topic it is

    def hook(request: rq.Request) -> bytes | None:
        nonlocal asked
        if isinstance(request, rq.MetadataRequest) and request.topics == ("t",):
            asked += 1
            if not asked:
                return None
            appended = len(fake.logs["t", 0]) + 3 * SIZE  # flushed one by one, each time somebody looks
            fake.logs["t", 0] += ENTRY if asked < 30 else b""
            known = rs.PartitionMetadata(0, rs.STATE_OK, 0, 0, appended)
            topics = (rs.TopicMetadata("t", 0, 1, (known,)),)
            values = (10**6, 10**8, 30_000, rq.LOWEST_OWN, rq.HIGHEST_OWN, topics)
            return rs.encode_metadata(rs.MetadataAnswer(request.correlation_id, 0, 0, "h", 1, *values))
        return None

    with with_log(ENTRY, hook=hook) as fake, consumer_of(fake, local="off", timeout=30.0) as consumer:
        found = list(consumer.messages("t", 0, 0, wait=0.0, fetch_bytes=SIZE))
    assert len(found) == 4 and asked <= 4


# -- what a broker offers --------------------------------------------------------------------------------------------


def _metadata(number: int, **fields: Any) -> bytes:
    values = {
        "max_message_bytes": 1000,
        "max_request_bytes": 10**8,
        "max_wait_ms": 30_000,
        "lowest_own_id": rq.LOWEST_OWN,
        "highest_own_id": rq.HIGHEST_OWN,
        **fields,
    }
    return rs.encode_metadata(rs.MetadataAnswer(number, 0, 0, "h", 1, **values))


class Says:
    """A broker that only says what it offers, and counts how often it is asked."""

    def __init__(self, answers: list[rs.MetadataAnswer | Exception | None]) -> None:
        self.answers = answers
        self.asked = 0

    def metadata_or_none(self, topics: tuple[str, ...]) -> rs.MetadataAnswer | None:
        assert topics == ()
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def said(**fields: Any) -> rs.MetadataAnswer:
    """An answer of a broker with all of fastlog's requests."""
    return rs.decode_metadata(_metadata(1, **fields)[4:])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"max_wait_ms": 100}, {"max_wait_ms": 100}),
        ({"max_wait_ms": 99}, {"max_wait_ms": 0}),
        ({"max_wait_ms": 0}, {"max_wait_ms": 0}),
        ({"max_message_bytes": 0}, {"max_message_bytes": 1}),
        ({"max_message_bytes": 100 * 2**20}, {"max_message_bytes": 100 * 2**20}),
        ({"max_message_bytes": 100 * 2**20 + 1}, {"max_message_bytes": 100 * 2**20}),
    ],
)
def test_an_offer_is_what_the_broker_says_within_sense(fields: dict[str, int], expected: dict[str, Any]) -> None:
    full = FetchOffer(True, True, True, 30_000, 1000, True)
    broker = Says([said(**fields)])
    offers = Offers(broker, None)  # type: ignore[arg-type]
    assert offers.get() == dataclasses.replace(full, **expected)
    assert offers.get() is offers.get() and broker.asked == 1


def test_a_request_is_offered_from_the_lowest_to_the_highest() -> None:
    for name, number in (("held_fetch", rq.HELD_FETCH), ("local_read", rq.LOCAL_READ), ("cut_points", rq.CUT_POINTS)):
        for low, high in ((0, number - 1), (0, number), (number, number), (number, 2000), (number + 1, 2000)):
            offers = Offers(Says([said(lowest_own_id=low, highest_own_id=high)]), None)  # type: ignore[arg-type]
            assert getattr(offers.get(), name) is (low <= number <= high), (name, low, high)


def test_an_offer_of_a_plain_broker_and_one_that_cannot_be_asked() -> None:
    broker = Says([TransportError("away"), None])
    offers = Offers(broker, None)  # type: ignore[arg-type]
    with pytest.raises(TransportError):
        offers.get()
    assert offers.get() == FetchOffer(False, False, False, 0, 1_000_000, False)
    assert broker.asked == 2
    assert Offers(Says([None]), 7).get().max_message_bytes == 7  # type: ignore[arg-type]
    assert Offers(Says([said()]), 2**30).get().max_message_bytes == 2**30  # type: ignore[arg-type]


# -- one connection, answers in order --------------------------------------------------------------------------------


def test_numbers_of_requests_go_on_and_an_answer_to_another_one_costs_the_connection() -> None:
    with Asked(ENTRY * 3) as made, consumer_of(made.broker, local="off") as consumer:
        for _ in range(3):
            consumer.fetch("t", 0, 0)
        assert made.ids == [1, 2, 3]

        def other(request: rq.Request) -> bytes | None:
            if isinstance(request, wire07.HeldFetchRequest):
                return wire07.encode_held_fetch(rs.HeldFetchAnswer(request.correlation_id - 1, 0, 0, 0, ENTRY))
            return None

        connections = len(made.broker._sockets)
        note, made.broker.hook = made.broker.hook, other
        for _ in range(2):
            with pytest.raises(ProtocolError, match=r"the answer to request \d says it is for"):
                consumer.fetch("t", 0, 0)
        made.broker.hook = note
        assert consumer.fetch("t", 0, SIZE).payloads() == [PAYLOAD] * 2
        assert made.ids[-1] == 6
        wait_until(lambda: len(made.broker._sockets) <= connections)


def multifetched(consumer: SimpleConsumer, *sizes: int) -> list[list[bytes]]:
    """The payloads of parts from the start of the log, of these sizes."""
    return [part.payloads() for part in consumer.multifetch([("t", 0, 0, size) for size in sizes])]


def test_a_part_is_fetched_again_alone_when_its_first_message_fills_it(own: bool) -> None:
    with Asked(ENTRY * 2, own=own) as made, consumer_of(made.broker, local="off") as consumer:
        assert multifetched(consumer, SIZE, SIZE + 1, 2 * SIZE) == [[PAYLOAD], [PAYLOAD], [PAYLOAD] * 2]
        assert made.fetches == []
        assert multifetched(consumer, SIZE, SIZE - 1, 2 * SIZE) == [[PAYLOAD], [PAYLOAD], [PAYLOAD] * 2]
        assert made.fetches == [(0, SIZE - 1), (0, 2 * SIZE - 2)]
        made.broker.logs["t", 0] = ENTRY[:-1]  # less than was asked for: the log has no more
        made.fetches.clear()
        (part,) = consumer.multifetch([("t", 0, 0, SIZE)])
        assert made.fetches == [] and part.valid_bytes == 0


def test_offsets_are_taken_up_to_as_many_as_were_asked_for() -> None:
    answer: list[int] = []

    def hook(request: rq.Request) -> bytes | None:
        return rs.encode_offsets(0, answer) if isinstance(request, rq.OffsetsRequest) else None

    with with_log(b"", hook=hook) as fake, consumer_of(fake) as consumer:
        for count, answer in ((0, []), (1, [0]), (2, [0]), (2, [5, 0]), (2, [2**63 - 1, 0])):
            assert consumer.get_offsets_before("t", 0, LATEST, count) == answer
        for count, wrong in ((0, [0]), (1, [5, 0]), (2, [5, -1]), (2, [-1, 5])):
            answer = wrong
            with pytest.raises(ProtocolError, match=rf"{count} offsets were asked for"):
                consumer.get_offsets_before("t", 0, LATEST, count)
        answer = [1]
        assert consumer.get_offsets_before("t", 0, LATEST) == [1]


@pytest.fixture
def crowded() -> Iterator[FakeBroker]:
    """A topic of a hundred partitions."""
    with FakeBroker(partitions=100) as fake:
        for number in range(100):
            fake.logs["t", number] = pack([b"%d" % number])
        yield fake


def test_how_partitions_were_read_is_kept_for_the_last_ones(crowded: FakeBroker) -> None:
    """Of the calls and of the iterations; what was forgotten is read all the same."""
    with consumer_of(crowded, local="off") as consumer:
        for number in range(66):
            assert consumer.fetch("t", number, 0).payloads() == [b"%d" % number]
            assert consumer.source_of("t", number) == ("socket", "not asked for")
        assert (
            len(consumer._messages._readers) == 64
            and ("t", 1) not in consumer._messages._readers
            and ("t", 2) in consumer._messages._readers
        )
        consumer.fetch("t", 2, 0)  # now it is not the oldest any more
        consumer.fetch("t", 0, 0)
        assert ("t", 2) in consumer._messages._readers and ("t", 3) not in consumer._messages._readers
        for number in range(66):
            assert list(consumer.payloads("t", number, 0)) == [b"%d" % number]
        assert len(consumer._iterated) == 64 and ("t", 1) not in consumer._iterated
