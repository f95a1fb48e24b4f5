"""Groups that a broker keeps: fastlog's own consumers, with no ZooKeeper anywhere."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fastlog
from fastlog import aio, testing
from fastlog.client import group_requests as requests
from fastlog.client.coordinator import Coordinator
from fastlog.client.group_requests import Committed, Identity
from fastlog.consumer.connector import Consumer
from fastlog.consumer.partitions import TopicPartition
from fastlog.consumer.status import GroupState
from fastlog.consumer.stream import NoMessage, Stream
from fastlog.errors import ConfigError, ConsumerTimeout, CoordinationError, OwnershipLostError
from fastlog.zkpaths import PartitionId
from tests.harness.broker import ROOT, Broker, wait_until
from tests.harness.timing import PATIENCE

pytestmark = pytest.mark.slow
PARTITIONS = 4
SETTINGS = {
    "num.partitions": PARTITIONS,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 300,
    "log.default.flush.interval.ms": 20,
}
PROPERTIES = {name: str(value) for name, value in SETTINGS.items()}
FAST: dict[str, Any] = {"heartbeat_interval_ms": 50, "metadata_max_age_ms": 100, "fetcher_backoff_ms": 100}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("groups"), processors=2, settings=SETTINGS) as running:
        yield running


@pytest.fixture
def address(broker: Broker) -> str:
    return f"127.0.0.1:{broker.port}"


def consumer(address: str, group: str, **more: Any) -> Consumer:
    return Consumer(brokers=address, group_id=group, **(FAST | {"auto_commit": False} | more))


def produce(address: str, topic: str, count: int, start: int = 0) -> list[bytes]:
    """So many messages on all partitions, which can be read when it returns."""
    payloads = [b"%s %d" % (topic.encode(), number) for number in range(start, start + count)]
    with fastlog.SimpleConsumer(address, local="off") as simple:
        before = ends(simple, topic)
        host, port = address.split(":")
        with fastlog.SyncProducer(host, int(port)) as producer:
            for partition in range(PARTITIONS):
                producer.send(topic, payloads[partition::PARTITIONS], partition=partition)
        sizes = {n: before.get(n, 0) + sum(10 + len(p) for p in payloads[n::PARTITIONS]) for n in range(PARTITIONS)}
        wait_until("it can be read", lambda: ends(simple, topic) == sizes)
    return payloads


def ends(simple: fastlog.SimpleConsumer, topic: str) -> dict[int, int]:
    """Up to where each partition can be read."""
    told = simple.metadata([topic])
    assert told is not None
    return {row.partition: row.high_watermark for row in told.topics[0].partitions}


def part(topic: str, number: int) -> TopicPartition:
    return TopicPartition(topic, PartitionId(0, number))


def stream_of(member: Consumer, topic: str, **more: Any) -> Stream:
    return member.create_message_streams({topic: 1}, **more)[topic][0]


def read(stream: Stream, count: int, seconds: float = PATIENCE) -> list[bytes]:
    """So many messages."""
    found: list[bytes] = []
    deadline = time.monotonic() + seconds
    while len(found) < count:
        message = stream.poll(0.05)
        if message:
            found.append(message.payload)
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages"
    return found


def shares(*members: Consumer) -> list[set[int]]:
    return [{source.partition.partition for source in member.owned} for member in members]


def wait_shared(*members: Consumer) -> list[set[int]]:
    """Until each partition is one's."""

    def agreed() -> bool:
        found = [number for share in shares(*members) for number in share]
        return sorted(found) == list(range(PARTITIONS)) and all(member.wait_assigned(0) for member in members)

    wait_until("each partition has one owner", agreed)
    return shares(*members)


def wait_ready(address: str) -> None:
    """Until its coordinator answers about groups: asked for the first time it makes the topic of their offsets."""
    with Coordinator(address, "any", client="test", timeout=PATIENCE) as coordinator:
        coordinator.ask(requests.metadata(), requests.parse_metadata)


def test_reading_goes_on_where_it_was_committed(address: str) -> None:
    """In the middle of what was fetched; by another member of the group, and not by another group."""
    sent = produce(address, "resume", 40)
    with consumer(address, "resume") as first:
        stream = stream_of(first, "resume", acknowledge=True)
        seen = []
        while len(seen) < 17:
            message = stream.poll(PATIENCE)
            assert message
            seen.append(message.payload)
            stream.done(message)
        before = first.offsets
        first.commit_offsets()
        # a partition of which nothing was read may be begun meanwhile
        assert before.items() <= first.committed.items() <= first.offsets.items()
    with consumer(address, "resume") as second:
        stream = stream_of(second, "resume")
        rest = read(stream, 23)
        assert sorted(seen + rest) == sorted(sent)
        assert stream.poll(0.2) is NoMessage.AT_END
    with consumer(address, "other") as other:
        assert sorted(read(stream_of(other, "resume"), 40)) == sorted(sent)


