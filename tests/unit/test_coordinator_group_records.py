"""What the log of groups holds: the records of Kafka's."""

from __future__ import annotations

import pytest

from fastlog.errors import LogError
from fastlog.workers.coordinator.groups import records
from fastlog.workers.coordinator.groups.groups import shard_of
from fastlog.workers.coordinator.groups.members import Stored, StoredMember
from fastlog.workers.coordinator.groups.records import GroupState, Offset, OffsetKey
from tests.harness.coordinated_groups import subscribed

STATE = GroupState(
    Stored(
        "consumer", 5, "range", "m",
        (StoredMember("m", None, "c", "/h", 7, 8, b"said", b"given"), StoredMember("n", "i", "", "", 1, 2, b"", b"")),
    ),
    123,
)  # fmt: skip


def test_records_are_those_of_kafka() -> None:
    """Byte by byte, from the schemas of Apache Kafka."""
    key = bytes.fromhex("0001 0001 67 0002 7475 00000003")
    assert records.offset_key(OffsetKey("g", "tu", 3)) == key
    value = bytes.fromhex("0003 0000000000000009 00000004 0001 6d 0000000000000005")
    assert records.offset_value(Offset(9, 4, "m", 5)) == value
    assert records.group_key("g") == bytes.fromhex("0002 0001 67")
    empty = GroupState(Stored("c", 2, None, None, ()), 1)
    assert records.group_value(empty) == bytes.fromhex("0003 0001 63 00000002 ffff ffff 0000000000000001 00000000")
    for found, expected in (
        (records.read_key(key), OffsetKey("g", "tu", 3)),
        (records.read_key(b"\0\0" + key[2:]), OffsetKey("g", "tu", 3)),
        (records.read_key(records.group_key("g")), "g"),
        (records.read_key(b"\0\3anything"), None),
        (records.read_key(internal_key()), None),
        (records.read_offset(value), Offset(9, 4, "m", 5)),
        (records.read_group(records.group_value(STATE)), STATE),
        (records.read_group(records.group_value(empty)), empty),
    ):
        assert found == expected


def internal_key() -> bytes:
    return b"snapshot"


def test_records_of_other_versions_of_kafka_are_read() -> None:
    offsets = {
        "0000 0000000000000009 0001 6d 0000000000000005": Offset(9, -1, "m", 5),
        "0001 0000000000000009 0001 6d 0000000000000005 0000000000000007": Offset(9, -1, "m", 5),
        "0002 0000000000000009 0001 6d 0000000000000005": Offset(9, -1, "m", 5),
        "0004 0000000000000009 00000004 02 6d 0000000000000005 01 00 10" + "11" * 16: Offset(9, 4, "m", 5),
    }
    for text, expected in offsets.items():
        assert records.read_offset(bytes.fromhex(text)) == expected
    member = "0001 6d {} 0001 63 0001 68 {} 00000008 00000001 73 00000001 61"
    head = "0001 63 00000002 0001 72 0001 6d"
    for version, since, instance, rebalance in (
        (0, "", "", ""),
        (1, "", "", "00000007"),
        (2, "0000000000000003", "", "00000007"),
        (3, "0000000000000003", "0001 69", "00000007"),
    ):
        text = f"{version:04x}" + head + since + "00000001" + member.format(instance, rebalance)
        found = records.read_group(bytes.fromhex(text))
        (one,) = found.stored.members
        assert one == StoredMember("m", "i" if instance else None, "c", "h", 7 if rebalance else 8, 8, b"s", b"a")
        assert (found.since_ms, found.stored[:4]) == (3 if since else -1, ("c", 2, "r", "m"))
    text = "0004 02 63 00000002 00 00 0000000000000003 02 02 6d 00 02 63 02 68 00000007 00000008 02 73 02 61 00 00"
    found = records.read_group(bytes.fromhex(text))
    assert found.stored == Stored("c", 2, None, None, (StoredMember("m", None, "c", "h", 7, 8, b"s", b"a"),))


@pytest.mark.parametrize("version", [3, 4])
def test_a_count_of_more_than_there_are_bytes_is_none(version: int) -> None:
    """It is refused as such, before anything is read that many times."""
    since = "0000000000000003"
    head = f"0003 0001 63 00000002 ffff ffff {since}" if version == 3 else f"0004 02 63 00000002 00 00 {since}"
    size = len(bytes.fromhex(head)) + (4 if version == 3 else 1)
    for more, reason in ((0, "cut short"), (1, "more than it holds")):
        count = f"{size + more:08x}" if version == 3 else f"{size + more + 1:02x}"
        with pytest.raises(LogError, match=reason):
            records.read_group(bytes.fromhex(head + count))


def test_tags_that_nobody_knows_are_passed_over() -> None:
    """In the flexible version: those of each member, whose successor begins behind them."""
    head = "0004 02 63 00000002 00 00 0000000000000003 03"
    member = "02 {} 00 02 63 02 68 00000007 00000008 02 73 02 61"
    tags = "02 00 03 aabbcc 8101 00"  # two: 3 bytes, and none under a number of two bytes
    found = records.read_group(bytes.fromhex(f"{head} {member.format('6d')} {tags} {member.format('6e')} 00 00"))
    assert [each.member_id for each in found.stored.members] == ["m", "n"]
    for cut in ("02 00 03 aabb", "01 00 ff"):
        with pytest.raises(LogError):
            records.read_group(bytes.fromhex(f"{head} {member.format('6d')} {cut}"))


@pytest.mark.parametrize(("size", "is_read"), [("81 80 80 80 00", True), ("81 80 80 80 80 00", False)])
def test_a_length_of_more_than_five_bytes_is_none(size: str, is_read: bool) -> None:
    data = bytes.fromhex(f"0004 0000000000000009 00000004 {size} 0000000000000005 00")
    if is_read:
        assert records.read_offset(data) == Offset(9, 4, "", 5)
    else:
        with pytest.raises(LogError, match="a length that is none"):
            records.read_offset(data)


@pytest.mark.parametrize(
    "data", [records.group_value(STATE), records.offset_value(Offset(9, 4, "m", 5)), b"\0\5" + bytes(99), b"\xff\xff"]
)
def test_records_that_make_no_sense_are_said(data: bytes) -> None:
    read = records.read_group if data == records.group_value(STATE) else records.read_offset
    for size in range(len(data)) if data[1:2] == b"\3" else [len(data)]:
        with pytest.raises(LogError):
            read(data[:size])


def test_the_topics_of_a_subscription() -> None:
    assert records.topics_of_subscription(subscribed("t", "uv")) == {"t", "uv"}
    assert records.topics_of_subscription(subscribed()) == set()
    assert records.topics_of_subscription(b"\0\1\0\0\0\2\0\1t") is None
    assert records.topics_of_subscription(b"\xff\xff\0\0\0\0") is None
    assert records.topics_of_subscription(b"") is None


@pytest.mark.parametrize(
    ("name", "count", "expected"),
    [("", 50, 0), ("a", 50, 47), ("test-group", 50, 12), ("polygenelubricants", 50, 0), ("ä€😀", 50, 1), ("g", 1, 0)],
)
def test_groups_are_spread_as_in_kafka(name: str, count: int, expected: int) -> None:
    """By Java's String.hashCode; of the least there is, that of "polygenelubricants", the absolute value is 0."""
    assert shard_of(name, count) == expected
