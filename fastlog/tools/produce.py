"""``fastlog produce``: each line of files or stdin is one message."""

from __future__ import annotations

import os

import click

from fastlog import codecs, message
from fastlog.errors import TransportError
from fastlog.tools import options, signals
from fastlog.tools.connection import Broker
from fastlog.tools.lines import LineBatches
from fastlog.tools.progress import Progress
from fastlog.tools.report import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, CommandError, note
from fastlog.tools.senders import AckedSender, PlainSender, Sender
from fastlog.topics import valid_topic
from fastlog.wire import requests

ACKS = {"appended": requests.ACKS_APPENDED, "flushed": requests.ACKS_FLUSHED}
CODECS = {"none": codecs.NONE, "gzip": codecs.GZIP, "snappy": codecs.SNAPPY}
PROMISES = {
    "none": "nothing (a 0.7 produce has no answer)",
    "appended": "appended (survives the broker's processes; a power loss takes what was not flushed)",
    "flushed": "flushed (on the broker's disk)",
}
_DEFAULT_MAX_MESSAGE_BYTES = 1_000_000  # 0.7.2's max.message.size
_DEFAULT_MAX_REQUEST_BYTES = 100 * 2**20  # 0.7.2's max.socket.request.bytes
_REQUEST_OVERHEAD_BYTES = 1024  # more than the fields around a message set, the topic included
_ENTRY_BYTES = 10
_STOP_SECONDS = 5


@click.command(
    cls=options.Command,
    name="produce",
    examples=(
        "fastlog produce --brokers localhost:9092 --topic logs access.log",
        "tail -F app.log | fastlog produce --topic app --acks flushed",
    ),
)
@options.connection_options
@options.topic_option
@options.option(
    "--partition",
    group="Selection",
    type=click.IntRange(0, 2**31 - 1),
    help="The partition; without it the broker picks one for each batch, and order holds within a batch.",
)
@options.option(
    "--compression",
    group="Format",
    type=click.Choice(sorted(CODECS)),
    default="none",
    show_default=True,
    help="Compress each batch.",
)
@options.option(
    "--acks",
    group="Limits",
    type=click.Choice(["none", "appended", "flushed"]),
    help="What to wait for. Default: appended when the broker can answer, else none.",
)
@options.option(
    "--batch-bytes",
    group="Limits",
    type=options.Size(1, 16 * 2**20),
    default="256KiB",
    show_default=True,
    metavar="SIZE",
    help="Bytes of lines in one request, about.",
)
@options.option(
    "--max-message-bytes",
    group="Limits",
    type=options.Size(1, 2**31 - 2**20),
    metavar="SIZE",
    help="Leave longer lines out. Default: the broker's limit, 1000000 when it tells none.",
)
@options.option("--no-progress", group="Format", is_flag=True, help="Print nothing before the summary.")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
def produce_command(
    brokers: str,
    connect_timeout: float,
    topic: str,
    partition: int | None,
    compression: str,
    acks: str | None,
    batch_bytes: int,
    max_message_bytes: int | None,
    no_progress: bool,
    files: tuple[str, ...],
) -> int:
    """Send each line of FILES (or stdin) as one message.

    Prints what was sent, and what the broker promised, on stderr. After a broken connection, acknowledged produce
    sends again what was not acknowledged: no message is lost, and possible duplicates are counted.
    """
    reason = valid_topic(topic)
    if reason is not None:
        raise CommandError(f"{topic!r} is no topic", reason, "choose another name with --topic", EXIT_USAGE)
    broker = Broker(brokers, connect_timeout)
    metadata = broker.metadata_or_none(())
    if acks is None:
        acks = "none" if metadata is None else "appended"
    if acks != "none" and metadata is None:
        raise CommandError(
            f"the broker cannot promise {acks!r}",
            "it speaks plain Kafka 0.7, whose produce has no answer",
            "use --acks none",
            EXIT_USAGE,
        )
    broker_limit = metadata.max_message_bytes if metadata else _DEFAULT_MAX_MESSAGE_BYTES
    limit = min(max_message_bytes or broker_limit, broker_limit) if metadata else max_message_bytes or broker_limit
    request_limit = metadata.max_request_bytes if metadata else _DEFAULT_MAX_REQUEST_BYTES
    target = requests.ANY_PARTITION if partition is None else partition
    sender: Sender = (
        PlainSender(broker, topic, target) if acks == "none" else AckedSender(broker, topic, target, ACKS[acks])
    )
    encoder = SetEncoder(CODECS[compression], limit, request_limit - _REQUEST_OVERHEAD_BYTES)
    return _send_all(sender, encoder, LineBatches(batch_bytes, limit), files or ("-",), acks, not no_progress)


