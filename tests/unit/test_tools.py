"""The commands against a broker that dies, lies or is old; each runs as a user would run it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import pytest

from fastlog import __version__, _crc, message
from fastlog._segment import payloads
from fastlog.client.addresses import parse_brokers
from fastlog.errors import ConfigError
from fastlog.tools import lines as lines_module
from fastlog.tools.broker_command import make_config
from fastlog.tools.lines import LineBatches
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness.fake_broker import FakeBroker
from tests.harness.timing import PATIENCE

COMMANDS = ["", "produce", "consume", "topics", "topics list", "topics describe", "topics create", "topics offsets"]
COMMANDS += ["perf", "perf compare", "perf report", "info", "zookeeper", "zookeeper start", "zookeeper ls"]
COMMANDS += ["zookeeper get", "groups", "lag", "verify-rebalance", "offsets", "offsets get", "offsets reset"]
COMMANDS += ["offsets export", "offsets import", "tail", "replay", "dump", "load"]


def start(
    arguments: Sequence[str], module: str = "fastlog", environment: dict[str, str] | None = None, prepare: str = ""
) -> subprocess.Popen[bytes]:
    run_prepared = f"import runpy; {prepare}; runpy.run_module({module!r}, run_name='__main__')"
    return subprocess.Popen(
        [sys.executable, *(["-c", run_prepared] if prepare else ["-m", module]), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )


@contextlib.contextmanager
def started(*arguments: str, prepare: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A running command that does not outlive the block; ``prepare`` is Python that its process runs before."""
    with start(arguments, prepare=prepare) as process:
        try:
            yield process
        finally:
            process.kill()


def run(
    *arguments: str, data: bytes = b"", module: str = "fastlog", environment: dict[str, str] | None = None
) -> tuple[int, bytes, str]:
    """The exit code, stdout, and stderr of a command."""
    with start(arguments, module, environment) as process:
        try:
            out, err = process.communicate(data, timeout=60)
        except BaseException:
            process.kill()
            raise
    assert b"Traceback" not in err, err.decode()
    return process.returncode, out, err.decode()


def refused(code: int, err: str) -> list[str]:
    """The three lines of an error."""
    found = err.strip().split("\n")[-3:]
    assert found[1].startswith("  why: ") and found[2].startswith("  do:  "), (code, err)
    return found


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as fake:
        yield fake


# --- help and usage ---


@pytest.mark.parametrize("command", [*COMMANDS, "fastlog-broker"])
def test_help_begins_with_examples_and_fits(command: str) -> None:
    module, words = (
        ("fastlog.tools.broker_command", []) if command == "fastlog-broker" else ("fastlog", command.split())
    )
    code, out, _ = run(*words, "--help", module=module, environment={"COLUMNS": "200"})
    found = out.decode().split("\n")
    assert code == 0 and found[0] == "Examples:"
    assert all(line.startswith("  fastlog") or "| fastlog" in line for line in found[1:3]) and found[3] == ""
    assert max(map(len, found)) <= 80
    assert "Exit codes:" in found


def test_info_names_the_active_path_and_what_is_missing() -> None:
    """R-13: a slower path would be said; an absent package comes with its remedy."""
    code, out, _ = run("info", "--json")
    found = json.loads(out)
    assert code == 0 and found["fastlog"] == __version__
    assert found["checksums"].startswith(_crc.implementation())
    assert found["numpy"] == metadata.version("numpy")
    code, out, _ = run(
        "info", environment={"PATH": "/nowhere", "JAVA_HOME": "", "FASTLOG_ZK_CLASSPATH": "/nowhere.jar"}
    )
    lines = dict(
        line.split(maxsplit=1) for line in out.decode().splitlines() if not line.startswith("zookeeper server")
    )
    assert code == 0 and lines["code"].startswith("compiled")
    assert "FASTLOG_ZK_CLASSPATH names /nowhere.jar" in out.decode()


