"""One partition of a mirror of record batches: what is sent when, and what has to be written down before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fastlog import record_batches
from fastlog.client.records import RecordsError
from fastlog.errors import InvalidMessageError, TransportError
from fastlog.mirror.records import lane as module
from fastlog.mirror.records.batches import numbered
from fastlog.mirror.records.finding import Rules, StandstillError
from fastlog.mirror.records.lane import RecordLane, Sent
from fastlog.mirror.records.position import MOST_SEAMS, Position
from fastlog.record_batches import Record
from tests.unit.test_mirror_batches import batch, compacted, records, resummed

SOURCE, TARGET = b"s" * 16, b"t" * 16


class Clock:
    """The time of lanes, which stands still."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def rules(**changes: object) -> Rules:
    given: dict[str, object] = {
        "fetch_bytes": 1 << 20,
        "most_bytes": 1 << 20,
        "begins_at_end": False,
        "appends_to_others": False,
        "leaves_out": False,
        "commit_seconds": 1.0,
    }
    return Rules(**{**given, **changes})  # type: ignore[arg-type]


def position(count: int = 0, target_offset: int = 0, seams: tuple[tuple[int, int], ...] = ((0, 0),)) -> Position:
    return Position(
        source=SOURCE, target=TARGET, producer=5, epoch=0,
        count=count, target_offset=target_offset, is_resting=True, seams=seams,
    )  # fmt: skip


def begun(**changes: object) -> RecordLane:
    made = RecordLane(("t", 1), rules(**changes))
    assert made.is_due(0.0)
    made.begin(position(), 0)
    return made


def take(lane: RecordLane, data: bytes, aborted: tuple[tuple[int, int], ...] = ()) -> None:
    lane.take(memoryview(data), aborted)


def keep(lane: RecordLane) -> Position:
    """Write down what is planned, as a worker does."""
    assert lane.position is not None
    made = lane.position_to_send
    lane.kept(made)
    return made


def all_sent(lane: RecordLane) -> list[Sent]:
    found = []
    while lane.may_send:
        found.append(lane.next_to_send())
    return found


def test_what_is_fetched_is_sent_once_it_is_written_down_and_the_first_one_alone(clock: Clock) -> None:
    lane = begun(most_bytes=len(batch(0, 2)))
    assert lane.is_ready
    assert not lane.has_plan
    assert not lane.may_send
    take(lane, batch(0, 6))
    assert lane.offset == 6
    assert lane.has_to_keep
    keep(lane)
    assert not lane.has_to_keep
    (first,) = all_sent(lane)
    assert (first.number, first.batch.records) == (0, 1)
    assert lane.has_plan
    assert lane.position_to_keep() is None, "what stands there is right until more is acknowledged"
    lane.acknowledged(first, 40)
    assert (lane.position.count, lane.position.target_offset) == (1, 41)
    rest = all_sent(lane)
    assert [one.number for one in rest] == [1, 2, 3, 4, 5], "now that the broker knows the producer"
    on_its_way = lane.position_to_keep()
    assert on_its_way is not None and (on_its_way.count, on_its_way.is_resting) == (1, False)
    for one in rest:
        lane.acknowledged(one, 40 + one.number)
    kept = lane.position_to_keep()
    assert kept is not None
    assert (kept.count, kept.target_offset, kept.is_resting) == (6, 46, True)
    lane.kept(kept)
    assert lane.position_to_keep() is None
    take(lane, batch(6, 1))
    assert lane.has_to_keep, "that nothing was on its way holds no more"


def test_after_a_while_the_first_one_goes_alone_again(clock: Clock) -> None:
    lane = begun(most_bytes=len(batch(0, 1)))
    take(lane, batch(0, 4))
    keep(lane)
    lane.acknowledged(lane.next_to_send(), 0)
    clock.now += module._KNOWN_SECONDS
    assert len(all_sent(lane)) == 1
    clock.now -= 0.001
    assert len(all_sent(lane)) == 2


