"""What describes topics, the cluster and log directories; the table of settings; who may ask; rubbish."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from kio.index import load_request_schema, load_response_schema

from fastlog.config import BrokerConfig
from fastlog.errors import LogError, ProtocolError
from fastlog.kafka_codes import Code
from fastlog.log import metadata
from fastlog.log.files import FileOps
from fastlog.log.metadata import CREATED, CREATING, DELETED, DELETING, Metadata, Topic, producer_ids, topic_change
from fastlog.workers.authorization import Operation, ResourceType
from fastlog.workers.coordinator import codec, topic_settings
from fastlog.workers.coordinator.dispatch import SERVED
from fastlog.workers.coordinator.frames import Frame
from fastlog.workers.coordinator.topic_settings import KEYS, Effect, InvalidSettingError, applied, checked
from fastlog.workers.coordinator.topics import Topics
from fastlog.workers.kafka import kinds
from tests.harness.checkout import ROOT
from tests.harness.coordinated import Coordinated, encoded


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Coordinated]:
    with Coordinated(tmp_path / "log") as made:
        yield made


def test_clients_are_told_of_what_is_served() -> None:
    """And of where tagged fields begin, as the library's schemas say."""
    assert {key: (api.first, api.last) for key, api in kinds.FORWARDED.items()} == {
        key: versions for key, (_, *versions) in SERVED.items() for versions in [tuple(versions)]
    }
    for key, api in kinds.FORWARDED.items():
        for version in range(api.first, api.last + 1):
            assert bool(load_request_schema(key, version).__flexible__) == (version >= api.flexible), (key, version)
            load_response_schema(key, version)


# -- settings ----------------------------------------------------------------------------------------------------------


def test_the_page_has_the_table() -> None:
    """Each key, and what it does, in the words of the table."""
    page = (ROOT / "docs" / "kafka.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z.]+)` \| ((?:obeyed|taken)[^|]*?) \|$", page, re.MULTILINE))
    assert set(rows) == set(KEYS)
    for name, text in rows.items():
        key = KEYS[name]
        assert text.startswith(key.effect.value), name
        assert key.note in text, name


@pytest.mark.parametrize("key", KEYS.values(), ids=lambda key: key.name)
def test_each_default_can_be_given(key: topic_settings.Key) -> None:
    value = key.default(BrokerConfig())
    assert checked({key.name: value}) == {key.name: value}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-2"), ("retention.ms", ""), ("retention.ms", "1.5"), ("retention.ms", "９"),
        ("retention.ms", "9223372036854775808"), ("segment.bytes", "2147483648"), ("segment.bytes", "13"),
        ("cleanup.policy", ""), ("cleanup.policy", "delete,keep"), ("compression.type", "gzip"),
        ("preallocate", "yes"), ("min.cleanable.dirty.ratio", "1.1"), ("min.cleanable.dirty.ratio", "nan"),
        ("message.timestamp.type", "createtime"), ("no.such.key", "1"), ("no.such.key", None),
    ],
)  # fmt: skip
def test_what_is_refused(name: str, value: str | None) -> None:
    with pytest.raises(InvalidSettingError, match=re.escape(name)):
        checked({name: value})


def test_no_value_asks_for_the_default() -> None:
    assert checked({"retention.ms": None, "segment.ms": " 5 "}) == {"segment.ms": "5"}


def test_what_is_obeyed_holds() -> None:
    config = BrokerConfig(retention_hours=1.0, retention_bytes=99)
    plain = applied(config, "t", {})
    assert (plain.retention_ms, plain.retention_bytes, plain.append_time) == (3_600_000, 99, False)
    assert applied(config, "t", {"retention.ms": "0"}).retention_ms == 0
    assert applied(config, "t", {"retention.bytes": "-1"}).retention_bytes is None
    kept = applied(config, "t", {"cleanup.policy": "compact", "retention.ms": "5"})
    assert kept.retention_bytes is None and kept.retention_ms > 10**15
    assert applied(config, "t", {"cleanup.policy": "compact, delete"}).retention_bytes == 99
    given = {"flush.ms": str(2**63 - 1), "flush.messages": str(2**63 - 1), "segment.ms": "7", "segment.bytes": "100"}
    own = applied(config, "t", given)
    assert own.flush_interval_ms * 1_000_000 < 2**64
    assert (own.flush_interval_messages, own.roll_ms, own.segment_bytes) == (2**63 - 1, 7, 100)
    assert applied(BrokerConfig(segment_bytes=2**40), "t", {}).segment_bytes == 2**31 - 1
    obeyed = {name for name, key in KEYS.items() if key.effect is Effect.OBEYED}
    assert len(obeyed) == 9


