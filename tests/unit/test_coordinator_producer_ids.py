"""Producer ids: none is given twice, and none that a log has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fastlog.kafka_codes import Code
from fastlog.log import _files
from fastlog.workers.coordinator import dispatch, producer_ids
from tests.harness.coordinated import Coordinated


@pytest.fixture
def running(memory: Path) -> Iterator[Coordinated]:
    with Coordinated(memory / "log") as made:
        yield made


def test_no_producer_id_is_given_twice(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is one of a block taken from the next one."""
    monkeypatch.setattr(producer_ids, "BLOCK", 4)
    with Coordinated(memory / "log") as first:
        found = first.producer_ids(5)
        first.loop.close()
        first.begin()
        first.turn_until("it is ready", lambda: first.topics.is_ready)
        found += first.producer_ids(5)
    with Coordinated(memory / "log") as second:
        found += second.producer_ids(5)
        asked = [
            second.begin_to_ask(22, version, transactional_id=None, transaction_timeout=1000) for version in range(3)
        ]
        second.turn_until("all are answered", lambda: all(asked))
        found += [each[0].producer_id for each in asked]
    assert len(set(found)) == 18


def test_who_asks_while_a_block_is_taken_waits_for_it(running: Coordinated) -> None:
    """Each would take the same one."""
    fields = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
    asked = [running.begin_to_ask(22, 4, **fields) for _ in range(3)]
    running.turn_until("all are answered", lambda: all(asked))
    assert sorted(each[0].producer_id for each in asked) == [0, 1, 2]


@pytest.mark.parametrize(("met", "least"), [(4_000_000, 4_000_001), (0, 1), (-1, 0)])
def test_producer_ids_begin_above_those_that_logs_have(memory: Path, met: int, least: int) -> None:
    """Else a new producer's first batch may pass for one that was sent again."""
    with Coordinated(memory / "log") as first:
        first.arena.meet_producer(met)
        assert first.producer_ids(1) == [least]
    with Coordinated(memory / "log") as second:
        second.arena.meet_producer(least - 1)
        assert second.producer_ids(1) == [least + 1000]


def test_a_transactional_id_is_refused_at_once(running: Coordinated) -> None:
    found = running.ask(22, 4, transactional_id="x", transaction_timeout=1000, producer_id=-1, producer_epoch=-1)
    assert (found.error_code, found.producer_id, found.producer_epoch) == (53, -1, -1)


def test_no_producer_id_where_it_cannot_be_written_down(running: Coordinated, caplog: pytest.LogCaptureFixture) -> None:
    """A full disk is told, no number is lost by it, and the next one that asks has one."""
    fields = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
    _files.arm("pwrite@1=ENOSPC", "test")
    asked = [running.begin_to_ask(22, 4, **fields) for _ in range(2)]
    running.turn_until("both are answered", lambda: all(asked))
    _files.arm("", "test")
    found = sorted((each[0].error_code, each[0].producer_id, each[0].producer_epoch) for each in asked)
    assert found == [(Code.NONE, 0, 0), (Code.COORDINATOR_NOT_AVAILABLE, -1, -1)]
    assert "no producer id: " in caplog.text
    assert running.producer_ids(1) == [1]


def test_no_producer_id_before_the_metadata_log_is_read(running: Coordinated, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was given to others stands in it."""
    monkeypatch.setattr(dispatch, "READY_SECONDS", 0.0)
    running.topics.is_ready = False
    fields = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
    found = running.ask(22, 4, **fields)
    assert (found.error_code, found.producer_id) == (Code.COORDINATOR_LOAD_IN_PROGRESS, -1)
    running.topics.is_ready = True
    assert running.producer_ids(1) == [0]
