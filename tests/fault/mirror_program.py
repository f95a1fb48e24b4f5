"""Starts mirrors as forks of a process that has imported everything, so that a kill costs no second of starting.

Told line by line on stdin: ``start`` forks one, ``kill`` is SIGKILL, ``stop`` SIGTERM; each is answered with a line:
the process id, or the exit code. The first argument is a JSON object with ``sources``, ``target`` and ``settings`` as
properties.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import kazoo.client  # noqa: F401 - before the fork

from fastlog import logs
from fastlog.mirror import MirrorConfig, MirrorSettings, SourceConfig, TargetConfig
from fastlog.mirror.making import made
from tests.harness.broker import die_with_parent

STOP_SECONDS = 20.0


def mirror(told: dict[str, Any]) -> int:
    """Run one until SIGTERM; its last report is written to ``told["report"]``."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logs.set_up("mirror")
    config = MirrorConfig(
        sources=tuple(SourceConfig.from_properties(name, given) for name, given in told["sources"].items()),
        target=TargetConfig.from_properties(told["target"]),
        settings=MirrorSettings.from_properties(told["settings"]),
    )
    running, report = made(config)
    running.start()
    while not over.wait(0.01):
        running.wait(0.0)
    left = running.stop(STOP_SECONDS)
    Path(told["report"]).write_text(json.dumps([left, *report.objects(asks=False)]))
    return 1 if left else 0


def main() -> int:
    """Do as told until stdin ends."""
    told = json.loads(sys.argv[1])
    pid = 0
    for line in sys.stdin:
        word = line.strip()
        if word == "start":
            pid = os.fork()
            if pid == 0:
                die_with_parent()
                os.close(0)
                try:
                    os._exit(mirror(told))
                finally:
                    faulthandler.dump_traceback()
                    os._exit(99)
            print(pid, flush=True)
            continue
        os.kill(pid, signal.SIGKILL if word == "kill" else signal.SIGTERM)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        pid = 0
    if pid:
        os.kill(pid, signal.SIGKILL)
    return 0


if __name__ == "__main__":
    sys.exit(main())
