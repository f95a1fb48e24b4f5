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
    huge = buffers.take(64 * 2**20)
    assert buffers.take(64 * 2**20) is not huge
