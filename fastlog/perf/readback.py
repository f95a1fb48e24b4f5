"""Counting what a topic has got, by reading it: where compression hides how many bytes there must be."""

from __future__ import annotations

import time
from collections.abc import Mapping

from fastlog.consumer.simple import SimpleConsumer
from fastlog.perf.visibility import LogEnds, PartitionEnds

_WAIT_SECONDS = 0.1


def count_messages(
    ends: LogEnds,
    topic: str,
    base: Mapping[tuple[object, ...], Mapping[int, PartitionEnds]],
    wanted: int,
    timeout: float,
) -> int:
    """The messages behind the log ends of ``base``, compressed sets opened.

    Reads to the log end. Where a plain 0.7 broker shows no log end, waits until there are ``wanted``, or no more have
    come for ``timeout`` seconds.
    """
    consumers = {
        identity: SimpleConsumer(address.host, address.port, timeout=max(1.0, timeout))
        for identity, address in ends.addresses.items()
    }
    offsets: dict[tuple[tuple[object, ...], int], int] = {}
    count = 0
    heard = time.monotonic()
    try:
        while True:
            behind = False
            for identity, positions in ends.positions().items():
                for number, position in positions.items():
                    old = base.get(identity, {}).get(number)
                    offset = offsets.get((identity, number), old.log_end if old else position.log_start)
                    if offset >= position.log_end:
                        continue
                    behind = True
                    found = consumers[identity].fetch(topic, number, offset, wait=_WAIT_SECONDS)
                    came = len(found.payloads())
                    if came:
                        heard = time.monotonic()
                    count += came
                    offsets[identity, number] = found.next_offset
            if not behind and (count >= wanted or not ends.is_plain):
                return count
            if time.monotonic() - heard >= timeout:
                return count
    finally:
        for consumer in consumers.values():
            consumer.close()
