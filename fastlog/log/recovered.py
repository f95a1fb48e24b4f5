"""What recovery made of a partition: its state, and what of it is served."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fastlog.log.slots import IndexState, ProducerState

NO_INDEXES = IndexState()

OK: Literal["ok"] = "ok"
READ_ONLY: Literal["read-only"] = "read-only"
OFFLINE: Literal["offline"] = "offline"


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment to serve: base offset, the bytes of it that are trusted, and when its first and last were appended."""

    base: int
    size: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class RecoveredPartition:
    """A partition as recovery left it.

    ``ok``: all of it is served, and appends go on at ``log_end``. ``read-only``: reads up to ``log_end``, no appends.
    ``offline``: nothing. ``reason`` is one line that names file and position; empty when ok.
    """

    topic: str
    partition: int
    directory: Path
    format: str
    state: Literal["ok", "read-only", "offline"]
    reason: str = ""
    segments: tuple[SegmentInfo, ...] = ()
    log_end: int = 0
    truncated_bytes: int = 0
    truncated_messages: int = 0
    created_ms: int = 0
    flushed_base: int | None = None
    sync_failed: bool = False
    """The kernel has reported a failed write-back: what memory holds of the files may be nowhere else."""
    no_room: bool = False
    """Nothing is known to be wrong but that the disk is full."""
    indexes: IndexState = NO_INDEXES
    epoch: int = 0
    log_start: int = 0
    """The offset that clients have deleted all before; 0: none."""
    topic_id: bytes = bytes(16)
    producers: tuple[ProducerState, ...] = ()
    """Those that number their batches, as far as they are known."""

    def taken_out(self, reason: str) -> RecoveredPartition:
        """The same partition, offline for this reason."""
        return replace(self, state=OFFLINE, reason=reason, segments=(), log_end=0, created_ms=0, producers=())
