"""Clients at full speed, by the measuring code of ``producer-perf`` and ``consumer-perf``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastlog
from fastlog import codecs
from fastlog.perf.consuming import ConsumerOptions, ConsumerRun
from fastlog.perf.group_consuming import GroupRun
from fastlog.perf.payloads import Cycle, lines_of, random_payloads
from fastlog.perf.producing import ProducerOptions, ProducerRun
from perf.replay.scenarios import ENTRY_OVERHEAD
from perf.replay.stage import ReplayError, wait_appended

Work = Callable[[], dict[str, Any]]
_CODECS = {name: number for number, name in codecs.CODEC_NAMES.items()}
_MODES = {"payloads": "messages", "lists": "batches", "numpy": "numpy", "arrow": "arrow"}
_ALL_MISSING_SECONDS = 60.0


def producing(
    *,
    port: int,
    topics: list[str],
    messages: int,
    batch: int,
    how: str,
    acks: str,
    compression: str,
    threads: int,
    message_bytes: int,
    payload_file: str | None,
    seed: int,
) -> Work:
    """Until the broker shows every byte; ``how`` "rotate" sends each list to the next of the topics."""
    if how == "rotate":
        payloads = lines_of(Path(payload_file))[0] if payload_file else random_payloads(message_bytes, seed=seed)
        return _rotating(port, topics, messages, batch, threads, payloads)
    (topic,) = topics
    run = ProducerRun(
        ProducerOptions(
            brokers=f"127.0.0.1:{port}",
            topic=topic,
            messages=messages,
            message_size=message_bytes,
            payload_file=Path(payload_file) if payload_file else None,
            seed=seed,
            batch_size=batch,
            threads=threads,
            acks=acks,
            compression_codec=_CODECS[compression],
            how=how,
            timeout=_ALL_MISSING_SECONDS,
        )
    )

    def work() -> dict[str, Any]:
        found = run.run()
        if found.messages != messages or found.missing_bytes:
            raise ReplayError(
                f"{found.messages} of {messages} messages were sent, {found.missing_bytes} bytes are missing"
            )
        return {
            "messages": found.messages,
            "seconds": found.seconds,
            "rate": found.messages_per_second,
            "payload_bytes": found.payload_bytes,
            "log_bytes": found.log_bytes or 0,
            "sent_seconds": found.sent_seconds or found.seconds,
            "possible_duplicates": found.possible_duplicates,
            "timeline": found.timeline,
            "client_cpu_seconds": found.cpu_seconds,
        }

    return work


def consuming(
    *, port: int, connect: str = "", topic: str, mode: str, local: bool, fetch_bytes: int, messages: int
) -> Work:
    """Reads ``messages`` from the beginning; ends with the last one, checked.

    ``connect``: as the one member of a group of this ZooKeeper; how long it took to join is not counted.
    """
    run = (GroupRun if connect else ConsumerRun)(
        ConsumerOptions(
            brokers="" if connect else f"127.0.0.1:{port}",
            zk_connect=connect,
            topic=topic,
            messages=messages,
            fetch_bytes=fetch_bytes,
            mode="map" if local else _MODES[mode],
            threads=1,
        )
    )

    def work() -> dict[str, Any]:
        found = run.run()
        ended = time.monotonic_ns() - int(found.idle_seconds * 1e9)
        if not found.complete:
            raise ReplayError(f"{found.messages} of {messages} messages came")
        return {
            "messages": found.messages,
            "started_ns": ended - int((found.seconds - found.join_seconds) * 1e9),
            "ended_ns": ended,
            "payload_bytes": found.payload_bytes,
            "timeline": found.timeline,
        }

    return work


def _rotating(port: int, topics: list[str], messages: int, batch: int, threads: int, payloads: list[bytes]) -> Work:
    each = max(1, messages // threads // batch) * batch
    producers = [
        fastlog.Producer(f"127.0.0.1:{port}", producer_type="async", acks="none", batch_messages=batch)
        for _ in range(threads)
    ]
    # A producer asks about a topic when it first sends to it; that is not timed.
    first = payloads[:1]
    for producer in producers:
        for topic in topics:
            producer.send(topic, first)
        producer.flush()
    before = threads * len(topics) * (len(first[0]) + ENTRY_OVERHEAD)
    wait_appended(port, tuple(topics), before)
    sent: list[int] = []
    failures: list[BaseException] = []

    def send(number: int) -> None:
        try:
            cycle, turn, left, size = Cycle(payloads, batch, place=number / threads), number, each, 0
            while left:
                part = cycle.take(left)
                for items in part.batches:
                    producers[number].send(topics[turn % len(topics)], items)
                    turn += 1
                left -= len(part.payloads)
                size += part.size
            producers[number].flush()
            sent.append(size)
        except BaseException as error:
            failures.append(error)

    def work() -> dict[str, Any]:
        started = time.monotonic_ns()
        running = [threading.Thread(target=send, args=(number,)) for number in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        if failures:
            raise failures[0]
        total = each * threads
        ended = wait_appended(port, tuple(topics), before + sum(sent) + total * ENTRY_OVERHEAD)
        for producer in producers:
            producer.close()
        seconds = (ended - started) / 1e9
        return {"messages": total, "seconds": seconds, "rate": total / seconds, "payload_bytes": sum(sent)}

    return work
