"""Answers that lie, made from honest ones: what a broken, a foreign or a hostile broker may send.

Every lie is chosen by a generator. Payloads are of two kinds, so that a reader can be asked where its messages come
from: those of ``HONEST`` and of the sets made from it stand there with right checksums; ``POISON`` only where nobody
may take it for a message, in answers to something else and behind errors.
"""

from __future__ import annotations

import contextlib
import random
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from tests.harness import raw_client as raw
from tests.harness.raw_format import snappy_encode, wrapper

POISON = b"poison"
SIZES = (-(2**31), -1, 0, 1, 2, 3, 2**20, 2**24, 2**31 - 1)
CODES = (-1, 1, 2, 3, 4, 5, 77, 101, 103, 32767, -32768)
# No runs of zeros: eight bytes of 255 over checksum and payload would be a right message of their own.
_TEXTS = (b"", b"a", b"bc" * 50, b"x" * 30, b"honest " * 9, bytes(range(1, 201)))
_MOST_INFLATED_BYTES = 2**22
HONEST = raw.message_set(_TEXTS)
XERIAL_HEAD = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)


class Reply(NamedTuple):
    """What goes out: pieces with the seconds to wait before each; then the connection stays, or is closed."""

    pieces: tuple[tuple[float, bytes], ...] = ()
    stays: bool = True

    @property
    def data(self) -> bytes:
        """All bytes of the reply."""
        return b"".join(piece for _, piece in self.pieces)


def whole(data: bytes, *, stays: bool = True) -> Reply:
    """A reply that is sent in one piece."""
    return Reply(((0.0, data),), stays)


def bomb(levels: int) -> bytes:
    """A wrapper in a wrapper and so on, of a few hundred bytes, that inflates to 32 MiB at the innermost."""
    data = zlib.compress(bytes(2**25), wbits=31)
    for _ in range(levels):
        data = raw.compress(raw.entry(data, attributes=raw.GZIP), raw.GZIP)
    return raw.entry(data, attributes=raw.GZIP)


def nested(levels: int) -> bytes:
    """Honest messages, so many wrappers deep, gzip and snappy in turn."""
    data = HONEST
    for level in range(levels):
        data = wrapper(data, raw.GZIP if level % 2 else raw.SNAPPY)
    return data


def crowd(count: int) -> bytes:
    """A small wrapper with very many empty messages."""
    return wrapper(raw.message_set([b""] * count), raw.GZIP)


def message_sets() -> list[bytes]:
    """What honest and dishonest answers hold: whole sets, cut ones, bombs, lies about lengths and codecs."""
    gzipped = raw.compress(HONEST, raw.GZIP)
    snappy = raw.compress(HONEST, raw.SNAPPY)
    block = b"\xff\xff\xff\xff\x0f" + bytes(20)
    return [
        b"",
        HONEST,
        raw.message_set(_TEXTS, magic=0),
        wrapper(HONEST, raw.GZIP),
        wrapper(HONEST, raw.SNAPPY),
        HONEST + wrapper(HONEST, raw.SNAPPY) + HONEST,
        nested(3),
        # cut and continued
        HONEST[:-2],
        wrapper(HONEST[:-2], raw.GZIP),
        raw.entry(gzipped[:-9], attributes=raw.GZIP),
        raw.entry(gzipped + b"more", attributes=raw.GZIP),
        raw.entry(gzipped * 2, attributes=raw.GZIP),
        raw.entry(b"", attributes=raw.GZIP),
        raw.entry(b"", attributes=raw.SNAPPY),
        # the wrong codec, and none that there is
        raw.entry(gzipped, attributes=raw.SNAPPY),
        raw.entry(snappy, attributes=raw.GZIP),
        raw.entry(HONEST, attributes=raw.GZIP),
        raw.entry(HONEST, attributes=3),
        raw.entry(b"a", attributes=0x84),
        raw.entry(b"a", magic=1, crc=0),
        # lengths that are claims
        (2**31 - 1).to_bytes(4, "big") + b"\1\0" + bytes(50),
        (-5 & 0xFFFFFFFF).to_bytes(4, "big") + b"\1\0" + bytes(50),
        raw.entry(XERIAL_HEAD + struct.pack(">i", len(block)) + block, attributes=raw.SNAPPY),
        raw.entry(XERIAL_HEAD + struct.pack(">i", -1) + snappy_encode(HONEST), attributes=raw.SNAPPY),
        raw.entry(XERIAL_HEAD + struct.pack(">i", 2**31 - 1), attributes=raw.SNAPPY),
        raw.entry(block, attributes=raw.SNAPPY),
    ]


