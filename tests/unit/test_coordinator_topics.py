"""Topics made and deleted through the coordinator: what is answered, what is on the disk, what a killed one leaves."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from fastlog.kafka_codes import Code
from fastlog.log import _files
from fastlog.log.files import FileOps
from fastlog.log.formats import format_name
from fastlog.log.kafka_files import read_topic_id
from fastlog.log.manager import CreationBusyError, LogManager
from fastlog.log.metadata import CREATING, Topic, read_metadata, topic_change
from fastlog.log.slots import SlotView
from fastlog.workers.coordinator import topics as topics_module
from fastlog.workers.coordinator.topic_settings import FIRST_OFFSETS
from tests.harness.coordinated import CLUSTER_ID, Coordinated


@pytest.fixture
def running(memory: Path) -> Iterator[Coordinated]:
    with Coordinated(memory / "log") as made:
        yield made


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_made(running: Coordinated, version: int) -> None:
    found = running.create("t", 3, version)
    assert (found.name, found.error_code) == ("t", Code.NONE)
    views = running.topics.partitions("t")
    assert [view.partition for view in views] == [0, 1, 2]
    assert {format_name(view.format) for view in views} == {"record-batches"}
    if version >= 5:
        assert (found.num_partitions, found.replication_factor) == (3, 1)
    if version >= 7:
        assert {view.topic_id for view in views} == {found.topic_id.bytes}
        assert read_topic_id(running.directory / "t-2", FileOps()) == found.topic_id.bytes
    assert running.recorded() == {"t": ("created", 3)}
    assert all(view.dir_synced_tail > view.table_head for view in views), "a power loss could take it away"


def test_what_is_made_has_names_that_a_power_loss_leaves(running: Coordinated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything goes on, though the disk is slow."""
    durable: dict[str, list[bool]] = {}

    def reach(point: str) -> None:
        views = running.manager.partitions("t")
        durable[point] = [view.dir_synced_tail > view.table_head for view in views]

    monkeypatch.setattr(topics_module, "_files", SimpleNamespace(reach=reach))
    _files.arm("fsync@1-=slow:100", "test")
    try:
        assert running.create("t", 3).error_code == Code.NONE
    finally:
        _files.arm("", "test")
    assert durable["topic.made"] == [True] * 3


def test_a_topic_that_is_there_is_not_made_again(running: Coordinated) -> None:
    first = running.create("t", 2)
    assert running.create("t", 1).error_code == Code.TOPIC_ALREADY_EXISTS
    running.manager.create_partition("old", 0)
    assert running.create("old").error_code == Code.TOPIC_ALREADY_EXISTS
    (view, _) = running.topics.partitions("t")
    assert view.topic_id == first.topic_id.bytes


