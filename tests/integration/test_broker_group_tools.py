"""The commands about groups that a broker keeps, with no ZooKeeper anywhere: what they show, and what they change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fastlog
from fastlog import testing
from fastlog.client.coordinator import Coordinator
from fastlog.consumer.broker_groups.view import BrokerGroups
from fastlog.consumer.connector import Consumer
from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import ConfigError, CoordinationError
from fastlog.testing import RunningBroker
from fastlog.zkpaths import PartitionId
from tests.harness.broker import wait_until
from tests.harness.command_line import Commands, Ran
from tests.harness.timing import PATIENCE

pytestmark = pytest.mark.slow
LINES = [b"line %d" % number for number in range(400)]
PROPERTIES = {
    "num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "brokerid": "3",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with testing.broker(properties=PROPERTIES) as running:
        with fastlog.Producer(running.address, acks="flushed") as producer:
            for partition in (0, 1):
                producer.send("logs", LINES[partition::2], partition=partition)
        yield running


class Tools:
    """The commands, with the broker's address."""

    def __init__(self, capture: pytest.CaptureFixture[str], address: str) -> None:
        self._commands = Commands(capture)
        self._address = address

    def __call__(self, command: str, *arguments: str) -> Ran:
        return self._commands(*command.split(), "--brokers", self._address, *arguments)


