"""The producer's settings: 0.7's names, files, contradictions, and what is loaded by name."""

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from fastlog import codecs
from fastlog.client.addresses import Address
from fastlog.config import BrokerConfig
from fastlog.consumer.config import ConsumerConfig
from fastlog.consumer.fields import ConsumerFields
from fastlog.errors import ConfigError, MissingCodecError
from fastlog.mirror import MirrorSettings
from fastlog.producer import DefaultEncoder, DefaultEventHandler, Producer, ProducerConfig, StringEncoder
from fastlog.producer.brokers import BrokerAddress, parse_broker_list
from fastlog.producer.fields import ProducerFields
from fastlog.producer.hooks import load_class, make, parse_props
from fastlog.settings import Settings, describe, read_properties, unknown_name
from fastlog.tools.settings_doc import client_rows

BROKERS = {"broker.list": "0:localhost:9092"}


def test_defaults_of_07() -> None:
    """What 0.7.2 has as defaults, where this producer does not say otherwise."""
    config = ProducerConfig.from_properties(BROKERS)
    assert (config.producer_type, config.queue_time_ms, config.queue_messages) == ("sync", 5000, 10_000)
    assert (config.batch_messages, config.max_message_bytes) == (200, 1_000_000)
    assert (config.connect_timeout_ms, config.socket_timeout_ms) == (5000, 30_000)
    assert (config.reconnect_interval_sends, config.reconnect_time_interval_ms) == (30_000, 10_000_000)


def test_every_setting_by_its_name() -> None:
    """Each field has a property name of its own and a text that says what it is."""
    described = ProducerConfig.describe()
    assert len(described) == len(dataclasses.fields(ProducerConfig)) == len({setting.name for setting in described})
    assert all(setting.doc for setting in described)


def test_a_properties_file_of_07(tmp_path: Path) -> None:
    """The kind of file that was shipped with 0.7 is read as it is."""
    path = tmp_path / "producer.properties"
    path.write_text(
        "# producer\nbroker.list=1:hosta:9092,0:hostb:9093\nproducer.type=async\ncompression.codec=1\n"
        "serializer.class=kafka.serializer.StringEncoder\ncompressed.topics=\nqueue.time=200\nqueue.size=50\n"
        "batch.size=5\nqueue.enqueueTimeout.ms=-1\nreconnect.interval=-1\nreconnect.time.interval.ms=-1\n"
    )
    config = ProducerConfig.from_file(path)
    assert (config.codec, config.queue_time_ms, config.queue_messages, config.batch_messages) == (1, 200, 50, 5)
    assert config.compressed_topics is None
    assert config.enqueue_timeout_ms is None
    assert config.queue_full == "block"
    assert config.reconnect_interval_sends is None
    assert config.reconnect_time_interval_ms is None
    with Producer(path) as producer:
        assert isinstance(producer._encoder, StringEncoder)


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({}, "no broker is named"),
        ({**BROKERS, "zk.connect": "localhost:2181"}, "contradict"),
        ({"zk.connect": "localhost:x"}, "not host:port"),
        ({"zk.connect": "localhost:2181", "zk.read.num.retries": "-1"}, "too small"),
        ({**BROKERS, "zk.sessiontimeout.ms": "6000"}, "zk.connect is not set"),
        ({**BROKERS, "partitioner.class": "a.B"}, "contradicts broker.list"),
        ({**BROKERS, "producer.type": "both"}, "none of sync, async"),
        ({**BROKERS, "queue.tim": "5"}, "did you mean 'queue.time'"),
        ({**BROKERS, "batch.size": "0"}, "too small"),
        ({**BROKERS, "batch.size": "x"}, "no number"),
        ({**BROKERS, "compression.codec": "3"}, "none of"),
        ({**BROKERS, "compressed.topics": "a"}, "contradicts compression.codec"),
        ({**BROKERS, "compression.codec": "1", "compressed.topics": "a/b"}, "illegal character"),
        ({**BROKERS, "callback.handler": "a.B"}, "contradicts producer.type=sync"),
        ({**BROKERS, "event.handler": "a.B"}, "contradicts producer.type=sync"),
        ({**BROKERS, "queue.full": "drop", "queue.enqueueTimeout.ms": "5"}, "contradicts queue.full"),
        ({**BROKERS, "host": "localhost"}, "SyncProducer"),
        ({**BROKERS, "acks": "2"}, "none of"),
    ],
)
def test_contradictions_are_refused(properties: dict[str, str], said: str) -> None:
    """A wrong or contradicting setting raises ConfigError whose text names the matter."""
    with pytest.raises(ConfigError, match=said):
        ProducerConfig.from_properties(properties)


