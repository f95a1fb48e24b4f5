"""Groups in a real ZooKeeper: shares, sessions that expire, members that are stopped and wake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastlog import testing
from fastlog.consumer.partitions import TopicPartition
from fastlog.consumer.status import GroupState
from fastlog.coordination.zookeeper import ZooKeeperSession
from fastlog.errors import OwnershipLostError
from fastlog.testing import RunningZooKeeper
from fastlog.zkpaths import PartitionId, offset_path
from tests.harness.groups import GROUP, Cluster, Member, expected_owners, real_member, shown_owners, wait_until
from tests.harness.timing import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.java]
SESSION_MS = 3000
SETTLE_SECONDS = PATIENCE
TAKEOVER_SECONDS = PATIENCE + SESSION_MS / 1000


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[RunningZooKeeper]:
    with testing.zookeeper() as running:
        yield running


@pytest.fixture
def connect(zookeeper: RunningZooKeeper, fastlog_topic: str) -> str:
    """With a tree of the test's own."""
    return f"{zookeeper.connect}/{fastlog_topic}"


@pytest.fixture
def session(connect: str) -> Iterator[ZooKeeperSession]:
    """Shows three brokers with four partitions of ``t`` each."""
    with ZooKeeperSession(connect, session_timeout=20.0) as made:
        Cluster(made).show("t", {0: 4, 1: 4, 2: 4})
        yield made


def member(connect: str, name: str) -> Member:
    return real_member(connect, {"t": 1}, name, zk_session_timeout_ms=SESSION_MS)


def part(name: str) -> TopicPartition:
    return TopicPartition("t", PartitionId.parse(name))


def wait_agreed(session: ZooKeeperSession, members: list[Member], seconds: float = SETTLE_SECONDS) -> float:
    """Until ZooKeeper and the members show the shares that the formula gives; how long it took."""
    began = time.monotonic()

    def agreed() -> bool:
        read = {str(partition): thread for one in members for partition, thread in one.group.owned.items()}
        return len(read) == 12 and read == shown_owners(session, ["t"]) == expected_owners(session, ["t"])

    wait_until("one owner each, by the formula", agreed, seconds)
    return time.monotonic() - began


def test_three_members_share_twelve_partitions(connect: str, session: ZooKeeperSession) -> None:
    """Whenever one comes or goes without a crash it settles; within a second where nothing else runs."""
    with member(connect, "a") as a:
        wait_agreed(session, [a])
        with member(connect, "b") as b:
            wait_agreed(session, [a, b])
            with member(connect, "c") as c:
                joined = wait_agreed(session, [a, b, c])
                assert [len(one.owned) for one in (a, b, c)] == [4, 4, 4]
                moved = [partition for what, partition in a.readers.moves if what == "release"]
                assert len(moved) == 8
                for one in (a, b, c):
                    one.readers.consume(next(iter(one.readers.claims)), 7)
                    one.group.commit()
            left = wait_agreed(session, [a, b])
    print(f"3 members, 12 partitions: settled {joined:.3f} s after one joined, {left:.3f} s after one left")
    assert shown_owners(session, ["t"]) == {}


def test_a_member_whose_session_expires_joins_again(
    zookeeper: RunningZooKeeper, connect: str, session: ZooKeeperSession
) -> None:
    """T-27: again and again; the others keep theirs, and what was not committed is not."""
    with member(connect, "a") as a, member(connect, "b") as b:
        wait_agreed(session, [a, b])
        place = next(partition for partition in a.readers.claims)
        for turn in range(3):
            a.readers.consume(place, 10 * turn + 5)
            a.group.commit()
            a.readers.consume(place, 10 * turn + 9)
            number = a.group.session_id
            assert number is not None
            zookeeper.expire(number)
            wait_until("a new session", lambda old=number: a.group.session_id not in (old, None))  # type: ignore[misc]
            wait_agreed(session, [a, b])
            assert a.readers.claims[place].offset == 10 * turn + 5
            with pytest.raises(OwnershipLostError, match=str(place)):
                a.group.commit()
        assert a.group.sessions == 4
        assert b.group.sessions == 1


