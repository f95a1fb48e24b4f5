"""A member of a group of today's clients, as a program: reads, writes down what it reads, and commits.

    python -m tests.harness.today_member CLIENT ADDRESS GROUP TOPIC DIARY [INSTANCE]

``CLIENT`` is confluent, kafka-python or aiokafka, which assign by range, or one of the first two with
cooperative-sticky: cooperative and kafka-python-cooperative. A member with INSTANCE is a static one, with a session
that outlasts its next start; those in Go and JavaScript do the same (tests/compat). Each line of the diary has a time
of the machine's monotonic clock:

    assigned   TIME PARTITION            before anything of it is fetched
    read       TIME PARTITION OFFSET     before it is committed
    committed  TIME PARTITION NEXT       after the broker has answered

It ends at SIGTERM, and leaves its group.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

BATCH = 20
SESSION_MS = 6_000
STATIC_SESSION_MS = 30_000
FIRST_POLL_MS = 5_000
"""Of kafka-python 3.0.12. A member that leads, and joins again because it has come to know the topic, takes note of the
topic as soon as it has assigned partitions. When its poll ends before the group's answer is there, it needs no join any
more by its own account (BaseCoordinator.join_group_async), and never has its partitions."""
is_over = False


class Diary:
    """Lines that are there whenever the program is killed."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, what: str, partition: int, *more: int) -> None:
        """Add a line to the diary."""
        text = " ".join(map(str, (what, time.monotonic(), partition, *more)))
        os.write(self._fd, f"{text}\n".encode())

    def assigned(self, partitions: Iterable[Any]) -> None:
        """Note partitions that were assigned."""
        for each in partitions:
            self.write("assigned", each.partition)

    def committed(self, following: Mapping[int, int]) -> None:
        """Note offsets that were committed."""
        for partition, offset in following.items():
            self.write("committed", partition, offset)


def session_ms(instance: str | None) -> int:
    """What a member has to be heard of in."""
    return STATIC_SESSION_MS if instance else SESSION_MS


def confluent(address: str, group: str, topic: str, diary: Diary, instance: str | None, strategy: str) -> None:
    """Run a member by confluent-kafka until it is asked to end."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    settings: dict[str, Any] = {
        "bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "session.timeout.ms": session_ms(instance), "heartbeat.interval.ms": 500,
        "partition.assignment.strategy": strategy, "fetch.wait.max.ms": 50,
    }  # fmt: skip
    consumer = Consumer(settings | ({"group.instance.id": instance} if instance else {}))
    consumer.subscribe([topic], on_assign=lambda _, partitions: diary.assigned(partitions))
    while not is_over:
        following = {}
        for message in consumer.consume(BATCH, 0.2):
            if not message.error():
                diary.write("read", message.partition(), message.offset())
                following[message.partition()] = message.offset() + 1
        try:
            if following:
                rows = [TopicPartition(topic, partition, offset) for partition, offset in following.items()]
                found = consumer.commit(offsets=rows, asynchronous=False)
                diary.committed({row.partition: row.offset for row in found if row.error is None})
        except KafkaException:
            continue  # a rebalance, or a coordinator that died: read again, by whoever has it now
    consumer.close()


def kafka_python(address: str, group: str, topic: str, diary: Diary, instance: str | None, strategy: str) -> None:
    """Run a member by kafka-python until it is asked to end."""
    import kafka
    from kafka.consumer.subscription_state import ConsumerRebalanceListener
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.structs import OffsetAndMetadata

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, assigned: Any) -> None:
            diary.assigned(assigned)

    more: dict[str, Any] = {"group_instance_id": instance} if instance else {}
    assignors = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}
    more["partition_assignment_strategy"] = [assignors[strategy]]
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=address, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False,
        session_timeout_ms=session_ms(instance), heartbeat_interval_ms=500, fetch_max_wait_ms=50, **more,
    )  # fmt: skip
    consumer.subscribe([topic], listener=Listener())
    timeout_ms = FIRST_POLL_MS
    while not is_over:
        following = {}
        try:
            found = consumer.poll(timeout_ms, max_records=BATCH)
        except kafka.errors.KafkaConnectionError:
            continue  # 3.0.12 without a coordinator asks for metadata, and lets that error rise (BaseCoordinator)
        for place, messages in found.items():
            timeout_ms = 200
            for message in messages:
                diary.write("read", place.partition, message.offset)
                following[place] = OffsetAndMetadata(message.offset + 1, "", -1)
        try:
            if following:
                consumer.commit(following)
                diary.committed({place.partition: row.offset for place, row in following.items()})
        except kafka.errors.KafkaError:
            continue
    consumer.close()


async def aiokafka(address: str, group: str, topic: str, diary: Diary, instance: str | None) -> None:
    """Run a member by aiokafka until it is asked to end."""
    import aiokafka as library
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor

    class Listener(library.ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, assigned: Any) -> None:
            diary.assigned(assigned)

    more: dict[str, Any] = {"group_instance_id": instance} if instance else {}
    more["partition_assignment_strategy"] = [RangePartitionAssignor]
    consumer = library.AIOKafkaConsumer(
        bootstrap_servers=address, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False,
        session_timeout_ms=session_ms(instance), heartbeat_interval_ms=500, fetch_max_wait_ms=50, **more,
    )  # fmt: skip
    consumer.subscribe([topic], listener=Listener())
    await consumer.start()
    while not is_over:
        following = {}
        for place, messages in (await consumer.getmany(timeout_ms=200, max_records=BATCH)).items():
            for message in messages:
                diary.write("read", place.partition, message.offset)
                following[place] = message.offset + 1
        try:
            if following:
                await consumer.commit(following)
                diary.committed({place.partition: offset for place, offset in following.items()})
        except library.errors.KafkaError:
            continue
    await consumer.stop()


def main() -> None:
    """Run the member that the arguments name."""
    kind, address, group, topic, path, *more = sys.argv[1:]

    def end(*_: object) -> None:
        global is_over
        is_over = True

    signal.signal(signal.SIGTERM, end)
    instance = more[0] if more else None
    arguments = address, group, topic, Diary(path), instance
    if kind == "aiokafka":
        asyncio.run(aiokafka(*arguments))
    elif kind.startswith("kafka-python"):
        kafka_python(*arguments, {"kafka-python": "range", "kafka-python-cooperative": "cooperative-sticky"}[kind])
    else:
        confluent(*arguments, {"confluent": "range", "cooperative": "cooperative-sticky"}[kind])


if __name__ == "__main__":
    main()
