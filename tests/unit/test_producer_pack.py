"""The compiled buffers: the frames are those of the plain encoders, whatever is mixed, taken or grown meanwhile."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastlog import codecs
from fastlog._segment import pack, payloads
from fastlog.errors import MessageTooLargeError
from fastlog.producer._buffer import Buffer, Quota
from fastlog.producer._frames import Chunk
from fastlog.producer._outbox import Outbox
from fastlog.producer._send import Route, SendPath
from fastlog.producer.brokers import frame_header
from fastlog.wire import requests
from tests.harness import wire07

HOUR_NS = 3_600_000_000_000


@contextmanager
def outboxes(linger_ns: int = HOUR_NS, quota: Quota | None = None) -> Iterator[Outbox]:
    """An outbox, and its eventfd closed afterwards."""
    outbox = Outbox(quota or Quota(10**9, 10**12), linger_ns)
    yield outbox
    outbox.retire()


def new_buffer(
    outbox: Outbox,
    *,
    topic: str = "t",
    partition: int = 0,
    acks: int = 0,
    batch: int = 3,
    codec: int = 0,
    **limits: int,
) -> Buffer:
    """A buffer with small limits."""
    return Buffer(
        outbox,
        0,
        topic,
        partition,
        codec,
        frame_header(topic, partition, acks),
        acks > 0,
        batch,
        limits.get("batch_bytes", 1 << 20),
        limits.get("max_payload", 1_000_000),
    )


def frames_of(chunks: list[Chunk]) -> list[bytes]:
    """The frames of chunks, each with its size field."""
    found = []
    for chunk in chunks:
        start = 0
        for end in chunk.frame_ends:
            found.append(bytes(memoryview(chunk)[start:end]))
            start = end
        assert start == chunk.size == len(bytes(memoryview(chunk)))
    return found


@given(
    messages=st.lists(st.binary(max_size=40), max_size=30),
    batch=st.integers(1, 7),
    acks=st.sampled_from([0, 1, 2]),
    takes=st.sets(st.integers(0, 29)),
)
def test_frames_are_those_of_the_encoders(messages: list[bytes], batch: int, acks: int, takes: set[int]) -> None:
    """Batches of the wanted size, in order, byte for byte, also when frames are taken while others are open."""
    with outboxes() as outbox:
        buffer = new_buffer(outbox, topic="tä", partition=3, acks=acks, batch=batch)
        chunks: list[Chunk] = []
        for index, message in enumerate(messages):
            buffer.append(message)
            if index in takes:
                chunks += outbox.take()
        chunks += outbox.take(True)
        expected = []
        for number, start in enumerate(range(0, len(messages), batch)):
            message_set = pack(messages[start : start + batch])
            if acks:
                expected.append(requests.encode_produce_ack(number, acks, "tä", 3, message_set))
            else:
                expected.append(requests.encode_produce("tä", 3, message_set))
        assert frames_of(chunks) == expected
        assert sum(chunk.messages for chunk in chunks) == len(messages)
        assert outbox.is_empty()


def test_marker_bytes_stay_in_their_topic() -> None:
    """T-43: over many rounds with chunks held, dropped and refilled, no byte of one topic is in another's frame."""
    chooser = random.Random(43)
    with outboxes() as outbox:
        buffers = {bytes([65 + n]): new_buffer(outbox, topic=f"t{n}", batch=5) for n in range(8)}
        held: list[Chunk] = []
        seen = 0
        for _ in range(400):
            for _ in range(20):
                marker = chooser.choice(list(buffers))
                buffers[marker].append(marker * chooser.choice([1, 50, 3000, 70_000]))
            held += outbox.take(chooser.random() < 0.5)
            chooser.shuffle(held)
            while len(held) > 20:
                chunk = held.pop()
                marker = bytes([65 + int(chunk.topic[1:])])
                for frame in frames_of([chunk]):
                    request = wire07.decode_request(frame[4:])
                    assert isinstance(request, wire07.ProduceRequest)
                    assert request.topic == chunk.topic
                    found = payloads(request.message_set)
                    assert found
                    seen += len(found)
                    assert all(payload == marker * len(payload) for payload in found)
        assert seen > 4000


