"""What a member of a broker's group asks before it joins: whose the addresses are, and which topics there are."""

from __future__ import annotations

import pytest

from fastlog.client.addresses import Address
from fastlog.consumer.broker_groups.kind import InBroker
from fastlog.consumer.broker_groups.topics import find_topics
from fastlog.consumer.config import ConsumerConfig
from fastlog.errors import ConfigError, GroupCoordinatorError
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker
from tests.harness.fake_coordinator import FakeCoordinator
from tests.harness.timing import PATIENCE


def open_and_close(addresses: str) -> None:
    """Open a place in a group and leave it unused."""
    InBroker(ConsumerConfig(brokers=addresses, group_id="g"), "g_a").open(lambda *_: None, lambda: True).close()


def test_each_of_several_addresses_is_asked_whose_it_is_and_a_single_one_is_not() -> None:
    """Those that do not answer are left out."""
    with FakeCoordinator() as only:
        open_and_close(only.address)
        wait_until("it is asked", lambda: only.connections == 1)
    with FakeCoordinator() as first, FakeCoordinator() as same:
        open_and_close(f"{first.address},{same.address},127.0.0.1:1")
        wait_until("both are asked", lambda: first.connections > 1 and same.connections)
        with (
            FakeCoordinator("another") as other,
            pytest.raises(ConfigError, match="is another broker"),
        ):
            open_and_close(f"{first.address},{other.address}")


def test_a_broker_of_kafka_07_alone_is_named_as_one() -> None:
    with (
        FakeBroker(own=False) as plain,
        pytest.raises(GroupCoordinatorError, match="it is no broker of fastlog"),
    ):
        find_topics(Address("127.0.0.1", plain.port), None, PATIENCE)
