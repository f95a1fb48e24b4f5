"""The groups that a broker keeps, as tools see them, and how long a member looks for their coordinator."""

from __future__ import annotations

from typing import Any

import pytest

from fastlog.client.coordinator import Coordinator, CoordinatorError, NotReachedError
from fastlog.client.group_requests import Described, DescribedMember
from fastlog.consumer.broker_groups import assignor
from fastlog.consumer.broker_groups.assignor import Given, MemberView
from fastlog.consumer.broker_groups.kind import InBroker
from fastlog.consumer.broker_groups.topics import Found
from fastlog.consumer.broker_groups.view import BrokerGroups
from fastlog.consumer.config import ConsumerConfig
from fastlog.consumer.partitions import TopicPartition
from fastlog.zkpaths import PartitionId, Subscription

OWN = MemberView("g_me", Subscription({"t": 1}), True, frozenset(), 1).encode(["t"])
GIVEN = Given({("t", 1): 0}, 1, True, "").encode()


def viewed(state: str, *members: DescribedMember, protocol: str = assignor.NAME, kind: str = "consumer") -> Any:
    """What is shown of a group that a broker with two partitions of ``t`` describes like this."""
    groups = BrokerGroups("127.0.0.1:1")
    groups._all = Found(3, {"t": 2}, {})
    return groups._viewed(Described(0, "g", state, kind, protocol, members), {})


def test_a_group_at_rest_is_shown_whole() -> None:
    found = viewed("Stable", DescribedMember("m", "c", "h", OWN, GIVEN))
    assert found.garbage == () and found.members == {"g_me": Subscription({"t": 1})}
    assert found.owners == {TopicPartition("t", PartitionId(3, 1)): "g_me-0"}


def test_a_group_without_members_has_no_rebalance() -> None:
    assert viewed("Empty").garbage == ()


def test_of_a_rebalance_the_members_are_known() -> None:
    found = viewed("PreparingRebalance", DescribedMember("m", "c", "h", b"", b""))
    assert list(found.members) == ["c"] and found.owners == {}
    (said,) = found.garbage
    assert "rebalances" in said


def test_members_of_another_kind_are_named() -> None:
    """They read no topics, whatever their bytes look like."""
    found = viewed("Stable", DescribedMember("m", "c", "h", OWN, GIVEN), protocol="default", kind="connect")
    (said,) = found.garbage
    assert "member m: it is no consumer, but of the kind 'connect'" in said and found.members == {}


def test_offsets_that_are_refused_are_no_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    with BrokerGroups("127.0.0.1:1") as groups:
        groups._all = Found(3, {"t": 2}, {})
        monkeypatch.setattr(groups._coordinator, "ask", lambda *_: (30, {}))
        with pytest.raises(CoordinatorError, match=r"offsets of group 'g' cannot be read.*does not allow"):
            groups.offsets("g")


@pytest.mark.parametrize(("left_ms", "tries"), [(60_000, 3), (200, 3), (60_000, 1)])
def test_who_looks_for_a_coordinator_can_be_stopped(monkeypatch: pytest.MonkeyPatch, left_ms: int, tries: int) -> None:
    """After each try, which is short however long it may look; it ends where nobody wants to know any more."""
    asked: list[float] = []

    def ask(self: Coordinator, *_: object, timeout: float) -> None:
        assert len(asked) < tries, "it goes on although nobody wants it"
        asked.append(timeout)
        raise NotReachedError("away")

    monkeypatch.setattr(Coordinator, "ask", ask)
    config = ConsumerConfig(brokers="h:9", group_id="g", zk_connection_timeout_ms=left_ms)
    with pytest.raises(NotReachedError, match="away"):
        InBroker(config, "g_me").open(lambda *_: None, lambda: len(asked) < tries)
    assert len(asked) == tries and all(0 < each <= min(0.5, left_ms / 1000) for each in asked)
