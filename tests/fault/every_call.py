"""Every disk call that any process of a broker makes fails once, one at a time, each with every error it may have.

A rehearsal counts them: starts after nothing, after a clean stop and after a kill; appends, rolls, flushes, reads, new
topics, retention, a processor and a flusher that are replaced, clean stops. Then each call of each role (``disk_shim``)
fails in a run of its own, which goes on as if nothing were, is started once more without a fault, and is held against
its history (``every_call_program``).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.fault.every_call_rules import Case, errors, judge
from tests.fault.registry import Outcome, scenario
from tests.harness import disk_shim
from tests.harness.checkout import ROOT

ACTS = 3
"""Those in which calls fail; the fourth is the one that looks at what is left."""
PROGRAMS = 2
ALL = 1_000_000


def cases(rehearsal: Sequence[dict[str, Any]]) -> list[Case]:
    """All of them."""
    return [
        Case(act, role, kind, number, error)
        for act, told in enumerate(rehearsal[:ACTS])
        for role, kind, count in told["counts"]
        for number in range(1, count + 1)
        for error in errors(kind)
    ]


def ends(every: Sequence[Case]) -> list[Case]:
    """Of each kind, role and error the first call and the last, over all acts."""
    found: dict[tuple[str, str, str], list[Case]] = {}
    for case in every:
        found.setdefault((case.role, case.kind, case.error), []).append(case)
    return [case for group in found.values() for case in dict.fromkeys((group[0], group[-1]))]


class Program:
    """A process behind the shim that plays; used by one thread, until the ``with`` block ends."""

    def __init__(self, directory: Path, library: Path) -> None:
        directory.mkdir()
        control = directory / "control"
        disk_shim.make_control(control)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fault.every_call_program", str(directory / "run")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**disk_shim.environment(library, control), "PYTHONPATH": str(ROOT)},
            text=True,
        )
        self.rehearsal: list[dict[str, Any]] = self._answer()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def run(self, case: Case) -> dict[str, Any]:
        """One run; what is told of it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        told: dict[str, Any] = self._answer()
        return told

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"the program has ended with {self._process.wait()}")
        return json.loads(line)


class Explorer:
    """Hands cases out to programs, and collects what broke a promise."""

    def __init__(self, directory: Path, outcome: Outcome) -> None:
        self._directory = directory
        self._outcome = outcome
        self._library = disk_shim.build(directory)
        self._lock = threading.Lock()
        self._left: Iterator[Case] = iter(())
        self.missed: list[Case] = []
        """What no run came to: how often some calls are made hangs on the time that other things take."""

    def explore(self, count: int, seed: int) -> None:
        """``count`` runs, or as many as there are: first calls and last ones of each kind before others."""
        with contextlib.ExitStack() as stack:
            programs = [
                stack.enter_context(Program(self._directory / f"program-{number}", self._library))
                for number in range(min(PROGRAMS, os.cpu_count() or 1))
            ]
            for program in programs:
                for told in program.rehearsal:
                    self._outcome.violations += [f"without a fault: {line}" for line in told["violations"]]
            if self._outcome.violations:
                return
            rehearsal = programs[0].rehearsal
            every = cases(rehearsal)
            source = random.Random(seed)
            first = ends(every)
            rest = sorted(set(every) - set(first))
            source.shuffle(first)
            source.shuffle(rest)
            self._left = iter([*first, *rest][:count])
            with ThreadPoolExecutor(len(programs)) as pool:
                for done in [pool.submit(self._work, program, rehearsal) for program in programs]:
                    done.result()

    def _work(self, program: Program, rehearsal: list[dict[str, Any]]) -> None:
        while True:
            with self._lock:
                case = next(self._left, None)
            if case is None:
                return
            try:
                told = program.run(case)
            except AssertionError as error:
                told = {"violations": [str(error)], "fired": "", "descriptors": {}}
            held = rehearsal[case.act]["descriptors"]
            with self._lock:
                name = f"{case.role} {case.kind} {case.number} of act {case.act + 1} {case.error} ({told['fired']!r})"
                self._outcome.runs += 1
                self._outcome.violations += [f"{name}: {line}" for line in told["violations"]]
                if told["fired"] is None:
                    self.missed.append(case)
                elif "noticed" in told:
                    wrong = judge(case.role, case.kind, told["fired"], case.error, told["noticed"])
                    self._outcome.expect(not wrong, f"{name}: {wrong}")
                for what, number in told["descriptors"].items():
                    kept = f"{name}: {what} is open {number} times, {held.get(what, 0)} without a fault"
                    self._outcome.expect(number <= held.get(what, 0), kept)


@scenario(
    "every-disk-call",
    "each disk call of each process fails once, is interrupted or short",
    small=60,
    nightly=400,
    release=ALL,
)
def every_disk_call(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` runs with one fault each, or all that there are."""
    outcome = Outcome()
    Explorer(directory, outcome).explore(count, seed)
    return outcome


@scenario(
    "every-tool-call",
    "each disk call of fsck, of offsets in files and of creators fails once",
    small=40,
    nightly=ALL,
    release=ALL,
)
def every_tool_call(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` runs with one fault each, or all that there are."""
    told = dose(directory, "tools", str(count), str(seed))
    return Outcome(told["runs"], told["violations"])


def dose(directory: Path, *what: str) -> dict[str, Any]:
    """``scenes``, ``starts``, or ``tools`` with a count and a seed, of ``every_call_program``: what is told of them."""
    control = directory / "control"
    disk_shim.make_control(control)
    done = subprocess.run(
        [sys.executable, "-m", "tests.fault.every_call_program", str(directory / "run"), *what],
        stdout=subprocess.PIPE,
        env={**disk_shim.environment(disk_shim.build(directory), control), "PYTHONPATH": str(ROOT)},
        check=True,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told
