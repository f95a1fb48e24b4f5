"""An Apache Kafka's log directory becomes one of ours: what is taken, what is named and not, and nothing by halves."""

from __future__ import annotations

import errno
import fcntl
import os
from dataclasses import replace
from pathlib import Path

import pytest

from fastlog.errors import LogError
from fastlog.log import metadata, producer_snapshots
from fastlog.log.files import FileOps
from fastlog.log.kafka_files import read_epochs
from fastlog.log.log_starts import read_log_starts
from fastlog.log.side_file import read_side_file
from fastlog.moving import kafka_groups
from fastlog.moving.import_plan import Choices, Plan, kafka_held, plan_import
from fastlog.moving.importing import carry_out, remove_sources
from fastlog.moving.staging import COPY, LINK
from tests.harness import kafka_house as house
from tests.harness.command_line import Commands
from tests.harness.faulty_files import FaultyFileOps
from tests.harness.kafka_house import House, Segment, Topic, compacted, data_batch, marker, simple, topic_id_of
from tests.harness.moved_house import Stopping, contents, killed_at, records_in, serve
from tests.unit.test_moving_logs import offset_row, rows_batch, sent

FILES = FileOps()


def moved(source: Path, target: Path, way: str = LINK, files: FileOps = FILES, **choices: object) -> Plan:
    plan = plan_import([source], Choices(**choices), files)  # type: ignore[arg-type]
    carry_out(plan, target, way, files)
    return plan


def problems(*sources: Path, **choices: object) -> dict[str, list[str]]:
    plan = plan_import(sources, Choices(**choices), FILES)  # type: ignore[arg-type]
    return {each.name: each.problems for each in plan.topics if each.problems}


@pytest.fixture
def kafka(tmp_path: Path) -> Path:
    """Two topics, a group, producer ids."""
    return House(
        tmp_path / "kafka",
        [simple("orders", 3, retention_ms="9", segment_bytes="2000000"), simple("views", 1, 6)],
        offsets={7: [rows_batch(0, [offset_row("billing", "orders", 2, 8), offset_row("billing", "gone", 0, 3)])]},
        more_records=[house.producer_ids_record(4000)],
    ).build()


# -- what is taken -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [LINK, COPY])
def test_all_of_it_is_there_and_the_kafka_is_as_it_was(kafka: Path, tmp_path: Path, way: str) -> None:
    before = contents(kafka)
    target = tmp_path / "logs"
    plan = moved(kafka, target, way)
    assert plan.is_whole
    assert plan.notes == ["offsets of topics that are not taken are not either: gone"]
    assert contents(kafka) == before
    for name in ("orders-0", "orders-1", "orders-2", "views-0"):
        assert records_in(target / name) == records_in(kafka / name)
        inode = [(each / name / f"{0:020}.log").stat().st_ino for each in (kafka, target)]
        assert (inode[0] == inode[1]) == (way == LINK), "this file system has no reflinks, but links"
        mtimes = [(each / name / f"{0:020}.log").stat().st_mtime_ns for each in (kafka, target)]
        assert mtimes[0] == mtimes[1]
    found = serve(target)
    assert {name: view.log_offset for name, view in found.views.items()} == {
        "orders-0": 10, "orders-1": 10, "orders-2": 10, "views-0": 6, "__consumer_offsets-0": 1,
        "__fastlog_metadata-0": 4,
    }  # fmt: skip
    topics = found.metadata.topics
    assert set(topics) == {"orders", "views", "__consumer_offsets"}
    assert (topics["orders"].topic_id, topics["orders"].partitions) == (topic_id_of("orders"), 3)
    assert topics["orders"].settings == {"retention.ms": "9", "segment.bytes": "2000000"}
    assert (topics["views"].settings, topics["views"].phase) == ({}, metadata.CREATED)
    assert topics["__consumer_offsets"].settings == kafka_groups.SETTINGS
    assert found.metadata.next_producer_id == 4000
    assert {found.views[name].topic_id for name in ("orders-0", "orders-1", "orders-2")} == {topic_id_of("orders")}
    groups = kafka_groups.read_groups([target / "__consumer_offsets-0"], FILES)
    assert {(key.group, key.topic, key.partition): row.offset for key, row in groups.offsets.items()} == {
        ("billing", "orders", 2): 8
    }
    assert f"cluster.id={house.CLUSTER_ID}\n" in (target / "meta.properties").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kafka", "logs"]


