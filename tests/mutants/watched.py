"""A copy of the checkout that counts what is reached: compiled for gcov, and watched by coverage.py."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.harness.checkout import ROOT, known_files
from tests.mutants import contexts
from tests.mutants.trees import copy_checkout
from tests.mutants.trying import NO_TESTS

COMPILER = '#!/bin/sh\nexec gcc "$@" --coverage -fprofile-update=atomic -O0 -Wno-error\n'
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
data_file = {folder}/data
"""


def sum_of(path: Path) -> str:
    """Which text a file has."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Counters:
    """What one test file has reached: counters of compiled code, data of coverage.py, and how it ended.

    Each process adds its own; one that is killed leaves nothing.
    """

    def __init__(self, folder: Path, test: str) -> None:
        self.test = test
        self.folder = folder / test.replace("/", "+")
        self.compiled = self.folder / "compiled"
        self.covered = self.folder / "covered"
        self._ended = self.folder / "ended.json"

    @property
    def ended(self) -> dict[str, Any] | None:
        """Which text ``sha256`` of the tests ran, whether it ``passed``, and the ``seconds`` of it and of each test."""
        return json.loads(self._ended.read_text()) if self._ended.exists() else None

    def begin(self) -> None:
        """Forget what was counted before."""
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "python").mkdir(parents=True)
        (self.folder / "coverage.ini").write_text(COVERAGE.format(folder=self.folder / "python"))

    def end(self, sha256: str, passed: bool, seconds: dict[str, float]) -> None:
        """All processes are gone: put the data of coverage.py together."""
        from coverage import CoverageData
        from coverage.exceptions import DataError

        whole = CoverageData(str(self.covered))
        for part in (self.folder / "python").glob("data.*"):
            data = CoverageData(str(part))
            # a process that was killed while it wrote leaves a part of a file
            with contextlib.suppress(DataError):
                data.read()
                whole.update(data)
        whole.write()
        shutil.rmtree(self.folder / "python")
        self._ended.write_text(json.dumps({"sha256": sha256, "passed": passed, "seconds": seconds}))


class Watched:
    """The copy, and the counters of each test file; those of the same sources are kept from one run to the next."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        self._counters = folder / "counters"
        self._stamp = folder / "sources"

    def prepare(self) -> None:
        """Copy and build anew where the sources have changed; the tests are those of now."""
        sources = self._sources()
        if not self._stamp.exists() or self._stamp.read_text() != sources:
            shutil.rmtree(self._stamp.parent, ignore_errors=True)
            self._counters.mkdir(parents=True)
            copy_checkout(self.root)
            self._build()
            self._stamp.write_text(sources)
        for name in known_files():
            if name.startswith("tests/"):
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)

    def counters(self, test: str) -> Counters:
        """Those of a test file."""
        return Counters(self._counters, test)

    def run(self, test: str, seconds: float) -> str:
        """Run a test file, unless it has been run as it is; returns what it printed if it failed."""
        counters = self.counters(test)
        sha256 = sum_of(self.root / test)
        if counters.ended is not None and counters.ended["sha256"] == sha256:
            return ""
        counters.begin()
        times = counters.folder / "seconds"
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.root),
            "LD_PRELOAD": str(self.root / "exit.so"),
            "COVERAGE_CORE": "ctrace",
            "GCOV_PREFIX": str(counters.compiled),
            contexts.SECONDS_VARIABLE: str(times),
        }
        rules = f"--rcfile={counters.folder / 'coverage.ini'}"
        command = [sys.executable, "-m", "coverage", "run", rules, "-m", "pytest", "--core", "-p", contexts.__name__]
        output = counters.folder / "output"
        started = time.monotonic()
        with output.open("wb") as log:
            process = subprocess.Popen(
                [*command, "--basetemp", str(counters.folder / "tmp"), test],
                cwd=self.root, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.terminate()
                code = process.wait()
        passed = code in (0, NO_TESTS)
        found: dict[str, float] = json.loads(times.read_text()) if times.exists() else {}
        shutil.rmtree(counters.folder / "tmp", ignore_errors=True)
        counters.end(sha256, passed, {**found, test: time.monotonic() - started})
        return "" if passed else output.read_text(errors="replace")

    def _build(self) -> None:
        for made in self.root.glob("fastlog/**/*.so"):
            made.unlink()
        compiler = self.root / "counting-gcc"
        compiler.write_text(COMPILER)
        compiler.chmod(0o755)
        (self.root / "exit.c").write_text(EXIT)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", "exit.so", "exit.c"], cwd=self.root, check=True)
        environment = {
            **os.environ,
            "CC": str(compiler),
            "LDSHARED": f"{compiler} -shared",
            "PYTHONPATH": str(self.root),
        }
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"]
        subprocess.run(command, cwd=self.root, check=True, env=environment)

    def _sources(self) -> str:
        names = sorted(name for name in known_files() if name.startswith("fastlog/") or name == "setup.py")
        return "".join(f"{sum_of(ROOT / name)} {name}\n" for name in names)
