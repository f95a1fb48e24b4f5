"""One run of ``fastlog produce``: lines to a producer, and what became of each of them."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import time
from collections.abc import Sequence
from pathlib import Path

from fastlog.counts import counted
from fastlog.errors import DeliveryError, FastlogError, TransportError, WrongPartitionError
from fastlog.producer import Producer
from fastlog.producer.hooks import PartitionChoice
from fastlog.tools import signals
from fastlog.tools.deliveries import NOT_ACKNOWLEDGED, Deliveries, Losses, is_refusal, size_of
from fastlog.tools.destination import Destination
from fastlog.tools.keys import KeyedLines, KeyRule, LineGroup
from fastlog.tools.lines import LENGTH, NEWLINE, LineBatches, PrefixedBatches
from fastlog.tools.progress import ConsoleProgress
from fastlog.tools.report import EXIT_DONE, EXIT_FAILED, EXIT_UNREACHABLE, CommandError, note

PROMISES = {
    "none": "nothing (a 0.7 produce has no answer)",
    "appended": "appended (survives the broker's processes; a power loss takes what was not flushed)",
    "flushed": "flushed (on the broker's disk)",
}
_BATCH_BYTES = 256 * 1024  # read and handed over at once; requests are cut by the producer
_ON_THEIR_WAY_BYTES = 16 * 2**20
_STOP_SECONDS = 5
_QUIET_SECONDS = 0.15
_LEAVE_SECONDS = 0.1
_MOST_SORTS = 5


class LineSender:
    """Sends the lines of files, and knows which of them have no answer. For the main thread."""

    def __init__(
        self,
        destination: Destination,
        topic: str,
        partition: PartitionChoice,
        rule: KeyRule | None,
        progress: ConsoleProgress,
        delimiter: bytes | None = NEWLINE,
        *,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        has_nulls: bool = False,
    ) -> None:
        """``rule``: where the keys are, if keys choose the partitions. ``delimiter`` None: lengths are in its place.

        Of records alone, ``headers`` are those of each, and with ``has_nulls`` what is empty, key or line, is null.
        """
        self.as_json = False
        """The summary is an object on stdout, too."""
        self.max_messages: int | None = None
        """How many messages are sent at most; None: all of the input."""
        self._headers = headers or None
        self._has_nulls = has_nulls
        self._turn = 0
        self._destination = destination
        self._topic = topic
        self._partition = partition
        self._progress = progress
        if destination.acks == "none":
            progress.verb = f"{NOT_ACKNOWLEDGED}:"
        # A read goes to one partition: of records this side chooses among them.
        read_bytes = min(_BATCH_BYTES, destination.config.batch_bytes) if destination.of_records else _BATCH_BYTES
        limits = read_bytes, destination.max_line_bytes
        self._batches = PrefixedBatches(*limits) if delimiter is None else LineBatches(*limits, delimiter)
        # behind each message, as part of what is read and not of what is sent
        self._deliveries = Deliveries(LENGTH.size if delimiter is None else len(delimiter), self._batches.unit)
        self._losses = Losses("fastlog produce", progress.say)
        producer = self._producer = Producer(destination.config)
        self._keyed = (
            None
            if rule is None
            else KeyedLines(
                rule, lambda: self._places(producer), of_records=destination.of_records, has_nulls=has_nulls
            )
        )

    def run(self, files: Sequence[str]) -> int:
        """Send the lines of all files, wait for what was promised, and print a summary; returns the exit code.

        Raises:
            CommandError: a file cannot be read, or lines were not delivered.
            signals.Interrupted: SIGINT or SIGTERM came.
        """
        trouble: BaseException | None = None
        with signals.deferred(), self._losses:
            try:
                self._progress.goal = _total_bytes(files)
                for name in files:
                    self._send_file(name)
                    if self._deliveries.error is not None or self.max_messages == 0:
                        break
            except _FailedMeanwhile:
                pass  # said below, with the lines
            except (FastlogError, signals.Interrupted) as reason:
                trouble = reason
            try:
                self._finish(trouble)
            except (FastlogError, signals.Interrupted) as reason:
                trouble = trouble or reason
            finally:
                signals.interrupt_after(0)
            self._deliveries.give_up()
            self._summarize()
        if trouble is not None:
            raise trouble
        self._raise_failure()
        return EXIT_FAILED if self._batches.too_long else EXIT_DONE

    def _send_file(self, name: str) -> None:
        shown = "stdin" if name == "-" else name
        fd = -1
        try:
            fd = 0 if name == "-" else os.open(name, os.O_RDONLY)
            for lines in self._batches.read(fd, shown, self._wait_input):
                self._send_lines(shown, lines if self.max_messages is None else lines[: self.max_messages])
                self._show_progress()
                if self.max_messages is not None:
                    self.max_messages -= min(len(lines), self.max_messages)
                if self._deliveries.error is not None or self.max_messages == 0:
                    return
        except OSError as error:
            raise CommandError(f"cannot read {shown}", error.strerror or str(error), "check the file") from error
        finally:
            if fd > 0:
                os.close(fd)

    def _show_progress(self) -> None:
        """Maybe show what was acknowledged; what was only read and sent does not count."""
        progress, deliveries = self._progress, self._deliveries
        progress.reached = self._batches.given_bytes - deliveries.pending_bytes
        progress.count, progress.size = deliveries.delivered, deliveries.delivered_bytes
        progress.idle()

    def _send_lines(self, name: str, lines: list[bytes]) -> None:
        first = self._batches.first_line
        keyless = None
        if self._keyed is None:
            numbers = range(first, first + len(lines))
            payloads: list[bytes | None] = [line or None for line in lines] if self._has_nulls else [*lines]
            self._send_group(name, LineGroup(self._anywhere(), payloads, numbers))
        else:
            keyless = self._send_sorted(name, self._keyed, lines, first)
        if self._destination.waits:
            with signals.waiting():
                self._producer.flush()
        if keyless is not None:
            raise CommandError(
                f"{name}, {self._batches.unit} {keyless} has no key",
                "the separator is not in it, or it has too few fields; the lines behind it were not sent",
                "check --key-separator and --key-field, or let such lines go anywhere with --keyless any",
            )

    def _send_sorted(self, name: str, keyed: KeyedLines, lines: list[bytes], first: int) -> int | None:
        """Send lines by their keys; the number of the first one without a key, if that is an error."""
        todo: Sequence[int] = range(first, first + len(lines))
        keyless = None
        for turn in range(_MOST_SORTS):
            with signals.waiting():
                groups, found = keyed.sort([lines[number - first] for number in todo], todo, self._anywhere())
            keyless = keyless or found
            again: list[int] = []
            for group in groups:
                try:
                    self._send_group(name, group)
                except WrongPartitionError:  # its broker has left ZooKeeper since
                    if not self._destination.follows_zookeeper or turn + 1 == _MOST_SORTS:
                        raise
                    again += group.numbers
            if not again:
                break
            todo = sorted(again)
        return keyless

    def _send_group(self, name: str, group: LineGroup) -> None:
        self._deliveries.wait_room(_ON_THEIR_WAY_BYTES, self._show_progress)
        call = self._deliveries.begin(name, group.payloads, group.numbers, size_of(group.payloads))
        now = round(time.time() * 1000) if self._destination.of_records else None
        try:
            with signals.waiting():
                self._producer.send(
                    self._topic,
                    group.payloads,
                    partition=group.place,
                    on_delivery=call,
                    headers=self._headers,
                    timestamp=now,
                    keys=group.keys,
                )
        except WrongPartitionError:
            self._deliveries.cancel(call)
            raise

    def _anywhere(self) -> PartitionChoice:
        """Where lines without a key go now: records to each partition in turn, messages where the producer sees fit."""
        if not self._destination.of_records:
            return self._partition
        self._turn += 1
        return self._destination.places[self._turn % len(self._destination.places)]

    def _places(self, producer: Producer) -> Sequence[PartitionChoice]:
        return producer.partitions(self._topic) if self._destination.follows_zookeeper else self._destination.places

    def _wait_input(self, fd: int) -> None:
        """Return when there is input; also, to be told, when something failed meanwhile."""
        with signals.waiting():
            ready, _, _ = select.select([fd, self._deliveries.woken], [], [])
        if fd not in ready:
            raise _FailedMeanwhile(str(self._deliveries.error))

    def _finish(self, trouble: BaseException | None) -> None:
        """Wait for what was handed over: after a signal not for long, and a second signal ends that."""
        producer = self._producer
        try:
            with signals.waiting():
                if isinstance(trouble, signals.Interrupted):
                    signals.interrupt_after(_STOP_SECONDS)
                    self._flush_after_signal()
                else:
                    producer.flush()
                # Without acknowledgements, only the broker's closing says that it has handled everything.
                producer.close()
        except DeliveryError:
            pass  # every call was told
        finally:
            with contextlib.suppress(DeliveryError):
                producer.close(_LEAVE_SECONDS)

    def _flush_after_signal(self) -> None:
        try:
            self._producer.flush(_QUIET_SECONDS)
        except TransportError:
            note("waiting for the broker to answer for what was sent; a second signal ends that")
            self._producer.flush(_STOP_SECONDS)

    def _summarize(self) -> None:
        deliveries, batches = self._deliveries, self._batches
        parts = [f"; promised: {PROMISES[self._destination.acks]}"]
        if self._destination.is_once:
            parts.append(", each once")
        failed = deliveries.refused + batches.too_long
        if failed:
            parts.append(f"; failed: {failed}")
        if deliveries.unknown:
            parts.append(f"; sent and not known to be stored: {deliveries.unknown}")
        duplicates = self._producer.stats().possible_duplicates
        if duplicates:
            parts.append(f"; possible duplicates: {duplicates}")
        self._progress.count, self._progress.size = deliveries.delivered, deliveries.delivered_bytes
        found = {
            "topic": self._topic,
            "acks": self._destination.acks,
            "acknowledged": self._destination.acks != "none",
            "failed": failed,
            "too_long": batches.too_long,
            "unknown": deliveries.unknown,
            "possible_duplicates": duplicates,
            "lost": [{"input": name, "first": first, "last": last} for name, first, last in deliveries.lost_ranges()],
        }
        self._progress.summary("".join(parts), found if self.as_json else None)
        if batches.too_long:
            note(
                f"left out as too long: {batches.too_long} {batches.unit}s, the first at {batches.first_too_long};"
                f" the limit is {self._destination.max_line_bytes} bytes"
                + (", by --max-message-bytes" if self._destination.acks == "none" else "")
            )
        lost = deliveries.lost_lines()
        if lost:
            note(f"not acknowledged: {lost}")

    def _raise_failure(self) -> None:
        deliveries = self._deliveries
        error = deliveries.error
        what, *more = str(error).split("\n")
        if is_refusal(error):
            raise CommandError(
                f"the broker refused {counted(deliveries.refused, 'message')} with error {getattr(error, 'code', '')}",
                "; ".join([what, *more]),
                "see fastlog topics describe, and the broker's log; the summary says which lines to send again",
            )
        if error is not None:
            raise CommandError(
                f"{counted(deliveries.unknown, 'message', 'was')} not acknowledged",
                "; ".join([what, *more]),
                "see that the broker runs; the summary says which lines to send again",
                EXIT_UNREACHABLE,
            )
        if self._losses.first:
            raise CommandError(
                "messages may be lost: a connection broke, and nothing was to be acknowledged",
                self._losses.first,
                "check --topic and --partition; see what was stored with fastlog consume, or use --acks appended",
            )


class _FailedMeanwhile(FastlogError):
    """Messages failed while nothing came from the input."""


def _total_bytes(files: Sequence[str]) -> int:
    """Bytes of all the files, or 0 when one of them is no file on a disk."""
    total = 0
    for name in files:
        try:
            found = os.fstat(0) if name == "-" else Path(name).stat()
        except OSError:
            return 0
        if not stat.S_ISREG(found.st_mode):
            return 0
        total += found.st_size
    return total