def test_many_partitions_are_made_in_steps(memory: Path) -> None:
    with Coordinated(memory / "log", partitions=400) as running:
        answers = running.begin_to_ask(
            19,
            7,
            topics=[
                {"name": "t", "num_partitions": 300, "replication_factor": 1, "assignments": (), "configs": ()},
            ],
            timeout=60_000,
            validate_only=False,
        )
        other = running.ask(60, 1, include_cluster_authorized_operations=False, endpoint_type=1)
        assert other.cluster_id == CLUSTER_ID and not answers, "it waited for all partitions"
        running.turn_until("all are made", lambda: bool(answers))
        assert answers[0].topics[0].error_code == Code.NONE
        assert len(running.topics.partitions("t")) == 300


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"name": "a/b"}, Code.INVALID_TOPIC_EXCEPTION),
        ({"name": ""}, Code.INVALID_TOPIC_EXCEPTION),
        ({"name": ".."}, Code.INVALID_TOPIC_EXCEPTION),
        ({"name": "x" * 250}, Code.INVALID_TOPIC_EXCEPTION),
        ({"name": "__consumer_offsets"}, Code.INVALID_TOPIC_EXCEPTION),
        ({"replication_factor": 3}, Code.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 0}, Code.INVALID_REPLICATION_FACTOR),
        ({"num_partitions": 0}, Code.INVALID_PARTITIONS),
        ({"num_partitions": -2}, Code.INVALID_PARTITIONS),
        ({"num_partitions": 1000}, Code.INVALID_PARTITIONS),
        ({"configs": {"no.such.key": "1"}}, Code.INVALID_CONFIG),
        ({"configs": {"retention.ms": "soon"}}, Code.INVALID_CONFIG),
        ({"configs": {"min.insync.replicas": "2"}}, Code.INVALID_CONFIG),
        ({"num_partitions": 2, "configs": {FIRST_OFFSETS: "1"}}, Code.INVALID_CONFIG),
        ({"num_partitions": 2, "configs": {FIRST_OFFSETS: "1,2,3"}}, Code.INVALID_CONFIG),
        ({"num_partitions": 2, "configs": {FIRST_OFFSETS: "1,-1"}}, Code.INVALID_CONFIG),
        ({"num_partitions": 2, "configs": {FIRST_OFFSETS: "1,x"}}, Code.INVALID_CONFIG),
        ({"num_partitions": 1, "configs": {FIRST_OFFSETS: ""}}, Code.INVALID_CONFIG),
        ({"num_partitions": 1, "configs": {FIRST_OFFSETS: str(2**62 + 1)}}, Code.INVALID_CONFIG),
        ({"configs": {"fastlog.format": "messages"}}, Code.INVALID_CONFIG),
        ({"assignments": [{"partition_index": 0, "broker_ids": [7]}]}, Code.INVALID_REQUEST),
        (
            {
                "num_partitions": -1,
                "assignments": [{"partition_index": 1, "broker_ids": [7]}],
            },
            Code.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            {
                "num_partitions": -1,
                "assignments": [{"partition_index": 0, "broker_ids": [8]}],
            },
            Code.INVALID_REPLICA_ASSIGNMENT,
        ),
    ],
)
def test_what_cannot_be_made_is_refused_and_leaves_nothing(
    running: Coordinated, given: dict[str, object], code: Code
) -> None:
    found = running.create(**{"name": "t", **given})  # type: ignore[arg-type]
    assert (found.error_code, bool(found.error_message)) == (code, True)
    assert running.topics.names() == [] and running.recorded() == {}


def test_one_request_makes_so_many_partitions(running: Coordinated, monkeypatch: pytest.MonkeyPatch) -> None:
    assert topics_module.MOST_PARTITIONS == 4096
    monkeypatch.setattr(topics_module, "MOST_PARTITIONS", 5)
    codes = [running.create("t", count, validate_only=True).error_code for count in (5, 6)]
    assert codes == [Code.NONE, Code.INVALID_PARTITIONS]


def test_a_manual_assignment_gives_the_number_of_partitions(running: Coordinated) -> None:
    rows = [{"partition_index": number, "broker_ids": [7]} for number in (1, 0)]
    assert running.create("t", num_partitions=-1, assignments=rows).error_code == Code.NONE
    assert len(running.topics.partitions("t")) == 2


def test_the_brokers_number_of_partitions_is_the_default(memory: Path) -> None:
    with Coordinated(memory / "log", partitions=20) as running:
        config = running.config
        assert running.create("t", num_partitions=-1).num_partitions == config.partitions


def test_one_that_is_only_validated_is_not_made(running: Coordinated) -> None:
    assert running.create("t", validate_only=True).error_code == Code.NONE
    assert running.create("t", 1, replication_factor=2, validate_only=True).error_code == 38
    assert running.topics.names() == [] and running.recorded() == {}


def test_a_name_that_is_given_twice_is_refused_once(running: Coordinated) -> None:
    topic = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    rows = [{"name": name, **topic} for name in ("a", "b", "a")]
    found = running.ask(19, 7, topics=rows, timeout=30_000, validate_only=False).topics
    assert {each.name: each.error_code for each in found} == {"a": Code.INVALID_REQUEST, "b": Code.NONE}


