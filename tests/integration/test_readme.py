"""The commands of README.md, pasted into a shell in an empty directory where nothing runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.harness.broker import ROOT
from tests.harness.pages import free_ports, run_steps

BLOCKS = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
SECONDS = 90


def pasted(block: str, tmp_path: Path) -> tuple[list[str], str]:
    """What each line prints, and stderr; with ports that are free in the place of those that it names, or takes."""
    ports = free_ports(["2181", "9092", "9093"])
    text = re.sub(r"fastlog-broker --daemon(?! --port)", "fastlog-broker --daemon --port 9092", block)
    text = re.sub(r"\b(2181|9092|9093)\b", lambda found: ports[found[1]], text)
    where = f"export FASTLOG_BROKERS=127.0.0.1:{ports['9092']}\n"
    printed, said = run_steps([where, *(f"{line}\n" for line in text.splitlines())], tmp_path, SECONDS)
    return printed[1:-1], said


def test_there_are_two() -> None:
    assert len(BLOCKS) == 2


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 30)
def test_produce_and_consume(tmp_path: Path) -> None:
    """No command is refused because the one before it is not ready, none hangs, and what is read is what was sent."""
    printed, said = pasted(BLOCKS[0], tmp_path)
    assert len(printed[4].split()) == 3
    assert printed[5].count('"partition": 0') == len(printed[5].splitlines()) == 2
    assert printed[7] == "hello\n"
    assert "logs\t0\tok" in printed[8]
    assert "produced 100000 messages" in said and "consumed 200000 messages" in said and "stopped: process" in said


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(SECONDS + 30)
def test_clusters_and_groups(tmp_path: Path) -> None:
    """The group goes on where it was."""
    printed, _ = pasted(BLOCKS[1], tmp_path)
    assert len(printed[5].split()) == 1
    assert "views\tlogs\t0-0" in printed[6]
    assert printed[7] == "70000\n"
