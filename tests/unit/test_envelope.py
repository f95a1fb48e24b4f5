"""The envelope: what was wrapped comes out again, whatever else is in the bytes, and nothing is read beyond them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastlog import _envelope
from fastlog.envelope import Envelope, server_id_of, unwrap, wrap
from fastlog.errors import EnvelopeError
from tests import reference

UINT32 = st.integers(0, 2**32 - 1)
ENVELOPES = st.builds(
    Envelope,
    st.integers(-(2**63), 2**63 - 1),
    UINT32,
    st.none() | UINT32,
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=20),
)
FULL = Envelope(1_700_000_000_123, 0xDEADBEEF, 7, b"client-7", bytes(range(16)))


@pytest.mark.slow
@given(ENVELOPES, st.binary(max_size=40))
def test_what_was_wrapped_comes_out(envelope: Envelope, value: bytes) -> None:
    """With every choice of fields, also empty ones; the slow twin reads the same from the bytes."""
    payload = wrap(value, envelope)
    assert unwrap(payload) == (envelope, value)
    assert as_unwrapped(reference.envelope(payload)) == (envelope, value)


def as_unwrapped(fields: reference.EnvelopeFields) -> tuple[Envelope, bytes]:
    key, deduplication_id = fields.key and fields.key[1], fields.deduplication_id and fields.deduplication_id[1]
    return Envelope(fields.time_ms, fields.server_id, fields.schema_id, key, deduplication_id), fields.value[1]


def test_the_bytes_are_those_of_the_document() -> None:
    """Written out by hand from ``docs/format.md``."""
    assert wrap(b"hello", Envelope(1_700_000_000_000, 0x0A0B0C0D)).hex(" ") == (
        "fe 01 00 00 00 01 8b cf e5 68 00 0a 0b 0c 0d 68 65 6c 6c 6f"
    )
    assert wrap(b"hello", Envelope(1_700_000_000_000, 0x0A0B0C0D, 7, b"key", b"id")).hex(" ") == (
        "fe 01 07 00 00 01 8b cf e5 68 00 0a 0b 0c 0d 00 00 00 07 00 00 00 03 6b 65 79 02 69 64 68 65 6c 6c 6f"
    )


@pytest.mark.slow
@given(st.binary(max_size=60), st.integers(0, 8), ENVELOPES, st.data())
def test_damaged_payloads_are_read_as_by_the_twin(
    tail: bytes, flips: int, envelope: Envelope, data: st.DataObject
) -> None:
    """Bits flipped, bytes cut: the same fields, or an error on both sides."""
    payload = bytearray(wrap(tail, envelope))
    for _ in range(flips):
        payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    check_against_the_twin(bytes(payload[: data.draw(st.integers(0, len(payload)))]))


@pytest.mark.slow
@given(st.binary(max_size=40), st.booleans())
def test_foreign_payloads_are_read_as_by_the_twin(payload: bytes, marked: bool) -> None:
    check_against_the_twin(b"\xfe\x01" + payload if marked else payload)


def check_against_the_twin(payload: bytes) -> None:
    try:
        expected = reference.envelope(payload)
    except reference.DamagedError:
        with pytest.raises(EnvelopeError):
            unwrap(payload)
        assert split([payload]).bad.tolist() == [0]
        return
    assert unwrap(payload) == as_unwrapped(expected)
    check_columns(split([payload]), 0, payload, 0)


@pytest.mark.parametrize("cut", range(len(wrap(b"", FULL))))
def test_an_envelope_that_is_cut_off(cut: int) -> None:
    """At every byte; bytes behind the payload in the same buffer are never taken for the rest of it."""
    whole = wrap(b"", FULL)
    with pytest.raises(EnvelopeError, match=f"ends after {cut} bytes"):
        unwrap(whole[:cut])
    columns = _envelope.split(whole + whole, [0, cut], [cut, len(whole) - cut])
    assert columns.bad.tolist() == [0, 1] if cut else [0]


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"hello, world, and more", "begins with 68 65 instead of fe 01"),
        (b"\xfe\x02" + bytes(30), "begins with fe 02 instead of fe 01"),
        (b"\xfe\x01\x48" + bytes(30), "flags 0x48, of which 0x48 are unknown"),
        (b"", "ends after 0 bytes"),
    ],
)
def test_what_is_wrong_is_said(payload: bytes, text: str) -> None:
    with pytest.raises(EnvelopeError, match=text):
        unwrap(payload)


@pytest.mark.parametrize(
    "envelope",
    [
        Envelope(2**63, 0),
        Envelope(-(2**63) - 1, 0),
        Envelope(0, 2**32),
        Envelope(0, -1),
        Envelope(0, 0, schema_id=2**32),
        Envelope(0, 0, schema_id=-1),
        Envelope(0, 0, deduplication_id=bytes(256)),
    ],
)
def test_fields_out_of_range(envelope: Envelope) -> None:
    with pytest.raises(ValueError, match=r"Envelope\(|deduplication id"):
        wrap(b"", envelope)


def test_values_are_any_bytes() -> None:
    for value in (bytearray(b"abc"), memoryview(b"xabcx")[1:4]):
        payload = wrap(value, FULL)
        assert payload == wrap(b"abc", FULL)
        assert unwrap(memoryview(payload)) == (FULL, b"abc")


def test_the_longest_deduplication_id() -> None:
    envelope = Envelope(0, 0, deduplication_id=bytes(255))
    assert unwrap(wrap(b"v", envelope)) == (envelope, b"v")


def test_a_server_without_an_id_has_that_of_its_name() -> None:
    assert server_id_of("123456789") == 0xCBF43926
    assert server_id_of("") == 0


# -- columns -----------------------------------------------------------------------------------------------------------


def split(payloads: list[bytes], before: bytes = b"") -> _envelope.Columns:
    starts, lengths, at = [], [], len(before)
    for payload in payloads:
        starts.append(at)
        lengths.append(len(payload))
        at += len(payload)
    return _envelope.split(before + b"".join(payloads), starts, lengths)


def check_columns(columns: _envelope.Columns, i: int, payload: bytes, start: int) -> None:
    """One row is what the twin reads from the payload."""
    expected = reference.envelope(payload)
    assert columns.time_ms[i] == expected.time_ms
    assert columns.server_id[i] == expected.server_id
    assert columns.schema_ids[i] == (-1 if expected.schema_id is None else expected.schema_id)
    for places, lengths, field in (
        (columns.key_starts, columns.key_lengths, expected.key),
        (columns.deduplication_starts, columns.deduplication_lengths, expected.deduplication_id),
        (columns.value_starts, columns.value_lengths, expected.value),
    ):
        if field is None:
            assert lengths[i] == -1
        else:
            assert (places[i], lengths[i]) == (start + field[0], len(field[1]))


@pytest.mark.slow
@given(st.lists(st.tuples(st.none() | ENVELOPES, st.binary(max_size=12)), max_size=8), st.binary(max_size=5))
def test_columns_are_those_of_the_single_payloads(items: list[tuple[Envelope | None, bytes]], before: bytes) -> None:
    """In any mixture with payloads that have no envelope, which are listed and all value."""
    payloads = [value if envelope is None else wrap(value, envelope) for envelope, value in items]
    columns = split(payloads, before)
    start, bad = len(before), []
    for i, payload in enumerate(payloads):
        try:
            check_columns(columns, i, payload, start)
        except reference.DamagedError:
            bad.append(i)
            assert (columns.time_ms[i], columns.server_id[i], columns.schema_ids[i]) == (0, 0, -1)
            assert (columns.key_lengths[i], columns.deduplication_lengths[i]) == (-1, -1)
            assert (columns.value_starts[i], columns.value_lengths[i]) == (start, len(payload))
        start += len(payload)
    assert columns.bad.tolist() == bad


def test_columns_take_the_arrays_of_a_batch() -> None:
    """Lengths of 32 bits, and every other item of an array."""
    payload = wrap(b"value", FULL)
    starts = np.array([0, 99, 0, 99])[::2]
    lengths = np.array([len(payload), len(payload)], np.int32)
    columns = _envelope.split(np.frombuffer(payload, np.uint8), starts, lengths)
    assert columns.value_lengths.tolist() == [5, 5]
    assert columns.time_ms.dtype == np.int64
    assert columns.server_id.dtype == np.uint32


@pytest.mark.parametrize(
    ("starts", "lengths"),
    [([0], [11]), ([-1], [5]), ([3], [-1]), ([11], [0]), ([2**62], [2**62]), ([0, 5], [10, 2**63 - 1]), ([0], [])],
)
def test_messages_outside_of_the_buffer(starts: Any, lengths: Any) -> None:
    with pytest.raises(ValueError, match=r"outside|different"):
        _envelope.split(bytes(10), starts, lengths)


def test_no_messages_are_no_columns() -> None:
    assert all(len(column) == 0 for column in _envelope.split(b"", [], []))