def test_a_partition_goes_on_behind_its_last_record_in_a_segment_of_its_own(kafka: Path, tmp_path: Path) -> None:
    """In a leader epoch above that of the metadata log, with a side file that spares the scan."""
    moved(kafka, tmp_path / "logs")
    directory = tmp_path / "logs" / "orders-0"
    assert [path.name for path in sorted(directory.glob("*.log"))] == [f"{base:020}.log" for base in (0, 4, 10)]
    assert (directory / f"{10:020}.log").stat().st_size == 0
    assert (directory / f"{10:020}.log").stat().st_nlink == 1
    assert read_epochs(directory, FILES) == [(0, 0), (4, 10)]
    side = read_side_file(directory, FILES)
    assert side is not None
    sizes = {base: (directory / f"{base:020}.log").stat().st_size for base in (0, 4)}
    assert (side.checkpoint, side.unnumbered, side.sealed) == (10, True, {0: (sizes[0], 4), 4: (sizes[4], 10)})
    assert side.inode == (10, (directory / f"{10:020}.log").stat().st_ino)
    assert (directory / f".flushed-{10:020}").exists()
    view = serve(tmp_path / "logs").views["orders-0"]
    assert (view.epoch, view.log_offset, view.visible_offset) == (4, 10, 10)


def test_after_a_crash_it_is_found_as_well(kafka: Path, tmp_path: Path) -> None:
    """Without the clean marker, and without the side files."""
    moved(kafka, tmp_path / "logs")
    (tmp_path / "logs" / ".kafka_cleanshutdown").unlink()
    for path in (tmp_path / "logs").glob("*/fastlog.json"):
        path.unlink()
    found = serve(tmp_path / "logs").views
    assert {view.log_offset for name, view in found.items() if name.startswith("orders")} == {10}
    assert found["orders-0"].epoch == 5


def test_records_that_were_deleted_stay_so(tmp_path: Path) -> None:
    """Whole segments below the start are not taken."""
    starts = {("t", 0): 5, ("t", 1): 4, ("t", 2): 10, ("t", 3): 99, ("gone", 0): 7}
    source = House(tmp_path / "kafka", [simple("t", 4)], starts=starts).build()
    plan = moved(source, tmp_path / "logs")
    assert [[each.base for each in one.segments] for one in plan.topics[0].partitions] == [[4], [4], [4], [4]]
    assert read_log_starts(tmp_path / "logs", FILES) == {("t", 0): 5, ("t", 2): 10, ("t", 3): 10}
    found = serve(tmp_path / "logs").views
    assert [found[f"t-{number}"].log_start for number in range(4)] == [5, 4, 10, 10]
    assert plan.topics[0].records == 4 * 6


def test_producers_are_known_with_and_without_kafkas_snapshot(tmp_path: Path) -> None:
    batches = [
        data_batch(0, b"a", producer_id=7, producer_epoch=1, base_sequence=3),
        data_batch(1, b"b", producer_id=8, producer_epoch=0, base_sequence=0),
    ]
    source = House(tmp_path / "kafka", [Topic("t", {0: [Segment(0, batches)], 1: [Segment(0, batches)]})]).build()
    entry = producer_snapshots.SnapshotEntry(99, 0, 5, 0, 0, house.TIME_MS, -1, -1)
    data = producer_snapshots.encode([entry])
    (source / "t-0" / f"{1:020}.snapshot").write_bytes(data)
    (source / "t-0" / f"{2:020}.snapshot").write_bytes(data[:-1])  # damaged
    (source / "t-0" / f"{3:020}.snapshot").write_bytes(data)  # of more than there is
    moved(source, tmp_path / "logs")
    for number, ids in ((0, {8, 99}), (1, {7, 8})):
        directory = tmp_path / "logs" / f"t-{number}"
        kept = producer_snapshots.parse((directory / f"{2:020}.snapshot").read_bytes())
        assert {each.id for each in kept or ()} == ids
        assert max(producer_snapshots.listed(directory, FILES)) == 2
        side = read_side_file(directory, FILES)
        assert side is not None and not side.unnumbered
    assert serve(tmp_path / "logs").arena.largest_producer == 99


