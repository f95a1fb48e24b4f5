"""Log formats: how stored bytes are checked, counted, searched after damage, and addressed; one module for each.

A partition records its format when it is created, in its side file; its slot has the format's number. What processors
and the flusher ask is a table of C functions (``_table``), found by that number; what recovery, fsck, the keeper and
tools ask is an object of ``FORMATS``, found by name. Nothing else looks at what stored bytes mean. A format that is not
there is named, and its files are left alone.

A process registers formats before it forks, and all of them get the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

from fastlog.errors import LogError
from fastlog.log.formats import _batches, _kafka07
from fastlog.log.formats._table import numbers
from fastlog.log.formats.base import ANY_OFFSET, DeepFindings, DumpedEntry, FileScan, LogFormat, SearchBudget
from fastlog.log.formats.kafka07 import Kafka07
from fastlog.log.formats.record_batches import RecordBatches
from fastlog.segment_files import parse_segment_name

__all__ = [
    "ANY_OFFSET",
    "FORMATS",
    "UNKNOWN_FORMAT",
    "DeepFindings",
    "DumpedEntry",
    "FileScan",
    "LogFormat",
    "SearchBudget",
    "format_name",
    "format_number",
    "format_of_files",
    "is_for_kafka07",
    "log_format",
    "register_format",
]

UNKNOWN_FORMAT = 0xFFFF
"""The number in a slot whose format this version does not know."""

FORMATS: dict[str, LogFormat] = {}
"""By name, in the order of their numbers."""


def register_format(added: LogFormat) -> None:
    """Let partitions have this format; its table of C functions was registered before, under the same name.

    Call it before the broker's processes are forked.

    Raises:
        LogError: there is no such table, or there is a format of this name already.
    """
    if added.name in FORMATS or numbers().get(added.name) != len(FORMATS):
        raise LogError("a log format that cannot be registered: it is there, or has no table", found=added.name)
    FORMATS[added.name] = added


def log_format(name: str) -> LogFormat:
    """Return the object of a format.

    Raises:
        LogError: this version does not know the format.
    """
    try:
        return FORMATS[name]
    except KeyError:
        raise LogError(f"unknown log format, known are {', '.join(FORMATS)}", found=name) from None


def format_number(name: str) -> int:
    """The number of a format in slots; ``UNKNOWN_FORMAT`` when this version does not know it."""
    return list(FORMATS).index(name) if name in FORMATS else UNKNOWN_FORMAT


def format_name(number: int) -> str | None:
    """The name of the format that has this number; None for a number that no format has."""
    return list(FORMATS)[number] if number < len(FORMATS) else None


def is_for_kafka07(number: int) -> bool:
    """Whether clients of Kafka 0.7 may see a log whose format has this number.

    They may see one that this version does not know: it is out of service, and the answers say so.
    """
    name = format_name(number)
    return name is None or FORMATS[name].is_for_kafka07


def format_of_files(names: Iterable[str]) -> LogFormat | None:
    """The format whose segments are among files of these names; None when none is a segment.

    For a partition whose side file is lost. Where segments of several formats are, it is the first of them.
    """
    known = list(names)
    return next(
        (item for item in FORMATS.values() if any(parse_segment_name(name, item.suffix) is not None for name in known)),
        None,
    )


_kafka07.register()
register_format(Kafka07())
_batches.register()
register_format(RecordBatches())
