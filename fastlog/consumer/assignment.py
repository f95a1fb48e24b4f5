"""Who reads what: the range assignment of Kafka 0.7, computed by every member alone from what all of them can read.

Pure. Partitions and threads are compared as strings, as 0.7 does ("0-10" comes before "0-2"), because members of other
versions compute the same thing: two orders in one group would give a partition two owners, and another none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fastlog.errors import ConfigError
from fastlog.zkpaths import PartitionId, Subscription, thread_ids


def assign_range(partitions: Iterable[PartitionId], threads: Iterable[str]) -> dict[PartitionId, str]:
    """The owner of each partition of one topic; the first threads get one more when it does not divide.

    Source: Kafka 0.7.2 (ZookeeperConsumerConnector.rebalance); ``sources/002`` has worked examples.
    """
    ordered = sorted(set(partitions), key=str)
    names = sorted(set(threads))
    if not names:
        return {}
    share, extra = divmod(len(ordered), len(names))
    owners = {}
    start = 0
    for number, name in enumerate(names):
        end = start + share + (number < extra)
        for partition in ordered[start:end]:
            owners[partition] = name
        start = end
    return owners


def assign_group(
    members: Mapping[str, Subscription], partitions: Mapping[str, Sequence[PartitionId]]
) -> dict[str, dict[PartitionId, str]]:
    """For each topic that anybody reads, who owns which partition.

    ``members``: by consumer id. ``partitions``: those of every topic there is; a topic that is missing has none. A
    member whose filter is no regular expression gets nothing.
    """
    threads: dict[str, list[str]] = {}
    for consumer, subscription in members.items():
        try:
            wanted = streams_by_topic(subscription, partitions)
        except ConfigError:
            continue
        for topic, streams in wanted.items():
            threads.setdefault(topic, []).extend(thread_ids(consumer, streams))
    return {topic: assign_range(partitions.get(topic, ()), names) for topic, names in sorted(threads.items())}


def streams_by_topic(subscription: Subscription, topics: Iterable[str]) -> dict[str, int]:
    """How many streams the subscription has for each topic it means, of those there are."""
    if not subscription.is_filter:
        return subscription.topics
    chosen = TopicFilter(subscription.pattern, subscription.is_whitelist)
    return {topic: subscription.streams for topic in topics if chosen.allows(topic)}


@dataclass(frozen=True)
class TopicFilter:
    """A whitelist or a blacklist: a regular expression that has to match the whole name.

    Written as in 0.7: commas stand for ``|``, spaces and quotes around are dropped.

    Raises:
        ConfigError: it is no regular expression.

    Source: Kafka 0.7.2 (TopicFilter).
    """

    pattern: str
    is_whitelist: bool = True

    def __post_init__(self) -> None:
        text = self.pattern.strip().replace(",", "|").replace(" ", "")
        object.__setattr__(self, "pattern", re.sub(r"^[\"']+|[\"']+$", "", text))
        try:
            compiled = re.compile(self.pattern)
        except re.error as error:
            raise ConfigError(f"{self.pattern!r} is no regular expression: {error}") from None
        object.__setattr__(self, "_compiled", compiled)

    def allows(self, topic: str) -> bool:
        """Whether the topic is meant."""
        compiled: re.Pattern[str] = self.__dict__["_compiled"]
        return (compiled.fullmatch(topic) is not None) == self.is_whitelist
