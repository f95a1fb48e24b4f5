"""What ``/metrics`` says, from an arena that says what it should: parsed as Prometheus does."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from fastlog.kafka_codes import Code
from fastlog.log._append import Appender, append_bytes, end_life
from fastlog.log._arena import STATE_OFFLINE, STATE_READ_ONLY
from fastlog.log._segments import SegmentFiles
from fastlog.log._shared_memory import COORDINATOR, COUNTERS, FIRST_PROCESSOR, FLUSH_BUCKETS_US, FLUSHER, KEEPER
from fastlog.log.formats import FORMATS, UNKNOWN_FORMAT
from fastlog.log.slots import SlotSpec
from fastlog.workers import metric_tables
from fastlog.workers import metrics as metrics_module
from fastlog.workers.child import MIRROR
from fastlog.workers.exposition import Family, Sample, exposed, labels
from fastlog.workers.group_board import GroupBoard, GroupRow
from fastlog.workers.http_server import Answer, Request, encode_answer
from fastlog.workers.kafka.kinds import APIS, FORWARDED
from fastlog.workers.restarts import Restarts
from tests.harness.checkout import ROOT
from tests.harness.metrics_page import MetricsPage, documented
from tests.harness.shared_log import message
from tests.unit.test_health import Inside, registered

BUCKETS = {f"flushes_within_{us}_us" for us in FLUSH_BUCKETS_US}
OPEN = "application/openmetrics-text; version=1.0.0"


def asked(inside: Inside, **headers: str) -> Answer:
    return inside.pages.answer(Request("GET", "/metrics", headers, "test"))


def text_of(answer: Answer) -> str:
    assert answer.status == 200 and isinstance(answer.body, bytes)
    return answer.body.decode()


def samples(inside: Inside) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in parse(text_of(asked(inside))):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def value(inside: Inside, name: str, **wanted: str) -> float:
    """The value of the one sample that has this name and these labels."""
    (found,) = [number for called, given, number in samples(inside) if (called, given) == (name, wanted)]
    return found


@pytest.fixture
def inside(tmp_path: Path) -> Inside:
    return Inside(tmp_path)


def test_every_counter_is_on_the_page_as_the_sum_of_all_processes(tmp_path: Path) -> None:
    inside = Inside(tmp_path, registered())
    for place, name in enumerate(COUNTERS):
        by = 10**9 * (place + 1)  # flush_ns is told in seconds
        if name.startswith("zookeeper"):
            inside.arena.count(KEEPER, name, by)
        elif name in BUCKETS:
            continue  # each is added to those above it
        elif name.startswith("flush_ns") or name == "flushes":
            inside.arena.count(FLUSHER, name, by)
        else:
            inside.arena.count(FIRST_PROCESSOR, name, by - 1)
            inside.arena.count(FIRST_PROCESSOR + 1, name, 1)
    told = {number for _, _, number in samples(inside)}
    for place, name in enumerate(COUNTERS):
        if name in BUCKETS:
            continue
        assert (place + 1 if name == "flush_ns" else 10**9 * (place + 1)) in told, name


def test_the_times_of_flushes_are_a_histogram(inside: Inside) -> None:
    """Each bucket has those below it too; the last is all flushes, also those that took longer than any bound."""
    for us, count in {250: 3, 1_000: 2, 5_000_000: 1}.items():
        inside.arena.count(FLUSHER, f"flushes_within_{us}_us", count)
    inside.arena.count(FLUSHER, "flushes", 8)
    inside.arena.count(FLUSHER, "flush_ns", 12_500_000_000)
    found = [(given["le"], number) for name, given, number in samples(inside) if name == "fastlog_flush_seconds_bucket"]
    assert found == [
        ("0.00025", 3), ("0.0005", 3), ("0.001", 5), ("0.0025", 5), ("0.005", 5), ("0.01", 5), ("0.025", 5),
        ("0.05", 5),
        ("0.1", 5), ("0.25", 5), ("1.0", 5), ("5.0", 6), ("+Inf", 8),
    ]  # fmt: skip
    assert value(inside, "fastlog_flush_seconds_count") == 8
    assert value(inside, "fastlog_flush_seconds_sum") == 12.5


def test_a_flush_that_is_being_counted_is_not_missing_from_the_last_bucket(inside: Inside) -> None:
    """Buckets never fall, whichever word is read first."""
    inside.arena.count(FLUSHER, "flushes_within_500_us", 4)
    inside.arena.count(FLUSHER, "flushes", 3)
    assert value(inside, "fastlog_flush_seconds_bucket", le="5.0") == 4
    assert value(inside, "fastlog_flush_seconds_bucket", le="+Inf") == 4
    assert value(inside, "fastlog_flush_seconds_count") == 4


def test_what_a_process_has_counted_stays_when_it_dies(inside: Inside) -> None:
    inside.arena.count(FIRST_PROCESSOR, "messages_in", 5)
    inside.arena.clear_cell(FIRST_PROCESSOR, 4321, inside.now_ns)
    inside.arena.count(FIRST_PROCESSOR, "messages_in", 2)
    assert value(inside, "kafka_server_brokertopicmetrics_messagesin_total") == 7


def test_a_partition(tmp_path: Path) -> None:
    inside = Inside(tmp_path, broker_id=7, partitions=2)
    for partition in (0, 1):
        inside.manager.create_partition("logs", partition)
    appender = Appender(inside.arena, SegmentFiles(inside.arena, 8), FIRST_PROCESSOR)
    assert append_bytes(appender, 1, message(14), 1)[0] == 0
    size = len(message(14))
    found = {name: number for name, given, number in samples(inside) if given == {"topic": "logs", "partition": "1"}}
    assert found == {
        "kafka_topic_partition_current_offset": 0,
        "kafka_topic_partition_oldest_offset": 0,
        "kafka_topic_partition_leader": 7,
        "kafka_topic_partition_leader_is_preferred": 1,
        "kafka_topic_partition_replicas": 1,
        "kafka_topic_partition_in_sync_replica": 1,
        "kafka_topic_partition_under_replicated_partition": 0,
        "kafka_log_log_logstartoffset": 0,
        "kafka_log_log_logendoffset": size,
        "kafka_log_log_size": size,
        "kafka_log_log_numlogsegments": 1,
        "fastlog_partition_appended_messages_total": 1,
        "fastlog_partition_appended_bytes_total": size,
        "fastlog_partition_unflushed_bytes": size,
    }
    assert value(inside, "kafka_topic_partitions", topic="logs") == 2
    assert value(inside, "kafka_server_brokertopicmetrics_messagesin_total", topic="logs") == 1
    assert value(inside, "kafka_server_brokertopicmetrics_bytesin_total", topic="logs") == size
    assert value(inside, "kafka_server_replicamanager_partitioncount") == 2
    assert value(inside, "fastlog_unflushed_bytes") == size
    inside.now_ns += 3_000_000_000
    assert value(inside, "fastlog_oldest_unflushed_seconds") > 2


def test_the_oldest_bytes_are_looked_for_where_some_wait(tmp_path: Path) -> None:
    inside = Inside(tmp_path, partitions=2)
    for partition in (0, 1):
        inside.manager.create_partition("logs", partition)
    inside.add("idle", 0, 0)
    assert value(inside, "fastlog_oldest_unflushed_seconds") == value(inside, "fastlog_unflushed_bytes") == 0
    appender = Appender(inside.arena, SegmentFiles(inside.arena, 8), FIRST_PROCESSOR)
    for slot in (0, 1):
        assert append_bytes(appender, slot, message(14), inside.arena.view(slot).life)[0] == 0
    ages = [inside.now_ns - inside.arena.view(slot).unflushed_since_ns for slot in (0, 1)]
    inside.now_ns += 10**9 - min(ages)
    assert ages[0] > ages[1]
    wanted = round((10**9 + ages[0] - ages[1]) / 1e9, 6)
    assert value(inside, "fastlog_oldest_unflushed_seconds") == wanted
    assert value(inside, "fastlog_unflushed_bytes") == 2 * len(message(14))


def test_bytes_appended_are_told_by_offsets_where_these_are_bytes(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go on over restarts; where offsets count messages, or nobody knows, positions of this start are told."""
    spec = SlotSpec("a", 0, 0, 0, 0, 2**20, 2**40, 10, 2**20, 10**9, [(100, 0, 0)], 150, starts=[0, 50])
    inside.arena.add(spec)
    inside.arena.add(spec._replace(topic="b", format=UNKNOWN_FORMAT))
    name = "fastlog_partition_appended_bytes_total"
    assert value(inside, name, topic="a", partition="0") == 150
    assert value(inside, name, topic="b", partition="0") == 50
    assert value(inside, "kafka_log_log_size", topic="a", partition="0") == 50
    monkeypatch.setattr(metric_tables, "FORMATS", {key: SimpleNamespace(is_dense=True) for key in FORMATS})
    assert value(inside, name, topic="a", partition="0") == 50


