"""Requests of today's protocol that the coordinator answers: passed on as they came, answered in their place."""

from __future__ import annotations

import select
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastlog.log._shared_memory import COORDINATOR
from fastlog.workers.coordinator.frames import HEAD_BYTES, LAYOUT, Head
from fastlog.workers.kafka import kinds
from fastlog.workers.kafka._kinds import Kinds
from tests.harness import raw_client as raw
from tests.harness import today
from tests.harness.timing import PATIENCE
from tests.harness.workers import Workers, drain, is_silent

CREATE_TOPICS = 19


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setattr(kinds, "FORWARDED", {CREATE_TOPICS: kinds.Api("CreateTopics", 2, 2, 7, 5, None)})
    with Workers(tmp_path, makes_topics=False) as running:
        yield running


@pytest.fixture
def client(workers: Workers) -> Iterator[raw.RawClient]:
    with workers.connect() as connected:
        today.asked(connected.socket, today.API_VERSIONS, 0)
        yield connected


def forwarded(workers: Workers) -> tuple[Head, bytes]:
    """The next piece that comes to the coordinator."""
    end = workers.processors[0].coordinator
    assert select.select([end], [], [], PATIENCE)[0]
    piece = end.recv(1 << 17)
    return Head(*LAYOUT.unpack(piece[:HEAD_BYTES])), piece[HEAD_BYTES:]


def answer(workers: Workers, head: Head, made: bytes) -> None:
    back = Head(head.number, head.connection, head.processor, head.coordinator, len(made), 0)
    workers.processors[0].coordinator.send(back.pack() + made)


def request(version: int, body: bytes, correlation: int = 5) -> bytes:
    return today.framed(struct.pack(">hhi", CREATE_TOPICS, version, correlation) + body)


def test_no_kind_is_answered_twice() -> None:
    assert not set(kinds.APIS) & set(kinds.FORWARDED)
    assert set(kinds.offered()) == set(kinds.APIS) | set(kinds.FORWARDED)


def test_clients_are_told_of_what_is_passed_on(client: raw.RawClient) -> None:
    found = today.asked(client.socket, today.API_VERSIONS, 0)
    assert {one.api_key for one in found.api_keys} == {*kinds.APIS, CREATE_TOPICS}
    assert Kinds().operation_of(CREATE_TOPICS) == 0


def test_requests_are_passed_on_and_answered_as_they_are(workers: Workers, client: raw.RawClient) -> None:
    """Whatever is in them: the coordinator reads it. Those behind wait, and answers keep their order."""
    after = today.request(today.METADATA, 1, {"topics": []}, correlation=9)
    client.socket.sendall(request(2, b"\xff any bytes") + request(7, b"") + after)
    for version, body in ((2, b"\xff any bytes"), (7, b"")):
        head, piece = forwarded(workers)
        assert piece == request(version, body)[4:]
        workers.wait_still()
        assert is_silent(client)
        made = today.framed(b"made of %d" % version)
        answer(workers, head, made)
        assert today.answer_of(client.socket) == made
    assert today.decoded(today.METADATA, 1, today.answer_of(client.socket))[0] == 9


@pytest.mark.parametrize("version", [1, 8, -1])
def test_other_versions_are_not_passed_on(workers: Workers, client: raw.RawClient, version: int) -> None:
    client.socket.sendall(request(version, b""))
    assert drain(client) == b""
    assert not select.select([workers.processors[0].coordinator], [], [], 0)[0]


def test_one_that_cannot_be_answered_closes_its_connection_alone(workers: Workers, client: raw.RawClient) -> None:
    with workers.connect() as other:
        today.asked(other.socket, today.API_VERSIONS, 0)
        client.socket.sendall(request(2, b""))
        head, _ = forwarded(workers)
        workers.arena.end_incarnation(COORDINATOR)
        workers.arena.wake_all()
        assert drain(client) == b""
        assert head.total == 8
        assert today.asked(other.socket, today.METADATA, 1, topics=[]).topics == ()


def test_who_waits_for_a_topic_is_told_nothing_when_the_coordinator_dies(
    workers: Workers, client: raw.RawClient
) -> None:
    """Whether it is made nobody knows."""
    flags = {"allow_auto_topic_creation": True, "include_topic_authorized_operations": False}
    topics = [{"topic_id": None, "name": "t"}]
    client.socket.sendall(today.request(today.METADATA, 12, {"topics": topics} | flags))
    forwarded(workers)
    workers.arena.end_incarnation(COORDINATOR)
    workers.arena.wake_all()
    assert drain(client) == b""


def test_who_goes_away_meanwhile_leaves_nothing(workers: Workers) -> None:
    workers.wait_still()
    before = workers.held()
    with workers.connect() as other:
        today.asked(other.socket, today.API_VERSIONS, 0)
        other.socket.sendall(request(2, b"x" * 1000))
        head, _ = forwarded(workers)
    answer(workers, head, today.framed(bytes(10_000)))
    workers.wait_held(before)