def test_behind_a_new_beginning_the_first_one_goes_alone_again(clock: Clock) -> None:
    """The broker is perhaps another one, or the partition was made anew."""
    lane = begun(most_bytes=len(batch(0, 1)))
    take(lane, batch(0, 4))
    keep(lane)
    lane.acknowledged(lane.next_to_send(), 0)
    lane.again(None, 0.0)
    lane.begin(position(1, 1), 1)
    take(lane, batch(1, 3))
    keep(lane)
    assert len(all_sent(lane)) == 1


def test_a_gap_is_written_down_before_what_is_behind_it(clock: Clock) -> None:
    lane = begun()
    take(lane, batch(0, 3))
    keep(lane)
    lane.acknowledged(lane.next_to_send(), 0)
    take(lane, batch(3, 2))
    assert not lane.has_to_keep, "what follows without a gap needs nothing new"
    lane.acknowledged(lane.next_to_send(), 3)
    take(lane, batch(7, 2))
    assert lane.has_to_keep
    kept = keep(lane)
    assert kept.seams == ((5, 7),)
    assert not lane.has_to_keep
    lane.acknowledged(lane.next_to_send(), 5)
    assert lane.position is not None
    assert lane.position.seams == ((5, 7),)
    take(lane, compacted(9, (0, 4), 6))
    assert lane.offset == 15
    assert lane.has_to_keep
    assert keep(lane).seams == ((5, 7), (8, 13))
    lane.acknowledged(lane.next_to_send(), 7)
    take(lane, compacted(15, (2,), 3))
    assert keep(lane).seams == ((9, 17),)


def test_each_gap_inside_a_batch_is_written_down(clock: Clock) -> None:
    lane = begun()
    take(lane, compacted(2, (1, 3), 6))
    assert keep(lane).seams == ((0, 3), (1, 5))


def test_what_another_mirror_has_written_down_of_what_is_to_come_stays(clock: Clock) -> None:
    """A batch of its may come before the first one from here, and end where none of these does."""
    lane = RecordLane(("t", 1), rules())
    seams = ((0, 0), (3, 5), (6, 20), (9, 40))
    lane.begin(position(seams=seams), 0)
    take(lane, batch(0, 3) + batch(5, 1))
    assert keep(lane).seams == seams
    lane.acknowledged(lane.next_to_send(), 0)
    take(lane, batch(7, 1))
    assert keep(lane).seams == ((4, 7),), "the source has changed: what was known holds no more"


def test_so_many_gaps_as_a_text_can_have(clock: Clock) -> None:
    lane = begun()
    data = b"".join(batch(2 * number, 1, number % 2) for number in range(MOST_SEAMS + 20))
    take(lane, data)
    assert lane.position is not None
    assert len(lane.position.seams) == MOST_SEAMS
    assert lane.offset == 2 * MOST_SEAMS - 1
    assert len(keep(lane).text) < 4096


def test_what_lies_between_is_passed_over_without_a_word(clock: Clock) -> None:
    lane = begun()
    take(lane, compacted(0, (), 9))
    assert (lane.offset, lane.has_plan, lane.position_to_keep()) == (9, False, position())
    assert lane.error is None


def test_lag_is_what_is_not_acknowledged(clock: Clock) -> None:
    lane = RecordLane(("t", 1), rules())
    assert lane.lag is None
    lane.begin(position(3, 3), 3)
    assert lane.lag is None
    lane.end = 10
    assert lane.lag == 7
    take(lane, batch(3, 2))
    assert lane.lag == 7
    lane.acknowledged(lane.next_to_send(), 3)
    assert lane.lag == 5
    lane.end = 1
    assert lane.lag == 0


def test_after_a_failure_everything_is_found_out_anew_after_a_pause(clock: Clock) -> None:
    lane = begun()
    take(lane, batch(0, 3))
    keep(lane)
    lane.next_to_send()
    turn = lane.turn
    lane.again(TransportError("gone"))
    assert lane.turn == turn + 1
    assert (lane.position, lane.has_plan, lane.may_send, lane.is_ready) == (None, False, False, False)
    assert not lane.is_due(clock.now)
    assert lane.is_due(clock.now + module._LEAST_PAUSE)
    assert str(lane.error) == "topic t, partition 1: gone"
    pauses = []
    for _ in range(20):
        lane.again(None)
        pauses.append(next(ms for ms in range(2000) if lane.is_due(clock.now + ms / 1000)) / 1000)
    assert pauses[-1] > 0.7
    assert max(pauses) <= module._MOST_PAUSE
    lane.again(None, 7.0)
    assert not lane.is_due(clock.now + 6.9)
    assert lane.is_due(clock.now + 7.0)
    assert lane.error is not None, "a failure without a reason of its own keeps the last one"
    lane.begin(position(), 0)
    clock.now += 7.0
    take(lane, batch(0, 1))
    assert lane.has_to_keep, "who knows what stands there now"
    (sent,) = all_sent(lane)
    lane.acknowledged(sent, 0)
    assert lane.error is None
    lane.again(None)
    assert lane.is_due(clock.now + module._LEAST_PAUSE), "it has worked meanwhile"


