"""``/metrics`` of a real broker: what it says is true, documented, and goes on whoever is killed."""

from __future__ import annotations

import functools
import gzip
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open

from fastlog.client.addresses import Address
from fastlog.client.records import RecordBroker
from fastlog.record_batches import Record, build
from fastlog.workers.kafka.kinds import FETCH, LIST_OFFSETS, METADATA, PRODUCE
from tests.harness import raw_client as raw
from tests.harness import today
from tests.harness.broker import Broker, wait_until
from tests.harness.metrics_page import MetricsPage, documented
from tests.harness.monitor import Monitor

pytestmark = pytest.mark.slow
Start = Callable[..., Broker]
SECRET = "0123456789abcdef-secret"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("watched"), settings={"monitor.address": "127.0.0.1:0"}) as running:
        yield running


HEARTBEAT = 12


def scrape(broker: Broker) -> MetricsPage:
    reply = Monitor.of(broker).get("/metrics")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return MetricsPage(reply.body)


def test_the_page_is_the_documented_one(watched: Broker, topic: str) -> None:
    """Names, types, labels and meanings: all that stand in the documents, and no others."""
    with watched.connect() as client:
        assert client.produce_ack(topic, 0, raw.entry(b"x"), raw.FLUSHED).error == 0
        committed(watched, topic, 3)
        answered_errors(watched, topic)
        every, with_zookeeper = documented()
        assert scrape(watched).families == every
    assert len(every) > 70 and with_zookeeper.keys() & every.keys() == set()


def committed(broker: Broker, topic: str, offset: int) -> None:
    """A group of the topic's name has come so far in its one partition."""
    with broker.connect() as client:
        today.commit_alone(client.socket, topic, topic, offset)


def answered_errors(broker: Broker, topic: str) -> None:
    """Of each kind that a processor answers, about a topic of 0.7 that has one partition; and one about a group."""
    with broker.connect() as client:
        ask = functools.partial(today.asked, client.socket)
        ask(PRODUCE, 8, **today.produced((topic, 9, b""), (topic, 0, b"no batch"), (f"no topic of {topic}", 0, b"")))
        ask(FETCH, 11, **today.fetched((topic, 9, 0), (topic, 0, 2**40)))
        ask(LIST_OFFSETS, 5, **today.listed((topic, 9, -1)))
        ask(METADATA, 8, topics=[{"name": f"no-{topic}"}, {"name": "no topic"}], allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False, include_topic_authorized_operations=False)  # fmt: skip
        ask(HEARTBEAT, 3, group_id=topic, generation_id=3, member_id="nobody", group_instance_id=None)


def test_requests_and_errors_are_counted_by_their_kind(watched: Broker, topic: str) -> None:
    with watched.connect() as client:
        assert client.produce_ack(topic, 0, raw.entry(b"x"), raw.FLUSHED).error == 0
    before = scrape(watched)
    answered_errors(watched, topic)
    page = scrape(watched)

    def more(family: str) -> dict[tuple[str, ...], float]:
        found = {}
        for (name, given), value in page.values.items():
            grown = value - before.values.get((name, given), 0)
            if name == f"kafka_network_requestmetrics_{family}_total" and grown:
                found[tuple(text for _, text in sorted(given, reverse=True))] = grown
        return found

    assert more("requests") == {(name,): 1 for name in ("Produce", "Fetch", "ListOffsets", "Metadata", "Heartbeat")}
    assert more("errors") == {
        ("Produce", "UNKNOWN_TOPIC_OR_PARTITION"): 2,
        ("Produce", "UNSUPPORTED_FOR_MESSAGE_FORMAT"): 1,
        ("Fetch", "UNKNOWN_TOPIC_OR_PARTITION"): 1,
        ("Fetch", "OFFSET_OUT_OF_RANGE"): 1,
        ("ListOffsets", "UNKNOWN_TOPIC_OR_PARTITION"): 1,
        ("Metadata", "UNKNOWN_TOPIC_OR_PARTITION"): 2,
        ("Heartbeat", "UNKNOWN_MEMBER_ID"): 1,
    }


