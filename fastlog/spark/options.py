"""The options of ``format("fastlog")``: texts in, one checked object out. Knows no Spark.

Names and meanings are those of Spark's source for Kafka where it has them. Offsets are bytes of topics of messages, and
records' numbers of topics of record batches; a partition is named ``broker-partition``, or by its number where one
broker has the topic.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import ConfigError
from fastlog.segment_files import MAX_OFFSET
from fastlog.settings import unknown_name
from fastlog.spark import schema
from fastlog.spark.addresses import ADDRESS_OPTIONS, NamedAddress, at_most_one, check_addresses
from fastlog.spark.offsets import ANY_BROKER, EARLIEST, OffsetSpec, parse_partition, parse_partitions
from fastlog.spark.values import Parse, counted, number, one_of, parse_json, seconds, sized, truth
from fastlog.topics import valid_topic

_PATH_OPTION = "path"
_REFUSED = {
    _PATH_OPTION: "load() takes no path: topics are named with subscribe, subscribePattern or assign",
    "kafka.bootstrap.servers": "this is not Kafka's source: brokers is meant",
    "zookeeper.connect": "zookeeper is meant, or zk.connect as 0.7 writes it",
    "minoffsetspertrigger": "there is no lower limit for a batch; the trigger's interval is one",
    "maxtriggerdelay": "there is no lower limit for a batch; the trigger's interval is one",
    "endingoffsetsbytimestampstrategy": "only the start has a strategy: no offset for an ending time is the end",
    "kafka.group.id": "a query is in no group: its offsets are in its checkpoint; group shows its progress as one",
    "groupidprefix": "a query is in no group: its offsets are in its checkpoint; group shows its progress as one",
}

DIRECT = ("auto", "shared", "only", "off")
_LARGEST_FETCH = 2**30


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Everything the source can be told. Made by ``parse_options``."""

    brokers: tuple[NamedAddress, ...] = ()
    zookeeper: str | None = None
    zookeeper_timeout: float = 6.0
    group: str | None = None
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()
    starting: OffsetSpec
    ending: OffsetSpec
    unmatched_start: str = "error"
    max_bytes_per_trigger: int | None = None
    max_offsets_per_trigger: int | None = None
    min_partitions: int = 1
    max_bytes_per_partition: int = 64 * 2**20
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    loss_option: str = "failOnDataLoss=false"
    """What a user gives to go on where data was lost."""
    fetch_bytes: int = 2**20
    fetch_timeout: float = 30.0
    max_message_bytes: int | None = None
    retries: int = 5
    retry_interval: float = 0.2
    retry_timeout: float = 60.0
    columns: tuple[str, ...] = schema.USUAL
    columns_chosen: bool = False
    schema: str | None = None
    """Which of the usual sets of columns; None: that which fits the kind of the topics."""
    direct: str = "auto"
    envelope: bool = False
    fail_on_bad_envelope: bool = True

    @property
    def named_topics(self) -> tuple[str, ...] | None:
        """The topics to ask brokers about; None for all of them."""
        if self.pattern is not None:
            return None
        return self.topics or tuple(sorted({partition.topic for partition in self.assigned}))

    def wants_topic(self, topic: str) -> bool:
        """Whether the query reads partitions of this topic."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in (self.named_topics or ())

    def wants(self, partition: TopicPartition) -> bool:
        """Whether the query reads this partition."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, partition.topic) is not None
        return (
            partition.topic in self.topics
            or partition in self.assigned
            or (partition.topic, (ANY_BROKER, partition.partition.partition)) in self.assigned
        )

    def of_set(self, name: str) -> SourceOptions:
        """The same with one of the usual sets of columns, and what was asked for beside it."""
        usual = schema.SETS[self.schema or schema.FASTLOG]
        return replace(self, schema=name, columns=(*schema.SETS[name], *self.columns[len(usual) :]))


