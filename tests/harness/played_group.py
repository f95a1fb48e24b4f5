"""A group's state machine played by hand: who joins and asks at which millisecond."""

from __future__ import annotations

import itertools

from fastlog.kafka_codes import Code
from fastlog.workers.coordinator.groups.machine import Group, Limits, State
from fastlog.workers.coordinator.groups.members import Joined, Joining, Stored, Synced
from fastlog.workers.coordinator.promises import Promise

SESSION, REBALANCE = 10_000, 60_000
RANGE = (("range", b"r"),)
BOTH = (("range", b"r"), ("sticky", b"s"))


class Played(Group):
    """A group whose stores succeed at once, unless a test holds them."""

    def __init__(self, delay: int = 0, most: int = 100) -> None:
        count = itertools.count(1)
        super().__init__(Limits(delay, most), lambda: str(next(count)))
        self.kept: list[Stored] = []

    def settle(self, code: Code = Code.NONE, now: int = 0) -> None:
        for store in self.take_stores():
            self.kept.append(store.record)
            store.settle(code, now)

    def come(self, member_id: str = "", now: int = 0, **given: object) -> Promise[Joined]:
        asked = Joining(member_id, None, "c", "h", SESSION, REBALANCE, "consumer", RANGE, needs_id=False)
        return self.join(asked._replace(**given), now)  # type: ignore[arg-type]

    def ask(self, member_id: str, given: dict[str, bytes] | None = None, now: int = 0, **more: object) -> Synced | None:
        generation = more.pop("generation", self.generation)
        waiting = self.sync(member_id, more.pop("instance_id", None), generation, None, None, given or {}, now, **more)  # type: ignore[arg-type]
        return waiting.value


def joined(waiting: Promise[Joined]) -> Joined:
    assert waiting.value is not None
    return waiting.value


def stable(*ids: str, **given: object) -> Played:
    """A group of members c-1, c-2 … that each own a byte of their number."""
    group = Played()
    first = joined(group.come(**given)).member_id
    others = [group.come(**given) for _ in ids[1:]]
    again = group.come(first, **given)
    members = [joined(again).member_id, *(joined(each).member_id for each in others)]
    assert tuple(members) == ids
    share = {member_id: b"%d" % number for number, member_id in enumerate(ids)}
    for member_id in ids:
        group.ask(member_id, share)
    group.settle()
    assert group.state is State.STABLE
    return group
