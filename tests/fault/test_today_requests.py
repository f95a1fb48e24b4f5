"""Mutated requests of today's protocol at a size for each run, and that what is wrong with answers is noticed."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.fault import registry, today_requests
from tests.harness import today
from tests.harness.today_fuzz import FIELD_SHARE, KEPT, Frame, Requests, marked

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


def test_a_seed_sends_requests_again_and_changed() -> None:
    requests = Requests(SEED, [18])
    frames = [requests.frame() for _ in range(2000)]
    sound = [frame for frame in frames if not frame.is_bent]
    assert {len({frame.data[12:] for frame in sound if frame.version == version}) for version in (0, 1, 2)} == {1}
    newer = {frame.data[12:] for frame in sound if frame.version == 3}
    assert KEPT < len(newer) < len(sound) / 5
    assert [int.from_bytes(frame.data[8:12], "big") for frame in frames if frame.is_whole] == [
        number for number, frame in enumerate(frames, 1) if frame.is_whole
    ]
    assert all(len(frame.data) == 4 + int.from_bytes(frame.data[:4], "big") for frame in frames if frame.is_whole)


def test_bursts_end_with_a_head_that_is_wrong() -> None:
    requests = Requests(SEED)
    bursts = [requests.burst(20) for _ in range(500)]
    assert all(frame.is_whole for burst in bursts for frame in burst[:-1])
    assert {len(burst) for burst in bursts} >= set(range(1, 21))
    assert all(any(burst[-1].is_whole == whole for burst in bursts) for whole in (True, False))
    assert any(frame.is_bent for burst in bursts for frame in burst[:-1])


def test_fields_are_known_by_their_places() -> None:
    body = marked(today.load_request_schema(18, 3)(client_software_name="name", client_software_version="0.7"))
    assert body.data == b"\x05name\x040.7\0"
    assert [body.data[at : at + size] for at, size in body.places] == [b"\x05", b"name", b"\x04", b"0.7", b"\0"]


def test_other_values_of_fields_leave_the_rest_where_it_is() -> None:
    requests, data = Requests(SEED), bytes(range(64))
    places = [(0, 1), (10, 2), (20, 4), (30, 8), (50, 7)]
    found = [requests.bent(data, places) for _ in range(4000)]
    same = [one for one in found if len(one) == len(data)]
    inside = {at for at, size in places for at in range(at, at + size)}
    alone = [one for one in same if all(one[at] == data[at] for at in range(64) if at not in inside)]
    assert len(alone) > len(found) * FIELD_SHARE * 0.8
    assert any(one[20:24] == b"\x7f\xff\xff\xff" for one in alone)
    assert any(one[30:38] == bytes([255] * 7 + [254]) for one in alone)
    assert any(one[50:57] != data[50:57] for one in alone)


def answered(frames: list[Frame], answers: bytes) -> list[str]:
    """What is wrong with answers that end with the connection."""
    return reached(frames, answers)[1]


def reached(frames: list[Frame], answers: bytes) -> tuple[int, list[str]]:
    """How many requests were reached, and what is wrong."""
    outcome = registry.Outcome()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(answers)
        theirs.shutdown(socket.SHUT_WR)
        count = today_requests.read_answers(outcome, today_requests.Answers(ours), frames, today_requests.Known())
    return count, outcome.violations


def asked(key: int, version: int, correlation: int, is_bent: bool = False, is_whole: bool = True) -> Frame:
    return Frame(key, version, today.frame(key, version, b"", correlation=correlation), is_whole, is_bent)


VERSIONS, LATER, END = (
    today.framed(number.to_bytes(4, "big") + bytes(6)) for number in (5, 6, today_requests.SENTINEL)
)


def test_answers_that_are_missing_foreign_or_unreadable_are_violations() -> None:
    frames = [asked(18, 0, 5), asked(18, 0, 6)]
    assert answered(frames, VERSIONS + LATER + END) == []
    assert "ended at well-formed" in answered(frames, VERSIONS)[0]
    assert "ended at well-formed" in answered(frames, VERSIONS + LATER[:7])[0]
    assert "not answered" in answered(frames, VERSIONS + END)[0]
    assert "not answered" in answered(frames, LATER + END)[0]
    assert any("nothing that was asked" in one for one in answered(frames, VERSIONS + LATER + LATER + END))
    assert "answered" in answered(frames, VERSIONS + today.framed((6).to_bytes(4, "big") + bytes(5)) + END)[0]
    assert answered([asked(0, 3, 5), asked(18, 0, 6)], LATER + END) == []


def test_a_connection_ends_at_a_request_that_is_wrong_and_at_none_before() -> None:
    last = asked(18, 0, 7)
    bent = asked(18, 0, 6, is_bent=True)
    assert reached([asked(18, 0, 5), bent, last], VERSIONS) == (2, [])
    assert "ended at well-formed" in answered([asked(18, 0, 5), bent, last], b"")[0]
    assert "ended at well-formed" in answered([asked(18, 0, 5), bent, last], VERSIONS + LATER)[0]
    # one of several that need no answer, or the one behind them
    assert reached([asked(0, 3, 4), asked(0, 3, 5), bent, last], b"") == (1, [])
    assert reached([asked(18, 0, 5), asked(18, 0, 6, is_bent=True, is_whole=False)], VERSIONS) == (2, [])
    assert reached([asked(18, 0, 5), asked(18, 0, 6, is_bent=True, is_whole=False)], VERSIONS + LATER) == (2, [])


def test_only_who_may_wait_for_members_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(today_requests, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(today_requests, "PATIENCE", 0.1)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0.01)

        def read(frames: list[Frame]) -> tuple[int, list[str]]:
            outcome = registry.Outcome()
            answers = today_requests.Answers(ours)
            return today_requests.read_answers(outcome, answers, frames, today_requests.Known()), outcome.violations

        assert read([asked(11, 0, 5), asked(18, 0, 6)]) == (1, [])
        count, (violation,) = read([asked(18, 0, 5), asked(11, 0, 6)])
        assert count == 1
        assert "no answer and no end" in violation


def test_what_was_read_is_known_again_by_all_but_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[bytes] = []
    monkeypatch.setattr(today, "decoded", lambda key, version, answer: looks.append(answer))
    known = today_requests.Known()
    known.read(asked(18, 0, 5), VERSIONS)
    known.read(asked(18, 0, 6), LATER)
    assert looks == [VERSIONS]
    known.read(asked(18, 1, 6), LATER)
    known.read(asked(18, 0, 6), today.framed((6).to_bytes(4, "big") + bytes(5) + b"\1"))
    assert len(looks) == 3
    monkeypatch.setattr(today_requests, "MOST_KNOWN_BYTES", 5)
    for _ in range(2):
        known.read(asked(18, 2, 5), VERSIONS)
    assert len(looks) == 5
