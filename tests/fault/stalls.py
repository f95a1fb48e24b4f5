"""T-43: batches time out while their request is half written: no byte of one topic gets into another."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fastlog import Producer
from fastlog.errors import FastlogError
from fastlog.producer.hooks import Delivery
from tests.fault.registry import Outcome, scenario
from tests.harness import raw_client as raw
from tests.harness.broker import Broker
from tests.harness.proxy import Proxy

MARKERS = b"abcd"
PARTITIONS = 2
AT_ONCE = 4
SEND_BUFFER_BYTES = 4096
ROUND = 100
MOST_CLOSE_SECONDS = 20.0


def payload_of(number: int, marker: int) -> bytes:
    """What message ``number`` holds: every byte behind its number says for which topic it was."""
    length = 1 + number * 7919 % (9000 if number % 10 == 0 else 900)
    return b"%d:" % number + bytes([marker]) * length


class Round:
    """Topics of their own, and what was sent to them and became of it. Used by several threads."""

    def __init__(self, number: int) -> None:
        self.topics = {f"t{number}-{chr(marker)}": marker for marker in MARKERS}
        self.sent: dict[str, set[int]] = defaultdict(set)
        self.acknowledged: dict[str, set[int]] = defaultdict(set)
        self.failed = 0
        self.accepted = 0
        self.next_number = 0
        self.lock = threading.Lock()

    def number(self, topic: str) -> int:
        """A new message for a topic."""
        with self.lock:
            self.next_number += 1
            self.sent[topic].add(self.next_number)
            return self.next_number

    def check(self, broker: Broker) -> list[str]:
        """What the log says against it."""
        found = []
        for topic, marker in self.topics.items():
            stored: set[int] = set()
            for partition in range(PARTITIONS):
                if not broker.has_directory(topic, partition):
                    continue
                for payload in raw.deep_payloads(broker.stored_bytes(topic, partition)):
                    number = int(payload.partition(b":")[0])
                    stored.add(number)
                    if number not in self.sent[topic] or payload != payload_of(number, marker):
                        found.append(f"{topic} holds {payload[:60]!r}")
            lost = self.acknowledged[topic] - stored
            if lost:
                found.append(f"{topic}: {len(lost)} messages count as delivered and are not there: {sorted(lost)[:5]}")
        return found


@scenario(
    "stalled-produce",
    "requests that stand still half written until they time out",
    small=50,
    nightly=5000,
    release=50_000,
)
def stalled_produce(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` stalls, each with a producer and a proxy of its own before one broker."""
    outcome = Outcome()
    failed = acknowledged = 0
    with Broker(directory, settings={"num.partitions": PARTITIONS, "max.partitions": 65536}) as broker:
        for start in range(0, count, ROUND):
            here = Round(start)
            stalls = range(start, min(start + ROUND, count))
            with ThreadPoolExecutor(AT_ONCE) as pool:
                sources = [random.Random(f"{seed} stall {number}") for number in stalls]
                for number, said in zip(stalls, pool.map(lambda s, r=here: _stall(broker, r, s), sources), strict=True):
                    outcome.violations += [f"stall {number}: {line}" for line in said]
                    outcome.runs += 1
            outcome.violations += here.check(broker)
            failed += here.failed
            acknowledged += sum(map(len, here.acknowledged.values()))
    outcome.expect(failed > 0, "nothing timed out")
    outcome.expect(acknowledged > 0, "nothing was delivered")
    return outcome


def _stall(broker: Broker, here: Round, source: random.Random) -> list[str]:
    """One producer whose requests stop somewhere, time out, and are followed by others."""
    acks = source.choice(["appended", "appended", "flushed", "none"])
    kind = source.choice(["async", "async", "async", "sync"])
    with Proxy([broker.port], receive_buffer_bytes=SEND_BUFFER_BYTES) as proxy:
        producer = Producer(
            proxy.address,
            producer_type=kind,
            acks=acks,
            compression=source.choice(["none", "none", "none", "gzip", "snappy"]),
            batch_messages=source.choice([1, 7, 50]),
            queue_time_ms=source.choice([0, 2, 20]),
            connect_timeout_ms=500,
            send_buffer_bytes=SEND_BUFFER_BYTES,
            in_flight_bytes=source.choice([5000, 20_000, 10**6]),
            socket_timeout_ms=source.choice([20, 60, 1000]),
            delivery_timeout_ms=source.choice([30, 60]),
            queue_full="drop" if source.random() < 0.3 else "block",
            queue_messages=source.choice([20, 1000]),
        )
        _send(producer, here, source, source.randrange(5), acks)
        proxy.stall_after(source.randrange(40_000))
        # Some of the stalls end before anything times out, and some requests are sent while others time out.
        ends = [proxy.cut, proxy.go_on] if source.random() < 0.3 else [proxy.go_on]
        timer = threading.Timer(source.uniform(0.02, 0.25), lambda: [end() for end in ends])
        timer.start()
        _send(producer, here, source, source.randrange(5, 30) if kind == "async" else 3, acks)
        timer.join()
        _send(producer, here, source, source.randrange(5), acks)
        return _close(producer, here)


def _send(producer: Producer, here: Round, source: random.Random, count: int, acks: str) -> None:
    for _ in range(count):
        topic, marker = source.choice(list(here.topics.items()))
        numbers = [here.number(topic) for _ in range(source.choice([1, 1, 5, 20]))]
        partition = source.choice([None, -1, 0, 1])
        for number in numbers:

            def note(delivery: Delivery, topic: str = topic, number: int = number) -> None:
                if delivery.error is None and acks != "none":
                    here.acknowledged[topic].add(number)

            payload = payload_of(number, marker)
            try:
                if producer.config.producer_type == "async":
                    producer.send(topic, payload, partition=partition, on_delivery=note)
                else:
                    for delivery in producer.send(topic, payload, partition=partition):
                        note(delivery)
            except FastlogError:
                continue  # it was not delivered in time, or dropped


def _close(producer: Producer, here: Round) -> list[str]:
    found = []
    started = time.monotonic()
    try:
        producer.close()
    except FastlogError as error:
        found.append(f"close raised {error!r} though everybody was told")
    if time.monotonic() - started > MOST_CLOSE_SECONDS:
        found.append(f"close took {time.monotonic() - started:.1f} s")
    stats = producer.stats()
    if stats.accepted != stats.delivered + stats.failed or stats.queued or stats.in_flight:
        found.append(f"the counts do not add up: {stats}")
    with here.lock:
        here.failed += stats.failed
    return found
