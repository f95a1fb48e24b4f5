"""``consumer-perf``: how fast messages come out of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fastlog import __version__
from fastlog.counts import counted
from fastlog.errors import ConfigError
from fastlog.tools import options, perf_output
from fastlog.tools.progress import ConsoleProgress
from fastlog.tools.report import EXIT_DONE, EXIT_FAILED, EXIT_NOTHING_CAME, CommandError, run

if TYPE_CHECKING:
    from fastlog.perf.consuming import ConsumerFigures
    from fastlog.perf.sending import ReportInterval

MODES = ("messages", "batches", "numpy", "arrow", "local", "map")


@click.command(
    cls=options.Command,
    name="consumer-perf",
    examples=(
        "consumer-perf --brokers localhost:9092 --topic t --messages 1000000",
        "consumer-perf --topic t --messages 1000000 --mode numpy --json",
    ),
)
@options.connection_options
@options.option(
    "--server",
    group="Connection",
    metavar="kafka://H:P",
    help="0.7's way to name the broker, instead of --brokers; partition 0 then, unless given.",
)
@options.option(
    "--socket-buffer-size",
    group="Connection",
    type=options.Size(1, 2**31 - 1),
    metavar="SIZE",
    help="Receive buffer of the socket. Default: the system's (0.7: 2 MiB).",
)
@options.zookeeper_option("Instead of --brokers: read as a group does, from all brokers that are registered there.")
@options.option(
    "--group",
    group="Connection",
    metavar="NAME",
    help="With --zookeeper: the group. It goes on where it has committed, and commits. Default: one of its own, which"
    " is removed afterwards.",
)
@options.topic_option
@options.option(
    "--messages",
    group="Selection",
    type=click.IntRange(1),
    metavar="N",
    help="How many, all partitions together. Default: to the end of the log.",
)
@options.option(
    "--partition", group="Selection", type=click.IntRange(0, 2**31 - 1), metavar="N", help="Default: all partitions."
)
@options.option("--from-latest", group="Selection", is_flag=True, help="Only what comes from now on.")
@options.option(
    "--fetch-size",
    group="Selection",
    type=options.Size(1, 2**30),
    default="1048576",
    show_default=True,
    metavar="SIZE",
    help="Bytes asked for in a request.",
)
@options.option(
    "--mode",
    group="Selection",
    type=click.Choice(MODES),
    default="messages",
    show_default=True,
    help="Payloads one by one, lists, numpy arrays, Arrow batches, or arrays from the files themselves.",
)
@options.option(
    "--threads",
    group="Selection",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Default: one for each partition, at most 10; with --zookeeper 1 (0.7: 10).",
)
@options.option(
    "--timeout",
    group="Limits",
    type=options.Duration(),
    default="5s",
    show_default=True,
    metavar="TIME",
    help="Wait for missing messages at the end of the log; not counted.",
)
@perf_output.output_options
@click.version_option(__version__, prog_name="consumer-perf")
def consumer_perf_command(
    server: str | None,
    zookeeper: str | None,
    group: str | None,
    format_name: str,
    as_json: bool,
    style: str | None,
    **given: Any,
) -> int:
    """Read N messages and print the rate; the checksum of each is checked.

    Ends with exit code 1 when fewer messages came, 4 when none did.
    """
    shown = perf_output.chosen_format(format_name, as_json, style)
    from fastlog.perf import columns
    from fastlog.perf.consuming import ConsumerOptions, consumer_run

    try:
        date = columns.date_formatter(given["date_format"])
        chosen = perf_output.chosen_options(
            ConsumerOptions,
            given,
            brokers=_brokers(given["brokers"], server, zookeeper),
            zk_connect=zookeeper or "",
            group=group,
            partition=0 if server is not None and given["partition"] is None else given["partition"],
            fetch_bytes=given["fetch_size"],
            socket_buffer_bytes=given["socket_buffer_size"],
        )
    except ConfigError as error:
        raise perf_output.usage(error) from error
    if chosen.mode in ("numpy", "arrow", "local", "map"):
        _import_first(chosen.mode)
    printer = perf_output.RowPrinter(shown)
    surroundings = perf_output.surroundings()
    is_kafka = shown == "kafka"
    detailed = shown in ("csv", "kafka") and chosen.reporting_interval is not None
    if shown in ("csv", "kafka") and not given["hide_header"]:
        headers = (
            (columns.KAFKA_CONSUMER_HEADER, columns.KAFKA_CONSUMER_DETAILED_HEADER)
            if is_kafka
            else (columns.CONSUMER_HEADER, columns.CONSUMER_DETAILED_HEADER)
        )
        printer.row(headers[detailed])
    progress = ConsoleProgress("received", shown=not given["no_progress"] and not detailed)

    def tell(interval: ReportInterval) -> None:
        if is_kafka:
            printer.row(columns.kafka_consumer_detailed_row(interval, date))
        else:
            row = columns.consumer_detailed_row(interval, chosen.fetch_bytes, date, with_thread=server is None)
            printer.row(row)

    measurement = consumer_run(
        chosen,
        on_interval=tell if detailed else None,
        on_progress=lambda messages, size: progress.add(messages - progress.count, size - progress.size),
    )
    _, failure = perf_output.attempt(measurement.run)
    progress.end_line()
    figures = measurement.figures()
    if perf_output.is_nothing(failure, figures):
        raise failure
    if failure is None:
        failure = _shortfall(figures)
    if shown == "json":
        printer.object(as_object(figures, surroundings, failure))
    elif not detailed and shown in ("csv", "kafka"):
        printer.row((columns.kafka_consumer_row if is_kafka else columns.consumer_row)(figures, date))
    printer.summary([*columns.consumer_summary(figures), *perf_output.surroundings_words(surroundings)])
    if failure is not None:
        raise failure
    return EXIT_DONE


def _brokers(brokers: str, server: str | None, zookeeper: str | None) -> str:
    context = click.get_current_context()
    by_hand = context.get_parameter_source("brokers") is click.core.ParameterSource.COMMANDLINE
    if by_hand + (server is not None) + (zookeeper is not None) > 1:
        raise click.UsageError("--brokers, --server and --zookeeper all name what is read: give one of them")
    if zookeeper is not None:
        return ""
    return brokers if server is None else server.removeprefix("kafka://").rstrip("/")


def _import_first(mode: str) -> None:
    """What takes long to import is not part of what is measured; what is not installed is said by the run."""
    import contextlib

    with contextlib.suppress(ImportError):
        import numpy  # noqa: F401
    if mode == "arrow":
        with contextlib.suppress(ImportError):
            import pyarrow  # type: ignore[import-untyped]  # noqa: F401


def _shortfall(figures: ConsumerFigures) -> CommandError | None:
    """Fewer messages than wanted is an error, and so is nothing at all."""
    chosen = figures.options
    if figures.complete and figures.messages:
        return None
    where = f"{chosen.topic}{'' if chosen.partition is None else f', partition {chosen.partition}'}"
    if not figures.messages:
        return CommandError(
            f"no message came from {where}",
            f"the topic is empty or does not exist; waited {figures.seconds:.1f} s",
            "see fastlog topics list",
            EXIT_NOTHING_CAME,
        )
    waited = f", and nothing more came for {figures.idle_seconds:.1f} s" if figures.idle_seconds >= 0.1 else ""
    if chosen.messages is None:
        return CommandError(
            f"{counted(figures.messages, 'message')} came from {where}, and there are more",
            f"the broker does not give them{waited}",
            "see the broker's log",
            EXIT_FAILED,
        )
    return CommandError(
        f"only {figures.messages} of {counted(chosen.messages, 'message')} came from {where}",
        f"the end of the log was reached{waited}",
        "ask for fewer with --messages, or wait longer with --timeout",
        EXIT_FAILED,
    )


def as_object(
    figures: ConsumerFigures, surroundings: dict[str, Any], failure: BaseException | None = None
) -> dict[str, Any]:
    """What ``--json`` prints. Rates are over ``seconds``; ``mb_per_second`` counts 1,048,576 payload bytes as one."""
    chosen = figures.options
    return {
        "messages": figures.messages,
        "payload_bytes": figures.payload_bytes,
        "seconds": round(figures.seconds, 6),
        "idle_seconds": round(figures.idle_seconds, 6),
        "join_seconds": round(figures.join_seconds, 6),
        "messages_per_second": round(figures.messages_per_second, 3),
        "mb_per_second": round(figures.mb_per_second, 6),
        "complete": figures.complete,
        "error": perf_output.error_text(failure),
        "started": perf_output.started_text(figures.started_ms),
        "partitions": figures.partitions,
        "source": figures.source,
        "timeline": figures.timeline,
        "notes": figures.notes,
        "settings": {
            "brokers": chosen.brokers or None,
            "zk_connect": chosen.zk_connect or None,
            "group": chosen.group,
            "topic": chosen.topic,
            "partition": chosen.partition,
            "messages": chosen.messages,
            "fetch_size": chosen.fetch_bytes,
            "mode": chosen.mode,
            "from_latest": chosen.from_latest,
            "threads": figures.threads,
            "socket_buffer_size": chosen.socket_buffer_bytes,
            "timeout": chosen.timeout,
        },
        **surroundings,
    }


def main() -> None:
    """The console script ``consumer-perf``."""
    run(consumer_perf_command, "consumer-perf")


if __name__ == "__main__":
    main()