def test_what_a_former_mirror_had_on_its_way_is_no_error_unless_it_goes_on(clock: Clock) -> None:
    lane = begun()
    for turn in range(8):
        if lane.position is None:
            lane.begin(position(), 0)
        clock.now += 10
        take(lane, batch(0, 1))
        lane.refused(lane.next_to_send(), 45)
        assert (lane.error is None) == (turn < module._QUIET_RETRIES), turn
    assert isinstance(lane.error, RecordsError)


def test_so_many_in_a_row_are_no_error_again_once_something_was_stored(clock: Clock) -> None:
    lane = begun()
    for _ in range(2):
        for _ in range(module._QUIET_RETRIES):
            take(lane, batch(0, 1))
            lane.refused(lane.next_to_send(), 45)
            assert lane.error is None
            clock.now += 10
            lane.begin(position(), 0)
        take(lane, batch(0, 1))
        lane.acknowledged(lane.next_to_send(), 0)
        lane.begin(position(), 0)


@pytest.mark.parametrize("code", [6, 7, 56])
def test_other_errors_are_tried_again_and_told(clock: Clock, code: int) -> None:
    lane = begun(leaves_out=True)
    take(lane, batch(0, 2))
    lane.refused(lane.next_to_send(), code)
    assert lane.position is None
    assert "target: " in str(lane.error)
    assert f"(error {code})" in str(lane.error)
    assert lane.left_out == []


def test_a_source_that_refuses_is_asked_again(clock: Clock) -> None:
    lane = begun()
    lane.refused_by_source(100)
    assert lane.position is None
    assert "source: the topic was deleted" in str(lane.error)


def test_what_is_too_large_comes_in_smaller_batches_and_alone_it_stops(clock: Clock) -> None:
    lane = begun()
    size = len(batch(0, 16))
    sizes = []
    for _ in range(20):
        take(lane, batch(0, 16))
        sent = lane.next_to_send()
        sizes.append(len(sent.batch.data))
        lane.refused(sent, 10)
        if lane.error is not None:
            break
        assert lane.is_due(clock.now)
        lane.begin(position(), 0)
    assert sizes[0] == size
    assert sizes == sorted(sizes, reverse=True)
    assert isinstance(lane.error, StandstillError)
    assert sent.batch.records == 1
    assert not lane.is_due(clock.now + 4.9)
    assert lane.is_due(clock.now + 5.0)


@pytest.mark.parametrize("code", [2, 18, 32, 87])
def test_one_that_is_refused_is_found_among_others_and_left_out(clock: Clock, code: int) -> None:
    lane = begun(leaves_out=True)
    take(lane, batch(0, 4))
    lane.refused(lane.next_to_send(), code)
    assert (lane.left_out, lane.error) == ([], None)
    lane.begin(position(), 0)
    take(lane, batch(0, 4) + batch(4, 2))
    keep(lane)
    first = lane.next_to_send()
    assert (first.number, first.batch.records) == (0, 1)
    lane.acknowledged(first, 0)
    second, third = lane.next_to_send(), lane.next_to_send()
    turn = lane.turn
    lane.refused(second, code)
    assert lane.turn == turn + 1, "what was sent behind it counts no more"
    assert third.turn == turn
    (error,) = lane.left_out
    assert "partition 1, offset 1" in str(error)
    assert (lane.offset, lane.has_plan) == (2, False)
    take(lane, batch(0, 4) + batch(4, 2))
    assert lane.has_to_keep
    assert keep(lane).seams == ((1, 2),)
    clock.now += module._KNOWN_SECONDS
    assert lane.may_send, "nothing is waited for, however long it takes"
    sent = []
    while lane.has_plan:
        sent.append(lane.next_to_send())
        lane.acknowledged(sent[-1], len(sent))
    assert [(one.number, one.batch.first, one.batch.next) for one in sent] == [(n, n + 1, n + 2) for n in range(1, 5)]
    take(lane, batch(6, 3))
    assert lane.next_to_send().batch.records == 3, "behind them all go together again"


