"""The settings of a consumer of a group as keywords, for type checkers: the fields of ``ConsumerConfig``."""

from __future__ import annotations

from typing import TypedDict


class ConsumerFields(TypedDict, total=False):
    """Each is the field of that name; what it means stands in ``ConsumerConfig`` and `docs/clients.md`."""

    zk_connect: str
    brokers: str
    group_id: str
    consumer_id: str | None
    zk_session_timeout_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    metadata_max_age_ms: int
    zk_connection_timeout_ms: int
    zk_sync_time_ms: int
    rebalance_backoff_ms: int | None
    rebalance_max_retries: int | None
    socket_timeout_ms: int
    receive_buffer_bytes: int | None
    fetch_bytes: int
    max_message_bytes: int | None
    fetcher_backoff_ms: int
    auto_commit: bool
    auto_commit_interval_ms: int
    auto_commit_max_failures: int | None
    queued_chunks: int
    auto_offset_reset: str
    consumer_timeout_ms: int | None
    shallow: bool
    local: str
