"""The families of ``/metrics`` about groups, by the names of kafka_exporter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fastlog.log._arena import SlotView
from fastlog.workers.exposition import Family, Sample, labels
from fastlog.workers.group_board import GroupRow


def group_families(rows: Sequence[GroupRow] | None, views: Sequence[SlotView]) -> Iterator[Family]:
    """``rows``: all groups, or None: nobody says how they stand, and the families are empty."""
    ends = {(view.topic, view.partition): view.visible_offset for view in views}
    members: list[Sample] = []
    offsets: list[Sample] = []
    lags: list[Sample] = []
    offset_sums: dict[str, int] = {}
    lag_sums: dict[str, int] = {}
    for group, count, committed in rows or ():
        members.append(Sample(labels(consumergroup=group), count))
        for topic, partition, offset in sorted(committed):
            of_topic = labels(consumergroup=group, topic=topic)
            of_partition = labels(consumergroup=group, topic=topic, partition=partition)
            offsets.append(Sample(of_partition, offset))
            offset_sums[of_topic] = offset_sums.get(of_topic, 0) + offset
            end = ends.get((topic, partition))
            if end is not None:  # a partition that has gone, or is being made again, has no end to be behind
                lag = max(0, end - offset)
                lags.append(Sample(of_partition, lag))
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


def _samples(values: dict[str, int]) -> list[Sample]:
    return [Sample(text, value) for text, value in values.items()]