def test_settings_hold_and_are_kept(running: Coordinated) -> None:
    given = {
        "retention.ms": "-1",
        "retention.bytes": "5000",
        "segment.bytes": "100000",
        "segment.ms": "60000",
        "flush.messages": "3",
        "max.message.bytes": "4321",
        "message.timestamp.type": "LogAppendTime",
    }
    found = running.create("t", 1, configs=given)
    own = {row.name: row.value for row in found.configs if row.config_source == 1}
    assert own == given
    (view,) = running.topics.partitions("t")
    assert (view.retention_bytes, view.max_message_bytes, view.append_time) == (5000, 4321, True)
    assert view.retention_ms > 10**15
    state = read_metadata([running.directory], FileOps())
    assert state.topics["t"].settings == given


def test_partitions_begin_where_it_was_asked_for(running: Coordinated) -> None:
    """It is no setting of the topic: partitions that come later begin at 0, and so does the next one of its name."""
    begins = (0, 2**62, 7)
    made = running.create("t", 3, configs={FIRST_OFFSETS: " 0, 4611686018427387904,7", "retention.ms": "5"})
    assert made.error_code == Code.NONE
    views = running.topics.partitions("t")
    assert tuple(view.log_start for view in views) == tuple(view.log_offset for view in views) == begins
    assert running.topics.settings("t") == {"retention.ms": "5"}
    rows = [{"name": "t", "count": 4, "assignments": None}]
    running.ask(37, 3, topics=rows, timeout=30_000, validate_only=False)
    assert running.topics.partitions("t")[3].log_start == 0
    running.ask(20, 6, topics=[{"name": "t", "topic_id": bytes(16)}], timeout=30_000)
    running.create("t", 1)
    assert running.topics.partitions("t")[0].log_start == 0


@pytest.mark.parametrize("turns", range(0, 40, 8))
def test_a_creation_that_is_finished_later_begins_there_too(running: Coordinated, turns: int) -> None:
    row = {"name": "t", "num_partitions": 20, "replication_factor": 1, "assignments": ()}
    begins = [100 * number for number in range(20)]
    configs = [{"name": FIRST_OFFSETS, "value": ",".join(map(str, begins))}]
    row["configs"] = configs
    asked = running.begin_to_ask(19, 7, topics=[row], timeout=30_000, validate_only=False)
    killed_in_between(running, asked, turns)
    running.turn_until("it is settled", lambda: not running.topics._busy)
    assert [view.log_start for view in running.topics.partitions("t")] in ([], begins)
    assert running.topics.settings("t") == {}


def test_a_topic_begins_there_after_a_start(memory: Path) -> None:
    with Coordinated(memory / "log") as first:
        first.create("t", 2, configs={FIRST_OFFSETS: "12,0"})
    with Coordinated(memory / "log") as second:
        views = second.topics.partitions("t")
        assert [(view.log_start, view.log_offset, view.state) for view in views] == [(12, 12, 0), (0, 0, 0)]


def test_answers_wait_as_long_as_the_client_says(running: Coordinated) -> None:
    running.create("t")
    running.keeps_house = False
    assert running.delete("t", timeout=50) == Code.REQUEST_TIMED_OUT
    assert running.recorded()["t"][0] == "deleting"
    running.keeps_house = True
    running.turn_until("it has gone", lambda: running.recorded() == {})


def test_whoever_makes_the_first_partition_has_the_name(running: Coordinated) -> None:
    """A processor comes in between the intent and the first partition: the topic is its, whole, and the intent goes."""
    theirs = uuid.uuid4().bytes
    row = {"name": "t", "num_partitions": 3, "replication_factor": 1, "assignments": (), "configs": ()}
    asked = running.begin_to_ask(19, 7, topics=[row], timeout=30_000, validate_only=False)
    made = False
    while not made:
        with suppress(CreationBusyError):  # the coordinator looks whether the topic is there
            running.manager.create_partition("t", 0, count=1, format_name="record-batches", topic_id=theirs)
            made = True
    running.turn_until("an answer", lambda: bool(asked))
    assert asked[0].topics[0].error_code == Code.TOPIC_ALREADY_EXISTS
    assert {view.topic_id for view in running.topics.partitions("t")} == {theirs}


