"""When an iteration over a partition goes on, waits, and ends."""

from __future__ import annotations

import time
from collections.abc import Iterator

from fastlog.client.connection import Broker
from fastlog.consumer.channel import Channel
from fastlog.consumer.chunks import AnyChunk
from fastlog.consumer.reader import AnyReader
from fastlog.errors import ConsumerTimeout

_STEP_SECONDS = 5.0
_LOOK_SECONDS = 1.0


def walk(
    broker: Broker, channel: Channel, reader: AnyReader, topic: str, partition: int, wait: float | None
) -> Iterator[AnyChunk]:
    """The chunks of one partition; ends when nothing came for ``wait`` seconds, never when it is None.

    0 ends it at the end of what had been appended when it first found nothing: bytes that are not flushed yet are
    waited for, unless the partition takes no appends any more and will not show them.

    Raises:
        ConsumerTimeout: such bytes did not become visible within the time a broker has for an answer.
    """
    if wait == 0:
        yield from _to_the_end(broker, channel, reader, topic, partition)
        return
    heard = time.monotonic()
    while True:
        step = _STEP_SECONDS if wait is None else min(_STEP_SECONDS, heard + wait - time.monotonic())
        chunk = channel.alone(reader.next, max(0.0, step))
        if chunk is not None:
            yield chunk
            chunk = None  # its memory is filled again, still warm
            heard = time.monotonic()
        elif wait is not None and time.monotonic() - heard >= wait:
            return


def _to_the_end(broker: Broker, channel: Channel, reader: AnyReader, topic: str, partition: int) -> Iterator[AnyChunk]:
    end: int | None = None
    heard = time.monotonic()
    while end is None or reader.offset < end:
        chunk = channel.alone(reader.next, 0.0 if end is None else _LOOK_SECONDS)
        if chunk is not None:
            yield chunk
            chunk = None
            heard = time.monotonic()
            continue
        appended = reader.log_end(broker)
        end = appended if end is None else min(end, appended)
        if reader.offset < end and time.monotonic() - heard > broker.timeout:
            raise ConsumerTimeout(
                f"{topic}, partition {partition}: {end - reader.offset} bytes from offset {reader.offset} on were"
                f" appended and are not visible after {broker.timeout:g} s: the broker does not flush"
            )
