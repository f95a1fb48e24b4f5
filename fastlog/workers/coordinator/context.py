"""What the handlers of requests may use, and what they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastlog.config import BrokerConfig
from fastlog.kafka_codes import Code
from fastlog.log._arena import Arena
from fastlog.workers._authorizer import Authorizer
from fastlog.workers.authorization import Client, Operation
from fastlog.workers.child import Listener
from fastlog.workers.coordinator.codec import Fields
from fastlog.workers.coordinator.groups.groups import Groups
from fastlog.workers.coordinator.loop import Wait
from fastlog.workers.coordinator.topics import Topics

Handler = Generator[Wait, Any, Fields]
"""A task that ends with the fields of the answer, those of the newest version."""

MOST_WAIT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Broker:
    """The broker as its handlers see it."""

    config: BrokerConfig
    arena: Arena
    listeners: Sequence[Listener]
    cluster_id: str
    topics: Topics
    groups: Groups
    authorizer: Authorizer


class Context(NamedTuple):
    """One request's: the broker, and who asks."""

    broker: Broker
    client: Client
    let_go: Callable[[], None] = lambda: None
    """Called by a handler that waits long: the request's bytes do not count as held any more."""

    def may(self, operation: Operation, topic: str) -> bool:
        """Whether the client may do this with a topic."""
        return self.broker.authorizer.is_allowed(self.client, operation, topic)

    def may_with_group(self, operation: Operation, group: str) -> bool:
        """Whether the client may do this with a consumer group."""
        return self.broker.authorizer.is_allowed_on_group(self.client, operation, group)

    def may_on_cluster(self, operation: Operation) -> bool:
        """Whether the client may do this with the cluster."""
        return self.broker.authorizer.is_allowed_on_cluster(self.client, operation)


def deadline(timeout: Any) -> float:
    """When a request's time is over, on the monotonic clock; ``timeout`` is a ``timedelta``, which a client chose."""
    seconds: float = timeout.total_seconds()
    return time.monotonic() + min(max(0.0, seconds), MOST_WAIT_SECONDS)


def error(code: Code, message: str | None = None) -> dict[str, Any]:
    """The fields that an answer has for an error."""
    return {"error_code": int(code), "error_message": message}
