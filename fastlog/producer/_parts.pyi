from collections.abc import Iterable, Mapping

Field = bytes | str
Headers = Mapping[Field, Field | None] | Iterable[tuple[Field, Field | None]]
"""Pairs of a name and a value, in their order; text is stored in UTF-8, and a value may be None."""

class Parts:
    """What the records of one call have besides their values; never changed."""

    def __init__(self, key: bytes | None = None, headers: Headers | None = None, timestamp: int | None = None) -> None:
        """``timestamp``: milliseconds since 1970, by default those of now. Raises ``ArgumentError``."""

    @property
    def size_bytes(self) -> int:
        """Bytes of key and headers in a record."""
