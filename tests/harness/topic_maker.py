"""In the place of a coordinator: makes the topics that METADATA requests name, at once, and writes nothing down.

For processors in the test's own process; what is true of the real one is tested with the real one.
"""

from __future__ import annotations

import os
import select
import struct
import threading
import uuid
from collections.abc import Callable
from typing import Any

from fastlog.errors import LogError
from fastlog.log._shared_memory import COORDINATOR
from fastlog.log.formats import format_name
from fastlog.log.formats.record_batches import RECORD_BATCHES
from fastlog.log.manager import CreationBusyError, LogManager
from fastlog.workers import authorization
from fastlog.workers._authorizer import Authorizer
from fastlog.workers.authorization import Client, Operation
from fastlog.workers.coordinator.auto_create import is_legal
from fastlog.workers.coordinator.frames import PIECE_BYTES, Assembly, Frame, pieces_of
from fastlog.workers.kafka import reading
from tests.harness.processor import Processor
from tests.harness.timing import PATIENCE


class TopicMaker:
    """A thread that answers all processors."""

    def __init__(self, processors: list[Processor], rule: authorization.Rule | None) -> None:
        self._processors = processors
        self._arena = processors[0].arena
        self._config = processors[0].config
        self._manager = LogManager(self._config, self._arena)
        self._authorizer = Authorizer(rule)
        self._assemblies = [Assembly(self._arena.incarnation(COORDINATOR)) for _ in processors]
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread that makes topics."""
        os.eventfd_write(self._stop, 1)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        os.close(self._stop)

    def _run(self) -> None:
        ends = {processor.coordinator: number for number, processor in enumerate(self._processors)}
        while True:
            # a test may end a processor by itself
            ready, _, _ = select.select([self._stop, *(end for end in ends if end.fileno() >= 0)], [], [])
            if self._stop in ready:
                return
            for end in ready:
                number = ends[end]
                process = self._processors[number].number
                try:
                    piece = end.recv(PIECE_BYTES)
                except OSError:
                    piece = b""
                if not piece:
                    del ends[end]
                    continue
                frame = self._assemblies[number].take(piece, self._arena.incarnation(process))
                if frame is not None:
                    buffers, _ = pieces_of(frame, self._arena.incarnation(COORDINATOR), self._codes(frame), 0)
                    end.sendmsg(buffers)

    def _codes(self, frame: Frame) -> bytes:
        client = Client(authorization.PRINCIPALS[frame.principal], frame.host or "?", frame.listener)
        names = reading.named_topics(frame.body)
        return struct.pack(f">{len(names)}h", *(3 if name is None else self._make(name, client) for name in names))

    def _make(self, name: bytes, client: Client) -> int:
        if not is_legal(name):
            return 17
        topic = name.decode()
        held = self._manager.partitions(topic)
        if held:
            return 0 if format_name(held[0].format) == RECORD_BATCHES else 3
        if not all(self._authorizer.is_allowed(client, each, topic) for each in (Operation.CREATE, Operation.DESCRIBE)):
            return 29
        made: dict[str, Any] = {"format_name": RECORD_BATCHES, "topic_id": uuid.uuid4().bytes}
        try:
            for partition in range(self._config.partition_count(topic)):
                self._patiently(lambda partition=partition: self._manager.create_partition(topic, partition, **made))  # type: ignore[misc]
        except (OSError, LogError):
            return 56
        return 0

    def _patiently(self, make: Callable[[], object]) -> None:
        while True:
            try:
                make()
                return
            except CreationBusyError:
                select.select([self._stop], [], [], 0.005)
