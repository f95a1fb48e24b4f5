"""Topics that are made because clients ask for them: once, whoever asks, and as a whole or not at all."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastlog.kafka_codes import Code
from fastlog.log import _files
from fastlog.log.files import FileOps
from fastlog.log.metadata import CREATED, read_metadata
from fastlog.workers.authorization import Operation, ResourceType
from fastlog.workers.coordinator import auto_create
from fastlog.workers.coordinator.frames import Frame
from tests.harness import today
from tests.harness.coordinated import Coordinated

pytestmark = pytest.mark.usefixtures("no_faults")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Coordinated]:
    with Coordinated(tmp_path / "log") as made:
        yield made


def begin(running: Coordinated, *names: str, version: int = 12) -> list[bytes | None]:
    """Pass a METADATA on; the list gets the answer."""
    rows = [{"topic_id": None, "name": name} if version >= 10 else {"name": name} for name in names]
    fields: dict[str, Any] = {"topics": rows}
    if version >= 4:
        fields["allow_auto_topic_creation"] = True
    if version >= 8:
        fields["include_topic_authorized_operations"] = False
    if 8 <= version <= 10:
        fields["include_cluster_authorized_operations"] = False
    answers: list[bytes | None] = []
    body = today.request(today.METADATA, version, fields)[4:]
    running.dispatcher.handle(Frame(1, 1, 0, 0, 0, "10.1.2.3", 4711, body), answers.append)
    return answers


def codes(answer: bytes | None) -> list[int]:
    assert answer is not None
    return list(struct.unpack(f">{len(answer) // 2}h", answer))


def ask(running: Coordinated, *names: str, version: int = 12) -> list[int]:
    answers = begin(running, *names, version=version)
    running.turn_until("an answer", lambda: bool(answers))
    return codes(answers[0])


@pytest.mark.parametrize("version", range(1, 13))
def test_a_topic_is_made_and_written_down_before_it_is_told(tmp_path: Path, version: int) -> None:
    with Coordinated(tmp_path / "log", partitions_by_topic={"t": 3}) as running:
        assert ask(running, "t", version=version) == [Code.NONE]
        views = running.topics.partitions("t")
        assert len(views) == 3 and all(view.settled for view in views) and any(views[0].topic_id)
        assert len({view.topic_id for view in views}) == 1
        assert running.recorded() == {"t": (CREATED, 3)}
        assert ask(running, "t", version=version) == [Code.NONE]


def test_a_thousand_who_ask_get_one_topic(running: Coordinated) -> None:
    answers = [begin(running, "t") for _ in range(1000)]
    running.turn_until("all are answered", lambda: all(answers))
    assert {code for (answer,) in answers for code in codes(answer)} == {Code.NONE}
    state = read_metadata([running.directory], FileOps())
    assert list(state.topics) == ["t"]
    made = [view for view in running.arena.views() if view.topic == "t"]
    assert [view.topic_id for view in made] == [state.topics["t"].topic_id]


def test_what_is_not_settled_is_waited_for(running: Coordinated) -> None:
    """Nobody is told of a topic half-way: neither of its first partition, nor before its record is flushed."""
    _files.arm("topic.made=slow:200", "test")
    first = begin(running, "t")
    running.turn_until("it has a partition", lambda: bool(running.topics.partitions("t")))
    assert not first and not running.topics.partitions("t")[0].settled
    second = begin(running, "t")
    assert not second
    running.turn_until("both are answered", lambda: bool(first and second))
    assert codes(first[0]) == codes(second[0]) == [Code.NONE]
    assert running.topics.partitions("t")[0].settled


def test_each_topic_has_its_code(running: Coordinated) -> None:
    running.manager.create_partition("old", 0)
    names = ["a", "old", "no/slash", "__own", "..", "a" * 250, "a", "b"]
    assert ask(running, *names) == [
        Code.NONE,
        Code.NONE,
        *[Code.INVALID_TOPIC_EXCEPTION] * 4,
        Code.NONE,
        Code.NONE,
    ]
    assert running.topics.names() == ["a", "b"]


def test_names_that_are_no_text(running: Coordinated) -> None:
    body = today.request(today.METADATA, 1, {"topics": [{"name": "wrong"}, {"name": "right"}]})[4:]
    answers: list[bytes | None] = []
    frame = Frame(1, 1, 0, 0, 0, "10.1.2.3", 4711, body.replace(b"wrong", b"\xff\xfe\xfd\xfc\xfb"))
    running.dispatcher.handle(frame, answers.append)
    running.turn_until("an answer", lambda: bool(answers))
    assert codes(answers[0]) == [Code.INVALID_TOPIC_EXCEPTION, Code.NONE]


def test_rubbish_closes_the_connection(running: Coordinated) -> None:
    answers: list[bytes | None] = []
    running.dispatcher.handle(Frame(1, 1, 0, 0, 0, "10.1.2.3", 4711, b"\0\3\0\x0c"), answers.append)
    running.turn_until("an answer", lambda: bool(answers))
    assert answers == [None]
    assert ask(running, "t") == [Code.NONE]


def test_who_may_not(tmp_path: Path) -> None:
    asked = []

    def rule(_principal: str, _host: str, operation: Operation, resource: ResourceType, name: str) -> bool:
        asked.append((operation, resource, name))
        return resource is ResourceType.TOPIC and name == "mine"

    with Coordinated(tmp_path / "log", rule=rule) as running:
        assert ask(running, "mine", "theirs") == [Code.NONE, Code.TOPIC_AUTHORIZATION_FAILED]
        assert {(Operation.CREATE, ResourceType.TOPIC, name) for name in ("mine", "theirs")} <= set(asked)
        assert running.topics.names() == ["mine"]
        asked.clear()
        assert ask(running, "mine") == [Code.NONE] and not asked, "who may see a topic is the processor's to know"


def test_who_may_not_see_a_topic_does_not_make_it_beside_another(tmp_path: Path) -> None:
    """A request is passed on as a whole for the others that it names."""

    def rule(_principal: str, _host: str, operation: Operation, resource: ResourceType, name: str) -> bool:
        return (operation, name) != (Operation.DESCRIBE, "hidden")

    with Coordinated(tmp_path / "log", rule=rule) as running:
        assert ask(running, "hidden", "seen") == [Code.TOPIC_AUTHORIZATION_FAILED, Code.NONE]
        assert running.topics.names() == ["seen"]


def test_no_room_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with Coordinated(tmp_path / "log", partitions=8, partitions_by_topic={"wide": 9, "narrow": 2}) as running:
        assert ask(running, "wide", "narrow") == [Code.KAFKA_STORAGE_ERROR, Code.NONE]
        assert running.topics.names() == ["narrow"]


def test_a_name_that_is_being_deleted_is_waited_for(running: Coordinated) -> None:
    assert ask(running, "t") == [Code.NONE]
    former = running.topics.partitions("t")[0].topic_id
    gone = running.begin_to_ask(20, 6, topics=[{"name": "t", "topic_id": bytes(16)}], timeout=30_000)
    answers = begin(running, "t")
    assert not gone and not answers
    running.turn_until("both are answered", lambda: bool(gone and answers))
    assert codes(answers[0]) == [Code.NONE]
    assert running.topics.partitions("t")[0].topic_id != former


def test_whoever_takes_the_name_meanwhile_has_it(running: Coordinated) -> None:
    answers = begin(running, "t")
    running.manager.create_partition("t", 0)
    running.turn_until("an answer", lambda: bool(answers))
    assert codes(answers[0]) == [Code.NONE]
    assert running.recorded() == {} and running.topics.of_kafka07("t")


def test_who_waits_too_long_asks_again(running: Coordinated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_create, "WAIT_SECONDS", 0.0)
    assert ask(running, "t") == [Code.LEADER_NOT_AVAILABLE]
    assert running.recorded() == {}, "nothing begins for who is not waited for"
    monkeypatch.setattr(auto_create, "WAIT_SECONDS", 0.05)
    _files.arm("topic.made=slow:300", "test")
    assert ask(running, "t") == [Code.LEADER_NOT_AVAILABLE]
    running.turn_until("it is made all the same", lambda: running.recorded() == {"t": (CREATED, 1)})
    _files.arm("", "test")
    running.turn_until("it can be seen", lambda: ask(running, "t") == [Code.NONE])


def test_many_topics_of_one_request(tmp_path: Path) -> None:
    with Coordinated(tmp_path / "log", partitions=100) as running:
        names = [f"t{number}" for number in range(3 * auto_create.AT_ONCE + 1)]
        assert ask(running, *names, *names) == [Code.NONE] * 2 * len(names)
        assert sorted(running.topics.names()) == sorted(names)


def test_a_killed_coordinator_leaves_the_whole_topic_or_nothing(tmp_path: Path) -> None:
    """After each of its first turns: its successor finishes what was written down, and shows it then."""
    for turns in range(0, 60, 3):
        directory = tmp_path / str(turns)
        with Coordinated(directory, partitions_by_topic={"t": 3}) as running:
            begin(running, "t")
            for _ in range(turns):
                running.turn()
            running.loop.close()
            running.begin()
            running.turn_until("it is ready", lambda made=running: made.topics.is_ready and not made.loop.tasks)  # type: ignore[misc]
            views = running.topics.partitions("t")
            assert [(view.partition, view.settled) for view in views] in ([], [(0, True), (1, True), (2, True)])
            assert ask(running, "t") == [Code.NONE]
            assert len(running.topics.partitions("t")) == 3


def test_a_disk_that_refuses_is_said_and_leaves_nothing(running: Coordinated) -> None:
    _files.arm("create.segment@1=EIO", "test")
    assert ask(running, "t") == [Code.KAFKA_STORAGE_ERROR]
    _files.arm("", "test")
    running.turn_until("nothing is left", lambda: running.recorded() == {})
    assert ask(running, "t") == [Code.NONE]
