"""Threads for what would make the loop of a processor wait."""

from fastlog.log._arena import Arena
from fastlog.log._segments import SegmentFiles

class Helper:
    """The queues of one processor; a thread is started at the first job of its queue."""

    def __init__(self, arena: Arena, files: SegmentFiles) -> None: ...
    def keep(self, owner: object) -> None:
        """Have an object live as long as the threads that may do its jobs."""
