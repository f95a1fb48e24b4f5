"""What files this process has open."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
from pathlib import Path


def open_descriptors() -> dict[int, str]:
    """What each descriptor names, but those of Spark's own connections to its Java, which it opens when it likes.

    What earlier tests left in cycles goes first, and not between two looks.
    """
    gc.collect()
    found = {}
    java_port = _java_port()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            name = str(link.readlink())
            if not (java_port and name.startswith("socket:") and _leads_to(int(link.name), java_port)):
                found[int(link.name)] = name
    return found


def _java_port() -> int:
    """Where Spark's Java listens for this process; 0 where there is none."""
    pyspark = sys.modules.get("pyspark")
    gateway = pyspark.SparkContext._gateway if pyspark else None
    return gateway.java_parameters.port if gateway else 0


def _leads_to(fd: int, port: int) -> bool:
    with socket.socket(fileno=os.dup(fd)) as sock:
        try:
            peer = sock.getpeername()
        except OSError:
            return False  # it listens, or is no longer connected
        return sock.family == socket.AF_INET and peer[1] == port


def count_descriptors(below: Path | None = None) -> int:
    """How many there are; or of a directory and what is in it, where other threads open what they need meanwhile."""
    return sum(below is None or f"{name}/".startswith(f"{below}/") for name in open_descriptors().values())
