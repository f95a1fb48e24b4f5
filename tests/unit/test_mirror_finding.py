"""Where a partition goes on, and a model: whatever is late, lost or killed, each record of the source comes once."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fastlog import record_batches
from fastlog.client.group_requests import Committed
from fastlog.client.record_fetching import Batches
from fastlog.client.records import EARLIEST
from fastlog.errors import TransportError
from fastlog.mirror.records.batches import numbered
from fastlog.mirror.records.finding import StandstillError, find
from fastlog.mirror.records.lane import RecordLane, Sent
from fastlog.mirror.records.position import Position, PositionError
from fastlog.record_batches import BatchHeader, Record
from tests.unit.test_mirror_batches import batch, compacted
from tests.unit.test_mirror_record_lane import SOURCE, TARGET, rules

PLACE = ("t", 1)
PRODUCER = (5, 0)
OUT_OF_SEQUENCE = 45


@dataclass
class Side:
    """One partition of a cluster, as ``find`` asks for it: whole batches with their offsets in place."""

    id: bytes
    batches_held: list[bytes] = field(default_factory=list)
    start: int = 0
    end: int = 0

    def topic(self, name: str) -> Any:
        return SimpleNamespace(id=self.id)

    def offset(self, place: object, time_ms: int) -> int:
        return self.start if time_ms == EARLIEST else self.end

    def batches(self, place: object, offset: int, max_bytes: int) -> Batches:
        return Batches(0, self.end, self.start, memoryview(self.data(offset, 3)))

    def data(self, offset: int, most: int = 10**6) -> bytes:
        """What a fetch from there gets, so many batches at most."""
        found = [held for held in self.batches_held if BatchHeader.parse(held).next_offset > offset]
        return b"".join(found[:most])

    def add(self, data: bytes) -> None:
        """A batch that has its offsets already."""
        self.batches_held.append(data)
        self.end = BatchHeader.parse(data).next_offset


@dataclass
class Target(Side):
    """A partition that takes numbered batches as brokers do; others write to it, too."""

    last: dict[int, int] = field(default_factory=dict)

    def append(self, data: bytearray) -> tuple[int, int]:
        """An error code and an offset."""
        header = BatchHeader.parse(data)
        if header.producer_id >= 0:
            known = self.last.get(header.producer_id)
            if known is not None and header.base_sequence != (known + 1) % 2**31:
                return OUT_OF_SEQUENCE, -1
            self.last[header.producer_id] = (header.base_sequence + header.last_offset_delta) % 2**31
        placed = bytearray(data)
        placed[:8] = self.end.to_bytes(8, "big")
        self.add(bytes(placed))
        return 0, header.record_count and self.end - header.record_count

    def records(self) -> list[Record]:
        """Those that are the mirror's."""
        held = [data for data in self.batches_held if BatchHeader.parse(data).producer_id == PRODUCER[0]]
        return [record._replace(offset=-1) for data in held for record in record_batches.records(data)]


@dataclass
class Group:
    """What is written down."""

    group: str = "g"
    kept: Committed | None = None

    def committed(self, places: Iterable[object]) -> dict[Any, Committed]:
        return {} if self.kept is None else {PLACE: self.kept}

    def keep(self, position: Position) -> None:
        self.kept = Committed(position.target_offset, position.text)


def found(source: Side, target: Side, group: Group, **changes: object) -> tuple[Position, int]:
    return find(PLACE, cast("Any", source), cast("Any", target), cast("Any", group), PRODUCER, rules(**changes))


def kept(**changes: object) -> Group:
    given: dict[str, Any] = {
        "source": SOURCE, "target": TARGET, "producer": 5, "epoch": 0,
        "count": 4, "target_offset": 6, "is_resting": False, "seams": ((0, 10),),
    }  # fmt: skip
    group = Group()
    group.keep(Position(**{**given, **changes}))
    return group


