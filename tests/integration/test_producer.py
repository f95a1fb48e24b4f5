"""The producer with real brokers, real processes, and a proxy between them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from fastlog import codecs
from fastlog._segment import payloads
from fastlog.message import deep
from fastlog.producer import Crc32Partitioner, Delivery, Producer, SyncProducer
from fastlog.wire import requests as rq
from tests.harness.broker import ROOT, Broker, wait_until
from tests.harness.fake_broker import FakeBroker
from tests.harness.proxy import Proxy

PARTITIONS = 4


def messages_of(broker: Broker, topic: str, partition: int) -> list[bytes]:
    """The payloads stored in a partition, those inside wrappers one by one."""
    if not broker.has_directory(topic, partition):
        return []
    return [each.message.payload for each in deep(broker.stored_bytes(topic, partition))]


def all_messages(broker: Broker, topic: str) -> list[bytes]:
    """The payloads stored in all partitions of a topic."""
    return [payload for partition in range(PARTITIONS) for payload in messages_of(broker, topic, partition)]


def script(text: str, *arguments: object, timeout: float = 20) -> subprocess.CompletedProcess[str]:
    """Run a program with fastlog in its path."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", dedent(text), *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy"])
def test_lines_by_key(
    broker: Broker, new_topic: Callable[[], str], data_lines: tuple[bytes, ...], kind: str, codec: str
) -> None:
    """Lines by client address: each is in the partition of its key, in order, once."""
    topic = new_topic()
    lines = data_lines[:2000]
    expected: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    with Producer(f"127.0.0.1:{broker.port}", producer_type=kind, compression=codec) as producer:
        for line in lines:
            key = line.split(b" ", 1)[0]
            producer.send(topic, line, key=key)
            expected[Crc32Partitioner().partition(key, PARTITIONS)].append(line)
        if kind == "async":
            producer.flush()
        assert producer.stats().delivered == len(lines)
    assert {number: messages_of(broker, topic, number) for number in range(PARTITIONS)} == expected
    first = payloads(broker.stored_bytes(topic, max(expected, key=lambda number: len(expected[number]))))
    assert first[0].startswith({"none": b"", "gzip": codecs.GZIP_MAGIC, "snappy": codecs.XERIAL_MAGIC}[codec])


@pytest.mark.parametrize("acks", ["none", "appended", "flushed"])
def test_acknowledgements(broker: Broker, topic: str, acks: str) -> None:
    """Each kind delivers; ``flushed`` means visible at once, and the offsets are those of the log."""
    with Producer(f"127.0.0.1:{broker.port}", acks=acks) as producer:
        (delivery,) = producer.send(topic, [b"a", b"b"], partition=1)
        if acks == "flushed":
            with broker.connect() as client:
                assert payloads(client.fetch(topic, 1, delivery.offset).body) == [b"a", b"b"]
        if acks != "none":
            assert (delivery.offset, delivery.next_offset) == (0, 22)
            assert producer.send(topic, b"c", partition=1)[0].offset == 22
    assert messages_of(broker, topic, 1)[:2] == [b"a", b"b"]


def test_messages_without_a_key_go_everywhere(broker: Broker, topic: str) -> None:
    """The broker chooses a partition for each request."""
    with Producer(f"127.0.0.1:{broker.port}", producer_type="async", batch_messages=5) as producer:
        for number in range(1000):
            producer.send(topic, b"%d" % number)
    assert sorted(map(int, all_messages(broker, topic))) == list(range(1000))
    assert all(messages_of(broker, topic, partition) for partition in range(PARTITIONS))


def test_from_many_threads(broker: Broker, topic: str) -> None:
    """Threads share one producer; the order of each thread holds in a partition."""
    with Producer(f"127.0.0.1:{broker.port}", producer_type="async", queue_messages=50, batch_messages=7) as producer:

        def send(thread: int) -> None:
            for number in range(1000):
                producer.send(topic, b"%d %d" % (thread, number), partition=2)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [tuple(map(int, payload.split())) for payload in messages_of(broker, topic, 2)]
    assert len(found) == 4000
    for thread_number in range(4):
        assert [number for thread, number in found if thread == thread_number] == list(range(1000))


