"""A disk that fails for a while: its partitions come back into service by themselves, with all that was promised."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.harness import raw_client as raw
from tests.harness.broker import Broker, wait_until
from tests.harness.timing import PATIENCE

ONE, TWO, THREE = (raw.entry(word * 3) for word in (b"one", b"two", b"three"))
OFFLINE = 101
OK, READ_ONLY = 0, 1
SOON = {"recovery.retry.ms": "200"}


def failing(start_broker: Callable[..., Broker], faults: str, **settings: str) -> Broker:
    return start_broker(environment={"FASTLOG_FAULTS": faults}, settings=SOON | settings)


def state(client: raw.RawClient, topic: str) -> raw.PartitionState:
    return client.metadata([topic]).topics[topic].partitions[0]


def wait_back(client: raw.RawClient, topic: str) -> None:
    wait_until(f"{topic} is back", lambda: state(client, topic).state == OK)


def is_stopped(broker: Broker, role: str) -> bool:
    return psutil.Process(broker.pids()[role]).status() == psutil.STATUS_STOPPED


def test_what_was_appended_is_there_and_goes_on(start_broker: Callable[..., Broker], topic: str) -> None:
    """Told of the failure, a producer goes on with the same partition; no message is missing, doubled or moved."""
    broker = failing(start_broker, "flusher:fdatasync@2=EIO")
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, ONE, raw.FLUSHED).error == 0
        created = client.metadata([topic]).topics[topic].partitions[0]
        assert client.produce_ack(topic, 0, TWO, raw.FLUSHED).error == OFFLINE
        assert client.read_all(topic, 0) == ONE
        wait_back(client, topic)
        assert state(client, topic).log_start == created.log_start
        assert client.read_all(topic, 0) == ONE + TWO
        assert client.produce_ack(topic, 0, THREE, raw.FLUSHED) == (0, 0, len(ONE + TWO), len(ONE + TWO + THREE))
        assert client.read_all(topic, 0) == broker.stored_bytes(topic, 0) == ONE + TWO + THREE
    broker.wait_log(
        rf"back in service topic='{topic}' partition=0 offset={len(ONE + TWO)} lost_bytes=0, after: read-only"
    )
    broker.restart()
    with broker.connect() as client:
        assert client.read_all(topic, 0) == ONE + TWO + THREE


def test_a_reader_that_waits_gets_what_comes_afterwards(start_broker: Callable[..., Broker], topic: str) -> None:
    """A long poll at the visible end, begun before the disk failed, ends with the messages that were in doubt."""
    broker = failing(start_broker, "flusher:fdatasync@2=EIO")
    with broker.connect() as client, broker.connect() as reader:
        assert client.produce_ack(topic, 0, ONE, raw.FLUSHED).error == 0
        body = raw.held_fetch_body(topic, 0, len(ONE), 1 << 20, int(PATIENCE * 1000), 1)
        reader.send_raw(raw.own_frame(raw.HELD_FETCH, body))
        assert client.produce_ack(topic, 0, TWO, raw.FLUSHED).error == OFFLINE
        assert raw.decode_held(reader.recv_own()[1]).messages == TWO


def test_a_disk_that_stays_ill_is_tried_again_and_read_meanwhile(
    start_broker: Callable[..., Broker], topic: str
) -> None:
    broker = failing(start_broker, "flusher:fdatasync@2-=EIO,keeper:fdatasync@1-=EIO")
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, ONE, raw.FLUSHED).error == 0
        assert client.produce_ack(topic, 0, TWO, raw.FLUSHED).error == OFFLINE
        broker.wait_log(rf"stays out of service topic='{topic}'|a flush failed.*(?s:.*)a flush failed")
        assert client.read_all(topic, 0)[: len(ONE)] == ONE
        assert client.produce_ack("other", 0, ONE).error in (0, OFFLINE)


def test_it_may_be_left_to_the_next_start(start_broker: Callable[..., Broker], topic: str) -> None:
    broker = failing(start_broker, "flusher:fdatasync@2=EIO", **{"recovery.retry.ms": "0"})
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, ONE, raw.FLUSHED).error == 0
        assert client.produce_ack(topic, 0, TWO, raw.FLUSHED).error == OFFLINE
        broker.wait_log(rf"partition read-only.* topic='{topic}'")  # said by the keeper's look that has it tried
        for _ in range(5):  # each is several of its turns, and a try begins with the first
            assert client.create_topic("other", 1) == (0, 1)
            assert client.delete_topic("other")[0] == 0
        assert state(client, topic).state == READ_ONLY


@pytest.mark.parametrize(
    ("point", "again"), [("return.recovered", True), ("return.added", True), ("return.elsewhere", False)]
)
def test_the_next_keeper_finishes(start_broker: Callable[..., Broker], topic: str, point: str, again: bool) -> None:
    """Killed with the partition half-way back; then it is there once, whole, and no slot is lost."""
    broker = failing(start_broker, f"flusher:fdatasync@2=EIO,keeper:{point}@1=stop", **{"max.partitions": "4"})
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, ONE, raw.FLUSHED).error == 0
        assert client.produce_ack(topic, 0, TWO, raw.FLUSHED).error == OFFLINE
        wait_until("the keeper stands there", lambda: is_stopped(broker, "keeper"))
        assert client.read_all(topic, 0)[: len(ONE)] == ONE
        broker.wait_replaced("keeper", broker.kill("keeper"))
        if again:
            wait_until("the next one stands there, too", lambda: is_stopped(broker, "keeper"))
            broker.resume("keeper")
        wait_back(client, topic)
        assert client.produce_ack(topic, 0, THREE, raw.FLUSHED).error == 0
        assert client.read_all(topic, 0) == ONE + TWO + THREE
        assert list(client.metadata([topic]).topics[topic].partitions) == [0]
        wait_until("all slots can be used", lambda: client.create_topic("rest", 3) == (0, 3))
        assert client.create_topic("more", 1)[0] != 0


def test_a_request_that_comes_just_then_is_served(start_broker: Callable[..., Broker], topic: str) -> None:
    """The processor stands before its table, which knows the slot that the partition leaves."""
    rules = "flusher:fdatasync@2=EIO,keeper:return.recovered@1=stop,processor-0:life.processor_looks@1-=stop"
    broker = start_broker(processors=1, environment={"FASTLOG_FAULTS": rules}, settings=SOON)
    goes_on, over = threading.Lock(), threading.Event()

    def resume() -> None:
        while not over.wait(0.001):
            with goes_on:
                if is_stopped(broker, "processor-0"):
                    broker.resume("processor-0")

    resuming = threading.Thread(target=resume)
    resuming.start()
    try:
        with broker.connect() as client:
            assert client.produce_ack(topic, 0, ONE, raw.FLUSHED).error == 0
            assert client.produce_ack(topic, 0, TWO, raw.FLUSHED).error == OFFLINE
            wait_until("the keeper stands there", lambda: is_stopped(broker, "keeper"))
            with goes_on:
                client.send_raw(raw.fetch_frame(topic, 0, 0, 1 << 20))
                wait_until("the processor stands there", lambda: is_stopped(broker, "processor-0"))
                broker.resume("keeper")
                broker.wait_log(rf"back in service topic='{topic}'")
            assert client.recv_answer() == (0, ONE + TWO)
    finally:
        over.set()
        resuming.join()


def test_all_slots_may_be_taken(start_broker: Callable[..., Broker], topic: str) -> None:
    """A partition needs no free slot to come back, and takes none from the others."""
    broker = failing(start_broker, "flusher:fdatasync@2=EIO", **{"max.partitions": "2"})
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, ONE, raw.FLUSHED).error == 0
        assert client.create_topic("other", 1) == (0, 1)
        assert client.produce_ack(topic, 0, TWO, raw.FLUSHED).error == OFFLINE
        wait_back(client, topic)
        assert client.produce_ack("third", 0, ONE).error == 103
        assert client.read_all(topic, 0) == ONE + TWO


def test_it_can_be_deleted_while_it_is_out(start_broker: Callable[..., Broker], topic: str, tmp_path: Path) -> None:
    broker = failing(start_broker, "flusher:fdatasync@2=EIO")
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, ONE, raw.FLUSHED).error == 0
        assert client.produce_ack(topic, 0, TWO, raw.FLUSHED).error == OFFLINE
        time.sleep(0.21)  # about when it is taken out to be recovered
        assert client.delete_topic(topic)[0] == 0
        assert client.produce_ack(topic, 0, THREE, raw.FLUSHED)[2:] == (0, len(THREE))


def test_what_memory_has_lost_is_cut_and_said(start_broker: Callable[..., Broker], topic: str) -> None:
    """Bytes behind the flushed end that are not what was written: the log ends before them, and says how many."""
    broker = failing(start_broker, "flusher:fdatasync@2=EIO", **{"recovery.retry.ms": "1000"})
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, ONE, raw.FLUSHED).error == 0
        assert client.produce_ack(topic, 0, TWO, raw.FLUSHED).error == OFFLINE
        with next(iter(broker.segments(topic, 0).values())).open("r+b") as segment:
            segment.seek(len(ONE) + 12)
            segment.write(b"X")
        wait_back(client, topic)
        broker.wait_log(rf"back in service topic='{topic}' partition=0 offset={len(ONE)} lost_bytes={len(TWO)}")
        assert client.produce_ack(topic, 0, THREE, raw.FLUSHED)[2:] == (len(ONE), len(ONE + THREE))
        assert client.read_all(topic, 0) == ONE + THREE
