"""Appenders that are killed at any moment, one flusher, readers: all on one partition, without sockets in between.

Every message carries the pid of its appender, its number, and its place in the call; every appender writes down, in a
file of its own, what it is about to append and what it was told. From the two the log must be explained byte for byte.
"""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path

from fastlog.errors import OffsetOutOfRangeError
from fastlog.log._append import Appender, append_bytes, roll_now
from fastlog.log._segments import SegmentFiles, locate_offset
from fastlog.log._shared_memory import FIRST_PROCESSOR, STAGE_FLUSHER
from tests.fault.registry import Outcome, scenario
from tests.harness import raw_format
from tests.harness.shared_log import BUSY, DONE, FULL, SharedLog, start, start_flusher, stop, wait, wait_until
from tests.harness.timing import PATIENCE

APPENDERS = 4
READERS = 2
HEADER = struct.Struct(">IIHH")  # pid, number of the call, place in the call, messages of the call
TOLD = struct.Struct(">IQ")  # number of the call, first offset
KILLS_PER_SECOND = 50
ROUND = 100
READ_BYTES = 100_000


def call(pid: int, number: int) -> tuple[bytes, int]:
    """The message set of one append and its messages: 1 to 5 of them, of 0 to about 3000 bytes behind their header."""
    source = random.Random(pid * 1_000_003 + number)
    count = source.randint(1, 5)
    sizes = [source.choice((0, 10, 200, 3000)) for _ in range(count)]
    return b"".join(
        raw_format.entry(HEADER.pack(pid, number, place, count) + bytes([number & 0xFF]) * size, magic=number % 2)
        for place, size in enumerate(sizes)
    ), count


def appender(log: SharedLog, process: int, folder: Path) -> Callable[[], None]:
    """Appends for ever; what it was told goes to a file with its pid."""

    def work() -> None:
        pid = os.getpid()
        mine = Appender(log.arena, SegmentFiles(log.arena, 4), FIRST_PROCESSOR + process)
        number = 0
        with (folder / f"{pid}.told").open("wb", buffering=0) as told:
            while True:
                data, count = call(pid, number)
                status, first, _next, _error = append_bytes(mine, 0, data, count)
                if status in (BUSY, FULL):
                    time.sleep(0.0002)
                    continue
                assert status == DONE, status
                told.write(TOLD.pack(number, first))
                number += 1

    return work


def reader(log: SharedLog, seed: int) -> Callable[[], int]:
    """Reads on to the end, and again what it was shown before; 0 when all was whole and stayed as it was."""

    def work() -> int:
        source = random.Random(seed)
        shown: list[tuple[int, bytes]] = []
        position = 0
        while not log.arena.stopping or position < log.view().flushed_end:
            again = bool(shown) and source.random() < 0.3
            offset, expected = source.choice(shown) if again else (position, b"")
            try:
                place = locate_offset(log.arena, 0, offset)
            except OffsetOutOfRangeError:
                return 2  # it was shown, and is not there any more
            if place is None:
                time.sleep(0.0005)
                continue
            _index, base, at, end = place
            wanted = min(end - offset, READ_BYTES)
            with log.path(base).open("rb") as file:
                file.seek(at)
                data = file.read(wanted)
            if len(data) < wanted:
                return 3  # bytes below the watermark are missing in the file
            try:
                found = raw_format.entries(data, offset)
            except ValueError:
                return 4
            if not found or (wanted < READ_BYTES and found[-1].next_offset != end):
                return 5  # the watermark stands inside a message
            if again and found[0].payload != expected:
                return 6
            if not again:
                shown.append((offset, found[0].payload))
                position = found[-1].next_offset
        return 0

    return work


