"""What an answer about topics costs a processor that has many; ``--benchmark-enable`` shows it, none is asserted."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from fastlog.config import BrokerConfig
from fastlog.wire import requests, responses
from fastlog.workers.authorization import ANONYMOUS, Client
from fastlog.workers.kafka07.answers import Answers
from tests.unit.test_manager import manager_of

pytestmark = [pytest.mark.slow, pytest.mark.benchmark(max_time=0.2)]

TOPICS, PARTITIONS = 100, 4


@pytest.mark.parametrize("asked", [("t50",), None], ids=["one topic", "all topics"])
def test_metadata(benchmark: BenchmarkFixture, tmp_path: Path, asked: tuple[str, ...] | None) -> None:
    """Of one topic, and of all 100 with 4 partitions each."""
    manager = manager_of(tmp_path, num_partitions=str(PARTITIONS))
    for number in range(TOPICS):
        for partition in range(PARTITIONS):
            manager.create_partition(f"t{number}", partition)
    answers = Answers(BrokerConfig(), manager._arena, manager, [("h", 1)])
    frame = benchmark(answers.answer, requests.encode_metadata(7, asked)[4:], Client(ANONYMOUS, "127.0.0.1"))
    found = responses.decode_metadata(frame[4:]).topics
    assert sum(len(topic.partitions) for topic in found) == PARTITIONS * (TOPICS if asked is None else len(asked))
