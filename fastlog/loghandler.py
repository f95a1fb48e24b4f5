"""Log records of a Python program into a topic: a handler for ``logging``, and a processor for structlog.

Neither waits for a broker, and neither raises into the program. Records go into a bounded queue, in the caller's
thread, as the text that the formatter makes; a thread of the handler's own sends them. What does not fit is dropped
and counted.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, TypeVar, Unpack

from fastlog.errors import ArgumentError, ConfigError
from fastlog.producer.config import ProducerConfig
from fastlog.producer.fields import ProducerFields
from fastlog.producer.publisher import Key, Publisher

_OWN = ("fastlog.", "kazoo.")
_SET_HERE = (
    "producer_type",
    "queue_full",
    "enqueue_timeout_ms",
    "serializer_class",
    "event_handler_class",
    "callback_handler_class",
)
_FIELDS = {"time": "asctime", "level": "levelname", "logger": "name", "message": "message"}
_OF_RECORDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_Event = TypeVar("_Event")


class _Counted:
    """What has become of the records or events that were given to it."""

    _publisher: Publisher

    @property
    def dropped(self) -> int:
        """How many of this process were not delivered and will not be."""
        return self._publisher.dropped

    @property
    def published(self) -> int:
        """How many of this process were delivered."""
        return self._publisher.published

    @property
    def pending(self) -> int:
        """How many wait in the queue or are on their way."""
        return self._publisher.pending


class LogHandler(_Counted, logging.Handler):
    """Publishes log records to a topic; it never waits for a broker and never raises into the program.

    ``LogHandler("localhost:9092", topic="logs")``, ``LogHandler(zk_connect="localhost:2181", topic="logs")``; further
    keywords are fields of ``ProducerConfig``. Of these, ``queue_messages`` (10,000) and ``queue_bytes`` (64 MiB) bound
    what waits or is on its way, and a record that comes when it is full is dropped; ``queue_time_ms`` (100) is how long
    records are collected; ``close_timeout_ms`` (5,000) is for the end of the program. While no broker answers, records
    are kept up to the bound and go out when one is back, for as long as ``delivery_timeout_ms`` (24 days) allows.

    Records of fastlog's own loggers, and of kazoo's, are left out: sending them would bring more of them. May be used
    in any thread, in signal handlers, and after a fork, where the child has a queue and a connection of its own.
    """

    def __init__(
        self,
        brokers: str | None = None,
        *,
        topic: str,
        key: str | Callable[[logging.LogRecord], Key] | None = None,
        level: int | str = logging.NOTSET,
        **fields: Unpack[ProducerFields],
    ) -> None:
        """Connects to nothing yet.

        ``key``: an attribute of the record whose text chooses the partition, as ``"name"`` for the logger's, or a
        function of the record; None: any partition.

        Raises:
            ConfigError: a setting is unknown, out of range, or contradicts what the handler does.
            InvalidTopicError: no topic can have that name.
        """
        self._key = _checked_key(key)
        self._publisher = _publisher(topic, brokers, fields)
        super().__init__(level)

    def createLock(self) -> None:
        """None is needed; with one, records of all threads would wait while one of them flushes."""
        self.lock = None

    def handle(self, record: logging.LogRecord) -> Any:
        """Emit the record unless a filter refuses it; what the filters said."""
        found = self.filter(record)
        if found:
            self.emit(found if isinstance(found, logging.LogRecord) else record)
        return found

    def emit(self, record: logging.LogRecord) -> None:
        """Queue what the formatter makes of the record.

        When that fails, it is counted as dropped and told as by any handler of ``logging``.
        """
        try:
            if record.name.startswith(_OWN) or record.name in ("fastlog", "kazoo"):
                return
            payload = self.format(record).encode("utf-8", "backslashreplace")
            key = self._key
            if key is None:
                self._publisher.put(payload)
            else:
                chosen = getattr(record, key, None) if isinstance(key, str) else key(record)
                self._publisher.put(payload, _as_key(chosen))
        except Exception as error:
            self._publisher.drop(f"a record could not be formatted: {type(error).__name__}")
            if not isinstance(error, RecursionError):  # there is no stack left to print one with
                self.handleError(record)

    def flush(self, timeout: float | None = None) -> None:
        """Return when all records so far are delivered or dropped, or after ``timeout`` seconds (the closing time).

        ``pending`` says afterwards whether some are still on their way.
        """
        self._publisher.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Deliver what is in the queue, within the time (``close_timeout_ms``); what is left is dropped, and said."""
        self._publisher.close(timeout)
        super().close()

    def __repr__(self) -> str:
        return f"<LogHandler of {self._publisher.topic} ({logging.getLevelName(self.level)})>"


