"""How far a mirror is with one partition, as it stands beside the offset of a group in the target.

The offset is one of the target: what this mirror has appended before it is counted, and what it appended behind it is
found there. The text beside it:

    fastlog-mirror 1 SOURCE TARGET PRODUCER EPOCH COUNT resting|busy NUMBER:OFFSET,NUMBER:OFFSET,...

with the ids of the topic on both sides, in hexadecimal digits; the producer whose numbers the batches have; how many
records had been appended before the offset; whether nothing else was on its way or ever appended; and *seams*: the
offset in the source of the record with a number, counted from 0, each less that of the seam before. From one seam on,
offsets follow each other as numbers do, up to the next seam: one stands wherever the source has offsets without a
record, of compacted records and of the ends of transactions. There is one for each such gap, and not only where a batch
ends: a batch that a killed mirror had on its way may still come, and it may end anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fastlog.errors import FastlogError

_NAME, _VERSION = "fastlog-mirror", "1"
_RESTING, _BUSY = "resting", "busy"
_WORDS = 9
SEQUENCES = 2**31
"""Numbers of batches: behind the last one, 0 follows."""
MOST_SEAMS = 150
"""A batch whose records have no place among these waits."""
MOST_GAPS = 50
"""The most gaps in one batch. So the text is shorter than the 4,096 bytes that brokers allow by default."""


class PositionError(FastlogError):
    """What stands beside an offset is no position of a mirror, or says nothing of what is asked."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """See above. Seams are in order, by number and by offset."""

    source: bytes
    target: bytes
    producer: int
    epoch: int
    count: int
    target_offset: int
    is_resting: bool
    seams: tuple[tuple[int, int], ...]

    @property
    def text(self) -> str:
        """What is written beside the target's offset."""
        state = _RESTING if self.is_resting else _BUSY
        before = ((0, 0), *self.seams)
        seams = ",".join(
            f"{number - last}:{offset - at}" for (last, at), (number, offset) in zip(before, self.seams, strict=False)
        )
        words = (self.source.hex(), self.target.hex(), self.producer, self.epoch, self.count, state, seams)
        return " ".join(map(str, (_NAME, _VERSION, *words)))

    @classmethod
    def parse(cls, target_offset: int, text: str) -> Position:
        """Raises ``PositionError``: it was not written by a mirror, or by a later one."""
        words = text.split(" ")
        if words[:1] != [_NAME]:
            raise PositionError(
                f"the group has an offset that no mirror has committed ({text[:40]!r} stands beside it): give the"
                " mirror a group of its own"
            )
        if words[1:2] != [_VERSION]:
            raise PositionError(f"the position was written by a later version of fastlog: {text[:60]!r}")
        try:
            if len(words) != _WORDS or words[7] not in (_RESTING, _BUSY):
                raise ValueError(text)
            seams = _seams(words[8])
            return cls(
                source=bytes.fromhex(words[2]),
                target=bytes.fromhex(words[3]),
                producer=int(words[4]),
                epoch=int(words[5]),
                count=int(words[6]),
                target_offset=target_offset,
                is_resting=words[7] == _RESTING,
                seams=seams,
            )
        except ValueError:
            raise PositionError(f"the position is damaged: {text[:60]!r}") from None

    def source_offset(self, number: int) -> int:
        """Where the record with that number is in the source, or is to be looked for.

        Raises:
            PositionError: it is before the first seam.
        """
        for first, offset in reversed(self.seams):
            if first <= number:
                return offset + number - first
        raise PositionError(f"the target has {number} records of this mirror, and it is not known which they were")

    def with_run(self, number: int, offset: int, records: int) -> Position:
        """The same with a run: ``records`` that follow each other from ``offset`` on, the first with that number.

        What was known of records behind them stays, unless it says something else of these: it may be of a batch that
        another mirror has sent and that has not come yet.
        """
        known = self.source_offset(number) if self.seams and self.seams[0][0] <= number else None
        inside = [seam for seam in self.seams if number < seam[0] < number + records]
        if known == offset and all(seam[1] - offset == seam[0] - number for seam in inside):
            return self
        return replace(self, seams=(*(seam for seam in self.seams if seam[0] < number), (number, offset)))

    def at(self, count: int, target_offset: int, *, is_resting: bool) -> Position:
        """The same with ``count`` records in the target, before that offset; without seams that are of no use any more.

        One that is before ``count`` is kept: the one that says where the next record is.
        """
        first = max((i for i, (number, _) in enumerate(self.seams) if number <= count), default=0)
        return replace(self, count=count, target_offset=target_offset, is_resting=is_resting, seams=self.seams[first:])

    def count_of(self, sequence: int) -> int:
        """How many records there are where the last one found has this number modulo 2**31; never fewer."""
        return self.count + (sequence + 1 - self.count) % SEQUENCES


def _seams(text: str) -> tuple[tuple[int, int], ...]:
    found = []
    number = offset = 0
    for pair in text.split(","):
        further, _, behind = pair.partition(":")
        number, offset = number + int(further), offset + int(behind)
        found.append((number, offset))
    return tuple(found)
