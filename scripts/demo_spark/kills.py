"""Who is killed when: a seed chooses, one after the other, until it is over."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fastlog.testing import RunningBroker
from scripts.demo_spark.processes import ObjectStore, Program

PAUSE_SECONDS = (0.5, 2.5)
AWAY_SECONDS = (0.2, 1.2)
REPLACED_SECONDS = 60.0
_HURRY = 0.02


class Hit(NamedTuple):
    """Something that was killed, in seconds since 1970."""

    at: float
    back: float
    kind: str
    """``broker``, ``process``, ``mirror``, ``job``, ``store``."""
    what: str


class Hurt(NamedTuple):
    """One thing that was done to a victim."""

    kind: str
    what: str


@dataclass(frozen=True)
class Victim:
    """``hurt`` returns once it is back."""

    name: str
    hurt: Callable[[random.Random], Hurt]
    is_ready: Callable[[], bool] = lambda: True
    most: int = 1000
    """How often it may be hurt at most."""


def broker_victim(name: str, broker: RunningBroker) -> Victim:
    """The whole of it, which is away for a while then, or one of its processes, which it replaces."""

    def hurt(chance: random.Random) -> Hurt:
        away = chance.uniform(*AWAY_SECONDS)
        chosen = chance.random()
        if chosen < 0.5:
            broker.kill()
            time.sleep(away)
            broker.start()
            return Hurt("broker", f"the cluster {name}, kill -9 of everything, away for {away:.1f} s")
        roles = sorted(role for role in broker.pids() if role not in ("supervisor", "acceptor"))
        role = roles[int((chosen - 0.5) * 2 * len(roles))]
        broker.wait_replaced(role, broker.kill(role), REPLACED_SECONDS)
        return Hurt("process", f"the cluster {name}, kill -9 of its {role}")

    return Victim(name, hurt)


def program_victim(
    kind: str, program: Program, is_ready: Callable[[], bool] = lambda: True, most: int = 1000
) -> Victim:
    """Killed with all that it started, and started again at once."""

    def hurt(chance: random.Random) -> Hurt:
        time.sleep(chance.uniform(*AWAY_SECONDS))  # wherever it is then
        count = program.kill()
        program.start()
        return Hurt(kind, f"{program.name}, kill -9 of {count} process{'es' if count > 1 else ''}")

    return Victim(program.name, hurt, is_ready, most)


def store_victim(store: ObjectStore) -> Victim:
    """It keeps everything in memory, so it stands still for a while instead."""

    def hurt(chance: random.Random) -> Hurt:
        away = chance.uniform(*AWAY_SECONDS)
        store.pause()
        time.sleep(away)
        store.resume()
        return Hurt("store", f"the object store, stopped for {away:.1f} s")

    return Victim(store.name, hurt)


class Killer:
    """Hurts each victim once a round, in an order of chance, with pauses; who is not ready is passed over."""

    def __init__(self, victims: Sequence[Victim], seed: int) -> None:
        self.hits: list[Hit] = []
        self.hurt: set[str] = set()
        """The names of the victims that have been hurt."""
        self._victims = list(victims)
        self._left = {victim.name: victim.most for victim in victims}
        self._chance = random.Random(seed)

    def run(self, is_over: Callable[[], bool]) -> None:
        """Go on until it is over, which is asked before each victim; raises what that or a victim raises."""
        while not is_over():
            self._round(is_over)
            time.sleep(_HURRY)

    def _round(self, is_over: Callable[[], bool]) -> None:
        for victim in self._chance.sample(self._victims, len(self._victims)):
            if not self._left[victim.name] or not victim.is_ready():
                continue
            time.sleep(self._chance.uniform(*PAUSE_SECONDS))
            if is_over():
                return
            began = time.time()
            done = victim.hurt(self._chance)
            self._left[victim.name] -= 1
            self.hits.append(Hit(began, time.time(), *done))
            self.hurt.add(victim.name)
