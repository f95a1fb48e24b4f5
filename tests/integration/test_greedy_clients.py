"""Clients that ask for much, read little, or hold memory: the broker stays small, and nobody else waits.

T-16, T-20 and T-21 as far as they concern one broker process.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import psutil
import pytest
import snappy  # type: ignore[import-untyped, unused-ignore]

from tests.harness import raw_client as raw
from tests.harness.broker import Broker
from tests.harness.calm import wait_calm
from tests.harness.load import filled
from tests.harness.sanitizer import KEPT_BYTES
from tests.harness.timing import PATIENCE

GOOD = raw.entry(b"good")
MEGABYTE = 1 << 20


def resident_bytes(broker: Broker, role: str = "processor-0") -> int:
    return int(psutil.Process(broker.pids()[role]).memory_info().rss)


def squeezed(inner: bytes, codec: int) -> bytes:
    """A wrapper that is as small as its codec makes it; the harness's own snappy does not compress."""
    if codec == raw.GZIP:
        return raw.wrapper(inner, codec)
    blocks = (inner[at : at + raw.XERIAL_BLOCK_BYTES] for at in range(0, len(inner), raw.XERIAL_BLOCK_BYTES))
    packed = [snappy.compress(block) for block in blocks]
    stream = raw.XERIAL_MAGIC + struct.pack(">ii", 1, 1)
    return raw.entry(stream + b"".join(struct.pack(">i", len(block)) + block for block in packed), 1, codec)


# --- much asked for, little read ---


def test_small_answers_nobody_reads_cost_little(single: Broker, topic: str) -> None:
    """Thousands of fetches of 16 kB in one piece: their answers are not all made before the first one is read."""
    filled(single, topic, 16_000, bytes(15_900))
    with single.connect() as reader, single.connect() as other:
        before = resident_bytes(single)
        reader.send_raw(raw.fetch_frame(topic, 0, 0, 15_910) * 6000)
        other.fetch_ok(topic, 0, 0)
        time.sleep(0.1)
        other.fetch_ok(topic, 0, 0)
        assert resident_bytes(single) - before < 8 * MEGABYTE
        for _ in range(6000):
            assert len(reader.recv_answer().body) == 15_910


def test_a_multifetch_of_the_same_bytes_costs_little(single: Broker, topic: str) -> None:
    """32,767 parts that ask for the same 10 kB: the answer is right, and never stands in memory as a whole."""
    filled(single, topic, 10_000, bytes(9_990))
    with single.connect(timeout=30) as reader, single.connect() as other:
        before = resident_bytes(single)
        reader.send_raw(raw.multifetch_frame([(topic, 0, 0, 10_000)] * 32_767))
        other.fetch_ok(topic, 0, 0)
        assert resident_bytes(single) - before < 16 * MEGABYTE
        size, error = struct.unpack(">ih", reader.recv_exactly(6))
        assert (size, error) == (2 + 32_767 * 10_006, 0)
        part = reader.recv_exactly(10_006)
        assert part[:6] == struct.pack(">ih", 10_002, 0)
        for _ in range(32_766):
            assert reader.recv_exactly(10_006) == part


def test_metadata_of_too_many_names_is_refused(single: Broker) -> None:
    """A count above what is answered is error 107 before the names are looked at; 10,000 are answered."""
    with single.connect() as client:
        names = 500_000
        before = resident_bytes(single)
        assert client.ask_own(raw.METADATA, struct.pack(">i", names) + bytes(2 * names)).error == 107
        assert client.ask_own(raw.METADATA, struct.pack(">i", 10_001) + bytes(2 * 10_001)).error == 107
        assert resident_bytes(single) - before < 8 * MEGABYTE
        answer = client.ask_own(raw.METADATA, struct.pack(">i", 10_000) + bytes(2 * 10_000))
        assert answer.error == 0
        assert struct.unpack_from(">i", answer.body, len(answer.body) - 10_000 * 12 - 4) == (10_000,)


# --- others are served meanwhile ---


@contextmanager
def standing(broker: Broker) -> Iterator[None]:
    """What is sent in the block lies there, in this order, when the only processor goes on."""
    broker.pause("processor-0")
    try:
        yield
    finally:
        broker.resume("processor-0")


