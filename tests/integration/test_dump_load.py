"""A topic as one file, and back: the same bytes, whatever ends the commands, and no file that is damaged."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastlog
from fastlog import testing
from fastlog.testing import RunningBroker
from tests.harness import wire07
from tests.harness.broker import ROOT
from tests.harness.command_line import Commands
from tests.harness.data import access_log_lines
from tests.harness.fake_broker import FakeBroker

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def source() -> Iterator[RunningBroker]:
    """Has ``t`` in three of four partitions, over many segments: plain, gzip and snappy."""
    with testing.broker(partitions=4, log_file_size=100_000) as broker:
        lines = access_log_lines()
        for partition, codec in ((0, "none"), (1, "gzip"), (2, "snappy")):
            with fastlog.Producer(broker.address, acks="flushed", compression=codec) as producer:
                for start in range(0, 6000, 200):
                    producer.send("t", list(lines[start : start + 200]), partition=partition)
        yield broker


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capfd)


def log_bytes(broker: RunningBroker, topic: str) -> dict[int, bytes]:
    """The bytes of each partition, over its segments, from the files."""
    found = {}
    for directory in Path(broker.directory).rglob(f"{topic}-*"):
        number = directory.name.removeprefix(f"{topic}-")
        if directory.is_dir() and number.isdigit():
            found[int(number)] = b"".join(path.read_bytes() for path in sorted(directory.glob("*.kafka")))
    return found


@pytest.fixture(scope="module")
def dumped(source: RunningBroker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dump") / "t.dump"
    command = [sys.executable, "-m", "fastlog", "dump", "--brokers", source.address, "--topic", "t", str(path)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL)
    return path


def test_the_log_is_the_same_to_the_byte(source: RunningBroker, dumped: Path, run: Commands) -> None:
    """Into another broker, of other segments and limits; and under another name into the same one."""
    expected = {number: data for number, data in log_bytes(source, "t").items() if data}
    assert len(expected) == 3 and sum(map(len, expected.values())) < dumped.stat().st_size
    with testing.broker(broker_id=7) as other:
        ran = run("load", "--brokers", other.address, str(dumped))
        assert ran.code == 0 and "7-1:" in ran.err and "(was 0-1)" in ran.err
        assert {number: data for number, data in log_bytes(other, "t").items() if data} == expected
        again = run("load", "--brokers", other.address, str(dumped))
        assert again.code == 1 and "is not empty" in again.refused()[0] and "--resume" in again.refused()[2]
        ran = run("load", "--brokers", other.address, "--resume", str(dumped))
        assert ran.code == 0 and f"{sum(map(len, expected.values()))} bytes were there already" in ran.err
        with fastlog.SyncProducer(other.host, other.port) as producer:
            producer.send("t", b"more", 0)
        assert run("load", "--brokers", other.address, "--resume", str(dumped)).code == 1
    assert run("load", "--brokers", source.address, "--topic", "copy", str(dumped)).code == 0
    assert {number: data for number, data in log_bytes(source, "copy").items() if data} == expected


def test_what_was_appended_a_moment_ago_is_in_it(source: RunningBroker, tmp_path: Path, run: Commands) -> None:
    """Though no flush was due yet; and a pipe serves as well as a file."""
    with testing.broker(flush_interval_ms=60_000, flush_interval_messages=10**6) as broker:
        with fastlog.Producer(broker.address, acks="appended") as producer:
            producer.send("t", [b"one", b"two"])
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        script = (
            f"{sys.executable} -m fastlog dump --brokers {broker.address} --topic t - |"
            f" {sys.executable} -m fastlog load --brokers {broker.address} --topic u -"
        )
        subprocess.run(["bash", "-o", "pipefail", "-c", script], check=True, env=environment, stderr=subprocess.DEVNULL)
        assert log_bytes(broker, "u") == log_bytes(broker, "t") and len(log_bytes(broker, "u")[0]) == 26


def test_a_file_that_is_cut_or_damaged_is_refused(
    source: RunningBroker, dumped: Path, tmp_path: Path, run: Commands
) -> None:
    """Wherever it is: nothing is loaded, and the error says where it is."""
    data = dumped.read_bytes()
    path = tmp_path / "bad.dump"
    dice = random.Random(6)
    cuts = [data[:at] for at in (0, 3, 8, 12, 40, len(data) // 2, len(data) - 1)]
    flips = []
    for at in (0, 9, 30, *(dice.randrange(len(data)) for _ in range(5)), len(data) - 2):
        changed = bytearray(data)
        changed[at] ^= 1 << dice.randrange(8)
        flips.append(bytes(changed))
    for bad in (*cuts, *flips, data + b"x"):
        path.write_bytes(bad)
        ran = run("load", "--brokers", source.address, "--topic", "bad", str(path))
        assert ran.code == 5 and "nothing was loaded" in ran.refused()[0] and "position" in ran.refused()[0]
    assert log_bytes(source, "bad") == {}
    with subprocess.Popen(
        [sys.executable, "-m", "fastlog", "load", "--brokers", source.address, "--topic", "piped", "-"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        _, err = process.communicate(data[:-1], timeout=40)
    assert process.returncode == 5 and b"ends by partition: 0-0:" in err and b"is damaged at position" in err
    held = log_bytes(source, "piped")
    assert run("load", "--brokers", source.address, "--topic", "piped", "--resume", str(dumped)).code == 0
    done = log_bytes(source, "piped")
    assert done == log_bytes(source, "t") and all(done[number].startswith(held[number]) for number in held)


def test_a_load_that_was_killed_goes_on(source: RunningBroker, dumped: Path, run: Commands) -> None:
    """kill -9 once a part of it is stored: the same bytes in the end, none of them twice."""
    with testing.broker() as other:
        with subprocess.Popen(
            [sys.executable, "-m", "fastlog", "load", "--brokers", other.address, "-"],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as process:
            assert process.stdin is not None
            data = dumped.read_bytes()
            process.stdin.write(data[: len(data) * 2 // 3])
            process.stdin.flush()
            while sum(map(len, log_bytes(other, "t").values())) < len(data) // 3:
                assert process.poll() is None
            process.kill()
            process.wait()
        before = log_bytes(other, "t")
        assert run("load", "--brokers", other.address, str(dumped)).code == 1
        ran = run("load", "--brokers", other.address, "--resume", str(dumped))
        there = re.search(r"(\d+) bytes were there already", ran.err)
        # what the killed one had sent last may have been stored behind our look
        assert ran.code == 0 and there and int(there[1]) >= sum(map(len, before.values()))
        assert {n: data for n, data in log_bytes(other, "t").items() if data} == {
            n: data for n, data in log_bytes(source, "t").items() if data
        }


@pytest.mark.parametrize("is_stored", [True, False])
def test_an_answer_that_was_lost_is_looked_up(dumped: Path, run: Commands, is_stored: bool) -> None:
    """The connection breaks before or after the append: in the end each byte is there once."""
    from fastlog.wire import requests

    broken: list[int] = []

    def hook(request: requests.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest) and len(broken) < 3 and request.correlation_id % 2:
            broken.append(request.correlation_id)
            raise ConnectionError
        return None

    with FakeBroker(partitions=4, **{"after" if is_stored else "hook": hook}) as fake:  # type: ignore[arg-type]
        ran = run("load", "--brokers", fake.address, str(dumped))
        assert ran.code == 0 and len(broken) == 3
        with FakeBroker(partitions=4) as clean:
            assert run("load", "--brokers", clean.address, str(dumped)).code == 0
            assert fake.logs == clean.logs