class JsonFormatter(logging.Formatter):
    """Log records as JSON, an object in a line each.

    It has the fields that were asked for, then ``exception`` and ``stack`` where there is one, then what the program
    gave as ``extra=``. What JSON cannot say is given as text.
    """

    def __init__(
        self,
        fields: Mapping[str, str] | None = None,
        *,
        extra: bool = True,
        static: Mapping[str, Any] | None = None,
    ) -> None:
        """``fields``: name in the object → attribute of the record; by default ``time``, ``level``, ``logger`` and
        ``message``. ``asctime`` is UTC with microseconds, ``message`` the text with its arguments. ``extra``: whether
        to add what ``extra=`` gave. ``static``: fields that every object has.
        """
        super().__init__()
        self._fields = dict(_FIELDS if fields is None else fields)
        self._extra = extra
        self._static = dict(static or {})

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """The record's time as ISO 8601 in UTC."""
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")

    def format(self, record: logging.LogRecord) -> str:
        """The record as one JSON object."""
        found = dict(self._static)
        for name, attribute in self._fields.items():
            if attribute == "message":
                found[name] = record.getMessage()
            elif attribute == "asctime":
                found[name] = self.formatTime(record)
            else:
                found[name] = getattr(record, attribute, None)
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)  # kept for other handlers, as the stdlib does
        if record.exc_text:
            found["exception"] = record.exc_text
        if record.stack_info:
            found["stack"] = self.formatStack(record.stack_info)
        if self._extra:
            for name, value in vars(record).items():
                if name not in _OF_RECORDS:
                    found.setdefault(name, value)
        return _json(found)


class StructlogProcessor(_Counted):
    """Publishes what passes it in a chain of structlog's processors, and hands it on as it is.

    Behind a renderer it publishes the text that was rendered; anywhere else the event as JSON. Otherwise as
    ``LogHandler``, whose arguments, counts, ``flush`` and ``close`` it has; ``key`` is a field of the event, or a
    function of it. It does not import structlog.
    """

    def __init__(
        self,
        brokers: str | None = None,
        *,
        topic: str,
        key: str | Callable[[Any], Key] | None = None,
        **fields: Unpack[ProducerFields],
    ) -> None:
        """See ``LogHandler``."""
        self._key = _checked_key(key)
        self._publisher = _publisher(topic, brokers, fields)

    def __call__(self, logger: Any, method_name: str, event_dict: _Event) -> _Event:
        """Publish an event, and return it for the next processor."""
        try:
            event: Any = event_dict
            if isinstance(event, bytes | bytearray):
                payload = bytes(event)
            else:
                text = event if isinstance(event, str) else _json(event)
                payload = text.encode("utf-8", "backslashreplace")
            key = self._key
            chosen = None
            if callable(key):
                chosen = key(event)
            elif key is not None and isinstance(event, Mapping | MutableMapping):
                chosen = event.get(key)
            self._publisher.put(payload, _as_key(chosen))
        except Exception as error:
            self._publisher.drop(f"an event could not be rendered: {type(error).__name__}")
            if logging.raiseExceptions and sys.stderr is not None and not isinstance(error, RecursionError):
                traceback.print_exc(file=sys.stderr)
        return event_dict

    def flush(self, timeout: float | None = None) -> bool:
        """Whether all events so far were delivered or dropped within ``timeout`` seconds (the closing time)."""
        return self._publisher.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Deliver what is in the queue, within the time; what is left is dropped, and said."""
        self._publisher.close(timeout)


def _publisher(topic: str, brokers: str | None, fields: ProducerFields) -> Publisher:
    refused = [name for name in _SET_HERE if name in fields]
    if refused:
        raise ConfigError(f"{', '.join(refused)}: a log handler queues text, and drops what does not fit")
    if brokers is not None and "broker_list" in fields:
        raise ConfigError("the brokers are named twice")
    settings: dict[str, Any] = {
        "queue_time_ms": 100,
        "close_timeout_ms": 5000,
        "delivery_timeout_ms": 2**31 - 1,
        **({} if brokers is None else {"broker_list": brokers}),
        **fields,
        "producer_type": "async",
    }
    return Publisher(topic, ProducerConfig.from_fields(settings))


def _checked_key(key: Any) -> Any:
    if key is not None and not isinstance(key, str) and not callable(key):
        raise ArgumentError(f"key: the name of a field, or a function, not {type(key).__name__}")
    return key


def _as_key(value: Any) -> Key:
    return value if value is None or isinstance(value, str | bytes) else str(value)


def _json(found: Any) -> str:
    try:
        return _encode(found)
    except (TypeError, ValueError, RecursionError):  # a loop, a NaN, a key that is no text: this value alone is text
        return _encode({str(name): _plain(value) for name, value in dict(found).items()})


def _plain(value: Any) -> Any:
    try:
        _encode(value)
    except (TypeError, ValueError, RecursionError):
        return repr(value)
    return value


_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=lambda value: _text(value)
).encode


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception as error:  # of a class of the program's
        return f"<{type(value).__name__}: {type(error).__name__}>"
