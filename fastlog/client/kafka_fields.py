"""Requests of today's protocol as bytes, and their answers read: what clients of ours need of it.

Numbers are big-endian; a string has its length in 16 bits before it, and bytes have theirs in 32, -1 for null; an array
has the number of its items in 32 bits. Before a request stand its size, key, version, a number that the answer repeats,
and the name of the client. Where a version has tagged fields, all these lengths are varints of one more than what they
count, 0 for null; and tagged fields, of which a client need not know any, stand behind every structure and both heads:
a number of them, and of each its tag, its size and its bytes. Written by hand and not with the broker's library, which
a client need not install.

Source: the schemas of Apache Kafka 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from fastlog.errors import ProtocolError
from fastlog.wire.fields import Reader, frame, pack, string

_T = TypeVar("_T")

NULL = b"\xff\xff"
"""The bytes of a string that is null."""

ID_BYTES = 16
"""The bytes of a topic's id."""

NO_TAGS = b"\0"
"""No tagged fields, behind a structure."""

Place = tuple[str, int]
"""A topic and the number of a partition."""


class Request(NamedTuple):
    """A request without its header: API key, version, and the bytes of the body."""

    key: int
    version: int
    body: bytes

    def frame(self, number: int, client: str) -> bytes:
        """All bytes of it; the answer will begin with ``number``."""
        return frame(pack("hhi", self.key, self.version, number), string(client), self.body)


class Answer(Reader):
    """Walks an answer behind its number. Raises ``ProtocolError`` for what is none."""

    def text(self, name: str) -> str:
        """A string, which may be null: then it is empty."""
        return self.text_or_none(name) or ""

    def text_or_none(self, name: str) -> str | None:
        """A string whose length is in 16 bits before it; None for null."""
        size = self.int16(f"length of {name}")
        return None if size == -1 else self._text(self.take(size, name), name)

    def items(self, name: str, least_bytes: int, one: Callable[[], _T]) -> list[_T]:
        """An array, each item read by ``one``; null is none."""
        count = self.int32(f"number of {name}")
        if count == -1:
            return []
        if not 0 <= count <= self.left // least_bytes:
            raise self.error(f"it announces {count} {name}, with {self.left} bytes left")
        return [one() for _ in range(count)]

    def skip_throttle(self) -> None:
        """The time for which a broker with quotas would have the client wait."""
        self.int32("throttle time")

    def uvarint(self, name: str) -> int:
        """A number without a sign, of at most 32 bits."""
        value = shift = 0
        while True:
            byte = self.int8(name) & 0xFF
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 28:
                raise self.error(f"{name} is too long a number")
        return value

    def skip_tags(self) -> None:
        """Fields of which this client knows nothing."""
        for _ in range(self.uvarint("number of tagged fields")):
            self.uvarint("tag")
            self.view(self.uvarint("length of a tagged field"), "tagged field")

    def compact_items(self, name: str, least_bytes: int, one: Callable[[], _T]) -> list[_T]:
        """An array of a version with tagged fields, each item read by ``one``; null is none."""
        count = self.uvarint(f"number of {name}") - 1
        if count > self.left // least_bytes:
            raise self.error(f"it announces {count} {name}, with {self.left} bytes left")
        return [one() for _ in range(count)]

    def rows(self, name: str, least_bytes: int, one: Callable[[], _T]) -> list[_T]:
        """The same of structures: behind what ``one`` reads stand tagged fields."""

        def row() -> _T:
            found = one()
            self.skip_tags()
            return found

        return self.compact_items(name, least_bytes, row)

    def view(self, size: int, name: str) -> memoryview:
        """The next ``size`` bytes, where they lie."""
        if not 0 <= size <= self.left:
            raise self.error(f"{name} claims {size} bytes, {self.left} are left")
        start = self._position
        self._position += size
        return memoryview(self._data)[start : self._position]

    def compact_view(self, name: str) -> memoryview:
        """A byte string of a version with tagged fields, as a view; empty for null."""
        return self.view(max(0, self.uvarint(f"length of {name}") - 1), name)

    def compact_text(self, name: str) -> str:
        """A string of a version with tagged fields; empty for null."""
        return self._text(bytes(self.compact_view(name)), name)

    def _text(self, data: bytes, name: str) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.error(f"{name} is not UTF-8") from None

    def by_place(self, least_bytes: int, one: Callable[[], tuple[int, _T]]) -> dict[Place, _T]:
        """Topics with their partitions, each of them a number and what ``one`` reads behind it."""

        def topic() -> list[tuple[Place, _T]]:
            name = self.text("topic")
            return [((name, number), value) for number, value in self.items("partitions", least_bytes, one)]

        return {place: value for rows in self.items("topics", 6, topic) for place, value in rows}


def answer(body: bytes | memoryview, number: int) -> Answer:
    """The answer to the request that had the number. Raises ``ProtocolError`` when it is another's."""
    found = Answer(bytes(body))
    _check_number(found, number)
    return found


def tagged_answer(body: bytes | memoryview, number: int) -> Answer:
    """The same of a version whose head has tagged fields; not copied. Raises ``ProtocolError``."""
    found = Answer(body)
    _check_number(found, number)
    found.skip_tags()
    return found


def _check_number(found: Answer, number: int) -> None:
    answered = found.int32("number")
    if answered != number:
        raise ProtocolError(f"request {number} is answered as {answered}")


def sized(data: bytes | bytearray) -> bytes:
    """A byte string behind its length in 32 bits."""
    return pack("i", len(data)) + data


def array(items: Iterable[bytes]) -> bytes:
    """An array: the items, each encoded already, behind their number in 32 bits."""
    rows = list(items)
    return pack("i", len(rows)) + b"".join(rows)


def string_or_null(text: str | None) -> bytes:
    """The bytes of a string; None gives null."""
    return NULL if text is None else string(text)


def by_topic(places: Iterable[Place], one: Callable[[Place], bytes]) -> bytes:
    """Partitions, each written by ``one``, behind the names of their topics."""
    topics: dict[str, list[Place]] = {}
    for place in places:
        topics.setdefault(place[0], []).append(place)
    return array(string(topic) + array(map(one, rows)) for topic, rows in topics.items())


# -- what every client asks --------------------------------------------------------------------------------------------


def api_versions() -> Request:
    """Which requests the broker knows. By it as first request a broker of fastlog knows what the connection speaks."""
    return Request(18, 0, b"")


def parse_api_versions(found: Answer) -> tuple[int, dict[int, tuple[int, int]]]:
    """An error code, and the first and the last version of each request."""
    code = found.int16("error code")
    rows = found.items("requests", 6, lambda: (found.int16("key"), (found.int16("first"), found.int16("last"))))
    found.end()
    return code, dict(rows)
