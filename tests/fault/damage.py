"""Scenarios of damage to a partition's bytes: torn and garbage tails, flipped bits, failing and interrupted recovery.

What must come out is computed by ``tests.reference``, which shares no code with fastlog.
"""

from __future__ import annotations

import errno
import itertools
import random
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

from fastlog import message
from fastlog.errors import InvalidFetchSizeError, InvalidMessageError
from fastlog.log.check import check_partition
from fastlog.log.recovery import RecoveredPartition, recover_partition
from fastlog.log.side_file import SideFile, write_side_file
from tests import reference
from tests.fault.registry import Outcome, scenario
from tests.harness import logs, raw_format

VARIANTS = [(magic, codec) for magic in (0, 1) for codec in (raw_format.NONE, raw_format.GZIP, raw_format.SNAPPY)]
SEGMENT_BYTES = 65536
APPENDED = raw_format.entry(b"appended after recovery")
CALL_KINDS = ("open", "read", "write", "fdatasync", "fsync_dir", "ftruncate", "rename", "listdir", "stat")


class PowerCut(BaseException):
    """The machine stops here; nothing catches it on the way."""


def recover(
    directory: Path, files: logs.FileOps | None = None, clean_end: int | None = None, *, in_doubt: bool = False
) -> RecoveredPartition:
    topic, _, number = directory.name.rpartition("-")
    files = files or logs.QuickFiles()
    return recover_partition(directory, topic, int(number), clean_end=clean_end, files=files, in_doubt=in_doubt)


def recovers_to(outcome: Outcome, directory: Path, data: bytes, kept_at_least: int, what: str) -> None:
    """One partition of one segment holding ``data``: recover, compare with the reference, append, and recover again."""
    path = logs.segment_path(directory, 0)
    path.write_bytes(data)
    found, _ = reference.walk(data)
    end = found[-1].next_offset if found else 0
    result = recover(directory)
    outcome.runs += 1
    outcome.expect(result.state == "ok" and result.log_end == end, f"{what}: {result} instead of an end at {end}")
    outcome.expect(end >= kept_at_least, f"{what}: a whole message was lost: {end} < {kept_at_least}")
    outcome.expect(path.read_bytes() == data[:end], f"{what}: the kept bytes differ")
    aside = [item for item in directory.iterdir() if item.name.endswith(".truncated")]
    outcome.expect(
        [item.read_bytes() for item in aside] == ([data[end:]] if end < len(data) else []), f"{what}: the tail is lost"
    )
    outcome.expect(result.truncated_bytes == len(data) - end, f"{what}: {result.truncated_bytes} bytes reported")
    with path.open("ab") as segment:
        segment.write(APPENDED)
    again = recover(directory)
    outcome.expect(
        (again.state, again.log_end, again.truncated_bytes) == ("ok", end + len(APPENDED), 0),
        f"{what}: after appending again {again}",
    )
    outcome.expect(
        [entry.payload for entry in raw_format.entries(path.read_bytes())]
        == [*(entry.payload for entry in found), b"appended after recovery"],
        f"{what}: the messages differ after appending again",
    )
    for item in aside:
        item.unlink()


@scenario("torn-tail", "T-12 the file ends at any byte", small=300, nightly=SEGMENT_BYTES, release=10**9)
def torn_tail(count: int, seed: int, directory: Path) -> Outcome:
    """Every cut of the last three messages; with a larger count, of that many positions of a 64 KiB segment."""
    outcome = Outcome()
    for magic, codec in VARIANTS:
        source = random.Random(seed)
        entries = logs.sets(source, 12, magic, codec)
        if count > 300:
            while sum(map(len, entries)) < SEGMENT_BYTES:
                entries += logs.sets(source, 12, magic, codec)
        data = b"".join(entries)
        first = len(data) - sum(map(len, entries[-3:]))
        cuts = list(range(first, len(data) + 1)) if count <= 300 else list(range(len(data) + 1))
        if len(cuts) > count:
            cuts = source.sample(cuts, count)
        partition = directory / f"torn-{magic}{codec}-0"
        partition.mkdir()
        for cut in cuts:
            whole = sum(len(entry) for entry in entries[:-3]) if count <= 300 else 0
            recovers_to(outcome, partition, data[:cut], whole, f"magic {magic} codec {codec} cut at {cut}")
    return outcome


