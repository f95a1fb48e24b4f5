"""``fastlog replay``: the messages of a topic, produced to another one at their own pace, faster, or at once.

Source: Kafka 0.7.2 (tools/ReplayLogProducer), which knows full speed and a fixed pause between batches.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import click

from fastlog.consumer.simple import SimpleConsumer
from fastlog.errors import DeliveryError, MessageTooLargeError
from fastlog.producer import Producer
from fastlog.producer.hooks import Delivery
from fastlog.tools import options
from fastlog.tools.progress import Progress
from fastlog.tools.replay_times import EnvelopeTimes, RateTimes, SegmentTimes, Times
from fastlog.tools.report import EXIT_FAILED, EXIT_USAGE, CommandError, note
from fastlog.tools.topic_places import Place, Site, brokers_options, find_all_sites, find_places, open_consumer

_FETCH_BYTES = 512 * 1024
_FLUSH_SECONDS = 1.0
_LONGEST_SLEEP = 0.2
_SOON_SECONDS = 0.0005  # what is due within so short a time goes together
_GATHERED = 1000
_CLOSE_SECONDS = 30.0
_INTERRUPTED_SECONDS = 5.0
_QUEUE_MS = 5
_MOST_MESSAGE_BYTES = 2**31 - 1 - 2**20


class Speed(click.ParamType):  # type: ignore[type-arg]
    """``full``, or how many times as fast as it was."""

    name = "speed"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The factor; 0 is full speed."""
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
        "fastlog replay --input-topic views --output-topic test --speed 10 --times envelope",
    ),
)
@brokers_options
@options.option("--to-brokers", group="Connection", metavar="H:P[,H:P]", help="Produce there. Default: the same.")
@options.option("--to-zookeeper", group="Connection", metavar="H:P[/PATH]", help="Produce to the brokers of this one.")
@options.option(
    "--input-topic", "--inputtopic", "source", group="Selection", required=True, metavar="TOPIC", help="Read this one."
)
@options.option(
    "--output-topic",
    "--outputtopic",
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
    type=click.Choice(("envelope", "segments")),
    default="segments",
    show_default=True,
    help="Where the times for --speed are from: each message's envelope, or the times at which the broker last"
    " appended to each segment, as if bytes had come evenly in between.",
)
@options.option(
    "--rate",
    group="Limits",
    type=click.FloatRange(0, min_open=True),
    metavar="N",
    help="N messages a second instead, over all partitions.",
)
@options.option("--messages", group="Limits", type=click.IntRange(1), metavar="N", help="Stop after so many messages.")
@options.option(
    "--compression",
    group="Format",
    type=click.Choice(("none", "gzip", "snappy")),
    default="none",
    show_default=True,
    help="Of what is produced. Sets that come compressed are opened.",
)
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
    times: str,
    rate: float | None,
    messages: int | None,
    compression: str,
    no_progress: bool,
) -> int:
    """Produce the messages that a topic holds now to another topic, partition by partition.

    What is in one partition stays in one partition, in its order: in that of the same place where there are as many.
    Payloads are the same to the byte, envelopes too. With a speed or a rate the partitions keep the times between
    them. Each message is acknowledged; exit code 1 when one was not.
    """
    if rate is not None and speed:
        raise click.UsageError("--rate contradicts --speed")
    if to_brokers is not None and to_zookeeper is not None:
        raise click.UsageError("--to-brokers contradicts --to-zookeeper")
    places = find_places(source, brokers, zookeeper, connect_timeout)
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
    progress = Progress("replayed", shown=not no_progress)
    progress.goal = sum(place.end - place.start for place in places)
    with Target(target, sites, compression, len(places), connect_timeout) as sink:
        replay = Replay(source, places, sink, progress, messages, connect_timeout)
        try:
            if rate is None and not speed:
                replay.at_once()
            else:
                note(f"times: {f'{rate:g} messages a second' if rate is not None else f'by {times}, {speed:g}x'}")
                replay.paced(speed or 1.0, "rate" if rate is not None else times, rate or 1.0)
        finally:
            sink.close()
            unknown = f"; {replay.unknown} had no envelope" if replay.unknown else ""
            progress.summary(f"{unknown}; {sink.delivered} acknowledged, {sink.failed} not")
    if sink.failed:
        raise CommandError(
            f"{sink.failed} messages are not known to be in {target!r}",
            str(sink.error).replace("\n", "; "),
            "see the broker's log; replay into a new topic",
            EXIT_FAILED,
        )
    return 0


