"""The connections of the commands: those of the clients, interrupted where ``signals`` allows it."""

from __future__ import annotations

from fastlog.client import connection
from fastlog.client.addresses import Address, parse_brokers
from fastlog.client.connection import Connection, ConnectionEnded
from fastlog.tools import signals

__all__ = ["Address", "Broker", "Connection", "ConnectionEnded", "Patience", "parse_brokers"]


class Broker(connection.Broker):
    """A broker by its addresses, as a command names it."""

    hint = "start one with fastlog-broker, or name another with --brokers host:port"

    def __init__(self, brokers: str, timeout: float) -> None:
        super().__init__(brokers, timeout, signals.waiting)


class Patience(connection.Patience):
    """How long a command puts up with failures in a row."""

    def __init__(self, seconds: float = 30.0) -> None:
        super().__init__(seconds, signals.waiting)
