"""Settings: 0.7's names and syntax, units, ranges, and one clear error for everything else."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as patience
from hypothesis import strategies as st

from fastlog import settings
from fastlog.config import BrokerConfig, is_loopback, load_properties
from fastlog.consumer.config import ConsumerConfig
from fastlog.errors import ConfigError
from fastlog.tools import settings_doc

ROOT = Path(__file__).parents[2]


def one(name: str, text: str) -> Any:
    """The value a property's text gives."""
    by_name = {setting.name: setting.field for setting in BrokerConfig.describe()}
    return getattr(BrokerConfig.from_properties({name: text}), by_name[name])


def test_defaults_are_those_promised() -> None:
    config = BrokerConfig()
    assert (config.broker_id, config.host, config.port, config.log_dirs) == (0, "127.0.0.1", 9092, ("./fastlog-data",))
    assert config.processors == len(os.sched_getaffinity(0))
    assert (config.flush_interval_messages, config.flush_interval_ms, config.flush_bytes) == (50_000, 1000, 2**28)
    assert (config.segment_bytes, config.max_message_bytes, config.max_request_bytes) == (2**30, 10**6, 100 * 2**20)
    assert config.retention_bytes is None and config.retention_hours == 168
    assert BrokerConfig.from_properties({}) == config


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        BrokerConfig().port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("log.flush.interval", "500", 500),
        ("log.file.size", "64MiB", 64 * 2**20),
        ("log.file.size", "1GB", 10**9),
        ("log.file.size", "1.5 KiB", 1536),
        ("log.file.size", "5", 5),
        ("log.default.flush.interval.ms", "3s", 3000),
        ("log.default.flush.interval.ms", "100ms", 100),
        ("connections.max.idle.ms", "2min", 120_000),
        ("log.roll.hours", "30min", 0.5),
        ("log.roll.hours", "0.25", 0.25),
        ("log.retention.hours", "7d", 168.0),
        ("log.retention.size", "-1", None),
        ("log.retention.size", str(2**40), 2**40),
        ("topic.log.retention.size", f"a:{2**40}", {"a": 2**40}),  # 0.7.2 loses values above 2^31 - 1
        ("topic.partition.count.map", "t1:8,t2:16", {"t1": 8, "t2": 16}),
        ("topic.partition.count.map", " t1 : 8 , t2:16", {"t1": 8, "t2": 16}),
        ("topic.partition.count.map", "with:colon:3", {"with:colon": 3}),
        ("topic.partition.count.map", "", {}),
        ("topic.flush.intervals.ms", "a:1s,b:5", {"a": 1000, "b": 5}),
        ("topic.log.roll.hours", "a:30min", {"a": 0.5}),
        ("log.dir", "/a, /b", ("/a", "/b")),
        ("socket.send.buffer", "100KiB", 102_400),
        ("log.preallocate", "false", False),
        ("accept.mode", "direct", "direct"),
        ("port", " 0 ", 0),
        ("log.retention.policy", "my.module:Policy.keep", "my.module:Policy.keep"),
    ],
)
def test_texts_give_values(name: str, text: str, value: object) -> None:
    assert one(name, text) == value


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("log.flush.intervl", "5", "did you mean 'log.flush.interval'"),
        ("num.partition", "5", "did you mean 'num.partitions'"),
        ("qqqqqq", "5", "unknown setting 'qqqqqq'"),
        ("enable.zookeeper", "true", "no zk.connect"),
        ("enable.zookeeper", "TRUE", "neither true nor false"),
        ("zk.sessiontimeout.ms", "99", "the least is 100 ms"),
        ("hostname", "a,b", "no name of a machine"),
        ("hostname", "me:9092", "the port belongs into advertised.port"),
        ("advertised.port", "0", "the least is 1"),
        ("port", "65536", "too large, the most is 65535"),
        ("port", "-1", "too small"),
        ("port", "x", "no number"),
        ("port", "", "no number"),
        ("port", "9_092", "no number"),
        ("port", "٩", "no number"),
        ("port", "9" * 5000, "no number"),
        ("brokerid", "1.0", "not a whole number"),
        ("log.file.size", "4", "the least is 5 bytes"),
        ("log.file.size", "64M", "no size"),
        ("log.file.size", "1s", "no size"),
        ("log.file.size", "0.3", "not a whole number"),
        ("log.default.flush.interval.ms", "5 fortnights", "no duration"),
        ("log.default.flush.interval.ms", "0", "too small"),
        ("monitoring.period.secs", "1500ms", "not a whole number of seconds"),
        ("log.roll.hours", "0", "too small"),
        ("log.roll.hours", "nan", "no number"),
        ("log.retention.size", "0", "too small"),
        ("topic.partition.count.map", "a", "malformed"),
        ("topic.partition.count.map", "a:", "malformed"),
        ("topic.partition.count.map", ":3", "malformed"),
        ("topic.partition.count.map", "a:1,,b:2", "malformed"),
        ("topic.partition.count.map", "a:x", "no number"),
        ("topic.partition.count.map", "a:0", "too small"),
        ("topic.partition.count.map", "a:-3", "too small"),
        ("topic.partition.count.map", "a:1,a:2", "named twice"),
        ("topic.partition.count.map", "a/b:1", "illegal character"),
        ("topic.flush.intervals", "..:1", "topic '..'"),
        ("log.dir", "", "at least one"),
        ("log.preallocate", "yes", "neither true nor false"),
        ("log.preallocate.bytes", "32MiB", "the most is 16777216"),
        ("accept.mode", "both", "none of handoff, direct"),
        ("log.retention.policy", "os", "module:callable"),
        ("log.retention.policy", "os:", "module:callable"),
        ("host", "", "an address is needed"),
        ("num.threads", "0", "too small"),
    ],
)
def test_bad_texts_are_refused_by_name(name: str, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.from_properties({name: text})
    assert says in str(caught.value)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("port", "9092"),
        ("port", True),
        ("port", None),
        ("insecure", 1),
        ("log_dirs", []),
        ("log_dirs", ("",)),
        ("partitions_by_topic", {"a": "1"}),
        ("roll_hours", float("nan")),
        ("hostname", None),
        ("log_dirs", "/data"),
    ],
)
def test_values_given_directly_are_checked_too(field: str, value: Any) -> None:
    with pytest.raises(ConfigError):
        BrokerConfig(**{field: value})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "2130706433"])