# -- deleting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 7))
def test_a_deleted_topic_is_gone_and_its_name_is_free(running: Coordinated, version: int) -> None:
    before = running.create("t", 3)
    names = {"topic_names": ["t"]} if version < 6 else {"topics": [{"name": "t", "topic_id": bytes(16)}]}
    (found,) = running.ask(20, version, timeout=30_000, **names).responses
    assert (found.name, found.error_code) == ("t", Code.NONE)
    assert running.topics.names() == [] and running.recorded() == {}
    again = running.create("t")
    assert again.error_code == Code.NONE and again.topic_id != before.topic_id


def test_a_topic_is_deleted_by_its_id(running: Coordinated) -> None:
    made = running.create("t")
    (found,) = running.ask(20, 6, topics=[{"name": None, "topic_id": made.topic_id.bytes}], timeout=30_000).responses
    assert (found.name, found.topic_id, found.error_code) == ("t", made.topic_id, Code.NONE)
    (found,) = running.ask(20, 6, topics=[{"name": None, "topic_id": made.topic_id.bytes}], timeout=30_000).responses
    assert (found.name, found.topic_id, found.error_code) == (None, made.topic_id, Code.UNKNOWN_TOPIC_ID)


def test_a_topic_that_goes_while_all_are_listed_fails_nothing(
    running: Coordinated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others delete: whoever asks for its partitions once more finds none."""
    topic_id = running.create("t").topic_id.bytes
    there = running.manager.partitions
    looked: list[str] = []

    def once(_: object, name: str) -> list[SlotView]:
        looked.append(name)
        return there(name) if looked.count(name) < 2 else []

    monkeypatch.setattr(LogManager, "partitions", once)
    assert running.topics.by_id(topic_id) == "t"
    assert running.topics.by_id(topic_id) is None
    looked.clear()
    assert running.topics.names() == ["t"]
    pending = running.topics.grow("t", 3)
    assert pending.outcome is not None
    assert pending.outcome.code == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_what_is_not_there_is_not_deleted(running: Coordinated) -> None:
    """Nor a topic of 0.7 that today's clients do not see, nor the broker's own."""
    running.create("t")
    running.manager.create_partition("old topic", 0)
    for name in ("none", "old topic", "__fastlog_metadata"):
        assert running.delete(name) == Code.UNKNOWN_TOPIC_OR_PARTITION
    both = [{"name": "t", "topic_id": uuid.uuid4().bytes}]
    assert running.ask(20, 6, topics=both, timeout=1).responses[0].error_code == Code.INVALID_REQUEST
    assert running.topics.names() == ["t"] and running.manager.partitions("old topic")


def test_a_full_disk_can_be_made_room_on(running: Coordinated) -> None:
    """A topic goes without the room that is kept for that; none is made."""
    running.create("t")
    running.loop.close()
    running.begin()  # and knows of no room that it has
    running.turn_until("it is ready", lambda: running.topics.is_ready)
    _files.arm("fallocate@1-=ENOSPC", "test")
    codes = running.create("u").error_code, running.delete("t")
    _files.arm("", "test")
    assert codes == (Code.KAFKA_STORAGE_ERROR, Code.NONE)
    assert running.recorded() == {}


def test_two_who_delete_one_topic_are_both_told(running: Coordinated) -> None:
    running.create("t")
    row = [{"name": "t", "topic_id": bytes(16)}]
    asked = [running.begin_to_ask(20, 6, topics=row, timeout=30_000) for _ in range(2)]
    running.turn_until("both are told", lambda: all(asked))
    assert [each[0].responses[0].error_code for each in asked] == [Code.NONE, Code.NONE]


def test_deleting_can_be_forbidden(memory: Path) -> None:
    with Coordinated(memory / "log", delete_topic_enable=False) as running:
        running.create("t")
        assert running.delete("t") == Code.TOPIC_DELETION_DISABLED


# -- more partitions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
def test_a_topic_gets_more_partitions(running: Coordinated, version: int) -> None:
    made = running.create("t", 2, configs={"retention.bytes": "5000"})
    row = {"name": "t", "count": 5, "assignments": None}
    (found,) = running.ask(37, version, topics=[row], timeout=30_000, validate_only=False).results
    assert found.error_code == Code.NONE
    views = running.topics.partitions("t")
    assert len(views) == 5 and {view.topic_id for view in views} == {made.topic_id.bytes}
    assert {view.retention_bytes for view in views} == {5000}
    assert running.recorded() == {"t": ("created", 5)}


def test_a_topic_that_is_changing_gets_no_more_partitions(running: Coordinated) -> None:
    """Who asks meanwhile is to ask again: both would make the same ones."""
    running.create("t", 2)
    first = running.begin_to_ask(
        37, 3, topics=[{"name": "t", "count": 40, "assignments": None}], timeout=30_000, validate_only=False
    )
    running.turn_until("it has begun", lambda: not running.topics.is_settled("t"))
    row = {"name": "t", "count": 41, "assignments": None}
    (refused,) = running.ask(37, 3, topics=[row], timeout=30_000, validate_only=False).results
    assert refused.error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
    running.turn_until("it is done", lambda: bool(first))
    assert running.recorded() == {"t": ("created", 40)}


@pytest.mark.parametrize(
    ("name", "count", "assignments", "code"),
    [
        ("t", 2, None, Code.INVALID_PARTITIONS),
        ("t", 1, None, Code.INVALID_PARTITIONS),
        ("t", 9999, None, Code.INVALID_PARTITIONS),
        ("none", 3, None, Code.UNKNOWN_TOPIC_OR_PARTITION),
        ("__fastlog_metadata", 3, None, Code.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 3, [], Code.INVALID_REPLICA_ASSIGNMENT),
        ("t", 3, [{"broker_ids": [1]}], Code.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_partitions_that_cannot_be_made(
    running: Coordinated, name: str, count: int, assignments: list[object] | None, code: Code
) -> None:
    running.create("t", 2)
    row = {"name": name, "count": count, "assignments": assignments}
    (found,) = running.ask(37, 3, topics=[row], timeout=30_000, validate_only=False).results
    assert found.error_code == code and len(running.topics.partitions("t")) == 2


@pytest.mark.parametrize(
    ("brokers", "code"),
    [
        ([[7], [7]], Code.NONE),
        ([[7]], Code.INVALID_REPLICA_ASSIGNMENT),
        ([[7], [7], [7]], Code.INVALID_REPLICA_ASSIGNMENT),
        ([], Code.INVALID_REPLICA_ASSIGNMENT),
        ([[7], [8]], Code.INVALID_REPLICA_ASSIGNMENT),
        ([[7], [7, 8]], Code.INVALID_REPLICA_ASSIGNMENT),
        ([[7], []], Code.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_new_partitions_may_be_given_to_this_broker_by_name(
    running: Coordinated, brokers: list[list[int]], code: Code
) -> None:
    """For each new one an assignment, and there is one broker."""
    running.create("t", 2)
    row = {"name": "t", "count": 4, "assignments": [{"broker_ids": ids} for ids in brokers]}
    for only, count in ((True, 2), (False, 2 if code else 4)):
        (found,) = running.ask(37, 3, topics=[row], timeout=30_000, validate_only=only).results
        assert found.error_code == code
        assert len(running.topics.partitions("t")) == count


def test_partitions_are_not_made_where_it_is_forbidden(memory: Path) -> None:
    """Nor said to be possible by a request that only asks; the topic is there from before."""
    with Coordinated(memory / "log") as running:
        running.create("t", 1)
    with Coordinated(memory / "log", create_topic_requests=False) as running:
        row = {"name": "t", "count": 2, "assignments": None}
        (found,) = running.ask(37, 3, topics=[row], timeout=30_000, validate_only=False).results
        assert found.error_code == Code.POLICY_VIOLATION
        assert len(running.topics.partitions("t")) == 1


# -- a coordinator that is killed --------------------------------------------------------------------------------------


def killed_in_between(running: Coordinated, asked: list[object], turns: int) -> None:
    """Some turns, then another coordinator in its place; what the former one had begun is told to nobody."""
    for _ in range(turns):
        running.turn()
    running.loop.close()
    running.begin()
    running.turn_until("it is ready", lambda: running.topics.is_ready)


@pytest.mark.parametrize("turns", range(0, 40, 2))
def test_a_creation_is_finished_or_never_begun(running: Coordinated, turns: int) -> None:
    row = {"name": "t", "num_partitions": 40, "replication_factor": 1, "assignments": (), "configs": ()}
    asked = running.begin_to_ask(19, 7, topics=[row], timeout=30_000, validate_only=False)
    killed_in_between(running, asked, turns)
    intended = "t" in running.topics._log.state.topics
    running.turn_until("it is settled", lambda: not running.topics._busy)
    assert intended or not asked
    assert running.recorded() == ({"t": ("created", 40)} if intended else {})
    assert len(running.topics.partitions("t")) == (40 if intended else 0)
    assert running.create("t").error_code == (Code.TOPIC_ALREADY_EXISTS if intended else Code.NONE)


@pytest.mark.parametrize("turns", range(0, 20, 2))
def test_a_deletion_is_finished_or_never_begun(running: Coordinated, turns: int) -> None:
    running.create("t", 5)
    asked = running.begin_to_ask(20, 6, topics=[{"name": "t", "topic_id": bytes(16)}], timeout=30_000)
    killed_in_between(running, asked, turns)
    intended = running.topics._log.state.topics.get("t")
    running.turn_until("it is settled", lambda: not running.topics._busy)
    assert len(running.topics.partitions("t")) in (0, 5)
    if asked or (intended is not None and intended.phase == "deleting"):
        assert running.topics.names() == [] and running.recorded() == {}
    assert running.recorded() in ({}, {"t": ("created", 5)})


@pytest.mark.parametrize("files", [[], [".flushed-00000000000000000000"]])
def test_a_directory_that_was_only_begun_is_never_half_a_topic(memory: Path, files: list[str]) -> None:
    """The broker ended between the intent and the first words about whose it is; the topic is whole then, or gone."""
    topic = Topic("t", uuid.uuid4().bytes, 3, {}, CREATING)
    with Coordinated(memory / "log") as first:
        first.loop.start(first.topics._log.write([topic_change(CREATING, topic)]))
        first.turn_until("it is written down", lambda: not first.loop.tasks)
    for partition in (0, 1):
        (memory / "log" / f"t-{partition}").mkdir()
        for name in files:
            (memory / "log" / f"t-{partition}" / name).touch()
    with Coordinated(memory / "log") as second:
        second.turn_until("it is settled", lambda: not second.topics._busy and not second.loop.tasks)
        found = {view.topic_id for view in second.manager.partitions("t")}
        assert (second.recorded(), found) in (({}, set()), ({"t": ("created", 3)}, {topic.topic_id}))
        assert second.create("u", 3).error_code == Code.NONE
        if not found:
            assert second.create("t", 3).error_code == Code.NONE


@pytest.mark.parametrize("faults", ["create.directory@1=EIO", "create.side_file@1=EIO", "create.segment@2=ENOSPC"])
def test_a_topic_that_cannot_be_made_leaves_no_directory(running: Coordinated, faults: str) -> None:
    """Not even the one at which it stopped, which is no partition yet: the name is free, on the disk too."""
    _files.arm(faults, "test")
    assert running.create("t", 3).error_code == Code.KAFKA_STORAGE_ERROR
    _files.arm("", "test")
    running.turn_until("it is put away", lambda: not running.topics._busy and not running.loop.tasks)
    assert {path.suffix[-7:] for path in running.directory.glob("t-*")} <= {"-delete"}  # which the keeper empties
    assert (running.recorded(), running.topics.partitions("t")) == ({}, [])
    assert running.create("t", 3).error_code == Code.NONE
