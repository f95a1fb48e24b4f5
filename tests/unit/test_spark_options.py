"""The options of the Spark source: all of them are used, and what makes no sense is refused by its name."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest

from fastlog.client.addresses import Address
from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import ConfigError
from fastlog.spark import options, schema
from fastlog.spark.addresses import NamedAddress
from fastlog.spark.offsets import EARLIEST, NumberedPartition, OffsetSpec
from fastlog.spark.options import SourceOptions, parse_options
from tests.harness.spark import partition_of

LEAST = {"brokers": "localhost", "subscribe": "logs"}


def parsed(streaming: bool | None = False, **given: str) -> SourceOptions:
    return parse_options(
        {**LEAST, **{name.replace("__", "."): text for name, text in given.items()}}, streaming=streaming
    )


def test_defaults() -> None:
    found = parsed()
    assert found.brokers == (NamedAddress(Address("localhost", 9092)),)
    assert (found.topics, found.columns, found.fail_on_data_loss) == (("logs",), schema.USUAL, True)
    assert (found.starting, found.ending) == (OffsetSpec("earliest"), OffsetSpec("latest"))
    assert parsed(True).starting == OffsetSpec("latest")


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("brokers", "3@h:1, [::1]:2", "brokers", (NamedAddress(Address("h", 1), 3), NamedAddress(Address("::1", 2)))),
        ("startingOffsets", " Earliest ", "starting", OffsetSpec("earliest")),
        (
            "startingOffsets",
            '{"logs": {"0-1": 7, "0-0": -2}}',
            "starting",
            OffsetSpec("offsets", by_partition=((partition_of("logs/0-0"), EARLIEST), (partition_of("logs/0-1"), 7))),
        ),
        ("startingTimestamp", "1700000000000", "starting", OffsetSpec("time", time_ms=1_700_000_000_000)),
        (
            "startingOffsetsByTimestamp",
            '{"logs": {"0-0": 5}}',
            "starting",
            OffsetSpec("times", by_partition=((partition_of("logs/0-0"), 5),)),
        ),
        ("minPartitions", "8", "min_partitions", 8),
        ("maxBytesPerPartition", "1MiB", "max_bytes_per_partition", 2**20),
        ("failOnDataLoss", "FALSE", "fail_on_data_loss", False),
        ("fetch.size", "64KiB", "fetch_bytes", 65536),
        ("fetch.timeout.ms", "1500", "fetch_timeout", 1.5),
        ("max.message.size", "2MB", "max_message_bytes", 2_000_000),
        ("fetch.numRetries", "0", "retries", 0),
        ("fetch.retryIntervalMs", "1s", "retry_interval", 1.0),
        ("fetch.retryTimeoutMs", "5s", "retry_timeout", 5.0),
        ("fetch.numRetries", "9", "retry_timeout", 0.0),
        ("columns", "VALUE, offset", "columns", ("value", "offset")),
        ("includeNextOffset", "true", "columns", (*schema.USUAL, "nextOffset")),
        ("includeHeaders", "true", "columns", (*schema.USUAL, "headers")),
        ("schema", "Kafka", "schema", "kafka"),
        ("schema", "kafka", "columns", schema.SETS["kafka"]),
        (
            "startingOffsets",
            '{"logs": {"1": 7, "0": -2}}',
            "starting",
            OffsetSpec(
                "offsets",
                by_partition=(
                    (TopicPartition("logs", NumberedPartition(0)), EARLIEST),
                    (TopicPartition("logs", NumberedPartition(1)), 7),
                ),
            ),
        ),
        ("maxRecordsPerPartition", "1000", "max_records_per_partition", 1000),
        ("envelope", "true", "envelope", True),
        ("direct", "only", "direct", "only"),
    ],
)
def test_each_option_sets_its_field(name: str, text: str, field: str, value: object) -> None:
    """In any case, and for streams too."""
    for key in (name, name.lower(), name.upper()):
        for streaming in (False, True):
            given = {"brokers": "localhost", "subscribe": "logs"} | {key: text}
            if key != "brokers" and key.lower() == "brokers":
                del given["brokers"]
            assert getattr(parse_options(given, streaming=streaming), field) == value


def test_options_of_one_kind_of_query() -> None:
    assert parsed(True, maxBytesPerTrigger="10MB").max_bytes_per_trigger == 10_000_000
    assert parsed(endingOffsets='{"logs": {"0-0": 9}}').ending.kind == "offsets"
    assert parsed(endingTimestamp="9").ending == OffsetSpec("time", time_ms=9)
    assert parsed(endingOffsetsByTimestamp='{"logs": {"0-0": 9}}').ending.kind == "times"
    assert parsed(startingTimestamp="9", startingOffsetsByTimestampStrategy="latest").unmatched_start == "latest"
    assert parsed(None, endingTimestamp="9", maxBytesPerTrigger="1").max_bytes_per_trigger == 1


def test_brokers_that_zookeeper_shows() -> None:
    """By either name; there a query's progress can be shown too."""
    for name in ("zookeeper", "zk.connect"):
        found = parse_options({name: "h,g:2182/kafka/", "subscribe": "t", "group": "g"}, streaming=True)
        assert (found.zookeeper, found.zookeeper_timeout, found.group) == ("h:2181,g:2182/kafka", 6.0, "g")
        assert found.brokers == ()
    quick = parse_options({"zookeeper": "h", "zookeeper.timeout.ms": "2s", "subscribe": "t"}, streaming=None)
    assert quick.zookeeper_timeout == 2.0


