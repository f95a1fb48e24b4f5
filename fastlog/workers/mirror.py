"""The mirror of a broker (``--mirror``): a program of its own, that the supervisor's child becomes.

It is a client like any other, with threads and ZooKeeper: none of that may be in the processes that share the arena.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

from fastlog.addresses import host_port
from fastlog.workers import child
from fastlog.workers.net import _process

log = logging.getLogger(__name__)

_PROGRAM = """
import sys
sys.path[:] = sys.argv.pop().split("\\n")
from fastlog.tools.embedded_mirror import main
sys.exit(main(*sys.argv[1:]))
"""
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def run(shared: child.Shared, number: int) -> int:
    """Become the mirror, in a fresh fork; returns only when that cannot be done."""
    _process.die_with_parent()
    if os.getppid() != shared.supervisor_pid:
        return 0
    signal.set_wakeup_fd(-1)
    try:
        os.execv(sys.executable, command(shared))
    except OSError as error:
        log.error("the mirror cannot be started program=%s: %s", sys.executable, error)
    return child.CANNOT_START


def command(shared: child.Shared) -> list[str]:
    """The command line; the mirror writes into this broker unless its file names another target."""
    config, listener = shared.config, shared.listeners[0]
    host = _ANY_ADDRESS.get(listener.host, listener.host)
    own = f"{config.broker_id}:{host_port(host, listener.port)}"
    path = [str(Path(__file__).resolve().parents[2]), *sys.path]
    # no site module and no environment, as the path is given: it is there sooner
    return [sys.executable, "-I", "-S", "-c", _PROGRAM, str(config.mirror_file), own, "\n".join(path)]
