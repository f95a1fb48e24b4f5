"""The ``.index`` of a segment of record batches: eight bytes an entry, an offset minus the segment's and a position.

It is a help alone: what it leads to has to be looked at.

Source: Apache Kafka 4.2 (OffsetIndex).
"""

from __future__ import annotations


def indexed_position(data: bytes | memoryview, base: int, offset: int) -> int:
    """Where to begin to look for an offset in the segment that begins at ``base``; ``data`` is its index."""
    import numpy as np

    entries = np.frombuffer(data, ">u4", len(data) // 8 * 2).reshape(-1, 2)
    rising = np.flatnonzero(np.diff(entries[:, 0].astype(np.int64)) <= 0)  # room that was not used is zeros
    offsets = entries[: rising[0] + 1 if len(rising) else len(entries), 0]
    place = int(np.searchsorted(offsets, min(offset - base, 2**32 - 1), side="right")) - 1
    return int(entries[place, 1]) if place >= 0 else 0
