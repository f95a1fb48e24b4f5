"""A partition's buffer, as the settings and its broker's limits make it: of messages, and of record batches."""

from __future__ import annotations

from fastlog import codecs
from fastlog.errors import UnsupportedFeatureError, WrongPartitionError
from fastlog.producer._buffer import Buffer
from fastlog.producer._record_buffer import RecordBuffer
from fastlog.producer.brokers import Directory, RecordTopic, batch_header, frame_header
from fastlog.producer.config import ProducerConfig
from fastlog.producer.link import Link
from fastlog.producer.record_link import RecordLink
from fastlog.record_batches import HEADER_BYTES

_REQUEST_ROOM = 65536  # what a frame may hold besides its messages


def payload_limit(config: ProducerConfig, directory: Directory) -> int:
    """The bytes that a message may have, by the settings and by what the broker tells."""
    allowed = directory.offer.max_message_bytes if directory.offer is not None else 0
    return min(config.max_message_bytes, allowed) if allowed > 0 else config.max_message_bytes


def message_buffer(config: ProducerConfig, directory: Directory, link: Link, topic: str, partition: int) -> Buffer:
    """The buffer for messages of Kafka 0.7.

    Raises:
        UnsupportedFeatureError: the settings name a codec that they do not know.
    """
    codec, limit = config.codec_for(topic), payload_limit(config, directory)
    if codec > codecs.SNAPPY:
        raise UnsupportedFeatureError(
            f"compression.codec: messages of Kafka 0.7 know gzip and snappy, not {config.compression}"
        ).at(topic=topic)
    batch_bytes = _batch_bytes(config.batch_bytes, directory)
    if codec != codecs.NONE and config.producer_type == "async":
        # A set that does not shrink still has to fit one message.
        batch_bytes = max(1, min(batch_bytes, limit - limit // 1000 - 64))
    return Buffer(
        link.outbox,
        directory.broker.id,
        topic,
        partition,
        codec,
        frame_header(topic, partition, link.acks),
        link.acks > 0,
        _batch_messages(config),
        batch_bytes,
        limit,
    )


def check_partition(directory: Directory, topic: str, partition: int, records: RecordTopic) -> None:
    """Raise ``WrongPartitionError`` unless the topic of record batches has the partition."""
    if partition not in records.partitions:
        raise WrongPartitionError(f"there is no partition {partition} of {topic!r} on broker {directory.broker.id}")


def record_buffer(
    config: ProducerConfig, directory: Directory, link: RecordLink, topic: str, partition: int, records: RecordTopic
) -> RecordBuffer:
    """A new buffer for one partition of a topic of record batches."""
    return RecordBuffer(
        link.outbox,
        directory.broker.id,
        topic,
        partition,
        config.codec_for(topic),
        batch_header(topic, partition, link.acks, config.socket_timeout_ms),
        link.acks != 0,
        _batch_messages(config),
        _batch_bytes(min(config.batch_bytes, records.max_batch_bytes - HEADER_BYTES), directory),
        config.max_message_bytes,
        link.new_lane(),
    )


def _batch_messages(config: ProducerConfig) -> int:
    """The most messages in a request; without a limit for a synchronous producer, whose calls are a request each."""
    return config.batch_messages if config.producer_type == "async" else 2**31 - 1


def _batch_bytes(wanted: int, directory: Directory) -> int:
    """The wanted bytes, or as many as a request to the broker may have."""
    offer = directory.offer
    if offer is not None and offer.max_request_bytes > 0:
        wanted = min(wanted, offer.max_request_bytes - _REQUEST_ROOM)
    return max(1, wanted)
