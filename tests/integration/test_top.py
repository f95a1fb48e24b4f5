"""``fastlog top``: what a broker does, from its page of metrics; numbers, and what is said where there are none."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from rich.console import Console

import fastlog
from fastlog.testing import broker
from fastlog.tools import top
from fastlog.tools.top_view import GroupLag, MetricsSample, ProcessLoad, TopicRates, between, parse
from tests.harness.command_line import Commands

PAGE = """# HELP fastlog_partition_appended_messages_total Messages.
# TYPE fastlog_partition_appended_messages_total counter
fastlog_partition_appended_messages_total{topic="logs",partition="0"} 100.0
fastlog_partition_appended_messages_total{topic="logs",partition="1"} 7.0
fastlog_partition_appended_messages_total{topic="a}b\\\\c\\"d",partition="0"} 1e3
fastlog_partition_appended_bytes_total{topic="logs",partition="0"} 4096.0
fastlog_partition_appended_bytes_total{topic="logs",partition="1"} 0.0
kafka_topic_partitions{topic="logs"} 2.0
kafka_topic_partitions{topic="a}b\\\\c\\"d"} 1.0
kafka_log_log_size{topic="logs",partition="0"} 5000.0
kafka_log_log_size{topic="logs",partition="1"} 1000.0
fastlog_partition_unflushed_bytes{topic="logs",partition="1"} 11.0
fastlog_unflushed_bytes 11.0
fastlog_requests_total{kind="produce"} 10.0
fastlog_requests_total{kind="fetch"} 30.0
fastlog_failed_requests_total{kind="produce"} 4.0
fastlog_received_bytes_total 2048.0
fastlog_sent_bytes_total 1024.0
fastlog_groups_known 1.0
kafka_consumergroup_members{consumergroup="g"} 3.0
kafka_consumergroup_members{consumergroup="idle"} 0.0
kafka_consumergroup_lag_sum{consumergroup="g",topic="logs"} 50.0
fastlog_process_heartbeat_age_seconds{process="keeper"} 0.1
fastlog_process_heartbeat_age_seconds{process="processor-0"} 0.1
fastlog_process_busy_ratio{process="processor-0"} 0.25
fastlog_process_connections{process="processor-0"} 5.0
fastlog_process_resident_memory_bytes{process="keeper"} 2097152.0
fastlog_process_restarts_total{process="keeper"} 2.0
not a sample
broken_sample{x="y"} much
"""


def changed(**values: float) -> MetricsSample:
    """The page two seconds earlier, with other numbers by name, of the series that come first."""
    now = parse(PAGE, 8.0)
    found = {name: dict(series) for name, series in now.values.items()}
    for name, value in values.items():
        found[name][next(iter(found[name]))] = value
    return replace(now, values=found)


def test_a_page_is_read() -> None:
    found = parse(PAGE, 1.0)
    assert found.at == 1.0 and not found.of("broken_sample") and "not" not in found.values
    assert found.by("fastlog_partition_appended_messages_total", "topic") == {"logs": 107.0, 'a}b\\c"d': 1000.0}
    assert found.one("fastlog_unflushed_bytes") == 11.0
    assert found.by("fastlog_unflushed_bytes", "topic") == {} and found.one("nothing") == 0.0
    assert list(parse('x{t="a\\nb"} 1', 0.0).of("x")) == [(("t", "a\nb"),)]


def test_rates_are_of_what_came_since() -> None:
    now = parse(PAGE, 10.0)
    view = between(
        changed(
            fastlog_partition_appended_messages_total=40.0,
            fastlog_partition_appended_bytes_total=2048.0,
            fastlog_received_bytes_total=1024.0,
            fastlog_sent_bytes_total=0.0,
            fastlog_requests_total=4.0,
            fastlog_failed_requests_total=0.0,
            kafka_consumergroup_lag_sum=70.0,
        ),
        now,
    )
    assert view.topics == (TopicRates("logs", 2, 30.0, 1024.0, 6000, 11), TopicRates('a}b\\c"d', 1, 0.0, 0.0, 0, 0))
    assert view.groups == (GroupLag("g", "logs", 3, 50, -10.0), GroupLag("idle", "", 0, 0, 0.0))
    assert view.processes == (
        ProcessLoad("keeper", None, 0, 2097152, 2),
        ProcessLoad("processor-0", 0.25, 5, 0, 0),
    )
    assert (view.messages_rate, view.bytes_in_rate, view.bytes_out_rate) == (30.0, 512.0, 512.0)
    assert dict(view.requests_rate) == {"produce": 3.0, "fetch": 0.0} and view.failed_rate == 2.0
    assert (view.connections, view.unflushed, view.groups_known) == (5, 11, True)


def test_what_began_anew_counts_from_zero() -> None:
    """A counter that fell, and one that was not there before."""
    view = between(changed(fastlog_partition_appended_messages_total=1000.0), parse(PAGE, 10.0))
    assert {item.topic: item.messages_rate for item in view.topics} == {"logs": 50.0, 'a}b\\c"d': 0.0}
    assert between(MetricsSample(8.0, {}), parse(PAGE, 10.0)).messages_rate == 1107 / 2
    assert between(parse(PAGE, 10.0), parse(PAGE, 10.0)).messages_rate == 0.0  # and no division by zero


def test_the_busiest_and_the_furthest_behind_come_first() -> None:
    lines = [f'kafka_topic_partitions{{topic="{name}"}} 1' for name in "cab"]
    lines += [f'fastlog_partition_appended_messages_total{{topic="{name}"}} 1' for name in "cab"]
    for topic, count in (("c", 1), ("a", 1), ("b", 9)):
        lines.append(f'fastlog_partition_appended_bytes_total{{topic="{topic}"}} {count}')
    for group, count in (("x", 1), ("z", 7), ("y", 7)):
        lines.append(f'kafka_consumergroup_lag_sum{{consumergroup="{group}",topic="t"}} {count}')
    view = between(MetricsSample(0.0, {}), parse("\n".join(lines), 1.0))
    assert [item.topic for item in view.topics] == ["b", "a", "c"]
    assert [item.group for item in view.groups] == ["y", "z", "x"]


def test_tables_for_people() -> None:
    view = between(changed(fastlog_partition_appended_messages_total=40.0), parse(PAGE, 10.0))
    text = top.text_of(view)
    assert text.startswith("30 messages/s, in 0 B/s, out 0 B/s, 0 produces/s, 0 fetches/s, 0 failed/s, 5 connections, ")
    assert "logs               2     30    0 B/s" not in text
    assert [line.split() for line in text.splitlines() if line.startswith(("logs", "keeper", "g "))] == [
        ["logs", "2", "30", "0", "B", "5.9", "KiB", "11", "B"],
        ["g", "logs", "3", "50", "+0"],
        ["keeper", "-", "0", "2.0", "MiB", "2"],
    ]
    assert "groups are not known" not in text
    unknown = top.text_of(replace(view, groups_known=False))
    assert "groups are not known now" in unknown and "GROUP" not in unknown
    many = replace(view, topics=tuple(replace(view.topics[0], topic=f"t{number}") for number in range(21)))
    assert "and 1 more topics" in top.text_of(many)
    assert "more topics" not in top.text_of(replace(many, topics=many.topics[:20]))


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (2**20, "1.0 MiB"), (2**30, "1.0 GiB"), (2**40, "1.0 TiB")],
)
def test_sizes(count: float, text: str) -> None:
    assert top.size(count) == text


@pytest.mark.parametrize("lines", [10, 24, 60])
def test_a_screen_fits(lines: int) -> None:
    """Whatever there is; and names are no commands to the terminal."""
    view = between(changed(), parse(PAGE, 10.0))
    view = replace(
        view,
        topics=tuple(replace(view.topics[0], topic=f"t{number}[red]\x1b[2J") for number in range(100)),
        groups=tuple(replace(view.groups[0], group=f"g{number}") for number in range(100)),
        processes=tuple(replace(view.processes[0], process=f"p{number}") for number in range(50)),
    )
    console = Console(file=io.StringIO(), width=100, height=lines, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(top._screen(view, lines))
    found = captured.get()
    assert len(found.splitlines()) <= max(lines, 15)
    assert "t0[red]" in found and "\x1b[2J" not in found
    for title in ("topics", "groups", "processes"):
        assert f"more {title}" in found


@contextmanager
def answering(*answers: tuple[int, str]) -> Iterator[tuple[str, list[str]]]:
    """A monitor that gives these answers, the last one again and again; and what it was asked with."""
    left = list(answers)
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.path} {self.headers.get('Authorization', '')}".strip())
            status, text = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments: object) -> None:
            """Nothing on stderr."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "text", "why", "remedy"),
    [
        (401, "a token is needed", "401: a token is needed", "--monitor-token-file"),
        (403, "ask for loopback", "403", "loopback or localhost"),
        (404, "there is no such page", "404", "monitor.address of a fastlog broker"),
        (501, "prometheus_client is not installed", "501: prometheus_client", "[metrics]"),
    ],
)
def test_no_numbers(capfd: pytest.CaptureFixture[str], status: int, text: str, why: str, remedy: str) -> None:
    with answering((status, text)) as (address, _):
        ran = Commands(capfd)("top", "--monitor", address, "--count", "1")
    what, said, do = ran.refused()
    assert ran.code == 1 and address in what and why in said and remedy in do


def test_nobody_answers(capfd: pytest.CaptureFixture[str]) -> None:
    ran = Commands(capfd)("top", "--monitor", "127.0.0.1:1", "--count", "1")
    assert ran.code == 3 and "Connection refused" in ran.refused()[1] and "--monitor" in ran.refused()[2]
    ran = Commands(capfd)("top", "--monitor", "nonsense", "--count", "1")
    assert ran.code == 2
    ran = Commands(capfd)("top", "--monitor-token-file", "/no/such/file", "--count", "1")
    assert ran.code == 2 and "cannot read /no/such/file" in ran.err


def test_it_goes_on_when_the_keeper_is_replaced(capfd: pytest.CaptureFixture[str], tmp_path: object) -> None:
    with answering((200, PAGE), (503, "not ready"), (200, PAGE)) as (address, asked):
        ran = Commands(capfd)("top", "--monitor", address, "--count", "2", "--interval", "0", "--json")
    assert ran.code == 0 and len(ran.rows) == 2 and len(asked) == 4
    assert ran.rows[0]["groups"][0] == {"group": "g", "topic": "logs", "members": 3, "lag": 50, "lag_rate": 0.0}
    assert "is not ready; trying again" in ran.err


@pytest.mark.slow
def test_a_broker(capfd: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    token = tmp_path_factory.mktemp("top") / "token"
    token.write_text("0123456789abcdef\n")
    token.chmod(0o600)
    with broker(monitor_address="127.0.0.1:0", monitor_token_file=str(token)) as running:
        with fastlog.Producer(running.address) as producer:
            producer.send("logs", [b"x" * 1000] * 10)
        place = ["top", "--monitor", running.monitor_address, "--monitor-token-file", str(token)]
        (row,) = Commands(capfd)(*place, "--count", "1", "--interval", "100ms", "--json").rows
        (topic,) = row["topics"]
        assert topic["topic"] == "logs" and topic["partitions"] == 1 and topic["size"] >= 10_000
        assert row["groups_known"] and row["groups"] == []
        assert {"supervisor", "keeper", "processor-1"} <= {item["process"] for item in row["processes"]}
        text = Commands(capfd)(*place, "--count", "1", "--interval", "100ms").out
        assert "TOPIC  PARTITIONS" in text and "processor-1" in text
