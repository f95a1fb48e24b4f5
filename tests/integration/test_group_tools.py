"""The tools for groups on two brokers and a real ZooKeeper: groups of fastlog, and one whose nodes 0.7 wrote."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fastlog
from tests.harness.broker import ROOT
from tests.harness.command_line import Commands
from tests.harness.site import LINES, Site, Tools

pytestmark = [pytest.mark.slow, pytest.mark.java]


@pytest.fixture
def old_group(site: Site, topic: str) -> Iterator[str]:
    """A group as two 0.7 consumers leave it in ZooKeeper, with all its nodes."""
    group = f"old-{topic}"
    base = f"/consumers/{group}"
    first, second = f"{group}_web1-1346000000000-1a2b3c4d", f"{group}_web2-1346000000001-5e6f7081"
    site.node(f"{base}/ids/{first}", '{ "logs": 1 }', ephemeral=True)
    site.node(f"{base}/ids/{second}", '{ "logs": 1 }', ephemeral=True)
    for partition, owner in (("0-0", first), ("0-1", first), ("1-0", second), ("1-1", second)):
        site.node(f"{base}/owners/logs/{partition}", f"{owner}-0", ephemeral=True)
        site.node(f"{base}/offsets/logs/{partition}", "0")
    yield group
    site.client.delete(base, recursive=True)


def place(row: dict[str, Any]) -> str:
    """The partition of an object, as ZooKeeper has it."""
    return f"{row['broker']}-{row['partition']}"


def test_a_group_of_0_7_is_shown(site: Site, tools: Tools, old_group: str) -> None:
    """Its members and owners, and the lag of each partition: bytes, and messages as an estimate that says so."""
    ends = site.ends("logs")
    listed = [row for row in tools("groups", "--json").rows if row["group"] == old_group]
    assert listed == [{"group": old_group, "members": 2, "topics": ["logs"], "owned": 4, "unowned": 0, "committed": 4}]
    members = tools("groups", "--group", old_group, "--json").rows
    assert [(row["subscription"], row["owns"]) for row in members] == [
        ('{ "logs": 1 }', ["0-0", "0-1"]),
        ('{ "logs": 1 }', ["1-0", "1-1"]),
    ]
    rows = tools("lag", "--group", old_group, "--json").rows
    assert {place(row): row["lag"] for row in rows} == ends
    estimated = sum(row["lag_messages_estimate"] for row in rows)
    assert abs(estimated - len(LINES)) < 0.05 * len(LINES)
    assert all(row["owner"].startswith(old_group) and row["log_size"] == row["lag"] for row in rows)
    ran = tools("lag", "--group", old_group)
    assert ran.code == 0 and "~messages" in ran.out.splitlines()[0] and all(row[7][0] == "~" for row in ran.table)


def test_the_lines_of_0_7s_offset_checker(site: Site, tools: Tools, old_group: str) -> None:
    end = site.ends("logs")["0-1"]
    owner = site.client.get(f"/consumers/{old_group}/owners/logs/0-1")[0].decode()
    site.node(f"/consumers/{old_group}/offsets/logs/0-1", "9")
    out = tools("lag", "--group", old_group, "--format", "0.7").out
    assert (
        f"{old_group},logs,0-1 (Group,Topic,BrokerId-PartitionId)\n"
        f"            Owner = {owner}\n"
        "  Consumer offset = 9\n"
        "                  = 9 (0.00G)\n"
        f"         Log size = {end}\n"
        f"                  = {end:,} (0.00G)\n"
        f"     Consumer lag = {end - 9}\n"
        f"                  = {end - 9:,} (0.00G)\n\n"
    ) in out
    assert out.endswith(f"BROKER INFO\n0 -> {site.brokers[0].address}\n1 -> {site.brokers[1].address}\n")


def test_names_that_others_wrote_command_no_terminal(site: Site, tools: Tools, old_group: str) -> None:
    """Owner, subscription, and what makes no sense; a program gets them as they are."""
    base = f"/consumers/{old_group}"
    site.node(f"{base}/owners/logs/0-1", "evil\x1b[31m\u202ename")
    site.node(f"{base}/ids/{old_group}_c", "*1*logs\u202e")
    site.node(f"{base}/offsets/logs/1-1", "\x1b]0;pwned\x07")
    for command in ("lag", "lag --format 0.7", "verify-rebalance", "groups", "offsets get"):
        name, *options = command.split(" --")
        ran = tools(name, *(f"--{options[0]}".split() if options else ()), "--group", old_group)
        assert not {"\x1b", "\u202e", "\x07"} & set(ran.out + ran.err), ran
    assert r"evil\x1b[31m\u202ename" in tools("lag", "--group", old_group).out
    assert any(row["owner"] == "evil\x1b[31m\u202ename" for row in tools("lag", "--group", old_group, "--json").rows)


def test_verify_rebalance(site: Site, tools: Tools, old_group: str) -> None:
    """Exit code 1 when a partition lacks an owner, and when the owner is no thread of a live member."""
    ran = tools("verify-rebalance", "--group", old_group)
    assert (ran.code, ran.out) == (0, "") and "Rebalance operation successful !" in ran.err
    site.client.delete(f"/consumers/{old_group}/owners/logs/1-1")
    site.node(f"/consumers/{old_group}/owners/logs/0-0", "somebody-0")
    ran = tools("verify-rebalance", "--group", old_group)
    assert ran.code == 1 and "Rebalance operation failed !" in ran.err
    assert [row[1:4] for row in ran.table] == [["logs", "0-0", "somebody-0"], ["logs", "1-1", "-"]]
    assert tools("verify-rebalance", "--group", "nobody").code == 2


def test_offsets_are_reset_after_a_dry_run(site: Site, tools: Tools, old_group: str) -> None:
    """Not while members live; only to message boundaries; and what is shown before is what is written."""
    ends = site.ends("logs")
    path = f"/consumers/{old_group}/offsets/logs"
    reset = ("--group", old_group, "--topic", "logs")

    def stored() -> dict[str, int]:
        return {name: int(site.client.get(f"{path}/{name}")[0]) for name in site.client.get_children(path)}

    dry = tools("offsets reset", *reset, "--to-latest", "--json")
    assert dry.code == 0 and "dry run: nothing was written" in dry.err and set(stored().values()) == {0}
    assert {place(row): row["new_offset"] for row in dry.rows} == ends
    ran = tools("offsets reset", *reset, "--to-latest", "--execute")
    assert ran.code == 1 and "2 live members" in ran.refused()[0] and "--force" in ran.refused()[2]
    assert set(stored().values()) == {0}
    ran = tools("offsets reset", *reset, "--to-latest", "--execute", "--force")
    assert ran.code == 0 and stored() == ends and "their next commit undoes this" in ran.err
    for member in site.client.get_children(f"/consumers/{old_group}/ids"):
        site.client.delete(f"/consumers/{old_group}/ids/{member}")
    assert tools("offsets reset", *reset, "--to-earliest", "--execute").code == 0 and set(stored().values()) == {0}
    ran = tools("offsets reset", *reset, "--to-offset", "17", "--execute")
    assert ran.code == 2 and "needs --partition" in ran.refused()[0]
    ran = tools("offsets reset", *reset, "--to-offset", "17", "--partition", "0-1", "--execute")
    assert ran.code == 1 and "inside a message" in ran.refused()[1]
    after = re.findall(r"at (\d+)", ran.refused()[1])[-1]
    assert tools("offsets reset", *reset, "--to-offset", str(ends["0-1"] + 1), "--partition", "0-1").code == 1
    ran = tools("offsets reset", *reset, "--to-offset", after, "--partition", "0-1", "--execute")
    assert ran.code == 0 and stored() == {"0-0": 0, "0-1": int(after), "1-0": 0, "1-1": 0}
    assert tools("offsets reset", *reset, "--to-time", "1h", "--execute").code == 0 and set(stored().values()) == {0}
    assert tools("offsets reset", *reset, "--to-time", "2100-01-01", "--execute").code == 0 and stored() == ends
    assert tools("offsets reset", *reset, "--to-time", "soon").code == 2
    assert tools("offsets reset", *reset, "--to-earliest", "--to-latest").code == 2
    assert tools("offsets reset", "--group", "g", "--topic", "nothing", "--to-latest").code == 2


def test_the_file_goes_there_and_back(site: Site, tools: Tools, old_group: str, tmp_path: Path) -> None:
    """In the format of 0.7; a damaged file changes nothing, nor does one with offsets that no message has."""
    path = tmp_path / "offsets"
    ends = site.ends("logs")
    for name, end in ends.items():
        site.node(f"/consumers/{old_group}/offsets/logs/{name}", str(end))
    assert tools("offsets export", "--group", old_group, "--output-file", str(path)).code == 0
    expected = [f"/consumers/{old_group}/offsets/logs/{name}:{end}" for name, end in sorted(ends.items())]
    assert path.read_text() == "\n".join(expected) + "\n"
    assert expected == [
        line for line in tools("offsets export").out.splitlines() if line.startswith(f"/consumers/{old_group}/")
    ]
    site.client.delete(f"/consumers/{old_group}", recursive=True)
    dry = tools("offsets import", "--input-file", str(path), "--dry-run", "--json")
    assert dry.code == 0 and [row["new_offset"] for row in dry.rows] == [ends[place(row)] for row in dry.rows]
    assert not site.client.exists(f"/consumers/{old_group}")
    good = path.read_text()
    for text, code in ((good + "oops\n", 2), (good.replace(f"0-0:{ends['0-0']}", "0-0:3"), 1)):
        path.write_text(text)
        assert tools("offsets import", "--input-file", str(path)).code == code
        assert not site.client.exists(f"/consumers/{old_group}")
    path.write_text(good)
    assert tools("offsets import", "--input-file", str(path)).code == 0
    assert tools("offsets export", "--group", old_group).out == good
    site.node(f"/consumers/{old_group}/ids/{old_group}_x", '{ "logs": 1 }', ephemeral=True)
    assert tools("offsets import", "--input-file", str(path)).code == 1
    assert tools("offsets import", "--input-file", str(path), "--force").code == 0


def test_a_group_of_our_own(site: Site, tools: Tools, topic: str) -> None:
    """What a consumer committed is what the tools show; while it runs the rebalance is verified."""
    with fastlog.Consumer(site.connect, group_id=f"g-{topic}", auto_commit=False) as consumer:
        (stream,) = consumer.create_message_streams({"logs": 1})["logs"]
        for _ in zip(range(500), stream, strict=False):
            pass
        consumer.commit_offsets()
        assert consumer.wait_assigned(20)
        committed = {str(item.partition): offset for item, offset in consumer.committed.items()}
        assert tools("verify-rebalance", "--group", f"g-{topic}").code == 0
        rows = tools("offsets get", "--group", f"g-{topic}", "--json").rows
        assert {place(row): row["offset"] for row in rows if row["offset"] is not None} == committed
        assert {row["owner"] for row in rows} == {f"{consumer.consumer_id}-0"}
    ran = tools("verify-rebalance", "--group", f"g-{topic}")
    assert ran.code == 1 and "no live member" in ran.err
    ran = tools("lag", "--group", f"gg-{topic}")
    assert ran.code == 2 and f"'g-{topic}'" in ran.refused()[2]
    assert tools("lag", "--group", f"g-{topic}", "--topic", "lgos").code == 2


def test_lag_is_watched_until_a_signal_comes(site: Site, old_group: str) -> None:
    """Round after round, each with what holds then."""
    command = ["lag", "--zookeeper", site.connect, "--group", old_group, "--json", "--watch", "50ms", "--no-estimate"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", "fastlog", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            assert b'"offset": 0' in process.stdout.readline()
            site.node(f"/consumers/{old_group}/offsets/logs/0-0", "10")
            while b'"offset": 10' not in process.stdout.readline():
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
            assert process.stderr is not None and b"Traceback" not in process.stderr.read()
        finally:
            process.kill()


def test_a_group_with_nothing_to_be_behind(site: Site, tools: Tools, old_group: str) -> None:
    """It owns nothing and has committed nothing: an empty table is explained."""
    base = f"/consumers/{old_group}"
    for name in ("owners", "offsets", "ids"):
        site.client.delete(f"{base}/{name}", recursive=True)
        site.client.create(f"{base}/{name}")
    ran = tools("lag", "--group", old_group)
    assert ran.code == 0 and ran.table == []
    assert f"group '{old_group}' owns nothing now, and has committed nothing" in ran.err


def test_without_a_zookeeper(tools: Tools, capfd: pytest.CaptureFixture[str]) -> None:
    ran = Commands(capfd)("lag", "--zookeeper", "127.0.0.1:1", "--group", "g", "--connect-timeout", "200ms")
    assert ran.code == 3 and "no ZooKeeper answers" in ran.refused()[0]
