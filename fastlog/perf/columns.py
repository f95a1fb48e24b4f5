"""Figures as text: the CSV of Kafka 0.7's tools to the byte, the lines of Kafka 4's, and a few for people.

0.7's tools are written in Scala and format with Java: dates by patterns of ``SimpleDateFormat``, numbers by rounding
the shortest decimal form half up, where Python rounds the exact binary value half to even.

Source: Kafka 0.7.2, ``kafka.perf``; Apache Kafka 4, ``ProducerPerformance`` and ``ConsumerPerformance``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import datetime
from decimal import ROUND_HALF_UP, Context, Decimal

from fastlog.errors import ConfigError
from fastlog.perf.consuming import MODES, ConsumerFigures
from fastlog.perf.figures import MEGABYTE
from fastlog.perf.latencies import PERCENTILES, LatencyHistogram
from fastlog.perf.producer_options import CLOCKS, ProducerFigures, ProducerOptions
from fastlog.perf.sending import ReportInterval

DATE_FORMAT = "yyyy-MM-dd HH:mm:ss:SSS"

PRODUCER_HEADER = (
    "start.time, end.time, compression, message.size, batch.size, total.data.sent.in.MB, MB.sec, "
    "total.data.sent.in.nMsg, nMsg.sec"
)
PRODUCER_DETAILED_HEADER = (
    "time, compression, thread.id, message.size, batch.size, total.data.sent.in.MB, MB.sec, "
    "total.data.sent.in.nMsg, nMsg.sec"
)
CONSUMER_HEADER = "start.time, end.time, fetch.size, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec"
CONSUMER_DETAILED_HEADER = "time, fetch.size, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec"
_KAFKA_COLUMNS = "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
KAFKA_CONSUMER_HEADER = (
    f"start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, {_KAFKA_COLUMNS}"
)
KAFKA_CONSUMER_DETAILED_HEADER = (
    f"time, threadId, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, {_KAFKA_COLUMNS}"
)

HOW_WORDS = {
    "send": "one send() for each message",
    "list": "a list of them in each send()",
    "sync": "a list of them in each send(), which waits for it",
}
CODEC_WORDS = {0: "none", 1: "gzip", 2: "snappy"}
_DELIVERED_WORDS = {
    "none": "handed to the kernel",
    "appended": "acknowledged as appended",
    "flushed": "acknowledged as flushed",
}

# -- as Java writes it -------------------------------------------------------------------------------------------------

_CONTEXT = Context(prec=400, rounding=ROUND_HALF_UP)
_DATE_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+")


def decimal(value: float, digits: int) -> str:
    """What Java's ``%.<digits>f`` prints."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return f"{Decimal(repr(value)).quantize(Decimal(1).scaleb(-digits), context=_CONTEXT):f}"


def _number(value: Callable[[datetime], int]) -> Callable[[datetime, int], str]:
    return lambda moment, width: str(value(moment)).zfill(width)


def _name(short: str, long: str) -> Callable[[datetime, int], str]:
    return lambda moment, width: moment.strftime(long if width >= 4 else short)


def _zone(moment: datetime, width: int) -> str:
    found = moment.strftime("%z")
    if found == "+0000":
        return "Z"
    return found[:3] if width == 1 else found if width == 2 else f"{found[:3]}:{found[3:]}"


