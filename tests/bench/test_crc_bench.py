"""The cost of a CRC-32 from Python, each way beside zlib's; ``--benchmark-enable`` shows it, none is asserted."""

import random
import zlib
from collections.abc import Callable
from functools import partial

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from fastlog._crc import crc32_with, implementations

pytestmark = [pytest.mark.slow, pytest.mark.benchmark(max_time=0.1)]

WAYS: dict[str, Callable[[bytes], int]] = {
    **{name: partial(crc32_with, name) for name in implementations()},
    "zlib": zlib.crc32,
}


@pytest.mark.parametrize("size", [16, 200, 1000, 10_000, 1_000_000])
@pytest.mark.parametrize("way", WAYS)
def test_crc32(benchmark: BenchmarkFixture, way: str, size: int) -> None:
    """The measured function gives zlib's number."""
    benchmark.group = f"crc32 of {size} bytes"
    data = random.Random(size).randbytes(size)
    assert benchmark(WAYS[way], data) == zlib.crc32(data)
