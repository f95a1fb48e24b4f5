"""A simple consumer of a fake broker, and a fake broker with a log."""

from __future__ import annotations

from typing import Any

from fastlog.consumer.simple import SimpleConsumer
from tests.harness.fake_broker import FakeBroker

PAYLOADS = [b"message %03d" % number for number in range(200)]


def consumer_of(fake: FakeBroker, **options: Any) -> SimpleConsumer:
    """A consumer that gives up after five seconds."""
    return SimpleConsumer("127.0.0.1", fake.port, **{"timeout": 5.0, **options})


def with_log(data: bytes, **options: Any) -> FakeBroker:
    """A broker whose topic ``t`` has these bytes in partition 0."""
    fake = FakeBroker(**options)
    fake.logs["t", 0] = data
    return fake