def check(log: SharedLog, folder: Path, outcome: Outcome) -> None:
    """The log is whole calls, each once, in each appender's order, at the offsets that were told, and nothing else."""
    found: dict[int, list[tuple[int, int]]] = {}
    base = 0
    for path in sorted(log.folder().glob("*.kafka")):
        data = path.read_bytes()
        outcome.expect(int(path.stem) == base, f"{path.name} begins where {base} was expected")
        entries = raw_format.entries(data, base)
        outcome.expect(not data or entries[-1].next_offset == base + len(data), f"{path.name} ends inside a message")
        at = 0
        while at < len(entries):
            pid, number, place, count = HEADER.unpack_from(entries[at].payload)
            start_at = entries[at].offset - base
            wanted, _ = call(pid, number)
            if place or data[start_at : start_at + len(wanted)] != wanted:
                outcome.expect(False, f"at {base + start_at}: not a whole append of {pid}, number {number}")
                return
            found.setdefault(pid, []).append((number, base + start_at))
            at += count
        base += len(data)
    outcome.expect(base == log.view().log_end, f"{base} bytes in files, log end {log.view().log_end}")
    outcome.expect(bool(found), "nothing was appended")
    for note in folder.glob("*.told"):
        record = note.read_bytes()
        told = list(TOLD.iter_unpack(record[: len(record) // TOLD.size * TOLD.size]))
        mine = found.pop(int(note.stem), [])
        outcome.expect(mine[: len(told)] == told, f"{note.stem} was told {told[-3:]}, the log has {mine[-3:]}")
        # one more than it was told of: it died between the append and the note
        outcome.expect(len(mine) - len(told) in (0, 1), f"{note.stem}: {len(mine)} appends, told of {len(told)}")
        outcome.expect([number for number, _ in mine] == list(range(len(mine))), f"{note.stem}: twice or out of order")
    outcome.expect(not found, f"appends of nobody: {list(found)[:3]}")


@scenario("shared-log", "kill -9 of appenders and flusher of one log", small=60, nightly=3000, release=30_000)
def shared_log(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` kills at random moments, in rounds; the dead are replaced, the readers go on."""
    outcome = Outcome()
    for number in range(0, count, ROUND):
        folder = directory / f"round{number}"
        folder.mkdir()
        _round(min(ROUND, count - number), seed + number, folder, outcome)
    return outcome


def _round(count: int, seed: int, directory: Path, outcome: Outcome) -> None:
    source = random.Random(seed)
    notes = directory / "notes"
    notes.mkdir()
    log = SharedLog(
        directory, segment_bytes=200_000, table_entries=16_384, flush_messages=2000, flush_bytes=1 << 20, flush_ns=10**8
    )
    flusher = start_flusher(log.arena)
    appenders = [start(appender(log, number, notes)) for number in range(APPENDERS)]
    readers = [start(reader(log, seed + number)) for number in range(READERS)]
    watermark = 0
    try:
        for _ in range(count):
            time.sleep(source.random() * 2 / KILLS_PER_SECOND)
            victim = source.randrange(APPENDERS)
            stop(appenders[victim])
            appenders[victim] = start(appender(log, victim, notes))
            if source.random() < 0.2:
                stop(flusher)
                flusher = start_flusher(log.arena)
            view = log.view()
            outcome.expect(watermark <= view.flushed_end <= view.log_end, f"the watermark: {watermark}, then {view}")
            watermark = view.flushed_end
            outcome.runs += 1
    finally:
        for pid in appenders:
            stop(pid)
    # whoever comes next repairs, and all that was published becomes visible
    last = appender(log, 0, notes)
    pid = start(last)
    wait_until(lambda: (notes / f"{pid}.told").exists() and (notes / f"{pid}.told").stat().st_size > 0)
    stop(pid)
    while roll_now(log.appender, 0) is False:  # takes the lock over, and so cuts what the last one left behind
        time.sleep(0.001)
    wait_until(lambda: log.view().flushed_end == log.view().log_end, what="everything flushed")
    log.arena.set_stopping(STAGE_FLUSHER)
    for reading in readers:
        code = wait(reading, 2 * PATIENCE)  # it has everything to read yet, at the worst
        outcome.expect(code == 0, f"a reader ended with {code}")
    outcome.expect(wait(flusher) == 0, "the flusher did not end well")
    outcome.expect(log.view().state == 0, log.arena.describe_state(log.view().state))
    check(log, notes, outcome)
