"""producer-perf and consumer-perf against a real broker: figures that add up, formats, losses, Ctrl-C, exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import psutil
import pytest

from fastlog import testing
from fastlog.errors import MissingDependencyError
from fastlog.perf.consuming import MODES, ConsumerOptions, measure_consumer
from fastlog.perf.producing import MessagesMissingError, ProducerOptions, ProducerRun, measure_producer
from fastlog.testing import RunningBroker
from fastlog.tools import report
from fastlog.tools.consumer_perf import consumer_perf_command
from fastlog.tools.producer_perf import producer_perf_command
from tests.harness.broker import wait_until

ROOT = Path(__file__).resolve().parents[2]
DATE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3}"
COMMANDS: dict[str, click.Command] = {"producer-perf": producer_perf_command, "consumer-perf": consumer_perf_command}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningBroker]:
    with testing.broker(partitions=2) as running:
        yield running


@contextmanager
def started(tool: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process of a tool, ended with the block."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        [sys.executable, "-m", f"fastlog.tools.{tool.replace('-', '_')}", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs a tool in this process; gives exit code, stdout, stderr."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setenv("COLUMNS", "200")

    def call(tool: str, *arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            report.run(COMMANDS[tool], tool, arguments)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err, captured.err
        assert isinstance(left.value.code, int)
        return left.value.code, captured.out, captured.err

    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["producer-perf", "consumer-perf"])
def test_help(tool: str) -> None:
    """Two examples first, at most 80 columns, exit codes at the end; numpy and the clients are not loaded for it."""
    with started(tool, "--help") as process:
        lines = process.communicate(timeout=90)[0].split("\n")
    assert process.returncode == 0 and lines[0] == "Examples:" and lines[3] == ""
    assert all(line.startswith(f"  {tool} ") for line in lines[1:3])
    assert max(map(len, lines)) <= 80 and "Exit codes:" in lines


@pytest.mark.slow
def test_json_is_one_object_with_figures_settings_and_surroundings(shared: RunningBroker, topic: str, run: Run) -> None:
    """What was produced is what is there, and is what is consumed."""
    place = ("--brokers", shared.address, "--topic", topic, "--messages", "20000", "--json")
    code, out, err = run("producer-perf", *place, "--message-size", "200", "--batch-size", "50")
    assert (code, err, out.count("\n")) == (0, "", 1)
    produced = json.loads(out)
    assert produced["messages"] == 20000 and produced["payload_bytes"] == 4_000_000 and produced["complete"] is True
    assert produced["log_bytes"] == produced["expected_bytes"] == 4_200_000 == sum(log_ends(shared, topic))
    assert produced["seconds"] >= produced["sent_seconds"] > 0
    assert produced["messages_per_second"] == pytest.approx(20000 / produced["seconds"], rel=1e-3)
    assert produced["mb_per_second"] == pytest.approx(4_000_000 / 2**20 / produced["seconds"], rel=1e-3)
    wanted = {"acks": "none", "batch_size": 50, "message_size": 200, "threads": 1, "compression_codec": 0}
    assert wanted.items() <= produced["settings"].items()
    assert {"machine", "python", "fastlog", "accelerated", "flush_policy"} <= produced.keys()

    code, out, err = run("consumer-perf", *place)
    assert (code, err, out.count("\n")) == (0, "", 1)
    consumed = json.loads(out)
    assert consumed["messages"] == 20000 and consumed["payload_bytes"] == 4_000_000 and consumed["complete"] is True
    assert consumed["messages_per_second"] == pytest.approx(20000 / consumed["seconds"], rel=1e-3)
    assert consumed["partitions"] == [0, 1] and consumed["settings"]["mode"] == "messages"
    assert {"machine", "python", "fastlog", "accelerated", "flush_policy"} <= consumed.keys()


def log_ends(running: RunningBroker, topic: str) -> list[int]:
    with running.consumer() as consumer:
        answer = consumer.metadata([topic])
    assert answer is not None
    return [item.log_end for found in answer.topics for item in found.partitions]


@pytest.mark.slow
def test_the_columns_of_0_7_are_on_stdout_and_the_rest_is_not(shared: RunningBroker, topic: str, run: Run) -> None:
    """With 0.7's own options; a row each, and with details a row for each interval of each thread."""
    code, out, err = run(
        *("producer-perf", "--brokerinfo", f"broker.list=0:{shared.address}", "--topic", topic),
        *("--messages", "5000", "--threads", "2", "--async", "--compression-codec", "1", "--acks", "appended"),
    )
    header, row, end = out.split("\n")
    assert (code, end) == (0, "") and header.startswith("start.time, end.time, compression, message.size")
    assert re.fullmatch(rf"{DATE}, {DATE}, 1, 100, 200, 0\.48, \d+\.\d{{4}}, 5000, \d+\.\d{{4}}", row)
    assert "produced 5,000 messages" in err and "flush policy" in err and "counted afterwards" in err

    code, out, err = run(
        *("producer-perf", "--brokers", shared.address, "--topic", topic, "--messages", "3000", "--hide-header"),
        *("--show-detailed-stats", "--reporting-interval", "1000", "--date-format", "HH:mm", "--vary-message-size"),
    )
    rows = out.splitlines()
    assert code == 0 and len(rows) == 3
    assert all(re.fullmatch(r"\d\d:\d\d, 0, 0, 100, 200, 0\.\d\d, \S+, \d000, \S+", row) for row in rows)

    code, out, err = run("consumer-perf", "--server", f"kafka://{shared.address}", "--topic", topic)
    header, row, end = out.split("\n")
    assert (code, end) == (0, "") and header.startswith("start.time, end.time, fetch.size, data.consumed.in.MB")
    assert re.fullmatch(rf"{DATE}, {DATE}, 1048576, 0\.\d{{4}}, \S+, \d+, \d+\.\d{{4}}", row)
    assert "1 partitions" in err