# -- describing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 5))
def test_the_settings_of_a_topic_are_described(running: Coordinated, version: int) -> None:
    running.create("t", 1, configs={"retention.bytes": "5000"})
    asked = {"resource_type": 2, "resource_name": "t", "configuration_keys": None}
    more = {"include_synonyms": True, "include_documentation": False}
    (found,) = running.ask(32, version, resources=[asked], **more).results
    assert found.error_code == Code.NONE
    rows = {row.name: row for row in found.configs}
    assert set(rows) == set(KEYS)
    assert (rows["retention.bytes"].value, rows["retention.bytes"].config_source) == ("5000", 1)
    assert rows["retention.ms"].config_source == 5
    (found,) = running.ask(32, version, resources=[asked | {"configuration_keys": ["segment.ms"]}], **more).results
    assert [row.name for row in found.configs] == ["segment.ms"]
    (found,) = running.ask(32, version, resources=[asked | {"configuration_keys": []}], **more).results
    assert {row.name for row in found.configs} == set(KEYS), "no key is named, and so all are asked for"


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (2, "none", Code.UNKNOWN_TOPIC_OR_PARTITION),
        (2, "__fastlog_metadata", Code.UNKNOWN_TOPIC_OR_PARTITION),
        (4, "8", Code.INVALID_REQUEST),
        (4, "7", Code.NONE),
        (4, "", Code.NONE),
        (8, "x", Code.INVALID_REQUEST),
    ],
)
def test_what_can_be_described(running: Coordinated, kind: int, name: str, code: Code) -> None:
    asked = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    (found,) = running.ask(32, 4, resources=[asked], include_synonyms=True, include_documentation=True).results
    assert (found.error_code, bool(found.configs)) == (code, code == Code.NONE)
    if kind == 4 and code == Code.NONE:
        rows = {row.name: row for row in found.configs}
        assert (rows["brokerid"].value, rows["brokerid"].read_only) == ("7", True)


@pytest.mark.parametrize("version", range(1, 5))
def test_log_directories_are_described(running: Coordinated, version: int) -> None:
    running.create("t", 2)
    running.create("u", 1)
    (found,) = running.ask(35, version, topics=None).results
    assert found.log_dir == str(running.directory)
    assert {topic.name: len(topic.partitions) for topic in found.topics} == {"t": 2, "u": 1}
    (found,) = running.ask(35, version, topics=[{"topic": "t", "partitions": [1, 9]}]).results
    assert [(topic.name, [row.partition_index for row in topic.partitions]) for topic in found.topics] == [("t", [1])]
    if version == 4:
        assert 0 < found.usable_bytes <= found.total_bytes


def test_the_cluster_has_no_controllers_of_its_own(running: Coordinated) -> None:
    found = running.ask(60, 1, include_cluster_authorized_operations=True, endpoint_type=2)
    assert (found.error_code, found.brokers) == (Code.MISMATCHED_ENDPOINT_TYPE, ())
    found = running.ask(60, 0, include_cluster_authorized_operations=True)
    assert found.cluster_authorized_operations & 1 << Operation.CREATE
    assert [(node.broker_id, node.host, node.port) for node in found.brokers] == [(7, "told", 9093)]


# -- who may ask -------------------------------------------------------------------------------------------------------


def nobody(_principal: str, _host: str, _operation: Operation, _kind: ResourceType, _name: str) -> bool:
    return False


