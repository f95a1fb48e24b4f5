"""The way back: topics of a stopped broker in an Apache Kafka's directory that was formatted, whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from functools import partial
from pathlib import Path

import pytest

from fastlog.errors import LogError
from fastlog.log import metadata, producer_snapshots
from fastlog.log.clean_marker import read_clean_marker, write_clean_marker
from fastlog.log.files import FileOps
from fastlog.log.kafka_files import read_epochs, read_topic_id
from fastlog.log.log_starts import read_log_starts
from fastlog.moving import kafka_groups
from fastlog.moving.export_plan import plan_export, read_formatted
from fastlog.moving.exporting import carry_out_export, finish_interrupted
from fastlog.moving.import_plan import Choices, plan_import
from fastlog.moving.importing import carry_out
from fastlog.moving.kraft_log import read_bootstrap
from fastlog.moving.kraft_records import Partition
from fastlog.moving.log_survey import survey
from fastlog.moving.staging import COPY, LINK
from fastlog.moving.stored_records import segments_of
from tests.harness import kafka_house as house
from tests.harness.command_line import Commands
from tests.harness.kafka_house import House, Segment, Topic, data_batch, format_directory, simple, topic_id_of
from tests.harness.moved_house import Stopping, contents, killed_at, records_in
from tests.unit.test_moving_logs import offset_row, rows_batch

FILES = FileOps()


def log_directory(tmp_path: Path, *topics: Topic, **given: object) -> Path:
    """A log directory of ours, as after a stop in order."""
    source = House(tmp_path / "was", list(topics), **given).build()  # type: ignore[arg-type]
    carry_out(plan_import([source], Choices(), FILES), tmp_path / "logs", COPY, FILES)
    return tmp_path / "logs"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    numbered = data_batch(0, b"a", producer_id=5000, producer_epoch=0, base_sequence=0)
    return log_directory(
        tmp_path,
        simple("orders", 2, retention_ms="9"),
        Topic("n", {0: [Segment(0, [numbered])]}),
        starts={("orders", 1): 5},
        offsets={0: [rows_batch(0, [offset_row("billing", "orders", 1, 8), offset_row("g2", "n", 0, 1)])]},
        more_records=[house.producer_ids_record(4000)],
    )


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return format_directory(tmp_path / "kafka")


def exported(logs: Path, into: Path, way: str = LINK, files: FileOps = FILES, partitions: int = 5) -> None:
    plan = plan_export([logs], (), (), files)
    assert plan.is_whole, plan
    carry_out_export(plan, read_formatted(into, files), partitions, way, files)


# -- what is taken -----------------------------------------------------------------------------------------------------


def test_a_kafka_finds_topics_as_if_it_had_had_them(logs: Path, into: Path, tmp_path: Path) -> None:
    before = contents(logs)
    formatted = contents(into)
    exported(logs, into)
    assert contents(logs) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kafka", "logs", "was"]
    state = read_bootstrap(into, FILES)
    assert state.features == {"metadata.version": 29}
    found = {topic.name: topic for topic in state.topics.values()}
    assert set(found) == {"orders", "n", "__consumer_offsets"}
    assert found["orders"].topic_id == topic_id_of("orders")
    assert found["orders"].partitions == {0: Partition((1,), (1,), 4), 1: Partition((1,), (1,), 4)}
    assert found["__consumer_offsets"].partitions == {number: Partition((1,), (1,), 0) for number in range(5)}
    assert state.topic_settings["orders"] == {"retention.ms": "9"}
    assert state.topic_settings["__consumer_offsets"]["cleanup.policy"] == "compact"
    assert state.next_producer_id == 5001
    assert json.loads((into / ".kafka_cleanshutdown").read_text()) == {"version": 0, "brokerEpoch": 1}
    assert (into / "meta.properties").read_bytes() == formatted["meta.properties"]
    lines = (into / "recovery-point-offset-checkpoint").read_text().splitlines()
    assert lines[:2] == ["0", "8"] and {"orders 0 10", "orders 1 10", "n 0 1"} < set(lines)
    assert (into / "replication-offset-checkpoint").read_text().splitlines() == lines
    assert read_log_starts(into, FILES) == {("orders", 1): 5}
    for name in ("orders-0", "orders-1", "n-0"):
        assert records_in(into / name) == records_in(logs / name)
        assert read_epochs(into / name, FILES) == read_epochs(logs / name, FILES)
        assert read_topic_id(into / name, FILES) == read_topic_id(logs / name, FILES)
        assert {path.suffix for path in (into / name).iterdir()} <= {
            ".log", ".index", ".timeindex", ".snapshot", ".metadata", ""
        }  # fmt: skip
    assert not [path for path in contents(into) if "fastlog" in path or ".flushed" in path]
    (snapshot,) = producer_snapshots.listed(into / "n-0", FILES)
    assert snapshot == 1
    directories = [into / f"__consumer_offsets-{number}" for number in range(5)]
    groups = kafka_groups.read_groups(directories, FILES)
    assert {(key.group, key.topic, row.offset) for key, row in groups.offsets.items()} == {
        ("billing", "orders", 8), ("g2", "n", 1)
    }  # fmt: skip


@pytest.mark.parametrize("way", [LINK, COPY])
def test_what_a_kafka_writes_to_is_no_file_of_ours(logs: Path, into: Path, way: str) -> None:
    exported(logs, into, way)
    for path in into.glob("*-*/*"):
        is_shared = path.stat().st_nlink > 1
        assert not is_shared or (way == LINK and path.suffix == ".log" and path.stat().st_size)
    newest = max((into / "orders-0").glob("*.log"))
    assert (newest.name, newest.stat().st_size, newest.stat().st_nlink) == (f"{10:020}.log", 0, 1)
    assert survey(segments_of(into / "orders-0"), 0, FILES).end == 10


def test_what_came_from_a_kafka_goes_back_the_same(tmp_path: Path, into: Path) -> None:
    logs = log_directory(tmp_path, simple("t", 2))
    exported(logs, into)
    for number in range(2):
        assert records_in(into / f"t-{number}") == records_in(tmp_path / "was" / f"t-{number}")
    state = read_bootstrap(into, FILES)
    assert set(each.name for each in state.topics.values()) == {"t"}, "without groups there is no topic of theirs"
    assert state.next_producer_id == 0


def test_an_id_that_no_broker_gives_out_does_not_use_up_the_numbers(tmp_path: Path, into: Path) -> None:
    batches = [data_batch(n, b"a", producer_id=each, base_sequence=0) for n, each in enumerate((7, 2**62, 2**62 - 1))]
    logs = log_directory(tmp_path, Topic("t", {0: [Segment(0, batches)]}))
    assert plan_export([logs], (), (), FILES).next_producer_id == 2**62


def test_kafkas_own_files_stay(logs: Path, into: Path) -> None:
    """Those of a dynamic quorum, whose snapshot names its voters."""
    snapshot = into / "__cluster_metadata-0" / f"{0:020}-{0:010}.checkpoint"
    snapshot.parent.mkdir()
    snapshot.write_bytes(house.checkpoint_of([]))
    snapshot.chmod(0o400)
    exported(logs, into)
    assert snapshot.read_bytes() == house.checkpoint_of([])


# -- what is not -------------------------------------------------------------------------------------------------------


def kafka07_topic(logs: Path) -> None:
    directory = logs / "clicks-0"
    directory.mkdir()
    (directory / f"{0:020}.kafka").write_bytes(bytes.fromhex("0000000a003610a68668656c6c6f"))


def test_what_cannot_be_taken_is_named(tmp_path: Path) -> None:
    logs = log_directory(
        tmp_path,
        simple("small", segment_bytes="5000", message_format_version="3.0-IV1", retention_ms="4"),
        simple("gone", 3),
        simple("torn"),
        simple("other"),
        offsets={0: [rows_batch(0, [offset_row("g", "torn", 0, 8)])]},
    )
    kafka07_topic(logs)
    os.system(f"rm -rf {logs}/gone-1")
    segment = logs / "torn-0" / f"{4:020}.log"
    segment.write_bytes(segment.read_bytes()[:-1])
    (logs / "other-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {house.uuid_text(b'?' * 16)}\n")
    plan = plan_export([logs], (), (), FILES)
    problems = {each.name: each.problems for each in plan.topics if each.problems}
    assert set(problems) == {"clicks", "gone", "torn", "other"}
    assert problems["clicks"][0].startswith("its messages are those of Kafka 0.7")
    assert problems["gone"] == ["partition 1 is missing: name all log directories of the broker"]
    assert "a batch that is cut short" in problems["torn"][0]
    assert problems["other"] == ["its directories are those of several topics of this name"]
    assert [each.name for each in plan.topics if each.is_damaged] == ["torn"]
    assert plan.is_damaged and not plan.is_whole
    (small,) = plan.taken
    assert small.settings == {"retention.ms": "4"}
    assert small.refused_settings == ["segment.bytes=5000: Kafka takes 1048576 at least"]
    assert plan.notes == ["offsets of topics that are not taken are not either: torn"]
    assert not plan.groups.names
    assert [each.name for each in plan_export([logs], ["gone", "small"], ["gone"], FILES).topics] == ["small"]
    with pytest.raises(LogError, match="there is no topic 'x'"):
        plan_export([logs], ["x"], (), FILES)


def test_a_log_that_does_not_end_where_it_did_is_damaged(logs: Path) -> None:
    ends = read_clean_marker(logs, FILES) or {}
    for changed in ({**ends, "n-0": 2}, {name: end for name, end in ends.items() if name != "n-0"}):
        write_clean_marker(logs, changed, FILES)
        (found,) = (each for each in plan_export([logs], ["n"], (), FILES).topics)
        assert "it does not end where it did at the stop" in found.problems[0] and found.is_damaged


def test_a_broker_that_was_not_stopped_in_order_is_refused(logs: Path) -> None:
    (logs / ".kafka_cleanshutdown").unlink()
    with pytest.raises(LogError, match="not stopped in order: start it and stop it once more"):
        plan_export([logs], (), (), FILES)


def test_a_directory_that_is_not_formatted_or_was_used_is_refused(tmp_path: Path, into: Path) -> None:
    formatted = read_formatted(into, FILES)
    assert (formatted.node_id, formatted.directory_id) == (1, bytes(range(16)))
    (into / ".lock").touch()
    read_formatted(into, FILES)
    (into / "bootstrap.checkpoint").rename(into / "kept")
    with pytest.raises(LogError, match="which kafka-storage format makes"):
        read_formatted(into, FILES)
    (into / "kept").rename(into / "bootstrap.checkpoint")
    (into / "t-0").mkdir()
    with pytest.raises(LogError, match="a Kafka was started on it"):
        read_formatted(into, FILES)
    (into / "t-0").rmdir()
    (into / "__cluster_metadata-0").mkdir()
    read_formatted(into, FILES)
    (into / "__cluster_metadata-0" / f"{0:020}.log").touch()
    with pytest.raises(LogError, match="a Kafka was started on it"):
        read_formatted(into, FILES)
    with pytest.raises(LogError, match="no log directory of Apache Kafka"):
        read_formatted(tmp_path, FILES)
    meta = into / "meta.properties"
    for broken in ("directory.id", "node.id"):
        kept = meta.read_text()
        meta.write_text("\n".join(line for line in kept.splitlines() if not line.startswith(broken)))
        with pytest.raises(LogError, match=r"names no node.id and directory.id"):
            read_formatted(into, FILES)
        meta.write_text(kept)
    meta.write_text(meta.read_text().replace("directory.id=", "directory.id=A"))
    with pytest.raises(LogError, match=r"names no node.id and directory.id"):
        read_formatted(into, FILES)


def test_topics_that_nobody_has_written_down_are_taken_by_their_ids(logs: Path, into: Path) -> None:
    """What was put into the log directory while no broker had it, and those of a lost metadata log."""
    os.system(f"rm -rf {logs}/{metadata.TOPIC}-0")
    exported(logs, into)
    found = {topic.name: topic for topic in read_bootstrap(into, FILES).topics.values()}
    assert found["orders"].topic_id == topic_id_of("orders") and set(found["orders"].partitions) == {0, 1}


# -- nothing by halves -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_at_any_call_it_is_done_again_or_finished(tmp_path: Path) -> None:
    logs = log_directory(tmp_path, simple("t", 1, 2), offsets={0: [rows_batch(0, [offset_row("g", "t", 0, 2)])]})
    into, fresh = tmp_path / "kafka", format_directory(tmp_path / "fresh")
    plan = plan_export([logs], (), (), FILES)
    formatted, before = contents(fresh), contents(logs)
    quiet = Stopping(0, lambda: None)
    carry_out_export(plan, read_formatted(fresh, FILES), 1, COPY, quiet)
    whole = {name: data for name, data in contents(fresh).items() if not name.startswith(("__", "boot"))}
    finished = again = 0
    for number in range(1, quiet.calls + 2):
        os.system(f"rm -rf {into} {into}.exporting {into}.formatted")
        format_directory(into)
        place = read_formatted(into, FILES)
        is_killed = killed_at(number, partial(carry_out_export, plan, place, 1, COPY))
        assert contents(logs) == before
        if into.exists() and contents(into) == formatted:
            try:
                carry_out_export(plan, read_formatted(into, FILES), 1, COPY, Stopping(0, lambda: None))
            except LogError as error:
                assert "it is whole" in str(error)
                continue
            again += 1
        elif not into.exists():
            assert is_killed and finish_interrupted(into, Stopping(0, lambda: None))
            assert not finish_interrupted(into, FILES)
            finished += 1
        found = {name: data for name, data in contents(into).items() if not name.startswith(("__", "boot"))}
        assert found == whole
        assert {topic.name for topic in read_bootstrap(into, FILES).topics.values()} == {"t", "__consumer_offsets"}
        assert not Path(f"{into}.exporting").exists()
    assert finished == 1 and again > 50


def test_an_export_whose_replacement_was_lost_gives_the_formatted_directory_back(logs: Path, into: Path) -> None:
    into.rename(f"{into}.formatted")
    assert not finish_interrupted(into, FILES)
    read_formatted(into, FILES)
    assert not finish_interrupted(into, FILES)


def test_a_full_disk_leaves_the_directory_as_it_was(logs: Path, into: Path) -> None:
    before = contents(into)

    def fail() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    plan = plan_export([logs], (), (), FILES)
    for number in (5, 30, 60, 90):
        with pytest.raises(OSError, match=r"No space left|the index could not be written"):
            carry_out_export(plan, read_formatted(into, FILES), 2, COPY, Stopping(number, fail))
        assert contents(into) == before
        assert not Path(f"{into}.exporting").exists()


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def fastlog(capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capfd)


def test_the_command_names_all_and_writes_nothing_until_it_may(logs: Path, into: Path, fastlog: Commands) -> None:
    kafka07_topic(logs)
    before = contents(into)
    ran = fastlog("export", str(logs), "--into", str(into))
    assert (ran.code, contents(into)) == (1, before)
    lines = ran.out.splitlines()
    assert lines[0] == "clicks: cannot be taken" and lines[1].startswith("  its messages are those of Kafka 0.7")
    assert lines[-1].startswith("2 topics, 3 partitions, ") and lines[-1].endswith(": nothing was written")
    ran = fastlog("export", str(logs), "--into", str(into), "--leave-out", "--dry-run", "--json")
    assert (ran.code, contents(into), ran.rows[-1]["written"]) == (0, before, None)
    ran = fastlog(
        "export", str(logs), "--into", str(into), "--without", "clicks", "--offsets-partitions", "3", "--copy"
    )
    assert (ran.code, ran.out.splitlines()[-1].endswith(f"in {into} copied")) == (0, True)
    assert len(list(into.glob("__consumer_offsets-*"))) == 3
    ran = fastlog("export", str(logs), "--into", str(into))
    assert ran.code == 2 and "a Kafka was started on it" in ran.refused()[0]
    into.rename(f"{into}.exporting")
    Path(f"{into}.formatted").mkdir()
    ran = fastlog("export", str(logs), "--into", str(into))
    assert (ran.code, ran.out) == (0, f"an export that had been interrupted in its last step is done: {into}\n")


def test_the_commands_other_exit_codes(logs: Path, into: Path, fastlog: Commands, tmp_path: Path) -> None:
    assert fastlog("export", str(logs), "--into", str(tmp_path / "x")).code == 2
    fd = os.open(logs / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    ran = fastlog("export", str(logs), "--into", str(into))
    assert ran.code == 2 and "a broker has it; stop that first" in ran.refused()[0]
    os.close(fd)
    path = logs / "orders-0" / f"{0:020}.log"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    assert fastlog("export", str(logs), "--into", str(into)).code == 5
