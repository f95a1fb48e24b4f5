"""How far a mirror of record batches is, as it stands beside an offset."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastlog.mirror.records.position import MOST_GAPS, MOST_SEAMS, Position, PositionError

SOURCE, TARGET = bytes(range(16)), bytes(range(16, 32))


def position(**changes: object) -> Position:
    values: dict[str, object] = {
        "source": SOURCE,
        "target": TARGET,
        "producer": 7,
        "epoch": 3,
        "count": 10,
        "target_offset": 40,
        "is_resting": False,
        "seams": ((0, 100), (12, 200)),
    }
    return Position(**{**values, **changes})  # type: ignore[arg-type]


def test_what_is_written_is_read_again() -> None:
    for resting in (False, True):
        made = position(is_resting=resting)
        assert Position.parse(40, made.text) == made
    assert position().text == (
        "fastlog-mirror 1 000102030405060708090a0b0c0d0e0f 101112131415161718191a1b1c1d1e1f 7 3 10 busy 0:100,12:100"
    )


def test_the_largest_text_is_shorter_than_a_broker_allows() -> None:
    most, count = 2**63 - 1, MOST_SEAMS + MOST_GAPS
    seams = tuple((most - 1000 * i, most - 10**12 * i) for i in reversed(range(count)))
    assert len(position(producer=most, epoch=32767, count=most, seams=seams).text) <= 4096


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no mirror has committed"),
        ("something else", "no mirror has committed"),
        ("fastlog-mirror", "later version"),
        ("fastlog-mirror 2 x", "later version"),
        (position().text + " more", "damaged"),
        (position().text.rpartition(" ")[0], "damaged"),
        (position().text.replace("busy", "idle"), "damaged"),
        (position().text.replace("12:", "12"), "damaged"),
        (position().text.replace(" 7 ", " x "), "damaged"),
        (position().text.replace(" 00", " 0g"), "damaged"),
    ],
)
def test_what_is_none_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(PositionError, match=complaint):
        Position.parse(1, text)


def test_offsets_follow_each_other_up_to_the_next_seam() -> None:
    made = position(seams=((5, 100), (12, 200)))
    assert [made.source_offset(number) for number in (5, 6, 11, 12, 13)] == [100, 101, 106, 200, 201]
    with pytest.raises(PositionError, match="4 records of this mirror"):
        made.source_offset(4)


def test_a_run_that_says_nothing_new_changes_nothing() -> None:
    made = position(seams=((0, 100), (12, 200), (20, 300)))
    assert made.with_run(22, 302, 9) is made
    assert made.with_run(5, 105, 7) is made, "it ends where the next one begins"
    assert made.with_run(12, 200, 8) is made
    assert made.with_run(22, 303, 1).seams == ((0, 100), (12, 200), (20, 300), (22, 303))


def test_a_run_that_says_something_else_of_records_ends_what_was_known_behind_them() -> None:
    made = position(seams=((0, 100), (12, 200), (20, 300)))
    assert made.with_run(12, 201, 1).seams == ((0, 100), (12, 201))
    assert made.with_run(5, 105, 8).seams == ((0, 100), (5, 105)), "one further than the next seam says"
    assert made.with_run(4, 105, 1).seams == ((0, 100), (4, 105))
    assert made.with_run(0, 1, 1).seams == ((0, 1),)
    assert position(seams=((5, 7),)).with_run(3, 5, 2).seams == ((3, 5),)
    same = position(seams=((0, 100), (3, 103), (9, 200)))
    assert same.with_run(1, 101, 8) is same, "what lies inside says the same"


def test_seams_that_are_of_no_use_any_more_go() -> None:
    made = position(seams=((0, 100), (12, 200), (20, 300)))
    assert made.at(11, 41, is_resting=True) == position(
        count=11, target_offset=41, is_resting=True, seams=((0, 100), (12, 200), (20, 300))
    )
    assert made.at(12, 42, is_resting=False).seams == ((12, 200), (20, 300))
    assert made.at(19, 49, is_resting=False).seams == ((12, 200), (20, 300))
    assert made.at(25, 55, is_resting=False).seams == ((20, 300),)


@pytest.mark.parametrize("count", [0, 1, 2**31 - 1, 2**31, 2**31 + 5, 5 * 2**31 + 17])
@pytest.mark.parametrize("more", [0, 1, 2, 2**31 - 1])
def test_records_are_counted_on_over_the_end_of_numbers(count: int, more: int) -> None:
    made = position(count=count)
    assert made.count_of((count + more - 1) % 2**31) == count + more
    # as they stand in a batch: its first number, and how many follow, not taken modulo anything
    assert made.count_of((count + more - 1) % 2**31 + 2**31) == count + more


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), max_size=40), st.integers(0, 60))
def test_each_record_is_found_where_it_was(steps: list[tuple[int, int]], counted: int) -> None:
    """Runs of records with gaps between them: whatever was trimmed, what is to come is found."""
    made = position(count=0, seams=((0, 0),))
    offsets: list[int] = []
    offset = 0
    for records, gap in steps:
        made = made.with_run(len(offsets), offset, records)
        offsets += range(offset, offset + records)
        offset += records + gap
    counted = min(counted, len(offsets))
    trimmed = made.at(counted, 0, is_resting=False)
    assert [trimmed.source_offset(number) for number in range(counted, len(offsets))] == offsets[counted:]
