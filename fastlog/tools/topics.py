"""``fastlog topics``: what the broker holds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from fastlog.client.connection import Broker
from fastlog.client.records import RecordsError
from fastlog.client.topics import create_topic, delete_topic, described_in, what_to_do
from fastlog.counts import counted
from fastlog.errors import TransportError, WrongPartitionError, error_for, meaning_of
from fastlog.escaping import in_json, printable
from fastlog.tools import old_names, options, record_topics
from fastlog.tools.colours import BOLD, RED, has_colour, painted
from fastlog.tools.report import EXIT_FAILED, EXIT_USAGE, CommandError, unknown
from fastlog.wire import requests, responses


@click.group(
    cls=options.CommandGroup,
    name="topics",
    examples=(
        "fastlog topics list --brokers localhost:9092",
        "fastlog topics create logs --partitions 4",
    ),
)
def topics_command() -> None:
    """List, describe, create and delete topics of both kinds; look up offsets; show and change settings."""


def _format_options(function: Any) -> Any:
    function = options.option("--no-headers", group="Format", is_flag=True, help="No first line with names.")(function)
    return options.option("--json", "as_json", group="Format", is_flag=True, help="One JSON object a line.")(function)


@topics_command.command(
    cls=options.Command,
    name="list",
    examples=("fastlog topics list --brokers localhost:9092", "fastlog topics list --json | jq -r .topic"),
)
@options.connection_options
@options.option("--internal", group="Selection", is_flag=True, help="Also the broker's own, which begin with __.")
@_format_options
def list_command(brokers: str, connect_timeout: float, internal: bool, as_json: bool, no_headers: bool) -> None:
    """List the topics: partitions there are and may be, visible bytes, and format.

    Of Kafka 0.7 a topic has messages; of today's it has records, and its bytes are those of its files.
    """
    broker = options.broker_at(brokers, connect_timeout)
    metadata = _metadata(broker, None)
    rows = [
        {
            "topic": topic.name,
            "partitions": len(topic.partitions),
            "configured": topic.configured_partitions,
            "bytes": sum(max(0, item.high_watermark - item.log_start) for item in topic.partitions),
            "format": "messages",
        }
        for topic in metadata.topics
    ]
    rows += record_topics.listed(broker, {str(row["topic"]) for row in rows}, with_internal=internal)
    rows.sort(key=lambda row: str(row["topic"]))
    show(("topic", "partitions", "configured", "bytes", "format"), rows, as_json, no_headers)


@topics_command.command(
    cls=options.Command,
    name="describe",
    examples=("fastlog topics describe logs", "fastlog topics describe logs --json"),
)
@click.argument("topic", shell_complete=options.complete_topics)
@options.connection_options
@_format_options
def describe_command(topic: str, brokers: str, connect_timeout: float, as_json: bool, no_headers: bool) -> None:
    """Show the partitions of TOPIC: state, first offset, visible end, end."""
    broker = options.broker_at(brokers, connect_timeout)
    names = ("topic", "partition", "state", "log_start", "high_watermark", "log_end", "unflushed")
    records = record_topics.record_broker_or_none(broker, topic)
    if records is not None:
        with records:
            show(names, record_topics.described(records, topic), as_json, no_headers)
        return
    found = _known_topic(broker, topic)
    rows = [
        {
            "topic": found.name,
            "partition": item.partition,
            "state": responses.STATE_NAMES.get(item.state, str(item.state)),
            "log_start": item.log_start,
            "high_watermark": item.high_watermark,
            "log_end": item.log_end,
            "unflushed": item.log_end - item.high_watermark,
        }
        for item in sorted(found.partitions, key=lambda item: item.partition)
    ]
    show(names, rows, as_json, no_headers)


@topics_command.command(
    cls=options.Command,
    name="create",
    examples=("fastlog topics create logs --partitions 4", "fastlog topics create logs --brokers localhost:9092"),
)
@click.argument("topic")
@options.connection_options
@options.option(
    "--partitions",
    group="Selection",
    type=click.IntRange(0, 2**31 - 1),
    default=0,
    help="How many to create now; 0 is what the broker is configured to.",
)
@options.option(
    "--format",
    "kind",
    group="Selection",
    type=click.Choice(record_topics.FORMATS),
    default="messages",
    show_default=True,
    help="messages: a topic for clients of Kafka 0.7 and fastlog's; records: one for today's, with keys and times.",
)
@options.option(
    "--set",
    "given",
    group="Selection",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the topic, with --format records: retention.ms=86400000 and others, which docs/kafka.md lists.",
)
@_format_options
def create_command(
    topic: str,
    brokers: str,
    connect_timeout: float,
    partitions: int,
    kind: str,
    given: tuple[str, ...],
    as_json: bool,
    no_headers: bool,
) -> None:
    """Create TOPIC; for one that exists, create the partitions it lacks (with --format records that is an error)."""
    broker = options.broker_at(brokers, connect_timeout)
    _metadata(broker, ())
    if kind == "records":
        made = record_topics.create(broker, topic, partitions, options.named_values("--set", given))
        show(("topic", "partitions"), [{"topic": topic, "partitions": made}], as_json, no_headers)
        return
    if given:
        raise click.UsageError("--set needs --format records: topics of Kafka 0.7 have the settings of their broker")
    with broker.connect() as connection:
        answer = create_topic(connection, topic, partitions)
    if answer.error:
        raise CommandError(
            f"topic {topic!r} was not created",
            meaning_of(answer.error),
            what_to_do(
                answer.error, "see the broker's settings num.partitions and topic.partition.count.map, and its log"
            ),
            EXIT_FAILED,
        )
    show(("topic", "partitions"), [{"topic": topic, "partitions": answer.partitions}], as_json, no_headers)


@topics_command.command(
    cls=options.Command,
    name="delete",
    exit_codes=(
        ("0", "deleted at every broker that had it"),
        ("1", "one of the brokers could not be asked, or refused"),
        ("2", "wrong usage, or no broker has it"),
    ),
    examples=("fastlog topics delete logs", "fastlog topics delete logs --brokers one:9092,two:9092"),
)
@click.argument("topic", shell_complete=options.complete_topics)
@options.brokers_option("Where the brokers are; it is deleted at every one of them. Also FASTLOG_BROKERS.")
@options.connect_timeout_option
@_format_options
def delete_command(topic: str, brokers: str, connect_timeout: float, as_json: bool, no_headers: bool) -> None:
    """Delete TOPIC, with all it holds, at every broker named. It cannot be undone.

    Its nodes in ZooKeeper go, too; offsets that groups have committed stay. Where topics are made by their first
    message, a producer that goes on makes it anew.
    """
    rows, failed = [], []
    for address in options.broker_at(brokers, connect_timeout).addresses:
        broker = Broker([address], connect_timeout)
        try:
            # one of records by today's request: who is answered to that may use the name again at once
            metadata = broker.metadata_or_none((topic,))
            if metadata is None:
                failed.append(f"{address}: it speaks plain Kafka 0.7, which has no such request")
                continue
            is_described = not described_in(metadata, topic).error
            count = None if is_described else record_topics.is_deleted(broker, topic)
            if count is not None:
                rows.append({"broker": str(address), "topic": topic, "partitions": count})
                continue
            with broker.connect() as connection:
                answer = delete_topic(connection, topic)
        except (TransportError, RecordsError) as error:
            failed.append(f"{address}: {error.reason}")
            continue
        if answer.error and answer.error != WrongPartitionError.code:
            failed.append(f"{address}: {meaning_of(answer.error)}")
        elif not answer.error:
            rows.append({"broker": str(address), "topic": topic, "partitions": answer.partitions})
    if rows:
        show(("broker", "topic", "partitions"), rows, as_json, no_headers)
    if failed:
        raise CommandError(
            f"topic {topic!r} was not deleted everywhere",
            "; ".join(failed),
            "see the log of that broker and its setting delete.topic.enable; asking again does no harm",
            EXIT_FAILED,
        )
    if not rows:
        raise CommandError(
            f"topic {topic!r} was not deleted",
            "none of the brokers has it",
            "fastlog topics list shows what each has",
            EXIT_USAGE,
        )


@topics_command.command(
    cls=options.Command,
    name="offsets",
    examples=("fastlog topics offsets logs", "fastlog topics offsets logs --partition 0 --time latest"),
    old_names={
        "--server": old_names.SERVER,
        "--topic": old_names.positional(),
        "--offsets": old_names.same("--max"),
    },
)
@click.argument("topic", shell_complete=options.complete_topics)
@options.connection_options
@options.option(
    "--partition", group="Selection", type=click.IntRange(0, 2**31 - 1), help="One partition. Default: all that exist."
)
@options.option(
    "--time",
    "when",
    group="Selection",
    default="latest",
    show_default=True,
    metavar="earliest|latest|MS",
    help="Segment starts not newer than this; MS since 1970; -2 and -1 are earliest and latest.",
)
@options.option(
    "--max", "most", group="Limits", type=click.IntRange(1, 2**31 - 1), default=1, show_default=True, help="How many."
)
@_format_options
def offsets_command(
    topic: str,
    brokers: str,
    connect_timeout: float,
    partition: int | None,
    when: str,
    most: int,
    as_json: bool,
    no_headers: bool,
) -> None:
    """Show offsets of TOPIC, newest first. Works with Kafka 0.7 brokers too.

    Of a topic of records it is one of each partition: that of the first record with this time or a later one.
    """
    times = {"earliest": requests.TIME_EARLIEST, "latest": requests.TIME_LATEST}
    times |= {str(moment): moment for moment in times.values()}
    if when not in times and not (when.isascii() and when.isdigit() and len(when) < 20 and int(when) < 2**63):
        raise click.BadParameter(f"{when!r} is neither earliest, latest nor milliseconds", param_hint="--time")
    time_ms = times[when] if when in times else int(when)
    broker = options.broker_at(brokers, connect_timeout)
    records = record_topics.record_broker_or_none(broker, topic)
    if records is not None:
        with records:
            rows = record_topics.offsets(records, topic, partition, time_ms)
        show(("topic", "partition", "offset"), rows, as_json, no_headers)
        return
    numbers = [partition] if partition is not None else _partitions(broker, topic)
    rows = []
    with broker.connect() as connection:
        for number in numbers:
            body = connection.request(requests.encode_offsets(topic, number, time_ms, most))
            answer = responses.decode_offsets(body)
            if answer.error:
                raise CommandError(
                    f"no offsets of {topic}, partition {number}",
                    meaning_of(answer.error),
                    f"fastlog topics describe {topic} shows its partitions",
                )
            rows += [{"topic": topic, "partition": number, "offset": offset} for offset in answer.offsets]
    show(("topic", "partition", "offset"), rows, as_json, no_headers)


@topics_command.command(
    cls=options.Command,
    name="settings",
    examples=(
        "fastlog topics settings orders",
        "fastlog topics settings orders --set retention.ms=86400000 --unset segment.bytes",
    ),
)
@click.argument("topic", shell_complete=options.complete_topics)
@options.connection_options
@options.option(
    "--set",
    "given",
    group="Selection",
    multiple=True,
    metavar="NAME=VALUE",
    help="Give the topic a setting of its own.",
)
@options.option(
    "--unset",
    "dropped",
    group="Selection",
    multiple=True,
    metavar="NAME",
    help="Let the broker's setting hold again.",
)
@_format_options
def settings_command(
    topic: str,
    brokers: str,
    connect_timeout: float,
    given: tuple[str, ...],
    dropped: tuple[str, ...],
    as_json: bool,
    no_headers: bool,
) -> None:
    """Show the settings of TOPIC, one of records, and where each comes from; change them while it is in use.

    Topics of Kafka 0.7 have none: the broker's settings hold, topic.log.retention.hours and its kin.
    """
    changes: dict[str, str | None] = {**options.named_values("--set", given), **dict.fromkeys(dropped)}
    if len(changes) < len(given) + len(dropped):
        raise click.UsageError("a setting is named twice")
    broker = options.broker_at(brokers, connect_timeout)
    records = record_topics.record_broker_or_none(broker, topic)
    if records is None:
        _known_topic(broker, topic)
        raise CommandError(
            f"topic {topic!r} has no settings of its own",
            "it is one of Kafka 0.7, for which the broker's settings hold",
            "docs/settings.md lists them",
            EXIT_USAGE,
        )
    with records:
        if changes:
            record_topics.change_settings(records, topic, changes)
        show(("setting", "value", "from"), record_topics.shown_settings(records, topic), as_json, no_headers)


def show(names: Sequence[str], rows: Sequence[dict[str, Any]], as_json: bool, no_headers: bool) -> None:
    """Print rows: JSON lines, an aligned table on a terminal, else fields separated by tabs.

    A terminal with colours has the names in bold, and states that are not ``ok`` in red.
    """
    if as_json:
        for row in rows:
            print(in_json(row))
        return
    table = [[printable(str(row[name])) for name in names] for row in rows]
    header = [] if no_headers else [list(names)]
    if not sys.stdout.isatty():
        for line in header + table:
            print("\t".join(line))
        return
    numeric = [bool(rows) and all(isinstance(row[name], int) for row in rows) for name in names]
    widths = [max((len(line[column]) for line in header + table), default=0) for column in range(len(names))]
    coloured = has_colour(sys.stdout)
    for number, line in enumerate(header + table):
        is_head = number < len(header)
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        cells[-1] = cells[-1].rstrip()
        if coloured and is_head:
            cells = [painted(cell, BOLD) for cell in cells]
        elif coloured:
            cells = [
                painted(cell, RED) if name == "state" and text and text != "ok" else cell
                for cell, text, name in zip(cells, line, names, strict=True)
            ]
        print("  ".join(cells).rstrip())


def _metadata(broker: Broker, topics: tuple[str, ...] | None) -> responses.MetadataAnswer:
    metadata = broker.metadata_or_none(topics)
    if metadata is None:
        raise CommandError(
            "the broker cannot be asked about its topics",
            "it speaks plain Kafka 0.7, which has no such request",
            "use fastlog topics offsets TOPIC --partition N, or a fastlog broker",
            EXIT_USAGE,
        )
    return metadata


def _known_topic(broker: Broker, topic: str) -> responses.TopicMetadata:
    metadata = _metadata(broker, (topic,))
    for found in metadata.topics:
        if found.name == topic and found.error:
            refused = error_for(found.error)
            raise CommandError(
                f"topic {topic!r} is not described", meaning_of(found.error), refused.what_to_do, EXIT_USAGE
            )
        if found.name == topic and found.partitions:
            return found
    names = [item.name for item in _metadata(broker, None).topics]
    raise unknown(
        f"topic {topic!r} does not exist",
        f"the broker holds {counted(len(names), 'topic')}, and none of that name",
        topic,
        names,
        "fastlog topics list shows them",
    )


def _partitions(broker: Broker, topic: str) -> list[int]:
    if broker.metadata_or_none(()) is None:
        from fastlog.consumer.simple import SimpleConsumer

        first = options.answering_first(broker)[0]
        with SimpleConsumer(first.host, first.port, timeout=broker.timeout, local="off") as consumer:
            return list(range(consumer.partition_count(topic)))
    return sorted(item.partition for item in _known_topic(broker, topic).partitions)
