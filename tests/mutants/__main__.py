"""Plants bugs and says which of them the tests catch: ``python -m tests.mutants --help``.

A bug counts as caught when a test of its own area fails, and fails again when it is run once more. Bugs are planted in
copies of the checkout, in as many at a time as there are cores.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from tests.harness.checkout import ROOT
from tests.mutants import reach
from tests.mutants.areas import area_of, forgotten_tests, sources_of
from tests.mutants.choosing import equivalents, sample
from tests.mutants.operators import all_mutants, compiles
from tests.mutants.trees import Tree, copy_checkout
from tests.mutants.trying import Outcome, Suite, Verdict, nearest, try_all

WANTED_SHARE = 0.85
COUNTED = (Verdict.KILLED, Verdict.SURVIVED, Verdict.ONCE)


def a_test_file(name: str) -> str:
    """A name as pytest takes it, of a file that is there: every mutant would be caught by one that is not."""
    if not (ROOT / name.partition("::")[0]).exists():
        raise argparse.ArgumentTypeError(f"there is no {name} below {ROOT}")
    return name


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, help="files and folders; without them all sources")
    parser.add_argument("--seed", type=int, default=1, help="which sample is drawn (default: 1)")
    parser.add_argument("--sample", type=int, metavar="N", help="how many are tried; every one without it")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="the mutants of these names alone")
    parser.add_argument("--list", action="store_true", help="print the mutants and try none")
    parser.add_argument(
        "--tests",
        action="append",
        default=[],
        type=a_test_file,
        metavar="FILE",
        help="run these test files instead of the area's own",
    )
    parser.add_argument("--trees", type=int, default=os.cpu_count() or 1, help="how many are tried at a time")
    parser.add_argument(
        "--passed", action="store_true", help="the tests have just passed: do not try them on the unchanged tree first"
    )
    parser.add_argument(
        "--share", type=float, default=WANTED_SHARE, help="exit with 1 below this share (default: %(default)s)"
    )
    parser.add_argument("--java", action="store_true", help="run the tests that need a Java, too; Spark's take long")
    parser.add_argument("--results", type=Path, metavar="FILE", help="add each outcome as a line of JSON; go on there")
    parser.add_argument(
        "--map",
        type=Path,
        metavar="FILE",
        help="run the tests that reach a line: what python -m tests.mutants.reach wrote",
    )
    parser.add_argument(
        "--near",
        action="store_true",
        help="run only the tests that name the source: most bugs die there, in a tenth of the time. What survives is"
        " not written to --results, so that a run without this goes on with it",
    )
    return parser.parse_args()


def told(outcome: Outcome) -> str:
    """A line for each outcome as it comes."""
    by = f" by {outcome.by}" if outcome.by else ""
    return f"{outcome.verdict.value:9} {outcome.seconds:5.0f} s {outcome.mutant.shown()}{by}"


def report(outcomes: list[Outcome]) -> float:
    """Print what survived and a table by area; return the share that was caught."""
    survived = [o for o in outcomes if o.verdict in (Verdict.SURVIVED, Verdict.ONCE)]
    if survived:
        print("\nSurvived:")
        for outcome in sorted(survived, key=lambda o: (o.mutant.path, o.mutant.line)):
            print(outcome.mutant.shown())
    counts: dict[str, Counter[Verdict]] = defaultdict(Counter)
    for outcome in outcomes:
        counts[outcome.area][outcome.verdict] += 1
        counts["all"][outcome.verdict] += 1
    print(f"\n{'area':12} {'tried':>6} {'killed':>7} {'survived':>9} {'equivalent':>11}  share")
    shares = {"all": 1.0}
    for name, found in counts.items():
        tried = sum(found[verdict] for verdict in COUNTED)
        shares[name] = found[Verdict.KILLED] / tried if tried else 1.0
        print(f"{name:12} {tried:6} {found[Verdict.KILLED]:7} {tried - found[Verdict.KILLED]:9}"
              f" {found[Verdict.EQUIVALENT]:11}  {shares[name]:.0%}")  # fmt: skip
    return shares["all"]


def main() -> int:
    """Exit code 0 when enough are caught, 1 when not."""
    wanted = arguments()
    mutants = all_mutants([path.resolve() for path in sources_of(wanted.paths)])
    strangers = sorted({mutant.path for mutant in mutants if area_of(mutant.path) is None})
    if strangers:
        sys.exit(f"tests/mutants/areas.py names no tests for {', '.join(strangers)}")
    if forgotten := forgotten_tests():
        print(f"tests/mutants/areas.py does not say which sources these answer for: {', '.join(forgotten)}", flush=True)
    if wanted.only:
        mutants = [mutant for mutant in mutants if mutant.name in wanted.only]
    if wanted.sample is not None:
        mutants = sample(mutants, wanted.sample, wanted.seed, compiles)
    else:
        mutants = [mutant for mutant in mutants if compiles(mutant)]
    if wanted.list:
        for mutant in mutants:
            print(mutant.shown())
        return 0
    arguments_for = equivalents()
    outcomes = [Outcome(m, area_of(m.path).name, Verdict.EQUIVALENT) for m in mutants if m.name in arguments_for]  # type: ignore[union-attr]
    done = results_so_far(wanted.results)
    rest = [mutant for mutant in mutants if mutant.name not in arguments_for]
    outcomes += [
        Outcome(m, area_of(m.path).name, Verdict[done[m.name]["verdict"]], done[m.name]["by"])  # type: ignore[union-attr]
        for m in rest
        if m.name in done
    ]
    rest = [mutant for mutant in rest if mutant.name not in done]
    reaching = reach.load(wanted.map) if wanted.map else lambda mutant, files: files
    if wanted.near:
        reaching = nearest
    (ROOT / ".tmp").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mutants-", dir=ROOT / ".tmp") as directory:
        pristine = Path(directory) / "pristine"
        copy_checkout(pristine)
        trees = [Tree(Path(directory) / f"tree{i}", pristine) for i in range(max(1, min(wanted.trees, len(rest))))]
        suites = {}
        for area in {area_of(mutant.path): None for mutant in rest}:
            assert area is not None
            suite = Suite(area, wanted.tests or area.test_files(), more=() if wanted.java else ("--core",))
            suites[area.name] = suite
            if not wanted.passed:
                suite.measure(trees[0])
                print(f"{area.name}: {len(suite.files)} test files, {suite.seconds:.0f} s unchanged", flush=True)
            for name in suite.failing:
                print(f"  fails there, and kills nothing: {name}", flush=True)
        for outcome in try_all(rest, trees, suites, reaching):
            outcomes.append(outcome)
            print(told(outcome), flush=True)
            survived = outcome.verdict in (Verdict.SURVIVED, Verdict.ONCE)
            if wanted.results and not (wanted.near and survived):
                with wanted.results.open("a") as file:
                    entry = {"name": outcome.mutant.name, "verdict": outcome.verdict.name, "by": outcome.by}
                    file.write(json.dumps(entry) + "\n")
        for tree in trees:
            tree.close()
    return 0 if report(outcomes) >= wanted.share else 1


def results_so_far(path: Path | None) -> dict[str, dict[str, str]]:
    """The outcomes that a run before has written, by the name of the mutant."""
    if path is None or not path.exists():
        return {}
    return {entry["name"]: entry for entry in map(json.loads, path.read_text().splitlines())}


if __name__ == "__main__":
    sys.exit(main())
