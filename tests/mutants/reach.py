"""Which lines each test file reaches, in Python and in compiled code: ``python -m tests.mutants.reach --help``.

Compiled code is built for gcov, Python is watched by coverage.py, both through forks and ``os._exit``; what a killed
process did is not seen. The result chooses the tests of a mutant
(``python -m tests.mutants --map FILE``), and its summary says per file how many lines and branches are reached.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from tests.harness.checkout import ROOT
from tests.mutants import contexts as test_contexts
from tests.mutants.areas import AREAS, Area
from tests.mutants.operators import Mutant
from tests.mutants.trees import copy_checkout

COMPILER = '#!/bin/sh\nexec gcc "$@" --coverage -fprofile-update=atomic -O0 -Wno-error\n'
BUILD = """
import runpy, sys
import Cython.Build
make = Cython.Build.cythonize
Cython.Build.cythonize = lambda *given, **options: make(*given, force=True, **options)
sys.argv = ["setup.py", "-q", "build_ext", "--inplace", "--force"]
runpy.run_path("setup.py", run_name="__main__")
"""
EXIT = """
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
/* _exit leaves the counters in memory: the destructors of the libraries, which exit calls, write them. The child of a
 * vfork lives in its parent's memory and must not run them; fork tells its handlers, vfork does not. */
static pid_t self;
static int leaving;
static void remember(void) { self = getpid(); leaving = 0; }
__attribute__((constructor)) static void begin(void) { remember(); pthread_atfork(0, 0, remember); }
void _exit(int code) {
    if (getpid() == self && !leaving) { leaving = 1; exit(code); }
    for (;;) syscall(SYS_exit_group, code);
}
"""
COVERAGE = """
[run]
branch = True
parallel = True
concurrency = thread,multiprocessing
patch = subprocess,fork,_exit
source = fastlog
data_file = {root}/python/data
"""
_MARK = re.compile(r'\s*/\* "(?P<source>fastlog/[^"]+)":(?P<line>\d+)$')
Reached = dict[str, dict[int, set[str]]]
"""By source file, relative to the checkout, and line: the tests, by node id, or a whole file of tests.