def test_list_settings_shows_each() -> None:
    code, out, _ = run("--list-settings", module="fastlog.tools.broker_command")
    assert code == 0
    assert "log.flush.interval (default: 50000 messages)" in out.decode()
    assert max(map(len, out.decode().split("\n"))) <= 80


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["produse"], "Did you mean 'produce'"),
        (["consume"], "--topic"),
        (["consume", "--topc", "x"], "--topic"),
        (["consume", "--topic", "t", "--offset", "middle"], "neither beginning"),
        (["consume", "--topic", "t", "--timeout", "5 weeks"], "no duration"),
        (["consume", "--topic", "t", "--brokers", "::1:9092"], "brackets"),
        (["consume", "--topic", "t", "--brokers", "h:0"], "no address"),
        (["produce", "--topic", "a/b"], "illegal character"),
        (["produce", "--topic", "t", "--batch-bytes", "1GB"], "not between"),
        (["produce", "--topic", "t", "/no/such/file"], "/no/such/file"),
        (["topics", "offsets", "t", "--time", "noon"], "neither earliest"),
    ],
)
def test_wrong_usage_exits_2_in_three_lines(arguments: list[str], says: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, b"")
    assert says in "\n".join(refused(code, err))


def test_unreachable_broker_exits_3_and_lists_each_address() -> None:
    code, _, err = run("topics", "list", "--brokers", "127.0.0.1:1,[::1]:1,no.such.host.invalid:5")
    what, why, what_to_do = refused(code, err)
    assert code == 3 and "127.0.0.1:1" in what
    assert "127.0.0.1:1: Connection refused" in why and "[::1]:1: " in why and "no.such.host.invalid:5: " in why
    assert "fastlog-broker" in what_to_do


def test_addresses() -> None:
    assert parse_brokers("a, b:1,[::1]:2,[::1]") == [("a", 9092), ("b", 1), ("::1", 2), ("::1", 9092)]
    for bad in ("", " , ", "a:", ":1", "a:b", "a:65536", "a:-1", "::1", "a:1:2"):
        with pytest.raises(ConfigError):
            parse_brokers(bad)


def test_something_else_on_the_port_exits_3() -> None:
    with FakeBroker(hook=lambda request: b"HTTP/1.1 400 Bad Request\r\n\r\n") as fake:
        code, _, err = run("topics", "list", "--brokers", fake.address)
    assert code == 3 and "does not speak the protocol" in refused(code, err)[1]


# --- settings of the broker ---


def test_flag_before_set_before_file(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("port=1\nbrokerid=1\nnum.partitions=1\nlog.dir=/from/file\n")
    nothing = {"port": None, "brokerid": None}
    config = make_config({"port": "3", "brokerid": None}, False, (), str(path), ("port=2", "brokerid = 2"))
    assert (config.port, config.broker_id, config.partitions, config.log_dirs) == (3, 2, 1, ("/from/file",))
    assert make_config(nothing, False, ("a,b", "c"), str(path), ("log.dir=d",)).log_dirs == ("a,b", "c")
    assert make_config(nothing, True, (), None, ("host=0.0.0.0",)).insecure


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host", "0.0.0.0"], "--insecure"),
        (["--set", "log.flush.intervl=5"], "log.flush.interval"),
        (["--set", "port"], "name=value"),
        (["--config", "/no/such/file"], "No such file"),
        (["--port", "x"], "port: 'x' is no number"),
        (["--set", "enable.zookeeper=true"], "--zookeeper host:port"),
        (["--advertise", "::1"], "IPv6 address in brackets"),
        (["--advertise", "h:"], "HOST:PORT"),
        (["--advertise", "h:x"], "advertised.port: 'x' is no number"),
    ],
)
def test_broker_refuses_in_three_lines(arguments: list[str], says: str) -> None:
    code, out, err = run(*arguments, module="fastlog.tools.broker_command")
    assert (code, out) == (2, b"")
    assert says in "\n".join(refused(code, err))


