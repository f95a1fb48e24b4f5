"""Copies of the checkout in which mutants are built and tried, one at a time; the checkout itself is never touched."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.harness.checkout import ROOT, known_files
from tests.mutants.operators import Mutant

TREE_VARIABLE = "FASTLOG_MUTANTS_TREE"
BUILD_SECONDS = 900
QUICK_COMPILER = '#!/bin/sh\nexec gcc "$@" -O0\n'
"""A bug is as wrong without the optimizer, which takes five times as long as the rest of the compiler."""
HUNG = -1000
"""Exit code of a run that did not end in its time."""


def copy_checkout(target: Path) -> None:
    """Copy what git knows and what was built from it, times of the files included: nothing is built twice."""
    names = known_files()
    # setuptools compares the sources with the libraries below build/, which it copies from there
    for pattern in ("fastlog/**/*.so", "fastlog/**/*.c", "build/lib*/**/*.so"):
        names += [str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)]
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name)


class Tree:
    """One copy; ``pristine`` is another one, which stays as it is and gives back what a mutant has changed."""

    def __init__(self, root: Path, pristine: Path) -> None:
        self.root = root
        self._pristine = pristine
        if not root.exists():
            shutil.copytree(pristine, root)

    def plant(self, mutant: Mutant) -> bool:
        """Put the bug in and build what depends on it; False when it does not compile, and then nothing has changed."""
        path = self.root / mutant.path
        path.write_text(mutant.apply((self._pristine / mutant.path).read_text()))
        if path.suffix == ".py":
            return True
        if self.build():
            return True
        self.restore()
        return False

    def build(self) -> bool:
        """Build the extensions that are older than their sources."""
        compiler = self.root / "quick-gcc"
        compiler.write_text(QUICK_COMPILER)
        compiler.chmod(0o755)
        with (self.root / "build.log").open("wb") as log:
            built = subprocess.run(
                [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
                cwd=self.root,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self._environment(), "CC": str(compiler), "LDSHARED": f"{compiler} -shared"},
                timeout=BUILD_SECONDS,
                check=False,
            )
        return built.returncode == 0

    def restore(self) -> None:
        """Make the sources and what was built from them what they are in the pristine copy, by size and time."""
        for folder in ("fastlog", "build"):
            for source in (self._pristine / folder).rglob("*"):
                if not source.is_file():
                    continue
                target = self.root / source.relative_to(self._pristine)
                here, there = target.stat() if target.exists() else None, source.stat()
                if here is None or (here.st_size, here.st_mtime_ns) != (there.st_size, there.st_mtime_ns):
                    # into place by a rename: a process that still maps the old library keeps it
                    made = target.with_name(f"{target.name}.made")
                    shutil.copy2(source, made)
                    made.replace(target)

    def test(self, tests: list[str], seconds: float, *options: str) -> tuple[int, list[str], str]:
        """Run tests until the first that fails: exit code (``HUNG`` after ``seconds``), failed tests, output.

        No process that they started is left.
        """
        failed = self.root / "failed-tests"
        failed.unlink(missing_ok=True)
        temporary = self.root / "tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        command = [sys.executable, "-m", "pytest", "-x", "--no-header", "--tb=line", "-p", "no:randomly"]
        command += [*options, "--failed-tests", str(failed), "--basetemp", str(temporary / "pytest"), *tests]
        with (self.root / "test.log").open("w+b") as log:
            process = subprocess.Popen(
                command, cwd=self.root, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**self._environment(), "TMPDIR": str(temporary)}, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = HUNG
            self._end_processes(process)
            log.seek(0)
            output = log.read().decode(errors="replace")
        names = failed.read_text().splitlines() if failed.exists() else []
        return code, names, output

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(self.root),
            TREE_VARIABLE: str(self.root),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def _end_processes(self, process: subprocess.Popen[bytes]) -> None:
        """Kill what the tests left, which a mutant may well keep from stopping."""
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 30
        while ours := [found for found in psutil.process_iter() if self._is_ours(found)]:
            for found in ours:
                found.kill()
            if time.monotonic() > deadline:  # in the kernel's hands; the next run is told by its failure
                break
            time.sleep(0.05)
        process.wait()

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
                return False
            return process.environ().get(TREE_VARIABLE) == str(self.root)
        except psutil.Error:
            return False