def test_indexes_are_taken_where_they_are_right_and_made_where_not(tmp_path: Path) -> None:
    long = [data_batch(base, b"x" * 1500) for base in range(16)]
    source = House(tmp_path / "kafka", [Topic("t", {0: [Segment(0, long[:8]), Segment(8, long[8:])]})]).build()
    moved(source, tmp_path / "first")
    first = contents(tmp_path / "first" / "t-0")
    for path in (tmp_path / "first" / "t-0").glob("*index"):
        (source / "t-0" / path.name).write_bytes(path.read_bytes())
    (source / "t-0" / f"{0:020}.index").write_bytes(b"\1" * 16)
    (source / "t-0" / f"{8:020}.timeindex").write_bytes(b"")  # of the newest, which Kafka had not sealed
    moved(source, tmp_path / "second")
    second = contents(tmp_path / "second" / "t-0")
    assert {name: data for name, data in second.items() if name.endswith("index")} == {
        name: data for name, data in first.items() if name.endswith("index")
    }
    assert len(first[f"{8:020}.timeindex"]) == 24


def test_an_empty_partition_and_one_whose_newest_segment_is_empty(tmp_path: Path) -> None:
    batch = data_batch(5, b"a")
    partitions = {0: [Segment(0, [])], 1: [Segment(5, [batch]), Segment(6, [])], 2: [Segment(9, [])]}
    source = House(tmp_path / "kafka", [Topic("t", partitions)]).build()
    moved(source, tmp_path / "logs")
    found = serve(tmp_path / "logs").views
    assert [found[f"t-{number}"].log_offset for number in range(3)] == [0, 6, 9]
    assert [path.name for path in (tmp_path / "logs" / "t-1").glob("*.log")] != []
    assert (source / "t-0" / f"{0:020}.log").stat().st_nlink == 1, "what is written to is no file of the Kafka's"


def test_without_a_metadata_log_directories_and_options_tell(tmp_path: Path) -> None:
    """A Kafka 3 with ZooKeeper; the oldest have no ids."""
    source = House(tmp_path / "kafka", [simple("t", 2), simple("u")], has_metadata_log=False).build()
    (source / "u-0" / "partition.metadata").unlink()
    text = (source / "meta.properties").read_text().replace("node.id", "broker.id").replace("version=1", "version=0")
    (source / "meta.properties").write_text(text)
    plan = moved(source, tmp_path / "logs", settings={"t": {"retention.ms": "7"}})
    assert plan.notes == [
        "no metadata log: topics are what their directories say, and have the settings that are given"
    ]
    topics = serve(tmp_path / "logs").metadata.topics
    assert (topics["t"].topic_id, topics["t"].settings) == (topic_id_of("t"), {"retention.ms": "7"})
    assert any(topics["u"].topic_id)


