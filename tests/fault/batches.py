"""Lying and damaged record batches: what a broker takes is what a slow reading of the bytes finds valid, and no more.

Every mutant goes to the compiled checks that stand before an append. The other verdict comes from ``tests.harness`` and
from other libraries for the codecs. Half of the mutants get a checksum that fits them, or hardly any would be looked at
behind it.
"""

from __future__ import annotations

import contextlib
import io
import random
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import lz4.frame
import zstandard

from fastlog import batch_codecs
from fastlog.batch_codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD
from fastlog.errors import InvalidMessageError
from fastlog.log.formats._batches import validate
from fastlog.message import DeepLimits
from fastlog.record_batches import DeepBatch
from tests import reference
from tests.fault.registry import Outcome, scenario
from tests.harness import raw_batches, raw_records, today
from tests.harness.broker import Broker, wait_until
from tests.harness.raw_batches import FIELDS, HEADER_BYTES
from tests.harness.raw_records import Record
from tests.harness.timing import PATIENCE

MAX_BYTES = 2000
LIMITS = DeepLimits(1 << 20, 1, 10_000)
TOPIC = "t"
IN_FLIGHT = 50
CODECS = (GZIP, SNAPPY, LZ4, ZSTD)
LEAST_SHARE = 0.01
"""Of the mutants have to be taken, and refused; or they prove nothing."""

