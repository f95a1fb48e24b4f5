"""Clients whose messages carry a time: a producer at full speed or at a fixed rate, and a consumer that follows.

The first eight bytes of a payload are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share, in the
order of bytes of this machine. At a fixed rate it is when the message was meant to be sent: when the producer falls
behind, the messages that had to stand in line show it.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

import fastlog
from fastlog.perf.payloads import random_payloads

Work = Callable[[], dict[str, Any]]
STAMP_BYTES = 8
LAST = (2**63 - 1).to_bytes(STAMP_BYTES, "little")
"""The stamp of the message behind the last one: the consumer ends there, wherever the producer was stopped."""
FIRST = bytes(STAMP_BYTES)
"""The stamp of one message before all others, not timed: with it a producer connects and asks about the topic."""

_PAUSE_NS = 50_000
_FOLLOW_SECONDS = 60.0


def percentiles(nanoseconds: np.ndarray[Any, Any]) -> dict[str, float]:
    """p50, p95, p99, p99.9, the maximum and the mean in ms, and how many there were."""
    found = np.percentile(nanoseconds, (50, 95, 99, 99.9, 100)) / 1e6
    names = ("p50_ms", "p95_ms", "p99_ms", "p99_9_ms", "max_ms")
    numbers = {name: round(float(value), 4) for name, value in zip(names, found, strict=True)}
    return {**numbers, "mean_ms": round(float(nanoseconds.mean()) / 1e6, 4), "count": len(nanoseconds)}


def producing_stamped(
    *, port: int, topic: str, messages: int, batch: int, rate: float | None, message_bytes: int, seed: int
) -> Work:
    """Lists of ``batch`` messages that all have one time: when the list was meant to be sent at ``rate`` messages a
    second, or, as fast as possible where that is None, when it was made.
    """
    bodies = random_payloads(message_bytes - STAMP_BYTES, seed=seed)
    lists = [bodies[at : at + batch] for at in range(0, len(bodies) - batch + 1, batch)]
    producer = fastlog.Producer(f"127.0.0.1:{port}", producer_type="async", acks="none", batch_messages=batch)
    _send_first(producer, topic, message_bytes)

    def work() -> dict[str, Any]:
        with producer:
            send, now, count = producer.send, time.monotonic_ns, len(lists)
            step = 1e9 * batch / rate if rate is not None else 0.0
            started = now()
            for number in range(messages // batch):
                moment = started + int(number * step) if step else now()
                if step:
                    _wait_until(moment)
                stamp = moment.to_bytes(STAMP_BYTES, "little")
                send(topic, [stamp + body for body in lists[number % count]])
            send(topic, LAST + bytes(message_bytes - STAMP_BYTES))
            producer.flush()
            ended = now()
        return {"messages": messages // batch * batch, "started_ns": started, "ended_ns": ended}

    return work


def _send_first(producer: fastlog.Producer, topic: str, message_bytes: int) -> None:
    producer.send(topic, FIRST + bytes(message_bytes - STAMP_BYTES))
    producer.flush()


def _wait_until(moment_ns: int) -> None:
    """Sleep until shortly before it; what is left is less than a sleep takes."""
    ahead = moment_ns - time.monotonic_ns()
    if ahead > _PAUSE_NS:
        time.sleep((ahead - _PAUSE_NS) / 1e9)


def producing_paced(
    *, port: int, topic: str, rate: int, seconds: float, acks: str, message_bytes: int, seed: int
) -> Work:
    """``rate`` messages a second, each sent by itself; also tells when the broker acknowledged them.

    The producer's queue waits for nothing (``queue.time`` 0): what is there goes out.
    """
    bodies = random_payloads(message_bytes - STAMP_BYTES, seed=seed)
    step, total = 1e9 / rate, int(rate * seconds)
    # Arrays of numbers: tuples that stay would make the collector walk all that is loaded, 15 ms in the middle of a run
    moments, counts = array("q"), array("q")

    def delivered(delivery: fastlog.Delivery) -> None:
        moments.append(time.monotonic_ns())
        counts.append(delivery.messages if delivery.error is None else 0)

    producer = fastlog.Producer(
        f"127.0.0.1:{port}", producer_type="async", acks=acks, queue_time_ms=0, on_delivery=delivered
    )
    _send_first(producer, topic, message_bytes)
    del moments[:], counts[:]

    def work() -> dict[str, Any]:
        with producer:
            send, now = producer.send, time.monotonic_ns
            started = now() + 10_000_000
            number = 0
            while number < total:
                due = min(total, int((now() - started) / step) + 1) if now() >= started else 0
                while number < due:
                    stamp = started + int(number * step)
                    send(topic, stamp.to_bytes(STAMP_BYTES, "little") + bodies[number % len(bodies)])
                    number += 1
                _wait_until(started + int(number * step))
            producer.flush()
            settled = len(moments)
            send(topic, LAST + bytes(message_bytes - STAMP_BYTES))
        # Deliveries come in the order of the messages, so each number of them covers the next intended times.
        if (count := sum(counts[:settled])) != total:
            raise RuntimeError(f"{count} of {total} messages were acknowledged")
        intended = started + (np.arange(total) * step).astype(np.int64)
        return {
            "messages": total,
            "acknowledged": percentiles(np.repeat(moments[:settled], counts[:settled]) - intended),
        }

    return work


def following(*, port: int, topic: str, fetch_bytes: int, message_bytes: int) -> Work:
    """Reads from the beginning through the socket, waiting at the end, until the message with the last stamp.

    A message counts as consumed when the array of its fetch is in the program's hands, checked.
    """
    consumer = fastlog.SimpleConsumer("127.0.0.1", port, local="off", fetch_bytes=fetch_bytes)

    def work() -> dict[str, Any]:
        lags: list[np.ndarray[Any, Any]] = []
        first = 0
        with consumer:
            for batch in consumer.numpy_batches(topic, 0, 0, wait=_FOLLOW_SECONDS):
                moment = time.monotonic_ns()
                first = first or moment
                stamps = _stamps(batch, message_bytes)
                if not stamps[0]:
                    stamps = stamps[1:]
                ended = bool(len(stamps) and stamps[-1] == int.from_bytes(LAST, "little"))
                lags.append(moment - (stamps[:-1] if ended else stamps))
                if ended:
                    break
            else:
                raise RuntimeError(f"nothing came for {_FOLLOW_SECONDS:g} s")
        found = np.concatenate(lags)
        return {"messages": len(found), "first_ns": first, "ended_ns": moment, "lag": percentiles(found)}

    return work


def _stamps(batch: Any, message_bytes: int) -> np.ndarray[Any, Any]:
    """The times in the messages of a batch, all of one size and uncompressed: a view, then one copy."""
    starts = batch.starts
    entry = message_bytes + 10
    if len(starts) > 1 and int(starts[-1] - starts[0]) != (len(starts) - 1) * entry:
        raise RuntimeError("the messages are not of the size that was sent")
    view = np.lib.stride_tricks.as_strided(
        batch.buffer[int(starts[0]) :], shape=(len(starts), STAMP_BYTES), strides=(entry, 1), writeable=False
    )
    return np.ascontiguousarray(view).view("<i8").reshape(-1)


def consuming_until_told(*, port: int, topic: str, fetch_bytes: int, told: Callable[[], threading.Event]) -> Work:
    """Reads a topic from the beginning to its end, over and over, in lists, until it is told to stop."""
    consumer = fastlog.SimpleConsumer("127.0.0.1", port, local="off", fetch_bytes=fetch_bytes)

    def work() -> dict[str, Any]:
        stop = told()
        messages = 0
        started = time.monotonic_ns()
        with consumer:
            while not stop.is_set():
                for payloads in consumer.batches(topic, 0, 0):
                    messages += len(payloads)
                    if stop.is_set():
                        break
        return {"messages": messages, "started_ns": started, "ended_ns": time.monotonic_ns()}

    return work
