"""CRC-32C of a span of bytes: Castagnoli's polynomial, which record batches are checked with."""

from typing_extensions import Buffer

def crc32c(data: Buffer, value: int = 0) -> int:
    """Return the CRC-32C of ``data``.

    Args:
        data: any object with one contiguous buffer; may be empty.
        value: the CRC-32C of the bytes that come before ``data``, 0 … 2³²-1; 0 when there are none.

    Releases the GIL for 16 KiB and more. Safe from any thread and process.

    Raises:
        TypeError: ``data`` has no buffer.
        BufferError: its buffer is not contiguous.
        OverflowError: ``value`` is out of range.
    """

def crc32c_with(name: str, data: Buffer, value: int = 0) -> int:
    """Return what ``crc32c(data, value)`` does, computed in the way called ``name``; for tests and measurements.

    Raises:
        ValueError: ``name`` is not one of ``implementations()``.
    """

def implementation() -> str:
    """Return the name of the way ``crc32c`` goes on this machine: the first of ``implementations()``."""

def implementations() -> tuple[str, ...]:
    """Return the names of all ways this machine can go, fastest first; see ``fastlog._crc``."""
