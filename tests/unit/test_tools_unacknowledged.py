"""What a plain 0.7 broker was sent is counted as that: it acknowledges nothing, and drops what is too long for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastlog.message import encode_set
from fastlog.mirror import Mirror
from fastlog.mirror.report import MirrorReport
from fastlog.perf import columns
from fastlog.perf.producing import ProducerOptions, ProducerRun
from fastlog.tools import copy_topic, topic_places
from fastlog.tools.topic_places import Site
from fastlog.wire import requests as rq
from tests.harness import wire07
from tests.harness.broker import wait_until
from tests.harness.command_line import Commands
from tests.harness.fake_broker import FakeBroker
from tests.unit.test_mirror_target import config

LONG = b"x" * 1_000_001
SHORT = [b"short %d" % number for number in range(200)]


@pytest.fixture
def plain() -> Iterator[FakeBroker]:
    with FakeBroker(own=False) as fake:
        yield fake


@pytest.fixture
def commands(capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capfd)


@pytest.fixture
def replayed(plain: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeBroker, tuple[str, ...]]]:
    """A source, and the command that replays it into the plain broker."""
    site = Site(0, topic_places.parse_brokers(plain.address)[0], True, 1, ())
    monkeypatch.setattr(topic_places, "find_all_sites", lambda *_, **__: [site])
    with FakeBroker(max_message_bytes=2_000_000) as source:
        yield source, ("replay", "--brokers", source.address, "--input-topic", "a", "--output-topic", "b")


def test_a_replay_does_not_say_acknowledged(
    plain: FakeBroker, replayed: tuple[FakeBroker, tuple[str, ...]], commands: Commands
) -> None:
    source, command = replayed
    source.logs["a", 0] = encode_set(SHORT)
    ran = commands(*command)
    assert ran.code == 0 and "200 sent, not acknowledged" in ran.err and "200 acknowledged" not in ran.err
    assert plain.logs["b", 0] == encode_set(SHORT)


def test_a_replay_connects_within_the_seconds_of_the_option(
    plain: FakeBroker,
    replayed: tuple[FakeBroker, tuple[str, ...]],
    commands: Commands,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, command = replayed
    source.logs["a", 0] = encode_set(SHORT)
    given: list[int] = []
    producer = copy_topic.Producer

    def noting(**options: Any) -> Any:
        given.append(options["connect_timeout_ms"])
        return producer(**options)

    monkeypatch.setattr(copy_topic, "Producer", noting)
    assert commands(*command, "--connect-timeout", "7.5").code == 0
    assert given == [7500] and plain.logs["b", 0] == encode_set(SHORT)


def test_a_replay_refuses_what_would_be_dropped(
    plain: FakeBroker, replayed: tuple[FakeBroker, tuple[str, ...]], commands: Commands
) -> None:
    """Unless an option says that the target takes it."""
    source, command = replayed
    source.logs["a", 0] = encode_set([*SHORT, LONG])
    ran = commands(*command)
    what, why, what_to_do = ran.refused()
    assert ran.code == 1 and "0-0 does not fit into 'b'" in what
    assert "1000001 bytes" in why and "--max-message-bytes" in what_to_do
    assert LONG not in plain.logs.get(("b", 0), b"")
    ran = commands(*command, "--max-message-bytes", "2MB")
    assert ran.code == 0 and "201 sent, not acknowledged" in ran.err and LONG in plain.logs["b", 0]


def test_a_replay_whose_connection_breaks_fails(
    plain: FakeBroker, replayed: tuple[FakeBroker, tuple[str, ...]], commands: Commands
) -> None:
    """Nobody can say what is lost, so it is not a success."""

    def refuse(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceRequest) and "ProduceRequest" not in plain.answered:
            plain.answered["ProduceRequest"] += 1
            raise ConnectionError
        return None

    source, command = replayed
    source.logs["a", 0] = encode_set(SHORT)
    plain.hook = refuse
    ran = commands(*command, "--rate", "400")
    assert ran.code == 1 and "may be lost" in ran.refused()[0]


def test_produce(plain: FakeBroker, commands: Commands, tmp_path: Path) -> None:
    """Its count says what it is; a line that would be dropped is left out and named."""
    path = tmp_path / "lines"
    path.write_bytes(b"\n".join([*SHORT, LONG]))
    ran = commands("produce", "--brokers", plain.address, "--topic", "t", str(path))
    assert "sent, not acknowledged: 200 messages" in ran.err and "produced" not in ran.err
    assert ran.code == 1 and "line 201; the limit is 1000000 bytes, by --max-message-bytes" in ran.err


def test_a_list_with_a_plain_broker_has_its_limit(plain: FakeBroker, commands: Commands) -> None:
    """However much the others of the list take."""
    with FakeBroker(max_message_bytes=2_000_000) as own:
        from fastlog.tools.destination import settle

        found = settle("", False, 5.0, "t", {"broker.list": f"0:{own.address},1:{plain.address}"})
        assert (found.acks, found.max_line_bytes) == ("none", 1_000_000)
        found = settle("", False, 5.0, "t", {"broker.list": f"0:{own.address},1:{own.address}"})
        assert (found.acks, found.max_line_bytes) == ("appended", 2_000_000)


def test_the_report_of_a_mirror(plain: FakeBroker) -> None:
    """In words and as an object; also once the connection is no more."""
    mirror = Mirror(config({"broker.list": f"0:{plain.address}"}))
    report = MirrorReport(mirror)
    assert [found["acknowledged"] for found in report.objects(asks=False)] == [True]
    pipes = mirror._pipes
    pipe = pipes.get(0, 0)
    wait_until("the target is connected", lambda: pipe.is_connected)
    assert [found["acknowledged"] for found in report.objects(asks=False)] == [False]
    assert all("s: sent, not acknowledged: 0 entries" in line for line in report.summary())
    pipes._asked[0, 0] = -1e9
    pipes.sweep()
    assert not pipes._pipes and not mirror.is_acknowledged
    mirror._target.stop()


def test_a_measurement_that_was_stopped() -> None:
    """``producer-perf`` looks into the log; what it did not see there was sent, and nothing more is known."""
    figures = ProducerRun(ProducerOptions(brokers="127.0.0.1:1", topic="t", messages=5, acks="none")).figures()
    assert not figures.complete
    assert columns.producer_summary(figures)[0].startswith("sent, not acknowledged: 0 messages")
