"""``producer-perf``: how fast messages go into a topic, counted until the broker shows every byte."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fastlog import __version__
from fastlog.errors import ConfigError
from fastlog.tools import options, perf_output
from fastlog.tools.progress import ConsoleProgress
from fastlog.tools.report import EXIT_DONE, run

if TYPE_CHECKING:
    from fastlog.perf.producing import ProducerFigures, ProducerOptions, ReportInterval, SendingProgress

CODECS = {"0": 0, "1": 1, "2": 2, "none": 0, "gzip": 1, "snappy": 2}
_WINDOW_SECONDS = 5.0


@click.command(
    cls=options.Command,
    name="producer-perf",
    examples=(
        "producer-perf --topic t --messages 1000000 --message-size 200 --batch-size 50",
        "producer-perf --topic t --messages 100000 --rate 10000 --acks flushed --json",
    ),
)
@options.connect_timeout_option
@options.brokers_option("The brokers; each gets messages. Also FASTLOG_BROKERS.")
@options.zookeeper_option("The brokers that are registered there, instead of --brokers; each gets messages.")
@options.option(
    "--brokerinfo",
    group="Connection",
    metavar="NAME=LIST",
    help="0.7's way to say either: broker.list=0:host:port,1:host:port or zk.connect=host:port/path.",
)
@options.topic_option
@options.option("--messages", group="Selection", type=click.IntRange(1), required=True, metavar="N", help="How many.")
@options.option(
    "--message-size",
    group="Selection",
    type=options.Size(0, 2**31 - 1),
    default="100",
    show_default=True,
    metavar="SIZE",
    help="Bytes of each payload, which is random.",
)
@options.option("--vary-message-size", group="Selection", is_flag=True, help="Sizes from 1 to --message-size.")
@options.option(
    "--payload-file",
    group="Selection",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Send the lines of a file, over and over.",
)
@options.option(
    "--seed", group="Selection", type=int, default=1, show_default=True, metavar="N", help="Of the random payloads."
)
@options.option(
    "--batch-size",
    group="Selection",
    type=click.IntRange(1, 2**31 - 1),
    default=200,
    show_default=True,
    metavar="N",
    help="Messages in a request.",
)
@options.option(
    "--threads",
    group="Selection",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    metavar="N",
    help="Sending threads, each with a connection (0.7's default is 10).",
)
@options.option(
    "--partition",
    group="Selection",
    type=click.IntRange(0, 2**31 - 1),
    metavar="N",
    help="Default: the broker chooses one for each request.",
)
@options.option(
    "--acks",
    group="Selection",
    type=click.Choice(["none", "appended", "flushed"]),
    default="none",
    show_default=True,
    help="What the broker confirms.",
)
@options.option(
    "--compression-codec",
    group="Selection",
    type=click.Choice(list(CODECS)),
    default="0",
    show_default=True,
    help="0 is none, 1 gzip, 2 snappy.",
)
@options.option(
    "--how",
    group="Selection",
    type=click.Choice(["send", "list", "sync"]),
    default="send",
    show_default=True,
    help="send() for each message, or for each list of --batch-size; sync: waiting for each list.",
)
@options.option("--async", "asynchronous", group="Selection", is_flag=True, help="0.7's name of --how send.")
@options.option(
    "--warm-up",
    group="Selection",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Messages sent to the topic before the clock starts.",
)
@options.option(
    "--rate",
    group="Limits",
    type=click.FloatRange(0, min_open=True),
    metavar="R",
    help="Messages a second; latencies count from the intended send time.",
)
@options.option("--latency", group="Limits", is_flag=True, help="Measure latencies without --rate, too.")
@options.option(
    "--queue-time",
    group="Limits",
    type=options.Duration(),
    default="5s",
    show_default=True,
    metavar="TIME",
    help="How long a message waits for its batch to fill.",
)
@options.option(
    "--timeout",
    group="Limits",
    type=options.Duration(),
    default="30s",
    show_default=True,
    metavar="TIME",
    help="How long nothing may move before it counts as failed.",
)
@perf_output.output_options
@click.version_option(__version__, prog_name="producer-perf")
def producer_perf_command(
    zookeeper: str | None, brokerinfo: str | None, format_name: str, as_json: bool, style: str | None, **given: Any
) -> int:
    """Send N messages and print the rate.

    The clock stops when the broker's log end (with --acks flushed its high
    watermark) shows every byte, not when send() returned; both are printed.
    """
    shown = perf_output.chosen_format(format_name, as_json, style)
    from fastlog.perf import columns
    from fastlog.perf.producing import ProducerOptions, ProducerRun

    try:
        date = columns.date_formatter(given["date_format"])
        brokers, zk_connect = _where(given["brokers"], zookeeper, brokerinfo)
        chosen = perf_output.chosen_options(
            ProducerOptions,
            given,
            brokers=brokers,
            zk_connect=zk_connect,
            compression_codec=CODECS[given["compression_codec"]],
            how=_how(given["how"], given["asynchronous"]),
            latency=given["latency"] or shown == "kafka",
            queue_time_ms=int(given["queue_time"] * 1000),
        )
    except ConfigError as error:
        raise perf_output.usage(error) from error
    printer = perf_output.RowPrinter(shown)
    surroundings = perf_output.surroundings()
    detailed = shown == "csv" and chosen.reporting_interval is not None
    if shown == "csv" and not given["hide_header"]:
        printer.row(columns.PRODUCER_DETAILED_HEADER if detailed else columns.PRODUCER_HEADER)
    progress = ConsoleProgress("sent", shown=not given["no_progress"] and not (detailed or shown == "kafka"))

    def tell(interval: ReportInterval) -> None:
        printer.row(columns.producer_detailed_row(interval, chosen, date))

    measurement = ProducerRun(
        chosen,
        on_interval=tell if detailed else None,
        on_progress=_Windows(printer) if shown == "kafka" else _shown_by(progress),
    )
    _, failure = perf_output.attempt(measurement.run)
    progress.end_line()
    figures = measurement.figures()
    if perf_output.is_nothing(failure, figures):
        raise failure
    if shown == "json":
        printer.object(as_object(figures, surroundings, failure))
    elif shown == "kafka":
        printer.row(columns.kafka_total(figures))
    elif shown == "csv" and not detailed:
        printer.row(columns.producer_row(figures, date))
    printer.summary([*columns.producer_summary(figures), *perf_output.surroundings_words(surroundings)])
    if failure is not None:
        raise failure
    return EXIT_DONE


def _where(brokers: str, zookeeper: str | None, brokerinfo: str | None) -> tuple[str, str]:
    """The brokers, or the ZooKeeper that they are in."""
    context = click.get_current_context()
    by_hand = context.get_parameter_source("brokers") is click.core.ParameterSource.COMMANDLINE
    if by_hand + (zookeeper is not None) + (brokerinfo is not None) > 1:
        raise click.UsageError("--brokers, --zookeeper and --brokerinfo all name brokers: give one of them")
    name, _, value = ("broker.list", "", brokers) if brokerinfo is None else brokerinfo.partition("=")
    if zookeeper is not None:
        name, value = "zk.connect", zookeeper
    if name not in ("broker.list", "zk.connect") or not value.strip():
        raise ConfigError(f"--brokerinfo {brokerinfo}: write broker.list=id:host:port,… or zk.connect=host:port/path")
    return (value, "") if name == "broker.list" else ("", value)


def _how(how: str, asynchronous: bool) -> str:
    context = click.get_current_context()
    if asynchronous and how != "send" and context.get_parameter_source("how") is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError(f"--async sends message by message: it contradicts --how {how}")
    return "send" if asynchronous else how


def _shown_by(progress: ConsoleProgress) -> Any:
    def show(found: SendingProgress) -> None:
        progress.add(found.messages - progress.count, found.payload_bytes - progress.size)

    return show


class _Windows:
    """Kafka's line for every five seconds."""

    def __init__(self, printer: perf_output.RowPrinter) -> None:
        self._printer = printer
        self._last = (0.0, 0, 0, 0, 0)

    def __call__(self, found: SendingProgress) -> None:
        then, messages, payload_bytes, count, total_ns = self._last
        if found.seconds - then < _WINDOW_SECONDS:
            return
        from fastlog.perf import columns

        now_count = sum(one.count for one in found.latencies)
        now_ns = sum(one.total_ns for one in found.latencies)
        largest = max((one.window_max_ns for one in found.latencies), default=0)
        for one in found.latencies:
            one.window_max_ns = 0
        mean_ms = (now_ns - total_ns) / max(1, now_count - count) / 1e6
        self._printer.row(
            columns.kafka_window(
                found.messages - messages,
                found.payload_bytes - payload_bytes,
                found.seconds - then,
                mean_ms,
                largest / 1e6,
            )
        )
        self._last = (found.seconds, found.messages, found.payload_bytes, now_count, now_ns)


