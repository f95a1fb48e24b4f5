"""From a frame to its answer: decoded, handled by the module of its kind, encoded."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Generator
from typing import Any

from fastlog import logs
from fastlog.errors import ProtocolError
from fastlog.workers import authorization
from fastlog.workers.coordinator import codec
from fastlog.workers.coordinator.context import Broker, Context
from fastlog.workers.coordinator.frames import Frame
from fastlog.workers.coordinator.loop import Loop, Until, Wait

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
    32: ("describe_configs", 1, 4),
    35: ("describe_log_dirs", 1, 4),
    37: ("create_partitions", 0, 3),
    42: ("delete_groups", 0, 2),
    47: ("offset_delete", 0, 0),
    60: ("describe_cluster", 0, 1),
}
"""By api key: the module, and the first and the last version. ``workers.kafka.kinds`` tells clients the same."""


class Dispatcher:
    """Handles the requests of all processors; for the loop's thread."""

    def __init__(self, broker: Broker, loop: Loop) -> None:
        self._broker = broker
        self._loop = loop

    def handle(
        self, frame: Frame, answer: Callable[[bytes | None], None], let_go: Callable[[], None] = lambda: None
    ) -> None:
        """Begin to handle a request; what cannot be answered has its connection closed, with a line in the log."""
        try:
            request = codec.decode(frame.body)
            name, first, last = SERVED.get(request.key, ("", 0, -1))
            if not first <= request.version <= last:
                raise ProtocolError(f"a request that is not served key={request.key} version={request.version}")
        except ProtocolError as error:
            log.warning("refused peer=%s %s", frame.host, error, extra=logs.about("refused", frame.host))
            answer(None)
            return
        client = authorization.Client(
            authorization.PRINCIPALS[frame.principal], frame.host or "?", frame.listener, frame.connection
        )
        self._loop.start(self._run(request, name, Context(self._broker, client, let_go), answer))

    def _run(
        self, request: codec.Request, name: str, context: Context, answer: Callable[[bytes | None], None]
    ) -> Generator[Wait, Any, None]:
        data = None
        topics = self._broker.topics
        try:
            # a new coordinator answers nothing before it knows what the former one has promised
            yield Until(lambda: topics.is_ready, time.monotonic() + READY_SECONDS)
            handler = importlib.import_module(f"{PACKAGE}.{name}")
            data = codec.encode(request, (yield from handler.handle(request, context)))
        except Exception as error:
            extra = logs.about("request", name, type(error))
            log.error(
                "a request failed kind=%s version=%d: %r", name, request.version, error, exc_info=error, extra=extra
            )
        answer(data)
