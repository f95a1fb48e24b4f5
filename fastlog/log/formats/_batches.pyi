"""The log of record batches (magic 2) as compiled code sees it; ``_batches.pyx`` has the fields of a batch."""

from typing_extensions import Buffer

def register() -> None:
    """Give the format its number, when the package is imported."""

def validate(data: Buffer, max_bytes: int = -1) -> tuple[int, int, int, int, int, bool, int]:
    """``(bytes, records, compressed, offsets, largest time, misstated, status)`` of produced batches; for tests."""

def scan_stored(data: Buffer, least_offset: int = 0, is_dense: bool = False) -> tuple[int, int, int, int, int]:
    """``(bytes, records, compressed batches, next offset, status)`` of stored batches, as far as they are valid.

    The first one's offset is not below ``least_offset``; with ``is_dense`` it is that, and there is no gap behind it.
    The next offset is ``least_offset`` where there is no batch.
    """

def read_head(data: Buffer) -> tuple[int, int, int, int, int] | None:
    """``(bytes, offset, next offset, largest time, records)`` as a batch begins; None where none can begin so."""
