"""Spans of OpenTelemetry around what is sent and what is worked on, where it is installed; without it nothing happens.

The context goes with a record in its headers (W3C's ``traceparent`` by default), so that a trace which begins in one
program goes on in another. Whoever does not call these pays nothing for them.

Source: OpenTelemetry's semantic conventions for messaging, and for Kafka.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider  # type: ignore[import-not-found,unused-ignore]

    HeaderValue = str | bytes | None
    Headers = Mapping[str, HeaderValue] | Sequence[tuple[str | bytes, HeaderValue]]

__all__ = ["processing", "publishing"]

_NAME = "fastlog"
_SYSTEM = "kafka"
"""What the conventions call all that speaks this protocol."""


class _Message(Protocol):
    """Of a consumer: a message of Kafka 0.7, or a record."""

    @property
    def offset(self) -> int: ...


@contextmanager
def publishing(
    topic: str, headers: Headers | None = None, *, key: object = None, tracer_provider: TracerProvider | None = None
) -> Iterator[list[tuple[str | bytes, HeaderValue]]]:
    """A span while something is sent; gives the headers to send it with, which are ``headers`` and the context.

    ``with tracing.publishing("orders") as headers: producer.send("orders", value, headers=headers)``, and as well with
    ``submit``, and with ``await producer.send_and_wait(…)``. Topics of Kafka 0.7 have no headers: there the span ends
    with it, and nothing is passed on. What raises is noted in the span. The ``tracer_provider`` is the global one by
    default.
    """
    given = list(headers.items() if isinstance(headers, Mapping) else headers or ())
    found: list[tuple[str | bytes, HeaderValue]] = [(name, value) for name, value in given]
    trace = _library("opentelemetry.trace")
    propagate = _library("opentelemetry.propagate")
    if trace is None or propagate is None:
        yield found
        return
    attributes = _attributes(topic, "send")
    if key is not None:
        attributes["messaging.kafka.message.key"] = _text(key)
    tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
    with tracer.start_as_current_span(f"send {topic}", kind=trace.SpanKind.PRODUCER, attributes=attributes):
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        found += carrier.items()
        yield found


@contextmanager
def processing(
    message: _Message,
    topic: str | None = None,
    *,
    group: str | None = None,
    tracer_provider: TracerProvider | None = None,
) -> Iterator[Any]:
    """A span while a message is worked on: a child of the one that it was sent in, as far as its headers tell.

    ``for message in stream:`` and then ``with tracing.processing(message, group="indexers"):``; gives the span, None
    without OpenTelemetry. ``topic`` is for messages that do not know theirs, as those of a ``SimpleConsumer``. A span
    that is current where it begins is linked to it. What raises is noted in the span.
    """
    trace = _library("opentelemetry.trace")
    propagate = _library("opentelemetry.propagate")
    if trace is None or propagate is None:
        yield None
        return
    topic = topic or getattr(message, "topic", None) or "unknown"
    attributes = _attributes(topic, "process") | {"messaging.kafka.offset": message.offset}
    key = getattr(message, "key", None)
    if key is not None:
        attributes["messaging.kafka.message.key"] = _text(key)
    partition = getattr(message, "partition", None)
    if partition is not None:
        attributes["messaging.destination.partition.id"] = str(partition)
    if group is not None:
        attributes["messaging.consumer.group.name"] = group
    carrier = {
        _text(name): _text(value) for name, value in getattr(message, "headers", None) or () if value is not None
    }
    current = trace.get_current_span().get_span_context()
    tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
    with tracer.start_as_current_span(
        f"process {topic}",
        context=propagate.extract(carrier),
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
        links=[trace.Link(current)] if current.is_valid else [],
    ) as span:
        yield span


def _library(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _attributes(topic: str, operation: str) -> dict[str, str | int]:
    return {
        "messaging.system": _SYSTEM,
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