@pytest.mark.slow
@pytest.mark.parametrize("acks", ["none", "appended"])
def test_behind_a_load_balancer(start_broker: Callable[..., Broker], topic: str, acks: str) -> None:
    """Two brokers behind a plain proxy, partition -1, a new connection every few requests: both get their share, and
    nothing is lost or stored twice on the way from one to the other."""
    settings = {"num.partitions": PARTITIONS}
    first = start_broker(settings=settings, processors=1)
    second = start_broker(settings=settings, processors=1)
    with Proxy([first.port, second.port]) as proxy:
        with Producer(
            {
                "broker.list": f"0:{proxy.address}",
                "producer.type": "async",
                "reconnect.interval": "20",
                "batch.size": "3",
            },
            acks=acks,
        ) as producer:
            for number in range(1500):
                producer.send(topic, b"%d" % number)
            producer.flush()
            stats = producer.stats()
        assert stats.connections >= 25
        assert stats.possible_duplicates == 0
        with Producer(proxy.address, acks=acks, reconnect_time_interval_ms=20) as producer:
            for number in range(1500, 1520):
                producer.send(topic, b"%d" % number)
                time.sleep(0.005)
            assert producer.stats().connections >= 3
    shares = [all_messages(each, topic) for each in (first, second)]
    assert sorted(int(payload) for share in shares for payload in share) == list(range(1520))
    assert min(map(len, shares)) > 400


@pytest.mark.slow
def test_processors_are_killed_meanwhile(start_broker: Callable[..., Broker], topic: str) -> None:
    """With acks no message is lost, and there are no more duplicates than were counted."""
    broker = start_broker(settings={"num.partitions": PARTITIONS}, processors=2)
    stop = threading.Event()
    kills = [0]

    def kill() -> None:
        while not stop.wait(0.4):
            role = f"processor-{kills[0] % 2}"
            if broker.is_alive(role):
                broker.kill(role)
                kills[0] += 1

    with Producer(f"127.0.0.1:{broker.port}", producer_type="async", batch_messages=20) as producer:
        producer.send(topic, b"0")
        killer = threading.Thread(target=kill)
        killer.start()
        sent = 1
        end = time.monotonic() + 2.5
        while time.monotonic() < end or kills[0] < 3:
            for _ in range(200):
                producer.send(topic, b"%d" % sent)
                sent += 1
            time.sleep(0.005)
        stop.set()
        killer.join()
        producer.flush(30)
        stats = producer.stats()
    found = Counter(map(int, all_messages(broker, topic)))
    assert set(found) == set(range(sent))
    assert sum(found.values()) - sent <= stats.possible_duplicates
    assert stats.delivered == sent
    assert stats.failed == 0
    assert stats.connections > 1


@pytest.mark.slow
def test_the_broker_was_away(start_broker: Callable[..., Broker], topic: str) -> None:
    """R-27: messages queued while the broker is down arrive within 2 s of its return."""
    broker = start_broker(settings={"num.partitions": 1}, processors=1)
    broker._wanted_port = broker.port
    with Producer(f"127.0.0.1:{broker.port}", producer_type="async", queue_time_ms=10) as producer:
        producer.send(topic, b"before")
        producer.flush()
        broker.stop()
        for number in range(100):
            producer.send(topic, b"%d" % number)
        time.sleep(0.2)
        broker.start()
        start = time.monotonic()
        producer.flush(10)
        assert time.monotonic() - start < 2
    assert messages_of(broker, topic, 0) == [b"before", *(b"%d" % number for number in range(100))]


@pytest.mark.slow
def test_no_byte_of_one_topic_in_another(broker: Broker, new_topic: Callable[[], str]) -> None:
    """T-43: requests that time out while they are being written never appear in another topic, and none of them counts
    as delivered without being stored."""
    chooser = random.Random(43)
    topics = {new_topic(): bytes([65 + number]) for number in range(6)}
    deliveries: list[Delivery] = []
    with Proxy([broker.port]) as proxy:
        producer = Producer(
            proxy.address,
            producer_type="async",
            batch_messages=4,
            delivery_timeout_ms=150,
            send_buffer_bytes=10_000,
            on_delivery=deliveries.append,
        )
        for topic in topics:
            producer.send(topic, b"first")
        producer.flush(5)
        for turn in range(24):
            if turn % 2:
                proxy.stall_after(chooser.randrange(300_000))
            for _ in range(40):
                topic = chooser.choice(list(topics))
                producer.send(topic, topics[topic] * chooser.randrange(1, 30_000))
            producer.flush(5)
            proxy.go_on()
        producer.close()
        stats = producer.stats()
    assert stats.failed > 100
    assert stats.delivered > 100
    assert stats.delivered + stats.failed == stats.accepted
    for topic, marker in topics.items():
        found = all_messages(broker, topic)
        assert all(payload in (b"first", marker * len(payload)) for payload in found)
        delivered = sum(each.messages for each in deliveries if each.topic == topic and each.error is None)
        assert len(found) >= delivered


