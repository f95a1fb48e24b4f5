"""``fastlog consume``: messages of a topic on stdout, one a line."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterator

import click

from fastlog import message
from fastlog._segment import payloads
from fastlog.errors import FastlogError, TransportError, error_for
from fastlog.tools import options, signals
from fastlog.tools.connection import Broker
from fastlog.tools.fetching import Cursor, Fetched, Fetcher
from fastlog.tools.progress import Progress
from fastlog.tools.report import (
    EXIT_DAMAGED,
    EXIT_DONE,
    EXIT_NOTHING_CAME,
    EXIT_USAGE,
    CommandError,
    note,
)
from fastlog.wire import requests, responses

_PLAIN_LIMIT_BYTES = 100 * 2**20  # the largest request a 0.7.2 broker takes by default, so no message is larger
_ENTRY_BYTES = 10
_LOOK_SECONDS = 1.0
_LEAST_HOLD_MS = 100


class OffsetChoice(click.ParamType):  # type: ignore[type-arg]
    """``beginning``, ``end`` or a number."""

    name = "offset"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        """The word, or the number."""
        text = str(value)
        if text in ("beginning", "end"):
            return text
        if text.isascii() and text.isdigit() and len(text) < 20 and int(text) < 2**63:
            return int(text)
        self.fail(f"{text!r} is neither beginning, end nor an offset", param, ctx)


@click.command(
    cls=options.Command,
    name="consume",
    examples=(
        "fastlog consume --brokers localhost:9092 --topic logs --exit-at-end",
        "fastlog consume --topic logs --partition 0 --offset end --json | jq .payload",
    ),
)
@options.connection_options
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
    metavar="beginning|end|N",
    help="Where to begin; N is the start of a message.",
)
@options.option("--json", "as_json", group="Format", is_flag=True, help="One JSON object a line, with the offset.")
@options.option("--no-progress", group="Format", is_flag=True, help="Print nothing before the summary.")
@options.option(
    "--max-messages", group="Limits", type=click.IntRange(1), metavar="N", help="Stop after so many messages."
)
@options.option("--exit-at-end", group="Limits", is_flag=True, help="Stop where the topic ended when this began.")
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
def consume_command(
    brokers: str,
    connect_timeout: float,
    topic: str,
    partition: int | None,
    offset: str | int,
    as_json: bool,
    no_progress: bool,
    max_messages: int | None,
    exit_at_end: bool,
    timeout: float | None,
    fetch_bytes: int,
) -> int:
    """Print each message's bytes and a newline, partition by partition as they come.

    With --json each line has topic, partition, offset, next_offset, payload, and base64, which is true when the
    payload is not UTF-8 and therefore encoded. Messages of one compressed set share the set's offset.
    """
    broker = Broker(brokers, connect_timeout)
    start = Start(broker, topic, partition, offset, fetch_bytes, exit_at_end)
    shown = not no_progress and not sys.stdout.isatty()
    reading = Reading(start, as_json, max_messages, timeout, Progress("consumed", shown=shown))
    try:
        with signals.deferred():
            reading.run()
    except BrokenPipeError:
        raise
    except BaseException:
        reading.summary()
        raise
    reading.summary()
    if reading.stuck:
        raise CommandError(
            f"stopped before the end of {topic}: {reading.stuck}",
            "the partition takes no appends, and bytes that were not flushed are not visible",
            f"fastlog topics describe {topic} shows its state; the broker's log says why",
        )
    return EXIT_NOTHING_CAME if reading.timed_out and not reading.progress.count else EXIT_DONE


class Start:
    """Which partitions are read, from where, and up to where."""

    def __init__(
        self,
        broker: Broker,
        topic: str,
        partition: int | None,
        offset: str | int,
        fetch_bytes: int,
        exit_at_end: bool,
    ) -> None:
        self.broker = broker
        self.topic = topic
        self.max_hold_ms: int | None = None
        self.limit_bytes = max(fetch_bytes, _PLAIN_LIMIT_BYTES)
        self._partition = partition
        self._offset = offset
        self._fetch_bytes = fetch_bytes
        self._exit_at_end = exit_at_end
        metadata = broker.metadata_or_none((topic,))
        self.cursors = self._without_metadata() if metadata is None else self._with_metadata(metadata)

    def _with_metadata(self, metadata: responses.MetadataAnswer) -> list[Cursor]:
        # A broker that holds no answer would be asked without a pause.
        self.max_hold_ms = metadata.max_wait_ms if metadata.max_wait_ms >= _LEAST_HOLD_MS else None
        self.limit_bytes = max(self._fetch_bytes, metadata.max_message_bytes + _ENTRY_BYTES)
        described = topic_of(metadata, self.topic)
        if described.error:
            raise CommandError(
                f"topic {self.topic!r} cannot be read", str(error_for(described.error)), "check --topic", EXIT_USAGE
            )
        if not described.partitions:
            self._unknown_topic()
        by_number = {item.partition: item for item in described.partitions}
        numbers = range(described.configured_partitions) if self._partition is None else [self._partition]
        if self._partition is None and isinstance(self._offset, int) and len(numbers) > 1:
            raise CommandError(
                f"--offset {self._offset} needs --partition",
                f"{self.topic} has {len(numbers)} partitions, and an offset means something in one of them only",
                "add --partition",
                EXIT_USAGE,
            )
        absent = responses.PartitionMetadata(0, responses.STATE_OK, 0, 0, 0)
        return [self._cursor(number, by_number.get(number, absent)) for number in numbers]

    def _cursor(self, number: int, known: responses.PartitionMetadata) -> Cursor:
        end = (
            (known.log_end if known.state == responses.STATE_OK else known.high_watermark)
            if self._exit_at_end
            else None
        )
        return self._made(number, known.log_start, known.high_watermark, end)

    def _made(self, number: int, first: int, visible_end: int, end: int | None) -> Cursor:
        begin = {"beginning": first, "end": visible_end}.get(str(self._offset), self._offset)
        return Cursor(number, int(begin), end, self._fetch_bytes)

    def _without_metadata(self) -> list[Cursor]:
        number = self._partition or 0
        with self.broker.connect() as connection:
            found = []
            for when in (requests.TIME_EARLIEST, requests.TIME_LATEST):
                body = connection.request(requests.encode_offsets(self.topic, number, when, 1))
                answer = responses.decode_offsets(body)
                if answer.error:
                    raise error_for(answer.error, f"{self.topic}, partition {number}: error {answer.error}")
                found.append(answer.offsets[0] if answer.offsets else 0)
        return [self._made(number, found[0], found[1], found[1] if self._exit_at_end else None)]

    def _unknown_topic(self) -> None:
        """Wait for a topic nobody has written to yet, unless the end was asked for."""
        if not self._exit_at_end:
            note(f"topic {self.topic!r} does not exist yet; waiting for it")
            return
        metadata = self.broker.metadata_or_none()
        names = [topic.name for topic in metadata.topics] if metadata else []
        import difflib  # only for an error

        near = difflib.get_close_matches(self.topic, names, n=1)
        raise CommandError(
            f"topic {self.topic!r} does not exist",
            f"the broker holds {len(names)} topics, and none of that name",
            f"did you mean {near[0]!r}?" if near else "fastlog topics list shows them",
            EXIT_USAGE,
        )


def topic_of(metadata: responses.MetadataAnswer, topic: str) -> responses.TopicMetadata:
    """What a metadata answer says about one topic; as unknown when it says nothing."""
    for described in metadata.topics:
        if described.name == topic:
            return described
    return responses.TopicMetadata(topic, 0, 1)


class Reading:
    """One run: fetches, prints, counts, and stops when it should."""

    def __init__(
        self, start: Start, as_json: bool, max_messages: int | None, timeout: float | None, progress: Progress
    ) -> None:
        self.progress = progress
        self.timed_out = False
        self.stuck = ""
        self._start = start
        self._as_json = as_json
        self._left = max_messages
        self._timeout = timeout
        self._looked = time.monotonic()
        self._printed_up_to: dict[int, int] = {}

    def run(self) -> None:
        """Print messages until an end is reached."""
        start = self._start
        fetcher = Fetcher(
            start.broker, start.topic, start.cursors, max_hold_ms=start.max_hold_ms, limit=start.limit_bytes
        )
        try:
            last = time.monotonic()
            step = min(_LOOK_SECONDS, self._timeout) if self._timeout is not None else _LOOK_SECONDS
            for chunk in fetcher.chunks(step):
                if chunk is not None:
                    self._print(chunk)
                    if self._left == 0:
                        return
                    last = time.monotonic()
                elif self._timeout is not None and time.monotonic() - last >= self._timeout:
                    self.timed_out = True
                    return
                self._look_at_the_end()
        finally:
            fetcher.close()

    def summary(self) -> None:
        """Print what was read, and where to go on."""
        where = ", ".join(
            f"{cursor.partition}:{max(cursor.offset, self._printed_up_to.get(cursor.partition, 0))}"
            for cursor in self._start.cursors[:16]
        )
        more = ", …" if len(self._start.cursors) > 16 else ""
        self.progress.summary(f"; next offset by partition: {where}{more}")

    def _print(self, chunk: Fetched) -> None:
        out = sys.stdout.buffer
        written: list[bytes] = []
        try:
            if chunk.result.wrappers == 0 and not self._as_json and self._left is None:
                found = payloads(chunk.message_set)
                written = [b"\n".join(found), b"\n"]
                self.progress.add(len(found), len(written[0]) - len(found) + 1)
            else:
                for line, size, next_offset in self._lines(chunk):
                    written.append(line)
                    self.progress.add(1, size)
                    self._printed_up_to[chunk.partition] = next_offset
                    if self._left is not None:
                        self._left -= 1
                        if self._left == 0:
                            break
        finally:
            # What came before damage inside a compressed set is shown, and the reader of a pipe may be slow.
            with signals.waiting():
                out.write(b"".join(written))
                out.flush()

    def _lines(self, chunk: Fetched) -> Iterator[tuple[bytes, int, int]]:
        at = chunk.base_offset
        try:
            for item in message.deep(chunk.message_set, chunk.base_offset):
                payload = item.message.payload
                line = self._object(chunk.partition, at, item.offset, payload) if self._as_json else payload
                yield line + b"\n", len(payload), item.offset
                at = item.offset
        except (TransportError, CommandError):
            raise
        except FastlogError as error:
            raise CommandError(
                f"{type(error).__name__}: {self._start.topic}, partition {chunk.partition}, offset {at}",
                str(error),
                "read on behind it with --offset, or run fastlog fsck on the broker's log directory",
                EXIT_DAMAGED,
            ) from error

    def _object(self, partition: int, offset: int, next_offset: int, payload: bytes) -> bytes:
        try:
            text, encoded = payload.decode("utf-8"), False
        except UnicodeDecodeError:
            text, encoded = base64.b64encode(payload).decode("ascii"), True
        fields = {
            "topic": self._start.topic,
            "partition": partition,
            "offset": offset,
            "next_offset": next_offset,
            "payload": text,
            "base64": encoded,
        }
        return json.dumps(fields, ensure_ascii=False).encode("utf-8")

    def _look_at_the_end(self) -> None:
        """Once a second: bring the ends down where the log will not reach them (its end was lost, or it is offline)."""
        waiting = [cursor for cursor in self._start.cursors if cursor.end is not None and not cursor.done]
        if not waiting or time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        metadata = self._start.broker.metadata_or_none((self._start.topic,))
        if metadata is None:
            return
        by_number = {item.partition: item for item in topic_of(metadata, self._start.topic).partitions}
        for cursor in waiting:
            known = by_number.get(cursor.partition)
            reachable = (
                0 if known is None else known.log_end if known.state == responses.STATE_OK else known.high_watermark
            )
            if cursor.end is not None and reachable < cursor.end:
                cursor.end = reachable
                self.stuck = self.stuck or f"partition {cursor.partition} ends at {reachable}"
