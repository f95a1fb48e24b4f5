"""Groups as tools see them: read from nodes that 0.7 wrote, by hand or not, and what is said of those without sense."""

from __future__ import annotations

import pytest

from fastlog.client.addresses import Address
from fastlog.consumer.broker_logs import BrokerLogs, Extent
from fastlog.consumer.group_view import list_groups, read_group
from fastlog.consumer.lag import measure
from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import FastlogError
from fastlog.message import encode_set
from fastlog.tools import offset_files
from fastlog.tools.report import CommandError
from fastlog.zkpaths import PartitionId
from tests.harness.fake_broker import FakeBroker
from tests.harness.fake_session import FakeZooKeeper

PAYLOADS = [b"x" * (number % 40) for number in range(20_000)]


def part(topic: str, name: str) -> TopicPartition:
    return TopicPartition(topic, PartitionId.parse(name))


@pytest.fixture
def tree() -> FakeZooKeeper:
    """Two brokers, two topics, and a group of two 0.7 consumers: one reads by names, one by a filter."""
    made = FakeZooKeeper()
    for path, data in {
        "/brokers/ids/0": b"h-1315436360737:10.0.0.1:9092",
        "/brokers/ids/1": b"h-1315436360738:logs.example.org:9093",
        "/brokers/topics/logs/0": b"2",
        "/brokers/topics/logs/1": b"1",
        "/brokers/topics/views/1": b"1",
        "/consumers/g/ids/g_a-1": b'{ "logs": 2 }',
        "/consumers/g/ids/g_b-2": b"*1*log.*",
        "/consumers/g/owners/logs/0-0": b"g_a-1-0",
        "/consumers/g/owners/logs/0-1": b"g_a-1-1",
        "/consumers/g/owners/logs/1-0": b"g_b-2-0",
        "/consumers/g/offsets/logs/0-0": b"100",
        "/consumers/g/offsets/old/7-0": b"5",
        "/consumers/empty": b"",
    }.items():
        made.write(path, data)
    return made


def test_a_group_is_read(tree: FakeZooKeeper) -> None:
    """Members, threads, owners, offsets, and the partitions that brokers announce of what is read."""
    session = tree.open()
    assert list_groups(session) == ["empty", "g"]
    assert read_group(session, "nobody") is None
    view = read_group(session, "g")
    assert view is not None
    assert view.topics == {"logs": {"g_a-1": 2, "g_b-2": 1}}
    assert view.threads("logs") == {"g_a-1-0", "g_a-1-1", "g_b-2-0"}
    assert view.addresses == {0: Address("10.0.0.1", 9092), 1: Address("logs.example.org", 9093)}
    assert view.committed[part("logs", "0-0")] == (100, 0)
    assert view.all_partitions() == [part("logs", n) for n in ("0-0", "0-1", "1-0")] + [part("old", "7-0")]
    assert view.all_partitions(["old"]) == [part("old", "7-0")]
    assert view.faults() == [] and view.garbage == ()
    empty = read_group(session, "empty")
    assert empty is not None and not empty.members and empty.faults() == []


def test_partitions_that_nobody_reads_are_faults(tree: FakeZooKeeper) -> None:
    """Without an owner, or with one that is no thread of a living member; as 0.7's VerifyConsumerRebalance says."""
    tree.remove("/consumers/g/owners/logs/0-1")
    tree.write("/consumers/g/owners/logs/1-0", b"g_b-2-1")
    view = read_group(tree.open(), "g")
    assert view is not None
    assert [(fault.partition, fault.owner) for fault in view.faults()] == [
        (part("logs", "0-1"), None),
        (part("logs", "1-0"), "g_b-2-1"),
    ]
    tree.write("/consumers/g/owners/logs/1-0", b"g_b-2-0")
    tree.remove("/consumers/g/ids/g_b-2")
    view = read_group(tree.open(), "g")
    assert view is not None
    assert [fault.owner for fault in view.faults()] == [None, "g_b-2-0"]


