"""The two sides: a directory as it is, or a commit that is checked out and built beside the logs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastlog.errors import FastlogError
from tests.harness.broker import ROOT, Broker

BASELINE_FILE = ROOT / "perf" / "baseline"
"""Holds the commit that later ones are measured against, named ``baseline`` on the command line."""


class CheckoutError(FastlogError):
    """One of the two checkouts cannot be built or run."""


@dataclass(frozen=True)
class Checkout:
    """One side: where it is, which commit, and whether the directory differs from it.

    Its commands are started by this interpreter with the directory before everything else on the path, so both sides
    share one Python and one set of packages.
    """

    path: Path
    commit: str
    changed: bool

    def __str__(self) -> str:
        return f"{self.commit[:10]}{' and changes' if self.changed else ''}"

    def environment(self) -> dict[str, str]:
        """What makes this checkout the ``fastlog`` that is imported."""
        return {"PYTHONPATH": str(self.path)}

    def command(self, script: str) -> list[str]:
        """How a command of ``[project.scripts]`` is started from this checkout.

        Raises:
            CheckoutError: it has none of this name.
        """
        with (self.path / "pyproject.toml").open("rb") as file:
            scripts: Mapping[str, str] = tomllib.load(file)["project"]["scripts"]
        if script not in scripts:
            raise CheckoutError(f"{self.path} has no command {script}")
        module, _, function = scripts[script].partition(":")
        program = f"import sys; from {module} import {function}; sys.argv[0] = {script!r}; sys.exit({function}())"
        return [sys.executable, "-c", program]

    def build(self) -> None:
        """Compile what is older than its source.

        Raises:
            CheckoutError: with the end of what the compiler said.
        """
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        built = subprocess.run(
            command, cwd=self.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if built.returncode:
            raise CheckoutError(f"{self.path} does not build:\n{built.stdout[-2000:]}")


class SideBroker(Broker):
    """The broker of one side; ``prefix`` is put before its command."""

    def __init__(
        self, side: Checkout, directory: Path, *, settings: Mapping[str, object], prefix: tuple[str, ...] = ()
    ) -> None:
        environment = side.environment()
        if prefix:
            # under a simulated processor everything takes fifty times as long: turns, too
            environment["FASTLOG_TURN_MS"] = "1000"
        super().__init__(directory, settings=settings, environment=environment, start_timeout=300.0 if prefix else 30.0)
        self._side = side
        self._prefix = prefix

    def command(self) -> list[str]:
        """The command line that starts this broker."""
        command = [*self._prefix, *self._side.command("fastlog-broker"), "--port", "0", "--processors", "2"]
        for path in self.log_dirs:
            command += ["--log-dir", str(path)]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        return command


def checkout(text: str, scratch: Path) -> Checkout:
    """The side that is named by a directory, by a commit of this repository, or by ``baseline``; built.

    A commit is checked out below ``scratch``, where the next run finds it again.

    Raises:
        CheckoutError: it is neither, or does not build.
    """
    directory = Path(text)
    if (directory / "pyproject.toml").is_file():
        found = Checkout(directory.resolve(), *_described(directory))
    else:
        if text == "baseline" and BASELINE_FILE.exists():
            text = BASELINE_FILE.read_text().split()[0]
        commit = _git(ROOT, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}")
        if not commit:
            raise CheckoutError(f"{text} is neither a checkout nor a commit of this repository")
        found = Checkout(_checked_out(commit, scratch / "checkouts" / commit), commit, changed=False)
    found.build()
    return found


def _described(directory: Path) -> tuple[str, bool]:
    commit = _git(directory, "rev-parse", "HEAD") or "unknown"
    return commit, commit == "unknown" or bool(_git(directory, "status", "--porcelain", "--untracked-files=no"))


def _checked_out(commit: str, directory: Path) -> Path:
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        part = directory.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        archive = subprocess.Popen(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE)
        unpacked = subprocess.run(["tar", "-x"], cwd=part, stdin=archive.stdout, check=False)
        if archive.wait() or unpacked.returncode:
            raise CheckoutError(f"{commit} cannot be checked out below {directory.parent}")
        part.rename(directory)
    return directory


def _git(directory: Path, *arguments: str) -> str:
    run = subprocess.run(["git", *arguments], cwd=directory, capture_output=True, text=True, check=False)
    return run.stdout.strip() if run.returncode == 0 else ""
