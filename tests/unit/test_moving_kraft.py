"""Apache Kafka's metadata log: its records, its snapshots, and what a controller begins with."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from fastlog.errors import CorruptLogError, LogError
from fastlog.log.files import FileOps
from fastlog.moving.kraft_log import bootstrap_with, read_bootstrap, read_kraft_state
from fastlog.moving.kraft_records import (
    KraftState,
    NewTopic,
    Partition,
    broker_record,
    producer_ids_record,
    topic_records,
)
from tests.harness import kafka_house as house
from tests.harness.kafka_house import ints, topic_id_of

FILES = FileOps()
ID, OTHER = topic_id_of("t"), topic_id_of("u")

# What kafka-storage of Apache Kafka 4.2.0 wrote: a control batch, features, a control batch.
FORMATTED_BY_4_2 = bytes.fromhex(
    "0000000000000000000000470000000002a2e3ee38002000000000000001a20df1eb6b000001a20df1eb6bffffffffffffffffff"
    "ffffffffff000000012a0000000800000003160000000000000000000000000000000000000001000000f1000000000286ad7bb4"
    "000000000005000001a20df1ec28000001a20df1ec28ffffffffffffffffffffffffffff000000063a000000012e010c00116d65"
    "7461646174612e76657273696f6e001d00005a000002014e010c0021656c696769626c652e6c65616465722e7265706c69636173"
    "2e76657273696f6e00010000340000040128010c000e67726f75702e76657273696f6e00010000340000060128010c000e736861"
    "72652e76657273696f6e0001000038000008012c010c001073747265616d732e76657273696f6e000100004000000a0134010c00"
    "147472616e73616374696f6e2e76657273696f6e0002000000000000000000070000003f000000000293ab54c700200000000000"
    "0001a20df1ec48000001a20df1ec48ffffffffffffffffffffffffffff000000011a00000008000000040600000000"
)


def after(*values: bytes) -> KraftState:
    state = KraftState()
    for value in values:
        state.apply(value)
    return state


# -- records -----------------------------------------------------------------------------------------------------------


def test_topics_partitions_and_settings_are_what_the_records_say() -> None:
    state = after(
        house.topic_record("t", ID),
        house.partition_record(ID, 0, replicas=(1, 2, 3), in_sync=(1, 3), epoch=4),
        house.partition_record(ID, 1, version=0, epoch=9),
        house.setting_record(2, "t", "retention.ms", "5"),
        house.setting_record(2, "t", "segment.ms", "6"),
        house.setting_record(2, "t", "segment.ms", None),
        house.setting_record(4, "", "log.retention.ms", "7"),
        house.setting_record(4, "1", "log.cleaner.threads", "2"),
        house.setting_record(32, "group", "consumer.session.timeout.ms", "9"),
        house.feature_record("metadata.version", 29),
        house.producer_ids_record(2000),
    )
    (topic,) = state.topics.values()
    assert (topic.name, topic.topic_id) == ("t", ID)
    assert topic.partitions == {0: Partition((1, 2, 3), (1, 3), 4), 1: Partition((1,), (1,), 9)}
    assert state.topic_settings == {"t": {"retention.ms": "5"}}
    assert state.broker_settings == {"": {"log.retention.ms": "7"}, "1": {"log.cleaner.threads": "2"}}
    assert (state.features, state.next_producer_id) == ({"metadata.version": 29}, 2000)


def test_a_change_moves_what_it_names_and_another_leader_is_another_epoch() -> None:
    state = after(house.topic_record("t", ID), house.partition_record(ID, 0, replicas=(1, 2), epoch=4))
    partition = state.topics[ID].partitions[0]
    state.apply(house.change_record(ID, 0, in_sync=ints([2])))
    assert partition == Partition((1, 2), (2,), 4)
    state.apply(house.change_record(ID, 0, leader=struct.pack(">i", -1)))
    assert partition == Partition((1, 2), (2,), 5)
    state.apply(house.change_record(ID, 0, replicas=ints([2, 3]), leader=struct.pack(">i", 2), in_sync=ints([2, 3])))
    assert partition == Partition((2, 3), (2, 3), 6)
    state.apply(house.change_record(OTHER, 0, leader=struct.pack(">i", 1)))
    state.apply(house.change_record(ID, 7, leader=struct.pack(">i", 1)))
    state.apply(house.partition_record(OTHER, 0))
    assert state.topics[ID].partitions == {0: Partition((2, 3), (2, 3), 6)}


def test_a_topic_that_is_deleted_goes_with_its_settings() -> None:
    state = after(
        house.topic_record("t", ID),
        house.topic_record("u", OTHER),
        house.setting_record(2, "t", "retention.ms", "5"),
        house.setting_record(2, "u", "retention.ms", "6"),
        house.topic_deleted_record(ID),
        house.topic_deleted_record(topic_id_of("nobody")),
    )
    assert [topic.name for topic in state.topics.values()] == ["u"]
    assert state.topic_settings == {"u": {"retention.ms": "6"}}


@pytest.mark.parametrize(("end", "names"), [(24, ["t", "u"]), (25, ["u"]), (None, [])])
def test_a_transaction_counts_when_it_has_ended(end: int | None, names: list[str]) -> None:
    """What was aborted never was, and neither was what has no end."""
    state = after(house.frame(23, 0, b""), house.topic_record("t", ID))
    assert not state.topics
    if end is not None:
        state.apply(house.frame(end, 0, b""))
        state.apply(house.topic_record("u", OTHER))
    assert [topic.name for topic in state.topics.values()] == names


def test_other_kinds_are_passed_over_in_any_version() -> None:
    state = after(bytes([1, 27, 99]) + b"whatever", bytes([1, 20, 0, 0]))
    assert state == KraftState() and (state.topics, state.next_producer_id) == ({}, 0)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (bytes([2, 2, 0]), "another frame"),
        (bytes([1, 2, 1]), "of kind 2 of a newer version"),
        (bytes([1, 3, 3]), "of kind 3 of a newer version"),
        (bytes([1, 24, 1]), "of kind 24 of a newer version"),
        (bytes([1, 2, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1]), "a length that is none"),
        (bytes([1, 2, 0, 2, 0xFF]), "not UTF-8"),
        (bytes([1, 3, 1]) + bytes(4) + ID + b"\x7f", "more than it holds"),
    ],
)
def test_what_is_not_understood_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(LogError, match=reason):
        after(house.topic_record("t", ID), data)


@pytest.mark.parametrize(
    "whole",
    [
        house.topic_record("topic", ID),
        house.partition_record(ID, 0, replicas=(1, 2)),
        house.change_record(ID, 0, in_sync=ints([2, 3])),
        house.setting_record(2, "t", "a", "b"),
        house.producer_ids_record(5),
        house.feature_record("f", 3),
        house.topic_deleted_record(ID),
    ],
)
def test_a_record_that_is_cut_short_is_refused(whole: bytes) -> None:
    """At each byte, up to where only what is not looked at follows."""
    known = [house.topic_record("t", ID), house.partition_record(ID, 0)]
    changed = after(*known, whole)
    ends = 0
    for end in range(len(whole)):
        try:
            assert after(*known, whole[:end]) == changed
            ends += 1
        except LogError as error:
            assert "cut short" in str(error) or "more than it holds" in str(error)
            assert not ends
    assert ends <= 38  # the epoch of a partition, its directories, no tags


def test_what_is_written_is_what_kafka_reads() -> None:
    """Field by field, beside an encoder of the test's own."""
    directory = bytes(range(16))
    new = NewTopic("t" * 200, ID, {1: 0, 0: 7}, {"retention.ms": "5", "cleanup.policy": "compact"})
    found = topic_records(new, 3, directory)
    assert found[0] == house.topic_record("t" * 200, ID)
    assert found[1:3] == [
        house.partition_record(ID, number, replicas=(3,), leader=-1, epoch=epoch, directory=directory)
        for number, epoch in ((0, 7), (1, 0))
    ]
    assert found[3:] == [
        house.setting_record(2, "t" * 200, "cleanup.policy", "compact"),
        house.setting_record(2, "t" * 200, "retention.ms", "5"),
    ]
    body = struct.pack(">i?16xq", 3, False, 1) + b"\1\1\0\1\0"
    assert broker_record(3, directory, 1) == house.frame(0, 3, body, {0: b"\2" + directory})
    assert producer_ids_record(3, 500) == house.frame(15, 0, struct.pack(">iqq", 3, 0, 500))