def test_offsets_are_positions_in_bytes_and_say_of_which_log(address: str) -> None:
    """As Kafka's own tools see them: those that 0.7's consumers put into ZooKeeper."""
    produce(address, "bytes", 8)
    with consumer(address, "bytes") as member:
        stream = stream_of(member, "bytes")
        read(stream, 8)
        assert stream.poll(0.2) is NoMessage.AT_END
        member.commit_offsets()
        kept = dict(member.committed)
    with fastlog.SimpleConsumer(address) as simple:
        told = simple.metadata(["bytes"])
        assert told is not None
        rows = {("bytes", row.partition): row for row in told.topics[0].partitions}
    assert {(key.topic, key.partition.partition): value for key, value in kept.items()} == {
        place: row.high_watermark for place, row in rows.items()
    }
    with Coordinator(address, "bytes", client="test", timeout=PATIENCE) as coordinator:
        code, found = coordinator.ask(requests.fetch_offsets("bytes", None), requests.parse_offsets)
    assert code == 0
    assert found == {place: (0, Committed(row.high_watermark, f"log={row.created_ms}")) for place, row in rows.items()}


def test_members_come_and_leave(address: str) -> None:
    """Each partition is one member's; what stays with its member is read on without a gap."""
    sent = produce(address, "three", 40)
    with consumer(address, "three") as first:
        stream = stream_of(first, "three")
        seen = read(stream, 40)
        with consumer(address, "three") as second, consumer(address, "three") as third:
            streams = [stream, stream_of(second, "three"), stream_of(third, "three")]
            assert sorted(map(len, wait_shared(first, second, third))) == [1, 1, 2]
            kept = [source for source, held in first.partitions.items() if held.gaps == 0]
            assert kept and first.failed_commits == 0
            sent += produce(address, "three", 40, start=40)
            for one, share in zip(streams, shares(first, second, third), strict=True):
                # what others had read was committed when they let go of it, unless auto-commit is off
                assert share
                while message := one.poll(0.2):
                    seen.append(message.payload)
        wait_shared(first)
    assert set(seen) == set(sent)


def test_nothing_comes_twice_when_all_is_committed(address: str) -> None:
    """With auto-commit, what is let go of is saved before it goes to somebody else."""
    sent = produce(address, "once", 200)
    members: list[Consumer] = []
    streams: list[Stream] = []
    seen: list[bytes] = []

    def take(most: int, seconds: float) -> None:
        for stream in streams:
            for _ in range(most):
                if not (message := stream.poll(seconds)):
                    break
                seen.append(message.payload)
                stream.done(message)

    for _ in range(3):
        members.append(consumer(address, "once", auto_commit=True))
        streams.append(stream_of(members[-1], "once", acknowledge=True))
        wait_shared(*members)
        take(10, 0.1)
    while len(members) > 1:
        members.pop(0).close()
        streams.pop(0)
        wait_shared(*members)
        take(10, 0.1)
    take(len(sent), 0.3)
    members[0].close()
    assert sorted(seen) == sorted(sent)


MEMBER = """
import sys
import fastlog
from fastlog import aio, testing
address, group, topic = sys.argv[1:]
member = fastlog.Consumer(brokers=address, group_id=group, auto_commit=False, session_timeout_ms=1500,
                          heartbeat_interval_ms=50, metadata_max_age_ms=100)
(stream,) = member.create_message_streams({topic: 1})[topic]
for message in stream:
    print(message.payload.decode(), message.partition, flush=True)
"""


def start_member(address: str, group: str, topic: str, path: Path) -> subprocess.Popen[bytes]:
    """A member as a process, which never commits."""
    with path.open("wb") as file:
        return subprocess.Popen([sys.executable, "-c", MEMBER, address, group, topic], stdout=file, cwd=ROOT)


