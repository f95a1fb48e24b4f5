"""From a frame to its answer: decoded, handled by the module of its kind, encoded."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from fastlog import logs
from fastlog.errors import ProtocolError
from fastlog.log._shared_memory import COORDINATOR
from fastlog.workers import authorization
from fastlog.workers.coordinator import auto_create, codec
from fastlog.workers.coordinator.context import Broker, Context
from fastlog.workers.coordinator.frames import Frame
from fastlog.workers.coordinator.loop import Loop, Until, Wait
from fastlog.workers.kafka import kinds, reading

log = logging.getLogger(__name__)

PACKAGE = "fastlog.workers.coordinator.requests"
READY_SECONDS = 5.0
"""What requests wait for the metadata log to be read; afterwards those that need it are refused."""
SERVED: dict[int, tuple[str, int, int]] = {
    8: ("offset_commit", 2, 9),
    9: ("offset_fetch", 1, 8),
    10: ("find_coordinator", 0, 4),
    11: ("join_group", 0, 9),
    12: ("heartbeat", 0, 4),
    13: ("leave_group", 0, 5),
    14: ("sync_group", 0, 5),
    15: ("describe_groups", 0, 5),
    16: ("list_groups", 0, 4),
    19: ("create_topics", 2, 7),
    20: ("delete_topics", 1, 6),
    21: ("delete_records", 0, 2),
    22: ("init_producer_id", 0, 4),
    23: ("offset_for_leader_epoch", 2, 4),
    32: ("describe_configs", 1, 4),
    33: ("alter_configs", 0, 2),
    35: ("describe_log_dirs", 1, 4),
    37: ("create_partitions", 0, 3),
    42: ("delete_groups", 0, 2),
    44: ("alter_configs", 0, 1),
    47: ("offset_delete", 0, 0),
    60: ("describe_cluster", 0, 1),
}
"""By api key: the module, and the first and the last version. ``workers.kafka.kinds`` tells clients the same."""
_METADATA = kinds.METADATA.to_bytes(2, "big")


def error_codes(answer: object) -> Iterator[int]:
    """The errors in an answer: its own, and those of the topics, partitions and groups in it."""
    if isinstance(answer, Mapping):
        for name, value in answer.items():
            if name != "error_code":
                yield from error_codes(value)
            elif value:
                yield int(value)
    elif isinstance(answer, list | tuple):
        for item in answer:
            yield from error_codes(item)


class Dispatcher:
    """Handles the requests of all processors; for the loop's thread."""

    def __init__(self, broker: Broker, loop: Loop) -> None:
        self._broker = broker
        self._loop = loop

    def handle(
        self, frame: Frame, answer: Callable[[bytes | None], None], let_go: Callable[[], None] = lambda: None
    ) -> None:
        """Begin to handle a request; what cannot be answered has its connection closed, with a line in the log."""
        client = authorization.Client(
            authorization.PRINCIPALS[frame.principal], frame.host or "?", frame.listener, frame.connection
        )
        context = Context(self._broker, client, let_go)
        if frame.body.startswith(_METADATA):
            self._loop.start(self._make(frame, context, answer))
            return
        try:
            request = codec.decode(frame.body)
            name, first, last = SERVED.get(request.key, ("", 0, -1))
            if not first <= request.version <= last:
                raise ProtocolError(f"a request that is not served key={request.key} version={request.version}")
        except ProtocolError as error:
            log.warning("refused peer=%s %s", frame.host, error, extra=logs.about("refused", frame.host))
            answer(None)
            return
        self._loop.start(self._run(request, name, context, answer))

    def _make(
        self, frame: Frame, context: Context, answer: Callable[[bytes | None], None]
    ) -> Generator[Wait, Any, None]:
        """Have topics made that a METADATA names: its processor wants to know what came of each, and answers it."""
        data = None
        try:
            yield self._is_ready()
            data = yield from auto_create.codes(reading.named_topics(frame.body), context)
        except Exception as error:
            log.error("topics not made: %r", error, exc_info=error, extra=logs.about("made", type(error)))
        answer(data)

    def _is_ready(self) -> Until:
        topics = self._broker.topics
        return Until(lambda: topics.is_ready, time.monotonic() + READY_SECONDS)

    def _run(
        self, request: codec.Request, name: str, context: Context, answer: Callable[[bytes | None], None]
    ) -> Generator[Wait, Any, None]:
        data = None
        try:
            # a new coordinator answers nothing before it knows what the former one has promised
            yield self._is_ready()
            handler = importlib.import_module(f"{PACKAGE}.{name}")
            fields = yield from handler.handle(request, context)
            data = codec.encode(request, fields)
            for code in error_codes(fields):
                self._broker.arena.count_refusal(COORDINATOR, request.key, code)
        except Exception as error:
            extra = logs.about("request", name, type(error))
            log.error(
                "a request failed kind=%s version=%d: %r", name, request.version, error, exc_info=error, extra=extra
            )
        answer(data)
