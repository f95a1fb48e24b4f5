"""A topic is created in as many requests as one of them may make partitions."""

from __future__ import annotations

from typing import Any, cast

import pytest

from fastlog.client.connection import Connection
from fastlog.client.topics import create_topic
from fastlog.wire import requests, responses


class Answering:
    """Answers each request for a topic with the count that it asks for, up to a limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.asked: list[int] = []

    def request(self, frame: bytes) -> bytes:
        asked = requests.decode_request(frame[4:])
        assert isinstance(asked, requests.CreateTopicRequest)
        self.asked.append(asked.partitions)
        if asked.partitions > self.limit:
            return responses.encode_own_error(asked.correlation_id, 103)[4:]
        made = responses.CreateTopicAnswer(asked.correlation_id, 0, partitions=asked.partitions or 3)
        return responses.encode_create_topic(made)[4:]


@pytest.mark.parametrize(
    ("partitions", "asked"),
    [(0, [0]), (1, [1]), (1024, [1024]), (1025, [1024, 1025]), (2048, [1024, 2048]), (3000, [1024, 2048, 3000])],
)
def test_each_request_makes_as_many_as_it_may(partitions: int, asked: list[int]) -> None:
    broker = Answering(4096)
    assert create_topic(cast(Any, broker), "t", partitions).partitions == (partitions or 3)
    assert broker.asked == asked


def test_an_error_ends_it() -> None:
    broker = Answering(1500)
    assert create_topic(cast(Connection, broker), "t", 4000).error == 103
    assert broker.asked == [1024, 2048]
