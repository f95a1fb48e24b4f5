"""Fixtures that several modules share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastlog.log import _files
from tests.harness.fake_session import FakeZooKeeper
from tests.harness.groups import Cluster, Member, fake_member


@pytest.fixture
def no_faults() -> Iterator[None]:
    """Named faults that a test arms in its own process end with it."""
    yield
    _files.arm("", "test")


@pytest.fixture
def tree() -> FakeZooKeeper:
    """With topic ``t``: two partitions on each of two brokers."""
    return FakeZooKeeper()


@pytest.fixture
def cluster(tree: FakeZooKeeper) -> Cluster:
    made = Cluster(tree.open())
    made.show("t", {1: 2, 2: 2})
    return made


@pytest.fixture
def alone(tree: FakeZooKeeper, cluster: Cluster) -> Iterator[Member]:
    """One member that has settled."""
    with fake_member(tree, {"t": 1}, "a") as member:
        yield member.settled()


@pytest.fixture(params=[True, False], ids=["fastlog", "plain 0.7"])
def own(request: pytest.FixtureRequest) -> bool:
    """Whether the broker has fastlog's own requests."""
    return bool(request.param)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory where a sync costs nothing, if there is one: for tests that make thousands and lose no power.

    Not for tests of reads: no read there can be told not to wait for a disk, so that each goes to the helper thread.
    """
    place = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=place if os.access(place, os.W_OK) else tmp_path) as name:
        yield Path(name)
