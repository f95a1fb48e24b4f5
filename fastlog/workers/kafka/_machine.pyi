"""A connection that speaks today's Kafka protocol."""

from fastlog.workers._engine import Engine
from fastlog.workers._forward import Forward
from fastlog.workers.kafka.control import Control
from fastlog.workers.net._protocol import Protocol

class Kafka(Protocol):
    """The protocol of one processor's connections that speak today's Kafka; ``max_request`` in bytes."""

    def __init__(self, engine: Engine, forward: Forward, control: Control, max_request: int) -> None: ...
