"""Who may do what with a topic, a group or the cluster, and who is asked.

A protocol says which operation each of its requests is. Numbers of operations and resource types are those of Apache
Kafka's ACLs.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple


class Operation(enum.IntEnum):
    """An operation on a resource, numbered as in Kafka's ACLs."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class ResourceType(enum.IntEnum):
    """The kind of a resource, numbered as in Kafka's ACLs."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4


class Client(NamedTuple):
    """Who asks: the principal as ``type:name``, and the host as a numeric address, "?" where it is not known.

    ``listener`` is the place in the broker's list of the one that the connection came through, ``connection`` its name
    in this processor, which no other ever has.
    """

    principal: str
    host: str
    listener: int = 0
    connection: int = 0


Rule = Callable[[str, str, Operation, ResourceType, str], bool]
"""Whether (principal, host, operation, resource type, resource name) is allowed.

Called by the thread of a processor's loop and by the threads that make its answers: it keeps nothing of its own without
a lock, and does not wait. A topic's name that is not UTF-8 has surrogates for the bytes, as ``surrogateescape`` makes.
"""

ANONYMOUS = "User:ANONYMOUS"
PRINCIPALS = (ANONYMOUS,)
"""Principals, by the number that a connection carries."""
CLUSTER_NAME = "kafka-cluster"


def is_allowed(rule: Rule, client: Client, operation: Operation, topic: str) -> bool:
    """Whether ``rule`` lets a client do an operation on a topic; who may create on the cluster may on any."""
    principal, host = client.principal, client.host
    if operation is Operation.CREATE and rule(principal, host, operation, ResourceType.CLUSTER, CLUSTER_NAME):
        return True
    return rule(principal, host, operation, ResourceType.TOPIC, topic)


def is_allowed_on_cluster(rule: Rule, client: Client, operation: Operation) -> bool:
    """Whether ``rule`` lets a client do an operation on the cluster itself."""
    return rule(client.principal, client.host, operation, ResourceType.CLUSTER, CLUSTER_NAME)


def is_allowed_on_group(rule: Rule, client: Client, operation: Operation, group: str) -> bool:
    """Whether ``rule`` lets a client do an operation on a consumer group."""
    return rule(client.principal, client.host, operation, ResourceType.GROUP, group)
