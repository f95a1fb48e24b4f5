"""Runs scenarios in turn, A B C A B C …, and keeps what they give, also of a replay that is interrupted.

On a virtual machine two runs of the same thing can differ by a factor; only runs that alternate can be compared. Run i
of every series belongs to round i: a scenario that fails once is not tried again, so that no later run takes its place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from perf import interrupts
from perf.figures.results import Run, Series
from perf.figures.text import figure as shown
from perf.replay.scenarios import BLOCKS, PEERS, Scenario
from perf.replay.stage import Stage

PEER_ROUNDS = 3

Measure = Callable[[Stage, Scenario, str], Mapping[str, Run]]


@dataclass
class Task:
    """One scenario on one system, with the runs of each of its figures."""

    scenario: Scenario
    system: str
    rounds: int
    runs: dict[str, list[Run]] = field(default_factory=dict)
    absent: str | None = None

    def series(self) -> list[Series]:
        """What there is of it, as the result file keeps it; fastlog's own carry the goals and the paper's figures."""
        found = []
        for figure in self.scenario.figures:
            runs = tuple(self.runs.get(figure.takes, ()))
            if self.system != self.scenario.systems[0] and figure is not self.scenario.figures[0]:
                continue  # others give a rate and nothing else
            own = self.system == self.scenario.systems[0]
            found.append(
                Series(
                    scenario=figure.name,
                    system=self.system,
                    title=figure.title,
                    section=figure.section,
                    unit=figure.unit,
                    better=figure.better,
                    x=figure.x,
                    x_title=figure.x_title,
                    parameters=self.scenario.parameters(),
                    goal=figure.goal if own else None,
                    paper=figure.paper if own else None,
                    runs=runs,
                    absent=None if runs else self.absent or "it was not reached",
                )
            )
        return found


def tasks(scenarios: Iterable[Scenario], rounds: int, peers: Sequence[str]) -> list[Task]:
    """What is to be run, in order: for each scenario fastlog, then what it is compared with."""
    found = []
    for scenario in scenarios:
        own = scenario.turns(rounds)
        for system in scenario.systems:
            if system == PEERS:
                found += [Task(scenario, peer, min(own, PEER_ROUNDS)) for peer in peers]
            else:
                found.append(Task(scenario, system, own))
    return found


class Rounds:
    """Runs tasks, block by block. ``notes`` says what a reader of the result must know."""

    def __init__(
        self,
        stage: Stage,
        found: Sequence[Task],
        measure: Measure,
        say: Callable[[str], None],
        round_ended: Callable[[], object] = lambda: None,
    ) -> None:
        self._stage = stage
        self._tasks = found
        self._measure = measure
        self._say = say
        self._round_ended = round_ended
        self.notes: list[str] = []
        self.failed = False

    def run(self) -> None:
        """Run everything; a scenario that fails is noted and passed over from then on."""
        for block in BLOCKS:
            found = [task for task in self._tasks if task.scenario.block == block and task.absent is None]
            try:
                for number in range(max((task.rounds for task in found), default=0)):
                    self._round(block, number, found)
            finally:
                self._stage.end_block()

    def _round(self, block: str, number: int, found: Sequence[Task]) -> None:
        last = max(task.rounds for task in found)
        self._say(f"{block}: round {number + 1} of {last}")
        try:
            for task in found:
                if number < task.rounds and task.absent is None:
                    self._one(task, number)
        finally:
            self._stage.end_round()
        self._round_ended()

    def _one(self, task: Task, number: int) -> None:
        started = time.monotonic()
        try:
            numbers = self._measure(self._stage, task.scenario, task.system)
        except Exception as error:  # whatever it is: the other scenarios, and what was measured so far, go on
            if interrupts.came():
                interrupts.end()
            reason = " ".join(str(error).split()) or type(error).__name__
            task.absent = reason
            self.failed = True
            self.notes.append(f"{task.scenario.name} on {task.system} failed in round {number + 1}: {reason}")
            self._say(f"  {task.scenario.name:32}{task.system:18}failed: {reason}")
            return
        for figure in task.scenario.figures:
            if figure.takes in numbers:
                task.runs.setdefault(figure.takes, []).append(numbers[figure.takes])
        first = task.scenario.figures[0]
        value = shown(numbers[first.takes].value, first.unit)
        self._say(f"  {task.scenario.name:32}{task.system:18}{value:>14}  ({time.monotonic() - started:.1f} s)")


def series_of(found: Sequence[Task]) -> tuple[Series, ...]:
    """All series, each scenario's together, the ceiling behind what it is the ceiling of."""
    return tuple(series for task in found for series in task.series())
