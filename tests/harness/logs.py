"""Partitions on disk for tests, written with the standard library: segments, side files, and what became of them."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from fastlog.log.files import FileOps
from tests.harness import raw_format
from tests.harness.faulty_files import FaultyFileOps


class QuickFiles(FileOps):
    """File calls that leave out waiting for the disk, where thousands of recoveries are not about that."""

    def fdatasync(self, fd: int) -> None:
        self._begin("fdatasync", None)

    def fsync_dir(self, path: Path) -> None:
        self._begin("fsync_dir", path)


class QuickFaultyFiles(QuickFiles, FaultyFileOps):
    """Quick files whose calls can fail."""


def segment_path(directory: Path, base: int) -> Path:
    return directory / f"{base:020}.kafka"


def write_segments(directory: Path, parts: Sequence[bytes], base: int = 0) -> list[int]:
    """Write a partition whose segments hold these bytes; return the base offsets and, last, the end."""
    directory.mkdir(parents=True, exist_ok=True)
    bases = [base]
    for part in parts:
        segment_path(directory, bases[-1]).write_bytes(part)
        bases.append(bases[-1] + len(part))
    return bases


def write_side_file(
    directory: Path,
    checkpoint: int,
    *,
    log_format: str = "kafka-0.7",
    version: int = 1,
    created_ms: int = 1_600_000_000_000,
    segments: Mapping[int, tuple[int, int]] | None = None,
) -> Path:
    """Write a side file from its description in ``docs/format.md``."""
    content: dict[str, object] = {
        "version": version,
        "format": log_format,
        "created_ms": created_ms,
        "checkpoint": checkpoint,
        "segments": {str(base): list(times) for base, times in (segments or {}).items()},
    }
    content["crc"] = zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
    path = directory / "fastlog.json"
    path.write_text(json.dumps(content))
    return path


def payloads(source: random.Random, count: int, low: int = 0, high: int = 60) -> list[bytes]:
    """Random payloads; some are text, some bytes, some empty."""
    return [
        source.randbytes(source.randint(low, high)) if source.random() < 0.5 else b"line %d " % index * 3
        for index in range(count)
    ]


def sets(source: random.Random, count: int, magic: int, codec: int, inside: int = 3) -> list[bytes]:
    """``count`` top-level entries: plain messages, or wrappers with ``inside`` messages each."""
    if codec == raw_format.NONE:
        return [raw_format.entry(payload, magic) for payload in payloads(source, count)]
    return [raw_format.message_set(payloads(source, inside), magic, codec) for _ in range(count)]


def contents(directory: Path) -> dict[str, bytes]:
    """What every regular file of a directory holds, by name; but for the side file and the flushed mark."""
    return {
        path.name: path.read_bytes()
        for path in sorted(directory.iterdir())
        if path.is_file() and not path.is_symlink() and not path.name.startswith(("fastlog.json", ".flushed-"))
    }


def lost_bytes(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> list[str]:
    """The names of files whose bytes cannot be put together again from what is there now."""
    lost = []
    wholes = set(after.values())
    for name, data in before.items():
        left = after.get(name, b"")
        pieces = [b"", *(piece for other, piece in after.items() if other.startswith(f"{name}."))]
        if data not in wholes and not any(left + piece == data for piece in pieces):
            lost.append(name)
    return lost
