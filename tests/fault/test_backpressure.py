"""A flusher that stands still or crawls: the bound is kept exactly, others are served, all resumes by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import raw_client as raw
from tests.harness.broker import Broker, wait_until
from tests.harness.calm import wait_calm
from tests.harness.history import History
from tests.harness.load import Load, stored
from tests.harness.timing import sooner_than

M = 100
SETTINGS = {"log.flush.interval": M, "log.default.flush.interval.ms": 60_000}
ASKED = 100
CRAWL_SECONDS = 1


def settled_end(client: raw.RawClient, topic: str) -> int:
    """The log end once it no longer moves."""
    end = -1
    while (now := client.log_end(topic, 0)) != end:
        end = now
        time.sleep(0.1)
    return end


@pytest.mark.slow
def test_a_stopped_flusher_lets_in_exactly_m_messages(start_broker: Callable[..., Broker], topic: str) -> None:
    """Not one message more or less than the bound; what waits is written in order on SIGCONT, once."""
    broker = start_broker(settings=SETTINGS)
    messages = [raw.entry(b"%06d" % number) for number in range(M * 3)]
    size = len(messages[0])
    with broker.connect() as producer, broker.connect() as other, broker.connect() as reader:
        assert producer.produce_ack(topic, 0, messages[0], raw.FLUSHED).error == 0
        assert other.produce_ack("other", 0, messages[0], raw.FLUSHED).error == 0
        broker.pause("flusher")
        for number in range(1, M * 3, 1):
            producer.produce(topic, 0, messages[number])
        producer.finish_sending()
        wait_until("the bound is reached", lambda: reader.log_end(topic, 0) >= size * (M + 1))
        assert settled_end(reader, topic) == size * (M + 1)
        # the same processor may serve both, so this is about connections as much as about topics
        for _ in range(50):
            assert other.produce_ack("other", 0, messages[0]).error == 0
            assert other.offsets("other", 0) == [size, 0]
            assert reader.fetch_ok(topic, 0, 0) == messages[0], "visible without a flush"
        broker.resume("flusher")
        reader.wait_visible(topic, 0, size * M * 3)
        assert reader.read_all(topic, 0) == b"".join(messages)
        assert producer.is_closed()


@pytest.mark.slow
def test_a_stopped_flusher_lets_in_exactly_b_bytes(start_broker: Callable[..., Broker], topic: str) -> None:
    """The other bound: the last request that fits is in, the first that does not waits, whoever sends it."""
    message = raw.entry(b"x" * 990)
    bound = 10 * len(message)
    broker = start_broker(settings={**SETTINGS, "flush.max.unflushed.bytes": bound})
    with broker.connect() as first, broker.connect() as second, broker.connect() as reader:
        assert first.produce_ack(topic, 0, message, raw.FLUSHED).error == 0
        broker.pause("flusher")
        for _ in range(6):
            first.produce(topic, 0, message)
            second.produce(topic, 0, message)
        wait_until("the bound is reached", lambda: reader.log_end(topic, 0) >= bound + len(message))
        assert settled_end(reader, topic) == bound + len(message)
        broker.resume("flusher")
        reader.wait_visible(topic, 0, 13 * len(message))
        assert reader.read_all(topic, 0) == 13 * message


@pytest.mark.slow
def test_a_flushed_partition_admits_a_request_above_the_bound(start_broker: Callable[..., Broker], topic: str) -> None:
    """A request larger than the bound is not refused for ever: it goes in alone, and the next one waits."""
    broker = start_broker(settings=SETTINGS)
    large = raw.entry(b"large") * (M * 5)
    with broker.connect() as client, broker.connect() as reader:
        assert client.produce_ack(topic, 0, raw.entry(b"first"), raw.FLUSHED).error == 0
        start = reader.log_end(topic, 0)
        broker.pause("flusher")
        assert client.produce_ack(topic, 0, large).next_offset == start + len(large)
        client.produce(topic, 0, raw.entry(b"next"))
        assert settled_end(reader, topic) == start + len(large)
        broker.resume("flusher")
        reader.wait_visible(topic, 0, start + len(large) + len(raw.entry(b"next")))


@pytest.mark.slow
def test_order_of_parts_is_kept_inside_a_multiproduce(
    start_broker: Callable[..., Broker], new_topic: Callable[[], str]
) -> None:
    """Parts behind one that waits wait too, and none is written twice when it goes on."""
    broker = start_broker(settings=SETTINGS, processors=1)
    full, free = new_topic(), new_topic()
    part = [raw.entry(b"part %03d" % number) for number in range(M * 2)]
    with broker.connect() as client, broker.connect() as reader:
        for name in (full, free):
            assert client.produce_ack(name, 0, raw.entry(b"first"), raw.FLUSHED).error == 0
        broker.pause("flusher")
        request = [(full, 0, b"".join(part[:M])), (full, 0, b"".join(part[M:])), (free, 0, part[0])]
        client.send_raw(raw.multiproduce_frame(request) + raw.produce_frame(free, 0, part[1]))
        first = len(raw.entry(b"first"))
        wait_until("the first part is in", lambda: reader.log_end(full, 0) > first)
        assert settled_end(reader, full) == first + len(b"".join(part[:M]))
        broker.resume("flusher")
        reader.wait_visible(full, 0, first + len(b"".join(part)))
        reader.wait_visible(free, 0, first + 2 * len(part[0]))
        assert reader.read_all(full, 0, first) == b"".join(part)
        assert reader.read_all(free, 0, first) == part[0] + part[1]


@pytest.mark.slow
def test_stopped_and_continued_under_load(tmp_path: Path) -> None:
    """T-6: pauses of the flusher and of a processor cost time and nothing else."""
    history = History()
    with Broker(tmp_path, settings={"log.flush.interval": M, "num.partitions": 2}) as broker:
        with Load(broker, [("a", 0), ("a", 1)], acks=raw.FLUSHED, seed=6, history=history) as load:
            for role in ("flusher", "processor-0", "flusher", "processor-1", "keeper", "acceptor"):
                load.wait_acked(20)
                broker.pause(role)
                time.sleep(0.1)
                broker.resume(role)
            load.wait_acked(20)
        assert load.lost_connections == 0
        assert not load.errors
        assert broker.stop() == 0
        assert history.check(stored(broker, history)) == []


@pytest.mark.slow
def test_a_disk_that_takes_a_second_to_flush(start_broker: Callable[..., Broker], new_topic: Callable[[], str]) -> None:
    """T-16: reads and other topics do not wait for it, and waiting producers cost no memory."""
    settings = {"log.flush.interval": 1000, "flush.max.unflushed.bytes": "1MiB", "num.partitions": 1}
    # the first two calls make the topics visible at once, all later ones crawl
    broker = start_broker(
        settings=settings, environment={"FASTLOG_FAULTS": f"flusher:fdatasync@3-=slow:{1000 * CRAWL_SECONDS}"}
    )
    slow, other = new_topic(), new_topic()
    block = raw.message_set([b"x" * 1000] * 100)
    stop = threading.Event()
    with broker.connect() as reader, broker.connect() as writer:
        for name in (slow, other):
            assert writer.produce_ack(name, 0, block, raw.FLUSHED).error == 0
        before = broker.memory()
        senders = [threading.Thread(target=_push, args=(broker, slow, block, stop)) for _ in range(4)]
        for sender in senders:
            sender.start()
        try:
            start = len(block)
            wait_until("the bound is reached", lambda: reader.log_end(slow, 0) >= start + (1 << 20) - len(block))
            with sooner_than(ASKED * CRAWL_SECONDS / 4, "each of them waited for a flush"):
                for _ in range(ASKED):
                    reader.fetch_ok(slow, 0, 0, 1 << 16)
                    assert writer.produce_ack(other, 0, raw.entry(b"prompt")).error == 0
            unflushed = [_unflushed(reader, slow) for _ in range(50)]
            assert max(unflushed) <= 1 << 20
            # the promise of bounded loss holds while it crawls, and it does move
            seen = reader.offsets(slow, 0)[0]
            wait_until("a flush came through", lambda: reader.offsets(slow, 0)[0] > seen)
            grown = {role: size - before[role] for role, size in broker.memory().items()}
            assert all(size < 8 << 20 for size in grown.values()), grown
        finally:
            stop.set()
            broker.kill_all()
            for sender in senders:
                sender.join()


def _push(broker: Broker, topic: str, block: bytes, stop: threading.Event) -> None:
    frame = raw.produce_frame(topic, 0, block)
    with broker.connect() as client:
        try:
            while not stop.is_set():
                client.send_raw(frame)
        except OSError:
            return


def _unflushed(client: raw.RawClient, topic: str) -> int:
    state = client.metadata([topic]).topics[topic].partitions[0]
    return state.log_end - state.high_watermark


@pytest.mark.slow
def test_a_producer_that_hangs_up_while_it_waits(start_broker: Callable[..., Broker], topic: str) -> None:
    """A FIN cancels nothing that was received; a connection that waits spins on nothing."""
    broker = start_broker(settings=SETTINGS, processors=1)
    message = raw.entry(b"%06d" % 0)
    with broker.connect() as reader:
        with broker.connect() as client:
            assert client.produce_ack(topic, 0, message, raw.FLUSHED).error == 0
            broker.pause("flusher")
            for _ in range(M * 2):
                client.produce(topic, 0, message)
            wait_until("the bound is reached", lambda: reader.log_end(topic, 0) >= len(message) * (M + 1))
        wait_calm({"processor-0": broker.pids()["processor-0"]}, 0.2)
        broker.resume("flusher")
        reader.wait_visible(topic, 0, len(message) * (M * 2 + 1))
