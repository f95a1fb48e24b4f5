"""Spans around what is sent and worked on: a trace goes from a producer to a consumer; without the library, none."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import fastlog
from fastlog import testing, tracing
from fastlog.client.addresses import Address
from fastlog.client.records import RecordBroker
from fastlog.errors import TransportError


class Message(NamedTuple):
    offset: int
    topic: str | None = None
    partition: int | None = None
    key: bytes | None = None
    headers: tuple[tuple[bytes, bytes | None], ...] | None = None


@pytest.fixture
def spans() -> Iterator[tuple[Any, Any]]:
    """A provider of tracers, and where its spans go when they have ended."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider, exporter
    provider.shutdown()


def test_a_trace_goes_on_where_the_record_is_read(spans: tuple[Any, Any]) -> None:
    """Through a broker, with the caller's own headers; by threads and by coroutines."""
    provider, exporter = spans
    with testing.broker(processors=1) as broker:
        with RecordBroker([Address(broker.host, broker.port)], timeout=30) as records:
            records.create("orders", 1, {})
        with (
            fastlog.Producer(broker.address, acks="all") as producer,
            tracing.publishing("orders", {"a": b"1"}, key=b"k", tracer_provider=provider) as headers,
        ):
            producer.send("orders", b"v", key=b"k", headers=headers)

        async def send() -> None:
            async with fastlog.aio.Producer(broker.address, acks="all") as producer:
                with tracing.publishing("orders", tracer_provider=provider) as headers:
                    await producer.send_and_wait("orders", b"w", headers=headers)

        asyncio.run(send())
        with fastlog.SimpleConsumer(broker.address) as consumer:
            first, second = consumer.messages("orders", 0)
        assert first.headers[0] == (b"a", b"1")
        assert [name for name, _ in first.headers] == [b"a", b"traceparent"]
        for message in (first, second):
            with tracing.processing(message, "orders", group="g", tracer_provider=provider) as span:
                assert span.is_recording()
    sent, sent_too, worked, worked_too = exporter.get_finished_spans()
    for one, other in ((sent, worked), (sent_too, worked_too)):
        assert other.parent.span_id == one.context.span_id
        assert other.context.trace_id == one.context.trace_id
        assert other.links == ()
    assert sent.context.trace_id != sent_too.context.trace_id
    assert (sent.name, worked.name) == ("send orders", "process orders")
    assert (sent.kind.name, worked.kind.name) == ("PRODUCER", "CONSUMER")
    kafka = {"messaging.system": "kafka", "messaging.destination.name": "orders"}
    assert dict(sent.attributes) == kafka | {
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.kafka.message.key": "k",
    }
    assert dict(worked.attributes) == kafka | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.kafka.message.key": "k",
        "messaging.kafka.offset": 0,
        "messaging.consumer.group.name": "g",
    }


def test_a_message_tells_where_it_is_from(spans: tuple[Any, Any]) -> None:
    """What it knows; without headers it begins a trace of its own, linked to what was current."""
    provider, exporter = spans
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("around"):
        with tracing.processing(Message(7, "logs", 3, None), tracer_provider=provider):
            pass
        with tracing.processing(Message(8), tracer_provider=provider):
            pass
    strange = Message(9, "a", headers=((b"traceparent", None), (b"\xff", b"\xff")))
    with tracing.processing(strange, tracer_provider=provider):
        pass
    logs, unknown, around, alone = exporter.get_finished_spans()
    assert logs.attributes["messaging.destination.name"] == "logs"
    assert logs.attributes["messaging.destination.partition.id"] == "3"
    assert "messaging.kafka.message.key" not in logs.attributes
    assert "messaging.consumer.group.name" not in logs.attributes
    assert unknown.name == "process unknown"
    assert "messaging.destination.partition.id" not in unknown.attributes
    assert [link.context.span_id for link in logs.links] == [around.context.span_id]
    assert alone.parent is None and alone.links == ()


def test_what_raises_is_noted(spans: tuple[Any, Any]) -> None:
    provider, exporter = spans
    with pytest.raises(TransportError), tracing.publishing("t", tracer_provider=provider):
        raise TransportError("away")
    with pytest.raises(ValueError, match="bad"), tracing.processing(Message(0), tracer_provider=provider):
        raise ValueError("bad")
    for span in exporter.get_finished_spans():
        assert span.status.status_code.name == "ERROR"
        assert span.events[0].name == "exception"


@pytest.mark.parametrize("headers", [None, {}, {"a": b"1", "b": None}, [(b"a", "1"), ("a", "2")]])
def test_a_span_adds_to_the_headers_that_are_given(headers: Any, spans: tuple[Any, Any]) -> None:
    provider, _ = spans
    given = list(headers.items() if isinstance(headers, dict) else headers or ())
    with tracing.publishing("t", headers, tracer_provider=provider) as found:
        assert found[: len(given)] == given
        (context,) = found[len(given) :]
        assert context[0] == "traceparent"


def test_without_the_library_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.propagate", None)
    with tracing.publishing("t", {"a": "1"}, key=b"k") as headers:
        assert headers == [("a", "1")]
    with tracing.processing(Message(0)) as span:
        assert span is None


def test_nobody_imports_it_who_does_not_ask() -> None:
    """A producer and a consumer cost nothing for it."""
    import subprocess

    code = (
        "import sys, fastlog; fastlog.Producer, fastlog.Consumer, fastlog.SimpleConsumer\n"
        "print([name for name in sys.modules if 'opentelemetry' in name or name == 'fastlog.tracing'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
