"""Changing what groups have committed: where an offset may be, and what was written when somebody else is quicker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fastlog.consumer.broker_logs import Extent
from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import OffsetOutOfRangeError, TransportError
from fastlog.tools import offset_moves
from fastlog.tools.offset_moves import Move, OffsetTarget, chosen, made, misplaced, refuse_live, settled
from fastlog.tools.report import EXIT_FAILED, EXIT_UNREACHABLE, EXIT_USAGE, CommandError
from fastlog.zkpaths import PartitionId, offset_path
from tests.harness.fake_session import FakeZooKeeper

ONE, TWO, OTHER = (TopicPartition(topic, PartitionId(0, number)) for topic, number in (("t", 0), ("t", 1), ("u", 0)))


class Logs:
    """A log from 100 to 200 with messages of ten bytes; a moment is an offset."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def extent(self, partition: TopicPartition) -> Extent:
        if self.error is not None:
            raise self.error
        return Extent(100, 200)

    def at_time(self, partition: TopicPartition, time_ms: int) -> int:
        return time_ms

    def boundaries(self, partition: TopicPartition, offset: int, extent: Extent) -> tuple[int | None, int]:
        after = -(-offset // 10) * 10
        return (None if offset < 105 else after - 10), after


LOGS: Any = Logs()


@pytest.mark.parametrize(
    ("target", "offset"),
    [
        (OffsetTarget("earliest"), 100),
        (OffsetTarget("latest"), 200),
        (OffsetTarget("time", 99), 100),
        (OffsetTarget("time", 100), 100),
        (OffsetTarget("time", 150), 150),
        (OffsetTarget("time", 200), 200),
        (OffsetTarget("time", 201), 200),
        (OffsetTarget("offset", 100), 100),
        (OffsetTarget("offset", 110), 110),
        (OffsetTarget("offset", 200), 200),
    ],
)
def test_where_a_partition_gets(target: OffsetTarget, offset: int) -> None:
    assert settled(LOGS, ONE, target) == offset


@pytest.mark.parametrize(
    ("offset", "why"),
    [
        (99, "the log goes from 100 to 200"),
        (201, "the log goes from 100 to 200"),
        (111, "it lies inside a message: the nearest boundaries are at 110 and at 120"),
        (109, "it lies inside a message: the nearest boundaries are at 100 and at 110"),
        (101, "it lies inside a message: the nearest boundaries are at 110"),
    ],
)
def test_where_no_message_begins(offset: int, why: str) -> None:
    assert misplaced(LOGS, ONE, offset) == why
    with pytest.raises(CommandError, match=f"{offset} cannot be an offset of t/0-0") as caught:
        settled(LOGS, ONE, OffsetTarget("offset", offset))
    assert caught.value.exit_code == EXIT_FAILED
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("error", "code"),
    [(TransportError("away"), EXIT_UNREACHABLE), (OffsetOutOfRangeError("x"), EXIT_FAILED)],
)
def test_a_broker_that_does_not_say(error: Exception, code: int) -> None:
    logs: Any = Logs(error)
    with pytest.raises(CommandError, match="Nothing was written") as caught:
        settled(logs, ONE, OffsetTarget("latest"))
    assert caught.value.exit_code == code


# -- writing -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tree() -> FakeZooKeeper:
    """With an offset of one partition, and nonsense of another."""
    found = FakeZooKeeper()
    found.write(offset_path("g", *ONE), b"5")
    found.write(offset_path("g", *OTHER), b"nonsense")
    return found


def committed(tree: FakeZooKeeper) -> dict[str, bytes]:
    return {path: data for path, data in tree.shown("/consumers/g/offsets/").items() if path.count("/") == 5}


def moves_of(session: Any) -> list[Move]:
    return [made(session, "g", item, 70 + number) for number, item in enumerate((ONE, TWO, OTHER))]


