"""The log as the protocols of one processor see it."""

from fastlog.log._arena import Arena
from fastlog.log._segments import SegmentFiles
from fastlog.workers.net._helper import Helper
from fastlog.workers.net._slot_waits import SlotWaits
from fastlog.workers.services import Services

class Engine:
    """Who may use which partition, writes, reads, and work off the loop; for the loop's thread of one processor."""

    def __init__(self, arena: Arena, files: SegmentFiles, helper: Helper, process: int, services: Services) -> None: ...
    @property
    def slot_waits(self) -> SlotWaits:
        """Which connections wait for which slots; the loop needs it, too."""

    def take_over(self) -> None:
        """At start: finish what a predecessor in this place left in the middle of an append, if it did."""
