"""What the commands of the demos share: their arguments, how a signal ends them, and one line for what went wrong."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from fastlog.errors import FastlogError
from fastlog.testing import BrokerStartError
from perf import interrupts
from scripts.demo_text import DemoFailed

EXIT_FAILED = 1

Say = Callable[[str], None]


def parser_of(name: str, description: str, file_help: str) -> argparse.ArgumentParser:
    """A parser that knows the text to send; ``name`` is that of the script."""
    made = argparse.ArgumentParser(prog=f"scripts/{name}", description=description)
    made.add_argument("file", nargs="?", type=Path, metavar="FILE", help=file_help)
    return made


def parse_paced(
    name: str, description: str, arguments: list[str] | None, *, seconds_help: str, rate: int, rate_help: str
) -> argparse.Namespace:
    """The arguments of a demo that sends an access log for a time (``seconds``), so many lines a second (``rate``)."""
    parser = parser_of(name, description, "an access log; by default text of this machine")
    parser.add_argument("--seconds", type=float, default=10.0, help=f"{seconds_help} (default: %(default)g)")
    parser.add_argument("--rate", type=int, default=rate, help=f"{rate_help} (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    if not chosen.seconds > 0 or chosen.rate < 1:
        parser.error("--seconds and --rate have to be above 0")
    return chosen


def show(name: str, run: Callable[[Path, Say], object]) -> int:
    """Run a demo in a directory that is gone afterwards: 0, or 1 with one line on stderr, or 130 after Ctrl-C.

    SIGTERM and SIGHUP end it as Ctrl-C does, with the codes that a shell gives them.
    """
    interrupts.take_signals(signal.SIGHUP)
    try:
        with tempfile.TemporaryDirectory(prefix=f"{name}-") as directory:
            run(Path(directory), _print)
    except (DemoFailed, BrokerStartError, FastlogError, OSError) as error:
        if interrupts.came():  # a terminal tells the brokers as well
            return interrupts.exit_code()
        print(f"scripts/{name}: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return interrupts.exit_code()
    return 0


def _print(line: str) -> None:
    print(line, flush=True)
