"""The Python side of today's protocol in a processor: what never changes of its answers, and look-ups by time."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from fastlog.config import BrokerConfig
from fastlog.log._arena import Arena
from fastlog.workers.kafka import kinds
from fastlog.workers.kafka.times import Times
from fastlog.workers.services import Services

NONE, UNSUPPORTED_VERSION = 0, 35


class Control:
    """What answers of one processor need of Python."""

    def __init__(
        self,
        config: BrokerConfig,
        arena: Arena,
        services: Services,
        advertised: Sequence[tuple[str, int]],
        cluster_id: str,
    ) -> None:
        """``advertised``: host and port that clients are to connect to, by the listener that they come through."""
        self.broker_id = config.broker_id
        self.cluster_id = cluster_id.encode()
        self.advertised = [(host.encode(), port) for host, port in advertised]
        self.may_create = config.auto_create_topics
        self.max_wait_ms = config.fetch_max_wait_ms
        self.max_batch = config.max_batch_bytes
        self.api_versions = [api_versions(version) for version in range(kinds.APIS[kinds.API_VERSIONS].last + 1)]
        self.api_versions_refused = api_versions(0, UNSUPPORTED_VERSION)
        self.look_up_times = Times(config, arena, services).answer


def api_versions(version: int, error: int = NONE) -> bytes:
    """The body of an answer to API_VERSIONS of this version: without supported features, see ``kinds``."""
    offered = kinds.offered()
    head = struct.pack(">h", error)
    if version < kinds.APIS[kinds.API_VERSIONS].flexible:
        rows = b"".join(struct.pack(">hhh", key, *versions) for key, versions in offered.items())
        return head + struct.pack(">i", len(offered)) + rows + (bytes(4) if version else b"")
    rows = b"".join(struct.pack(">hhhB", key, *versions, 0) for key, versions in offered.items())
    return head + varint(len(offered) + 1) + rows + bytes(5)


def varint(value: int) -> bytes:
    """An unsigned varint."""
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])