@pytest.mark.slow
def test_kafkas_style_and_the_human_one(shared: RunningBroker, topic: str, run: Run) -> None:
    place = ("--brokers", shared.address, "--topic", topic, "--messages", "2000")
    code, out, _ = run("producer-perf", *place, "--style", "kafka", "--acks", "flushed")
    assert code == 0
    assert re.fullmatch(
        r"2000 records sent, \d+\.\d{6} records/sec \(\d+\.\d\d MB/sec\), \d+\.\d\d ms avg latency, "
        r"\d+\.\d\d ms max latency, \d+ ms 50th, \d+ ms 95th, \d+ ms 99th, \d+ ms 99\.9th\.\n",
        out,
    )
    code, out, err = run("consumer-perf", *place, "--format", "human", "--no-progress")
    assert (code, err) == (0, "") and out.startswith("consumed 2,000 messages (200,000 payload bytes)")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "arguments", "code", "said"),
    [
        ("producer-perf", ("--brokerinfo", "zk.connect=", "--messages", "1"), 2, "or zk.connect=host:port/path"),
        (
            "producer-perf",
            ("--zookeeper", "h", "--brokerinfo", "zk.connect=h", "--messages", "1"),
            2,
            "all name brokers",
        ),
        ("producer-perf", ("--zookeeper", "h", "--partition", "1", "--messages", "1"), 2, "of which broker?"),
        ("consumer-perf", ("--zookeeper", "h:2181", "--server", "kafka://h:1"), 2, "all name what is read"),
        ("consumer-perf", ("--zookeeper", "h:2181", "--partition", "0"), 2, "name no broker and no partition"),
        ("consumer-perf", ("--group", "g"), 2, "a group needs a ZooKeeper"),
        ("producer-perf", ("--brokers", "127.0.0.1:1", "--messages", "1", "--connect-timeout", "1s"), 3, "refused"),
        ("consumer-perf", ("--brokers", "127.0.0.1:1", "--connect-timeout", "1s"), 3, "refused"),
        ("producer-perf", ("--messages", "1", "--json", "--format", "csv"), 2, "say different things"),
        ("producer-perf", ("--messages", "1", "--date-format", "QQQ"), 2, "date format"),
        ("producer-perf", (), 2, "--messages"),
    ],
)
def test_what_cannot_be_done_is_said_in_three_lines(
    tool: str, arguments: tuple[str, ...], code: int, said: str, run: Run
) -> None:
    found, _, err = run(tool, "--topic", "t", *arguments)
    assert found == code and said in err
    assert [line[:6] for line in err.splitlines()[-2:]] == ["  why:", "  do: "]


@pytest.mark.slow
def test_fewer_messages_than_wanted_are_told_by_the_exit_code(shared: RunningBroker, topic: str, run: Run) -> None:
    place = ("--brokers", shared.address, "--topic", topic, "--timeout", "200ms", "--json")
    code, out, err = run("consumer-perf", *place, "--messages", "10")
    assert code == 4 and "no message came" in err and json.loads(out)["messages"] == 0
    measure_producer(ProducerOptions(brokers=shared.address, topic=topic, messages=7))
    code, out, err = run("consumer-perf", *place, "--messages", "10")
    assert code == 1 and "only 7 of 10 messages" in err
    found = json.loads(out)
    assert found["messages"] == 7 and found["complete"] is False and "only 7 of 10" in found["error"]