def in_order_of_arrival(watched: select.epoll, count: int) -> list[int]:
    """The descriptors in the order in which their first bytes came; the kernel keeps it, however late this looks."""
    found: list[int] = []
    while len(found) < count:
        ready = watched.poll(PATIENCE, 1)
        assert ready, f"{count - len(found)} have no answer"
        found += [fd for fd, _ in ready if fd not in found]
    return found


def test_walks_for_cut_points_disturb_nobody(single: Broker, topic: str) -> None:
    """Sixty walks over 60 MB of small messages at once: a fetch on another connection does not wait for all of them."""
    end = filled(single, topic, 60 * MEGABYTE, bytes(20))
    body = raw.cut_points_body(topic, 0, 0, end, 1 << 62, 3)
    with ExitStack() as stack:
        other = stack.enter_context(single.connect())
        walkers = [stack.enter_context(single.connect(timeout=30)) for _ in range(60)]
        watched = stack.enter_context(select.epoll())
        for client in (other, *walkers):
            client.offsets(topic, 0)  # the processor has all of them
            watched.register(client.socket.fileno(), select.EPOLLIN | select.EPOLLET)
        with standing(single):
            for walker in walkers:
                walker.send_raw(raw.own_frame(raw.CUT_POINTS, body, correlation=9))
            other.send_raw(raw.fetch_frame(topic, 0, 0, 100))
        order = in_order_of_arrival(watched, 1 + len(walkers))
        assert order.index(other.socket.fileno()) < len(walkers) / 2
        assert other.recv_answer().error == 0
        for walker in walkers:
            correlation, answer = walker.recv_own()
            assert (correlation, answer.error) == (9, 0)
            assert raw.decode_offsets(answer.body) == [0, end]


@pytest.mark.parametrize("codec", [raw.GZIP, raw.SNAPPY])
def test_many_compressed_sets_in_one_piece_disturb_nobody(single: Broker, topic: str, codec: int) -> None:
    """300 sets that inflate to almost a megabyte each, in one piece: another connection is answered meanwhile."""
    small = squeezed(raw.entry(bytes(1000)) * 950, codec)
    request = raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body(topic, 1, small))
    with single.connect() as other, single.connect(timeout=30) as client:
        other.produce_ack(topic, 0, GOOD, raw.FLUSHED)
        client.offsets(topic, 1)
        with standing(single):
            client.socket.setblocking(False)
            sent = client.socket.send(request * 300)
            client.socket.settimeout(PATIENCE)
            assert sent > 10 * len(request)
            other.send_raw(raw.own_frame(raw.METADATA, raw.metadata_body([topic])))
        _, answer = other.recv_own()
        state = raw.decode_metadata(answer.body).topics[topic].partitions.get(1)
        then = state.log_end if state else 0
        assert then < sent // len(request) * len(small), "it was answered after all of them"
        client.send_raw((request * 300)[sent:])
        for number in range(300):
            answer = client.recv_own()[1]
            assert answer.error == 0
            assert struct.unpack(">iqq", answer.body) == (1, number * len(small), (number + 1) * len(small))


@pytest.mark.parametrize("codec", [raw.GZIP, raw.SNAPPY])
def test_bombs_are_refused_and_disturb_nobody(single: Broker, topic: str, codec: int) -> None:
    """T-20 over the socket: 64 MiB and more out of little, and sets nested too deep; memory and others are safe."""
    piece = squeezed(raw.entry(bytes(990_000)) * 17, codec)
    nested = GOOD
    for _ in range(20):
        nested = raw.wrapper(nested, codec)
    bombs = {"68 MB": piece * 4, "68 MB, two deep": squeezed(piece * 4, codec), "20 deep": nested}
    deep_enough = GOOD
    for _ in range(8):
        deep_enough = raw.wrapper(deep_enough, codec)
    with single.connect() as other, single.connect(timeout=30) as client:
        other.produce_ack(topic, 0, GOOD, raw.FLUSHED)
        before = resident_bytes(single)
        for name, bomb in bombs.items():
            client.send_raw(raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body(topic, 1, bomb)))
            assert other.fetch_ok(topic, 0, 0, 100) == GOOD, name
            assert client.recv_own()[1].error == 2, name
            with single.connect() as plain:
                plain.produce(topic, 1, bomb)
                assert plain.is_closed(), name
        assert client.produce_ack(topic, 1, deep_enough).error == 0
        assert client.log_end(topic, 1) == len(deep_enough)
        assert resident_bytes(single) - before < 20 * MEGABYTE + KEPT_BYTES


