"""A log format that only tests have: fixed-size records, dense offsets, a suffix of its own.

It shows that a format is added without a change to the engine. ``register`` builds the compiled half where that is
due; a process calls it before it forks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from zlib import crc32

from fastlog.log.files import FileOps
from fastlog.log.formats import FORMATS, DeepFindings, DumpedEntry, FileScan, SearchBudget, register_format
from fastlog.log.slots import IndexState
from fastlog.segment_files import SegmentFile, read_fully
from tests.harness import extension
from tests.harness.checkout import ROOT

NAME, SUFFIX = "toy", ".toy"
MAGIC = b"TOY1"
PAYLOAD_BYTES = 8
RECORD_BYTES = len(MAGIC) + PAYLOAD_BYTES + 4
WINDOW_RECORDS = 4096

_SOURCE = Path(__file__).with_name("_toy.pyx")


def record(number: int) -> bytes:
    """The record with this number for a payload."""
    payload = number.to_bytes(PAYLOAD_BYTES, "big")
    return MAGIC + payload + crc32(payload).to_bytes(4, "big")


def records(first: int, end: int) -> bytes:
    """Records with the numbers from ``first`` to before ``end``."""
    return b"".join(map(record, range(first, end)))


def numbers(data: bytes) -> list[int]:
    """The payloads of records, which must be whole and valid."""
    found = [int.from_bytes(data[at + 4 : at + 12], "big") for at in range(0, len(data), RECORD_BYTES)]
    assert data == b"".join(map(record, found))
    return found


class Toy:
    """The format as recovery and tools see it."""

    name = NAME
    suffix = SUFFIX
    is_dense = True
    companions: tuple[str, ...] = ()
    has_epochs = False
    is_sequenced = False
    is_for_kafka07 = True

    def settle_indexes(
        self, files: FileOps, segments: Sequence[SegmentFile], *, is_clean: bool, durable: int = 0
    ) -> IndexState:
        return IndexState()

    def largest_ms(self, files: FileOps, segment: SegmentFile) -> int | None:
        return None

    def end_offset(self, segment: SegmentFile) -> int:
        return segment.base + segment.size // RECORD_BYTES

    def position(self, segment: SegmentFile, offset: int) -> int:
        return (offset - segment.base) * RECORD_BYTES

    def first_boundary(self, path: Path, start: int, target: int, end: int, most_bytes: int) -> int:
        wanted = min(-(-target // RECORD_BYTES) * RECORD_BYTES, start + most_bytes // RECORD_BYTES * RECORD_BYTES)
        return min(wanted, end // RECORD_BYTES * RECORD_BYTES)

    def is_entry(self, path: Path, position: int, end: int) -> bool:
        with path.open("rb") as file:
            file.seek(position)
            data = file.read(min(RECORD_BYTES, end - position))
        return position % RECORD_BYTES == 0 and is_record(data)

    def scan(
        self,
        files: FileOps,
        fd: int,
        start: int,
        end: int,
        deep: DeepFindings | None = None,
        *,
        follows: int | None = None,
    ) -> FileScan:
        count, found = 0, "the end of the bytes"
        for data in self._records(files, fd, start, end):
            if not is_record(data):
                found = "half a record" if len(data) < RECORD_BYTES else "no record"
                break
            count += 1
        if deep is not None:
            deep.messages += count
        return FileScan(start + count * RECORD_BYTES, count, 0, 0, 0, found)

    def find_entry(self, files: FileOps, fd: int, damaged: int, end: int, budget: SearchBudget) -> int | None:
        start = damaged + RECORD_BYTES
        for number, data in enumerate(self._records(files, fd, start, end)):
            if not budget.take(RECORD_BYTES):
                return None
            if is_record(data):
                return start + number * RECORD_BYTES
        return None

    def count_entries(
        self, files: FileOps, fd: int, damaged: int, end: int, budget: SearchBudget, first_may_be_valid: bool = False
    ) -> int:
        start = damaged if first_may_be_valid else damaged + RECORD_BYTES
        return sum(is_record(data) for data in self._records(files, fd, start, end) if budget.take(RECORD_BYTES))

    def dump(
        self, files: FileOps, fd: int, segment: SegmentFile, deep: DeepFindings | None = None
    ) -> Iterator[DumpedEntry]:
        for number, data in enumerate(self._records(files, fd, 0, segment.size)):
            if len(data) == RECORD_BYTES:
                offset, end = segment.base + number, (number + 1) * RECORD_BYTES
                fields = {"number": int.from_bytes(data[4:12], "big")}
                valid = is_record(data)
                text = f"offset: {offset} isvalid: {str(valid).lower()} payloadsize: 8 number: {fields['number']}"
                yield DumpedEntry(offset, offset + 1, end, valid, data[4:12], text, fields)

    def _records(self, files: FileOps, fd: int, start: int, end: int) -> list[bytes]:
        buffer = memoryview(bytearray(max(end - start, 0)))
        data = bytes(buffer[: read_fully(fd, buffer, start, files.read_into)])
        return [data[at : at + RECORD_BYTES] for at in range(0, len(data), RECORD_BYTES)]


def is_record(data: bytes) -> bool:
    return len(data) == RECORD_BYTES and data[:4] == MAGIC and crc32(data[4:12]) == int.from_bytes(data[12:], "big")


def register() -> None:
    """Let this process, and those that it forks, know the format."""
    if NAME not in FORMATS:
        build().register()
        register_format(Toy())


def build() -> ModuleType:
    """The compiled half, built once for a state of the sources; never into the package."""
    return extension.build(_SOURCE, sorted((ROOT / "fastlog/log/formats").glob("*.pxd")))
