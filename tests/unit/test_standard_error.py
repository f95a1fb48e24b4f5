"""Standard error that nobody reads: no write waits, no line is torn, and what was dropped is counted."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from typing import IO

import pytest

from fastlog import logs, standard_error
from fastlog.standard_error import PIPE_BYTES, StandardError

PIPE_SIZE = 4096
MOST = 1 << 20


class Ends:
    """A file that a process has as its standard error, and the other end of it."""

    def __init__(self, kind: str) -> None:
        if kind == "socket":
            ours, theirs = socket.socketpair()
            self.read_fd, self.write_fd = ours.detach(), theirs.detach()
        elif kind == "terminal":
            self.read_fd, self.write_fd = os.openpty()
        else:
            self.read_fd, self.write_fd = os.pipe()
            fcntl.fcntl(self.write_fd, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        os.set_blocking(self.read_fd, False)
        self.stream: IO[str] = os.fdopen(self.write_fd, "w")
        self._outputs: list[StandardError] = []

    def output(self) -> StandardError:
        """What writes to it."""
        self._outputs.append(StandardError(self.stream))
        return self._outputs[-1]

    def read(self) -> str:
        """All that is there now."""
        parts = []
        try:
            while part := os.read(self.read_fd, MOST):
                parts.append(part)
        except BlockingIOError:
            pass
        return b"".join(parts).decode().replace("\r\n", "\n")

    def close(self) -> None:
        for output in self._outputs:
            output.close()
        self.stream.close()
        os.close(self.read_fd)


@pytest.fixture
def ends() -> Iterator[Callable[[str], Ends]]:
    opened: list[Ends] = []

    def make(kind: str) -> Ends:
        opened.append(Ends(kind))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


@pytest.fixture(params=["pipe", "socket", "terminal", "pipe of another user", "the same on an old kernel"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How standard error comes; the last two refuse a second opening; the last has only writes that wait."""
    name: str = request.param
    if name not in ("pipe", "socket", "terminal"):

        def refused(path: str, flags: int) -> int:
            raise PermissionError(13, "Permission denied", path)

        monkeypatch.setattr(standard_error.os, "open", refused)
    if name == "the same on an old kernel":
        monkeypatch.setattr(standard_error, "_NO_WAIT", 1 << 30)
    return name


def test_no_write_waits_and_the_next_one_with_room_goes_out(kind: str, ends: Callable[[str], Ends]) -> None:
    both = ends(kind)
    flags = fcntl.fcntl(both.write_fd, fcntl.F_GETFL)
    output = both.output()
    written = 0
    while output.write(f"line {written}\n" if written else "x" * 3000 + "\n"):
        written += 1
        assert written < MOST
    assert not output.write("a longer one, lost\n") and output.dropped == 2
    assert fcntl.fcntl(both.write_fd, fcntl.F_GETFL) == flags, "others have this description too"
    text = both.read()
    assert output.write("after\n", timeout=1.0)
    text += both.read()
    assert output.finish()
    lines = (text + both.read()).splitlines()
    assert lines[1:written] == [f"line {number}" for number in range(1, written)]
    assert lines[written:] == ["after"]
    output.close()
    output.close()
    both.stream.write("still open")


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_text_that_went_out_in_part_goes_on_before_the_next(kind: str, ends: Callable[[str], Ends]) -> None:
    both = ends(kind)
    output = both.output()
    large = "0123456789" * (MOST // 10)
    assert output.write(large)
    assert not output.write("dropped")
    text = ""
    while len(text) < len(large):
        text += both.read()
        output.finish()
    assert output.write("next")
    assert text + both.read() == large + "next"
    assert output.dropped == 1


def test_a_reader_that_is_slow_is_waited_for(ends: Callable[[str], Ends]) -> None:
    """Another process reads; how fast it is makes no difference."""
    both = ends("pipe")
    size = 64 * PIPE_BYTES
    child = os.fork()
    if child == 0:
        os.set_blocking(both.read_fd, True)
        got = 0
        while got < size:
            got += len(os.read(both.read_fd, 1000))
        os._exit(0)
    output = both.output()
    for _ in range(64):
        assert output.write("x" * PIPE_BYTES, timeout=60.0)
    assert output.finish() or output.write("", timeout=60.0)
    assert os.waitpid(child, 0)[1] == 0
    assert output.dropped == 0


def test_a_reader_that_is_gone_costs_nothing(ends: Callable[[str], Ends]) -> None:
    both = ends("pipe")
    output = both.output()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, both.read_fd)
    os.close(nothing)
    assert not output.write("nobody there\n", timeout=60.0)
    assert output.dropped == 1


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_a_stream_without_a_file(stream: io.StringIO | None) -> None:
    output = StandardError(stream)
    assert output.fileno() is None
    assert output.write("line\n") is (stream is not None)
    output.close()
    assert stream is None or stream.getvalue() == "line\n"
    closed = io.StringIO()
    closed.close()
    assert not StandardError(closed).write("line\n")


# -- the log on it -----------------------------------------------------------------------------------------------------


@pytest.fixture
def log_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[IO[str]], logging.Logger]]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level

    def set_up(stream: IO[str]) -> logging.Logger:
        monkeypatch.setattr(sys, "stderr", stream)
        logs.set_up("role")
        return logging.getLogger("somebody")

    yield set_up
    for handler in root.handlers:
        if isinstance(handler, logs.Handler):
            handler.output.close()
    monkeypatch.undo()
    root.handlers[:] = before
    root.setLevel(level)


def messages(text: str) -> list[str]:
    """The lines without time, level and process."""
    return [line.partition("] ")[2] or line for line in text.splitlines()]


def fill(both: Ends) -> None:
    """Leave no room for a single byte, by a description of our own."""
    fd = os.open(f"/proc/self/fd/{both.write_fd}", os.O_WRONLY | os.O_NONBLOCK)
    try:
        for size in (1000, 1):
            try:
                while True:
                    os.write(fd, b"x" * size)
            except BlockingIOError:
                pass
    finally:
        os.close(fd)


@pytest.mark.parametrize("told_by", ["the next line", "a loop", "the end"])
def test_dropped_lines_are_counted_and_told_when_there_is_room(
    told_by: str, ends: Callable[[str], Ends], log_on: Callable[[IO[str]], logging.Logger]
) -> None:
    both = ends("pipe")
    log = log_on(both.stream)
    log.info("before")
    assert messages(both.read()) == ["before"]
    fill(both)
    for number in range(3):
        log.info("dropped %d", number)
    logs.catch_up()
    both.read()
    if told_by == "the next line":
        log.info("after")
    elif told_by == "a loop":
        logs.catch_up()
        logs.catch_up()
    else:
        logs.close()
    said = "dropped lines=3: nobody read standard error"
    assert messages(both.read()) == ([said, "after"] if told_by == "the next line" else [said])


def test_the_last_word_comes_after_the_lines_and_without_their_beginning(
    ends: Callable[[str], Ends], log_on: Callable[[IO[str]], logging.Logger]
) -> None:
    both = ends("pipe")
    log_on(both.stream).info("a line")
    logs.say("fastlog-broker: ready")
    *_, last = both.read().splitlines()
    assert last == "fastlog-broker: ready"


def test_a_line_whose_arguments_do_not_fit_is_shown_with_the_reason(
    ends: Callable[[str], Ends], log_on: Callable[[IO[str]], logging.Logger]
) -> None:
    both = ends("pipe")
    log_on(both.stream).info("%d messages", "many")
    text = both.read()
    assert "a line of the log cannot be written: '%d messages'" in text and "TypeError" in text
