"""How many partitions a plain 0.7 broker may have of a topic, which it has no request for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from fastlog.client.registrations import MOST_PARTITIONS
from fastlog.errors import UnsupportedFeatureError


def count_partitions(exists: Callable[[int], bool]) -> int:
    """The number from which on ``exists`` says no, by some ten questions.

    Raises:
        UnsupportedFeatureError: it never does.

    Source: Kafka 0.7.2 (LogManager), which answers a fetch of any other number with error 3.
    """
    below, count = 0, 1
    while exists(count - 1):
        if count > MOST_PARTITIONS:
            raise UnsupportedFeatureError("the broker answers for every number of a partition: name the one to read")
        below, count = count, min(2 * count, MOST_PARTITIONS + 1)
    return below + bisect_left(range(below, count - 1), True, key=lambda number: not exists(number))