def test_other_addresses_need_insecure(host: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig(host=host)
    what, why, what_to_do = str(caught.value).split("\n")
    assert host in what and "login" in why and "--insecure" in what_to_do
    assert BrokerConfig(host=host, insecure=True).addresses == {"PLAINTEXT": (host, 9092)}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)
    assert BrokerConfig(host=host, port=7).addresses == {"PLAINTEXT": (host.strip("[]"), 7)}


@pytest.mark.parametrize(
    ("properties", "connect"),
    [
        ({}, ""),
        ({"zk.connect": "h:1,i:2/c"}, "h:1,i:2/c"),
        ({"zk.connect": "h:1", "enable.zookeeper": "true"}, "h:1"),
        ({"zk.connect": "h:1", "enable.zookeeper": "false"}, ""),
    ],
)
def test_zookeeper_is_used_where_it_is_named_and_not_switched_off(properties: dict[str, str], connect: str) -> None:
    assert BrokerConfig.from_properties(properties).zookeeper == connect


def test_several_listeners_stand_in_place_of_host_and_port() -> None:
    config = BrokerConfig.from_properties(
        {
            "listeners": "local://127.0.0.1:9092, six://[::1]:0",
            "advertised.listeners": "six://six.example:7",
            "port": "1234",
        }
    )
    assert list(config.addresses.items()) == [("local", ("127.0.0.1", 9092)), ("six", ("::1", 0))]
    assert config.advertised_addresses == {"six": ("six.example", 7)}
    assert BrokerConfig().advertised_addresses == {}


