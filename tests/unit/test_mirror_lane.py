"""One partition on its way: what was acknowledged counts, in order, and nothing else."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from fastlog._segment import cut
from fastlog.client.addresses import Address
from fastlog.consumer._delivery import Place
from fastlog.consumer.partitions import TopicPartition
from fastlog.consumer.stream import Run
from fastlog.errors import FastlogError, MessageTooLargeError, TransportError
from fastlog.mirror import lane as lane_module
from fastlog.mirror.config import TargetConfig
from fastlog.mirror.lane import MessageLane, StoredRanges
from fastlog.mirror.pieces import MirrorPiece, TargetPartition
from fastlog.mirror.pipe import Pipe
from fastlog.mirror.source import place_of
from fastlog.producer.brokers import BrokerAddress, Directory
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from fastlog.zkpaths import PartitionId
from tests.harness import raw_format as raw
from tests.harness import wire07
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker

SOURCE = TopicPartition("t", PartitionId(0, 0))
START = 1000
PAYLOADS = [b"%03d" % number for number in range(20)]
SET = raw.message_set(PAYLOADS)
ENTRY = len(SET) // len(PAYLOADS)


class Way:
    """A lane, a pipe and a broker; ``told`` is what was told of pieces: offset, entries and error."""

    is_kept = True
    """What was acknowledged counts as consumed at once."""

    def __init__(self, broker: FakeBroker, *, bound: int = 10**9, skips: bool = False, **properties: str) -> None:
        self.told: list[tuple[int, int, FastlogError | None]] = []
        names = {name.replace("_", "."): value for name, value in properties.items()}
        target = TargetConfig.from_properties({"broker.list": f"0:127.0.0.1:{broker.port}", **names})
        address = BrokerAddress(0, Address("127.0.0.1", broker.port))
        self.pipe = Pipe(Directory(address, 5.0), target, lambda: None)
        self.lane = MessageLane(SOURCE, bound, self._done, {}, skips=skips)
        assert self.lane.assign(self.pipe, TargetPartition(0, 0))
        self.place = Place(SOURCE, START, by_hand=True)

    def _done(self, lane: MessageLane, piece: MirrorPiece, error: FastlogError | None) -> None:
        self.told.append((piece.offset, piece.entries, error))
        if self.is_kept:
            piece.place.done(piece.next_offset)

    def wait_wanted(self) -> None:
        """The lane takes the next run."""
        wait_until("the lane is open", lambda: self.lane.wants(self.place))

    def take(self, data: bytes = SET, offset: int = START) -> None:
        """Forward a run, once the lane takes one."""
        self.wait_wanted()
        self.lane.take(Run(self.place, offset, offset + len(data), memoryview(data), len(raw.entries(data)), 0))

    def wait_consumed(self, offset: int) -> None:
        """So much counts as consumed, and nothing is under way."""
        wait_until(
            f"consumed up to {offset}, not {self.place.consumed}",
            lambda: self.place.consumed == offset and not self.lane.is_under_way,
        )

    def resume(self) -> int:
        """Do as the mirror does: reposition a partition that waits; where it goes on."""
        wait_until("it may go on", lambda: self.lane.resume_at() is not None, 20.0)
        offset = self.lane.resume_at()
        assert offset is not None
        self.place.end()
        self.place = Place(SOURCE, offset, by_hand=True)
        return offset


@contextmanager
def way(broker: FakeBroker, **options: object) -> Iterator[Way]:
    """Ends what it started."""
    with broker:
        made = Way(broker, **options)  # type: ignore[arg-type]
        try:
            yield made
        finally:
            made.pipe.stop()
            made.pipe.join(10.0)


def refusing(word: bytes, code: int) -> Callable[[rq.Request], bytes | None]:
    """Answers each produce that has the word with the error."""

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest) and word in request.message_set:
            return wire07.encode_produce_ack(rs.ProduceAckAnswer(request.correlation_id, code, request.partition))
        return None

    return hook


@pytest.mark.parametrize("own", [True, False])
def test_bytes_arrive_as_they_are(own: bool) -> None:
    """Magic 0, magic 1 and a compressed set, in pieces of whole entries, to fastlog and to plain 0.7."""
    data = raw.message_set(PAYLOADS, 0) + raw.message_set(PAYLOADS, codec=raw.GZIP) + SET
    broker = FakeBroker(own=own)
    with way(broker, batch_bytes="40") as found:
        found.take(data)
        found.wait_consumed(START + len(data))
        assert [offset for offset, _, _ in found.told] == sorted(offset for offset, _, _ in found.told)
        assert sum(entries for _, entries, _ in found.told) == 41
        assert all(error is None for _, _, error in found.told)
    assert broker.logs["t", 0] == data


def test_pieces_are_what_the_broker_gets() -> None:
    broker = FakeBroker()
    with way(broker, batch_bytes="40") as found:
        found.take()
        found.wait_consumed(START + len(SET))
    assert b"".join(broker.sets) == SET == broker.logs["t", 0]
    assert {len(one) for one in broker.sets[:-1]} == {40 // ENTRY * ENTRY}


def test_what_the_target_takes_as_it_is_is_not_walked_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all there is to forward is of this kind; to the byte."""
    broker = FakeBroker(max_message_bytes=len(SET))
    with way(broker) as found:
        found.wait_wanted()
        with monkeypatch.context() as patch:
            patch.setattr(lane_module, "cut", walked)
            found.take()
        found.wait_consumed(START + len(SET))
        assert found.told == [(START, len(PAYLOADS), None)]
    assert broker.sets == [SET]


