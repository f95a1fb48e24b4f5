"""``scripts/test-sanitized``: the tests with the compiled code under AddressSanitizer and UndefinedBehaviorSanitizer.

Arguments go to pytest; tests that need a Java are left out. ``--java`` first: those that need one, but for Spark, whose
start script hangs where a sanitizer was loaded before it. ``--fault`` first, and they go to ``python -m tests.fault``:
400,000 connects beside consumers are ``--fault --tier R --only connects --seed 9``.

A copy of the checkout is built and used, the checkout keeps its own extensions. A process with a finding aborts and
leaves a report, whichever it is: the run fails with every report, though a broker may have replaced the process and the
test may have passed. ``--self-check`` plants bugs in the copy instead, one after another, and fails unless each of them
fails a run with a report that names it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter

from tests.sanitized import copy
from tests.sanitized.planted import PLANTED

REPORTS = copy.COPY / "reports"
SHOWN_LINES = 60
_SUMMARY = re.compile(r"^SUMMARY: .*|^\S+: runtime error: .*", re.MULTILINE)


def run(arguments: list[str]) -> tuple[int, list[str]]:
    """Run pytest, or fault scenarios, in the copy: the exit code, and the reports of all processes."""
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir()
    environment = {
        **os.environ,
        "LD_PRELOAD": copy.runtime(),
        # No leaks are looked for: the interpreter keeps much of what it allocates to its end. Its own pools are watched
        # by nobody, hence malloc. Each process of a broker has a quarantine, hence a small one.
        "ASAN_OPTIONS": f"detect_leaks=0:abort_on_error=1:quarantine_size_mb=32:log_path={REPORTS}/address",
        "UBSAN_OPTIONS": f"print_stacktrace=1:abort_on_error=1:log_path={REPORTS}/undefined",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(copy.COPY),
    }
    match arguments:
        case ["--fault", *rest]:
            command = ["tests.fault", *rest]
        case ["--java", *rest]:
            command = ["pytest", "-m", "java and not spark", *rest]
        case _:
            command = ["pytest", "--core", *arguments]
    done = subprocess.run([sys.executable, "-m", *command], cwd=copy.COPY, env=environment, check=False)
    return done.returncode, [path.read_text(errors="replace") for path in sorted(REPORTS.iterdir())]


def summary(report: str) -> str:
    """The line of a report that says what was found."""
    found = _SUMMARY.search(report)
    return found[0] if found else "a report without a summary"


def tests(arguments: list[str]) -> int:
    """Run the tests; the exit code."""
    code, reports = run(arguments)
    counts = Counter(map(summary, reports))
    first = {summary(report): report for report in reversed(reports)}
    for line, count in counts.items():
        print("\n".join(first[line].splitlines()[:SHOWN_LINES]))
        print(f"\n{count} of these: {line}\n", flush=True)
    if reports:
        print(f"{len(reports)} processes had a finding; all reports: {REPORTS}")
    return code or (1 if reports else 0)


def self_check() -> int:
    """Plant the bugs; exit code 0 when each of them was found."""
    missed = 0
    for bug in PLANTED:
        source = (copy.ROOT / bug.source).read_text()
        if source.count(bug.before) != 1:
            sys.exit(f"{bug.source} has changed: tests/sanitized/planted.py plants nothing there\n{bug.before}")
        copy.write(bug.source, source.replace(bug.before, bug.after).encode())
        try:
            copy.build()
            code, reports = run(["-q", "-x", "--no-header", "--tb=no", bug.test])
        finally:
            copy.update()
        found = code != 0 or bool(reports)
        named = any(bug.report in report for report in reports)
        print(f"{bug.source}: {bug.report}: {'found' if found and named else 'MISSED'}", flush=True)
        missed += not (found and named)
    copy.build()
    return 1 if missed else 0


def main() -> int:
    """Build the copy and run what was asked for."""
    if len(sys.argv) == 2 and sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return 0
    copy.update()
    copy.build()
    return self_check() if sys.argv[1:] == ["--self-check"] else tests(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