# --- signals, exit, fork ---

INTERRUPTS = """
    import os, random, signal, socket, sys, threading, time
    from fastlog import Producer, SyncProducer
    from fastlog.errors import FastlogError

    chooser = random.Random(1)
    silent = sys.argv[1]

    def full():
        return Producer(silent, producer_type="async", queue_messages=1, batch_messages=1, in_flight_bytes=1)

    def send_blocked(producer):
        while True:
            producer.send("t", b"x" * 200)

    def flush_blocked(producer):
        producer.send("t", b"x")
        producer.flush()

    def close_blocked(producer):
        producer.send("t", b"x")
        producer.close()

    def sync_blocked(producer):
        producer.send("t", b"x")

    def plain_blocked(producer):
        while True:
            producer.send("t", bytes(900_000))

    # A listener with a full backlog: a connection that neither comes about nor is refused.
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    stuffing = [socket.socket() for _ in range(4)]
    for each in stuffing:
        each.setblocking(False)
        each.connect_ex(listener.getsockname())
    nowhere = "127.0.0.1:%d" % listener.getsockname()[1]

    cases = {
        "send": (lambda: full(), send_blocked),
        "flush": (lambda: full(), flush_blocked),
        "close": (lambda: full(), close_blocked),
        "sync send": (lambda: Producer(silent), sync_blocked),
        "connect": (lambda: Producer(nowhere), sync_blocked),
        "SyncProducer send": (lambda: SyncProducer("127.0.0.1", int(silent.rpartition(":")[2])), plain_blocked),
        "SyncProducer connect": (lambda: SyncProducer("127.0.0.1", listener.getsockname()[1]), plain_blocked),
    }
    worst = {}
    for name, (make, call) in cases.items():
        for _ in range(int(sys.argv[2])):
            producer = make()
            sent_at = []

            def interrupt():
                sent_at.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGINT)

            timer = threading.Timer(chooser.uniform(0.05, 0.15), interrupt)
            timer.start()
            try:
                try:
                    call(producer)
                finally:
                    took = time.monotonic() - sent_at[0] if sent_at else None
                    timer.join()
            except KeyboardInterrupt:
                worst[name] = max(worst.get(name, 0), took)
            if isinstance(producer, Producer):
                try:
                    producer.close(0)
                except FastlogError:
                    pass
            else:
                producer._drop()
    for each in (listener, *stuffing):
        each.close()
    print({name: round(1000 * seconds) for name, seconds in worst.items()})
    assert len(worst) == len(cases), worst
    assert max(worst.values()) < 0.2, worst
"""


