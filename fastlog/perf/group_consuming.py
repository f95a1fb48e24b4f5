"""Measuring a group's consumer: the streams of one member, which shares the topic with whoever else is in the group.

The clock starts before the member joins, and says how long that took.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Mapping

from fastlog.client.addresses import Address
from fastlog.consumer.connector import Consumer
from fastlog.consumer.partitions import TopicPartition
from fastlog.consumer.stream import NoMessage, Stream, StreamArrays
from fastlog.coordination.session import remove_tree
from fastlog.errors import ConsumerTimeout, CoordinationError, FastlogError
from fastlog.perf._sizes import total_bytes
from fastlog.perf.broker_consuming import ConsumerRun
from fastlog.perf.consumer_options import OF_FILES, ConsumerOptions
from fastlog.perf.reading import LocalReadError, MessageQuota, ReadingThread
from fastlog.perf.sending import IntervalReports
from fastlog.perf.visibility import TopicOfBroker
from fastlog.zkpaths import group_path

LIST_MESSAGES = 200
"""Handed out at once; those that a member was handed last come again to whoever goes on with its group."""
_IDLE_MS = 5
"""How long a thread waits before it counts what it has: by so much too late the last message may seem."""
_HURRY_SECONDS = 0.1
_LEAVE_SECONDS = 5.0


class _StreamReader(ReadingThread):
    """Reads one stream of the group's member."""

    def __init__(
        self,
        number: int,
        consumer: Consumer,
        stream: Stream,
        mode: str,
        share: MessageQuota,
        reports: IntervalReports | None,
    ) -> None:
        super().__init__(number, share, reports)
        self._consumer = consumer
        self._stream = stream
        self._mode = mode

    def _let_go(self) -> None:
        self._stream.end()

    def _read(self) -> None:
        read = self._read_lists if self._mode in ("messages", "batches") else self._read_arrays
        while not self._done() and self._stream.silence() is not NoMessage.ENDED:
            with contextlib.suppress(ConsumerTimeout):
                read()

    def _read_lists(self) -> None:
        for batch in self._stream.batches(LIST_MESSAGES):
            for piece in self._pieces(batch):
                if self._mode == "messages":
                    for _ in piece:
                        pass
                self._note(len(piece), total_bytes(piece))
            if self._done():
                return

    def _read_arrays(self) -> None:
        for arrays in self._stream.numpy_batches():
            if self._mode in OF_FILES:
                self._check_local(arrays)
            elif self._mode == "arrow":
                arrays.to_arrow()
            self._note_lengths(arrays.lengths)
            if self._done():
                return

    def _check_local(self, arrays: StreamArrays) -> None:
        state = self._consumer.partitions.get(arrays.source)
        if state is None:
            return  # it was given up just now
        self.source = state.source
        if self.source == "socket":
            raise LocalReadError(
                f"the segment files of {arrays.source} are not read here\n"
                f"the broker at {state.address} is on another machine, or keeps others from reading them\n"
                "run it on the broker's machine as a user who may read its files, or use --mode numpy"
            )


class GroupRun(ConsumerRun):
    """One measurement of a group's member; otherwise as ``ConsumerRun``.

    Raises:
        CoordinationError: ZooKeeper does not answer.
    """

    _consumer: Consumer | None = None
    _streams: tuple[Stream, ...] = ()
    _ends: dict[TopicPartition, int] | None = None
    _is_hurried = True

    def _prepare(self, share: MessageQuota) -> bool:
        options = self.options
        self._consumer = Consumer(
            zk_connect=options.zk_connect,
            group_id=options.group or f"perf-consumer-{random.getrandbits(32)}",
            zk_connection_timeout_ms=max(1, int(options.connect_timeout * 1000)),
            socket_timeout_ms=max(1, int(max(options.connect_timeout, options.timeout) * 1000)),
            fetch_bytes=options.fetch_bytes,
            receive_buffer_bytes=options.socket_buffer_bytes,
            auto_offset_reset="largest" if options.from_latest else "smallest",
            consumer_timeout_ms=_IDLE_MS,
            local=OF_FILES.get(options.mode, "off"),
        )
        return True

    def _start(self, share: MessageQuota) -> None:
        consumer, options = self._consumer, self.options
        assert consumer is not None
        streams = consumer.create_message_streams({options.topic: options.threads or 1})[options.topic]
        self._streams = tuple(streams)
        consumer.wait_assigned(options.connect_timeout)
        self._join_seconds = time.perf_counter() - self._started
        self._readers = [
            _StreamReader(number, consumer, stream, options.mode, share, self._reports(number))
            for number, stream in enumerate(streams)
        ]
        super()._start(share)

    def _is_over(self, share: MessageQuota) -> bool:
        options = self.options
        if options.messages is not None or options.from_latest:
            return share.is_empty
        is_through = self._ends is not None and self._is_read(self._ends)  # before the streams are asked: see below
        found = {stream.silence() for stream in self._streams}
        if NoMessage.AT_END not in found or not found <= {NoMessage.AT_END, NoMessage.NOT_ASSIGNED}:
            return False
        if self._ends is None:
            # What was appended and is not flushed yet counts: the end of what can be seen may be before it.
            self._ends = self._appended()
        return is_through  # and nothing of it is left in a stream

    def _is_read(self, ends: Mapping[TopicPartition, int]) -> bool:
        assert self._consumer is not None
        states = self._consumer.partitions
        return all(
            state.position is not None and state.position >= ends.get(source, 0) for source, state in states.items()
        )

    def _appended(self) -> dict[TopicPartition, int]:
        """The log ends of the member's partitions; without those of a broker that does not answer."""
        assert self._consumer is not None
        options = self.options
        found = {}
        sources: dict[Address, list[TopicPartition]] = {}
        for source, state in self._consumer.partitions.items():
            sources.setdefault(state.address, []).append(source)
        for address, there in sources.items():
            with (
                contextlib.suppress(FastlogError),
                contextlib.closing(TopicOfBroker(address, options.topic, None, options.connect_timeout)) as asked,
            ):
                positions = asked.positions()
                for source in there:
                    if source.partition.partition in positions:
                        found[source] = positions[source.partition.partition].log_end
        return found

    def _finish(self) -> None:
        self._is_hurried = False
        super()._finish()

    def _wait(self, share: MessageQuota, tail: bool) -> bool:
        came = super()._wait(share, tail)
        self._is_hurried = False  # else it was interrupted
        return came

    def _stop(self) -> None:
        consumer = self._consumer
        assert consumer is not None
        self._partitions = tuple(sorted(str(source.partition) for source in consumer.owned))
        super()._stop()
        leaving = threading.Thread(target=self._leave, args=(consumer,), name="fastlog-perf-leave", daemon=True)
        leaving.start()
        leaving.join(_HURRY_SECONDS if self._is_hurried else 2 * _LEAVE_SECONDS)

    def _leave(self, consumer: Consumer) -> None:
        consumer.shutdown(_LEAVE_SECONDS)
        if self.options.group is None:
            with contextlib.suppress(CoordinationError):
                _remove_group(self.options, consumer.config.group_id)


def _remove_group(options: ConsumerOptions, group: str) -> None:
    from fastlog.coordination.zookeeper import ZooKeeperSession

    with ZooKeeperSession(options.zk_connect, connection_timeout=options.connect_timeout, makes_root=False) as session:
        remove_tree(session, group_path(group))
