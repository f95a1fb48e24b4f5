"""One run of ``fastlog replay``: reads the partitions, waits for each message's time, and produces."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, cast

from fastlog._batch import ConsumedMessage
from fastlog.consumer.fetched import MessageSet, RecordSet
from fastlog.consumer.simple import SimpleConsumer
from fastlog.errors import DeliveryError, FastlogError, MessageTooLargeError, TransportError
from fastlog.producer import Producer
from fastlog.producer.hooks import Delivery
from fastlog.tools import options
from fastlog.tools.deliveries import MOST_MESSAGE_BYTES, NOT_ACKNOWLEDGED, Losses
from fastlog.tools.progress import ConsoleProgress
from fastlog.tools.record_topics import create, records_at
from fastlog.tools.replay_times import EnvelopeTimes, MessageTimes, RateTimes, RecordTimes, SegmentTimes
from fastlog.tools.report import EXIT_USAGE, CommandError, note
from fastlog.tools.same_topic import SameTopic
from fastlog.tools.topic_places import PartitionPlace, Site, find_sites, open_consumer
from fastlog.wire import requests
from fastlog.zkpaths import PartitionId

_FETCH_BYTES = 512 * 1024
_FLUSH_SECONDS = 1.0
_LONGEST_SLEEP = 0.2
_SOON_SECONDS = 0.0005  # what is due within so short a time goes together
_GATHERED = 1000
_CLOSE_SECONDS = 30.0
_INTERRUPTED_SECONDS = 5.0
_QUEUE_MS = 5


Item = bytes | ConsumedMessage
"""What is produced: the payload of a message, or a record."""


class CopyTarget:
    """Where it goes; counts what became of each message.

    A partition of the source goes to the one of the same broker id and number where there is one for each of them, and
    else to that of the same place in the sorted list, which begins again where the target has fewer.
    """

    def __init__(
        self,
        topic: str,
        sites: list[Site],
        compression: str,
        sources: Sequence[PartitionId],
        timeout: float,
        *,
        max_message_bytes: int | None = None,
    ) -> None:
        """``max_message_bytes``: what a broker takes that does not tell it."""
        self.delivered = 0
        self.failed = 0
        self.error: object = ""
        self._topic = topic
        self._sources = sources
        announced = [site for site in sites if site.places] or sites
        self.is_acknowledged = not any(site.is_plain for site in announced)
        """Otherwise nobody knows what was stored: a plain 0.7 broker does not answer."""
        plain_limit = MOST_MESSAGE_BYTES if self.is_acknowledged else requests.PLAIN_MESSAGE_BYTES
        self.losses = Losses("fastlog replay", note)
        choices = [PartitionId(site.broker, number) for site in announced for number in range(site.configured)]
        self._choices: list[PartitionId | None] = [None] * len(sources)
        if set(sources) <= set(choices):
            self._choices = list(sources)
        elif choices:
            self._choices = [choices[index % len(choices)] for index in range(len(sources))]
            if len(choices) != len(sources):
                note(f"{len(sources)} partitions go to {len(choices)}: each to one of them")
        self._producer = Producer(
            broker_list=",".join(f"{site.broker}:{site.address}" for site in announced),
            acks="flushed" if self.is_acknowledged else "none",
            compression=compression,
            max_message_bytes=max_message_bytes or plain_limit,  # where a broker tells its own, that holds as well
            connect_timeout_ms=max(1, round(timeout * 1000)),
            on_delivery=self._settled,
            producer_type="async",
            queue_time_ms=_QUEUE_MS,
            queue_messages=2**31 - 1,  # what waits is bounded in bytes
            batch_messages=2**31 - 1,
        )

    def __enter__(self) -> CopyTarget:
        self.losses.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(_CLOSE_SECONDS if error is None else _INTERRUPTED_SECONDS)
        self.losses.__exit__()

    @property
    def outcome(self) -> str:
        """What became of the messages, in words."""
        if self.is_acknowledged:
            return f"{self.delivered} acknowledged, {self.failed} not"
        return f"{self.delivered} {NOT_ACKNOWLEDGED} (Kafka 0.7 does not answer)" + (
            f", {self.failed} not sent" if self.failed else ""
        )

    def send(self, source: int, messages: Sequence[Item]) -> None:
        """Produce messages of a partition of the source, in order. Raises ``CommandError``."""
        partition = self._choices[source]
        try:
            if messages and isinstance(messages[0], bytes):
                self._producer.send(self._topic, messages, partition=partition)
                return
            for (timestamp, headers), found in groupby(cast(Sequence[ConsumedMessage], messages), _TIME_AND_HEADERS):
                alike = list(found)
                values, keys = [message.payload for message in alike], [message.key for message in alike]
                self._producer.send(
                    self._topic, values, keys=keys, partition=partition, headers=headers, timestamp=timestamp
                )
        except MessageTooLargeError as error:
            raise CommandError(
                f"a message of partition {self._sources[source]} does not fit into {self._topic!r}",
                str(error).replace("\n", "; "),
                "raise max.message.size of its broker"
                + ("" if self.is_acknowledged else ", and say what it is with --max-message-bytes"),
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


_TIME_AND_HEADERS = attrgetter("timestamp", "headers")
"""What the records of one call have in common: those that were made together mostly have it."""


def _size(item: Item) -> int:
    return len(item) if isinstance(item, bytes) else len(item.payload or b"")


class _Due(NamedTuple):
    """The next message of a partition; sorts by when it is due."""

    seconds: float
    source: int
    message: ConsumedMessage


class Replay:
    """Sends what the partitions of a topic hold to a ``CopyTarget``, at once or at the messages' own pace."""

    def __init__(
        self,
        topic: str,
        places: list[PartitionPlace],
        target: CopyTarget,
        progress: ConsoleProgress,
        most: int | None,
        timeout: float,
        *,
        same: SameTopic,
        are_records: bool = False,
    ) -> None:
        """``are_records``: the topic is one of records, with keys, headers and times; so is the target then."""
        self._are_records = are_records
        self._same = same
        self._topic = topic
        self._places = places
        self._target = target
        self._progress = progress
        self._most = self._left = most
        self._reached = [0] * len(places)  # bytes of each partition that were sent
        self._timeout = timeout
        self._times: list[MessageTimes] = []

    @property
    def unknown(self) -> int:
        """How many messages had no time of their own, and were replayed as if made with the one before."""
        return sum(times.unknown for times in self._times)

    @property
    def _by_record_times(self) -> bool:
        return any(isinstance(times, RecordTimes) for times in self._times)

    def as_object(self, topic: str) -> dict[str, object]:
        """What the summary says beside its counts."""
        target = self._target
        return {
            "input_topic": self._topic,
            "output_topic": topic,
            "acknowledged": target.is_acknowledged,
            "delivered": target.delivered,
            "failed": target.failed,
            "without_time" if self._by_record_times else "without_envelope": self.unknown,
        }

    def at_once(self) -> None:
        """As fast as it goes; partitions take turns, so that none is far behind the others."""
        turns = [(number, self._sets(place)) for number, place in enumerate(self._places)]
        while turns and self._left != 0:
            for turn in list(turns):
                number, sets = turn
                found = next(sets, None)
                if found is None:
                    turns.remove(turn)
                    continue
                messages, next_offset = found
                self._send(number, messages if self._left is None else messages[: self._left], next_offset)
                if self._left == 0:
                    break
        self._same.check()

    def paced(self, speed: float, kind: str, rate: float) -> None:
        """Each message when its time has come, counted from the first one's."""
        clock = [0]
        messages = []
        for number, place in enumerate(self._places):
            if kind == "rate":
                self._times.append(RateTimes(rate, clock))
            elif kind == "records":
                self._times.append(RecordTimes())
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
        gathered: dict[int, list[Item]] = {}
        reached: dict[int, int] = {}
        count = 0
        while heap and (self._left is None or count < self._left):
            due = heap[0]
            if began is None and due.seconds > 0:
                began, first = time.monotonic(), due.seconds
            wait = 0.0 if began is None else (due.seconds - first) / speed - (time.monotonic() - began)
            if wait > _SOON_SECONDS or sum(map(len, gathered.values())) >= _GATHERED:
                for source, items in gathered.items():
                    self._send(source, items, reached[source])
                count = 0
                gathered.clear()
            if wait > _SOON_SECONDS:
                self._progress.idle()
                time.sleep(min(wait, _LONGEST_SLEEP))
                continue
            message = due.message
            gathered.setdefault(due.source, []).append(message if self._are_records else message.payload)
            reached[due.source] = message.next_offset
            count += 1
            following = next(messages[due.source], None)
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, following)
        for source, items in gathered.items():
            self._send(source, items, reached[source])
        self._same.check()

    def _send(self, source: int, messages: Sequence[Item], next_offset: int) -> None:
        self._target.send(source, messages)
        progress = self._progress
        self._reached[source] = next_offset - self._places[source].start
        progress.reached = sum(self._reached)
        if self._most is not None and self._left is not None:
            self._left -= len(messages)
            progress.reached = max(progress.reached, progress.goal * (self._most - self._left) // self._most)
        progress.add(len(messages), sum(map(_size, messages)))

    def _messages(self, number: int, place: PartitionPlace) -> Iterator[_Due]:
        times = self._times[number]
        for found in self._fetched(place):
            for message in found:
                if message.offset >= place.end:
                    return
                yield _Due(times.of(message), number, message)

    def _sets(self, place: PartitionPlace) -> Iterator[tuple[Sequence[Item], int]]:
        """The payloads of each fetch, or the records, and the offset behind them."""
        for found in self._fetched(place):
            yield list(found) if isinstance(found, RecordSet) else found.payloads(), found.next_offset

    def _fetched(self, place: PartitionPlace) -> Iterator[MessageSet]:
        """What each fetch of a partition brings, up to where it ended when the replay began.

        Raises:
            CommandError: the topic is not there any more, or another one is; or its end does not become visible.
        """
        at = place.start
        waited = time.monotonic()
        with self._open(place) as consumer:
            while at < place.end:
                try:
                    found = consumer.fetch(self._topic, place.partition.partition, at, wait=_FLUSH_SECONDS)
                except TransportError:
                    raise
                except FastlogError:
                    self._same.check()
                    raise
                found = found.before(place.end)
                if found.valid_bytes:
                    yield found
                    waited = time.monotonic()
                    at = found.next_offset
                    continue
                self._same.check()
                if time.monotonic() - waited > _CLOSE_SECONDS:
                    raise CommandError(
                        f"{self._topic}, partition {place.partition} ends at {at}, before offset {place.end}",
                        "what was appended there is not visible: the broker does not flush, or has lost it",
                        f"fastlog topics describe {self._topic} shows its state",
                    )

    def _open(self, place: PartitionPlace) -> SimpleConsumer:
        return open_consumer(place.address, self._timeout, fetch_bytes=_FETCH_BYTES)


def record_sites(topic: str, sites: list[Site], like: str, source: Site, timeout: float) -> list[Site]:
    """Where records can go; the topic is made where none of the brokers has it, as the topic ``like`` of the source is.

    Raises:
        CommandError: it is one of Kafka 0.7, or cannot be made.
    """
    if any(site.is_plain or (site.places and not site.is_of_records) for site in sites):
        raise CommandError(
            f"records cannot be replayed into {topic!r}",
            "messages of Kafka 0.7 have no room for keys, headers and times, and none is null",
            "choose another --output-topic; one that is not there is made of records",
            EXIT_USAGE,
        )
    if not any(site.places for site in sites):
        with records_at(options.broker_at(str(source.address), timeout)) as records:
            settings = {name: one.value or "" for name, one in records.settings(like).items() if one.is_own}
        count = max(place.partition.partition for place in source.places) + 1
        create(options.broker_at(str(sites[0].address), timeout), topic, count, settings)
        sites = find_sites(topic, str(sites[0].address), None, timeout)
    return sites
