"""Where an entry of the 0.7 log begins, as a processor judges it: a fetch from anywhere else is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastlog.log._arena import STATE_READ_ONLY, WHY_ROOM
from fastlog.log.slots import SlotSpec
from tests.harness import raw_client as raw
from tests.harness.workers import Workers

BEGINS, INVALID = 0, 2
RANGE, FETCH_SIZE, UNKNOWN = 1, 4, -1
FRONT = raw.entry(b"what is before it")
LOOKED_AT = 4096
"""So many bytes are looked at: the CRC of what is longer is left to the consumer."""

EMPTY_0 = raw.entry(b"", 0)
EMPTY_1 = raw.entry(b"")
FULL_1 = raw.entry(bytes(LOOKED_AT - len(EMPTY_1)))


def resized(entry: bytes, by: int) -> bytes:
    """An entry that claims another length."""
    return (int.from_bytes(entry[:4], "big") + by).to_bytes(4, "big") + entry[4:]


CASES: dict[str, tuple[bytes, int]] = {
    "empty, magic 0": (EMPTY_0, BEGINS),
    "empty, magic 1": (EMPTY_1, BEGINS),
    "more behind it": (raw.entry(b"x") + b"more", BEGINS),
    "more behind it, magic 0": (raw.entry(b"x", 0) + b"more", BEGINS),
    "nothing but zeros": (bytes(30), INVALID),
    "a byte less than an empty one": (EMPTY_0[1:], INVALID),
    "four bytes": (EMPTY_0[:4], INVALID),
    "one byte": (EMPTY_0[:1], INVALID),
    "a length below the header's": (resized(EMPTY_0, -1) + bytes(20), INVALID),
    "a length below that of magic 1": (resized(EMPTY_1, -1) + bytes(20), INVALID),
    "a length that passes the end": (resized(raw.entry(b"x"), 1), INVALID),
    "a length that is negative": (b"\xff\xff\xff\xff" + raw.entry(b"x")[4:], INVALID),
    "gzip's number": (raw.entry(b"x", 1, 1), BEGINS),
    "snappy's number": (raw.entry(b"x", 1, 2), BEGINS),
    "no codec's number": (raw.entry(b"x", 1, 3), INVALID),
    "no magic": (raw.entry(b"x", 2), INVALID),
    "another CRC": (raw.entry(b"x", crc=1), INVALID),
    "another CRC, magic 0": (raw.entry(b"x", 0, crc=1), INVALID),
    "another CRC of the longest that is looked at": (FULL_1[:6] + b"\0\0\0\0" + FULL_1[10:], INVALID),
    "another CRC of a longer one": (raw.entry(bytes(LOOKED_AT), crc=1), BEGINS),
}


def slot(log_end: int, **changes: int) -> SlotSpec:
    """Partition 0 of ``t``, in one segment."""
    return SlotSpec(
        topic="t",
        partition=0,
        directory=0,
        format=0,
        created_ms=1,
        segment_bytes=1 << 30,
        roll_ms=0,
        flush_messages=10**9,
        flush_bytes=1 << 30,
        flush_ns=10**15,
        segments=[(0, 0, 0)],
        log_end=log_end,
        **changes,
    )


def write(directory: Path, stored: bytes) -> None:
    folder = directory / "t-0"
    folder.mkdir()
    (folder / f"{0:020}.kafka").write_bytes(stored)


@pytest.mark.parametrize(("behind", "code"), CASES.values(), ids=CASES)
def test_where_an_entry_begins(behind: bytes, code: int, tmp_path: Path) -> None:
    stored = FRONT + behind
    write(tmp_path, stored)
    with Workers(tmp_path, flusher=False) as workers, workers.connect() as client:
        workers.arena.add(slot(len(stored)))
        assert client.fetch("t", 0, 0) == (0, stored)
        assert client.fetch("t", 0, len(FRONT)) == (code, behind if code == BEGINS else b"")


@pytest.mark.parametrize(
    ("state", "behind_the_end"), [(0, RANGE), (STATE_READ_ONLY, RANGE), (STATE_READ_ONLY | WHY_ROOM << 8, UNKNOWN)]
)
def test_the_end_of_a_log_of_which_a_part_may_be_out_of_reach(state: int, behind_the_end: int, tmp_path: Path) -> None:
    """Nobody is sent back to the beginning from an offset that a start with a full disk could not make sure of.

    At the end, and in front of it, there is nothing to doubt; and who asks for no bytes gets none, wherever that is.
    """
    write(tmp_path, FRONT)
    end = len(FRONT)
    with Workers(tmp_path, flusher=False) as workers, workers.connect() as client:
        workers.arena.add(slot(end, state=state))
        assert client.fetch("t", 0, 0) == (0, FRONT)
        assert client.fetch("t", 0, end) == (0, b"")
        assert client.fetch("t", 0, end + 1).error == behind_the_end
        assert client.fetch("t", 0, end + 1, 0).error == behind_the_end
        assert client.fetch("t", 0, -1).error == RANGE
        assert client.fetch("t", 0, 0, 0) == (0, b"")
        assert client.fetch("t", 0, 0, -1).error == FETCH_SIZE
