"""Answers that come in pieces, break off at any byte, or end inside a message at any byte: each message once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fastlog._segment import pack
from fastlog.codecs import SNAPPY, compress
from fastlog.consumer.simple import EARLIEST, LATEST, SimpleConsumer
from fastlog.consumer.stream import NoMessage
from fastlog.errors import TransportError
from fastlog.wire import requests as rq
from tests.harness import wire07
from tests.harness.consumers import consumer_of, with_log
from tests.harness.hostile_answers import Reply
from tests.harness.reading import Reading, served, take

MESSAGES = [b"a", b"", b"in one", b"in two", b"the end"]
LOG = pack(MESSAGES[:2]) + pack([compress(SNAPPY, pack(MESSAGES[2:4]))], SNAPPY) + pack(MESSAGES[4:])
SECOND = len(pack(MESSAGES[:1]))

CALLS: dict[str, tuple[Callable[[SimpleConsumer], Any], Any]] = {
    "fetch": (lambda consumer: consumer.fetch("t", 0, 0).payloads(), MESSAGES),
    "unchecked": (lambda consumer: consumer.fetch_unchecked("t", 0, 0, 1000), LOG),
    "multifetch": (
        lambda consumer: [part.payloads() for part in consumer.multifetch([("t", 0, SECOND), ("t", 0, 0, SECOND)])],
        [MESSAGES[1:], MESSAGES[:1]],
    ),
    "offsets": (lambda consumer: consumer.get_offsets_before("t", 0, LATEST, 9), [len(LOG), 0]),
    "cut points": (lambda consumer: consumer.cut_points("t", 0, 1, SECOND, 1), [SECOND]),
    "metadata": (lambda consumer: consumer.metadata(["t"]).topics[0].partitions[0].log_end, len(LOG)),  # type: ignore[union-attr]
}


def kind_of(request: rq.Request) -> str:
    """Its name, so that what belongs to another one stays whole."""
    return type(request).__name__


ANSWERED = {
    "fetch": "HeldFetchRequest",
    "unchecked": "FetchRequest",
    "multifetch": "MultiFetchRequest",
    "offsets": "OffsetsRequest",
    "cut points": "CutPointsRequest",
    "metadata": "MetadataRequest",
}


@pytest.mark.parametrize("call", list(CALLS))
def test_an_answer_may_come_in_two_pieces_or_break_off_anywhere(call: str) -> None:
    """In pieces it is taken as a whole. Broken off it is asked for again, once; then that is an error, and the next
    call works.
    """
    use, expected = CALLS[call]
    with with_log(LOG) as fake, consumer_of(fake, local="off", timeout=30.0) as consumer:
        lengths: list[int] = []

        def measure(request: rq.Request, honest: bytes) -> None:
            if kind_of(request) == ANSWERED[call]:
                lengths.append(len(honest))

        fake.pieces = measure
        assert use(consumer) == expected
        at = times = 0

        def broken(request: rq.Request, honest: bytes) -> Reply | None:
            nonlocal times
            if kind_of(request) != ANSWERED[call] or not times:
                return None
            times -= 1
            return Reply(((0.0, honest[:at]),), stays=False)

        def split(request: rq.Request, honest: bytes) -> Reply | None:
            return Reply(((0.0, honest[:at]), (0.0002, honest[at:])))

        for at in range(max(lengths)):
            fake.pieces = split
            assert use(consumer) == expected, at
            if call != "metadata" or at % 20 == 0:  # it pauses before it is asked again
                fake.pieces, times = broken, 1
                assert use(consumer) == expected, at
                assert times == 0
        if call != "metadata":
            for place in range(0, max(lengths), 5):
                at, times = place, 2
                with pytest.raises(TransportError, match="closed the connection"):
                    use(consumer)
                assert times == 0 and use(consumer) == expected


def test_byte_by_byte_is_as_good_as_whole(own: bool) -> None:
    with with_log(LOG, own=own) as fake, consumer_of(fake, local="off", timeout=30.0) as consumer:
        fake.pieces = lambda request, honest: Reply(tuple((0.0002, honest[at : at + 1]) for at in range(len(honest))))
        for name, (use, expected) in CALLS.items():
            if own or name not in ("cut points", "metadata"):
                assert use(consumer) == expected, name
        assert [message.payload for message in consumer.messages("t", 0, EARLIEST, fetch_bytes=20)] == MESSAGES


def test_every_fetch_may_end_inside_every_message(own: bool) -> None:
    """Whatever is asked for at once, from one byte to more than there is; in every form."""
    with with_log(LOG, own=own) as fake, consumer_of(fake, local="off") as consumer:
        for size in range(1, len(LOG) + 2):
            found = list(consumer.messages("t", 0, 0, fetch_bytes=size))
            assert [message.payload for message in found] == MESSAGES
            assert found[-1].next_offset == len(LOG)
            closed = consumer.messages("t", 0, 0, fetch_bytes=size, shallow=True)
            assert b"".join(pack([message.payload], message.attributes & 3) for message in closed) == LOG
            assert list(consumer.payloads("t", 0, 0, fetch_bytes=size)) == MESSAGES
            assert [one for batch in consumer.batches("t", 0, 0, fetch_bytes=size) for one in batch] == MESSAGES
            arrays = list(consumer.numpy_batches("t", 0, 0, fetch_bytes=size))
            assert [made.payload(number) for made in arrays for number in range(len(made))] == MESSAGES
            at, payloads = 0, []
            while part := consumer.fetch("t", 0, at, size):
                payloads += part.payloads()
                at = part.next_offset
            assert payloads == MESSAGES and at == len(LOG)


@pytest.mark.parametrize("form", ["messages", "batches", "arrays", "runs"])
def test_a_stream_is_whole_whatever_is_fetched_at_once(own: bool, form: str) -> None:
    data = LOG * 2
    with served(*[data] * 8, own=own) as fake:
        for first in range(1, len(data) + 2, 11):
            with Reading(fetch_bytes=first, queued_chunks=1, fetcher_backoff_ms=1) as reading:
                source = reading.own(fake.port)
                stream = reading.stream()
                found: list[bytes] = []
                while len(found) < 2 * len(MESSAGES):
                    if form == "messages":
                        found += take(stream, 1)
                    elif form == "batches":
                        batch = stream.batch(3, 1000, 30.0)
                        assert batch is not None
                        found += batch
                    elif form == "arrays":
                        arrays = stream.made(stream._arrays, 30.0)
                        assert arrays is not None
                        found += [arrays.payload(number) for number in range(len(arrays))]
                    else:
                        run = stream.run(30.0)
                        assert run is not None
                        found += [message.payload for message in _opened(run)]
                assert found == 2 * MESSAGES, first
                while stream.poll(0.01) is not NoMessage.AT_END:
                    pass
                assert reading.fetchers.consumed() == {source: len(data)}
                assert reading.state(source).gaps == 0


def _opened(run: Any) -> Any:
    from fastlog.consumer.fetched import MessageSet

    assert run.next_offset == run.offset + len(run.data)
    return MessageSet("t", 0, run.offset, run.data)


def test_a_piece_for_a_stream_may_break_off_anywhere(own: bool) -> None:
    """Each answer once, at each byte in turn: no message is lost, none comes twice, nothing is a gap."""
    data = LOG * 3
    with served(data, own=own) as fake, Reading(fetch_bytes=40, queued_chunks=1, fetcher_backoff_ms=1) as reading:
        breaks = iter(range(40))
        turn = 0

        def pieces(request: rq.Request, honest: bytes) -> Reply | None:
            nonlocal turn
            if not isinstance(request, wire07.FetchRequest | wire07.HeldFetchRequest):
                return None
            turn += 1
            at = next(breaks, None) if turn % 2 else None
            return None if at is None or at >= len(honest) else Reply(((0.0, honest[:at]),), stays=False)

        fake.pieces = pieces
        source = reading.own(fake.port)
        expected = 0
        while next(breaks, None) is not None or expected % len(MESSAGES):
            assert take(reading.stream(), 1) == [MESSAGES[expected % len(MESSAGES)]]
            expected += 1
            fake.logs["t", 0] += LOG if expected % len(MESSAGES) == 0 else b""
        assert reading.state(source).gaps == 0 and reading.jumps == []