def test_what_is_there_is_read_and_replaced(tree: FakeZooKeeper, capsys: pytest.CaptureFixture[str]) -> None:
    """A node that is not there is made; one without sense is named."""
    session = tree.open()
    moves = moves_of(session)
    assert [(move.old, move.version is None) for move in moves] == [(5, False), (None, True), (None, False)]
    assert "/consumers/g/offsets/u/0-0" in capsys.readouterr().err
    rows = [move.row(True) for move in moves]
    assert [(row["offset"], row["new_offset"], row["change"]) for row in rows] == [
        (5, 70, 65), (None, 71, None), (None, 72, None),
    ]  # fmt: skip
    offset_moves.write(session, moves, force=False)
    found = committed(tree)
    assert [found[move.path] for move in moves] == [b"70", b"71", b"72"]


def changed(tree: FakeZooKeeper, number: int) -> None:
    """Somebody else commits, or takes a node away."""
    if number == 0:
        tree.write(offset_path("g", *ONE), b"6")
    elif number == 1:
        tree.write(offset_path("g", *TWO), b"1")
    else:
        session = tree.open()
        session.delete(offset_path("g", *OTHER))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_somebody_else_was_quicker(tree: FakeZooKeeper, number: int) -> None:
    """Nothing of theirs is overwritten; how many were written before is said. By force they are."""
    session = tree.open()
    moves = moves_of(session)
    changed(tree, number)
    before = committed(tree).get(moves[number].path)
    with pytest.raises(CommandError, match=f"{number} of 3 offsets were written") as caught:
        offset_moves.write(session, moves, force=False)
    assert caught.value.exit_code == EXIT_FAILED
    found = committed(tree)
    assert found.get(moves[number].path) == before
    assert [found.get(move.path) == b"%d" % move.new for move in moves[:number]] == [True] * number
    offset_moves.write(session, moves, force=True)
    assert sorted(committed(tree).values()) == [b"70", b"71", b"72"]


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("force", [False, True])
def test_a_zookeeper_that_goes_away_meanwhile(tree: FakeZooKeeper, number: int, force: bool) -> None:
    """Nobody knows whether that one was written; run again, all are."""
    session = tree.open()
    moves = moves_of(session)
    tree.refused.add(moves[number].path)
    with pytest.raises(CommandError, match=f"{number} of 3 offsets were") as caught:
        offset_moves.write(session, moves, force=force)
    assert caught.value.exit_code == EXIT_UNREACHABLE
    tree.refused.clear()
    offset_moves.write(session, moves_of(session), force=force)
    assert sorted(committed(tree).values()) == [b"70", b"71", b"72"]


# -- choosing ----------------------------------------------------------------------------------------------------------


def test_members_that_live_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Unless by force, which says what becomes of it; a group without members is nothing to be said."""
    quiet: Any = SimpleNamespace(name="quiet", members={})
    live: Any = SimpleNamespace(name="live", members={f"m{number}": None for number in range(6)})
    refuse_live([quiet], False, "this")
    with pytest.raises(CommandError, match="'live' has 6 live members: m0, m1, m2, m3, m4 …"):
        refuse_live([quiet, live], False, "this")
    assert capsys.readouterr().err == ""
    refuse_live([quiet, live], True, "this")
    assert "m4 …" in capsys.readouterr().err


def test_all_that_are_announced_or_those_that_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert chosen([ONE, TWO], [ONE, OTHER], []) == [ONE, TWO]
    assert "u/0-0 stays as it is" in capsys.readouterr().err
    assert chosen([ONE, TWO], [OTHER], ["0-1"]) == [TWO]
    assert chosen([ONE, TWO], [], ["0-1", "0-0"]) == [ONE, TWO]
    for announced, names in (([ONE], ["0-1"]), ([], ["0-0"]), ([ONE], ["0-0", "x"])):
        with pytest.raises(CommandError, match="names no partition") as caught:
            chosen(announced, [], names)
        assert caught.value.exit_code == EXIT_USAGE