@pytest.mark.parametrize(
    ("listeners", "said"),
    [
        ("127.0.0.1:9092", "'127.0.0.1:9092' is no NAME://HOST:PORT"),
        ("://127.0.0.1:9092", "is no NAME://HOST:PORT"),
        ("a b://127.0.0.1:9092", "is no NAME://HOST:PORT"),
        ("a://127.0.0.1:1,", "'' is no NAME://HOST:PORT"),
        ("a://127.0.0.1", "'127.0.0.1' is no HOST:PORT"),
        ("a://::", "put the IPv6 address in brackets"),
        ("a://:", "'0.0.0.0:' is no HOST:PORT"),
        ("a://::1:9092", "put the IPv6 address in brackets"),
        ("a://127.0.0.1:1,A://127.0.0.1:2", "A is there twice"),
        (",".join(f"l{number}://127.0.0.1:0" for number in range(17)), "17 are more than 16"),
    ],
)
def test_listeners_that_are_none(listeners: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig(listeners=listeners)
    assert str(caught.value).startswith("listeners: ") and said in str(caught.value)


def test_as_many_listeners_as_a_processor_takes() -> None:
    config = BrokerConfig(listeners=",".join(f"l{number}://127.0.0.1:0" for number in range(16)))
    assert len(config.addresses) == 16


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("b://h:1", "b is none of the listeners"),
        ("a://h:0", "a: nobody can connect to port 0"),
        ("a://h/x:1", "is no name of a machine"),
        ("h:1", "is no NAME://HOST:PORT"),
        ("a://:1", r"a: nobody can connect to 0\.0\.0\.0"),
    ],
)
def test_advertised_listeners_that_lead_nowhere(told: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        BrokerConfig(listeners="a://127.0.0.1:0", advertised_listeners=told)


def test_every_listener_but_loopback_needs_insecure() -> None:
    listeners = "a://127.0.0.1:1,b://10.1.2.3:1"
    with pytest.raises(ConfigError, match=r"refusing to listen on 10\.1\.2\.3\n"):
        BrokerConfig(listeners=listeners)
    assert BrokerConfig(listeners=listeners, insecure=True).addresses["b"].host == "10.1.2.3"


def test_no_host_is_all_addresses_and_needs_insecure_all_the_same() -> None:
    """What a container is told in Kafka's words opens nothing to others by accident."""
    for listeners in ("PLAINTEXT://:9092", "PLAINTEXT://0.0.0.0:9092"):
        with pytest.raises(ConfigError, match=r"refusing to listen on 0\.0\.0\.0\n.*\n.*--insecure"):
            BrokerConfig(listeners=listeners)
        assert BrokerConfig(listeners=listeners, insecure=True).addresses == {"PLAINTEXT": ("0.0.0.0", 9092)}


def test_host_and_port_are_the_listener_that_kafka_calls_plaintext() -> None:
    config = BrokerConfig(advertised_listeners="plaintext://me.example:7")
    assert config.addresses == {"PLAINTEXT": ("127.0.0.1", 9092)}
    assert config.advertised_addresses == {"PLAINTEXT": ("me.example", 7)}


@pytest.mark.parametrize(
    ("listeners", "secured"),
    [
        ("a://127.0.0.1:1", ""),
        ("a://127.0.0.1:1", "A:plaintext"),
        ("a://127.0.0.1:1,SSL://127.0.0.1:2", "ssl:PLAINTEXT , b:SSL"),
    ],
)
def test_listeners_in_plain_text(listeners: str, secured: str) -> None:
    BrokerConfig(listeners=listeners, listener_security_protocols=secured)


@pytest.mark.parametrize(
    ("listeners", "secured", "said"),
    [
        ("SSL://127.0.0.1:1", "", "listener SSL is to speak SSL, and only PLAINTEXT is supported yet"),
        ("sasl_ssl://127.0.0.1:1", "", "is to speak SASL_SSL"),
        ("a://127.0.0.1:1", "A:SASL_PLAINTEXT", "listener a is to speak SASL_PLAINTEXT"),
        ("a://127.0.0.1:1", "a:TLS", "a: 'TLS' is none of PLAINTEXT, SSL"),
        ("a://127.0.0.1:1", "a:SSL,A:PLAINTEXT", "A is there twice"),
        ("a://127.0.0.1:1", "PLAINTEXT", "'PLAINTEXT' is no NAME:VALUE"),
        ("a://127.0.0.1:1", "a:PLAINTEXT,", "'' is no NAME:VALUE"),
    ],
)
def test_what_is_to_be_secured_is_refused(listeners: str, secured: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig(listeners=listeners, listener_security_protocols=secured)
    assert str(caught.value).startswith("listener.security.protocol.map: ") and said in str(caught.value)


def test_what_each_listener_speaks() -> None:
    listeners = "a://127.0.0.1:0,b://127.0.0.1:0,c://127.0.0.1:0"
    config = BrokerConfig(listeners=listeners, listener_protocols="A:KAFKA,b:kafka-0.7")
    assert config.spoken == {"a": "kafka", "b": "kafka-0.7", "c": "any"}
    assert BrokerConfig().spoken == {"PLAINTEXT": "any"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"listener_protocols": "a:kafka"}, "A is none of the listeners"),
        ({"listener_protocols": "PLAINTEXT:http"}, "'http' is none of any, kafka-0.7, kafka"),
        ({"listener_protocols": "PLAINTEXT:kafka", "zk_connect": "zk:1"}, "PLAINTEXT does not speak it"),
    ],
)
def test_what_no_listener_speaks(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig(**settings)  # type: ignore[arg-type]
    assert str(caught.value).startswith("listener.protocol.map: ") and said in str(caught.value)


def test_scheduler_interval_is_the_default_of_the_flush_interval() -> None:
    """As in 0.7: the tick's interval is the flush interval of who gives no other."""
    assert one("log.default.flush.scheduler.interval.ms", "3000") == 3000
    both = {"log.default.flush.scheduler.interval.ms": "3000"}
    assert BrokerConfig.from_properties(both).flush_interval_ms == 3000
    both["log.default.flush.interval.ms"] = "700"
    assert BrokerConfig.from_properties(both).flush_interval_ms == 700


def test_topic_overrides() -> None:
    names = ("topic.log.file.size", "topic.log.roll.hours", "topic.log.retention.hours", "topic.log.retention.size")
    more = ("topic.flush.intervals", "topic.flush.intervals.ms", "topic.partition.count.map")
    config = BrokerConfig.from_properties({name: "a:7" for name in names + more})
    assert config.for_topic("a") == (7, 7, 7 * 3_600_000, 7 * 3_600_000, 7, 7, 7, 0, False)
    assert config.for_topic("b") == (1, 2**30, 168 * 3_600_000, 168 * 3_600_000, None, 50_000, 1000, 0, False)


def test_shipped_file_of_07(tmp_path: Path) -> None:
    """The sample file of 0.7.2 is taken as it is."""
    path = tmp_path / "server.properties"
    path.write_text(
        "# see kafka.server.KafkaConfig\n! a comment\nbrokerid=0\nport: 9092\nnum.threads 8\n"
        "socket.send.buffer=1048576\nsocket.receive.buffer=1048576\nmax.socket.request.bytes=104857600\n"
        "  log.dir = /data/kafka-logs\nnum.partitions=1\ntopic.flush.intervals.ms=topic1:1000, \\\n"
        "    topic2:3000\nlog.flush.interval=10000\nlog.default.flush.interval.ms=1000\n"
        "log.default.flush.scheduler.interval.ms=1000\nlog.retention.hours=168\n#log.retention.size=1073741824\n"
        "log.file.size=536870912\nlog.cleanup.interval.mins=1\n"
        "enable.zookeeper=true\nzk.connect=localhost:2181\nzk.connectiontimeout.ms=1000000\n"
    )
    config = BrokerConfig.from_properties(load_properties(path))
    assert config.processors == 8 and config.port == 9092
    assert (config.zookeeper, config.zk_connection_timeout_ms) == ("localhost:2181", 1_000_000)
    assert config.flush_interval_ms_by_topic == {"topic1": 1000, "topic2": 3000}
    assert config.log_dirs == ("/data/kafka-logs",) and config.segment_bytes == 512 * 2**20


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=1\nb = 2 \r\nc\t3\rd:4", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("a=1\na=2", {"a": "2"}),
        ("a = = b", {"a": "= b"}),
        ("a\\=b=c\\:d", {"a=b": "c:d"}),
        ("a=x\\u00e9\\t.", {"a": "xé\t."}),
        ("a=1\\\n  2\\\n  3", {"a": "123"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\", {"a": "1"}),
        ("empty\n\n   \n#x\n", {"empty": ""}),
        ("\ufeffa=1", {"a": "1"}),
        ("", {}),
    ],
)
def test_properties_syntax(tmp_path: Path, text: str, found: dict[str, str]) -> None:
    path = tmp_path / "p"
    path.write_bytes(text.encode())
    assert load_properties(path) == found


def test_properties_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_properties(tmp_path / "none")
    (tmp_path / "latin").write_bytes(b"a=\xe9")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_properties(tmp_path / "latin")
    (tmp_path / "escape").write_text("x=1\na=\\u12g4")
    with pytest.raises(ConfigError, match="line 2: malformed"):
        load_properties(tmp_path / "escape")


@patience(deadline=None)
@given(st.binary(max_size=60))
def test_any_file_gives_properties_or_the_declared_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    try:
        properties = load_properties(path)
    except ConfigError:
        return
    assert all(isinstance(item, str) for pair in properties.items() for item in pair)


@pytest.mark.parametrize("name", ["log.dir", "hostname", "mirror.config", "zk.connect"])
def test_a_nul_is_no_text(name: str) -> None:
    """No path, address or name has one: the setting is named before anything is opened."""
    with pytest.raises(ConfigError, match=rf"{name}: 'a\\x00' has characters that are no text"):
        BrokerConfig.from_properties({name: "a\0"})


@given(st.sampled_from([setting.name for setting in BrokerConfig.describe()]), st.text(max_size=20))
def test_any_text_gives_a_value_or_the_declared_error(name: str, text: str) -> None:
    try:
        BrokerConfig.from_properties({name: text})
    except ConfigError as error:
        assert str(error)


def test_every_default_survives_its_own_text() -> None:
    """What the documentation prints as a default is accepted, and means the default."""
    for setting in BrokerConfig.describe():
        field = next(item for item in dataclasses.fields(BrokerConfig) if item.name == setting.field)
        if field.default is not dataclasses.MISSING and setting.name not in ("hostname",) and setting.default:
            assert one(setting.name, setting.default) == field.default, setting.name


def test_sizes_and_durations() -> None:
    assert [settings.parse_bytes(text) for text in ("0", "1B", "2kb", "3 MiB", "1tib")] == [
        0,
        1,
        2000,
        3 * 2**20,
        2**40,
    ]
    assert settings.parse_duration("1500ms", "seconds") == 1.5
    assert settings.parse_duration("2", "hours") == 2
    assert isinstance(settings.parse_duration("120s", "minutes"), int)


def test_a_field_that_is_no_setting_is_refused_with_the_nearest_one() -> None:
    """By the error of settings that names it, and not by what a class says of its arguments."""
    with pytest.raises(ConfigError, match=r"unknown setting 'group_idd'; did you mean 'group_id'\?"):
        ConsumerConfig.from_fields({"group_idd": "g"})


def test_settings_page_is_current() -> None:
    """``python -m fastlog.tools.settings_doc > docs/settings.md`` was run after the last change."""
    assert (ROOT / "docs" / "settings.md").read_text(encoding="utf-8") == settings_doc.page()


def test_every_setting_says_what_it_is() -> None:
    described = BrokerConfig.describe()
    assert len({setting.name for setting in described}) == len(described)
    assert all(setting.doc.endswith(".") and setting.name in settings_doc.page() for setting in described)