class Target:
    """Where it goes; counts what became of each message."""

    def __init__(self, topic: str, sites: list[Site], compression: str, sources: int, timeout: float) -> None:
        self.delivered = 0
        self.failed = 0
        self.error: object = ""
        self._topic = topic
        announced = [site for site in sites if site.places] or sites
        self._choices = [(site.broker, number) for site in announced for number in range(site.configured)]
        if self._choices and len(self._choices) != sources:
            note(f"{sources} partitions go to {len(self._choices)}: each to one of them")
        self._producer = Producer(
            broker_list=",".join(f"{site.broker}:{site.address}" for site in announced),
            acks="none" if any(site.is_plain for site in announced) else "appended",
            compression=compression,
            max_message_bytes=_MOST_MESSAGE_BYTES,
            connect_timeout_ms=max(1, round(timeout * 1000)),
            on_delivery=self._settled,
            producer_type="async",
            queue_time_ms=_QUEUE_MS,
            queue_messages=2**31 - 1,  # what waits is bounded in bytes
            batch_messages=2**31 - 1,
        )

    def __enter__(self) -> Target:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(_CLOSE_SECONDS if error is None else _INTERRUPTED_SECONDS)

    def send(self, source: int, payloads: list[bytes]) -> None:
        """Produce messages of a partition of the source, in order. Raises ``CommandError``."""
        choice = self._choices[source % len(self._choices)] if self._choices else None
        try:
            self._producer.send(self._topic, payloads, partition=choice)
        except MessageTooLargeError as error:
            raise CommandError(
                f"a message does not fit into {self._topic!r}", str(error), "raise max.message.size of its broker"
            ) from error

    def close(self, seconds: float = _CLOSE_SECONDS) -> None:
        """Wait for what is on its way, and count what has no answer by then as failed; may be called again."""
        try:
            self._producer.close(seconds)
        except DeliveryError as error:
            self.error = self.error or error

    def _settled(self, delivery: Delivery) -> None:
        if delivery.error is None:
            self.delivered += delivery.messages
        else:
            self.failed += delivery.messages
            self.error = self.error or delivery.error


class _Due(NamedTuple):
    """The next message of a partition; sorts by when it is due."""

    seconds: float
    source: int
    payload: bytes
    next_offset: int


class Replay:
    """One run."""

    def __init__(
        self,
        topic: str,
        places: list[Place],
        target: Target,
        progress: Progress,
        most: int | None,
        timeout: float,
    ) -> None:
        self._topic = topic
        self._places = places
        self._target = target
        self._progress = progress
        self._left = most
        self._timeout = timeout
        self._times: list[Times] = []

    @property
    def unknown(self) -> int:
        """Messages whose time nobody knew."""
        return sum(times.unknown for times in self._times)

    def at_once(self) -> None:
        """As fast as it goes; partitions take turns, so that none is far behind the others."""
        turns = [(number, self._sets(place)) for number, place in enumerate(self._places)]
        while turns:
            for turn in list(turns):
                number, sets = turn
                payloads = next(sets, None)
                if payloads is None:
                    turns.remove(turn)
                    continue
                self._send(number, payloads if self._left is None else payloads[: self._left])
                if self._left == 0:
                    return

    def paced(self, speed: float, kind: str, rate: float) -> None:
        """Each message when its time has come, counted from the first one's."""
        clock = [0]
        messages = []
        for number, place in enumerate(self._places):
            if kind == "rate":
                self._times.append(RateTimes(rate, clock))
            elif kind == "envelope" or place.start == place.end:
                self._times.append(EnvelopeTimes())
            else:
                with self._open(place) as consumer:
                    self._times.append(SegmentTimes(consumer, self._topic, place))
            messages.append(self._messages(number, place))
        heap = [due for stream in messages if (due := next(stream, None)) is not None]
        heapq.heapify(heap)
        began: float | None = None
        first = 0.0
        gathered: dict[int, list[bytes]] = {}
        count = 0
        while heap and (self._left is None or count < self._left):
            due = heap[0]
            if began is None and due.seconds > 0:
                began, first = time.monotonic(), due.seconds
            wait = 0.0 if began is None else (due.seconds - first) / speed - (time.monotonic() - began)
            if wait > _SOON_SECONDS or sum(map(len, gathered.values())) >= _GATHERED:
                for source, payloads in gathered.items():
                    self._send(source, payloads)
                count = 0
                gathered.clear()
            if wait > _SOON_SECONDS:
                self._progress.idle()
                time.sleep(min(wait, _LONGEST_SLEEP))
                continue
            gathered.setdefault(due.source, []).append(due.payload)
            count += 1
            following = next(messages[due.source], None)
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, following)
        for source, payloads in gathered.items():
            self._send(source, payloads)

    def _send(self, source: int, payloads: list[bytes]) -> None:
        self._target.send(source, payloads)
        if self._left is not None:
            self._left -= len(payloads)
        self._progress.add(len(payloads), sum(map(len, payloads)))

    def _messages(self, number: int, place: Place) -> Iterator[_Due]:
        times = self._times[number]
        with self._open(place) as consumer:
            for found in consumer.messages(self._topic, place.partition.partition, place.start):
                if found.offset >= place.end:
                    return
                yield _Due(times.of(found.payload, found.offset), number, found.payload, found.next_offset)

    def _sets(self, place: Place) -> Iterator[list[bytes]]:
        at = place.start
        waited = time.monotonic()
        with self._open(place) as consumer:
            while at < place.end:
                found = consumer.fetch(self._topic, place.partition.partition, at, wait=_FLUSH_SECONDS).before(
                    place.end
                )
                if found.valid_bytes:
                    waited = time.monotonic()
                    at = found.next_offset
                    self._progress.reached += found.valid_bytes
                    yield found.payloads()
                elif time.monotonic() - waited > _CLOSE_SECONDS:
                    raise CommandError(
                        f"{self._topic}, partition {place.partition} ends at {at}, before offset {place.end}",
                        "what was appended there is not visible: the broker does not flush, or has lost it",
                        f"fastlog topics describe {self._topic} shows its state",
                    )

    def _open(self, place: Place) -> SimpleConsumer:
        return open_consumer(place.address, self._timeout, fetch_bytes=_FETCH_BYTES)
