"""What every command shares at its edge: exit codes, errors in three lines, signals, and the main function around it.

Data goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn

import click

from fastlog import errors
from fastlog.escaping import EscapingFormatter, printable
from fastlog.tools import signals
from fastlog.tools.colours import BOLD, RED, has_colour, painted

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_NOTHING_CAME = 4
EXIT_DAMAGED = 5
EXIT_CODES = (
    ("0", "done"),
    ("1", "a message failed, or a check found a gap"),
    ("2", "wrong usage"),
    ("3", "cannot reach the broker, or ZooKeeper"),
    ("4", "time-out with nothing received"),
    ("5", "damaged data found"),
    ("130, 143", "stopped by SIGINT, by SIGTERM"),
)

_NO_COMMAND = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""What click raises with the help of a group that was called alone; before 8.2 it shows the help by itself."""
_debug = False


class CommandError(errors.FastlogError):
    """A command cannot go on: what happened, why, and what to do, a line each."""

    def __init__(self, what: str, why: str, what_to_do: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(f"{what}\n{why}\n{what_to_do}")
        self.exit_code = exit_code


def unknown(what: str, why: str, name: str, names: Iterable[str], otherwise: str) -> CommandError:
    """There is nothing of that name: suggests the nearest one there is, or else ``otherwise``."""
    import difflib  # only for an error

    near = difflib.get_close_matches(name, list(names), n=1)
    return CommandError(what, why, f"did you mean {near[0]!r}?" if near else otherwise, EXIT_USAGE)


class OutputClosed(Exception):
    """Whoever read our stdout has what it wanted ("| head -1"): that is success."""


def note(text: str) -> None:
    """Print lines on stderr, with nothing in them that commands a terminal; a closed stderr is no reason to stop."""
    with contextlib.suppress(OSError):
        print(printable(text, "\n\t"), file=sys.stderr, flush=True)


def note_left_out(path: str, so: str, error: Exception) -> None:
    """Print that a malformed node of ZooKeeper is passed over, and what follows from that."""
    note(f"left out: {path}: {error}: {so}")


def set_debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """The callback of ``--debug``: from now on errors come with their traceback."""
    global _debug
    _debug = _debug or value


def debugging() -> bool:
    """Whether ``--debug`` was given."""
    return _debug


def run(
    command: click.Command, prog_name: str, args: Sequence[str] | None = None, *, settings_hint: str | None = None
) -> NoReturn:
    """Run a command and leave the process with its exit code; never returns, never shows a traceback unasked.

    ``settings_hint``: what to do about a setting that cannot be used, where the command does not say it itself.
    """
    signals.install()
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(EscapingFormatter())
    try:
        result = command.main(args=args, prog_name=prog_name, standalone_mode=False)
        sys.stdout.flush()
        code = result if isinstance(result, int) else EXIT_DONE
    except signals.Interrupted as stop:
        code = stop.exit_code
    except OutputClosed:
        code = EXIT_DONE
        discard_output()
    except _NO_COMMAND as error:
        note(error.format_message())
        code = EXIT_USAGE
    except click.exceptions.Exit as leave:
        code = leave.exit_code
    except Exception as error:
        if _debug:
            raise
        words = sys.argv[1:] if args is None else args
        code = say_error(error, prog_name, settings_hint or _settings_hint(command, prog_name, words))
    try:
        sys.stdout.flush()
    except OSError:
        discard_output()
    sys.exit(code)


def say_error(error: Exception, prog_name: str, settings_hint: str = "see its settings") -> int:
    """Print an error in its three lines; returns the exit code that it means.

    ``settings_hint``: what to do about a setting that cannot be used.
    """
    what, why, what_to_do, code = _explained(error, settings_hint)
    first = printable(f"{prog_name}: {what}", "\n\t")
    if sys.stderr is not None and has_colour(sys.stderr):
        first = painted(first, BOLD, RED)
    with contextlib.suppress(OSError):
        print(first, file=sys.stderr)
    note(f"  why: {why}\n  do:  {what_to_do}")
    return code


def discard_output(descriptor: int = 1) -> None:
    """Let what is still buffered for stdout go nowhere, so that leaving does not fail on a closed pipe."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, descriptor)
    os.close(null)


def _settings_hint(command: click.Command, path: str, words: Sequence[str]) -> str:
    """Where the settings of the command stand that was called."""
    for word in words:
        found = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
        if found is None:
            break
        command, path = found, f"{path} {word}"
    if any("--list-settings" in param.opts for param in command.params):
        return f"{path} --list-settings shows every setting"
    return f"{path} --help shows examples and every option"


def _explained(error: Exception, settings_hint: str) -> tuple[str, str, str, int]:
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "the command"
        why = error.ctx.get_usage().replace("\n", " ") if error.ctx else "the command line does not follow its usage"
        return (
            error.format_message(),
            " ".join(why.split()),
            f"{path} --help shows examples and every option",
            EXIT_USAGE,
        )
    if isinstance(error, click.ClickException):
        return (
            error.format_message(),
            "the command line names something that cannot be used",
            "check the name",
            EXIT_USAGE,
        )
    lines = (str(error) or type(error).__name__).split("\n")
    if len(lines) == 3:
        return lines[0], lines[1], lines[2], _exit_code(error)
    what = "; ".join(lines)
    if isinstance(error, errors.ConfigError):
        return (
            what,
            "a setting is missing, or its value cannot be used",
            settings_hint,
            EXIT_USAGE,
        )
    if isinstance(error, errors.ProtocolError):
        why = "the other side does not speak the protocol of a fastlog or Kafka 0.7 broker"
        return what, why, "check the address given by --brokers", EXIT_UNREACHABLE
    if isinstance(error, errors.GroupCoordinatorError):
        why = "where no ZooKeeper is named, groups are kept by the broker, which has to say what there is of them"
        return what, why, "start fastlog-broker, or name another with --brokers, or a --zookeeper", EXIT_UNREACHABLE
    if isinstance(error, errors.CoordinationError):
        why = "ZooKeeper is where brokers and groups are found, and nothing can be said without it"
        return what, why, "start it (fastlog zookeeper start), or name another with --zookeeper", EXIT_UNREACHABLE
    if isinstance(error, errors.BrokerError) and lines[-1] == error.what_to_do:
        return "; ".join(lines[:-1]), "the broker refused it", error.what_to_do, _exit_code(error)
    if isinstance(error, errors.FastlogError):
        return what, (type(error).__doc__ or "").strip().splitlines()[0], "see above", _exit_code(error)
    if isinstance(error, OSError):
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what_to_do = "make room there, then run it again" if is_full else "check the file or the permission"
        return what, "the operating system refused it", what_to_do, EXIT_FAILED
    return (
        f"{type(error).__name__}: {what}",
        "this is a fault in fastlog",
        "run it again with --debug and report it",
        EXIT_FAILED,
    )


def _exit_code(error: Exception) -> int:
    if isinstance(error, CommandError):
        return error.exit_code
    unreachable = errors.TransportError | errors.ProtocolError | errors.CoordinationError | errors.BrokerMissingError
    if isinstance(error, unreachable):
        return EXIT_UNREACHABLE
    if isinstance(error, errors.ConfigError):
        return EXIT_USAGE
    if isinstance(error, errors.InvalidMessageError | errors.CorruptLogError | errors.InvalidFetchSizeError):
        return EXIT_DAMAGED
    return EXIT_FAILED
