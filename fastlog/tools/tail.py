"""``fastlog tail``: what comes to the end of topics, as ``tail -f`` shows what comes to the end of files."""

from __future__ import annotations

import click

from fastlog.tools import groups_access, options, signals


@click.command(
    cls=options.Command,
    name="tail",
    examples=(
        "fastlog tail logs --brokers localhost:9092",
        "fastlog tail logs views --zookeeper localhost:2181 -n 5 --json",
    ),
)
@groups_access.brokers_options
@click.argument("topics", nargs=-1, required=True, shell_complete=options.complete_topics)
@options.option(
    "-n",
    "--last",
    "last",
    group="Selection",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    metavar="N",
    help="Begin with the last N messages of each partition.",
)
@options.option(
    "--format",
    "form",
    group="Format",
    type=click.Choice(("text", "json", "offsets")),
    default="text",
    show_default=True,
    help="text: the payload. json: an object a line. offsets: topic, broker-partition, offset, payload, between tabs.",
)
@options.option("--json", "as_json", group="Format", is_flag=True, help="The same as --format json.")
@options.option(
    "-Z",
    "--null",
    "shows_nulls",
    group="Format",
    is_flag=True,
    help="Print NULL, not nothing, for a value that is null; JSON has null anyway.",
)
@options.framing_options(
    "What is behind each payload. Default: a newline.",
    "Before each payload its length, as of consume --length-prefixed. Without headers.",
)
@options.option(
    "--no-headers", group="Format", is_flag=True, help="No ==> TOPIC <== between messages of several topics."
)
@options.option("--max-messages", group="Limits", type=click.IntRange(1), metavar="N", help="Stop after N messages.")
def tail_command(
    brokers: str,
    connect_timeout: float,
    zookeeper: str | None,
    topics: tuple[str, ...],
    last: int,
    form: str,
    as_json: bool,
    shows_nulls: bool,
    delimiter: bytes | None,
    length_prefixed: bool,
    no_headers: bool,
    max_messages: int | None,
) -> None:
    """Print the last messages of TOPICS, then what comes, until a signal.

    All brokers that are named are followed; with --zookeeper all that announce a topic, now or later. One that is
    away is tried again for as long as it takes, and nothing of it is left out or comes twice. Messages of one
    partition come in order. Takes no part in any group and commits nothing.

    Topics of record batches are followed as well, without --zookeeper. With --json a line has key, timestamp and
    headers then, as of fastlog consume.
    """
    if as_json and form == "offsets":
        raise click.UsageError("--json contradicts --format offsets")
    form = "json" if as_json else form
    behind = options.framing(delimiter, length_prefixed, form)
    if shows_nulls and (form == "offsets" or length_prefixed):
        raise click.UsageError("--null is for text: nothing else would say it")
    from fastlog.tools.follow_topics import TopicFollower
    from fastlog.tools.topic_places import find_sites

    names = tuple(dict.fromkeys(topics))
    tail = TopicFollower(
        lambda topic: find_sites(topic, brokers, zookeeper, connect_timeout),
        connect_timeout,
        form,
        headers=len(names) > 1 and form == "text" and not length_prefixed and not no_headers,
        max_messages=max_messages,
        delimiter=behind,
        shows_nulls=shows_nulls,
    )
    for topic in names:
        tail.begin(topic, last)
    with signals.deferred():
        tail.follow(names, later=zookeeper is not None)
