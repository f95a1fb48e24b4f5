"""A topic is created in as many requests as one of them may make partitions; one that is not described is an error."""

from __future__ import annotations

from typing import Any, cast

import pytest

from fastlog.client.addresses import Address
from fastlog.client.connection import Connection
from fastlog.client.topics import create_topic
from fastlog.consumer.config import ConsumerConfig
from fastlog.consumer.links import BrokerLink
from fastlog.errors import NotAuthorizedError
from fastlog.wire import requests, responses
from tests.harness import wire07
from tests.harness.consumers import consumer_of, with_log


class Answering:
    """Answers each request for a topic with the count that it asks for, up to a limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.asked: list[int] = []

    def request(self, frame: bytes) -> bytes:
        asked = wire07.decode_request(frame[4:])
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


def test_a_topic_that_is_not_described_is_not_taken_for_an_empty_one() -> None:
    """Each client says which topic it may not use, and goes on with others."""
    with with_log(b"") as fake:
        fake.refused = {"t": NotAuthorizedError.code}
        with consumer_of(fake) as consumer:
            with pytest.raises(NotAuthorizedError, match="topic t, "):
                list(consumer.messages("t", 0, 0))
            with pytest.raises(NotAuthorizedError, match="topic t, "):
                consumer.partition_count("t")
            assert list(consumer.messages("u", 0, 0)) == []
        link = BrokerLink(Address("127.0.0.1", fake.port), ConsumerConfig(group_id="g", zk_connect="127.0.0.1:1"))
        with pytest.raises(NotAuthorizedError, match="topic t, "):
            link.log_of("t", 0, 0.0)
        assert link.log_of("u", 0, 0.0) == 0
