"""What is sent: seeded random payloads or the lines of a file, made before the clock starts and dealt out in a cycle.

Memory is bounded whatever the number of messages: the same objects are sent again and again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fastlog.errors import ConfigError

POOL_MESSAGES = 10_000
POOL_BYTES = 16 * 2**20
FILE_BYTES = 256 * 2**20
_PART_MESSAGES = 1000  # between two looks at the clock
_MOST_REFERENCES = 2**20


class PayloadSlice(NamedTuple):
    """Messages that are sent without a look at anything else: one by one, or as lists of the batch size."""

    payloads: list[bytes]
    batches: list[list[bytes]]
    size: int
    """Bytes of the payloads."""


def random_payloads(size: int, *, vary: bool = False, seed: int = 1) -> list[bytes]:
    """Random bytes, the same for the same seed; with ``vary`` of 1 to ``size`` bytes, each length as likely."""
    source = random.Random(seed)
    count = max(1, min(POOL_MESSAGES, POOL_BYTES // max(1, size)))
    if vary and size > 1:
        return [source.randbytes(source.randint(1, size)) for _ in range(count)]
    return [source.randbytes(size) for _ in range(count)]


def lines_of(path: Path, most_bytes: int = FILE_BYTES) -> tuple[list[bytes], bool]:
    """The lines of a file without their ends, and whether it was cut: only whole lines of the first bytes are taken.

    Raises:
        ConfigError: there is no whole line.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(most_bytes)
        cut = bool(file.read(1))
    lines = data.split(b"\n")
    last = lines.pop()  # what is behind the last line end: nothing, a line without an end, or a part of one
    if last and not cut:
        lines.append(last)
    if not lines:
        raise ConfigError(f"{path} has no whole line within its first {most_bytes} bytes")
    return lines, cut


class Cycle:
    """Deals payloads out in order, over and over. For one thread."""

    def __init__(self, payloads: Sequence[bytes], batch: int, *, place: float = 0.0) -> None:
        """``batch``: messages in a list; ``place``: where to begin, from 0 to 1, so that threads differ."""
        repeated = self._repeated(list(payloads), batch)
        step = max(1, _PART_MESSAGES // batch) * batch
        self._parts = [_part(repeated[at : at + step], batch) for at in range(0, len(repeated), step)]
        self._next = int(place * len(self._parts)) % len(self._parts)
        self._rest: list[bytes] = []
        self._batch = batch

    @staticmethod
    def _repeated(payloads: list[bytes], batch: int) -> list[bytes]:
        """The payloads as often as it takes for all batches to be full, where that is not too long a list."""
        times = batch // math.gcd(len(payloads), batch)
        if times * len(payloads) > _MOST_REFERENCES:
            times = -(-batch // len(payloads))
        return payloads * times

    def take(self, most: int) -> PayloadSlice:
        """The next messages, at most ``most`` (at least 1) of them."""
        if not self._rest:
            part = self._parts[self._next]
            self._next = (self._next + 1) % len(self._parts)
            if len(part.payloads) <= most:
                return part
            self._rest = part.payloads
        taken, self._rest = self._rest[:most], self._rest[most:]
        return _part(taken, self._batch)


def _part(payloads: list[bytes], batch: int) -> PayloadSlice:
    batches = [payloads[at : at + batch] for at in range(0, len(payloads), batch)]
    return PayloadSlice(payloads, batches, sum(map(len, payloads)))
