"""The Python side of a processor: what is refused without a word on the wire is said in the log, and little is kept."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from fastlog.config import BrokerConfig
from fastlog.log._arena import FIRST_PROCESSOR, Arena
from fastlog.workers import services as services_module
from fastlog.workers.kafka07.answers import Answers
from fastlog.workers.services import NOT_CREATED, REFUSED, Services
from tests.harness import raw_client as raw
from tests.harness.workers import Workers

GOOD = raw.entry(b"good")
NESTED_BADLY = raw.wrapper(raw.entry(b"bad", crc=1), raw.GZIP)


def test_no_partition_is_made_by_a_message_where_that_is_not_allowed(tmp_path: Path) -> None:
    with (
        Workers(tmp_path, auto_create_topics=False, create_topic_requests=True) as workers,
        workers.connect() as client,
    ):
        assert client.produce_ack("t", 0, GOOD).error == 3
        assert list(tmp_path.iterdir()) == []
        assert client.create_topic("t", 1) == (0, 1)
        assert client.produce_ack("t", 0, GOOD).error == 0


@pytest.mark.parametrize(("name", "partition"), [(b"t", 7), (b"a/b", 0), (b"\xff", 0)])
def test_what_is_no_partition_is_not_made(name: bytes, partition: int, tmp_path: Path) -> None:
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 4, 16)
    services = Services(BrokerConfig(log_dirs=(str(tmp_path),)), arena, FIRST_PROCESSOR)
    assert services.create_partition(name, partition) == NOT_CREATED
    assert arena.slot_count == 0


def test_an_answer_that_fails_unexpectedly_closes_its_connection_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has its traceback; the next request is answered."""
    answer = Answers.answer

    def fails(self: Answers, *given: object) -> object:
        if b"broken" in given[0]:  # type: ignore[operator]
            raise ZeroDivisionError("of a test")
        return answer(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Answers, "answer", fails)
    with Workers(tmp_path) as workers, workers.connect() as other, workers.connect() as client:
        client.send_raw(raw.own_frame(raw.METADATA, raw.metadata_body(["broken"]), correlation=1))
        assert client.is_closed()
        assert other.metadata(["t"]).topics["t"].error == 0
    (record,) = [found for found in caplog.records if "unexpected error in a request" in found.getMessage()]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


def test_reasons_of_connections_that_went_away_take_no_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of the last ones are known; of one that was forgotten it is said that its set is invalid, and no more."""
    monkeypatch.setattr(services_module, "MOST_REASONS", 3)
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 4, 16)
    services = Services(BrokerConfig(log_dirs=(str(tmp_path),)), arena, FIRST_PROCESSOR)
    for connection in range(4):
        assert services.count_deep_small(memoryview(NESTED_BADLY), connection) == REFUSED
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for connection in (2, 3):
            services.report_set(ours.fileno(), connection, b"t", 0)
    said = [line.partition("message set: ")[2] for line in caplog.messages]
    assert said[0] == "it cannot be decompressed"
    assert "wrong checksum" in said[1]
    assert len(services._reasons) == 0
