"""The Python side of a processor: what is refused without a word on the wire is said in the log, and little is kept."""

from __future__ import annotations

import logging
import socket
import threading
from pathlib import Path

import pytest

from fastlog.config import BrokerConfig
from fastlog.log import _files
from fastlog.log._arena import Arena
from fastlog.log._shared_memory import FIRST_PROCESSOR
from fastlog.workers import services as services_module
from fastlog.workers.kafka07.answers import Answers
from fastlog.workers.kafka07.control import Control
from fastlog.workers.services import NOT_CREATED, REFUSED, Services
from tests.harness import raw_client as raw
from tests.harness.today_client import make_with
from tests.harness.workers import Workers
from tests.unit.test_counts import MANY

GOOD = raw.entry(b"good")
CLOSED, UNKNOWN, REFUSED_SET, STORAGE = -2, -1, 2, 103
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


def acked(topic: str, messages: bytes) -> bytes:
    return raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body(topic, 0, messages, raw.FLUSHED), correlation=1)


RAISES: dict[str, tuple[str, bytes, int, str]] = {
    "a line about a request": ("report", b"\x00\x00\x00\x02\x00\x63", CLOSED, ""),
    "a line about a set": ("report_set", acked("t", NESTED_BADLY), REFUSED_SET, ""),
    "a line about a write": ("write_failed", acked("t", GOOD), STORAGE, "pwrite@1=EIO"),
    "a line about a read": ("read_failed", raw.fetch_frame("t", 0, 0, 100), UNKNOWN, "sendfile@1-=EIO,pread@1-=EIO"),
    "a line about each request": ("trace", raw.fetch_frame("t", 0, 0, 100), 0, ""),
    "looking into a set": ("count_deep_small", acked("t", raw.wrapper(GOOD, raw.GZIP)), REFUSED_SET, ""),
    "looking into a large set": ("count_deep", acked("t", MANY), REFUSED_SET, ""),
    "making batches of a set": ("make_batches", acked("records", raw.wrapper(GOOD, raw.GZIP)), REFUSED_SET, ""),
    "making a partition": ("create_partition", acked("new", GOOD), STORAGE, ""),
    "an answer about a log's times": ("offsets", raw.offsets_frame("away", 0, raw.LATEST, 1), CLOSED, ""),
    "an answer in a thread": ("answer_off_loop", raw.own_frame(raw.METADATA, raw.metadata_body(["t"])), CLOSED, ""),
}


@pytest.mark.parametrize("case", RAISES)
def test_whatever_raises_in_python_costs_the_request_at_most(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is answered as if that was refused or failed, or has no answer; all others are served, and so is the next.

    The log has the traceback, whichever thread it was.
    """
    method, request, code, faults = RAISES[case]
    owner = Services if hasattr(Services, method) else Control
    works = getattr(owner, method)
    raised: list[str] = []
    is_broken = threading.Event()

    def fails(*given: object) -> object:
        if not is_broken.is_set():
            return works(*given)
        raised.append(method)
        raise ZeroDivisionError("of a test")

    monkeypatch.setattr(owner, method, fails)
    with Workers(tmp_path, trace_requests=method == "trace") as workers:
        with workers.connect() as client:
            assert client.produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
        make_with(workers, "records")
        with workers.connect() as client:
            is_broken.set()
            _files.arm(faults, "test")
            client.send_raw(request)
            if code == CLOSED:
                assert client.is_closed()
            else:
                own = request[4:6] == acked("t", GOOD)[4:6]
                assert (client.recv_own()[1] if own else client.recv_answer()).error == code
            _files.arm("", "test")
            is_broken.clear()
        assert raised
        told = [found for found in caplog.records if "unexpected error in a request" in found.getMessage()]
        assert len(told) == len(raised)
        assert {found.exc_info and found.exc_info[0] for found in told} == {ZeroDivisionError}
        with workers.connect() as client:
            assert client.produce_ack("after", 0, raw.wrapper(GOOD, raw.GZIP), raw.FLUSHED).error == 0
            assert client.offsets("after", 0, raw.EARLIEST) == [0]


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