def as_object(
    figures: ProducerFigures, surroundings: dict[str, Any], failure: BaseException | None = None
) -> dict[str, Any]:
    """What ``--json`` prints. Rates are over ``seconds``; ``mb_per_second`` counts 1,048,576 payload bytes as one."""
    from fastlog.perf.columns import latency_meaning
    from fastlog.perf.producing import CLOCKS

    options = figures.options
    return {
        "messages": figures.messages,
        "payload_bytes": figures.payload_bytes,
        "seconds": round(figures.seconds, 6),
        "sent_seconds": _rounded(figures.sent_seconds),
        "delivered_seconds": _rounded(figures.delivered_seconds),
        "messages_per_second": round(figures.messages_per_second, 3),
        "mb_per_second": round(figures.mb_per_second, 6),
        "complete": figures.complete,
        "error": perf_output.error_text(failure),
        "started": perf_output.started_text(figures.started_ms),
        "clock": CLOCKS[figures.clock],
        "log_bytes": figures.log_bytes,
        "expected_bytes": figures.expected_bytes,
        "missing_bytes": None if figures.complete or figures.log_bytes is None else figures.missing_bytes,
        "possible_duplicates": figures.possible_duplicates,
        "connections": figures.connections,
        "latency_ms": figures.latencies.as_dict() if figures.latencies is not None else None,
        "latency_meaning": latency_meaning(options) if figures.latencies is not None else None,
        "timeline": figures.timeline,
        "notes": figures.notes,
        "settings": settings_of(options),
        **surroundings,
    }


def settings_of(options: ProducerOptions) -> dict[str, Any]:
    """Every option of the run, by its name on the command line, as JSON can have it."""
    return {
        "brokers": options.brokers or None,
        "zk_connect": options.zk_connect or None,
        "topic": options.topic,
        "partition": options.partition,
        "messages": options.messages,
        "message_size": options.message_size,
        "vary_message_size": options.vary_message_size,
        "payload_file": None if options.payload_file is None else str(options.payload_file),
        "seed": options.seed,
        "batch_size": options.batch_size,
        "threads": options.threads,
        "acks": options.acks,
        "compression_codec": options.compression_codec,
        "how": options.how,
        "rate": options.rate,
        "latency": options.latency or options.rate is not None,
        "warm_up": options.warm_up,
        "queue_time_ms": options.queue_time_ms,
        "timeout": options.timeout,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def main() -> None:
    """The console script ``producer-perf``."""
    run(producer_perf_command, "producer-perf")


if __name__ == "__main__":
    main()
