"""A lease ends before a session can have ended."""

from __future__ import annotations

import pytest

from fastlog.consumer.partitions import Lease, TopicPartition
from fastlog.zkpaths import PartitionId


def test_a_lease_counts_from_when_the_question_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(Lease, "now", staticmethod(lambda: now))
    lease = Lease(6.0)
    assert not lease.is_valid
    lease.extend(99.0)
    lease.extend(97.0)  # an older answer takes nothing back
    assert lease.is_valid
    assert lease.seconds_left == 5.0
    now = 104.99
    assert lease.is_valid
    now = 105.0
    assert not lease.is_valid
    assert lease.seconds_left == 0.0
    lease.extend(now)
    lease.drop()
    assert not lease.is_valid


def test_a_partition_says_where_it_is() -> None:
    assert str(TopicPartition("logs", PartitionId(2, 11))) == "logs/2-11"
