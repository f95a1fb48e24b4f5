"""Partitioners: the same key, the same partition, everywhere and for ever."""

import os
import subprocess
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastlog.producer.partitioners import (
    Crc32Partitioner,
    JavaHashPartitioner,
    Murmur2Partitioner,
    java_string_hash,
    key_bytes,
    murmur2,
)


@pytest.mark.parametrize("partitioner", [Crc32Partitioner(), Murmur2Partitioner(), JavaHashPartitioner()])
@given(key=st.text(), count=st.integers(1, 2**31 - 1))
def test_the_index_is_always_a_partition(partitioner: JavaHashPartitioner, key: str, count: int) -> None:
    """Whatever the key, the index lies in the list: the sign never gets through."""
    assert 0 <= partitioner.partition(key.encode("utf-8", "replace").decode(), count) < count


def test_murmur2_gives_the_numbers_of_the_java_client() -> None:
    """The vectors of Kafka's own unit test."""
    vectors = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    for data, expected in vectors.items():
        assert murmur2(data) == expected & 0xFFFFFFFF
        assert Murmur2Partitioner().partition(data, 1000) == (expected & 0x7FFFFFFF) % 1000


def test_javas_hash_with_its_smallest_number() -> None:
    """S6: a key whose hash is -2**31, where 0.7.2 fails, goes to index 0; others go where 0.7 sends them."""
    assert java_string_hash("test-key") == -1147945308
    assert JavaHashPartitioner().partition("test-key", 7) == 1147945308 % 7
    assert java_string_hash("polygenelubricants") == -(2**31)
    assert JavaHashPartitioner().partition("polygenelubricants", 7) == 0
    assert java_string_hash("\U0001f600") == 31 * 0xD83D + 0xDE00


def test_the_default_masks_the_sign() -> None:
    """S5, S6: CRC-32 without its highest bit."""
    keys = [f"key-{number}" for number in range(64)]
    assert any(zlib.crc32(key.encode()) >= 2**31 for key in keys)
    for key in keys:
        assert Crc32Partitioner().partition(key, 1000) == (zlib.crc32(key.encode()) & 0x7FFFFFFF) % 1000


def test_the_default_does_not_depend_on_the_process() -> None:
    """Another interpreter with another hash seed chooses the same: nothing goes through hash()."""
    program = "from fastlog.producer import *; print([Crc32Partitioner().partition(k, 97) for k in ('a', b'b', 3)])"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert outputs == {str([Crc32Partitioner().partition(key, 97) for key in ("a", b"b", 3)]) + "\n"}


def test_text_and_bytes_of_a_key_are_the_same() -> None:
    """A key is bytes; text is its UTF-8, a number its digits; what has no such form is refused."""
    assert key_bytes("é") == "é".encode() == key_bytes(bytearray("é".encode()))
    assert key_bytes(42) == b"42"
    for wrong in (1.5, None, True, ["a"]):
        with pytest.raises(TypeError):
            key_bytes(wrong)