def test_who_may_nothing_is_told_nothing(tmp_path: Path) -> None:
    with Coordinated(tmp_path / "log", rule=nobody) as running:
        assert running.create("t").error_code == Code.TOPIC_AUTHORIZATION_FAILED
        running.manager.create_partition("t", 0, count=1, format_name="record-batches", topic_id=bytes(range(16)))
        assert running.delete("t") == Code.TOPIC_AUTHORIZATION_FAILED
        (found,) = running.ask(20, 6, topics=[{"name": None, "topic_id": bytes(range(16))}], timeout=1).responses
        assert (found.error_code, found.name) == (Code.UNKNOWN_TOPIC_ID, None)
        row = {"name": "t", "count": 5, "assignments": None}
        (found,) = running.ask(37, 3, topics=[row], timeout=1, validate_only=False).results
        assert found.error_code == Code.TOPIC_AUTHORIZATION_FAILED
        for kind, code in ((2, Code.TOPIC_AUTHORIZATION_FAILED), (4, Code.CLUSTER_AUTHORIZATION_FAILED)):
            asked = {"resource_type": kind, "resource_name": "t", "configuration_keys": None}
            (found,) = running.ask(32, 4, resources=[asked], include_synonyms=0, include_documentation=0).results
            assert (found.error_code, found.configs) == (code, ())
        asked = {"resource_type": 2, "resource_name": "t", "configs": ()}
        (found,) = running.ask(33, 2, resources=[asked], validate_only=False).responses
        assert found.error_code == Code.TOPIC_AUTHORIZATION_FAILED
        assert running.ask(35, 4, topics=None).results == ()
        fields = {"transactional_id": None, "transaction_timeout": 1, "producer_id": -1, "producer_epoch": -1}
        assert running.ask(22, 4, **fields).error_code == Code.CLUSTER_AUTHORIZATION_FAILED
        found = running.ask(60, 1, include_cluster_authorized_operations=True, endpoint_type=1)
        assert found.cluster_authorized_operations == 0


# -- rubbish -----------------------------------------------------------------------------------------------------------


def closes(running: Coordinated, body: bytes) -> bool:
    answers: list[bytes | None] = []
    running.dispatcher.handle(Frame(1, 1, 0, 0, 0, "10.1.2.3", 4711, body), answers.append)
    running.turn_until("it is answered", lambda: bool(answers))
    return answers == [None]


@pytest.mark.parametrize("key", SERVED)
def test_a_request_that_is_cut_short_or_too_long_closes_its_connection(running: Coordinated, key: int) -> None:
    version = SERVED[key][2]
    fields = {
        "topics": (), "timeout": 1, "validate_only": True, "transactional_id": None, "transaction_timeout": 1,
        "resources": (), "include_synonyms": False, "include_documentation": False,
        "include_cluster_authorized_operations": False, "endpoint_type": 1, "group_id": "g", "member_id": "m",
        "groups": (), "coordinator_keys": (), "protocol_type": "consumer", "protocols": (), "session_timeout": 10,
        "generation_id": 1, "members": (), "assignments": (), "groups_names": (), "states_filter": (),
        "include_authorized_operations": False,
    }  # fmt: skip
    whole = encoded(key, version, fields)
    for size in range(len(whole)):
        assert closes(running, whole[:size]), size
    assert closes(running, whole + b"\0")
    assert not closes(running, whole)


@pytest.mark.parametrize("body", [b"", b"\0", b"\x03\xe8" + bytes(20), b"\0\x13\0\x08" + bytes(20), b"\xff" * 50])
def test_what_is_not_served_closes_its_connection(running: Coordinated, body: bytes) -> None:
    assert closes(running, body)


def test_bytes_that_were_changed_never_end_the_coordinator(running: Coordinated) -> None:
    source = random.Random(4)
    row = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    whole = encoded(19, 7, {"topics": [row], "timeout": 1, "validate_only": True})
    for _ in range(400):
        body = bytearray(whole)
        for _ in range(source.randrange(1, 4)):
            body[source.randrange(8, len(body))] = source.randrange(256)
        try:
            codec.decode(bytes(body))
        except ProtocolError:
            assert closes(running, bytes(body))
    assert running.ask(60, 0, include_cluster_authorized_operations=False).error_code == Code.NONE


# -- the metadata log's records ----------------------------------------------------------------------------------------

ID, OTHER = bytes(range(16)), bytes(range(1, 17))


def after(*changes: metadata.Change) -> Metadata:
    state = Metadata()
    for change in changes:
        state.apply(change)
    return state


