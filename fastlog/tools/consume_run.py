"""One run of ``fastlog consume``: reads, prints, counts, and stops when it should."""

from __future__ import annotations

import time

from fastlog.client.topics import readable_end
from fastlog.consumer.skipping import OF_ONE_MESSAGE, find_end_of_damage
from fastlog.errors import FastlogError, LogError, TransportError
from fastlog.tools import signals
from fastlog.tools.lanes import FetchError, Lanes, Track
from fastlog.tools.printing import DamageError, Printer
from fastlog.tools.progress import ConsoleProgress
from fastlog.tools.report import EXIT_DAMAGED, EXIT_FAILED, EXIT_UNREACHABLE, CommandError
from fastlog.tools.starting import Start

_LOOK_SECONDS = 1.0
_SHOWN_PARTITIONS = 16


class ConsumeRun:
    """For the main thread, inside ``signals.deferred()``."""

    def __init__(
        self,
        start: Start,
        printer: Printer,
        progress: ConsoleProgress,
        fetch_bytes: int,
        timeout: float | None,
        *,
        skips_damage: bool = False,
    ) -> None:
        self.timed_out = False
        self.skipped = 0
        """How often it went on behind damage."""
        self._skips_damage = skips_damage
        self._start = start
        self._printer = printer
        self._progress = progress
        self._fetch_bytes = fetch_bytes
        self._timeout = timeout
        self._stuck = ""
        self._looked = time.monotonic()
        printer.positions.update({cursor.partition: cursor.offset for cursor in start.cursors})
        printer.skip.update(start.skip)
        ends = [(cursor.end, cursor.offset) for cursor in start.cursors]
        if all(end is not None for end, _ in ends):
            progress.goal = sum(max(0, (end or 0) - offset) for end, offset in ends)

    def run(self) -> None:
        """Print messages until an end is reached.

        Raises:
            CommandError: a partition cannot be read on; what is before was printed.
            BrokenPipeError: nobody reads what is printed.
        """
        while True:
            try:
                self._read()
                return
            except (FetchError, DamageError) as failure:
                if not self._skips_damage or not isinstance(failure.error, OF_ONE_MESSAGE):
                    raise self._explained(failure.partition, failure.offset, failure.error) from failure
                self._skip(failure)

    def _read(self) -> None:
        start = self._start
        track = Track(start.open, start.addresses, start.topic, start.cursors)
        lanes = Lanes([track], self._fetch_bytes)
        try:
            last = time.monotonic()
            step = min(_LOOK_SECONDS, self._timeout) if self._timeout is not None else _LOOK_SECONDS
            for item in lanes.sets(step):
                if item is not None:
                    self._printer.print(item[1])
                    if self._printer.left == 0:
                        return
                    last = time.monotonic()
                elif self._timeout is not None and time.monotonic() - last >= self._timeout:
                    self.timed_out = True
                    return
                else:
                    self._progress.idle()
                self._look_at_the_end()
        finally:
            lanes.close()

    def _skip(self, failure: FetchError | DamageError) -> None:
        """Let every partition go on behind what was printed of it, and this one behind the damage."""
        start = self._start
        with signals.waiting(), start.open(start.addresses[0]) as consumer:
            skip = find_end_of_damage(consumer, start.topic, failure.partition, failure.offset)
        if skip.end <= failure.offset:
            raise self._explained(failure.partition, failure.offset, failure.error) from failure
        why = str(failure.error).replace("\n", "; ")
        self._progress.say(f"skipped partition {failure.partition}, offsets {skip.start} to {skip.end}: {why}")
        self.skipped += 1
        self._printer.positions[failure.partition] = skip.end
        for cursor in start.cursors:
            cursor.offset = self._printer.positions[cursor.partition]

    def summary(self) -> None:
        """Print what was read, and where to go on."""
        positions = [
            f"{cursor.partition}:{self._printer.positions[cursor.partition]}"
            for cursor in self._start.cursors[:_SHOWN_PARTITIONS]
        ]
        more = ", …" if len(self._start.cursors) > _SHOWN_PARTITIONS else ""
        self._progress.summary(f"; next offset by partition: {', '.join(positions)}{more}")

    def raise_if_stuck(self) -> None:
        """Raise ``CommandError`` when the end was not to be reached."""
        if self._stuck:
            raise CommandError(
                f"stopped before the end of {self._start.topic}: {self._stuck}",
                "the partition takes no appends, and bytes that were not flushed are not visible",
                f"fastlog topics describe {self._start.topic} shows its state; the broker's log says why",
            )

    def _look_at_the_end(self) -> None:
        """Once a second: bring the ends down where the log will not reach them (its end was lost, or it is offline)."""
        waiting = [cursor for cursor in self._start.cursors if cursor.end is not None and not cursor.done]
        if not waiting or time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        try:
            with signals.waiting():
                by_number = self._start.described()
        except TransportError:
            return  # the lanes notice as well, and know how long to put up with it
        if by_number is None:
            return
        for cursor in waiting:
            known = by_number.get(cursor.partition)
            end = 0 if known is None else readable_end(known)
            if cursor.end is not None and end < cursor.end:
                cursor.end = end
                self._stuck = self._stuck or f"partition {cursor.partition} ends at {end}"

    def _explained(self, partition: int, offset: int, error: FastlogError) -> CommandError:
        topic = self._start.topic
        place = f"{topic}, partition {partition}, offset {offset}"
        what, *more = str(error).split("\n")
        why = "; ".join([what, *more])
        if isinstance(error, OF_ONE_MESSAGE):
            return CommandError(
                f"{type(error).__name__}: {place}",
                why,
                "go on behind it with --skip-message-on-error or --offset; if that offset is the start of a message,"
                " run fastlog fsck on the broker's log directory",
                EXIT_DAMAGED,
            )
        if isinstance(error, TransportError):
            return CommandError(
                what,
                "; ".join(more) or f"reading stopped at {place}",
                f"start the broker again and go on with --partition {partition} --offset {offset}",
                EXIT_UNREACHABLE,
            )
        if isinstance(error, LogError):
            return CommandError(f"cannot read {place}", why, "read through the broker with --local off", EXIT_DAMAGED)
        code = getattr(error, "code", None)
        return CommandError(
            f"fetch from {place} failed" + (f" with error {code}" if code is not None else ""),
            why,
            f"fastlog topics describe {topic} shows the partitions and their offsets",
            EXIT_FAILED,
        )
