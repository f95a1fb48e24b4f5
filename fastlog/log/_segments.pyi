"""From an offset to a segment and a position, and the open segment files of one process."""

from fastlog.log._arena import Arena

class SegmentFiles:
    """Open descriptors by (slot, segment index), at most ``capacity``; one thread at a time."""

    def __init__(self, arena: Arena, capacity: int) -> None: ...
    @property
    def open_count(self) -> int:
        """How many descriptors are open."""

    def close_unused(self) -> None:
        """Close every descriptor that is not in use; for processes that open segments now and then."""

def locate_offset(arena: Arena, slot: int, offset: int) -> tuple[int, int, int, int] | None:
    """Where the flushed bytes from ``offset`` on lie; for tools and tests.

    Returns:
        ``(segment index, base offset, file position, offset where the visible bytes of that segment end)``, None when
        ``offset`` is the high watermark.

    Raises:
        OffsetOutOfRangeError: it lies below the log start or above the high watermark.
    """