def test_topics_are_chosen_and_settings_given(kafka: Path, tmp_path: Path) -> None:
    plan = moved(kafka, tmp_path / "a", topics=["orders"], settings={"orders": {"retention.ms": "8"}})
    assert [each.name for each in plan.taken] == ["orders"]
    assert serve(tmp_path / "a").metadata.topics["orders"].settings["retention.ms"] == "8"
    plan = moved(kafka, tmp_path / "b", without=["orders"], offsets_partitions=3)
    assert [each.name for each in plan.taken] == ["views"]
    assert set(serve(tmp_path / "b").metadata.topics) == {"views"}, "no group has an offset that is taken"
    plan = moved(kafka, tmp_path / "c", offsets_partitions=3)
    assert serve(tmp_path / "c").metadata.topics["__consumer_offsets"].partitions == 3
    for choices in ({"topics": ["x"]}, {"without": ["x"]}, {"settings": {"x": {}}}):
        with pytest.raises(LogError, match="there is no topic 'x'"):
            problems(kafka, **choices)
    with pytest.raises(LogError, match="'orders' has settings and is not to be taken"):
        problems(kafka, topics=["views"], settings={"orders": {}})
    with pytest.raises(LogError, match=r"topic views: Invalid value 'x' for configuration retention.ms"):
        problems(kafka, settings={"views": {"retention.ms": "x"}})


def test_several_directories_are_one_log_directory(tmp_path: Path) -> None:
    """Of one broker, or of several that had a part of the partitions each."""
    topic = simple("t", 2)
    records = House(tmp_path / "x").records([topic])
    first = House(tmp_path / "first", [Topic("t", {0: topic.partitions[0]})], has_metadata_log=False).build()
    second = House(tmp_path / "second", [Topic("t", {1: topic.partitions[1]})], node_id=2, more_records=[]).build()
    log = second / "__cluster_metadata-0" / f"{0:020}.log"
    log.write_bytes(house.batch_of(records))
    plan = plan_import([first, second], Choices(), FILES)
    carry_out(plan, tmp_path / "logs", LINK, FILES)
    assert {name for name in serve(tmp_path / "logs").views if name.startswith("t")} == {"t-0", "t-1"}
    assert problems(second) == {"t": ["partition 0 is missing. It was on broker 1: name that directory too"]}
    (second / "t-0").mkdir()
    assert problems(first, second) == {
        "t": [f"partition 0 lies in {first}/t-0 and {second}/t-0: name the directory of one of them alone"]
    }
    (second / "meta.properties").write_text("cluster.id=another\nnode.id=2\n")
    with pytest.raises(LogError, match="belong to 2 clusters"):
        problems(first, second)


# -- what is not -------------------------------------------------------------------------------------------------------


def test_what_cannot_be_taken_is_named_with_its_reason(tmp_path: Path) -> None:
    one = [data_batch(0, b"a")]
    torn = Topic("torn", {0: [Segment(0, one)]})
    source = House(
        tmp_path / "kafka",
        [
            Topic("gaps", {0: [Segment(0, [*one, data_batch(5, b"b")])]}),
            Topic("holes", {0: [Segment(0, [compacted(0, 3, {1: (b"a", b"b")})])]}),
            Topic("aborted", {0: [Segment(0, [sent(0, 1), marker(1, 1, commits=False)])]}),
            Topic("open", {0: [Segment(0, [sent(0, 1)])]}),
            Topic("committed", {0: [Segment(0, [sent(0, 1), marker(1, 1, commits=True)])]}),
            Topic("__mine", {0: [Segment(0, one)]}),
            Topic("old", {0: [Segment(0, [replace(one[0], magic=1)])]}),
            Topic("tiered", {0: [Segment(0, one)]}, {"remote.storage.enable": "true"}),
            Topic("behind", {0: [Segment(0, one)]}),
            Topic("stray", {0: [Segment(0, one)]}),
            torn,
        ],
    )
    source.more_records = [
        house.change_record(topic_id_of("behind"), 0, in_sync=house.ints([2, 3]), replicas=house.ints([1, 2, 3])),
        house.topic_deleted_record(topic_id_of("stray")),
        house.topic_record("stray", b"S" * 16),
        house.partition_record(b"S" * 16, 0, replicas=(4,)),
        house.topic_record("void", b"V" * 16),
    ]
    path = source.build()
    segment = path / "torn-0" / f"{0:020}.log"
    segment.write_bytes(segment.read_bytes()[:-1])
    (path / "old-0").rename(path / "old-0x")
    (path / "old-0x").rename(path / "old-0")
    found = problems(path)
    assert set(found) == {
        "gaps", "holes", "aborted", "open", "__mine", "old", "tiered", "behind", "stray", "torn"
    }  # fmt: skip
    assert found["gaps"][0].startswith("partition 0 has been compacted (offsets 1 to 4), and logs with gaps")
    assert "(offsets 0 to 3)" in found["holes"][0]
    assert "1 transactions that were aborted" in found["aborted"][0]
    assert "1 transactions without an end" in found["open"][0]
    assert found["__mine"] == ["names that begin with __ are the broker's own"]
    assert "messages of magic 1, from before Kafka 0.11" in found["old"][0]
    assert "remote storage" in found["tiered"][0]
    assert found["behind"] == ["partition 0 of broker 1 is behind: that of broker 2, 3 counts"]
    assert found["stray"] == [
        f"{path}/stray-0 is that of another topic of this name",
        "partition 0 is missing. It was on broker 4: name that directory too",
    ]
    assert found["torn"] == [f"partition 0: a batch that is cut short path={segment} position=0"]
    plan = plan_import([path], Choices(), FILES)
    assert {each.name for each in plan.topics if each.is_damaged} == {"torn"}
    assert plan.is_damaged and not plan.is_whole
    carry_out(plan, tmp_path / "logs", LINK, FILES)
    assert {name for name in serve(tmp_path / "logs").views if not name.startswith("__")} == {"committed-0"}


