"""Members that follow the protocol of groups or break it, time, deaths of the coordinator, and a judge of its answers.

The judge knows the promises of the protocol and nothing of how they are kept: no two members own a partition in one
generation, nobody commits who is fenced, gone or of another generation, and members that go on asking end in one
generation that has every partition.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from fastlog.kafka_codes import Code
from fastlog.workers.coordinator.groups.machine import Group, Limits, Store
from fastlog.workers.coordinator.groups.members import Joined, Joining, Stored, Synced
from fastlog.workers.coordinator.promises import Promise

PARTITIONS = 6
SESSION_MS = 6_000
REBALANCE_MS = 10_000
BEAT_MS = 2_000
CALM_TURNS = 3_000


class Violation(AssertionError):
    """A promise was broken."""


class Client:
    """A member's side: what it has been told, and what it waits for."""

    def __init__(self, number: int, source: random.Random) -> None:
        self.name = f"c{number}"
        self.instance = f"i{number}" if number % 3 == 2 else None
        self.source = source
        self.is_dead = False
        self.start()

    def start(self) -> None:
        """A new process: it knows nothing but its instance id."""
        self.member_id = ""
        self.generation = -1
        self.owned: frozenset[int] | None = None  # None: it has to join
        self.joined: Joined | None = None  # it has to sync
        self.waits: Promise[Any] | None = None
        self.beat_at = 0
        self.protocols = tuple((name, b"%d" % self.source.randrange(2)) for name in ("range", "sticky"))
        self.session_ms = SESSION_MS * self.source.choice((1, 2))
        self.needs_id = self.source.random() < 0.7

    @property
    def key(self) -> str:
        """Who owns what it owns: a static member's next process takes that over."""
        return self.instance or self.member_id


