"""A second log format, with dense offsets and a suffix of its own, through everything that a broker does with a log."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import command_process, logs
from tests.harness import raw_client as raw
from tests.harness.broker import Broker, wait_until
from tests.toy_format import RECORD_BYTES, numbers, record, records

TOPIC = "toys"
SEGMENT_RECORDS = 10


class ToyBroker(Broker):
    """A broker whose program registers the format; partition 0 of ``toys`` has it."""

    def command(self) -> list[str]:
        command = super().command()
        return [command[0], "-m", "tests.toy_format.broker", *command[3:]]

    def start(self) -> None:
        if not self.folder.exists():
            self.folder.mkdir(parents=True)
            logs.write_side_file(self.folder, 0, log_format="toy")
        super().start()

    @property
    def folder(self) -> Path:
        return self.log_dirs[0] / f"{TOPIC}-0"

    def files(self) -> dict[int, Path]:
        """The segments by base offset, in order."""
        return {int(path.stem): path for path in sorted(self.folder.glob("*.toy"))}


@pytest.fixture
def toys(tmp_path: Path) -> Iterator[ToyBroker]:
    """Segments of ten records; retention looks all the time, and is told of one topic alone."""
    settings = {
        "topic.log.file.size": f"{TOPIC}:{SEGMENT_RECORDS * RECORD_BYTES - 1}",
        "log.cleanup.interval.mins": 0.001,
    }
    with ToyBroker(tmp_path, settings=settings) as broker:
        yield broker


def produce(client: raw.RawClient, first: int, end: int, acks: int = raw.FLUSHED) -> None:
    """Append records with these numbers, which are their offsets, too, three in a request."""
    while first < end:
        here = min(end, first + 3)
        found = client.produce_ack(TOPIC, 0, records(first, here), acks)
        assert (found.error, found.base_offset, found.next_offset) == (0, first, here)
        first = here


def read(client: raw.RawClient, offset: int, end: int) -> list[int]:
    """The numbers of all records from an offset to before another."""
    found: list[int] = []
    while offset < end:
        some = numbers(client.fetch_ok(TOPIC, 0, offset))
        assert some
        found += some
        offset += len(some)
    return found


def test_offsets_count_records(toys: ToyBroker) -> None:
    """What is appended, fetched, held, described and cut in pieces is addressed by the numbers of records."""
    with toys.connect() as client:
        produce(client, 0, 24)
        assert list(toys.files()) == [0, 12, 24][: len(toys.files())]
        assert read(client, 0, 24) == list(range(24))
        assert numbers(client.fetch_ok(TOPIC, 0, 7)) == list(range(7, 12))  # to the end of its segment
        assert numbers(client.fetch_ok(TOPIC, 0, 7, 2 * RECORD_BYTES)) == [7, 8]
        assert client.fetch(TOPIC, 0, 24).body == b""
        assert client.fetch(TOPIC, 0, 25).error == 1
        assert client.offsets(TOPIC, 0) == [24, 12, 0]
        state = client.metadata([TOPIC]).topics[TOPIC].partitions[0]
        assert (state.log_start, state.high_watermark, state.log_end) == (0, 24, 24)
        found = client.held_fetch(TOPIC, 0, 20)
        assert (found.high_watermark, numbers(found.messages)) == (24, list(range(20, 24)))
        assert client.held_fetch(TOPIC, 0, 20, min_bytes=4 * RECORD_BYTES).messages == records(20, 24)
        assert client.cut_points(TOPIC, 0, 1, 24, 5 * RECORD_BYTES) == (0, [1, 6, 11, 16, 21, 24])
        local = client.local_read(TOPIC, 0)
        assert (local.format, local.bases) == ("toy", [0, 12, 24][: len(toys.files())])
        body = raw.held_fetch_body(TOPIC, 0, 24, 1000, 600_000, 2 * RECORD_BYTES)
        client.send_raw(raw.own_frame(raw.HELD_FETCH, body, correlation=9))
        with toys.connect() as other:
            assert other.produce_ack(TOPIC, 0, record(24), raw.FLUSHED).error == 0
            assert other.produce_ack(TOPIC, 0, record(25), raw.FLUSHED).base_offset == 25
        assert numbers(raw.decode_held(client.recv_own()[1]).messages) == [24, 25]


def test_what_is_no_record_is_refused(toys: ToyBroker) -> None:
    """By the format of the partition: a message of 0.7 is none here, and a record is no message elsewhere."""
    with toys.connect() as client:
        for wrong in (raw.entry(b"12345678"), records(0, 2)[:-1], records(0, 2)[:-1] + b"x"):
            assert client.produce_ack(TOPIC, 0, wrong).error == 2
        assert client.produce_ack("messages", 0, record(0)).error == 2
        assert client.produce_ack(TOPIC, 0, record(0), raw.FLUSHED).base_offset == 0
        assert client.produce_ack("messages", 0, raw.entry(b"x"), raw.FLUSHED).base_offset == 0
        assert client.fetch_ok(TOPIC, 0, 0) == record(0)


@pytest.mark.parametrize(
    ("role", "point"),
    [
        ("processor-0", "append.mid_write"),
        ("processor-0", "append.cell_filled"),
        ("processor-0", "roll.created"),
        ("flusher", "flush.after_sync"),
        ("flusher", "flush.flushed"),
    ],
)
def test_a_process_that_dies_anywhere(role: str, point: str, tmp_path: Path) -> None:
    """Repair, and the rewrite after a dead flusher, ask the format where a record ends."""
    broker = ToyBroker(
        tmp_path,
        processors=1,
        settings={"topic.log.file.size": f"{TOPIC}:{RECORD_BYTES}"},
        environment={"FASTLOG_FAULTS": f"{role}:{point}@2=kill"},
    )
    with broker:
        sent = lives = 0
        while sent < 12:  # each processor dies at its second append
            with contextlib.suppress(raw.ConnectionClosed), broker.connect() as client:
                lives += 1
                assert client.log_end(TOPIC, 0) in (sent, sent + 1)
                sent = client.log_end(TOPIC, 0)
                while sent < 12:
                    assert client.produce_ack(TOPIC, 0, record(sent), raw.FLUSHED).base_offset == sent
                    sent += 1
        assert lives == 1 or role == "processor-0"
        with broker.connect() as client:
            assert read(client, 0, 12) == list(range(12))
        assert "out of service" not in broker.log_text()


@pytest.mark.parametrize("torn", ["whole", "half a record", "a damaged record"])
@pytest.mark.parametrize("clean", [True, False])
def test_recovery_goes_on_where_the_records_end(torn: str, clean: bool, toys: ToyBroker) -> None:
    with toys.connect() as client:
        produce(client, 0, 27)
    if clean:
        assert toys.stop() == 0
    else:
        toys.kill_all()
    newest = list(toys.files().values())[-1]
    if torn == "half a record":
        newest.write_bytes(newest.read_bytes() + record(27)[:7])
    elif torn == "a damaged record":
        newest.write_bytes(newest.read_bytes() + record(27)[:-1] + b"?" + record(28))
    toys.start()
    with toys.connect() as client:
        assert client.log_end(TOPIC, 0) == 27
        produce(client, 27, 40)
        assert read(client, 0, 40) == list(range(40))
    assert b"".join(path.read_bytes() for path in toys.files().values()) == records(0, 40)
    assert bool(list(toys.folder.glob("*.truncated"))) == (torn != "whole")


def test_retention_drops_whole_segments(tmp_path: Path) -> None:
    settings = {
        "topic.log.file.size": f"{TOPIC}:{SEGMENT_RECORDS * RECORD_BYTES - 1}",
        "topic.log.retention.size": f"{TOPIC}:{3 * SEGMENT_RECORDS * RECORD_BYTES}",
        "log.cleanup.interval.mins": 0.001,
    }
    with ToyBroker(tmp_path, settings=settings) as broker:
        with broker.connect() as client:
            for number in range(100):
                assert client.produce_ack(TOPIC, 0, record(number), raw.FLUSHED).base_offset == number
            wait_until("old segments are gone", lambda: client.offsets(TOPIC, 0, raw.EARLIEST, 1) == [70])
            wait_until("so are their files", lambda: list(broker.files()) == [70, 80, 90])
            assert client.fetch(TOPIC, 0, 69).error == 1
            assert read(client, 70, 100) == list(range(70, 100))
        assert broker.stop() == 0
        broker.start()
        with broker.connect() as client:
            state = client.metadata([TOPIC]).topics[TOPIC].partitions[0]
            assert (state.log_start, state.high_watermark) == (70, 100)
            assert read(client, 70, 100) == list(range(70, 100))
            produce(client, 100, 103)


@pytest.fixture
def damaged(toys: ToyBroker) -> ToyBroker:
    """Stopped, with 27 records, of which number 17 is damaged, in the second segment."""
    with toys.connect() as client:
        produce(client, 0, 27)
    toys.stop()
    middle = toys.files()[12]
    data = bytearray(middle.read_bytes())
    data[5 * RECORD_BYTES + 6] ^= 1
    middle.write_bytes(data)
    return toys


def command(*arguments: str | Path) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, objects and stderr of a command that knows the format."""
    code, out, err = command_process.run(*map(str, arguments), "--json", module="tests.toy_format.command")
    return code, [json.loads(line) for line in out.splitlines()], err


