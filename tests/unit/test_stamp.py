"""Stamps: every message gets its own number, and every number is in exactly one window, or void."""

from __future__ import annotations

import time

import pytest

from fastlog.envelope import Envelope, unwrap
from fastlog.errors import ArgumentError
from fastlog.producer._stamp import Stamp

DAY_MS = 86_400_000


def made(window_ms: int = DAY_MS, *, numbered: bool = True) -> Stamp:
    return Stamp("t", 77, 0x0123456789ABCDEF, window_ms, numbered)


def envelopes(payloads: list[bytes]) -> list[Envelope]:
    return [unwrap(payload)[0] for payload in payloads]


def numbers(payloads: list[bytes]) -> list[int]:
    found = []
    for envelope in envelopes(payloads):
        assert envelope.deduplication_id is not None
        assert envelope.deduplication_id[:9].hex() == "010123456789abcdef"
        found.append(int.from_bytes(envelope.deduplication_id[9:], "big"))
    return found


@pytest.mark.parametrize(("key", "kept"), [("ä", "ä".encode()), (b"k", b"k"), (b"", b""), (None, None), (5, None)])
@pytest.mark.parametrize("numbered", [True, False])
def test_what_an_envelope_says(key: object, kept: bytes | None, numbered: bool) -> None:
    """The time of the call, the server, a key that is bytes or text; the number only when the producer is audited."""
    stamp = made(numbered=numbered)
    before = time.time_ns() // 1_000_000
    payloads = stamp.wrap_all([b"one", b""], key)
    after = time.time_ns() // 1_000_000
    assert [unwrap(payload)[1] for payload in payloads] == [b"one", b""]
    for envelope in envelopes(payloads):
        assert before <= envelope.time_ms <= after
        assert (envelope.server_id, envelope.schema_id, envelope.key) == (77, None, kept)
        assert (envelope.deduplication_id is not None) == numbered
    assert [len(payload) for payload in payloads] == [stamp.size_with(3, key), stamp.size_with(0, key)]
    if numbered:
        assert numbers(payloads) == [0, 1]
    else:
        assert stamp.take_runs() == []


def test_numbers_go_on_and_runs_are_told_once() -> None:
    stamp = made()
    window = time.time_ns() // 1_000_000 // DAY_MS * DAY_MS
    assert stamp.take_runs() == []
    stamp.wrap_all([b""] * 3, None)
    runs = stamp.take_runs()
    assert runs in ([(window, 0, 3)], [(window + DAY_MS, 0, 3)])  # midnight may have passed
    assert stamp.take_runs() == []
    assert numbers(stamp.wrap_all([b""] * 2, None)) == [3, 4]
    assert [run[1:] for run in stamp.take_runs()] == [(3, 5)]


def test_a_clock_that_jumps() -> None:
    """Each number is in the window of the time in its message, also when the clock goes back, and before 1970."""
    stamp = made(1000)
    sent = []
    for shift in (0, 5000, -3_600_000, -(2**41) - 1, 0):
        stamp.shift_ms = shift
        sent += stamp.wrap_all([b""] * 3, None)
    by_number = {number: envelope.time_ms for number, envelope in zip(numbers(sent), envelopes(sent), strict=True)}
    seen = []
    for window, first, end in stamp.take_runs():
        assert window % 1000 == 0
        for number in range(first, end):
            assert window <= by_number[number] < window + 1000
            seen.append(number)
    assert seen == list(range(15))


def test_what_is_held_shows_later() -> None:
    """Numbers from the held one on, those of others too, in whatever order they are released."""
    stamp = made()
    stamp.wrap_all([b""] * 2, None)
    first = stamp.hold()
    stamp.wrap_all([b""], None)
    second = stamp.hold()
    stamp.wrap_all([b""] * 4, None)
    assert [run[1:] for run in stamp.take_runs()] == [(0, 2)]
    stamp.release(second)
    assert stamp.take_runs() == []
    stamp.release(first)
    assert merged(stamp) == list(range(2, 7))


def merged(stamp: Stamp) -> list[int]:
    return [number for _, first, end in stamp.take_runs() for number in range(first, end)]


def test_voids_are_told_once() -> None:
    stamp = made()
    stamp.void(3, 2)
    stamp.void(9, 0)
    assert stamp.take_voids() == [(3, 5)]
    assert stamp.take_voids() == []


def test_values_that_are_no_bytes() -> None:
    """Nothing gets a number."""
    stamp = made()
    with pytest.raises(TypeError):
        stamp.wrap_all([b"", bytearray(b"x")], None)  # type: ignore[list-item]
    with pytest.raises(ArgumentError):
        stamp.wrap_all([b""], "\udc80")
    assert stamp.take_runs() == []
    assert numbers(stamp.wrap_all([b""], None)) == [0]