def test_a_refusal_that_comes_behind_others_is_counted(start_broker: Start, topic: str) -> None:
    """A batch that was good, and could not be written: its part of the answer is filled in later."""
    broker = start_broker(
        processors=1,
        settings={"monitor.address": "127.0.0.1:0"},
        environment={"FASTLOG_FAULTS": "processor:pwrite@1=ENOSPC"},
    )
    with RecordBroker([Address("127.0.0.1", broker.port)], timeout=30) as records:
        records.create(topic, 1, {})
    with broker.connect() as client:
        batch = build([Record(None, b"v", 1)])
        found = today.asked(client.socket, PRODUCE, 8, **today.produced((topic, 0, batch)))
        assert found.responses[0].partition_responses[0].error_code == 56
    name = "kafka_network_requestmetrics_errors_total"
    assert scrape(broker).value(name, request="Produce", error="KAFKA_STORAGE_ERROR") == 1


def test_what_was_done_is_counted(watched: Broker, topic: str) -> None:
    before = scrape(watched)
    entry = raw.entry(b"hello")
    with watched.connect() as client:
        for _ in range(3):
            assert client.produce_ack(topic, 0, entry, raw.FLUSHED).error == 0
        assert client.fetch(topic, 0, 0)
        page = scrape(watched)
        assert sum(page.value("fastlog_process_connections", process=f"processor-{n}") for n in (0, 1)) >= 1
    of_partition = {"topic": topic, "partition": "0"}
    size = 3 * len(entry)
    for name in (
        "kafka_topic_partition_current_offset",
        "kafka_log_log_logendoffset",
        "kafka_log_log_size",
        "fastlog_partition_appended_bytes_total",
    ):
        assert page.value(name, **of_partition) == size, name
    assert page.value("fastlog_partition_appended_messages_total", **of_partition) == 3
    assert page.value("kafka_server_brokertopicmetrics_messagesin_total", topic=topic) == 3

    def more(name: str, **labels: str) -> float:
        return page.value(name, **labels) - before.value(name, **labels)

    assert more("kafka_server_brokertopicmetrics_messagesin_total") == 3
    assert more("kafka_server_brokertopicmetrics_bytesin_total") == size
    assert more("kafka_server_brokertopicmetrics_bytesout_total") == size
    assert more("kafka_server_brokertopicmetrics_totalproducerequests_total") == 3
    assert more("kafka_network_requestmetrics_requests_total", request="Fetch") == 1
    assert more("fastlog_flush_seconds_count") >= 1 and more("fastlog_flush_seconds_sum") > 0
    assert page.value("fastlog_process_resident_memory_bytes", process="flusher") > 1 << 20


def test_counters_go_on_when_their_processes_die(start_broker: Start, topic: str) -> None:
    broker = start_broker(settings={"monitor.address": "127.0.0.1:0"})
    with broker.connect() as client:
        for _ in range(5):
            assert client.produce_ack(topic, 0, raw.entry(b"x"), raw.FLUSHED).error == 0
    before = scrape(broker)
    roles = ("processor-0", "processor-1", "flusher", "keeper")
    for role in roles:
        broker.wait_replaced(role, broker.kill(role))
    Monitor.of(broker).wait("/live", 200)
    page = scrape(broker)
    falls = {
        key: (value, page.values[key])
        for key, value in before.values.items()
        if key[0].endswith("_total") and "cpu" not in key[0] and page.values[key] < value
    }
    assert not falls
    died = {role: broker.log_text().count(f"died role={role} ") for role in (*roles, "acceptor")}
    assert all(died[role] for role in roles)
    assert {role: page.value("fastlog_process_restarts_total", process=role) for role in died} == died
    assert page.value("fastlog_start_time_seconds") == pytest.approx(before.value("fastlog_start_time_seconds"), abs=1)
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, raw.entry(b"x"), raw.FLUSHED).error == 0
    assert scrape(broker).value("kafka_server_brokertopicmetrics_messagesin_total") == 6


