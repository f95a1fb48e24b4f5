"""How a command ends: its exit code, its three lines, and what a signal does to it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator

import click
import pytest

from fastlog import errors
from fastlog.tools import report, signals
from fastlog.tools.report import CommandError, OutputClosed


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Signals do afterwards what they did."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    signals._State.deferring = signals._State.waiting = False
    signals._State.pending = 0


def ending(work: Callable[[], object]) -> int:
    """The exit code of a command that does this."""

    @click.command()
    def command() -> object:
        return work()

    with pytest.raises(SystemExit) as left:
        report.run(command, "fastlog x", [])
    assert isinstance(left.value.code, int)
    return left.value.code


def raising(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CommandError("a", "b", "c"), 1),
        (CommandError("a", "b", "c", 4), 4),
        (click.UsageError("x"), 2),
        (click.BadParameter("x"), 2),
        (click.ClickException("x"), 2),
        (errors.ConfigError("x"), 2),
        (errors.TransportError("x"), 3),
        (errors.ProtocolError("x"), 3),
        (errors.CoordinationError("x"), 3),
        (errors.BrokerMissingError("x"), 3),
        (errors.InvalidMessageError("x"), 5),
        (errors.CorruptLogError("x"), 5),
        (errors.InvalidFetchSizeError("x"), 5),
        (errors.StorageError("x"), 1),
        (errors.DataLossError("x"), 1),
        (errors.FastlogError("x"), 1),
        (OSError(28, "No space left on device"), 1),
        (ValueError("x"), 1),
        (OutputClosed(), 0),
        (click.exceptions.Exit(7), 7),
        (signals.Interrupted(signal.SIGINT), 130),
        (signals.Interrupted(signal.SIGTERM), 143),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else str(value),
)
def test_each_error_has_its_exit_code(error: BaseException, code: int, capfd: pytest.CaptureFixture[str]) -> None:
    """And three lines on stderr, with no traceback; what is no error says nothing."""
    assert ending(raising(error)) == code
    out, said = capfd.readouterr()
    assert out == ""
    if isinstance(error, OutputClosed | click.exceptions.Exit | signals.Interrupted):
        assert said == ""
        return
    lines = said.splitlines()
    assert len(lines) == 3, said
    assert lines[0].startswith("fastlog x: ")
    assert lines[1].startswith("  why: ")
    assert lines[2].startswith("  do:  ")
    assert ("fault in fastlog" in said) is isinstance(error, ValueError)
    if isinstance(error, CommandError):
        assert lines == ["fastlog x: a", "  why: b", "  do:  c"]


@pytest.mark.parametrize(("result", "code"), [(None, 0), (0, 0), (1, 1), (5, 5), ("text", 0)])
def test_what_a_command_returns(result: object, code: int) -> None:
    assert ending(lambda: result) == code


def test_output_that_nobody_reads_is_no_error_and_one_that_cannot_be_written_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Full:
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(report, "discard_output", lambda: None)
    monkeypatch.setattr(sys, "stdout", Full())
    assert ending(lambda: 0) == 1
    assert "No space left" in capfd.readouterr().err


def test_a_closed_stderr_is_no_reason_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def write(self, text: str) -> None:
            raise BrokenPipeError

        def flush(self) -> None:
            pass

    monkeypatch.setattr(sys, "stderr", Closed())
    report.note("hello")


@pytest.mark.parametrize(("name", "hint"), [("topc", "did you mean 'topic'?"), ("zzz", "look at the list")])
def test_the_nearest_name_is_suggested(name: str, hint: str) -> None:
    error = report.unknown("what", "why", name, iter(["topic", "other"]), "look at the list")
    assert str(error) == f"what\nwhy\n{hint}"
    assert error.exit_code == 2


# -- signals -----------------------------------------------------------------------------------------------------------


def kill(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts_anywhere(number: int) -> None:
    signals.install()
    with pytest.raises(signals.Interrupted) as stop:
        kill(number)
    assert stop.value.exit_code == 128 + number


def test_a_signal_waits_for_a_wait() -> None:
    """Between two steps it is kept; the next wait raises it before anything is taken, the one behind that does not."""
    signals.install()
    steps: list[str] = []
    with signals.deferred():
        kill(signal.SIGTERM)
        steps.append("behind it")
        with pytest.raises(signals.Interrupted) as stop, signals.waiting():
            steps.append("never")
        assert stop.value.exit_code == 143
        with signals.waiting():
            steps.append("again")
    assert steps == ["behind it", "again"]


def test_a_signal_in_a_wait_comes_at_once_and_behind_it_waits_again() -> None:
    signals.install()
    with signals.deferred():
        with pytest.raises(signals.Interrupted), signals.waiting():
            kill(signal.SIGINT)
        kill(signal.SIGINT)
        with pytest.raises(signals.Interrupted), signals.waiting():
            pass


def test_a_second_signal_does_not_wait() -> None:
    signals.install()
    with signals.deferred():
        kill(signal.SIGINT)
        with pytest.raises(signals.Interrupted) as stop:
            kill(signal.SIGTERM)
        assert stop.value.exit_code == 143


def test_behind_the_steps_nothing_is_deferred_and_nothing_kept() -> None:
    """Also when they fail."""
    signals.install()
    with pytest.raises(ValueError, match="x"), signals.deferred():
        kill(signal.SIGINT)
        raise ValueError("x")
    with signals.waiting():
        pass
    with pytest.raises(signals.Interrupted):
        kill(signal.SIGINT)


def test_handlers_are_given_back() -> None:
    signals.install()
    signals.uninstall()
    with pytest.raises(KeyboardInterrupt):
        kill(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
