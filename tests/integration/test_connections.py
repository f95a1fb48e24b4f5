"""Connections that wait, leave half-way, ask for much and read nothing: nothing received is lost, nobody else waits.

T-16, T-20 and T-21 as far as they concern one broker process; the fuzzed requests are in ``test_fuzz_requests``.
"""

from __future__ import annotations

import resource
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import snappy  # type: ignore[import-untyped, unused-ignore]

from tests.harness import raw_client as raw
from tests.harness.broker import Broker, wait_until

GOOD = raw.entry(b"good")
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose one processor serves every connection, so that what blocks it is seen by all."""
    settings = {"num.partitions": 4, "flush.min.interval.ms": 1}
    with Broker(tmp_path_factory.mktemp("single"), processors=1, settings=settings) as running:
        yield running


def reset(client: raw.RawClient) -> None:
    """Leaves with an RST instead of a FIN."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def resident_bytes(broker: Broker, role: str = "processor-0") -> int:
    return int(psutil.Process(broker.pids()[role]).memory_info().rss)


def held(topic: str, offset: int, wait_ms: int = 20_000) -> bytes:
    return raw.own_frame(raw.HELD_FETCH, raw.held_fetch_body(topic, 0, offset, 1000, wait_ms, 1), correlation=7)


def squeezed(inner: bytes, codec: int) -> bytes:
    """A wrapper that is as small as its codec makes it; the harness's own snappy does not compress."""
    if codec == raw.GZIP:
        return raw.wrapper(inner, codec)
    blocks = (inner[at : at + raw.XERIAL_BLOCK_BYTES] for at in range(0, len(inner), raw.XERIAL_BLOCK_BYTES))
    packed = [snappy.compress(block) for block in blocks]
    stream = raw.XERIAL_MAGIC + struct.pack(">ii", 1, 1)
    return raw.entry(stream + b"".join(struct.pack(">i", len(block)) + block for block in packed), 1, codec)