# --- memory ---


def test_the_memory_limit_holds_up_large_requests_only(start_broker: Callable[..., Broker]) -> None:
    """Over budget one large request goes on and another waits, until memory is free; small ones never wait."""
    broker = start_broker(processors=1, settings={"request.memory.bytes": MEGABYTE, "max.message.size": 10**7})
    large = raw.produce_ack_body("t", 0, raw.entry(bytes(3 * MEGABYTE)))
    frame = raw.own_frame(raw.PRODUCE_ACK, large)
    with broker.connect() as first, broker.connect() as second, broker.connect() as small:
        assert small.produce_ack("t", 0, GOOD).error == 0
        first.send_raw(frame[: 2 * MEGABYTE])
        first.wait_received()
        second.send_raw(frame[:MEGABYTE])
        assert small.produce_ack("t", 0, GOOD).error == 0
        request = raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body("t", 0, GOOD))
        for _ in range(20):
            small.send_raw(request[:4])
            time.sleep(0.005)
            small.send_raw(request[4:])
            assert small.recv_own()[1].error == 0
        second.send_raw(frame[MEGABYTE:])
        assert not second.is_closed(within=0.1)  # it waits for the first one
        first.close()
        assert second.recv_own()[1].error == 0


def test_the_request_that_passes_the_memory_limit_is_the_one_that_goes_on(start_broker: Callable[..., Broker]) -> None:
    """No second one goes over the budget beside the one whose growing buffer used it up."""
    broker = start_broker(processors=1, settings={"request.memory.bytes": MEGABYTE, "max.message.size": 10**7})
    frame = raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body("t", 0, raw.entry(bytes(3 * MEGABYTE))))
    with broker.connect() as first, broker.connect() as second:
        half = MEGABYTE // 2  # the buffer doubles: the byte behind this one is received into more than the budget
        for start, end in ((0, half), (half, half + 1), (half + 1, half + 2)):
            first.send_raw(frame[start:end])
            first.wait_received()
        second.send_raw(frame)
        assert not second.is_closed(within=0.1)  # it waits for the first one
        first.send_raw(frame[half + 2 :])
        assert first.recv_own()[1].error == 0
        assert second.recv_own()[1].error == 0


def test_many_beginnings_of_large_requests_stay_small(start_broker: Callable[..., Broker]) -> None:
    """200 connections send 250 kB of a request each: what is over the budget stays in the sockets."""
    broker = start_broker(processors=1, settings={"request.memory.bytes": 4 * MEGABYTE})
    beginning = struct.pack(">ih", 50 * MEGABYTE, 0) + bytes(250_000)
    with ExitStack() as stack:
        other = stack.enter_context(broker.connect())
        other.produce_ack("t", 0, GOOD, raw.FLUSHED)
        before = resident_bytes(broker)
        for _ in range(200):
            client = stack.enter_context(broker.connect())
            client.socket.setblocking(False)
            client.socket.send(beginning)
        for _ in range(20):
            assert other.fetch_ok("t", 0, 0, 100) == GOOD
            time.sleep(0.005)
        assert resident_bytes(broker) - before < 12 * MEGABYTE


def test_waiting_for_memory_costs_little_time(start_broker: Callable[..., Broker]) -> None:
    """300 connections that wait for memory do not keep the processor busy."""
    broker = start_broker(processors=1, settings={"request.memory.bytes": MEGABYTE})
    beginning = struct.pack(">ih", 50 * MEGABYTE, 0) + bytes(200_000)
    with ExitStack() as stack:
        for _ in range(300):
            client = stack.enter_context(broker.connect())
            client.socket.setblocking(False)
            client.socket.send(beginning)
        wait_calm({"processor-0": broker.pids()["processor-0"]}, 0.2)
