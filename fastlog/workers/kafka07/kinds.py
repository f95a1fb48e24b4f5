"""What each request kind of Kafka 0.7, and of fastlog's own, needs.

| request | operation | on each topic it names |
|---|---|---|
| PRODUCE, MULTIPRODUCE, PRODUCE_ACK | WRITE | and CREATE, where the topic has no partition yet |
| FETCH, MULTIFETCH, HELD_FETCH, CUT_POINTS, LOCAL_READ | READ | |
| OFFSETS, METADATA | DESCRIBE | METADATA of all topics leaves out what may not be described |
| CREATE_TOPIC | CREATE | or on the cluster |
| DELETE_TOPIC | DELETE | |
"""

from __future__ import annotations

from fastlog.wire import requests
from fastlog.workers.authorization import Operation

OPERATIONS: dict[int, Operation] = {
    requests.PRODUCE: Operation.WRITE,
    requests.FETCH: Operation.READ,
    requests.MULTIFETCH: Operation.READ,
    requests.MULTIPRODUCE: Operation.WRITE,
    requests.OFFSETS: Operation.DESCRIBE,
    requests.PRODUCE_ACK: Operation.WRITE,
    requests.HELD_FETCH: Operation.READ,
    requests.METADATA: Operation.DESCRIBE,
    requests.CUT_POINTS: Operation.READ,
    requests.LOCAL_READ: Operation.READ,
    requests.CREATE_TOPIC: Operation.CREATE,
    requests.DELETE_TOPIC: Operation.DELETE,
}
"""By request kind. The broker closes the connection on a kind that is not here."""
