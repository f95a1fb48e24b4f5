"""The texts of the perf tools: 0.7's columns and Kafka 4's lines to the byte, dates and numbers as Java writes them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import pytest

from fastlog.errors import ConfigError
from fastlog.perf import columns
from fastlog.perf.consuming import ConsumerFigures, ConsumerOptions
from fastlog.perf.latencies import LatencyHistogram
from fastlog.perf.producing import ProducerFigures, ProducerOptions, ReportInterval

STARTED = 1_321_873_200_007  # 2011-11-21 11:00:00.007 UTC


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Dates are local: here UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def produced(**changes: object) -> ProducerFigures:
    """Two million messages of 200 bytes in 6.5 seconds."""
    options = ProducerOptions(brokers="h:1", topic="t", messages=2_000_000, message_size=200, batch_size=50)
    figures = ProducerFigures(
        options=options,
        complete=True,
        started_ms=STARTED,
        ended_ms=STARTED + 6500,
        messages=2_000_000,
        payload_bytes=400_000_000,
        seconds=6.5,
        sent_seconds=6.25,
        delivered_seconds=6.375,
        clock="log end",
        log_bytes=420_000_000,
        expected_bytes=420_000_000,
    )
    return dataclasses.replace(figures, **changes)  # type: ignore[arg-type]


def consumed(**changes: object) -> ConsumerFigures:
    """The same read in two seconds, then five of waiting in vain."""
    figures = ConsumerFigures(
        options=ConsumerOptions(brokers="h:1", topic="t", messages=2_000_001),
        complete=False,
        started_ms=STARTED,
        ended_ms=STARTED + 7000,
        messages=2_000_000,
        payload_bytes=400_000_000,
        seconds=2.0,
        idle_seconds=5.0,
        partitions=(0, 1),
        threads=2,
        source="socket",
    )
    return dataclasses.replace(figures, **changes)  # type: ignore[arg-type]


INTERVAL = ReportInterval(3, STARTED / 1000 + 0.0005, 0.5, 5000, 1_000_000, 15_000, 3_000_000)
DATE = columns.date_formatter(columns.DATE_FORMAT)


def test_the_headers_are_those_of_0_7() -> None:
    assert columns.PRODUCER_HEADER == (
        "start.time, end.time, compression, message.size, batch.size, total.data.sent.in.MB, MB.sec, "
        "total.data.sent.in.nMsg, nMsg.sec"
    )
    assert columns.PRODUCER_DETAILED_HEADER == (
        "time, compression, thread.id, message.size, batch.size, total.data.sent.in.MB, MB.sec, "
        "total.data.sent.in.nMsg, nMsg.sec"
    )
    assert columns.CONSUMER_HEADER == (
        "start.time, end.time, fetch.size, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec"
    )
    assert columns.CONSUMER_DETAILED_HEADER == (
        "time, fetch.size, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec"
    )


def test_the_producer_row_is_that_of_0_7() -> None:
    """Two digits for megabytes, four for rates, whole counts."""
    assert columns.producer_row(produced(), DATE) == (
        "2011-11-21 11:00:00:007, 2011-11-21 11:00:06:507, 0, 200, 50, 381.47, 58.6877, 2000000, 307692.3077"
    )


def test_the_detailed_producer_row_is_that_of_0_7() -> None:
    """Totals are those of the thread, rates those of the interval."""
    assert columns.producer_detailed_row(INTERVAL, produced().options, DATE) == (
        "2011-11-21 11:00:00:007, 0, 3, 200, 50, 2.86, 1.9073, 15000, 10000.0000"
    )


def test_the_consumer_row_is_that_of_0_7() -> None:
    """The wait in vain is in the end time and not in the rates."""
    assert columns.consumer_row(consumed(), DATE) == (
        "2011-11-21 11:00:00:007, 2011-11-21 11:00:07:007, 1048576, 381.4697, 190.7349, 2000000, 1000000.0000"
    )


def test_the_detailed_consumer_rows_are_those_of_0_7() -> None:
    """With the thread behind the time, which the header does not have; without it from the simple consumer."""
    assert columns.consumer_detailed_row(INTERVAL, 1048576, DATE, with_thread=True) == (
        "2011-11-21 11:00:00:007, 3, 1048576, 2.8610, 1.9073, 15000, 10000.0000"
    )
    assert columns.consumer_detailed_row(INTERVAL, 1048576, DATE, with_thread=False) == (
        "2011-11-21 11:00:00:007, 1048576, 2.8610, 1.9073, 15000, 10000.0000"
    )


def test_no_time_at_all_divides_as_in_java() -> None:
    row = columns.producer_row(produced(ended_ms=STARTED), DATE)
    assert row.endswith(", 381.47, Infinity, 2000000, Infinity")
    nothing = consumed(ended_ms=STARTED, idle_seconds=0.0, messages=0, payload_bytes=0)
    assert columns.consumer_row(nothing, DATE).endswith(", 1048576, 0.0000, NaN, 0, NaN")


def test_kafka_prints_its_own_line() -> None:
    latencies = LatencyHistogram()
    for number in range(1, 1001):
        latencies.add(number * 100_000)
    found = columns.kafka_total(produced(latencies=latencies))
    assert found == (
        "2000000 records sent, 307692.307692 records/sec (58.69 MB/sec), 50.05 ms avg latency, "
        "100.00 ms max latency, 50 ms 50th, 95 ms 95th, 99 ms 99th, 99 ms 99.9th."
    )
    assert columns.kafka_window(50_000, 10_000_000, 5.0, 1.25, 20.75) == (
        "50000 records sent, 10000.0 records/sec (1.91 MB/sec), 1.3 ms avg latency, 20.8 ms max latency."
    )


def test_kafka_adds_columns_for_consumers() -> None:
    assert columns.KAFKA_CONSUMER_HEADER == (
        "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, "
        "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
    )
    assert columns.kafka_consumer_row(consumed(), DATE) == (
        "2011-11-21 11:00:00:007, 2011-11-21 11:00:07:007, 381.4697, 190.7349, 2000000, 1000000.0000, "
        "0, 2000, 190.7349, 1000000.0000"
    )
    assert columns.kafka_consumer_detailed_row(INTERVAL, DATE) == (
        "2011-11-21 11:00:00:007, 3, 2.8610, 1.9073, 15000, 10000.0000, 0, 500, 1.9073, 10000.0000"
    )


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.125, 2, "0.13"),  # to even it would be 0.12
        (0.375, 2, "0.38"),
        (2.675, 2, "2.68"),  # the binary value is a little less
        (1.005, 2, "1.01"),
        (0.0, 4, "0.0000"),
        (12345678.9, 4, "12345678.9000"),
        (1e22, 2, "10000000000000000000000.00"),
        (1e-7, 4, "0.0000"),
        (99.99995, 4, "100.0000"),
        (-0.125, 2, "-0.13"),
        (float("inf"), 4, "Infinity"),
        (float("-inf"), 4, "-Infinity"),
        (float("nan"), 4, "NaN"),
    ],
)
def test_numbers_are_rounded_as_java_rounds(value: float, digits: int, text: str) -> None:
    assert columns.decimal(value, digits) == text


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("yyyy-MM-dd HH:mm:ss:SSS", "2011-11-21 11:00:00:007"),
        ("yy/M/d h:m:s a", "11/11/21 11:0:0 AM"),
        ("yyyyMMdd'T'HHmmss.SSSZ", "20111121T110000.007+0000"),
        ("EEE, d MMM yyyy", "Mon, 21 Nov 2011"),
        ("EEEE MMMM", "Monday November"),
        ("H k K h S SSSSS", "11 11 11 11 7 00007"),
        ("D u G z", "325 1 AD UTC"),
        ("X XX XXX", "Z Z Z"),
        ("'it''s' yyyy ''", "it's 2011 '"),
        ("", ""),
    ],
)
def test_dates_follow_the_patterns_of_java(pattern: str, text: str) -> None:
    assert columns.date_formatter(pattern)(STARTED) == text


def test_dates_are_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "IST-5:30")
    time.tzset()
    assert columns.date_formatter("dd HH:mm Z X XX XXX")(STARTED) == "21 16:30 +0530 +05 +0530 +05:30"


@pytest.mark.parametrize(("hour", "text"), [(0, "12 24 0 AM"), (12, "12 12 0 PM"), (13, "1 13 1 PM")])
def test_hours_of_the_four_kinds(hour: int, text: str) -> None:
    midnight = STARTED - 7 - 11 * 3_600_000
    assert columns.date_formatter("h k K a")(midnight + hour * 3_600_000) == text


@pytest.mark.parametrize("pattern", ["yyyy-ww", "Q", "'open", "yyyy 'a''"])
def test_a_pattern_that_cannot_be_followed_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="date format"):
        columns.date_formatter(pattern)


def test_the_summary_has_both_times_and_says_what_the_clock_is() -> None:
    text = "\n".join(columns.producer_summary(produced()))
    assert "2,000,000 messages" in text and "307,692 msg/s" in text and "58.69 MB/s" in text
    assert "after 6.250 s" in text and "after 6.500 s" in text and "the broker's log end shows every byte" in text
    assert "latency" not in text
    for setting in ("batches of 50", "acks none", "codec none", "1 thread", "messages of 200 bytes", "warm-up none"):
        assert setting in text


def test_latencies_say_from_when_to_when() -> None:
    latencies = LatencyHistogram()
    latencies.add(1_500_000)
    options = ProducerOptions(brokers="h:1", topic="t", messages=1, rate=10, acks="flushed")
    text = "\n".join(columns.producer_summary(produced(options=options, latencies=latencies)))
    assert "latency from the intended send time until acknowledged as flushed: 50 % 1.500 ms" in text
    assert "99.9 %" in text and "(1 messages)" in text
    options = dataclasses.replace(options, rate=None, latency=True, acks="none")
    assert columns.latency_meaning(options) == "from the call of send() until handed to the kernel"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "one send() for each message"),
        ({"how": "list"}, "a list of them in each send()"),
        ({"how": "sync", "rate": 5}, "a list of them in each send(), which waits for it"),
        ({"latency": True}, "a list of them in each send()"),
        ({"rate": 5}, "each send() takes what is due"),
    ],
)
def test_the_summary_says_what_a_call_took(given: dict[str, Any], words: str) -> None:
    options = ProducerOptions(brokers="h:1", topic="t", messages=1, **given)
    assert f"({words})" in "\n".join(columns.producer_summary(produced(options=options)))


def test_an_unfinished_run_says_so() -> None:
    text = "\n".join(columns.producer_summary(produced(complete=False, log_bytes=None, delivered_seconds=None)))
    assert "stopped early: the log grew by an unknown number of bytes" in text
    assert "shows every byte" not in text
    text = "\n".join(columns.consumer_summary(consumed()))
    assert "5.000 s of waiting for more are left out" in text and "1,000,000 msg/s" in text
