"""The way of a connection from the acceptor to a processor, cut at each point: nobody else notices, all is counted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.harness import raw_client as raw
from tests.harness.broker import Broker, wait_until

GOOD = raw.entry(b"good")
LIMIT = 6
AT = 30
"""So late that the successor does not come to it."""


def is_served(client: raw.RawClient) -> bool:
    try:
        return client.produce_ack("t", 0, GOOD).error == 0
    except (raw.ConnectionClosed, ConnectionError):
        return False


def check_all_places_are_free(broker: Broker) -> None:
    """As many connections as are allowed, and not one more: nothing of those that were cut off counts as open."""

    def served() -> list[bool]:
        with ExitStack() as stack:
            return [is_served(stack.enter_context(broker.connect())) for _ in range(LIMIT + 1)]

    wait_until("all places are free", lambda: served() == [True] * LIMIT + [False], pause=0.05)


@pytest.mark.parametrize("point", ["acceptor:handover.sent", "processor:handover.taken"])
def test_a_process_that_dies_in_the_middle_of_a_hand_over(point: str, start_broker: Callable[..., Broker]) -> None:
    """A dead acceptor has handed it over; a dead processor takes the one in its hand with it, and no other."""
    broker = start_broker(
        processors=1, settings={"max.connections": LIMIT}, environment={"FASTLOG_FAULTS": f"{point}@{AT}=kill"}
    )
    role = "acceptor" if point.startswith("acceptor") else "processor-0"
    pid = broker.pids()[role]
    for _ in range(AT - 1):
        with broker.connect() as client:
            assert is_served(client)
    with broker.connect() as client, broker.connect() as next_one:
        assert is_served(client) == (role == "acceptor")
        broker.wait_replaced(role, pid)
        assert is_served(next_one)
    check_all_places_are_free(broker)