def test_one_that_is_refused_stops_the_partition(clock: Clock) -> None:
    lane = begun()
    take(lane, batch(0, 1))
    lane.refused(lane.next_to_send(), 87)
    assert isinstance(lane.error, StandstillError)
    assert "tried again every 5 s" in str(lane.error)
    assert lane.left_out == []


def damaged(first: int, count: int) -> bytes:
    data = bytearray(batch(first, count))
    data[-1] ^= 1
    return bytes(data)


@pytest.mark.parametrize("leaves_out", [False, True])
def test_damage_stops_it_or_is_left_out(clock: Clock, leaves_out: bool) -> None:
    lane = begun(leaves_out=leaves_out)
    data = batch(0, 2) + damaged(2, 3) + batch(5, 1)
    take(lane, data)
    assert (lane.offset, lane.error) == (2, None)
    keep(lane)
    lane.acknowledged(lane.next_to_send(), 0)
    take(lane, data)
    assert lane.error is None
    assert lane.is_ready
    take(lane, data)
    if not leaves_out:
        assert lane.offset == 2
        assert "offset 2" in str(lane.error)
        assert isinstance(lane.error, InvalidMessageError)
        assert not lane.is_ready
        clock.now += 5.0
        assert lane.is_ready
        return
    assert (lane.offset, lane.error, len(lane.left_out)) == (5, None, 1)
    assert "offset 2" in str(lane.left_out[0])
    take(lane, data)
    assert keep(lane).seams == ((2, 5),)
    assert lane.next_to_send().batch.first == 5


def test_behind_damage_small_batches_are_put_together_again(clock: Clock) -> None:
    lane = begun(leaves_out=True)
    for _ in range(2):
        take(lane, damaged(0, 3))
    assert (lane.offset, len(lane.left_out)) == (3, 1)
    take(lane, batch(3, 1) + batch(4, 1))
    keep(lane)
    while lane.has_plan:
        lane.acknowledged(lane.next_to_send(), 0)
    take(lane, batch(5, 1) + batch(6, 1))
    assert lane.next_to_send().batch.records == 2


def test_damage_inside_compressed_bytes_is_found_among_small_ones(clock: Clock) -> None:
    lane = begun(leaves_out=True)
    bad = bytearray(batch(1, 1, 1))
    bad[61:] = b"\xff" * (len(bad) - 61)
    data = batch(0, 1, 1) + resummed(bad) + batch(2, 1, 1)
    take(lane, data)
    assert (lane.offset, lane.has_plan) == (0, False)
    take(lane, data)
    numbers = [one.batch.first for one in all_sent(lane)]
    assert numbers == [0]
    assert lane.offset == 3, "a batch that goes as it is is not opened: the target refuses it"


def test_a_part_of_a_batch_is_asked_for_again(clock: Clock) -> None:
    lane = begun()
    take(lane, batch(0, 3)[:-1])
    assert (lane.offset, lane.error, lane.has_plan, lane.is_ready) == (0, None, False, True)


def test_numbers_and_records_belong_together_whatever_comes(clock: Clock) -> None:
    """A batch that is sent says with its number which records it has."""
    lane = begun()
    everything = records(0, 12)
    take(lane, batch(0, 5) + batch(5, 7, 1))
    keep(lane)
    got: dict[int, Record] = {}
    while lane.has_plan:
        sent = lane.next_to_send()
        data = numbered(sent.batch, 1, 0, sent.number)
        for number, record in enumerate(record_batches.records(data), sent.number):
            got[number] = record._replace(offset=-1)
        lane.acknowledged(sent, sent.number)
    assert [got[number] for number in sorted(got)] == everything
