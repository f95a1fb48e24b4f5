"""Fields of the records in which Apache Kafka keeps its own state: groups and offsets, topics and brokers.

Numbers are big-endian. In versions that have tagged fields ("flexible") lengths and counts are varints of one more than
what they count, 0 for null, and tagged fields stand at the end: a number of them, and of each its tag, its size and its
bytes. In earlier ones a string has its length in 2 bytes before it, bytes and arrays have theirs in 4, -1 for null.

Source: Apache Kafka 4.2 (message schemas); KIP-482.
"""

from __future__ import annotations

from fastlog.errors import LogError


class Fields:
    """Reads one after the other. Raises ``LogError`` where they end too early or are malformed."""

    what = "a record"
    """Its words for what is read, in errors."""

    def __init__(self, data: bytes, *, is_flexible: bool = False) -> None:
        self._data = data
        self._at = 0
        self.is_flexible = is_flexible

    def number(self, size: int) -> int:
        """A number with a sign, of ``size`` bytes."""
        return int.from_bytes(self.take(size), "big", signed=True)

    def varint(self) -> int:
        """A number without a sign, of at most five bytes."""
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise LogError(f"{self.what} with a length that is none")

    def string(self) -> str | None:
        """A text; None for null."""
        size = self.varint() - 1 if self.is_flexible else self.number(2)
        try:
            return None if size < 0 else self.take(size).decode()
        except UnicodeDecodeError as error:
            raise LogError(f"{self.what} with text that is not UTF-8") from error

    def blob(self) -> bytes | None:
        """Bytes; None for null."""
        size = self.varint() - 1 if self.is_flexible else self.number(4)
        return None if size < 0 else self.take(size)

    def count(self) -> int:
        """The number of items of an array; 0 for null."""
        found = self.varint() - 1 if self.is_flexible else self.number(4)
        if found > len(self._data):
            raise LogError(f"{self.what} that tells of more than it holds", found=found)
        return max(0, found)

    def tags(self) -> dict[int, bytes]:
        """The tagged fields by their tags; none where the version has none."""
        if not self.is_flexible:
            return {}
        return {self.varint(): self.take(self.varint()) for _ in range(self.varint())}

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        data = self._data[self._at : self._at + size]
        if len(data) < size:
            raise LogError(f"{self.what} that is cut short")
        self._at += size
        return data
