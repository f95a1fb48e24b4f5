"""What Spark's checkpoint says of a batch, by which late messages are found: its ranges and the watermark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import ConfigError
from fastlog.spark.jobs.late import planned
from fastlog.spark.offsets import OffsetRange
from fastlog.zkpaths import PartitionId

ONE, TWO = (TopicPartition("t", PartitionId(0, number)) for number in (1, 2))
ALONE = "spark.sql.streaming.statefulOperator.allowMultiple"


def write(directory: Path, batch: int, watermark_ms: int, *ends: object, version: str = "v1", **conf: str) -> None:
    """An entry of the log of offsets, as Spark writes it."""
    (directory / "offsets").mkdir(exist_ok=True)
    lines = [version, json.dumps({"batchWatermarkMs": watermark_ms, "batchTimestampMs": 5, "conf": conf})]
    lines += [end if isinstance(end, str) else json.dumps(end) for end in ends]
    (directory / "offsets" / str(batch)).write_text("\n".join(lines))


def end(**ranges: list[int]) -> dict[str, object]:
    """An offset of the source: ``_1=[0, 10]`` of partition 0-1."""
    return {"v": 1, "topics": {"t": {f"0-{name[1:]}": interval for name, interval in ranges.items()}}}


def test_a_batch_is_what_lies_between_two_ends_and_its_watermark_that_of_the_one_before(tmp_path: Path) -> None:
    """Ranges of nothing, and sources that have not moved, are none; the first batch has the watermark of 1970."""
    write(tmp_path, 0, 0, end(_1=[0, 10], _2=[5, 5]), "-")
    write(tmp_path, 1, 7000, end(_1=[10, 20]), {"v": 1, "initial": "earliest"})
    write(tmp_path, 2, 9000, end(_1=[10, 20]), end(_2=[0, 3]))
    found = [planned(tmp_path, batch, 2) for batch in range(3)]
    assert [item.watermark_ms for item in found] == [0, 0, 7000]
    assert found[0].ranges == [{ONE: OffsetRange(0, 10)}, {}]
    assert found[1].ranges == [{ONE: OffsetRange(10, 20)}, {}]
    assert found[2].ranges == [{}, {TWO: OffsetRange(0, 3)}]


@pytest.mark.parametrize(("said", "watermark_ms"), [("false", 9000), ("False", 9000), ("true", 7000)])
def test_operators_that_may_not_follow_each_other_go_by_their_own_watermark(
    tmp_path: Path, said: str, watermark_ms: int
) -> None:
    """A setting of Spark's, which it writes down with the batch."""
    write(tmp_path, 0, 7000, end(_1=[0, 10]))
    write(tmp_path, 1, 9000, end(_1=[10, 20]), **{ALONE: said})
    assert planned(tmp_path, 1, 1).watermark_ms == watermark_ms


@pytest.mark.parametrize("sources", [1, 3])
def test_a_checkpoint_of_another_query(tmp_path: Path, sources: int) -> None:
    write(tmp_path, 0, 0, "-", "-")
    with pytest.raises(ConfigError, match=f"a query of 2 sources, not of {sources}"):
        planned(tmp_path, 0, sources)


def test_a_query_that_has_got_another_source(tmp_path: Path) -> None:
    write(tmp_path, 0, 0, "-")
    write(tmp_path, 1, 0, "-", "-")
    with pytest.raises(ConfigError, match="a query of 2 sources"):
        planned(tmp_path, 1, 2)


def test_a_checkpoint_that_is_written_in_another_way(tmp_path: Path) -> None:
    """Nobody guesses what a later Spark means."""
    write(tmp_path, 0, 0, "-", version="v2")
    with pytest.raises(ConfigError, match=r"not known \(v2\)"):
        planned(tmp_path, 0, 1)
    (tmp_path / "offsets" / "0").write_text("v1\n")
    with pytest.raises(ConfigError, match="not known"):
        planned(tmp_path, 0, 1)
