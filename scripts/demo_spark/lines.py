"""What is sent, and how a row is known again: a line begins with its sender and its number."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

TOPIC, EVENTS = "clicks", "audit"
DATACENTERS = ("dc1", "dc2")
CENTRAL = "central"
TICK = "tick"
"""The sender of lines that end the windows before them."""
PARTITIONS = 2
WINDOW_MS = 2000
MADE_UP_LINES = 10_000
MOST_LINES = 50_000


class Sent(NamedTuple):
    """A batch of a sender: its first number, how many lines, their time, and when the broker had said that they are on
    the disk; 0 for a batch of which it said nothing. Times in ms since 1970."""

    first: int
    count: int
    time_ms: int
    acknowledged_ms: int


def value_of(sender: str, number: int, lines: Sequence[bytes]) -> bytes:
    """The payload of a line: its sender, its number, and the text."""
    return b"%s %d %s" % (sender.encode(), number, lines[number % len(lines)])


def place_of(value: bytes) -> tuple[str, int] | None:
    """The sender and the number of a row; None of one that has none."""
    sender, _, rest = value.partition(b" ")
    number = rest.partition(b" ")[0]
    return (sender.decode("latin-1"), int(number)) if number.isdigit() else None


def read_diary(path: Path) -> list[Sent]:
    """What a sender has written down so far."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]  # behind the last one it may be writing
    return [Sent(*map(int, line.split())) for line in lines]


def made_up() -> Iterator[bytes]:
    """Lines of an access log of a site with a few pages that most ask for."""
    chance = random.Random(7)
    for number in range(MADE_UP_LINES):
        client = f"10.{number % 3}.0.{int(250 * chance.random() ** 3)}"
        page = f"/page/{int(400 * chance.random() ** 4)}"
        status = chance.choices((200, 304, 404, 500), (90, 5, 4, 1))[0]
        at = f"{17 + number * 4 // MADE_UP_LINES}/May/2015:{chance.randrange(24):02}:{chance.randrange(60):02}:00 +0000"
        size = chance.randint(100, 99_999) if status == 200 else "-"
        yield f'{client} - - [{at}] "GET {page} HTTP/1.1" {status} {size} "-" "Mozilla/5.0"'.encode()
