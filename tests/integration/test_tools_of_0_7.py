"""The table of docs/tools-of-0.7.md: every tool of 0.7 is in it, and every command in it does what it is there for."""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import fastlog
from fastlog import testing
from tests.harness.broker import ROOT, wait_until
from tests.harness.command_line import Commands
from tests.harness.ports import unused_port
from tests.harness.site import LINES, Site

pytestmark = [pytest.mark.slow, pytest.mark.java]
PAGE = ROOT / "docs" / "tools-of-0.7.md"
NAMED = """
kafka-server-start.sh kafka-server-stop.sh zookeeper-server-start.sh zookeeper-server-stop.sh zookeeper-shell.sh
kafka-run-class.sh ConsoleProducer ConsoleConsumer ProducerShell ConsumerShell SimpleConsumerShell GetOffsetShell
ConsumerOffsetChecker ExportZkOffsets ImportZkOffsets UpdateOffsetsInZK VerifyConsumerRebalance DumpLogSegments
ReplayLogProducer MirrorMaker JmxTool ProducerPerformance ConsumerPerformance SimpleConsumerPerformance
"""
MODULES = {
    "fastlog": "fastlog",
    "fastlog-broker": "fastlog.tools.broker_command",
    "producer-perf": "fastlog.tools.producer_perf",
    "consumer-perf": "fastlog.tools.consumer_perf",
}
READY = {"fastlog-broker": b"ready", "fastlog zookeeper start": b"ready: zk.connect"}
START_SECONDS = 40.0


class Row(NamedTuple):
    tools: str
    command: str


TOOLS = PAGE.read_text().partition("## Options")[0]
ROWS = [Row(*found) for found in re.findall(r"^\| ([^|]+) \| `([^`]+)` \|", TOOLS, re.M)]

# What has to come out, by the tool: on stdout where nothing else is said.
SHOWS = {
    "zookeeper-shell.sh": r"^/brokers/topics/logs/0$",
    "kafka-run-class.sh": r"^fastlog +\d",
    "ConsoleConsumer": r"\A(line \d+\n){3}\Z",
    "ConsoleConsumer with a filter": rf"\A(checksum:\d+\n){{{len(LINES)},}}\Z",
    "ConsumerShell": rf'\A({{"topic": "logs", .*}}\n){{{len(LINES)}}}\Z',
    "SimpleConsumerShell": r"\A0\t0\tline \d+\n",
    "GetOffsetShell": r"^logs\t0\t0$",
    "ConsumerOffsetChecker": r"^views\tlogs\t1-1\t-\t0\t(\d+)\t\1\t~\d+\t-$",
    "DumpLogSegments": r"^offset: 0 isvalid: true payloadsize: \d+ magic: 1 compresscodec: NoCompressionCodec$",
    "ProducerPerformance": r"\Astart.time, end.time, compression, message.size, batch.size, ",
    "ConsumerPerformance": r"\Astart.time, end.time, fetch.size, data.consumed.in.MB, ",
    "SimpleConsumerPerformance": r"\Astart.time, end.time, fetch.size, data.consumed.in.MB, ",
    "UpdateOffsetsInZK": r"^views\tlogs\t0-0\t0\t0\t0$",
    "ImportZkOffsets": r"^views\tlogs\t1-0\t0\t0\t0$",
}


