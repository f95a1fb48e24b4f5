"""Descriptors and connections run out: accepting pauses without spinning, logs go on, all comes back by itself."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.harness import raw_client as raw
from tests.harness.broker import Broker, wait_until
from tests.harness.calm import wait_calm
from tests.harness.timing import PATIENCE

MESSAGE = raw.entry(b"message")
SPINNING_SHARE = 0.2


class Limited(Broker):
    """A broker started under a hard limit of open files."""

    limit = 64

    def command(self) -> list[str]:
        return ["sh", "-c", f'ulimit -n {self.limit}; exec "$@"', "sh", *super().command()]


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Limited]:
    with Limited(tmp_path, processors=2) as broker:
        yield broker


def answers(client: raw.RawClient) -> bool:
    """Whether the broker serves this connection; False when it was closed."""
    try:
        client.metadata([])
    except (raw.ConnectionClosed, OSError):
        return False
    return True


@pytest.mark.slow
def test_more_connections_than_descriptors(limited: Limited, topic: str) -> None:
    """T-23, Z-16: those that are served stay served, nothing spins, and room is used as soon as there is some."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(limited.connect())
        assert first.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).error == 0
        many = [stack.enter_context(limited.connect()) for _ in range(200)]
        for _ in range(20):
            assert first.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).error == 0
        wait_calm(limited.pids(), SPINNING_SHARE)
        # a topic needs descriptors, too
        assert first.produce_ack("another", 0, MESSAGE, raw.FLUSHED).error == 0
        assert first.read_all("another", 0) == MESSAGE
        for client in many:
            client.close()
        with limited.connect() as late:
            assert answers(late), "the acceptor did not take what waited"
            assert late.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).error == 0
    assert all(limited.is_alive(role) for role in limited.pids())
    assert limited.stop() == 0


@pytest.mark.slow
def test_more_partitions_than_descriptors(limited: Limited) -> None:
    """T-23: segment files are opened and closed as needed; every partition takes appends and is read back."""
    topics = [f"many{number:03}" for number in range(60)]
    with limited.connect() as client:
        for turn in range(3):
            for name in topics:
                assert client.produce_ack(name, 0, raw.entry(b"%s %d" % (name.encode(), turn))).error == 0
        for name in topics:
            end = client.log_end(name, 0)
            client.wait_visible(name, 0, end)
            assert client.read_all(name, 0) == raw.message_set(b"%s %d" % (name.encode(), turn) for turn in range(3))
        # one request names more of them than there are descriptors: what does not fit comes with the next one
        offsets = dict.fromkeys(topics, 0)
        for _ in range(len(topics)):
            parts = client.multifetch([(name, 0, offset, 1 << 16) for name, offset in offsets.items()])
            assert [part.error for part in parts] == [0] * len(topics)
            if not any(part.body for part in parts):
                break
            for name, part in zip(topics, parts, strict=True):
                offsets[name] += len(part.body)
        assert offsets == {name: client.log_end(name, 0) for name in topics}
    assert limited.stop() == 0


@pytest.mark.slow
def test_a_limit_that_sinks_while_the_broker_runs(start_broker: Callable[..., Broker], topic: str) -> None:
    """Z-16: the acceptor itself is out of descriptors: it pauses, says so, lets nobody hang, and comes back."""
    broker = start_broker()
    acceptor = psutil.Process(broker.pids()["acceptor"])
    with broker.connect() as first:
        assert first.produce_ack(topic, 0, MESSAGE).error == 0
        limits = acceptor.rlimit(psutil.RLIMIT_NOFILE)
        acceptor.rlimit(psutil.RLIMIT_NOFILE, (acceptor.num_fds() - 5, limits[1]))
        refused = [broker.connect() for _ in range(20)]
        wait_calm({"acceptor": acceptor.pid}, SPINNING_SHARE)
        assert first.produce_ack(topic, 0, MESSAGE).error == 0
        broker.wait_log("accepting pauses reason=Too many open files")
        acceptor.rlimit(psutil.RLIMIT_NOFILE, limits)
        with broker.connect() as late:
            late.metadata([])
        for client in refused:
            client.close()


@pytest.mark.slow
def test_max_connections(start_broker: Callable[..., Broker], topic: str) -> None:
    """One more than the limit is closed at once, the others go on; a place that becomes free is given away."""
    broker = start_broker(settings={"max.connections": 5})
    with contextlib.ExitStack() as stack:
        inside = [stack.enter_context(broker.connect()) for _ in range(5)]
        for client in inside:
            client.metadata([])
        for _ in range(3):
            with broker.connect() as refused:
                assert refused.is_closed()
        for client in inside:
            assert client.produce_ack(topic, 0, MESSAGE).error == 0
        inside[0].close()
        with contextlib.ExitStack() as later:

            def gets_in() -> bool:
                return answers(later.enter_context(broker.connect()))

            wait_until("the free place is given away", gets_in)
    broker.wait_log("connection refused: max.connections=5 are open")


@pytest.mark.slow
def test_idle_connections_are_closed_and_waiting_ones_are_not(start_broker: Callable[..., Broker], topic: str) -> None:
    """Z-17, T-21: silence is ended after the limit, a request that never ends too, a held fetch not."""
    broker = start_broker(settings={"connections.max.idle.ms": 1000})
    begun = time.monotonic()
    with broker.connect() as idle, broker.connect() as slow, broker.connect() as holder, broker.connect() as busy:
        assert busy.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).error == 0
        end = busy.log_end(topic, 0)
        holder.send_raw(raw.own_frame(raw.HELD_FETCH, raw.held_fetch_body(topic, 0, end, 1 << 16, 20_000, 1)))
        frame = iter(raw.produce_frame(topic, 0, MESSAGE * 100))
        slow_open = idle_open = True
        while slow_open or idle_open:
            assert time.monotonic() - begun < PATIENCE
            busy.metadata([])
            if slow_open:
                with contextlib.suppress(OSError):
                    slow.send_raw(bytes([next(frame)]))
                slow_open = not slow.is_closed(0.02)
            if idle_open:
                idle_open = not idle.is_closed(0.02)
        seconds = time.monotonic() - begun
        assert seconds > 0.9
        while time.monotonic() - begun < 2.2:
            busy.metadata([])
            time.sleep(0.05)
        assert busy.produce_ack(topic, 0, MESSAGE).error == 0
        _, answer = holder.recv_own()
        assert raw.decode_held(answer).messages == MESSAGE