_EDGES = (0, 1, -1, 127, 128, 255, 2**15 - 1, -(2**15), 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
_NUMBERS = (
    b"\0",
    b"\1",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\x80\0",
    b"\x80\x80\x80\x80\x10",
    b"\xff\xff\xff\xff\x0f",
    b"\xff" * 10,
)

Verdict = tuple[int, int, int, int, int, bool] | None
"""Bytes, records, compressed batches, offsets, the largest time, whether one says another; None: not valid."""


class NoBatchError(Exception):
    """The slow reading finds the bytes invalid."""


# -- the slow reading --------------------------------------------------------------------------------------------------


def judge_one(data: bytes) -> tuple[int, int, int, int, bool]:
    """Size, records, whether compressed, largest time, whether the header says another, of the batch at the front."""
    if len(data) < HEADER_BYTES:
        raise NoBatchError("cut")
    head = raw_batches.HEADER.unpack_from(data)
    _, length, _, magic, crc, attributes, last_delta, base_timestamp, max_timestamp, *producer, count = head
    size = 12 + length
    if magic != 2 or length < 49 or not size <= min(len(data), MAX_BYTES):
        raise NoBatchError("magic or length")
    if raw_batches.crc32c(data[21:size]) != crc:
        raise NoBatchError("checksum")
    if not 0 <= attributes <= 4:  # codecs; all other bits are the broker's, or nobody's
        raise NoBatchError("attributes")
    if count < 1 or last_delta != count - 1:
        raise NoBatchError("count")
    if producer[0] < -1 or (producer[0] >= 0 and min(producer) < 0):
        raise NoBatchError("producer")
    largest = max_timestamp
    if not attributes:
        found, _, status = raw_records.decode(data[HEADER_BYTES:size], count, base_timestamp)
        if status != raw_records.OK:
            raise NoBatchError("records")
        largest = max(record.timestamp for record in found)
    if largest < -1:
        raise NoBatchError("time")
    return size, count, int(attributes > 0), largest, largest != max_timestamp


def judge(data: bytes) -> Verdict:
    """What ``validate`` is to say of a produced set."""
    position = records = compressed = 0
    largest, misstated = -1, False
    while position < len(data):
        try:
            size, count, packed, latest, differs = judge_one(data[position:])
        except NoBatchError:
            return None
        position, records, compressed = position + size, records + count, compressed + packed
        largest, misstated = max(largest, latest), misstated or differs
    return position, records, compressed, records, largest, misstated


def _unzipped(data: bytes) -> bytes:
    out = b""
    while data:
        member = zlib.decompressobj(31)
        out += member.decompress(data)
        if not member.eof:
            raise NoBatchError("gzip")
        data = member.unused_data
    return out


OPENED: dict[int, Callable[[bytes], bytes]] = {
    NONE: bytes,
    GZIP: _unzipped,
    SNAPPY: lambda data: reference.inflate(SNAPPY, data),
    LZ4: lz4.frame.decompress,
    ZSTD: lambda data: zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read(),
}


# -- mutants -----------------------------------------------------------------------------------------------------------


class Mutants:
    """Batches that are nearly valid, from a seed."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)

    def records(self) -> list[Record]:
        """One to six, small."""
        source = self.source

        def field() -> bytes | None:
            return None if source.random() < 0.2 else source.randbytes(source.choice((0, 1, 3, 9, 64)))

        return [
            Record(
                source.randrange(-1, 2**40),
                field(),
                field(),
                [(source.randbytes(2), field()) for _ in range(source.choice((0, 0, 0, 1, 2)))],
                source.randrange(256),
            )
            for _ in range(source.randrange(1, 7))
        ]

    def batch(self) -> bytes:
        """One whole batch, of a producer that may have an id."""
        source = self.source
        made = raw_batches.of(self.records(), base_offset=source.randrange(2**40), leader_epoch=source.randrange(-1, 9))
        if source.random() < 0.3:
            made.producer_id, made.producer_epoch, made.base_sequence = (source.randrange(2**15) for _ in range(3))
        return made.encode()

    def bent(self, data: bytes) -> bytes:
        """The bytes with one thing that is not as it was."""
        source, out = self.source, bytearray(data)
        place = source.randrange(len(out)) if out else 0
        match source.randrange(7):
            case 0 if out:
                out[place] ^= 1 << source.randrange(8)
            case 1 if out:
                out[place] = source.randrange(256)
            case 2:
                out[place:place] = source.choice(_NUMBERS)
            case 3:
                del out[place : place + source.choice((1, 1, 2, 9))]
            case 4:
                number = source.choice(_NUMBERS)
                out[place : place + len(number)] = number
            case 5:
                end = place + source.randrange(12)
                out[place:place] = out[place:end]
            case _:
                out = out[:place] if source.random() < 0.5 else out + source.randbytes(source.randrange(1, 4))
        return bytes(out)

    def lying(self, data: bytes) -> bytes:
        """The batch with another number in a field of its header."""
        source, out = self.source, bytearray(data)
        position, width = FIELDS[source.choice(list(FIELDS))]
        old = int.from_bytes(out[position : position + width], "big", signed=True)
        value = old + source.choice((-1, 1, 2)) if source.random() < 0.5 else source.choice(_EDGES)
        out[position : position + width] = (value % 2 ** (8 * width)).to_bytes(width, "big")
        return bytes(out)

    def sealed(self, data: bytes) -> bytes:
        """The batch with a length and a checksum that fit it."""
        if len(data) < HEADER_BYTES:
            return data
        return raw_batches.reseal(data[:8] + struct.pack(">i", len(data) - 12) + data[12:])

    def one(self) -> bytes:
        """A set: batches, of which one was changed most of the time; sealed half of the time."""
        source = self.source
        sets = [self.batch() for _ in range(source.choice((1, 1, 1, 2, 3)))]
        place = source.randrange(len(sets))
        changed = sets[place]
        for _ in range(source.choice((0, 1, 1, 1, 2))):
            way = source.random()
            if way < 0.35:
                changed = self.lying(changed)
            elif way < 0.85:
                changed = changed[:HEADER_BYTES] + self.bent(changed[HEADER_BYTES:])
            else:
                changed = self.bent(changed)
        if source.random() < 0.2:
            changed = changed if len(changed) < HEADER_BYTES else raw_batches.reseal(changed)  # its length stays a lie
        elif source.random() < 0.6:
            changed = self.sealed(changed)
        sets[place] = changed
        return b"".join(sets)


@scenario(
    "batches-lying",
    "headers and records of batches changed, checksums made to fit",
    small=20_000,
    nightly=1_000_000,
    release=5_000_000,
)
def lying(count: int, seed: int, directory: Path) -> Outcome:
    """The check of produced sets: it takes what is valid, with the same numbers, and nothing else."""
    mutants, outcome = Mutants(seed), Outcome()
    taken = 0
    for _ in range(count):
        data = mutants.one()
        found = validate(data, MAX_BYTES)
        expected = judge(data)
        outcome.runs += 1
        taken += expected is not None
        given = found[:6] if found[6] == 0 else None
        outcome.expect(given == expected, f"{data.hex()}: {found} instead of {expected}")
        outcome.expect(found[0] <= len(data), f"{data.hex()}: {found[0]} bytes of {len(data)}")
    expect_both(outcome, taken)
    return outcome


@scenario(
    "batches-packed",
    "records of compressed batches changed, before they are compressed and afterwards",
    small=6_000,
    nightly=300_000,
    release=2_000_000,
)
def packed(count: int, seed: int, directory: Path) -> Outcome:
    """The deep check: exact on records that are well compressed, and never wrong about what it takes."""
    mutants, outcome = Mutants(seed), Outcome()
    source, taken = mutants.source, 0
    for _ in range(count):
        records, codec = mutants.records(), source.choice(CODECS)
        claimed = max(1, len(records) + source.choice((0, 0, 0, 0, -1, 1)))
        plain = raw_records.encode(records, records[0].timestamp)
        is_inside = source.random() < 0.5
        if is_inside and source.random() < 0.8:
            plain = mutants.bent(plain)
        payload = batch_codecs.compress(codec, plain)
        if not is_inside:
            payload = mutants.bent(payload)
        batch = raw_batches.Batch(
            attributes=codec, record_count=claimed, base_timestamp=records[0].timestamp, payload=payload
        )
        data = batch.encode(crc=0)
        latest = checked(data)
        outcome.runs += 1
        taken += latest is not None
        try:
            opened = plain if is_inside else OPENED[codec](payload)
        except Exception as error:  # whatever the other library says to it
            outcome.expect(latest is None, f"{data.hex()}: taken, but it cannot be decompressed: {error}")
            continue
        found, _, status = raw_records.decode(opened, claimed, batch.base_timestamp)
        expected = max(record.timestamp for record in found) if status == raw_records.OK else None
        if is_inside or latest is not None:
            outcome.expect(latest == expected, f"{data.hex()}: {latest} instead of {expected}")
    expect_both(outcome, taken)
    return outcome


def checked(data: bytes) -> int | None:
    """The largest time of a batch's records, None where it is refused."""
    try:
        checking = DeepBatch(data, LIMITS, 16)
        while not checking.step(64):
            pass
    except InvalidMessageError:
        return None
    return checking.max_timestamp


def expect_both(outcome: Outcome, taken: int) -> None:
    """Mutants that are all refused, or all taken, would prove nothing."""
    share = taken / max(outcome.runs, 1)
    outcome.expect(LEAST_SHARE < share < 1 - LEAST_SHARE, f"{taken} of {outcome.runs} mutants were taken")


def count_of(data: bytes) -> int:
    """The number of records that a batch says it has."""
    return int.from_bytes(data[57:61], "big", signed=True)


def producer_of(data: bytes) -> int:
    """The id of the producer of a batch; -1: it has none."""
    return int.from_bytes(data[43:51], "big", signed=True)


OUT_OF_TURN = (45, 47)
MOST_AHEAD_MS = 3_600_000
"""Of a record's time to the clock."""


def is_one_batch(data: bytes) -> bool:
    """Whether the bytes are one valid batch, its records looked at even if they are compressed, of no time to come."""
    found = judge(data)
    if found is None or not data or found[0] != 12 + int.from_bytes(data[8:12], "big"):
        return False
    largest = checked(data) if found[2] else found[4]
    return largest is not None and largest <= time.time() * 1000 + MOST_AHEAD_MS


@contextlib.contextmanager
def topic_of(broker: Broker) -> Iterator[socket.socket]:
    """A connection of one of today's clients, once the topic is there."""
    names = {"topics": [{"name": TOPIC, "topic_id": today.NO_ID}], "allow_auto_topic_creation": True}
    with socket.create_connection(("127.0.0.1", broker.port), PATIENCE) as client:
        today.asked(client, today.API_VERSIONS, 0)
        wait_until("the topic is made", lambda: today.asked(client, today.METADATA, 4, **names).topics[0].partitions)
        yield client


def compare_stored(outcome: Outcome, stored: bytes, taken: Sequence[bytes]) -> None:
    """The log holds these batches in this order, changed by nothing but what a broker writes, and nothing else."""
    at = offset = 0
    for data in taken:
        expected = struct.pack(">q", offset) + data[8:12] + bytes(4) + data[16:]
        found = judge(data)
        latest = checked(data) if data[22] & 7 else found and found[4]
        if latest is not None and latest != int.from_bytes(data[35:43], "big", signed=True):
            expected = raw_batches.reseal(expected[:35] + struct.pack(">q", latest) + expected[43:])
        kept = stored[at : at + len(data)]
        outcome.expect(kept == expected, f"at {at} stands {kept.hex()} instead of {expected.hex()}")
        at, offset = at + len(data), offset + count_of(data)
    outcome.expect(at == len(stored), f"{len(stored) - at} bytes are stored that nobody sent")


@scenario(
    "batches-sent",
    "the same, sent to a broker: what it stores is what was acknowledged",
    small=4_000,
    nightly=200_000,
    release=1_000_000,
)
def sent(count: int, seed: int, directory: Path) -> Outcome:
    """One connection, requests in flight; each is answered, and the log holds those with error 0 and nothing else."""
    mutants, outcome = Mutants(seed), Outcome()
    # their times are of any year, and retention goes by these
    settings = {
        "max.inflated.bytes": LIMITS.max_inflated_bytes,
        "message.max.bytes": MAX_BYTES,
        "log.retention.hours": 1_000_000,
    }
    taken: list[bytes] = []
    known: set[int] = set()
    offset = 0
    with Broker(directory, processors=1, settings=settings) as broker, topic_of(broker) as client:
        while outcome.runs < count:
            sets = [mutants.one() for _ in range(IN_FLIGHT)]
            client.sendall(b"".join(today.request(today.PRODUCE, 9, today.produced((TOPIC, 0, data))) for data in sets))
            for data in sets:
                _, answer = today.decoded(today.PRODUCE, 9, today.answer_of(client))
                (part,) = answer.responses[0].partition_responses
                outcome.runs += 1
                if part.error_code == 0:
                    outcome.expect(part.base_offset == offset, f"{data.hex()}: {part.base_offset}, not {offset}")
                    offset += count_of(data)
                    taken.append(data)
                    known.add(producer_of(data))
                # of a producer that is known only the batch that follows is taken
                is_expected = part.error_code == 0 or (part.error_code in OUT_OF_TURN and producer_of(data) in known)
                outcome.expect(is_expected == is_one_batch(data), f"{data.hex()}: answered by error {part.error_code}")
        broker.stop()
        files = sorted(broker.partition_directory(TOPIC, 0).glob("*.log"))
        compare_stored(outcome, b"".join(path.read_bytes() for path in files), taken)
    expect_both(outcome, len(taken))
    return outcome