def test_a_state_is_what_its_changes_make() -> None:
    topic = Topic("t", ID, 3, {"a": "b"}, CREATING)
    assert after(topic_change(CREATING, topic)).topics == {"t": topic}
    state = after(topic_change(CREATING, topic), topic_change(CREATED, topic), producer_ids(7), producer_ids(5))
    assert state.topics["t"].phase == CREATED and state.next_producer_id == 7
    state.apply(topic_change(DELETING, topic))
    assert state.topics["t"].phase == DELETING and state.topics["t"].partitions == 3
    for each in (state, after(topic_change(CREATING, topic)), after(producer_ids(9))):
        assert after(*each.changes()) == each
    state.apply(topic_change(DELETED, topic))
    assert state.topics == {}


@pytest.mark.parametrize("kind", [DELETING, DELETED])
def test_a_change_of_a_topic_that_is_gone_is_about_no_other(kind: str) -> None:
    now = Topic("t", OTHER, 1)
    assert after(topic_change(CREATED, now), topic_change(kind, Topic("t", ID, 1))).topics == {"t": now}


@pytest.mark.parametrize(
    "change",
    [
        {}, {"version": 2, "change": CREATED}, {"version": 1, "change": "moved", "topic": "t", "id": "x"},
        {"version": 1, "change": CREATED, "topic": "t", "id": "AAAAAAAAAAAAAAAAAAAAAA"}, [], None, "created",
        {"version": 1, "change": "producer-ids", "next": "many"},
    ],
)  # fmt: skip
def test_a_record_that_is_not_understood_is_said(change: metadata.Change) -> None:
    with pytest.raises(LogError, match="__fastlog_metadata"):
        Metadata().apply(change)


def test_the_log_is_read_up_to_where_it_is_torn(tmp_path: Path) -> None:
    """As recovery cuts it: a batch that is not whole, or whose bytes are others, and what follows it."""
    with Coordinated(tmp_path / "log") as running:
        for name in ("a", "b", "c"):
            running.create(name)
    (segment,) = (tmp_path / "log" / "__fastlog_metadata-0").glob("*.log")
    data = segment.read_bytes()
    whole = metadata.read_metadata([tmp_path / "log"], FileOps())
    assert set(whole.topics) == {"a", "b", "c"}
    sizes = set()
    for size in range(len(data)):
        segment.write_bytes(data[:size])
        state = metadata.read_metadata([tmp_path / "log"], FileOps())
        sizes.add((len(state.topics), *(topic.phase for topic in state.topics.values())))
    assert sizes == {
        (0,), (1, "creating"), (1, "created"), (2, "created", "creating"), (2, "created", "created"),
        (3, "created", "created", "creating"),
    }  # fmt: skip
    segment.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert metadata.read_metadata([tmp_path / "log"], FileOps()).topics["c"].phase == CREATING


@pytest.mark.parametrize(("key", "version"), [(19, 99), (9999, 0), (18, 0)])
def test_a_request_that_is_not_served_has_no_answer(
    key: int, version: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A processor forwards none: its connection closes, with a line that names it, and the next one is served."""
    with Coordinated(tmp_path / "log") as running:
        answers: list[bytes | None] = []
        data = struct.pack(">hhih", key, version, 77, -1) + b"\x00" * 20
        running.dispatcher.handle(Frame(1, 1, 0, 0, 0, "10.1.2.3", 4711, data), answers.append)
        running.turn_until("it is answered", lambda: bool(answers))
        assert answers == [None]
        assert "refused peer=10.1.2.3" in caplog.text
        assert running.create("t").error_code == 0


def test_a_request_that_raises_has_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its connection closes, the log has why, and the next one is served."""
    with Coordinated(tmp_path / "log") as running:
        with monkeypatch.context() as patch:
            patch.setattr(Topics, "refusal", lambda *_: 1 / 0)
            row = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
            assert running.ask(19, 7, topics=[row], timeout=30_000, validate_only=False) is None
        assert "a request failed kind=create_topics version=7: ZeroDivisionError" in caplog.text
        assert running.create("t").error_code == 0


def test_a_change_that_is_written_and_cannot_be_taken_in_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asked for it hears of it; what the log says counts again at the next start."""
    with Coordinated(tmp_path / "log") as running:
        with monkeypatch.context() as patch:

            def fails(*_: object) -> None:
                raise LogError("of a test")

            patch.setattr(Metadata, "apply", fails)
            assert running.create("t").error_code != 0
        assert running.create("u").error_code == 0
