"""The planting of bugs: what is changed, what is left alone, which tests are asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from tests.harness.checkout import ROOT
from tests.mutants import areas, choosing, operators, reach, sources
from tests.mutants.__main__ import arguments, report
from tests.mutants.areas import AREAS, OF_NO_AREA, area_of
from tests.mutants.operators import Mutant, all_mutants, mutants_of
from tests.mutants.sources import masked
from tests.mutants.trees import Tree
from tests.mutants.trying import Outcome, Suite, Verdict, nearest, nearest_first, try_one

CYTHON = '''"""About < and >, and call()."""
from fastlog.log._layout cimport fl_store, fl_fence
cdef extern from "<unistd.h>" nogil:
    int close(int)

cdef int append(self, fl_slot* s, uint64_t n) noexcept nogil:
    """Docstring: if a < b."""
    if n > 5 and <int>n != 7:
        return -1
    fl_store(&s.table_tail, n + 1)
    fl_store(&s.log_end, n)  # a < b
    fl_fence()
    return min(n,
               4)
'''
C = """#define LIMIT 5
/* if (a < b) */
typedef struct { int a; } thing;
static inline void wake(int *p) {
    if (*p < 3) {
        fl_fence();
        publish(p, 1);
    }
}
"""
PYTHON = """import os

def place(fd: int | None, size: int) -> None:
    if size <= 0 or not fd:
        raise ValueError(f"size < {size}")
    os.fsync(fd)
    os.replace("a", "b")
    LOG.warning("done %s", 5)
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Gives the (operator, text instead) of each mutant of a text."""
    monkeypatch.setattr(operators, "ROOT", tmp_path)

    def plant(name: str, text: str) -> list[tuple[str, str]]:
        path = tmp_path / name
        path.write_text(text)
        sources.source_lines.cache_clear()
        return [(m.operator, "|".join(line.strip() for line in m.after)) for m in mutants_of(path)]

    return plant


def test_what_is_planted_in_cython(planted) -> None:
    """Operators, checks, publishes and fences; no declaration, docstring, comment or cast."""
    found = planted("a.pyx", CYTHON)
    assert set(found) >= {
        ("boundary", "if n >= 5 and <int>n != 7:"),
        ("equality", "if n > 5 and <int>n == 7:"),
        ("logic", "if n > 5 or <int>n != 7:"),
        ("check", "if False:"),
        ("arithmetic", "fl_store(&s.table_tail, n - 1)"),
        ("exchange", "fl_store(&s.log_end, n)  # a < b|fl_store(&s.table_tail, n + 1)"),
        ("exchange", "fl_fence()|fl_store(&s.log_end, n)  # a < b"),
        ("call", "pass"),
        ("fence", "pass"),
        ("extreme", "return max(n,"),
        ("constant", "5)"),
    }
    assert not [after for _, after in found if "cimport" in after or "<= b" in after or "unistd" in after]
    assert len([after for operator, after in found if operator == "call"]) == 2


def test_what_is_planted_in_c_and_python(planted) -> None:
    """Bodies of functions in C; in Python no message of a log or of an error."""
    c = planted("a.h", C)
    assert {("boundary", "if (*p <= 3) {"), ("fence", ";"), ("call", ";")} <= set(c)
    assert not [after for _, after in c if "LIMIT" in after or "thing" in after]
    python = planted("a.py", PYTHON)
    assert {("boundary", "if size < 0 or not fd:"), ("negation", "if size <= 0 or fd:"), ("error", "pass")} <= set(
        python
    )
    assert ("exchange", 'os.replace("a", "b")|os.fsync(fd)') in python
    assert not [after for _, after in python if "LOG" in after or "&" in after]


def test_what_follows_when_there_is_no_memory_is_left_alone(planted) -> None:
    """No test runs where memory is refused; a check of anything else is planted as ever."""
    text = """
cdef int made(self, size_t n) except -1:
    self.a = <int*>calloc(n, sizeof(int))
    self.b = malloc(n)
    if self.a == NULL or self.b == NULL:
        raise MemoryError
    if self.c == NULL:
        raise MemoryError
    found = <Thing*>realloc(found, n)
    if found == NULL or n == 3:
        return -2
    other = malloc(n)
    if found == NULL:
        return -2
    if other == NULL:
        return -2
    again = malloc(n)
    if again == NULL:
        return -2
