"""What a scan says of the messages that it has passed, beside their columns."""

from __future__ import annotations

import numpy as np

from fastlog.consumer.fetched import NumpyBatch
from fastlog.scanning.columns import MESSAGE_COLUMNS, arrow_of, schema
from fastlog.scanning.parts import Part


def batch(offset: int, next_offset: int, *payloads: bytes) -> NumpyBatch:
    """Messages of one wrapper; a ``next_offset`` that is its own says that more of it comes."""
    count = len(payloads)
    lengths = np.array([len(payload) for payload in payloads], np.int32)
    nexts = [offset] * (count - 1) + [next_offset]
    return NumpyBatch(
        "t", 0, np.frombuffer(b"".join(payloads), np.uint8), np.array([offset] * count), np.array(nexts),
        np.cumsum(lengths) - lengths, lengths, next_offset,
    )  # fmt: skip


def test_offsets_are_passed_with_the_end_of_a_wrapper() -> None:
    """A batch may end within one: then none is passed yet. In the end they are those of the part, each once."""
    wanted = schema(MESSAGE_COLUMNS, of_records=False)
    came = iter([batch(0, 0, b"a", b"bb"), batch(0, 70, b"c"), batch(70, 130, b"d"), batch(130, 180, b"out")])
    found = list(arrow_of(came, Part("t", 0, 0, 100), wanted, ["t"]))
    assert [passed for passed, _ in found] == [0, 70, 30]
    assert [made.column("payload").to_pylist() for _, made in found] == [[b"a", b"bb"], [b"c"], [b"d"]]
    assert next(came).offsets == [130]