def own(first: int, count: int, sequence: int, producer: int = 5, epoch: int = 0) -> bytes:
    return batch(first, count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def target(*held: bytes, start: int = 0, end: int = 0) -> Target:
    made = Target(TARGET, start=start, end=end)
    for data in held:
        made.add(data)
    return made


SOURCE_SIDE = Side(SOURCE, start=3, end=100)


@pytest.mark.parametrize(("at_end", "begin"), [(False, 3), (True, 100)])
def test_a_new_partition_begins_where_it_is_told(at_end: bool, begin: int) -> None:
    position, offset = found(SOURCE_SIDE, target(), Group(), begins_at_end=at_end)
    assert offset == begin
    assert (position.count, position.target_offset, position.seams) == (0, 0, ((0, begin),))
    assert (position.producer, position.epoch, position.source, position.target) == (5, 0, SOURCE, TARGET)
    assert position.is_resting


def test_records_of_others_are_not_taken_for_the_sources() -> None:
    with pytest.raises(StandstillError, match=r"has 8 records here, and the group 'g' has no position"):
        found(SOURCE_SIDE, target(end=8), Group())
    position, offset = found(SOURCE_SIDE, target(end=8), Group(), appends_to_others=True)
    assert (position.target_offset, offset) == (8, 3)
    # the same where the topic was made anew in the target
    with pytest.raises(StandstillError):
        found(SOURCE_SIDE, target(end=8), kept(target=b"x" * 16))
    assert found(SOURCE_SIDE, target(), kept(target=b"x" * 16))[1] == 3


def test_what_came_behind_the_position_is_counted() -> None:
    held = (own(6, 2, 4), batch(8, 3), own(11, 1, 6, producer=9), own(12, 2, 6, epoch=1), own(14, 3, 6))
    position, offset = found(SOURCE_SIDE, target(*held), kept())
    assert (position.count, position.target_offset, offset, position.is_resting) == (9, 17, 19, False)
    position, offset = found(SOURCE_SIDE, target(batch(6, 1)), kept(is_resting=True))
    assert (position.count, position.target_offset, offset, position.is_resting) == (4, 7, 14, True)
    assert not found(SOURCE_SIDE, target(own(6, 1, 4)), kept(is_resting=True))[0].is_resting
    # what lies before the position in the same fetch is counted already
    assert found(SOURCE_SIDE, target(own(2, 4, 0), own(6, 1, 4)), kept())[0].count == 5


def test_a_count_beyond_the_end_of_numbers() -> None:
    group = kept(count=2**31 - 1, seams=((0, 10),))
    source = Side(SOURCE, end=2**40)
    assert found(source, target(own(6, 3, 2**31 - 1)), group)[0].count == 2**31 + 2
    assert found(source, target(own(6, 3, 2**31 - 1), own(9, 1, 2)), group)[0].count == 2**31 + 3


def test_a_gap_in_the_source_is_known() -> None:
    group = kept(seams=((0, 10), (5, 40)))
    assert found(SOURCE_SIDE, target(end=6), group)[1] == 14
    assert found(SOURCE_SIDE, target(own(6, 1, 4)), group)[1] == 40
    assert found(SOURCE_SIDE, target(own(6, 3, 4)), group)[1] == 42


def test_what_was_lost_is_told() -> None:
    with pytest.raises(StandstillError, match=r"ends at offset 5, and had acknowledged everything before 6"):
        found(SOURCE_SIDE, target(end=5), kept())
    with pytest.raises(StandstillError, match=r"source ends at offset 13, and all before 14"):
        found(Side(SOURCE, end=13), target(end=6), kept())
    assert found(Side(SOURCE, end=14), target(end=6), kept())[1] == 14
    position, offset = found(Side(SOURCE, start=20, end=30), target(end=6), kept())
    assert (offset, position.source_offset(4)) == (20, 20)
    assert found(Side(SOURCE, start=14, end=30), target(end=6), kept())[0].seams == ((0, 10),)


def test_a_source_made_anew_is_mirrored_from_its_beginning() -> None:
    position, offset = found(Side(b"n" * 16, start=1, end=5), target(end=6), kept())
    assert (offset, position.source, position.source_offset(4)) == (1, b"n" * 16, 1)


def test_a_target_whose_retention_was_faster_than_a_mirror_that_was_killed() -> None:
    with pytest.raises(StandstillError, match="nothing before offset 9 any more"):
        found(SOURCE_SIDE, target(start=9, end=9), kept())
    assert found(SOURCE_SIDE, target(start=9, end=9), kept(is_resting=True))[1] == 14
    assert found(SOURCE_SIDE, target(own(9, 2, 7), start=9), kept())[0].count == 9
    assert found(SOURCE_SIDE, target(start=6, end=6), kept())[1] == 14


def test_a_target_that_shows_less_than_it_says_is_asked_again() -> None:
    with pytest.raises(TransportError, match="nothing at offset 6, and ends at 9"):
        found(SOURCE_SIDE, target(end=9), kept())
    cut = target(own(6, 2, 4)[:-1], end=8)
    cut.end = 8
    with pytest.raises(TransportError, match="does not show what it has at offset 6"):
        found(SOURCE_SIDE, cut, kept())


def test_an_offset_that_is_no_mirrors_is_not_taken_for_one() -> None:
    with pytest.raises(PositionError):
        found(SOURCE_SIDE, target(), Group(kept=Committed(1, "")))


# -- the model ---------------------------------------------------------------------------------------------------------


def made_source(source: random.Random, batches: int) -> tuple[Side, list[Record]]:
    """A partition with gaps between batches and in them, and its records."""
    made = Side(SOURCE)
    offset = 0
    everything: list[Record] = []
    for _ in range(batches):
        offset += source.choice((0, 0, 0, 1, 5))
        count = source.randrange(1, 6)
        places = sorted(source.sample(range(count), source.randrange(count + 1)))
        if source.random() < 0.6:
            data = batch(offset, count, source.choice((0, 0, 1)))
            places = list(range(count))
        else:
            data = compacted(offset, places, count)
        made.add(data)
        whole = batch(offset, count)
        everything += [record for n, record in enumerate(record_batches.records(whole)) if n in places]
        offset += count
    return made, [record._replace(offset=-1) for record in everything]


class Model:
    """A mirror of one partition that dies anywhere; what it has sent may come late, or never."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.source, self.records = made_source(self.random, 30)
        self.target = Target(TARGET)
        self.group = Group()
        self.late: list[list[bytearray]] = []
        """By connection: what was sent and has not come; it comes in its order, or the connection ends."""

    def step_of_the_network(self) -> None:
        for connection in list(self.late):
            if self.random.random() < 0.5 and connection:
                self.target.append(connection.pop(0))
            if not connection or self.random.random() < 0.1:
                self.late.remove(connection)

    def live(self, most_bytes: int) -> bool:
        """One life of a mirror; whether it came to the end."""
        chance = self.random.random
        lane = RecordLane(PLACE, rules(most_bytes=most_bytes))
        for _ in range(200):
            if lane.position is None:
                lane.begin(*found(self.source, self.target, self.group))
            if lane.offset >= self.source.end:
                return True
            lane.take(memoryview(self.source.data(lane.offset, self.random.randrange(1, 6))), ())
            if lane.has_to_keep:
                if chance() < 0.1:
                    return False
                position = lane.position_to_send
                self.group.keep(position)
                if chance() < 0.1:
                    return False
                lane.kept(position)
            self.step_of_the_network()
            if not self.send(lane):
                return False
            known = lane.position_to_keep()
            if known is not None and chance() < 0.3:
                self.group.keep(known)
                lane.kept(known)
        return False

    def send(self, lane: RecordLane) -> bool:
        """Send what is planned; False: it was killed meanwhile."""
        while lane.has_plan:
            sent: list[Sent] = []
            while lane.may_send and len(sent) < 5:
                sent.append(lane.next_to_send())
            assert lane.position is not None
            connection = [numbered(one.batch, lane.position.producer, lane.position.epoch, one.number) for one in sent]
            for one in sent:
                if self.random.random() < 0.07:  # killed, or the connection is gone for this mirror
                    self.late.append(connection)
                    return False
                self.step_of_the_network()
                code, offset = self.target.append(connection.pop(0))
                if one.turn != lane.turn:
                    continue  # it may be taken where what had been missing came meanwhile
                if code:
                    lane.refused(one, code)
                    lane.position = None
                else:
                    lane.acknowledged(one, offset)
                if self.random.random() < 0.1:
                    self.target.append(bytearray(batch(0, 1)))  # somebody else's
        return True


@pytest.mark.parametrize("block", range(10))
def test_each_record_comes_once_whatever_is_late_lost_or_killed(block: int) -> None:
    for seed in range(40 * block, 40 * block + 40):
        model = Model(seed)
        lives = 0
        while not model.live(model.random.choice((120, 300, 10**6))):
            lives += 1
            assert lives < 500, f"seed {seed}"
        while model.late:
            model.step_of_the_network()
        assert model.target.records() == model.records, f"seed {seed}, {lives} lives"
