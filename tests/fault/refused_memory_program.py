"""The program in which a processor is refused memory, at each place of its compiled code that asks for some.

For each place that it reaches at work a processor starts anew, every request is made while this place gets nothing, and
then all is as it was: nothing is held, the next client is served, and what was acknowledged is stored.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import re
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastlog.workers.net._loop  # noqa: F401  # the shim watches what is loaded before it
from tests.harness import raw_client as raw
from tests.harness import today
from tests.harness.checkout import ROOT
from tests.harness.memory_shim import Memory
from tests.harness.workers import Workers, drain
from tests.unit.test_given_back import GOOD, KINDS, MEGABYTE, MORE, SETTINGS, acked, at_rest, prepare

HANG_SECONDS = 120.0
HEARTBEAT_MS = 20
"""What finds no memory for an answer tries again with each."""
REFUSALS = 2
ANSWER_BYTES = 30


def bridged(topic: str, offset: int = 0, limit: int = MEGABYTE) -> bytes:
    """A client of today that fetches from a topic of 0.7."""
    fields = today.fetched((topic, 0, offset), limit=limit)
    return today.request(today.API_VERSIONS, 0, {}) + today.request(today.FETCH, 12, fields)


REQUESTS: dict[str, bytes] = {
    **KINDS,
    **MORE,
    "bridged": bridged("t"),
    "bridged, in parts": bridged("t", limit=20),
    "bridged, much": bridged("large"),
    "bridged, far into it": bridged("large", 4 * MEGABYTE - 100_000),
    "bridged, a large message": bridged("large", limit=1),
    "many appended": acked(GOOD) * 400,
    "many parts": raw.multifetch_frame([("t", number % 4, 0, 100) for number in range(200)]),
    "many files": raw.fetch_frame("large", 0, 0, 40_000) * 40,
}
OF_PROCESSORS = re.compile(r"workers/(?!_flusher\b)")
"""Places of their own modules."""
HARMLESS = ("fetch", "offsets", "metadata")
"""They make nothing where nothing is."""
COUNTED = ("appended", "flushed", "many appended")
"""Those of ``acked(GOOD)`` alone: all have answers of the same size."""


def ask(workers: Workers, request: bytes) -> bytes:
    """What comes back until the connection ends: behind the last answer, or where something is refused."""
    with workers.connect() as client:
        try:
            client.send_raw(request)
            client.finish_sending()
        except OSError:  # it has ended already
            pass
        try:
            return drain(client)
        except TimeoutError:
            raise AssertionError(f"neither an answer nor an end of the connection for {request[:60]!r}") from None


def acknowledged(answers: bytes) -> int:
    """How many answers say that a message is stored; the last one may be cut off."""
    ends = range(ANSWER_BYTES, len(answers) + 1, ANSWER_BYTES)
    return sum(struct.unpack_from(">h", answers, end - ANSWER_BYTES + 8)[0] == 0 for end in ends)


def check_served(workers: Workers) -> None:
    """The next client is served, as if nothing had been."""
    with workers.connect() as client:
        assert client.produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
        assert client.fetch("t", 1, 0, len(GOOD)).body == GOOD
        assert client.metadata(["t"]).topics["t"].error == 0


def ask_all(workers: Workers, before: Callable[[], None]) -> Iterator[str]:
    """Make each request, ``before`` it this; what was acknowledged and is not stored."""
    for name, request in REQUESTS.items():
        end = workers.arena.view(0).log_end
        before()
        answers = ask(workers, request)
        stored = (workers.arena.view(0).log_end - end) // len(GOOD)
        if name in COUNTED and stored < acknowledged(answers):
            yield f"{name}: {acknowledged(answers)} acknowledged, {stored} stored"


def violations_at(memory: Memory, place: int, directory: Path) -> Iterator[str]:
    """What is wrong when this place gets nothing for a moment: before anything is stored, and behind it."""
    refused = 0

    def refuse() -> None:
        nonlocal refused
        refused += memory.refused()
        memory.refuse(place, REFUSALS)

    directory.mkdir()
    with Workers(directory, heartbeat_ms=HEARTBEAT_MS, **SETTINGS) as workers:
        for name in HARMLESS:
            refuse()
            ask(workers, KINDS[name])
        refuse()
        memory.refuse(place, 0)
        prepare(workers)
        gc.collect()  # what is left of processors that did not begin must not go while this one is looked at
        before = at_rest(workers)
        yield from ask_all(workers, refuse)
        refuse()
        memory.refuse(place, 0)
        workers.wait_held(before, files_may_close=True)
        check_served(workers)
        workers.wait_held(before, files_may_close=True)
    if not refused:
        yield "nothing was refused"


def violations_at_start(memory: Memory, place: int, directory: Path) -> Iterator[str]:
    """What is wrong when this place gets nothing where a processor begins: it says so and does not begin."""
    directory.mkdir()
    workers = Workers(directory, **SETTINGS)
    memory.refuse(place, 1)
    try:
        with workers:
            yield "it began without it"
    except MemoryError:
        workers.stop()
        workers.listener.close()
    if not memory.refused():
        yield "nothing was refused"
    memory.refuse(place, 0)


def main(told: dict[str, Any]) -> dict[str, Any]:
    """Refuse at each place that the same start and the same requests reach without refusals."""
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    directory = Path(told["directory"])
    memory = Memory(ROOT / "fastlog")
    with Workers(directory, **SETTINGS) as workers:
        workers.wait_still()
        started = memory.calls()
        prepare(workers)
        violations = [f"refused nothing: {text}" for text in ask_all(workers, lambda: None)]
    started += [0] * (len(memory.places()) - len(started))
    at_work = [place for place, calls in enumerate(memory.calls()) if calls > started[place]]
    names = memory.places()
    at_start = [place for place, calls in enumerate(started) if calls and OF_PROCESSORS.match(names[place])]
    for place in at_start:
        found = list(violations_at_start(memory, place, directory / f"start-{place}"))
        violations += [f"start, {names[place]}: {text}" for text in found]
    for place in at_work:
        try:
            found = list(violations_at(memory, place, directory / f"at-{place}"))
        except AssertionError:
            found = [traceback.format_exc()]
        violations += [f"{names[place]}: {text}" for text in found]
    return {
        "at start": [names[place] for place in at_start],
        "at work": [names[place] for place in at_work],
        "violations": violations,
    }


if __name__ == "__main__":
    logging.disable()
    print(json.dumps(main(json.loads(sys.argv[1]))))
