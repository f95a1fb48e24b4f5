"""Writes that fail or are short, disks that are full: one request fails, the file is cut back, the next one goes in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.fault.disk_errors import disk_errors
from tests.harness import raw_client as raw
from tests.harness.broker import Broker

MESSAGE = raw.entry(b"0123456789" * 10)
STORAGE = 103


@pytest.mark.slow
def test_one_call_fails(tmp_path: Path) -> None:
    """T-9, T-10: for eight kinds of call, whichever of them fails: I-1, I-3, I-4, I-6."""
    outcome = disk_errors(8, 5, tmp_path)
    assert outcome.runs == 8
    assert outcome.violations == []


@pytest.mark.slow
@pytest.mark.parametrize("faults", ["pwrite@2=EIO", "pwrite@2=ENOSPC", "pwrite@2=short,pwrite@3=ENOSPC"])
def test_a_write_that_fails(start_broker: Callable[..., Broker], topic: str, faults: str) -> None:
    """I-6: an acknowledged produce is answered 103, a plain one closes; nothing of it stays, the next one goes in."""
    rules = ",".join(f"processor-{number}:{rule}" for number in range(2) for rule in faults.split(","))
    broker = start_broker(environment={"FASTLOG_FAULTS": rules})
    with broker.connect() as one, broker.connect() as two:
        one.produce_ack(topic, 0, MESSAGE, raw.FLUSHED)
        two.produce_ack(topic, 0, MESSAGE, raw.FLUSHED)
        assert one.produce_ack(topic, 0, MESSAGE * 3).error == STORAGE
        assert broker.stored_bytes(topic, 0) == MESSAGE * 2
        assert one.read_all(topic, 0) == MESSAGE * 2
        two.produce(topic, 0, MESSAGE * 3)
        assert two.is_closed()
        assert broker.stored_bytes(topic, 0) == MESSAGE * 2
        assert one.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).base_offset == 2 * len(MESSAGE)
        assert one.read_all(topic, 0) == broker.stored_bytes(topic, 0) == MESSAGE * 3


@pytest.mark.slow
def test_a_gathered_write_that_fails(start_broker: Callable[..., Broker], topic: str) -> None:
    """Requests that arrived together have answers of their own, in order, and what is answered 0 is there."""
    broker = start_broker(processors=1, environment={"FASTLOG_FAULTS": "processor:pwrite@2-4=ENOSPC"})
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, raw.entry(b"first"), raw.FLUSHED).error == 0
        start = client.log_end(topic, 0)
        sets = [raw.entry(b"%03d" % number) for number in range(10)]
        client.send_raw(
            b"".join(
                raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body(topic, 0, data), correlation=number)
                for number, data in enumerate(sets)
            )
        )
        answers = [client.recv_own() for _ in sets]
        assert [correlation for correlation, _ in answers] == list(range(10))
        errors = [answer.error for _, answer in answers]
        assert set(errors) <= {0, STORAGE}
        assert STORAGE in errors
        kept = b"".join(data for data, error in zip(sets, errors, strict=True) if not error)
        client.wait_visible(topic, 0, start + len(kept))
        assert client.read_all(topic, 0, start) == kept == broker.stored_bytes(topic, 0)[start:]


@pytest.mark.slow
def test_every_write_is_short(start_broker: Callable[..., Broker], topic: str) -> None:
    """T-10, Z-1: the next write goes on where the last one stopped; the bytes equal the reference."""
    broker = start_broker(environment={"FASTLOG_FAULTS": "processor:pwrite@1-=short"}, settings={"log.file.size": 5000})
    reference = []
    with broker.connect() as client:
        for number in range(20):
            data = raw.message_set([b"%d %d" % (number, index) * number for index in range(30)], magic=number % 2)
            client.produce(topic, 0, data)
            reference.append(data)
        expected = b"".join(reference)
        client.wait_visible(topic, 0, len(expected))
        assert client.read_all(topic, 0) == broker.stored_bytes(topic, 0) == expected
    assert len(broker.segments(topic, 0)) > 1


@pytest.mark.slow
def test_a_file_that_grows_no_more(start_broker: Callable[..., Broker], topic: str) -> None:
    """T-8: real short writes and refusals by the kernel, as on a full disk; writes resume by themselves."""
    broker = start_broker(settings={"log.preallocate": "false"})
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).error == 0
        processors = [psutil.Process(pid) for role, pid in broker.pids().items() if role.startswith("processor")]
        limits = processors[0].rlimit(psutil.RLIMIT_FSIZE)
        room = len(MESSAGE) * 3 + 50
        for processor in processors:
            processor.rlimit(psutil.RLIMIT_FSIZE, (room, limits[1]))
        assert client.produce_ack(topic, 0, MESSAGE).error == 0
        assert client.produce_ack(topic, 0, MESSAGE * 2).error == STORAGE
        assert client.produce_ack(topic, 0, MESSAGE).error == 0
        assert client.produce_ack(topic, 0, MESSAGE).error == STORAGE
        assert broker.stored_bytes(topic, 0) == MESSAGE * 3
        client.wait_visible(topic, 0, len(MESSAGE) * 3)
        assert client.read_all(topic, 0) == MESSAGE * 3
        for processor in processors:
            processor.rlimit(psutil.RLIMIT_FSIZE, limits)
        assert client.produce_ack(topic, 0, MESSAGE * 2, raw.FLUSHED).error == 0
        assert client.read_all(topic, 0) == broker.stored_bytes(topic, 0) == MESSAGE * 5


@pytest.mark.slow
def test_a_roll_that_finds_no_room(start_broker: Callable[..., Broker], topic: str) -> None:
    """T-8: the new segment cannot be made: the request fails, the old segment stays as it is, the next one rolls."""
    # open 1 is the first segment, open 2 the file of the first roll
    faults = "processor:open@2-3=ENOSPC"
    broker = start_broker(processors=1, environment={"FASTLOG_FAULTS": faults}, settings={"log.file.size": 50})
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).error == 0
        assert client.produce_ack(topic, 0, MESSAGE).error == STORAGE
        with broker.connect() as plain:
            plain.produce(topic, 0, MESSAGE)
            assert plain.is_closed()
        assert list(broker.segments(topic, 0)) == [0]
        assert client.read_all(topic, 0) == MESSAGE
        assert client.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).error == 0
        assert list(broker.segments(topic, 0)) == [0, len(MESSAGE)]
        assert client.read_all(topic, 0) == MESSAGE * 2


@pytest.mark.slow
@pytest.mark.parametrize("point", ["create.directory", "create.side_file", "create.segment"])
def test_a_topic_that_finds_no_room(
    start_broker: Callable[..., Broker], new_topic: Callable[[], str], point: str
) -> None:
    """T-8: creation fails with 103 or closes; tried again it finishes what was half made."""
    broker = start_broker(processors=1, environment={"FASTLOG_FAULTS": f"processor:{point}@2-4=ENOSPC"})
    sound, topic = new_topic(), new_topic()
    with broker.connect() as client:
        assert client.produce_ack(sound, 0, MESSAGE, raw.FLUSHED).error == 0
        assert client.produce_ack(topic, 0, MESSAGE).error == STORAGE
        with broker.connect() as plain:
            plain.produce(topic, 0, MESSAGE)
            assert plain.is_closed()
        assert client.ask_own(raw.CREATE_TOPIC, raw.text(topic) + b"\0\0\0\0").error == STORAGE
        assert client.fetch_ok(topic, 0, 0) == b""
        assert client.read_all(sound, 0) == MESSAGE
        assert client.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).error == 0
        assert client.read_all(topic, 0) == MESSAGE
    assert broker.stop() == 0


@pytest.mark.slow
def test_a_read_that_fails(start_broker: Callable[..., Broker], topic: str) -> None:
    """I-9: an error in the place of the answer, in order, and never bytes that nobody read from the log."""
    # a fetch looks at the first message, then reads; a fetch of several looks at all of them first
    rules = ",".join(f"processor:pread@{number}=EIO" for number in (2, 4, 7))
    broker = start_broker(processors=1, environment={"FASTLOG_FAULTS": rules})
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).error == 0
        client.send_raw(raw.offsets_frame(topic, 0, raw.LATEST, 1) + raw.fetch_frame(topic, 0, 0))
        assert raw.decode_offsets(client.recv_answer().body) == [len(MESSAGE)]
        assert client.recv_answer() == raw.Answer(-1, b"")
        assert client.held_fetch(topic, 0, 0) == raw.Held(-1, len(MESSAGE), 0, b"")
        assert client.multifetch([(topic, 0, 0, 1000), (topic, 0, 0, 1000)]) == [
            raw.Answer(-1, b""),
            raw.Answer(0, MESSAGE),
        ]
        assert client.fetch(topic, 0, 0) == raw.Answer(0, MESSAGE)


def test_a_disk_that_is_full_at_the_start_keeps_nobody_from_reading(start_broker: Callable[..., Broker]) -> None:
    """What was flushed for certain is served; who was further on waits for the rest, and is not sent elsewhere."""
    broker = start_broker(processors=1, settings={"log.file.size": 400})
    with broker.connect() as client:
        for _ in range(8):
            assert client.produce_ack("t", 0, MESSAGE, acks=2).error == 0
        mark = max(int(path.name[-20:]) for path in broker.partition_directory("t", 0).glob(".flushed-*"))
        stored = client.read_all("t", 0)
    broker.kill_all()
    (broker.log_dirs[0] / ".fastlog-flushing").write_bytes(b"\0\1")  # a flush was under way
    (broker.partition_directory("t", 0) / "fastlog.json").unlink()
    broker.environment["FASTLOG_FAULTS"] = "supervisor:start.again@1-=ENOSPC"
    broker.restart()
    assert "the disk is full; nothing was cut" in broker.log_text()
    with broker.connect() as client:
        assert client.read_all("t", 0) == stored[:mark]
        assert client.fetch("t", 0, len(stored)).error == -1
        assert client.fetch("t", 0, len(stored) + 1).error == -1
        assert client.produce_ack("t", 0, MESSAGE, acks=1).error == 101
    del broker.environment["FASTLOG_FAULTS"]
    broker.restart()
    with broker.connect() as client:
        assert client.read_all("t", 0) == stored
        assert client.produce_ack("t", 0, MESSAGE, acks=2).error == 0
