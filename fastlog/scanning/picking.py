"""Some messages of a scan: the last ones of each partition, or some of all at random."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Any

import numpy as np

from fastlog.consumer.fetched import pyarrow_library
from fastlog.scanning.bars import Advance, Bar
from fastlog.scanning.parts import Part, ScanSource

_LEAST_TAIL_BYTES = 64 * 1024
_GUESSED_BYTES = 256
"""The size that a message is taken to have before any was seen."""
_READ_WHOLE = {"bytes": 256 * 2**20, "records": 2**20}
"""Up to how many offsets everything is read for a sample, so that each message has the same chance."""
_PICK_BYTES = 16 * 1024
_ROUNDS = 4


class Picker:
    """Reads parts of a source, with these columns, and shows how far it is."""

    def __init__(self, source: ScanSource, parts: Sequence[Part], columns: Sequence[str], bar: Bar) -> None:
        self._source = source
        self._parts = parts
        self._columns = tuple(columns)
        self._topics = sorted({part.topic for part in parts})
        self._bar = bar

    def last(self, count: int) -> Any:
        """A table of the last ``count`` messages of each partition, in their order."""
        partitions = [list(group) for _, group in groupby(self._parts, lambda part: part[:2])]
        tables = []
        with self._bar(len(partitions), "partitions") as advance:
            for parts in partitions:
                found: list[Any] = []
                wanted = count
                for part in reversed(parts):
                    if not wanted:
                        break
                    found.append(self._last_of(part, wanted))
                    wanted -= found[-1].num_rows
                tables += reversed(found)
                advance(1)
        return self._together(tables)

    def at_random(self, count: int, seed: int | None) -> Any:
        """A table of ``count`` messages, or of all where there are fewer, in the order of partitions and offsets."""
        chance = np.random.default_rng(seed)
        span = sum(part.end - part.start for part in self._parts)
        if span <= _READ_WHOLE[self._source.unit]:
            with self._bar(span, self._source.unit) as advance:
                return self._of_all(count, chance, advance)
        with self._bar(count, "messages") as advance:
            return self._of_places(count, chance, span, advance)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _together(self, tables: Sequence[Any]) -> Any:
        arrow = pyarrow_library()
        wanted = self._source.schema(self._columns, self._topics)
        return arrow.concat_tables(tables) if tables else wanted.empty_table()

    def _read(self, part: Part) -> Any:
        wanted = self._source.schema(self._columns, self._topics)
        batches = [batch for _, batch in self._source.batches([part], self._columns, self._topics)]
        return pyarrow_library().Table.from_batches(batches, schema=wanted)

    def _last_of(self, part: Part, wanted: int) -> Any:
        """Reads the end of the part, and more of it until there is enough."""
        size = wanted if self._source.unit == "records" else max(_LEAST_TAIL_BYTES, wanted * _GUESSED_BYTES)
        while True:
            start = max(part.start, part.end - size)
            table = self._read(part._replace(start=start))
            if table.num_rows >= wanted or start == part.start:
                return table.slice(max(0, table.num_rows - wanted))
            size *= 4

    def _of_all(self, count: int, chance: np.random.Generator, advance: Advance) -> Any:
        """Each message draws a number as it goes by, and those with the smallest stay."""
        arrow = pyarrow_library()
        limit, held = 1.0, 0
        kept: list[tuple[Any, Any]] = []
        for came, batch in self._source.batches(self._parts, self._columns, self._topics):
            drawn = chance.random(batch.num_rows)
            (places,) = (drawn < limit).nonzero()
            if len(places):
                kept.append((drawn[places], batch.take(arrow.array(places))))
                held += len(places)
            if held > 2 * count + 1024:
                kept, limit = _smallest(kept, count)
                held = count
            advance(came)
        kept, _ = _smallest(kept, count)
        wanted = self._source.schema(self._columns, self._topics)
        return arrow.Table.from_batches([batch for _, batch in kept], schema=wanted)

    def _of_places(self, count: int, chance: np.random.Generator, span: int, advance: Advance) -> Any:
        """The message at each of some offsets, or the next one; behind the last of a part comes its first.

        What came twice is replaced by others.
        """
        found: dict[tuple[int, int, int], Any] = {}
        borders = list(accumulate(part.end - part.start for part in self._parts))
        for _ in range(_ROUNDS):
            for place in sorted(int(place) for place in chance.integers(0, span, count - len(found))):
                at = bisect_right(borders, place)
                part = self._parts[at]
                begin = part.end - (borders[at] - place)
                first = self._first_of(part._replace(start=begin)) or self._first_of(part)
                if first is not None:
                    advance(self._pick(first, chance, found, at))
            if len(found) == count:
                break
        return self._together([found[key] for key in sorted(found)])

    def _first_of(self, part: Part) -> Any:
        """The first batch of a part; None where it has no message."""
        columns = dict.fromkeys((*self._columns, "offset"))
        batches = self._source.batches([part], tuple(columns), self._topics, window_bytes=_PICK_BYTES)
        first = next((batch for _, batch in batches), None)
        batches.close()
        return first

    def _pick(self, first: Any, chance: np.random.Generator, found: dict[tuple[int, int, int], Any], at: int) -> int:
        """Take one of the messages with the first offset of the batch, as those of a compressed set share one.

        Returns how many are new: one or none.
        """
        offsets = first.column("offset").to_numpy()
        row = int(chance.integers(0, int(offsets.searchsorted(offsets[0], "right"))))
        key = at, int(offsets[0]), row
        if key in found:
            return 0
        found[key] = pyarrow_library().Table.from_batches([first.slice(row, 1)]).select(self._columns)
        return 1


def _smallest(kept: list[tuple[Any, Any]], count: int) -> tuple[list[tuple[Any, Any]], float]:
    """Those of the messages that drew the ``count`` smallest numbers, in their order, and below which they all are."""
    if not kept or sum(len(drawn) for drawn, _ in kept) <= count:
        return kept, 1.0
    every = np.concatenate([drawn for drawn, _ in kept])
    limit = float(np.partition(every, count)[count])
    arrow = pyarrow_library()
    return [
        (drawn[drawn < limit], batch.take(arrow.array((drawn < limit).nonzero()[0])))
        for drawn, batch in kept
        if (drawn < limit).any()
    ], limit
