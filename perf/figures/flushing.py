"""Which flush policy a figure was measured with."""

from __future__ import annotations

from collections.abc import Mapping

from fastlog.config import BrokerConfig
from fastlog.settings import plain

FLUSH_SETTINGS = {
    "log.flush.interval": "flush_interval_messages",
    "log.default.flush.interval.ms": "flush_interval_ms",
    "flush.max.unflushed.bytes": "flush_bytes",
    "flush.min.interval.ms": "flush_min_interval_ms",
    "log.preallocate": "preallocate",
    "log.preallocate.bytes": "preallocate_bytes",
    "log.early.writeback.bytes": "early_writeback_bytes",
    "log.cache.keep.bytes": "cache_keep_bytes",
}
"""The broker's settings that decide what a power loss can take, and the fields of ``BrokerConfig`` they are."""


def flush_policy(properties: Mapping[str, object]) -> dict[str, object]:
    """Every setting of ``FLUSH_SETTINGS`` as a broker with these 0.7 properties has it.

    Raises:
        ConfigError: a property is unknown or has a wrong value.
    """
    config = BrokerConfig.from_properties({name: plain(value) for name, value in properties.items()})
    return {name: getattr(config, field) for name, field in FLUSH_SETTINGS.items()}
