"""How far a query is behind: by what Spark says of its progress, whatever sources it has."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from fastlog.spark import Behind, behind
from fastlog.spark.offsets import OffsetRange, OffsetSpec, encode_initial, encode_ranges, log_number
from fastlog.spark.options import parse_options
from fastlog.spark.plans import StreamPlan
from tests.harness.spark import MadeUpCluster, partition_of

OF_RECORDS = log_number(b"0123456789abcdef")


def source(latest: Any, end: Any) -> dict[str, Any]:
    return {"latestOffset": latest, "endOffset": end}


def ends(created: int = 0, **at: int) -> dict[str, Any]:
    found = {partition_of(name.replace("_", "/0-")): OffsetRange(0, end) for name, end in at.items()}
    return encode_ranges(found, dict.fromkeys(found, created))


@pytest.mark.parametrize(
    ("sources", "found"),
    [
        ([], None),
        ([source(ends(t_0=50, t_1=10), ends(t_0=20, t_1=10))], Behind(30, 0)),
        ([source(ends(t_0=50), ends(OF_RECORDS, t_0=20))], Behind(0, 30)),
        ([source(ends(t_0=50), ends(t_0=20)), source(ends(u_0=7), ends(OF_RECORDS, u_0=4))], Behind(30, 3)),
        ([source(ends(t_0=50), ends(t_0=60))], Behind()),  # it was looked at before the batch was planned
        ([source(ends(t_0=50, t_1=5), ends(t_0=50))], Behind()),  # the next batch says where that begins
        ([source(None, ends(t_0=20)), source(ends(t_0=20), None)], None),
        ([source(ends(t_0=50), encode_initial(OffsetSpec("latest")))], None),
        ([source(17, "18"), source("no JSON", {"topic": {"0": 5}}), source(ends(t_0=2), ends(t_0=1))], Behind(1)),
    ],
)
def test_what_a_progress_says(sources: list[dict[str, Any]], found: Behind | None) -> None:
    progress = {"batchId": 3, "sources": sources}
    assert behind(progress) == behind(json.dumps(progress)) == found
    assert behind(SimpleNamespace(json=json.dumps(progress))) == found
    as_text = [{name: json.dumps(offset) for name, offset in one.items() if offset is not None} for one in sources]
    assert behind({"sources": as_text}) == found


def test_what_a_stream_reports_is_what_is_understood() -> None:
    cluster = MadeUpCluster(t_0_0=[10] * 10)
    options = parse_options({"brokers": "h:1", "subscribe": "t", "startingOffsets": "earliest"}, streaming=True)
    plan = StreamPlan(options, cluster)  # type: ignore[arg-type]
    end = plan.latest(plan.initial(), 30)
    assert behind({"sources": [source(plan.report(), end)]}) == Behind(70, 0)