def filled(broker: Broker, topic: str, size: int, payload: bytes = bytes(1000)) -> int:
    """Writes about ``size`` flushed bytes to partition 0 and returns the end."""
    entry = raw.entry(payload)
    messages = entry * max(1, min(size, 4 * MEGABYTE) // len(entry))
    end = 0
    with broker.connect(timeout=30) as client:
        while end < size:
            answer = client.produce_ack(topic, 0, messages, raw.FLUSHED)
            assert answer.error == 0
            end = answer.next_offset
    return end


# --- leaving ---


@pytest.mark.parametrize("leave", [raw.RawClient.finish_sending, reset], ids=["FIN", "RST"])
def test_what_came_behind_a_held_fetch_is_handled(
    single: Broker, topic: str, leave: Callable[[raw.RawClient], None]
) -> None:
    """A client that leaves while its fetch is held has its later requests handled, read or not at that moment."""
    with single.connect() as client:
        assert client.produce_ack(topic, 0, GOOD, raw.FLUSHED).error == 0
        leaver = single.connect()
        leaver.send_raw(held(topic, 14))
        client.metadata([])  # the processor has seen the held fetch: what follows stays in the socket
        time.sleep(0.02)
        leaver.send_raw(raw.produce_frame(topic, 0, GOOD) * 100)
        leave(leaver)
        client.wait_visible(topic, 0, 101 * 14)
        if leave is not reset:
            assert leaver.recv_own()[1].error == 0
            assert leaver.is_closed()
        leaver.close()


def test_produces_behind_an_answer_nobody_reads(single: Broker, topic: str) -> None:
    """Fetch, then produce, then leave without reading: the produces are written although the answer cannot be sent."""
    end = filled(single, topic, 8 * MEGABYTE)
    leaver = single.connect()
    leaver.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    leaver.send_raw(raw.fetch_frame(topic, 0, 0, 8 * MEGABYTE) + raw.produce_frame(topic, 1, GOOD) * 50)
    time.sleep(0.05)
    leaver.send_raw(raw.produce_frame(topic, 1, GOOD) * 50)
    reset(leaver)
    with single.connect() as client:
        client.wait_visible(topic, 1, 100 * 14)
        assert client.log_end(topic, 0) == end


def test_a_refused_size_behind_a_fetch_closes(single: Broker, topic: str) -> None:
    """An impossible size is refused once its turn comes, without waiting for more bytes."""
    filled(single, topic, MEGABYTE)
    with single.connect() as client:
        client.send_raw(raw.fetch_frame(topic, 0, 0, 100_000) + struct.pack(">i", -1))
        assert len(client.recv_answer().body) == 100_000
        assert client.is_closed(within=2)


def test_a_held_fetch_does_not_hold_back_earlier_answers(single: Broker, topic: str) -> None:
    """Answers that did not fit into the socket go on leaving while the fetch behind them waits."""
    end = filled(single, topic, 16_000, bytes(15_000))
    fetches = raw.fetch_frame(topic, 0, 0, 15_010) * 2000
    with single.connect() as client:
        client.send_raw(fetches + held(topic, end))
        started = time.monotonic()
        for _ in range(2000):
            assert len(client.recv_answer().body) == 15_010
        assert time.monotonic() - started < 2.5


def test_stopping_answers_what_is_held(start_broker: Callable[..., Broker]) -> None:
    """SIGTERM ends a held fetch with an empty answer, and the broker leaves in time."""
    broker = start_broker(processors=1)
    with broker.connect() as client:
        client.produce_ack("t", 0, GOOD, raw.FLUSHED)
        client.send_raw(held("t", 14))
        assert not client.is_closed(within=0.05)
        started = time.monotonic()
        assert broker.stop() == 0
        assert time.monotonic() - started < 3
        assert raw.decode_held(client.recv_own()[1]) == (0, 14, 0, b"")
        assert client.is_closed()


# --- own requests end exactly ---

BODIES = {
    raw.PRODUCE_ACK: raw.produce_ack_body("ends", 0, GOOD),
    raw.HELD_FETCH: raw.held_fetch_body("ends", 0, 0, 100, 0, 0),
    raw.METADATA: raw.metadata_body(["ends"]),
    raw.CUT_POINTS: raw.cut_points_body("ends", 0, 0, 0, 10, 10),
    raw.LOCAL_READ: raw.place("ends", 0),
    raw.CREATE_TOPIC: raw.place("ends", 1),
}
ERROR_BODY = {raw.PRODUCE_ACK: struct.pack(">iqq", -1, -1, -1), raw.HELD_FETCH: struct.pack(">qq", -1, -1)}


@pytest.mark.parametrize("kind", BODIES)
def test_bytes_behind_or_missing_are_error_107(single: Broker, kind: int) -> None:
    """Every shorter body that has a correlation id, and every longer one, is refused; nothing of it is done."""
    body = BODIES[kind]
    wrong = [body[:cut] for cut in range(len(body))] + [body + b"\0", body + b"x" * 100]
    with single.connect() as client:
        for one in wrong:
            answer = client.ask_own(kind, one)
            assert answer.error == 107, one
            assert answer.body == ERROR_BODY.get(kind, b"")
    assert not single.has_directory("ends", 0)


@pytest.mark.parametrize("kind", BODIES)
def test_no_correlation_id_closes(single: Broker, kind: int) -> None:
    """A frame that ends before the correlation id does cannot be answered."""
    whole = struct.pack(">hhi", kind, 1, 5)
    for cut in range(2, len(whole)):
        with single.connect() as client:
            client.send_raw(struct.pack(">i", cut) + whole[:cut])
            assert client.is_closed()


def test_errors_of_a_held_fetch_carry_the_positions(single: Broker, topic: str) -> None:
    """Where the partition exists its watermark and log start come with the error, else -1."""
    with single.connect() as client:
        client.produce_ack(topic, 0, GOOD, raw.FLUSHED)
        cases = [(0, 15, 9, 1), (0, -1, 9, 1), (0, 0, -1, 4), (0, 3, 9, 2)]
        for partition, offset, size, error in cases:
            assert client.held_fetch(topic, partition, offset, size) == (error, 14, 0, b"")
        for name, partition, error in [(topic, 4, 3), (topic, -1, 3), ("a/b", 0, 100)]:
            assert client.held_fetch(name, partition, 0, 9) == (error, -1, -1, b"")
        answer = client.ask_own(raw.HELD_FETCH, BODIES[raw.HELD_FETCH], version=2)
        assert (answer.error, answer.body) == (104, ERROR_BODY[raw.HELD_FETCH])


def test_refused_requests_are_counted(start_broker: Callable[..., Broker]) -> None:
    """Each reason for refusing has a counter of its own in the report that the broker writes at intervals."""
    settings = {"monitoring.period.secs": 1, "max.message.size": 100, "max.connections": 5}
    broker = start_broker(processors=1, settings=settings)
    with broker.connect() as client:
        assert client.produce_ack("t", 0, raw.entry(b"x", crc=1)).error == 2
        assert client.produce_ack("t", 0, raw.entry(bytes(101))).error == 102
        assert client.ask_own(raw.METADATA, b"").error == 107
        assert client.ask_own(raw.LOCAL_READ, raw.place("t", 0), version=3).error == 104
        for data in (struct.pack(">i", -1), raw.frame(raw.FETCH, b""), raw.frame(18, b""), raw.frame(77, b"")):
            with broker.connect() as bad:
                bad.send_raw(data)
                assert bad.is_closed()
    counts = {"invalid_messages": 1, "too_large_messages": 1, "invalid_requests": 5, "protocol_strangers": 1}
    for name, count in counts.items():
        broker.wait_log(rf"{name}={count}\b", within=5)


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


def slowest_answer(client: raw.RawClient, topic: str, seconds: float) -> float:
    """The longest that a small fetch took within that time."""
    slowest = 0.0
    end = time.monotonic() + seconds
    while (started := time.monotonic()) < end:
        client.fetch_ok(topic, 0, 0, 100)
        slowest = max(slowest, time.monotonic() - started)
        time.sleep(0.002)
    return slowest


def test_walks_for_cut_points_disturb_nobody(single: Broker, topic: str) -> None:
    """Sixty walks over 60 MB of small messages at once: a fetch on another connection does not wait for one of them."""
    end = filled(single, topic, 60 * MEGABYTE, bytes(20))
    body = raw.cut_points_body(topic, 0, 0, end, 1 << 62, 3)
    with ExitStack() as stack:
        other = stack.enter_context(single.connect())
        walkers = [stack.enter_context(single.connect(timeout=30)) for _ in range(60)]
        other.fetch_ok(topic, 0, 0, 100)
        started = time.monotonic()
        for walker in walkers:
            walker.send_raw(raw.own_frame(raw.CUT_POINTS, body, correlation=9))
        time.sleep(0.005)
        slowest = slowest_answer(other, topic, 0.1)
        for walker in walkers:
            correlation, answer = walker.recv_own()
            assert (correlation, answer.error) == (9, 0)
            assert raw.decode_offsets(answer.body) == [0, end]
        assert slowest < max(0.05, (time.monotonic() - started) / 4)


@pytest.mark.parametrize("codec", [raw.GZIP, raw.SNAPPY])
def test_many_compressed_sets_in_one_piece_disturb_nobody(single: Broker, topic: str, codec: int) -> None:
    """300 sets that inflate to almost a megabyte each, in one piece: another connection is answered meanwhile."""
    small = squeezed(raw.entry(bytes(1000)) * 950, codec)
    request = raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body(topic, 1, small))
    with single.connect() as other, single.connect(timeout=30) as client:
        other.produce_ack(topic, 0, GOOD, raw.FLUSHED)
        client.send_raw(request * 300)
        time.sleep(0.005)
        assert slowest_answer(other, topic, 0.4) < 0.1
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
            assert slowest_answer(other, topic, 0.1) < 0.1, name
            assert client.recv_own()[1].error == 2, name
            with single.connect() as plain:
                plain.produce(topic, 1, bomb)
                assert plain.is_closed(), name
        assert client.produce_ack(topic, 1, deep_enough).error == 0
        assert client.log_end(topic, 1) == len(deep_enough)
        assert resident_bytes(single) - before < 20 * MEGABYTE