def test_the_size_is_that_of_the_segments_which_are_held(inside: Inside) -> None:
    spec = SlotSpec("a", 0, 0, 0, 0, 2**20, 2**40, 10, 2**20, 10**9, [(100, 0, 0), (150, 0, 0)], 190)
    inside.arena.add(spec)
    assert value(inside, "kafka_log_log_size", topic="a", partition="0") == 90
    assert value(inside, "kafka_log_log_numlogsegments", topic="a", partition="0") == 2


def test_partitions_out_of_service(inside: Inside) -> None:
    inside.add("a", 0, 0)
    inside.add("a", 1, STATE_READ_ONLY)
    inside.add("a", 2, STATE_OFFLINE)
    states = {given["state"]: number for name, given, number in samples(inside) if name == "fastlog_partitions"}
    assert states == {"ok": 1, "read-only": 1, "offline": 1}
    leaders = [number for name, _, number in samples(inside) if name == "kafka_topic_partition_leader"]
    assert leaders == [0, 0, -1]
    assert value(inside, "kafka_server_replicamanager_leadercount") == 2
    assert value(inside, "kafka_controller_kafkacontroller_offlinepartitionscount") == 1


def test_a_partition_that_is_deleted_goes_and_one_that_is_recovered_stays(inside: Inside) -> None:
    """One that is recovered is there once, in whichever slots it stands."""
    appender = Appender(inside.arena, SegmentFiles(inside.arena, 8), KEEPER)
    for topic in ("gone", "back"):
        inside.add(topic, 0, 0)
    assert {given["topic"] for _, given, _ in samples(inside) if "topic" in given} == {"gone", "back"}
    assert inside.arena.create_lock()
    end_life(appender, 0)
    end_life(appender, 1, True)
    assert value(inside, "kafka_topic_partitions", topic="back") == 1
    inside.add("back", 0, 0)
    inside.arena.create_unlock()
    assert value(inside, "kafka_topic_partitions", topic="back") == 1
    assert {given["topic"] for _, given, _ in samples(inside) if "topic" in given} == {"back"}


