"""Memory is taken again only when nobody can see what is in it."""

from __future__ import annotations

import numpy as np

from fastlog.client.buffers import Buffers


def test_what_nobody_looks_at_is_taken_again() -> None:
    buffers = Buffers()
    first = buffers.take(1000)
    assert len(first) == 1000
    assert buffers.take(1000) is first
    assert buffers.take(900) is first


def test_what_somebody_looks_at_never_changes() -> None:
    buffers = Buffers()
    first = buffers.take(1000)
    array = np.frombuffer(memoryview(first)[10:20], np.uint8)
    second = buffers.take(1000)
    view = memoryview(second)
    third = buffers.take(1000)
    assert len({id(first), id(second), id(third)}) == 3
    assert len(first) == len(second) == 1000
    del array
    view.release()
    assert buffers.take(1000) in (second, third)


def test_memory_follows_what_is_asked_for() -> None:
    """Neither a buffer much larger than asked for, nor one above the limit, is kept in use."""
    buffers = Buffers()
    large = buffers.take(10**6)
    assert buffers.take(1000) is not large
    for size, is_kept in ((16 * 2**20, True), (16 * 2**20 + 1, False)):
        huge = buffers.take(size)
        assert (buffers.take(size) is huge) == is_kept


def test_as_many_are_kept_as_are_looked_at_within_a_limit() -> None:
    """A queue of pieces costs no fresh memory once it has been full; when little comes, most of it goes back."""
    buffers = Buffers()
    waiting = [memoryview(buffers.take(2**20)) for _ in range(24)]
    before = [view.obj for view in waiting]
    for view in waiting:
        view.release()
    again = [memoryview(buffers.take(2**20)) for _ in range(24)]
    assert sum(any(view.obj is known for known in before) for view in again) == 16
    for view in again:
        view.release()
    buffers.rest()
    assert sum(len(kept) for kept in buffers._kept) == 2 * 2**20 == buffers._kept_bytes