@scenario("garbage-tail", "T-13 garbage behind the last message", small=200, nightly=50_000, release=500_000)
def garbage_tail(count: int, seed: int, directory: Path) -> Outcome:
    """Random bytes, zeros, shifted copies of messages, half-old blocks, foreign magic, lengths of all sorts."""
    outcome = Outcome()
    source = random.Random(seed)
    partition = directory / "garbage-0"
    partition.mkdir()
    for number in range(count):
        magic, codec = source.choice(VARIANTS)
        data = b"".join(logs.sets(source, 8, magic, codec))
        kind, tail = _garbage(source, data)
        recovers_to(outcome, partition, data + tail, len(data), f"garbage {number} ({kind}, {len(tail)} bytes)")
    return outcome


def _garbage(source: random.Random, data: bytes) -> tuple[str, bytes]:
    kind = source.choice(
        ["random", "zeros", "shifted", "old block", "magic", "length", "no payload", "message then zeros"]
    )
    if kind == "random":
        return kind, source.randbytes(source.randint(1, 600))
    if kind == "zeros":
        return kind, bytes(source.choice([1, 2, 3, 4, 5, 6, 9, 10, 512, 4096]))
    if kind == "shifted":
        return kind, data[source.randint(1, 40) :]
    if kind == "old block":
        return kind, data[-(source.randint(1, len(data))) :][: source.randint(1, 200)]
    if kind == "magic":
        entry = bytearray(raw_format.entry(b"foreign"))
        entry[4] = source.randint(2, 255)
        return kind, bytes(entry)
    if kind == "length":
        length = source.choice([-(2**31), -1, 0, 1, 4, 5, 6, 100, 2**24, 2**31 - 1])
        return kind, length.to_bytes(4, "big", signed=True) + source.randbytes(source.randint(0, 120))
    if kind == "no payload":
        return kind, b"\x00\x00\x00\x05\x01" + source.randbytes(
            source.randint(0, 30)
        )  # magic 1 and room for magic 0 only
    return kind, raw_format.entry(b"whole") + bytes(source.randint(1, 5000))


@scenario("bit-flip", "T-14 one bit flipped", small=3000, nightly=8 * SEGMENT_BYTES, release=10**9)
def bit_flip(count: int, seed: int, directory: Path) -> Outcome:
    """Every flip is found by fsck and by a reader; recovery cuts nothing, as it lies below the checkpoint."""
    outcome = Outcome()
    source = random.Random(seed)
    partition = directory / "flip-0"
    data = _mixed_segment(source)
    entries = raw_format.entries(data)
    starts = [entry.offset for entry in entries]
    path = logs.segment_path(partition, 0)
    logs.write_segments(partition, [data])
    files = logs.QuickFiles()
    write_side_file(partition, SideFile(0, checkpoint=len(data)), files)
    bits = range(8 * len(data))
    with path.open("r+b", buffering=0) as segment:
        for bit in bits if count >= len(bits) else source.sample(bits, count):
            at = bit // 8
            flipped = data[at] ^ (1 << bit % 8)
            segment.seek(at)
            segment.write(bytes([flipped]))
            index = bisect_right(starts, at) - 1
            start, end = starts[index], entries[min(index + 2, len(entries) - 1)].next_offset
            around = data[start:at] + bytes([flipped]) + data[at + 1 : end]
            is_codec = entries[index].magic == 1 and at == start + 5
            _check_flip(outcome, partition, around, at, is_codec)
            segment.seek(at)
            segment.write(data[at : at + 1])
    return outcome


def _mixed_segment(source: random.Random) -> bytes:
    """At least 64 KiB of every magic and codec."""
    data = b""
    while len(data) < SEGMENT_BYTES:
        for magic, codec in VARIANTS:
            data += b"".join(logs.sets(source, 2 if codec else 60, magic, codec, inside=40))
    return data


def _check_flip(outcome: Outcome, partition: Path, around: bytes, at: int, is_codec: bool) -> None:
    outcome.runs += 1
    report = check_partition(partition, logs.QuickFiles())
    # The attributes byte lies outside every checksum: a plain message that takes itself for plain again stays unseen,
    # a wrapper that lost its codec is at least suspicious.
    named = [problem for problem in report.problems if problem.position is not None and problem.position <= at]
    if is_codec:
        outcome.expect(bool(named or report.notes), f"fsck does not see the codec bit at {at}")
    else:
        outcome.expect(bool(named), f"fsck does not see the flip at {at}: {report.problems}")
        outcome.expect(_reader_notices(around), f"a reader does not notice the flip at {at}")
    if outcome.runs % 16 == 0:
        size = logs.segment_path(partition, 0).stat().st_size
        result = recover(partition)
        outcome.expect(
            (result.state, result.log_end, result.truncated_bytes) == ("ok", size, 0),
            f"recovery touched a log damaged below its checkpoint at {at}: {result}",
        )


