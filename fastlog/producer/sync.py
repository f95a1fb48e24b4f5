"""``fastlog.SyncProducer``: 0.7's plain producer, one connection, requests that nobody answers."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from fastlog import arguments, codecs, message
from fastlog.client.addresses import Address
from fastlog.client.connection import Broker, Connection
from fastlog.client.slices import sleep
from fastlog.errors import (
    ArgumentError,
    ClosedError,
    ConfigError,
    ForkedError,
    MessageTooLargeError,
    StateError,
    TransportError,
)
from fastlog.producer._send import generation
from fastlog.producer.brokers import check_topic
from fastlog.producer.config import ProducerConfig
from fastlog.producer.fields import ProducerFields
from fastlog.producer.hooks import payload_of
from fastlog.wire import requests

_LEAST_PAUSE = 0.001

Payloads = bytes | Sequence[Any]
"""One payload or several; together they are one message set."""


class SyncProducer:
    """Hands PRODUCE and MULTIPRODUCE requests to the kernel. Connects at the first send. Safe in several threads.

    A return means that the bytes are on their way, not that they arrived: a broken connection is noticed by a later
    send, which raises and does not try again. ``settings`` are the fields of ``ProducerConfig`` that are about
    connections and sizes.

    Source: Kafka 0.7.2, ``kafka.producer.SyncProducer``.
    """

    def __init__(self, host: str, port: int, **settings: Unpack[ProducerFields]) -> None:
        address = Address(arguments.text("host", host), arguments.whole("port", port, 1, 65535))
        self._config = ProducerConfig.from_fields({"broker_list": str(address), **settings})
        if self._config.has_envelope:
            raise ConfigError("payloads are sent as they are: envelope and audit.topic are for Producer")
        if self._config.codec > codecs.SNAPPY:
            raise ConfigError(
                f"compression.codec: Kafka 0.7 has gzip and snappy, not {self._config.compression}; Producer has it for"
                " topics of record batches"
            )
        self._connector = Broker([address], self._config.connect_timeout_ms / 1000)
        self._connection: Connection | None = None
        self._lock = threading.RLock()
        self._busy = False
        self._closed = False
        self._born = generation()
        self._sends_left: float = 0
        self._replace_at = 0.0

    def send(self, topic: str, messages: Payloads, partition: int = -1, *, codec: int | None = None) -> None:
        """Send messages as one set; ``codec`` 0, 1 or 2, by default that of the settings for the topic.

        Raises:
            MessageTooLargeError: a payload, or the compressed set, is above ``max.message.size``; nothing was sent.
            TransportError: the connection could not be made, or broke; whether the set arrived is not known.
        """
        arguments.whole("partition", partition, -1)
        self._send(requests.encode_produce(topic, partition, self._set(topic, messages, codec)))

    def multi_send(self, produces: Iterable[tuple[str, int, Payloads]]) -> None:
        """Send sets for several (topic, partition, messages) in one request. Raises as ``send``."""
        try:
            listed = [(topic, partition, messages) for topic, partition, messages in produces]
        except (TypeError, ValueError):
            raise ArgumentError("multi_send() takes several (topic, partition, messages)") from None
        for _, partition, _ in listed:
            arguments.whole("partition", partition, -1)
        parts = [(topic, partition, self._set(topic, messages, None)) for topic, partition, messages in listed]
        if parts:
            self._send(requests.encode_multiproduce(parts))

    def close(self) -> None:
        """Half-close and wait until the broker has handled everything; may be called again.

        Safe from a signal handler. A send that the handler interrupted goes to its end first, and closes then.
        """
        self._closed = True
        if self._born != generation():
            self._drop()
            return
        if self._lock.acquire(timeout=self._config.socket_timeout_ms / 1000):
            try:
                if not self._busy:
                    self._disconnect()
            finally:
                self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_connection", None) is not None:
            self.close()

    def _set(self, topic: str, messages: Payloads, codec: int | None) -> bytes:
        self._check_usable()
        check_topic(topic)
        if codec is not None:
            arguments.whole("codec", codec, codecs.NONE, codecs.SNAPPY)
        payloads = [payload_of(value) for value in (messages if isinstance(messages, list | tuple) else [messages])]
        limit = self._config.max_message_bytes
        largest = max(map(len, payloads), default=0)
        codec = self._config.codec_for(topic) if codec is None else codec
        encoded = message.encode_set(payloads, codec)
        if codec and encoded:
            largest = len(encoded) - message.HEADER_BYTES[1]
        if largest > limit:
            what = "compressed set" if codec else "message"
            raise MessageTooLargeError(
                f"a {what} of {largest} bytes is larger than the limit of {limit} (max.message.size)"
            )
        return encoded

    def _send(self, frame: bytes) -> None:
        with self._lock:
            self._check_usable()
            if self._busy:
                raise StateError("a signal handler cannot send while it interrupts a send")
            self._busy = True
            try:
                self._connected().send(frame)
            except BaseException:
                self._drop()  # what follows half a request would be read as its rest
                raise
            finally:
                self._busy = False
            self._sends_left -= 1
            if self._closed or self._sends_left <= 0 or time.monotonic() >= self._replace_at:
                self._disconnect()

    def _connected(self) -> Connection:
        if self._connection is not None and self._connection.fileno() < 0:
            self._connection = None  # an interrupt came just then
        if self._connection is not None and not self._is_open(self._connection):
            peer = self._connection.peer
            self._drop()
            raise TransportError(f"{peer} closed the connection; what was sent last may be lost")
        if self._connection is not None:
            return self._connection
        deadline = time.monotonic() + self._config.connect_timeout_ms / 1000
        pause = _LEAST_PAUSE
        while True:
            try:
                self._connection = self._connector.connect(send_buffer_bytes=self._config.send_buffer_bytes)
                break
            except TransportError:
                if time.monotonic() + pause > deadline or self._closed:
                    raise
                sleep(pause)
                pause = min(10 * pause, 1.0)
        config = self._config
        sends, age_ms = config.reconnect_interval_sends, config.reconnect_time_interval_ms
        self._sends_left = float("inf") if sends is None else max(1, round(sends * random.uniform(0.75, 1)))
        age = float("inf") if age_ms is None else age_ms / 1000 * random.uniform(0.75, 1)
        self._replace_at = time.monotonic() + age
        return self._connection

    @staticmethod
    def _is_open(connection: Connection) -> bool:
        """A produce is never answered: anything to read is the end."""
        import select

        waiting = select.poll()
        waiting.register(connection.fileno(), select.POLLIN)
        return not waiting.poll(0)

    def _disconnect(self) -> None:
        try:
            if self._connection is not None and self._connection.fileno() >= 0:  # else an interrupt came just then
                self._connection.finish()
        finally:
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _check_usable(self) -> None:
        if self._born != generation():
            raise ForkedError("this producer belongs to the parent process; make a new one after fork")
        if self._closed:
            raise ClosedError("the producer is closed")
