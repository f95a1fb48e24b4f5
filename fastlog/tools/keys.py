"""Keys in lines: where they are, and the partition that each one chooses."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fastlog.producer.hooks import PartitionChoice
from fastlog.producer.partitioners import SIGN_MASK

_Append = Callable[[Any], object]


class KeyRule(NamedTuple):
    """``field`` 0: the key is what is before the first separator, else the field of that number, counted from 1.

    ``keep``: the message is the whole line, not what is behind the key. ``keyless_fails``: a line without a key is an
    error; otherwise it goes to any partition. ``fixed``: the key of lines without one; without a separator, of all.
    """

    separator: bytes | None
    field: int
    keep: bool
    keyless_fails: bool
    fixed: bytes | None = None

    def split(self, line: bytes) -> tuple[bytes | None, bytes]:
        """Return the key, None where the line has none, and the message."""
        if self.separator is None:
            return self.fixed, line
        if self.field:
            fields = line.split(self.separator, self.field)
            return (fields[self.field - 1], line) if len(fields) >= self.field else (self.fixed, line)
        key, found, rest = line.partition(self.separator)
        if not found:
            return self.fixed, line
        return key, line if self.keep else rest


class LineGroup(NamedTuple):
    """Lines of one batch that go to one place, with their numbers; those that become records also with their keys."""

    place: PartitionChoice
    payloads: list[bytes | None]
    numbers: Sequence[int]
    keys: list[bytes | None] | None = None


class KeyedLines:
    """Sorts the lines of batches by the partition that their keys choose, each partition's in their order.

    The partition is the one that ``fastlog.Producer`` chooses for the same key.
    """

    def __init__(
        self,
        rule: KeyRule,
        places: Callable[[], Sequence[PartitionChoice]],
        *,
        of_records: bool = False,
        has_nulls: bool = False,
    ) -> None:
        """``places``: every partition, sorted by broker and number; with none of them keys choose nothing.

        ``of_records``: the keys go along. ``has_nulls``: what is empty, key or message, is null there.
        """
        self._rule = rule
        self._places = places
        self._of_records = of_records
        self._has_nulls = has_nulls
        self._mask = 0xFFFFFFFF if of_records else SIGN_MASK

    def sort(
        self, lines: Sequence[bytes], numbers: Sequence[int], anywhere: PartitionChoice = None
    ) -> tuple[list[LineGroup], int | None]:
        """The groups of a batch of lines with these numbers, up to the first line without a key.

        The second value is the number of that line, when it is an error. ``anywhere``: where those without a key go.
        """
        groups: dict[PartitionChoice, LineGroup] = {}
        places = self._places()
        split = self._rule.split
        into: dict[bytes | None, tuple[_Append, _Append, _Append]] = {}
        for number, line in zip(numbers, lines, strict=True):
            key: bytes | None
            payload: bytes | None
            key, payload = split(line)
            if key is None and self._rule.keyless_fails:
                return list(groups.values()), number
            if self._has_nulls:
                key, payload = key or None, payload or None
            if key not in into:
                place = anywhere if key is None else self._place(key, places)
                group = groups.get(place)
                if group is None:
                    group = groups[place] = LineGroup(place, [], [], [] if self._of_records else None)
                keys: list[bytes | None] = [] if group.keys is None else group.keys
                into[key] = group.payloads.append, group.numbers.append, keys.append  # type: ignore[attr-defined]
            add_payload, add_number, add_key = into[key]
            add_payload(payload)
            add_number(number)
            add_key(key)
        return list(groups.values()), None

    def _place(self, key: bytes, places: Sequence[PartitionChoice]) -> PartitionChoice:
        return places[(zlib.crc32(key) & self._mask) % len(places)] if places else None
