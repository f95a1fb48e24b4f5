"""A connection before its first request, which decides what it speaks."""

from fastlog.workers._engine import Engine
from fastlog.workers.net._protocol import Protocol

class FirstRequest(Protocol):
    """The protocol of listeners that both worlds come through; see ``_first_request.pyx``."""

    def __init__(self, engine: Engine, old: Protocol, today: Protocol) -> None:
        """``old`` is what 0.7's clients and fastlog's own speak, ``today`` what those of today do."""
