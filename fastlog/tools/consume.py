"""``fastlog consume``: messages of a topic on stdout, one a line."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from fastlog.errors import ConfigError, CoordinationError
from fastlog.tools import groups_access, old_names, options, signals
from fastlog.tools.report import EXIT_DAMAGED, EXIT_DONE, EXIT_NOTHING_CAME

if TYPE_CHECKING:
    from fastlog.client.connection import Broker
    from fastlog.client.records import RecordBroker
    from fastlog.tools.progress import ConsoleProgress
    from fastlog.tools.record_forms import RecordForm

_LOCAL_WAYS = ("auto", "read", "map", "off")
_FORMS = ("text", "json", "offsets", "checksum")
_OLD_FORMS = {"NewlineMessageFormatter": "text", "ChecksumMessageFormatter": "checksum"}
_RESETS = {"beginning": "smallest", "end": "largest", "smallest": "smallest", "largest": "largest"}
_WORDS = {"beginning": "beginning", "earliest": "beginning", "end": "end", "latest": "end"}


class OffsetChoice(click.ParamType):  # type: ignore[type-arg]
    """``beginning``, ``end``, a number, ``-N`` for N messages before the end, or a moment."""

    name = "offset"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> options.Begin:
        """The word, the number, or the moment."""
        text = str(value)
        if text in _WORDS:
            return _WORDS[text]
        digits = text.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) < 20 and int(digits) < 2**63 and text != "-0":
            return int(text)
        try:
            return options.At(options.When().convert(text, param, ctx))
        except click.BadParameter:
            known = "beginning, end, an offset, -N for the last N messages, nor a time such as 1h or 2026-11-21T18:00"
            self.fail(f"{text!r} is neither {known}", param, ctx)


class FormChoice(click.Choice):  # type: ignore[type-arg]
    """The forms of output, and the names that 0.7's formatters have."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the form, which may be given by the class name of 0.7's formatter."""
        text = str(value).rpartition(".")[2].rpartition("$")[2]
        return str(super().convert(_OLD_FORMS.get(text, value), param, ctx))


@click.command(
    cls=options.Command,
    name="consume",
    examples=(
        "fastlog consume --brokers localhost:9092 --topic logs --exit-at-end",
        "fastlog consume --zookeeper localhost:2181 --group views --whitelist 'log.*'",
    ),
    old_names={
        "--server": old_names.SERVER,
        "--fetchsize": old_names.same("--fetch-bytes"),
        "--print-offsets": old_names.flag("--format", "offsets"),
        "--print-messages": old_names.flag(),
        "--consumer-timeout-ms": old_names.milliseconds("--timeout"),
        "--autocommit.interval.ms": old_names.milliseconds("--commit-interval"),
    },
)
@options.connection_options
@options.zookeeper_option(
    "Read as a member of a group that is kept there, from all brokers that are registered. Also FASTLOG_ZOOKEEPER, if a"
    " group or a filter is given. Without either, the broker of --brokers keeps the group.",
    "--zk.connect",
)
@options.option(
    "--local",
    group="Connection",
    type=click.Choice(_LOCAL_WAYS),
    default="auto",
    show_default=True,
    help="Read the segment files themselves where the broker is on this machine and lets them be read; off: never.",
)
@options.option(
    "--socket-buffer-size",
    group="Connection",
    type=options.Size(1, 2**31 - 1),
    metavar="SIZE",
    help="Receive buffer of each connection. Default: the system's (0.7: 2 MiB).",
)
@options.option(
    "--topic",
    group="Selection",
    metavar="TOPIC",
    shell_complete=options.complete_topics,
    help="The topic.",
)
@options.option("--whitelist", group="Selection", metavar="REGEX", help="All topics whose whole name it matches.")
@options.option("--blacklist", group="Selection", metavar="REGEX", help="All topics but those.")
@options.option(
    "--group",
    group="Selection",
    metavar="GROUP",
    help="The group to read with: it goes on where it committed. Without one, one of its own that leaves nothing.",
)
@options.option(
    "--from-beginning",
    group="Selection",
    is_flag=True,
    help="Forget what the group has committed of these topics, and begin with the oldest messages.",
)
@options.option(
    "--offset-reset",
    group="Selection",
    type=click.Choice(tuple(_RESETS)),
    help="Where a group begins in a partition of which it has committed nothing, or nothing that the broker still has"
    " (smallest and largest: 0.7's words). Default: beginning; end without --group and --from-beginning.",
)
@options.option(
    "-p",
    "--partition",
    group="Selection",
    type=click.IntRange(0, 2**31 - 1),
    help="One partition. Default: all of them.",
)
@options.option(
    "--offset",
    group="Selection",
    type=OffsetChoice(),
    metavar="beginning|end|N|-N|TIME",
    help="Where to begin without a group (also: earliest, latest); default: beginning. N is the start of a message in"
    " --partition. -N is the last N messages of each partition, or all where there are fewer; those in compressed sets"
    " count one by one. TIME (1h for so long ago, or 2026-11-21T18:00, local unless it has a zone) is the first segment"
    " that was appended to then or later: nothing newer is left out, and some older messages may come.",
)
@options.option(
    "--format",
    "--formatter",
    "form",
    group="Format",
    type=FormChoice(_FORMS),
    default="text",
    show_default=True,
    help="text: the payload. json: an object a line. offsets: partition, offset and payload, between tabs."
    " checksum: the CRC-32 of the payload. The names of 0.7's formatters are known, too.",
)
@options.option(
    "--property",
    "given",
    group="Format",
    multiple=True,
    metavar="NAME=VALUE",
    help="topic=TEXT puts TEXT and a dash before each checksum.",
)
@options.option("--json", "as_json", group="Format", is_flag=True, help="The same as --format json.")
@options.option(
    "-f",
    "--template",
    group="Format",
    metavar="TEXT",
    help="What to print of each message, as kcat does: %s value, %k key, %S and %K their lengths (-1: none), %T time,"
    " %h headers, %t topic, %p partition, %o offset, %%; \\n, \\t, \\0, \\xHH. Nothing is put behind it.",
)
@options.option(
    "-Z",
    "--null",
    "shows_nulls",
    group="Format",
    is_flag=True,
    help="Print NULL, not nothing, for a value that is null, and with --template also for a key. JSON has null anyway.",
)
@options.framing_options(
    "What is behind each payload. Default: a newline.",
    "Before each payload its length, 4 bytes, the"
    " highest first; nothing behind it. Any bytes come back with produce --length-prefixed.",
)
@options.option("--no-progress", group="Format", is_flag=True, help="Print nothing before the summary.")
@options.option(
    "-c", "--max-messages", group="Limits", type=click.IntRange(1), metavar="N", help="Stop after N messages."
)
@options.option(
    "--exit-at-end/--follow",
    group="Limits",
    default=False,
    help="Stop where the topic ended when this began; or wait for more messages, which is the default.",
)
@options.option(
    "--timeout", group="Limits", type=options.Duration(), metavar="TIME", help="Stop when nothing came for that long."
)
@options.option(
    "--skip-message-on-error",
    "skips_damage",
    group="Limits",
    is_flag=True,
    help="Go on behind a damaged message; exit code 5 all the same.",
)
@options.option(
    "--commit-interval",
    group="Limits",
    type=options.Duration(),
    default="10s",
    show_default=True,
    metavar="TIME",
    help="How often a group commits what was printed; it also does at the end.",
)
@options.option(
    "--fetch-bytes",
    "--fetch-size",
    "fetch_bytes",
    group="Limits",
    type=options.Size(16, 2**30),
    default="1MiB",
    show_default=True,
    metavar="SIZE",
    help="Bytes to ask for at once; more when a message is longer.",
)
@options.option(
    "--max-message-bytes",
    group="Limits",
    type=options.Size(1, 2**30),
    metavar="SIZE",
    help="The longest message to read. Default: the broker's limit, 100MiB when it tells none.",
)
@click.pass_context
def consume_command(
    ctx: click.Context,
    brokers: str,
    connect_timeout: float,
    zookeeper: str | None,
    local: str,
    socket_buffer_size: int | None,
    topic: str | None,
    whitelist: str | None,
    blacklist: str | None,
    group: str | None,
    from_beginning: bool,
    offset_reset: str | None,
    partition: int | None,
    offset: options.Begin | None,
    form: str,
    given: tuple[str, ...],
    as_json: bool,
    template: str | None,
    shows_nulls: bool,
    delimiter: bytes | None,
    length_prefixed: bool,
    no_progress: bool,
    max_messages: int | None,
    exit_at_end: bool,
    timeout: float | None,
    skips_damage: bool,
    commit_interval: float,
    fetch_bytes: int,
    max_message_bytes: int | None,
) -> int:
    """Print each message's bytes and a newline, partition by partition as they come.

    With --json each line has topic, partition, offset, next_offset, payload, and base64, which is true when the
    payload is not UTF-8 and therefore encoded; in a group also broker. Messages of one compressed set share the
    set's offset. A message of Kafka 0.7 has no key; of a topic of record batches (today's) a line also has key,
    key_base64, timestamp and headers, the payload is the value, and null where there is none.

    A group commits what is on stdout and nothing else. With a group --exit-at-end stops where everything that could
    be read has been printed.
    """
    if as_json and form not in ("text", "json"):
        raise click.UsageError(f"--json contradicts --format {form}")
    form = "json" if as_json else form
    prefix = _prefix(given, form)
    null = b"NULL" if shows_nulls else b""
    shape = None if template is None else _shape(template, null)
    if template is not None and (form != "text" or delimiter is not None or length_prefixed):
        raise click.UsageError("--template says all that is printed: it goes with no other option of Format")
    if shows_nulls and (form not in ("text", "json") or length_prefixed):
        raise click.UsageError("--null is for text and --template: nothing else would say it")
    behind = b"" if shape is not None else options.framing(delimiter, length_prefixed, form)
    if shows_nulls and shape is None and form == "text":
        shape = _shape("%s", null)
    in_group = zookeeper is not None or group is not None or whitelist is not None or blacklist is not None
    _check(ctx, in_group)
    from fastlog.tools.progress import ConsoleProgress

    started = time.monotonic()
    progress = ConsoleProgress("consumed", shown=not no_progress and not sys.stdout.isatty())
    progress.started = started
    limits: dict[str, Any] = {
        "max_messages": max_messages,
        "exit_at_end": exit_at_end,
        "timeout": timeout,
        "skips_damage": skips_damage,
        "delimiter": behind,
    }
    settings: dict[str, Any] = {
        "fetch_bytes": fetch_bytes,
        "local": local,
        "max_message_bytes": max_message_bytes,
        "receive_buffer_bytes": socket_buffer_size,
    }
    if in_group:
        where = groups_access.where(zookeeper, brokers, connect_timeout)
        settings.update({"zk_connect": where.zookeeper} if where.zookeeper is not None else {"brokers": where.brokers})
        settings["zk_connection_timeout_ms"] = max(1, round(connect_timeout * 1000))
        settings["auto_commit_interval_ms"] = max(1, round(commit_interval * 1000))
        settings["auto_offset_reset"] = (
            _RESETS[offset_reset] if offset_reset else "smallest" if group is not None or from_beginning else "largest"
        )
        chosen = topic, whitelist, blacklist
        return _in_group(where, chosen, group, from_beginning, form, shape, prefix, progress, settings, limits)
    assert topic is not None
    broker = options.broker_at(brokers, connect_timeout)
    begin = "beginning" if offset is None else offset
    from fastlog.tools.record_topics import record_broker_or_none

    records = record_broker_or_none(broker, topic)
    if records is not None:
        with records:
            return _of_records(
                records, topic, partition, begin, form, shape, prefix, progress, settings, broker.timeout, **limits
            )
    return _from_a_broker(broker, topic, partition, begin, form, shape, prefix, progress, settings, **limits)


def _in_group(
    where: groups_access.Where,
    choice: tuple[str | None, str | None, str | None],
    group: str | None,
    from_beginning: bool,
    form: str,
    shape: RecordForm | None,
    prefix: str,
    progress: ConsoleProgress,
    settings: dict[str, Any],
    limits: dict[str, Any],
) -> int:
    """``settings`` are fields of ``ConsumerConfig``; ``choice`` is topic, whitelist, blacklist."""
    from fastlog.consumer.config import ConsumerConfig
    from fastlog.tools import group_reading as reader

    config = ConsumerConfig(
        group_id=group or reader.new_group(),
        auto_commit=group is not None,
        **settings,
    )
    chosen = reader.Chosen(*choice)
    if from_beginning and group is not None:
        with where.open() as place:
            reader.forget_offsets(place, group, chosen)
    forms = {
        "text": None,
        "json": reader.json_line,
        "offsets": reader.offsets_line,
        "checksum": reader.checksum_form(prefix),
    }
    if shape is not None:
        from fastlog.tools.record_forms import of_group_messages

        forms[form] = of_group_messages(shape)
    member = reader.GroupReading(config, chosen, forms[form], progress, **limits)
    is_left_behind = group is None
    try:
        with signals.deferred():
            return member.run()
    except CoordinationError:
        is_left_behind &= member.has_joined  # else nobody was reached, and nothing was written
        raise
    finally:
        if is_left_behind:
            reader.remove_group(where, config.group_id)


def _from_a_broker(
    broker: Broker,
    topic: str,
    partition: int | None,
    offset: options.Begin,
    form: str,
    shape: RecordForm | None,
    prefix: str,
    progress: ConsoleProgress,
    settings: dict[str, Any],
    *,
    max_messages: int | None,
    exit_at_end: bool,
    timeout: float | None,
    skips_damage: bool,
    delimiter: bytes | None,
) -> int:
    """``settings`` are those of ``SimpleConsumer``."""
    from fastlog.tools.consume_run import ConsumeRun
    from fastlog.tools.printing import FORMS, Printer, checksum_form
    from fastlog.tools.starting import Start

    start = Start(broker, topic, partition, offset, exit_at_end, settings)
    chosen = checksum_form(prefix) if prefix else FORMS[form]
    if shape is not None:
        from fastlog.tools.record_forms import of_messages

        chosen = of_messages(shape)
    printer = Printer(topic, chosen, max_messages, progress, delimiter)
    reading = ConsumeRun(start, printer, progress, settings["fetch_bytes"], timeout, skips_damage=skips_damage)
    try:
        with signals.deferred():
            reading.run()
    except BrokenPipeError:
        raise
    except BaseException:
        reading.summary()
        raise
    reading.summary()
    reading.raise_if_stuck()
    if reading.skipped:
        return EXIT_DAMAGED
    return EXIT_NOTHING_CAME if reading.timed_out and not progress.count else EXIT_DONE


def _of_records(
    records: RecordBroker,
    topic: str,
    partition: int | None,
    offset: options.Begin,
    form: str,
    shape: RecordForm | None,
    prefix: str,
    progress: ConsoleProgress,
    settings: dict[str, Any],
    connect_timeout: float,
    *,
    max_messages: int | None,
    exit_at_end: bool,
    timeout: float | None,
    skips_damage: bool,
    delimiter: bytes | None,
) -> int:
    """The same of a topic of record batches; a broker that goes away is waited for as long as for a connection."""
    from fastlog.tools import record_forms
    from fastlog.tools.record_reading import RecordReading

    if skips_damage:
        raise click.UsageError(
            "--skip-message-on-error is for topics of Kafka 0.7: records are checked with their batch"
        )
    chosen = shape or record_forms.FORMS[form]
    if delimiter is None:
        chosen = record_forms.prefixed_value
    elif prefix:
        chosen = record_forms.checksum_form(prefix)
    with signals.deferred():
        reading = RecordReading(
            records,
            topic,
            chosen,
            progress,
            partition=partition,
            begin=offset,
            exit_at_end=exit_at_end,
            max_messages=max_messages,
            timeout=timeout,
            fetch_bytes=settings["fetch_bytes"],
            max_message_bytes=settings["max_message_bytes"],
            delimiter=delimiter or b"",
            connect_timeout=connect_timeout,
        )
        try:
            reading.run()
        except BrokenPipeError:
            raise
        except BaseException:
            reading.summary()
            raise
    reading.summary()
    return EXIT_NOTHING_CAME if reading.timed_out and not progress.count else EXIT_DONE


def _shape(template: str, null: bytes) -> RecordForm:
    """What a template makes of each record, with this for what is null. Raises ``UsageError``."""
    from fastlog.tools.record_forms import template_form

    try:
        return template_form(template, null)
    except ValueError as error:
        raise click.UsageError(f"--template: {error}") from None


def _prefix(given: tuple[str, ...], form: str) -> str:
    """What stands before each checksum. Raises ``UsageError`` for properties that no form has."""
    try:
        properties = options.named_values("--property", given)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    if set(properties) - {"topic"} or (properties and form != "checksum"):
        raise click.UsageError("--property: there is only topic=TEXT, for --format checksum")
    return properties.get("topic", "")


def _check(ctx: click.Context, in_group: bool) -> None:
    """Raises ``UsageError`` for options that do not go together."""
    default = click.core.ParameterSource.DEFAULT
    given = {name for name in ctx.params if ctx.get_parameter_source(name) is not default}
    chosen = given & {"topic", "whitelist", "blacklist"}
    if not in_group:
        if not chosen:
            raise click.UsageError("Missing option '--topic'.")
        if "commit_interval" in given:
            raise click.UsageError("--commit-interval needs --group: without one nothing is committed")
        if "offset_reset" in given:
            raise click.UsageError("--offset-reset is for groups: without one --offset says where to begin")
        if "from_beginning" in given and ctx.params["offset"] not in (None, "beginning"):
            raise click.UsageError("--from-beginning contradicts --offset")
        return
    if len(chosen) != 1:
        raise click.UsageError("a group reads one of --topic, --whitelist and --blacklist")
    if ctx.params["partition"] is not None or ctx.params["offset"] is not None:
        raise click.UsageError(
            "--partition and --offset are for reading from --brokers: the members of a group share all partitions, and"
            " fastlog offsets reset says where they go on"
        )
    if "from_beginning" in given and _RESETS.get(ctx.params["offset_reset"] or "smallest") == "largest":
        raise click.UsageError(f"--from-beginning contradicts --offset-reset {ctx.params['offset_reset']}")
    if "commit_interval" in given and ctx.params["group"] is None:
        raise click.UsageError("--commit-interval needs --group: without one nothing is committed")
