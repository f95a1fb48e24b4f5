"""The state that the metadata log stands for: changes that come again, snapshots of it, and a log that was cut."""

from __future__ import annotations

from pathlib import Path

from fastlog import record_batches
from fastlog.log.files import FileOps
from fastlog.log.metadata import (
    CREATED,
    CREATING,
    DELETED,
    DELETING,
    TOPIC,
    Change,
    Metadata,
    Topic,
    producer_ids,
    read_metadata,
    records,
    topic_change,
)

ONE, OTHER = b"1" * 16, b"2" * 16


def state_of(*changes: Change) -> Metadata:
    state = Metadata()
    for change in changes:
        state.apply(change)
    return state


def test_changes_that_come_again_change_nothing() -> None:
    """Also those of a topic whose name another one has by now."""
    made = Topic("t", ONE, 2), Topic("t", OTHER, 3, {"retention.ms": "5"})
    former = [topic_change(kind, made[0]) for kind in (CREATING, CREATED, DELETING, DELETED)]
    later = [topic_change(CREATED, made[1]), producer_ids(2000)]
    state = state_of(*former, *later, former[2], former[3], producer_ids(1000))
    assert state == Metadata({"t": made[1]}, 2000)
    for change in [*former, *later]:
        state.apply(change)
    assert state == Metadata({"t": made[1]}, 2000)


def test_a_snapshot_says_all_and_what_stood_before_it_is_over() -> None:
    topics = [
        Topic("begun", ONE, 1, {"segment.bytes": "7"}, CREATING),
        Topic("going", OTHER, 2, {}, DELETING),
        Topic("there", b"3" * 16, 3, {"retention.ms": "5"}),
    ]
    expected = Metadata({topic.name: topic for topic in topics}, 3000)
    before = topic_change(CREATED, Topic("former", b"4" * 16, 1))
    assert state_of(before, *expected.changes()) == state_of(*expected.changes()) == expected


def test_behind_a_cut_nothing_counts(tmp_path: Path) -> None:
    """In whichever segment it is: a start removes all that lies behind it."""
    directory = tmp_path / f"{TOPIC}-0"
    directory.mkdir()
    batches = [
        record_batches.build(records([topic_change(CREATED, Topic(name, ONE, 1))], 1), base_offset=number)
        for number, name in enumerate("abcd")
    ]
    for base in (0, 2):
        (directory / f"{base:020}.log").write_bytes(batches[base] + batches[base + 1])
    found = [list(read_metadata([tmp_path], FileOps()).topics)]
    for base, size in ((2, len(batches[2]) + 20), (2, 0), (0, len(batches[0]) + 70)):
        data = batches[base] + batches[base + 1]
        (directory / f"{base:020}.log").write_bytes(data[:size])
        found.append(list(read_metadata([tmp_path], FileOps()).topics))
        (directory / f"{base:020}.log").write_bytes(data)
    assert found == [["a", "b", "c", "d"], ["a", "b", "c"], ["a", "b"], ["a"]]