def test_a_large_buffer_is_handed_on_in_blocks() -> None:
    """What outgrows a block comes whole and in order, also in blocks that are used again."""
    for turn in range(3):
        with outboxes() as outbox:
            check_blocks(outbox, turn)


def check_blocks(outbox: Outbox, turn: int) -> None:
    """Put 10 MB in and take them out."""
    buffer = new_buffer(outbox, batch=100)
    messages = [(number + turn).to_bytes(4, "big") * 2500 for number in range(1000)]
    assert buffer.extend(messages) == 1000
    chunks = outbox.take(True)
    assert len(chunks) > 5
    found = [
        payload
        for frame in frames_of(chunks)
        for payload in payloads(wire07.decode_request(frame[4:]).message_set)  # type: ignore[union-attr]
    ]
    assert found == messages


def test_batch_bytes_bound_a_frame() -> None:
    """A frame's set stays within the bound, unless one message alone is larger."""
    with outboxes() as outbox:
        buffer = new_buffer(outbox, batch=1000, batch_bytes=100)
        sizes = [20, 20, 20, 20, 200, 10, 10]
        buffer.extend([bytes(size) for size in sizes])
        found = [wire07.decode_request(frame[4:]).message_set for frame in frames_of(outbox.take(True))]  # type: ignore[union-attr]
        assert [len(payloads(each)) for each in found] == [3, 1, 1, 2]


def test_only_what_is_due_is_taken() -> None:
    """An open frame stays until its time is over, a finished one does not; ``everything`` takes both."""
    with outboxes() as outbox:
        one, other = new_buffer(outbox, topic="a"), new_buffer(outbox, topic="b")
        one.extend([b"1", b"2"])
        other.extend([b"1", b"2", b"3", b"4"])
        assert [(chunk.topic, chunk.messages) for chunk in outbox.take()] == [("b", 3)]
        assert outbox.take() == []
        assert {(chunk.topic, chunk.messages) for chunk in outbox.take(True)} == {("a", 2), ("b", 1)}
    with outboxes(linger_ns=0) as outbox:
        new_buffer(outbox).append(b"1")
        assert [chunk.messages for chunk in outbox.take()] == [1]


def test_the_quota_counts_what_waits() -> None:
    """Messages count from append to take; a full queue takes no more; taking makes room."""
    quota = Quota(5, 10**9)
    with outboxes(quota=quota) as outbox:
        buffer = new_buffer(outbox)
        assert buffer.extend([b"x"] * 8) == 5
        assert (quota.messages, quota.has_room()) == (5, False)
        assert [chunk.messages for chunk in outbox.take()] == [3]
        assert (quota.messages, quota.has_room(3), quota.has_room(4)) == (2, True, False)
        assert buffer.extend([b"x"] * 8, 5) == 8
        assert buffer.extend([b"x"] * 8, 0, None, False, True) == 8
        outbox.take(True)
        assert (quota.messages, quota.bytes, quota.accepted) == (0, 0, 16)
        assert quota.has_room(1000)


def test_a_message_above_the_limit_is_refused() -> None:
    """The error says size, topic and limit, and nothing is in the buffer."""
    with outboxes() as outbox:
        buffer = new_buffer(outbox, max_payload=100)
        buffer.append(bytes(100))
        with pytest.raises(MessageTooLargeError, match=r"101 bytes for topic 't' .* 100"):
            buffer.append(bytes(101))
        with pytest.raises(TypeError):
            buffer.append("text")  # type: ignore[arg-type]
        assert [chunk.messages for chunk in outbox.take(True)] == [1]