# --- lines to batches ---


@pytest.mark.parametrize("batch_bytes", [1, 3, 10, 1000])
@pytest.mark.parametrize(
    "text", [b"", b"\n", b"a", b"a\n", b"a\n\nb", b"one\ntwo\nthree\n", b"\n\n\n", b"x" * 50 + b"\ny"]
)
def test_lines_are_what_splitting_the_whole_gives(
    text: bytes, batch_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(text)
    expected = text.removesuffix(b"\n").split(b"\n") if text else []
    for read_bytes in (1, 2, 7, 1000):
        monkeypatch.setattr(lines_module, "_READ_BYTES", read_bytes)
        fd = os.open(path, os.O_RDONLY)
        try:
            found = list(LineBatches(batch_bytes, 1000).read(fd, "f", lambda fd: None))
        finally:
            os.close(fd)
        assert [line for batch in found for line in batch] == expected


@pytest.mark.parametrize("read_bytes", [1, 4, 1000])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_long_lines_are_left_out_and_named(
    read_bytes: int, end: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_module, "_READ_BYTES", read_bytes)
    path = tmp_path / "f"
    path.write_bytes(b"ok\n" + b"x" * 100 + b"\nfine\n123456\n" + b"y" * 30 + end)
    batches = LineBatches(1000, 5)
    fd = os.open(path, os.O_RDONLY)
    try:
        found = [line for batch in batches.read(fd, "f", lambda fd: None) for line in batch]
    finally:
        os.close(fd)
    assert found == [b"ok", b"fine"]
    assert (batches.too_long, batches.first_too_long) == (3, "f, line 2")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy"])
def test_sets_stay_within_the_limits(codec: str) -> None:
    """A compressed set is one message to the broker: it may not be larger than one."""
    lines = [base64.b64encode(os.urandom(150)) for _ in range(200)]
    with FakeBroker(max_message_bytes=1000) as fake:
        arguments = ("--topic", "t", "--batch-bytes", "3000", "--compression", codec)
        code, _, _ = run("produce", "--brokers", fake.address, *arguments, data=b"\n".join(lines))
        stored = fake.logs["t", 0]
        assert code == 0 and len(fake.sets) > 5
        assert max(map(len, fake.sets)) <= (3000 if codec == "none" else 1010)
    assert [item.message.payload for item in message.deep(stored)] == lines


# --- produce ---


def test_round_trip_of_files_and_stdin(broker: FakeBroker, tmp_path: Path) -> None:
    text = b"".join(b"line %d\n" % number for number in range(20_000)) + b"\n\xff\xfe\nlast"
    path = tmp_path / "input"
    path.write_bytes(text)
    code, out, err = run("produce", "--brokers", broker.address, "--topic", "t", str(path), "-", data=b"from stdin\n")
    assert (code, out) == (0, b"") and "produced 20004 messages" in err and "promised: appended" in err
    assert "ProduceRequest" not in broker.seen
    code, out, err = run("consume", "--brokers", broker.address, "--topic", "t", "--exit-at-end")
    assert code == 0 and out == text + b"\nfrom stdin\n"
    assert f"consumed 20004 messages, {len(out) - 20004} bytes" in err
    assert f"next offset by partition: 0:{len(broker.logs['t', 0])}" in err


@pytest.mark.parametrize("codec", ["gzip", "snappy"])
def test_compressed_round_trip(broker: FakeBroker, codec: str) -> None:
    environment = {"FASTLOG_BROKERS": broker.address}
    text = b"".join(b"line %d\n" % number for number in range(5000))
    code, _, _ = run(
        "produce", "--topic", "t", "--compression", codec, "--acks", "flushed", data=text, environment=environment
    )
    assert code == 0 and len(broker.logs["t", 0]) < len(text) + 10 * 5000
    code, out, _ = run("consume", "--topic", "t", "--exit-at-end", environment=environment)
    assert (code, out) == (0, text)


def test_plain_07_broker() -> None:
    """Without the own requests: produce without a promise, fetch with pauses, partition 0."""
    text = b"".join(b"%d\n" % number for number in range(1000))
    with FakeBroker(own=False) as fake:
        code, _, err = run("produce", "--brokers", fake.address, "--topic", "t", data=text)
        assert code == 0 and "promised: nothing" in err
        code, out, _ = run("consume", "--brokers", fake.address, "--topic", "t", "--exit-at-end")
        assert (code, out) == (0, text)
        code, out, _ = run("topics", "offsets", "t", "--brokers", fake.address, "--no-headers")
        assert (code, out) == (0, b"t\t0\t%d\n" % len(fake.logs["t", 0]))
        code, _, err = run("produce", "--brokers", fake.address, "--topic", "t", "--acks", "flushed", data=text)
        assert code == 2 and "plain Kafka 0.7" in refused(code, err)[1]
        code, _, err = run("topics", "list", "--brokers", fake.address)
        assert code == 2 and "plain Kafka 0.7" in refused(code, err)[1]


def test_unacknowledged_batches_are_sent_again_in_order() -> None:
    """The third append is done and not answered: everything arrives, in order, and the repeats are counted."""
    acked = 0

    def die_once(request: rq.Request) -> bytes | None:
        nonlocal acked
        if isinstance(request, rq.ProduceAckRequest):
            acked += 1
            if acked == 3:
                raise ConnectionError
        return None

    sent = [b"line %d" % number for number in range(2000)]
    with FakeBroker(after=die_once) as fake:
        code, _, err = run(
            *("produce", "--brokers", fake.address, "--topic", "t", "--batch-bytes", "1000"), data=b"\n".join(sent)
        )
        found = payloads(fake.logs["t", 0])
    assert code == 0 and "produced 2000 messages" in err and "possible duplicates" in err
    assert sorted(set(found), key=found.index) == sent  # the first copies, in order: nothing lost
    assert len(found) > len(sent)


def test_refused_batches_are_counted_and_exit_1() -> None:
    def full(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.ProduceAckRequest):
            return rs.encode_produce_ack(rs.ProduceAckAnswer(request.correlation_id, 103))
        return None

    with FakeBroker(hook=full) as fake:
        code, _, err = run(
            "produce", "--brokers", fake.address, "--topic", "t", "--property", "num.retries=2", data=b"a\nb\n"
        )
    assert code == 1 and "produced 0 messages" in err and "failed: 2" in err
    assert "error 103" in refused(code, err)[0]


def test_lines_above_the_limit_exit_1() -> None:
    with FakeBroker(max_message_bytes=10) as fake:
        code, _, err = run("produce", "--brokers", fake.address, "--topic", "t", data=b"ok\n" + b"x" * 11 + b"\nfine\n")
        assert payloads(fake.logs["t", 0]) == [b"ok", b"fine"]
    assert code == 1 and "left out as too long: 1 lines, the first at stdin, line 2" in err


def test_produce_stops_on_sigint_with_what_it_read(broker: FakeBroker) -> None:
    with started("produce", "--brokers", broker.address, "--topic", "t") as process:
        assert process.stdin and process.stderr
        process.stdin.write(b"one\ntwo\nunfinished")
        process.stdin.flush()
        deadline = time.monotonic() + PATIENCE
        while not broker.logs and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        assert "produced 2 messages" in process.stderr.read().decode()
    assert payloads(broker.logs["t", 0]) == [b"one", b"two"]


# --- consume ---


def test_json(broker: FakeBroker) -> None:
    broker.logs["t", 0] = message.encode_set(["é".encode(), b"\xff\n"]) + message.encode_set([b"in", b"side"], codec=1)
    code, out, _ = run("consume", "--brokers", broker.address, "--topic", "t", "--exit-at-end", "--json")
    found = [json.loads(line) for line in out.splitlines()]
    end = len(broker.logs["t", 0])
    assert code == 0
    assert found[0] == {
        "topic": "t", "partition": 0, "offset": 0, "next_offset": 12, "payload": "é", "base64": False,
    }  # fmt: skip
    assert base64.b64decode(found[1]["payload"]) == b"\xff\n" and found[1]["base64"]
    assert [(item["offset"], item["next_offset"]) for item in found] == [(0, 12), (12, 24), (24, 24), (24, end)]


def test_selection(broker: FakeBroker) -> None:
    broker.partitions = 3
    for partition in (0, 2):
        broker.logs["t", partition] = message.encode_set([b"%d%d" % (partition, number) for number in range(5)])
    common = ("consume", "--brokers", broker.address, "--topic", "t")
    assert sorted(run(*common, "--exit-at-end")[1].split()) == [b"%d%d" % (p, n) for p in (0, 2) for n in range(5)]
    code, out, err = run(*common, "--partition", "2", "--offset", "24", "--max-messages", "2")
    assert (code, out) == (0, b"22\n23\n") and "next offset by partition: 2:48" in err
    assert run(*common, "--partition", "1", "--exit-at-end")[:2] == (0, b"")
    code, out, err = run(*common, "--offset", "12", "--exit-at-end")
    assert (code, out) == (2, b"") and "--partition" in refused(code, err)[2]
    assert run(*common, "--offset", "end", "--exit-at-end")[:2] == (0, b"")
    code, out, err = run(*common, "--offset", "end", "--timeout", "100ms")
    assert (code, out) == (4, b"")
    code, out, err = run(*common, "--partition", "0", "--offset", "1000", "--exit-at-end")
    assert (code, out) == (0, b"")  # already behind the end
    code, out, err = run(*common, "--partition", "0", "--offset", "1000")
    what, why, _ = refused(code, err)
    assert code == 1 and "error 1" in what and "from 0 to 60" in why


def test_unknown_topic_is_named(broker: FakeBroker) -> None:
    broker.logs["access", 0] = b""
    code, out, err = run("consume", "--brokers", broker.address, "--topic", "acces", "--exit-at-end")
    assert (code, out) == (2, b"") and "did you mean 'access'" in refused(code, err)[2]
    code, _, err = run("topics", "describe", "acess", "--brokers", broker.address)
    assert code == 2 and "did you mean 'access'" in refused(code, err)[2]


def test_fetch_grows_for_a_long_message(broker: FakeBroker) -> None:
    sent = [b"short", b"x" * 100_000, b"y" * 3, b"z" * 200_000]
    broker.logs["t", 0] = message.encode_set(sent)
    code, out, _ = run("consume", "--brokers", broker.address, "--topic", "t", "--exit-at-end", "--fetch-bytes", "16")
    assert code == 0 and out.split(b"\n")[:-1] == sent


@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_damage_exits_5_after_what_is_whole(broker: FakeBroker, extra: list[str]) -> None:
    good = message.encode_set([b"one", b"two"])
    bad = bytearray(message.encode_set([b"three"]))
    bad[-1] ^= 1
    broker.logs["t", 0] = good + bytes(bad) + good
    code, out, err = run("consume", "--brokers", broker.address, "--topic", "t", "--exit-at-end", *extra)
    assert code == 5 and out.count(b"\n") == 2
    assert f"partition 0, offset {len(good)}" in refused(code, err)[0]


def test_damage_inside_a_compressed_set_exits_5(broker: FakeBroker) -> None:
    good = message.encode_set([b"one"])
    broker.logs["t", 0] = good + message.Message(b"no gzip", 1, 1).encode()
    code, out, err = run("consume", "--brokers", broker.address, "--topic", "t", "--exit-at-end")
    assert (code, out) == (5, b"one\n") and f"offset {len(good)}" in refused(code, err)[0]


@pytest.mark.parametrize("claim", [-5, 2**30])
def test_absurd_length_exits_5(broker: FakeBroker, claim: int) -> None:
    broker.logs["t", 0] = claim.to_bytes(4, "big", signed=True) + b"\x01" * 60
    code, out, _ = run("consume", "--brokers", broker.address, "--topic", "t", "--exit-at-end")
    assert (code, out) == (5, b"")


def test_consume_goes_on_after_the_connection_broke() -> None:
    """R-28: at the right offset; nothing twice, nothing lost."""
    fetches = 0

    def die(request: rq.Request) -> bytes | None:
        nonlocal fetches
        if isinstance(request, rq.HeldFetchRequest):
            fetches += 1
            if fetches % 3 == 0:
                raise ConnectionError
        return None

    sent = [b"line %d" % number for number in range(3000)]
    with FakeBroker(after=die) as fake:
        fake.logs["t", 0] = message.encode_set(sent)
        code, out, _ = run(
            "consume", "--brokers", fake.address, "--topic", "t", "--exit-at-end", "--fetch-bytes", "10000"
        )
    assert code == 0 and out.split(b"\n")[:-1] == sent and fetches > 6


def test_more_partitions_than_connections(broker: FakeBroker) -> None:
    broker.partitions = 70
    for partition in range(70):
        broker.logs["t", partition] = message.encode_set([b"%d" % partition] * 2)
    code, out, _ = run("consume", "--brokers", broker.address, "--topic", "t", "--exit-at-end")
    assert code == 0 and sorted(out.split(), key=int) == [b"%d" % (number // 2) for number in range(140)]


def test_head_1_exits_0_quietly(broker: FakeBroker) -> None:
    """A reader that has enough closes the pipe: that is success, without a word."""
    broker.logs["t", 0] = message.encode_set([b"x" * 1000] * 5000)
    with started("consume", "--brokers", broker.address, "--topic", "t") as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == b"x" * 1000 + b"\n"
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr.read() == b""


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("blocked_on", ["an answer", "the reader of the pipe"])
def test_signal_stops_consume_at_once(broker: FakeBroker, signum: signal.Signals, code: int, blocked_on: str) -> None:
    """R-1: whatever it waits for goes on for ever, so it ends because of the signal; with a summary."""
    count = 1 if blocked_on == "an answer" else 5000
    broker.logs["t", 0] = message.encode_set([b"x" * 1000] * count)
    with started("consume", "--brokers", broker.address, "--topic", "t") as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == b"x" * 1000 + b"\n"
        time.sleep(0.1)
        process.send_signal(signum)
        assert process.wait(PATIENCE) == code
        process.stdout.close()
        err = process.stderr.read().decode()
    assert err.startswith("consumed ") and "Traceback" not in err


# --- topics ---


def test_topics(broker: FakeBroker) -> None:
    environment = {"FASTLOG_BROKERS": broker.address}
    assert run("topics", "create", "new", environment=environment)[:2] == (0, b"topic\tpartitions\nnew\t1\n")
    broker.logs["t", 0] = message.encode_set([b"x"] * 10)
    code, out, _ = run("topics", "list", "--no-headers", environment=environment)
    assert (code, out) == (0, b"new\t1\t1\t0\nt\t1\t1\t110\n")
    code, out, _ = run("topics", "describe", "t", "--json", environment=environment)
    assert json.loads(out) == {
        "topic": "t", "partition": 0, "state": "ok", "log_start": 0, "high_watermark": 110, "log_end": 110,
        "unflushed": 0,
    }  # fmt: skip
    code, out, _ = run("topics", "offsets", "t", "--time", "earliest", environment=environment)
    assert (code, out) == (0, b"topic\tpartition\toffset\nt\t0\t0\n")
