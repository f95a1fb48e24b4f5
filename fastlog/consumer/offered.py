"""What a broker offers a consumer, asked once."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from fastlog.client.connection import Broker
from fastlog.wire.requests import CUT_POINTS, HELD_FETCH, LOCAL_READ, PLAIN_MESSAGE_BYTES

MOST_MESSAGE_BYTES = 100 * 2**20  # max.socket.request.bytes of Kafka 0.7: no message is larger unless somebody says so
_LEAST_WAIT_MS = 100


@dataclass(frozen=True, slots=True)
class FetchOffer:
    """The requests beyond 0.7 that may be used, and the largest payload; ``max_wait_ms`` 0: answers are not held."""

    own_requests: bool
    held_fetch: bool
    local_read: bool
    max_wait_ms: int
    max_message_bytes: int
    cut_points: bool = False


class Offers:
    """Asks on a connection of its own, when somebody wants to know for the first time; of a broker that was taken for
    one of Kafka 0.7, as often as that is open again. Safe in several threads."""

    def __init__(self, broker: Broker, max_message_bytes: int | None) -> None:
        self._broker = broker
        self._max_message_bytes = max_message_bytes
        self._lock = threading.Lock()
        self._known: FetchOffer | None = None

    def get(self) -> FetchOffer:
        """The offer. Raises ``TransportError`` while the broker cannot be asked."""
        known = self._known
        if known is None or self._is_open(known):
            with self._lock:
                known = self._known
                if known is None or self._is_open(known):
                    known = self._known = self._ask()
        return known

    def _is_open(self, known: FetchOffer) -> bool:
        return not known.own_requests and not self._broker.is_plain

    def _ask(self) -> FetchOffer:
        metadata = self._broker.metadata_or_none(())
        if metadata is None:
            return FetchOffer(False, False, False, 0, self._max_message_bytes or PLAIN_MESSAGE_BYTES)
        own = range(metadata.lowest_own_id, metadata.highest_own_id + 1)
        # A broker that holds no answer would be asked without a pause.
        max_wait_ms = metadata.max_wait_ms if metadata.max_wait_ms >= _LEAST_WAIT_MS else 0
        allowed = min(max(1, metadata.max_message_bytes), MOST_MESSAGE_BYTES)
        limit = self._max_message_bytes or allowed
        return FetchOffer(True, HELD_FETCH in own, LOCAL_READ in own, max_wait_ms, limit, CUT_POINTS in own)
