"""How far groups are behind, in bytes, as the table of segments tells."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fastlog.log.slots import Segment
from fastlog.workers.exposition import Sample
from fastlog.workers.group_board import GroupRow
from fastlog.workers.group_metrics import Positions, group_families


def view(visible_offset: int, visible_end: int, partition: int = 0) -> Any:
    return SimpleNamespace(
        topic="a", partition=partition, index=partition, visible_offset=visible_offset, visible_end=visible_end
    )


def segments(*marks: tuple[int, int]) -> list[Segment]:
    return [Segment(index, base, 0, 0, start) for index, (base, start) in enumerate(marks)]


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (5, 2_700),  # retention has passed it: all that is held
        (10, 2_700),
        (15, 2_200),  # the half of the first segment
        (20, 1_700),  # exactly at a border
        (21, 1_693),  # 10 of the 1,500 bytes of 200 records, rounded down
        (219, 208),
        (220, 200),
        (229, 20),
        (230, 0),
        (1_000, 0),  # a commit may lie above what can be read
    ],
)
def test_the_lag_in_bytes(offset: int, expected: int) -> None:
    held = segments((10, 300), (20, 1_300), (220, 2_800))
    assert Positions(view(230, 3_000), held).bytes_from(offset) == expected


def test_a_segment_above_what_can_be_read_counts_for_nothing() -> None:
    """The visible end lies behind the border that has just been made, or on it."""
    held = segments((0, 0), (100, 5_000), (150, 9_000))
    assert Positions(view(100, 5_000), held).bytes_from(50) == 2_500
    assert Positions(view(120, 6_000), held).bytes_from(110) == 500


def test_an_empty_partition_has_no_lag() -> None:
    assert Positions(view(7, 700), segments((7, 700))).bytes_from(7) == 0
    assert Positions(view(7, 700), []).bytes_from(3) == 0


def test_every_partition_is_looked_at_once_and_one_that_is_gone_not_at_all() -> None:
    looked: list[int] = []

    def table(of: Any) -> list[Segment]:
        looked.append(of.index)
        return segments((0, 0))

    rows = [
        GroupRow("one", 1, [("a", 0, 4), ("a", 9, 1)]),
        GroupRow("ahead", 0, [("a", 0, 12), ("a", 1, 5)]),  # of what can be read
        GroupRow("two", 0, [("a", 0, 10), ("a", 1, 5)]),
    ]
    families = {family.name: family for family in group_families(rows, [view(10, 100), view(10, 50, 1)], table)}
    assert looked == [0, 1]
    assert families["fastlog_consumergroup_lag_bytes"].samples == [
        Sample('{consumergroup="one",topic="a",partition="0"}', 60),
        Sample('{consumergroup="ahead",topic="a",partition="0"}', 0),
        Sample('{consumergroup="ahead",topic="a",partition="1"}', 25),
        Sample('{consumergroup="two",topic="a",partition="0"}', 0),
        Sample('{consumergroup="two",topic="a",partition="1"}', 25),
    ]
    assert [sample.value for sample in families["kafka_consumergroup_lag"].samples] == [6, 0, 5, 0, 5]
    assert [sample.value for sample in families["kafka_consumergroup_lag_sum"].samples] == [6, 5, 5]
    assert [sample.value for sample in families["kafka_consumergroup_current_offset"].samples] == [4, 1, 12, 5, 10, 5]
    assert families["kafka_consumergroup_members"].samples == [
        Sample('{consumergroup="one"}', 1),
        Sample('{consumergroup="ahead"}', 0),
        Sample('{consumergroup="two"}', 0),
    ]
