"""A connection that speaks Kafka 0.7."""

from fastlog.workers._engine import Engine
from fastlog.workers.kafka07.control import Control
from fastlog.workers.net._protocol import Protocol

class Kafka07(Protocol):
    """The protocol of one processor's listeners that speak Kafka 0.7 and fastlog's own requests."""

    def __init__(
        self, engine: Engine, control: Control, max_message: int, max_request: int, max_wait_ms: int
    ) -> None: ...
