"""Records of a batch out of columns as Arrow has them, and the hash by which a key chooses its partition.

Safe in any thread, as long as nobody writes into the columns during a call.
"""

from typing import Any

_Array = Any  # whatever gives a buffer of the right type; numpy's arrays do not tell mypy that they do

class Source:
    """A column of bytes: row i lies from ``ends[i]`` to ``ends[i + 1]`` of ``data``, unless ``valid[i]`` is 0."""

    count: int

    def __init__(self, data: _Array, ends: _Array, valid: _Array | None) -> None:
        """Bytes, int32, and bytes or None: no row is missing. Raises ``ValueError`` where they do not fit."""

class Headers:
    """A column of headers: those of row i are from ``ends[i]`` to ``ends[i + 1]`` of names and values."""

    def __init__(self, ends: _Array, valid: _Array | None, names: Source, values: Source) -> None:
        """Raises ``ValueError`` where they do not fit, or a header has no name."""

def pack_rows(
    rows: _Array,
    first: int,
    keys: Source | None,
    values: Source,
    times: _Array,
    headers: Headers | None,
    most_bytes: int,
    most_rows: int,
) -> tuple[bytes, int, int, int]:
    """Return the records of ``rows`` (int32) from number ``first`` on: their bytes, how many they are, the base
    timestamp, that of the first one, and the largest timestamp.

    As many as ``most_bytes`` and ``most_rows`` allow, and one in any case. ``times``: int64, milliseconds, one for each
    row of the columns. The GIL is released.

    Raises:
        ValueError: there is no such row, columns have different lengths, or a record is larger than any batch.
    """

def hash_keys(keys: Source) -> Any:
    """Return, as int64, the hash of each key by which Kafka's Java clients choose a partition; -1: it is missing."""
