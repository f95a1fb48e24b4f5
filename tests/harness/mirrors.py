"""Two clusters under load, a third one, and a mirror between them that can be killed; what is in the third one is held
against the logs of the first two, entry by entry and byte by byte."""

from __future__ import annotations

import contextlib
import json
import random
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from fastlog import testing
from fastlog.zkpaths import PartitionId, offset_path, parse_number
from tests.fault.programs import ROOT, environment
from tests.harness.broker import Broker, die_with_parent, wait_until
from tests.harness.load import Load
from tests.harness.raw_format import entries
from tests.harness.registration import Tree, registered_broker

GROUP = "mirror"
TOPICS = ("a", "b")
PARTITIONS = {"one": 3, "two": 2}
"""Of each topic, in each source; the target has as many as the first."""
BOUND_BYTES = 20_000
FETCH_BYTES = 4096
SESSION_MS = 500
CAUGHT_UP_SECONDS = 60.0
SHOWN = 5

Origin = tuple[str, str, int]
"""The origin of a message: source cluster, topic, partition."""


def raw_entries(data: bytes) -> list[bytes]:
    """The whole entries of a log as they lie there, compressed sets closed."""
    return [data[item.offset : item.next_offset] for item in entries(data)]


class Comparison:
    """What the target holds of each partition of the sources."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.repeats: Counter[Origin] = Counter()
        self.repeated_bytes: Counter[Origin] = Counter()
        self.places: dict[Origin, set[tuple[str, int]]] = {}

    def expect(self, holds: bool, what: str) -> None:
        """Note a violation unless it holds."""
        if not holds:
            self.violations.append(what)


def compare(
    sources: Mapping[Origin, bytes], target: Mapping[tuple[str, int], bytes], *, in_order: bool = True
) -> Comparison:
    """Every entry of the sources is in the target, none is altered or invented, and those of a partition come in order:
    each behind the one before it, or again. ``in_order``: none came first before its turn."""
    found = Comparison()
    origin_of: dict[tuple[str, bytes], tuple[Origin, int]] = {}
    counts: dict[Origin, int] = {}
    for origin, data in sources.items():
        held = raw_entries(data)
        counts[origin] = len(held)
        for number, entry in enumerate(held):
            origin_of[origin[1], entry] = origin, number
    seen: dict[Origin, set[int]] = {origin: set() for origin in sources}
    highest = dict.fromkeys(sources, -1)
    for place, data in target.items():
        for entry in raw_entries(data):
            known = origin_of.get((place[0], entry))
            if known is None:
                found.violations.append(f"{place} holds an entry that no source has: {entry[:80]!r}")
                continue
            origin, number = known
            found.places.setdefault(origin, set()).add(place)
            if number in seen[origin]:
                found.repeats[origin] += 1
                found.repeated_bytes[origin] += len(entry)
            elif in_order and number > highest[origin] + 1:
                found.violations.append(f"{place}: entry {number} of {origin} before {highest[origin] + 1}")
            seen[origin].add(number)
            highest[origin] = max(highest[origin], number)
    for origin, count in counts.items():
        lost = sorted(set(range(count)) - seen[origin])
        found.expect(not lost, f"{len(lost)} of {count} entries of {origin} are lost, the first {lost[:SHOWN]}")
    return found


class MirrorProgram:
    """Starts mirrors, one at a time, from one process that has imported everything; until it is left."""

    def __init__(self, told: Mapping[str, object], said: Path) -> None:
        self.kills = 0
        self._said = said
        with said.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fault.mirror_program", json.dumps(told)],
                cwd=ROOT,
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                text=True,
                preexec_fn=die_with_parent,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def said(self) -> str:
        """What the mirrors wrote to stderr, the end of it."""
        return self._said.read_text(errors="replace")[-4000:]

    def start(self) -> int:
        """Start a mirror; returns its process id."""
        return self._tell("start")

    def kill(self) -> None:
        """Kill the mirror with SIGKILL; returns when it is gone."""
        self._tell("kill")
        self.kills += 1

    def stop(self) -> int:
        """Stop the mirror with SIGTERM; returns its exit code."""
        return self._tell("stop")

    def _tell(self, word: str) -> int:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(word + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], CAUGHT_UP_SECONDS)
        assert ready, f"no answer to {word}\n{self.said}"
        return int(process.stdout.readline())


class MirrorCell:
    """From entering to leaving the block; the mirror is started by ``start``."""

    def __init__(
        self, directory: Path, seed: int, *, settings: Mapping[str, str] | None = None, pause: float = 0.003
    ) -> None:
        self.directory = directory
        self.source = random.Random(seed)
        self.brokers: dict[str, Broker] = {}
        self.loads: list[Load] = []
        self._settings = dict(settings or {})
        self._pause = pause
        self._seed = seed
        self._stack = ExitStack()
        self._program: MirrorProgram | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.zookeeper = stack.enter_context(testing.zookeeper())
            for number, (name, partitions) in enumerate({**PARTITIONS, "target": PARTITIONS["one"]}.items()):
                self.brokers[name] = stack.enter_context(
                    registered_broker(
                        self.directory / name,
                        self.connect(name),
                        number,
                        processors=1,
                        settings={"num.partitions": partitions, "flush.min.interval.ms": 1},
                    )
                )
            self.trees = {name: stack.enter_context(Tree(self.connect(name))) for name in PARTITIONS}
            for number, (name, partitions) in enumerate(PARTITIONS.items()):
                load = Load(
                    self.brokers[name],
                    [(topic, partition) for topic in TOPICS for partition in range(partitions)],
                    producers=1,
                    consumers=0,
                    compressed=0.3,
                    pause=self._pause,
                    seed=self._seed + number,
                    name=f"{name}-",
                )
                self.loads.append(stack.enter_context(load))
            self._program = stack.enter_context(self._make_program())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def connect(self, name: str) -> str:
        """The cluster's ``zk.connect``."""
        return f"{self.zookeeper.connect}/{name}"

    @property
    def program(self) -> MirrorProgram:
        """The program that starts mirrors."""
        assert self._program is not None
        return self._program

    @property
    def said(self) -> str:
        """What the mirrors wrote to stderr, the end of it."""
        return self.program.said

    # --- the mirror ---

    def _make_program(self) -> MirrorProgram:
        common = {"groupid": GROUP, "zk.sessiontimeout.ms": str(SESSION_MS), "fetch.size": str(FETCH_BYTES)}
        common |= {"autocommit.interval.ms": "50", "rebalance.backoff.ms": "100", "zk.connectiontimeout.ms": "2000"}
        told = {
            "sources": {name: {"zk.connect": self.connect(name), **common} for name in PARTITIONS},
            "target": {"zk.connect": self.connect("target"), "zk.sessiontimeout.ms": "1000"},
            "settings": {
                "mirror.topics.whitelist": "a,b",
                "mirror.uncommitted.bytes": str(BOUND_BYTES),
                **self._settings,
            },
            "report": str(self.directory / "report.json"),
        }
        return MirrorProgram(told, self.directory / "mirror.said")

    @property
    def kills(self) -> int:
        """How many mirrors were killed so far."""
        return self.program.kills

    def start(self) -> None:
        """Start a mirror."""
        self.program.start()

    def kill(self) -> None:
        """Kill the mirror with SIGKILL; returns when it is gone."""
        self.program.kill()

    def stop(self) -> int:
        """Stop the mirror with SIGTERM; returns its exit code."""
        return self.program.stop()

    @property
    def report(self) -> list[dict[str, object]]:
        """What the mirror that was stopped last said of each source."""
        found: list[dict[str, object]] = json.loads((self.directory / "report.json").read_text())
        return found[1:]

    # --- the logs ---

    def held(self, names: Sequence[str] = tuple(PARTITIONS)) -> dict[Origin, bytes]:
        """What the logs of the sources hold now."""
        return {
            (name, topic, number): _stored(self.brokers[name], topic, number)
            for name in names
            for topic in TOPICS
            for number in range(PARTITIONS[name])
        }

    def mirrored(self) -> dict[tuple[str, int], bytes]:
        """What the log of the target holds now."""
        broker = self.brokers["target"]
        return {(topic, number): _stored(broker, topic, number) for topic in TOPICS for number in range(3)}

    @property
    def size(self) -> int:
        """How many bytes the target's log has."""
        return sum(map(len, self.mirrored().values()))

    def wait_forwarded(self, within: float = CAUGHT_UP_SECONDS) -> None:
        """Something came into the target since now."""
        before = self.size
        self._wait("something is forwarded", lambda: self.size > before, within)

    def wait_caught_up(self, within: float = CAUGHT_UP_SECONDS) -> None:
        """All that the sources hold is in the target. The load has ended."""
        wanted = {(topic, entry) for (_, topic, _), data in self.held().items() for entry in raw_entries(data)}

        def is_there() -> bool:
            return wanted <= {
                (topic, entry) for (topic, _), data in self.mirrored().items() for entry in raw_entries(data)
            }

        with contextlib.suppress(AssertionError):  # what is missing is named by the comparison
            self._wait("all is forwarded", is_there, within, 0.05)

    def _wait(self, what: str, condition: Callable[[], object], within: float, pause: float = 0.01) -> None:
        try:
            wait_until(what, condition, within, pause)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said}") from None

    def committed_too_early(self) -> list[str]:
        """A line for each partition whose committed offset lies behind what the target has. Nothing runs meanwhile."""
        there: dict[str, set[bytes]] = {topic: set() for topic in TOPICS}
        committed = {origin: self._committed(origin) for origin in self.held()}
        for (topic, _), data in self.mirrored().items():
            there[topic].update(raw_entries(data))
        found = []
        for origin, data in self.held().items():
            missing = [entry for entry in raw_entries(data[: committed[origin]]) if entry not in there[origin[1]]]
            if missing:
                found.append(
                    f"{origin} is committed up to {committed[origin]}, of which {len(missing)} entries are lost"
                )
        return found

    def _committed(self, origin: Origin) -> int:
        name, topic, partition = origin
        broker = list(PARTITIONS).index(name)
        node = self.trees[name].node(offset_path(GROUP, topic, PartitionId(broker, partition)))
        return parse_number(node.data) if node is not None else 0

    def finish(self, *, bound: int, in_order: bool = True) -> list[str]:
        """End the load, let the mirror come to the end, stop it, and compare; ``bound``: bytes twice per partition."""
        for load in self.loads:
            load.stop()
        for broker in self.brokers.values():
            with broker.connect() as client:
                assert client.metadata([]) is not None
        self.wait_caught_up()
        code = self.stop()
        found = compare(self.held(), self.mirrored(), in_order=in_order)
        found.expect(code == 0, f"the last mirror ended with {code}\n{self.said}")
        for origin, size in found.repeated_bytes.items():
            found.expect(size <= bound, f"{size} bytes of {origin} came twice, allowed are {bound}")
        for origin, places in found.places.items():
            wanted = {(origin[1], origin[2])}
            found.expect(places == wanted, f"{origin} is in {sorted(places)} instead of {sorted(wanted)}")
        for origin, data in self.held().items():
            committed = self._committed(origin)
            found.expect(committed == len(data), f"{origin} is committed up to {committed} of {len(data)} at the end")
        if found.violations:
            found.violations.append(self.said)
        return found.violations


def _stored(broker: Broker, topic: str, number: int) -> bytes:
    return broker.stored_bytes(topic, number) if broker.has_directory(topic, number) else b""


def pause_up_to(source: random.Random, seconds: float) -> None:
    """Sleep for a random time of up to ``seconds``."""
    time.sleep(source.uniform(0.0, seconds))