"""
    found = planted("a.pyx", text)
    wanted = ("check", "error", "logic")
    assert [(operator, after) for operator, after in found if operator in wanted] == [
        ("check", "if False:"),
        ("error", "pass"),
        ("logic", "if found == NULL and n == 3:"),
        *[("check", "if False:")] * 3,
    ]
    assert ("equality", "if again != NULL:") in found


def test_blanks_keep_every_column() -> None:
    """Masking changes neither lengths nor lines."""
    for text, suffix in ((CYTHON, ".pyx"), (C, ".h"), (PYTHON, ".py")):
        hidden = masked(text, suffix)
        assert [len(line) for line in hidden.splitlines()] == [len(line) for line in text.splitlines()]
        assert "a < b" not in hidden


def test_a_mutant_changes_its_lines_alone_and_is_found_again() -> None:
    """The name stays when lines move; a text that is not the one it was made from is refused."""
    path = ROOT / "fastlog/log/_append.pyx"
    text = path.read_text()
    every = all_mutants([path])
    assert len({mutant.name for mutant in every}) == len(every) > 100
    for mutant in every:
        changed = mutant.apply(text)
        assert changed != text
        assert changed.count("\n") == text.count("\n")
    with pytest.raises(ValueError, match="is not what"):
        every[0].apply("\n" + text)


def test_every_area_has_its_tests_and_every_source_one_area() -> None:
    """The tables are as old as the tree: patterns that fit nothing are refused when they are read."""
    for area in AREAS:
        assert area.test_files()
        for source in area.sources:
            assert (ROOT / source).exists(), source
    engine = ("log", "workers", "wire", "producer", "consumer", "client", "mirror", "audit", "spark")
    for folder in engine:
        assert area_of(f"fastlog/{folder}/x.py") is not None


def test_a_sample_is_the_same_again_and_has_every_area() -> None:
    """Drawn by the seed; areas take turns."""

    def mutant(area: str, number: int) -> Mutant:
        return Mutant(f"{area}{number}", f"fastlog/{area}/x.py", number, "call", ("a",), ("b",))

    many = [mutant(area, number) for area in ("log", "wire", "mirror") for number in range(50)]
    drawn = choosing.sample(many, 30, seed=4)
    assert drawn == choosing.sample(many, 30, seed=4) != choosing.sample(many, 30, seed=5)
    assert {area: sum(m.path.startswith(f"fastlog/{area}/") for m in drawn) for area in ("log", "wire", "mirror")} == {
        "log": 10, "wire": 10, "mirror": 10,
    }  # fmt: skip
    assert len(choosing.sample(many, 1000, seed=1)) == 150


def test_an_equivalent_mutant_has_its_argument(tmp_path: Path) -> None:
    """A name alone would hide a survivor."""
    path = tmp_path / "equivalent.txt"
    path.write_text("# comment\nabc123 both orders are seen as one store\n")
    assert choosing.equivalents(path) == {"abc123": "both orders are seen as one store"}
    path.write_text("abc123 equal\n")
    with pytest.raises(ValueError, match="no argument"):
        choosing.equivalents(path)
    assert choosing.equivalents() is not None


def test_the_tests_that_reach_a_line_are_asked_the_quick_ones_first(tmp_path: Path) -> None:
    """A file as a whole where it is not known which of its tests; all files where the source has changed since."""
    source, one, two = "fastlog/clock.py", "tests/unit/test_topics.py", "tests/unit/test_layers.py"
    quick, slow, else_where = f"{one}::quick", f"{one}::slow", "tests/unit/test_config.py::x"
    reached = {source: {5: {slow, else_where}, 6: {quick, slow}, 20: {two, f"{two}::test"}}}
    seconds = {quick: 0.1, slow: 2.0, two: 1.0}
    path = tmp_path / "map.json"

    def asked(line: int, files: list[str]) -> list[str]:
        mutant = Mutant("m", source, line, "call", ("a",), ("b",))
        return reach.load(path)(mutant, files)

    whole = reach.document(reached, seconds, [one, two])
    path.write_text(json.dumps(whole))
    assert asked(6, [one, two]) == [quick, slow]
    assert asked(20, [one, two]) == [two]
    assert asked(20, [one]) == []
    assert asked(20, [f"{one}::quick", two]) == [f"{one}::quick", two]
    path.write_text(json.dumps({**whole, "files": {one: whole["files"][one]}}))
    assert asked(6, [one, two]) == [quick, two, slow]  # who knows what a new file reaches
    # one that compiles a header by itself
    header, fences = "fastlog/log/_arena.h", "tests/unit/test_log_fences.py"
    path.write_text(json.dumps(reach.document({header: {5: {slow}}}, seconds, [one, fences])))
    mutant = Mutant("name", header, 5, "fence", ("fl_fence();",), (";",))
    assert reach.load(path)(mutant, [one, fences]) == [slow, fences]
    path.write_text(json.dumps(whole))
    whole["sources"][source]["sha256"] = "that of another text"
    path.write_text(json.dumps(whole))
    assert asked(6, [one, two]) == [one, two]


def test_the_tests_that_name_a_source_are_the_nearest() -> None:
    """In their own names, then in their imports; all others stand behind them, in their order."""
    files = [f"tests/unit/test_{name}.py" for name in ("layers", "side_file_races", "log_fences", "flush", "side_file")]
    mutant = Mutant("m", "fastlog/log/side_file.py", 1, "call", ("a",), ("b",))
    named = ["tests/unit/test_side_file_races.py", "tests/unit/test_side_file.py"]
    assert nearest(mutant, files)[:2] == named
    assert "tests/unit/test_layers.py" not in nearest(mutant, files)
    assert sorted(nearest_first(mutant, files)) == sorted(files)
    append, flush, topics = (f"tests/unit/test_{name}.py" for name in ("append", "flush", "topics"))
    compiled = Mutant("m", "fastlog/log/_append.pyx", 1, "call", ("a",), ("b",))
    assert nearest(compiled, [topics, flush, append]) == [append, flush]
    package = Mutant("m", "fastlog/log/append/__init__.py", 1, "call", ("a",), ("b",))
    assert nearest(package, [topics, flush, append]) == [append]
    inside = Mutant("m", "fastlog/log/append/_nobody.pyx", 1, "call", ("a",), ("b",))
    assert nearest(inside, [topics, flush, append]) == [append]
    one, other = f"{flush}::test_one[a/b]", f"{topics}::test_append"  # as --tests takes them
    assert nearest_first(compiled, [other, one, append]) == [append, one, other]
    assert nearest(mutant, [f"{named[0]}::test_one", other]) == [f"{named[0]}::test_one"]


def test_tests_that_are_named_otherwise_are_told_in_a_table() -> None:
    """Of sources that there are, and of tests that their area has."""
    mutant = Mutant("m", "fastlog/tools/keys.py", 1, "call", ("a",), ("b",))
    files = [f"tests/unit/test_{name}.py" for name in ("tools_exit", "tools_parts")]
    assert nearest(mutant, files) == files[1:]
    assert nearest_first(mutant, files) == [files[1], files[0]]
    assert nearest(mutant, [f"{files[1]}::test_one"]) == [f"{files[1]}::test_one"]
    for source, tests in areas.NEAR.items():
        area = area_of(source)
        assert area is not None and (ROOT / source).exists()
        assert {f"tests/{name}" for name in tests} <= set(area.test_files()), source


@pytest.mark.parametrize(
    ("failing", "chance", "verdict"),
    [
        ([], [], Verdict.SURVIVED),
        (["a"], [], Verdict.KILLED),
        (["b"], ["a"], Verdict.KILLED),
        ([], ["a"], Verdict.ONCE),
        (["d"], ["a", "b", "c"], Verdict.ONCE),
    ],
)
def test_a_kill_has_to_come_again(failing: list[str], chance: list[str], verdict: Verdict) -> None:
    """A test that fails once hides no other; of too many such tests there is no verdict but chance."""

    class Planted:
        def plant(self, _mutant: Mutant) -> bool:
            return True

        def restore(self) -> None:
            restored.append(True)

        def test(self, tests: list[str], _seconds: float, *options: str) -> tuple[int, list[str], str]:
            found = [name for name in (*chance, *failing) if name not in options and tests in (["file"], [name])]
            if tests != ["file"]:
                found = [name for name in found if name in failing]
            return (1, found[:1], "") if found else (0, [], "")

    restored: list[bool] = []
    mutant = Mutant("m", "fastlog/clock.py", 1, "call", ("a",), ("b",))
    outcome = try_one(mutant, cast("Tree", Planted()), Suite(AREAS[0], ["file"]), ["file"])
    assert (outcome.verdict, restored) == (verdict, [True])


def test_a_test_file_that_no_area_names_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was forgotten would be written for bugs that count as survivors."""
    known = set(areas.forgotten_tests())
    assert all(list((ROOT / "tests").glob(pattern)) for pattern in OF_NO_AREA)
    monkeypatch.setattr(areas, "OF_NO_AREA", tuple(name for name in OF_NO_AREA if "mutants" not in name))
    monkeypatch.setattr(areas, "AREAS", tuple(area for area in AREAS if area.name != "mirror"))
    found = set(areas.forgotten_tests()) - known
    assert {"tests/unit/test_mutants.py", "tests/unit/test_mirror_lane.py", "tests/fault/test_mirrors.py"} <= found
    assert "tests/unit/test_append.py" not in found