@pytest.mark.slow
def test_interrupts_come_through() -> None:
    """R-1: every call that may block raises KeyboardInterrupt within 200 ms of SIGINT."""
    release = threading.Event()

    def stall(request: rq.Request) -> bytes | None:
        if not isinstance(request, rq.MetadataRequest):
            release.wait(60)
            raise ConnectionError
        return None

    with FakeBroker(hook=stall) as silent:
        run = script(INTERRUPTS, silent.address, 4, timeout=40)
        release.set()
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.slow
def test_a_script_that_ends_without_close(broker: Broker, topic: str) -> None:
    """R-5: the messages are delivered at exit, and the exit code is that of the program."""
    run = script(
        """
        import sys
        from fastlog import Producer
        producer = Producer(sys.argv[1], producer_type="async")
        for number in range(50):
            producer.send(sys.argv[2], b"%d" % number, partition=0)
        """,
        f"127.0.0.1:{broker.port}",
        topic,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert messages_of(broker, topic, 0) == [b"%d" % number for number in range(50)]


@pytest.mark.slow
def test_a_script_that_ends_and_cannot_deliver(broker: Broker, topic: str) -> None:
    """R-5: when messages are left, a loud line has their count and the exit code is 1."""
    with Proxy([broker.port]) as proxy:
        run = script(
            """
            import atexit, os, sys, time
            import fastlog
            atexit.register(print, "handlers of the program run first")
            producer = fastlog.Producer(sys.argv[1], producer_type="async", close_timeout_ms=200)
            producer.send(sys.argv[2], b"x")
            producer.flush()
            open(sys.argv[3], "w").close()
            while os.path.exists(sys.argv[3]):
                time.sleep(0.01)
            producer.send(sys.argv[2], [b"x"] * 33)
            """,
            proxy.address,
            topic,
            _stall_when_asked(proxy, broker.directory / f"{topic}.flag"),
        )
    assert run.returncode == 1, run.stderr
    assert "PRODUCER LEFT OPEN AT EXIT: 33 messages" in run.stderr
    assert "handlers of the program run first" in run.stdout


def _stall_when_asked(proxy: Proxy, flag: Path) -> Path:
    """Stall the proxy once the file appears, then remove it."""

    def watch() -> None:
        wait_until("the flag", flag.exists)
        proxy.stall_after(0)
        flag.unlink()

    threading.Thread(target=watch, daemon=True).start()
    return flag


@pytest.mark.slow
def test_processes_of_multiprocessing(broker: Broker, topic: str) -> None:
    """R-6: children that were forked, spawned or come from a fork server deliver with producers of their own, also
    when they do not close them; the parent's raises ForkedError there."""
    program = broker.directory / f"{topic}.py"
    program.write_text(
        dedent(
            """
            import multiprocessing, sys
            from fastlog import Producer
            from fastlog.errors import ForkedError

            inherited = None

            def work(address, topic, name):
                if inherited is not None:
                    try:
                        inherited.send(topic, b"never")
                    except ForkedError:
                        pass
                producer = Producer(address, producer_type="async")
                producer.send(topic, name.encode(), partition=0)

            if __name__ == "__main__":
                inherited = Producer(sys.argv[1], producer_type="async")
                inherited.send(sys.argv[2], b"parent", partition=0)
                for method in ("fork", "spawn", "forkserver"):
                    process = multiprocessing.get_context(method).Process(target=work, args=(*sys.argv[1:3], method))
                    process.start()
                    process.join()
                    assert process.exitcode == 0, process.exitcode
            """
        )
    )
    run = subprocess.run(
        [sys.executable, str(program), f"127.0.0.1:{broker.port}", topic],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert run.returncode == 0, run.stderr
    assert set(messages_of(broker, topic, 0)) == {b"parent", b"fork", b"spawn", b"forkserver"}


@pytest.mark.slow
def test_close_in_a_signal_handler(broker: Broker, topic: str) -> None:
    """R-29: called from a handler at random moments of sending and flushing, close() ends in time and loses nothing."""
    run = script(
        """
        import random, signal, sys, time
        from fastlog import Producer
        from fastlog.errors import ClosedError

        chooser = random.Random(29)
        counts = []
        for round in range(60):
            kind = chooser.choice(["sync", "async"])
            producer = Producer(sys.argv[1], producer_type=kind, queue_messages=50, batch_messages=5)
            took = []

            def handler(*_):
                start = time.monotonic()
                producer.close(5)
                took.append(time.monotonic() - start)

            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, chooser.uniform(0.0005, 0.02))
            sent = 0
            try:
                while True:
                    producer.send(sys.argv[2], [b"x"] if sent % 3 else b"x", key=str(sent) if sent % 2 else None)
                    sent += 1
                    if sent % 50 == 0:
                        producer.flush()
            except ClosedError:
                pass
            assert took and max(took) < 2, took
            stats = producer.stats()
            assert stats.failed == 0 and stats.queued == 0 and stats.delivered == stats.accepted, stats
            assert sent <= stats.delivered <= sent + 1, (sent, stats)
            counts.append(stats.delivered)
        print(sum(counts))
        """,
        f"127.0.0.1:{broker.port}",
        topic,
    )
    assert run.returncode == 0, run.stderr
    assert len(all_messages(broker, topic)) == int(run.stdout)


@pytest.mark.slow
def test_sync_producer(broker: Broker, topic: str) -> None:
    """0.7's plain producer against the real broker, with connections changed on the way."""
    with SyncProducer("127.0.0.1", broker.port, reconnect_interval_sends=5) as producer:
        for number in range(50):
            producer.send(topic, b"%d" % number, 0)
        producer.send(topic, [b"a"] * 10, 1, codec=codecs.GZIP)
        producer.multi_send([(topic, 2, [b"b", b"c"]), (topic, 3, b"d")])
    assert [messages_of(broker, topic, partition) for partition in range(PARTITIONS)] == [
        [b"%d" % number for number in range(50)],
        [b"a"] * 10,
        [b"b", b"c"],
        [b"d"],
    ]
