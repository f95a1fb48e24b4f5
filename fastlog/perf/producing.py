"""Measuring producers: ``measure_producer(options)`` sends, waits until the broker shows every byte, and says how long.

Three moments on one clock, which starts with the first ``send``:

- *sent*: the last ``send`` returned;
- *delivered*: everything was acknowledged, or without acknowledgements handed to the kernel;
- *visible*, the one that counts: the broker's log end, for ``acks="flushed"`` its high watermark, shows every byte.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fastlog import codecs
from fastlog.arguments import INT32
from fastlog.client.addresses import Address
from fastlog.errors import FastlogError
from fastlog.message import HEADER_BYTES
from fastlog.perf.figures import MEGABYTE
from fastlog.perf.latencies import LatencyHistogram
from fastlog.perf.payloads import Cycle, lines_of, random_payloads
from fastlog.perf.producer_options import (
    CLOCKS,
    ProducerFigures,
    ProducerOptions,
    SendingProgress,
)
from fastlog.perf.readback import count_messages
from fastlog.perf.sending import IntervalReports, OnInterval, ReportInterval, SendingThread
from fastlog.perf.timeline import Timeline
from fastlog.perf.visibility import Ends, LogEnds, PartitionEnds
from fastlog.producer.config import ProducerConfig
from fastlog.producer.producer import Producer

__all__ = [
    "CLOCKS",
    "MessagesMissingError",
    "ProducerFigures",
    "ProducerOptions",
    "ProducerRun",
    "ReportInterval",
    "SendingProgress",
    "measure_producer",
]

_ENTRY_BYTES = HEADER_BYTES[1]
_LOOK_SECONDS = 0.05
_POLL_SECONDS = 0.001
_STOP_SECONDS = 0.1  # all of a stop takes less than 200 ms
_LAST_ASK_SECONDS = 0.05


class MessagesMissingError(FastlogError):
    """Not everything that was sent is in the log."""

    def __init__(self, text: str, missing: int, unit: str) -> None:
        super().__init__(text)
        self.missing = missing
        self.unit = unit
        """``bytes`` of the log, or ``messages`` where compression makes the bytes unknown."""


def measure_producer(options: ProducerOptions, on_interval: OnInterval | None = None) -> ProducerFigures:
    """Send, wait until everything is visible, and return the figures. Raises as ``ProducerRun.run``."""
    return ProducerRun(options, on_interval=on_interval).run()


@dataclass
class _RunState:
    """What a run has found out so far: its beginning and end, and where the logs ended before and after."""

    addresses: list[Address] = field(default_factory=list)
    started: float = 0.0
    started_ms: int = 0
    ended: float | None = None
    cpu_started: float = 0.0
    cpu_ended: float = 0.0
    ended_ms: int = 0
    base: Ends = field(default_factory=Ends)
    base_positions: dict[tuple[object, ...], dict[int, PartitionEnds]] = field(default_factory=dict)
    ends: Ends | None = None
    clock: str = "log end"
    complete: bool = False
    notes: list[str] = field(default_factory=list)


class ProducerRun:
    """One measurement; ``figures()`` has what there is, also after ``run`` was interrupted or failed. Used once.

    For the main thread: whatever exception interrupts ``run`` (Ctrl-C) comes out of it within 200 ms.
    """

    def __init__(
        self,
        options: ProducerOptions,
        *,
        on_interval: OnInterval | None = None,
        on_progress: Callable[[SendingProgress], object] | None = None,
    ) -> None:
        """``on_interval`` is called in the sending threads, ``on_progress`` in that of ``run``, every 50 ms or so."""
        self._options = options
        self._on_interval = on_interval if options.reporting_interval else None
        self._on_progress = on_progress
        self._state = _RunState()
        self._senders: list[SendingThread] = []
        self._stopped = False
        self._timeline: Timeline | None = None
        self._latencies = (
            [LatencyHistogram() for _ in range(options.threads)] if options.rate or options.latency else []
        )
        self._exact = options.compression_codec == codecs.NONE

    def run(self) -> ProducerFigures:
        """Do it.

        Raises:
            MessagesMissingError: the log stood still before it had everything, or messages were given up.
            TransportError: a broker cannot be reached, or none is registered.
            CoordinationError: ZooKeeper does not answer.
            FastlogError: what else a producer refuses: a message that is too large, a partition that is not there.
        """
        options = self._options
        payloads = self._payloads()
        addresses = self._state.addresses = options.addresses()
        ends = LogEnds(addresses, options.topic, options.partition, options.connect_timeout)
        try:
            self._state.clock = self._clock(ends.is_plain)
            if options.warm_up:
                self._warm_up(payloads, ends)
            self._remember(ends)
            self._senders = self._make(payloads, options.messages)
            for sender in self._senders:
                sender.start()
            self._state.started_ms = time.time_ns() // 1_000_000
            self._state.cpu_started = time.process_time()
            self._state.started = time.perf_counter()
            self._timeline = Timeline(self._state.started, options.sample_seconds)
            for sender in self._senders:
                sender.go()
            self._wait_sent()
            self._wait_visible(ends)
            self._state.ended_ms = time.time_ns() // 1_000_000
            self._state.cpu_ended = time.process_time()
            self._wait_closed()
            self._check_counts(ends)
            self._state.complete = True
        except Exception as error:
            raise self._explained(error) from error
        finally:
            self._stop()
            ends.close()
        return self.figures()

    def figures(self) -> ProducerFigures:
        """The figures as far as they are known now; also while the run goes on."""
        state, options = self._state, self._options
        now = time.perf_counter() if state.ended is None else state.ended
        messages = sum(sender.count for sender in self._senders)
        payload_bytes = sum(sender.payload_bytes for sender in self._senders)
        sent = [sender.sent_at for sender in self._senders if sender.sent_at is not None]
        delivered = [sender.delivered_at for sender in self._senders if sender.delivered_at is not None]
        stats = [sender.producer.stats() for sender in self._senders]
        if self._timeline is not None:
            self._timeline.look(now, messages, last=True)
        latencies = None
        if self._latencies:
            latencies = LatencyHistogram()
            for found in self._latencies:
                latencies.merge(found)
        expected = payload_bytes + _ENTRY_BYTES * messages if self._exact else None
        grown = None if state.ends is None else self._grown(state.ends)
        notes = list(state.notes)
        duplicates = sum(item.possible_duplicates for item in stats)
        if state.complete and expected is not None and grown is not None and grown > expected:
            why = "messages were sent again" if duplicates else "somebody else writes to it"
            notes.append(
                f"the log grew by {grown - expected} bytes more than was sent ({why}): the time may be too short"
            )
        return ProducerFigures(
            options=options,
            complete=state.complete,
            started_ms=state.started_ms,
            ended_ms=state.ended_ms or time.time_ns() // 1_000_000,
            messages=messages,
            payload_bytes=payload_bytes,
            seconds=max(0.0, now - state.started) if state.started else 0.0,
            sent_seconds=max(sent) - state.started if len(sent) == len(self._senders) and sent else None,
            delivered_seconds=max(delivered) - state.started
            if len(delivered) == len(self._senders) and delivered
            else None,
            clock=state.clock,
            log_bytes=grown,
            expected_bytes=expected,
            possible_duplicates=duplicates,
            connections=sum(item.connections for item in stats),
            notes=tuple(notes),
            timeline=tuple(self._timeline.points) if self._timeline is not None else (),
            latencies=latencies,
            cpu_seconds=max(0.0, state.cpu_ended - state.cpu_started),
        )

    # -- getting ready -------------------------------------------------------------------------------------------------

    def _payloads(self) -> list[bytes]:
        options = self._options
        if options.payload_file is None:
            return random_payloads(options.message_size, vary=options.vary_message_size, seed=options.seed)
        lines, cut = lines_of(options.payload_file)
        if cut:
            self._state.notes.append(f"of {options.payload_file} the first {len(lines)} lines are sent, over and over")
        return lines

    def _clock(self, plain: bool) -> str:
        if not self._exact:
            return "reading back" if plain else "log end at close"
        if plain:
            return "offsets"
        return "high watermark" if self._options.acks == "flushed" else "log end"

    def _make(self, payloads: list[bytes], messages: int) -> list[SendingThread]:
        options = self._options
        config = ProducerConfig(
            broker_list=options.brokers or None,
            zk_connect=options.zk_connect or None,
            producer_type="sync" if options.how == "sync" else "async",
            acks=options.acks,
            compression=str(options.compression_codec),
            max_message_bytes=INT32 - MEGABYTE,  # the broker's limit holds
            batch_messages=options.batch_size,
            queue_messages=max(10_000, 4 * options.batch_size),
            queue_time_ms=options.queue_time_ms,
            # As 0.7's tool: a change of the connection in the middle is not what is measured.
            reconnect_interval_sends=None,
            reconnect_time_interval_ms=None,
            connect_timeout_ms=max(1, int(options.connect_timeout * 1000)),
            socket_timeout_ms=max(1, int(options.timeout * 1000)),
            delivery_timeout_ms=max(1, int(options.timeout * 1000)),
            close_timeout_ms=max(1, int(options.timeout * 1000)),
        )
        share, rest = divmod(messages, options.threads)
        made = []
        for number in range(options.threads):
            reports = None
            if self._on_interval is not None and options.reporting_interval is not None:
                reports = IntervalReports(number, options.reporting_interval, self._on_interval)
            sender = SendingThread(
                Producer(config),
                options.topic,
                Cycle(payloads, options.batch_size, place=number / options.threads),
                share + (number < rest),
                how=options.how,
                partition=options.partition,
                rate=options.rate / options.threads if options.rate else None,
                latencies=self._latencies[number] if self._latencies else None,
                reports=reports,
            )
            made.append(sender)
        return made

    def _warm_up(self, payloads: list[bytes], ends: LogEnds) -> None:
        """The same way, and the same wait, before anything counts."""
        self._remember(ends)
        report, self._on_interval = self._on_interval, None
        self._senders = self._make(payloads, self._options.warm_up)
        for sender in self._senders:
            sender.start()
            sender.go()
        self._wait_sent()
        self._wait_visible(ends)
        self._wait_closed()
        self._on_interval = report
        for number in range(len(self._latencies)):
            self._latencies[number] = LatencyHistogram()
        self._senders = []
        self._state.ended = self._state.ends = None

    def _remember(self, ends: LogEnds) -> None:
        state = self._state
        state.base_positions = ends.positions()
        state.base = _sum(state.base_positions)

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _wait_sent(self) -> None:
        """Return when the last ``send`` has returned."""
        progress = _Stillness(self._options)
        for sender in self._senders:
            while not sender.sent.wait(_LOOK_SECONDS):
                self._look(progress)
        self._look(progress)

    def _look(self, progress: _Stillness) -> None:
        """Note how far it is; raise what went wrong in a thread."""
        now = time.perf_counter()
        count = sum(sender.count for sender in self._senders)
        if self._timeline is not None:
            self._timeline.look(now, count)
            if self._on_progress is not None:
                size = sum(sender.payload_bytes for sender in self._senders)
                self._on_progress(SendingProgress(count, size, now - self._state.started, tuple(self._latencies)))
        for sender in self._senders:
            if sender.error is not None:
                raise sender.error
        stats = [sender.producer.stats() for sender in self._senders]
        failed = sum(item.failed for item in stats)
        if failed:
            raise MessagesMissingError(f"{failed} messages were given up", failed, "messages")
        progress.check((count, *(item.delivered for item in stats), *(item.accepted for item in stats)))

    def _wait_visible(self, ends: LogEnds) -> None:
        """Return when everything is visible, having noted when that was."""
        state = self._state
        progress = _Stillness(self._options)
        if state.clock == "reading back":
            self._wait_closed()
            self._read_back(ends)
            state.ended = time.perf_counter()
            return
        wanted = sum(sender.payload_bytes + _ENTRY_BYTES * sender.count for sender in self._senders)
        if not self._exact:
            self._wait_closed()
            state.ends = ends.ask()
            wanted = state.ends.log_end - state.base.log_end
        while True:
            found = ends.ask_or_none()
            now = time.perf_counter()
            if found is not None:
                state.ends = found
                if self._grown(found) >= wanted:
                    break
            self._look(progress)
            progress.check(found)
            time.sleep(_POLL_SECONDS)
        state.ended = now

    def _grown(self, ends: Ends) -> int:
        base = self._state.base
        if self._options.acks == "flushed":
            # From the old log end: bytes of others that were not flushed yet are not ours.
            return ends.high_watermark - base.log_end
        return ends.log_end - base.log_end

    def _wait_closed(self) -> None:
        progress = _Stillness(self._options)
        for sender in self._senders:
            while not sender.finished.wait(_LOOK_SECONDS):
                self._look(progress)
            if sender.error is not None:
                raise sender.error

    def _check_counts(self, ends: LogEnds) -> None:
        """With compression nobody knows beforehand how many bytes there must be: count the messages."""
        if not self._exact and self._state.clock != "reading back":
            self._read_back(ends)

    def _read_back(self, ends: LogEnds) -> None:
        options = self._options
        sent = sum(sender.count for sender in self._senders)
        found = count_messages(ends, options.topic, self._state.base_positions, sent, options.timeout)
        self._state.ends = ends.ask()
        if found < sent:
            raise MessagesMissingError(f"the log has {found} messages of {sent}", sent - found, "messages")
        if found > sent:
            self._state.notes.append(f"the log has {found - sent} messages more than were sent")

    # -- ending --------------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        """End what still runs, within ``_STOP_SECONDS`` or so; when everything is done, that is nothing."""
        if self._state.complete or self._stopped:
            return
        self._stopped = True
        for sender in self._senders:
            sender.stop()
        closers = [
            threading.Thread(target=sender.abort, args=(_STOP_SECONDS / 2,), daemon=True) for sender in self._senders
        ]
        deadline = time.perf_counter() + _STOP_SECONDS
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join(max(0.0, deadline - time.perf_counter()))
        for sender in self._senders:
            sender.join(deadline - time.perf_counter())
        self._state.ended = time.perf_counter()
        self._state.ends = self._last_ends() or self._state.ends

    def _last_ends(self) -> Ends | None:
        """How far the log is at the end of a run that did not get through, if the broker tells quickly."""
        options = self._options
        try:
            ends = LogEnds(self._state.addresses, options.topic, options.partition, _LAST_ASK_SECONDS)
        except FastlogError:
            return None
        try:
            return ends.ask_or_none()
        finally:
            ends.close()

    def _explained(self, error: Exception) -> Exception:
        """Loss and standstill with the figures that say how much is missing; other errors as they are."""
        if not isinstance(error, MessagesMissingError | _StoodStill):
            lost = getattr(error, "messages", None)
            if not isinstance(error, FastlogError) or not isinstance(lost, int):
                return error
        self._stop()
        figures = self.figures()
        why = str(error).partition("\n")[0]
        todo = "see the broker's log"
        if self._options.acks == "none":
            todo += (
                "; without acknowledgements what is on its way when a connection breaks is lost: use --acks appended"
            )
        failed = getattr(error, "missing", getattr(error, "messages", 0))
        if figures.expected_bytes is None:
            missing, unit = failed, "messages"
            what = f"{missing} of {figures.messages} messages are missing in the log"
        else:
            missing, unit = figures.missing_bytes, "bytes"
            what = f"{missing} of {figures.expected_bytes} bytes ({figures.messages} messages) are missing in the log"
            if figures.log_bytes is None:
                what += ", as far as is known: the broker does not answer"
            elif not missing:
                what = f"the log has all {figures.expected_bytes} bytes, but {failed} messages count as failed"
        return MessagesMissingError(f"{what}\n{why}\n{todo}", missing, unit)


class _StoodStill(FastlogError):
    """Nothing moved for as long as it may."""


class _Stillness:
    """Raises when what it is shown stays the same for too long."""

    def __init__(self, options: ProducerOptions) -> None:
        self._seconds = options.timeout + (2 * options.threads / options.rate if options.rate else 0.0)
        self._seen: dict[type, object] = {}
        self._since = time.monotonic()

    def check(self, seen: object) -> None:
        """Values of one type are compared with those before; None is no sign of life."""
        now = time.monotonic()
        if seen is not None and self._seen.get(type(seen)) != seen:
            self._seen[type(seen)] = seen
            self._since = now
        elif now - self._since >= self._seconds:
            raise _StoodStill(f"nothing moved for {self._seconds:g} s")


def _sum(positions: dict[tuple[object, ...], dict[int, PartitionEnds]]) -> Ends:
    items = [item for found in positions.values() for item in found.values()]
    return Ends(sum(item.log_end for item in items), sum(item.high_watermark for item in items))
