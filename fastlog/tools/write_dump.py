"""One run of ``fastlog dump``: reads every partition to where it ended, and writes the file."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fastlog._segment import scan
from fastlog.client.connection import Patience
from fastlog.errors import (
    BrokerError,
    FastlogError,
    InvalidFetchSizeError,
    InvalidMessageError,
    MessageTooLargeError,
    TransportError,
)
from fastlog.tools import dump_file
from fastlog.tools.placing import placed
from fastlog.tools.progress import Progress
from fastlog.tools.report import EXIT_DAMAGED, EXIT_FAILED, CommandError
from fastlog.tools.topic_places import Place, find_places, open_consumer

_FETCH_BYTES = 512 * 1024
_FLUSH_SECONDS = 1.0
_MOST_FLUSH_SECONDS = 30.0


def dump(
    topic: str, file: Path, brokers: str, zookeeper: str | None, timeout: float, *, shown: bool, as_json: bool = False
) -> None:
    """Write the file. Raises ``CommandError``, ``TransportError``; then there is none."""
    places = find_places(topic, brokers, zookeeper, timeout)
    progress = Progress("dumped", shown=shown)
    progress.goal = sum(place.end - place.start for place in places)
    head = dump_file.Head(
        topic,
        int(time.time() * 1000),
        tuple(dump_file.Held(place.partition, place.start, place.end) for place in places),
    )
    with _opened(file) as out:
        writer = dump_file.Writer(out, head)
        for place in places:
            for data, count in _pieces(topic, place, timeout):
                writer.piece(place.partition, data)
                progress.reached += len(data)
                progress.add(count, len(data))
        writer.finish()
    offsets = ", ".join(f"{place.partition}:{place.start}-{place.end}" for place in places)
    partitions = [{**place.partition._asdict(), "start": place.start, "end": place.end} for place in places]
    found = {"topic": topic, "file": str(file), "partitions": partitions}
    progress.summary(f"; offsets by partition: {offsets}", found if as_json else None)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The file under another name until it is complete and on the disk."""
    if str(path) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with placed(path) as out:
        yield out


def _pieces(topic: str, place: Place, timeout: float) -> Iterator[tuple[bytes, int]]:
    """The bytes of a partition, whole messages at a time, and how many entries of the log they are."""
    number = place.partition.partition
    at = place.start
    patience = Patience()
    waited = time.monotonic()
    with open_consumer(place.address, timeout) as consumer:
        while at < place.end:
            try:
                found = consumer.fetch(topic, number, at, min(_FETCH_BYTES, place.end - at), wait=_FLUSH_SECONDS)
                patience.worked()
            except TransportError as error:
                patience.failed(error)
                continue
            except FastlogError as error:
                raise _explained(topic, place, at, error) from error
            found = found.before(place.end)
            data = bytes(found.data[: found.valid_bytes])
            if not data:
                if time.monotonic() - waited > _MOST_FLUSH_SECONDS:
                    raise CommandError(
                        f"{topic}, partition {place.partition} ends at {at}, before offset {place.end}",
                        "what was appended there is not visible: the broker does not flush, or has lost it",
                        f"fastlog topics describe {topic} shows its state. Nothing was written",
                    )
                continue
            waited = time.monotonic()
            yield data, scan(data).count
            at += len(data)


def _explained(topic: str, place: Place, offset: int, error: FastlogError) -> CommandError:
    damaged = isinstance(error, InvalidMessageError | InvalidFetchSizeError | MessageTooLargeError)
    return CommandError(
        f"{topic}, partition {place.partition} cannot be read at offset {offset}; nothing was written",
        str(error).replace("\n", "; "),
        "run fastlog fsck on the broker's log directory"
        if damaged
        else "run it again: retention removed what was read",
        EXIT_DAMAGED if damaged or not isinstance(error, BrokerError) else EXIT_FAILED,
    )