def test_zookeeper_instead_of_a_list() -> None:
    """0.7's names and defaults; a partitioner may be named. Without zk.connect none of it is taken."""
    config = ProducerConfig.from_properties({"zk.connect": "a:1,b/logs", "partitioner.class": "a.B"})
    assert (config.zk_session_timeout_ms, config.zk_connection_timeout_ms) == (6000, 6000)
    assert (config.zk_sync_time_ms, config.zk_read_retries) == (2000, 3)
    assert (
        ProducerConfig.from_properties({"zk.sessiontimeout.ms": "5s"}, zk_connect="a:1").zk_session_timeout_ms == 5000
    )
    with pytest.raises(ConfigError, match=r"zk\.read\.num\.retries.*zk\.connect is not set"):
        ProducerConfig(broker_list="a:1", zk_read_retries=1)
    with pytest.raises(ConfigError, match="contradict"):
        Producer("a:1", zk_connect="b:1")


def test_enqueue_timeout_of_07() -> None:
    """0 refuses at once, a number waits that long, a negative one for ever; by default send() waits."""
    by_text = {"0": ("raise", 0), "5": ("block", 5), "-7": ("block", None)}
    for text, expected in by_text.items():
        config = ProducerConfig.from_properties({**BROKERS, "queue.enqueueTimeout.ms": text})
        assert (config.queue_full, config.enqueue_timeout_ms) == expected


def test_none_is_a_value_where_a_setting_has_it(tmp_path: Path) -> None:
    """acks=none asks for no acknowledgement, however it is given; the name of a server is any text."""
    path = tmp_path / "producer.properties"
    path.write_text("broker.list=a:1\nacks=none\n")
    assert ProducerConfig.from_file(path).acks == "none"
    with Producer({**BROKERS, "acks": "none"}) as producer:
        assert producer.config.acks == "none"
    named = ProducerConfig.from_properties({**BROKERS, "server.name": "none", "audit.topic": "-1"})
    assert (named.server, named.audit_topic) == ("none", "-1")


@pytest.mark.parametrize("settings", [ProducerConfig, ConsumerConfig, MirrorSettings, BrokerConfig])
def test_every_choice_can_be_written_into_a_file(settings: type) -> None:
    """No value that a setting is said to take stands for having no value, and what is shown as no value gives none."""
    for setting in describe(settings):
        for choice in setting.choices:
            assert read_properties(settings, {setting.name: choice}) == {setting.field: choice}
        if setting.kind.endswith(" | None"):
            unset = ["", *(["none"] if setting.default == "none" else []), *(["-1"] if setting.default == "-1" else [])]
            for text in unset:
                assert read_properties(settings, {setting.name: text}) == {setting.field: None}


def test_no_value_in_a_mapping() -> None:
    """None is what an empty text is: no value, also where the default is one."""
    config = ProducerConfig.from_properties({**BROKERS, "acks": None, "reconnect.interval": None, "queue.size": 7})
    assert (config.acks, config.reconnect_interval_sends, config.queue_messages) == (None, None, 7)


def test_compressed_topics() -> None:
    """No list compresses every topic; a list only its own."""
    assert ProducerConfig(broker_list="a:1", compression="gzip").codec_for("x") == codecs.GZIP
    some = ProducerConfig.from_properties({**BROKERS, "compression.codec": "1", "compressed.topics": "a, b"})
    assert [some.codec_for(topic) for topic in ("a", "b", "c")] == [codecs.GZIP, codecs.GZIP, codecs.NONE]


def test_a_missing_codec_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """R-21: without its library, snappy is refused when the producer is made."""
    monkeypatch.setitem(sys.modules, "snappy", None)
    with pytest.raises(MissingCodecError, match="python-snappy"):
        Producer("localhost:9092", compression="snappy")


def test_broker_list() -> None:
    """Ids or none, IPv6, sorted by id."""
    assert parse_broker_list("1:b:2,0:a:1") == [BrokerAddress(0, Address("a", 1)), BrokerAddress(1, Address("b", 2))]
    assert parse_broker_list("a:1, b") == [BrokerAddress(0, Address("a", 1)), BrokerAddress(1, Address("b", 9092))]
    assert parse_broker_list("7:[::1]:9,3:10.0.0.1:8")[1] == BrokerAddress(7, Address("::1", 9))
    assert parse_broker_list("10.0.0.1:9") == [BrokerAddress(0, Address("10.0.0.1", 9))]
    for wrong in ("", "a:b:c", "0:a:1,0:b:1", "0:a:1,b:2", "0:a:99999", "99999999999:a:1"):
        with pytest.raises(ConfigError, match=r"broker\.list"):
            parse_broker_list(wrong)


