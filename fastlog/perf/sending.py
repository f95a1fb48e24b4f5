"""The threads that send: each has a producer of its own, and loops that add next to nothing to what is measured."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastlog.errors import DeliveryError, FastlogError
from fastlog.perf.latencies import LatencyHistogram, Pacer, Timed
from fastlog.perf.payloads import Cycle, PayloadSlice
from fastlog.producer.producer import Producer

HOWS = ("send", "list", "sync")
_NAP_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class ReportInterval:
    """What one thread did since its last report; what 0.7 prints for each reporting interval."""

    thread: int
    time: float
    """Seconds since 1970 at its end."""
    seconds: float
    messages: int
    payload_bytes: int
    all_messages: int
    """Messages of this thread since it started; bytes below, too."""
    all_payload_bytes: int


OnInterval = Callable[[ReportInterval], object]


class IntervalReports:
    """Tells of every ``every`` messages of one thread."""

    def __init__(self, thread: int, every: int, tell: OnInterval) -> None:
        self.every = every
        self._thread = thread
        self._tell = tell
        self._last = (time.perf_counter(), 0, 0)

    def left(self, messages: int) -> int:
        """Messages until the next report."""
        return self.every - messages % self.every

    def due(self, messages: int, payload_bytes: int) -> None:
        """Tell, if a report is due at that many messages."""
        if messages % self.every == 0:
            self.tell(messages, payload_bytes)

    def tell(self, messages: int, payload_bytes: int) -> None:
        """Tell what came since the last report."""
        now = time.perf_counter()
        then, messages_then, bytes_then = self._last
        self._last = (now, messages, payload_bytes)
        self._tell(
            ReportInterval(
                self._thread,
                time.time(),
                now - then,
                messages - messages_then,
                payload_bytes - bytes_then,
                messages,
                payload_bytes,
            )
        )


class SendingThread:
    """One sending thread. The counts may be read from any thread."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        cycle: Cycle,
        messages: int,
        *,
        how: str,
        partition: int | None = None,
        rate: float | None = None,
        latencies: LatencyHistogram | None = None,
        reports: IntervalReports | None = None,
    ) -> None:
        self.producer = producer
        self.count = 0
        """Messages given to ``send``, which returned."""
        self.payload_bytes = 0
        self.sent_at: float | None = None
        """When the last ``send`` returned, on the clock of ``time.perf_counter``."""
        self.delivered_at: float | None = None
        """When everything was acknowledged, or without acknowledgements handed to the kernel."""
        self.error: BaseException | None = None
        self.sent = threading.Event()
        """The last ``send`` has returned, or there will be none."""
        self.finished = threading.Event()
        self._topic = topic
        self._cycle = cycle
        self._messages = messages
        self._how = how
        self._extra: dict[str, Any] = {} if partition is None else {"partition": partition}
        self._rate = rate
        self._latencies = latencies
        self._reports = reports
        self._stopping = False
        self._go = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fastlog-perf-sender", daemon=True)

    def start(self) -> None:
        """Start the thread, which waits for ``go``."""
        self._thread.start()

    def go(self) -> None:
        """Let the thread send."""
        self._go.set()

    def stop(self) -> None:
        """Ask the thread to stop; returns at once."""
        self._stopping = True
        self._go.set()

    def abort(self, seconds: float) -> None:
        """Close the producer, which may deliver for up to ``seconds`` more; a thread that waits in it returns."""
        self.stop()
        with contextlib.suppress(FastlogError):
            self.producer.close(seconds)

    def join(self, seconds: float) -> None:
        """Wait up to ``seconds`` for the thread to end."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, seconds))

    def _run(self) -> None:
        try:
            self._go.wait()
            if not self._stopping:
                self._send_all()
                self.sent_at = time.perf_counter()
                self.sent.set()
                if not self._stopping:
                    self.producer.flush()
                    self.delivered_at = time.perf_counter()
                    # Half-closes and waits for the broker's FIN: then the broker has handled all that arrived.
                    self.producer.close()
        except BaseException as error:
            if not self._stopping or isinstance(error, DeliveryError):
                self.error = error
        finally:
            self.sent.set()
            self.finished.set()

    def _send_all(self) -> None:
        if self._rate is not None:
            self._send_paced(Pacer(self._rate, time.monotonic_ns()))
            return
        send_part = self._part_function()
        reports = self._reports
        left = self._messages
        while left and not self._stopping:
            part = self._cycle.take(left if reports is None else min(left, reports.left(self.count)))
            send_part(part)
            left -= len(part.payloads)
            self.count += len(part.payloads)
            self.payload_bytes += part.size
            if reports is not None:
                reports.due(self.count, self.payload_bytes)

    def _part_function(self) -> Callable[[PayloadSlice], None]:
        if self._how == "sync":
            return self._send_and_wait
        if self._latencies is not None:
            return self._send_timed
        if self._extra:
            return self._send_by_hand
        return self._send_lists if self._how == "list" else self._send_each

    # The two that are measured: nothing in the loop but the call.

    def _send_each(self, part: PayloadSlice) -> None:
        send, topic = self.producer.send, self._topic
        for payload in part.payloads:
            send(topic, payload)

    def _send_lists(self, part: PayloadSlice) -> None:
        send, topic = self.producer.send, self._topic
        for batch in part.batches:
            send(topic, batch)

    def _send_by_hand(self, part: PayloadSlice) -> None:
        send, topic, partition = self.producer.send, self._topic, self._extra["partition"]
        for item in part.batches if self._how == "list" else part.payloads:
            send(topic, item, partition=partition)

    def _send_timed(self, part: PayloadSlice) -> None:
        latencies = self._latencies
        assert latencies is not None
        for batch in part.batches:
            self.producer.send(self._topic, batch, on_delivery=Timed(latencies, time.monotonic_ns()), **self._extra)

    def _send_and_wait(self, part: PayloadSlice) -> None:
        send, topic, latencies = self.producer.send, self._topic, self._latencies
        for batch in part.batches:
            began = time.monotonic_ns()
            send(topic, batch, **self._extra)
            if latencies is not None:
                latencies.add(time.monotonic_ns() - began, len(batch))

    def _send_paced(self, pacer: Pacer) -> None:
        """Send what is due, together when several messages are; each has its own intended time."""
        latencies, reports = self._latencies, self._reports
        assert latencies is not None
        sync = self._how == "sync"
        while self.count < self._messages and not self._stopping:
            due = min(self._messages, pacer.due(time.monotonic_ns())) - self.count
            if due <= 0:
                wait = (pacer.intended_ns(self.count) - time.monotonic_ns()) / 1e9
                time.sleep(max(0.0, min(_NAP_SECONDS, wait)))
                continue
            part = self._cycle.take(due if reports is None else min(due, reports.left(self.count)))
            timed = Timed(latencies, pacer.intended_ns(self.count), pacer.step_ns)
            for delivery in self.producer.send(
                self._topic, part.payloads, on_delivery=None if sync else timed, **self._extra
            ):
                timed(delivery)
            self.count += len(part.payloads)
            self.payload_bytes += part.size
            if reports is not None:
                reports.due(self.count, self.payload_bytes)