# -- the log -----------------------------------------------------------------------------------------------------------


def log_of(tmp_path: Path) -> Path:
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    return directory


def test_without_a_metadata_log_nothing_is_known(tmp_path: Path) -> None:
    assert read_kraft_state(tmp_path, FILES) is None


def test_the_log_is_read_from_its_newest_snapshot_on(tmp_path: Path) -> None:
    directory = log_of(tmp_path)
    (directory / f"{5:020}-{1:010}.checkpoint").write_bytes(house.checkpoint_of([house.topic_record("old", OTHER)]))
    (directory / f"{7:020}-{1:010}.checkpoint").write_bytes(house.checkpoint_of([house.topic_record("t", ID)]))
    (directory / f"{9:020}-{1:010}.checkpoint.part").write_bytes(b"not whole")
    (directory / f"{0:020}.log").write_bytes(
        house.batch_of([house.setting_record(2, "t", "a", "stale")] * 6, 0)
        + house.batch_of([house.setting_record(2, "t", "b", "stale")], 6)
    )
    (directory / f"{7:020}.log").write_bytes(
        house.batch_of([b"a leader"], 7, is_control=True)
        + house.batch_of([house.setting_record(2, "t", "c", "kept"), house.partition_record(ID, 0)], 8)
    )
    state, end = read_kraft_state(tmp_path, FILES) or (None, 0)
    assert state is not None
    assert ([topic.name for topic in state.topics.values()], end) == (["t"], 10)
    assert state.topic_settings == {"t": {"c": "kept"}}
    assert list(state.topics[ID].partitions) == [0]