Which test of a file it was is known of Python in the process of the tests alone.
"""


def load(path: Path) -> Callable[[Mutant, list[str]], list[str]]:
    """Return what chooses the tests of a mutant: those that reach its line, the quick ones first.

    All files are tried where the source has changed since, and every one that the map does not know yet, or that names
    the source.
    """
    known: dict[str, Any] = json.loads(path.read_text())
    seconds: dict[str, float] = known["seconds"]

    def choose(mutant: Mutant, files: list[str]) -> list[str]:
        source = known["sources"].get(mutant.path)
        if source is None or source["sha256"] != _sum(ROOT / mutant.path):
            return files
        # a statement of several lines is counted at one of them
        near = range(mutant.line - 2, mutant.line + len(mutant.before) + 2)
        reaching = {known["tests"][number] for line in near for number in source["lines"].get(str(line), ())}
        reaching |= {name for name in files if known["files"].get(name) != _sum(ROOT / name)}
        # what compiles or reads a source by itself runs nothing that is counted
        reaching |= {name for name in files if mutant.path.rpartition("/")[2] in "\n".join(_text_lines(ROOT / name))}
        found = [name for name in reaching if name.partition("::")[0] in files]
        whole = {name for name in found if "::" not in name}
        return sorted(
            (name for name in found if name in whole or name.partition("::")[0] not in whole),
            key=lambda name: (seconds.get(name, math.inf), name),
        )

    return choose


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def _text_lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()


class Watched:
    """A copy of the checkout, built so that it counts."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.compiled: dict[str, set[int]] = defaultdict(set)  # the lines that the compiler made code from
        self.seconds: dict[str, float] = {}
        copy_checkout(root)
        for made in (*root.glob("fastlog/**/*.so"), *root.glob("fastlog/**/*.c")):
            made.unlink()
        compiler = root / "counting-gcc"
        compiler.write_text(COMPILER)
        compiler.chmod(0o755)
        (root / "exit.c").write_text(EXIT)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", "exit.so", "exit.c"], cwd=root, check=True)
        environment = {**os.environ, "CC": str(compiler), "LDSHARED": f"{compiler} -shared", "PYTHONPATH": str(root)}
        subprocess.run([sys.executable, "-c", BUILD], cwd=root, check=True, env=environment)
        (root / "python").mkdir()
        (root / "coverage.ini").write_text(COVERAGE.format(root=root))

    def run(self, test: str, seconds: float) -> tuple[bool, Reached]:
        """Run one test file: whether it passed, and what it reached."""
        for counters in self._root.rglob("*.gcda"):
            counters.unlink()
        environment = {
            **os.environ,
            "PYTHONPATH": str(self._root),
            "LD_PRELOAD": str(self._root / "exit.so"),
            "COVERAGE_CORE": "ctrace",
            test_contexts.SECONDS_VARIABLE: str(self._root / "seconds"),
        }
        (self._root / "seconds").unlink(missing_ok=True)
        started = time.monotonic()
        command = [sys.executable, "-m", "coverage", "run", f"--rcfile={self._root / 'coverage.ini'}", "-m", "pytest"]
        ran = subprocess.run(
            [*command, "--core", "-p", test_contexts.__name__, "--basetemp", str(self._root / "tmp"), test],
            cwd=self._root, env=environment, timeout=seconds, check=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if ran.returncode not in (0, 5):
            print(ran.stdout.decode(errors="replace")[-3000:])
        if (self._root / "seconds").exists():
            self.seconds |= json.loads((self._root / "seconds").read_text())
        self.seconds[test] = time.monotonic() - started
        reached: Reached = defaultdict(lambda: defaultdict(set))
        for source, counts in self._compiled().items():
            self.compiled[source] |= set(counts)
            for line, count in counts.items():
                if count:
                    reached[source][line].add(test)
        for source, by_line in self._python(test).items():
            for line, names in by_line.items():
                reached[source][line] |= {name or test for name in names}
        return ran.returncode in (0, 5), reached

    def _compiled(self) -> dict[str, dict[int, int]]:
        """Counts by line and source file, of what ran since the counters were removed."""
        counted: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for counters in self._root.rglob("*.gcda"):
            shown = subprocess.run(
                ["gcov", "--json-format", "--stdout", str(counters)], cwd=self._root, capture_output=True, check=True
            )
            for text in shown.stdout.splitlines():
                for file in json.loads(text)["files"]:
                    path = (self._root / file["file"]).resolve()
                    if not path.is_relative_to(self._root):
                        continue
                    counts = {line["line_number"]: line["count"] for line in file["lines"]}
                    for source, number, count in self._of_sources(path, counts):
                        counted[source][number] += count
        return counted

    def _of_sources(self, path: Path, counts: dict[int, int]) -> Iterable[tuple[str, int, int]]:
        """Yield source, line and count: a header's own, and for C made by Cython those of its ``.pyx`` and ``.pxd``.

        A statement counts as often as the first line of its C: behind the last one of a function stands what every way
        out of it runs.
        """
        if path.suffix == ".h":
            name = str(path.relative_to(self._root))
            yield from ((name, number, count) for number, count in counts.items())
            return
        statement = None
        for number, line in enumerate(_text_lines(path), 1):
            mark = _MARK.match(line)
            if mark:
                statement = mark["source"], int(mark["line"])
            elif statement and number in counts:
                yield *statement, counts[number]
                statement = None

    def _python(self, test: str) -> dict[str, dict[int, list[str]]]:
        """Combine the data of all processes into one file, which is kept for the summary; contexts by line."""
        from coverage import CoverageData
        from coverage.exceptions import DataError

        folder = self._root / "python"
        whole = CoverageData(str(self._root / f"covered-{hashlib.sha256(test.encode()).hexdigest()[:12]}"))
        for part in folder.glob("data.*"):
            data = CoverageData(str(part))
            # a process that was killed while it wrote leaves a part of a file
            with contextlib.suppress(DataError):
                data.read()
                whole.update(data)
            part.unlink()
        whole.write()
        return {
            str(Path(name).relative_to(self._root)): whole.contexts_by_lineno(name)
            for name in whole.measured_files()
            if Path(name).is_relative_to(self._root)
        }

    def python_shares(self) -> dict[str, tuple[int, float, float]]:
        """Return statements, and the shares of statements and of branches that were reached, by file of Python."""
        command = [sys.executable, "-m", "coverage"]
        options = f"--rcfile={self._root / 'coverage.ini'}"
        parts = [str(path) for path in self._root.glob("covered-*")]
        for arguments in (["combine", "-q", options, "--keep", *parts], ["json", "-q", options, "-o", "shares.json"]):
            subprocess.run([*command, *arguments], cwd=self._root, check=True, stdout=subprocess.DEVNULL)
        files = json.loads((self._root / "shares.json").read_text())["files"]
        sums = {name: found["summary"] for name, found in files.items()}
        return {
            name: (
                found["num_statements"],
                found["covered_lines"] / max(found["num_statements"], 1),
                found["covered_branches"] / found["num_branches"] if found["num_branches"] else 1.0,
            )
            for name, found in sums.items()
        }


def summary(
    reached: Reached,
    compiled: dict[str, set[int]],
    python: dict[str, tuple[int, float, float]],
    areas: list[Area],
) -> Iterable[str]:
    """Yield a line for each source of the areas: lines of code, the share reached, the share of Python's branches."""
    yield f"{'source':40} {'lines':>6} {'reached':>8} {'branches':>9}"
    for source in sorted({*compiled, *python}):
        if not any(area.owns(source) for area in areas):
            continue
        if source in python:
            count, lines_share, branches_share = python[source]
            yield f"{source:40} {count:6} {lines_share:8.0%} {branches_share:9.0%}"
        else:
            count = len(compiled[source])
            yield f"{source:40} {count:6} {len(compiled[source] & reached[source].keys()) / count:8.0%}"


def document(reached: Reached, seconds: dict[str, float], files: list[str]) -> dict[str, Any]:
    """What ``load`` reads: sources with the tests of each line, by their numbers, and what they were made from."""
    tests = sorted({name for by_line in reached.values() for names in by_line.values() for name in names})
    numbers = {name: number for number, name in enumerate(tests)}
    return {
        "tests": tests,
        "seconds": seconds,
        "files": {name: _sum(ROOT / name) for name in files},
        "sources": {
            source: {
                "sha256": _sum(ROOT / source),
                "lines": {line: sorted(numbers[name] for name in names) for line, names in by_line.items()},
            }
            for source, by_line in reached.items()
            if (ROOT / source).exists()
        },
    }


def main() -> int:
    """Exit code 0 when every test file passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.reach", description=__doc__)
    parser.add_argument("--map", type=Path, required=True, metavar="FILE", help="where the result is written")
    parser.add_argument("--area", action="append", default=[], help="only the tests of this area; may be repeated")
    parser.add_argument("--seconds", type=float, default=900, help="how long one test file may take (default: 900)")
    wanted = parser.parse_args()
    areas = [area for area in AREAS if not wanted.area or area.name in wanted.area]
    tests = list(dict.fromkeys(name for area in areas for name in area.test_files()))
    (ROOT / ".tmp").mkdir(exist_ok=True)
    failed = []
    reached: Reached = defaultdict(lambda: defaultdict(set))
    with tempfile.TemporaryDirectory(prefix="reach-", dir=ROOT / ".tmp") as directory:
        watched = Watched(Path(directory) / "tree")
        for test in tests:
            passed, found = watched.run(test, wanted.seconds)
            for source, by_line in found.items():
                for line, names in by_line.items():
                    reached[source][line] |= names
            failed += [] if passed else [test]
            print(f"{test}: {'passed' if passed else 'FAILED'}", flush=True)
        lines = list(summary(reached, watched.compiled, watched.python_shares(), areas))
    wanted.map.write_text(json.dumps(document(reached, watched.seconds, tests)))
    print("\n".join(lines))
    for test in failed:
        print(f"FAILED, and seen in part only: {test}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
