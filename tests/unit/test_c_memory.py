"""Objects that own memory of the C library give all of it back: what is in use is the same after each of many lives."""

from __future__ import annotations

import ctypes
import gc
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from fastlog._segment import pack
from fastlog.audit._tally import Tally
from fastlog.batch_codecs import CODEC_NAMES
from fastlog.envelope import Envelope, wrap
from fastlog.errors import InvalidMessageError
from fastlog.log._arena import Arena
from fastlog.log._flush import flush_now, make_partition_flusher
from fastlog.log._shared_memory import FIRST_PROCESSOR
from fastlog.message import DeepLimits
from fastlog.record_batches import Record, build, check_deep
from fastlog.record_batches import records as read_records
from fastlog.workers._flusher import make_flusher_loop
from fastlog.workers.net._slot_waits import SlotWaits
from tests.harness.sanitizer import about_memory
from tests.harness.shared_log import DONE, SharedLog, message

pytestmark = about_memory

LIVES = 30
WARM_UP = 5
SERIES = 4
"""What a life leaves it leaves in each series; Python's own tables, and those of what else runs here, grow in one."""
MOST_GROWTH_BYTES = 64 * LIVES
"""Each life below has more than that to lose in each of its pieces."""


class _Info(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "mapped",
            "usmblks",
            "fsmblks",
            "used",
            "fordblks",
            "keepcost",
        )
    ]


def bytes_in_use() -> int:
    """What was asked of the C library and not given back, in all of its arenas."""
    gc.collect()
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = _Info
    found = ask()
    return int(found.used + found.mapped)


def tally(_: Path) -> None:
    """Many producers, numbers that lie far apart, windows; and pages that came from somebody else."""
    made, other = Tally(1000), Tally(1000)
    payloads = [
        wrap(
            b"x",
            Envelope(
                number * 500,
                5,
                deduplication_id=b"\x01" + bytes([0] * 7 + [producer]) + bytes(5) + bytes([number, 0, 0]),
            ),
        )
        for producer in range(40)
        for number in range(4)
    ]
    made.count_entries(pack(payloads), len(payloads))
    for producer, server, number, _count, bits in made.changed_pages():
        other.merge_page(producer, server, number, bits)


def log(directory: Path) -> None:
    """An arena with its partitions, open segments, and what a flusher keeps of each."""
    shared = SharedLog(directory, partitions=3, segment_bytes=40)
    flusher = make_partition_flusher(shared.arena, 8, 0, 0)
    for _ in range(6):
        assert shared.append(message(30)) == DONE
        assert flush_now(flusher, 0) == 0
    make_flusher_loop(shared.arena, 8, 0, 0, 1)


def deep_batches(_: Path) -> None:
    """Each codec's library and our own walk: a batch that is whole, one that is damaged, one above the limits."""
    records = [Record(b"key", bytes(range(256)) * 40, 5, ((b"h", None),)) for _ in range(50)]
    for codec in CODEC_NAMES:
        data = build(records, codec=codec)
        assert check_deep(data).count == len(list(read_records(data))) == 50
        damaged = bytearray(data)
        damaged[-9] ^= 0xFF
        damaged[57:61] = (51).to_bytes(4, "big")
        with pytest.raises(InvalidMessageError):
            check_deep(damaged)
        with pytest.raises(InvalidMessageError):
            check_deep(data, DeepLimits(20_000, 1, 49 + bool(codec)))


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library does not say what is in use")
def slot_waits(directory: Path) -> None:
    """Of a process that waits for slots: a word for each slot that the broker may have."""
    SlotWaits(Arena([str(directory)], FIRST_PROCESSOR + 1, 256, 16), FIRST_PROCESSOR)


@pytest.mark.parametrize("live", [tally, log, deep_batches, slot_waits])
def test_a_life_leaves_no_memory(live: Callable[[Path], None], tmp_path: Path) -> None:
    numbers = iter(range(10**6))

    def lives(count: int) -> int:
        for _ in range(count):
            directory = tmp_path / str(next(numbers))
            directory.mkdir()
            live(directory)
        return bytes_in_use()

    lives(WARM_UP)
    in_use = [bytes_in_use()]
    while len(in_use) <= SERIES and (len(in_use) < 2 or in_use[-1] - in_use[-2] > MOST_GROWTH_BYTES):
        in_use.append(lives(LIVES))
    growth = [after - before for before, after in itertools.pairwise(in_use)]
    assert min(growth) <= MOST_GROWTH_BYTES, growth
