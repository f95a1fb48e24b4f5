"""Requests of today's protocol that nobody should send, of every kind and version that a broker says it serves.

They are made by kio's schemas: fields of sensible and of odd values, then perhaps fields or bytes changed where they
stand. Those of each kind and version are made a few at a time and sent many times over, changed or not, because making
one takes longer than answering it. A frame says what its answer is to be, so that each can be read to its end.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import io
import random
import types
import typing
import uuid
from typing import Any, NamedTuple

from kio.serial import entity_writer

from fastlog.workers.kafka import kinds
from tests.harness import raw_batches, today
from tests.harness.raw_records import Record

TOPICS = ["a", "b", "c", "kept"]
ODD_TEXTS = ["", ".", "..", "a/b", "a\0b", "é", "__consumer_offsets", "__fastlog_metadata", "x" * 249, "x" * 250]
SETTINGS = {"retention.ms": ["-1", "60000", "x"], "max.message.bytes": ["100", "-1"], "cleanup.policy": ["compact"]}
NUMBERS = {8: [0, 1, 2, 4, -1], 16: [0, 1, -1, 2], 32: [0, 1, 2, -1, 3, 100], 64: [0, 1, -1, -2, -3, 5, 1000]}
ODD_SHARE = 0.08
MOST_MS = 20
"""Of times that a request grants its answer, but for odd ones."""
KEPT = 16
"""Bodies of a kind and version that are sent again."""
NEW_SHARE = 0.05
COMPILED_WEIGHT = 2
"""How often what a processor answers by itself, in compiled code, is asked for each time that another is."""
BENT_SHARE, BENT_HEAD_SHARE = 0.4, 0.02
FIELD_SHARE = 0.5
"""Of changes, those that put another value into a field and leave the others where they are."""
HEAD = (8, 12)
"""Where the number of a request stands in its frame."""


class Frame(NamedTuple):
    """A request; ``is_bent`` when its bytes were changed, and not ``is_whole`` when those of its head were."""

    key: int
    version: int
    data: bytes
    is_whole: bool = True
    is_bent: bool = False


class Body(NamedTuple):
    """What follows the head of a request, and where each number, text and count in it begins, with its size."""

    data: bytes
    places: list[tuple[int, int]]


class _Marked(io.BytesIO):
    """Remembers where each thing that was written begins."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[tuple[int, int]] = []

    def write(self, data: Any) -> int:
        if data:
            self.places.append((self.tell(), len(data)))
        return super().write(data)


def marked(made: Any) -> Body:
    """The bytes of one of kio's classes, and where its fields are in them."""
    buffer = _Marked()
    entity_writer(type(made))(buffer, made)
    return Body(buffer.getvalue(), buffer.places)


@functools.cache
def fields_of(entity: Any) -> list[tuple[str, Any, str]]:
    """Name, type and kind on the wire of each field of a schema's class."""
    hints = today.type_hints(entity)
    return [(one.name, hints[one.name], one.metadata.get("kafka_type", "")) for one in dataclasses.fields(entity)]


@functools.cache
def head_of(key: int, version: int) -> bytes:
    """The frame of a request without a body."""
    return today.frame(key, version, b"", correlation=0)


