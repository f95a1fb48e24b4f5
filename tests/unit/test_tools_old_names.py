"""Names of old: of options, as 0.7's tools have them, each with its meaning there; of commands that were moved."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from fastlog.message import encode_set
from fastlog.tools import options
from fastlog.tools.consume import consume_command
from fastlog.tools.old_names import translated
from fastlog.tools.produce import produce_command
from fastlog.tools.replay import replay_command
from fastlog.tools.topics import offsets_command
from tests.harness.command_line import Commands
from tests.harness.command_process import run
from tests.harness.fake_broker import FakeBroker


@pytest.mark.parametrize(
    ("command", "given", "ours"),
    [
        (consume_command, "--consumer-timeout-ms 1500", "--timeout 1500ms"),
        (consume_command, "--consumer-timeout-ms=-1 --topic t", "--topic t"),
        (consume_command, "--autocommit.interval.ms 100", "--commit-interval 100ms"),
        (consume_command, "--server kafka://h:9092 --fetchsize 100", "--brokers h:9092 --fetch-bytes 100"),
        (consume_command, "--print-offsets --print-messages x", "--format offsets x"),
        (consume_command, "-- --server", "-- --server"),
        (produce_command, "--timeout 20 --compress --props=a.b", "--queue-time 20ms --compression gzip --config a.b"),
        (replay_command, "--inputtopic a --messages -1", "--input-topic a"),
        (replay_command, "--outputtopic a --messages 7", "--output-topic a --messages 7"),
        (replay_command, "--brokerinfo zk.connect=h:1/p", "--to-zookeeper h:1/p"),
        (replay_command, "--brokerinfo broker.list=0:a:1,7:b:2,c:3", "--to-brokers a:1,b:2,c:3"),
        (replay_command, "--compression-codec 2", "--compression snappy"),
        (offsets_command, "--topic t --offsets 3 --server kafka://h:1", "t --max 3 --brokers h:1"),
    ],
)
def test_each_means_what_it_meant(command: options.Command, given: str, ours: str) -> None:
    assert translated(given.split(), command.old_names) == ours.split()


@pytest.mark.parametrize("given", ["--compression-codec 3", "--brokerinfo h:1", "--brokerinfo"])
def test_what_cannot_be_meant(given: str) -> None:
    with pytest.raises(click.UsageError, match=given.split()[0]):
        translated(given.split(), replay_command.old_names)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as fake:
        fake.logs["t", 0] = encode_set([b"one", b"two"])
        yield fake


def test_command_lines_of_07(broker: FakeBroker, capfd: pytest.CaptureFixture[str]) -> None:
    """As they stand in its documents, but for the address."""
    run, server = Commands(capfd), f"kafka://{broker.address}"
    ran = run("topics", "offsets", "--server", server, "--topic", "t", "--partition", "0", "--time", "-2",
              "--offsets", "1", "--no-headers")  # fmt: skip
    assert (ran.code, ran.out) == (0, "t\t0\t0\n")
    ran = run("consume", "--server", server, "--topic", "t", "--partition", "0", "--offset", "0", "--fetchsize",
              "1000000", "--print-offsets", "--print-messages", "--consumer-timeout-ms", "200",
              "--socket-buffer-size", "2097152")  # fmt: skip
    assert (ran.code, ran.out) == (0, "0\t0\tone\n0\t13\ttwo\n")
    ran = run("consume", "--consumer-timeout-ms", "soon", "--topic", "t")
    assert ran.code == 2 and "--timeout" in ran.refused()[0]


def test_help_lists_them(capfd: pytest.CaptureFixture[str]) -> None:
    shown = Commands(capfd)("replay", "--help").out
    assert "Names of Kafka 0.7:\n  --inputtopic " in shown and "--to-zookeeper or --to-brokers" in shown


@pytest.mark.parametrize("arguments", [[], ["a.json", "b.json", "--fail-below", "1"], ["--help"]])
@pytest.mark.parametrize("name", ["compare", "report"])
def test_the_old_names_say_where_the_commands_are(name: str, arguments: list[str]) -> None:
    """``fastlog perf`` refuses whatever it is given, with the code of wrong usage and the new name."""
    code, out, error = run("perf", name, *arguments)
    assert (code, out) == (2, b"")
    assert f"fastlog perf {name} is called python -m perf {name} now" in error
    assert f"do:  in a checkout, with the same arguments: python -m perf {name}" in error


def test_help_of_perf_names_the_new_commands() -> None:
    """``fastlog perf --help`` shows how they are called now, and what each was for."""
    code, out, _ = run("perf", "--help")
    assert code == 0
    for said in ("python -m perf compare --help", "python -m perf report --help", "Compare two result files."):
        assert said in out.decode()
