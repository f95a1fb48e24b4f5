"""What a consumer pays for a message of 200 bytes, CRC included; ``--benchmark-enable`` shows it, none is asserted.

The first bar: at most 60 ns for each payload.
"""

from collections.abc import Callable

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from fastlog._batch import MessageStream, PayloadStream
from fastlog._segment import pack, scan
from fastlog.codecs import GZIP, SNAPPY
from fastlog.consumer.fetched import MessageSet, payload_lists
from fastlog.message import encode_set, spans

pytestmark = [pytest.mark.slow, pytest.mark.benchmark(max_time=0.2)]

COUNT = 5000  # in one fetch of 1 MB
PAYLOADS = [b"%0200d" % number for number in range(COUNT)]


def payloads(data: bytes) -> int:
    """Payloads of a fetch as lists of bytes."""
    return sum(len(batch) for batch in payload_lists(spans(data)))


def one_by_one(data: bytes) -> int:
    """Payloads, each taken by a loop in Python."""
    count = 0
    for _ in PayloadStream(spans(data)):
        count += 1
    return count


def messages(data: bytes) -> int:
    """Message objects, each taken by a loop in Python."""
    count = 0
    for _ in MessageStream(spans(data)):
        count += 1
    return count


def arrays(data: bytes) -> int:
    """Offsets, starts and lengths over one buffer."""
    return len(MessageSet("t", 0, 0, memoryview(data)).to_numpy())


def arrow(data: bytes) -> int:
    """An Arrow record batch."""
    return int(MessageSet("t", 0, 0, memoryview(data)).to_arrow().num_rows)


def checked(data: bytes) -> int:
    """The check alone, without handing anything out."""
    return scan(data).count


@pytest.mark.parametrize("codec", [0, GZIP, SNAPPY], ids=["plain", "gzip", "snappy"])
@pytest.mark.parametrize("way", [checked, payloads, one_by_one, messages, arrays, arrow])
def test_iterating(benchmark: BenchmarkFixture, way: Callable[[bytes], int], codec: int) -> None:
    """Each way sees every message once; of a wrapper the check sees one."""
    benchmark.group = f"{COUNT} messages of 200 bytes, codec {codec}"
    data = encode_set(PAYLOADS, codec) if codec else pack(PAYLOADS)
    benchmark.extra_info["messages"] = COUNT
    assert benchmark(way, data) == (1 if codec and way is checked else COUNT)
