"""Spans of a set: as many messages as the deep count says, where each stands, and limits to the message."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastlog import _segment
from fastlog.errors import DecompressionLimitError, InvalidFetchSizeError, InvalidMessageError
from fastlog.message import DeepLimits, Span, count_deep, deep, shallow, shallow_spans, spans
from tests import reference, strategies

FORMS = ["gzip", "gzip members", "raw snappy", "xerial snappy"]
A, B = reference.encode(b"a"), reference.encode(b"bb", 0)


def wrapped(data: bytes, form: str = "gzip") -> bytes:
    return strategies.compressed(data, form)


def shown(found: list[Span]) -> list[tuple[bytes, int, int, int, bool]]:
    return [(bytes(span.entries), *span[1:]) for span in found]


@given(strategies.message_sets, st.integers(0, 2**40))
@settings(max_examples=100, deadline=None)
def test_counts_agree(data: bytes, base: int) -> None:
    """Of spans, of the deep walk, and of the broker's count; each span holds as many entries as it says."""
    found = list(spans(data, base))
    assert sum(span.count for span in found) == count_deep(data) == len(list(deep(data, base)))
    for span in found:
        result = _segment.scan(span.entries)
        assert (result.count, result.valid_bytes, result.wrappers) == (span.count, len(span.entries), 0)
        assert span.count > 0
    assert sum(span.count for span in shallow_spans(data, base)) == len(list(shallow(data, base)))
    assert shown(list(spans(data, base, result=_segment.scan(data)))) == shown(found)


@pytest.mark.parametrize("form", FORMS)
def test_where_each_span_stands(form: str) -> None:
    """Plain messages on both sides of a wrapper, and one in a wrapper in it: only the last span goes on behind it."""
    inner = wrapped(B + A, form)
    wrapper = wrapped(A + A + inner + B, form)
    data = A + B + wrapper + wrapper + A
    one, two, last = 7 + len(A + B), 7 + len(A + B + wrapper), 7 + len(data) - len(A)
    found = shown(list(spans(data, 7)))
    inside = [
        [(A + A, 2, at, at, True), (B + A, 2, at, at, True), (B, 1, at, behind, True)]
        for at, behind in ((one, two), (two, last))
    ]
    if form == "gzip members":  # spans end where what was inflated does
        assert b"".join(entries for entries, *_ in found) == A + B + (A + A + B + A + B) * 2 + A
    else:
        assert found == [
            (A + B, 2, 7, one, False), *inside[0], *inside[1], (A, 1, last, 7 + len(data), False),
        ]  # fmt: skip
    assert count_deep(data) == sum(span[1] for span in found) == 13


def test_wrappers_without_messages_have_no_span() -> None:
    nothing = wrapped(b"")
    assert list(spans(nothing)) == list(spans(b"")) == list(shallow_spans(b"")) == []
    assert shown(list(spans(nothing + A))) == [(A, 1, len(nothing), len(nothing + A), False)]
    assert shown(list(spans(A + nothing))) == [(A, 1, 0, len(A), False)]
    assert shown(list(spans(wrapped(A + nothing)))) == [(A, 1, 0, len(wrapped(A + nothing)), True)]


def test_wrappers_stay_closed_in_a_shallow_span() -> None:
    data = A + wrapped(B * 3) + B
    assert shown(list(shallow_spans(data + A[:5], 9))) == [(data, 3, 9, 9 + len(data), False)]
    with pytest.raises(InvalidFetchSizeError):
        list(shallow_spans(A[:-1]))
    assert list(shallow_spans(A[:3])) == []
    with pytest.raises(InvalidMessageError):
        list(shallow_spans(A + b"\0\0\0\0"))


@pytest.mark.parametrize("count", [1, 2, 9])
def test_as_many_messages_as_are_allowed(count: int) -> None:
    """In each wrapper at the top anew for who reads, over all of them for who counts; wrappers inside are counted."""
    wrapper = wrapped(wrapped(A * count) + B)
    needed = count + 2
    assert sum(span.count for span in spans(wrapper * 2, limits=DeepLimits(max_messages=needed))) == 2 * (count + 1)
    with pytest.raises(DecompressionLimitError, match=f"hold more than {needed - 1} messages"):
        list(spans(wrapper, limits=DeepLimits(max_messages=needed - 1)))
    assert count_deep(wrapper * 2, DeepLimits(max_messages=2 * needed)) == 2 * (count + 1)
    with pytest.raises(DecompressionLimitError, match=f"hold more than {2 * needed - 1} messages"):
        count_deep(wrapper * 2, DeepLimits(max_messages=2 * needed - 1))


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 100])
def test_as_deep_as_is_allowed(depth: int) -> None:
    data = A
    for _ in range(depth):
        data = wrapped(data)
    for walk in (spans, deep):
        assert len(list(walk(data, limits=DeepLimits(max_depth=depth)))) == 1
        if depth:
            with pytest.raises(DecompressionLimitError, match=f"nested more than {depth - 1} deep"):
                list(walk(data, limits=DeepLimits(max_depth=depth - 1)))


def test_what_is_before_damage_in_a_wrapper_goes_on_at_the_wrapper() -> None:
    """It is not through, so the next read begins with it."""
    damaged = wrapped(A + wrapped(B) + B[:-1] + b"!" + A)
    found: list[Span] = []
    with pytest.raises(InvalidMessageError, match="in the wrapper at offset 111") as caught:
        for span in spans(A + damaged, 100):
            found.append(span)
    assert caught.value.offset == 100 + len(A)
    assert {span[2:] for span in found[1:]} == {(111, 111, True)}
    assert b"".join(bytes(span.entries) for span in found) == A + A + B
