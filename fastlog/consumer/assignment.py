"""Who reads what: the range assignment of Kafka 0.7, computed by every member alone from what all of them can read.

Pure. Partitions and threads are compared as strings, as 0.7 does ("0-10" comes before "0-2"), because members of other
versions compute the same thing: two orders in one group would give a partition two owners, and another none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fastlog.consumer.patterns import Pattern, compiled
from fastlog.errors import ConfigError
from fastlog.topics import valid_topic
from fastlog.zkpaths import PartitionId, Subscription, thread_ids


def assign_range(partitions: Iterable[PartitionId], names: Sequence[str]) -> dict[PartitionId, str]:
    """The owner of each partition of one topic; the first of the threads' sorted ``names`` get one more when it does
    not divide.

    Source: Kafka 0.7.2 (ZookeeperConsumerConnector.rebalance).
    """
    ordered = sorted(set(partitions), key=str)
    if not names:
        return {}
    share, extra = divmod(len(ordered), len(names))
    owners = {}
    start = 0
    for number, name in enumerate(names[: len(ordered)]):  # the others get none
        end = start + share + (number < extra)
        for partition in ordered[start:end]:
            owners[partition] = name
        start = end
    return owners


def assign_group(
    members: Mapping[str, Subscription],
    partitions: Mapping[str, Sequence[PartitionId]],
    on_bad_filter: Callable[[str, ConfigError], None] = lambda consumer, error: None,
) -> dict[str, dict[PartitionId, str]]:
    """For each topic that anybody reads, the owner of each partition.

    ``members``: by consumer id. ``partitions``: those of every topic there is; a topic that is missing has none. A
    member whose filter cannot be used gets nothing, and ``on_bad_filter`` is called with its id and the error.
    """
    readers: dict[str, list[tuple[str, int]]] = {}
    for consumer, subscription in members.items():
        try:
            wanted = streams_by_topic(subscription, partitions)
        except ConfigError as error:
            on_bad_filter(consumer, error)
            continue
        for topic, streams in wanted.items():
            readers.setdefault(topic, []).append((consumer, streams))
    named: dict[tuple[tuple[str, int], ...], list[str]] = {}
    found: dict[str, dict[PartitionId, str]] = {}
    for topic, counts in sorted(readers.items()):
        found[topic] = {}
        if topic in partitions:
            key = tuple(counts)  # mostly the same of each topic
            if key not in named:
                named[key] = sorted({name for consumer, streams in counts for name in thread_ids(consumer, streams)})
            found[topic] = assign_range(partitions[topic], named[key])
    return found


def streams_by_topic(subscription: Subscription, topics: Iterable[str]) -> dict[str, int]:
    """How many streams the subscription has for each topic it means, of those there are.

    Raises:
        ConfigError: its filter is no regular expression, or takes too long.
    """
    if not subscription.is_filter:
        return subscription.topics
    chosen = TopicFilter(subscription.pattern, subscription.is_whitelist)
    return {topic: subscription.streams for topic in topics if chosen.allows(topic)}


@dataclass(frozen=True)
class TopicFilter:
    """A whitelist or a blacklist: a regular expression that has to match the whole name.

    Written as in 0.7: commas stand for ``|``, spaces and quotes around are dropped.

    Raises:
        ConfigError: it is no regular expression, or one that has no bounds.

    Source: Kafka 0.7.2 (TopicFilter).
    """

    pattern: str
    is_whitelist: bool = True

    def __post_init__(self) -> None:
        text = self.pattern.strip().replace(",", "|").replace(" ", "")
        object.__setattr__(self, "pattern", re.sub(r"^[\"']+|[\"']+$", "", text))
        object.__setattr__(self, "_compiled", compiled(self.pattern))

    def allows(self, topic: str) -> bool:
        """Whether the topic is meant; nothing is that cannot be a topic.

        Raises:
            ConfigError: finding that out takes too long.
        """
        pattern: Pattern = self.__dict__["_compiled"]
        return valid_topic(topic) is None and pattern.matches(topic) == self.is_whitelist
