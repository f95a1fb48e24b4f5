"""Measuring consumers: ``measure_consumer(options)`` reads a topic and says how fast that was.

The clock starts before the first request, the start offsets being known, and ends with the last message that counts;
waiting in vain for more (0.7's ``consumer.timeout``) is left out. Checksums are checked whatever the mode.
"""

from __future__ import annotations

from collections.abc import Callable

from fastlog.perf.broker_consuming import ConsumerRun
from fastlog.perf.consumer_options import MODES, ConsumerFigures, ConsumerOptions
from fastlog.perf.reading import LocalReadError
from fastlog.perf.sending import OnInterval

__all__ = [
    "MODES",
    "ConsumerFigures",
    "ConsumerOptions",
    "ConsumerRun",
    "LocalReadError",
    "consumer_run",
    "measure_consumer",
]


def measure_consumer(options: ConsumerOptions, on_interval: OnInterval | None = None) -> ConsumerFigures:
    """Read, and return the figures. Raises as ``ConsumerRun.run``."""
    return consumer_run(options, on_interval=on_interval).run()


def consumer_run(
    options: ConsumerOptions,
    *,
    on_interval: OnInterval | None = None,
    on_progress: Callable[[int, int], object] | None = None,
) -> ConsumerRun:
    """The measurement that the options mean: of a group with ``zk_connect``, else of one broker."""
    if options.zk_connect:
        from fastlog.perf.group_consuming import GroupRun  # with it comes what talks to ZooKeeper

        return GroupRun(options, on_interval=on_interval, on_progress=on_progress)
    return ConsumerRun(options, on_interval=on_interval, on_progress=on_progress)
