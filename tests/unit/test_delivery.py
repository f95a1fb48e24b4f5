"""What a stream hands out: every message once and in order, however it is taken, and nothing that is not owned."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastlog._segment import pack
from fastlog.codecs import GZIP, compress
from fastlog.consumer._delivery import GroupMessage, Place
from fastlog.consumer.partitions import Lease
from fastlog.consumer.reader import Chunk
from fastlog.errors import ConsumerTimeout, CoordinationError, DecodeError, InvalidMessageError
from fastlog.message import Span, deep, encode_set
from tests.harness.reading import FixedStream, held_lease, source_of
from tests.unit.test_batch import message_sets

EMPTY_WRAPPER = pack([compress(GZIP, b"")], GZIP)


def expected_of(chunks: list[bytes]) -> list[tuple[bytes, int]]:
    """Payload and next offset of each message."""
    return [(item.message.payload, item.offset) for item in deep(b"".join(chunks))]


class Interrupting(FixedStream):
    """Is interrupted at random wherever Python code runs."""

    def __init__(self, chunks: list[bytes], seed: int) -> None:
        super().__init__(chunks, decode=self.upper)
        self.dice = random.Random(seed)

    def interrupt(self) -> None:
        if self.dice.random() < 0.2:
            raise KeyboardInterrupt

    def upper(self, payload: bytes) -> bytes:
        self.interrupt()
        return payload.upper()

    def _next_chunk(self, timeout: float) -> bool:
        self.interrupt()
        return super()._next_chunk(timeout)

    def _cut(self, chunk: Chunk, offset: int) -> Iterator[Span]:
        self.interrupt()
        for span in super()._cut(chunk, offset):
            self.interrupt()
            yield span
        self.interrupt()

    def _arrays(self, place: Place, chunk: Chunk, offset: int, passed: int) -> Any:
        self.interrupt()
        return super()._arrays(place, chunk, offset, passed)


@pytest.mark.slow
@given(st.lists(message_sets(), max_size=4), st.integers(0, 2**32))
def test_every_message_once_and_in_order(chunks: list[bytes], seed: int) -> None:
    """One by one, in lists and in arrays by turns, with Ctrl-C anywhere in between."""
    chunks = [chunk for chunk in chunks if chunk]
    expected = expected_of(chunks)
    stream = Interrupting(list(chunks), seed)
    found: list[tuple[bytes, int]] = []
    while True:
        way = stream.dice.choice(["message", "batch", "arrays"])
        try:
            if way == "message":
                message = stream.message(0)
                if message is None:
                    break
                assert message.value == message.payload.upper() and message.source == source_of()
                found.append((message.payload, message.next_offset))
                assert message.offset <= message.next_offset
                end = message.next_offset
            elif way == "batch":
                batch = next(stream.batches(stream.dice.randint(1, 5)), None)
                if batch is None:
                    break
                found += [(payload, -1) for payload in batch]
                end = batch.next_offset
                assert end >= expected[len(found) - 1][1]  # empty sets may lie behind
            else:
                arrays = next(stream.numpy_batches(), None)
                if arrays is None:
                    break
                payloads = [arrays.payload(number) for number in range(len(arrays))]
                found += zip(payloads, arrays.next_offsets.tolist(), strict=True)
                end = arrays.next_offset
        except KeyboardInterrupt:
            continue
        assert stream.own_place.consumed <= end
    assert [payload for payload, _ in found] == [payload for payload, _ in expected]
    assert all(place in (-1, right) for (_, place), (_, right) in zip(found, expected, strict=True))
    assert stream.own_place.consumed == sum(map(len, chunks))


def test_a_message_counts_when_the_following_one_is_asked_for() -> None:
    stream = FixedStream([pack([b"a", b"b"]), pack([b"c"]), EMPTY_WRAPPER])
    place = stream.own_place
    seen = []
    for message in stream:
        seen.append((message.payload, message.offset, message.next_offset, place.consumed))
    assert seen == [(b"a", 0, 11, 0), (b"b", 11, 22, 11), (b"c", 22, 33, 22)]
    assert place.consumed == 33 + len(EMPTY_WRAPPER)  # nothing of it is left to be consumed
    assert [next(iter(stream), None), next(stream, None), stream.message(0)] == [None, None, None]


def test_a_time_out_counts_what_was_handed_out_before() -> None:
    class Quiet(FixedStream):
        def _next_chunk(self, timeout: float) -> bool:
            if not super()._next_chunk(timeout):
                raise ConsumerTimeout("nothing")
            return True

    stream = Quiet([pack([b"a"])])
    assert next(stream).payload == b"a"
    for _ in range(2):
        with pytest.raises(ConsumerTimeout):
            next(stream)
        assert stream.own_place.consumed == 11
    stream._chunks.append(pack([b"b"]))
    assert next(stream).payload == b"b"


def test_inside_a_compressed_set_the_set_counts_when_it_is_through() -> None:
    wrapper = encode_set([b"a", b"b", b"c"], GZIP)
    stream = FixedStream([pack([b"-"]) + wrapper])
    places = [(message.payload, message.next_offset, stream.own_place.consumed) for message in stream]
    end = 11 + len(wrapper)
    assert places == [(b"-", 11, 0), (b"a", 11, 11), (b"b", 11, 11), (b"c", end, 11)]
    assert stream.own_place.consumed == end


def test_shallow_streams_leave_sets_closed() -> None:
    wrapper = encode_set([b"a", b"b"], GZIP)
    stream = FixedStream([wrapper], shallow=True)
    message = next(stream)
    assert (message.codec, message.next_offset) == (GZIP, len(wrapper))


@pytest.mark.parametrize("acknowledge", [True, False])
def test_what_is_done_counts_at_once(acknowledge: bool) -> None:
    stream = FixedStream([pack([b"a", b"b", b"c"])], acknowledge=acknowledge)
    place = stream.own_place
    first, second = next(stream), next(stream)
    assert place.consumed == (0 if acknowledge else 11)
    assert stream.done(second) and place.consumed == 22
    assert stream.done(first) and place.consumed == 22  # those before it are done as well
    assert next(stream, None) is not None and next(stream, None) is None
    assert place.consumed == (22 if acknowledge else 33)
    place.end()
    assert not stream.done(second)


def test_batches_and_arrays_can_be_done_too() -> None:
    stream = FixedStream([pack([b"a", b"b"]), pack([b"c"])], acknowledge=True)
    batch = next(stream.batches(2))
    assert (batch, batch.topic, str(batch.partition), batch.offset, batch.next_offset) == (
        [b"a", b"b"],
        "t",
        "0-0",
        0,
        22,
    )
    assert stream.done(batch) and stream.own_place.consumed == 22
    arrays = next(stream.numpy_batches())
    assert (arrays.source, arrays.partition, arrays.payload(0)) == (source_of(), 0, b"c")
    assert stream.own_place.consumed == 22
    assert stream.done(arrays) and stream.own_place.consumed == 33


@pytest.mark.parametrize("way", ["message", "batch", "arrays"])
def test_nothing_comes_of_a_place_that_is_over(way: str) -> None:
    """Neither from the chunk under iteration nor from what was made of it just now."""
    stream = FixedStream([pack([b"a", b"b", b"c", b"d"])])
    place = stream.own_place
    messages = iter(stream)
    next(messages), next(messages)
    if way == "message":
        assert place.end() == 11  # the one in hand is not consumed
        assert next(messages, None) is None
    elif way == "batch":
        stream._cut = lambda chunk, offset: iter(())  # type: ignore[method-assign]
        place.end()
        assert next(stream.batches(), None) is None
    else:
        arrays = stream._arrays

        def late(*found: Any) -> Any:
            made = arrays(*found)
            place.end()
            return made

        stream._arrays = late  # type: ignore[method-assign]
        assert next(stream.numpy_batches(), None) is None
        assert place.consumed == 22
    assert place.end() == place.consumed


def test_a_partition_taken_away_while_it_is_decoded_is_not_handed_out() -> None:
    def decode(payload: bytes) -> bytes:
        if payload == b"b":
            stream.own_place.end()
        return payload

    stream = FixedStream([pack([b"a", b"b", b"c"])], decode=decode)
    assert [message.payload for message in stream] == [b"a"]
    assert stream.own_place.consumed == 11


def test_an_error_of_the_decoder_costs_no_message() -> None:
    """It carries the message, which counts as handed out; what interrupts the decoder does not."""
    trouble: dict[bytes, BaseException] = {b"b": ValueError("not a number"), b"c": KeyboardInterrupt()}

    def decode(payload: bytes) -> bytes:
        if payload in trouble:
            raise trouble.pop(payload)
        return payload

    stream = FixedStream([pack([b"a", b"b", b"c"])], decode=decode)
    assert next(stream).value == b"a"
    with pytest.raises(DecodeError, match=r"t/0-0, offset 11, .*ValueError: not a number") as caught:
        next(stream)
    assert caught.value.message.payload == b"b" and stream.own_place.consumed == 11
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert stream.own_place.consumed == 22
    assert next(stream).payload == b"c"


@pytest.mark.parametrize("way", ["message", "batch", "arrays"])
def test_nothing_comes_without_a_lease(way: str) -> None:
    lease = held_lease()
    stream = FixedStream([pack([b"a", b"b", b"c"])], lease=lease, timeout=0.05)
    take = {"message": stream, "batch": stream.batches(1), "arrays": stream.numpy_batches()}[way]
    if way != "arrays":
        next(take)
    lease.drop()
    _let_a_tick_pass()
    with pytest.raises(ConsumerTimeout):
        next(take)
    lease.extend(Lease.now())
    found = next(take)
    assert (found.payload if way == "message" else found.payload(0) if way == "arrays" else found[0]) == (
        b"a" if way == "arrays" else b"b"
    )


def test_an_objection_is_raised_once_and_then_waited_out() -> None:
    """Z-21: offsets that cannot be saved stop the stream, until they can."""
    lease = held_lease()
    stream = FixedStream([pack([b"a", b"b", b"c"])], lease=lease, timeout=0.05)
    assert next(stream).payload == b"a"
    lease.objection = CoordinationError("the disk is full")
    _let_a_tick_pass()
    with pytest.raises(CoordinationError, match="the disk is full"):
        next(stream)
    with pytest.raises(ConsumerTimeout):
        next(stream)
    assert stream.poll(0.01) is not None and not isinstance(stream.poll(0.01), GroupMessage)
    lease.objection = None
    assert next(stream).payload == b"b"
    lease.objection = CoordinationError("full again")
    _let_a_tick_pass()
    with pytest.raises(CoordinationError, match="full again"):
        stream.poll(0.01)
    lease.objection = None
    assert next(stream).payload == b"c"


def test_a_lease_that_ends_while_a_batch_is_made_keeps_it_back() -> None:
    lease = held_lease()
    stream = FixedStream([pack([b"a"]) + encode_set([b"b"], GZIP)], lease=lease, timeout=0.05)
    cut = stream._cut

    def slow(chunk: Chunk, offset: int) -> Iterator[Span]:
        for number, span in enumerate(cut(chunk, offset)):
            if number and lease.is_valid:
                lease.drop()
                _let_a_tick_pass()
            yield span

    stream._cut = slow  # type: ignore[method-assign]
    with pytest.raises(ConsumerTimeout):
        next(stream.batches())
    lease.extend(Lease.now())
    stream._cut = cut  # type: ignore[method-assign]
    assert next(stream.batches()) == [b"a", b"b"]


def _let_a_tick_pass() -> None:
    """The coarse clock moves on within a hundredth of a second."""
    until = Lease.now() + 0.02
    while Lease.now() < until:
        pass


@pytest.mark.parametrize("way", ["message", "batch", "arrays"])
def test_what_precedes_damage_comes_first_then_the_error_once(way: str) -> None:
    inner = pack([b"in"]) + b"\0\0\0\6\1\0\0\0\0\1"
    damaged = pack([b"out"]) + pack([compress(GZIP, inner)], GZIP)
    stream = FixedStream([damaged])
    take = {"message": stream, "batch": stream.batches(), "arrays": stream.numpy_batches()}[way]
    found: list[bytes] = []
    with pytest.raises(InvalidMessageError, match=r"topic t, partition 0.*wrapper at offset 13"):
        for item in take:
            if way == "message":
                found.append(item.payload)
            else:
                found += item if way == "batch" else [item.payload(number) for number in range(len(item))]
    assert found == ([b"out"] if way == "arrays" else [b"out", b"in"])
    assert [type(error) for error in stream.errors] == [InvalidMessageError]
    assert next(stream, None) is None  # the place is for who feeds it to look after
    assert stream.own_place.consumed == 13


def test_batches_are_bounded() -> None:
    payloads = [b"%03d" % number for number in range(10)]
    assert [len(batch) for batch in FixedStream([pack(payloads)]).batches(4)] == [4, 4, 2]
    assert [len(batch) for batch in FixedStream([pack(payloads)]).batches(100, 26)] == [2] * 5
    sets = encode_set(payloads[:3], GZIP) + encode_set(payloads[3:], GZIP)
    assert list(FixedStream([sets, pack([b"x"])]).batches()) == [payloads, [b"x"]]


def test_a_message_is_a_value() -> None:
    message = next(FixedStream([pack([b"abc"])], decode=int_of))
    assert message == pickle.loads(pickle.dumps(message)) != GroupMessage(source_of(), b"abc", 0, 13)
    assert hash(message) == hash(pickle.loads(pickle.dumps(message)))
    assert (message.topic, message.partition, message.value) == ("t", (0, 0), 97)
    assert "t/0-0, offset=0" in repr(message)
    assert not pickle.loads(pickle.dumps(message)).place.done(13)  # nobody's stream gave the copy


def int_of(payload: bytes) -> int:
    return payload[0]


def test_an_interrupt_while_the_lease_is_looked_at_costs_no_batch() -> None:
    """Which happens once the list is full, where the clock has gone on since it was begun."""

    class Held(Lease):
        interrupts = False

        @property
        def seconds_left(self) -> float:
            if self.interrupts:
                self.interrupts = False
                raise KeyboardInterrupt
            return super().seconds_left

    class Slow(FixedStream):
        def _cut(self, chunk: Chunk, offset: int) -> Iterator[Span]:
            for number, span in enumerate(super()._cut(chunk, offset)):
                if number == 1 and armed:
                    armed.clear()
                    _let_a_tick_pass()
                    lease.interrupts = True
                yield span

    lease = Held(60.0)
    lease.extend(Lease.now())
    armed = [True]
    stream = Slow([pack([b"a", b"b"]) + encode_set([b"c", b"d"], GZIP)], lease=lease)
    batches = stream.batches()
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert stream.own_place.consumed == 0
    assert next(stream.batches()) == [b"a", b"b", b"c", b"d"]
