"""What clients sent, what they were told and what they saw, held against the log as it lies there in the end.

The invariants of ``docs/crash-safety.md``, as far as clients can see them:

- I-1 an acknowledged message is exactly where the answer said;
- I-2 after a power loss what is missing was not flushed, and is missing from the end, up to a bound;
- I-3 what a consumer was shown stays there, same offset, same bytes, and the visible end never goes back;
- I-4 the log is a gap-free chain of valid messages, each sender's messages in its order, none twice, none invented;
- I-5 after a failed write-back the visible end stands still;
- I-6 nothing half-written lies between messages (part of the chain).

Safe for many threads. Nothing here imports fastlog.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.harness.raw_format import Entry, deep_payloads, entries, inflate

Place = tuple[str, int]
"""Topic and partition."""

SHOWN_VIOLATIONS = 5


@dataclass
class _Acked:
    base: int
    data: bytes
    flushed: bool


@dataclass
class _Partition:
    sent: dict[bytes, tuple[str, int]] = field(default_factory=dict)  # payload: its sender and place in its order
    acked: list[_Acked] = field(default_factory=list)
    image: bytearray = field(default_factory=bytearray)  # what was shown from offset 0 on, kept once
    apart: list[tuple[int, bytes]] = field(default_factory=list)  # what was shown beyond it
    shown_bytes: int = 0
    visible_end: int = 0
    stopped_at: int | None = None


class History:
    """Collects events while a test runs; ``check`` names every broken promise."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._partitions: dict[Place, _Partition] = {}
        self._numbers: dict[str, int] = {}
        self._early: list[str] = []

    def copy(self) -> History:
        """A history of its own that begins with all of this one."""
        with self._lock:
            other = History()
            other._partitions = copy.deepcopy(self._partitions)
            other._numbers, other._early = dict(self._numbers), list(self._early)
            return other

    # --- events ---

    def sent(self, place: Place, sender: str, payloads: Sequence[bytes]) -> None:
        """A sender puts these payloads on the wire now, after all it sent before. Every payload is used once."""
        with self._lock:
            partition = self._partition(place)
            number = self._numbers.get(sender, 0)
            for payload in payloads:
                assert payload not in partition.sent, f"payload used twice: {payload[:80]!r}"
                partition.sent[payload] = (sender, number)
                number += 1
            self._numbers[sender] = number

    def acked(self, place: Place, base: int, next_offset: int, data: bytes, *, flushed: bool = False) -> None:
        """The broker answered that these bytes lie at ``base``."""
        with self._lock:
            if next_offset - base != len(data):
                self._early.append(f"I-1 {_name(place)}: an answer names {base} to {next_offset} for {len(data)} bytes")
            self._partition(place).acked.append(_Acked(base, data, flushed))

    def shown(self, place: Place, offset: int, data: bytes) -> None:
        """A consumer got these bytes from this offset."""
        with self._lock:
            partition = self._partition(place)
            partition.shown_bytes += len(data)
            if offset <= len(partition.image):
                before = partition.image[offset : offset + len(data)]
                if not data.startswith(before):
                    self._early.append(f"I-3 {_name(place)}: others than the {len(data)} bytes at {offset} were shown")
                partition.image += data[len(before) :]
            else:
                partition.apart.append((offset, data))
            partition.visible_end = max(partition.visible_end, offset + len(data))
            self._check_stopped(place, partition, offset + len(data))

    def visible(self, place: Place, end: int, known: int = 0) -> None:
        """The broker said that the log is visible up to ``end``; ``known`` is the visible end known before asking."""
        with self._lock:
            partition = self._partition(place)
            if end < known:
                self._early.append(f"I-3 {_name(place)}: the visible end went back from {known} to {end}")
            partition.visible_end = max(partition.visible_end, end)
            self._check_stopped(place, partition, end)

    def known_end(self, place: Place) -> int:
        """The highest end that anybody has seen so far: what is asked for from now on may not be lower."""
        with self._lock:
            return self._partition(place).visible_end

    def stopped(self, place: Place, watermark: int) -> None:
        """A write-back failed while this was the visible end: it may not move until the next start."""
        with self._lock:
            partition = self._partition(place)
            partition.stopped_at = watermark
            self._check_stopped(place, partition, partition.visible_end)

    def restarted(self) -> None:
        """The broker was started again, so partitions that had stopped go on."""
        with self._lock:
            for partition in self._partitions.values():
                partition.stopped_at = None

    # --- counts ---

    def places(self) -> list[Place]:
        """Every partition that something happened to."""
        with self._lock:
            return sorted(self._partitions)

    def acked_count(self) -> int:
        """How many produce requests were acknowledged."""
        with self._lock:
            return sum(len(partition.acked) for partition in self._partitions.values())

    def shown_bytes(self) -> int:
        """How many bytes consumers got, each time they got them."""
        with self._lock:
            return sum(partition.shown_bytes for partition in self._partitions.values())

    # --- the verdict ---

    def check(self, stored: Mapping[Place, bytes], *, power_loss: int | None = None) -> list[str]:
        """One line for each broken promise, given what the segment files of every partition hold from offset 0.

        ``power_loss``: the power was cut, so up to that many messages that were not flushed may be missing from the
        end of each partition.
        """
        with self._lock:
            found = list(self._early)
            for place, partition in sorted(self._partitions.items()):
                lines = _check(_name(place), partition, stored.get(place, b""), power_loss)
                found += lines[:SHOWN_VIOLATIONS]
                if len(lines) > SHOWN_VIOLATIONS:
                    found.append(f"{_name(place)}: and {len(lines) - SHOWN_VIOLATIONS} more")
            return found

    def _partition(self, place: Place) -> _Partition:
        return self._partitions.setdefault(place, _Partition())

    def _check_stopped(self, place: Place, partition: _Partition, end: int) -> None:
        if partition.stopped_at is not None and end > partition.stopped_at:
            self._early.append(
                f"I-5 {_name(place)}: visible up to {end}, though a flush failed at {partition.stopped_at}"
            )


