"""What the settings promise about acknowledged messages, in the words of the broker's log and of ``/health``."""

from __future__ import annotations

from fastlog.config import BrokerConfig
from fastlog.counts import listed

SHOWN_TOPICS = 10


def flush_policy(config: BrokerConfig) -> str:
    """When a partition is flushed, with its figures."""
    return (
        f"every {config.flush_interval_messages} messages or {config.flush_interval_ms} ms or "
        f"{config.flush_bytes} bytes, on demand after {config.flush_min_interval_ms} ms"
    )


def promise(config: BrokerConfig) -> str:
    """What the flush policy promises, in one sentence with its figures."""
    return (
        f"after a power loss at most {config.flush_interval_messages} messages or {config.flush_bytes} bytes per "
        f"partition are missing, from the end, and nothing older than {2 * config.flush_interval_ms} ms"
        f"{_exceptions(config)}; "
        "a killed process loses nothing that was acknowledged"
    )


def durability(config: BrokerConfig, sync_seconds: float | None) -> str:
    """What an acknowledgement means here, and what a flush costs; ``sync_seconds`` as ``broker`` measured it at start.

    Source: the lesson of NATS and Jepsen, that a default is only honest when the server itself says what it is.
    """
    cost = "fdatasync not measured" if sync_seconds is None else f"measured fdatasync {sync_seconds * 1000:.2f} ms"
    return (
        "acked = page cache, unless the producer asks for flushed; "
        f"flushed {flush_policy(config)}; {promise(config)}; {cost}"
    )


def _exceptions(config: BrokerConfig) -> str:
    """The topics for which other figures hold; not all of them where there are many."""
    topics = sorted({*config.flush_interval_messages_by_topic, *config.flush_interval_ms_by_topic})
    if not topics:
        return ""
    named = []
    for topic in topics:
        own = config.for_topic(topic)
        named.append(f"{topic!r} {own.flush_interval_messages} messages, {2 * own.flush_interval_ms} ms")
    return f" (but {listed(named, SHOWN_TOPICS, separator='; ', noun='topics')})"
