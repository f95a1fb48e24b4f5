"""SIGTERM: exit 0 in time and a clean marker when all is flushed, exit 1 with the reason when not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fastlog import broker as broker_module
from fastlog.errors import LogError
from tests.fault.kills import stop
from tests.harness import raw_client as raw
from tests.harness.broker import Broker
from tests.harness.faulty_files import FaultyFileOps

MESSAGE = raw.entry(b"not to be lost")
LATEST_END = 30.0
"""Five seconds, and what a machine that is busy with other things adds."""


def marker(broker: Broker) -> Path:
    return broker.log_dirs[0] / ".kafka_cleanshutdown"


@pytest.mark.slow
def test_under_load(tmp_path: Path) -> None:
    """T-5: clean stops while clients go on."""
    outcome = stop(3, 3, tmp_path)
    assert outcome.runs == 3
    assert outcome.violations == []


@pytest.mark.slow
def test_the_start_after_a_clean_stop_scans_nothing(start_broker: Callable[..., Broker], topic: str) -> None:
    """T-5: damage that only a scan would see is not found by a start that the clean marker spares the scan."""
    broker = start_broker()
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, MESSAGE * 3, raw.FLUSHED).error == 0
    assert broker.stop() == 0
    (path,) = broker.segments(topic, 0).values()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    broker.start()
    with broker.connect() as client:
        assert client.offsets(topic, 0) == [len(data), 0]


@pytest.mark.slow
def test_with_a_flush_that_fails(start_broker: Callable[..., Broker]) -> None:
    """I-5, I-7: exit 1, no clean marker, and the line on stderr names partition and range."""
    broker = start_broker(environment={"FASTLOG_FAULTS": "flusher:fdatasync@1-=EIO"})
    with broker.connect() as client:
        assert client.produce_ack("broken", 0, MESSAGE * 2).error == 0
    assert broker.stop(LATEST_END) == 1
    assert not marker(broker).exists()
    assert f"not flushed: broken-0 offsets 0 to {2 * len(MESSAGE)}" in broker.log_text()
    broker.environment.clear()
    broker.start()
    with broker.connect() as client:
        assert client.read_all("broken", 0) == MESSAGE * 2
    assert broker.stop() == 0
    assert marker(broker).exists()


@pytest.mark.slow
def test_with_a_flush_that_takes_too_long(start_broker: Callable[..., Broker]) -> None:
    """Asked again, exit 1 in five seconds, no clean marker; the last line names the partition, not those it flushed."""
    broker = start_broker(environment={"FASTLOG_FAULTS": "flusher:fdatasync@2=slow:60000"})
    with broker.connect() as client:
        assert client.produce_ack("sound", 0, MESSAGE, raw.FLUSHED).error == 0
        assert client.produce_ack("stuck", 0, MESSAGE).error == 0
    assert broker.process is not None
    broker.process.terminate()
    broker.wait_log("the stop waits for a disk role=flusher")
    assert broker.stop(LATEST_END) == 1
    assert not marker(broker).exists()
    last = broker.log_text().splitlines()[-1]
    assert "role=flusher did not finish in time (it has been waiting for a disk for " in last
    assert f"not flushed: stuck-0 offsets 0 to {len(MESSAGE)}" in last
    assert "sound-0" not in last
    broker.environment.clear()
    broker.start()
    with broker.connect() as client:
        assert client.read_all("stuck", 0) == client.read_all("sound", 0) == MESSAGE


@pytest.mark.slow
def test_a_disk_that_stalls_is_waited_for(start_broker: Callable[..., Broker]) -> None:
    """A file system that is frozen for a snapshot costs a stop the time it takes, and no message."""
    stall_ms = 7000  # longer than a process may be silent with a lock; what is left then, longer than a stop
    broker = start_broker(processors=1, environment={"FASTLOG_FAULTS": f"processor:pwrite@2=slow:{stall_ms}"})
    with broker.connect() as client, broker.connect() as other:
        assert client.produce_ack("t", 0, MESSAGE).error == 0
        client.produce("t", 0, MESSAGE)
        broker.wait_log(r"waits for a disk role=processor-0 .* topic='t' partition=0 path=\S+/t-0: left alone")
        other.produce("t", 0, MESSAGE)
        assert broker.stop(LATEST_END) == 0
    assert broker.stored_bytes("t", 0) == MESSAGE * 3


@pytest.mark.slow
def test_what_was_sent_before_the_stop_is_written(start_broker: Callable[..., Broker], topic: str) -> None:
    """Requests that had arrived are served and answered before the connection closes."""
    broker = start_broker(processors=1)
    with broker.connect() as client:
        client.metadata([])
        broker.pause("processor-0")
        for _ in range(50):
            client.produce(topic, 0, MESSAGE)
        client.send_raw(raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body(topic, 0, MESSAGE, raw.FLUSHED)))
        assert broker.process is not None
        broker.process.terminate()
        broker.wait_log("stopping reason=SIGTERM")
        broker.resume("processor-0")
        _, answer = client.recv_own()
        assert answer.error == 0
        assert client.is_closed()
        assert broker.process.wait(LATEST_END) == 0
    assert broker.stored_bytes(topic, 0) == MESSAGE * 51


def test_a_second_broker_is_refused(
    start_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    """T-30: one broker per directory; the refusal names the processes that hold it, and disturbs none of them."""
    broker = start_broker(processors=1)
    monkeypatch.setattr(broker_module, "LOCK_SECONDS", 0.05)
    with pytest.raises(LogError) as caught, broker_module._locked(broker.log_dirs[0]):
        pytest.fail("it got the directory")
    for pid in broker.pids().values():
        assert str(pid) in str(caught.value)
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, MESSAGE).error == 0


def test_the_name_of_a_new_log_directory_is_durable(tmp_path: Path) -> None:
    """With those of the directories above it that had to be made; and once more when the power may have been faster."""
    new = tmp_path / "a" / "b" / "c"
    files = FaultyFileOps()
    with broker_module._locked(new, files):
        pass
    assert [item for item in files.order if item[0] in ("mkdir", "fsync_dir")] == [
        *(("mkdir", name) for name in "abc"),
        *(("fsync_dir", name) for name in ("b", "a", tmp_path.name)),
    ]
    assert (new / ".lock").exists()
    files = FaultyFileOps()
    with broker_module._locked(new, files):
        pass
    assert not files.order
    (new / ".lock").unlink()
    with broker_module._locked(new, files):
        pass
    assert files.order == [("fsync_dir", "b")]
    files.fail("fsync_dir", 1)
    with pytest.raises(LogError, match="Input/output error"), broker_module._locked(tmp_path / "d", files):
        pass


MANY = 300


def many_dirty(start_broker: Callable[..., Broker], faults: str) -> Broker:
    """A broker with a message in each of many partitions, none of which has a side file that tells of it."""
    settings = {"num.partitions": MANY, "log.default.flush.interval.ms": 600_000}
    broker = start_broker(processors=1, settings=settings, environment={"FASTLOG_FAULTS": faults})
    with broker.connect() as client:
        for partition in range(MANY):
            assert client.produce_ack("many", partition, MESSAGE).error == 0
    return broker


def assert_all_there(broker: Broker) -> None:
    """The marker names each of them; the next start finds them."""
    assert json.loads(marker(broker).read_text())["ends"] == {f"many-{number}": len(MESSAGE) for number in range(MANY)}
    broker.environment.clear()
    broker.start()
    with broker.connect() as client:
        for partition in range(MANY):
            assert client.read_all("many", partition) == MESSAGE
    assert broker.stop(LATEST_END) == 0


@pytest.mark.slow
def test_many_partitions_take_the_time_that_they_take(start_broker: Callable[..., Broker]) -> None:
    """Side files alone take longer here than a stop has, by eight threads; one after the other is written."""
    broker = many_dirty(start_broker, "keeper:side_file.write@1-=slow:200")
    assert broker.stop(5 * LATEST_END) == 0
    assert "the stop goes on role=keeper" in broker.log_text()
    for partition in range(MANY):
        side = json.loads((broker.log_dirs[0] / f"many-{partition}" / "fastlog.json").read_text())
        assert side["checkpoint"] == len(MESSAGE)
    assert_all_there(broker)


@pytest.mark.slow
@pytest.mark.parametrize("faults", ["keeper:side_file.write@20=kill", "keeper:side_file.write@20-=ENOSPC"])
def test_side_files_that_are_not_written_cost_nothing_but_a_longer_scan(
    faults: str, start_broker: Callable[..., Broker]
) -> None:
    broker = many_dirty(start_broker, faults)
    assert broker.stop(LATEST_END) == 0
    assert_all_there(broker)
