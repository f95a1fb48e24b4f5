"""Records of batches of magic 2, written and read a second time, field by field and without regard for speed.

Nothing here imports fastlog: what the tests expect must not come from the code under test. A number is read as a whole,
however long, and only then compared with what fits.
"""

from __future__ import annotations

from dataclasses import dataclass, field

OK, TAIL, LEFT, COUNT, VARINT, LENGTH, FIELD, OFFSET, TIMESTAMP = range(9)

Headers = list[tuple[bytes, bytes | None]]


class FaultError(Exception):
    """The bytes are no records; ``status`` says why."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass(frozen=True)
class Record:
    """One record; the timestamp is the batch's base timestamp and the record's delta together."""

    timestamp: int = 0
    key: bytes | None = None
    value: bytes | None = b""
    headers: Headers = field(default_factory=list)
    attributes: int = 0


def varint(number: int, width: int = 0) -> bytes:
    """A zigzag number in base 128, made ``width`` bytes long at least by zeros on top."""
    left = 2 * number if number >= 0 else -2 * number - 1
    digits = [left & 127]
    while left := left >> 7:
        digits.append(left & 127)
    digits += [0] * (width - len(digits))
    return bytes([*(digit | 128 for digit in digits[:-1]), digits[-1]])


def sized(data: bytes | None) -> bytes:
    """A field with its length before it."""
    return varint(-1) if data is None else varint(len(data)) + data


def encode_fields(record: Record, delta: int, base_timestamp: int = 0) -> bytes:
    """What stands behind a record's length."""
    parts = [bytes([record.attributes]), varint(record.timestamp - base_timestamp), varint(delta)]
    parts += [sized(record.key), sized(record.value), varint(len(record.headers))]
    parts += [sized(key) + sized(value) for key, value in record.headers]
    return b"".join(parts)


def encode(records: list[Record], base_timestamp: int = 0) -> bytes:
    """Encode all records of a batch."""
    return b"".join(sized(encode_fields(record, i, base_timestamp)) for i, record in enumerate(records))


class Reader:
    """Bytes that are used up from the front; ``cut`` is the status of reading behind their end."""

    def __init__(self, data: bytes, cut: int) -> None:
        self.data, self.cut = data, cut

    def take(self, count: int) -> bytes:
        if count > len(self.data):
            raise FaultError(self.cut)
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def number(self, bits: int) -> int:
        digits: list[int] = []
        while not digits or digits[-1] > 127:
            if len(digits) == -(-bits // 7):
                raise FaultError(VARINT)
            digits.append(self.take(1)[0])
        value = sum((digit & 127) << (7 * place) for place, digit in enumerate(digits))
        if value >= 1 << bits:
            raise FaultError(VARINT)
        return -(value + 1) // 2 if value & 1 else value // 2

    def sized(self, least: int) -> bytes | None:
        size = self.number(32)
        if size < least:
            raise FaultError(FIELD)
        return None if size < 0 else self.take(size)


def decode_fields(data: bytes, delta: int, base_timestamp: int) -> Record:
    """What stands behind a record's length. Raises ``FaultError``."""
    reader = Reader(data, LENGTH)
    attributes = reader.take(1)[0]
    timestamp = base_timestamp + reader.number(64)
    if not -(2**63) <= timestamp < 2**63:
        raise FaultError(TIMESTAMP)
    if reader.number(32) != delta:
        raise FaultError(OFFSET)
    key, value = reader.sized(-1), reader.sized(-1)
    count = reader.number(32)
    if count < 0:
        raise FaultError(FIELD)
    if 2 * count > len(reader.data):
        raise FaultError(LENGTH)
    headers = []
    for _ in range(count):
        name = reader.sized(0)
        assert name is not None
        headers.append((name, reader.sized(-1)))
    if reader.data:
        raise FaultError(LENGTH)
    return Record(timestamp, key, value, headers, attributes)


def decode(data: bytes, count: int, base_timestamp: int = 0) -> tuple[list[Record], int, int]:
    """The records before the first fault, where they end, and the status."""
    found: list[Record] = []
    position = 0
    if not 0 <= count < 2**31:
        return found, position, COUNT
    while len(found) < count:
        reader = Reader(data[position:], TAIL)
        try:
            size = reader.number(32)
            if size < 6:
                raise FaultError(LENGTH)
            record = decode_fields(reader.take(size), len(found), base_timestamp)
        except FaultError as fault:
            return found, position, fault.status
        found.append(record)
        position = len(data) - len(reader.data)
    return found, position, OK if position == len(data) else LEFT
