"""Hypothesis strategies for message bytes: entries, sets, wrappers to any depth, and damaged sets.

Everything is encoded by ``tests.reference`` and by the standard library, never by fastlog.
"""

from __future__ import annotations

import zlib

from hypothesis import strategies as st

from tests import reference

payloads = st.one_of(
    st.binary(max_size=40),
    st.binary(min_size=1, max_size=8).map(lambda piece: piece * 60),
    st.sampled_from([b"", b"\x1f\x8b\x08rest", b"\x82SNAPPY\x00rest", b"\x82SNAPP", b"\x1f\x8b"]),
)


def compressed(data: bytes, how: str) -> bytes:
    """A wrapper entry around a set, in one of the forms that old clients write."""
    if how == "gzip":
        return reference.encode(zlib.compress(data, wbits=31), 1, 1)
    if how == "gzip members":
        middle = len(data) // 2
        halves = (data[:middle], data[middle:])
        return reference.encode(b"".join(zlib.compress(half, wbits=31) for half in halves), 1, 1)
    if how == "raw snappy":
        return reference.encode(reference.snappy_literal(data), 1, 2)
    blocks = [reference.snappy_literal(data[start : start + 100]) for start in range(0, len(data), 100)]
    return reference.encode(reference.xerial(*blocks), 1, 2)


wrapper_forms = st.sampled_from(["gzip", "gzip members", "raw snappy", "xerial snappy"])
plain_entries = st.builds(reference.encode, payloads, st.sampled_from([0, 1]))
plain_sets = st.lists(plain_entries, max_size=6).map(b"".join)


def _deeper(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    wrapper = st.builds(compressed, inner, wrapper_forms)
    return st.lists(st.one_of(plain_entries, wrapper), max_size=3).map(b"".join)


message_sets = st.recursive(plain_sets, _deeper, max_leaves=4)
"""Valid sets: mixed magics, wrappers of every form, sets in sets, empty inner sets."""

wrappers = st.builds(compressed, message_sets, wrapper_forms)


@st.composite
def damaged_sets(draw: st.DrawFn) -> bytes:
    """A set after a few bit flips, cuts, insertions, and foreign lengths; sometimes it is still valid."""
    data = bytearray(draw(message_sets))
    for _ in range(draw(st.integers(1, 3))):
        position = draw(st.integers(0, max(len(data) - 1, 0)))
        match draw(st.sampled_from(["flip", "cut", "insert", "length"])):
            case "flip" if data:
                data[position] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[position:]
            case "insert":
                data[position:position] = draw(st.binary(max_size=12))
            case "length":
                length = draw(st.sampled_from([-(2**31), -1, 0, 1, 4, 5, 6, len(data), 2**31 - 1]))
                data[position : position + 4] = length.to_bytes(4, "big", signed=True)
    return bytes(data)