def test_settings_without_a_meaning_here_are_named(tmp_path: Path) -> None:
    source = House(tmp_path / "kafka", [simple("t", compression_type="zstd", retention_ms="5")])
    source.more_records = [
        house.setting_record(4, "", "log.retention.ms", "7"),
        house.setting_record(4, "", "min.insync.replicas", "1"),
        house.setting_record(4, "1", "log.cleaner.threads", "2"),
    ]
    plan = plan_import([source.build()], Choices(), FILES)
    (topic,) = plan.topics
    assert topic.settings == {"retention.ms": "5"}
    (refused,) = topic.refused_settings
    assert refused.startswith("compression.type=zstd: Invalid value 'zstd'")
    assert not plan.is_whole and plan.taken == [topic]
    assert plan.notes == [
        "setting of all brokers not taken: log.retention.ms=7; the broker's own are in its properties",
        "setting of broker 1 not taken: log.cleaner.threads=2; the broker's own are in its properties",
    ]
    given = Choices(settings={"t": {"compression.type": "producer"}})
    assert plan_import([tmp_path / "kafka"], given, FILES).is_whole


def test_what_else_lies_there_is_named(tmp_path: Path) -> None:
    source = House(tmp_path / "kafka", [simple("t")], is_clean=False).build()
    passing = f"t-1.{'0123456789abcdef' * 2}-delete"
    for name in (passing, "__transaction_state-3", "__share_group_state-0", "lost+found"):
        (source / name).mkdir()
    plan = plan_import([source], Choices(), FILES)
    assert plan.is_whole
    assert plan.notes == [
        f"{source} was not stopped in order; every record in it is checked, as always",
        f"{source}/lost+found is not taken: it is on its way out, or in",
        f"{source}/{passing} is not taken: it is on its way out, or in",
        "__transaction_state is not taken: transactions are not taken: there are none here",
        "__share_group_state is not taken: share groups are not taken: there are none here",
    ]


def test_a_directory_that_is_no_kafkas_and_one_that_is_in_use(kafka: Path, tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"no log directory of Apache Kafka: it has no meta.properties"):
        plan_import([tmp_path], Choices(), FILES)
    with kafka_held([kafka]):
        pass
    lock = kafka / ".lock"
    lock.touch()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        fd = os.open(lock, os.O_RDWR)
        fcntl.lockf(fd, fcntl.LOCK_EX)
        os.write(write, b"x")
        os.close(write)
        import time

        time.sleep(60)
        os._exit(0)
    os.read(read, 1)
    try:
        with pytest.raises(LogError, match="a Kafka has it; stop that first"), kafka_held([kafka]):
            pass
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    with kafka_held([kafka]):
        pass


