"""Programs that use a producer and are interrupted, end, or fork."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from textwrap import dedent

import pytest

from fastlog.wire import requests as rq
from tests.harness.broker import ROOT, Broker, wait_until
from tests.harness.fake_broker import FakeBroker
from tests.harness.producers import all_messages, messages_of, script
from tests.harness.proxy import Proxy

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
            begun = threading.Event()

            def interrupt():
                begun.wait()
                time.sleep(chooser.uniform(0.05, 0.15))
                sent_at.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGINT)

            thread = threading.Thread(target=interrupt)
            thread.start()
            try:
                try:
                    begun.set()
                    call(producer)
                finally:
                    took = time.monotonic() - sent_at[0] if sent_at else None
                    thread.join()
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
    assert max(worst.values()) < 5, worst
"""


@pytest.mark.slow
def test_interrupts_come_through() -> None:
    """R-1: every call that may block raises KeyboardInterrupt because of SIGINT."""
    release = threading.Event()

    def stall(request: rq.Request) -> bytes | None:
        if not isinstance(request, rq.MetadataRequest):
            release.wait(60)
            raise ConnectionError
        return None

    with FakeBroker(hook=stall) as silent:
        run = script(INTERRUPTS, silent.address, 4, timeout=100)
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
        timeout=100,
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
                producer.close(30)
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
            assert took and max(took) < 25, took
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