@pytest.mark.parametrize("side_file", ["whole", "lost", "damaged"])
def test_fsck_names_damage_by_the_numbers_of_records(side_file: str, damaged: ToyBroker) -> None:
    """Also where the files' names alone say which format it is."""
    if side_file == "lost":
        (damaged.folder / "fastlog.json").unlink()
    elif side_file == "damaged":
        (damaged.folder / "fastlog.json").write_bytes(b"{")
    code, (report,), _ = command("fsck", damaged.folder)
    problems = [(problem["kind"], problem["position"], problem["offset"]) for problem in report["problems"]]
    assert code == 5 and problems[side_file == "damaged" :] == [("damage", 5 * RECORD_BYTES, 17)]
    assert [(span["start"], span["end"]) for span in report["spans"]] == [(0, 17), (18, 27)]
    code, (report,), _ = command("fsck", damaged.folder, "--repair", "--keep", "after")
    assert (code, report["messages"]) == (0, 9)
    damaged.start()
    with damaged.connect() as client:
        assert read(client, 18, 27) == list(range(18, 27))
        produce(client, 27, 30)


def test_what_cannot_be_read_is_named_by_the_number_of_its_record(toys: ToyBroker) -> None:
    with toys.connect() as client:
        produce(client, 0, 27)
        second = toys.files()[12]
        os.truncate(second, 5 * RECORD_BYTES)
        assert client.fetch(TOPIC, 0, 12).error == -1
        toys.wait_log(f"cannot be read .* offset=17 path={second} position={5 * RECORD_BYTES} ")


