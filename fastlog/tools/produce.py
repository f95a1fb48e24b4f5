"""``fastlog produce``: each line of files or stdin is one message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from fastlog.errors import ConfigError
from fastlog.settings import load_properties
from fastlog.tools import old_names, options
from fastlog.tools.report import EXIT_USAGE, CommandError, note
from fastlog.topics import valid_topic

if TYPE_CHECKING:
    from fastlog.settings import Setting
    from fastlog.tools.destination import Destination
    from fastlog.tools.keys import KeyRule


def _settings() -> list[Setting]:
    from fastlog.producer.config import ProducerConfig

    return ProducerConfig.describe()


@click.command(
    cls=options.Command,
    name="produce",
    examples=(
        "fastlog produce --topic logs --key-field 1 --key-separator ' ' access.log",
        "tail -F app.log | fastlog produce --topic app --acks flushed",
    ),
    old_names={
        "--props": old_names.same("--config"),
        "--compress": old_names.flag("--compression", "gzip"),
        "--timeout": old_names.milliseconds("--queue-time"),
    },
)
@options.connection_options
@options.zookeeper_option("Send to the brokers that are registered there, through all their comings and goings.")
@options.option(
    "--config",
    "config_file",
    group="Connection",
    metavar="FILE",
    type=click.Path(),
    help="A properties file with settings of the producer by the names of Kafka 0.7.",
)
@options.option(
    "--property",
    "given",
    group="Connection",
    multiple=True,
    metavar="NAME=VALUE",
    help="One such setting; may be repeated. A flag goes before --property, --property before the file.",
)
@options.topic_option
@options.option(
    "-p",
    "--partition",
    group="Selection",
    type=click.IntRange(0, 2**31 - 1),
    help="The partition; without it the broker picks one for each request, and order holds within a request.",
)
@options.option(
    "--parse-key",
    group="Selection",
    is_flag=True,
    help="What is before the first separator chooses the partition. A record has it as its key; a message of Kafka 0.7"
    " has none, and it is not sent.",
)
@options.option(
    "-K",
    "key_delimiter",
    group="Selection",
    type=options.Separator(),
    metavar="TEXT",
    help="As kcat's: --parse-key with this --key-separator.",
)
@options.option(
    "-k",
    "--key",
    group="Selection",
    metavar="TEXT",
    help="The key of all lines; with --parse-key or --key-field, of those without one.",
)
@options.option("--keep-key", group="Selection", is_flag=True, help="With --parse-key: send the whole line.")
@options.option(
    "--key-field",
    group="Selection",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="The Nth field, from 1, chooses the partition; the whole line is sent.",
)
@options.option(
    "--key-separator",
    group="Selection",
    type=options.Separator(),
    metavar="TEXT",
    help="What separates keys and fields. Default: a tab.",
)
@options.option(
    "--keyless",
    group="Selection",
    type=click.Choice(["fail", "any"]),
    default="fail",
    show_default=True,
    help="A line without a key ends the command, or goes to any partition.",
)
@options.option(
    "-z",
    "--compression",
    group="Format",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    help="Compress each request; lz4 and zstd are for topics of records. Default: none.",
)
@options.option(
    "-H",
    "--header",
    "headers",
    group="Format",
    multiple=True,
    metavar="NAME=VALUE",
    help="A header of each record, for topics of records; may be repeated.",
)
@options.option(
    "-Z",
    "--null",
    "has_nulls",
    group="Format",
    is_flag=True,
    help="What is empty, a line or its key, is null: for topics of records, where a value of null removes what its key"
    " had.",
)
@options.framing_options(
    "What ends a message. Default: a newline.",
    "Before each message stands its length, 4 bytes, the highest"
    " first. What consume --length-prefixed has written comes back to the byte.",
)
@options.json_summary_option
@options.option("--no-progress", group="Format", is_flag=True, help="Print nothing before the summary.")
@options.option(
    "-c",
    "--max-messages",
    group="Limits",
    type=click.IntRange(1),
    metavar="N",
    help="Stop after N lines.",
)
@options.option(
    "--acks",
    group="Limits",
    type=click.Choice(["none", "appended", "flushed"]),
    help="What to wait for. Default: appended when the broker can answer, else none.",
)
@options.option(
    "--sync", group="Limits", is_flag=True, help="Read on only when what was read before is stored as --acks says."
)
@options.option(
    "--batch-size",
    group="Limits",
    type=click.IntRange(1, 2**31 - 1),
    metavar="N",
    help="Lines in one request, at most. Default: as many as --batch-bytes are.",
)
@options.option(
    "--batch-bytes",
    group="Limits",
    type=options.Size(1, 16 * 2**20),
    metavar="SIZE",
    help="Bytes of messages in one request, about. Default: 256KiB.",
)
@options.option(
    "--queue-time",
    group="Limits",
    type=options.Duration(),
    metavar="TIME",
    help="How long a line waits for others to fill its request. Default: 10ms.",
)
@options.option(
    "--max-message-bytes",
    group="Limits",
    type=options.Size(1, 2**31 - 1 - 2**20),
    metavar="SIZE",
    help="Leave longer lines out. Default: the broker's limit. One of Kafka 0.7 tells none and drops what is longer"
    " without a word, so it is 1000000 there, as its max.message.size by itself.",
)
@options.list_settings_option(_settings)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.pass_context
def produce_command(
    ctx: click.Context,
    brokers: str,
    zookeeper: str | None,
    connect_timeout: float,
    config_file: str | None,
    given: tuple[str, ...],
    topic: str,
    partition: int | None,
    parse_key: bool,
    key_delimiter: bytes | None,
    key: str | None,
    keep_key: bool,
    key_field: int | None,
    key_separator: bytes | None,
    keyless: str,
    compression: str | None,
    headers: tuple[str, ...],
    has_nulls: bool,
    delimiter: bytes | None,
    length_prefixed: bool,
    as_json: bool,
    no_progress: bool,
    max_messages: int | None,
    acks: str | None,
    sync: bool,
    batch_size: int | None,
    batch_bytes: int | None,
    queue_time: float | None,
    max_message_bytes: int | None,
    files: tuple[str, ...],
) -> int:
    """Send each line of FILES (or stdin) as one message.

    Prints what was sent, what the broker promised, and which lines have no answer, on stderr. After a broken
    connection, acknowledged produce sends again what was not acknowledged: no message is lost, and possible duplicates
    are counted. Of several brokers in --brokers the first that answers gets everything; those of --zookeeper, or of
    broker.list in a properties file, share the messages.
    """
    reason = valid_topic(topic)
    if reason is not None:
        raise CommandError(f"{topic!r} is no topic", reason, "choose another name with --topic", EXIT_USAGE)
    if key_delimiter is not None:
        if parse_key or key_field is not None or key_separator is not None:
            raise click.UsageError("-K is --parse-key and --key-separator in one: leave the others out")
        parse_key, key_separator = True, key_delimiter
    rule = _key_rule(parse_key, keep_key, key_field, key_separator, keyless, key)
    if keyless != "fail" and rule is None:
        raise click.UsageError("--keyless is about keys: give --parse-key or --key-field")
    if sync and queue_time is not None:
        raise click.UsageError("--sync contradicts --queue-time: nothing waits for more lines")
    if zookeeper is not None and partition is not None:
        raise click.UsageError("--partition needs a single broker: name one with --brokers instead of --zookeeper")
    brokers_given = _by_hand(ctx, "brokers")
    if zookeeper is not None and brokers_given:
        if ctx.get_parameter_source("brokers") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--brokers and --zookeeper both name brokers: give one of them")
        brokers_given = False
    flags = {
        "zk.connect": zookeeper,
        "compression.codec": compression,
        "acks": acks,
        "producer.type": "sync" if sync else None,
        "batch.size": batch_size,
        "batch.bytes": batch_bytes,
        "queue.time": None if queue_time is None else round(queue_time * 1000),
        "max.message.size": max_message_bytes,
        "connect.timeout.ms": _by_hand(ctx, "connect_timeout") and max(1, round(connect_timeout * 1000)),
    }
    texts = _texts(config_file, given)
    if zookeeper is not None:
        texts.pop("broker.list", None)
    texts.update({name: str(value) for name, value in flags.items() if value})
    if queue_time is not None:
        texts["queue.time"] = str(round(queue_time * 1000))

    from fastlog.tools.destination import settle, settle_records
    from fastlog.tools.progress import ConsoleProgress
    from fastlog.tools.record_topics import record_broker_or_none
    from fastlog.tools.send_lines import LineSender

    framing = options.framing(delimiter, length_prefixed)
    pairs = _headers(headers)
    progress = ConsoleProgress("produced", shown=not no_progress)
    found: Destination | None = None
    if not texts.keys() & {"broker.list", "zk.connect"}:
        records = record_broker_or_none(options.broker_at(brokers, connect_timeout), topic)
        if records is not None:
            with records:
                found = settle_records(records, topic, partition, texts, connect_timeout)
    if found is None:
        if rule is not None and partition is not None:
            raise click.UsageError("a key chooses the partition, and --partition contradicts it")
        if headers or has_nulls or compression in ("lz4", "zstd"):
            raise click.UsageError(
                f"{topic} is no topic of records, which alone have headers, nulls, lz4 and zstd: fastlog topics create"
                f" {topic} --format records makes one"
            )
        found = settle(brokers, brokers_given, connect_timeout, topic, texts)
        if partition is not None:
            _check_partition(found, topic, partition)
    if rule is not None and not found.places and not found.follows_zookeeper:
        note("keys have no effect: the broker speaks plain Kafka 0.7 and does not tell its partitions")
    sender = LineSender(found, topic, partition, rule, progress, framing, headers=pairs, has_nulls=has_nulls)
    sender.as_json, sender.max_messages = as_json, max_messages
    return sender.run(files or ("-",))


def _headers(given: tuple[str, ...]) -> tuple[tuple[bytes, bytes], ...]:
    """Names and values, in their order; a name may come again. Raises ``UsageError`` for one without ``=``."""
    found = [item.partition("=") for item in given]
    for name, equals, _ in found:
        if not equals:
            raise click.UsageError(f"--header {name}: write --header name=value")
    return tuple((name.encode(), value.encode()) for name, _, value in found)


def _key_rule(
    parse: bool, keep: bool, field: int | None, separator: bytes | None, keyless: str, fixed: str | None
) -> KeyRule | None:
    from fastlog.tools.keys import KeyRule

    if parse and field is not None:
        raise click.UsageError("--parse-key contradicts --key-field: the key is before the first separator, or a field")
    if keep and not parse:
        raise click.UsageError("--keep-key is about --parse-key; with --key-field the whole line is sent anyway")
    if not parse and field is None:
        if separator is not None:
            raise click.UsageError("--key-separator needs --parse-key or --key-field")
        return None if fixed is None else KeyRule(None, 0, False, keyless == "fail", fixed.encode())
    return KeyRule(separator or b"\t", field or 0, keep, keyless == "fail", None if fixed is None else fixed.encode())


def _by_hand(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


def _texts(config_file: str | None, given: tuple[str, ...]) -> dict[str, str]:
    try:
        texts = load_properties(config_file) if config_file is not None else {}
        texts.update(options.named_values("--property", given))
    except ConfigError as error:
        raise CommandError(
            str(error),
            "the settings of the producer cannot be read",
            "fastlog produce --list-settings shows every setting",
            EXIT_USAGE,
        ) from error
    return texts


def _check_partition(found: Destination, topic: str, partition: int) -> None:
    brokers = {place[0] for place in found.places if isinstance(place, tuple)}
    if found.follows_zookeeper or (str(found.config.broker_list).count(",") and len(brokers) != 1):
        raise click.UsageError("--partition needs a single broker: name one with --brokers")
    if found.places and partition >= len(found.places):
        raise CommandError(
            f"there is no partition {partition} of {topic}",
            f"the broker has {len(found.places)} of it, 0 to {len(found.places) - 1}",
            "choose one of them with --partition, or let the broker choose",
        )
