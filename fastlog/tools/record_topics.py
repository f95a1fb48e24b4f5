"""Topics of record batches as commands see them, beside those of Kafka 0.7."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fastlog.client.connection import Broker
from fastlog.client.kafka_connection import NotSpokenError
from fastlog.client.kafka_fields import Place
from fastlog.client.records import EARLIEST, LATEST, RecordBroker, RecordsError
from fastlog.kafka_codes import Code
from fastlog.tools import options
from fastlog.tools.report import EXIT_FAILED, EXIT_USAGE, CommandError

FORMATS = ("messages", "records")
"""What a topic consists of: messages of Kafka 0.7, or records of today's, in batches."""


def records_at(broker: Broker) -> RecordBroker:
    """A client for the topics of record batches of a broker; close it."""
    return RecordBroker(options.answering_first(broker), timeout=broker.timeout)


def record_broker_or_none(broker: Broker, topic: str) -> RecordBroker | None:
    """A client for the topic when it is one of record batches; None for one of Kafka 0.7, and where there is none.

    Raises:
        TransportError: the broker cannot be reached.
    """
    metadata = broker.metadata_or_none((topic,))
    if metadata is None or any(found.name == topic and found.partitions for found in metadata.topics):
        return None
    records = records_at(broker)
    try:
        found = records.known_topics([topic]).get(topic)
    except NotSpokenError:
        found = None
    except BaseException:
        records.close()
        raise
    if found is not None and found.code == 0 and found.partitions:
        return records
    records.close()
    return None


def listed(broker: Broker, others: Collection[str], *, with_internal: bool) -> list[dict[str, Any]]:
    """Rows of ``fastlog topics list`` for the topics of record batches: all that today's clients see, but for others.

    The broker's own are among them on request.
    """
    with records_at(broker) as records:
        try:
            topics = {
                name: found
                for name, found in records.known_topics().items()
                if name not in others and (with_internal or not found.is_internal)
            }
        except NotSpokenError:
            return []
        sizes = records.sizes() if topics else {}
    return [
        {
            "topic": name,
            "partitions": len(found.partitions),
            "configured": len(found.partitions),
            "bytes": sum(sizes.get((name, number), 0) for number in found.partitions),
            "format": "records",
        }
        for name, found in topics.items()
    ]


def described(records: RecordBroker, topic: str) -> list[dict[str, Any]]:
    """Rows of ``fastlog topics describe``; today's protocol reports what is flushed, and nothing beyond."""
    places = _places(records, topic)
    starts, ends = records.offsets(places, EARLIEST), records.offsets(places, LATEST)
    return [
        {
            "topic": topic,
            "partition": place[1],
            "state": "ok",
            "log_start": starts[place],
            "high_watermark": ends[place],
            "log_end": ends[place],
            "unflushed": 0,
        }
        for place in places
    ]


def offsets(records: RecordBroker, topic: str, partition: int | None, time_ms: int) -> list[dict[str, Any]]:
    """Rows of ``fastlog topics offsets``: of each partition the first record with that time or a later one."""
    places = [place for place in _places(records, topic) if partition is None or place[1] == partition]
    if not places:
        raise CommandError(
            f"no offsets of {topic}, partition {partition}",
            "the partition does not exist on this broker",
            f"fastlog topics describe {topic} shows its partitions",
        )
    found = records.offsets(places, time_ms)
    return [{"topic": topic, "partition": place[1], "offset": found[place]} for place in places if found[place] >= 0]


def create(broker: Broker, topic: str, partitions: int, settings: dict[str, str]) -> int:
    """Make a topic of record batches; returns how many partitions it has.

    Raises:
        CommandError: it could not be made.
    """
    with records_at(broker) as records:
        try:
            records.create(topic, partitions or -1, settings)
            return len(_places(records, topic))
        except (RecordsError, NotSpokenError) as error:
            raise CommandError(
                f"topic {topic!r} was not created",
                str(error.reason),
                "fastlog topics list shows what there is, docs/kafka.md the settings that a topic may have",
                EXIT_FAILED,
            ) from error


def is_deleted(broker: Broker, topic: str) -> int | None:
    """Delete a topic of record batches: how many partitions it had; None where there is none of that name.

    Raises:
        RecordsError: the broker refuses.
    """
    with records_at(broker) as records:
        try:
            found = records.known_topics([topic]).get(topic)
            if found is None or found.code or not found.partitions:
                return None
            records.delete(topic)
        except NotSpokenError:
            return None
        except RecordsError as error:
            if error.code == Code.UNKNOWN_TOPIC_OR_PARTITION:
                return None
            raise
        return len(found.partitions)


def shown_settings(records: RecordBroker, topic: str) -> list[dict[str, Any]]:
    """Rows of ``fastlog topics settings``: name, value, and whether the topic has it itself."""
    return [
        {"setting": name, "value": found.value or "", "from": "topic" if found.is_own else "broker"}
        for name, found in sorted(records.settings(topic).items())
    ]


def change_settings(records: RecordBroker, topic: str, changes: dict[str, str | None]) -> None:
    """Change settings of a topic. Raises ``CommandError`` when the broker refuses one of them: then none is changed."""
    try:
        records.change_settings(topic, changes)
    except RecordsError as error:
        raise CommandError(
            f"the settings of {topic!r} were not changed",
            str(error.reason),
            f"fastlog topics settings {topic} shows what there is",
            EXIT_USAGE,
        ) from error


def _places(records: RecordBroker, topic: str) -> list[Place]:
    return [(topic, number) for number in records.known_topics([topic])[topic].partitions]