# -- nothing by halves -------------------------------------------------------------------------------------------------


def test_a_place_that_is_taken_is_refused(kafka: Path, tmp_path: Path) -> None:
    plan = plan_import([kafka], Choices(), FILES)
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("file", "full", "link"):
        with pytest.raises(LogError, match="something is there already"):
            carry_out(plan, tmp_path / name, LINK, FILES)
    with pytest.raises(LogError, match="no such directory to make it in"):
        carry_out(plan, tmp_path / "a" / "b", LINK, FILES)
    (tmp_path / "empty").mkdir()
    carry_out(plan, tmp_path / "empty", LINK, FILES)
    serve(tmp_path / "empty")


def test_two_at_once_and_names_that_are_taken(kafka: Path, tmp_path: Path) -> None:
    plan = plan_import([kafka], Choices(), FILES)
    fd = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(LogError, match="something is being moved into this directory, perhaps logs"):
        carry_out(plan, tmp_path / "logs", LINK, FILES)
    os.close(fd)
    (tmp_path / "logs.importing").touch()
    with pytest.raises(LogError, match="something else has the name"):
        carry_out(plan, tmp_path / "logs", LINK, FILES)
    (tmp_path / "logs.importing").unlink()
    (tmp_path / "logs.importing" / "mine").mkdir(parents=True)
    with pytest.raises(LogError, match="it is whole, and what was interrupted"):
        carry_out(plan, tmp_path / "logs", LINK, FILES)
    assert not (tmp_path / "logs").exists()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """As little as has one of each."""
    offsets = {0: [rows_batch(0, [offset_row("g", "t", 0, 2)])]}
    return House(tmp_path / "kafka", [simple("t", 1, 4)], offsets=offsets, starts={("t", 0): 3}).build()


def calls_of_an_import(kafka: Path, target: Path) -> int:
    plan = plan_import([kafka], Choices(), FILES)
    files = Stopping(0, lambda: None)
    carry_out(plan, target, COPY, files)
    return files.calls


def same_but_for_times(found: dict[str, bytes]) -> dict[str, bytes]:
    """Without what differs from one import to the next: ids, times, inodes."""
    return {
        name: data
        for name, data in found.items()
        if not name.startswith("__") and not name.endswith("fastlog.json") and name != "meta.properties"
    }


@pytest.mark.slow
@pytest.mark.parametrize("way", [LINK, COPY])
def test_killed_at_any_call_it_is_done_again_or_named(small: Path, tmp_path: Path, way: str) -> None:
    before = contents(small)
    target = tmp_path / "logs"
    calls = calls_of_an_import(small, target)
    whole = same_but_for_times(contents(target))
    plan = plan_import([small], Choices(), FILES)
    staging = tmp_path / "logs.importing"
    finished = 0
    for number in range(1, calls + 2, 1 if way == COPY else 4):
        for path in (target, staging):
            if path.exists():
                os.system(f"rm -rf {path}")
        if not killed_at(number, lambda files: carry_out(plan, target, way, files)):
            finished += 1
        assert contents(small) == before
        if target.exists():  # as a whole, or not at all
            assert same_but_for_times(contents(target)) == whole
            serve(target)
            continue
        try:
            carry_out(plan, target, way, Stopping(0, lambda: None))
        except LogError as error:
            assert "it is whole" in str(error)
            staging.rename(target)
        else:
            assert not staging.exists()
        assert same_but_for_times(contents(target)) == whole
        serve(target)
    assert finished >= (way == COPY)


