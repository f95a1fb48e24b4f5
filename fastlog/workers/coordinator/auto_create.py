"""Topics that are made because a client has asked for their metadata: one creation, however many clients ask.

A processor passes such a METADATA on as it came, which is not for the library: names may be any bytes. What it gets is
an error code of 2 bytes for each topic in the order of the request; the answer to the client is its own.
"""

from __future__ import annotations

import itertools
import re
import struct
import time
from collections.abc import Generator, Sequence
from typing import Any

from fastlog.kafka_codes import Code
from fastlog.workers.authorization import Operation
from fastlog.workers.coordinator.context import Context
from fastlog.workers.coordinator.loop import Wait
from fastlog.workers.coordinator.topics import Pending

WAIT_SECONDS = 5.0
"""After this time a client gets "no leader yet", and asks again; what has begun goes on."""
AT_ONCE = 16
"""Topics of one request that are made at the same time."""
LEGAL_NAME = re.compile(rb"[A-Za-z0-9._-]{1,249}")

Codes = Generator[Wait, Any, bytes]


def codes(names: Sequence[bytes | None], context: Context) -> Codes:
    """What is to be said of each topic; None is one that is not to be made."""
    until = time.monotonic() + WAIT_SECONDS
    found: dict[bytes | None, Code] = {None: Code.UNKNOWN_TOPIC_OR_PARTITION}
    wanted = iter([name for name in dict.fromkeys(names) if name is not None])
    while lot := list(itertools.islice(wanted, AT_ONCE)):
        begun = [(name, _begin(name, context, until)) for name in lot]
        for name, first in begun:
            found[name] = yield from _settled(name, first, context, until)
    return struct.pack(f">{len(names)}h", *(found[name] for name in names))


def _begin(name: bytes, context: Context, until: float) -> Pending | Code:
    if not is_legal(name):
        return Code.INVALID_TOPIC_EXCEPTION
    topic, topics = name.decode(), context.broker.topics
    if not topics.is_known(topic) and not all(
        context.may(each, topic) for each in (Operation.CREATE, Operation.DESCRIBE)
    ):
        return Code.TOPIC_AUTHORIZATION_FAILED
    return topics.wanted(topic) if time.monotonic() < until else Code.LEADER_NOT_AVAILABLE


def _settled(name: bytes, found: Pending | Code, context: Context, until: float) -> Generator[Wait, Any, Code]:
    """What came of a topic; again where something else went on under its name."""
    while isinstance(found, Pending):
        outcome = yield from found.wait(until)
        if outcome.code is Code.REQUEST_TIMED_OUT:
            return Code.LEADER_NOT_AVAILABLE
        if outcome.code not in (Code.NONE, Code.TOPIC_ALREADY_EXISTS) and found.creates:
            return outcome.code
        found = _begin(name, context, until)
    return found


def is_legal(name: bytes) -> bool:
    """Whether clients may make a topic of this name: by Kafka's rule, and ``__`` is for the broker's own."""
    return LEGAL_NAME.fullmatch(name) is not None and name not in (b".", b"..") and not name.startswith(b"__")