def walked(*arguments: object) -> list[tuple[int, int, bool]]:
    raise AssertionError("the entries are looked at")


def test_with_plain_07_nothing_counts_before_the_broker_has_handled_it() -> None:
    """It acknowledges nothing; the answer to a request behind the produce shows that it was handled."""
    goes_on = threading.Event()

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.OffsetsRequest):
            assert goes_on.wait(20)
        return None

    broker = FakeBroker(own=False, hook=hook)
    with way(broker) as found:
        found.take()
        wait_until("the produce was handled", lambda: broker.seen["ProduceRequest"] == 1)
        assert found.place.consumed == START
        assert found.lane.is_under_way
        goes_on.set()
        found.wait_consumed(START + len(SET))


def test_after_a_break_it_goes_on_behind_what_was_acknowledged() -> None:
    """The second of three pieces is stored and never answered: it is sent again, and so is the third."""
    breaks = [True]

    def after(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest) and PAYLOADS[7] in request.message_set and breaks:
            breaks.clear()
            raise ConnectionError
        return None

    broker = FakeBroker(after=after)
    third = len(SET) // 20 * 7
    with way(broker, batch_bytes=str(third)) as found:
        found.take()
        wait_until("it waits", lambda: found.lane.is_failed and not found.lane.is_under_way)
        assert found.place.consumed == START + third
        assert found.lane.doubtful in (7, 13)  # the third may not have been sent yet
        assert found.lane.error is not None
        assert not found.lane.wants(found.place)
        offset = found.resume()
        assert offset == START + third
        found.take(SET[third:], offset)
        found.wait_consumed(START + len(SET))
        assert found.lane.error is None
    assert broker.logs["t", 0].startswith(SET[: 2 * third])
    assert broker.logs["t", 0].endswith(SET[third:])


def test_what_was_acknowledged_twice_is_counted() -> None:
    """A partition that comes again from an older offset, as after a session that was lost."""
    with way(FakeBroker()) as found:
        found.take()
        found.wait_consumed(START + len(SET))
        found.place.end()
        found.place = Place(SOURCE, START + 15 * ENTRY, by_hand=True)
        found.take(SET[15 * ENTRY :] + SET, START + 15 * ENTRY)
        found.wait_consumed(START + 2 * len(SET))
        assert found.lane.repeated == 5


def test_what_was_refused_while_what_is_behind_it_was_stored_does_not_come_twice() -> None:
    """Of five pieces of four, the second and the fourth are refused once; then each entry is sent alone."""
    left = [PAYLOADS[5], PAYLOADS[13]]

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest) and left and left[0] in request.message_set:
            left.pop(0)
            return wire07.encode_produce_ack(rs.ProduceAckAnswer(request.correlation_id, 2, request.partition))
        return None

    broker = FakeBroker(hook=hook)
    with way(broker, batch_bytes=str(4 * ENTRY)) as found:
        found.take()
        wait_until("it waits", lambda: found.lane.is_failed and not found.lane.is_under_way)
        assert len(broker.logs["t", 0]) == 12 * ENTRY
        found.take(SET[4 * ENTRY :], found.resume())
        found.wait_consumed(START + len(SET))
        assert (found.lane.repeated, found.lane.doubtful) == (8, 0)
        found.place.end()
        found.place = Place(SOURCE, START, by_hand=True)
        found.take()
        found.wait_consumed(START + len(SET))
        assert (found.lane.repeated, found.lane.doubtful) == (28, 0)


