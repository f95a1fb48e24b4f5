"""``fastlog tail`` and ``fastlog replay`` on two brokers: what is shown, what is sent again, and when."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import fastlog
from fastlog import testing
from fastlog.envelope import Envelope, wrap
from fastlog.tools import copy_topic as replay_module
from tests.harness.broker import ROOT, wait_until
from tests.harness.command_line import Commands
from tests.harness.site import LINES, Site, Tools

pytestmark = [pytest.mark.slow, pytest.mark.java]


@contextmanager
def tailing(*arguments: str) -> Iterator[Callable[[int], list[bytes]]]:
    """A tail that runs; gives a function that waits for so many lines."""
    command = [sys.executable, "-m", "fastlog", "tail", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        timer = threading.Timer(40, process.kill)
        timer.start()
        assert process.stdout is not None
        lines = process.stdout
        try:
            yield lambda count: [lines.readline().rstrip(b"\n") for _ in range(count)]
        finally:
            timer.cancel()
            process.kill()


def produce(site: Site, broker: int, topic: str, *payloads: bytes, partition: int = 0) -> None:
    site.produce(broker, topic, list(payloads), partition=partition)


def test_the_end_is_followed(site: Site, topic: str) -> None:
    """The last of each partition of every broker, then what comes, on a broker too that had nothing of it before."""
    old = [b"old %d" % number for number in range(20)]
    produce(site, 0, topic, *old)
    with tailing(topic, "--zookeeper", site.connect, "-n", "3") as lines:
        assert lines(3) == old[-3:]
        produce(site, 0, topic, b"new", partition=1)
        assert lines(1) == [b"new"]
        produce(site, 1, topic, b"elsewhere")
        assert lines(1) == [b"elsewhere"]


def test_several_topics_have_headers(site: Site, tools: Tools, new_topic: Callable[[], str]) -> None:
    """As tail has them for files; objects and fields say themselves where they are from."""
    first, second = new_topic(), new_topic()
    produce(site, 0, first, b"1", b"2")
    with tailing(first, second, "--brokers", f"{site.brokers[0].address},{site.brokers[1].address}") as lines:
        assert lines(3) == [f"==> {first} <==".encode(), b"1", b"2"]
        produce(site, 1, second, b"3")
        assert lines(3) == [b"", f"==> {second} <==".encode(), b"3"]
    ran = tools("tail", first, second, "-n", "1", "--max-messages", "2", "--json")
    assert sorted((row["topic"], row["broker"], row["payload"]) for row in ran.rows) == sorted(
        [(first, 0, "2"), (second, 1, "3")]
    )
    ran = tools("tail", first, "--max-messages", "1", "-n", "1", "--format", "offsets")
    assert ran.out == f"{first}\t0-0\t11\t2\n"


def test_a_broker_that_restarts_is_followed_again() -> None:
    """Nothing of it is left out, and nothing comes twice."""
    with testing.broker() as broker:
        with fastlog.Producer(broker.address, acks="flushed") as producer:
            producer.send("t", b"before")
        with tailing("t", "--brokers", broker.address) as lines:
            assert lines(1) == [b"before"]
            broker.kill()
            broker.start()
            with fastlog.Producer(broker.address, acks="flushed") as producer:
                producer.send("t", [b"after", b"more"])
            assert lines(2) == [b"after", b"more"]


def stored(site: Site, topic: str) -> dict[tuple[int, int], list[bytes]]:
    """The payloads of each partition."""
    found = {}
    for broker, running in enumerate(site.brokers):
        with fastlog.SimpleConsumer(running.host, running.port) as consumer:
            for number in (0, 1):
                found[broker, number] = list(consumer.payloads(topic, number))
    return found


def test_a_topic_is_replayed_at_full_speed(site: Site, tools: Tools, topic: str) -> None:
    """Each partition into that of the same place, in its order; and only so many messages when that is asked."""
    ran = tools("replay", "--input-topic", "logs", "--output-topic", topic, "--compression", "gzip")
    assert ran.code == 0 and f"{len(LINES)} acknowledged, 0 not" in ran.err
    assert stored(site, topic) == stored(site, "logs")
    ran = tools("replay", "--inputtopic", "logs", "--outputtopic", f"{topic}-some", "--messages", "700")
    assert ran.code == 0 and sum(map(len, stored(site, f"{topic}-some").values())) == 700
    ran = tools("replay", "--input-topic", "logs", "--output-topic", "logs")
    assert ran.code == 2 and "into itself" in ran.refused()[0]
    ran = tools("replay", "--input-topic", "logs", "--output-topic", topic, "--speed", "1")
    assert ran.code == 2 and "--times envelope" in ran.refused()[2]
    assert tools("replay", "--input-topic", "none", "--output-topic", topic).code == 2


def test_partitions_keep_their_names_where_some_do_not_exist(site: Site, tools: Tools, topic: str) -> None:
    """0-0 and 1-0 were never written to."""
    for broker in (0, 1):
        site.produce(broker, topic, [b"of %d" % broker], partition=1)
    assert tools("replay", "--input-topic", topic, "--output-topic", f"{topic}-again").code == 0
    assert stored(site, f"{topic}-again") == {(0, 0): [], (0, 1): [b"of 0"], (1, 0): [], (1, 1): [b"of 1"]}


def test_the_pace_is_that_of_the_envelopes(
    site: Site, tools: Tools, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over all partitions together, so many times as fast; what has no envelope goes with the one before it."""
    start = 1_700_000_000_000
    first = [wrap(b"a%d" % number, Envelope(start + 4000 * number, 1)) for number in range(5)]
    second = [wrap(b"b%d" % number, Envelope(start + 2000 + 4000 * number, 1)) for number in range(4)]
    produce(site, 0, topic, *first, b"bare", partition=0)
    produce(site, 0, topic, *second, partition=1)
    slept: list[float] = []
    sent: list[tuple[float, list[bytes]]] = []
    now = [1000.0]

    class Clock:
        """Time that passes only while somebody sleeps."""

        @staticmethod
        def monotonic() -> float:
            return now[0]

        @staticmethod
        def sleep(seconds: float) -> None:
            slept.append(seconds)
            now[0] += seconds

    def send(self: replay_module.CopyTarget, source: int, payloads: list[bytes]) -> None:
        sent.append((now[0] - 1000.0, payloads))

    monkeypatch.setattr(replay_module, "time", Clock)
    monkeypatch.setattr(replay_module.CopyTarget, "send", send)
    common = ("replay", "--input-topic", topic, "--output-topic", f"{topic}-again", "--times", "envelope")
    ran = tools(*common, "--speed", "10x")
    assert ran.code == 0 and "times: by envelope, 10x" in ran.err and "1 had no envelope" in ran.err
    due = sorted(
        [(0.4 * n, [item]) for n, item in enumerate(first)] + [(0.2 + 0.4 * n, [item]) for n, item in enumerate(second)]
    )
    due[-1][1].append(b"bare")
    assert [payloads for _, payloads in sent] == [payloads for _, payloads in due]
    assert [round(moment, 6) for moment, _ in sent] == [round(moment, 6) for moment, _ in due]
    assert max(slept) <= 0.2
    sent.clear()
    now[0] = 1000.0
    assert tools("replay", "--input-topic", topic, "--output-topic", "x", "--rate", "20").code == 0
    assert [round(moment, 6) for moment, _ in sent] == [round(0.05 * n, 6) for n in range(10)]


def test_the_pace_of_segments(capfd: pytest.CaptureFixture[str]) -> None:
    """By the times when each was last appended to, which the broker tells only when asked about a moment."""
    with testing.broker(log_file_size=1000) as broker:
        places = []
        for _ in range(3):
            with fastlog.Producer(broker.address, acks="flushed") as producer:
                producer.send("t", [b"x" * 90] * 11)
            places.append(time.time())
            wait_until("time passes", lambda: time.time() > places[-1] + 0.3)
        began = time.monotonic()
        ran = Commands(capfd)(
            *("replay", "--brokers", broker.address, "--input-topic", "t", "--output-topic", "u", "--speed", "2"),
            *("--times", "segments"),
        )
        assert ran.code == 0 and "33 acknowledged, 0 not" in ran.err
        assert time.monotonic() - began >= (places[-1] - places[0]) / 2
