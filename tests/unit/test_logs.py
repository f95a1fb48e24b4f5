"""The broker's log: what repeats is counted, and no client can fill the disk with lines of its own choosing."""

from __future__ import annotations

import logging

import pytest

from fastlog import logs
from fastlog.logs import MOST_LINES, MOST_OF_CLIENTS, REPEAT_SECONDS, LineLimit


class Log:
    """What a process would have written, with a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.limit = LineLimit(lambda: self.now)
        self.lines: list[str] = []

    def write(self, line: str, *args: object, level: int = logging.WARNING, **extra: object) -> None:
        record = logging.LogRecord("test", level, __file__, 1, line, args, None)
        record.__dict__.update(extra)
        self.lines += self.limit.left_out()
        if self.limit.admits(record):
            self.lines.append(record.getMessage())

    def end(self) -> None:
        self.lines += self.limit.left_out(at_end=True)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.mark.parametrize("least", ["debug", "info", "warning", "error"])
def test_what_is_below_the_level_is_not_written(
    least: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Requests are, because whoever switches them on wants to see them; the level may change at any time."""
    monkeypatch.setattr(logs, "_least", (logs.LEVELS[least],))
    handler = logs.Handler(0.0)
    try:
        for name, level in logs.LEVELS.items():
            handler.emit(logging.LogRecord("fastlog.x", level, __file__, 1, name, (), None))
        for name in ("request", "logging"):
            handler.emit(logging.LogRecord(f"fastlog.{name}", logging.INFO, __file__, 1, name, (), None))
        handler.catch_up()
    finally:
        handler.close()
    names = list(logs.LEVELS)
    assert capfd.readouterr().err.split() == [*names[names.index(least) :], "request", "logging"]


def test_a_line_that_repeats_is_counted(log: Log) -> None:
    for _ in range(3):
        log.write("disk %s", "full")
    log.write("another")
    log.now += REPEAT_SECONDS
    log.write("disk %s", "full")
    assert log.lines == ["disk full", "another", "disk full (and 2 more like it)"]


def test_what_a_client_causes_is_one_line_whatever_its_text(log: Log) -> None:
    """The place of the damage is in the text, and the client chooses the place."""
    for place in range(1000):
        log.write("refused peer=%s: damaged at %d", "10.0.0.1", place, **logs.about("refused", "damaged", "10.0.0.1"))
    log.write("refused peer=%s: damaged at %d", "10.0.0.2", 7, **logs.about("refused", "damaged", "10.0.0.2"))
    assert log.lines == ["refused peer=10.0.0.1: damaged at 0", "refused peer=10.0.0.2: damaged at 7"]
    log.now += 2 * REPEAT_SECONDS
    log.write("something else")
    assert log.lines[2:] == ["refused peer=10.0.0.1: damaged at 0 (and 999 more like it)", "something else"]


def test_all_lines_together_are_bounded_and_the_others_counted(log: Log) -> None:
    """Many peers, or lines that nobody thought a client could cause."""
    for peer in range(MOST_OF_CLIENTS + 50):
        log.write("refused peer=%d", peer, **logs.about("refused", "why", peer))
    assert len(log.lines) == MOST_OF_CLIENTS
    for number in range(MOST_LINES):
        log.write("strange %d", number)
    log.write("INFO is not counted", level=logging.INFO)
    assert len(log.lines) == MOST_LINES + 1
    log.now += REPEAT_SECONDS
    log.write("later")
    assert log.lines[-2:] == [f"{MOST_OF_CLIENTS + 50} more lines left out in 10 s", "later"]


def test_the_end_of_a_process_leaves_nothing_unsaid(log: Log) -> None:
    log.write("disk full")
    log.write("disk full")
    log.end()
    log.end()
    assert log.lines == ["disk full", "disk full (and 1 more like it)"]
