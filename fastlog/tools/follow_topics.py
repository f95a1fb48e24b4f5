"""One run of ``fastlog tail``: finds the ends, follows them, and prints."""

from __future__ import annotations

import time
from collections.abc import Callable

from fastlog._batch import ConsumedMessage
from fastlog.client.addresses import Address
from fastlog.consumer.simple import SimpleConsumer
from fastlog.consumer.skipping import OF_ONE_MESSAGE
from fastlog.consumer.tail import find_last
from fastlog.errors import CoordinationError, TransportError
from fastlog.escaping import in_json
from fastlog.tools import signals
from fastlog.tools.lanes import FetchError, Lanes, ReadCursor, Track
from fastlog.tools.lines import NEWLINE
from fastlog.tools.printing import FORMS, DamageError, Form, Printer, json_fields, null_or_value, write_all
from fastlog.tools.progress import ConsoleProgress
from fastlog.tools.report import EXIT_DAMAGED, EXIT_FAILED, CommandError, note
from fastlog.tools.topic_places import Site, open_consumer
from fastlog.zkpaths import PartitionId

_LOOK_SECONDS = 1.0
_FIND_SECONDS = 2.0
_PAUSE_SECONDS = 1.0
_FETCH_BYTES = 1024 * 1024


class TopicFollower:
    """Prints what comes to topics, from each of their partitions in order. For the main thread."""

    def __init__(
        self,
        find: Callable[[str], list[Site]],
        timeout: float,
        form: str,
        *,
        headers: bool,
        max_messages: int | None,
        delimiter: bytes | None = NEWLINE,
        shows_nulls: bool = False,
    ) -> None:
        """``delimiter``: as of ``Printer``. ``shows_nulls``: as NULL, in text."""
        self._shows_nulls = shows_nulls
        self._delimiter = delimiter
        self._find = find
        self._timeout = timeout
        self._form = form
        self._headers = headers
        self._left = max_messages
        self._progress = ConsoleProgress("printed", shown=False)
        self._tracks: dict[tuple[str, int], Track] = {}
        self._printers: dict[Track, Printer] = {}
        self._shown: str | None = None
        self._found = time.monotonic()

    def begin(self, topic: str, last: int) -> None:
        """Find the topic, and where its last messages begin; one that does not exist yet is waited for.

        Raises:
            TransportError, CoordinationError, CommandError: as ``find_sites``.
        """
        sites = self._find(topic)
        if not any(site.places for site in sites):
            note(f"topic {topic!r} does not exist yet; waiting for it")
        for site in sites:
            self._add(topic, site, last)

    def follow(self, topics: tuple[str, ...], *, later: bool) -> None:
        """Print until the limit is reached. ``later``: brokers may come that have not announced a topic yet.

        Raises:
            CommandError: a partition cannot be read on.
            BrokenPipeError: nobody reads what is printed.
        """
        while self._left != 0:
            lanes = Lanes(list(self._tracks.values()), _FETCH_BYTES)
            try:
                self._follow(lanes, topics, later)
            except FetchError as failure:
                if not isinstance(failure.error, TransportError):
                    raise self._explained(failure.track, failure.partition, failure.offset, failure.error) from failure
                note(f"{failure.error.args[0].partition(chr(10))[0]}: trying again")
            finally:
                lanes.close()
            for track, printer in self._printers.items():
                for cursor in track.cursors:
                    cursor.offset = printer.positions[cursor.partition]
            if self._left != 0:
                with signals.waiting():
                    time.sleep(_PAUSE_SECONDS)
                self._look_for_more(topics, None, later)

    def _follow(self, lanes: Lanes, topics: tuple[str, ...], later: bool) -> None:
        for item in lanes.sets(_LOOK_SECONDS):
            if item is not None:
                track, found = item
                printer = self._printers[track]
                printer.left = self._left
                if self._headers and self._shown != track.topic:
                    write_all(f"{'' if self._shown is None else chr(10)}==> {track.topic} <==\n".encode())
                    self._shown = track.topic
                before = self._progress.count
                try:
                    printer.print(found)
                except DamageError as damage:
                    raise self._explained(track, damage.partition, damage.offset, damage.error) from damage
                if self._left is not None:
                    self._left -= self._progress.count - before
                    if self._left <= 0:
                        return
            self._look_for_more(topics, lanes, later)

    def _look_for_more(self, topics: tuple[str, ...], lanes: Lanes | None, later: bool) -> None:
        """Add brokers that announce a topic since; all they have of it is new."""
        if not later or time.monotonic() - self._found < _FIND_SECONDS:
            return
        try:
            with signals.waiting():
                found = [(topic, site) for topic in topics for site in self._find(topic)]
        except (CoordinationError, TransportError):
            found = []  # those that are known are followed all the same
        for topic, site in found:
            known = self._tracks.get((topic, site.broker))
            if known is not None:
                known.addresses = [site.address]  # for the next time that it has to be reached
            else:
                track = self._add(topic, site, None)
                if lanes is not None:
                    lanes.add(track)
        self._found = time.monotonic()

    def _add(self, topic: str, site: Site, last: int | None) -> Track:
        """Follow a broker; ``last`` None: from the beginning."""
        known = {place.partition.partition: place for place in site.places}
        cursors = []
        skips = {}
        with open_consumer(site.address, self._timeout, local="off") as consumer:
            for number in range(max([site.configured, *(n + 1 for n in known)])):
                place = known.get(number)
                offset = 0 if place is None else place.start
                if place is not None and last is not None and site.is_of_records:
                    offset = max(place.start, place.end - last)
                elif place is not None and last is not None:
                    offset, skips[number] = _last(consumer, topic, number, last)
                cursors.append(ReadCursor(number, offset, None))
        track = Track(self._open, [site.address], topic, cursors)
        form = _form(self._form, site.broker, self._shows_nulls)
        printer = Printer(topic, form, None, self._progress, self._delimiter)
        printer.positions.update({cursor.partition: cursor.offset for cursor in cursors})
        printer.skip.update(skips)
        self._tracks[topic, site.broker] = track
        self._printers[track] = printer
        return track

    def _open(self, address: Address) -> SimpleConsumer:
        return open_consumer(address, self._timeout, fetch_bytes=_FETCH_BYTES)

    def _explained(self, track: Track, partition: int, offset: int, error: Exception) -> CommandError:
        return CommandError(
            f"{track.topic}, partition {partition} of {track.addresses[0]} cannot be read on at offset {offset}",
            str(error).replace("\n", "; "),
            "fastlog consume --skip-message-on-error goes on behind damage; run this again for what comes",
            EXIT_DAMAGED if isinstance(error, OF_ONE_MESSAGE) else EXIT_FAILED,
        )


def _last(consumer: SimpleConsumer, topic: str, number: int, count: int) -> tuple[int, int]:
    found = find_last(consumer, topic, number, count)
    return found.offset, found.skip


def _form(name: str, broker: int, shows_nulls: bool) -> Form | None:
    if name == "text":
        return null_or_value if shows_nulls else FORMS["text"]

    def as_json(topic: str, partition: int, found: ConsumedMessage) -> bytes:
        return f'{{"topic": {in_json(topic)}, "broker": {broker}, {json_fields(partition, found)}}}'.encode()

    def as_offsets(topic: str, partition: int, found: ConsumedMessage) -> bytes:
        place = PartitionId(broker, partition)
        return f"{topic}\t{place}\t{found.offset}\t".encode() + (found.payload or b"")

    return as_json if name == "json" else as_offsets