def test_a_silent_zookeeper_ends_the_lease_before_anybody_else_can_own(
    zookeeper: RunningZooKeeper, connect: str, session: ZooKeeperSession
) -> None:
    """T-28: nothing counts as owned then; when it answers again everything is read again by itself."""
    with member(connect, "a") as a:
        wait_agreed(session, [a])
        zookeeper.pause()
        try:
            wait_until("the lease ends", lambda: a.owned == [], 5 * SESSION_MS / 1000)
            assert a.group.state is GroupState.NO_ZOOKEEPER
        finally:
            zookeeper.resume()
        assert a.group.wait_settled(TAKEOVER_SECONDS)
        wait_agreed(session, [a], TAKEOVER_SECONDS)


CHILD = """
import json, sys, time
from fastlog.errors import FastlogError, OwnershipLostError
from tests.harness.groups import real_member
from tests.integration.test_group import part

connect, session_ms, places = sys.argv[1], int(sys.argv[2]), [part(name) for name in sys.argv[3:]]
one = real_member(connect, {"t": 1}, "b", zk_session_timeout_ms=session_ms)

def say(**words):
    print(json.dumps(words), flush=True)

one.group.start()
number = 0
while True:
    number += 1
    owned = [str(place) for place in places if place in one.group.owned]
    try:
        one.group.commit({place: 1_000_000 + number for place in places})
        lost = []
    except OwnershipLostError as error:
        lost = [str(place) for place in error.partitions]
    except FastlogError as error:
        lost = [str(place) for place in places]
    say(number=number, session=one.group.session_id, owned=owned, lost=lost)
    time.sleep(0.002)
"""


def test_a_stopped_member_that_wakes_owns_and_commits_nothing(connect: str, session: ZooKeeperSession) -> None:
    """T-6, T-27: stopped past its session, while others took over. It commits for ever, and nothing of it arrives."""
    places = [part(name) for name in ("2-0", "2-1", "2-2", "2-3")]
    names = [str(place) for place in places]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", CHILD, connect, str(SESSION_MS), *(str(place.partition) for place in places)]
    with member(connect, "a") as a, subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdout is not None
        try:
            said = {"lost": names}
            while said["lost"]:
                said = json.loads(child.stdout.readline())
            old_session = said["session"]
            child.send_signal(signal.SIGSTOP)
            stopped = time.monotonic()
            wait_until("a has all", lambda: len(a.owned) == 12, TAKEOVER_SECONDS)
            print(f"taken over {time.monotonic() - stopped:.2f} s after a stop, sessions of {SESSION_MS} ms")
            with member(connect, "c") as c:  # so that what the child had is not its share any more when it is back
                wait_agreed(session, [a, c])
                for place in places:
                    assert c.readers.claims[place].offset > 1_000_000
                c.group.commit(dict.fromkeys(places, 77))
                nodes = [session.get(offset_path(GROUP, *place)) for place in places]
                assert [node.data for node in nodes if node is not None] == [b"77"] * 4
                os.set_blocking(child.stdout.fileno(), False)
                while child.stdout.read(65536):
                    pass  # of before it was stopped
                os.set_blocking(child.stdout.fileno(), True)
                child.send_signal(signal.SIGCONT)
                heard = []
                while not heard or heard[-1]["session"] in (None, old_session) or len(heard) < 20:
                    heard.append(json.loads(child.stdout.readline()))
                assert [said for said in heard[1:] if said["owned"]] == []  # the first was begun before the stop
                assert [said for said in heard if set(said["lost"]) != set(names)] == []
                assert [session.get(offset_path(GROUP, *place)) for place in places] == nodes
                assert set(names) <= set(c.owned)
        finally:
            child.send_signal(signal.SIGCONT)
            child.kill()
            child.wait()
