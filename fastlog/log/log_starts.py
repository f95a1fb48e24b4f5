"""Where partitions begin since their records were deleted: a file of each log directory, in Apache Kafka's format.

    log-start-offset-checkpoint    0                 the version
                                   2                 how many lines follow
                                   access 0 1734     a topic, a partition, the first offset that is left
                                   access 3 20

Segments that lie below are removed when there is time; the file is what says that they, and records below the offset
in the segment that has it, are no more. One process writes it at a time.

Source: Apache Kafka 4.2 (OffsetCheckpointFile, LogManager.checkpointLogStartOffsetsInDir).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from fastlog.log.files import FileOps
from fastlog.segment_files import LOG_STARTS_NAME, MAX_OFFSET

MAX_BYTES = 64 << 20

Starts = dict[tuple[str, int], int]
"""The log start's offset by topic and partition."""

log = logging.getLogger(__name__)


def write_log_starts(log_directory: Path, starts: Mapping[tuple[str, int], int], files: FileOps) -> None:
    """Put the starts of a log directory's partitions in place, durably.

    Raises:
        OSError: the former file, if any, may be in place still, or come back.
    """
    files.replace_file(log_directory / LOG_STARTS_NAME, checkpoint_bytes(starts), "starts_file.write")
    files.fsync_dir(log_directory)


def checkpoint_bytes(offsets: Mapping[tuple[str, int], int]) -> bytes:
    """An offset for each partition, as all of Apache Kafka's checkpoints have them."""
    lines = "".join(f"{topic} {partition} {offset}\n" for (topic, partition), offset in sorted(offsets.items()))
    return f"0\n{len(offsets)}\n{lines}".encode()


def read_log_starts(log_directory: Path, files: FileOps) -> Starts:
    """Return the starts of a log directory's partitions; none without a file, or with a damaged one, which is logged.

    Raises:
        OSError: there is a file and it cannot be read.
    """
    path = log_directory / LOG_STARTS_NAME
    try:
        lines = files.read_file(path, MAX_BYTES).decode().splitlines()
        rows = [line.rsplit(" ", 2) for line in lines[2:]]
        starts = {(topic, int(partition)): int(offset) for topic, partition, offset in rows}
        known = lines[:2] == ["0", str(len(starts))]
    except FileNotFoundError:
        return {}
    except ValueError:
        known = False
    if known and all(partition >= 0 and 0 <= offset <= MAX_OFFSET for (_, partition), offset in starts.items()):
        return starts
    log.error("log starts not understood path=%s: partitions begin with their first segments", path)
    return {}
