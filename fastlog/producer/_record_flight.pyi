from fastlog.producer._flight import Flight
from fastlog.producer._lane import Lane

class RecordFlight(Flight):
    """Produce requests on their way over one connection. For the thread that owns the connection."""

    producer: int
    epoch: int
    wants_producer: bool
    def number_with(self, producer: int, epoch: int) -> None:
        """Have the partitions numbered that have no numbers yet: with this id, in this epoch."""

    def renew(self, lane: Lane) -> None:
        """Number anew what is written to a partition from now on. Only while nothing of it is on its way."""

    def is_behind(self) -> bool:
        """Whether there is something to write, also if it waits for answers to what is written."""
