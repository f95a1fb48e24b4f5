"""Summaries and nodes as JSON objects on stdout: what the words on stderr say, for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastlog.message import encode_set
from fastlog.tools import groups_access
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.command_line import Commands, Ran
from tests.harness.fake_broker import FakeBroker
from tests.harness.fake_session import FakeZooKeeper


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as fake:
        yield fake


@pytest.fixture
def run(broker: FakeBroker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("FASTLOG_BROKERS", broker.address)
    return Commands(capfd)


def the_object(ran: Ran, code: int = 0) -> dict[str, object]:
    """The only line of stdout, without its time."""
    assert ran.code == code, ran.err
    (found,) = ran.rows
    assert isinstance(found.pop("seconds"), float)
    return found


def test_produce(broker: FakeBroker, run: Commands, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("one\ntwo\nthree\n")
    counts = {"topic": "t", "failed": 0, "too_long": 0, "unknown": 0, "possible_duplicates": 0, "lost": []}
    done = {"messages": 3, "bytes": 11, "acks": "appended", "acknowledged": True}
    assert the_object(run("produce", "--topic", "t", "--json", str(path))) == {**counts, **done}
    found = the_object(run("produce", "--topic", "t", "--json", "--acks", "none", str(path)))
    assert found == {**counts, **done, "acks": "none", "acknowledged": False}
    found = the_object(run("produce", "--topic", "t", "--json", "--max-message-bytes", "4", str(path)), 1)
    assert found == {**counts, **done, "messages": 2, "bytes": 6, "failed": 1, "too_long": 1}

    def refuse(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest):
            return wire07.encode_produce_ack(rs.ProduceAckAnswer(request.correlation_id, 3, 0, 0, 0))
        return None

    broker.hook = refuse
    found = the_object(run("produce", "--topic", "t", "--json", str(path)), 1)
    lost = [{"input": str(path), "first": 1, "last": 3}]
    assert found == {**counts, **done, "messages": 0, "bytes": 0, "failed": 3, "lost": lost}


def test_whole_topics(broker: FakeBroker, run: Commands, tmp_path: Path) -> None:
    log = broker.logs["t", 0] = encode_set([b"one", b"two"])
    path = tmp_path / "t.dump"
    found = the_object(run("dump", "--topic", "t", "--json", str(path)))
    place = {"broker": 0, "partition": 0}
    assert found == {
        "messages": 2, "bytes": len(log), "topic": "t", "file": str(path),
        "partitions": [{**place, "start": 0, "end": len(log)}],
    }  # fmt: skip
    assert run("dump", "--topic", "t", "--json", "-").code == 2
    found = the_object(run("load", "--topic", "u", "--json", str(path)))
    assert found == {
        "messages": 2, "bytes": len(log), "topic": "u", "bytes_there_before": 0,
        "partitions": [{**place, "end": len(log), "of": place}],
    }  # fmt: skip
    assert broker.logs["u", 0] == log
    found = the_object(run("replay", "--input-topic", "t", "--output-topic", "v", "--json"))
    assert found == {
        "messages": 2, "bytes": 6, "input_topic": "t", "output_topic": "v",
        "acknowledged": True, "delivered": 2, "failed": 0, "without_envelope": 0,
    }  # fmt: skip


def test_nodes_and_offsets(run: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tree = FakeZooKeeper()
    monkeypatch.setattr(groups_access, "session_at", lambda *_: tree.open())
    with tree.open() as session:
        session.put("/consumers/g/offsets/t/1-2", b"77")
        session.put("/other", b"\xff\x1b")
        session.create("/mine", b"x", ephemeral=True)
        assert run("zookeeper", "ls", "/consumers", "--recursive", "--json").rows[-1] == {
            "path": "/consumers/g/offsets/t/1-2"
        }
        first, second, third = run("zookeeper", "get", "/consumers/g/offsets/t/1-2", "/other", "/mine", "--json").rows
        assert (first["path"], first["data"], first["base64"]) == ("/consumers/g/offsets/t/1-2", "77", False)
        assert (second["data"], second["base64"], second["ephemeral"], second["version"]) == ("/xs=", True, False, 0)
        assert third["ephemeral"] is True
        row = {"group": "g", "topic": "t", "broker": 1, "partition": 2, "offset": 77}
        assert run("offsets", "export", "--json", "--zookeeper", "it:1").rows == [row]
        path = tmp_path / "offsets"
        assert run("offsets", "export", "--json", "--zookeeper", "it:1", "--output-file", str(path)).code == 0
        assert json.loads(path.read_text()) == row


@pytest.mark.parametrize("pace", [(), ("--rate", "100000"), ("--messages", "20")])
def test_replay_knows_how_far_it_is(
    pace: tuple[str, ...], broker: FakeBroker, run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any pace, and with a limit: the share grows to the whole."""
    from fastlog.tools.progress import ConsoleProgress

    shares: list[float] = []
    show = ConsoleProgress.add

    def look(self: ConsoleProgress, count: int, size: int) -> None:
        show(self, count, size)
        shares.append(self.reached / self.goal)

    monkeypatch.setattr(ConsoleProgress, "add", look)
    broker.logs["t", 0] = encode_set([b"message"] * 40)
    assert run("replay", "--input-topic", "t", "--output-topic", "u", *pace).code == 0
    assert shares == sorted(shares) and shares[-1] == 1.0
