"""What the members of a group wrote down, held against what the log holds in the end.

- what was committed is not given again, but for a compressed set that was committed in its middle;
- a claim gives message after message, and begins at most one behind all that was given before;
- once another claim gave messages of a partition, an earlier one gives none that is asked for afterwards;
- no commit that is asked for after another one was answered sets the offset back.

Nothing here imports fastlog.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

SHOWN_VIOLATIONS = 5
_NONE: Mapping[str, Sequence[tuple[float, float]]] = {}


class Given(NamedTuple):
    """A message that a member got."""

    asked: float
    got: float
    offset: int
    payload: bytes


class Saved(NamedTuple):
    """An offset that was committed, between the two times."""

    asked: float
    done: float
    offset: int
    is_own: bool
    """Whether it was committed by a call of the program."""


@dataclass
class Claim:
    """What one member got of a partition, while it had it."""

    member: str
    given: list[Given] = field(default_factory=list)


@dataclass
class Partition:
    """What all members wrote of one partition."""

    claims: list[Claim] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)


@dataclass
class Diaries:
    """The diaries of a group's members, put together."""

    partitions: dict[str, Partition]
    refused: int = 0
    left: set[str] = field(default_factory=set)

    @property
    def duplicates(self) -> int:
        """How many messages were given again."""
        payloads = [[each.payload for claim in one.claims for each in claim.given] for one in self.partitions.values()]
        return sum(len(each) - len(set(each)) for each in payloads)

    @property
    def commits(self) -> dict[bool, int]:
        """How many were the program's own, and how many not."""
        saved = [each.is_own for one in self.partitions.values() for each in one.saved]
        return {own: saved.count(own) for own in (True, False)}

    def payloads(self, partition: str) -> set[bytes]:
        """The payloads of a partition that members got."""
        found = self.partitions.get(partition, Partition())
        return {each.payload for claim in found.claims for each in claim.given}

    def last_given(self) -> dict[str, float]:
        """When the last message of each partition was."""
        return {
            name: max(each.got for claim in one.claims for each in claim.given)
            for name, one in self.partitions.items()
            if one.claims
        }

    def check(
        self, stored: Mapping[str, Sequence[bytes]], excused: Mapping[str, Sequence[tuple[float, float]]] = _NONE
    ) -> list[str]:
        """One line for each broken promise, given the payloads of each partition in the order of the log.

        ``excused``: from when to when a member could not know that it had lost everything.
        """
        found = []
        for name in sorted(stored.keys() | self.partitions.keys()):
            lines = _check(self.partitions.get(name, Partition()), stored.get(name, ()), excused)
            found += [f"{name}: {line}" for line in lines[:SHOWN_VIOLATIONS]]
            if len(lines) > SHOWN_VIOLATIONS:
                found.append(f"{name}: and {len(lines) - SHOWN_VIOLATIONS} more")
        return found


def read_diaries(paths: Iterable[Path]) -> Diaries:
    """Put the diaries of members together; the name of a file is the member's."""
    partitions: dict[str, Partition] = defaultdict(Partition)
    found = Diaries(partitions)
    for path in paths:
        if not path.exists():
            continue
        claims: dict[tuple[int, str], Claim] = {}
        for line in path.read_bytes().split(b"\n")[:-1]:
            kind, asked, done, *rest = json.loads(line)
            if kind == "given":
                number, name, offset, payload = rest
                if (number, name) not in claims:
                    claims[number, name] = Claim(path.stem)
                    partitions[name].claims.append(claims[number, name])
                claims[number, name].given.append(Given(asked, done, offset, payload.encode("latin-1")))
            elif kind == "refused":
                found.refused += 1
            elif kind == "left":
                found.left.add(path.stem)
            else:
                name, offset = rest
                partitions[name].saved.append(Saved(asked, done, offset, kind == "saved"))
    for partition in partitions.values():
        partition.claims.sort(key=lambda claim: claim.given[0].got)
    return found


def _check(
    partition: Partition, stored: Sequence[bytes], excused: Mapping[str, Sequence[tuple[float, float]]]
) -> list[str]:
    numbers = {payload: number for number, payload in enumerate(stored)}
    found = []
    last = -1
    for claim in partition.claims:
        given = [numbers.get(each.payload, -1) for each in claim.given]
        if -1 in given:
            found.append(f"invented: {claim.member} got a message that is not in the log")
            continue
        if given[0] > last + 1:
            found.append(f"lost: {claim.member} begins at message {given[0]}, and nobody got {last + 1}")
        for before, number in itertools.pairwise(given):
            if number != before + 1:
                found.append(f"lost: {claim.member} got message {number} after {before}")
        last = max(last, *given)
    if last + 1 < len(stored):
        found.append(f"lost: {len(stored) - last - 1} messages from {last + 1} on were never given")
    judged = [(claim, _without(claim.given, excused.get(claim.member, ()))) for claim in partition.claims]
    return found + _check_owners(judged) + _check_commits(judged, partition.saved)


def _without(given: list[Given], excused: Sequence[tuple[float, float]]) -> list[Given]:
    return [each for each in given if not any(begin <= each.asked <= end for begin, end in excused)]


def _check_owners(claims: Sequence[tuple[Claim, list[Given]]]) -> list[str]:
    """A message was handed out at some moment between asking and getting: of two claims one can have ended before the
    other began, or both were there at once."""
    found = []
    # a claim begins with what is judged: one that could not know may have got its first message late
    judged = sorted(((claim, given) for claim, given in claims if given), key=lambda one: one[1][0].got)
    for place, (claim, given) in enumerate(judged):
        for other, others in judged[place + 1 :]:
            began = others[0].got
            late = [each for each in given if each.asked > began]
            if late and others[-1].asked > given[0].got:
                found.append(
                    f"two owners: {claim.member} got {len(late)} messages, from {late[0].offset} on,"
                    f" up from {late[0].asked - began:.3f} s after {other.member} had got some, at {began:.3f}"
                )
                break
    return found


def _check_commits(claims: Sequence[tuple[Claim, list[Given]]], saved: Sequence[Saved]) -> list[str]:
    """Goes through all of it in the order of time, with the highest offset that had been committed by then."""
    found = []
    commits = sorted((each.done, each.offset) for each in saved)
    highest = -1
    at = 0
    events = [(each.asked, each.offset, f"again: {claim.member} got") for claim, given in claims for each in given]
    events += [(each.asked, each.offset, "back: somebody committed") for each in saved if each.is_own]
    for asked, offset, what in sorted(events):
        while at < len(commits) and commits[at][0] < asked:
            highest = max(highest, commits[at][1])
            at += 1
        if offset < highest:
            found.append(f"{what} {offset} after {highest} had been committed")
    return found
