"""What producer-perf and consumer-perf share: options for the format, the surroundings of a figure, and printing."""

from __future__ import annotations

import json
import platform
import threading
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import click

from fastlog import __version__
from fastlog.errors import ConfigError
from fastlog.tools import options
from fastlog.tools.report import EXIT_USAGE, CommandError, note

if TYPE_CHECKING:
    from fastlog.perf.consumer_options import ConsumerOptions
    from fastlog.perf.producer_options import ProducerOptions

_Options = TypeVar("_Options", "ConsumerOptions", "ProducerOptions")
FORMATS = ("csv", "human", "kafka", "json")
DATE_FORMAT = "yyyy-MM-dd HH:mm:ss:SSS"
NO_FLUSH_POLICY = "unknown: the broker does not tell it"


def output_options(function: Any) -> Any:
    """Add the options that say in which form the figures are printed."""
    for decorate in reversed(
        (
            options.option(
                "--format",
                "format_name",
                group="Format",
                type=click.Choice(FORMATS),
                default="csv",
                show_default=True,
                help="csv: 0.7's columns on stdout, a summary on stderr; human: the summary on stdout.",
            ),
            options.option("--json", "as_json", group="Format", is_flag=True, help="One JSON object on stdout."),
            options.option(
                "--style",
                group="Format",
                type=click.Choice(FORMATS),
                help="Another name of --format; kafka prints the lines of Kafka 4.",
            ),
            options.option(
                "--show-detailed-stats",
                group="Format",
                is_flag=True,
                help="Rows for each reporting interval of each thread, as in 0.7 without the last one.",
            ),
            options.option(
                "--reporting-interval",
                group="Format",
                type=click.IntRange(1),
                default=5000,
                show_default=True,
                metavar="N",
                help="Messages of a thread between two such rows.",
            ),
            options.option(
                "--date-format",
                group="Format",
                default=DATE_FORMAT,
                show_default=True,
                metavar="PATTERN",
                help="As Java's SimpleDateFormat.",
            ),
            options.option(
                "--hide-header", "--no-headers", "hide_header", group="Format", is_flag=True, help="No header row."
            ),
            options.option("--no-progress", group="Format", is_flag=True, help="Print nothing before the figures."),
        )
    ):
        function = decorate(function)
    return function


def chosen_format(format_name: str, as_json: bool, style: str | None) -> str:
    """Which of ``FORMATS``, however it was said."""
    said = {name for name in (style, "json" if as_json else None) if name is not None}
    context = click.get_current_context()
    if context.get_parameter_source("format_name") is click.core.ParameterSource.COMMANDLINE:
        said.add(format_name)
    if len(said) > 1:
        raise click.UsageError(f"--format, --style and --json say different things: {', '.join(sorted(said))}")
    return said.pop() if said else format_name


def chosen_options(kind: type[_Options], given: Mapping[str, Any], **own: Any) -> _Options:
    """The options of a measurement: those of the command by their names, and those that are made of others.

    Raises:
        ConfigError: as ``kind``.
    """
    reporting_interval = given["reporting_interval"] if given["show_detailed_stats"] else None
    named = {field.name: given[field.name] for field in fields(kind) if field.name in given}
    return kind(**named | {"reporting_interval": reporting_interval} | own)


def usage(error: ConfigError) -> CommandError:
    """The command's error for an option that was refused: what, why, and what to do."""
    return CommandError(
        str(error).replace("\n", "; "), "an option has a value that cannot be used", "see --help", EXIT_USAGE
    )


def surroundings() -> dict[str, Any]:
    """What every figure is given with: machine, versions, which compiled way is used, the flush policy."""
    from fastlog import _crc
    from fastlog.perf import machine

    return {
        "machine": machine.describe(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "fastlog": __version__,
        "accelerated": f"compiled, checksums by {_crc.implementation()}",
        "flush_policy": NO_FLUSH_POLICY,
    }


def surroundings_words(found: dict[str, Any]) -> list[str]:
    """The lines of ``surroundings`` in the summary for people."""
    machine = found["machine"]
    return [
        f"  flush policy {found['flush_policy']}",
        f"  {machine['cpu']}, {machine['cpus']} CPUs, Linux {machine['kernel']}; {found['python']}, "
        f"fastlog {found['fastlog']} ({found['accelerated']})",
    ]


def started_text(milliseconds: int) -> str:
    """A moment as ISO 8601, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class RowPrinter:
    """Rows on stdout from any thread, the summary where the format wants it."""

    def __init__(self, format_name: str) -> None:
        self.format = format_name
        self._lock = threading.Lock()

    def row(self, text: str) -> None:
        """Print one row of figures."""
        with self._lock:
            click.echo(text)

    def summary(self, lines: list[str]) -> None:
        """Print the summary on stdout for people, on stderr behind rows of CSV, and not at all with ``--json``."""
        if self.format == "human":
            click.echo("\n".join(lines))
        elif self.format != "json":
            note("\n".join(lines))

    def object(self, found: dict[str, Any]) -> None:
        """Print the one object that ``--json`` gives."""
        click.echo(json.dumps(found, ensure_ascii=False, default=str))


def attempt(run: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """The result, or the exception that ended it: figures are printed before it goes on."""
    try:
        return run(), None
    except BaseException as reason:
        return None, reason


def is_nothing(failure: BaseException | None, figures: Any) -> TypeGuard[BaseException]:
    """Whether the error came before there was anything to print figures of."""
    return failure is not None and (not figures.started_ms or (not figures.messages and isinstance(failure, Exception)))


def error_text(reason: BaseException | None) -> str | None:
    """For the field ``error`` of the JSON object."""
    if reason is None:
        return None
    return str(reason).partition("\n")[0] if isinstance(reason, Exception) else "interrupted"
