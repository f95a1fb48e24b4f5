"""The commands against a real broker: lines go in and come out, and every end is told apart by its exit code."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fastlog import Producer
from tests.harness import command_process
from tests.harness import raw_client as raw
from tests.harness.broker import ROOT, Broker
from tests.harness.raw_format import deep_payloads

COMMANDS = ["", "produce", "consume", "topics", "topics list", "topics describe", "topics create", "topics offsets"]
COMMANDS += ["dump-log", "fsck", "audit"]


def start(*arguments: str, brokers: str = "") -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
    if brokers:
        environment["FASTLOG_BROKERS"] = brokers
    return subprocess.Popen(
        [sys.executable, "-m", "fastlog", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )


def run(*arguments: str, brokers: str = "", data: bytes = b"") -> tuple[int, bytes, str]:
    """Exit code, stdout, stderr."""
    environment = {"COLUMNS": "200"} | ({"FASTLOG_BROKERS": brokers} if brokers else {})
    return command_process.run(*arguments, data=data, environment=environment)


@pytest.fixture
def brokers(broker: Broker) -> str:
    """The address of the shared broker."""
    return f"127.0.0.1:{broker.port}"


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str) -> None:
    """Two examples first, at most 80 columns, exit codes at the end."""
    code, out, _ = run(*command.split(), "--help")
    lines = out.decode().split("\n")
    assert code == 0 and lines[0] == "Examples:" and lines[3] == ""
    assert all("fastlog" in line for line in lines[1:3])
    assert max(map(len, lines)) <= 80
    assert "Exit codes:" in lines


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy"])
@pytest.mark.parametrize("acks", ["none", "appended", "flushed"])
def test_lines_come_back(
    brokers: str, topic: str, data_lines: tuple[bytes, ...], tmp_path: Path, compression: str, acks: str
) -> None:
    """A file goes in and the same bytes come out, also right after "appended", before any flush was due."""
    path = tmp_path / "input"
    path.write_bytes(b"".join(line + b"\n" for line in data_lines))
    code, out, err = run(
        *("produce", "--topic", topic, "--partition", "2", "--acks", acks, "--compression", compression, str(path)),
        brokers=brokers,
    )
    verb = "sent, not acknowledged:" if acks == "none" else "produced"
    assert (code, out) == (0, b"") and f"{verb} {len(data_lines)} messages" in err and "promised: " in err
    code, out, err = run("consume", "--topic", topic, "--partition", "2", "--exit-at-end", brokers=brokers)
    assert code == 0 and out == path.read_bytes() and f"consumed {len(data_lines)} messages" in err


def test_every_partition_is_read(brokers: str, topic: str, data_lines: tuple[bytes, ...]) -> None:
    """Spread by the broker, gathered by the command, nothing twice and nothing missing."""
    code, _, _ = run(
        *("produce", "--topic", topic, "--batch-bytes", "2000"), brokers=brokers, data=b"\n".join(data_lines)
    )
    assert code == 0
    code, out, _ = run("consume", "--topic", topic, "--exit-at-end", brokers=brokers)
    assert code == 0 and sorted(out.split(b"\n")[:-1]) == sorted(data_lines)
    _, out, _ = run("topics", "describe", topic, "--json", brokers=brokers)
    partitions = [json.loads(line) for line in out.splitlines()]
    assert [item["partition"] for item in partitions] == [0, 1, 2, 3]
    assert all(item["state"] == "ok" and item["log_end"] > 0 for item in partitions)


def test_json(brokers: str, client: raw.RawClient, topic: str) -> None:
    """Offsets to go on from; text as it is, other bytes in base64 and marked."""
    client.produce_ack(topic, 0, raw.entry("é".encode()) + raw.entry(b"\xff\n", 0), raw.FLUSHED)
    code, out, _ = run("consume", "--topic", topic, "--partition", "0", "--exit-at-end", "--json", brokers=brokers)
    first, second = map(json.loads, out.splitlines())
    assert code == 0
    assert (first["offset"], first["next_offset"], first["payload"], first["base64"]) == (0, 12, "é", False)
    assert (second["offset"], base64.b64decode(second["payload"]), second["base64"]) == (12, b"\xff\n", True)
    code, out, _ = run(
        *("consume", "--topic", topic, "--partition", "0", "--offset", "12", "--max-messages", "1"), brokers=brokers
    )
    assert (code, out) == (0, b"\xff\n\n")


@pytest.mark.slow
def test_the_last_messages(start_broker: Callable[..., Broker], data_lines: tuple[bytes, ...]) -> None:
    """Of each partition, over segments, compressed or not, flushed or not; through the socket and from the files."""
    broker = start_broker(
        settings={"num.partitions": 2, "log.file.size": 100_000, "log.flush.interval": 10**6},
    )
    brokers = f"127.0.0.1:{broker.port}"
    for partition, start, codec in ((0, 0, "gzip"), (1, 0, "none"), (1, 1, "gzip"), (1, 2, "none"), (1, 3, "snappy")):
        lines = b"\n".join(data_lines[start * 1000 : (start + 1) * 1000])
        common = ("produce", "--topic", "t", "--partition", str(partition), "--batch-size", "150")
        assert run(*common, "--compression", codec, brokers=brokers, data=lines)[0] == 0
    for count in (1, 700, 2345, 10_000):
        expected = b"".join(line + b"\n" for line in data_lines[max(0, 4000 - count) : 4000])
        for local in ("off", "auto")[: 2 if count == 2345 else 1]:
            arguments = ("consume", "--topic", "t", f"--offset=-{count}", "--exit-at-end", "--local", local)
            assert run(*arguments, "--partition", "1", brokers=brokers)[:2] == (0, expected)
    code, out, _ = run("consume", "--topic", "t", "--offset=-3", "--exit-at-end", brokers=brokers)
    assert code == 0 and sorted(out.splitlines()) == sorted(data_lines[997:1000] + data_lines[3997:4000])


@pytest.mark.slow
def test_keys_go_where_the_producer_sends_them(brokers: str, topic: str, data_lines: tuple[bytes, ...]) -> None:
    """Lines by client address, by the command and by ``fastlog.Producer``: the same in every partition."""
    lines = data_lines[:2000]
    arguments = ("produce", "--topic", topic, "--key-field", "1", "--key-separator", " ")
    code, _, err = run(*arguments, "--compression", "snappy", brokers=brokers, data=b"\n".join(lines))
    assert code == 0 and "produced 2000 messages" in err
    other = f"{topic}-other"
    with Producer(brokers, producer_type="async") as producer:
        for line in lines:
            producer.send(other, line, key=line.split(b" ")[0])
    found: list[dict[int, list[str]]] = [{}, {}]
    for place, name in zip(found, (topic, other), strict=True):
        for line in run("consume", "--topic", name, "--exit-at-end", "--json", brokers=brokers)[1].splitlines():
            item = json.loads(line)
            place.setdefault(item["partition"], []).append(item["payload"])
    assert found[0] == found[1] and sorted(found[0]) == [0, 1, 2, 3]


def test_a_long_message_is_fetched(brokers: str, topic: str) -> None:
    """Longer than the fetch size, up to the broker's limit."""
    text = b"short\n" + b"x" * 1_000_000 + b"\nend\n"
    assert run("produce", "--topic", topic, "--partition", "0", brokers=brokers, data=text)[0] == 0
    arguments = ("consume", "--topic", topic, "--partition", "0", "--exit-at-end", "--fetch-bytes", "1000")
    assert run(*arguments, brokers=brokers)[:2] == (0, text)
    code, _, err = run("produce", "--topic", topic, brokers=brokers, data=b"x" * 1_000_001)
    assert code == 1 and "left out as too long: 1 lines" in err


