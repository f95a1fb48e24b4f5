"""The file that 0.7's ExportZkOffsets writes and its ImportZkOffsets reads: a line of path, colon and offset for each.

Source: Kafka 0.7.2 (tools/ExportZkOffsets, tools/ImportZkOffsets).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import CoordinationError
from fastlog.escaping import in_json
from fastlog.tools.placing import placed
from fastlog.tools.report import EXIT_USAGE, CommandError
from fastlog.zkpaths import CONSUMERS, PartitionId, offset_path, parse_number


class Kept(NamedTuple):
    """A committed offset of a group, as one line of the file."""

    group: str
    partition: TopicPartition
    offset: int

    @property
    def path(self) -> str:
        """The path of the offset's node in ZooKeeper."""
        return offset_path(self.group, *self.partition)


def encode(offsets: Iterable[Kept]) -> bytes:
    """The contents of the file, as ``ExportZkOffsets`` of 0.7 writes it: ``path:offset``, one a line."""
    return "".join(f"{item.path}:{item.offset}\n" for item in offsets).encode()


def encode_json(offsets: Iterable[Kept]) -> bytes:
    """An object a line, for programs that have no use for paths."""
    rows = (
        {
            "group": item.group,
            "topic": item.partition.topic,
            **item.partition.partition._asdict(),
            "offset": item.offset,
        }
        for item in offsets
    )
    return "".join(in_json(row) + "\n" for row in rows).encode()


def write(path: Path, data: bytes) -> None:
    """Replace the file as a whole, so that none is left that holds a part. Raises ``OSError``."""
    with placed(path) as file:
        file.write(data)


def parse(name: str, data: bytes) -> tuple[list[Kept], list[str]]:
    """The offsets of a file, and the paths whose value is ``null``: so 0.7 exports a node that vanished just then.

    Raises:
        CommandError: a line is none of that format, or says of a partition what another line contradicts.
    """
    found: dict[str, Kept] = {}
    absent = []
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        text = line.strip()
        if not text:
            continue
        path, _, value = text.rpartition(":")
        if value == "null":
            absent.append(path)
            continue
        kept = _parsed(path, value)
        if kept is None:
            raise _refused(f"{name}, line {number} is no offset: {text[:200]!r}", "mend or remove the line")
        if found.setdefault(path, kept) != kept:
            raise _refused(f"{name}, line {number} says {value} of {path}, and an earlier line another", "remove one")
    return list(found.values()), absent


def _parsed(path: str, value: str) -> Kept | None:
    parts = path.removeprefix(f"{CONSUMERS}/").split("/")
    if not path.startswith(f"{CONSUMERS}/") or len(parts) != 4 or parts[1] != "offsets" or not (parts[0] and parts[2]):
        return None
    try:
        kept = Kept(parts[0], TopicPartition(parts[2], PartitionId.parse(parts[3])), parse_number(value.encode()))
    except CoordinationError:
        return None
    return kept if -1 <= kept.offset < 2**63 else None


def _refused(what: str, what_to_do: str) -> CommandError:
    form = "a line is /consumers/<group>/offsets/<topic>/<broker>-<partition>:<offset>; nothing was written"
    return CommandError(what, form, what_to_do, EXIT_USAGE)
