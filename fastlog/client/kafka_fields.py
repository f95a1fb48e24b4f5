"""Requests of today's protocol as bytes, and their answers read: what clients of ours need of it.

Each request in a version without tagged fields. Numbers are big-endian; a string has its length in 16 bits before it,
and bytes have theirs in 32, -1 for null; an array has the number of its items in 32 bits. Before a request stand its
size, key, version, a number that the answer repeats, and the name of the client. Written by hand and not with the
broker's library, which a client need not install.

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
        if size == -1:
            return None
        try:
            return self.take(size, name).decode()
        except UnicodeDecodeError:
            raise self.error(f"{name} is not UTF-8") from None

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

    def by_place(self, least_bytes: int, one: Callable[[], tuple[int, _T]]) -> dict[Place, _T]:
        """Topics with their partitions, each of them a number and what ``one`` reads behind it."""

        def topic() -> list[tuple[Place, _T]]:
            name = self.text("topic")
            return [((name, number), value) for number, value in self.items("partitions", least_bytes, one)]

        return {place: value for rows in self.items("topics", 6, topic) for place, value in rows}


def answer(body: bytes | memoryview, number: int) -> Answer:
    """The answer to the request that had the number. Raises ``ProtocolError`` when it is another's."""
    found = Answer(bytes(body))
    answered = found.int32("number")
    if answered != number:
        raise ProtocolError(f"request {number} is answered as {answered}")
    return found


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
