"""How far a group is behind: what is committed in ZooKeeper, against what the brokers can hand out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fastlog.consumer.broker_logs import BrokerLogs, Extent
from fastlog.consumer.group_view import GroupView
from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import FastlogError


class PartitionLag(NamedTuple):
    """One partition. What is None is not known, and ``problem`` says why."""

    partition: TopicPartition
    owner: str | None
    """The name of the thread that reads it; None: nobody does."""
    offset: int | None
    """The committed offset; None: nothing was ever committed."""
    log_start: int | None
    log_size: int | None
    """The end of what can be read, as an offset; so 0.7's tool calls it."""
    messages: int | None
    """About how many messages it is behind: an estimate from the sizes of some of them."""
    problem: str
    is_failure: bool
    """Whether ``problem`` is that the broker did not answer."""

    @property
    def lag(self) -> int | None:
        """Bytes that can be read, or could be before the broker removed them, and were not consumed."""
        if self.offset is None or self.log_size is None:
            return None
        return max(0, self.log_size - self.offset)


def measure(
    view: GroupView, logs: BrokerLogs, topics: Iterable[str] | None = None, *, estimate: bool = True
) -> list[PartitionLag]:
    """The lag of every partition the group has to do with, in order; without ``estimate`` no messages are fetched.

    Source: Kafka 0.7.2 (tools/ConsumerOffsetChecker).
    """
    partitions = view.all_partitions(topics)
    extents = logs.extents(partitions)
    return [_measured(view, logs, partition, extents[partition], estimate) for partition in partitions]


def _measured(
    view: GroupView, logs: BrokerLogs, partition: TopicPartition, extent: Extent | FastlogError, estimate: bool
) -> PartitionLag:
    owner = view.owners.get(partition)
    committed = view.committed.get(partition)
    offset = None if committed is None or committed.offset < 0 else committed.offset
    if isinstance(extent, FastlogError):
        why = str(extent).replace("\n", "; ")
        return PartitionLag(partition, owner, offset, None, None, None, why, True)
    start, end = extent
    if offset is None:
        return PartitionLag(partition, owner, None, start, end, None, "nothing is committed", False)
    problem = ""
    if offset > end:
        problem = f"committed {offset - end} bytes behind the end of the log: autooffset.reset decides where it goes on"
    elif offset < start:
        problem = f"{start - offset} bytes were removed before they were consumed"
    messages: int | None = 0
    begin = max(start, offset)
    failed = False
    if begin < end:
        messages = None
        try:
            messages = logs.estimated_messages(partition, begin, end) if estimate else None
        except FastlogError as error:
            failed = True
            problem = problem or str(error).replace("\n", "; ")
    return PartitionLag(partition, owner, offset, start, end, messages, problem, failed)
