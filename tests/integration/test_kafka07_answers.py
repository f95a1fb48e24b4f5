"""A real Kafka 0.7 and our broker, asked the same: the same bytes come back, connections close, and logs grow alike.

Collected as ``test_kafka07`` is.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from fastlog import testing
from fastlog.coordination.zookeeper import ZooKeeperSession
from tests.harness import raw_client as raw
from tests.harness.broker import Broker
from tests.harness.real_kafka07 import SECONDS
from tests.harness.real_kafka07 import broker as real_broker

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(600)]

GOOD = raw.entry(b"good")
HELD = GOOD + raw.entry(b"more") + raw.entry(b"old!", magic=0)
"""What partition 0 of each case's topic holds before."""
END, PARTITIONS, HOUR_MS, LIMIT = len(HELD), 4, 3_600_000, 1_000_000
NOBODY = "{topic}-nobody"


class Case(NamedTuple):
    """A request, or several, to the topic ``{topic}``, which have so many answers as far as the connection stays."""

    request: bytes
    answers: int = 1
    by_byte: bool = False


class Seen(NamedTuple):
    """What came back, whether the connection stayed, and what the log of the topic's partition 0 has then."""

    frames: tuple[bytes, ...]
    stayed: bool
    log: bytes


def fetch(offset: int, size: int = 1 << 20, topic: str = "{topic}", partition: int = 0) -> Case:
    return Case(raw.fetch_frame(topic, partition, offset, size))


def offsets(when: int, count: int, topic: str = "{topic}", partition: int = 0) -> Case:
    return Case(raw.offsets_frame(topic, partition, when, count))


def produce(messages: bytes, partition: int = 0) -> Case:
    return Case(raw.produce_frame("{topic}", partition, messages), 0)


def several(*sets: bytes) -> Case:
    return Case(raw.multiproduce_frame([("{topic}", 0, each) for each in sets]), 0)


def of_size(size: int) -> Case:
    return Case(struct.pack(">i", size) + bytes(8), 0)


FETCH = raw.fetch_frame("{topic}", 0, 0, 1 << 20)
BAD = raw.entry(b"bad!", crc=9)
CASES = {
    "fetch: the start": fetch(0),
    "fetch: a topic that nobody wrote": fetch(0, topic=NOBODY),
    "fetch: a topic that nobody wrote, offset 5": fetch(5, topic=NOBODY),
    "fetch: a partition that nobody wrote": fetch(0, partition=1),
    "fetch: the end": fetch(END),
    "fetch: past the end": fetch(END + 1),
    "fetch: offset -1": fetch(-1),
    "fetch: inside the first message": fetch(3),
    "fetch: a size that cuts the second message": fetch(0, 20),
    "fetch: less than a message": fetch(0, 5),
    "fetch: size 0": fetch(0, 0),
    "fetch: size -1": fetch(0, -1),
    "fetch: the largest size": fetch(0, 2**31 - 1),
    "fetch: partition 9999": fetch(0, partition=9999),
    "fetch: partition -1": fetch(0, partition=-1),
    "fetch: no topic": fetch(0, topic=""),
    "fetch: after an error": Case(raw.fetch_frame("{topic}", 0, END + 1, 99) + FETCH, 2),
    "fetch: byte by byte": Case(FETCH, by_byte=True),
    "fetch: cut short": Case(struct.pack(">i", len(FETCH) - 8) + FETCH[4:-4], 0),
    "fetch: four bytes more": Case(struct.pack(">i", len(FETCH)) + FETCH[4:] + bytes(4)),
    "offsets: latest": offsets(-1, 10),
    "offsets: earliest": offsets(-2, 10),
    "offsets: none": offsets(-1, 0),
    "offsets: in an hour": offsets(int(time.time() * 1000) + HOUR_MS, 10),
    "offsets: in the far future": offsets(2**62, 1),
    "offsets: the last millisecond there is": offsets(2**63 - 1, 1),
    "offsets: a second after 1970": offsets(1000, 10),
    "offsets: -3": offsets(-3, 10),
    "offsets: the latest of a topic that nobody wrote": offsets(-1, 1, NOBODY),
    "offsets: the earliest of a topic that nobody wrote": offsets(-2, 1, NOBODY),
    "offsets: those of now of a topic that nobody wrote": offsets(int(time.time() * 1000), 1, NOBODY),
    "offsets: partition 9999": offsets(-1, 1, partition=9999),
    "multifetch: start, end, past the end": Case(
        raw.multifetch_frame([("{topic}", 0, offset, 99) for offset in (0, END, END + 1)])
    ),
    "multifetch: of nothing": Case(raw.multifetch_frame([])),
    "multifetch: a partition that is none, then the start": Case(
        raw.multifetch_frame([("{topic}", 9999, 0, 99), ("{topic}", 0, 0, 99)])
    ),
    "produce: good": produce(GOOD),
    "produce: wrong checksum": produce(BAD),
    "produce: good, then one of wrong checksum": produce(GOOD + BAD),
    "produce: good, then a cut one": produce(GOOD + GOOD[:-1]),
    "produce: good, then three bytes": produce(GOOD + bytes(3)),
    "produce: magic 2": produce(GOOD[:4] + b"\2" + GOOD[5:]),
    "produce: magic 0 and 1": produce(raw.entry(b"old!", magic=0) + GOOD),
    "produce: an empty set": produce(b""),
    "produce: as large as may be": produce(raw.entry(bytes(LIMIT))),
    "produce: too large": produce(raw.entry(bytes(3 * LIMIT))),
    "produce: size 0": produce(bytes(4)),
    "produce: partition 9999": produce(GOOD, 9999),
    "produce: gzip that is none": produce(raw.entry(b"good", attributes=raw.GZIP)),
    "produce: gzip": produce(raw.wrapper(GOOD * 3, raw.GZIP)),
    "produce: snappy": produce(raw.wrapper(GOOD * 3, raw.SNAPPY)),
    "produce: gzip of snappy": produce(raw.wrapper(raw.wrapper(GOOD * 3, raw.SNAPPY) + GOOD, raw.GZIP)),
    "produce: no such codec": produce(raw.entry(b"good", attributes=3)),
    "produce: fifty, their end, and one of them": Case(
        raw.produce_frame("{topic}", 0, GOOD) * 50
        + raw.offsets_frame("{topic}", 0, -1, 1)
        + raw.fetch_frame("{topic}", 0, END + 49 * len(GOOD), 10),
        2,
    ),
    "produce: good, and a refused one behind it": Case(
        raw.produce_frame("{topic}", 0, GOOD) + raw.produce_frame("{topic}", 0, BAD), 0
    ),
    "multiproduce: of nothing": several(),
    "multiproduce: two": several(GOOD, GOOD * 2),
    "multiproduce: good, and a refused one behind it": several(GOOD, BAD, GOOD),
    "multiproduce: a too large one between good ones": several(GOOD, raw.entry(bytes(LIMIT + 1)), GOOD),
    "request: type 5": Case(raw.frame(5, bytes(8)), 0),
    "request: type -1": Case(raw.frame(-1, bytes(8)), 0),
    "request: size 0": of_size(0),
    "request: size 1": of_size(1),
    "request: size -1": of_size(-1),
    "request: the largest size": of_size(2**31 - 1),
}