def test_a_snapshot_alone_says_where_it_ends(tmp_path: Path) -> None:
    directory = log_of(tmp_path)
    (directory / f"{7:020}-{2:010}.checkpoint").write_bytes(house.checkpoint_of([house.topic_record("t", ID)]))
    assert (read_kraft_state(tmp_path, FILES) or (None, 0))[1] == 7


def test_a_damaged_log_is_named(tmp_path: Path) -> None:
    path = log_of(tmp_path) / f"{0:020}.log"
    whole = house.batch_of([house.topic_record("t", ID)], 0)
    path.write_bytes(whole + house.batch_of([bytes([1, 2, 9])], 1))
    with pytest.raises(LogError, match=rf"kind 2 of a newer version.*path={path} position={len(whole)}"):
        read_kraft_state(tmp_path, FILES)
    path.write_bytes(whole[:-1] + b"?")
    with pytest.raises(CorruptLogError, match="a wrong checksum"):
        read_kraft_state(tmp_path, FILES)


# -- the beginning of a controller -------------------------------------------------------------------------------------


def test_what_kafka_formats_is_read_and_gets_the_topics(tmp_path: Path) -> None:
    """Kafka's own bytes stay, but for the offset of the batch that ends them."""
    path = tmp_path / "bootstrap.checkpoint"
    path.write_bytes(FORMATTED_BY_4_2)
    state = read_bootstrap(tmp_path, FILES)
    assert state.features == {
        "metadata.version": 29,
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
        "share.version": 1,
        "streams.version": 1,
        "transaction.version": 2,
    }
    values = [house.topic_record("t", ID)] + [house.partition_record(ID, number) for number in range(1200)]
    made = bootstrap_with(tmp_path, values, house.TIME_MS, FILES)
    end = len(FORMATTED_BY_4_2) - 75
    assert made[:end] == FORMATTED_BY_4_2[:end]
    assert made[-67:] == FORMATTED_BY_4_2[-67:]
    assert struct.unpack(">q", made[-75:-67]) == (7 + 1201,)
    path.write_bytes(made)
    again = read_bootstrap(tmp_path, FILES)
    assert again.features == state.features
    assert list(again.topics[ID].partitions) == list(range(1200))


def test_a_checkpoint_that_no_topic_can_be_put_into_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"no bootstrap.checkpoint in it, which kafka-storage format makes"):
        read_bootstrap(tmp_path, FILES)
    path = tmp_path / "bootstrap.checkpoint"
    for level, is_taken in ((16, False), (17, True)):
        path.write_bytes(house.checkpoint_of([house.feature_record("metadata.version", level)]))
        if is_taken:
            assert read_bootstrap(tmp_path, FILES).features == {"metadata.version": level}
        else:
            with pytest.raises(LogError, match=r"metadata\.version level 16"):
                read_bootstrap(tmp_path, FILES)
    path.write_bytes(house.batch_of([house.feature_record("metadata.version", 29)]))
    with pytest.raises(CorruptLogError, match="the checkpoint has no end"):
        bootstrap_with(tmp_path, [], 0, FILES)
    path.write_bytes(b"")
    with pytest.raises(CorruptLogError, match="the checkpoint has no end"):
        bootstrap_with(tmp_path, [], 0, FILES)
