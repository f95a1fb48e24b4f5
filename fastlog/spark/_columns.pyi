from typing import Any

from typing_extensions import Buffer

_Array = Any  # whatever gives a buffer of the right type; numpy's arrays do not tell mypy that they do

def fill(
    entries: Buffer,
    count: int,
    offset: int,
    next_offset: int,
    inner: bool,
    index: int,
    row: int,
    offsets: _Array,
    next_offsets: _Array,
    indexes: _Array,
    ends: _Array,
    values: _Array,
) -> None:
    """Write what these checked entries give into columns, from ``row`` on; a column that is None is not wanted.

    ``offsets`` and ``next_offsets`` are int64. ``indexes`` (int32) counts from ``index`` on inside a wrapper and is
    ``index`` elsewhere. Payloads go behind one another into ``values`` (bytes), from ``ends[row]`` on; ``ends`` (int32)
    has one item more than there are rows: what Arrow calls the offsets of a binary array. The GIL is released.

    Raises:
        BufferError: there are fewer entries, or ``values`` has no room for their payloads.
        ValueError: a column is too short, or ``count`` is not above 0.
    """
