"""``fastlog consume`` as a member of a group, on two brokers and a real ZooKeeper."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zlib

import pytest

import fastlog
from tests.harness.broker import ROOT, wait_until
from tests.harness.data import access_log_lines
from tests.harness.fake_broker import FakeBroker
from tests.harness.raw_format import entry, wrapper
from tests.harness.site import LINES, Site, Tools
from tests.harness.timing import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.java]
WANTED = sorted(line.decode() for line in LINES)


def test_a_group_goes_on_where_it_committed(site: Site, tools: Tools, topic: str) -> None:
    """Every message once over several runs; what is committed is what was printed, to the message."""
    group = ("--topic", "logs", "--group", f"c-{topic}")
    first = tools("consume", *group, "--from-beginning", "--max-messages", "1234")
    assert first.code == 0 and len(first.out.splitlines()) == 1234
    rows = tools("offsets get", "--group", f"c-{topic}", "--json").rows
    committed = [f"logs/{row['broker']}-{row['partition']}:{row['offset']}" for row in rows if row["offset"]]
    assert committed and all(item in first.err.partition("committed ")[2] for item in committed)
    second = tools("consume", *group, "--exit-at-end", "--json")
    assert second.code == 0
    printed = first.out.splitlines() + [row["payload"] for row in second.rows]
    assert sorted(printed) == WANTED
    assert {(row["broker"], row["partition"]) for row in second.rows} <= {(0, 0), (0, 1), (1, 0), (1, 1)}
    nothing = tools("consume", *group, "--timeout", "300ms")
    assert (nothing.code, nothing.out) == (4, "")
    again = tools("consume", *group, "--from-beginning", "--exit-at-end", "--format", "offsets")
    assert sorted(line.split("\t")[3] for line in again.out.splitlines()) == WANTED
    assert {line.split("\t")[1] for line in again.out.splitlines()} == {"0-0", "0-1", "1-0", "1-1"}


def test_a_group_begins_at_the_oldest_messages(site: Site, tools: Tools, topic: str) -> None:
    """Unless it is told to begin at the end; either is committed, so that the next run goes on there."""
    site.produce(0, topic, [b"1", b"2"], partition=0)
    old = ("consume", "--topic", topic, "--group", f"o-{topic}", "--exit-at-end")
    new = ("consume", "--topic", topic, "--group", f"n-{topic}", "--exit-at-end")
    assert tools(*new, "--offset-reset", "end").out == ""
    site.produce(0, topic, [b"3"], partition=1)
    assert sorted(tools(*old).out.split()) == ["1", "2", "3"] and tools(*old).out == ""
    assert tools(*new, "--offset-reset", "end").out.split() == ["3"]


def test_a_group_that_reads_nothing_that_exists_is_told_so(site: Site, tools: Tools, topic: str) -> None:
    """Only where it is to come to an end; otherwise what comes is waited for."""
    for chosen, says in (("--topic", "does not exist"), ("--whitelist", "allows no topic")):
        ran = tools("consume", chosen, topic, "--group", f"x-{topic}", "--exit-at-end")
        assert ran.code == 2 and says in ran.refused()[0] and "2 brokers" in ran.refused()[1]
    assert tools("consume", "--topic", topic, "--group", f"x-{topic}", "--timeout", "300ms").code == 4


def test_a_group_that_is_killed_before_its_first_commit_leaves_nothing_out(
    site: Site, tools: Tools, topic: str
) -> None:
    """It had begun at the end, and what came then was given to nobody whose word counts."""
    site.produce(0, topic, [b"old"], partition=0)
    group = ("--topic", topic, "--group", f"k-{topic}", "--offset-reset", "end")
    command = [sys.executable, "-m", "fastlog", "consume", "--zookeeper", site.connect, *group]
    nodes = f"/consumers/k-{topic}"
    with subprocess.Popen(
        [*command, "--commit-interval", "1h"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        try:
            for number in (0, 1):
                begun = f"{nodes}/offsets/{topic}/0-{number}"
                wait_until("it is committed where it begins", lambda path=begun: site.client.exists(path), PATIENCE)
            site.produce(0, topic, [b"new"], partition=0)
            assert process.stdout is not None and process.stdout.readline() == b"new\n"
        finally:
            process.kill()
    for ephemeral in ("owners", "ids"):  # as when its session ends
        site.client.delete(f"{nodes}/{ephemeral}", recursive=True)
    assert tools("consume", *group, "--exit-at-end").out == "new\n"


def test_without_a_name_nothing_is_left(site: Site, tools: Tools) -> None:
    """A new group begins at the end, unless told otherwise, and its nodes go with it."""
    before = set(site.client.get_children("/consumers")) if site.client.exists("/consumers") else set()
    assert tools("consume", "--topic", "logs", "--timeout", "300ms").code == 4
    ran = tools(
        "consume", "--topic", "logs", "--from-beginning", "--exit-at-end", "--formatter", "ChecksumMessageFormatter"
    )
    assert ran.code == 0
    assert sorted(ran.out.splitlines()) == sorted(f"checksum:{zlib.crc32(line)}" for line in LINES)
    assert set(site.client.get_children("/consumers")) == before


def test_filters_choose_topics(site: Site, tools: Tools, topic: str) -> None:
    """A whitelist with commas as in 0.7, and a blacklist; each message knows its topic."""
    for name in ("a", "b", "c"):
        site.produce(0, f"{topic}-{name}", [name.encode()])
    common = ("consume", "--from-beginning", "--exit-at-end", "--json")
    rows = tools(*common, "--whitelist", f"{topic}-a,{topic}-c").rows
    assert sorted((row["topic"], row["payload"]) for row in rows) == [(f"{topic}-a", "a"), (f"{topic}-c", "c")]
    rows = tools(*common, "--blacklist", f"(?!{topic}).*,{topic}-a").rows
    assert sorted(row["payload"] for row in rows) == ["b", "c"]
    ran = tools(*common[:-1], "--topic", f"{topic}-b", "--format", "checksum", "--property", "topic=x")
    assert ran.out == f"x-checksum:{zlib.crc32(b'b')}\n"


def test_a_group_with_living_members_does_not_begin_again(site: Site, tools: Tools, topic: str) -> None:
    with fastlog.Consumer(site.connect, group_id=f"g-{topic}") as consumer:
        consumer.create_message_streams({"logs": 1})
        ran = tools("consume", "--topic", "logs", "--group", f"g-{topic}", "--from-beginning")
        assert ran.code == 1 and "cannot begin again" in ran.refused()[0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--topic", "logs", "--whitelist", "l.*"], "one of --topic, --whitelist"),
        ([], "one of --topic, --whitelist"),
        (["--topic", "logs", "--partition", "0"], "offsets reset"),
        (["--topic", "logs", "--offset", "5"], "offsets reset"),
        (["--topic", "logs", "--brokers", "localhost:1"], "contradicts --zookeeper"),
        (["--topic", "logs", "--commit-interval", "1s"], "needs --group"),
        (["--topic", "logs", "--from-beginning", "--offset-reset", "end"], "contradicts --offset-reset end"),
        (["--whitelist", "(", "--group", "g"], "no regular expression"),
        (["--topic", "logs", "--property", "x=1"], "only topic=TEXT"),
    ],
)
def test_contradictions_are_refused(tools: Tools, arguments: list[str], says: str) -> None:
    ran = tools("consume", *arguments)
    assert ran.code == 2 and says in ran.refused()[0]


def test_a_signal_commits_what_was_printed(site: Site, tools: Tools, topic: str) -> None:
    """Ctrl-C while it waits for more: the next run prints nothing twice and leaves nothing out."""
    lines = [b"%d" % number for number in range(100)]
    site.produce(0, topic, lines)
    group = ("--topic", topic, "--group", f"c-{topic}")
    command = [sys.executable, "-m", "fastlog", "consume", "--zookeeper", site.connect, *group, "--from-beginning"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as process:
        try:
            assert process.stdout is not None
            printed = [process.stdout.readline().rstrip(b"\n") for _ in lines]
            process.send_signal(signal.SIGINT)
            rest, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130 and rest == b"" and b"Traceback" not in err
    assert sorted(printed) == sorted(lines)
    assert tools("consume", *group, "--timeout", "300ms").out == ""


def test_whoever_reads_the_output_may_leave(site: Site, tools: Tools, topic: str) -> None:
    """As ``| head -1`` does: no failure, and what went into no pipe is not committed."""
    lines = list(access_log_lines())
    site.produce(0, topic, lines, partition=0)
    group = f"h-{topic}"
    assert tools("offsets reset", "--group", group, "--topic", topic, "--to-earliest", "--execute").code == 0
    command = f"{sys.executable} -m fastlog consume --zookeeper {site.connect} --topic {topic} --group {group}"
    ran = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} | head -c 20"],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=50,
    )
    assert ran.returncode == 0 and ran.stdout == lines[0][:20] and b"Traceback" not in ran.stderr, ran.stderr
    rest = tools("consume", "--topic", topic, "--group", group, "--exit-at-end")
    assert rest.out.encode().splitlines() == lines


def test_damage_is_skipped_when_asked(site: Site, tools: Tools, topic: str) -> None:
    """A flipped byte, a compressed set that does not open, a length that leads nowhere: what is whole is printed."""
    lines = access_log_lines()[:60]
    bad = bytearray(entry(b"flipped"))
    bad[-1] ^= 1
    broken = wrapper(entry(b"inner"), 1)
    payload = bytearray(broken[10:])
    payload[-5] ^= 0xFF
    broken = entry(bytes(payload), 1, 1)
    parts = [b"".join(map(entry, lines[at : at + 10])) for at in range(0, 60, 10)]
    log = parts[0] + bytes(bad) + bytes(bad) + parts[1] + broken + parts[2] + entry(b"x" * 50)[:3] + b"\xff" * 40
    with FakeBroker() as fake:
        fake.logs[topic, 0] = log
        base = f"/damage-{topic}"
        site.node(f"{base}/brokers/ids/0", f"h-1:127.0.0.1:{fake.port}", ephemeral=True)
        site.node(f"{base}/brokers/topics/{topic}/0", "1", ephemeral=True)
        there = (f"{site.connect}{base}", "--topic", topic, "--from-beginning")
        ran = tools("consume", "--zookeeper", *there, "--timeout", "5s")
        assert ran.code == 5 and ran.out.encode().splitlines() == list(lines[:10])
        assert "--skip-message-on-error" in ran.refused()[2] and f"offset {len(parts[0])}" in ran.refused()[0]
        ran = tools("consume", "--zookeeper", *there, "--skip-message-on-error", "--exit-at-end", "--json")
        assert ran.code == 5 and ran.err.count("skipped ") == 4, ran.err
        assert [row["payload"].encode() for row in ran.rows] == list(lines[:30])
