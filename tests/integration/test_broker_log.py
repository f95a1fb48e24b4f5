"""What the broker's log says of requests that fail: whose they were, which partition and file, and why."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable

import pytest

from tests.harness import raw_client as raw
from tests.harness.broker import Broker, BrokerDidNotStart

MESSAGE = raw.entry(b"x" * 100)


def test_a_disk_that_cannot_be_read_is_named(start_broker: Callable[..., Broker], topic: str) -> None:
    """EIO is no silence: topic, partition, offset, file and error are in the log, and -1 in the answer."""
    broker = start_broker(processors=1, environment={"FASTLOG_FAULTS": "processor:pread@1-=EIO"})
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).error == 0
        assert client.fetch(topic, 0, 0) == raw.Answer(-1, b"")
        assert client.multifetch([(topic, 0, 0, 1000)]) == [raw.Answer(-1, b"")]
        assert client.held_fetch(topic, 0, 0).error == -1
    found = broker.wait_log(r"ERROR .* the log cannot be read .*")[0]
    path = broker.segments(topic, 0)[0]
    assert f"topic='{topic}' partition=0 offset=0 path={path} position=0 errno=EIO (Input/output error)" in found
    assert broker.log_text().count("the log cannot be read") == 1
    assert broker.stop() == 0
    broker.wait_log(r"cannot be read .* \(and 2 more like it\)")


def test_what_lies_before_a_place_that_cannot_be_read_is_served(
    start_broker: Callable[..., Broker], topic: str
) -> None:
    """An answer that has begun is broken off; asked again, it ends before that place, and there is the error."""
    count = 1000
    broker = start_broker(
        processors=1, environment={"FASTLOG_FAULTS": "processor:sendfile@1=short,processor:sendfile@2-=EIO"}
    )
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, MESSAGE * count, raw.FLUSHED).error == 0
        with pytest.raises(raw.ConnectionClosed):
            client.fetch(topic, 0, 0)
    half = len(MESSAGE) * count // 2
    broker.wait_log(f"the log cannot be read topic='{topic}' partition=0 offset={half} .* errno=EIO")
    with broker.connect() as client:
        # small enough to be read and not sent from the file
        start = half - 5 * len(MESSAGE)
        assert client.fetch(topic, 0, start, 10 * len(MESSAGE)) == raw.Answer(0, MESSAGE * 5)


def test_a_failed_write_names_its_partition(start_broker: Callable[..., Broker], topic: str) -> None:
    broker = start_broker(processors=1, environment={"FASTLOG_FAULTS": "processor:pwrite@1=ENOSPC"})
    with broker.connect() as client:
        client.produce(topic, 0, MESSAGE)
        assert client.is_closed()
    path = broker.partition_directory(topic, 0)
    broker.wait_log(
        rf"a write to the log failed topic='{topic}' partition=0 path={path} errno=ENOSPC "
        r"\(No space left on device\) peer=127\.0\.0\.1"
    )


def test_a_dropped_message_names_its_partition(start_broker: Callable[..., Broker], topic: str) -> None:
    """0.7 has no answer for it: the log is the only place where it can be found."""
    broker = start_broker(processors=1, settings={"max.message.size": 50})
    with broker.connect() as client:
        client.produce(topic, 0, MESSAGE)
        assert client.offsets(topic, 0) == [0]
        broker.wait_log(
            rf"refused peer=127\.0\.0\.1 topic='{topic}' partition=0 bytes=106 .*max\.message\.size was dropped"
        )


def test_damaged_sets_are_one_line_for_each_peer(start_broker: Callable[..., Broker], topic: str) -> None:
    """Their reasons name the place of the damage, so each set has another one."""
    broker = start_broker(processors=1)
    with broker.connect() as client:
        for count in range(50):
            damaged = gzip.compress(MESSAGE * count + struct.pack(">i", 1))
            assert client.produce_ack(topic, 0, raw.entry(damaged, 1, 1)).error == 2
    line = rf"refused peer=127\.0\.0\.1 topic='{topic}' partition=0 invalid compressed message set: "
    broker.wait_log(line)
    assert broker.log_text().count("invalid compressed message set") == 1
    assert broker.stop() == 0
    broker.wait_log(line + r".*\(and 49 more like it\)")


def test_a_mirror_file_that_is_missing_is_refused_before_the_start(start_broker: Callable[..., Broker]) -> None:
    with pytest.raises(BrokerDidNotStart, match=r"exit code 2\n.*cannot read nowhere\.properties: No such file"):
        start_broker(arguments=["--mirror", "nowhere.properties"])


def test_a_mirror_that_cannot_begin_is_the_reason_of_the_stop(start_broker: Callable[..., Broker]) -> None:
    broker = start_broker(arguments=["--mirror", "/dev/null"])
    broker.wait_log(r"stopped without the clean marker: role=mirror could not start: see the lines above")