def test_a_member_is_killed_and_one_is_stopped(broker: Broker, address: str, tmp_path: Path) -> None:
    """What they had goes to those that live; who wakes up has nothing any more, and joins anew."""
    sent = produce(address, "killed", 40)
    with consumer(address, "killed", session_timeout_ms=1500) as survivor:
        stream = stream_of(survivor, "killed")
        killed = start_member(address, "killed", "killed", tmp_path / "killed")
        stopped = start_member(address, "killed", "killed", tmp_path / "stopped")
        try:
            files = [tmp_path / "killed", tmp_path / "stopped"]
            wait_until("all have a part", lambda: all(path.stat().st_size for path in files))
            wait_until("the share is small", lambda: 1 <= len(survivor.owned) <= 2)
            os.kill(stopped.pid, signal.SIGSTOP)
            killed.kill()
            assert len(wait_shared(survivor)[0]) == PARTITIONS
            seen: set[bytes] = set()
            while message := stream.poll(0.5):
                seen.add(message.payload)
            assert seen == set(sent)  # nothing was committed, so all comes again
            assert commits(survivor)
            os.kill(stopped.pid, signal.SIGCONT)
            wait_until("it has joined again", lambda: 1 <= len(survivor.owned) < PARTITIONS)
            size = (tmp_path / "stopped").stat().st_size
            time.sleep(0.3)
            assert (tmp_path / "stopped").stat().st_size == size, "it gives out what was committed by others"
        finally:
            for process in (killed, stopped):
                process.kill()
                process.wait()


def test_the_coordinator_and_the_broker_are_killed(tmp_path: Path) -> None:
    """Members go on in their generation, commits are taken again, and nothing that was answered is lost."""
    with testing.broker(directory=tmp_path, properties=PROPERTIES | {"num.threads": "2"}) as broker:
        address = broker.address
        sent = produce(address, "t", 40)
        with consumer(address, "g") as first, consumer(address, "g") as second:
            streams = [stream_of(each, "t") for each in (first, second)]
            wait_shared(first, second)
            seen = [found.payload for stream in streams for found in iter(partial(stream.poll, 0.5), NoMessage.AT_END)]
            assert commits(first) and commits(second)
            member, rebalances = first._group.session_id, first._group.rebalances  # type: ignore[union-attr]
            pid = broker.pids()["coordinator"]
            broker.kill("coordinator")
            broker.wait_replaced("coordinator", pid)
            sent += produce(address, "t", 40, start=40)
            for stream in streams:
                while message := stream.poll(0.3):
                    seen.append(message.payload)
            for each in (first, second):
                wait_until("a commit is taken", lambda each=each: commits(each))  # type: ignore[misc]
            assert first._group.session_id == member  # type: ignore[union-attr]
            assert first._group.rebalances == rebalances  # type: ignore[union-attr]
            assert sorted(seen) == sorted(sent)
            broker.kill()
            wait_until("that is noticed", lambda: first.state is GroupState.NO_COORDINATOR)
            broker.start()
            wait_until("it is back", lambda: first.state is GroupState.ASSIGNED and second.state is GroupState.ASSIGNED)
            sent += produce(address, "t", 40, start=80)
            for stream in streams:
                while len(seen) < len(sent) and (message := stream.poll(2.0)):
                    seen.append(message.payload)
            assert sorted(seen) == sorted(sent)


def commits(member: Consumer) -> bool:
    """Whether it is taken; what others have taken over is told once, and saved by them."""
    try:
        member.commit_offsets()
    except OwnershipLostError:
        member.commit_offsets()
    except CoordinationError:
        return False
    return True


def test_a_filter_reads_topics_that_come_later(address: str) -> None:
    """For every member of the group, whoever leads it; others stay out."""
    produce(address, "filter-a", 8)
    produce(address, "unfiltered", 8)
    with consumer(address, "filter") as first, consumer(address, "filter") as second:
        (one,) = first.create_message_streams_by_filter(whitelist="filter-.*")
        (two,) = second.create_message_streams_by_filter(whitelist="filter-.*")
        wait_shared(first, second)
        sent = produce(address, "filter-b", 8)
        wait_until("both topics are shared", lambda: len(first.owned) == len(second.owned) == PARTITIONS)
        assert sorted(first.topics) == ["filter-a", "filter-b"]
        seen = [m.payload for s in (one, two) for m in iter(partial(s.poll, 0.5), NoMessage.AT_END)]
        assert sorted(payload for payload in seen if payload.startswith(b"filter-b")) == sorted(sent)
        assert not any(payload.startswith(b"un") for payload in seen) and len(seen) == 16
    with consumer(address, "black") as third:
        third.create_message_streams_by_filter(blacklist="filter-a|[^f].*")
        assert third.wait_assigned(PATIENCE) and {source.topic for source in third.owned} == {"filter-b"}


