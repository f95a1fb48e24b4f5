"""Static members of any client library: one is killed, and its next process goes on without anybody's noticing."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from tests.harness.broker import wait_until
from tests.harness.timing import PATIENCE
from tests.harness.today_members import Members, produce

PARTITIONS = 4
"""How many partitions the broker's topics have."""


def static_members_come_back(address: str, kind: str, directory: Path) -> None:
    """The next process has the same partitions, and the other member is not disturbed.

    Raises:
        AssertionError: it was otherwise.
    """
    topic = directory.name
    admin = AdminClient({"bootstrap.servers": address})

    def shares() -> dict[str, set[int]]:
        """By instance, once there is an assignment."""
        found = admin.describe_consumer_groups([topic])[topic].result(PATIENCE)
        rows = [(str(each.group_instance_id), each.assignment.topic_partitions) for each in found.members]
        is_stable = found.state == ConsumerGroupState.STABLE
        return {instance: {place.partition for place in places} for instance, places in rows} if is_stable else {}

    def is_shared() -> bool:
        return sorted(map(len, shares().values())) == [PARTITIONS // 2] * 2

    def everything(count: int) -> set[tuple[int, int]]:
        return {(partition, offset) for partition in range(PARTITIONS) for offset in range(count)}

    produce(address, topic, PARTITIONS, 20)
    with Members(address, kind, topic, directory, group=topic) as members:
        first = members.start("a")
        members.start("b")
        wait_until("both have their part", is_shared, 2 * PATIENCE, pause=0.1)
        produce(address, topic, PARTITIONS, 20)
        wait_until("all is read", lambda: members.seen() == everything(40))
        before, lines = shares(), len(members.diaries()[1])
        members.kill(first)
        members.start("a")
        produce(address, topic, PARTITIONS, 20)
        wait_until("all is read", lambda: members.seen() == everything(60))
        assert shares() == before and set(before) == {"a", "b"}
        _, other, back = members.diaries()
        assert [line for line in other[lines:] if line.what == "assigned"] == []
        assert {line.partition for line in back if line.what == "read"} == before["a"]
        assert members.wrong() == []