def test_half_an_import_is_refused_by_a_broker(small: Path, tmp_path: Path) -> None:
    plan = plan_import([small], Choices(), FILES)
    assert killed_at(40, lambda files: carry_out(plan, tmp_path / "logs", COPY, files))
    with pytest.raises(LogError, match="an import into it has not come to its end: run fastlog import again"):
        serve(tmp_path / "logs.importing")


@pytest.mark.slow
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_any_call_that_fails_leaves_nothing_or_a_whole_one(small: Path, tmp_path: Path, code: int) -> None:
    before = contents(small)
    target = tmp_path / "logs"
    calls = calls_of_an_import(small, target)
    plan = plan_import([small], Choices(), FILES)
    failed = 0

    def fail() -> None:
        raise OSError(code, os.strerror(code), "x")

    for number in range(1, calls + 1):
        os.system(f"rm -rf {target} {target}.importing")
        try:
            carry_out(plan, target, COPY, Stopping(number, fail))
        except OSError:
            failed += 1
        else:
            assert target.exists()
        if target.exists():
            serve(target)
        assert not (tmp_path / "logs.importing").exists() or not target.exists()
        assert contents(small) == before
    assert failed > calls / 2


def test_short_writes_and_reads_change_nothing(kafka: Path, tmp_path: Path) -> None:
    files = FaultyFileOps()
    files.shorten("read")
    files.shorten("write")
    moved(kafka, tmp_path / "a", COPY, files)
    moved(kafka, tmp_path / "b", COPY)
    assert same_but_for_times(contents(tmp_path / "a")) == same_but_for_times(contents(tmp_path / "b"))


