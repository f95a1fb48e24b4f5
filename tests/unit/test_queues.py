"""Work off the loop waits for work of its own kind alone, and long work takes turns.

A thread of one kind is held in the middle of its work, by an event and not by time; what is asked for meanwhile is
answered before it is let go.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fastlog.log import _files
from fastlog.log.manager import LogManager
from fastlog.workers.kafka07.answers import Answers
from fastlog.workers.services import Services
from tests.harness import raw_client as raw
from tests.harness.broker import wait_until
from tests.harness.timing import PATIENCE
from tests.harness.workers import PARTITIONS, Workers

GOOD = raw.entry(b"good")
LARGE = raw.wrapper(raw.entry(bytes(500_000)) * 5, raw.GZIP)
"""A set that decompresses to more than one step."""
LARGER = raw.wrapper(raw.entry(bytes(500_000)) * 20, raw.GZIP)


class Held:
    """Stands in a method until ``go`` is set; ``reached`` says that it does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.go = threading.Event()
        self.reached = threading.Event()
        self.armed = False
        inner = getattr(owner, name)

        def method(*arguments: Any, **named: Any) -> Any:
            if self.armed:
                self.armed = False
                self.reached.set()
                assert self.go.wait(PATIENCE)
            return inner(*arguments, **named)

        monkeypatch.setattr(owner, name, method)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> dict[str, Held]:
    """For each kind of work, what it can be held with."""
    return {
        "check": Held(monkeypatch, Services, "count_deep"),
        "creation": Held(monkeypatch, LogManager, "create_partition"),
        "disk": Held(monkeypatch, Answers, "_cut_points"),
        "control": Held(monkeypatch, Answers, "_metadata"),
    }


@pytest.fixture
def workers(tmp_path: Path, held: dict[str, Held]) -> Iterator[Workers]:
    """``held`` comes first: what the loop calls is taken up when it is made."""
    with Workers(tmp_path, partitions=4) as running:
        with running.connect() as client:
            assert client.produce_ack("t", 0, GOOD, raw.FLUSHED).error == 0
        yield running
        for one in held.values():
            one.go.set()


REQUESTS: dict[str, Callable[[raw.RawClient], object]] = {
    "check": lambda client: client.send_raw(
        raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body("t", 1, LARGE, raw.APPENDED), correlation=1)
    ),
    "creation": lambda client: client.send_raw(raw.own_frame(raw.CREATE_TOPIC, raw.place("u", 2), correlation=1)),
    "disk": lambda client: client.send_raw(
        raw.own_frame(raw.CUT_POINTS, raw.cut_points_body("t", 0, 0, 14, 10, 10), correlation=1)
    ),
    "control": lambda client: client.send_raw(raw.own_frame(raw.METADATA, raw.metadata_body(["t"]), correlation=1)),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_no_kind_of_work_waits_for_another(workers: Workers, held: dict[str, Held], kind: str) -> None:
    """One of each kind is asked for while the thread of one kind stands; those of the other kinds are answered."""
    with ExitStack() as stack:
        clients = {name: stack.enter_context(workers.connect()) for name in REQUESTS}
        if kind == "check":
            assert clients["creation"].produce_ack("t", 1, GOOD).error == 0  # its set meets a partition that is there
        held[kind].armed = True
        REQUESTS[kind](clients[kind])
        assert held[kind].reached.wait(PATIENCE)
        for name in REQUESTS:
            if name != kind and (name, kind) != ("check", "creation"):  # that one would make its partition first
                REQUESTS[name](clients[name])
                assert clients[name].recv_own()[1].error == 0, name
        assert workers.held()["jobs"] == 1
        held[kind].go.set()
        assert clients[kind].recv_own()[1].error == 0
    wait_until("all is done", lambda: not workers.held()["jobs"])


def test_long_checks_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set of three steps that comes while one of ten is at its first is done before that one."""
    steps: list[int] = []
    first, go = threading.Event(), threading.Event()
    inner = Services.count_deep

    def count_deep(self: Services, data: memoryview, connection: int, begun: Any) -> Any:
        steps.append(connection)
        if len(steps) == 1:
            first.set()
            assert go.wait(PATIENCE)
        return inner(self, data, connection, begun)

    monkeypatch.setattr(Services, "count_deep", count_deep)
    with Workers(tmp_path, partitions=4) as workers, workers.connect() as one, workers.connect() as other:
        for client, messages in ((one, LARGER), (other, LARGE)):
            body = raw.produce_ack_body("t", 0, messages, raw.APPENDED)
            client.send_raw(raw.own_frame(raw.PRODUCE_ACK, body, correlation=1))
            if client is one:
                assert first.wait(PATIENCE)
        wait_until("both are queued", lambda: workers.held()["jobs"] == 2)
        go.set()
        for client in (one, other):
            assert client.recv_own()[1].error == 0
    long, short = steps[0], next(name for name in steps if name != steps[0])
    assert steps.count(long) > 2 * steps.count(short) > 2
    together = steps[1 : 2 * steps.count(short) + 1]
    assert together == [short, long] * steps.count(short) or together == [long, short] * steps.count(short)


def test_what_is_not_in_memory_is_read_in_bounded_pieces(workers: Workers) -> None:
    """A fetch of 900 kB is five jobs: one for its beginning before it is answered, and one for each quarter."""
    messages = raw.entry(bytes(range(256)) * 3500)
    with workers.connect() as client:
        assert client.produce_ack("t", 3, messages, raw.FLUSHED).error == 0
        before = workers.processors[0].loop.job_steps
        _files.arm("pread@1-1000=EAGAIN", "test")
        answer = client.fetch("t", 3, 0, len(messages))
        _files.arm("", "test")
        assert answer.body == messages
        assert workers.processors[0].loop.job_steps - before == 1 + 4
        pins = workers.held()["pins"]
        assert client.metadata(["t"])  # its job stands where the reads stood, and holds no file
        assert workers.held()["pins"] == pins == 0


def test_each_part_of_an_answer_is_looked_for_in_memory(workers: Workers) -> None:
    """What was read of the file of one says nothing of the next one's, which begins before that place in its own."""
    messages = raw.entry(bytes(range(256)) * 3500)
    with workers.connect() as client:
        for partition in (2, 3):
            assert client.produce_ack("t", partition, messages, raw.FLUSHED).error == 0
        before = workers.processors[0].loop.job_steps
        _files.arm("pread@1-1000=EAGAIN", "test")
        answer = client.multifetch([("t", partition, 0, len(messages)) for partition in (2, 3)])
        _files.arm("", "test")
        assert answer == [(0, messages)] * 2
        assert workers.processors[0].loop.job_steps - before == 2 * 4


