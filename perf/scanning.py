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
from fastlog.client.addresses import Address
from fastlog.client.records import RecordBroker
from fastlog.record_batches import Record, build

_TURNS = 7
_COUNT = 1_000_000
_PAYLOADS = [b"x" * 200] * 1000


def numpy(address: str) -> int:
    """Arrays, as ``SimpleConsumer.numpy_batches`` gives them, with the payloads in the buffer that was fetched."""
    with fastlog.SimpleConsumer(address, fetch_bytes=4 * 2**20) as consumer:
        return sum(len(batch) for batch in consumer.numpy_batches("t", 0))


def arrow(address: str) -> int:
    """Scan into Arrow record batches with every column; returns how many rows they have."""
    return sum(len(batch) for batch in fastlog.scan("t", broker=address))


def numpy_records(address: str) -> int:
    """The same of a topic of record batches, through the socket."""
    with fastlog.SimpleConsumer(address, fetch_bytes=4 * 2**20) as consumer:
        return sum(len(batch) for batch in consumer.numpy_batches("r", 0))


def records(address: str) -> int:
    """Of that topic: record batches with every column, keys, times and headers too."""
    return sum(len(batch) for batch in fastlog.scan("r", broker=address))


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
    """Scan by a lazy frame of polars; returns the number of rows."""
    import polars as pl

    frame = fastlog.scan("t", broker=address).lazy()
    found = frame.select(pl.len(), pl.col("payload").bin.size().max()).collect()
    assert found.item(0, 1) == 200
    return int(found.item(0, 0))


def main() -> None:
    """Measure each way to scan, and print a table."""
    with testing.broker(processors=1) as broker:
        with fastlog.Producer(broker.address, producer_type="async", queue_messages=20_000) as producer:
            for _ in range(_COUNT // len(_PAYLOADS)):
                producer.send("t", _PAYLOADS)
        address = Address(broker.host, broker.port)
        with RecordBroker([address], timeout=30.0) as known:
            known.create("r", 1, {})
            made = [Record(b"key-%d" % number, _PAYLOADS[0], 10**12, ((b"h", b"1"),)) for number in range(1000)]
            for _ in range(_COUNT // len(made)):
                known.append({("r", 0): build(made)}, is_flushed=True)
        reached = broker.address
        ways: list[Callable[[str], int]] = [numpy, arrow, offsets, duckdb, polars, numpy_records, records]
        rates: dict[str, list[float]] = {way.__name__: [] for way in ways}
        for turn in range(_TURNS + 1):
            for way in ways:
                begun = time.perf_counter()
                assert way(reached) == _COUNT
                if turn:
                    rates[way.__name__].append(_COUNT / (time.perf_counter() - begun))
    for name, found in rates.items():
        beside = rates["numpy_records" if name.endswith("records") else "numpy"]
        ratios = [rate / other for rate, other in zip(found, beside, strict=True)]
        told = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"{name:13} {statistics.median(found):12,.0f} a second, {told} of numpy")


if __name__ == "__main__":
    main()