def test_columns_of_envelopes() -> None:
    both = parsed(envelope="true", includeEnvelope="true", includeNextOffset="true", failOnBadEnvelope="false")
    assert both.columns == (*schema.USUAL, "nextOffset", "server", "schemaId", "deduplicationId")
    assert (both.columns_chosen, both.fail_on_bad_envelope) == (False, False)
    assert parsed(envelope="true", columns="server,value").columns == ("server", "value")
    assert parsed(envelope="true", includeEnvelope="false").columns == schema.USUAL


def test_ways_to_choose_partitions() -> None:
    by_pattern = parse_options({"brokers": "h", "subscribePattern": "log.*"}, streaming=False)
    assert by_pattern.named_topics is None
    assert by_pattern.wants(partition_of("logs/0-0"))
    assert not by_pattern.wants(partition_of("my-logs/0-0"))
    assigned = parse_options({"brokers": "h", "assign": '{"b": ["1-0"], "a": ["0-2", "0-0"]}'}, streaming=False)
    assert assigned.named_topics == ("a", "b")
    assert [str(item) for item in assigned.assigned] == ["a/0-0", "a/0-2", "b/1-0"]
    assert not assigned.wants(partition_of("a/0-1"))
    assert parsed(subscribe="b, a,b").named_topics == ("a", "b")
    by_number = parse_options({"brokers": "h", "assign": '{"a": [0, "2"], "b": ["1-0"]}'}, streaming=False)
    assert [str(item) for item in by_number.assigned] == ["a/0", "a/2", "b/1-0"]
    assert [by_number.wants(partition_of(name)) for name in ("a/7-0", "a/0-2", "a/0-1", "b/1-0", "b/0-0")] == [
        True,
        True,
        False,
        True,
        False,
    ]
    assert pickle.loads(pickle.dumps(by_number)) == by_number


