"""Shows a query's progress as that of a consumer group, for whoever looks at groups. Knows no Spark.

The checkpoint alone says where a query goes on. This is a copy: it may be late, it is never read by the query, and what
goes wrong with it is logged and does not end the query.
"""

from __future__ import annotations

import logging
from typing import Any

from fastlog.consumer.offsets import ZooKeeperOffsets
from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import ConfigError, CoordinationError
from fastlog.spark import offsets
from fastlog.spark.discovery import Coordination
from fastlog.spark.offsets import OffsetSpec
from fastlog.zkpaths import members_path

log = logging.getLogger(__name__)


class GroupProgress:
    """Writes what was committed where a group keeps its offsets. For one thread."""

    def __init__(self, coordination: Coordination, group: str) -> None:
        self._coordination = coordination
        self._group = group
        self._shown: dict[TopicPartition, tuple[int, int]] = {}  # of which log, and how far

    def check(self) -> None:
        """Raise ``ConfigError`` when consumers are in the group: their offsets are not a copy, and would be lost."""
        try:
            members = self._members()
        except CoordinationError as error:
            log.warning("group %s: %s", self._group, error)
            return
        if members:
            raise ConfigError(
                f"group: {self._group!r} has consumers ({', '.join(sorted(members))}) whose offsets would be"
                " overwritten: give a query a group of its own"
            )

    def show(self, end: Any) -> None:
        """Everything up to the end of this batch was read and committed. Spark may say so late, twice or not at all."""
        ranges = offsets.decode(end)
        if isinstance(ranges, OffsetSpec):
            return
        created = offsets.decode_created(end)
        news = {}
        for partition, interval in ranges.items():
            log_of, shown = self._shown.get(partition, (0, -1))
            if interval.end > shown or created.get(partition, 0) not in (0, log_of):
                news[partition] = interval.end
        if not news:
            return
        try:
            if self._members():
                log.warning("group %s has consumers now: the query's progress is not shown", self._group)
                return
            ZooKeeperOffsets(self._coordination.session()).save(self._group, news)
        except CoordinationError as error:
            log.warning("group %s: progress is not shown: %s", self._group, error)
            return
        self._shown.update({partition: (created.get(partition, 0), offset) for partition, offset in news.items()})

    def _members(self) -> list[str]:
        if self._coordination.is_resting():
            raise CoordinationError(f"no ZooKeeper answers at {self._coordination.connect}")
        return self._coordination.session().children(members_path(self._group)) or []
