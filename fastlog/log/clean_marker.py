"""The clean marker of a log directory, ``.kafka_cleanshutdown``: the broker flushed everything before it left.

    {"version": 1, "ends": {"<topic>-<partition>": <log end offset>}}

A log whose end and file length are what the marker says is not scanned at the next start. 0.7 leaves an empty file of
this name: it names no log, so everything is scanned. The marker speaks for one stop only; it is gone, durably, before
anything is appended, else an old one could come back after a power loss and hide a torn tail.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path

from fastlog.log.files import FileOps
from fastlog.segment_files import CLEAN_MARKER_NAME, MAX_OFFSET

VERSION = 1
MAX_BYTES = 64 * 1024 * 1024

log = logging.getLogger(__name__)


def write_clean_marker(log_directory: Path, ends: Mapping[str, int], files: FileOps) -> None:
    """Put down, durably, where each log ends; ``ends`` is by the name of the partition's directory.

    Call it when every log named in it, and its directory, is flushed, and nothing can append any more.

    Raises:
        OSError: there is no marker; the next start scans.
    """
    data = json.dumps({"version": VERSION, "ends": dict(ends)}, sort_keys=True).encode() + b"\n"
    files.replace_file(log_directory / CLEAN_MARKER_NAME, data, "marker.write")
    files.fsync_dir(log_directory)


def consume_clean_marker(log_directory: Path, files: FileOps) -> dict[str, int]:
    """Remove the marker, durably, and return the log ends it named: none when there was none or it says nothing.

    Call it before anything is appended in this directory.

    Raises:
        OSError: the marker cannot be removed. Going on would leave it for a later start to believe.
    """
    path = log_directory / CLEAN_MARKER_NAME
    try:
        data = files.read_file(path, MAX_BYTES)
    except FileNotFoundError:
        return {}
    except IsADirectoryError:
        log.warning("not a clean marker, but a directory path=%s: every log is scanned", path)
        return {}
    except OSError as error:
        log.warning("clean marker unreadable path=%s reason=%s: every log is scanned", path, error.strerror)
        data = b""
    with contextlib.suppress(FileNotFoundError):  # there was none that could have been read
        files.unlink(path)
    files.fsync_dir(log_directory)
    ends = _parse(data)
    if ends is None:
        log.warning("clean marker names no log path=%s bytes=%d: every log is scanned", path, len(data))
    return ends or {}


def read_clean_marker(log_directory: Path, files: FileOps) -> dict[str, int] | None:
    """The log ends that the marker names, for who only looks; None where there is none, or one that says nothing.

    Raises:
        OSError: it cannot be read.
    """
    try:
        return _parse(files.read_file(log_directory / CLEAN_MARKER_NAME, MAX_BYTES))
    except FileNotFoundError:
        return None


def _parse(data: bytes) -> dict[str, int] | None:
    try:
        content = json.loads(data)
        ends = content["ends"]
        if content["version"] != VERSION or not isinstance(ends, dict):
            return None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return ends if all(type(end) is int and 0 <= end <= MAX_OFFSET for end in ends.values()) else None
