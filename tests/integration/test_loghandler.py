"""Log records of whole programs: they end, fork and lose their broker, and what fits in the queue arrives."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastlog import testing
from fastlog.loghandler import LogHandler
from fastlog.testing import RunningBroker
from tests.harness.broker import wait_until
from tests.harness.timing import PATIENCE

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]

PROGRAM = """
import logging, multiprocessing, sys, fastlog
def child(number):
    logging.warning("child %d", number)
def main():
    handler = fastlog.LogHandler(sys.argv[1], topic="t")
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])
    for number in range(1000):
        logging.info("%d", number)
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=child, args=(number,)) for number in range(3)]
    for process in children:
        process.start()
    for process in children:
        process.join()
    logging.info("last")
main()
"""


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with testing.broker() as running:
        yield running


def payloads(broker: RunningBroker) -> list[bytes]:
    with broker.consumer() as consumer:
        return list(consumer.payloads("t", 0))


def test_a_program_that_ends_or_forks_loses_no_record(broker: RunningBroker) -> None:
    """Nobody calls close(): the end of the program, and of a process of multiprocessing, does."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, broker.address], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE * 2
    )
    assert (run.returncode, run.stderr) == (0, "")
    found = payloads(broker)
    assert [line for line in found if line.isdigit()] == [b"%d" % number for number in range(1000)]
    assert sorted(line for line in found if not line.isdigit()) == [b"child 0", b"child 1", b"child 2", b"last"]


def test_records_go_on_when_the_broker_is_back(broker: RunningBroker) -> None:
    """Killed with all its processes, and started again on the same port: what was written meanwhile comes then."""
    logger = logging.getLogger("outage")
    logger.propagate = False
    handler = LogHandler(broker.address, topic="t", queue_messages=500)
    logger.addHandler(handler)
    try:
        logger.error("before")
        handler.flush(PATIENCE)
        broker.kill()
        for number in range(700):
            logger.error("%d", number)
        assert handler.pending <= 500
        assert handler.dropped >= 200
        broker.start()
        handler.flush(PATIENCE)
        assert handler.pending == 0
        logger.error("after")
        handler.flush(PATIENCE)
    finally:
        logger.removeHandler(handler)
        handler.close()
    wait_until("all is visible", lambda: payloads(broker)[-1:] == [b"after"])
    assert list(dict.fromkeys(payloads(broker))) == [b"before", *(b"%d" % number for number in range(500)), b"after"]
