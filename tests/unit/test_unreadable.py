"""Bytes that the disk does not give back: named in the log, counted, and kept out of the next answers for a while."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastlog.log import _files
from fastlog.workers.services import Services
from tests.harness import raw_client as raw
from tests.harness.workers import Workers, drain

ENTRY = raw.entry(bytes(200_000))
COUNT = 10
UNKNOWN = -1


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """Two processors, of which the second has not opened the log."""
    with Workers(tmp_path, processors=2) as running, running.connect() as client:
        assert client.produce_ack("t", 0, ENTRY * COUNT, raw.FLUSHED).error == 0
        yield running


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


def test_a_segment_that_cannot_be_opened(workers: Workers, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each fetch tries again: nothing is remembered of a file that was not even opened."""
    with workers.connect(1) as client:
        _files.arm("open@1-2=EIO", "test")
        assert client.fetch("t", 0, 0) == (UNKNOWN, b"")
        assert client.multifetch([("t", 0, 0, 100)]) == [(UNKNOWN, b"")]
        assert client.fetch("t", 0, 0, len(ENTRY)) == (0, ENTRY)
    assert workers.count("read_failures") == 2
    path = tmp_path / "t-0" / f"{0:020}.kafka"
    line = f"the log cannot be read topic='t' partition=0 offset=0 path={path} position=0 errno=EIO"
    assert said(caplog)[0].startswith(line)


def broken_off(workers: Workers) -> int:
    """Fetch all from a disk that gives the beginning and no more; how many bytes of messages came."""
    with workers.connect_narrow(1) as client:
        client.send_raw(raw.fetch_frame("t", 0, 0, len(ENTRY) * COUNT))
        client.recv_exactly(500_000)
        _files.arm("sendfile@1-=EIO,pread@1-=EIO", "test")
        came = 500_000 - 6 + len(drain(client))
        _files.arm("", "test")
    return came


def test_what_lies_before_the_place_is_read_and_that_place_is_an_error(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    """Of an answer that had to be broken off the client knows no error: the next one ends before the place."""
    came = broken_off(workers)
    assert 0 < came < len(ENTRY) * COUNT
    assert workers.count("read_failures") == 1
    assert f" position={came} errno=EIO" in said(caplog)[0]
    with workers.connect(1) as client:
        answer = client.fetch("t", 0, 0, len(ENTRY) * COUNT)
        assert answer == (0, (ENTRY * COUNT)[:came])
        whole = came // len(ENTRY) * len(ENTRY)
        assert client.fetch("t", 0, whole, len(ENTRY) * COUNT).error == UNKNOWN
        assert client.fetch("t", 0, whole + len(ENTRY), len(ENTRY)) == (0, ENTRY)
    with workers.connect(0) as other:
        assert other.fetch("t", 0, whole, len(ENTRY)) == (0, ENTRY)  # which has not met it


@pytest.mark.parametrize("faults", ["pread@2=EIO", "pread@2=short,pread@3=EIO"])
def test_few_bytes_that_are_lost_on_their_way_into_the_answer(
    workers: Workers, faults: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each kind of fetch says that its part cannot be read, and nothing of what was copied of it."""
    small = raw.entry(b"small")
    with workers.connect(1) as client:
        for topic in "abc":
            assert client.produce_ack(topic, 0, small, raw.FLUSHED).error == 0
            assert client.fetch(topic, 0, 0) == (0, small)
        _files.arm(faults, "test")
        assert client.fetch("a", 0, 0) == (UNKNOWN, b"")
        _files.arm(faults, "test")
        assert client.held_fetch("b", 0, 0) == (UNKNOWN, len(small), 0, b"")
        _files.arm(faults.replace("3", "4").replace("2", "3"), "test")
        assert client.multifetch([("c", 0, 0, 99), ("b", 0, len(small), 99), ("t", 0, 0, 99)]) == [
            (UNKNOWN, b""),
            (0, b""),
            (0, ENTRY[:99]),
        ]
        _files.arm("", "test")
        assert client.fetch("a", 0, 0) == (0, small)
    assert workers.count("read_failures") == 3
    at = len(small) // 2 if "short" in faults else 0
    assert [line.partition(" position=")[2].partition(" (")[0] for line in said(caplog)] == [f"{at} errno=EIO"] * 3


def test_a_log_that_cannot_be_told_of_changes_no_answer(
    workers: Workers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Services, "read_failed", lambda *_: 1 / 0)
    with workers.connect(1) as client:
        _files.arm("open@1=EIO", "test")
        assert client.fetch("t", 0, 0) == (UNKNOWN, b"")
        assert client.fetch("t", 0, 0, len(ENTRY)) == (0, ENTRY)
    assert "ZeroDivisionError" in said(caplog)[0]
