"""From an offset to a segment and a position, and the open segment files of one process."""

from fastlog.log._arena import Arena

class SegmentFiles:
    """Open descriptors by (slot, segment index), at most ``capacity``; one thread at a time."""

    def __init__(self, arena: Arena, capacity: int) -> None: ...
    @property
    def open_count(self) -> int:
        """How many descriptors are open."""
