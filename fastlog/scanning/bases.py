"""What the sources of a scan share: the columns of their kind of topic, and the way to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from fastlog.scanning.columns import MESSAGE_COLUMNS, RECORD_COLUMNS, schema

SegmentT = TypeVar("SegmentT")


class _OfOneKind:
    of_records: ClassVar[bool]
    """Whether its topics are of record batches, and not of messages of Kafka 0.7."""

    @property
    def unit(self) -> str:
        """What offsets count: ``records`` or ``bytes``."""
        return "records" if self.of_records else "bytes"

    def columns(self) -> Sequence[str]:
        """See ``ScanSource``: the same for all topics of a kind."""
        return RECORD_COLUMNS if self.of_records else MESSAGE_COLUMNS

    def schema(self, columns: Sequence[str], topics: Sequence[str]) -> Any:
        """See ``ScanSource``: the same for all topics of a kind."""
        return schema(columns, of_records=self.of_records)


class FolderSource(_OfOneKind, Generic[SegmentT]):
    """The directories of partitions that a path or a pattern names, and the segments that were found in them."""

    def __init__(self, path: str, folders: Sequence[Path], *, window_bytes: int) -> None:
        self._path = path
        self._folders = folders
        self._window_bytes = window_bytes
        self._segments: dict[tuple[str, int], list[SegmentT]] = {}
        """The segments of each partition, in the order of their offsets."""

    def __repr__(self) -> str:
        return f"files of {self._path}"


class TopicSource(_OfOneKind):
    """A topic as one broker has it, read by fetches."""

    def __init__(self, topic: str, broker: str, *, fetch_bytes: int, timeout: float) -> None:
        self._topic = topic
        self._broker = broker
        self._fetch_bytes = fetch_bytes
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"topic {self._topic!r} of {self._broker}"
