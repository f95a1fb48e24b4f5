from typing import Any

from fastlog.producer._buffer import Buffer

_Array = Any  # whatever gives a buffer of the right type; numpy's arrays do not tell mypy that they do

def put_rows(buffers: list[Buffer], destinations: _Array | None, data: _Array, ends: _Array, start: int) -> int:
    """Add rows to buffers from row ``start`` on until the queue is full; return the first row that was not added.

    Row i has the bytes from ``ends[i]`` to ``ends[i + 1]`` of ``data`` (int32, what Arrow calls the offsets of a binary
    array), and goes to ``buffers[destinations[i]]`` (int32); without destinations all go to the first buffer.

    Raises:
        MessageTooLargeError: a row is too large for a message; those before it are added.
        ClosedError: the producer was closed.
        ValueError: ends or destinations do not fit.
    """

def hash_rows(data: _Array, ends: _Array, hashes: _Array) -> None:
    """Write what the default partitioner makes of each row as a key into ``hashes`` (uint32).

    Modulo the number of partitions this is the index of ``Crc32Partitioner``. The GIL is released.

    Raises:
        ValueError: ends or hashes do not fit.
    """
