"""How long messages took: a histogram with percentiles, and when each message of a fixed rate is meant to be sent.

At a fixed rate a latency counts from the moment the message was meant to be sent. When the producer, or the broker that
makes it wait, falls behind, the messages that had to stand in line show it; counted from their send they would not.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from fastlog.producer.hooks import Delivery

PERCENTILES = (50.0, 95.0, 99.0, 99.9)
_EXACT = 1024  # microseconds counted one by one; above, a bucket is at most 1/512 of its value wide
_HALF = _EXACT // 2


class LatencyHistogram:
    """Counts latencies in buckets of a microsecond or 0.2 %, whatever their number. Safe in several threads."""

    def __init__(self) -> None:
        self.count = 0
        self.total_ns = 0
        self.max_ns = 0
        self.window_max_ns = 0
        """The largest since this was last set to 0."""
        self._buckets: dict[int, int] = {}
        self._lock = threading.Lock()

    def add(self, nanoseconds: int, count: int = 1) -> None:
        """Count one latency, ``count`` times; a negative one as 0."""
        nanoseconds = max(0, nanoseconds)
        bucket = _bucket(nanoseconds // 1000)
        with self._lock:
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count
            self.count += count
            self.total_ns += nanoseconds * count
            self.max_ns = max(self.max_ns, nanoseconds)
            self.window_max_ns = max(self.window_max_ns, nanoseconds)

    def merge(self, other: LatencyHistogram) -> None:
        """Add the counts of another histogram."""
        with other._lock:
            buckets, count, total, largest = dict(other._buckets), other.count, other.total_ns, other.max_ns
        with self._lock:
            for bucket, found in buckets.items():
                self._buckets[bucket] = self._buckets.get(bucket, 0) + found
            self.count += count
            self.total_ns += total
            self.max_ns = max(self.max_ns, largest)

    def percentile_ms(self, percent: float) -> float:
        """The latency that ``percent`` of the messages did not exceed, in ms; 0 when there are none."""
        with self._lock:
            wanted = max(1, math.ceil(self.count * percent / 100 - 1e-9))
            seen = 0
            for bucket in sorted(self._buckets):
                seen += self._buckets[bucket]
                if seen >= wanted:
                    return min(_microseconds(bucket) / 1000, self.max_ns / 1e6)
        return 0.0

    @property
    def mean_ms(self) -> float:
        """The mean in ms; 0 when there are none."""
        return self.total_ns / self.count / 1e6 if self.count else 0.0

    def as_dict(self) -> dict[str, float]:
        """Count, mean, percentiles and maximum, in ms."""
        found = {f"p{percent:g}": round(self.percentile_ms(percent), 4) for percent in PERCENTILES}
        return {"count": self.count, "mean": round(self.mean_ms, 4), **found, "max": round(self.max_ns / 1e6, 4)}


def _bucket(microseconds: int) -> int:
    if microseconds < _EXACT:
        return microseconds
    shift = microseconds.bit_length() - 10
    return shift * _HALF + (microseconds >> shift)


def _microseconds(bucket: int) -> float:
    """The middle of a bucket in microseconds."""
    if bucket < _EXACT:
        return bucket + 0.5
    shift = bucket // _HALF - 1
    return float((bucket - shift * _HALF) << shift) + (1 << shift) / 2


class Pacer:
    """When messages of a fixed rate are due: number ``n`` at ``start + n / rate``, however late those before were."""

    def __init__(self, rate: float, start_ns: int) -> None:
        """``rate``: messages a second."""
        self.start_ns = start_ns
        self.step_ns = 1e9 / rate

    def intended_ns(self, number: int) -> int:
        """When message ``number`` is meant to be sent; the first is number 0."""
        return self.start_ns + int(number * self.step_ns)

    def due(self, now_ns: int) -> int:
        """How many messages are due by now."""
        return int((now_ns - self.start_ns) / self.step_ns) + 1 if now_ns >= self.start_ns else 0


class Timed:
    """A delivery callback for messages that were given to one ``send``: notes the latency of each."""

    __slots__ = ("_clock", "_intended_ns", "_latencies", "_step_ns")

    def __init__(
        self,
        latencies: LatencyHistogram,
        intended_ns: float,
        step_ns: float = 0.0,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """The first message was meant to go at ``intended_ns``, each further one ``step_ns`` later."""
        self._latencies = latencies
        self._intended_ns = intended_ns
        self._step_ns = step_ns
        self._clock = clock

    def __call__(self, delivery: Delivery) -> None:
        """Called with some of the messages, in any order."""
        now = self._clock()
        if delivery.error is not None:
            return
        if self._step_ns == 0.0:
            self._latencies.add(int(now - self._intended_ns), delivery.messages)
            return
        for place in range(delivery.first, delivery.first + delivery.messages):
            self._latencies.add(int(now - self._intended_ns - place * self._step_ns))