@pytest.fixture(scope="module")
def place(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory to work in, with lines, the first broker's files, and groups: one that committed, one that lives."""
    directory = tmp_path_factory.mktemp("table")
    (directory / "lines.txt").write_text("one\ntwo\nthree\n")
    (directory / "data").mkdir()
    (directory / "data" / "logs-0").symlink_to(site.brokers[0].data_directory / "logs-0")
    (directory / "source.properties").write_text(f"zk.connect={site.connect}\ngroupid=mirror\n")
    for partition in ("0-0", "0-1", "1-0", "1-1"):
        site.node(f"/consumers/views/offsets/logs/{partition}", "0")
    with fastlog.Consumer(site.connect, group_id="live") as consumer:
        consumer.create_message_streams({"logs": 1})
        assert consumer.wait_assigned(30)
        yield directory
    for group in ("views", "live", "printer", "mirror"):
        if site.client.exists(f"/consumers/{group}"):
            site.client.delete(f"/consumers/{group}", recursive=True)


def test_every_tool_is_in_the_table() -> None:
    """Once or more; and nothing is in it that 0.7 had not, but for the words that tell two uses apart."""
    named = {name for row in ROWS for name in re.findall(r"[\w-]+\.sh|[A-Z]\w+", row.tools)}
    assert named == set(NAMED.split())
    assert len(ROWS) == len(re.findall(r"^\| .* \| .* \|", TOOLS.partition("|---")[2].split("<!--")[0], re.M))
    assert set(SHOWS) <= {row.tools for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=[re.sub(r"\W+", "-", row.tools) for row in ROWS])
def test_each_command_does_its_work(row: Row, site: Site, place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As it stands in the table, from top to bottom, with the addresses of the test."""
    words = [
        word.replace("localhost:2181", site.connect).replace("localhost:9092", site.brokers[0].address)
        for word in shlex.split(row.command)
    ]
    starts = next((text for prefix, text in READY.items() if row.command.startswith(f"{prefix} ")), None)
    if starts is not None:
        _start_and_stop(words, starts, place)
        return
    if row.tools == "MirrorMaker":
        _mirror(words, place)
        return
    if words[0] == "fastlog":
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(place)
            ran = Commands(capfd)(*words[1:])
        code, out, err = ran
    else:
        done = subprocess.run(
            _command(words), cwd=place, capture_output=True, text=True, timeout=50, env=_environment()
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    assert code == 0, err
    assert re.search(SHOWS.get(row.tools, ""), out, re.M), out
    if "ReplayLogProducer" in row.tools:
        assert "100 acknowledged, 0 not" in err
    if "VerifyConsumerRebalance" in row.tools:
        assert "Rebalance operation successful !" in err
    if "ExportZkOffsets" in row.tools:
        assert (place / "views.offsets").read_text().startswith("/consumers/views/offsets/logs/0-0:0\n")
    if row.tools in ("ConsoleProducer", "ProducerShell"):
        assert "produced 3 messages" in err


def _command(words: list[str]) -> list[str]:
    return [sys.executable, "-m", MODULES[words[0]], *words[1:]]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def _mirror(words: list[str], place: Path) -> None:
    """It has a cluster of its own to mirror into; SIGTERM ends it once everything is there."""
    with testing.broker(partitions=2) as target:
        (place / "target.properties").write_text(f"broker.list=0:{target.address}\n")
        with subprocess.Popen(_command(words), cwd=place, stderr=subprocess.PIPE, env=_environment()) as process:
            try:
                with fastlog.SimpleConsumer(target.host, target.port) as consumer:

                    def arrived() -> list[bytes]:
                        assert process.poll() is None
                        return [line for number in (0, 1) for line in consumer.payloads("logs", number)]

                    wait_until("everything is there", lambda: sorted(arrived()) == sorted(LINES), START_SECONDS)
                process.send_signal(signal.SIGTERM)
                _, said = process.communicate(timeout=START_SECONDS)
                assert process.returncode == 0, said
            finally:
                process.kill()


def _start_and_stop(words: list[str], text: bytes, place: Path) -> None:
    """Wait until it says that it is ready, on a port of its own; then SIGTERM ends it in order."""
    words[words.index("--port") + 1] = str(unused_port())
    with subprocess.Popen(_command(words), cwd=place, stderr=subprocess.PIPE, env=_environment()) as process:
        assert process.stderr is not None
        said = b""
        deadline = time.monotonic() + START_SECONDS
        try:
            while text not in said:
                assert select.select([process.stderr], [], [], max(0.0, deadline - time.monotonic()))[0], said
                part = os.read(process.stderr.fileno(), 65536)
                assert part, said
                said += part
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
            assert process.wait(START_SECONDS) == 0
        finally:
            process.kill()