@pytest.mark.parametrize("codec", [codecs.GZIP, codecs.SNAPPY])
@pytest.mark.parametrize("acks", [0, 1])
def test_compressed_chunks(codec: int, acks: int) -> None:
    """Each frame becomes one wrapper with the same messages; one that is too large is left out and named."""
    with outboxes() as outbox:
        buffer = new_buffer(outbox, batch=4, codec=codec, acks=acks)
        small, large = [b"abc" * 20] * 4, [os.urandom(2000) for _ in range(4)]
        ticket = object()
        buffer.extend([*small, *large], 0, ticket)
        buffer.extend(small[:2])
        (chunk,) = outbox.take(True)
        made, refused = chunk.compressed(codecs.compress, 1000)
        assert [(frame.messages, tickets) for _, frame, tickets in refused] == [(4, [(1, 4, 4, ticket)])]
        assert payloads(refused[0][1].message_sets[0]) == large
        assert (made.frame_count, made.messages) == (2, 6)
        for frame, expected in zip(frames_of([made]), (small, small[:2]), strict=True):
            request = wire07.decode_request(frame[4:])
            assert isinstance(request, wire07.ProduceRequest | wire07.ProduceAckRequest)
            (inner,) = payloads(request.message_set)
            assert payloads(codecs.decompress(codec, inner, 10**6)) == expected


def test_a_route_uses_all_its_buffers() -> None:
    """Messages without a key go to one buffer at a time, and over time to each of them."""
    with outboxes() as outbox:
        buffers = [new_buffer(outbox, topic=f"t{n}") for n in range(4)]
        route = Route(list(buffers), None, 7)
        seen = set()
        for _ in range(200):
            route.turn()
            seen.add(route.buffer_for_any().topic)
        assert seen == {"t0", "t1", "t2", "t3"}
        route.choose_from(buffers[:1])
        assert route.buffer_for_any() is buffers[0]
        with pytest.raises(ValueError, match="at least one"):
            route.choose_from([])


class Path(SendPath):
    """The compiled beginning of send(); what it leaves is noted."""

    def __init__(self) -> None:
        self.left: list[object] = []

    def _send_slowly(self, topic: str, value: object, *_: object) -> tuple[()]:
        self.left.append(value)
        return ()


def test_send_takes_lists_of_bytes() -> None:
    """A list goes in whole, one buffer for all of it; what needs a decision is left to Python untouched."""
    quota = Quota(20, 10_000)
    with outboxes(quota=quota) as outbox:
        path = Path()
        keyed = [new_buffer(outbox, partition=number, max_payload=70_000) for number in range(2)]
        path._routes.set("t", Route([keyed[0]], keyed, 1))
        path.send("t", [b"a", b"b", b"c", b"d"])
        path.send("t", [b"e"], key="0")
        assert path.left == []
        left: list[list[object]] = [
            [],
            [b"x", "text"],
            [b"x", bytearray(b"y")],
            [bytes(70_001)],
            [bytes(66_000)],
            [b"x"] * 16,
            [bytes(2000)] * 6,
        ]
        for value in left:
            path.send("t", value)
        path.send("unknown", [b"x"])
        path.send("t", [b"x"], partition=1)
        path.send("t", (b"x",))
        assert path.left == [*left, [b"x"], [b"x"], (b"x",)]
        assert quota.messages == 5
        path.send("t", [b"x"] * 15)
        assert quota.messages == 20
        assert {chunk.partition: chunk.messages for chunk in outbox.take(True)} in ({0: 19, 1: 1}, {0: 20})


def test_a_route_that_changes_is_used_at_once() -> None:
    """The topic of the last call is remembered by what it is, and forgotten when routes change."""
    with outboxes() as outbox:
        first, second = new_buffer(outbox, topic="first"), new_buffer(outbox, topic="second")
        path = Path()
        name = "".join(["a ", "topic"])
        path.send(name, b"0")
        path._routes.set("a topic", Route([first], None, 1))
        path.send(name, b"1")
        path.send("a topic", [b"2"])
        path._routes.set("a topic", Route([second], None, 1))
        path.send(name, b"3")
        path._routes.clear()
        path.send(name, b"4")
        path.send(None, b"5")  # type: ignore[arg-type]
        assert path.left == [b"0", b"4", b"5"]
        assert {chunk.topic: chunk.messages for chunk in outbox.take(True)} == {"first": 2, "second": 1}
