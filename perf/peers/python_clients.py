"""Clients of RabbitMQ for machines without a C compiler or librabbitmq: pika and rstream, as their users write them.

They are slower than the C ones (about four fifths for a classic queue, a tenth when a stream is read), so every result
names its client. Both packages are imported when they are needed.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from perf.peers.base import Figures, PeerFailed

WAIT_SECONDS = 120.0


def _result(client: str, messages: int, seconds: float) -> Figures:
    return {"messages": messages, "seconds": seconds, "rate": messages / seconds, "client": client}


def _pika_channel(port: int) -> Any:
    import pika

    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)).channel()


def pika_produce(port: int, queue: str, messages: int, size: int) -> Figures:
    """Persistent messages without confirms, until the queue counts them all."""
    import pika

    channel = _pika_channel(port)
    if channel.queue_declare(queue, durable=True).method.message_count:
        raise PeerFailed("pika: the queue is not empty")
    properties, payload = pika.BasicProperties(delivery_mode=2), b"x" * size
    started = time.perf_counter()
    for _ in range(messages):
        channel.basic_publish("", queue, payload, properties)
    deadline = time.monotonic() + WAIT_SECONDS
    while channel.queue_declare(queue, passive=True).method.message_count != messages:
        if time.monotonic() > deadline:
            raise PeerFailed(f"pika: the queue does not have every message after {WAIT_SECONDS:.0f} s")
        time.sleep(0.001)
    seconds = time.perf_counter() - started
    channel.connection.close()
    return _result(f"pika {pika.__version__}", messages, seconds)


def pika_consume(port: int, queue: str, messages: int, size: int) -> Figures:
    """One consumer without acknowledgements; the queue is deleted afterwards."""
    import pika

    channel = _pika_channel(port)
    started = time.perf_counter()
    arriving = channel.consume(queue, auto_ack=True, inactivity_timeout=WAIT_SECONDS)
    for count, (method, _, _) in enumerate(arriving, 1):
        if method is None:
            raise PeerFailed(f"pika: {count - 1} of {messages} messages came")
        if count == messages:
            break
    seconds = time.perf_counter() - started
    channel.cancel()
    channel.queue_delete(queue)
    channel.connection.close()
    return _result(f"pika {pika.__version__}", messages, seconds)


def _version(package: str) -> str:
    import importlib.metadata

    return f"{package} {importlib.metadata.version(package)}"


def rstream_produce(port: int, stream: str, messages: int, size: int, batch: int) -> Figures:
    """Batches with confirms that are counted as they come, until the last one."""
    import rstream

    async def measure() -> float:
        producer = rstream.Producer("127.0.0.1", port=port, username="guest", password="guest")
        confirmed, done = 0, asyncio.Event()

        def on_confirm(_: Any) -> None:
            nonlocal confirmed
            confirmed += 1
            if confirmed == messages:
                done.set()

        async with producer:
            await producer.delete_stream(stream, missing_ok=True)
            await producer.create_stream(stream)
            payload = b"x" * size
            started = time.perf_counter()
            for first in range(0, messages, batch):
                group = [rstream.AMQPMessage(body=payload) for _ in range(min(batch, messages - first))]
                await producer.send_batch(stream, group, on_publish_confirm=on_confirm)
            await asyncio.wait_for(done.wait(), WAIT_SECONDS)
            return time.perf_counter() - started

    return _result(_version("rstream"), messages, asyncio.run(measure()))


def rstream_consume(port: int, stream: str, messages: int, size: int, batch: int) -> Figures:
    """From the first offset, a callback for each message."""
    import rstream

    async def measure() -> float:
        consumer = rstream.Consumer("127.0.0.1", port=port, username="guest", password="guest")
        count, done = 0, asyncio.Event()

        async def on_message(*_: Any) -> None:
            nonlocal count
            count += 1
            if count == messages:
                done.set()

        async with consumer:
            started = time.perf_counter()
            await consumer.subscribe(
                stream, on_message, offset_specification=rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST)
            )
            await asyncio.wait_for(done.wait(), WAIT_SECONDS)
            return time.perf_counter() - started

    return _result(_version("rstream"), messages, asyncio.run(measure()))