# --- failing writes ---


def test_a_failed_write_answers_what_it_can(start_broker: Callable[..., Broker]) -> None:
    """Plain and acknowledged produces to two partitions in one piece, and the write of one partition fails.

    The connection closes for the plain one; acknowledgements that were owed come first, and say what was stored.
    """
    broker = start_broker(
        processors=1, settings={"num.partitions": 2}, environment={"FASTLOG_FAULTS": "processor:pwrite@3=ENOSPC"}
    )
    with broker.connect() as client:
        assert client.produce_ack("t", 0, GOOD).error == 0
        assert client.produce_ack("t", 1, GOOD).error == 0
        acked = [
            raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body("t", partition, GOOD), correlation=partition + 10)
            for partition in (0, 1)
        ]
        client.send_raw(raw.produce_frame("t", 0, GOOD) + acked[1] + acked[0] + raw.produce_frame("t", 1, GOOD))
        correlation, answer = client.recv_own()
        assert (correlation, answer.error) == (11, 0)
        assert struct.unpack(">iqq", answer.body) == (1, 14, 28)
        correlation, answer = client.recv_own()
        assert (correlation, answer.error) == (10, 103)
        assert client.is_closed()
    with broker.connect() as client:
        assert client.log_end("t", 0) == 14
        assert client.produce_ack("t", 0, GOOD) == (0, 0, 14, 28)