def test_a_topic_may_come_after_its_readers(address: str) -> None:
    with consumer(address, "later") as member:
        stream = stream_of(member, "later")
        assert member.wait_assigned(PATIENCE) and member.state is GroupState.NOTHING
        assert stream.poll(0.0) is NoMessage.NOT_ASSIGNED
        assert sorted(read_after(lambda: produce(address, "later", 8), stream, 8)) == sorted(produce_names("later", 8))


def produce_names(topic: str, count: int) -> list[bytes]:
    return [b"%s %d" % (topic.encode(), number) for number in range(count)]


def read_after(act: Any, stream: Stream, count: int) -> list[bytes]:
    act()
    return read(stream, count)


def test_a_name_is_one_members(address: str) -> None:
    """The second one is refused after a while, and let in when the first one has gone."""
    produce(address, "named", 4)
    with consumer(address, "named", consumer_id="x") as first:
        stream_of(first, "named")
        second = consumer(address, "named", consumer_id="x", session_timeout_ms=300)
        with pytest.raises(CoordinationError, match="another consumer of the id named_x"):
            stream_of(second, "named")
        assert wait_shared(first) == [set(range(PARTITIONS))]
        third = consumer(address, "named", consumer_id="x")
        failed: list[BaseException] = []

        def join() -> None:
            try:
                stream_of(third, "named")
            except BaseException as error:
                failed.append(error)

        waiting = threading.Thread(target=join)
        waiting.start()
        wait_until("it waits", lambda: "another consumer" in str(third.error))
        first.close()
        waiting.join(PATIENCE)
        assert not waiting.is_alive() and not failed
        assert wait_shared(third) == [set(range(PARTITIONS))]
        third.close()


def test_commits_that_are_not_ones_own(address: str) -> None:
    """Of partitions that others read, they name these; the rest is saved."""
    produce(address, "commits", 40)
    with consumer(address, "commits") as first, consumer(address, "commits") as second:
        stream_of(first, "commits")
        stream_of(second, "commits")
        mine, theirs = wait_shared(first, second)
        own, other = part("commits", min(mine)), part("commits", min(theirs))
        with pytest.raises(OwnershipLostError) as caught:
            first.commit_offsets({own: 5, other: 6})
        assert caught.value.partitions == (other,)
        assert first.committed[own] == 5 and other not in second.committed


def test_nobody_commits_beside_the_members(address: str) -> None:
    """A member that was cut off cannot undo what its successor has saved; nor can a tool."""
    produce(address, "fenced", 8)
    with consumer(address, "fenced") as member, Coordinator(address, "fenced", client="t", timeout=PATIENCE) as raw:
        stream_of(member, "fenced")
        wait_shared(member)
        member.commit_offsets({part("fenced", 0): 9})
        for who in (Identity(), Identity("former", 1)):
            found = raw.ask(requests.commit("fenced", who, {("fenced", 0): Committed(1, "")}), requests.parse_commit)
            assert found == {("fenced", 0): 25}
        _, kept = raw.ask(requests.fetch_offsets("fenced", [("fenced", 0)]), requests.parse_offsets)
        assert kept["fenced", 0][1].offset == 9


def test_a_member_that_the_coordinator_forgets_joins_anew(address: str) -> None:
    """It stops reading, says so, and reads again from what was committed."""
    sent = produce(address, "forgotten", 8)
    group = "forgotten"
    with consumer(address, group) as member, Coordinator(address, group, client="t", timeout=PATIENCE) as raw:
        stream = stream_of(member, group)
        assert sorted(read(stream, 8)) == sorted(sent)
        former = member._group.session_id  # type: ignore[union-attr]
        raw.ask(requests.leave("forgotten", str(former)), requests.parse_code)
        wait_until("it has joined anew", lambda: member._group.session_id not in (former, None, ""))  # type: ignore[union-attr]
        wait_shared(member)
        assert sorted(read(stream, 8)) == sorted(sent)
        with pytest.raises(OwnershipLostError, match="not owned any more"):
            member.commit_offsets()


def test_where_to_begin_without_an_offset(address: str) -> None:
    """``autooffset.reset``, committed as soon as it is known, and ``consumer.timeout.ms``, as with ZooKeeper."""
    produce(address, "begin", 8)
    with consumer(address, "end", auto_offset_reset="largest", auto_commit=True, consumer_timeout_ms=100) as member:
        stream = stream_of(member, "begin")
        assert member.wait_assigned(PATIENCE)
        wait_until("where it begins is committed", lambda: len(member.committed) == PARTITIONS)
        with pytest.raises(ConsumerTimeout):
            next(stream)
        sent = produce(address, "begin", 8, start=8)
        assert sorted(read(stream, 8)) == sorted(sent)


