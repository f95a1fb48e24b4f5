from collections.abc import Callable
from typing import TypeVar

from fastlog.producer.hooks import Delivery

_Event = TypeVar("_Event")

class Ticket:
    """A function of the program's that waits to be called with a ``Delivery``."""

def tell(events: list[_Event | Ticket], slowly: Callable[[_Event], object], log: Callable[[Delivery], object]) -> None:
    """Call the functions that wait for deliveries; ``slowly`` gets other events, ``log`` what a function failed on."""
