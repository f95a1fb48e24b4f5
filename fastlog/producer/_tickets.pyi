from collections.abc import Callable

from fastlog.producer._flight import Event
from fastlog.producer.hooks import Delivery

class Ticket:
    """A function of the program's that waits to be called with a ``Delivery``."""

def tell(events: list[Event | Ticket], slowly: Callable[[Event], object], log: Callable[[Delivery], object]) -> None:
    """Call the functions that wait for deliveries; ``slowly`` gets other events, ``log`` what a function failed on."""
