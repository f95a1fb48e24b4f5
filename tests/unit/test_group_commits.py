"""What members of a group commit, when, and what happens when that fails."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fastlog.consumer.database import DatabaseOffsets
from fastlog.consumer.offsets import FileOffsets
from fastlog.consumer.status import GroupState
from fastlog.errors import ClosedError, CoordinationError, OwnershipLostError
from fastlog.zkpaths import PartitionId, offset_path
from tests.harness.fake_session import FakeSession, FakeZooKeeper
from tests.harness.groups import (
    GROUP,
    Cluster,
    FakeStore,
    Member,
    committed,
    fake_member,
    part,
    wait_until,
)
from tests.harness.timing import PATIENCE


def test_commits_write_what_has_changed(tree: FakeZooKeeper, alone: Member) -> None:
    def writes() -> list[str]:
        return [path for _, name, path in tree.calls if name == "put"]

    alone.readers.consume(part("1-0"), 10)
    alone.readers.consume(part("2-0"), 20)
    alone.group.commit()
    assert (committed(tree, "1-0"), committed(tree, "2-0"), committed(tree, "1-1")) == (b"10", b"20", None)
    alone.readers.consume(part("1-0"), 11)
    tree.calls.clear()
    alone.group.commit()
    alone.group.commit()
    assert writes() == ["/consumers/g/offsets/t/1-0"]
    alone.group.commit({part("2-0"): 5})
    assert committed(tree, "2-0") == b"5"
    assert alone.group.committed == {part("1-0"): 11, part("2-0"): 5}
    with pytest.raises(ValueError, match="negative"):
        alone.group.commit({part("2-0"): -1})


def test_offsets_are_read_after_owning(tree: FakeZooKeeper, alone: Member) -> None:
    """9.3 no. 56: what the former owner commits last is where the next one begins."""
    alone.readers.consume(part("2-0"), 10)
    alone.group.commit()
    order: list[tuple[str, str]] = []

    def note(session: FakeSession, name: str, path: str) -> None:
        if path.endswith("/2-0"):
            order.append((name, path.split("/")[3]))

    with fake_member(tree, {"t": 1}, "b") as other:
        alone.settled()
        other.settled()
        assert other.readers.claims[part("2-0")].offset == 10
        tree.before_call = note
    wait_until("a has it again", lambda: "t/2-0" in alone.owned)
    assert order[-1] == ("get", "offsets")
    assert ("create", "owners") in order


def test_a_release_commits_unless_that_is_off(tree: FakeZooKeeper, cluster: Cluster) -> None:
    """9.3 no. 45: off means off. On: the next owner begins where this one stopped."""
    for is_on, expected in ((True, 33), (False, None)):
        with fake_member(tree, {"t": 1}, "a", auto_commit=is_on) as first:
            first.settled().readers.consume(part("2-0"), 33)
            with fake_member(tree, {"t": 1}, "b") as second:
                wait_until("moved", lambda other=second: "t/2-0" in other.owned)  # type: ignore[misc]
                assert second.readers.claims[part("2-0")].offset == expected
                if not is_on:
                    first.settled()
                    with pytest.raises(OwnershipLostError) as raised:
                        first.group.commit()
                    assert raised.value.partitions == (part("2-0"),)
                    first.group.commit()
        tree.remove(offset_path(GROUP, "t", PartitionId(2, 0)))


def test_a_stop_commits_unless_that_is_off(tree: FakeZooKeeper, cluster: Cluster) -> None:
    for is_on, expected in ((False, None), (True, b"33")):
        with fake_member(tree, {"t": 1}, "a", auto_commit=is_on) as member:
            member.settled().readers.consume(part("2-0"), 33)
        assert committed(tree, "2-0") == expected
        member.group.stop()
        with pytest.raises(ClosedError):
            member.group.commit()
        with pytest.raises(ClosedError):
            member.group.commit(wait=False)


def test_auto_commit_writes_by_itself(tree: FakeZooKeeper, cluster: Cluster) -> None:
    with fake_member(tree, {"t": 1}, "a", auto_commit=True, auto_commit_interval_ms=20) as member:
        member.settled().readers.consume(part("2-0"), 33)
        wait_until("committed", lambda: committed(tree, "2-0") == b"33")
        tree.calls.clear()
        time.sleep(0.1)
        assert [path for _, name, path in tree.calls if name == "put"] == []


def test_a_commit_of_what_is_not_owned_is_refused_by_name(tree: FakeZooKeeper, alone: Member) -> None:
    """The others are written."""
    with pytest.raises(OwnershipLostError, match=r"not committed: t/5-5, x/1-0") as raised:
        alone.group.commit({part("1-0"): 5, part("5-5"): 1, part("1-0", "x"): 2})
    assert set(raised.value.partitions) == {part("5-5"), part("1-0", "x")}
    assert committed(tree, "1-0") == b"5"
    assert committed(tree, "5-5") is None


def test_a_failed_commit_is_raised_or_counted(tree: FakeZooKeeper, alone: Member) -> None:
    """Z-21: who waits gets the error; what nobody waits for is counted and logged, not once per commit."""
    tree.refused.add(offset_path(GROUP, "t", PartitionId(1, 0)))
    alone.readers.consume(part("1-0"), 1)
    alone.readers.consume(part("1-1"), 2)
    with pytest.raises(CoordinationError, match="refuses"):
        alone.group.commit()
    assert committed(tree, "1-1") == b"2"
    alone.group.commit(wait=False)
    wait_until("counted", lambda: alone.group.failed_commits == 1)
    tree.refused.clear()
    alone.group.commit()
    assert committed(tree, "1-0") == b"1"


def test_failures_of_auto_commit_are_counted_and_seldom_logged(
    tree: FakeZooKeeper, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    store = FakeStore()
    with fake_member(tree, {"t": 1}, "a", auto_commit=True, auto_commit_interval_ms=2, store=store) as member:
        member.settled().readers.consume(part("1-0"), 1)
        store.broken[part("1-0")] = RuntimeError("full")
        wait_until("several", lambda: member.group.failed_commits >= 5)
        assert len([line for line in caplog.messages if "commit_failed" in line]) == 1
        store.broken.clear()
        wait_until("written", lambda: store.offsets.get(part("1-0")) == 1)
        assert len(member.owned) == 4


@pytest.mark.parametrize("by_hand", [False, True])
def test_auto_commits_that_go_on_failing_stop_the_streams(tree: FakeZooKeeper, cluster: Cluster, by_hand: bool) -> None:
    """Z-21: after a limit; a commit that works lets them go on, whoever asked for it."""
    store = FakeStore()
    settings: dict[str, Any] = {"auto_commit": True, "auto_commit_interval_ms": 2, "auto_commit_max_failures": 3}
    with fake_member(tree, {"t": 1}, "a", store=store, **settings) as member:
        member.settled().readers.consume(part("1-0"), 1)
        store.broken[part("1-0")] = RuntimeError("full")
        wait_until("stopped", lambda: member.group.lease.objection is not None)
        assert "3 automatic commits in a row have failed" in str(member.group.lease.objection)
        assert "full" in str(member.group.lease.objection)
        assert member.group.lease.is_valid and len(member.owned) == 4
        store.broken.clear()
        if by_hand:
            member.group.commit()
            assert member.group.lease.objection is None
        wait_until("it goes on", lambda: member.group.lease.objection is None)
        assert store.offsets[part("1-0")] == 1


def test_without_a_limit_failing_auto_commits_stop_nothing(tree: FakeZooKeeper, cluster: Cluster) -> None:
    store = FakeStore()
    settings: dict[str, Any] = {"auto_commit": True, "auto_commit_interval_ms": 1, "auto_commit_max_failures": None}
    with fake_member(tree, {"t": 1}, "a", store=store, **settings) as member:
        member.settled().readers.consume(part("1-0"), 1)
        store.broken[part("1-0")] = RuntimeError("full")
        wait_until("many failures", lambda: member.group.failed_commits >= 15)
        assert member.group.lease.objection is None


def test_one_store_for_all_is_asked_for_every_partition(tree: FakeZooKeeper, cluster: Cluster) -> None:
    """A partition whose offset cannot be had keeps the others from nothing, and comes later."""
    store = FakeStore()
    store.offsets[part("1-1")] = 11
    store.broken[part("1-0")] = RuntimeError("locked")
    with fake_member(tree, {"t": 1}, "a", store=store) as member:
        wait_until("the others", lambda: member.owned == ["t/1-1", "t/2-0", "t/2-1"])
        wait_until("failing", lambda: member.group.state is GroupState.FAILING)
        assert "no offset of t/1-0" in str(member.group.error)
        assert member.readers.claims[part("1-1")].offset == 11
        store.broken.clear()
        assert len(member.settled().owned) == 4
        assert [what for what, partition in member.readers.moves if partition == part("1-1")] == ["take"]


def test_an_offset_that_somebody_else_loaded_is_loaded_again(
    tree: FakeZooKeeper, cluster: Cluster, tmp_path: Path
) -> None:
    """A member that was stopped before it loaded, and woke when it had lost the partition, must not block its owner."""
    with fake_member(tree, {"t": 1}, "a", store=FileOffsets(tmp_path)) as member:
        member.settled().readers.consume(part("1-0"), 5)
        member.group.commit()
        assert FileOffsets(tmp_path).load(GROUP, part("1-0")) == 5
        member.readers.consume(part("1-0"), 9)
        with pytest.raises(OwnershipLostError, match="t/1-0"):
            member.group.commit()
        wait_until(
            "loaded again", lambda: member.readers.moves[-2:] == [("release", part("1-0")), ("take", part("1-0"))]
        )
        assert member.settled().readers.claims[part("1-0")].offset == 5
        member.readers.consume(part("1-0"), 9)
        member.group.commit()
        assert member.group.committed[part("1-0")] == 9


def test_a_transaction_that_was_fenced_lets_the_owner_load_again(
    tree: FakeZooKeeper, cluster: Cluster, tmp_path: Path
) -> None:
    """The same where the program saves: what it has in hand is left out until the partition begins anew."""
    tree.timeout = 0.4  # so that the worker looks up every tenth of a second

    def store() -> DatabaseOffsets:
        return DatabaseOffsets(lambda: sqlite3.connect(tmp_path / "offsets.db"))

    class Batch(list[bytes]):
        source, offset, next_offset = part("1-0"), 0, 5

    mine = store()
    with contextlib.closing(sqlite3.connect(tmp_path / "offsets.db")) as connection:
        once = mine.exactly_once(connection, GROUP)
        with fake_member(tree, {"t": 1}, "a", store=mine) as member:
            member.settled()
            store().load(GROUP, part("1-0"))
            moves = len(member.readers.moves)
            with pytest.raises(OwnershipLostError), once(Batch([b"x"])):
                pass
            wait_until("loaded again", lambda: len(member.readers.moves) == moves + 2)
            with once(Batch([b"x"])) as fresh:
                assert fresh == [b"x"]
            assert store().load(GROUP, part("1-0")) == 5


def test_an_offset_that_makes_no_sense_is_not_taken_for_none(tree: FakeZooKeeper, cluster: Cluster) -> None:
    """T-29: offsets are never silently reset; -1 is what 0.7 writes when it has none."""
    tree.write(offset_path(GROUP, "t", PartitionId(1, 0)), b"soon")
    tree.write(offset_path(GROUP, "t", PartitionId(1, 1)), b"-1")
    with fake_member(tree, {"t": 1}, "a") as member:
        wait_until("the others", lambda: member.owned == ["t/1-1", "t/2-0", "t/2-1"])
        assert member.readers.claims[part("1-1")].offset is None
        assert "/consumers/g/offsets/t/1-0" in str(member.group.error)
        tree.write(offset_path(GROUP, "t", PartitionId(1, 0)), b"12")
        member.settled()
        assert member.readers.claims[part("1-0")].offset == 12


def test_a_jump_is_kept_beside(tree: FakeZooKeeper, alone: Member) -> None:
    alone.group.note_jump(part("1-0"), 100, 900)
    wait_until("written", lambda: tree.shown().get("/consumers/g/fastlog/lost/t/1-0") == b"100 900")


# -- where a partition begins ----------------------------------------------------------------------------------------

BEGIN = offset_path(GROUP, "t", PartitionId(1, 0))


@pytest.mark.parametrize("before", [None, b"-1"], ids=["nothing", "what 0.7 writes when it has none"])
def test_where_a_partition_begins_is_committed_at_once(
    tree: FakeZooKeeper, cluster: Cluster, before: bytes | None
) -> None:
    """Not at the first interval or at the end: a member that is killed before would leave the next one nothing."""
    if before is not None:
        tree.write(BEGIN, before)
    with fake_member(tree, {"t": 1}, "a", auto_commit=True, auto_commit_interval_ms=3_600_000) as member:
        member.settled().readers.consume(part("1-0"), 700)
        member.group.note_begin(part("1-0"))
        wait_until("committed", lambda: committed(tree, "1-0") == b"700")
        wait_until("known", lambda: member.group.committed == {part("1-0"): 700})
        assert committed(tree, "1-1") is None  # its broker has not said yet
        session = member.group.session_id
        assert session is not None
        tree.expire(session)
        wait_until("another session", lambda: member.group.sessions == 2)
        assert member.settled().readers.claims[part("1-0")].offset == 700


def test_where_a_partition_begins_is_not_committed_without_auto_commit(tree: FakeZooKeeper, alone: Member) -> None:
    alone.readers.consume(part("1-0"), 700)
    alone.group.note_begin(part("1-0"))
    alone.group.commit({part("1-1"): 1})
    assert committed(tree, "1-0") is None and committed(tree, "1-1") == b"1"


def test_where_a_partition_begins_replaces_no_offset_of_somebody_else(tree: FakeZooKeeper, cluster: Cluster) -> None:
    """That offset is gone on at; whoever wrote it while the broker was asked knew better."""
    with fake_member(tree, {"t": 1}, "a", auto_commit=True, auto_commit_interval_ms=3_600_000) as member:
        member.settled().readers.consume(part("1-0"), 700)
        tree.write(BEGIN, b"900")
        member.group.note_begin(part("1-0"))
        wait_until("taken again", lambda: getattr(member.readers.claims.get(part("1-0")), "offset", None) == 900)
        assert committed(tree, "1-0") == b"900"


def test_where_a_jump_has_led_is_committed_at_once(tree: FakeZooKeeper, cluster: Cluster) -> None:
    """Otherwise the next one would jump again from the same offset, and at ``largest`` to another place."""
    tree.write(BEGIN, b"9000")
    with fake_member(tree, {"t": 1}, "a", auto_commit=True, auto_commit_interval_ms=3_600_000) as member:
        member.settled().readers.consume(part("1-0"), 700)
        member.group.note_begin(part("1-0"))
        wait_until("committed", lambda: committed(tree, "1-0") == b"700")


def test_a_jump_while_a_beginning_is_committed_is_committed_next(tree: FakeZooKeeper, cluster: Cluster) -> None:
    with fake_member(tree, {"t": 1}, "a", auto_commit=True, auto_commit_interval_ms=3_600_000) as member:
        member.settled().readers.consume(part("1-0"), 700)

        def jump(_session: FakeSession, name: str, path: str) -> None:
            if (name, path) == ("create", BEGIN):
                tree.after_change = nothing
                member.readers.consume(part("1-0"), 9000)
                member.group.note_begin(part("1-0"))

        nothing, tree.after_change = tree.after_change, jump
        member.group.note_begin(part("1-0"))
        wait_until("committed", lambda: committed(tree, "1-0") == b"9000")


def test_where_a_partition_begins_is_committed_once_that_works(tree: FakeZooKeeper, cluster: Cluster) -> None:
    with fake_member(tree, {"t": 1}, "a", auto_commit=True, auto_commit_interval_ms=10) as member:
        member.settled().readers.consume(part("1-0"), 700)
        tree.refused.add(BEGIN)
        member.group.note_begin(part("1-0"))
        wait_until("counted", lambda: member.group.failed_commits > 0)
        tree.refused.clear()
        wait_until("committed", lambda: committed(tree, "1-0") == b"700")


def test_a_store_without_begin_keeps_where_a_partition_begins(
    tree: FakeZooKeeper, cluster: Cluster, tmp_path: Path
) -> None:
    store = FileOffsets(tmp_path)
    options: dict[str, Any] = {"auto_commit": True, "auto_commit_interval_ms": 3_600_000, "store": store}
    with fake_member(tree, {"t": 1}, "a", **options) as member:
        member.settled().readers.consume(part("1-0"), 700)
        member.group.note_begin(part("1-0"))
        wait_until("committed", lambda: member.group.committed == {part("1-0"): 700})
        assert FileOffsets(tmp_path).load(GROUP, part("1-0")) == 700


def test_who_leaves_waits_for_the_broker_that_is_asked_where_to_begin(tree: FakeZooKeeper, cluster: Cluster) -> None:
    """Otherwise the next one would begin at the end, behind what came between."""
    member = fake_member(tree, {"t": 1}, "a", auto_commit=True, auto_commit_interval_ms=3_600_000)
    with member:
        member.settled().readers.unknown.add(part("1-0"))
        asked = member.readers.on_beginning
        stopping = threading.Thread(target=member.group.stop)
        stopping.start()
        assert asked.wait(PATIENCE)
        member.readers.consume(part("1-0"), 700)
        member.readers.unknown.clear()
        member.group.note_begin(part("1-0"))
        stopping.join()
    assert committed(tree, "1-0") == b"700"


def test_the_log_that_an_offset_is_of_goes_with_it(tree: FakeZooKeeper, cluster: Cluster, tmp_path: Path) -> None:
    """To who reads the partition next, in this member or another one."""
    with fake_member(tree, {"t": 2}, "a", auto_commit=True, store=FileOffsets(tmp_path)) as member:
        member.settled().readers.made[part("1-0")] = 77
        member.readers.consume(part("1-0"), 5)
        member.group.commit()
        member.readers.made[part("1-0")] = 78
        member.readers.consume(part("1-0"), 6)
    with fake_member(tree, {"t": 1}, "b", store=FileOffsets(tmp_path)) as member:
        claim = member.settled().readers.claims[part("1-0")]
        assert (claim.offset, claim.log) == (6, 78)
