"""A broker of ``fastlog.testing`` that starts and ends again and again inside one process: nothing is left of it."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path

import psutil

from fastlog import testing
from fastlog.message import encode_set
from tests.fault.registry import Outcome, scenario
from tests.harness.raw_client import RawClient
from tests.harness.timing import PATIENCE

USED_EVERY = 20


def traces() -> tuple[set[int], set[str], set[str]]:
    """Our children, what our descriptors point at, and the temporary directories of brokers."""
    # What others have started may start more meanwhile; a child of a broker that has ended is nobody's, see below.
    children = {child.pid for child in psutil.Process().children()}
    links = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            links.add(f"{link.name} {link.readlink()}")
    return children, links, {path.name for path in Path(tempfile.gettempdir()).glob("fastlog-*")}


@scenario("cycles", "a broker in a test starts and ends", small=40, nightly=200, release=2000)
def cycles(count: int, seed: int, directory: Path) -> Outcome:
    """One after the other; every twentieth is used, with one acknowledgement or the other."""
    outcome = Outcome()
    former, tempfile.tempdir = tempfile.tempdir, str(directory)  # others make such directories beside it
    try:
        with testing.broker():
            pass  # imports and caches of this process
        before = traces()
        seen: set[int] = set()
        for number in range(count):
            with testing.broker() as running:
                if number % USED_EVERY == 0:
                    seen |= set(running.pids().values())
                    with RawClient(running.port) as client:
                        client.produce_ack("t", 0, encode_set([b"a"]), acks=1 + (seed + number // USED_EVERY) % 2)
            outcome.expect(not running.running, f"cycle {number}: it still runs")
            outcome.runs += 1
        deadline = time.monotonic() + PATIENCE
        while any(left := [now - then for now, then in zip(traces(), before, strict=True)]):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)  # other threads of this process have descriptors for a moment, too
    finally:
        tempfile.tempdir = former
    outcome.expect(not any(left), f"left of children, descriptors and files: {left}")
    living = [pid for pid in seen if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
    outcome.expect(bool(seen) and not living, f"of {len(seen)} processes these live: {living}")
    return outcome
