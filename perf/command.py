"""What the commands that measure share: sizes as arguments, and how each ends."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import click

from fastlog.errors import FastlogError
from fastlog.settings import parse_bytes
from fastlog.tools import report
from perf import interrupts

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


class Size(click.ParamType):  # type: ignore[type-arg]
    """Bytes, with a unit or without."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes; fails for what is no size."""
        try:
            size = value if isinstance(value, int) else parse_bytes(str(value))
        except FastlogError as error:
            self.fail(str(error), param, ctx)
        if size < 1:
            self.fail(f"{value!r} is less than a byte", param, ctx)
        return size


def say(text: str) -> None:
    """A line for who waits; results go to stdout."""
    click.echo(text, err=True)


def run(command: click.Command, name: str) -> NoReturn:
    """Run a command that returns its exit code, as the program ``name``; SIGINT and SIGTERM end it in order."""
    interrupts.take_signals()
    try:
        code = command(standalone_mode=False, prog_name=name)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = interrupts.exit_code()
    except report.OutputClosed:
        code = 0
        report.discard_output()
    except report.CommandError as error:
        if report.debugging():
            raise
        code = report.say_error(error, name)
    except (FastlogError, OSError) as error:
        if report.debugging():
            raise
        say(f"error: {error}")
        code = EXIT_FAILED
    sys.exit(code)
