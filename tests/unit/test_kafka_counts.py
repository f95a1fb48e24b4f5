"""What one request of today's protocol adds to the counters and to those of errors: each exactly, and no other."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from fastlog.kafka_codes import Code
from fastlog.log._shared_memory import FIRST_PROCESSOR
from tests.harness import raw_client as raw
from tests.harness import today
from tests.harness.today_client import CODECS, EARLIEST, LATEST, REFUSED, Client, batch, damaged
from tests.harness.workers import Workers
from tests.unit.test_kafka_sequences import numbered

MOST_BATCH = 100_000
OLD = raw.entry(b"before") + raw.entry(b"damaged")
AHEAD_MS = round(time.time() * 1000) + 360_000_000
FETCHED, PRODUCED = {"kafka_requests": 1, "fetch_requests": 1}, {"kafka_requests": 1, "produce_requests": 1}
LISTED, OTHER = {"kafka_requests": 1, "offsets_requests": 1}, {"kafka_requests": 1}
NOT_OF_ONE = (
    "received_bytes", "sent_bytes", "bytes_in", "handovers", "fetch_looks", "read_ahead", "append_waits", "lock_waits",
    "over_budget_waits", "own_requests",
)  # fmt: skip
"""Counters that depend on lengths and on others, or are those of connections."""

Case = tuple[bytes, dict[str, int], tuple[Code, ...]]
"""A request, what it adds, and the errors of its answer; one without an answer adds ``invalid_requests``."""


def produce(*parts: tuple[str, int, bytes | None], **fields: Any) -> bytes:
    return today.request(today.PRODUCE, 9, today.produced(*parts, **fields))


def fetch(*parts: tuple[str, int, int], **fields: Any) -> bytes:
    return today.request(today.FETCH, 12, today.fetched(*parts, **fields))


def metadata(**topic: Any) -> bytes:
    fields = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    return today.request(today.METADATA, 12, {"topics": [{"topic_id": None, "name": None} | topic], **fields})


CASES: dict[str, Case] = {
    "versions": (today.request(today.API_VERSIONS, 0, {}), OTHER, ()),
    "another version of them": (
        today.framed(b"\0\x12\0\x63" + bytes(4) + b"\xff\xff"), OTHER, (Code.UNSUPPORTED_VERSION,)
    ),
    "metadata": (metadata(name="t"), OTHER, ()),
    "metadata of what is not there": (metadata(name="none"), OTHER, (Code.UNKNOWN_TOPIC_OR_PARTITION,)),
    "metadata of an id": (metadata(topic_id=uuid.uuid4()), OTHER, (Code.UNKNOWN_TOPIC_ID,)),
    "a fetch": (fetch(("t", 0, 0)), {**FETCHED, "bytes_out": 3 * len(numbered(0))}, ()),
    "an empty fetch": (fetch(("t", 0, 3)), FETCHED, ()),
    "a fetch that waits": (fetch(("t", 0, 3), max_wait=20), {**FETCHED, "held_fetches": 1}, ()),
    "a fetch of a session": (
        fetch(("t", 0, 0), session_id=5), {**FETCHED, "failed_fetch_requests": 1}, (Code.FETCH_SESSION_ID_NOT_FOUND,)
    ),
    "a fetch of what is not there": (
        fetch(("t", 0, 9), ("t", 7, 0), ("none", 0, 0)), {**FETCHED, "failed_fetch_requests": 3},
        (Code.OFFSET_OUT_OF_RANGE, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_OR_PARTITION)
    ),
    "a fetch of another epoch": (
        fetch(("t", 0, 0), epoch=9), {**FETCHED, "failed_fetch_requests": 1}, (Code.UNKNOWN_LEADER_EPOCH,)
    ),
    "a fetch of 0.7's that is damaged": (
        fetch(("old", 0, 16)), {**FETCHED, "failed_fetch_requests": 1}, (Code.CORRUPT_MESSAGE,)
    ),
    "a produce": (produce(("new", 0, batch(b"x", b"y"))), {**PRODUCED, "appends": 1, "messages_in": 2}, ()),
    "a batch that comes again": (produce(("t", 0, numbered(2))), {**PRODUCED, "duplicate_batches": 1}, ()),
    "a batch that comes too early": (
        produce(("t", 0, numbered(9))), {**PRODUCED, "out_of_sequence_batches": 1, "failed_produce_requests": 1},
        (Code.OUT_OF_ORDER_SEQUENCE_NUMBER,)
    ),
    "a batch that is damaged": (
        produce(("t", 0, damaged(batch(b"x"), 61))),
        {**PRODUCED, "failed_produce_requests": 1, "invalid_messages": 1}, (Code.CORRUPT_MESSAGE,)
    ),
    "records that are damaged": (
        produce(("t", 0, REFUSED["records that are not gzip"][0])),
        {**PRODUCED, "failed_produce_requests": 1, "invalid_messages": 1}, (Code.INVALID_RECORD,)
    ),
    **{
        f"a time that is too far ahead, {codec}": (
            produce(("t", 0, batch(b"x", time_ms=AHEAD_MS, codec=CODECS[codec]))),
            {**PRODUCED, "failed_produce_requests": 1, "invalid_messages": 1}, (Code.INVALID_TIMESTAMP,)
        )
        for codec in ("none", "lz4")
    },
    "a batch that is too large": (
        produce(("t", 0, batch(bytes(MOST_BATCH)))),
        {**PRODUCED, "failed_produce_requests": 1, "too_large_messages": 1}, (Code.MESSAGE_TOO_LARGE,)
    ),
    "a bomb": (
        produce(("t", 0, batch(bytes(1 << 20), bytes(1 << 20), codec=CODECS["zstd"]))),
        {**PRODUCED, "failed_produce_requests": 1, "too_large_messages": 1, "inflated_off_loop": 1},
        (Code.MESSAGE_TOO_LARGE,)
    ),
    "a produce to what is not there": (
        produce(("none", 0, batch(b"x")), ("t", 9, batch(b"x"))), {**PRODUCED, "failed_produce_requests": 2},
        (Code.UNKNOWN_TOPIC_OR_PARTITION,) * 2
    ),
    "acks of no kind": (
        produce(("t", 0, batch(b"x")), acks=7), {**PRODUCED, "failed_produce_requests": 1},
        (Code.INVALID_REQUIRED_ACKS,)
    ),
    "a transaction without a name": (
        produce(("t", 0, batch(b"x")), transactional_id=""), {**PRODUCED, "failed_produce_requests": 1},
        (Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,)
    ),
    "offsets": (today.request(today.LIST_OFFSETS, 7, today.listed(("t", 0, LATEST), ("t", 0, EARLIEST))), LISTED, ()),
    "offsets of what is not there": (
        today.request(today.LIST_OFFSETS, 7, today.listed(("none", 0, LATEST), ("t", 0, -9))), LISTED,
        (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.INVALID_REQUEST)
    ),
    "a malformed fetch": (today.framed(fetch(("t", 0, 0))[4:-1]), {**OTHER, "invalid_requests": 1}, ()),
    "a version that is not served": (today.framed(b"\0\x01\0\x63" + bytes(6)), {"invalid_requests": 1}, ()),
}  # fmt: skip


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    settings = {"max_batch_bytes": MOST_BATCH, "max_inflated_bytes": 1 << 20}
    with Workers(tmp_path_factory.mktemp("log"), **settings) as running, Client(running) as client:
        client.make("t", "new")
        for number in range(3):
            assert client.produce(("t", 0, numbered(number)), acks=-1)[0].error_code == 0
        with running.connect() as old:
            assert old.produce_ack("old", 0, OLD, raw.FLUSHED).error == 0
        with next(running.directory.glob("old-0/*.kafka")).open("r+b") as file:
            file.seek(len(OLD) - 1)
            file.write(b"!")
        yield running


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_one_request(workers: Workers, case: Case) -> None:
    """Twice, for what is only counted the first time; a part of an answer has one error, whatever the request has."""
    request, counts, errors = case
    key = int.from_bytes(request[4:6], "big")
    for _ in range(2):
        with Client(workers) as client:
            before = Counter(workers.counts()), told_of(workers)
            client.socket.sendall(request)
            if "invalid_requests" in counts:
                assert client.raw.is_closed()
            else:
                today.answer_of(client.socket)
            found = Counter(workers.counts())
            found.subtract(before[0])
            assert {name: n for name, n in found.items() if n and name not in NOT_OF_ONE} == counts
            after = told_of(workers)
            after.subtract(before[1])
            assert +after == Counter((key, int(code)) for code in errors)


def told_of(workers: Workers) -> Counter[Any]:
    return Counter(workers.arena.refusals(FIRST_PROCESSOR))
