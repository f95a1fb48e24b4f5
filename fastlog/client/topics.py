"""Creating a topic at a broker, in as many requests as its partitions take."""

from __future__ import annotations

from fastlog.client.connection import Connection
from fastlog.wire import requests, responses


def create_topic(connection: Connection, topic: str, partitions: int = 0) -> responses.CreateTopicAnswer:
    """Create a topic, or the partitions that it lacks, and return the last answer; 0 asks for the configured count.

    An answer with an error ends it; the partitions that were made before it stay.

    Raises:
        TransportError, ProtocolError: as a request.
    """
    step = requests.MAX_MADE_PARTITIONS
    for wanted in (*range(step, partitions, step), partitions):
        answer = responses.decode_create_topic(connection.request(requests.encode_create_topic(0, topic, wanted)))
        if answer.error:
            break
    return answer
