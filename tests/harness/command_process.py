"""Commands in processes of their own, as a user runs them (in the suite mostly by a fork: ``nursery``)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from tests.harness.broker import own_environment

RunCommand = Callable[[Sequence[str], Mapping[str, str], bytes, float], subprocess.CompletedProcess[bytes]]


def run_command(
    command: Sequence[str], environment: Mapping[str, str], data: bytes, timeout: float
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end, with that stdin, in a fresh interpreter."""
    return subprocess.run(command, input=data, env=environment, capture_output=True, timeout=timeout, check=False)


begun: RunCommand = run_command
"""How commands are run to their end."""


def start(
    arguments: Sequence[str], module: str = "fastlog", environment: dict[str, str] | None = None, prepare: str = ""
) -> subprocess.Popen[bytes]:
    """Start a command, or another module; ``prepare`` is Python that its process runs before."""
    run_prepared = f"import runpy; {prepare}; runpy.run_module({module!r}, run_name='__main__')"
    return subprocess.Popen(
        [sys.executable, *(["-c", run_prepared] if prepare else ["-m", module]), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )


@contextlib.contextmanager
def started(*arguments: str, prepare: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A running command that does not outlive the block; ``prepare`` is Python that its process runs before."""
    with start(arguments, prepare=prepare) as process:
        try:
            yield process
        finally:
            process.kill()


def run(
    *arguments: str,
    data: bytes = b"",
    module: str = "fastlog",
    environment: dict[str, str] | None = None,
    timeout: float = 60,
) -> tuple[int, bytes, str]:
    """The exit code, stdout, and stderr of a command."""
    command = [sys.executable, "-m", module, *arguments]
    done = begun(command, {**own_environment(), **(environment or {})}, data, timeout)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done.returncode, done.stdout, done.stderr.decode()


def refused(code: int, err: str) -> list[str]:
    """The three lines of an error."""
    found = err.strip().split("\n")[-3:]
    assert found[1].startswith("  why: ") and found[2].startswith("  do:  "), (code, err)
    return found