def test_the_share_is_that_of_all_areas_whichever_is_told_last(capsys: pytest.CaptureFixture[str]) -> None:
    mutant = all_mutants([ROOT / "fastlog/clock.py"])[0]
    outcomes = [
        Outcome(mutant, area, verdict)
        for area, verdict in [
            ("log", Verdict.KILLED),
            ("log", Verdict.KILLED),
            ("log", Verdict.ONCE),
            ("log", Verdict.EQUIVALENT),
            ("workers", Verdict.SURVIVED),
        ]
    ]
    assert report(outcomes) == 0.5
    assert report(list(reversed(outcomes))) == 0.5
    assert report([]) == 1.0
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["log", "3", "2", "1", "1", "67%"] in table
    assert ["all", "4", "2", "2", "1", "50%"] in table


def test_a_test_file_that_is_not_there_catches_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The runner of tests fails without it, as it does when a test fails."""
    monkeypatch.setattr("sys.argv", ["mutants", "--tests", "tests/unit/test_mutants.py::test_one"])
    assert arguments().tests == ["tests/unit/test_mutants.py::test_one"]
    monkeypatch.setattr("sys.argv", ["mutants", "--tests", "unit/test_mutants.py"])
    with pytest.raises(SystemExit):
        arguments()
    assert "there is no unit/test_mutants.py below" in capsys.readouterr().err
