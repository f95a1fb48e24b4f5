"""A tree, in which a bug is planted, tested and taken out again; pytest is run by a process that is warm."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.harness.checkout import ROOT
from tests.mutants.operators import Mutant
from tests.mutants.trees import HUNG, TREE_VARIABLE, Tree

CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--failed-tests")

def pytest_sessionfinish(session):
    failed = [item.nodeid for item in session.items if getattr(item, "failed", False)]
    with open(session.config.getoption("--failed-tests"), "w") as file:
        file.writelines(f"{name}\\n" for name in failed)

def pytest_runtest_makereport(item, call):
    item.failed = getattr(item, "failed", False) or call.excinfo is not None
"""
TESTS = """
import os, subprocess, sys, time
from pathlib import Path
from fastlog.made import limited

def test_limit():
    assert limited(4) == 3

def test_below():
    assert limited(2) == 2

def hangs():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    time.sleep(600)

def dies():
    os.kill(os.getpid(), 9)

if Path("other-test").exists():
    test_limit = globals()[Path("other-test").read_text()]
"""
SOURCE = "def limited(value):\n    return min(value, 3)\n"
MUTANT = Mutant("m", "fastlog/made.py", 2, "extreme", ("    return min(value, 3)",), ("    return max(value, 3)",))
OTHER = Mutant("n", "fastlog/made.py", 2, "constant", ("    return min(value, 3)",), ("    return min(value, 4)",))
TEST = "tests/test_made.py"
FAILS = f"{TEST}::test_limit"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    """One source, its tests, and what runs them."""
    pristine = tmp_path_factory.mktemp("mutants") / "pristine"
    for name in ("tests/__init__.py", "tests/mutants/__init__.py", "tests/mutants/warm.py"):
        (pristine / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, pristine / name)
    (pristine / "fastlog").mkdir()
    (pristine / "fastlog/__init__.py").touch()
    (pristine / "fastlog/made.py").write_text(SOURCE)
    (pristine / "tests/conftest.py").write_text(CONFTEST)
    (pristine / TEST).write_text(TESTS)
    (pristine / "pytest.ini").write_text(
        "[pytest]\naddopts = -p no:fastlog -p no:cacheprovider\nfilterwarnings = error\n"
    )
    made = Tree(pristine.with_name("tree"), pristine)
    yield made
    made.close()
    shutil.rmtree(made.root)


def test_each_run_is_of_the_source_as_it_is_then(tree: Tree) -> None:
    """Whatever was imported before, and however quickly one bug follows another in the same line."""
    assert tree.test([TEST], 60) == (0, [], tree.root.joinpath("test.log").read_text())
    for mutant in (MUTANT, OTHER, MUTANT, OTHER):
        assert tree.plant(mutant)
        code, failed, output = tree.test([TEST], 60)
        assert (code, failed) == (1, [FAILS])
        assert "2" in output or "4" in output
        tree.restore()
        assert (tree.root / MUTANT.path).read_text() == SOURCE
        assert tree.test([TEST], 60)[:2] == (0, [])


@pytest.mark.slow
def test_a_run_that_hangs_or_dies_ends_and_leaves_nothing(tree: Tree) -> None:
    """Neither a process, nor anything that the next run would see."""
    other = tree.root / "other-test"
    other.write_text("hangs")
    assert tree.test([TEST], 2)[:2] == (HUNG, [])
    ours = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(TREE_VARIABLE) == str(tree.root) and process.status() != psutil.STATUS_ZOMBIE:
                ours.append(process.cmdline())
        except psutil.Error:
            continue
    assert [command[-1] for command in ours] == ["tests.mutants.warm"]
    other.write_text("dies")
    assert tree.test([TEST], 60)[:2] == (-9, [])
    other.unlink()
    assert tree.test([TEST], 60)[:2] == (0, [])


def test_without_its_warm_process_another_is_begun(tree: Tree) -> None:
    """One that was killed, by whoever looked for memory."""
    assert tree.test([TEST], 60)[:2] == (0, [])
    (warm,) = (found for found in psutil.Process().children() if found.cmdline()[-1] == "tests.mutants.warm")
    warm.kill()
    warm.wait()
    assert tree.test([TEST], 60)[:2] == (0, [])


def test_the_modules_that_change_are_not_imported_beforehand() -> None:
    """They would be the same in every run."""
    program = "import sys; from tests.mutants import warm; warm.import_what_stays(); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    modules = ran.stdout.split()
    assert "pytest" in modules
    assert "hypothesis" in modules
    assert [name for name in modules if name.partition(".")[0] in ("fastlog", "pyspark_fastlog")] == []
    assert [name for name in modules if name.startswith("tests")] == ["tests", "tests.mutants", "tests.mutants.warm"]
