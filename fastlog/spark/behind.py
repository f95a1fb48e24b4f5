"""How far a streaming query is behind its topics, out of what Spark says of its progress. Knows no Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fastlog.errors import ConfigError
from fastlog.spark import offsets
from fastlog.spark.offsets import OffsetSpec


class Behind(NamedTuple):
    """What is visible in the topics and not read yet: bytes of messages, and records of record batches."""

    bytes: int = 0
    records: int = 0


def behind(progress: Any) -> Behind | None:
    """Of one progress: a ``StreamingQueryProgress``, its ``json``, or that as a dictionary. All sources of fastlog in a
    query are taken together; None where it has none, or has not looked at the topics yet.

    Spark has what is compared under ``latestOffset`` and ``endOffset`` of each source: how far the topics went when
    the batch was planned, and where it ended.
    """
    found = progress if isinstance(progress, str | Mapping) else progress.json
    sources = (json.loads(found) if isinstance(found, str) else found)["sources"]
    known = [one for one in (_of_source(source) for source in sources) if one is not None]
    return _summed(known) if known else None


def _of_source(source: Mapping[str, Any]) -> Behind | None:
    latest, end = (_ranges(source.get(name)) for name in ("latestOffset", "endOffset"))
    if latest is None or end is None:
        return None
    created = offsets.decode_created(_plain(source["endOffset"]))
    sizes = []
    for partition in latest.keys() & end.keys():
        size = max(0, latest[partition].end - end[partition].end)
        is_of_records = offsets.is_of_records(created.get(partition, 0))
        sizes.append(Behind(0, size) if is_of_records else Behind(size, 0))
    return _summed(sizes)


def _ranges(offset: Any) -> offsets.Ranges | None:
    """None for what is none of this source, or not a place in its topics yet."""
    try:
        found = offsets.decode(_plain(offset))
    except (ConfigError, ValueError):
        return None
    return None if isinstance(found, OffsetSpec) else found


def _plain(offset: Any) -> Any:
    return json.loads(offset) if isinstance(offset, str) else offset


def _summed(items: Iterable[Behind]) -> Behind:
    found = Behind()
    for item in items:
        found = Behind(found.bytes + item.bytes, found.records + item.records)
    return found