def _name(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


def _check(name: str, partition: _Partition, stored: bytes, power_loss: int | None) -> list[str]:
    found = []
    try:
        chain = entries(stored)
    except ValueError as error:
        return [f"I-4 {name}: {error}"]
    end = chain[-1].next_offset if chain else 0
    if end != len(stored):
        found.append(f"I-6 {name}: {len(stored) - end} bytes follow the last whole message")
    if partition.visible_end > end:
        found.append(f"I-3 {name}: was visible up to {partition.visible_end}, now ends at {end}")
    lost = 0
    for one in partition.acked:
        if stored[one.base : one.base + len(one.data)] == one.data:
            continue
        if power_loss is not None and not one.flushed and one.base >= end:
            lost += len(entries(one.data))
            continue
        found.append(f"I-1 {name}: {len(one.data)} acknowledged bytes are not at {one.base}")
    if power_loss is not None and lost > power_loss:
        found.append(f"I-2 {name}: {lost} messages are missing, at most {power_loss} may be")
    for offset, data in [(0, partition.image), *partition.apart]:
        if stored[offset : offset + len(data)] != data:
            found.append(f"I-3 {name}: the {len(data)} bytes shown at {offset} are not there any more")
    return found + _check_order(name, partition, chain)


def _check_order(name: str, partition: _Partition, chain: list[Entry]) -> list[str]:
    found = []
    last: dict[str, int] = {}
    seen: set[bytes] = set()
    for item in chain:
        for payload in _payloads(item):
            if payload not in partition.sent:
                found.append(f"I-4 {name}: nobody sent the message at {item.offset}: {payload[:40]!r}")
                continue
            sender, number = partition.sent[payload]
            if payload in seen:
                found.append(f"I-4 {name}: the message at {item.offset} is there twice: {payload[:40]!r}")
            elif number < last.get(sender, -1):
                found.append(f"I-4 {name}: {sender}'s message {number} at {item.offset} follows its {last[sender]}")
            seen.add(payload)
            last[sender] = max(number, last.get(sender, -1))
    return found


def _payloads(item: Entry) -> list[bytes]:
    codec = item.attributes & 3
    return deep_payloads(inflate(item.payload, codec)) if codec else [item.payload]
