from typing import Any, final

from typing_extensions import Buffer

_Array = Any  # whatever gives a buffer of the right type; numpy's arrays do not tell mypy that they do

@final
class Numbers:
    """A column of so many rows, each of which may be missing."""

    array: Any
    """The numbers, int64."""
    valid: Any
    """1 for each row that is there, uint8."""
    def __init__(self, count: int) -> None: ...

@final
class Bytes:
    """The same for bytes; ``room`` is for those of all rows together, below 2 GiB."""

    array: Any
    """The bytes of all rows behind one another, uint8."""
    ends: Any
    """int32, one item more than rows: row i lies from ``ends[i]`` to ``ends[i + 1]``."""
    valid: Any
    def __init__(self, count: int, room: int) -> None: ...

def fill(
    entries: Buffer,
    count: int,
    row: int,
    times: Numbers | None,
    servers: Numbers | None,
    schemas: Numbers | None,
    keys: Bytes | None,
    deduplications: Bytes | None,
    values: Bytes | None,
) -> tuple[int, int, bytes]:
    """Write what the envelopes of these checked entries say into columns, from ``row`` on; None is not wanted.

    ``times`` are microseconds, missing where they do not fit 64 bits. A message without a valid envelope is all value.
    Returns how many of those there are, and the row and the payload of the first one. The GIL is released.

    Raises:
        BufferError: there are fewer entries, or a column has no room.
        ValueError: a column is too short, or ``count`` is not above 0.
    """

class Source:
    """A column of bytes as Arrow has it; ``valid`` (uint8) None: no row is missing. Raises ``ValueError``: no fit."""

    def __init__(self, data: _Array, ends: _Array, valid: _Array | None) -> None: ...

def wrap(
    values: Source,
    times: _Array,
    server_id: int,
    schemas: _Array | None,
    keys: Source | None,
    deduplications: Source | None,
) -> tuple[_Array, _Array]:
    """Return payloads with envelopes, as data (uint8) and ends (int32).

    ``times`` are ms since 1970, int64; ``schemas`` int64, below 0 for none. The GIL is released.

    Raises:
        OverflowError: a deduplication id has more than 255 bytes.
        ValueError: the columns differ in length, or all of it is above 2 GiB.
    """
