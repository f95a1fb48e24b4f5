"""A measurement of consumers of one broker, in threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

from fastlog.client.addresses import Address, parse_brokers
from fastlog.consumer.simple import SimpleConsumer
from fastlog.errors import ConsumerTimeout, TransportError, WrongPartitionError
from fastlog.perf._sizes import total_bytes
from fastlog.perf.consumer_options import OF_FILES, ConsumerFigures, ConsumerOptions
from fastlog.perf.reading import LocalReadError, MessageQuota, ReadingThread
from fastlog.perf.sending import IntervalReports, OnInterval
from fastlog.perf.timeline import Timeline
from fastlog.perf.visibility import PartitionEnds, TopicOfBroker

_MOST_THREADS = 10  # 0.7's number
_LOOK_SECONDS = 0.05
_STOP_SECONDS = 0.1
_FINISH_SECONDS = 10.0
_LOCAL_WAIT_SECONDS = 0.2


class _BrokerReader(ReadingThread):
    """Reads some partitions of one broker with a consumer of its own."""

    def __init__(
        self,
        run: ConsumerRun,
        number: int,
        address: Address,
        starts: dict[int, PartitionEnds],
        share: MessageQuota,
        tail: bool,
        reports: IntervalReports | None,
    ) -> None:
        options = run.options
        super().__init__(number, share, reports)
        self._options = options
        self._starts = starts
        self._wait: float | None = None if tail else 0.0
        self._consumer = SimpleConsumer(
            address.host,
            address.port,
            timeout=max(options.connect_timeout, options.timeout),
            fetch_bytes=options.fetch_bytes,
            receive_buffer_bytes=options.socket_buffer_bytes,
            local=OF_FILES.get(options.mode, "off"),
        )

    def _let_go(self) -> None:
        self._consumer.close()

    def _read(self) -> None:
        read: dict[str, Callable[[int, PartitionEnds], None]] = {
            "messages": self._read_messages,
            "batches": self._read_batches,
            "numpy": self._read_numpy,
            "arrow": self._read_arrow,
            "local": self._read_local,
            "map": self._read_local,
        }
        for partition, start in self._starts.items():
            if self._done():
                break
            read[self._options.mode](partition, start)

    def _lists(self, partition: int, start: PartitionEnds) -> Iterator[list[bytes]]:
        found = self._consumer.batches(self._options.topic, partition, start.log_start, wait=self._wait)
        with closing(found):  # type: ignore[type-var]
            for batch in found:
                yield from self._pieces(batch)
                if self._done():
                    return

    # What is measured. Counting is done per list: for each message it would cost as much as reading one.

    def _read_messages(self, partition: int, start: PartitionEnds) -> None:
        for batch in self._lists(partition, start):
            for _ in batch:
                pass
            self._note(len(batch), total_bytes(batch))

    def _read_batches(self, partition: int, start: PartitionEnds) -> None:
        for batch in self._lists(partition, start):
            self._note(len(batch), total_bytes(batch))

    def _read_numpy(self, partition: int, start: PartitionEnds) -> None:
        found = self._consumer.numpy_batches(self._options.topic, partition, start.log_start, wait=self._wait)
        with closing(found):  # type: ignore[type-var]
            for batch in found:
                self._note_lengths(batch.lengths)
                if self._done():
                    return

    def _read_arrow(self, partition: int, start: PartitionEnds) -> None:
        found = self._consumer.numpy_batches(self._options.topic, partition, start.log_start, wait=self._wait)
        with closing(found):  # type: ignore[type-var]
            for batch in found:
                batch.to_arrow()
                self._note_lengths(batch.lengths)
                if self._done():
                    return

    def _read_local(self, partition: int, start: PartitionEnds) -> None:
        consumer, topic = self._consumer, self._options.topic
        offset = start.log_start
        while not self._done() and (self._wait is None or offset < start.log_end):
            batch = consumer.fetch_numpy(topic, partition, offset, wait=_LOCAL_WAIT_SECONDS)
            if not len(batch):
                continue  # not flushed yet, or nothing there yet
            self.source, reason = consumer.source_of(topic, partition)
            if self.source == "socket":
                raise LocalReadError(
                    f"the segment files of {topic}, partition {partition}, are not read here\n{reason}\n"
                    "run it on the broker's machine as a user who may read its files, or use --mode numpy"
                )
            self._note_lengths(batch.lengths)
            offset = batch.next_offset


class ConsumerRun:
    """One measurement; ``figures()`` has what there is, also after ``run`` was interrupted or failed. Used once.

    For the main thread: whatever exception interrupts ``run`` (Ctrl-C) comes out of it within 200 ms.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        *,
        on_interval: OnInterval | None = None,
        on_progress: Callable[[int, int], object] | None = None,
    ) -> None:
        """``on_interval`` is called in the reading threads, ``on_progress`` (messages, payload bytes) in that of
        ``run``, every 50 ms or so."""
        self.options = options
        self._on_interval = on_interval if options.reporting_interval else None
        self._on_progress = on_progress
        self._readers: Sequence[ReadingThread] = ()
        self._timeline: Timeline | None = None
        self._partitions: tuple[int | str, ...] = ()
        self._join_seconds = 0.0
        self._notes: list[str] = []
        self._started = 0.0
        self._started_ms = 0
        self._ended: float | None = None
        self._complete = False

    def run(self) -> ConsumerFigures:
        """Do it. With fewer messages than wanted the figures are not ``complete``; that is no exception.

        Raises:
            TransportError: no broker can be reached, or it went away.
            WrongPartitionError: the partition does not exist.
            InvalidMessageError: a message is damaged; what came before it is counted.
            LocalReadError: mode ``local`` or ``map``, and the files cannot be read.
            MissingDependencyError: mode ``arrow`` without pyarrow.
        """
        options = self.options
        share = MessageQuota(options.messages)
        tail = self._prepare(share)
        self._started_ms = time.time_ns() // 1_000_000
        self._started = time.perf_counter()
        self._timeline = Timeline(self._started, options.sample_seconds)
        try:
            self._start(share)
            came = self._wait(share, tail)
            self._complete = share.is_empty if options.messages is not None else came or tail
        finally:
            self._stop()
        return self.figures()

    def _prepare(self, share: MessageQuota) -> bool:
        """Everything before the clock starts; whether to wait for more at the end of the log."""
        options = self.options
        tail = (options.messages is not None and options.timeout > 0) or options.from_latest
        address, positions = self._find(tail)
        self._partitions = tuple(sorted(positions))
        threads = options.threads or min(_MOST_THREADS, len(positions)) or 1
        if tail and threads < len(positions):
            tail = False
            self._notes.append(f"{threads} threads read {len(positions)} partitions one after another, to their ends")
        numbers = sorted(positions)
        self._readers = [
            _BrokerReader(
                self,
                number,
                address,
                {partition: positions[partition] for partition in numbers[number::threads]},
                share,
                tail,
                self._reports(number),
            )
            for number in range(min(threads, len(positions)))
        ]
        return tail

    def _reports(self, number: int) -> IntervalReports | None:
        if self._on_interval is None or self.options.reporting_interval is None:
            return None
        return IntervalReports(number, self.options.reporting_interval, self._on_interval)

    def _start(self, share: MessageQuota) -> None:
        for reader in self._readers:
            reader.start()

    def _is_over(self, share: MessageQuota) -> bool:
        """Whether there is nothing more to wait for."""
        return share.is_empty

    def figures(self) -> ConsumerFigures:
        """The figures as far as they are known now; also while the run goes on."""
        now = time.perf_counter() if self._ended is None else self._ended
        messages, payload_bytes = self._counts()
        last = max([self._started, *(reader.last_at for reader in self._readers)])
        if self._timeline is not None and messages:
            self._timeline.look(last, messages, last=True)
        sources = {reader.source for reader in self._readers if reader.count}
        return ConsumerFigures(
            options=self.options,
            complete=self._complete,
            started_ms=self._started_ms,
            ended_ms=self._started_ms + round((now - self._started) * 1000),
            messages=messages,
            payload_bytes=payload_bytes,
            seconds=(last if messages else now) - self._started,
            idle_seconds=now - last if messages else 0.0,
            partitions=self._partitions,
            threads=len(self._readers),
            source=", ".join(sorted(sources)) or "socket",
            join_seconds=self._join_seconds,
            notes=tuple(self._notes),
            timeline=tuple(self._timeline.points) if self._timeline is not None else (),
        )

    def _find(self, tail: bool) -> tuple[Address, dict[int, PartitionEnds]]:
        """The broker, and where to begin in each partition (``log_start``).

        A topic that nobody wrote to yet is waited for when more messages are.
        """
        options = self.options
        reasons = []
        for address in parse_brokers(options.brokers):
            try:
                asked = TopicOfBroker(address, options.topic, options.partition, options.connect_timeout)
            except TransportError as error:
                reasons.append(error)
                continue
            with closing(asked):
                return address, self._starts(asked, tail)
        if len(reasons) == 1:
            raise reasons[0]
        raise TransportError("; ".join(str(reason).replace("\n", ": ") for reason in reasons))

    def _starts(self, asked: TopicOfBroker, tail: bool) -> dict[int, PartitionEnds]:
        options = self.options
        positions = asked.positions()
        wanted = list(range(asked.configured)) if tail else []
        if options.partition is not None:
            if asked.configured and options.partition >= asked.configured and options.partition not in positions:
                raise WrongPartitionError(
                    f"{options.topic} has no partition {options.partition}: the broker gives it {asked.configured}"
                )
            wanted = [options.partition] if tail else []
        empty = PartitionEnds(0, 0, 0)
        found = {number: positions.get(number, empty) for number in {*wanted, *positions}}
        if options.from_latest:
            found = {number: item._replace(log_start=item.high_watermark) for number, item in found.items()}
        return found

    def _counts(self) -> tuple[int, int]:
        return sum(reader.count for reader in self._readers), sum(reader.payload_bytes for reader in self._readers)

    def _wait(self, share: MessageQuota, tail: bool) -> bool:
        """Whether all that there was has come, once nothing more does; raise what went wrong in a thread.

        A reader waits as long for bytes that do not become visible, and may give up first.
        """
        assert self._timeline is not None
        options = self.options
        timeout = options.timeout if tail else max(options.timeout, options.connect_timeout)
        for reader in self._readers:
            while not reader.finished.wait(_LOOK_SECONDS):
                now = time.perf_counter()
                messages, payload_bytes = self._counts()
                self._timeline.look(now, messages)
                if self._on_progress is not None:
                    self._on_progress(messages, payload_bytes)
                failed = next((other.error for other in self._readers if other.error is not None), None)
                if failed is not None and not isinstance(failed, ConsumerTimeout):
                    raise failed
                last = max([self._started, *(other.last_at for other in self._readers)])
                if self._is_over(share):
                    self._finish()
                elif now - last >= timeout:
                    return not tail and self._nothing_came(timeout)
            if reader.error is not None:
                if not isinstance(reader.error, ConsumerTimeout):
                    raise reader.error
                return self._nothing_came(timeout)
        return True

    def _nothing_came(self, timeout: float) -> bool:
        self._notes.append(f"the log has more, but nothing came for {timeout:g} s")
        return False

    def _finish(self) -> None:
        """All that is wanted has come: let the threads count it, and wake those that wait for more."""
        for reader in self._readers:
            reader.stop()
        for reader in self._readers:
            reader.join(_FINISH_SECONDS)

    def _stop(self) -> None:
        """End what still runs, within ``_STOP_SECONDS``."""
        self._ended = time.perf_counter()
        for reader in self._readers:
            reader.stop()
        deadline = time.perf_counter() + _STOP_SECONDS
        for reader in self._readers:
            reader.join(deadline - time.perf_counter())
