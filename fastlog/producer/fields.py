"""The settings of a producer as keywords, for type checkers: the fields of ``ProducerConfig``."""

from __future__ import annotations

from typing import TypedDict


class ProducerFields(TypedDict, total=False):
    """Each is the field of that name; what it means stands in ``ProducerConfig`` and `docs/clients.md`."""

    broker_list: str | None
    zk_connect: str | None
    zk_session_timeout_ms: int
    zk_connection_timeout_ms: int
    zk_sync_time_ms: int
    zk_read_retries: int
    producer_type: str
    acks: str | None
    idempotence: bool
    serializer_class: str
    partitioner_class: str | None
    compression: str
    compressed_topics: tuple[str, ...] | None
    max_message_bytes: int
    send_buffer_bytes: int | None
    connect_timeout_ms: int
    socket_timeout_ms: int
    reconnect_interval_sends: int | None
    reconnect_time_interval_ms: int | None
    num_retries: int | None
    delivery_timeout_ms: int
    queue_time_ms: int
    queue_messages: int
    queue_bytes: int
    queue_full: str
    enqueue_timeout_ms: int | None
    batch_messages: int
    batch_bytes: int
    in_flight_bytes: int
    close_timeout_ms: int
    event_handler_class: str | None
    event_handler_props: str
    callback_handler_class: str | None
    callback_handler_props: str
    envelope: bool
    server: str | None
    server_id: int | None
    audit_topic: str | None
    audit_window_ms: int
    audit_interval_ms: int
