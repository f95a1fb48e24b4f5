"""Runs pytest in children of a process that has imported it and what tests import beside fastlog.

Most of what a mutant costs is otherwise the start of Python and of pytest, twice. A request is a line of JSON on
standard input, {"arguments", "environment", "log"}; the answer is the child's number, and once it is gone its exit
code, each on a line. The child is a leader of its own session.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import traceback
from typing import Any

# nothing of fastlog, nor of its tests: they are what changes
IMPORTED = (
    "_pytest.config", "_pytest.assertion.rewrite", "_pytest.python", "_pytest.fixtures", "_pytest.tmpdir", "pytest",
    "_hypothesis_pytestplugin", "hypothesis", "hypothesis.strategies", "hypothesis.stateful", "pytest_timeout",
    "pytest_benchmark.plugin", "xdist.plugin", "execnet", "psutil", "numpy", "click", "asyncio", "logging.handlers",
    "concurrent.futures", "multiprocessing", "sqlite3", "http.server", "urllib.request", "email.message", "tracemalloc",
    "ctypes", "ssl", "uuid", "zlib", "gzip", "tomllib", "kazoo.client", "pyarrow", "confluent_kafka",
)  # fmt: skip


def import_what_stays() -> None:
    """What is not installed is left to the tests, which say so or do without."""
    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def run(arguments: list[str], environment: dict[str, str], log: str) -> int:
    """The work of the child."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.closerange(3, max(target, nothing) + 1)
    import pytest

    sys.argv = ["pytest", *arguments]
    return int(pytest.main(arguments))


def main() -> None:
    """Ends with its standard input."""
    import_what_stays()
    print("ready", flush=True)
    for line in iter(sys.stdin.readline, ""):
        request: dict[str, Any] = json.loads(line)
        pid = os.fork()
        if not pid:
            code = 70
            try:
                code = run(request["arguments"], request["environment"], request["log"])
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
