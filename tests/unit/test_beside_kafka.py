"""What ``python -m perf.beside_kafka`` makes of what clients print, and of its rounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from perf.beside_kafka import steps
from perf.beside_kafka.__main__ import table
from perf.peers.base import PeerFailed

WRITTEN = "% 50000 messages produced (10000000 bytes), 50000 delivered (offset 0, 0 failed) in 250ms: 200000 msgs/s"
READ = "% 50000 messages (10000000 bytes) consumed in 125ms: 400000 msgs/s (80.00 MB/s)"


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> steps.Load:
    """A program that prints what it is told to."""
    program = tmp_path / "rdkafka_performance"
    program.write_text('#!/bin/sh\necho "% 10 messages produced, 10 delivered in 1ms"\necho "$SAID"\nexit ${CODE:-0}\n')
    program.chmod(0o755)
    monkeypatch.setenv(steps.PROGRAM, str(program))
    return steps.Load("127.0.0.1:1", "t", 2, 50_000)


def test_the_last_line_of_librdkafkas_program_counts(load: steps.Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAID", WRITTEN)
    assert steps.rdkafka_produce(load).rate == 200_000
    monkeypatch.setenv("SAID", READ)
    assert steps.rdkafka_consume(load).rate == 400_000


def test_less_than_was_asked_for_is_no_result(load: steps.Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAID", WRITTEN)
    with pytest.raises(PeerFailed, match="of 50001"):
        steps.rdkafka_produce(load._replace(messages=50_001))
    monkeypatch.setenv("CODE", "1")
    with pytest.raises(PeerFailed, match="exit code 1"):
        steps.rdkafka_produce(load)


def test_a_client_that_is_not_there_says_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(steps.PROGRAM, raising=False)
    monkeypatch.delenv(steps.CLASSPATH, raising=False)
    assert "scripts/compat clients librdkafka" in str(steps.why_not("rdkafka_performance"))
    assert "scripts/compat fetches them" in str(steps.why_not("java"))
    assert steps.why_not("confluent-kafka") is None


def test_medians_and_the_ratio_of_each_round() -> None:
    """The ratio is that of the rounds, not of the medians, and a figure that is nothing has none."""
    ours = [{"rate": 10.0, "cpu": 1.0}, {"rate": 30.0, "cpu": 2.0}, {"rate": 20.0, "cpu": 3.0}]
    theirs = [{"rate": 5.0, "cpu": 0.0}, {"rate": 10.0, "cpu": 0.0}, {"rate": 40.0, "cpu": 0.0}]
    assert table({"row": {"fastlog": ours, "kafka": theirs}}) == {
        "row": {
            "rate": {"fastlog": 20.0, "kafka": 10.0, "ratio": 2.0, "ratios": [2.0, 3.0, 0.5]},
            "cpu": {"fastlog": 2.0, "kafka": 0.0, "ratio": None, "ratios": []},
        }
    }