def test_nodes_without_sense_are_left_out_and_named(tree: FakeZooKeeper) -> None:
    for path, data in {
        "/consumers/g/ids/odd": b"what?",
        "/consumers/g/ids/java": b"*1*(?<!a",
        "/consumers/g/offsets/logs/0-1": b"many",
        "/consumers/g/offsets/logs/zero": b"1",
        "/brokers/ids/1": b"nowhere",
    }.items():
        tree.write(path, data)
    view = read_group(tree.open(), "g")
    assert view is not None
    assert view.topics == {"logs": {"g_a-1": 2, "g_b-2": 1}} and list(view.addresses) == [0]
    assert len(view.committed) == 2
    for name in ("odd", "java", "0-1", "zero", "/brokers/ids/1"):
        assert any(name in line for line in view.garbage), name


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False])
def test_what_brokers_say_of_their_logs(own: bool) -> None:
    """Extents, boundaries and estimates; a plain 0.7 broker is walked through, with the same answers."""
    log = encode_set(PAYLOADS)
    starts = {0}
    at = 0
    for payload in PAYLOADS:
        at += len(payload) + 10
        starts.add(at)
    place = part("t", "3-0")
    with FakeBroker(own=own) as fake, BrokerLogs({3: Address("127.0.0.1", fake.port)}, 5.0) as logs:
        fake.logs["t", 0] = log
        extents = logs.extents([place, part("t", "4-0"), part("nothing", "3-0")])
        assert extents[place] == (0, len(log)) and extents[part("nothing", "3-0")] == (0, 0)
        error = extents[part("t", "4-0")]
        assert isinstance(error, FastlogError) and "broker 4 does not live" in str(error)
        extent = Extent(0, len(log))
        ordered = sorted(starts)
        for offset in (0, 1, 9, 10, 11, 12, 70_001, 70_020, len(log) - 1, len(log)):
            before, after = logs.boundaries(place, offset, extent)
            assert after == min(start for start in ordered if start >= offset)
            assert before == max(start for start in ordered if start <= offset)
        for begin in (0, ordered[5000], ordered[-10], len(log)):
            count = len(PAYLOADS) - ordered.index(begin)
            if begin < len(log):
                assert abs(logs.estimated_messages(place, begin, len(log)) - count) <= count * 0.02
        assert logs.estimated_messages(place, ordered[-10], len(log)) == 9


def test_lag_of_odd_offsets(tree: FakeZooKeeper) -> None:
    """Behind the end, nothing committed, a broker that is gone: each has its note, and bytes where they are known."""
    with FakeBroker() as fake:
        fake.logs["logs", 0] = encode_set([b"12345"] * 10)
        fake.logs["logs", 1] = encode_set([b"12345"] * 10)
        tree.write("/brokers/ids/0", b"h-1:127.0.0.1:%d" % fake.port)
        tree.remove("/brokers/ids/1")
        tree.write("/consumers/g/offsets/logs/0-1", b"30")
        tree.write("/consumers/g/offsets/logs/0-0", b"151")
        view = read_group(tree.open(), "g")
        assert view is not None
        with BrokerLogs(view.addresses, 5.0) as logs:
            behind, good, away, old = measure(view, logs)
        assert (behind.lag, behind.messages) == (0, 0) and "1 bytes behind the end" in behind.problem
        assert (good.lag, good.messages, good.problem) == (120, 8, "")
        assert away.is_failure and away.lag is None and "does not live" in away.problem
        assert old.offset == 5 and old.is_failure and not good.is_failure
        tree.write("/consumers/g/offsets/logs/0-1", b"-1")
        tree.write("/consumers/g/offsets/logs/0-0", b"3")
        view = read_group(tree.open(), "g")
        assert view is not None
        with BrokerLogs(view.addresses, 5.0) as logs:
            inside, nothing, *_ = measure(view, logs, ["logs"])
        assert nothing.lag is None and nothing.problem == "nothing is committed"
        assert inside.lag == 147 and inside.messages is None and inside.is_failure


def test_the_file_of_offsets_is_that_of_0_7() -> None:
    """To the byte, there and back; what is of no such form is refused with its line."""
    kept = [
        offset_files.Kept("g", part("t-a", "0-0"), 12),
        offset_files.Kept("g", part("t-a", "10-1"), -1),
        offset_files.Kept("h", part("é", "0-0"), 2**62),
    ]
    data = offset_files.encode(kept)
    assert data.decode().splitlines()[:2] == [
        "/consumers/g/offsets/t-a/0-0:12",
        "/consumers/g/offsets/t-a/10-1:-1",
    ]
    assert offset_files.parse("f", data) == (kept, [])
    assert offset_files.parse("f", data + data + b"\n\n/consumers/g/offsets/t/0-0:null\n") == (
        kept,
        ["/consumers/g/offsets/t/0-0"],
    )
    for line in (
        b"/consumers/g/offsets/t/0-0:",
        b"/consumers/g/offsets/t/0-0:x",
        b"/consumers/g/offsets/t/0-0:-2",
        b"/consumers/g/offsets/t/zero:1",
        b"/consumers/g/owners/t/0-0:1",
        b"/consumers//offsets/t/0-0:1",
        b"/brokers/ids/0:1",
        b"/consumers/g/offsets/t-a/0-0:13",
        b"hello",
    ):
        with pytest.raises(CommandError) as refusal:
            offset_files.parse("f", data + line)
        assert "f, line 4" in str(refusal.value) and refusal.value.exit_code == 2