def test_where_no_link_can_be_made_files_are_copied(kafka: Path, tmp_path: Path) -> None:
    """Another file system, or files of another user's."""
    for code in (errno.EXDEV, errno.EPERM, errno.EMLINK):
        files = FaultyFileOps()
        files.fail("link", 1, code)
        plan = plan_import([kafka], Choices(), files)
        assert carry_out(plan, tmp_path / f"{code}", LINK, files).ways == {"copy"}
        assert (files.calls["link"], files.calls["clone"]) == (1, 1), "what does not work is not tried again"
        serve(tmp_path / f"{code}")
    files = FaultyFileOps()
    files.fail("link", 1, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        carry_out(plan, tmp_path / "logs", LINK, files)
    files = FaultyFileOps()
    files.fail("clone", 1, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        carry_out(plan, tmp_path / "logs", LINK, files)
    assert carry_out(plan, tmp_path / "logs", LINK, FILES).ways == {"link"}


def test_what_is_copied_is_synced_before_it_is_put_in_place(kafka: Path, tmp_path: Path) -> None:
    files = FaultyFileOps()
    plan = plan_import([kafka], Choices(), FILES)
    carry_out(plan, tmp_path / "logs", COPY, files)
    order = files.order
    rename = order.index(("rename", "logs.importing"))
    assert ("fsync_dir", "orders-0") in order[:rename]
    assert order[rename + 1 :] == [("fsync_dir", tmp_path.name)]
    written = sum(kind == "open" and name.endswith((".log", ".snapshot")) for kind, name in order)
    assert files.calls["fdatasync"] >= written // 2
    assert order[rename - 2 : rename] == [("unlink", ".fastlog-moving"), ("fsync_dir", "logs.importing")]


def test_moving_takes_away_what_was_taken_and_the_kafka_does_not_start(kafka: Path, tmp_path: Path) -> None:
    before = {name: records_in(kafka / name) for name in ("orders-0", "orders-1", "orders-2")}
    plan = moved(kafka, tmp_path / "logs", topics=["orders"])
    remove_sources(plan, FILES)
    left = sorted(path.name for path in kafka.iterdir() if path.is_dir())
    assert left == ["__cluster_metadata-0", "__consumer_offsets-7", "views-0"]
    assert not (kafka / "meta.properties").exists()
    with pytest.raises(LogError, match="it was moved to fastlog before; what is left here can be removed"):
        plan_import([kafka], Choices(), FILES)
    serve(tmp_path / "logs")
    assert {name: records_in(tmp_path / "logs" / name) for name in before} == before


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def fastlog(capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capfd)


def test_the_command_names_all_and_writes_nothing_until_it_may(tmp_path: Path, fastlog: Commands) -> None:
    source = House(
        tmp_path / "kafka",
        [
            simple("good", retention_ms="5"),
            simple("odd", compression_type="gzip"),
            Topic("open", {0: [Segment(0, [sent(0, 1)])]}),
        ],
    ).build()
    place = str(tmp_path / "logs")
    ran = fastlog("import", str(source), "--into", place)
    assert ran.code == 1
    lines = ran.out.splitlines()
    size = len(records_in(source / "good-0"))
    assert lines[0] == f"good: 1 partition(s), 10 records, {size} bytes retention.ms=5"
    assert lines[2].startswith("  setting cannot be taken: compression.type=gzip: Invalid value")
    assert lines[3:5] == ["open: cannot be taken", "  partition 0 holds 1 transactions without an end"]
    assert lines[5] == f"2 topics, 2 partitions, 20 records, {2 * size} bytes, 0 groups, 0 offsets: nothing was written"
    assert "--leave-out goes on without what cannot be taken" in ran.err
    assert not Path(place).exists()
    ran = fastlog("import", str(source), "--into", place, "--leave-out", "--dry-run", "--json")
    assert (ran.code, Path(place).exists()) == (0, False)
    assert ran.rows[0] == {
        "topic": "good", "id": house.uuid_text(topic_id_of("good")), "partitions": 1, "records": 10, "bytes": size,
        "settings": {"retention.ms": "5"}, "problems": [], "refused_settings": [],
    }  # fmt: skip
    assert ran.rows[-1]["written"] is None and ran.rows[-1]["files"] == []
    ran = fastlog("import", str(source), "--into", place, "--leave-out", "--json")
    assert (ran.code, ran.rows[-1]["written"], ran.rows[-1]["files"]) == (0, place, ["link"])
    assert {name for name in serve(Path(place)).views if name[0] != "_"} == {"good-0", "odd-0"}
    ran = fastlog("import", str(source), "--into", place)
    assert ran.code == 2 and "something is there already" in ran.refused()[0]


def test_the_commands_exit_codes_and_options(kafka: Path, tmp_path: Path, fastlog: Commands) -> None:
    place = str(tmp_path / "logs")
    assert fastlog("import", str(tmp_path), "--into", place).code == 2
    assert fastlog("import", str(kafka), "--into", place, "--copy", "--move").code == 2
    assert fastlog("import", str(kafka), "--into", place, "--set", "retention.ms=5").code == 2
    assert fastlog("import", str(kafka), "--into", place, "--topic", "nobody").code == 2
    segment = kafka / "views-0" / f"{0:020}.log"
    data = segment.read_bytes()
    segment.write_bytes(data[:-1] + b"\1")
    assert fastlog("import", str(kafka), "--into", place).code == 5
    log = kafka / "__cluster_metadata-0" / f"{0:020}.log"
    kept = log.read_bytes()
    log.write_bytes(kept[:-1] + b"\1")
    ran = fastlog("import", str(kafka), "--into", place)
    assert ran.code == 5 and "a wrong checksum" in ran.refused()[0]
    segment.write_bytes(data)
    log.write_bytes(kept)
    ran = fastlog(
        "import", str(kafka), "--into", place, "--set", "views:retention.ms=8", "--without", "orders", "--copy"
    )
    assert (ran.code, ran.out.splitlines()[-1].endswith(f"in {place} copied")) == (0, True)
    assert serve(Path(place)).metadata.topics["views"].settings == {"retention.ms": "8"}
    ran = fastlog("import", str(kafka), "--into", str(tmp_path / "moved"), "--move", "--offsets-partitions", "2")
    assert ran.code == 0 and not (kafka / "orders-0").exists()
    assert serve(tmp_path / "moved").metadata.topics["__consumer_offsets"].partitions == 2
