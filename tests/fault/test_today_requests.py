"""Mutated requests of today's protocol at a size for each run, and that what is wrong with answers is noticed."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.fault import registry, today_requests
from tests.harness import today
from tests.harness.today_fuzz import Frame, Requests

SEED = 20240307
RUNS = 3000


@pytest.mark.slow
def test_others_are_served_meanwhile(tmp_path: Path) -> None:
    outcome = registry.load()["requests-mutated"].run(RUNS, SEED, tmp_path)
    assert outcome.runs == RUNS
    assert outcome.violations == [], f"seed {SEED}"


def test_a_seed_makes_its_requests_again() -> None:
    def made(seed: int) -> list[Frame]:
        requests = Requests(seed)
        return [requests.frame() for _ in range(50)]

    assert made(1) == made(1) != made(2)


def test_bursts_end_with_what_may_end_the_connection() -> None:
    requests = Requests(SEED)
    bursts = [requests.burst(20) for _ in range(200)]
    assert all(not frame.is_bent and frame.is_whole for burst in bursts for frame in burst[:-1])
    assert {len(burst) for burst in bursts} >= set(range(1, 8))
    last = [burst[-1] for burst in bursts]
    assert all(any(frame.is_whole == whole for frame in last) for whole in (True, False))


def answered(frames: list[Frame], answers: bytes, is_last_answered: bool = True) -> list[str]:
    """What is wrong with answers that end with the connection."""
    outcome = registry.Outcome()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(answers)
        theirs.shutdown(socket.SHUT_WR)
        try:
            today_requests.read_answers(outcome, ours, frames, is_last_answered)
        except EOFError:
            outcome.violations.append("the end")
    return outcome.violations


def asked(key: int, version: int, correlation: int) -> Frame:
    return Frame(key, version, today.frame(key, version, b"", correlation=correlation))


def test_answers_that_are_missing_foreign_or_unreadable_are_violations() -> None:
    versions = today.framed((5).to_bytes(4, "big") + bytes(6))
    later = today.framed((6).to_bytes(4, "big") + bytes(6))
    end = today.framed(today_requests.SENTINEL.to_bytes(4, "big") + bytes(6))
    frames = [asked(18, 0, 5), asked(18, 0, 6)]
    assert answered(frames, versions + later + end) == []
    assert answered(frames, versions) == ["the end"]
    assert "not answered" in answered(frames, versions + end)[0]
    assert "not answered" in answered(frames, later + end)[0]
    assert any("nothing that was asked" in one for one in answered(frames, versions + later + later + end))
    assert "answered" in answered(frames, versions + today.framed((6).to_bytes(4, "big") + bytes(5)) + end)[0]
    produces = [asked(0, 3, 5), asked(18, 0, 6)]
    assert answered(produces, later + end) == []