def heavy_sets() -> list[bytes]:
    """Few bytes that cost much time to refuse or to read."""
    return [bomb(0), bomb(3), nested(99), nested(120), crowd(50_000)]


def payloads_within(data: bytes) -> set[bytes]:
    """Every payload that stands in a set with a right checksum: messages, wrappers as they are, what is in wrappers.

    Attributes and magic are not under the checksum of the format, so the bytes of a wrapper may be read as a message.
    """
    found: set[bytes] = set()
    waiting = [data]
    while waiting:
        for payload in _payloads_before_damage(waiting.pop()):
            if payload not in found:
                found.add(payload)
                waiting += _inflated(payload)
    return found


def _payloads_before_damage(data: bytes) -> Iterator[bytes]:
    start = 0
    while len(data) - start >= 4:
        end = start + 4 + struct.unpack_from(">i", data, start)[0]
        try:
            (item,) = raw.entries(data[start : max(end, start + 4)])
        except ValueError:  # damaged, or not all of it is there
            return
        yield item.payload
        start = end


def _inflated(payload: bytes) -> list[bytes]:
    """What may come out of a payload, as far as anybody would look."""
    found = []
    with contextlib.suppress(zlib.error):
        found.append(zlib.decompressobj(wbits=31).decompress(payload, _MOST_INFLATED_BYTES))
    with contextlib.suppress(ValueError, IndexError, struct.error):
        found.append(raw.inflate(payload, raw.SNAPPY))
    return found


def spoiled(source: random.Random, frame: bytes, own: bool) -> Reply:
    """One lie about an honest answer frame; ``own``: it begins with a correlation id."""
    lie = source.choice(_LIES if source.random() < 0.97 else _SLOW_LIES)
    return lie(source, frame, own)


def _sized(body: bytes, size: int | None = None) -> bytes:
    return struct.pack(">i", len(body) if size is None else size) + body


def _flip(source: random.Random, frame: bytes, own: bool) -> Reply:
    body = bytearray(frame[4:])
    for _ in range(source.randint(1, 3)):
        body[source.randrange(len(body))] ^= 1 << source.randrange(8)
    return whole(_sized(bytes(body)))


def _overwrite(source: random.Random, frame: bytes, own: bool) -> Reply:
    """A number field, most likely: counts, lengths and offsets that are extreme."""
    body = bytearray(frame[4:])
    width = source.choice((1, 2, 4, 8))
    at = source.randrange(len(body))
    value = source.choice((0, 1, -1, 2 ** (8 * width - 1) - 1, -(2 ** (8 * width - 1)), 255))
    body[at : at + width] = (value & (2 ** (8 * width) - 1)).to_bytes(width, "big")
    return whole(_sized(bytes(body)))


def _insert(source: random.Random, frame: bytes, own: bool) -> Reply:
    at = source.randrange(4, len(frame) + 1)
    return whole(_sized(frame[4:at] + source.randbytes(source.randint(1, 9)) + frame[at:]))


def _shortened(source: random.Random, frame: bytes, own: bool) -> Reply:
    """A reply that is cut, and whose size says so."""
    return whole(_sized(frame[4 : source.randrange(4, len(frame))]))


