"""getOffsetsBefore: offsets of segment borders by time.

Source: Kafka 0.7.2, ``Log.getOffsetsBefore``; times are the append times fastlog keeps, not file times.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastlog.log.slots import Segment

LATEST = -1
EARLIEST = -2


def offsets_before(
    segments: Sequence[Segment], high_watermark: int, time_ms: int, max_count: int, now_ms: int
) -> list[int]:
    """Return up to ``max_count`` offsets, newest first, of what lay in the log at ``time_ms``.

    ``-1`` stands for the end, ``-2`` for the start, other negative times for a time before everything. A segment counts
    from its last append, an empty one from its making, the visible end from now. Nothing above the high watermark is
    ever named.
    """
    borders = [(item.base, item.last_ms or item.first_ms) for item in segments if item.base <= high_watermark]
    if not borders:
        return []
    if high_watermark > borders[-1][0]:
        borders.append((high_watermark, now_ms))
    if time_ms == LATEST:
        last = len(borders) - 1
    elif time_ms == EARLIEST:
        last = 0
    else:
        last = next((i for i in range(len(borders) - 1, -1, -1) if borders[i][1] <= time_ms), -1)
    return [offset for offset, _ in reversed(borders[: last + 1])][: max(max_count, 0)]