def test_classes_by_name() -> None:
    """Dotted paths, with a dot or a colon before the class, and 0.7's own names."""
    assert load_class("x", "fastlog.producer.hooks.StringEncoder") is StringEncoder
    assert load_class("x", "fastlog.producer:StringEncoder") is StringEncoder
    assert load_class("x", "kafka.serializer.DefaultEncoder") is DefaultEncoder
    assert isinstance(make("x", "kafka.producer.async.DefaultEventHandler", "handle"), DefaultEventHandler)
    for wrong in ("", "StringEncoder", "no.such.module", "fastlog.producer.nothing", "fastlog.errors", "a b.c"):
        with pytest.raises(ConfigError, match="x:"):
            load_class("x", wrong)
    with pytest.raises(ConfigError, match="no method encode"):
        make("serializer.class", "builtins.dict", "encode")
    with pytest.raises(ConfigError, match="without arguments"):
        make("serializer.class", "builtins.memoryview", "encode")


def test_props() -> None:
    """0.7's k=v,k=v."""
    assert parse_props("x", " a=1, b = 2=3 ,") == {"a": "1", "b": "2=3"}
    for wrong in ("a", "=1", "a=1,a=2"):
        with pytest.raises(ConfigError):
            parse_props("x", wrong)


@pytest.mark.parametrize("arguments", [{"brocker_list": "a:1"}, {"broker_list": "a:1", "bath_messages": 5}])
def test_unknown_fields(arguments: dict[str, object]) -> None:
    """A keyword that is no setting is refused with the nearest one."""
    with pytest.raises(ConfigError, match="did you mean"):
        Producer(**arguments)  # type: ignore[arg-type]


def test_settings_are_given_once() -> None:
    """Two sources for one thing are refused."""
    with pytest.raises(ConfigError, match="twice"):
        Producer("a:1", broker_list="b:1")
    with pytest.raises(ConfigError, match="not both"):
        Producer(ProducerConfig(broker_list="a:1"), acks="none")
    with pytest.raises(TypeError):
        Producer(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [ProducerConfig, ConsumerConfig])
def test_the_documented_settings_are_these(settings: type[Settings]) -> None:
    """docs/clients.md has every setting with its keyword, default, unit, range and meaning."""
    page = Path(__file__).parents[2] / "docs" / "clients.md"
    head = "| property | keyword | default | unit | accepted | meaning |\n|---|---|---|---|---|---|\n"
    assert head + client_rows(settings) in page.read_text()


@pytest.mark.parametrize(("settings", "fields"), [(ProducerConfig, ProducerFields), (ConsumerConfig, ConsumerFields)])
def test_type_checkers_know_every_setting(settings: type[Settings], fields: Any) -> None:
    """The keywords of Producer and Consumer are the fields, of the same types, in the same order."""
    typed = {name: kind.__forward_arg__ for name, kind in fields.__annotations__.items()}
    assert list(typed.items()) == [(setting.field, setting.kind) for setting in settings.describe()]
    assert not fields.__required_keys__


@pytest.mark.parametrize("settings", [ProducerConfig, ConsumerConfig])
def test_either_name_of_a_setting_suggests_the_other(settings: type[Settings]) -> None:
    """A property's name as a keyword, and a keyword among properties."""
    for setting in settings.describe():
        for wrong in (setting.name.replace(".", "_"), setting.name):
            if wrong != setting.field:
                with pytest.raises(ConfigError, match=rf"did you mean '{setting.field}'\?"):
                    settings.from_fields({wrong: 1})
        if setting.field != setting.name and setting.name not in ("host", "port"):
            with pytest.raises(ConfigError, match=rf"did you mean '{re.escape(setting.name)}'\?"):
                settings._read({"zk.connect": "a:1", setting.field: "1"}, {})
    assert unknown_name("batch_size", {"batch.size": "batch_messages", "batch_bytes": "batch_bytes"}) == (
        "unknown setting 'batch_size'; did you mean 'batch_messages'? 'batch.size' is called so"
    )
