"""``fastlog replay``: the messages of a topic, produced to another one at their own pace, faster, or at once.

Source: Kafka 0.7.2 (tools/ReplayLogProducer), which knows full speed and a fixed pause between batches.
"""

from __future__ import annotations

from typing import Any

import click

from fastlog.counts import counted
from fastlog.tools import groups_access, old_names, options
from fastlog.tools.report import EXIT_FAILED, EXIT_USAGE, CommandError, note


class Speed(click.ParamType):  # type: ignore[type-arg]
    """``full``, or how many times as fast as it was."""

    name = "speed"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the factor by which time is compressed; 0 is as fast as possible."""
        if isinstance(value, float):
            return value
        text = str(value).strip().rstrip("x×")
        if text == "full":
            return 0.0
        try:
            factor = float(text)
        except ValueError:
            factor = 0.0
        if not 0.0001 <= factor <= 1_000_000:
            self.fail(f"{value!r} is neither full nor a factor such as 1, 10 or 0.5", param, ctx)
        return factor


@click.command(
    cls=options.Command,
    name="replay",
    examples=(
        "fastlog replay --input-topic logs --output-topic logs-again",
        "fastlog replay --input-topic a --output-topic b --speed 10 --times envelope",
    ),
    old_names={
        "--inputtopic": old_names.same("--input-topic"),
        "--outputtopic": old_names.same("--output-topic"),
        "--brokerinfo": old_names.BROKERINFO,
        "--compression-codec": old_names.CODEC,
        "--messages": old_names.unless_all("--messages"),
    },
)
@groups_access.brokers_options
@options.option("--to-brokers", group="Connection", metavar="H:P[,H:P]", help="Produce there. Default: the same.")
@options.option("--to-zookeeper", group="Connection", metavar="H:P[/PATH]", help="Produce to the brokers of this one.")
@options.option(
    "--input-topic",
    "source",
    group="Selection",
    required=True,
    metavar="TOPIC",
    shell_complete=options.complete_topics,
    help="Read this one.",
)
@options.option(
    "--output-topic",
    "target",
    group="Selection",
    required=True,
    metavar="TOPIC",
    help="Into this one.",
)
@options.option(
    "--speed",
    group="Limits",
    type=Speed(),
    default="full",
    show_default=True,
    metavar="full|N",
    help="1: with the pauses there were between messages. 10: ten times as fast. full: without pauses.",
)
@options.option(
    "--times",
    group="Limits",
    type=click.Choice(("records", "envelope", "segments")),
    help="Where the times for --speed are from: each record's own time, the default of topics of records; each"
    " message's envelope; or the times at which the broker last appended to each segment, as if bytes had come evenly"
    " in between, the default of topics of Kafka 0.7.",
)
@options.option(
    "--rate",
    group="Limits",
    type=click.FloatRange(0, min_open=True),
    metavar="N",
    help="N messages a second instead, over all partitions.",
)
@options.option("--messages", group="Limits", type=click.IntRange(1), metavar="N", help="Stop after N messages.")
@options.option(
    "--max-message-bytes",
    group="Limits",
    type=options.Size(1, 2**31 - 1 - 2**20),
    metavar="SIZE",
    help="A longer message ends the replay. Default: the target's limit; one of Kafka 0.7 tells none and drops what is"
    " longer without a word, so it is 1000000 there, as its max.message.size by itself.",
)
@options.option(
    "--compression",
    group="Format",
    type=click.Choice(("none", "gzip", "snappy", "lz4", "zstd")),
    default="none",
    show_default=True,
    help="Of what is produced; lz4 and zstd are for topics of records. Sets and batches that come compressed are"
    " opened.",
)
@options.json_summary_option
@options.option("--no-progress", group="Format", is_flag=True, help="Print nothing before the summary.")
def replay_command(
    brokers: str,
    connect_timeout: float,
    zookeeper: str | None,
    to_brokers: str | None,
    to_zookeeper: str | None,
    source: str,
    target: str,
    speed: float,
    times: str | None,
    rate: float | None,
    messages: int | None,
    max_message_bytes: int | None,
    compression: str,
    as_json: bool,
    no_progress: bool,
) -> int:
    """Produce the messages that a topic holds now to another topic, partition by partition.

    What is in one partition stays in one partition, in its order: in the one of the same broker id and number where the
    target has all of them, and else in that of the same place.
    Payloads are the same to the byte, envelopes too, and records keep key, headers and time. A topic of records goes to
    another one, which is made as it is where there is none of that name; one of Kafka 0.7 to either kind. With a speed
    or a rate the partitions keep the times between them. Each message is acknowledged once it is on the disk, and
    consumers see it; exit code 1 when one was not. A plain 0.7 broker acknowledges nothing: what it was sent is counted
    as that.
    """
    from fastlog.tools.copy_topic import CopyTarget, Replay, record_sites
    from fastlog.tools.progress import ConsoleProgress
    from fastlog.tools.same_topic import SameTopic
    from fastlog.tools.topic_places import find_all_sites, find_topic_sites

    if rate is not None and speed:
        raise click.UsageError("--rate contradicts --speed")
    if to_brokers is not None and to_zookeeper is not None:
        raise click.UsageError("--to-brokers contradicts --to-zookeeper")
    found = find_topic_sites(source, brokers, zookeeper, connect_timeout)
    are_records = found[0].is_of_records
    times = times or ("records" if are_records else "segments")
    if times == ("segments" if are_records else "records"):
        raise click.UsageError(f"--times {times} is for topics of {'Kafka 0.7' if are_records else 'records'}")
    places = [place for site in found for place in site.places]
    if to_zookeeper is None and to_brokers is None:
        to_zookeeper = zookeeper
    sites = find_all_sites(target, to_brokers or brokers, to_zookeeper, connect_timeout)
    if source == target and {place.address for place in places} & {site.address for site in sites}:
        raise CommandError(
            f"{source!r} cannot be replayed into itself",
            "each message would be in it twice",
            "choose another --output-topic, or other brokers with --to-brokers",
            EXIT_USAGE,
        )
    if are_records:
        sites = record_sites(target, sites, source, found[0], connect_timeout)
    elif compression in ("lz4", "zstd") and not all(site.is_of_records for site in sites if site.places):
        raise click.UsageError(f"--compression {compression} is for topics of records, and {target} is none")
    progress = ConsoleProgress("replayed", shown=not no_progress)
    progress.goal = sum(place.end - place.start for place in places)
    partitions = [place.partition for place in places]
    same = SameTopic(
        source, found, connect_timeout, "what came before was replayed", "replay it again, into a new topic"
    )
    with CopyTarget(
        target, sites, compression, partitions, connect_timeout, max_message_bytes=max_message_bytes
    ) as sink:
        replay = Replay(source, places, sink, progress, messages, connect_timeout, same=same, are_records=are_records)
        try:
            if rate is None and not speed:
                replay.at_once()
            else:
                note(f"times: {f'{rate:g} messages a second' if rate is not None else f'by {times}, {speed:g}x'}")
                replay.paced(speed or 1.0, "rate" if rate is not None else times, rate or 1.0)
        finally:
            sink.close()
            what = "time" if times == "records" else "envelope"
            unknown = f"; {replay.unknown} had no {what}" if replay.unknown else ""
            progress.summary(f"{unknown}; {sink.outcome}", replay.as_object(target) if as_json else None)
    if sink.failed:
        raise CommandError(
            f"{counted(sink.failed, 'message', 'is')} not known to be in {target!r}",
            str(sink.error).replace("\n", "; "),
            "see the broker's log; replay into a new topic",
            EXIT_FAILED,
        )
    if sink.losses.first:
        raise CommandError(
            f"messages for {target!r} may be lost: a connection broke, and nothing was to be acknowledged",
            sink.losses.first.replace("\n", "; "),
            "see what was stored with fastlog consume; replay into a new topic",
            EXIT_FAILED,
        )
    return 0
