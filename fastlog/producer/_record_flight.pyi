from fastlog.producer._flight import Flight
from fastlog.producer._lane import Lane

class RecordFlight(Flight):
    """Produce requests on their way over one connection. For the thread that owns the connection."""

    producer: int
    epoch: int
    wants_producer: bool
    def number_with(self, producer: int, epoch: int) -> None:
        """Give partitions without a producer id this one and its epoch, so that their batches can be numbered."""

    def renew(self, lane: Lane) -> None:
        """Number anew what is written to a partition from now on. Only while nothing of it is on its way."""

    def is_behind(self) -> bool:
        """Whether there is something to write, also if it waits for answers to what is written."""
