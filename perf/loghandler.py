"""What one log record costs the program that writes it: ``python -m perf.loghandler``.

The same records through ``logging`` into nothing, into a file, and into a topic, in turns; nanoseconds of processor
time of the calling thread for each record, the median of the turns. The rest of a handler's work is its own thread's:
the time of the whole process beside it has both.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from pathlib import Path

from fastlog import testing
from fastlog.loghandler import JsonFormatter, LogHandler

_RECORDS = 20_000
_TURNS = 7


def measure(handler: logging.Handler, logger: logging.Logger) -> tuple[float, float]:
    """Processor time for one record, in ns: of the calling thread, and of the process until all is delivered."""
    logger.addHandler(handler)
    process, thread = time.process_time_ns(), time.thread_time_ns()
    for number in range(_RECORDS):
        logger.info("request %d took %.3f s", number, 0.25)
    thread = time.thread_time_ns() - thread
    handler.flush()
    process = time.process_time_ns() - process
    logger.removeHandler(handler)
    return thread / _RECORDS, process / _RECORDS


def main() -> None:
    """Measure what a log call costs with each handler, and print a table."""
    logger = logging.getLogger("perf")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    line = logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    with testing.broker() as broker, tempfile.TemporaryDirectory() as directory:
        address = broker.address
        handlers: dict[str, logging.Handler] = {
            "no handler that does anything": logging.NullHandler(),
            "FileHandler": logging.FileHandler(Path(directory) / "log"),
            "LogHandler": LogHandler(address, topic="lines", queue_messages=_RECORDS),
            "LogHandler, JSON": LogHandler(address, topic="json", queue_messages=_RECORDS),
            "LogHandler, the queue full": LogHandler("localhost:1", topic="full", queue_messages=1, close_timeout_ms=0),
        }
        for name, handler in handlers.items():
            handler.setFormatter(JsonFormatter() if "JSON" in name else line)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in handlers}
        for _ in range(_TURNS):
            for name, handler in handlers.items():
                found[name].append(measure(handler, logger))
        print(f"{'':32}{'thread':>8}{'process':>9}   ns a record, {_RECORDS} records, median of {_TURNS} turns")
        for name, turns in found.items():
            thread, process = (statistics.median(column) for column in zip(*turns, strict=True))
            print(f"{name:32}{thread:8.0f}{process:9.0f}")
        for handler in handlers.values():
            handler.close()


if __name__ == "__main__":
    main()