# --- limits ---


def test_the_memory_limit_holds_up_large_requests_only(start_broker: Callable[..., Broker]) -> None:
    """Over budget one large request goes on and another waits, until memory is free; small ones never wait."""
    broker = start_broker(processors=1, settings={"request.memory.bytes": MEGABYTE, "max.message.size": 10**7})
    large = raw.produce_ack_body("t", 0, raw.entry(bytes(3 * MEGABYTE)))
    frame = raw.own_frame(raw.PRODUCE_ACK, large)
    with broker.connect() as first, broker.connect() as second, broker.connect() as small:
        assert small.produce_ack("t", 0, GOOD).error == 0
        first.send_raw(frame[: 2 * MEGABYTE])
        time.sleep(0.05)
        second.send_raw(frame[:MEGABYTE])
        time.sleep(0.05)
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
        assert slowest_answer(other, "t", 0.3) < 0.1
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
        time.sleep(0.2)
        process = psutil.Process(broker.pids()["processor-0"])
        before = sum(process.cpu_times()[:2])
        time.sleep(1.0)
        assert sum(process.cpu_times()[:2]) - before < 0.2


def test_a_lost_hand_over_is_no_open_connection(start_broker: Callable[..., Broker]) -> None:
    """A processor out of descriptors loses connections on their way to it; they do not count as open afterwards."""
    broker = start_broker(processors=1, settings={"max.connections": 30})
    process = psutil.Process(broker.pids()["processor-0"])
    with ExitStack() as stack:
        first = stack.enter_context(broker.connect())
        assert first.offsets("t", 0) == [0]  # the processor has opened what it opens at start
        limits = process.rlimit(resource.RLIMIT_NOFILE)
        taken = {int(path.name) for path in Path(f"/proc/{process.pid}/fd").iterdir()}
        lowest_free = next(number for number in range(len(taken) + 1) if number not in taken)
        process.rlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
        for _ in range(40):
            with broker.connect() as client:
                assert client.is_closed()
        process.rlimit(resource.RLIMIT_NOFILE, limits)
        for client in [stack.enter_context(broker.connect()) for _ in range(20)]:
            assert client.offsets("t", 0) == [0]