class SetEncoder:
    """Turns payloads into message sets that the broker's limits allow."""

    def __init__(self, codec: int, max_message_bytes: int, max_set_bytes: int) -> None:
        self._codec = codec
        self._max_message_bytes = max_message_bytes
        self._max_set_bytes = max_set_bytes

    def encode(self, payloads: list[bytes]) -> list[tuple[bytes, list[bytes]]]:
        """The sets, in order, each with its payloads: one, unless it would be too large."""
        encoded = message.encode_set(payloads, self._codec)
        # A wrapper is one message to the broker, and so falls under the limit for one.
        fits = len(encoded) <= self._max_set_bytes and (
            self._codec == codecs.NONE or len(encoded) <= self._max_message_bytes + _ENTRY_BYTES
        )
        if fits:
            return [(encoded, payloads)]
        if len(payloads) == 1:
            return [(message.encode_set(payloads), payloads)]  # what does not shrink goes as it is
        middle = len(payloads) // 2
        return self.encode(payloads[:middle]) + self.encode(payloads[middle:])


def _send_all(
    sender: Sender, encoder: SetEncoder, batches: LineBatches, files: tuple[str, ...], acks: str, shown: bool
) -> int:
    progress = Progress("produced", shown=shown)
    trouble: BaseException | None = None
    try:
        with signals.deferred():
            try:
                for name in files:
                    _send_file(name, sender, encoder, batches, progress)
                    if sender.failure is not None:
                        break
            except (CommandError, signals.Interrupted) as reason:
                # What was read before is still waited for: after a signal not for long, and a second one ends that.
                trouble = reason
                if isinstance(reason, signals.Interrupted):
                    signals.interrupt_after(_STOP_SECONDS)
            sender.finish()
    except (TransportError, signals.Interrupted) as reason:
        trouble = trouble or reason
    finally:
        signals.interrupt_after(0)
        sender.close()
        _summarize(sender, batches, progress, acks)
    if trouble is not None:
        raise trouble
    if sender.failure is not None:
        raise CommandError(
            f"the broker refused {sender.failed} messages with error {sender.failure.code}",
            str(sender.failure),
            "see fastlog topics describe, and the broker's log",
        )
    return EXIT_FAILED if batches.too_long else EXIT_DONE


def _send_file(name: str, sender: Sender, encoder: SetEncoder, batches: LineBatches, progress: Progress) -> None:
    shown = "stdin" if name == "-" else name
    fd = -1
    try:
        fd = 0 if name == "-" else os.open(name, os.O_RDONLY)
        for lines in batches.read(fd, shown, sender.wait_input):
            for message_set, payloads in encoder.encode(lines):
                size = sum(map(len, payloads))
                sender.send(message_set, len(payloads), size)
                progress.add(len(payloads), size)
            if sender.failure is not None:
                return
    except OSError as error:
        raise CommandError(f"cannot read {shown}", error.strerror or str(error), "check the file") from error
    finally:
        if fd > 0:
            os.close(fd)


def _summarize(sender: Sender, batches: LineBatches, progress: Progress, acks: str) -> None:
    parts = [f"; promised: {PROMISES[acks]}"]
    failed = sender.failed + batches.too_long
    if failed:
        parts.append(f"; failed: {failed}")
    if sender.unknown:
        parts.append(f"; sent and not known to be stored: {sender.unknown}")
    if sender.possible_duplicates:
        parts.append(f"; possible duplicates: {sender.possible_duplicates}")
    progress.count, progress.size = sender.delivered, sender.delivered_bytes
    progress.summary("".join(parts))
    if batches.too_long:
        note(f"left out as too long: {batches.too_long} lines, the first at {batches.first_too_long}")
