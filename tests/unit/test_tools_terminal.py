"""What a terminal sees of long commands, errors and tables: bars and colour, and neither where they are not wanted."""

from __future__ import annotations

import io
import re
import sys
from typing import Any

import pytest

from fastlog.tools.colours import has_colour
from fastlog.tools.findings import bad, ok, warn
from fastlog.tools.progress import ConsoleProgress, _short
from fastlog.tools.report import CommandError, say_error
from fastlog.tools.topics import show


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard error is one, of 80 columns, with colours."""
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def drawn(progress: ConsoleProgress, capsys: pytest.CaptureFixture[str]) -> str:
    progress._next = 0.0
    progress.idle()
    return capsys.readouterr().err


@pytest.mark.usefixtures("terminal")
def test_a_terminal_sees_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As wide as it is, in one line that is written over; without colour where none is wanted."""
    progress = ConsoleProgress("{taken}", shown=True)
    progress.started -= 10
    progress.add(1_234_567, 999)
    progress.goal, progress.reached = 1000, 250
    shown = drawn(progress, capsys)
    assert shown.startswith("\r{taken} 1.23 M messages, 999 B ") and shown.endswith("\x1b[K")
    assert "\x1b[32m" in shown and "█" in shown and "\n" not in shown
    line = re.sub(r"\x1b\[[0-9;]*[mK]", "", shown)
    assert line.endswith("  25 % 00:30 left") and 70 <= len(line) <= 81
    monkeypatch.setenv("NO_COLOR", "1")
    plain = drawn(progress, capsys)
    assert plain == f"{line}\x1b[K"
    progress.say("one")
    progress.say("two")
    assert capsys.readouterr().err == "\none\ntwo\n"
    progress.reached = 2000
    assert " 100 % 00:00 left" in drawn(progress, capsys)
    progress.summary(".")
    assert capsys.readouterr().err.startswith("\n{taken} 1234567 messages")


@pytest.mark.usefixtures("terminal")
def test_a_terminal_sees_words_where_nothing_can_be_drawn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is not known, or the library is not installed."""
    progress = ConsoleProgress("sent", shown=True)
    assert drawn(progress, capsys).startswith("\rsent 0 messages, 0 bytes in 0.0")
    progress.goal, progress.reached = 100, 50
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert ", 50 %, 0 s left" in drawn(progress, capsys)


@pytest.mark.usefixtures("terminal")
def test_a_terminal_without_unicode_sees_a_plain_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastlog.tools.progress._is_unicode", lambda: False)
    progress = ConsoleProgress("sent", shown=True)
    progress.goal, progress.reached = 100, 50
    shown = drawn(progress, capsys)
    assert "#" in shown and shown.isascii()


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 "),
        (999, "999 "),
        (1000, "1 k"),
        (1234, "1.23 k"),
        (10**6, "1 M"),
        (10**9, "1 G"),
        (5 * 10**12, "5 T"),
        (10**16, "1e+04 T"),
    ],
)
def test_numbers_in_a_bar_are_short(number: int, text: str) -> None:
    assert _short(number) == text


# --- colour ---


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
@pytest.mark.usefixtures("terminal")
def test_colour_is_where_a_terminal_has_it(
    variables: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert has_colour(sys.stderr) is expected
    assert has_colour(io.StringIO()) is False
    closed = io.StringIO()
    closed.close()
    assert has_colour(closed) is False


@pytest.mark.usefixtures("terminal")
def test_errors_begin_in_red_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    error = CommandError("no\x1b[2J topic", "why", "do")
    say_error(error, "fastlog")
    assert capsys.readouterr().err == "\x1b[1;31mfastlog: no\\x1b[2J topic\x1b[0m\n  why: why\n  do:  do\n"
    monkeypatch.setenv("NO_COLOR", "1")
    say_error(error, "fastlog")
    assert capsys.readouterr().err == "fastlog: no\\x1b[2J topic\n  why: why\n  do:  do\n"


def test_a_table_has_colour_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Names in bold, states that are not ok in red; columns stand under one another all the same."""
    rows: list[dict[str, Any]] = [{"topic": "a", "n": 1, "state": "ok"}, {"topic": "bb", "n": 20, "state": "missing"}]
    names = ("topic", "n", "state")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show(names, rows, False, False)
    assert capsys.readouterr().out == (
        "\x1b[1mtopic\x1b[0m  \x1b[1m n\x1b[0m  \x1b[1mstate\x1b[0m\na       1  ok\nbb     20  \x1b[31mmissing\x1b[0m\n"
    )
    show(names, rows, False, True)
    assert capsys.readouterr().out == "a    1  ok\nbb  20  \x1b[31mmissing\x1b[0m\n"
    monkeypatch.setenv("NO_COLOR", "1")
    show(names, rows, False, False)
    assert capsys.readouterr().out == "topic   n  state\na       1  ok\nbb     20  missing\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    show(names, rows, False, False)
    assert capsys.readouterr().out == "topic\tn\tstate\na\t1\tok\nbb\t20\tmissing\n"


def test_findings_of_the_doctor_have_the_colour_of_their_level() -> None:
    for finding, number in ((ok("disk", "a"), 32), (warn("disk", "n", "a", "b"), 33), (bad("disk", "n", "a", "b"), 31)):
        level = f"{finding.level:4}"
        assert finding.line(coloured=True).startswith(f"\x1b[{number}m{level}\x1b[0m  disk ")
        assert finding.line().startswith(f"{level}  disk ")


def test_a_line_that_moves_is_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with no newline, which would have a terminal show it."""

    class Terminal(io.StringIO):
        seen = ""

        def isatty(self) -> bool:
            return True

        def flush(self) -> None:
            self.seen = self.getvalue()

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    progress = ConsoleProgress("sent", shown=True)
    progress._next = 0.0
    progress.idle()
    assert terminal.seen.startswith("\rsent 0 messages")


def test_a_log_has_a_line_from_time_to_time(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ConsoleProgress("sent", shown=True)
    assert drawn(progress, capsys).startswith("sent 0 messages, 0 bytes in ")
    progress.idle()
    assert capsys.readouterr().err == ""
