"""What a mirror is told, by options, by a file and by the properties of its clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastlog.errors import ConfigError
from fastlog.mirror import MirrorConfig, MirrorSettings, SourceConfig, TargetConfig
from fastlog.tools.mirror import made_config

SOURCE = {"zk.connect": "a:2181", "groupid": "m"}
TARGET = {"broker.list": "0:b:9092"}
TOPICS = {"mirror.topics.whitelist": "t"}


def made(
    source: dict[str, str] = SOURCE, target: dict[str, str] = TARGET, settings: dict[str, str] = TOPICS, count: int = 1
) -> MirrorConfig:
    """A mirror of so many sources with the same properties."""
    return MirrorConfig(
        sources=tuple(SourceConfig.from_properties(f"s{number}", source) for number in range(count)),
        target=TargetConfig.from_properties(target),
        settings=MirrorSettings.from_properties(settings),
    )


def test_what_is_forwarded_is_committed_once_a_second_unless_told_otherwise() -> None:
    assert made().sources[0].consumer.auto_commit_interval_ms == 1000
    assert made({**SOURCE, "autocommit.interval.ms": "300"}).sources[0].consumer.auto_commit_interval_ms == 300


def test_the_limit_of_a_message_is_the_brokers_unless_one_is_given() -> None:
    assert made().target.max_message_bytes is None
    assert made(target={**TARGET, "max.message.size": "1000000"}).target.max_message_bytes == 1_000_000


@pytest.mark.parametrize("acks", ["none", "appended", "flushed"])
def test_the_target_confirms_what_was_asked_for(acks: str) -> None:
    assert made(target={**TARGET, "acks": acks}).target.producer.acks == acks


def test_settings_without_effect_are_named() -> None:
    found = made(
        {**SOURCE, "shallowiterator.enable": "true", "consumer.timeout.ms": "10"},
        {**TARGET, "compression.codec": "1", "producer.type": "async", "acks": "flushed"},
    )
    assert found.sources[0].without_effect == ("consumer.timeout.ms", "shallowiterator.enable")
    assert found.target.without_effect == ("compression.codec", "producer.type")
    assert found.sources[0].consumer.consumer_timeout_ms is None


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"source": {**SOURCE, "autocommit.enable": "false"}}, "would forward everything anew"),
        ({"source": {"zk.connect": "a:2181"}}, "groupid"),
        ({"target": {}}, "broker.list"),
        ({"target": {"zk.connect": "a/"}}, "s0 is the target itself"),
        ({"count": 2}, "is a source already"),
        ({"count": 0}, "needs a source"),
        ({"settings": {}}, "either a whitelist or a blacklist"),
        ({"settings": {**TOPICS, "mirror.topics.blacklist": "x"}}, "either a whitelist or a blacklist"),
        ({"settings": {"mirror.topics.whitelist": "("}}, "regular expression"),
        ({"settings": {**TOPICS, "mirror.audit.topic": "counts"}}, "no effect without mirror.audit.stage"),
        ({"settings": {**TOPICS, "mirror.bad.messages": "drop"}}, "is none of stop, skip"),
        ({"settings": {**TOPICS, "mirror.consumer.numthreads": "0"}}, "too small"),
        ({"settings": {**TOPICS, "mirror.consumer.numthread": "4"}}, "did you mean 'mirror.consumer.numthreads'"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        made(**change)  # type: ignore[arg-type]


def test_a_file_names_others_beside_it(tmp_path: Path) -> None:
    """Two sources of one file name are told apart; without a target it is the broker the mirror runs in."""
    for place in ("x", "y"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "dc.properties").write_text(f"zk.connect={place}:2181\ngroupid=m\n")
    file = tmp_path / "mirror.properties"
    text = (
        "mirror.consumer.config=x/dc.properties, y/dc.properties\nmirror.topics.blacklist=a|b\n"
        "mirror.consumer.numthreads=4\nmirror.uncommitted.bytes=1MiB\n"
    )
    file.write_text(text)
    with pytest.raises(ConfigError, match="needs a target"):
        MirrorConfig.from_file(file)
    found = MirrorConfig.from_file(file, TargetConfig.from_properties(TARGET))
    assert [source.name for source in found.sources] == ["dc x:2181", "dc y:2181"]
    assert (found.settings.streams, found.settings.uncommitted_bytes) == (4, 2**20)
    (tmp_path / "target.properties").write_text("broker.list=5:z:9092\n")
    file.write_text(text + "mirror.producer.config=target.properties\n")
    found = MirrorConfig.from_file(file, TargetConfig.from_properties(TARGET))
    assert found.target.producer.broker_list == "5:z:9092"


def test_a_flag_goes_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of topics replaces the other kind; files on the command line are looked for where it is typed."""
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    for place, host in (("there", "t"), ("here", "h")):
        (tmp_path / place / "dc.properties").write_text(f"zk.connect={host}:2181\ngroupid=m\n")
        (tmp_path / place / "target.properties").write_text(f"broker.list=0:{host}:9092\n")
    file = tmp_path / "there" / "mirror.properties"
    file.write_text(
        "mirror.consumer.config=dc.properties\nmirror.producer.config=target.properties\n"
        "mirror.topics.blacklist=x\nmirror.consumer.numthreads=2\nmirror.producer.numthreads=2\n"
    )
    monkeypatch.chdir(tmp_path / "here")
    found = made_config({}, str(file), (), None)
    assert found.sources[0].consumer.zk_connect == "t:2181"
    assert (found.settings.blacklist, found.settings.streams) == ("x", 2)
    flags = {"mirror.topics.whitelist": "y", "mirror.consumer.numthreads": "3"}
    found = made_config(flags, str(file), ("dc.properties",), "target.properties")
    assert found.sources[0].consumer.zk_connect == "h:2181"
    assert found.target.producer.broker_list == "0:h:9092"
    assert (found.settings.whitelist, found.settings.blacklist) == ("y", None)
    assert (found.settings.streams, found.settings.producers) == (3, 2)
    with pytest.raises(ConfigError, match="cannot read"):
        made_config(flags, None, ("none.properties",), "target.properties")


def test_every_setting_is_described() -> None:
    assert {setting.name for setting in MirrorSettings.describe()} >= {
        "mirror.consumer.config",
        "mirror.producer.config",
        "mirror.gone.broker.ms",
        "mirror.progress.ms",
    }
    assert all(setting.doc for setting in MirrorSettings.describe())


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("mirror.consumer.numthreads", 1, 1000),
        ("mirror.producer.numthreads", 1, 1000),
        ("mirror.uncommitted.bytes", 1, 2**40),
        ("mirror.gone.broker.ms", 0, 2**31 - 1),
        ("mirror.progress.ms", 100, 2**31 - 1),
    ],
)
def test_numbers_from_the_lowest_to_the_highest(name: str, low: int, high: int) -> None:
    """Both can be used; one less and one more cannot."""
    for value in (low, high):
        MirrorSettings.from_properties({"mirror.topics.whitelist": "t", name: str(value)})
    for value in (low - 1, high + 1):
        with pytest.raises(ConfigError, match=name):
            MirrorSettings.from_properties({"mirror.topics.whitelist": "t", name: str(value)})