_FIELDS: dict[str, Callable[[datetime, int], str]] = {
    "y": lambda moment, width: f"{moment.year % 100:02}" if width == 2 else str(moment.year).zfill(width),
    "M": lambda moment, width: str(moment.month).zfill(width) if width < 3 else _name("%b", "%B")(moment, width),
    "d": _number(lambda moment: moment.day),
    "D": _number(lambda moment: moment.timetuple().tm_yday),
    "H": _number(lambda moment: moment.hour),
    "k": _number(lambda moment: moment.hour or 24),
    "K": _number(lambda moment: moment.hour % 12),
    "h": _number(lambda moment: moment.hour % 12 or 12),
    "m": _number(lambda moment: moment.minute),
    "s": _number(lambda moment: moment.second),
    "S": _number(lambda moment: moment.microsecond // 1000),
    "u": _number(lambda moment: moment.isoweekday()),
    "E": _name("%a", "%A"),
    "a": lambda moment, width: "AM" if moment.hour < 12 else "PM",
    "G": lambda moment, width: "AD",
    "z": lambda moment, width: moment.strftime("%Z"),
    "Z": lambda moment, width: moment.strftime("%z"),
    "X": _zone,
}


def date_formatter(pattern: str) -> Callable[[int], str]:
    """A function from milliseconds since 1970 to what ``SimpleDateFormat`` prints for them, in local time.

    Raises:
        ConfigError: the pattern has a letter that is not known here, or a quote without an end.
    """
    pieces: list[str | tuple[Callable[[datetime, int], str], int]] = []
    at = 0
    while at < len(pattern):
        found = _DATE_TOKEN.match(pattern, at)
        if found is None:
            raise ConfigError(f"date format {pattern!r}: the quote at {at} has no end")
        at = found.end()
        if found[2] is None:
            quoted = found[1]
            pieces.append(found[0] if quoted is None else quoted.replace("''", "'") or "'")
        elif found[2] in _FIELDS:
            pieces.append((_FIELDS[found[2]], len(found[0])))
        else:
            raise ConfigError(f"date format {pattern!r}: {found[2]!r} is none of {''.join(sorted(_FIELDS))}")

    def formatted(milliseconds: int) -> str:
        seconds, rest = divmod(milliseconds, 1000)
        moment = datetime.fromtimestamp(seconds).astimezone().replace(microsecond=rest * 1000)
        return "".join(piece if isinstance(piece, str) else piece[0](moment, piece[1]) for piece in pieces)

    return formatted


def _rate(amount: float, seconds: float) -> float:
    """As floating-point numbers divide in Java."""
    if seconds == 0:
        return math.inf if amount else math.nan
    return amount / seconds


# -- Kafka 0.7 ---------------------------------------------------------------------------------------------------------


def producer_row(figures: ProducerFigures, date: Callable[[int], str]) -> str:
    """The row of the whole run; 0.7 computes its rates from times in whole milliseconds."""
    options = figures.options
    seconds = (figures.ended_ms - figures.started_ms) / 1000
    megabytes = figures.payload_bytes / MEGABYTE
    return ", ".join(
        (
            date(figures.started_ms),
            date(figures.ended_ms),
            str(options.compression_codec),
            str(options.message_size),
            str(options.batch_size),
            decimal(megabytes, 2),
            decimal(_rate(megabytes, seconds), 4),
            str(figures.messages),
            decimal(_rate(figures.messages, seconds), 4),
        )
    )


def producer_detailed_row(interval: ReportInterval, options: ProducerOptions, date: Callable[[int], str]) -> str:
    """The row of one thread's reporting interval."""
    return ", ".join(
        (
            date(int(interval.time * 1000)),
            str(options.compression_codec),
            str(interval.thread),
            str(options.message_size),
            str(options.batch_size),
            decimal(interval.all_payload_bytes / MEGABYTE, 2),
            decimal(_rate(interval.payload_bytes / MEGABYTE, interval.seconds), 4),
            str(interval.all_messages),
            decimal(_rate(interval.messages, interval.seconds), 4),
        )
    )


def _consumed(figures: ConsumerFigures) -> tuple[float, float]:
    """Megabytes and seconds; the wait in vain is subtracted, as 0.7 does with its ``consumer.timeout.ms``."""
    elapsed_ms = figures.ended_ms - figures.started_ms - round(figures.idle_seconds * 1000)
    return figures.payload_bytes / MEGABYTE, max(0, elapsed_ms) / 1000


def consumer_row(figures: ConsumerFigures, date: Callable[[int], str]) -> str:
    """The row of CSV for the whole run."""
    megabytes, seconds = _consumed(figures)
    return ", ".join(
        (
            date(figures.started_ms),
            date(figures.ended_ms),
            str(figures.options.fetch_bytes),
            decimal(megabytes, 4),
            decimal(_rate(megabytes, seconds), 4),
            str(figures.messages),
            decimal(_rate(figures.messages, seconds), 4),
        )
    )


def consumer_detailed_row(
    interval: ReportInterval, fetch_bytes: int, date: Callable[[int], str], *, with_thread: bool
) -> str:
    """The row of one thread's reporting interval.

    0.7's ConsumerPerformance prints the thread behind the time although its header has no such column; its
    SimpleConsumerPerformance (``--server``) prints none.
    """
    return ", ".join(
        (
            date(int(interval.time * 1000)),
            *((str(interval.thread),) if with_thread else ()),
            str(fetch_bytes),
            decimal(interval.all_payload_bytes / MEGABYTE, 4),
            decimal(_rate(interval.payload_bytes / MEGABYTE, interval.seconds), 4),
            str(interval.all_messages),
            decimal(_rate(interval.messages, interval.seconds), 4),
        )
    )


# -- Kafka 4 -----------------------------------------------------------------------------------------------------------


def kafka_window(messages: int, payload_bytes: int, seconds: float, mean_ms: float, max_ms: float) -> str:
    """The line that Kafka's producer tool prints every five seconds."""
    return (
        f"{messages} records sent, {decimal(_rate(messages, seconds), 1)} records/sec "
        f"({decimal(_rate(payload_bytes / MEGABYTE, seconds), 2)} MB/sec), {decimal(mean_ms, 1)} ms avg latency, "
        f"{decimal(max_ms, 1)} ms max latency."
    )


def kafka_total(figures: ProducerFigures) -> str:
    """The last line, in the form of today's Kafka."""
    latencies = figures.latencies or LatencyHistogram()
    shown = ", ".join(f"{int(latencies.percentile_ms(percent))} ms {percent:g}th" for percent in PERCENTILES)
    return (
        f"{figures.messages} records sent, {decimal(figures.messages_per_second, 6)} records/sec "
        f"({decimal(figures.mb_per_second, 2)} MB/sec), {decimal(latencies.mean_ms, 2)} ms avg latency, "
        f"{decimal(latencies.max_ns / 1e6, 2)} ms max latency, {shown}."
    )


def kafka_consumer_row(figures: ConsumerFigures, date: Callable[[int], str]) -> str:
    """The row of Kafka's consumer tool. Without a group rebalancing took no time, and all of it was fetching."""
    megabytes, seconds = _consumed(figures)
    fetching = max(0.0, seconds - figures.join_seconds)
    rates = f"{decimal(_rate(megabytes, fetching), 4)}, {decimal(_rate(figures.messages, fetching), 4)}"
    return (
        f"{date(figures.started_ms)}, {date(figures.ended_ms)}, {decimal(megabytes, 4)}, "
        f"{decimal(_rate(megabytes, seconds), 4)}, {figures.messages}, "
        f"{decimal(_rate(figures.messages, seconds), 4)}, {round(figures.join_seconds * 1000)}, "
        f"{round(fetching * 1000)}, {rates}"
    )


def kafka_consumer_detailed_row(interval: ReportInterval, date: Callable[[int], str]) -> str:
    """The row of one thread's reporting interval, as Kafka's consumer tool prints it."""
    mb_rate = decimal(_rate(interval.payload_bytes / MEGABYTE, interval.seconds), 4)
    rate = decimal(_rate(interval.messages, interval.seconds), 4)
    return (
        f"{date(int(interval.time * 1000))}, {interval.thread}, {decimal(interval.all_payload_bytes / MEGABYTE, 4)}, "
        f"{mb_rate}, {interval.all_messages}, {rate}, 0, {round(interval.seconds * 1000)}, {mb_rate}, {rate}"
    )


# -- for people --------------------------------------------------------------------------------------------------------


def producer_summary(figures: ProducerFigures) -> list[str]:
    """What a person wants to know, a line each."""
    options = figures.options
    is_known = figures.complete or options.acks != "none"  # complete: the log itself shows every byte
    lines = [_headline("produced" if is_known else "sent, not acknowledged:", figures)]
    parts = []
    if figures.sent_seconds is not None:
        parts.append(f"the last send() returned after {figures.sent_seconds:.3f} s")
    if figures.delivered_seconds is not None:
        parts.append(f"everything was {_DELIVERED_WORDS[options.acks]} after {figures.delivered_seconds:.3f} s")
    if figures.complete:
        parts.append(f"{CLOCKS[figures.clock]} after {figures.seconds:.3f} s")
    lines += [f"  {'; '.join(parts)}"] if parts else []
    if not figures.complete:
        lines.append(f"  stopped early: the log grew by {_or_unknown(figures.log_bytes)} bytes meanwhile")
    if figures.latencies is not None:
        lines.append(f"  latency {latency_meaning(options)}: {_latency_words(figures.latencies)}")
    size = f"lines of {options.payload_file}" if options.payload_file else f"{options.message_size} bytes"
    size = f"1 to {size}" if options.vary_message_size and not options.payload_file else size
    rate = f", {options.rate:g} messages a second" if options.rate else ""
    lines.append(
        f"  messages of {size}, batches of {options.batch_size} ({how_words(options)}), "
        f"{_threads(options.threads)}, acks {options.acks}, codec {CODEC_WORDS[options.compression_codec]}{rate}, "
        f"warm-up {options.warm_up or 'none'}"
    )
    if figures.possible_duplicates:
        lines.append(f"  possible duplicates: {figures.possible_duplicates}")
    return [*lines, *(f"  note: {note}" for note in figures.notes)]


def consumer_summary(figures: ConsumerFigures) -> list[str]:
    """What a person wants to know, a line each."""
    options = figures.options
    lines = [_headline("consumed", figures)]
    lines.append(
        f"  {MODES[options.mode]} ({figures.source}), checksums checked, fetches of {options.fetch_bytes} bytes, "
        f"{len(figures.partitions)} partitions, {_threads(figures.threads)}, warm-up none"
    )
    if options.zk_connect:
        lines.append(f"  in a group, joined after {figures.join_seconds:.3f} s, which count")
    if figures.idle_seconds >= 0.1:
        lines.append(f"  {figures.idle_seconds:.3f} s of waiting for more are left out")
    return [*lines, *(f"  note: {note}" for note in figures.notes)]


def how_words(options: ProducerOptions) -> str:
    """What a call of ``send`` takes. To measure latencies, calls take what is due together, or a whole batch."""
    if options.how != "sync" and options.rate:
        return "each send() takes what is due"
    return HOW_WORDS["list" if options.how == "send" and options.latency else options.how]


def latency_meaning(options: ProducerOptions) -> str:
    """From when to when a latency counts."""
    begin = "from the intended send time" if options.rate else "from the call of send()"
    return f"{begin} until {_DELIVERED_WORDS[options.acks]}"


def _headline(verb: str, figures: ProducerFigures | ConsumerFigures) -> str:
    return (
        f"{verb} {figures.messages:,} messages ({figures.payload_bytes:,} payload bytes) in {figures.seconds:.3f} s: "
        f"{figures.messages_per_second:,.0f} msg/s, {figures.mb_per_second:,.2f} MB/s of {MEGABYTE:,} bytes"
    )


def _latency_words(latencies: LatencyHistogram) -> str:
    shown = ", ".join(f"{percent:g} % {latencies.percentile_ms(percent):.3f} ms" for percent in PERCENTILES)
    return f"{shown}, max {latencies.max_ns / 1e6:.3f} ms ({latencies.count:,} messages)"


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count != 1 else ''}"


def _or_unknown(value: int | None) -> str:
    return "an unknown number of" if value is None else f"{value:,}"