def test_what_is_refused_again_and_again_takes_no_more_memory() -> None:
    stored, target = StoredRanges(), TargetPartition(0, 0)
    place = Place(SOURCE, START, by_hand=True)
    for _ in range(3):
        stored.refused(MirrorPiece(place, "t", START, memoryview(SET), 20, target, lambda piece, error: None))
    assert stored._holes == [(START, START + len(SET))]


def test_a_refused_message_stops_its_partition_just_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is before it is stored once, however often it is tried; what is behind it is not."""
    monkeypatch.setattr("fastlog.mirror.lane._REFUSED_PAUSE", 0.05)
    broker = FakeBroker(hook=refusing(PAYLOADS[5], 2))
    with way(broker) as found:
        for _ in range(2):
            offset = found.place.consumed
            found.take(SET[offset - START :], offset)
            wait_until("it waits", lambda: found.lane.is_failed and not found.lane.is_under_way)
            found.resume()
        assert found.place.consumed == START + 5 * ENTRY
        assert found.lane.repeated == 0
    assert broker.logs["t", 0] == SET[: 5 * ENTRY]


def test_behind_a_message_that_was_refused_alone_each_is_sent_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It came as a piece of its own; the next time it comes at the head of many."""
    monkeypatch.setattr("fastlog.mirror.lane._REFUSED_PAUSE", 0.05)
    refuse, sizes = refusing(PAYLOADS[0], 2), []

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest):
            sizes.append(len(request.message_set))
        return refuse(request)

    with way(FakeBroker(hook=hook)) as found:
        for data in (SET[:ENTRY], SET):
            found.take(data)
            wait_until("it waits", lambda: found.lane.is_failed and not found.lane.is_under_way)
            assert found.resume() == START
        assert set(sizes) == {ENTRY}


def test_a_refused_message_can_be_left_out() -> None:
    broker = FakeBroker(hook=refusing(PAYLOADS[5], 2))
    with way(broker, skips=True) as found:
        found.take()
        wait_until("it looks for the message", lambda: found.lane.is_failed and not found.lane.is_under_way)
        found.take(SET, found.resume())
        found.wait_consumed(START + len(SET))
        left_out = [(offset, entries) for offset, entries, error in found.told if error is not None]
        assert left_out == [(START + 5 * ENTRY, 1)]
    assert broker.logs["t", 0] == SET[: 5 * ENTRY] + SET[6 * ENTRY :]


def test_what_was_left_out_counts_as_done() -> None:
    """A commit is wanted for it, and nothing more is known of it."""
    with way(FakeBroker(hook=refusing(PAYLOADS[19], 2)), skips=True, bound=4 * 19 * ENTRY) as found:
        found.take()
        wait_until("it looks for the message", lambda: found.lane.is_failed and not found.lane.is_under_way)
        found.take(SET, found.resume())
        found.wait_consumed(START + len(SET))
        assert found.lane.wants_commit
        assert found.lane._stored._holes == []