def test_dump_log_shows_records_by_their_numbers(damaged: ToyBroker) -> None:
    """What is damaged is passed over by the length of a record, and half of one is told by its bytes."""
    newest = list(damaged.files().values())[-1]
    newest.write_bytes(newest.read_bytes() + record(27)[:7])
    code, rows, err = command("dump-log", "--deep", damaged.folder)
    assert [(row["offset"], row["next_offset"]) for row in rows] == [(n, n + 1) for n in range(27)]
    assert [row["number"] for row in rows if row["valid"]] == [n for n in range(27) if n != 17]
    assert code == 5 and f"{newest}: 7 bytes from position {3 * RECORD_BYTES} on are no whole message" in err
    (damaged.folder / "fastlog.json").unlink()
    code, rows, _ = command("dump-log", "--no-print", damaged.files()[0])
    assert (code, [row["number"] for row in rows]) == (0, list(range(12)))
    code, out, _ = command_process.run(
        "dump-log", "--no-print", str(damaged.files()[12]), module="tests.toy_format.command"
    )
    assert out.splitlines()[1:3] == [b"Starting offset: 12", b"offset: 12 isvalid: true payloadsize: 8 number: 12"]
    assert (code, out.splitlines()[-1]) == (5, b"tail of the log is at offset: 24")


def test_dump_log_names_a_format_that_it_does_not_know(toys: ToyBroker) -> None:
    code, _, err = command_process.run("dump-log", str(toys.folder))
    assert code == 5 and "names the log format 'toy', unknown to this version" in command_process.refused(code, err)[1]


def test_recovery_knows_the_format_without_a_side_file(toys: ToyBroker) -> None:
    with toys.connect() as client:
        produce(client, 0, 14)
    toys.kill_all()
    (toys.folder / "fastlog.json").unlink()
    toys.start()
    with toys.connect() as client:
        assert read(client, 0, 14) == list(range(14))
        produce(client, 14, 17)


def test_a_broker_that_does_not_know_the_format_leaves_it_alone(toys: ToyBroker) -> None:
    with toys.connect() as client:
        produce(client, 0, 5)
    toys.stop()
    before = {path.name: path.read_bytes() for path in toys.folder.iterdir()}
    with Broker(toys.directory) as plain, plain.connect() as client:
        assert client.produce_ack(TOPIC, 0, record(5)).error == 101
        assert client.fetch(TOPIC, 0, 0).error != 0
        assert "unknown to this version" in plain.log_text()
    assert {path.name: path.read_bytes() for path in toys.folder.iterdir()} == before


def test_deletion_takes_its_segments_and_frees_its_name(toys: ToyBroker) -> None:
    """The next topic of that name has the format that new ones get, and nothing of the former one."""
    message = raw.entry(b"no record")
    with toys.connect() as client:
        produce(client, 0, 24)
        assert client.delete_topic(TOPIC) == (0, 1)
        assert TOPIC not in client.metadata().topics
        wait_until("its files are gone", lambda: not list(toys.log_dirs[0].glob(f"{TOPIC}-0*")))
        assert client.produce_ack(TOPIC, 0, record(0)).error == 2
        assert client.produce_ack(TOPIC, 0, message, raw.FLUSHED)[2:] == (0, len(message))
        assert client.fetch_ok(TOPIC, 0, 0) == message


def test_it_comes_back_into_service(tmp_path: Path) -> None:
    """After a sync that failed, at the offset it had, which is a number of records and no position."""
    faults = {"FASTLOG_FAULTS": "flusher:fdatasync@3=EIO"}
    settings = {"recovery.retry.ms": "100"}
    with ToyBroker(tmp_path, environment=faults, settings=settings) as broker, broker.connect() as client:
        produce(client, 0, 6)
        assert client.produce_ack(TOPIC, 0, records(6, 9), raw.FLUSHED).error == 101
        wait_until("it is back", lambda: client.metadata([TOPIC]).topics[TOPIC].partitions[0].state == 0)
        produce(client, 9, 12)
        assert read(client, 0, 12) == list(range(12))
