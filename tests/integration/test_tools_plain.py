"""The tools with a broker that speaks plain 0.7 and nothing else, found through a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import fastlog
from fastlog.message import encode_set
from tests.harness.command_line import Commands
from tests.harness.fake_broker import FakeBroker
from tests.harness.raw_format import deep_payloads, message_set
from tests.harness.site import Site

pytestmark = [pytest.mark.slow, pytest.mark.java]
FIRST = [b"first %d" % number for number in range(500)]
SECOND = [b"second %d" % number for number in range(300)]


class Plain(NamedTuple):
    """A 0.7 broker of the id 3 with two partitions of ``old``, in a part of the tree of its own."""

    connect: str
    logs: dict[tuple[str, int], bytes]


@pytest.fixture
def plain(site: Site, topic: str) -> Iterator[Plain]:
    with FakeBroker(own=False, partitions=2) as fake:
        fake.logs["old", 0] = message_set(FIRST, magic=0)
        fake.logs["old", 1] = encode_set(SECOND[:200], 1) + encode_set(SECOND[200:])
        base = f"/plain-{topic}"
        site.node(f"{base}/brokers/ids/3", f"h-1346000000000:127.0.0.1:{fake.port}", ephemeral=True)
        site.node(f"{base}/brokers/topics/old/3", "2", ephemeral=True)
        site.node(f"{base}/consumers/g/offsets/old/3-0", "0")
        yield Plain(f"{site.connect}{base}", fake.logs)
        site.client.delete(base, recursive=True)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capfd)


def test_groups_and_offsets(plain: Plain, run: Commands) -> None:
    """Lag, and a reset to a message: the broker tells no boundaries, so the log is walked through."""
    common = ("--zookeeper", plain.connect, "--group", "g")
    first, second = run("lag", *common, "--json").rows
    assert (first["lag"], second["lag"]) == (len(plain.logs["old", 0]), None)
    assert abs(first["lag_messages_estimate"] - len(FIRST)) < 50 and second["note"] == "nothing is committed"
    reset = ("offsets", "reset", *common, "--topic", "old", "--partition", "3-0", "--execute")
    at = len(message_set(FIRST[:100], magic=0))
    assert "at 0 and at 16" in run(*reset, "--to-offset", "3").refused()[1]
    assert run(*reset, "--to-offset", str(at)).code == 0
    ran = run("consume", *common, "--topic", "old", "--exit-at-end", "--format", "offsets")
    assert [line.split("\t")[3].encode() for line in ran.out.splitlines() if "\t3-0\t" in line] == FIRST[100:]


def test_whole_topics(site: Site, plain: Plain, run: Commands, tmp_path: Path, topic: str) -> None:
    """Followed, dumped and replayed from there; a load needs acknowledgements, and goes to others."""
    source = ("--zookeeper", plain.connect)
    ran = run("tail", "old", *source, "-n", "2", "--max-messages", "4", "--json")
    assert sorted(row["payload"].encode() for row in ran.rows) == sorted(FIRST[-2:] + SECOND[-2:])
    path = tmp_path / "old.dump"
    assert run("dump", *source, "--topic", "old", str(path)).code == 0
    ran = run("load", *source, "--topic", "new", str(path))
    assert ran.code == 2 and "cannot be loaded into" in ran.refused()[0]
    address = site.brokers[1].address
    assert run("load", "--brokers", address, "--topic", f"{topic}-loaded", str(path)).code == 0
    ran = run("replay", *source, "--to-brokers", address, "--input-topic", "old", "--output-topic", f"{topic}-replayed")
    assert ran.code == 0 and f"{len(FIRST + SECOND)} acknowledged" in ran.err
    with fastlog.SimpleConsumer(site.brokers[1].host, site.brokers[1].port) as consumer:
        for number, payloads in enumerate((FIRST, SECOND)):
            assert list(consumer.payloads(f"{topic}-loaded", number)) == payloads
            assert list(consumer.payloads(f"{topic}-replayed", number)) == payloads
    for number in (0, 1):
        stored = site.brokers[1].data_directory / f"{topic}-loaded-{number}" / f"{0:020}.kafka"
        assert stored.read_bytes() == plain.logs["old", number]
    ran = run("replay", "--brokers", address, "--to-zookeeper", plain.connect, "--input-topic", f"{topic}-loaded",
              "--output-topic", "back")  # fmt: skip
    assert ran.code == 0
    back = [line for (name, _), log in plain.logs.items() if name == "back" for line in deep_payloads(log)]
    assert sorted(back) == sorted(FIRST + SECOND)
