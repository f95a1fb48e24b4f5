"""The commands as a user runs them: help, wrong usage, settings of the broker, topics."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from fastlog import __version__, _crc, message
from fastlog.client.addresses import parse_brokers
from fastlog.errors import ConfigError
from fastlog.tools.broker_command import make_config
from tests.harness.checkout import ROOT
from tests.harness.command_process import refused, run
from tests.harness.fake_broker import FakeBroker

COMMANDS = ["", "produce", "consume", "topics", "topics list", "topics describe", "topics create", "topics offsets"]
COMMANDS += ["info", "zookeeper", "zookeeper start", "zookeeper ls"]
COMMANDS += ["zookeeper get", "groups", "lag", "verify-rebalance", "offsets", "offsets get", "offsets reset"]
COMMANDS += ["offsets export", "offsets import", "tail", "replay", "dump", "load"]
COMMANDS += ["metrics", "metrics dashboard", "metrics rules", "doctor", "selftest", "logging", "top"]


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


WITHOUT_CTYPES = """
import pkgutil, sys
sys.modules["_ctypes"] = None
from fastlog import tools
from fastlog.tools import doctor_machine
from fastlog.zkserver import server
for module in pkgutil.iter_modules(tools.__path__, "fastlog.tools."):
    __import__(module.name)
print(doctor_machine._is_kept())
try:
    server._die_with_parent()
except server.ServerStartError as error:
    print(error)
"""


def test_a_python_without_ctypes_lacks_one_command() -> None:
    """It is built so where libffi's headers are missing. All that starts a ZooKeeper says it; no import fails."""
    ran = subprocess.run([sys.executable, "-c", WITHOUT_CTYPES], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    kept, error = ran.stdout.splitlines()
    assert kept == "True" and error.startswith("this Python has no ctypes") and "libffi" in error


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
        (["topics", "offsets", "t", "--time", "0" * 20 + "9" * 20], "neither earliest"),
    ],
)
def test_wrong_usage_exits_2_in_three_lines(arguments: list[str], says: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, b"")
    assert says in "\n".join(refused(code, err))


def test_unreachable_broker_exits_3_and_lists_each_address() -> None:
    code, _, err = run("topics", "list", "--brokers", "127.0.0.1:1,[::1]:1,no.such.host.invalid:5",
                       "--connect-timeout", "100ms")  # fmt: skip
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


# --- topics ---


def test_topics(broker: FakeBroker) -> None:
    environment = {"FASTLOG_BROKERS": broker.address}
    assert run("topics", "create", "new", environment=environment)[:2] == (0, b"topic\tpartitions\nnew\t1\n")
    broker.logs["t", 0] = message.encode_set([b"x"] * 10)
    code, out, _ = run("topics", "list", "--no-headers", environment=environment)
    assert (code, out) == (0, b"new\t1\t1\t0\tmessages\nt\t1\t1\t110\tmessages\n")
    code, out, _ = run("topics", "describe", "t", "--json", environment=environment)
    assert json.loads(out) == {
        "topic": "t", "partition": 0, "state": "ok", "log_start": 0, "high_watermark": 110, "log_end": 110,
        "unflushed": 0,
    }  # fmt: skip
    code, out, _ = run("topics", "offsets", "t", "--time", "earliest", environment=environment)
    assert (code, out) == (0, b"topic\tpartition\toffset\nt\t0\t0\n")


# --- what to do ---


@pytest.mark.parametrize(
    ("arguments", "module", "hint"),
    [
        (["mirror"], "fastlog", "fastlog mirror --list-settings shows every setting"),
        (["topics", "list", "--brokers", "h:0,,"], "fastlog", "write for example localhost:9092"),
        (
            ["zookeeper", "ls", "--zookeeper", "h:x"],
            "fastlog",
            "fastlog zookeeper ls --help shows examples and every option",
        ),
        (["--set", "a.b=1"], "fastlog.tools.broker_command", "fastlog-broker --list-settings shows every setting"),
    ],
)
def test_a_setting_that_cannot_be_used_is_looked_up_where_it_stands(
    arguments: list[str], module: str, hint: str
) -> None:
    code, _, err = run(*arguments, module=module)
    assert code == 2 and refused(code, err)[2] == f"  do:  {hint}"


@pytest.mark.parametrize("group", [[], ["zookeeper"], ["offsets"]])
def test_a_group_alone_shows_its_help(group: list[str]) -> None:
    """As it stands, and not as the reason of an error."""
    code, out, err = run(*group)
    assert (code, out) == (2, b"") and err.startswith("Examples:\n") and "why:" not in err


def test_the_help_leads_those_who_come_from_kafka_to_commands_that_exist() -> None:
    """Each tool with its command, and the page with the options."""
    code, out, _ = run("--help")
    text = " ".join(out.decode().split())
    assert code == 0
    for tool, command in {
        "-P is": "produce",
        "-C": "consume",
        "-L": "topics list",
        "-Q": "topics offsets",
        "kafka-topics is": "topics",
        "kafka-consumer-groups is": "groups, lag and offsets",
        "kafka-dump-log is": "dump-log",
    }.items():
        assert f"{tool} {command}" in text
        for name in re.split(", | and ", command):
            assert run(*name.split(), "--help")[0] == 0
    assert "docs/coming-from-kafka.md" in text and (ROOT / "docs" / "coming-from-kafka.md").is_file()
