"""Copies of the checkout in which mutants are built and tried, one at a time; the checkout itself is never touched."""

from __future__ import annotations

import json
import os
import select
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
BUILD_SECONDS = 3600
QUICK_COMPILER = '#!/bin/sh\nexec gcc "$@" -O0\n'
"""A bug is as wrong without the optimizer, which takes five times as long as the rest of the compiler."""
WARM_SECONDS = 300
ALREADY_IMPORTED = "ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning"
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
        self._warm: subprocess.Popen[bytes] | None = None
        self._answers = b""
        if not root.exists():
            shutil.copytree(pristine, root)

    def plant(self, mutant: Mutant) -> bool:
        """Put the bug in and build what depends on it; False when it does not compile, and then nothing has changed."""
        path = self.root / mutant.path
        path.write_text(mutant.apply((self._pristine / mutant.path).read_text()))
        self._forget_bytecode(path)
        if path.suffix == ".py":
            return True
        if self.build():
            return True
        self.restore()
        return False

    @staticmethod
    def _forget_bytecode(path: Path) -> None:
        """Python tells texts apart by size and second: two mutants of one line may well be the same by both."""
        for made in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            made.unlink()

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
                    self._forget_bytecode(target)

    def test(self, tests: list[str], seconds: float, *options: str) -> tuple[int, list[str], str]:
        """Run tests until the first that fails: exit code (``HUNG`` after ``seconds``), failed tests, output.

        No process that they started is left.
        """
        failed = self.root / "failed-tests"
        failed.unlink(missing_ok=True)
        temporary = self.root / "tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        arguments = ["-x", "--no-header", "--tb=line", "-p", "no:randomly", "-W", ALREADY_IMPORTED, *options]
        arguments += ["--failed-tests", str(failed), "--basetemp", str(temporary / "pytest"), *tests]
        log = self.root / "test.log"
        try:
            code = self._run(arguments, {**self._environment(), "TMPDIR": str(temporary)}, log, seconds)
        finally:
            self._end_processes()
        output = log.read_text(errors="replace") if log.exists() else ""
        names = failed.read_text().splitlines() if failed.exists() else []
        return code, names, output

    def _run(self, arguments: list[str], environment: dict[str, str], log: Path, seconds: float) -> int:
        """The exit code of pytest in a child of the warm process, which is begun where there is none."""
        if self._warm is not None and self._warm.poll() is not None:
            self.close()
        if self._warm is None:
            self._warm = subprocess.Popen(
                [sys.executable, "-m", "tests.mutants.warm"], cwd=self.root, env=self._environment(), bufsize=0,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
            self._answers = b""
            self._answer(WARM_SECONDS)
        assert self._warm.stdin is not None
        request = {"arguments": arguments, "environment": environment, "log": str(log)}
        self._warm.stdin.write(json.dumps(request).encode() + b"\n")
        child = int(self._answer(WARM_SECONDS))
        try:
            return int(self._answer(seconds))
        except TimeoutError:
            os.kill(child, signal.SIGKILL)  # its number is not given to another before the warm process waited for it
            self._answer(WARM_SECONDS)
            return HUNG

    def _answer(self, seconds: float) -> str:
        """A line of the warm process.

        Raises:
            TimeoutError: it did not come.
            RuntimeError: the process is gone.
        """
        assert self._warm is not None and self._warm.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._answers:
            if not select.select([self._warm.stdout], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise TimeoutError
            more = os.read(self._warm.stdout.fileno(), 1000)
            if not more:
                raise RuntimeError("the process that runs pytest has ended")
            self._answers += more
        line, _, self._answers = self._answers.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        """End the warm process."""
        if self._warm is not None:
            self._warm.kill()
            with self._warm:  # waits for it, and closes its pipes
                self._warm = None

    def _environment(self) -> dict[str, str]:
        # With PYTHONDONTWRITEBYTECODE every process would compile what it imports anew.
        given = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return {**given, "PYTHONPATH": str(self.root), TREE_VARIABLE: str(self.root)}

    def _end_processes(self) -> None:
        """Kill what the tests left, which a mutant may well keep from stopping."""
        deadline = time.monotonic() + 30
        while ours := [found for found in psutil.process_iter() if self._is_ours(found)]:
            for found in ours:
                found.kill()
            if time.monotonic() > deadline:  # in the kernel's hands; the next run is told by its failure
                break
            time.sleep(0.05)

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            if process.status() == psutil.STATUS_ZOMBIE or process.pid in (os.getpid(), self._warm and self._warm.pid):
                return False
            return process.environ().get(TREE_VARIABLE) == str(self.root)
        except psutil.Error:
            return False
