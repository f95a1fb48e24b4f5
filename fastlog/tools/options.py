"""The look of ``--help`` (examples first, options in groups, exit codes last) and the options that commands share."""

from __future__ import annotations

import codecs
import contextlib
import importlib
import os
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fastlog import settings
from fastlog.errors import ConfigError
from fastlog.tools.old_names import OldName, translated
from fastlog.tools.report import EXIT_CODES, OutputClosed, set_debug

if TYPE_CHECKING:
    from fastlog.client.addresses import Address
    from fastlog.client.connection import Broker

_COMPLETE_SECONDS = 1.0
GROUPS = ("Connection", "Selection", "Format", "Limits", "Other")


class Option(click.Option):
    """An option that belongs to one of the groups of ``--help``."""

    def __init__(self, *args: Any, group: str = "Other", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group


class _Helpful(click.Command):
    """Adds examples and exit codes to a command, and ``--debug``."""

    def __init__(
        self,
        *args: Any,
        examples: tuple[str, ...] = (),
        exit_codes: tuple[tuple[str, str], ...] = EXIT_CODES,
        old_names: Mapping[str, OldName] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        self.old_names = old_names or {}
        self.exit_codes = exit_codes
        self.params.append(
            Option(
                ["--debug"],
                is_flag=True,
                expose_value=False,
                is_eager=True,
                callback=set_debug,
                help="Show the traceback of an error.",
            )
        )

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; click would turn a closed stdout into exit code 1."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise OutputClosed from None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line, in which 0.7's names count as ours."""
        return super().parse_args(ctx, translated(args, self.old_names))

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, then what click writes, then the exit codes."""
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"  {example}\n")
        formatter.write_paragraph()
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_options(ctx, formatter)
        with formatter.section("Exit codes"):
            formatter.write_dl(self.exit_codes)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their groups."""
        by_group: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                by_group.setdefault(getattr(param, "group", "Other"), []).append(record)
        for group in GROUPS:
            if group in by_group:
                with formatter.section(group):
                    formatter.write_dl(by_group[group])
        if self.old_names:
            with formatter.section("Names of Kafka 0.7"):
                formatter.write_dl([(name, f"{old.meaning}.") for name, old in self.old_names.items()])


class Command(_Helpful):
    """A command with examples, exit codes, options in groups, and the names that 0.7 had for them."""


class CommandGroup(_Helpful, click.Group):
    """Several commands; those of ``lazy`` (name → module, attribute, help) are imported when they are called."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str, str]] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, in the order they were declared."""
        return [*self.lazy, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command if need be; None for an unknown name."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, attribute, _ = self.lazy[cmd_name]
        found: click.Command = getattr(importlib.import_module(module), attribute)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest name for an unknown one."""
        if args and not args[0].startswith("-") and args[0] not in self.list_commands(ctx):
            import difflib  # only for an error

            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" There are: {', '.join(self.list_commands(ctx))}."
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands without importing them, then the options."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, text) for name, (_, _, text) in self.lazy.items()]
                + [(name, command.get_short_help_str(60)) for name, command in self.commands.items()]
            )
        super().format_options(ctx, formatter)


class Duration(click.ParamType):  # type: ignore[type-arg]
    """A duration with a unit (``5s``, ``100ms``) or in seconds, as seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds; fails for what is no duration, is negative, or is above 10⁷ seconds."""
        if isinstance(value, int | float):
            return float(value)
        try:
            seconds = float(settings.parse_duration(str(value), "seconds"))
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        if not 0 <= seconds <= 10**7:
            self.fail(f"{value!r} is negative or longer than 10,000,000 seconds", param, ctx)
        return seconds


class When(click.ParamType):  # type: ignore[type-arg]
    """A moment, as milliseconds since 1970: those, a date and time, or how long ago."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return milliseconds since 1970; fails for what is no time."""
        if isinstance(value, int):
            return value
        text = str(value).strip()
        if text.isascii() and text.isdigit() and len(text) < 17:
            return int(text)
        try:
            return int(datetime.fromisoformat(text).timestamp() * 1000)
        except (ValueError, OverflowError):
            pass
        if text[:1].isdigit():
            return int((time.time() - Duration().convert(text, param, ctx)) * 1000)
        self.fail(f"{text!r} is no time: write 2026-11-21T18:00, milliseconds since 1970, or 2h for so long ago")


class At(NamedTuple):
    """A moment, where a number would be an offset."""

    time_ms: int


Begin = str | int | At
"""Where reading begins: ``beginning``, ``end``, an offset, ``-N`` for N messages before the end, or a moment."""


class Size(click.ParamType):  # type: ignore[type-arg]
    """A size with a unit (``64KiB``) or in bytes, within bounds."""

    name = "size"

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes; fails for what is no size, or one out of range."""
        try:
            size = value if isinstance(value, int) else settings.parse_bytes(str(value))
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        if not self.low <= size <= self.high:
            self.fail(f"{value!r} is not between {self.low} and {self.high} bytes", param, ctx)
        return size


class Separator(click.ParamType):  # type: ignore[type-arg]
    """Text as bytes, with ``\\t`` and the other escapes of Python; ``in_line``: a newline separates nothing."""

    name = "separator"

    def __init__(self, *, in_line: bool = True) -> None:
        self.in_line = in_line

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        """Return the bytes; fails for a bad escape, an empty text, and a newline where ``in_line`` is set."""
        if isinstance(value, bytes):
            return value
        try:
            found = codecs.escape_decode(str(value).encode())[0]
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)
        if not found or (self.in_line and b"\n" in found):
            self.fail(f"{value!r} separates nothing" + (" in a line" if self.in_line else ""), param, ctx)
        return bytes(found)


def option(*names: str, group: str, **kwargs: Any) -> Callable[[Any], Any]:
    """``click.option`` in a group of ``--help``."""
    return click.option(*names, cls=Option, group=group, **kwargs)


def connection_options(function: Any) -> Any:
    """``--brokers`` and ``--connect-timeout``."""
    function = connect_timeout_option(function)
    return brokers_option("Where the broker is; of several addresses the first that answers. Also FASTLOG_BROKERS.")(
        function
    )


def connect_timeout_option(function: Any) -> Any:
    """Add ``--connect-timeout``."""
    return option(
        "--connect-timeout",
        group="Connection",
        type=Duration(),
        default="10s",
        show_default=True,
        metavar="TIME",
        help="How long to try to reach the broker, one that is just starting too, and to wait for an answer.",
    )(function)


def brokers_option(text: str) -> Callable[[Any], Any]:
    """``--brokers``, with what it means to the command."""
    return option(
        "--brokers",
        group="Connection",
        metavar="H:P[,H:P]",
        envvar="FASTLOG_BROKERS",
        default="127.0.0.1:9092",
        show_default=True,
        help=text,
    )


def zookeeper_option(text: str, *aliases: str, **settings: Any) -> Callable[[Any], Any]:
    """``--zookeeper``, with what it means to the command."""
    return option(
        "--zookeeper",
        *aliases,
        "zookeeper",
        group="Connection",
        metavar="H:P[,H:P][/PATH]",
        help=text,
        **settings,
    )


def json_summary_option(function: Any) -> Any:
    """``--json`` of a command that prints nothing but its summary."""
    text = "The summary as one JSON object on stdout, too."
    return option("--json", "as_json", group="Format", is_flag=True, help=text)(function)


def framing_options(delimiter: str, length_prefixed: str) -> Callable[[Any], Any]:
    """``--delimiter`` and ``--length-prefixed``, with what they mean to the command."""

    def add(function: Any) -> Any:
        function = option("--length-prefixed", group="Format", is_flag=True, help=length_prefixed)(function)
        return option(
            "--delimiter",
            group="Format",
            type=Separator(in_line=False),
            metavar="TEXT",
            help=f"{delimiter} Escapes as in Python: '\\0', '\\r\\n'.",
        )(function)

    return add


def framing(delimiter: bytes | None, length_prefixed: bool, form: str = "text") -> bytes | None:
    """What is behind each message, a newline unless otherwise asked for; None: its length is before it.

    Raises ``UsageError`` for options that contradict each other: ``form`` is what is shown of a message.
    """
    if delimiter is not None and length_prefixed:
        raise click.UsageError("--delimiter contradicts --length-prefixed")
    if form != "text" and (delimiter is not None or length_prefixed):
        raise click.UsageError(f"--delimiter and --length-prefixed are for --format text, not for {form}")
    return None if length_prefixed else b"\n" if delimiter is None else delimiter


def broker_at(brokers: str, timeout: float, *, waits: bool = True) -> Broker:
    """The broker that ``--brokers`` names. Raises ``ConfigError`` when an address is malformed.

    ``waits``: as long as nothing has listened there, a refused connection is tried again within the time-out.
    """
    from fastlog.client.connection import Broker
    from fastlog.tools.starting_broker import StartingBroker

    broker = (StartingBroker if waits else Broker)(brokers, timeout)
    broker.hint = "start one with fastlog-broker, or name another with --brokers host:port" + _in_zookeeper()
    return broker


def _in_zookeeper() -> str:
    """What to add for who has named a ZooKeeper in the environment, where only groups are looked for there."""
    ctx = click.get_current_context(silent=True)
    found = os.environ.get("FASTLOG_ZOOKEEPER")
    if not found or ctx is None or ctx.params.get("zookeeper", "") is not None:
        return ""
    if ctx.get_parameter_source("brokers") is click.core.ParameterSource.COMMANDLINE:
        return ""
    return f"; those of FASTLOG_ZOOKEEPER, which is for groups, with --zookeeper {found}"


def answering_first(broker: Broker) -> list[Address]:
    """The broker's addresses with the first one that answers in front; as they are when none does."""
    from fastlog.client.connection import Broker
    from fastlog.errors import TransportError

    for address in broker.addresses if len(broker.addresses) > 1 else ():
        try:
            Broker([address], broker.timeout).connect().close()
        except TransportError:
            continue
        return [address, *(other for other in broker.addresses if other != address)]
    return list(broker.addresses)


def list_settings_option(describe: Callable[[], list[settings.Setting]]) -> Callable[[Any], Any]:
    """``--list-settings``, which shows what ``describe`` gives and leaves."""

    def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if not value or ctx.resilient_parsing:
            return
        for setting in describe():
            unit = f" {setting.unit}" if setting.unit else ""
            click.echo(f"{setting.name} (default: {setting.default or 'none'}{unit})")
            accepted = f" [{setting.range}]" if setting.range else ""
            click.echo(textwrap.fill(setting.doc + accepted, 78, initial_indent="    ", subsequent_indent="    "))
        ctx.exit()

    return option(
        "--list-settings",
        group="Other",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="Show every setting and leave.",
    )


def named_values(flag: str, given: Iterable[str]) -> dict[str, str]:
    """What a repeated ``name=value`` option says; of a repeated name the last one counts.

    Raises:
        ConfigError: an item without ``=``.
    """
    found = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"{flag} {item}: write {flag} name=value")
        found[name.strip()] = value
    return found


def topic_option(function: Any) -> Any:
    """``--topic``, completed by the shell from what the broker holds."""
    return option(
        "--topic",
        group="Selection",
        required=True,
        metavar="TOPIC",
        shell_complete=complete_topics,
        help="The topic.",
    )(function)


def complete_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The broker's topics that begin with what was typed; none when it cannot be reached quickly.

    That is within a second, unless ``--connect-timeout`` was typed before.
    """
    from fastlog.client.records import RecordBroker
    from fastlog.errors import FastlogError

    typed = ctx.get_parameter_source("connect_timeout") is click.core.ParameterSource.COMMANDLINE
    timeout = ctx.params["connect_timeout"] if typed else _COMPLETE_SECONDS
    names: list[str] = []
    broker = broker_at(ctx.params.get("brokers") or "127.0.0.1:9092", timeout, waits=False)
    with contextlib.suppress(FastlogError):
        metadata = broker.metadata_or_none()
        names += [topic.name for topic in metadata.topics] if metadata else []
        with RecordBroker(answering_first(broker), timeout=timeout) as records:
            names += [name for name, found in records.known_topics().items() if not found.is_internal]
    return [name for name in names if name.startswith(incomplete) and name.isprintable()]
