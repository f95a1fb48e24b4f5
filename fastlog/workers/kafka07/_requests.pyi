"""What a processor does per request: frames in, appends and answers out, on raw buffers."""

from fastlog.log._arena import Arena
from fastlog.log._segments import SegmentFiles
from fastlog.workers.kafka07.control import Control
from fastlog.workers.services import Services

class Requests:
    """Handles the requests of one processor's connections; its loop's thread only."""

    def __init__(
        self,
        arena: Arena,
        files: SegmentFiles,
        process: int,
        services: Services,
        control: Control,
        max_message: int,
        max_request: int,
        max_wait_ms: int,
        memory_bytes: int,
        trace: bool,
    ) -> None: ...
    def take_over(self) -> None:
        """At start: finish what a predecessor in this place left in the middle of an append, if it did."""
