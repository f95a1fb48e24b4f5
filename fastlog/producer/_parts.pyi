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

def now() -> int:
    """Milliseconds since 1970, as records get them that are given none."""

class WallClock:
    """The clock of records, with counts of the processor's counter and with times that a test gives; for tests."""

    def note(self, before: int, after: int, wall_ns: int, ns: int) -> int:
        """The clocks show ``wall_ns`` since 1970 and ``ns``, between these counts; returns milliseconds since 1970."""

    def at(self, count: int) -> int | None:
        """The milliseconds at this count; None where the clock would be asked."""

    @property
    def per_ns(self) -> float:
        """Counts in a nanosecond, 0 where that is not known."""