def parse_options(options: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
    """Check the options of a batch read or of a streaming query; names are taken in any case.

    ``streaming`` None: it is not known yet which of the two it is, and what is possible in one of them passes.

    Raises:
        ConfigError: a name that is not known or not possible here, a malformed value, or two that contradict each
            other; says which.
    """
    given: dict[str, str] = {}
    for name, text in options.items():
        key = name.lower()
        if key in _REFUSED:
            raise ConfigError(f"{name}: {_REFUSED[key]}")
        if key not in _KNOWN:
            raise ConfigError(unknown_name(name, _KNOWN.values()))
        given[key] = text
    for key in () if streaming is None else _BATCH_ONLY if streaming else _STREAM_ONLY:
        if key in given:
            raise ConfigError(f"{_KNOWN[key]}: only for {'a batch read' if streaming else 'a streaming query'}")
    for names in (_CHOICES, _STARTS, _ENDS, _LIMITS, *(("columns", name) for name in _NOT_WITH_COLUMNS)):
        at_most_one(given, [_KNOWN[name] for name in names])
    check_addresses(given)
    if "group" in given and not {"zookeeper", "zk.connect"} & given.keys():
        raise ConfigError("group: offsets of groups are in ZooKeeper: give zookeeper instead of brokers")
    if not any(name in given for name in _CHOICES):
        raise ConfigError("one of subscribe, subscribePattern and assign must be given")
    if "startingoffsetsbytimestampstrategy" in given and not {"startingtimestamp", "startingoffsetsbytimestamp"} & set(
        given
    ):
        raise ConfigError("startingOffsetsByTimestampStrategy: no starting time is given")
    fields: dict[str, Any] = {
        "starting": _place(given, _STARTS, "latest" if streaming else "earliest"),
        "ending": _place(given, _ENDS, "latest"),
    }
    if streaming is False and fields["starting"].kind == "latest":
        raise ConfigError("startingOffsets: latest would read nothing in a batch read")
    if fields["ending"].kind == "earliest":
        raise ConfigError("endingOffsets: earliest would read nothing")
    for key, text in given.items():
        if key in _FIELDS:
            field, parse = _FIELDS[key]
            fields[field] = parse(_KNOWN[key], text)
    if "fetch.numretries" in given:
        fields.setdefault("retry_timeout", 0.0)  # so often, and not for so long
    fields["columns_chosen"] = "columns" in given
    fields["columns"] = _columns(given, fields.get("schema") or schema.FASTLOG)
    made = SourceOptions(**fields)
    schema.check_envelope(made.columns, made.envelope)
    if "failonbadenvelope" in given and not made.envelope:
        raise ConfigError("failOnBadEnvelope: messages have no envelope unless envelope=true says so")
    return made


def _columns(given: Mapping[str, str], usual: str) -> tuple[str, ...]:
    if "columns" in given:
        return schema.parse_columns(given["columns"])
    found = list(schema.SETS[usual])
    for key, names in (
        ("includenextoffset", ("nextOffset",)),
        ("includeenvelope", schema.ENVELOPES_OWN),
        ("includeheaders", ("headers",)),
    ):
        if key in given and truth(_KNOWN[key], given[key]):
            found += names
    return tuple(found)


def _place(given: Mapping[str, str], names: tuple[str, str, str], default: str) -> OffsetSpec:
    offsets, time, times = names
    if time in given:
        return OffsetSpec("time", time_ms=number(_KNOWN[time], given[time], 0, MAX_OFFSET))
    if times in given:
        nested = parse_json(_KNOWN[times], given[times])
        return OffsetSpec("times", by_partition=parse_partitions(nested, _KNOWN[times], 0))
    text = given.get(offsets, default).strip()
    if text.lower() in ("earliest", "latest"):
        return OffsetSpec(text.lower())
    if not text.startswith("{"):
        raise ConfigError(f"{_KNOWN[offsets]}: {text!r} is neither earliest, latest nor JSON")
    nested = parse_json(_KNOWN[offsets], text)
    return OffsetSpec("offsets", by_partition=parse_partitions(nested, _KNOWN[offsets], EARLIEST))


# -- single values -----------------------------------------------------------------------------------------------------


def _group(name: str, text: str) -> str:
    if not text.strip() or "/" in text or text.strip() in (".", ".."):
        raise ConfigError(f"{name}: {text!r} cannot be the name of a group")
    return text.strip()


def _topics(name: str, text: str) -> tuple[str, ...]:
    found = [part.strip() for part in text.split(",")]
    for topic in found:
        reason = valid_topic(topic)
        if reason is not None:
            raise ConfigError(f"{name}: {reason}")
    return tuple(sorted(set(found)))


def _pattern(name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"{name}: {text!r} is no regular expression: {error}") from None
    return text


def _assigned(name: str, text: str) -> tuple[TopicPartition, ...]:
    nested = parse_json(name, text)
    if not isinstance(nested, dict) or not all(isinstance(value, list) for value in nested.values()):
        raise ConfigError(f'{name}: {text!r} has not the form {{"topic": ["0-0", "0-1"]}}')
    found = [parse_partition(topic, item, name) for topic, items in nested.items() for item in items]
    if not found:
        raise ConfigError(f"{name}: no partition is named")
    if len(set(found)) < len(found):
        raise ConfigError(f"{name}: a partition is named twice")
    return tuple(sorted(found))


_CHOICES = ("subscribe", "subscribepattern", "assign")
_STARTS = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")
_ENDS = ("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp")
_LIMITS = ("maxbytespertrigger", "maxoffsetspertrigger")
_NOT_WITH_COLUMNS = ("schema", "includenextoffset", "includeenvelope", "includeheaders")
_BATCH_ONLY = _ENDS
_STREAM_ONLY = (*_LIMITS, "group")

_OPTIONS: tuple[tuple[str, str | None, Parse | None], ...] = (
    *ADDRESS_OPTIONS,
    ("group", "group", _group),
    ("subscribe", "topics", _topics),
    ("subscribePattern", "pattern", _pattern),
    ("assign", "assigned", _assigned),
    ("startingOffsets", None, None),
    ("startingTimestamp", None, None),
    ("startingOffsetsByTimestamp", None, None),
    ("startingOffsetsByTimestampStrategy", "unmatched_start", one_of("error", "latest")),
    ("endingOffsets", None, None),
    ("endingTimestamp", None, None),
    ("endingOffsetsByTimestamp", None, None),
    ("maxBytesPerTrigger", "max_bytes_per_trigger", sized(MAX_OFFSET)),
    ("maxOffsetsPerTrigger", "max_offsets_per_trigger", counted(1, MAX_OFFSET)),
    ("minPartitions", "min_partitions", counted(1, 100_000)),
    ("maxBytesPerPartition", "max_bytes_per_partition", sized(MAX_OFFSET)),
    ("maxRecordsPerPartition", "max_records_per_partition", counted(1, MAX_OFFSET)),
    ("failOnDataLoss", "fail_on_data_loss", truth),
    ("fetch.size", "fetch_bytes", sized(_LARGEST_FETCH)),
    ("fetch.timeout.ms", "fetch_timeout", seconds),
    ("max.message.size", "max_message_bytes", sized(_LARGEST_FETCH)),
    ("fetch.numRetries", "retries", counted(0, 1000)),
    ("fetch.retryIntervalMs", "retry_interval", seconds),
    ("fetch.retryTimeoutMs", "retry_timeout", seconds),
    ("schema", "schema", one_of(schema.FASTLOG, schema.KAFKA)),
    ("columns", None, None),
    ("includeNextOffset", None, None),
    ("includeEnvelope", None, None),
    ("includeHeaders", None, None),
    ("envelope", "envelope", truth),
    ("failOnBadEnvelope", "fail_on_bad_envelope", truth),
    ("direct", "direct", one_of(*DIRECT)),
)
_KNOWN = {name.lower(): name for name, _, _ in _OPTIONS}
_FIELDS = {name.lower(): (field, parse) for name, field, parse in _OPTIONS if field is not None and parse is not None}

OPTION_NAMES = tuple(_KNOWN.values())
"""The names of all options of the source."""
