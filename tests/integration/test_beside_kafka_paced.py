"""What ``python -m perf.beside_kafka`` drives at a fixed pace, against a broker."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition

from perf.beside_kafka import cold, connections
from perf.beside_kafka.__main__ import create
from perf.beside_kafka.connections import Paced
from perf.beside_kafka.systems import CLASSPATH, Fastlog
from perf.peers.base import PeerFailed


@pytest.fixture
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Fastlog:
    running = Fastlog(tmp_path / "fastlog", 1)
    request.addfinalizer(running.stop)
    create(running, "t", 2)
    return running


def ends(broker: Fastlog) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "ends"})
    try:
        return [consumer.get_watermark_offsets(TopicPartition("t", number), 10)[1] for number in range(2)]
    finally:
        consumer.close()


def test_every_connection_keeps_its_pace(broker: Fastlog) -> None:
    """Four connections, ten batches of five records each; the two partitions get the same."""
    found = connections.run(Paced(broker.address, "t", 2, 4, 50.0, 0.1, 0.99, 200))
    assert ends(broker) == [100, 100]
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["p999_ms"]
    assert 0 < found["share_of_pace"] <= 1.1


def test_a_refused_batch_is_no_result(broker: Fastlog) -> None:
    with pytest.raises(PeerFailed, match="refused with error 3"):
        connections.run(Paced(broker.address, "t", 3, 3, 50.0, 0.1, 0.5, 200))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_catching_up_reads_everything_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold, "ALONE_SECONDS", 0.5)
    monkeypatch.delenv(CLASSPATH, raising=False)
    done = CliRunner().invoke(cold.cold, ["--gigabytes", "0.02", "--rounds", "1", "--directory", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "NOT RUN: kafka" in done.stderr
    medians = json.loads(done.stdout)["medians"]
    assert list(medians) == ["fastlog"]
    assert all(figure > 0 for figure in medians["fastlog"].values())
    assert list(tmp_path.iterdir()) == []