def test_direct_accept_serves_and_keeps_the_limit(start_broker: Callable[..., Broker]) -> None:
    """With ``accept.mode=direct`` the processors accept themselves; ``max.connections`` holds over all of them."""
    broker = start_broker(processors=2, settings={"accept.mode": "direct", "max.connections": 20})
    assert "acceptor" not in broker.pids()
    with ExitStack() as stack:
        clients = [stack.enter_context(broker.connect()) for _ in range(15)]
        for client in clients:
            assert client.produce_ack("t", 0, GOOD).error == 0
        more = [stack.enter_context(broker.connect()) for _ in range(15)]
        closed = sum(client.is_closed(within=0.1) for client in more)
        assert 8 <= closed <= 12
    wait_until("closed connections are forgotten", lambda: _serves(broker), 5)
    assert broker.stop() == 0


def _serves(broker: Broker) -> bool:
    with broker.connect() as client:
        client.send_raw(raw.offsets_frame("t", 0, -1, 1))
        try:
            return client.recv_answer().error == 0
        except raw.ConnectionClosed:
            return False


def test_idle_and_slow_connections_are_closed(start_broker: Callable[..., Broker]) -> None:
    """Who sends nothing, who never completes a request, who never reads: closed after the limit. Who waits is not."""
    settings = {"connections.max.idle.ms": 600, "num.partitions": 2, "log.default.flush.interval.ms": 60_000}
    broker = start_broker(processors=1, settings=settings)
    filled(broker, "t", 16 * MEGABYTE)
    with ExitStack() as stack:
        idle, slow, deaf, holding, waiting = (stack.enter_context(broker.connect()) for _ in range(5))
        holding.send_raw(raw.own_frame(raw.HELD_FETCH, raw.held_fetch_body("u", 0, 0, 9, 2000, 1)))
        assert waiting.produce_ack("t", 1, GOOD).error == 0
        broker.pause("flusher")
        waiting.send_raw(raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body("t", 1, GOOD, raw.FLUSHED)))
        deaf.send_raw(raw.fetch_frame("t", 0, 0, 16 * MEGABYTE))
        request = raw.fetch_frame("t", 0, 0, 100)
        started = time.monotonic()
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for byte in request * 2:
                slow.send_raw(bytes([byte]))
                time.sleep(0.05)
        assert 0.5 < time.monotonic() - started < 1.5
        assert idle.is_closed()
        with pytest.raises(raw.ConnectionClosed):
            deaf.recv_answer()
        broker.resume("flusher")
        assert waiting.recv_own()[1].error == 0
        assert raw.decode_held(holding.recv_own()[1]) == (0, 0, 0, b"")


def test_traced_requests_are_named_once(start_broker: Callable[..., Broker]) -> None:
    """``trace.requests``: one line for each request, also for one that had to wait before it was handled."""
    broker = start_broker(processors=1, settings={"trace.requests": "true"})
    with broker.connect() as client:
        client.produce_ack("t", 0, GOOD, raw.FLUSHED)
        client.held_fetch("t", 0, 14, max_wait_ms=30)
        client.create_topic("u", 1)
    assert broker.stop() == 0
    kinds = [int(line.split("kind=")[1].split()[0]) for line in broker.log_text().splitlines() if " kind=" in line]
    assert kinds == [raw.PRODUCE_ACK, raw.HELD_FETCH, raw.CREATE_TOPIC]


def test_signals_to_a_processor_change_nothing(single: Broker, topic: str, tmp_path: Path) -> None:
    """The terminal's signals reach every process of the group; only the supervisor takes them."""
    pids = single.pids()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        single.signal("processor-0", number)
    with single.connect() as client:
        assert client.produce_ack(topic, 0, GOOD).error == 0
    assert single.pids() == pids
