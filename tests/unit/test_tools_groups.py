"""The commands about groups, on a ZooKeeper in memory: what they leave alone, whom they ask, and when they are read."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastlog import message
from fastlog.consumer.partitions import TopicPartition
from fastlog.tools import groups_access, lag, signals
from fastlog.tools.group_places import BrokerGroupStore, ZooKeeperGroupStore
from fastlog.tools.group_reading import Chosen, forget_offsets
from fastlog.tools.offset_moves import Move
from fastlog.tools.report import EXIT_FAILED, CommandError
from fastlog.zkpaths import PartitionId, offset_path
from tests.harness.command_line import Commands
from tests.harness.fake_broker import FakeBroker
from tests.harness.fake_session import FakeSession, FakeZooKeeper
from tests.harness.timing import patch_time

ONE, TWO, OTHER = (TopicPartition(topic, PartitionId(0, number)) for topic, number in (("t", 0), ("t", 1), ("u", 0)))


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch) -> FakeZooKeeper:
    """What ``--zookeeper`` names, whatever it says."""
    found = FakeZooKeeper()

    @contextlib.contextmanager
    def session_at(zookeeper: str, timeout: float) -> Iterator[FakeSession]:
        yield found.open()

    monkeypatch.setattr(groups_access, "session_at", session_at)
    return found


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capfd)


def test_offsets_of_one_topic_are_deleted_and_the_group_stays(tree: FakeZooKeeper, run: Commands) -> None:
    tree.write("/consumers/g/owners/t/0-0", b"g_gone-0")  # as one of 0.7 leaves it
    before = tree.shown()
    arguments = ("offsets", "delete", "--zookeeper", "there", "--group", "g", "--execute")
    ran = run(*arguments, "--topic", "t")
    assert (ran.code, tree.shown()) == (0, before) and "deleted 0 offsets" in ran.err
    assert run(*arguments).code == 0
    assert not tree.shown("/consumers/g")


def test_a_file_is_shown_beside_members_that_live_and_checked_where_a_broker_answers(
    tree: FakeZooKeeper, run: Commands, tmp_path: Path
) -> None:
    """A broker that is away is tried once; an offset that stands for none is none to check."""
    file = tmp_path / "offsets"
    with FakeBroker() as broker:
        broker.logs["t", 0] = message.encode_set([b"a"])
        tree.write("/brokers/ids/0", b"h-1:127.0.0.1:1")
        tree.write("/brokers/ids/1", b"h-1:127.0.0.1:%d" % broker.port)
        tree.write("/consumers/g/ids/g_h-1", b'{ "t": 1 }')
        lines = ["0-0:5", "0-1:5", "1-0:-1"]
        file.write_text("".join(f"/consumers/g/offsets/t/{line}\n" for line in lines))
        common = ("offsets", "import", "--zookeeper", "there", "--input-file", str(file), "--connect-timeout", "100ms")
        ran = run(*common, "--dry-run", "--json")
        assert ran.code == 0 and [row["new_offset"] for row in ran.rows] == [5, 5, -1]
        assert ran.err.count("not checked: the offsets of broker 0: ") == 1
        ran = run(*common)
        assert ran.code == 1 and "1 live member" in ran.refused()[0]
    assert not tree.shown("/consumers/g/offsets")


def test_a_group_that_begins_again_keeps_what_it_has_of_other_topics(tree: FakeZooKeeper) -> None:
    for item in (ONE, TWO, OTHER):
        tree.write(offset_path("g", *item), b"5")
    store = ZooKeeperGroupStore(tree.open())
    forget_offsets(store, "g", Chosen("t", None, None))
    view = store.view("g")
    assert view is not None and list(view.committed) == [OTHER]
    forget_offsets(store, "g", Chosen(None, None, "t"))
    view = store.view("g")
    assert view is not None and not view.committed


def test_of_offsets_that_a_broker_refused_those_that_it_took_are_counted() -> None:
    groups: Any = SimpleNamespace(offsets=lambda group: {}, commit=lambda group, offsets: {ONE: 0, TWO: 25, OTHER: 0})
    moves = [Move("g", item, None, None, 7) for item in (ONE, TWO, OTHER)]
    with pytest.raises(CommandError, match="t/0-1 of group 'g' was not written; 2 of 3 offsets were") as caught:
        BrokerGroupStore(groups).write(moves, False)
    assert caught.value.exit_code == EXIT_FAILED


@pytest.mark.parametrize("form", ["table", "0.7"])
def test_each_round_of_a_watched_lag_is_seen_before_the_pause(
    tree: FakeZooKeeper, run: Commands, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Though nothing but the end of the process empties the buffer of a pipe."""
    tree.write(offset_path("g", *ONE), b"12345")
    pipe = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe))
    seen = []

    def sleep(seconds: float) -> None:
        seen.append(pipe.getvalue().count(b"12345"))
        if len(seen) == 2:
            raise signals.Interrupted(signal.SIGINT)

    patch_time(monkeypatch, lag, sleep=sleep)
    ran = run("lag", "--zookeeper", "there", "--group", "g", "--watch", "1h", "--format", form)
    assert (ran.code, seen) == (130, [1, 2])
