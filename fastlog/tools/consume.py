"""``fastlog consume``: messages of a topic on stdout, one a line."""

from __future__ import annotations

import sys
import time

import click

from fastlog.tools import options, signals
from fastlog.tools.report import EXIT_DONE, EXIT_NOTHING_CAME

_LOCAL_WAYS = ("auto", "read", "map", "off")
_FORMS = ("text", "json", "offsets", "checksum")
_WORDS = {"beginning": "beginning", "earliest": "beginning", "end": "end", "latest": "end"}


class OffsetChoice(click.ParamType):  # type: ignore[type-arg]
    """``beginning``, ``end``, a number, or a negative one: so many messages before the end."""

    name = "offset"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        """The word, or the number."""
        text = str(value)
        if text in _WORDS:
            return _WORDS[text]
        digits = text.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) < 20 and int(digits) < 2**63 and text != "-0":
            return int(text)
        self.fail(f"{text!r} is neither beginning, end, an offset nor -N for the last N messages", param, ctx)


@click.command(
    cls=options.Command,
    name="consume",
    examples=(
        "fastlog consume --brokers localhost:9092 --topic logs --exit-at-end",
        "fastlog consume --topic logs --offset=-10 --json | jq .payload",
    ),
)
@options.connection_options
@options.option(
    "--local",
    group="Connection",
    type=click.Choice(_LOCAL_WAYS),
    default="auto",
    show_default=True,
    help="Read the segment files themselves where the broker is on this machine and lets them be read; off: never.",
)
@options.topic_option
@options.option(
    "--partition",
    group="Selection",
    type=click.IntRange(0, 2**31 - 1),
    help="One partition. Default: all of them, or 0 when the broker cannot list them.",
)
@options.option(
    "--offset",
    group="Selection",
    type=OffsetChoice(),
    default="beginning",
    show_default=True,
    metavar="beginning|end|N|-N",
    help="Where to begin (also: earliest, latest). N is the start of a message in --partition. -N is the last N"
    " messages of each partition, or all where there are fewer; those in compressed sets count one by one.",
)
@options.option(
    "--format",
    "form",
    group="Format",
    type=click.Choice(_FORMS),
    default="text",
    show_default=True,
    help="text: the payload. json: an object a line. offsets: partition, offset and payload, between tabs."
    " checksum: the CRC-32 of the payload.",
)
@options.option("--json", "as_json", group="Format", is_flag=True, help="The same as --format json.")
@options.option("--no-progress", group="Format", is_flag=True, help="Print nothing before the summary.")
@options.option(
    "--max-messages", group="Limits", type=click.IntRange(1), metavar="N", help="Stop after so many messages."
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
    "--fetch-bytes",
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
def consume_command(
    brokers: str,
    connect_timeout: float,
    local: str,
    topic: str,
    partition: int | None,
    offset: str | int,
    form: str,
    as_json: bool,
    no_progress: bool,
    max_messages: int | None,
    exit_at_end: bool,
    timeout: float | None,
    fetch_bytes: int,
    max_message_bytes: int | None,
) -> int:
    """Print each message's bytes and a newline, partition by partition as they come.

    With --json each line has topic, partition, offset, next_offset, payload, and base64, which is true when the
    payload is not UTF-8 and therefore encoded. Messages of one compressed set share the set's offset. A message of
    Kafka 0.7 has no key.
    """
    if as_json and form not in ("text", "json"):
        raise click.UsageError(f"--json contradicts --format {form}")
    from fastlog.tools.printing import FORMS, Printer
    from fastlog.tools.progress import Progress
    from fastlog.tools.reading import Reading
    from fastlog.tools.starting import Start

    started = time.monotonic()
    start = Start(
        options.broker_at(brokers, connect_timeout),
        topic,
        partition,
        offset,
        exit_at_end,
        {"fetch_bytes": fetch_bytes, "local": local, "max_message_bytes": max_message_bytes},
    )
    progress = Progress("consumed", shown=not no_progress and not sys.stdout.isatty())
    progress.started = started
    printer = Printer(topic, FORMS["json" if as_json else form], max_messages, progress)
    reading = Reading(start, printer, progress, fetch_bytes, timeout)
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
    return EXIT_NOTHING_CAME if reading.timed_out and not progress.count else EXIT_DONE
