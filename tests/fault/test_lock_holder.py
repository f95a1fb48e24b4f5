"""The holder of the append lock dies at named points: nothing published is lost, nothing shown is un-shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fault.lock_holder import lock_holder
from tests.harness import raw_client as raw
from tests.harness.broker import Broker

KILLS_AT_EACH_POINT = 30


@pytest.mark.slow
def test_holder_killed_at_each_point(tmp_path: Path) -> None:
    """I-1, I-3, I-4, I-6: kills at each point, while others append to and read the same partition."""
    outcome = lock_holder(KILLS_AT_EACH_POINT, 1, tmp_path)
    assert outcome.runs >= 6 * KILLS_AT_EACH_POINT
    assert outcome.violations == []


@pytest.mark.slow
def test_a_holder_that_hangs_is_ended(start_broker: Callable[..., Broker], topic: str) -> None:
    """A partition does not stay locked because its holder neither goes on nor dies."""
    broker = start_broker(environment={"FASTLOG_FAULTS": "processor-0:append.after_lock@2=slow:60000"})
    message = raw.entry(b"message")
    clients = [broker.connect() for _ in range(2)]
    try:
        # an answer to each, or none: one of the two is served by the processor that hangs
        ends = [client.produce_ack(topic, 0, message).next_offset for client in clients]
        for client in clients:
            client.send_raw(raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body(topic, 0, message)))
        answers = 0
        for client in clients:
            try:
                answers += client.recv_own()[1].error == 0
            except raw.ConnectionClosed:
                continue
        assert answers == 1
        with broker.connect() as reader:
            reader.wait_visible(topic, 0, ends[-1] + len(message))
    finally:
        for client in clients:
            client.close()
    broker.wait_log(r"silent role=processor-0 pid=\d+: killed")
