"""Connections that wait, leave half-way, or come in too great numbers: nothing received is lost, nobody else waits.

T-16 and T-21 as far as they concern one broker process; those that ask for much are in ``test_greedy_clients``, the
fuzzed requests in ``test_fuzz_requests``.
"""

from __future__ import annotations

import re
import resource
import signal
import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.harness import raw_client as raw
from tests.harness.broker import Broker, wait_until
from tests.harness.load import filled
from tests.harness.timing import PATIENCE, sooner_than

GOOD = raw.entry(b"good")
MEGABYTE = 1 << 20


def reset(client: raw.RawClient) -> None:
    """Leaves with an RST instead of a FIN."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def held(topic: str, offset: int, wait_ms: int = 20_000) -> bytes:
    return raw.own_frame(raw.HELD_FETCH, raw.held_fetch_body(topic, 0, offset, 1000, wait_ms, 1), correlation=7)


def test_a_connection_goes_on_after_an_answer_of_many_parts(start_broker: Callable[..., Broker]) -> None:
    """The list of what it sends is given back with the answer, and begins anew with the next one of many parts."""
    # what is given back is no memory of the process any more, so whoever still uses it ends
    broker = start_broker(environment={"MALLOC_MMAP_THRESHOLD_": str(32 << 10)})
    message = raw.entry(bytes(990))
    with broker.connect() as client:
        assert client.produce_ack("t", 0, message, raw.FLUSHED).error == 0
        for count in (2000, 1, 2000):
            found = client.multifetch([("t", 0, 0, len(message))] * count)
            assert found == [(0, message)] * count


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
        assert client.is_closed()


def test_a_held_fetch_does_not_hold_back_earlier_answers(single: Broker, topic: str) -> None:
    """Answers that did not fit into the socket go on leaving while the fetch behind them waits."""
    end = filled(single, topic, 16_000, bytes(15_000))
    fetches = raw.fetch_frame(topic, 0, 0, 15_010) * 2000
    with single.connect() as client:
        client.send_raw(fetches + held(topic, end))
        with sooner_than(15):
            for _ in range(2000):
                assert len(client.recv_answer().body) == 15_010


def test_stopping_answers_what_is_held(start_broker: Callable[..., Broker]) -> None:
    """SIGTERM ends a held fetch with an empty answer, and the broker leaves in time."""
    broker = start_broker(processors=1)
    with broker.connect() as client:
        client.produce_ack("t", 0, GOOD, raw.FLUSHED)
        client.send_raw(held("t", 14))
        assert not client.is_closed(within=0.05)
        with sooner_than(15):
            assert broker.stop() == 0
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
    raw.DELETE_TOPIC: raw.text("ends"),
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
        for data in (struct.pack(">i", -1), raw.frame(raw.FETCH, b""), b"\x16\3\1\0", raw.frame(77, b"")):
            with broker.connect() as bad:
                bad.send_raw(data)
                assert bad.is_closed()
    counts = {"invalid_messages": 1, "too_large_messages": 1, "invalid_requests": 5, "protocol_strangers": 1}
    for name, count in counts.items():
        broker.wait_log(rf"{name}={count}\b")


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
        closed = sum(not _answers(client) for client in more)
        assert 8 <= closed <= 12
    wait_until("closed connections are forgotten", lambda: _serves(broker))
    assert broker.stop() == 0


def test_connections_wait_while_every_hand_over_queue_is_full(start_broker: Callable[..., Broker]) -> None:
    """A processor that takes none for a while costs no connection: what its queue has no room for waits before it."""
    broker = start_broker(processors=1)
    broker.pause("processor-0")
    with ExitStack() as stack:
        clients = []
        while "every hand-over queue is full" not in broker.log_text():
            clients += [stack.enter_context(broker.connect()) for _ in range(20)]
            assert len(clients) <= 2000
        broker.resume("processor-0")
        for client in clients:
            assert client.offsets("t", 0) == [0]


@pytest.mark.parametrize("mode", ["handoff", "direct"])
def test_what_waits_to_be_accepted_is_served_before_the_stop(mode: str, start_broker: Callable[..., Broker]) -> None:
    """A client that has connected and sent may know no better than that it was taken: 0.7 has no answer."""
    broker = start_broker(processors=1, settings={"accept.mode": mode})
    taker = "acceptor" if mode == "handoff" else "processor-0"
    broker.pause(taker)
    clients = [broker.connect() for _ in range(3)]
    for client in clients:
        client.produce("t", 0, GOOD)
    assert broker.process is not None
    broker.process.terminate()
    broker.wait_log("stopping reason=SIGTERM")
    broker.resume(taker)
    assert broker.process.wait(PATIENCE) == 0
    for client in clients:
        client.close()
    assert broker.stored_bytes("t", 0) == GOOD * 3


def _serves(broker: Broker) -> bool:
    with broker.connect() as client:
        return _answers(client)


def _answers(client: raw.RawClient) -> bool:
    try:
        client.send_raw(raw.offsets_frame("t", 0, -1, 1))
        return client.recv_answer().error == 0
    except (raw.ConnectionClosed, ConnectionError):
        return False


def test_idle_and_slow_connections_are_closed(start_broker: Callable[..., Broker]) -> None:
    """Who sends nothing, who never completes a request, who never reads: closed after the limit. Who waits is not."""
    settings = {"connections.max.idle.ms": 1200, "num.partitions": 2, "log.default.flush.interval.ms": 60_000}
    broker = start_broker(processors=1, settings=settings)
    filled(broker, "t", 16 * MEGABYTE)
    started = time.monotonic()
    with ExitStack() as stack:
        idle, slow, deaf, holding, waiting = (stack.enter_context(broker.connect()) for _ in range(5))
        holding.send_raw(raw.own_frame(raw.HELD_FETCH, raw.held_fetch_body("u", 0, 0, 9, 4000, 1)))
        assert waiting.produce_ack("t", 1, GOOD).error == 0
        broker.pause("flusher")
        waiting.send_raw(raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body("t", 1, GOOD, raw.FLUSHED)))
        deaf.send_raw(raw.fetch_frame("t", 0, 0, 16 * MEGABYTE))
        request = raw.fetch_frame("t", 0, 0, 100)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for byte in request * 2:
                slow.send_raw(bytes([byte]))
                time.sleep(0.1)
        assert time.monotonic() - started > 1.0
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


@pytest.mark.parametrize("mode", ["handoff", "direct"])
def test_several_listeners(start_broker: Callable[..., Broker], mode: str) -> None:
    """Each is served by every processor, and tells its clients its own address."""
    broker = start_broker(
        settings={
            "accept.mode": mode,
            "listeners": "one://127.0.0.1:0,two://127.0.0.1:0,six://[::1]:0",
            "advertised.listeners": "two://localhost:4711",
        }
    )
    said = re.search(
        r"listeners=one://127.0.0.1:(\d+),two://127.0.0.1:(\d+),six://\[::1\]:(\d+) ", broker.log_path.read_text()
    )
    assert said is not None
    one, two, six = map(int, said.groups())
    assert one == broker.port
    expected = {
        (one, "127.0.0.1"): ("127.0.0.1", one),
        (two, "127.0.0.1"): ("localhost", 4711),
        (six, "::1"): ("::1", six),
    }
    for _ in range(4):
        for (port, host), told in expected.items():
            with raw.RawClient(port, host) as client:
                found = client.metadata([])
                assert (found.host, found.port) == told
                assert client.produce_ack("t", 0, raw.entry(b"one"), raw.FLUSHED).error == 0
    with broker.connect() as client:
        client.wait_visible("t", 0, 12 * len(raw.entry(b"one")))
