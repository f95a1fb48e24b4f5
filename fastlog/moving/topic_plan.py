"""What is to be moved: topics, and what is against taking them."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastlog.moving.kafka_groups import KeptGroups
from fastlog.moving.partition_files import MovedPartition


@dataclass(slots=True)
class TopicPlan:
    """A topic, and what is against taking it, or some of its settings."""

    name: str
    topic_id: bytes
    count: int = 0
    partitions: list[MovedPartition] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    refused_settings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    is_damaged: bool = False

    @property
    def records(self) -> int:
        """The number of records in all partitions, deleted ones that are still in segments included."""
        return sum(each.survey.records for each in self.partitions)

    @property
    def size(self) -> int:
        """The bytes of all segments of all its partitions."""
        return sum(each.survey.size for each in self.partitions)


@dataclass(slots=True)
class MovingPlan:
    """What an import or an export would do."""

    topics: list[TopicPlan]
    groups: KeptGroups
    next_producer_id: int
    notes: list[str]

    @property
    def taken(self) -> list[TopicPlan]:
        """The topics that nothing is against."""
        return [each for each in self.topics if not each.problems]

    @property
    def is_whole(self) -> bool:
        """Whether nothing has to be left out."""
        return not any(each.problems or each.refused_settings for each in self.topics)

    @property
    def is_damaged(self) -> bool:
        """Whether a topic holds bytes that are not what was written."""
        return any(each.is_damaged for each in self.topics)