def test_head_1_exits_0(brokers: str, topic: str, data_lines: tuple[bytes, ...]) -> None:
    """A reader that has enough is no error."""
    text = b"\n".join(data_lines)
    assert run("produce", "--topic", topic, brokers=brokers, data=text)[0] == 0
    with start("consume", "--topic", topic, brokers=brokers) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline()
        process.stdout.close()
        try:
            assert process.wait(30) == 0
        finally:
            process.kill()
        assert process.stderr.read() == b""


def test_follow_until_sigint(brokers: str, client: raw.RawClient, topic: str) -> None:
    """A message sent while the command waits comes at once; SIGINT ends it with a summary and 130."""
    with start("consume", "--topic", topic, "--json", brokers=brokers) as process:
        try:
            assert process.stdout and process.stderr
            assert b"does not exist yet" in process.stderr.readline()
            for number in range(3):
                client.produce(topic, number, raw.entry(b"message %d" % number))
                found = json.loads(process.stdout.readline())
                assert (found["partition"], found["payload"]) == (number, f"message {number}")
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
            assert process.stderr.read().startswith(b"consumed 3 messages")
        finally:
            process.kill()


def test_processors_are_killed_under_the_commands(
    start_broker: Callable[..., Broker], data_lines: tuple[bytes, ...]
) -> None:
    """Both go on by themselves: every line is there, in order; only counted repeats may be there as well."""
    broker = start_broker(processors=2)
    brokers = f"127.0.0.1:{broker.port}"
    numbered = [b"%06d %s" % (number, data_lines[number % len(data_lines)]) for number in range(20_000)]
    with start("produce", "--topic", "t", "--batch-bytes", "4000", brokers=brokers) as process:
        try:
            assert process.stdin and process.stderr
            for part in range(4):
                process.stdin.write(b"".join(line + b"\n" for line in numbered[part * 5000 : (part + 1) * 5000]))
                process.stdin.flush()
                role = f"processor-{part % 2}"
                broker.wait_replaced(role, broker.kill(role))
            process.stdin.close()
            assert process.wait(30) == 0
            assert f"produced {len(numbered)} messages" in process.stderr.read().decode()
        finally:
            process.kill()
    arguments = ("consume", "--topic", "t", "--exit-at-end", "--local", "off", "--fetch-bytes", "20000")
    with start(*arguments, brokers=brokers) as process:
        try:
            assert process.stdout
            found = [process.stdout.readline()]
            for role in ("processor-0", "processor-1"):
                broker.wait_replaced(role, broker.kill(role))
                found += [process.stdout.readline() for _ in range(3000)]
            found += process.stdout.readlines()
            assert process.wait(30) == 0
        finally:
            process.kill()
    lines = [line[:-1] for line in found]
    assert list(dict.fromkeys(lines)) == numbered
    with broker.connect() as client:
        assert lines == deep_payloads(client.read_all("t", 0))