def test_the_other_set_of_columns() -> None:
    """What was asked for beside the usual ones stays behind them."""
    both = parsed(includeHeaders="true", includeNextOffset="true")
    assert both.of_set("fastlog").columns == both.columns
    kafka = both.of_set("kafka")
    assert (kafka.schema, kafka.columns) == ("kafka", (*schema.SETS["kafka"], "nextOffset", "headers"))
    assert kafka.of_set("fastlog").columns == both.columns
    assert parsed(True, maxOffsetsPerTrigger="10").max_offsets_per_trigger == 10
    with pytest.raises(ConfigError, match="maxBytesPerTrigger and maxOffsetsPerTrigger contradict"):
        parsed(True, maxOffsetsPerTrigger="10", maxBytesPerTrigger="10")


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"startingOffset": "latest"}, "'startingOffset'; did you mean 'startingOffsets'"),
        ({"kafka.bootstrap.servers": "h"}, "brokers is meant"),
        ({"zk.connect": "h:2181"}, "brokers and zk.connect contradict each other"),
        ({"zookeeper.connect": "h:2181"}, "zookeeper.connect: zookeeper is meant"),
        ({"zookeeper.timeout.ms": "5"}, "zookeeper.timeout.ms: brokers are named"),
        ({"maxOffsetsPerTrigger": "10"}, "maxOffsetsPerTrigger: only for a streaming query"),
        ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition: 0 is not from 1"),
        ({"columns": "value", "includeHeaders": "true"}, "columns and includeHeaders contradict"),
        ({"columns": "value", "schema": "kafka"}, "columns and schema contradict"),
        ({"schema": "avro"}, "schema: 'avro' is none of fastlog, kafka"),
        ({"path": "logs"}, "load.. takes no path"),
        ({"envelope": "yes"}, "envelope: 'yes' is neither true nor false"),
        ({"columns": "server,value"}, "server: it comes from envelopes"),
        ({"includeEnvelope": "true"}, "server: it comes from envelopes"),
        ({"failOnBadEnvelope": "false"}, "failOnBadEnvelope: messages have no envelope"),
        ({"columns": "value", "includeEnvelope": "true"}, "columns and includeEnvelope contradict"),
        ({"group": "g"}, "group: only for a streaming query"),
        ({"assign": '{"t": ["0-0"]}'}, "subscribe and assign contradict"),
        ({"subscribePattern": "t"}, "subscribe and subscribePattern contradict"),
        ({"startingOffsets": "latest"}, "startingOffsets: latest would read nothing"),
        ({"endingOffsets": "earliest"}, "endingOffsets: earliest would read nothing"),
        ({"startingOffsets": "earliest", "startingTimestamp": "5"}, "startingOffsets and startingTimestamp contradict"),
        (
            {"endingTimestamp": "5", "endingOffsetsByTimestamp": "{}"},
            "endingTimestamp and endingOffsetsByTimestamp contradict",
        ),
        ({"startingOffsetsByTimestampStrategy": "latest"}, "no starting time is given"),
        ({"maxBytesPerTrigger": "1"}, "maxBytesPerTrigger: only for a streaming query"),
        ({"columns": "value", "includeNextOffset": "true"}, "columns and includeNextOffset contradict"),
        ({"columns": "value,size"}, "columns: there is no column 'size'"),
        ({"columns": "value,Value"}, "columns: value is named twice"),
        ({"columns": ","}, "columns: none is named"),
        ({"startingOffsets": "middle"}, "startingOffsets: 'middle' is neither"),
        ({"startingOffsets": '{"logs": {"x": 5}}'}, "startingOffsets: 'x' of 'logs' is neither broker-partition"),
        ({"startingOffsets": '{"logs": {"01": 5}}'}, "startingOffsets: '01' of 'logs' is neither"),
        ({"startingOffsets": '{"logs": {"0-0": -3}}'}, "startingOffsets: -3"),
        ({"startingOffsets": '{"logs": {"0-0": true}}'}, "startingOffsets: True"),
        ({"startingOffsets": '{"logs": {"0-0": 1, "0-0": 2}}'}, "startingOffsets: a topic or partition is named twice"),
        ({"startingOffsets": '{"logs": 5}'}, "startingOffsets: .* has not the form"),
        ({"startingOffsets": '{"logs"'}, "startingOffsets: .* is no JSON"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp: 'yesterday' is no whole number"),
        ({"minPartitions": "0"}, "minPartitions: 0 is not from 1"),
        ({"maxBytesPerPartition": "x"}, "maxBytesPerPartition: 'x'"),
        ({"maxBytesPerPartition": "0"}, "maxBytesPerPartition: 0 is not from 1"),
        ({"fetch.size": "2GiB"}, "fetch.size: 2147483648 is not from 1"),
        ({"fetch.timeout.ms": "0"}, "fetch.timeout.ms: '0' is not above 0"),
        ({"fetch.numRetries": "-1"}, "fetch.numRetries: -1"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss: 'no' is neither true nor false"),
        ({"direct": "yes"}, "direct: 'yes' is none of"),
        ({"brokers": ""}, "brokers: none is named"),
        ({"brokers": "x@h:1"}, "brokers: 'x' is no whole number"),
        ({"brokers": "h:port"}, "brokers: 'h:port' is none"),
        ({"brokers": "h:1,h:1"}, "brokers: .* names a broker twice"),
        ({"brokers": "1@h:1,1@h:2"}, "brokers: .* names a broker twice"),
        ({"subscribe": "a,,b"}, "subscribe: the topic name is empty"),
        ({"subscribe": "a/b"}, "subscribe: the topic name has the illegal character"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(given: dict[str, str], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        parse_options({**LEAST, **given}, streaming=False)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: only for a batch read"):
        parsed(True, **{name: "{}"})


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"subscribe": "t"}, "brokers: not given"),
        ({"brokers": "h"}, "one of subscribe, subscribePattern and assign"),
        ({"zookeeper": "h:x", "subscribe": "t"}, "zookeeper: 'h:x' in 'h:x' is not host:port"),
        ({"zookeeper": "h", "zk.connect": "h", "subscribe": "t"}, "zookeeper and zk.connect contradict"),
        ({"brokers": "h", "subscribe": "t", "group": "g"}, "group: offsets of groups are in ZooKeeper"),
        ({"zookeeper": "h", "subscribe": "t", "group": "a/b"}, "group: 'a/b' cannot be the name of a group"),
        ({"zookeeper": "h", "subscribe": "t", "group": " "}, "group: ' ' cannot be the name of a group"),
        ({"brokers": "h", "assign": "[]"}, "assign: .* has not the form"),
        ({"brokers": "h", "assign": "{}"}, "assign: no partition"),
        ({"brokers": "h", "assign": '{"t": ["0-0", "0-0"]}'}, "assign: a partition is named twice"),
        ({"brokers": "h", "subscribePattern": "("}, "subscribePattern: .* no regular expression"),
    ],
)
def test_what_must_be_given(given: dict[str, str], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        parse_options(given, streaming=True)


def test_every_option_is_described() -> None:
    text = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    assert [name for name in options.OPTION_NAMES if f"`{name}`" not in text] == []


def test_no_option_is_parsed_and_left_aside() -> None:
    """Every option leads to a field, and every field of the result is reached by an option."""
    reached = {field for _, field, _ in options._OPTIONS if field} | {"starting", "ending"}
    reached |= {"columns", "columns_chosen"}
    reached |= {"loss_option"}  # set by jobs, which have an option of their own
    assert reached == {field.name for field in dataclasses.fields(SourceOptions)}


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ([("size", "int", True)], "no column 'size'"),
        ([("Value", "binary", True)], "value is meant"),
        ([("offset", "int", True)], "offset is bigint, not int"),
        ([("key", "binary", False)], "key may be null"),
        ([("key", "binary", True), ("key", "binary", True)], "twice"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(fields: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        schema.check_schema(fields)


def test_a_schema_may_take_columns_in_any_order() -> None:
    schema.check_schema([("value", "binary", False), ("offset", "bigint", True)])


def test_a_time_that_is_none_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"^fetch\.retryTimeoutMs: "):
        parsed(fetch__retryTimeoutMs="soon")
