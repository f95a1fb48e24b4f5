"""How the commands about groups write partitions and values: apart in an object, as text in a table."""

from __future__ import annotations

from typing import Any

from fastlog.consumer.partitions import TopicPartition


def place_fields(partition: TopicPartition, as_json: bool) -> dict[str, Any]:
    """Topic and partition for a row: apart in an object, as ``<broker>-<partition>`` in a table."""
    topic, (broker, number) = partition
    if as_json:
        return {"topic": topic, "broker": broker, "partition": number}
    return {"topic": topic, "partition": str(partition.partition)}


def shown(value: object, as_json: bool) -> Any:
    """A value for a row: a table has a dash for what is not known."""
    return "-" if value is None and not as_json else value