def test_exit_codes(brokers: str, topic: str) -> None:
    """Wrong usage, nobody there, nothing came."""
    assert run("consume", brokers=brokers)[0] == 2
    assert run("consume", "--topic", topic, "--exit-at-end", brokers=brokers)[0] == 2
    assert run("topics", "describe", topic, brokers=brokers)[0] == 2
    code, _, err = run("consume", "--topic", topic, "--brokers", "127.0.0.1:1", "--connect-timeout", "100ms")
    assert code == 3 and "127.0.0.1:1: Connection refused" in err
    assert run("consume", "--topic", topic, "--timeout", "200ms", brokers=brokers)[:2] == (4, b"")


def test_topics(brokers: str, topic: str) -> None:
    """Created, listed, described, and asked for offsets."""
    assert run("topics", "create", topic, "--no-headers", brokers=brokers)[:2] == (0, b"%s\t4\n" % topic.encode())
    assert (
        run("produce", "--topic", topic, "--partition", "1", "--acks", "flushed", brokers=brokers, data=b"x\n")[0] == 0
    )
    _, out, _ = run("topics", "list", "--json", brokers=brokers)
    found = {item["topic"]: item for item in map(json.loads, out.splitlines())}[topic]
    assert found == {"topic": topic, "partitions": 4, "configured": 4, "bytes": 11, "format": "messages"}
    _, out, _ = run("topics", "offsets", topic, "--no-headers", brokers=brokers)
    assert out.split(b"\n")[1] == b"%s\t1\t11" % topic.encode()
    code, _, err = run("topics", "create", "a/b", brokers=brokers)
    assert code == 1 and "name is not allowed" in err


def test_a_topic_that_may_not_be_created(start_broker: Callable[..., Broker]) -> None:
    """The error names the setting that would allow it."""
    brokers = f"127.0.0.1:{start_broker(settings={'auto.create.topics': 'false'}).port}"
    code, _, err = run("topics", "create", "t", brokers=brokers)
    assert code == 1 and "create.topic.requests=true" in err
