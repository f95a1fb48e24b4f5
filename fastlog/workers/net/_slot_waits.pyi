"""Which connections of a process wait for which slots."""

from fastlog.log._arena import Arena

class SlotWaits:
    """The waits of one process; its loop's thread only."""

    def __init__(self, arena: Arena, process: int) -> None: ...