@pytest.fixture
def tools(broker: RunningBroker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Tools:
    monkeypatch.delenv("FASTLOG_ZOOKEEPER", raising=False)
    monkeypatch.delenv("FASTLOG_BROKERS", raising=False)
    return Tools(capfd, broker.address)


@pytest.fixture
def end(broker: RunningBroker) -> int:
    """Where each partition of ``logs`` ends; both are of one length."""
    with broker.consumer() as consumer:
        first, second = (consumer.get_offsets_before("logs", number, -1)[0] for number in (0, 1))
    assert first == second
    return first


def member(broker: RunningBroker, group: str, **more: Any) -> Consumer:
    return Consumer(brokers=broker.address, group_id=group, **({"heartbeat_interval_ms": 50} | more))


def rows_of(ran: Ran, *names: str) -> list[tuple[Any, ...]]:
    assert ran.code == 0, ran
    return [tuple(row[name] for name in names) for row in ran.rows]


def test_a_group_goes_on_where_it_committed(tools: Tools, topic_lines: list[str]) -> None:
    """``consume --group`` on a broker: what is committed is what was printed."""
    group = ("--topic", "logs", "--group", "console")
    first = tools("consume", *group, "--max-messages", "123")
    assert first.code == 0 and len(first.out.splitlines()) == 123 and "committed logs/3-" in first.err
    second = tools("consume", *group, "--exit-at-end", "--json")
    assert {row["broker"] for row in second.rows} == {3}
    assert sorted(first.out.splitlines() + [row["payload"] for row in second.rows]) == topic_lines
    assert tools("consume", *group, "--exit-at-end").out == ""
    again = tools("consume", *group, "--from-beginning", "--exit-at-end")
    assert sorted(again.out.splitlines()) == topic_lines
    with_filter = tools("consume", "--whitelist", "lo.*", "--from-beginning", "--exit-at-end")
    assert sorted(with_filter.out.splitlines()) == topic_lines
    assert rows_of(tools("groups", "--json"), "group") == [("console",)]  # the other one has left nothing
    missing = tools("consume", "--topic", "none", "--group", "x", "--exit-at-end")
    assert missing.code == 2 and "does not exist" in missing.refused()[0] and "among its topics" in missing.refused()[1]


@pytest.fixture
def topic_lines() -> list[str]:
    return sorted(line.decode() for line in LINES)


def test_a_group_is_shown(broker: RunningBroker, tools: Tools, end: int) -> None:
    """Members, threads, owners, offsets and lag: the columns of a group in ZooKeeper."""
    with member(broker, "shown", consumer_id="a") as first, member(broker, "shown", consumer_id="b") as second:
        first.create_message_streams({"logs": 2})
        second.create_message_streams_by_filter(whitelist="l.*s")
        wait_until("both read", lambda: len(first.owned) == 2 and second.wait_assigned(0) and not second.owned)
        listed = [row for row in tools("groups", "--json").rows if row["group"] == "shown"]
        places = [TopicPartition("logs", PartitionId(3, number)) for number in (0, 1)]
        wait_until("where they began is saved", lambda: first.committed.keys() == set(places))
        first.commit_offsets({places[0]: 0, places[1]: end})
        assert [dict(row, committed=0) for row in listed] == [
            {"group": "shown", "members": 2, "topics": ["logs"], "owned": 2, "unowned": 0, "committed": 0}
        ]
        members = tools("groups", "--group", "shown")
        assert members.table == [
            ["shown", "shown_a", '{ "logs": 2 }', "logs", "2", "3-0,3-1"],
            ["shown", "shown_b", "*1*l.*s", "logs", "1", "-"],
        ]
        lag = tools("lag", "--group", "shown", "--json")
        assert rows_of(lag, "broker", "partition", "owner", "offset", "log_size", "lag") == [
            (3, 0, "shown_a-0", 0, end, end),
            (3, 1, "shown_a-1", end, end, 0),
        ]
        assert lag.rows[0]["lag_messages_estimate"] == len(LINES) // 2
        assert "shown_a-1" in tools("lag", "--group", "shown", "--format", "0.7").out
        assert rows_of(tools("offsets get", "--group", "shown", "--json"), "offset", "owner") == [
            (0, "shown_a-0"),
            (end, "shown_a-1"),
        ]
        assert tools("verify-rebalance", "--group", "shown").code == 0
    ended = tools("verify-rebalance", "--group", "shown")
    assert ended.code == 1 and "no live member" in ended.err
    wrong = tools("lag", "--group", "shwon")
    assert wrong.code == 2 and "there is no group 'shwon'" in wrong.refused()[0]
    assert "did you mean 'shown'" in wrong.refused()[2]


def test_offsets_are_set_only_where_nobody_reads(broker: RunningBroker, tools: Tools, end: int) -> None:
    """Dry runs write nothing; what is written is where the next member begins."""
    reset = ("--group", "set", "--topic", "logs")
    dry = tools("offsets reset", *reset, "--to-latest", "--json")
    assert rows_of(dry, "offset", "new_offset") == [(None, end), (None, end)] and "dry run" in dry.err
    assert "set" not in [row["group"] for row in tools("groups", "--json").rows]
    made = tools("offsets reset", *reset, "--to-latest", "--execute")
    assert made.code == 0 and "wrote 2 offsets" in made.err
    assert tools("consume", *reset, "--exit-at-end").out == ""
    one = tools("offsets reset", *reset, "--partition", "3-1", "--to-earliest", "--execute", "--json")
    assert rows_of(one, "partition", "offset", "new_offset") == [(1, end, 0)]
    inside = tools("offsets reset", *reset, "--partition", "3-1", "--to-offset", "3", "--execute")
    assert inside.code == 1 and "cannot be an offset" in inside.refused()[0]
    with member(broker, "set") as alive:
        alive.create_message_streams({"logs": 1})
        assert alive.wait_assigned(PATIENCE)
        refused = tools("offsets reset", *reset, "--to-latest", "--execute")
        assert refused.code == 1 and "1 live members" in refused.refused()[0]
        forced = tools("offsets reset", *reset, "--to-latest", "--execute", "--force")
        assert forced.code == 1 and "--force cannot change that" in forced.refused()[2]
        kept = tools("offsets delete", "--group", "set", "--execute")
        assert kept.code == 1 and "1 live members" in kept.refused()[0]
        again = tools("consume", *reset, "--from-beginning")
        assert again.code == 1 and "cannot begin again" in again.refused()[0]
    assert rows_of(tools("offsets get", "--group", "set", "--json"), "offset") == [(end,), (0,)]


def test_offsets_and_groups_are_deleted(broker: RunningBroker, tools: Tools, end: int) -> None:
    with fastlog.Producer(broker.address, acks="flushed") as producer:
        producer.send("more", b"x", partition=0)
    for topic in ("logs", "more"):
        assert tools("offsets reset", "--group", "del", "--topic", topic, "--to-earliest", "--execute").code == 0
    assert len(tools("offsets get", "--group", "del", "--json").rows) == 4
    dry = tools("offsets delete", "--group", "del")
    assert dry.code == 0 and len(dry.table) == 4 and "dry run" in dry.err
    part = tools("offsets delete", "--group", "del", "--topic", "logs", "--execute", "--json")
    assert rows_of(part, "topic", "broker", "partition", "offset") == [("logs", 3, 0, 0), ("logs", 3, 1, 0)]
    assert rows_of(tools("offsets get", "--group", "del", "--json"), "topic") == [("more",), ("more",)]
    unknown = tools("offsets delete", "--group", "del", "--topic", "logs")
    assert unknown.code == 2 and "nothing of topic 'logs'" in unknown.refused()[0]
    assert tools("offsets delete", "--group", "del", "--execute").code == 0
    assert tools("offsets get", "--group", "del").code == 2


def test_offsets_go_through_files(tools: Tools, end: int, tmp_path: Path) -> None:
    """In the format of 0.7, whoever keeps the group; what cannot be kept is refused as a whole."""
    assert tools("offsets reset", "--group", "file", "--topic", "logs", "--to-latest", "--execute").code == 0
    path = tmp_path / "offsets"
    assert tools("offsets export", "--group", "file", "--output-file", str(path)).code == 0
    assert path.read_text() == "".join(f"/consumers/file/offsets/logs/3-{number}:{end}\n" for number in (0, 1))
    path.write_text(path.read_text().replace("/file/", "/copy/"))
    assert tools("offsets import", "--input-file", str(path)).code == 0
    assert rows_of(tools("offsets get", "--group", "copy", "--json"), "offset") == [(end,), (end,)]
    for line, says in (
        ("/consumers/copy/offsets/logs/3-0:-1", "is no offset"),
        ("/consumers/copy/offsets/logs/4-0:0", "is of another broker"),
    ):
        path.write_text(f"{line}\n/consumers/copy/offsets/logs/3-1:0\n")
        refused = tools("offsets import", "--input-file", str(path))
        assert refused.code in (1, 3) and says in refused.err
        assert rows_of(tools("offsets get", "--group", "copy", "--json"), "offset") == [(end,), (end,)]


def test_groups_of_other_clients_are_shown(broker: RunningBroker, tools: Tools) -> None:
    """By the ids of their members; a group of theirs takes no member of ours, and tells so at once."""
    confluent = pytest.importorskip("confluent_kafka")
    producer = confluent.Producer({"bootstrap.servers": broker.address})
    producer.produce("today", b"x", partition=0)
    assert producer.flush(PATIENCE) == 0
    consumer = confluent.Consumer(
        {"bootstrap.servers": broker.address, "group.id": "theirs", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["today"])
    assert consumer.poll(PATIENCE).value() == b"x"
    consumer.commit(asynchronous=False)
    (row,) = tools("groups", "--group", "theirs", "--json").rows
    assert row["topic"] == "today" and row["member"].startswith("rdkafka-") and row["owns"] == ["3-0", "3-1"]
    (first,) = [row for row in tools("offsets get", "--group", "theirs", "--json").rows if row["partition"] == 0]
    assert first["offset"] == 1
    with (
        member(broker, "theirs") as ours,
        pytest.raises(ConfigError, match="no consumers of fastlog: choose another name"),
    ):
        ours.create_message_streams({"logs": 1})
    consumer.close()


def test_where_groups_are_kept(
    broker: RunningBroker, tools: Tools, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ZooKeeper that is named counts before a broker that is not; both on one line contradict each other."""
    commands = Commands(capfd)
    assert tools("offsets reset", "--group", "kept", "--topic", "logs", "--to-latest", "--execute").code == 0
    monkeypatch.setenv("FASTLOG_BROKERS", broker.address)
    assert commands("groups", "--group", "kept").code == 0
    monkeypatch.setenv("FASTLOG_ZOOKEEPER", "127.0.0.1:1")
    for arguments in (("groups",), ("lag", "--group", "kept"), ("consume", "--group", "kept", "--topic", "logs")):
        ran = commands(*arguments, "--connect-timeout", "100ms")
        assert ran.code == 3 and "ZooKeeper" in ran.refused()[0], ran
    assert tools("groups", "--group", "kept").code == 0
    assert tools("consume", "--group", "kept", "--topic", "logs", "--exit-at-end").code == 0
    both = tools("groups", "--zookeeper", "127.0.0.1:1")
    assert both.code == 2 and "--brokers contradicts --zookeeper" in both.refused()[0]
    away = commands("groups", "--brokers", "127.0.0.1:1", "--connect-timeout", "100ms")
    assert away.code == 3 and "no coordinator of groups at 127.0.0.1:1 within 0.1 s" in away.refused()[0]
    assert "--brokers" in away.refused()[2]


def test_a_zookeeper_of_groups_is_shown_to_who_finds_no_broker(
    broker: RunningBroker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the command would look there when told to; not where a broker is named on the line, nor without one."""
    commands = Commands(capfd)
    monkeypatch.setenv("FASTLOG_BROKERS", "127.0.0.1:1")
    monkeypatch.setenv("FASTLOG_ZOOKEEPER", "127.0.0.1:2/path")
    tail, listed = ("tail", "logs", "--connect-timeout", "100ms"), ("topics", "list", "--connect-timeout", "100ms")
    said = "; those of FASTLOG_ZOOKEEPER, which is for groups, with --zookeeper 127.0.0.1:2/path"
    ran = commands(*tail)
    assert ran.code == 3 and ran.refused()[2].endswith(said), ran
    for arguments in (listed, (*tail, "--brokers", "127.0.0.1:1")):
        ran = commands(*arguments)
        assert ran.code == 3 and "FASTLOG_ZOOKEEPER" not in ran.err, ran
    monkeypatch.delenv("FASTLOG_ZOOKEEPER")
    assert "--zookeeper" not in commands(*tail).err


def test_a_view_from_outside(broker: RunningBroker) -> None:
    """What programs are told of groups: nothing of one that is not there; refusals say which broker."""
    with BrokerGroups(broker.address) as groups:
        assert groups.view("nobody") is None and "nobody" not in groups.names()
        groups.remove("nobody")
        groups.forget("nobody", [TopicPartition("logs", PartitionId(3, 0))])
        assert list(groups.addresses()) == [3] and groups.announced("logs") == [PartitionId(3, 0), PartitionId(3, 1)]
        with pytest.raises(CoordinationError, match="is of another broker than"):
            groups.commit("g", {TopicPartition("logs", PartitionId(1, 0)): 1})
        assert groups.commit("g", {TopicPartition("none", PartitionId(3, 0)): 1}) == {
            TopicPartition("none", PartitionId(3, 0)): 3
        }
    with Coordinator(broker.address, "g", client="t", timeout=PATIENCE) as coordinator:
        assert not coordinator.is_connected and coordinator.broker_id == -1