def test_of_two_slots_the_one_that_lives_is_told(inside: Inside) -> None:
    """Whichever comes first."""
    appender = Appender(inside.arena, SegmentFiles(inside.arena, 8), KEEPER)
    inside.add("gone", 0, 0)
    inside.add("back", 0, STATE_READ_ONLY)
    assert inside.arena.create_lock()
    end_life(appender, 0)
    for number in range(inside.arena.processes):
        inside.arena.see_all(number)
    inside.arena.free(0)
    end_life(appender, 1, True)
    assert value(inside, "fastlog_partitions", state="read-only") == 1
    inside.add("back", 0, 0)
    inside.arena.create_unlock()
    assert [view.index for view in inside.arena.views()] == [0]
    assert value(inside, "fastlog_partitions", state="ok") == 1
    assert value(inside, "fastlog_partitions", state="read-only") == 0


def test_the_size_is_that_of_what_is_held(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments are asked for once, until the oldest one goes, or the partition is another one."""
    inside.manager.create_partition("logs", 0)
    assert value(inside, "kafka_log_log_size", topic="logs", partition="0") == 0
    with monkeypatch.context() as patched:
        patched.setattr(inside.metrics, "_arena", None)
        (view,) = inside.arena.views()
        assert inside.metrics._start(view) == 0
        moved = view._replace(log_end=500, log_offset=500, table_head=view.table_head + 1)
        for other in (moved, view._replace(life=view.life + 1)):
            with pytest.raises(AttributeError):
                inside.metrics._start(other)


def test_processes(inside: Inside) -> None:
    inside.arena.clear_cell(FIRST_PROCESSOR, os.getpid(), inside.now_ns - 2_000_000_000)
    inside.arena.clear_cell(KEEPER, 0, inside.now_ns)
    inside.shared.restarts.count(KEEPER)
    inside.arena.clear_cell(FLUSHER, 0, 0)
    everybody = {"supervisor", "flusher", "keeper", "coordinator", "acceptor", "processor-0", "processor-1"}
    told: dict[str, set[str]] = {}
    for name, has, _ in samples(inside):
        if "process" in has:
            told.setdefault(name.removeprefix("fastlog_process_"), set()).add(has["process"])
    assert told["busy_ratio"] == told["connections"] == {"processor-0", "processor-1"}
    assert told["restarts_total"] == everybody - {"supervisor"}
    assert told["heartbeat_age_seconds"] == everybody - {"flusher"}
    assert told["disk_wait_seconds"] == everybody
    assert value(inside, "fastlog_process_restarts_total", process="keeper") == 1
    assert value(inside, "fastlog_process_restarts_total", process="processor-1") == 0
    assert value(inside, "fastlog_process_heartbeat_age_seconds", process="processor-0") == 2
    assert value(inside, "fastlog_process_resident_memory_bytes", process="processor-0") > 1_000_000
    now = psutil.Process().cpu_times()
    used = value(inside, "fastlog_process_cpu_seconds_total", process="processor-0")
    after = psutil.Process().cpu_times()
    assert now.user + now.system - 0.01 <= used <= after.user + after.system + 0.01
    assert "keeper" not in {given["process"] for name, given, _ in samples(inside) if "resident_memory" in name}
    assert value(inside, "kafka_network_socketserver_networkprocessoravgidle_percent") == 1
    inside.arena.clear_cell(FLUSHER, 0, inside.now_ns)
    assert value(inside, "fastlog_live") == 1
    inside.arena.clear_cell(KEEPER, 0, inside.now_ns - 60_000_000_000)
    assert value(inside, "fastlog_live") == 0


def test_a_mirror_has_its_restarts(tmp_path: Path) -> None:
    inside = Inside(tmp_path, mirror_file="mirror.properties")
    inside.shared.restarts.count(MIRROR)
    assert value(inside, "fastlog_process_restarts_total", process="mirror") == 1


def test_what_it_is(tmp_path: Path) -> None:
    before = time.time()
    inside = Inside(tmp_path)
    after = time.time()
    assert value(inside, "fastlog_build_info", version="1.2") == 1
    assert value(inside, "kafka_broker_info", id="0", address="here:9093") == 1
    assert value(inside, "kafka_brokers") == 1
    assert before - 5.01 <= value(inside, "fastlog_start_time_seconds") <= after - 4.99


def test_restarts_are_seen_by_processes_that_were_forked_before() -> None:
    restarts = Restarts()
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(receive, 1)
        os._exit(10 * restarts.of(MIRROR) + restarts.of(KEEPER))
    restarts.count(MIRROR)
    restarts.count(MIRROR)
    restarts.count(KEEPER)
    os.write(send, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 21
    for fd in (receive, send):
        os.close(fd)


@pytest.mark.parametrize("session", metrics_module.SESSIONS)
def test_how_it_stands_with_zookeeper(session: str, tmp_path: Path) -> None:
    inside = Inside(tmp_path, registered(session=session, a=1))
    inside.add("a", 0, 0)
    inside.add("b", 0, 0)
    states = {given["state"]: number for name, given, number in samples(inside) if name == "fastlog_zookeeper_session"}
    assert states == {state: state == session for state in metrics_module.SESSIONS}
    assert value(inside, "fastlog_zookeeper_topics_not_announced") == 1
    assert "activecontrollercount" not in text_of(asked(inside))


def test_without_zookeeper_nothing_is_said_of_it(inside: Inside) -> None:
    assert "fastlog_zookeeper" not in text_of(asked(inside))
    assert value(inside, "kafka_controller_kafkacontroller_activecontrollercount") == 1


def test_the_listener_of_connections_is_named_where_there_is_one(inside: Inside) -> None:
    name = "kafka_server_socket_server_metrics_connection_count"
    assert value(inside, name, listener="default", networkProcessor="1") == 0


def test_the_format_is_the_one_that_is_asked_for(inside: Inside) -> None:
    inside.add("a", 0, 0)
    plain, opened = asked(inside), asked(inside, accept=OPEN)
    assert plain.content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert opened.content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert text_of(opened).endswith("\n# EOF\n") and "# EOF" not in text_of(plain)
    first = {sample.name for family in parse(text_of(plain)) for sample in family.samples}
    second = {sample.name for family in parse_open(text_of(opened)) for sample in family.samples}
    assert first == second


def test_it_is_compressed_for_who_takes_that(inside: Inside) -> None:
    inside.add("a", 0, 0)
    answer = asked(inside, **{"accept-encoding": "deflate, gzip"})
    assert answer.headers == {"Content-Encoding": "gzip"} and isinstance(answer.body, bytes)
    assert b'kafka_topic_partitions{topic="a"} 1\n' in gzip.decompress(answer.body)
    assert b"\r\nContent-Encoding: gzip\r\n" in encode_answer(answer)


@given(st.text())
def test_a_label_may_hold_anything(text: str) -> None:
    family = Family("a_total", "counter", "It.", [Sample(labels(topic=text, partition=0), 2**60 + 1)])
    for accept, read in (("", parse), (OPEN, parse_open)):
        page, _ = exposed([family], accept, "")
        assert f" {2**60 + 1}\n".encode() in page
        (found,) = read(page.decode())
        assert [sample.labels for sample in found.samples] == [{"topic": text, "partition": "0"}]


def test_errors_of_all_processes_are_added_up(inside: Inside) -> None:
    """By their names, where these are known; what had no place is told of as such."""
    for process, key, code in ((FIRST_PROCESSOR, 1, 3), (COORDINATOR, 1, 3), (COORDINATOR, 60, 999), (KEEPER, 120, -1)):
        inside.arena.count_refusal(process, key, code)
    for code in range(1000, 1063):
        inside.arena.count_refusal(COORDINATOR, 8, code)
    page = MetricsPage(text_of(asked(inside)))
    name = "kafka_network_requestmetrics_errors_total"
    assert page.value(name, request="Fetch", error="UNKNOWN_TOPIC_OR_PARTITION") == 2
    assert page.value(name, request="DescribeCluster", error="999") == 1
    assert page.value(name, request="120", error="UNKNOWN_SERVER_ERROR") == 1
    assert page.value(name, request="OffsetCommit", error="1060") == 1
    assert page.value(name, request="other", error="other") == 2
    family = "kafka_network_requestmetrics_requests_total"
    asked_for = {dict(given)["request"] for found, given in page.values if found == family}
    assert {"Produce", "ApiVersions", "JoinGroup", "DescribeCluster"} <= asked_for
    assert len(asked_for) == len(APIS) + len(FORWARDED)


def test_each_code_that_is_answered_has_a_name() -> None:
    """Those of compiled code stand in a table of their own."""
    text = (ROOT / "fastlog" / "workers" / "kafka" / "_codes.pxd").read_text()
    numbers = {int(number) for number in re.findall(r"^    CODE_\w+ = (-?\d+)$", text, re.M)}
    assert len(numbers) > 20
    assert numbers <= {code.value for code in Code}
    from kio.schema.errors import ErrorCode

    known = {one.name: one.value for one in ErrorCode}
    assert {code.name.lower(): code.value for code in Code}.items() <= known.items()


def test_without_the_library_it_says_what_to_install(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    answer = asked(inside)
    assert answer.status == 501 and isinstance(answer.body, str)
    assert answer.body.startswith("prometheus_client is not installed: pip install ") and "[metrics]" in answer.body
    assert answer.body.count("\n") == 1


def test_the_page_is_the_documented_one(tmp_path: Path) -> None:
    """With ZooKeeper; a real broker without one is asked in the tests of integration."""
    inside = Inside(tmp_path, registered())
    inside.add("a", 0, 0)
    inside.arena.clear_cell(FIRST_PROCESSOR, os.getpid(), inside.now_ns)
    inside.arena.count_refusal(FIRST_PROCESSOR, 0, 3)
    inside.metrics._group_rows = lambda board: [GroupRow("g", 1, [("a", 0, 0)])]  # type: ignore[method-assign]
    with contextlib.closing(GroupBoard()) as board:
        inside.metrics._shared = dataclasses.replace(inside.shared, groups=board)
        page = MetricsPage(text_of(asked(inside)))
    every, with_zookeeper = documented()
    del every["kafka_controller_kafkacontroller_activecontrollercount"]
    assert page.families == every | with_zookeeper
    assert page.value("fastlog_groups_known") == 1


def test_a_coordinator_that_does_not_answer_is_woken_and_waited_for_no_longer(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_module, "GROUPS_SECONDS", 0.01)
    woken: list[int] = []
    with contextlib.closing(GroupBoard()) as board:
        inside.metrics._shared = dataclasses.replace(inside.shared, groups=board)
        assert value(inside, "fastlog_groups_known") == 0
        inside.metrics._arena = SimpleNamespace(wake=woken.append)  # type: ignore[assignment]
        assert inside.metrics._group_rows(board) is None
    assert woken == [COORDINATOR]


def test_nobody_pays_for_it_who_does_not_ask() -> None:
    """A keeper with a monitor loads neither library before the first scrape."""
    code = (
        "import json, sys, fastlog.workers.keeper, fastlog.workers.monitor; "
        "print(json.dumps([name for name in ('prometheus_client', 'psutil', 'numpy') if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