def test_groups_are_on_the_page_also_after_the_coordinator_was_killed(start_broker: Start, topic: str) -> None:
    broker = start_broker(settings={"monitor.address": "127.0.0.1:0"})
    entry = raw.entry(b"x")
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, entry * 3, raw.FLUSHED).error == 0
    assert scrape(broker).value("fastlog_groups_known") == 1
    committed(broker, topic, len(entry))
    about = {"consumergroup": topic, "topic": topic}
    for kills in range(2):
        page = scrape(broker)
        assert page.value("kafka_consumergroup_members", consumergroup=topic) == 0
        assert page.value("kafka_consumergroup_current_offset", **about, partition="0") == len(entry)
        assert page.value("kafka_consumergroup_lag", **about, partition="0") == 2 * len(entry)
        assert page.value("kafka_consumergroup_lag_sum", **about) == 2 * len(entry)
        if not kills:
            broker.wait_replaced("coordinator", broker.kill("coordinator"))
            wait_until("it has read its log", lambda: scrape(broker).value("fastlog_groups_known") == 1)


def test_a_topic_that_is_deleted_goes(watched: Broker, topic: str) -> None:
    with watched.connect() as client:
        assert client.produce_ack(topic, 0, raw.entry(b"x"), raw.FLUSHED).error == 0
        assert topic in scrape(watched).topics()
        client.delete_topic(topic)
    wait_until("the topic is not told of", lambda: topic not in scrape(watched).topics())


def test_prometheus_asks_for_open_metrics_and_gzip(watched: Broker) -> None:
    host, port = Monitor.of(watched).target
    request = urllib.request.Request(
        f"http://{host}:{port}/metrics",
        headers={
            "Accept": "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3",
            "Accept-Encoding": "gzip",
        },
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        text = gzip.decompress(answer.read()).decode()
    names = {family.name for family in parse_open(text)}
    assert {"kafka_brokers", "fastlog_flush_seconds", "fastlog_appends"} <= names


def test_the_token_holds_for_it(start_broker: Start, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(SECRET)
    path.chmod(0o600)
    monitor = Monitor.of(start_broker(settings={"monitor.address": "127.0.0.1:0", "monitor.token.file": path}))
    assert monitor.get("/metrics").status == 401
    assert "fastlog_live 1" in monitor.get("/metrics", f"Authorization: Bearer {SECRET}").body


def test_promtool_can_read_it(watched: Broker, topic: str) -> None:
    """Where Prometheus's own tool is, it has nothing to say but of the style of Kafka's names.

    On the page are topics of both kinds, a group and errors.
    """
    with watched.connect() as client:
        assert client.produce_ack(topic, 0, raw.entry(b"x"), raw.FLUSHED).error == 0
    with RecordBroker([Address("127.0.0.1", watched.port)], timeout=30) as records, watched.connect() as client:
        records.create(f"{topic}-records", 1, {})
        batch = build([Record(b"k", b"v", 1)])
        today.asked(client.socket, PRODUCE, 8, **today.produced((f"{topic}-records", 0, batch)))
    committed(watched, topic, 1)
    answered_errors(watched, topic)
    page = Monitor.of(watched).get("/metrics").body
    read = MetricsPage(page)
    assert read.topics() >= {topic, f"{topic}-records"}
    assert read.value("kafka_consumergroup_current_offset", consumergroup=topic, topic=topic, partition="0") == 1
    assert read.value("kafka_network_requestmetrics_errors_total", request="Heartbeat", error="UNKNOWN_MEMBER_ID") >= 1
    promtool = shutil.which("promtool")
    if promtool:
        done = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, text=True)
        assert done.returncode in (0, 3), done.stderr
        assert [line for line in done.stderr.splitlines() if not line.startswith("kafka_")] == []
