"""Fetch of partitions of topics with an id, and of no others: a topic that is made anew has another one.

At version 13, which has tagged fields (``kafka_fields``). The batches of an answer stay where they were received.

Source: the schemas of Apache Kafka 4.2.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from fastlog.client.kafka_fields import ID_BYTES, NO_TAGS, Answer, Request, tagged_answer
from fastlog.wire.fields import pack, uvarint

_WITHOUT_SESSION = pack("ii", 0, -1)
_NO_EPOCH = -1
_ENVELOPE_BYTES = 1024
_USUAL = struct.Struct(">iBihiB16sBihqqqBi")
"""An answer about one partition without tags, up to the length of its batches."""
_USUAL_END = bytes(3)
"""Behind them: no tags of the partition, of its topic, of the answer."""


IdPlace = tuple[bytes, int]
"""The id of a topic, and the number of a partition."""


class Batches(NamedTuple):
    """What Fetch says of a partition. ``data``: whole batches, but for the end of the last one; not copied."""

    code: int
    high_watermark: int
    log_start: int
    data: memoryview


Aborted = tuple[tuple[int, int], ...]
"""Producer and first offset of each transaction whose records are there and do not count."""


def fetch(topic: bytes, partition: int, offset: int, *, max_wait_ms: int, min_bytes: int, max_bytes: int) -> Request:
    """Batches of a partition of the topic with that id; at most ``max_bytes``, but one batch in any case."""
    return fetch_several(
        {(topic, partition): offset},
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        partition_bytes=max_bytes,
    )


def fetch_several(
    offsets: Mapping[IdPlace, int],
    *,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    partition_bytes: int,
    only_committed: bool = False,
) -> Request:
    """The same of several partitions, of each at most ``partition_bytes``.

    ``only_committed``: nothing of transactions that have not ended, and which of the others were aborted.
    """
    topics: dict[bytes, list[bytes]] = {}
    for (topic, partition), offset in offsets.items():
        row = pack("iiqiqi", partition, _NO_EPOCH, offset, _NO_EPOCH, -1, partition_bytes) + NO_TAGS
        topics.setdefault(topic, []).append(row)
    rows = [topic + uvarint(len(found) + 1) + b"".join(found) + NO_TAGS for topic, found in topics.items()]
    return Request(
        1,
        13,
        NO_TAGS
        + pack("iiiib", -1, max_wait_ms, min_bytes, max_bytes, only_committed)
        + _WITHOUT_SESSION
        + uvarint(len(rows) + 1)
        + b"".join(rows)
        + uvarint(1)  # no topics to be forgotten
        + uvarint(1)  # no rack
        + NO_TAGS,
    )


def most_answer_bytes(max_bytes: int, batch_bytes: int) -> int:
    """How long the answer to a fetch may be, when a single batch has at most ``batch_bytes``."""
    return max(max_bytes, batch_bytes) + _ENVELOPE_BYTES


def parse_batches(body: memoryview, number: int, topic: bytes, partition: int) -> Batches:
    """What came of the partition that was asked for by the request with that number. Raises as ``tagged_answer``."""
    return _usual_batches(body, number, topic, partition) or _any_batches(body, number, topic, partition)


def _usual_batches(body: memoryview, number: int, topic: bytes, partition: int) -> Batches | None:
    """The same of an answer without tags, as brokers of fastlog give them, read by few calls; None of another."""
    if len(body) < _USUAL.size + 1 + len(_USUAL_END):
        return None
    answered, no_tags, _, code, _, topics, id_, partitions, about, error, high, _, start, aborted, _ = (
        _USUAL.unpack_from(body)
    )
    found = answered, no_tags, code, topics, id_, partitions, about
    if found != (number, 0, 0, 2, topic, 2, partition) or aborted > 1:
        return None
    size = shift = 0
    at = _USUAL.size
    while shift < 35:
        byte = body[at]
        size |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            break
        shift += 7
        if at == len(body):
            return None
    end = at + max(0, size - 1)
    return Batches(error, high, start, body[at:end]) if body[end:] == _USUAL_END else None


def _any_batches(body: memoryview, number: int, topic: bytes, partition: int) -> Batches:
    answer = tagged_answer(body, number)
    code, found = parse_several(answer)
    if code:
        return Batches(code, -1, -1, memoryview(b""))
    if [place for place, _, _ in found] != [(topic, partition)]:
        raise answer.error("it is about another partition than the one that was asked for")
    return found[0][1]


def parse_several(answer: Answer) -> tuple[int, list[tuple[IdPlace, Batches, Aborted]]]:
    """An error code of the whole request, and what came of each partition."""

    def aborted() -> tuple[int, int]:
        return answer.int64("producer id"), answer.int64("first offset")

    def one() -> tuple[int, Batches, Aborted]:
        number, code, high = answer.int32("partition"), answer.int16("error code"), answer.int64("high watermark")
        answer.int64("last stable offset")
        log_start = answer.int64("log start")
        ended = tuple(answer.rows("aborted transactions", 17, aborted))
        answer.int32("preferred replica")
        return number, Batches(code, high, log_start, answer.compact_view("batches")), ended

    def of_topic() -> tuple[bytes, list[tuple[int, Batches, Aborted]]]:
        return bytes(answer.view(ID_BYTES, "topic id")), answer.rows("partitions", 36, one)

    answer.skip_throttle()
    code = answer.int16("error code")
    answer.int32("session")
    found = answer.rows("topics", 18, of_topic)
    answer.skip_tags()
    answer.end()
    return code, [((topic, number), batches, ended) for topic, rows in found for number, batches, ended in rows]