class Requests:
    """Makes frames from a seed. ``keys`` are the kinds of request; all that are offered by default."""

    def __init__(self, seed: int, keys: list[int] | None = None) -> None:
        self.random = random.Random(seed)
        apis = kinds.APIS | kinds.FORWARDED
        self.choices = [
            (key, version)
            for key in keys or apis
            for version in range(apis[key].served, apis[key].last + 1)
            for _ in range(COMPILED_WEIGHT if key in kinds.APIS else 1)
        ]
        self.ids = [uuid.UUID(int=number) for number in (0, 1, 2**128 - 1)]
        self.correlation = 0
        self.bodies: dict[tuple[int, int], list[Body]] = {choice: [] for choice in self.choices}

    def burst(self, most: int) -> list[Frame]:
        """Frames for one connection; one whose head is not as it should be is the last."""
        frames: list[Frame] = []
        while len(frames) < most and not (frames and not frames[-1].is_whole):
            frames.append(self.frame())
        return frames

    def frame(self) -> Frame:
        """The next one; of two in five some fields or bytes are not as they should be."""
        key, version = self.random.choice(self.choices)
        body = self.body(key, version)
        self.correlation += 1
        way = self.random.random()
        is_bent = way < BENT_SHARE
        data = self.bent(body.data, body.places) if is_bent else body.data
        head = bytearray(head_of(key, version))
        head[:4] = (len(head) - 4 + len(data)).to_bytes(4, "big")
        head[slice(*HEAD)] = self.correlation.to_bytes(4, "big")
        frame = bytes(head) + data
        if way >= BENT_HEAD_SHARE:
            return Frame(key, version, frame, is_bent=is_bent)
        return Frame(key, version, self.bent_head(frame), False, True)

    def body(self, key: int, version: int) -> Body:
        """One that was made before, now and then a new one in the place of such."""
        kept = self.bodies[key, version]
        if len(kept) == KEPT and self.random.random() >= NEW_SHARE:
            return self.random.choice(kept)
        made = marked(self.entity(today.load_request_schema(key, version), 0))
        if len(kept) < KEPT:
            kept.append(made)
        else:
            kept[self.random.randrange(KEPT)] = made
        return made

    def is_odd(self) -> bool:
        return self.random.random() < ODD_SHARE

    def entity(self, kind: Any, depth: int) -> Any:
        """One of a schema's class, each field from those that it may have."""
        return kind(**{name: self.value(name, hint, wire, depth) for name, hint, wire in fields_of(kind)})

    def value(self, name: str, hint: Any, wire: str, depth: int) -> Any:
        """What a field has; ``wire`` is its kind, empty for structures."""
        if isinstance(hint, types.UnionType):
            if self.random.random() < 0.3:
                return None
            hint = next(one for one in typing.get_args(hint) if one is not type(None))
        if typing.get_origin(hint) is tuple:
            (inner, *_) = typing.get_args(hint)
            count = self.random.choice((1, 1, 1, 2, 0, 5)) if depth < 2 else self.random.choice((0, 1, 1))
            return tuple(self.value(name, inner, wire, depth + 1) for _ in range(count))
        if dataclasses.is_dataclass(hint):
            return self.entity(hint, depth + 1)
        return getattr(self, f"of_{wire}")(name)

    # -- by kind on the wire -------------------------------------------------------------------------------------------

    def of_string(self, name: str) -> str:
        source = self.random
        if self.is_odd():
            return source.choice(ODD_TEXTS)
        if name == "member_id" and source.random() < 0.7:
            return ""  # one who joins
        if "config" in name or (name == "name" and source.random() < 0.2):
            return source.choice(list(SETTINGS))
        if name == "value":
            return source.choice([value for values in SETTINGS.values() for value in values])
        return source.choice(TOPICS) if source.random() < 0.9 else source.choice(("group", "member", "range"))

    def of_bool(self, name: str) -> bool:
        # a request that makes topics by the thousand is asked for elsewhere
        return self.random.random() < 0.5

    def _number(self, bits: int) -> int:
        if self.is_odd():
            return self.random.choice((2 ** (bits - 1) - 1, -(2 ** (bits - 1)), self.random.randrange(2 ** (bits - 1))))
        return self.random.choice(NUMBERS[bits])

    def of_int8(self, name: str) -> int:
        return self.random.choice((2, 4)) if name == "resource_type" and not self.is_odd() else self._number(8)

    def of_int16(self, name: str) -> int:
        return self._number(16)

    def of_int32(self, name: str) -> int:
        if "bytes" in name and not self.is_odd():
            return self.random.choice((1, 100, 1 << 20))
        if name in ("count", "num_partitions") and not self.is_odd():
            return self.random.choice((1, 2, 3, -1))  # making many takes the time of many requests
        return self._number(32)

    def of_int64(self, name: str) -> int:
        return self._number(64)

    def of_uint16(self, name: str) -> int:
        return self.random.randrange(2**16)

    def of_float64(self, name: str) -> float:
        return self.random.random()

    def of_uuid(self, name: str) -> uuid.UUID | None:
        return self.random.choice((None, *self.ids))

    def of_timedelta_i32(self, name: str) -> datetime.timedelta:
        if name == "session_timeout" and not self.is_odd():
            return datetime.timedelta(seconds=6)  # no group takes less
        ms = 2**31 - 1 if self.random.random() < 0.002 else self.random.randrange(-1, MOST_MS)
        return datetime.timedelta(milliseconds=ms)

    def of_timedelta_i64(self, name: str) -> datetime.timedelta:
        return datetime.timedelta(milliseconds=self.random.randrange(-1, 100))

    def of_bytes(self, name: str) -> bytes:
        return self.random.randbytes(self.random.choice((0, 1, 10, 300)))

    def of_records(self, name: str) -> bytes | None:
        """A batch, whole or with another codec, count or byte than it should have."""
        source = self.random
        count = source.choice((1, 1, 3, 50))
        batch = raw_batches.of([Record(0, b"k", b"v" * source.choice((0, 9, 200))) for _ in range(count)])
        way = source.random()
        if way < 0.2:
            batch.attributes = source.choice((1, 2, 3, 4, 7, 8, 16, 32, -1))
        if way > 0.8:
            batch.producer_id, batch.producer_epoch = source.choice((-1, 0, 1, 77)), source.choice((-1, 0, 1))
            batch.base_sequence = source.choice((-1, 0, 1, 5, 2**31 - 1))
        data = batch.encode()
        return self.bent(data) if source.random() < 0.3 else data

    # -- damage --------------------------------------------------------------------------------------------------------

    def bent(self, data: bytes, places: list[tuple[int, int]] | None = None) -> bytes:
        """A few fields given other values, if it is known where they are, or bytes put in, taken out or cut off."""
        source, out = self.random, bytearray(data)
        if places and source.random() < FIELD_SHARE:
            for _ in range(source.choice((1, 1, 1, 2, 3))):
                place, size = source.choice(places)
                out[place : place + size] = self.other(bytes(out[place : place + size]))
            if source.random() < 0.8:
                return bytes(out)
        for _ in range(source.choice((1, 1, 1, 2, 4))):
            place = source.randrange(len(out) + 1)
            match source.randrange(6):
                case 0 if place < len(out):
                    out[place] ^= 1 << source.randrange(8)
                case 1 if place < len(out):
                    out[place] = source.choice((0, 1, 0x7F, 0x80, 0xFF))
                case 2:
                    out[place:place] = source.choice((b"\0", b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\x01"))
                case 3:
                    del out[place : place + source.choice((1, 2, 8))]
                case 4:
                    out[place:place] = out[place : place + source.randrange(40)]
                case _:
                    del out[place:]
        return bytes(out)

    def other(self, value: bytes) -> bytes:
        """As many bytes for a field: a number at a border or beside what it was, or a text with one byte changed."""
        source, bits = self.random, 8 * len(value)
        if len(value) not in (1, 2, 4, 8):
            place = source.randrange(len(value))
            return value[:place] + source.randbytes(1) + value[place + 1 :]
        was = int.from_bytes(value, "big")
        borders = (0, 1, 2, 2 ** (bits - 1) - 1, 2 ** (bits - 1), 2**bits - 1, 2**bits - 2, was + 1, was - 1, was << 1)
        number = source.choice((*borders, source.getrandbits(bits)))
        return bytes((number % 2**bits).to_bytes(len(value), "big"))

    def bent_head(self, frame: bytes) -> bytes:
        """The frame with another length, key, version, or client name than it should have."""
        out, place = bytearray(frame), self.random.randrange(min(len(frame), 24))
        out[place] = self.random.choice((0, 1, 0x7F, 0x80, 0xFF, out[place] ^ 1))
        return bytes(out)
