"""The cost of messages of 0.7 as records, with the checksums of both; ``--benchmark-enable`` shows it."""

import random

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from fastlog._segment import pack
from fastlog._upconvert import CONVERTED, SetBatches, convert
from fastlog.message import DEFAULT_LIMITS, encode_set

pytestmark = [pytest.mark.slow, pytest.mark.benchmark(max_time=0.3)]

MESSAGES = 5000
PAYLOAD = random.Random(200).randbytes(200)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy"])
def test_reading(benchmark: BenchmarkFixture, codec: str) -> None:
    """A fetch of 1 MB of messages of 200 bytes."""
    payloads = [PAYLOAD[: 200 - len(b"%d" % at)] + b"%d" % at for at in range(MESSAGES)]
    number = ["none", "gzip", "snappy"].index(codec)
    data = (
        pack(payloads)
        if number == 0
        else b"".join(encode_set(payloads[at : at + 200], number) for at in range(0, MESSAGES, 200))
    )
    benchmark.group = "5000 messages of 200 bytes as records"
    _, _, status = benchmark(convert, data, 0, 0, DEFAULT_LIMITS)
    assert status == CONVERTED


def test_writing(benchmark: BenchmarkFixture) -> None:
    """A set of 0.7 for a topic of record batches."""
    data = pack([PAYLOAD] * MESSAGES)

    def run() -> int:
        making = SetBatches(data, 0, 1 << 20, DEFAULT_LIMITS)
        while not making.step(1 << 20):
            pass
        return len(making.made)

    benchmark.group = "5000 messages of 200 bytes as records"
    assert benchmark(run) > MESSAGES * 200