def _reader_notices(data: bytes) -> bool:
    """Whether a consumer that fetches and iterates gets an error before the end."""
    offset = 0
    while offset < len(data):
        start = offset
        try:
            for item in message.deep(data[start:], start):
                offset = item.offset
        except (InvalidMessageError, InvalidFetchSizeError):
            return True
        if offset == start:
            return True  # no progress: a consumer that doubles its fetch size ends in an error
    return False


def _half_written_log(source: random.Random, partition: Path) -> dict[str, bytes]:
    """Three segments, the checkpoint in the second, and a torn end with whole messages behind the damage."""
    parts = [b"".join(logs.sets(source, 4, 1, raw_format.NONE)) for _ in range(3)]
    damaged = bytearray(raw_format.entry(b"damaged on the way"))
    damaged[-1] ^= 1
    bases = logs.write_segments(
        partition, [*parts[:2], parts[2] + bytes(damaged) + raw_format.entry(b"behind") + b"\0\0"]
    )
    logs.write_side_file(partition, bases[1])
    return logs.contents(partition)


def _numbered_calls(directory: Path, seed: int, in_doubt: bool) -> Iterator[tuple[str, int]]:
    """Every call that one recovery makes, by kind and number."""
    partition = directory / "counted-0"
    _half_written_log(random.Random(seed), partition)
    files = logs.QuickFaultyFiles()
    recover(partition, files, in_doubt=in_doubt)
    for kind in CALL_KINDS:
        for nth in range(1, files.calls[kind] + 1):
            yield kind, nth


@scenario("recovery-fails", "T-9 a file call of recovery fails", small=1, nightly=50, release=500)
def recovery_fails(count: int, seed: int, directory: Path) -> Outcome:
    """Each call fails once with EIO and once with ENOSPC: no byte is lost, and the next start gets it right."""
    return _every_call(count, seed, directory, [errno.EIO, errno.ENOSPC])


@scenario("recovery-crashes", "T-4 the machine stops during recovery", small=1, nightly=50, release=500)
def recovery_crashes(count: int, seed: int, directory: Path) -> Outcome:
    """The process ends before each call of a recovery: no byte is lost, and the next start gets it right."""
    return _every_call(count, seed, directory, [PowerCut()])


def _every_call(count: int, seed: int, directory: Path, failures: list[int | BaseException]) -> Outcome:
    outcome = Outcome()
    for round_seed, in_doubt in itertools.product(range(seed, seed + count), (False, True)):
        place = directory / f"{round_seed}-{in_doubt}"
        for number, (kind, nth) in enumerate(_numbered_calls(place, round_seed, in_doubt)):
            for failure in failures:
                partition = place / f"{number}-{failures.index(failure)}" / "t-0"
                before = _half_written_log(random.Random(round_seed), partition)
                end = sum(map(len, before.values())) - _torn_bytes(before)
                files = logs.QuickFaultyFiles()
                files.fail(kind, nth, failure)
                what = f"seed {round_seed}, {in_doubt=}, {kind} call {nth} fails with {failure!r}"
                outcome.runs += 1
                try:
                    first = recover(partition, files, in_doubt=in_doubt)
                    outcome.expect(first.state == "ok" or bool(first.reason), f"{what}: no reason in {first}")
                    if first.no_room:
                        outcome.expect(first.state != "ok" and first.log_end <= end, f"{what}: {first}")
                    else:
                        outcome.expect(first.state == "offline" or first.log_end == end, f"{what}: {first}")
                except PowerCut:
                    pass
                outcome.expect(not logs.lost_bytes(before, logs.contents(partition)), f"{what}: bytes are gone")
                second = recover(partition)
                outcome.expect((second.state, second.log_end) == ("ok", end), f"{what}: the next start gives {second}")
                outcome.expect(not logs.lost_bytes(before, logs.contents(partition)), f"{what}: bytes are gone later")
    return outcome


def _torn_bytes(before: dict[str, bytes]) -> int:
    last = before[max(before)]
    found, _ = reference.walk(last)
    return len(last) - found[-1].next_offset
