"""The families of ``/metrics`` about groups, by the names of kafka_exporter."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence

from fastlog.log.slots import Segment, SlotView
from fastlog.workers.exposition import Family, Sample, labels
from fastlog.workers.group_board import GroupRow


class Positions:
    """Where offsets of a partition lie in its log, as far as the table of its segments tells.

    It tells where each segment begins; in one, bytes are taken to be spread evenly over its offsets. Where offsets
    count bytes, that is exact.
    """

    def __init__(self, view: SlotView, segments: Sequence[Segment]) -> None:
        marks = [(one.base, one.start) for one in segments if one.base < view.visible_offset]
        self._offsets = [offset for offset, _ in marks] + [view.visible_offset]
        self._positions = [position for _, position in marks] + [view.visible_end]

    def bytes_from(self, offset: int) -> int:
        """How many bytes there are between an offset and what consumers can read; all of them for one that is older."""
        at = bisect.bisect_right(self._offsets, offset) - 1
        if at < 0:
            return self._positions[-1] - self._positions[0]
        if at == len(self._offsets) - 1:
            return 0
        low, high = self._offsets[at : at + 2]
        start, end = self._positions[at : at + 2]
        return self._positions[-1] - start - (end - start) * (offset - low) // (high - low)


def group_families(
    rows: Sequence[GroupRow] | None,
    views: Sequence[SlotView],
    segments: Callable[[SlotView], Sequence[Segment]],
) -> Iterator[Family]:
    """``rows``: all groups, or None: nobody says how they stand, and the families are empty."""
    partitions = {(view.topic, view.partition): view for view in views}
    positions: dict[int, Positions] = {}
    members: list[Sample] = []
    offsets: list[Sample] = []
    lags: list[Sample] = []
    byte_lags: list[Sample] = []
    offset_sums: dict[str, int] = {}
    lag_sums: dict[str, int] = {}
    for group, count, committed in rows or ():
        members.append(Sample(labels(consumergroup=group), count))
        for topic, partition, offset in sorted(committed):
            of_topic = labels(consumergroup=group, topic=topic)
            of_partition = labels(consumergroup=group, topic=topic, partition=partition)
            offsets.append(Sample(of_partition, offset))
            offset_sums[of_topic] = offset_sums.get(of_topic, 0) + offset
            view = partitions.get((topic, partition))
            if view is not None:  # a partition that has gone, or is being made again, has no end to be behind
                lag = max(0, view.visible_offset - offset)
                lags.append(Sample(of_partition, lag))
                if view.index not in positions:
                    positions[view.index] = Positions(view, segments(view))
                byte_lags.append(Sample(of_partition, positions[view.index].bytes_from(offset)))
                lag_sums[of_topic] = lag_sums.get(of_topic, 0) + lag
    yield Family(
        "fastlog_groups_known",
        "gauge",
        "1: the coordinator has said how groups stand; 0: it did not within a second, and no group is on this page.",
        [Sample("", int(rows is not None))],
    )
    for name, meaning, samples in (
        ("members", "Members of the group.", members),
        ("current_offset", "Offset that the group has committed.", offsets),
        ("current_offset_sum", "The same, of all partitions of the topic.", _samples(offset_sums)),
        ("lag", "How far the group is behind what consumers can read: records, of a topic of 0.7 bytes.", lags),
        ("lag_sum", "The same, of all partitions of the topic.", _samples(lag_sums)),
    ):
        yield Family(f"kafka_consumergroup_{name}", "gauge", meaning, samples)
    yield Family(
        "fastlog_consumergroup_lag_bytes",
        "gauge",
        "The lag in bytes; in the segment that the offset is in, by the share of its records.",
        byte_lags,
    )


def _samples(values: dict[str, int]) -> list[Sample]:
    return [Sample(text, value) for text, value in values.items()]
