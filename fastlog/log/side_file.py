"""The side file of a partition, ``fastlog.json``: what the segments themselves cannot say.

    {"version": 1, "format": "kafka-0.7", "created_ms": 1700000000000, "checkpoint": 123456,
     "unnumbered": false, "segments": {"0": [1700000000000, 1700000009000]}, "sealed": {"0": [1048570, 9000]},
     "inode": [9000, 131082], "crc": 1234567890}

``created_ms``  when the log was made, which distinguishes a log from one made anew in its place; 0: unknown
``checkpoint``  an offset that was durable and visible when the file was written: recovery scans from there
``unnumbered``  whether no batch below the checkpoint was numbered by its producer; false also where nobody knows
``segments``    first and last append time of each sealed segment, in ms, by its base offset
``sealed``      size in bytes and next offset of each sealed segment below the checkpoint, by its base offset, in
                formats where the one does not tell the other
``inode``       base offset and inode of the segment that the checkpoint lies in; null where nobody knows. Another
                inode, and the checkpoint is that of other files: somebody has copied them, or Apache Kafka had them
``crc``         CRC-32 of the object without ``crc``, as JSON with sorted keys and no spaces

The file is a help, not a truth: without it recovery scans more and takes the times of the files. It is replaced as a
whole, so that a reader sees one state of it; one process writes it at a time.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastlog._crc import crc32
from fastlog.log.files import FileOps
from fastlog.segment_files import KAFKA_0_7, MAX_OFFSET, SIDE_FILE_NAME

VERSION = 1
MAX_BYTES = 128 * 1024 * 1024  # as many segments as max.segments.per.partition allows, with the longest numbers

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SideFile:
    """The content of a partition's ``fastlog.json``."""

    created_ms: int
    format: str = KAFKA_0_7
    checkpoint: int = 0
    segments: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    unnumbered: bool = False
    sealed: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    inode: tuple[int, int] | None = None


def write_side_file(directory: Path, side: SideFile, files: FileOps, *, sync_directory: bool = False) -> None:
    """Replace the partition's side file; its bytes are durable then, its name only with ``sync_directory``.

    Until the name is durable a power loss brings the former file back, whose checkpoint is lower: that is safe.

    Raises:
        OSError: the former file is still in place.
    """
    content: dict[str, Any] = {
        "version": VERSION,
        "format": side.format,
        "created_ms": side.created_ms,
        "checkpoint": side.checkpoint,
        "unnumbered": side.unnumbered,
        "segments": {str(base): list(times) for base, times in side.segments.items()},
        "sealed": {str(base): list(ends) for base, ends in side.sealed.items()},
        "inode": side.inode,
    }
    content["crc"] = crc32(_canonical(content))
    files.replace_file(directory / SIDE_FILE_NAME, _canonical(content) + b"\n", "side_file.write")
    if sync_directory:
        files.fsync_dir(directory)


def read_side_file(directory: Path, files: FileOps) -> SideFile | None:
    """Return what the partition's side file says; None when there is none or it is damaged, which is logged.

    A file of a later version that is whole gives a ``format`` that nobody knows, so that the partition is left alone.

    Raises:
        OSError: there is one and it cannot be read.
    """
    path = directory / SIDE_FILE_NAME
    try:
        data = files.read_file(path, MAX_BYTES)
    except FileNotFoundError:
        return None
    side = parse_side_file(data)
    if side is None:
        log.warning("side file damaged path=%s bytes=%d: scanning more, times are those of the files", path, len(data))
    return side


def parse_side_file(data: bytes) -> SideFile | None:
    """Return what the bytes of a side file say; None when they are damaged."""
    try:
        content = json.loads(data)
        crc = content.pop("crc")
        if not isinstance(crc, int) or crc != crc32(_canonical(content)):
            return None
        if content["version"] != VERSION:
            return SideFile(0, format=f"that of a side file of version {content['version']}")
        side = SideFile(
            content["created_ms"],
            content["format"],
            content["checkpoint"],
            {int(base): (first, last) for base, (first, last) in content["segments"].items()},
            content.get("unnumbered") is True,
            {int(base): (size, end) for base, (size, end) in content.get("sealed", {}).items()},
            None if content.get("inode") is None else (content["inode"][0], content["inode"][1]),
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return None
    pairs = [*side.segments.values(), *side.sealed.values(), side.inode or ()]
    numbers = [side.created_ms, side.checkpoint, *(number for pair in pairs for number in pair)]
    if not isinstance(side.format, str) or not all(type(number) is int for number in numbers):
        return None
    return side if 0 <= side.checkpoint <= MAX_OFFSET and 0 <= side.created_ms <= MAX_OFFSET else None


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
