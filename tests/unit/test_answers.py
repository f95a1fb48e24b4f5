"""What a processor's Python says of topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastlog.config import BrokerConfig
from fastlog.wire import requests, responses
from fastlog.workers.answers import Answers
from tests.unit.test_manager import manager_of


def test_a_partition_that_is_made_meanwhile_is_not_beyond_the_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes one while the answer is put together."""
    manager = manager_of(tmp_path)
    manager.create_partition("t", 0)
    counted = manager.partition_count

    def count(topic: str) -> int:
        found = counted(topic)
        if manager.slot("t", 5) is None:
            manager.create_partition("t", 5, count=6)
        return found

    monkeypatch.setattr(manager, "partition_count", count)
    answers = Answers(BrokerConfig(), manager._arena, manager, ("h", 1))
    for expected in ([0], [0, 5]):
        frame = answers.answer(requests.encode_metadata(7, ("t",))[4:])
        assert isinstance(frame, bytes)
        (topic,) = responses.decode_metadata(frame[4:]).topics
        assert [item.partition for item in topic.partitions] == expected
        assert topic.configured_partitions > expected[-1]
