"""A group's consumer takes the settings of Kafka 0.7.2 by their names, and refuses what makes no sense."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastlog.consumer.config import ConsumerConfig
from fastlog.errors import ConfigError
from fastlog.tools.settings_doc import client_rows

NEEDED = {"zk.connect": "localhost:2181", "groupid": "g"}


def test_a_file_of_0_7_is_read(tmp_path: Path) -> None:
    """The one that came with 0.7.2, and every other property it knew."""
    path = tmp_path / "consumer.properties"
    path.write_text(
        "# comment\nzk.connect=127.0.0.1:2181\nzk.connectiontimeout.ms=1000000\ngroupid=test-consumer-group\n"
        "zk.sessiontimeout.ms=400\nzk.synctime.ms=200\nautocommit.interval.ms=1000\nautocommit.enable=false\n"
        "socket.timeout.ms=30000\nsocket.buffersize=65536\nfetch.size=1048576\nfetcher.backoff.ms=1000\n"
        "queuedchunks.max=10\nrebalance.retries.max=4\nautooffset.reset=largest\nconsumer.timeout.ms=-1\n"
        "shallowiterator.enable=true\nconsumerid=c\n"
    )
    found = ConsumerConfig.from_file(path)
    assert (found.group_id, found.zk_connect, found.consumer_id) == ("test-consumer-group", "127.0.0.1:2181", "c")
    assert (found.session_timeout, found.most_backoff) == (0.4, 0.2)
    assert (found.auto_commit, found.consumer_timeout_ms, found.shallow) == (False, None, True)
    assert ConsumerConfig.from_file(path, fetch_bytes=5).fetch_bytes == 5


def test_the_defaults() -> None:
    found = ConsumerConfig.from_properties({**NEEDED, "consumer.timeout.ms": 0, "rebalance.backoff.ms": 70})
    assert (found.auto_offset_reset, found.auto_commit, found.auto_commit_interval_ms) == ("smallest", True, 10_000)
    assert (found.consumer_timeout_ms, found.most_backoff, found.session_timeout) == (0, 0.07, 6.0)
    assert found.auto_commit_max_failures == 10
    assert ConsumerConfig.from_properties({**NEEDED, "autocommit.failures.max": -1}).auto_commit_max_failures is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"autooffset.reset": "earliest"}, "autooffset.reset"),
        ({"groupid": ""}, "groupid"),
        ({"groupid": "a/b"}, "groupid"),
        ({"consumerid": "a/b"}, "consumerid"),
        ({"zk.connect": ""}, "zk.connect: not given"),
        ({"zk.connect": "host:x"}, "zk.connect"),
        ({"auto.commit": "true"}, "autocommit.enable is meant"),
        ({"autocommit.enabled": "true"}, "autocommit.enable"),
        ({"mirror.topics.whitelist": "a"}, "mirror"),
        ({"fetch.size": "0"}, "fetch.size"),
        ({"consumer.timeout.ms": "x"}, "consumer.timeout.ms"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ConsumerConfig.from_properties({**NEEDED, **change})


def test_a_field_that_is_unknown_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="group_id"):
        ConsumerConfig.from_fields({"groupid": "g"})


def test_the_page_is_complete() -> None:
    """docs/clients.md has every setting with its keyword, default, unit, range and meaning."""
    page = Path(__file__).parents[2] / "docs" / "clients.md"
    assert client_rows(ConsumerConfig) in page.read_text(encoding="utf-8")


def test_where_the_group_is_kept() -> None:
    """Each has a session's time-out of its own, and a name in texts; addresses are looked at."""
    kept = ConsumerConfig(zk_connect="z:1", group_id="g")
    assert kept.kept_by == "ZooKeeper at z:1" and kept.session_timeout == 6.0
    kept = ConsumerConfig.from_properties({"bootstrap.servers": "b:1,c:2", "groupid": "g"}, session_timeout_ms=7000)
    assert kept.kept_by == "the coordinator of groups at b:1,c:2" and kept.session_timeout == 7.0
    with pytest.raises(ConfigError, match="is no address"):
        ConsumerConfig(brokers="b:x", group_id="g")
