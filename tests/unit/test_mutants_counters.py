"""What gcov would say of compiled code is read from its files without it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.mutants.areas import AREAS
from tests.mutants.counters import Notes
from tests.mutants.reach import Shares, compiled_lines, compiled_shares, summary

pytestmark = pytest.mark.skipif(shutil.which("gcov") is None, reason="GCC's gcov is not installed")

HEADER = """
static inline int limited(int value) {
    if (value > 3)
        return 3;
    return value;
}
__attribute__((used)) static inline int asked_by_nobody(int value) {
    return value + 1;
}
"""
# as Cython writes it: the mark of a statement stands before its C, and again where the function is left
C = """#include "limited.h"
#include <stdlib.h>

/* "fastlog/made.pyx":1
 * cdef int turns(int count):             # <<<<<<<<<<<<<<
*/

static int turns(int count) {
  int i, sum = 0;

  /* "fastlog/made.pyx":2
 *     for i in range(count):             # <<<<<<<<<<<<<<
*/
  for (i = 0; i < count; i++) {

    /* "fastlog/made.pyx":3
 *         if i > 5: exit(7)             # <<<<<<<<<<<<<<
*/
    if (i > 5) {

      /* "fastlog/made.pyx":4
 *             exit(7)             # <<<<<<<<<<<<<<
*/
      exit(7);
    }

    /* "fastlog/made.pyx":5
 *         sum += limited(i)             # <<<<<<<<<<<<<<
*/
    switch (i) {
      case 1: sum += 1; break;
      case 2: sum += limited(i); break;
      default: sum += 2;
    }
  }
  return sum;
}
int main(int argc, char **argv) { return argc > 9 ? argv[1][0] : turns(argc - 1); }
"""
MADE = "fastlog/made.pyx"
LIMITED = "fastlog/limited.h"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with one source, compiled so that it counts."""
    root = tmp_path_factory.mktemp("tree").resolve()
    (root / "fastlog").mkdir()
    (root / "fastlog/made.c").write_text(C)
    (root / LIMITED).write_text(HEADER)
    command = ["gcc", "--coverage", "-O0", "-c", "fastlog/made.c", "-o", "fastlog/made.o"]
    subprocess.run(command, cwd=root, check=True)
    subprocess.run(["gcc", "--coverage", "fastlog/made.o", "-o", "made"], cwd=root, check=True)
    return root


def run(tree: Path, counters: Path, *arguments: str) -> None:
    """The program adds its counts to those that are there."""
    subprocess.run([tree / "made", *arguments], env={"GCOV_PREFIX": str(counters)}, check=False)


def lines_reached(tree: Path, counters: Path, source: str) -> tuple[set[int], set[int]]:
    """Lines that ran, and those that did not."""
    lines = compiled_lines(tree, counters)[source]
    return {line for line, ran in lines.items() if ran}, {line for line, ran in lines.items() if not ran}


def test_each_statement_is_reached_or_not(tree: Path, tmp_path: Path) -> None:
    """Of Cython's C the statements of the ``.pyx``; a header has its own lines."""
    run(tree, tmp_path)
    assert lines_reached(tree, tmp_path, MADE) == ({1, 2}, {3, 4, 5})
    assert lines_reached(tree, tmp_path, LIMITED) == (set(), {2, 3, 4, 5, 7, 8})
    run(tree, tmp_path, "a", "b", "c")
    assert lines_reached(tree, tmp_path, MADE) == ({1, 2, 3, 5}, {4})
    assert lines_reached(tree, tmp_path, LIMITED) == ({2, 3, 5}, {4, 7, 8})
    run(tree, tmp_path, *"abcdefg")
    assert lines_reached(tree, tmp_path, MADE) == ({1, 2, 3, 4, 5}, set())


def test_it_says_what_gcov_says(tree: Path, tmp_path: Path) -> None:
    """Line by line, of whatever the program ran."""
    for arguments in ((), ("a",), tuple("abc"), tuple("abcdefghi")):
        counters = tmp_path / str(len(arguments))
        run(tree, counters, *arguments)
        (data,) = counters.rglob("made.gcda")
        notes = Path("/", data.relative_to(counters)).with_suffix(".gcno")
        data.with_suffix(".gcno").symlink_to(notes)
        command = ["gcov", "--json-format", "--stdout", str(data)]
        told = json.loads(subprocess.run(command, cwd=tree, check=True, capture_output=True).stdout)
        counts = {
            (Path(file["file"]).name, line["line_number"]): line["count"] > 0
            for file in told["files"]
            for line in file["lines"]
        }
        header = {(LIMITED, line): ran for (name, line), ran in counts.items() if name == "limited.h"}
        marks = {}
        mark = 0
        for number, text in enumerate(C.splitlines(), 1):
            found = re.search(r'/\* "fastlog/made.pyx":(\d+)', text)
            if found:
                mark = int(found[1])
            elif mark and ("made.c", number) in counts:
                marks[MADE, mark], mark = counts["made.c", number], 0
        read = {(source, line): ran for source, line, ran in Notes(tree, notes).reached(data.read_bytes())}
        assert read == header | marks


def test_the_share_of_a_source(tree: Path, tmp_path: Path) -> None:
    """And which lines are missing in it."""
    run(tree, tmp_path, "a", "b", "c")
    shares = compiled_shares(compiled_lines(tree, tmp_path))[MADE]
    assert (shares.lines, shares.lines_reached, shares.missing) == (5, 4, [4])
    assert shares.share == pytest.approx(0.8)


def test_what_is_no_file_of_gcov_is_refused(tree: Path, tmp_path: Path) -> None:
    """A compiler that writes another format is named by it, rather than taken for one that reached nothing."""
    run(tree, tmp_path, "a")
    (data,) = tmp_path.rglob("made.gcda")
    notes = Notes(tree, Path("/", data.relative_to(tmp_path)).with_suffix(".gcno"))
    with pytest.raises(ValueError, match="no file of gcov"):
        notes.reached(b"\x7fELF" + data.read_bytes())


def test_the_summary_has_a_line_for_each_source() -> None:
    """Python has branches beside its lines."""
    (log,) = (area for area in AREAS if area.name == "log")
    shares = {
        "fastlog/log/_append.pyx": Shares(200, 150, [7]),
        "fastlog/log/recovery.py": Shares(10, 10, [], 4, 3, [[1, 2]]),
        "fastlog/log/empty.py": Shares(0, 0, []),
        "fastlog/spark/sink.py": Shares(10, 10, []),
    }
    assert [line.split() for line in summary(shares, [log])] == [
        ["source", "lines", "reached", "branches"],
        ["fastlog/log/_append.pyx", "200", "75%"],
        ["fastlog/log/empty.py", "0", "100%", "100%"],
        ["fastlog/log/recovery.py", "10", "100%", "75%"],
    ]