OURS = {
    "fetch: inside the first message": struct.pack(">h", 2),
    "fetch: size -1": struct.pack(">h", 4),
    "offsets: partition 9999": struct.pack(">hi", 3, 0),
}
"""Where 0.7.2 answers in a way that helps nobody: what our broker answers instead, and the connection stays."""


def end_of(client: raw.RawClient, topic: str) -> bytes:
    client.send_raw(raw.offsets_frame(topic, 0, -1, 1))
    return client.recv_frame()


def ask(port: int, case: Case, topic: str) -> Seen:
    """Let a broker answer one case, whose topic nobody has used yet."""
    assert len(topic) == len("{topic}"), "lengths stand in the request"
    request = case.request.replace(b"{topic}", topic.encode())
    with raw.connect(port, timeout=SECONDS) as client:
        client.produce(topic, 0, HELD)
        assert end_of(client, topic)[-8:] == END.to_bytes(8, "big")
    frames: list[bytes] = []
    with raw.connect(port, timeout=SECONDS) as client:
        try:
            for at in range(0, len(request), 1 if case.by_byte else len(request)):
                client.send_raw(request[at : at + 1] if case.by_byte else request)
            frames += (client.recv_frame() for _ in range(case.answers))
            end_of(client, topic)
            stayed = True
        except (raw.ConnectionClosed, ConnectionError):
            stayed = False
    with raw.connect(port, timeout=SECONDS) as client:
        end_of(client, topic)
        return Seen(tuple(frames), stayed, client.read_all(topic, 0, max_bytes=4 << 20))


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Of a real broker, and of ours."""
    directory: Path = tmp_path_factory.mktemp("both")
    with ExitStack() as stack:
        connect = f"{stack.enter_context(testing.zookeeper()).connect}/answers"
        ZooKeeperSession(connect).close()
        _, port = stack.enter_context(real_broker(directory / "theirs", connect, partitions=PARTITIONS))
        settings = {"num.partitions": PARTITIONS, "log.flush.interval": 1}
        ours = stack.enter_context(Broker(directory / "ours", settings=settings))
        yield port, ours.port


@pytest.mark.parametrize("name", CASES)
def test_both_do_the_same(name: str, ports: tuple[int, int]) -> None:
    topic = f"case{list(CASES).index(name):03}"
    theirs, ours = (ask(port, CASES[name], topic) for port in ports)
    if name in OURS:
        assert (ours.frames, ours.stayed) == ((OURS[name],), True)
        assert theirs.log == ours.log
    else:
        assert ours == theirs
