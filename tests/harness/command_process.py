"""Commands in processes of their own, as a user runs them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence


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
    *arguments: str, data: bytes = b"", module: str = "fastlog", environment: dict[str, str] | None = None
) -> tuple[int, bytes, str]:
    """The exit code, stdout, and stderr of a command."""
    with start(arguments, module, environment) as process:
        try:
            out, err = process.communicate(data, timeout=60)
        except BaseException:
            process.kill()
            raise
    assert b"Traceback" not in err, err.decode()
    return process.returncode, out, err.decode()


def refused(code: int, err: str) -> list[str]:
    """The three lines of an error."""
    found = err.strip().split("\n")[-3:]
    assert found[1].startswith("  why: ") and found[2].startswith("  do:  "), (code, err)
    return found
