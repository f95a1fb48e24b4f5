"""Which lines each test file reaches, in Python and in compiled code: ``python -m tests.mutants.reach --help``.

Compiled code is built for gcov, Python is watched by coverage.py, both through forks and ``os._exit``; what a killed
process did is not seen. The result chooses the tests of a mutant
(``python -m tests.mutants --map FILE``), and its summary says per file how many lines and branches are reached.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.harness.checkout import ROOT
from tests.mutants.areas import AREAS, Area
from tests.mutants.counters import Notes
from tests.mutants.operators import Mutant
from tests.mutants.watched import Counters, Watched, sum_of

Reached = dict[str, dict[int, set[str]]]
"""By source file, relative to the checkout, and line: the tests, by node id, or a whole file of tests.

Which test of a file it was is known of Python in the process of the tests alone.
"""
Lines = dict[str, dict[int, bool]]
"""By source and line of compiled code: whether it is reached."""


def load(path: Path) -> Callable[[Mutant, list[str]], list[str]]:
    """Return what chooses the tests of a mutant: those that reach its line, the quick ones first.

    All files are tried where the source has changed since, and every one that the map does not know yet, or that names
    the source. A test that is named by itself, as ``FILE::NAME``, is tried in any case, and first.
    """
    known: dict[str, Any] = json.loads(path.read_text())
    seconds: dict[str, float] = known["seconds"]

    def choose(mutant: Mutant, files: list[str]) -> list[str]:
        source = known["sources"].get(mutant.path)
        if source is None or source["sha256"] != sum_of(ROOT / mutant.path):
            return files
        asked = [name for name in files if "::" in name]
        files = [name for name in files if "::" not in name]
        # a statement of several lines is counted at one of them
        near = range(mutant.line - 2, mutant.line + len(mutant.before) + 2)
        reaching = {known["tests"][number] for line in near for number in source["lines"].get(str(line), ())}
        reaching |= {name for name in files if known["files"].get(name) != sum_of(ROOT / name)}
        # what compiles or reads a source by itself runs nothing that is counted
        reaching |= {name for name in files if mutant.path.rpartition("/")[2] in "\n".join(_text_lines(ROOT / name))}
        found = [name for name in reaching if name.partition("::")[0] in files]
        whole = {name for name in found if "::" not in name}
        return asked + sorted(
            (name for name in found if name in whole or name.partition("::")[0] not in whole),
            key=lambda name: (seconds.get(name, math.inf), name),
        )

    return choose


@cache
def _text_lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()


@dataclass(frozen=True)
class Shares:
    """Of one source: how much there is and how much is reached; what is missing, by its lines."""

    lines: int
    lines_reached: int
    missing: list[int]
    branches: int = 0
    branches_reached: int = 0
    missing_branches: list[list[int]] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Of the lines."""
        return self.lines_reached / self.lines if self.lines else 1.0

    @property
    def share_of_branches(self) -> float:
        """Of the branches, which only Python has here."""
        return self.branches_reached / self.branches if self.branches else 1.0


def compiled_lines(root: Path, folder: Path) -> Lines:
    """What the counters below a folder say of the compiled code, lines that are not reached included."""
    found: Lines = defaultdict(dict)
    for path in folder.rglob("*.gcda"):
        notes = _notes(root, Path("/", path.relative_to(folder)).with_suffix(".gcno"))
        for source, line, reached in notes.reached(path.read_bytes()):
            found[source][line] = found[source].get(line, False) or reached
    return found


@cache
def _notes(root: Path, path: Path) -> Notes:
    return Notes(root, path)


def python_lines(root: Path, counters: Counters) -> dict[str, dict[int, list[str]]]:
    """The tests of each line of Python that was reached; an empty name is the whole file's."""
    from coverage import CoverageData

    data = CoverageData(str(counters.covered))
    data.read()
    return {
        str(Path(name).relative_to(root)): data.contexts_by_lineno(name)
        for name in data.measured_files()
        if Path(name).is_relative_to(root)
    }


def python_shares(root: Path, all_counters: list[Counters]) -> dict[str, Shares]:
    """What was reached of each file of Python."""
    with tempfile.TemporaryDirectory() as folder:
        rules = Path(folder) / "rules"
        rules.write_text(f"[run]\nbranch = True\nsource = fastlog\ndata_file = {folder}/data\n")
        parts = [str(counters.covered) for counters in all_counters]
        for arguments in (("combine", "--keep", *parts), ("json", "-o", f"{folder}/shares.json")):
            command = [sys.executable, "-m", "coverage", arguments[0], "-q", f"--rcfile={rules}", *arguments[1:]]
            subprocess.run(command, cwd=root, check=True, stdout=subprocess.DEVNULL)
        files = json.loads((Path(folder) / "shares.json").read_text())["files"]
    return {
        name: Shares(
            found["summary"]["num_statements"],
            found["summary"]["covered_lines"],
            found["missing_lines"],
            found["summary"]["num_branches"],
            found["summary"]["covered_branches"],
            found["missing_branches"],
        )
        for name, found in files.items()
    }