@pytest.mark.parametrize("skips", [True, False])
def test_a_message_that_is_too_large_is_not_even_sent(skips: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker says what it takes. What is behind it comes again with it."""
    monkeypatch.setattr("fastlog.mirror.lane._REFUSED_PAUSE", 0.05)
    data = SET + raw.entry(bytes(500)) + SET
    broker = FakeBroker(max_message_bytes=400)
    with way(broker, skips=skips) as found:
        found.take(data)
        if skips:
            found.wait_consumed(START + len(data))
            assert [type(error) for _, _, error in found.told if error] == [MessageTooLargeError]
        else:
            wait_until("it waits", lambda: found.lane.is_failed and not found.lane.is_under_way)
            assert found.place.consumed == START + len(SET)
            assert isinstance(found.lane.error, MessageTooLargeError)
            assert found.resume() == START + len(SET)
            found.take(data[len(SET) :], START + len(SET))
            wait_until("it waits again", lambda: found.lane.is_failed and not found.lane.is_under_way)
    assert broker.logs["t", 0] == (SET + SET if skips else SET)


def test_a_full_disk_is_waited_for() -> None:
    """Error 103 stores nothing; the same run comes again."""
    full = [True]
    refuse = refusing(PAYLOADS[0], 103)
    broker = FakeBroker(hook=lambda request: refuse(request) if full else None)
    with way(broker) as found:
        found.take()
        wait_until("it waits", lambda: found.lane.is_failed and not found.lane.is_under_way)
        assert found.place.consumed == START
        full.clear()
        found.take(SET, found.resume())
        found.wait_consumed(START + len(SET))
        assert found.lane.repeated == found.lane.doubtful == 0
        assert found.lane._failures == 0, "the next one has the least pause again"
    assert broker.logs["t", 0] == SET


def test_it_goes_on_only_where_what_was_acknowledged_counts() -> None:
    """An observer has not kept it yet: read again from there, it would be sent twice."""
    full = [True]
    refuse = refusing(PAYLOADS[7], 103)
    broker = FakeBroker(hook=lambda request: refuse(request) if full else None)
    with way(broker, batch_bytes=str(7 * ENTRY)) as found:
        found.is_kept = False
        found.take()
        wait_until("it waits", lambda: found.lane.is_failed and not found.lane.is_under_way)
        assert found.place.consumed == START
        full.clear()
        assert not threading.Event().wait(0.1)  # longer than its pause
        assert found.lane.resume_at() is None
        found.place.done(START + 7 * ENTRY - 1)
        assert found.lane.resume_at() is None
        found.place.done(START + 7 * ENTRY)
        assert found.resume() == START + 7 * ENTRY


REASONS: dict[str, Callable[[MessageLane], object]] = {
    "it has not failed": lambda lane: setattr(lane, "_is_failed", False),
    "something is under way": lambda lane: setattr(lane, "_sent", deque([None])),
    "nothing was taken": lambda lane: setattr(lane, "place", None),
    "nobody sends": lambda lane: setattr(lane, "pipe", None),
    "no connection": lambda lane: setattr(lane, "pipe", SimpleNamespace(is_connected=False)),
    "what was acknowledged does not count yet": lambda lane: setattr(lane, "_settled_to", START + 1),
    "the partition is another's": lambda lane: lane.place and lane.place.end(),
    "its pause lasts": lambda lane: setattr(lane, "_retry_at", 50.25),
}


@pytest.mark.parametrize("reason", list(REASONS))
def test_each_reason_alone_keeps_a_lane_from_going_on(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on the moment its pause is over, when there is none of them."""
    monkeypatch.setattr(lane_module, "time", SimpleNamespace(monotonic=lambda: 50.0))
    lane = MessageLane(SOURCE, 10**9, lambda *_: None, {}, skips=False)
    lane._is_failed, lane._settled_to, lane._retry_at = True, START, 50.0
    lane.place = Place(SOURCE, START, by_hand=True)
    lane.pipe = cast(Pipe, SimpleNamespace(is_connected=True))
    assert lane.resume_at() == START
    REASONS[reason](lane)
    assert lane.resume_at() is None


def test_each_failure_in_a_row_doubles_the_pause_up_to_the_longest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once."""
    monkeypatch.setattr(lane_module, "time", SimpleNamespace(monotonic=lambda: 50.0))
    lane = MessageLane(SOURCE, 10**9, lambda *_: None, {}, skips=False)
    least, most = lane_module._LEAST_PAUSE, lane_module._MOST_PAUSE
    pauses = []
    for failures in (0, 1, 2, 20, 2000):
        lane._failures = failures
        lane._fail(TransportError("away\nfor now"))
        pauses.append(lane._retry_at - 50.0)
    assert pauses == pytest.approx([least, 2 * least, 4 * least, most, most])
    assert [record.getMessage() for record in caplog.records] == [f"waits {SOURCE} offset=-1: away for now"]


def test_it_goes_no_further_ahead_of_what_is_committed_than_it_may() -> None:
    with way(FakeBroker(), bound=len(SET)) as found:
        found.take()
        found.wait_consumed(START + len(SET))
        assert found.lane.wants_commit
        assert not found.lane.wants(found.place)
        found.lane.committed = START + ENTRY
        assert found.lane.wants(found.place)


def test_a_commit_is_wanted_for_what_was_acknowledged_alone() -> None:
    """However much was sent: before any of it counts a commit would save the same again."""
    bound = 400
    lane = MessageLane(SOURCE, bound, lambda *_: None, {}, skips=False)
    lane.place = Place(SOURCE, START, by_hand=True)
    lane.committed, lane._sent_to = START, START + bound
    found = []
    for lane._settled_to in (START, START + 1):
        found.append(lane.wants_commit)
    lane._sent_to -= 1
    for lane._settled_to in (START + bound // 4, START + bound // 4 + 1):
        found.append(lane.wants_commit)
    assert found == [False, True, False, True]


def test_a_run_that_comes_again_is_not_taken() -> None:
    """One from before the partition was repositioned, and one that was on its way when the lane had failed."""
    with way(FakeBroker()) as found:
        found.wait_wanted()
        late = Run(Place(SOURCE, START, by_hand=True), START, START + ENTRY, memoryview(SET)[:ENTRY], 1, 0)
        found.lane.take(late)
        found.lane._is_failed = True
        found.lane.take(Run(found.place, START, START + ENTRY, memoryview(SET)[:ENTRY], 1, 0))
        assert not found.lane.is_under_way
        found.lane._is_failed = False
        found.take()
        found.wait_consumed(START + len(SET))
        assert [offset for offset, _, _ in found.told] == [START]


def test_another_place_waits_for_what_is_under_way() -> None:
    """Nothing overtakes itself when the target gets more partitions."""
    goes_on = threading.Event()

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest):
            assert goes_on.wait(20)
        return None

    with way(FakeBroker(hook=hook, partitions=2)) as found:
        found.take()
        assert not found.lane.assign(found.pipe, TargetPartition(0, 1))
        assert not found.lane.wants(found.place)
        assert found.lane.assign(found.pipe, TargetPartition(0, 0)), "it stays where it was, after all"
        assert found.lane.wants(found.place)
        assert not found.lane.assign(found.pipe, TargetPartition(0, 1))
        goes_on.set()
        found.wait_consumed(START + len(SET))
        assert found.lane.assign(found.pipe, TargetPartition(0, 1))
        assert found.lane.wants(found.place)


def test_a_partition_that_was_repositioned_waits_for_what_is_under_way() -> None:
    """What comes from there would be settled in its place otherwise."""
    goes_on = threading.Event()

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest):
            assert goes_on.wait(20)
        return None

    with way(FakeBroker(hook=hook)) as found:
        found.take()
        elsewhere = Place(SOURCE, START + 5000, by_hand=True)
        assert not found.lane.wants(elsewhere)
        goes_on.set()
        found.wait_consumed(START + len(SET))
        assert found.lane.wants(elsewhere)


def test_partitions_go_to_those_of_their_number_and_are_spread_otherwise() -> None:
    places = [TargetPartition(1, 0), TargetPartition(1, 1), TargetPartition(2, 0)]
    assert [place_of(index, places) for index in range(3)] == places
    assert [place_of(index, places) for index in range(3, 6)] == places
    assert place_of(4, places[:1]) == places[0]


@pytest.mark.parametrize("max_bytes", [1, ENTRY, 3 * ENTRY - 1, 3 * ENTRY, 10**6])
def test_cut_makes_pieces_of_whole_entries(max_bytes: int) -> None:
    """As few as fit, in order, with nothing left out; a large one alone; ends before what is not whole."""
    large = raw.entry(bytes(300), 0)
    pieces = cut(SET + large + SET + SET[:5], max_bytes, 299)
    at, found = 0, []
    for end, entries, is_too_large in pieces:
        piece = (SET + large + SET)[at:end]
        assert len(raw.entries(piece)) == entries
        assert is_too_large == (piece == large)
        assert len(piece) <= max_bytes or entries == 1
        found.append(piece)
        at = end
    assert b"".join(found) == SET + large + SET
    assert all(len(one) + ENTRY > max_bytes for one in found[:-1] if one != large and not SET.endswith(one))
    assert cut(b"", max_bytes, 10) == []
