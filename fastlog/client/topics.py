"""What a broker says of a topic; creating one there, in as many requests as its partitions take; deleting one."""

from __future__ import annotations

from fastlog.client.addresses import Address
from fastlog.client.connection import Connection
from fastlog.errors import NotAuthorizedError, error_for
from fastlog.wire import requests, responses


def check_described(topic: responses.TopicMetadata, broker: Address) -> None:
    """Raise the ``BrokerError`` that METADATA has in place of a topic's partitions; without one, it has none."""
    if topic.error:
        raise error_for(topic.error, topic=topic.name, broker=broker)


def described_in(metadata: responses.MetadataAnswer, topic: str) -> responses.TopicMetadata:
    """What a metadata answer says about one topic; as unknown when it says nothing."""
    for described in metadata.topics:
        if described.name == topic:
            return described
    return responses.TopicMetadata(topic, 0, 1)


def readable_end(partition: responses.PartitionMetadata) -> int:
    """Up to where a partition can be read once all of it is flushed; what takes no appends shows no more than now."""
    return partition.log_end if partition.state == responses.STATE_OK else partition.high_watermark


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


def what_to_do(error: int, otherwise: str) -> str:
    """What to do about the error of such an answer; ``otherwise`` where it is none of the broker's permission."""
    if error == NotAuthorizedError.code:
        return "start the broker with create.topic.requests=true, which is as auto.create.topics where it is not set"
    return otherwise


def delete_topic(connection: Connection, topic: str) -> responses.DeleteTopicAnswer:
    """Delete a topic with all it holds, and return the answer, which comes when it is gone and its name is free.

    Raises:
        TransportError, ProtocolError: as a request. It may be gone then, or go later.
    """
    return responses.decode_delete_topic(connection.request(requests.encode_delete_topic(0, topic)))
