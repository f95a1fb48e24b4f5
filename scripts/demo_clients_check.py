"""The check of ``scripts/demo-clients``: what the broker stored against what was sent, told, and read."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fastlog.message import deep
from scripts.demo_clients_work import PARTITIONS, Ack, Digest, Digester, key_of
from scripts.demo_text import CheckFailed


class Stored(NamedTuple):
    """A message as it is stored in a partition's log."""

    payload: bytes
    offset: int
    next_offset: int


def partition_of(line: bytes) -> int:
    """Where a line belongs: CRC-32 of its key without the sign bit, as ``docs/clients.md`` says."""
    return (zlib.crc32(key_of(line)) & 0x7FFFFFFF) % PARTITIONS


def by_partition(lines: Iterable[bytes]) -> list[list[bytes]]:
    """The lines each partition must get, in order."""
    parts: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    for line in lines:
        parts[partition_of(line)].append(line)
    return parts


def stored_bytes(directory: Path) -> bytes:
    """What the segment files of a partition that starts at 0 hold, one after the other; nothing may be between them."""
    found = []
    at = 0
    for path in sorted(directory.glob("*.kafka")):
        if int(path.stem) != at:
            raise CheckFailed(f"{path} does not begin at {at}")
        data = path.read_bytes()
        found.append(data)
        at += len(data)
    return b"".join(found)


def stored_messages(data: bytes) -> list[Stored]:
    """The messages of whole entries, wrappers opened; those of one wrapper have its offset, the last goes on behind."""
    offset = 0
    found = []
    for each in deep(data):
        found.append(Stored(each.message.payload, offset, each.offset))
        offset = each.offset
    return found


def check_partition(stored: bytes, messages: Sequence[Stored], acks: Sequence[Ack], expected: Sequence[bytes]) -> int:
    """Compare what a partition holds with the answers to its producer and with the lines it was sent; the duplicates.

    The acknowledged requests must lie one behind the other, in the order they were sent, and hold every line exactly
    once. Whatever lies between them must be tries of which no answer came: each a repetition, byte for byte, of the
    requests acknowledged right behind, from the first on.

    Raises:
        CheckFailed: a line is lost, changed, out of order, or stored again without having been sent again.
    """
    at = number = line = doubled = 0
    for index, ack in enumerate(acks):
        if ack.offset < at or ack.next_offset <= ack.offset or ack.next_offset > len(stored):
            raise CheckFailed(f"offsets {ack.offset} to {ack.next_offset} were acknowledged after {at}")
        if ack.offset > at:
            _check_tries(stored, at, ack.offset, acks[index:])
        first = number
        while number < len(messages) and messages[number].offset < ack.offset:
            number += 1
        doubled += number - first
        first = number
        while number < len(messages) and messages[number].offset < ack.next_offset:
            if number - first >= ack.messages or line >= len(expected) or messages[number].payload != expected[line]:
                raise CheckFailed(f"offset {messages[number].offset} does not hold line {line} of its partition")
            number += 1
            line += 1
        if number - first != ack.messages:
            raise CheckFailed(f"{ack.messages} lines acknowledged at offset {ack.offset}, of {number - first} there")
        at = ack.next_offset
    if line != len(expected):
        raise CheckFailed(f"{len(expected) - line} lines of {len(expected)} were never acknowledged")
    if at != len(stored):
        raise CheckFailed(f"{len(stored) - at} bytes lie behind the last acknowledged line, at offset {at}")
    return doubled


def _check_tries(stored: bytes, start: int, end: int, behind: Sequence[Ack]) -> None:
    """Raise ``CheckFailed`` unless what lies from ``start`` to ``end`` are tries of the requests ``behind``."""
    # For each place reached, the requests that may come next; 0 begins another try. Requests may be equal, so there may
    # be several ways to take the bytes apart.
    reached: dict[int, set[int]] = {start: {0}}
    while reached:
        at = min(reached)
        if at == end:
            return
        for number in reached.pop(at) | {0}:
            if number >= len(behind):
                continue
            wanted = stored[behind[number].offset : behind[number].next_offset]
            if at + len(wanted) <= end and stored.startswith(wanted, at):
                reached.setdefault(at + len(wanted), set()).add(number + 1)
    raise CheckFailed(f"what lies from offset {start} to {end} was not sent again")


def digests(messages: Sequence[Stored], counts: Iterable[int]) -> dict[int, Digest]:
    """What a reader must have found that has read so many messages of a partition, for each of ``counts`` there is."""
    digester = Digester()
    at = 0
    found = {}
    for count in sorted(set(counts)):
        some = messages[at:count]
        payloads = [each.payload for each in some]
        digester.add(
            b"".join(payloads),
            map(len, payloads),
            (each.offset for each in some),
            (each.next_offset for each in some),
        )
        at = count
        found[count] = digester.digest()
    return found


def is_equal(found: Digest, expected: Mapping[int, Digest]) -> bool:
    """Whether a reader found the first messages that are stored, with their offsets where its mode has them."""
    wanted = expected[found.lines]
    if found.positions is None:
        return (found.lines, found.payloads) == (wanted.lines, wanted.payloads)
    return found == wanted
