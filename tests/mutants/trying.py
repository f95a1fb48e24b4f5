"""Try mutants in several trees at a time and say which were caught."""

from __future__ import annotations

import enum
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.harness.checkout import ROOT
from tests.mutants.areas import NEAR, Area, area_of
from tests.mutants.operators import Mutant
from tests.mutants.trees import HUNG, Tree

HANG_FACTOR = 5
SHORTEST_LIMIT = 120.0
UNMEASURED_LIMIT = 600.0
LONGEST_SUITE = 3600.0
NO_TESTS = 5
MOST_CHANCES = 3
"""So many tests may fail once and then pass."""


class Verdict(enum.Enum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    ONCE = "killed once in two runs"
    """Counts as survived: a kill that does not come again is chance."""
    NOT_BUILT = "does not compile"
    EQUIVALENT = "equivalent"


@dataclass
class Outcome:
    """A mutant, its verdict, the first test that failed and how long building and testing took."""

    mutant: Mutant
    area: str
    verdict: Verdict
    by: str = ""
    seconds: float = 0.0


@dataclass
class Suite:
    """The tests of an area; once measured, without those that fail on the unchanged tree, and how long they take."""

    area: Area
    files: list[str]
    seconds: float | None = None
    failing: list[str] = field(default_factory=list)
    more: tuple[str, ...] = ()

    @property
    def options(self) -> list[str]:
        """Options that leave out what fails anyway, and what nobody asked for."""
        return [*self.more, *(option for name in self.failing for option in ("--deselect", name))]

    @property
    def limit(self) -> float:
        """Seconds after which a run hangs."""
        return UNMEASURED_LIMIT if self.seconds is None else max(SHORTEST_LIMIT, HANG_FACTOR * self.seconds)

    def measure(self, tree: Tree) -> None:
        """Run the tests on the unchanged tree: what fails there can kill nothing."""
        started = time.monotonic()
        _, self.failing, output = tree.test(self.files, LONGEST_SUITE, "--maxfail=1000", *self.more)
        self.seconds = time.monotonic() - started
        if not re.search(r"\d+ passed", output):
            raise RuntimeError(f"the tests of {self.area.name} do not run on the unchanged tree:\n{output[-3000:]}")


def nearest(mutant: Mutant, files: list[str]) -> list[str]:
    """The test files that ``NEAR`` has for the source, or have its module in their name, and those that import it.

    Where there are none, those that have its package in their name. A file may be given as one test, ``FILE::NAME``.
    """
    told = {f"tests/{name}" for name in NEAR.get(mutant.path, ())}
    if told:
        return [name for name in files if name.partition("::")[0] in told]
    package, _, module = mutant.path.rpartition(".")[0].removesuffix("/__init__").replace("/", ".").rpartition(".")
    stem = module.partition(".")[0].strip("_")
    imports = re.compile(rf"\b{package}\.{module}\b|\bfrom {package} import \(?[^)\n]*\b{module}\b")

    def named(word: str) -> list[str]:
        return [name for name in files if word in Path(name.partition("::")[0]).name]

    found = named(stem)
    found += [name for name in files if name not in found and imports.search(_text(name))]
    return found or named(package.rpartition(".")[2])


def nearest_first(mutant: Mutant, files: list[str]) -> list[str]:
    """The test files, those that name the module of the mutant before the others; the order is kept otherwise."""
    near = nearest(mutant, files)
    return near + [name for name in files if name not in near]


@cache
def _text(name: str) -> str:
    return (ROOT / name.partition("::")[0]).read_text(errors="replace")


def try_one(mutant: Mutant, tree: Tree, suite: Suite, files: list[str]) -> Outcome:
    """Plant a bug, run the tests that reach it, and run the one that failed once more."""
    started = time.monotonic()

    def outcome(verdict: Verdict, by: str = "") -> Outcome:
        return Outcome(mutant, suite.area.name, verdict, by, time.monotonic() - started)

    if not tree.plant(mutant):
        return outcome(Verdict.NOT_BUILT)
    verdict, by, options = Verdict.SURVIVED, "", suite.options
    try:
        for _ in range(MOST_CHANCES):
            code, names, output = tree.test(files, suite.limit, *options)
            if code in (0, NO_TESTS):
                break
            by = names[0] if names else ("hangs" if code == HUNG else f"exit code {code}: {output.strip()[-200:]}")
            again, *_ = tree.test(names[:1] or files, suite.limit, *suite.options)
            if again != 0:
                return outcome(Verdict.KILLED, by)
            verdict = Verdict.ONCE
            if not names:
                break
            options = [*options, "--deselect", names[0]]  # others may tell it surely
        return outcome(verdict, by)
    finally:
        tree.restore()


def try_all(
    mutants: Iterable[Mutant],
    trees: list[Tree],
    suites: dict[str, Suite],
    reaching: Callable[[Mutant, list[str]], list[str]],
) -> Iterator[Outcome]:
    """Yield an outcome for each mutant as it comes; as many are tried at a time as there are trees."""
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    done: queue.SimpleQueue[Outcome | BaseException] = queue.SimpleQueue()
    count = 0
    for mutant in mutants:
        waiting.put(mutant)
        count += 1

    def work(tree: Tree) -> None:
        while True:
            try:
                mutant = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                area = area_of(mutant.path)
                assert area is not None
                suite = suites[area.name]
                files = reaching(mutant, nearest_first(mutant, suite.files))
                done.put(try_one(mutant, tree, suite, files) if files else Outcome(mutant, area.name, Verdict.SURVIVED))
            except BaseException as error:  # shown by whoever waits for the outcomes
                done.put(error)
                return

    for tree in trees:
        threading.Thread(target=work, args=(tree,), daemon=True).start()
    for _ in range(count):
        found = done.get()
        if isinstance(found, BaseException):
            raise found
        yield found
