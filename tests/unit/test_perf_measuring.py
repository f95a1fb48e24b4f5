"""Measuring against a broker that loses, hides and refuses: the clock waits, and what is missing is said."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fastlog.errors import ConfigError, InvalidMessageError, WrongPartitionError
from fastlog.perf.consuming import ConsumerOptions, ConsumerRun, LocalReadError, measure_consumer
from fastlog.perf.producer_options import SendingProgress
from fastlog.perf.producing import (
    MessagesMissingError,
    ProducerOptions,
    ProducerRun,
    ReportInterval,
    measure_producer,
)
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker
from tests.harness.timing import PATIENCE, sooner_than


def options(fake: FakeBroker, **given: Any) -> ProducerOptions:
    chosen: dict[str, Any] = {"messages": 1000, "message_size": 20, "batch_size": 10, "timeout": PATIENCE, "topic": "t"}
    return ProducerOptions(brokers=fake.address, **{**chosen, **given})


def stored(fake: FakeBroker) -> int:
    return sum(map(len, fake.logs.values()))


@pytest.mark.parametrize("how", ["send", "list", "sync"])
@pytest.mark.parametrize("acks", ["none", "appended"])
def test_everything_is_sent_and_counted(how: str, acks: str) -> None:
    """Also a number that is no multiple of batches and threads."""
    with FakeBroker() as fake:
        figures = measure_producer(options(fake, how=how, acks=acks, messages=1003, threads=2))
        assert stored(fake) == figures.log_bytes == figures.expected_bytes == 1003 * 30
    assert figures.complete and figures.messages == 1003 and figures.payload_bytes == 1003 * 20
    assert figures.sent_seconds is not None and figures.delivered_seconds is not None
    assert 0 < figures.sent_seconds <= figures.delivered_seconds and figures.seconds > 0
    assert figures.connections == 2 and figures.clock == "log end" and not figures.notes
    assert figures.messages_per_second == pytest.approx(1003 / figures.seconds)
    assert figures.mb_per_second == pytest.approx(1003 * 20 / 2**20 / figures.seconds)


def test_a_broker_that_knows_metadata_1_alone_is_measured() -> None:
    """Two versions of the broker are compared by one program."""

    def earlier(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.MetadataRequest) and request.version > 1:
            return rs.encode_own_error(request.correlation_id, 104)
        return None

    with FakeBroker(hook=earlier) as fake:
        assert measure_producer(options(fake, messages=100)).complete


def test_requests_have_the_batch_size() -> None:
    with FakeBroker() as fake:
        measure_producer(options(fake, messages=1000, batch_size=50))
        assert [len(one) for one in fake.sets] == [50 * 30] * 20


def test_the_lines_of_a_file_are_sent_in_order_over_and_over(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\nthree\n")
    with FakeBroker() as fake:
        figures = measure_producer(options(fake, payload_file=path, messages=7, batch_size=2))
        found = fake.logs["t", 0]
    assert figures.payload_bytes == len(b"onetwothreeonetwothreeone")
    places = [found.index(word) for word in (b"one", b"two", b"three")]
    assert places == sorted(places) and found.count(b"one") == 3 and found.count(b"three") == 2


@pytest.mark.slow
def test_the_clock_waits_for_the_log_end() -> None:
    """The kernel took everything at once; the broker shows it later."""
    shown_from = [0.0]

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceRequest) and not shown_from[0]:
            shown_from[0] = time.monotonic() + 0.3
        if isinstance(request, wire07.ProduceRequest):
            time.sleep(max(0.0, shown_from[0] - time.monotonic()))
        return None

    with FakeBroker(hook=hook) as fake:
        figures = measure_producer(options(fake, timeout=5.0))
    assert figures.sent_seconds is not None and figures.delivered_seconds is not None
    assert figures.seconds >= 0.3 and figures.delivered_seconds < figures.seconds


@pytest.mark.slow
def test_lost_messages_are_an_error_that_says_how_many_bytes() -> None:
    """A broker that throws one request away, and nobody is told: acks none."""
    lost = []

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceRequest) and not lost:
            lost.append(len(request.message_set))
            return b""
        return None

    with FakeBroker(hook=hook) as fake:
        run = ProducerRun(options(fake, timeout=2))
        with pytest.raises(MessagesMissingError, match=r"300 of 30000 bytes \(1000 messages\) are missing") as caught:
            run.run()
    assert lost == [300] and (caught.value.missing, caught.value.unit) == (300, "bytes")
    assert len(str(caught.value).split("\n")) == 3
    figures = run.figures()
    assert not figures.complete and figures.missing_bytes == 300 and figures.messages == 1000


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False])
def test_lost_messages_are_found_with_compression_too(own: bool) -> None:
    """Nobody knows how many bytes there must be, so the messages are counted."""
    lost = []

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceRequest) and not lost:
            lost.append(len(request.message_set))
            return b""
        return None

    with FakeBroker(own=own, hook=None) as fake:
        figures = measure_producer(options(fake, compression_codec=1, partition=0))
        assert figures.complete and figures.expected_bytes is None and figures.log_bytes == stored(fake)
        assert figures.clock == ("log end at close" if own else "reading back")
    with (
        FakeBroker(own=own, hook=hook) as fake,
        pytest.raises(MessagesMissingError, match="10 of 1000 messages are missing"),
    ):
        measure_producer(options(fake, compression_codec=1, partition=0, timeout=2))


def test_a_plain_broker_is_measured_by_its_offsets() -> None:
    """It closes the connection on METADATA and on partitions that are not there."""

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.OffsetsRequest) and request.partition >= 3:
            raise ConnectionError
        return None

    with FakeBroker(own=False, hook=hook) as fake:
        fake.logs["t", 2] = b"x" * 100  # of somebody else, before
        figures = measure_producer(options(fake))
        assert figures.clock == "offsets" and figures.log_bytes == 30_000 == stored(fake) - 100


def test_somebody_else_who_writes_is_noticed() -> None:
    def after(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceRequest) and len(fake.sets) == 1:
            fake._append("t", 0, b"y" * 50)
        return None

    with FakeBroker(after=after) as fake:
        figures = measure_producer(options(fake))
    assert any("more than was sent (somebody else writes to it)" in note for note in figures.notes)


@pytest.mark.slow
def test_a_broker_that_takes_nothing_more_ends_the_run() -> None:
    """The queue is full and stays full."""
    stuck = threading.Event()

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest):
            stuck.wait(60)
        return None

    with FakeBroker(hook=hook) as fake:
        try:
            with sooner_than(50), pytest.raises(MessagesMissingError, match="bytes"):
                measure_producer(options(fake, messages=10**6, acks="appended", threads=2, timeout=0.5))
        finally:
            stuck.set()


class Stop(BaseException):
    """Stands for Ctrl-C."""


@pytest.mark.slow
def test_an_interrupted_run_ends_and_has_figures() -> None:
    def interrupt(progress: SendingProgress) -> None:
        if progress.messages > 0:
            raise Stop

    with FakeBroker() as fake:
        run = ProducerRun(options(fake, messages=10**12), on_progress=interrupt)
        began = time.monotonic()
        with pytest.raises(Stop):
            run.run()
        figures = run.figures()
        assert not figures.complete and 0 < figures.messages < 10**12
        assert 0 < figures.seconds < time.monotonic() - began
    assert not [thread for thread in threading.enumerate() if thread.name == "fastlog-perf-sender"]


@pytest.mark.slow
def test_messages_of_a_rate_come_at_that_rate() -> None:
    with FakeBroker() as fake:
        figures = measure_producer(options(fake, messages=200, rate=500, acks="appended", batch_size=1, threads=2))
    assert figures.seconds >= 0.39
    assert figures.latencies is not None and figures.latencies.count == 200


@pytest.mark.slow
def test_a_stall_shows_in_the_latencies_of_all_that_waited() -> None:
    """One answer is 0.3 s late; the messages that were due meanwhile are late as well, by less and less."""
    late = []

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest) and len(late) < 1:
            late.append(time.sleep(0.3))
        return None

    with FakeBroker(hook=hook) as fake:
        figures = measure_producer(
            options(fake, messages=250, rate=500, acks="appended", how="sync", batch_size=1, timeout=5.0)
        )
    assert figures.latencies is not None
    found = figures.latencies.as_dict()
    assert found["max"] >= 300 and found["p50"] > 50


def test_intervals_are_told_as_they_pass() -> None:
    told: list[ReportInterval] = []
    with FakeBroker() as fake:
        measure_producer(options(fake, messages=1000, threads=2, reporting_interval=200), told.append)
    for thread in (0, 1):
        mine = [one for one in told if one.thread == thread]
        assert [one.all_messages for one in mine] == [200, 400]
        assert {(one.messages, one.payload_bytes) for one in mine} == {(200, 4000)}


def test_the_warm_up_is_sent_and_not_counted() -> None:
    with FakeBroker() as fake:
        figures = measure_producer(options(fake, messages=100, warm_up=50))
        assert stored(fake) == 150 * 30 and figures.messages == 100 and figures.log_bytes == 100 * 30


def test_two_addresses_of_one_broker_are_counted_once() -> None:
    with FakeBroker() as fake:
        figures = measure_producer(options(fake, messages=100))
        assert figures.log_bytes == 3000
        twice = ProducerOptions(
            brokers=f"{fake.address},localhost:{fake.port}", topic="t", messages=100, message_size=20
        )
        assert measure_producer(twice).log_bytes == 3000


@pytest.mark.parametrize(
    "wrong",
    [
        {"acks": "all"},
        {"how": "never"},
        {"messages": 0},
        {"batch_size": 0},
        {"threads": 0},
        {"rate": 0},
        {"timeout": -1},
        {"topic": "a/b"},
        {"compression_codec": 3},
        {"brokers": ""},
        {"brokers": "a:1,b:2", "partition": 1},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ProducerOptions(**{"brokers": "h:1", "topic": "t", "messages": 1, **wrong})


@pytest.mark.parametrize("wrong", [{"mode": "x"}, {"messages": 0}, {"threads": 0}, {"timeout": -1}, {"topic": ""}])
def test_options_of_a_consumer_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ConsumerOptions(**{"brokers": "h:1", "topic": "t", **wrong})


# -- consumers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("messages", [None, 1000, 999, 1])
def test_exactly_what_is_wanted_is_counted(own: bool, messages: int | None) -> None:
    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.OffsetsRequest) and request.partition >= 1:
            raise ConnectionError
        return None

    with FakeBroker(own=own, hook=hook) as fake:
        measure_producer(options(fake))
        figures = measure_consumer(ConsumerOptions(brokers=fake.address, topic="t", messages=messages))
    wanted = messages or 1000
    assert figures.complete and (figures.messages, figures.payload_bytes) == (wanted, wanted * 20)
    assert figures.partitions == (0,) and figures.source == "socket"


@pytest.mark.slow
def test_waiting_in_vain_is_not_counted() -> None:
    with FakeBroker() as fake:
        measure_producer(options(fake))
        began = time.monotonic()
        figures = measure_consumer(ConsumerOptions(brokers=fake.address, topic="t", messages=1001, timeout=0.3))
        took = time.monotonic() - began
    assert not figures.complete and figures.messages == 1000
    assert figures.idle_seconds >= 0.25 and figures.seconds <= took - figures.idle_seconds


def test_without_patience_the_end_of_the_log_is_the_end() -> None:
    with FakeBroker() as fake:
        measure_producer(options(fake))
        figures = measure_consumer(ConsumerOptions(brokers=fake.address, topic="t", messages=1001, timeout=0))
    assert not figures.complete and figures.messages == 1000


def produce_late(fake: FakeBroker, messages: int) -> threading.Thread:
    """Produce once somebody has waited for messages a while."""

    def produce() -> None:
        wait_until("somebody reads", lambda: fake.seen["HeldFetchRequest"] > 0)
        time.sleep(0.2)
        measure_producer(options(fake, messages=messages))

    thread = threading.Thread(target=produce)
    thread.start()
    return thread


@pytest.mark.slow
def test_messages_that_come_later_are_waited_for() -> None:
    """Also in a topic that does not exist when the reading begins."""
    with FakeBroker(partitions=2) as fake:
        late = produce_late(fake, 100)
        figures = measure_consumer(ConsumerOptions(brokers=fake.address, topic="t", messages=100, timeout=PATIENCE))
        late.join()
    assert figures.complete and figures.messages == 100 and figures.threads == 2
    assert figures.seconds >= 0.15


@pytest.mark.slow
def test_only_what_is_new_is_read_from_the_latest_offset() -> None:
    with FakeBroker() as fake:
        measure_producer(options(fake, messages=50))
        late = produce_late(fake, 20)
        figures = measure_consumer(
            ConsumerOptions(brokers=fake.address, topic="t", messages=20, timeout=PATIENCE, from_latest=True)
        )
        late.join()
    assert figures.complete and figures.messages == 20


def test_fewer_threads_than_partitions_read_one_after_another() -> None:
    with FakeBroker(partitions=3) as fake:
        for partition in range(3):
            measure_producer(options(fake, messages=100, partition=partition))
        figures = measure_consumer(
            ConsumerOptions(brokers=fake.address, topic="t", messages=301, threads=2, timeout=5.0)
        )
        assert not figures.complete and figures.messages == 300 and figures.threads == 2
        assert any("one after another" in note for note in figures.notes)
        figures = measure_consumer(ConsumerOptions(brokers=fake.address, topic="t", partition=1))
        assert figures.partitions == (1,) and figures.messages == 100


@pytest.mark.slow
def test_intervals_of_a_consumer_are_told_with_the_rest_at_the_end() -> None:
    told: list[ReportInterval] = []
    for mode in ("messages", "numpy"):
        told.clear()
        with FakeBroker() as fake:
            measure_producer(options(fake))
            measure_consumer(
                ConsumerOptions(brokers=fake.address, topic="t", messages=950, mode=mode, reporting_interval=300),
                told.append,
            )
        assert [one.all_messages for one in told] == [300, 600, 900, 950], mode
        assert [one.payload_bytes for one in told] == [6000, 6000, 6000, 1000]


@pytest.mark.parametrize("mode", ["messages", "batches", "numpy", "arrow"])
def test_a_wrong_checksum_is_found_in_every_mode(mode: str) -> None:
    """What is before it counts."""
    with FakeBroker() as fake:
        measure_producer(options(fake, messages=100))
        log = bytearray(fake.logs["t", 0])
        log[50 * 30 + 20] ^= 1
        fake.logs["t", 0] = bytes(log)
        run = ConsumerRun(ConsumerOptions(brokers=fake.address, topic="t", mode=mode, messages=100))
        with pytest.raises(InvalidMessageError):
            run.run()
        assert run.figures().messages == 50 and not run.figures().complete


def test_local_reading_that_is_impossible_is_no_reading_by_the_socket() -> None:
    """This broker does not tell where its files are."""
    with FakeBroker() as fake:
        measure_producer(options(fake, messages=10))
        with pytest.raises(LocalReadError, match="not read here"):
            measure_consumer(ConsumerOptions(brokers=fake.address, topic="t", mode="local"))


@pytest.mark.slow
@pytest.mark.parametrize("patience", [0.2, 2])
def test_a_log_end_that_never_becomes_visible_ends_the_reading(patience: float) -> None:
    """The broker says that there is more, and does not give it; the consumer may find that first, or the measuring."""

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.HeldFetchRequest):
            return wire07.encode_held_fetch(rs.HeldFetchAnswer(request.correlation_id, 0, 0, 0, b""))
        return None

    with FakeBroker(hook=hook) as fake:
        measure_producer(options(fake, messages=10))
        figures = measure_consumer(
            ConsumerOptions(brokers=fake.address, topic="t", timeout=patience, connect_timeout=2)
        )
    assert not figures.complete and figures.messages == 0
    assert sum("the log has more" in note for note in figures.notes) == 1


def test_a_partition_that_is_not_there_is_an_error() -> None:
    with FakeBroker(partitions=2) as fake, pytest.raises(WrongPartitionError, match="no partition 7"):
        measure_consumer(ConsumerOptions(brokers=fake.address, topic="t", partition=7))