def test_a_read_that_no_thread_can_be_had_for_holds_nothing(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not in memory is waited for where it is sent, then."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with workers.connect() as client:
        steps = workers.processors[0].loop.job_steps
        monkeypatch.setattr(threading.Thread, "start", refuse)
        _files.arm("pread@1-1000=EAGAIN", "test")
        assert client.fetch("t", 0, 0).body == GOOD
        _files.arm("", "test")
        workers.wait_still()
        assert workers.processors[0].loop.job_steps == steps
        assert workers.held()["pins"] == 0


def test_sets_inside_a_set_by_the_thousand_are_refused(workers: Workers) -> None:
    """Empty ones compress to nothing, and each would cost every reader for ever; none of it is stored."""
    empty = raw.wrapper(b"", raw.GZIP)
    with workers.connect() as client:
        end = client.log_end("t", 0)
        assert client.produce_ack("t", 0, raw.wrapper(empty * 20_000, raw.GZIP), raw.FLUSHED).error == 2
        assert client.produce_ack("t", 0, raw.wrapper(empty * 1000 + GOOD, raw.GZIP), raw.FLUSHED).error == 0
        assert client.log_end("t", 0) > end
    assert workers.count("invalid_messages") == 1


def test_creations_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic of one partition that comes while one of forty is at its first is made after sixteen of those."""
    made: list[str] = []
    first, go = threading.Event(), threading.Event()
    inner = LogManager.create_partition

    def create_partition(self: LogManager, topic: str, partition: int, **named: Any) -> int:
        made.append(topic)
        if len(made) == 1:
            first.set()
            assert go.wait(PATIENCE)
        return inner(self, topic, partition, **named)

    monkeypatch.setattr(LogManager, "create_partition", create_partition)
    with Workers(tmp_path) as workers, workers.connect() as one, workers.connect() as other:
        one.send_raw(raw.own_frame(raw.CREATE_TOPIC, raw.place("many", 40), correlation=1))
        assert first.wait(PATIENCE)
        other.send_raw(raw.own_frame(raw.CREATE_TOPIC, raw.place("one", 1), correlation=1))
        wait_until("both are queued", lambda: workers.held()["jobs"] == 2)
        go.set()
        for client in (one, other):
            assert client.recv_own()[1].error == 0
        assert made == ["many"] * 16 + ["one"] + ["many"] * 24
        assert one.create_topic("many", 40) == (0, 40)


def test_a_topic_for_which_there_is_no_room_is_not_begun(tmp_path: Path) -> None:
    """Nor is one of more than a thousand new partitions; what is left of the room is for others."""
    with Workers(tmp_path) as workers, workers.connect() as client:
        assert client.create_topic("t", PARTITIONS + 1) == (103, -1)
        assert client.create_topic("t", 1025) == (107, -1)
        assert client.create_topic("t", 4097) == (107, -1)
        assert not (tmp_path / "t-0").exists()
        assert client.create_topic("t", PARTITIONS) == (0, PARTITIONS)


def test_creation_by_request_can_be_switched_off(tmp_path: Path) -> None:
    """What is there already, nobody has to make."""
    with Workers(tmp_path, create_topic_requests=False) as workers, workers.connect() as client:
        assert client.create_topic("t", 1) == (106, -1)
        assert client.produce_ack("t", 0, GOOD).error == 0
        assert client.create_topic("t", 1) == (0, 1)
        assert client.create_topic("t", 2) == (106, -1)


@pytest.mark.parametrize(("asked", "error"), [(None, 106), (False, 106), (True, 0)])
def test_without_automatic_creation_a_request_needs_a_setting_of_its_own(
    asked: bool | None, error: int, tmp_path: Path
) -> None:
    with (
        Workers(tmp_path, auto_create_topics=False, create_topic_requests=asked) as workers,
        workers.connect() as client,
    ):
        assert client.produce_ack("t", 0, GOOD).error == 3
        assert client.create_topic("t", 1)[0] == error
        assert (tmp_path / "t-0").exists() is (error == 0)