@pytest.mark.slow
@pytest.mark.parametrize("codec", [0, 2])
def test_every_mode_reads_the_same(shared: RunningBroker, topic: str, codec: int) -> None:
    measure_producer(
        ProducerOptions(
            brokers=shared.address, topic=topic, messages=3000, vary_message_size=True, compression_codec=codec
        )
    )
    found = {}
    for mode in MODES:
        figures = measure_consumer(ConsumerOptions(brokers=shared.address, topic=topic, mode=mode, messages=3000))
        found[mode] = (figures.messages, figures.payload_bytes, figures.complete)
        assert figures.source == {"local": "read", "map": "map"}.get(mode, "socket")
    assert set(found.values()) == {(3000, found["messages"][1], True)}


def test_arrow_without_pyarrow_says_what_to_install(
    shared: RunningBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_producer(ProducerOptions(brokers=shared.address, topic=topic, messages=10))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match="pip install"):
        measure_consumer(ConsumerOptions(brokers=shared.address, topic=topic, mode="arrow"))


@pytest.mark.slow
@pytest.mark.parametrize("acks", ["none", "appended", "flushed"])
def test_the_clock_waits_until_it_is_visible(shared: RunningBroker, topic: str, acks: str) -> None:
    """Behind a slow line the calls of send() return long before the messages arrive."""
    with shared.proxy(delay=0.1) as proxy:
        figures = measure_producer(
            ProducerOptions(brokers=proxy.address, topic=topic, messages=2000, acks=acks, timeout=10)
        )
    assert figures.sent_seconds is not None and figures.seconds - figures.sent_seconds >= 0.2
    assert figures.log_bytes == 2000 * 110 == sum(log_ends(shared, topic))
    assert figures.clock == ("high watermark" if acks == "flushed" else "log end")


@pytest.mark.slow
def test_messages_lost_on_the_way_are_counted_in_bytes(shared: RunningBroker, topic: str) -> None:
    """The connection is reset while requests are on their way, and acks none never hears of it."""
    with shared.proxy(delay=0.05) as proxy:
        cut: list[int] = []

        def interrupt(progress: Any) -> None:
            if progress.messages > 20_000 and not cut:
                cut.append(progress.messages)
                proxy.cut()

        run = ProducerRun(
            ProducerOptions(brokers=proxy.address, topic=topic, messages=300_000, timeout=1.5), on_progress=interrupt
        )
        with pytest.raises(MessagesMissingError, match="bytes") as caught:
            run.run()
    figures = run.figures()
    assert cut and figures.messages == 300_000 and figures.connections >= 2
    assert caught.value.missing == figures.missing_bytes == 300_000 * 110 - sum(log_ends(shared, topic)) > 0


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_broker_that_stands_still_ends_the_run_with_exit_code_1() -> None:
    with testing.broker(processors=1) as b:
        place = ("--brokers", b.address, "--topic", "t", "--messages", "100000000", "--timeout", "1s", "--json")
        with started("producer-perf", *place) as process:
            wait_until("it sends", lambda: sum(log_ends(b, "t")) > 10**6, pause=0.02)
            b.pause("processor-0")
            out, err = process.communicate(timeout=30)
        b.resume("processor-0")
    found = json.loads(out)
    assert process.returncode == 1 and found["complete"] is False and found["messages"] > 0
    assert "the broker does not answer" in err and found["log_bytes"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("producer-perf", ()),
        ("producer-perf", ("--rate", "1000", "--threads", "3", "--batch-size", "1")),
        ("consumer-perf", ("--timeout", "60s")),
    ],
)
def test_ctrl_c_stops_at_once_with_the_figures_so_far(
    shared: RunningBroker, topic: str, tool: str, arguments: tuple[str, ...]
) -> None:
    """Exit code 130, figures on stdout, no traceback; what is asked for takes hours."""
    measure_producer(ProducerOptions(brokers=shared.address, topic=topic, messages=100))
    place = ("--brokers", shared.address, "--topic", topic, "--messages", "1000000000000", "--json")
    for pause in (0.5, 2.0, 10.0):  # nothing says how far a reader is
        with started(tool, *place, *arguments) as process:
            wait_until("it is connected", lambda pid=process.pid: is_connected(pid, shared.port), pause=0.02)
            time.sleep(pause)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        assert process.returncode == 130 and "Traceback" not in err
        found = json.loads(out)
        assert found["complete"] is False and found["error"] == "interrupted"
        if found["messages"] >= 100:
            return
    pytest.fail(f"only {found['messages']} messages")


def is_connected(pid: int, port: int) -> bool:
    """Whether a process has a connection to that port."""
    return any(one.raddr and one.raddr.port == port for one in psutil.Process(pid).net_connections("tcp"))


def test_the_console_scripts_are_installed_under_their_names() -> None:
    import tomllib

    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["producer-perf"] == "fastlog.tools.producer_perf:main"
    assert scripts["consumer-perf"] == "fastlog.tools.consumer_perf:main"
