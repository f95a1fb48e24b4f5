"""How far a mirror is with one partition, as it stands beside the offset of a group in the target.

The offset is one of the target: what this mirror has appended before it is counted, and what it appended behind it is
found there. The text beside it:

    fastlog-mirror 1 SOURCE TARGET PRODUCER EPOCH COUNT resting|busy NUMBER:OFFSET,NUMBER:OFFSET,...

with the ids of the topic on both sides, in hexadecimal digits; the producer whose numbers the batches have; how many
records had been appended before the offset; whether nothing else was on its way or ever appended; and *seams*: the
offset in the source of the record with a number, counted from 0. From one seam on, offsets follow each other as
numbers do, up to the next seam: another one stands wherever the source has offsets without a record, of compacted
records and of the ends of transactions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fastlog.errors import FastlogError

_NAME, _VERSION = "fastlog-mirror", "1"
_RESTING, _BUSY = "resting", "busy"
_WORDS = 9
SEQUENCES = 2**31
"""Numbers of batches: behind the last one, 0 follows."""
MOST_SEAMS = 64
"""So that the text is shorter than the 4,096 bytes that brokers allow unless told otherwise."""


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
        seams = ",".join(f"{number}:{offset}" for number, offset in self.seams)
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
            seams = tuple((int(number), int(offset)) for number, _, offset in _pairs(words[8]))
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

    def with_seam(self, number: int, offset: int) -> Position:
        """The same where the record with that number is at that offset; seams behind it count no more."""
        kept = tuple(seam for seam in self.seams if seam[0] < number)
        if kept and self.source_offset(number) == offset and len(kept) == len(self.seams):
            return self
        return replace(self, seams=(*kept, (number, offset)))

    def at(self, count: int, target_offset: int, *, is_resting: bool) -> Position:
        """The same with so many records in the target, before that offset; without seams that are of no use any more.

        One that is before ``count`` is kept: the one that says where the next record is.
        """
        first = max((i for i, (number, _) in enumerate(self.seams) if number <= count), default=0)
        return replace(self, count=count, target_offset=target_offset, is_resting=is_resting, seams=self.seams[first:])

    def count_of(self, sequence: int) -> int:
        """How many records there are where the last one found has this number modulo 2**31; never fewer."""
        return self.count + (sequence + 1 - self.count) % SEQUENCES


def _pairs(text: str) -> list[tuple[str, str, str]]:
    return [pair.partition(":") for pair in text.split(",")]
