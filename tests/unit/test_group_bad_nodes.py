"""Nodes that make no sense, or too much of it, stop no member of a group: each is named in the log, and left out."""

from __future__ import annotations

import pytest

from fastlog.zkpaths import PartitionId, Subscription, offset_path
from tests.harness.fake_session import FakeZooKeeper
from tests.harness.groups import GROUP, Cluster, fake_member, part, wait_until

LONG = "a" * 40
MEMBER = f"/consumers/{GROUP}/ids/g_bad-1-x"


@pytest.mark.parametrize(
    ("path", "data"),
    [
        (MEMBER, b"[" * 200_000),
        (MEMBER, b"*" + b"9" * 5000 + b"*x"),
        (MEMBER, b'{"t": 2147483647}'),
        (MEMBER, b'{"t": 1000000000000000000}'),
        (MEMBER, b"*1*(a+)+$"),
        (MEMBER, b"*1*" + b"(?=(a|b)*" * 20 + b")" * 20 + b"x"),
        (MEMBER, b"*1*a{99999999999999999999}"),
        (MEMBER, b"*1*" + b"(" * 5000),
        (MEMBER, b"\xff\xfe\0"),
        ("/brokers/ids/77", b"\xff\xff"),
        ("/brokers/ids/77", b"c:h:" + b"9" * 5000),
        ("/brokers/ids/" + "9" * 5000, b"x:127.0.0.1:1"),
        ("/brokers/topics/t/" + "9" * 5000, b"1"),
        ("/brokers/topics/t/3", b"9" * 5000),
        ("/brokers/topics/t/3", b"2147483647"),
    ],
    ids=lambda value: repr(value[:30]),
)
def test_one_bad_node_keeps_nothing_from_the_others(
    tree: FakeZooKeeper, cluster: Cluster, path: str, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Members that come after it, and those that were there: a share for a pattern that matches nothing is none."""
    for topic in ("t", LONG):
        cluster.show(topic, {3: 1})
        cluster.end(3, topic)
    tree.write(f"/brokers/topics/{LONG}/1", b"1")
    with fake_member(tree, Subscription({}, ".*", True, 1), "a") as first:
        assert len(first.settled().owned) == 5
        tree.write(path, data)
        with fake_member(tree, {"t": 1}, "b") as second:
            wait_until("shared", lambda: len(first.owned) == 3 and len(second.owned) == 2)
            second.settled()
        wait_until("all again", lambda: len(first.owned) == 5)
        assert all(len(line) < 6000 for line in caplog.messages)
        if not data.startswith(b"*1*(a+)"):
            wait_until("named", lambda: any(f"path={path[:200]}" in line for line in caplog.messages))


def test_an_offset_beyond_64_bits_keeps_its_partition_alone(tree: FakeZooKeeper, cluster: Cluster) -> None:
    tree.write(offset_path(GROUP, "t", PartitionId(1, 0)), b"9" * 19)
    with fake_member(tree, {"t": 1}, "a") as member:
        wait_until("the others", lambda: member.owned == ["t/1-1", "t/2-0", "t/2-1"])
        wait_until("named", lambda: "/consumers/g/offsets/t/1-0" in str(member.group.error))
        tree.write(offset_path(GROUP, "t", PartitionId(1, 0)), b"12")
        assert member.settled().readers.claims[part("1-0")].offset == 12


def test_a_topic_that_the_own_filter_has_no_end_for_is_an_error_and_no_end(
    tree: FakeZooKeeper, cluster: Cluster
) -> None:
    """What is owned goes on; the topic is named, and once it is gone so is the error."""
    pattern = "t|" + "(?=(a|b)*" * 20 + ")" * 20 + "x"
    with fake_member(tree, Subscription({}, pattern, True, 1), "a") as member:
        assert len(member.settled().owned) == 4
        name = "a" * 200
        tree.write(f"/brokers/topics/{name}/1", b"1")
        wait_until("named", lambda: "too many steps" in str(member.group.error))
        wait_until("what is owned goes on", lambda: len(member.owned) == 4)  # not while it is not proven for too long
        assert [what for what, _ in member.readers.moves] == ["take"] * 4
        tree.remove(f"/brokers/topics/{name}/1")
        tree.remove(f"/brokers/topics/{name}")
        member.settled()
        wait_until("mended", lambda: member.group.error is None)
