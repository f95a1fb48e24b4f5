"""A few kills of the coordinator under committing members; ``python -m tests.fault`` makes many."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from tests.fault.coordinator_groups import TOPIC, Committer, coordinator_groups
from tests.fault.coordinators import Client
from tests.harness.broker import Broker, wait_until
from tests.harness.timing import PATIENCE


@pytest.mark.slow
def test_no_answered_commit_goes_back(tmp_path: Path) -> None:
    outcome = coordinator_groups(3, 5, tmp_path)
    assert outcome.violations == []
    assert outcome.runs >= 4


@pytest.mark.slow
def test_a_disk_that_fails_once_takes_nothing_back(tmp_path: Path) -> None:
    """The log goes out of service and comes back, and the groups with it, without anybody starting anything."""
    settings = {"group.initial.rebalance.delay.ms": 0, "recovery.retry.ms": 100}
    faults = {"FASTLOG_FAULTS": "flusher:fdatasync@80=EIO"}
    over = threading.Event()
    with Broker(tmp_path, processors=1, settings=settings, environment=faults) as broker:
        client = Client(broker)
        assert client.create(TOPIC) == 0
        client.close()
        committers = [Committer(broker, number, random.Random(number)) for number in range(4)]
        threads = [threading.Thread(target=committer.run, args=(over,)) for committer in committers]
        for thread in threads:
            thread.start()
        wait_until("the disk has failed", lambda: "a flush failed" in broker.log_text())
        wait_until("it is read again", lambda: "back in service topic='__consumer_offsets'" in broker.log_text())
        before = [committer.done for committer in committers]
        wait_until("all go on", lambda: all(c.done > n + 5 for c, n in zip(committers, before, strict=True)))
        over.set()
        for thread in threads:
            thread.join(PATIENCE)
        for committer in committers:
            committer.close()
        assert [line for committer in committers for line in committer.wrong] == []
