"""What the demos share: the arguments, the directory, and how a failure or a signal ends them."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from pathlib import Path

import pytest

from fastlog.testing import BrokerStartError
from perf import interrupts
from scripts import demo_command
from scripts.demo_command import Say
from scripts.demo_text import DemoFailed
from tests.harness.timing import PATIENCE


@pytest.fixture(autouse=True)
def _signals(monkeypatch: pytest.MonkeyPatch) -> object:
    """As they were before, and none has come as far as others are told."""
    monkeypatch.setattr(interrupts, "_came", 0)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    before, hook = {number: signal.getsignal(number) for number in numbers}, sys.unraisablehook
    yield
    sys.unraisablehook = hook
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_demo_has_an_empty_directory_that_is_gone_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    given: list[Path] = []

    def run(directory: Path, say: Say) -> None:
        given.append(directory)
        assert list(directory.iterdir()) == []
        (directory / "left").touch()
        say("shown")

    assert demo_command.show("demo-x", run) == 0
    assert capsys.readouterr() == ("shown\n", "")
    assert not given[0].exists()


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (DemoFailed("no lines"), 1, "scripts/demo-x: no lines\n"),
        (BrokerStartError("no port"), 1, "scripts/demo-x: no port\n"),
        (OSError("full"), 1, "scripts/demo-x: full\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_goes_wrong_is_a_line_and_a_code(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(directory: Path, say: Say) -> None:
        raise error

    assert demo_command.show("demo-x", run) == code
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_order(number: signal.Signals) -> None:
    """The directory goes too."""
    given: list[Path] = []

    def run(directory: Path, say: Say) -> None:
        given.append(directory)
        signal.raise_signal(number)

    assert demo_command.show("demo-x", run) == 128 + number
    assert not given[0].exists()


def test_a_signal_that_python_drops_comes_again() -> None:
    """What is raised while an object goes is dropped, and around a fork as well."""

    class Going:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    def run(directory: Path, say: Say) -> None:
        Going()
        time.sleep(PATIENCE)
        pytest.fail("it went on")

    assert demo_command.show("demo-x", run) == 128 + signal.SIGTERM


def test_what_fails_after_a_signal_is_no_failure_of_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    def run(directory: Path, say: Say) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise BrokerStartError("it was told, too")

    assert demo_command.show("demo-x", run) == 130
    assert capsys.readouterr() == ("", "")


def test_a_demo_that_sends_for_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    words = {"seconds_help": "how long", "rate": 7, "rate_help": "lines/s"}
    chosen = demo_command.parse_paced("demo-x", "Shows it.", ["a.log", "--seconds", "2.5"], **words)
    assert (chosen.file, chosen.seconds, chosen.rate) == (Path("a.log"), 2.5, 7)
    for wrong in (["--seconds", "0"], ["--seconds", "nan"], ["--rate", "0"]):
        with pytest.raises(SystemExit):
            demo_command.parse_paced("demo-x", "Shows it.", wrong, **words)
        assert "scripts/demo-x: error: --seconds and --rate have to be above 0" in capsys.readouterr().err