class Simulation:
    """One group, its members and its judge; the same seed makes the same steps."""

    def __init__(self, seed: int, clients: int = 5) -> None:
        self.source = random.Random(seed)
        self.limits = Limits(self.source.choice((0, 3_000)), self.source.choice((3, 100)))
        self.group = self._fresh()
        self.clients = [Client(number, self.source) for number in range(clients)]
        self.now = 1_000
        self.is_calm = False
        self.stores: list[Store] = []
        self.kept: Stored | None = None  # what a successor finds
        self.past: list[tuple[str, str | None, int]] = []  # who somebody has been
        self.owners: dict[int, dict[int, str]] = {}  # by generation and partition
        self.last_given = [0] * PARTITIONS  # the newest generation in which somebody was given each
        self.newest = 0
        self.heard: dict[str, int] = {}  # when each member was last answered well; who is gone is not there
        self.fenced: set[str] = set()
        self.committed = self.assigned = self.deaths = 0

    def _fresh(self) -> Group:
        return Group(self.limits, self._new_id)

    def _new_id(self) -> str:
        return f"{self.source.randrange(10**15)}"

    # -- steps ---------------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        """Some steps of chaos, then calm, in which all must come right."""
        for _ in range(steps):
            self.step()
        self.calm_down()

    def step(self) -> None:
        """Let one random event happen."""
        drawn = self.source.random()
        if drawn < 0.80:
            self._act(self.source.choice(self.clients))
        elif drawn < 0.90:
            self._settle()
        elif drawn < 0.97:
            self._pass(self.source.choice((1, 50, 500, 3_000)))
        elif drawn < 0.985:
            self._replay()
        elif drawn < 0.998:
            client = self.source.choice(self.clients)
            client.is_dead = not client.is_dead and self.source.random() < 0.5
            if not client.is_dead and self.source.random() < 0.5:
                client.start()
        else:
            self._kill()

    def _pass(self, milliseconds: int) -> None:
        self.now += milliseconds
        if self.group.due <= self.now:
            self.group.tick(self.now)
            if self.group.due <= self.now:
                raise Violation(f"due at {self.group.due} after a tick at {self.now}")
        self.stores += self.group.take_stores()

    def _settle(self, fails: bool | None = None) -> None:
        """What was to be kept is kept, the oldest first, or cannot be."""
        self.stores += self.group.take_stores()
        if not self.stores:
            return
        store = self.stores.pop(0)
        if fails is None:
            fails = not self.is_calm and self.source.random() < 0.1
        if not fails:
            self.kept = store.record
        store.settle(Code.COORDINATOR_NOT_AVAILABLE if fails else Code.NONE, self.now)

    def _kill(self) -> None:
        """The coordinator dies, and its successor goes on from what was kept, of what was on its way some or all."""
        self.deaths += 1
        self.stores += self.group.take_stores()
        for store in self.stores[: self.source.randrange(len(self.stores) + 1)]:
            self.kept = store.record
        self.stores = []
        for client in self.clients:
            client.waits = None
        self.heard = {}
        if self.kept is None:
            self.group, self.newest = self._fresh(), 0
        else:
            self.group = Group.restored(self.kept, self.limits, self.now, self._new_id)
            self.newest = self.kept.generation
            self.heard = {member.member_id: self.now for member in self.kept.members}

    # -- members -------------------------------------------------------------------------------------------------------

    def _act(self, client: Client) -> None:
        if client.is_dead:
            return
        if client.waits is not None:
            if client.waits.value is not None:
                answer, client.waits = client.waits.value, None
                (self._joined if isinstance(answer, Joined) else self._synced)(client, answer)
            elif not self.is_calm and self.source.random() < 0.01:
                client.waits = None  # its connection breaks
        elif client.joined is not None:
            self._sync(client)
        elif client.owned is None:
            self._join(client)
        elif not self.is_calm and self.source.random() < 0.03:
            self._leave(client)
        elif not self.is_calm and self.source.random() < 0.03:
            client.owned = None  # joins again, often with nothing new
            if self.source.random() < 0.5:
                client.protocols = tuple((name, b"%d" % self.source.randrange(4)) for name, _ in client.protocols)
        elif self.source.random() < 0.4:
            self._commit(client.member_id, client.instance, client.generation, client.owned, client)
        elif self.now >= client.beat_at:
            self._beat(client)

    def _join(self, client: Client) -> None:
        names = (
            client.protocols if self.is_calm or self.source.random() < 0.98 else (("own", b"x"), client.protocols[0])
        )
        asked = Joining(
            client.member_id,
            client.instance,
            client.name,
            "h",
            client.session_ms,
            REBALANCE_MS,
            "consumer",
            names,
            client.needs_id,
            self.source.random() < 0.5,
        )
        client.waits = self.group.join(asked, self.now)
        if client.member_id in self.heard:
            self.heard[client.member_id] = self.now

    def _joined(self, client: Client, answer: Joined) -> None:
        if answer.code in (Code.MEMBER_ID_REQUIRED, Code.NONE):
            self.heard[answer.member_id] = self.now
            if client.member_id and client.member_id != answer.member_id:
                raise Violation(f"{client.member_id} was told to be {answer.member_id}")
            client.member_id = answer.member_id
        if answer.code is Code.NONE:
            self.newest = max(self.newest, answer.generation)
            if client.instance is not None:
                self._fence_others(client)
            client.generation, client.joined = answer.generation, answer
            self.past.append((client.member_id, client.instance, client.generation))
            if len(self.past) > 200:
                del self.past[:100]
        elif answer.code in (Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID):
            if answer.code is Code.FENCED_INSTANCE_ID and self.is_calm:
                raise Violation(f"{client.instance} is fenced, and nobody else has its instance id")
            client.start()
        elif answer.code is Code.INCONSISTENT_GROUP_PROTOCOL and self.is_calm:
            # The new one lacks their assignor, and after a death the successor knows of no other, as in Kafka: nothing
            # but a new start of theirs helps.
            for other in self.clients:
                if not other.is_dead and other is not client and other.member_id:
                    self._leave(other)

    def _fence_others(self, client: Client) -> None:
        for member_id, instance, _ in self.past:
            if instance == client.instance and member_id != client.member_id:
                self.fenced.add(member_id)
                self.heard.pop(member_id, None)

    def _sync(self, client: Client) -> None:
        assert client.joined is not None
        given: dict[str, bytes] = {}
        if client.joined.leader == client.member_id and not client.joined.skip_assignment:
            members = [member.member_id for member in client.joined.members]
            if client.member_id not in members:
                raise Violation("a leader is not told of itself")
            self.source.shuffle(members)
            for partition in range(PARTITIONS):
                member = members[partition % len(members)]
                given[member] = given.get(member, b"") + bytes([partition])
        client.waits = self.group.sync(
            client.member_id, client.instance, client.generation, "consumer", client.joined.protocol, given, self.now
        )
        client.joined = None
        if client.member_id in self.heard:
            self.heard[client.member_id] = self.now

    def _synced(self, client: Client, answer: Synced) -> None:
        if answer.code in (Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID):
            client.start()
        elif answer.code is Code.NONE:
            client.owned = frozenset(answer.assignment)
            self.assigned += 1
            self.heard[client.member_id] = self.now
            owners = self.owners.setdefault(client.generation, {})
            for partition in client.owned:
                other = owners.setdefault(partition, client.key)
                if other != client.key:
                    raise Violation(f"{partition} is both {other}'s and {client.key}'s in {client.generation}")
                self.last_given[partition] = max(self.last_given[partition], client.generation)
            for old in [number for number in self.owners if number < client.generation - 50]:
                del self.owners[old]
        else:
            client.owned = None

    def _beat(self, client: Client) -> None:
        client.beat_at = self.now + BEAT_MS
        code = self.group.heartbeat(client.member_id, client.instance, client.generation, self.now)
        if code in (Code.NONE, Code.REBALANCE_IN_PROGRESS):
            self._check_member(client.member_id, client.generation, "is told that it is there")
        self._told(client, code)

    def _told(self, client: Client, code: Code) -> None:
        if code in (Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID):
            client.start()
        elif code in (Code.REBALANCE_IN_PROGRESS, Code.ILLEGAL_GENERATION):
            client.owned = None

    def _leave(self, client: Client) -> None:
        ((_, code),) = self.group.leave([(client.member_id, client.instance)], self.now)
        if code is Code.NONE:
            self.heard.pop(client.member_id, None)
        client.start()

    def _commit(
        self, member_id: str, instance: str | None, generation: int, owned: frozenset[int], client: Client | None
    ) -> None:
        code = self.group.refusal_to_commit(member_id, instance, generation, self.now)
        if code is Code.NONE and generation >= 0:
            self.committed += 1
            self._check_member(member_id, generation, "commits")
            for partition in owned:
                if self.last_given[partition] > generation:
                    raise Violation(f"{member_id} commits {partition} in {generation}, which has gone to others since")
        if client is not None:
            self._told(client, code)

    def _replay(self) -> None:
        """A process that was asleep, or somebody's old packet: it says what it may have said once."""
        if not self.past:
            return
        member_id, instance, generation = self.source.choice(self.past)
        match self.source.randrange(5):
            case 0:
                code = self.group.heartbeat(member_id, instance, generation, self.now)
                if code in (Code.NONE, Code.REBALANCE_IN_PROGRESS):
                    self._check_member(member_id, generation, "is told that it is there")
            case 1:
                self._commit(member_id, instance, generation, frozenset(), None)
            case 2:
                self._commit("", None, -1, frozenset(), None)
            case 3:
                if not self.is_calm and self.source.random() < 0.2:
                    ((_, code),) = self.group.leave([(member_id, instance)], self.now)
                    if code is Code.NONE:
                        self.heard.pop(member_id, None)
            case 4:
                if generation < self.newest:
                    answer = self.group.sync(member_id, instance, generation, "consumer", None, {}, self.now).value
                    if answer is None or answer.code is Code.NONE:
                        raise Violation(f"{member_id} is given an assignment of {generation}")

    def _check_member(self, member_id: str, generation: int, what: str) -> None:
        """Whoever is believed is a member of now."""
        if generation < self.newest:
            raise Violation(f"{member_id} {what} in {generation}, and {self.newest} was begun")
        if member_id in self.fenced:
            raise Violation(f"{member_id} {what} and is fenced")
        heard = self.heard.get(member_id)
        if heard is None:
            raise Violation(f"{member_id} {what} and has left, or never was")
        # a rebalance may hold it up for as long as it takes, and then it has its session's time
        if heard + 2 * SESSION_MS + 2 * REBALANCE_MS + 3_000 < self.now:
            raise Violation(f"{member_id} {what} and was not heard of since {heard}, it is {self.now}")
        self.heard[member_id] = self.now

    # -- coming right --------------------------------------------------------------------------------------------------

    def calm_down(self) -> None:
        """Nobody dies and nothing fails any more: all that live come to own everything, in one generation."""
        self.is_calm = True
        for _ in self._turns():
            if self._is_right():
                break
        else:
            raise Violation(f"after the time of some rebalances: {[vars(client) for client in self.clients]}")
        self.is_calm = False

    def _turns(self) -> Iterator[None]:
        for _ in range(CALM_TURNS):
            for client in self.clients:
                self._act(client)
            self._settle()
            self._pass(50)
            yield

    def _is_right(self) -> bool:
        living = [client for client in self.clients if not client.is_dead]
        inside = [client for client in living if client.owned is not None and client.waits is None]
        if len(inside) < min(len(living), self.limits.max_size) or len({client.generation for client in inside}) > 1:
            return False
        if any(client.generation != self.group.generation for client in inside):
            return False
        gone = len(self.group.members) - len(inside)
        found = [partition for client in inside for partition in client.owned or ()]
        return not gone and sorted(found) == (list(range(PARTITIONS)) if inside else [])
