"""Starting the process that a test's broker begins as."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

_PROGRAM = """
import sys
sys.path.extend(sys.argv.pop().split("\\n"))
from fastlog import _broker_main
sys.exit(_broker_main.main())
"""


def start_broker(
    given: str, environment: Mapping[str, str], lifeline: int, log: IO[bytes], ready: int
) -> subprocess.Popen[bytes]:
    """Start ``_broker_main`` with settings ``given`` as JSON.

    It stops when nobody holds the other end of ``lifeline``, and writes its port to ``ready``.
    """
    # No site module, no environment: half of the time would go there.
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(ready), given, "\n".join(_import_path())]
    return subprocess.Popen(
        command,
        env=environment,
        stdin=lifeline,
        stdout=log,
        stderr=log,
        pass_fds=(ready,),
        start_new_session=True,  # Ctrl-C is for the tests, which then end it in order
    )


def _import_path() -> list[str]:
    """Where the broker finds this package, first, and what it needs beside the standard library."""
    own = str(Path(__file__).resolve().parents[2])
    return [own, *(path for path in sys.path if path.endswith(("site-packages", "dist-packages")) and path != own)]