def _cut(source: random.Random, frame: bytes, own: bool) -> Reply:
    """A reply in the middle of which the connection is closed."""
    return whole(frame[: source.randrange(len(frame))], stays=False)


def _wrong_size(source: random.Random, frame: bytes, own: bool) -> Reply:
    size = source.choice((*SIZES, len(frame) - 5, len(frame) - 3, -len(frame)))
    return whole(_sized(frame[4:], size) + source.randbytes(source.choice((0, 0, 1, 40))), stays=False)


def _off_by_one(source: random.Random, frame: bytes, own: bool) -> Reply:
    """The next answer on this connection starts inside this one, or this one has no end."""
    return whole(_sized(frame[4:], len(frame) - 5))


def _behind(source: random.Random, frame: bytes, own: bool) -> Reply:
    return whole(frame + source.choice((b"\0", source.randbytes(7), _sized(source.randbytes(30)), frame)))


def _noise(source: random.Random, frame: bytes, own: bool) -> Reply:
    return whole(_sized(source.randbytes(source.choice((0, 1, 2, 6, 22, 30, 300)))))


def _code(source: random.Random, frame: bytes, own: bool) -> Reply:
    """An error, known or not, with messages behind it."""
    head = frame[4 : 8 if own else 4]
    positions = source.choice((b"", bytes(16), source.randbytes(16)))
    return whole(_sized(head + struct.pack(">h", source.choice(CODES)) + positions + raw.entry(POISON)))


def _other_id(source: random.Random, frame: bytes, own: bool) -> Reply:
    """An answer to something that was not asked."""
    if not own:
        return _flip(source, frame, own)
    number = struct.unpack_from(">i", frame, 4)[0]
    other = source.choice((number + 1, number - 1, 0, -1, 2**31 - 1, source.getrandbits(31)))
    other = other if other != number else number ^ 1
    other = ((other + 2**31) % 2**32) - 2**31
    rest = source.choice((frame[8:], b"\0\0" + bytes(16) + raw.entry(POISON)))
    if len(rest) > 100:
        rest = b"\0\0" + bytes(16) + raw.entry(POISON)
    return whole(_sized(struct.pack(">i", other) + rest))


def _byte_by_byte(source: random.Random, frame: bytes, own: bool) -> Reply:
    """Honest, a write for each of the first bytes."""
    most = min(len(frame), 12)
    return Reply((*((0.0, frame[at : at + 1]) for at in range(most)), (0.0, frame[most:])))


def _torn(source: random.Random, frame: bytes, own: bool) -> Reply:
    """An honest reply that is sent in two pieces."""
    at = source.randrange(1, len(frame))
    return Reply(((0.0, frame[:at]), (0.0005, frame[at:])))


def _closes(source: random.Random, frame: bytes, own: bool) -> Reply:
    return Reply(stays=False)


def _silent(source: random.Random, frame: bytes, own: bool) -> Reply:
    return Reply()


def _drip(source: random.Random, frame: bytes, own: bool) -> Reply:
    """A byte now and then, each of them in time: only the whole of it is late."""
    return Reply(tuple((0.004, frame[at : at + 1]) for at in range(min(len(frame), 30))), stays=False)


def _flood(source: random.Random, frame: bytes, own: bool) -> Reply:
    """A size that may be true, and a good part of it."""
    return whole(struct.pack(">i", source.choice((2**20, 2**24, 2**26))) + bytes(source.choice((70_000, 2**20))))


def _half(source: random.Random, frame: bytes, own: bool) -> Reply:
    """A reply that is cut, behind which nothing comes and the connection stays."""
    return whole(frame[: source.randrange(len(frame))])


_LIES = (
    _flip,
    _flip,
    _overwrite,
    _overwrite,
    _insert,
    _shortened,
    _cut,
    _wrong_size,
    _behind,
    _noise,
    _code,
    _other_id,
    _byte_by_byte,
    _torn,
    _closes,
)
_SLOW_LIES = (_silent, _drip, _flood, _half, _off_by_one)