def test_settings_that_cannot_be(address: str, tmp_path: Path) -> None:
    """Said at once, with what to change; nobody waits for what does not pass."""
    with pytest.raises(ConfigError, match=r"zk\.connect: not given, and bootstrap.servers neither"):
        Consumer(group_id="g")
    with pytest.raises(ConfigError, match="give one of them"):
        Consumer(brokers=address, zk_connect="localhost:2181", group_id="g")
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"session\.timeout\.ms within"):
        stream_of(consumer(address, "g", session_timeout_ms=299), "t")
    with pytest.raises(CoordinationError, match="no coordinator of groups"):
        stream_of(consumer("127.0.0.1:1", "g", zk_connection_timeout_ms=300), "t")
    assert time.monotonic() - began < PATIENCE
    with Broker(tmp_path / "log", settings=SETTINGS) as other:
        there = f"127.0.0.1:{other.port}"
        wait_ready(there)  # who does not answer within a second is not looked at
        with pytest.raises(ConfigError, match="is another broker than"):
            stream_of(consumer(f"{address},{there}", "g"), "t")
    with consumer(f"127.0.0.1:1,{address}", "g") as member:  # one address is of no use, and there is another
        stream_of(member, "t")
        assert member.wait_assigned(PATIENCE)


def test_a_silent_coordinator_holds_nobody(tmp_path: Path) -> None:
    """Nothing is handed out once others may have it, and leaving takes no longer than it may; then all goes on."""
    settings = {"session_timeout_ms": 1000, "zk_connection_timeout_ms": 500}
    with testing.broker(directory=tmp_path, properties=PROPERTIES) as broker:
        produce(broker.address, "t", 8)
        wait_ready(broker.address)
        with consumer(broker.address, "g", **settings) as member, consumer(broker.address, "g", **settings) as other:
            stream = stream_of(member, "t")
            stream_of(other, "t")
            wait_shared(member, other)
            while stream.poll(0.2):
                pass
            broker.pause("coordinator")
            wait_until("it notices", lambda: member.state is GroupState.NO_COORDINATOR and not member.owned)
            produce(broker.address, "t", 8, start=8)
            assert stream.poll(0.5) is NoMessage.NOT_ASSIGNED
            began = time.monotonic()
            other.close(1.0)
            assert time.monotonic() - began < 1.0 + PATIENCE / 2
            with pytest.raises(CoordinationError):
                stream_of(consumer(broker.address, "g", **settings), "t")
            broker.resume("coordinator")
            assert wait_shared(member) == [set(range(PARTITIONS))]
            left = {b"t %d" % number for number in range(8, 16)}
            deadline = time.monotonic() + PATIENCE
            while left:  # others come again, as nothing was committed
                message = stream.poll(0.05)
                left -= {message.payload} if message else set()
                assert time.monotonic() < deadline, left


PROGRAM = """
import sys
import fastlog
address, group, topic = sys.argv[1:]
member = fastlog.Consumer(brokers=address, group_id=group, heartbeat_interval_ms=50)
(stream,) = member.create_message_streams({topic: 1}, acknowledge=True)[topic]
for _ in range(5):
    stream.done(next(stream))
"""


def test_the_end_of_a_program_commits_and_leaves(address: str) -> None:
    """Without ``close``; the next member is alone at once, and goes on behind what was read."""
    sent = produce(address, "program", 20)
    subprocess.run([sys.executable, "-c", PROGRAM, address, "program", "program"], cwd=ROOT, check=True, timeout=60)
    with consumer(address, "program") as member:
        stream = stream_of(member, "program")
        assert wait_shared(member) == [set(range(PARTITIONS))]
        assert len(set(read(stream, 15))) == 15 and stream.poll(0.2) is NoMessage.AT_END
    assert len(sent) == 20


def test_a_loop_reads_in_a_group(address: str) -> None:
    """``fastlog.aio`` has the same settings."""
    sent = produce(address, "loop", 8)

    async def main() -> list[bytes]:
        found = []
        async with aio.Consumer(brokers=address, group_id="loop", topics="loop", auto_commit=False, **FAST) as member:
            async for message in member:
                found.append(message.payload)
                if len(found) == len(sent):
                    return found
        raise AssertionError("it ended")

    assert sorted(asyncio.run(main())) == sorted(sent)
