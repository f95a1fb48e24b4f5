"""``fastlog.scan`` beside ``numpy_batches``, over the same topic in turns: ``python -m perf.scanning``.

Messages a second of 200 bytes each, and the ratio in each turn: its median, least and most. A broker is started for it.
All of them read the files of the broker, as a consumer on its machine does. Everything is read once before.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import fastlog
from fastlog import testing

_TURNS = 7
_COUNT = 1_000_000
_PAYLOADS = [b"x" * 200] * 1000


def numpy(address: str) -> int:
    """Arrays, as ``SimpleConsumer.numpy_batches`` gives them, with the payloads in the buffer that was fetched."""
    with fastlog.SimpleConsumer(address, fetch_bytes=4 * 2**20) as consumer:
        return sum(len(batch) for batch in consumer.numpy_batches("t", 0))


def arrow(address: str) -> int:
    """Record batches with every column."""
    return sum(len(batch) for batch in fastlog.scan("t", broker=address))


def offsets(address: str) -> int:
    """Record batches with one column of numbers."""
    return sum(len(batch) for batch in fastlog.scan("t", broker=address, columns=["offset"]))


def duckdb(address: str) -> int:
    """An aggregate that reads every payload."""
    import duckdb as engine

    found = fastlog.scan("t", broker=address)
    assert found.parts
    (row,) = engine.execute("select count(*), max(octet_length(payload)) from found").fetchall()
    assert row[1] == 200
    return int(row[0])


def polars(address: str) -> int:
    """The same by a lazy frame."""
    import polars as pl

    frame = fastlog.scan("t", broker=address).lazy()
    found = frame.select(pl.len(), pl.col("payload").bin.size().max()).collect()
    assert found.item(0, 1) == 200
    return int(found.item(0, 0))


def main() -> None:
    """Print the table."""
    with testing.broker(processors=1) as broker:
        with fastlog.Producer(broker.address, producer_type="async", queue_messages=20_000) as producer:
            for _ in range(_COUNT // len(_PAYLOADS)):
                producer.send("t", _PAYLOADS)
        address = broker.address
        ways: list[Callable[[str], int]] = [numpy, arrow, offsets, duckdb, polars]
        rates: dict[str, list[float]] = {way.__name__: [] for way in ways}
        for turn in range(_TURNS + 1):
            for way in ways:
                begun = time.perf_counter()
                assert way(address) == _COUNT
                if turn:
                    rates[way.__name__].append(_COUNT / (time.perf_counter() - begun))
    for name, found in rates.items():
        ratios = [rate / beside for rate, beside in zip(found, rates["numpy"], strict=True)]
        told = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"{name:8} {statistics.median(found):12,.0f} a second, {told} of numpy")


if __name__ == "__main__":
    main()