def compiled_shares(lines: Mapping[str, Mapping[int, bool]]) -> dict[str, Shares]:
    """What was reached of each file of compiled code."""
    found = {}
    for source, by_line in lines.items():
        missing = sorted(line for line, reached in by_line.items() if not reached)
        found[source] = Shares(len(by_line), len(by_line) - len(missing), missing)
    return found


def summary(shares: dict[str, Shares], areas: list[Area]) -> Iterable[str]:
    """Yield a line for each source of the areas: lines of code, the share reached, the share of Python's branches."""
    yield f"{'source':40} {'lines':>6} {'reached':>8} {'branches':>9}"
    for source, found in sorted(shares.items()):
        if any(area.owns(source) for area in areas):
            branches = f"{found.share_of_branches:9.0%}" if source.endswith(".py") else ""
            yield f"{source:40} {found.lines:6} {found.share:8.0%} {branches}".rstrip()


def document(reached: Reached, seconds: dict[str, float], files: list[str], root: Path = ROOT) -> dict[str, Any]:
    """What ``load`` reads: sources with the tests of each line, by their numbers, and what they were made from."""
    tests = sorted({name for by_line in reached.values() for names in by_line.values() for name in names})
    numbers = {name: number for number, name in enumerate(tests)}
    return {
        "tests": tests,
        "seconds": seconds,
        "files": {name: sum_of(root / name) for name in files},
        "sources": {
            source: {
                "sha256": sum_of(root / source),
                "lines": {line: sorted(numbers[name] for name in names) for line, names in by_line.items()},
            }
            for source, by_line in reached.items()
            if (root / source).exists()
        },
    }


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.reach", description=__doc__)
    parser.add_argument("--map", type=Path, metavar="FILE", help="write which tests reach each line, for tests.mutants")
    parser.add_argument("--shares", type=Path, metavar="FILE", help="write what is reached of each source, as JSON")
    parser.add_argument("--area", action="append", default=[], help="only the tests of this area; may be repeated")
    parser.add_argument("--seconds", type=float, default=900, help="how long one test file may take (default: 900)")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="how many work at a time (default: the cores)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / ".tmp" / "reached",
        help="where the copy and its counters are kept: what has been run there on the same sources is not run again"
        " (default: .tmp/reached)",
    )
    parser.add_argument("--no-run", action="store_true", help="run nothing: tell what has been counted so far")
    return parser.parse_args()


def main() -> int:
    """Exit code 0 when every test file passed."""
    wanted = arguments()
    areas = [area for area in AREAS if not wanted.area or area.name in wanted.area]
    tests = list(dict.fromkeys(name for area in areas for name in area.test_files()))
    watched = Watched(wanted.folder.resolve())
    if not wanted.no_run:
        watched.prepare()
        with ThreadPoolExecutor(wanted.processes) as threads:
            outputs = threads.map(lambda test: watched.run(test, wanted.seconds), tests)
            for test, output in zip(tests, outputs, strict=True):
                print(f"{output[-3000:]}{test}: {'FAILED' if output else 'passed'}", flush=True)
    ended = {test: found for test in tests if (found := watched.counters(test).ended) is not None}
    all_counters = [watched.counters(test) for test in ended]
    # what a process counts that was given an environment without GCOV_PREFIX
    folders = [counters.compiled for counters in all_counters] + [watched.root / "build"]
    reached: Reached = defaultdict(lambda: defaultdict(set))
    lines: Lines = defaultdict(dict)
    with ProcessPoolExecutor(wanted.processes) as processes:
        found_of_all = processes.map(compiled_lines, [watched.root] * len(folders), folders)
        for test, found in zip([*ended, ""], found_of_all, strict=True):
            for source, by_line in found.items():
                for line, is_reached in by_line.items():
                    lines[source][line] = lines[source].get(line, False) or is_reached
                    if is_reached and test:
                        reached[source][line].add(test)
    shares = python_shares(watched.root, all_counters) | compiled_shares(lines)
    if wanted.shares:
        wanted.shares.write_text(json.dumps({name: asdict(of) for name, of in sorted(shares.items())}, indent=1))
    if wanted.map:
        for counters in all_counters:
            for source, names_by_line in python_lines(watched.root, counters).items():
                for line, names in names_by_line.items():
                    reached[source][line] |= {name or counters.test for name in names}
        seconds = {name: taken for found in ended.values() for name, taken in found["seconds"].items()}
        wanted.map.write_text(json.dumps(document(reached, seconds, list(ended), watched.root)))
    print("\n".join(summary(shares, areas)))
    failed = [test for test, found in ended.items() if not found["passed"]]
    for test in failed:
        print(f"FAILED, and seen in part only: {test}")
    if len(ended) < len(tests):
        print(f"not run yet: {len(tests) - len(ended)} of {len(tests)} test files")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
