"""A flush that fails, and a flusher that dies around one: the watermark never passes bytes that may be lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastlog.segment_files import FLUSH_MARKS_NAME
from tests.harness import raw_client as raw
from tests.harness.broker import Broker, wait_until
from tests.harness.history import History
from tests.harness.load import Load, stored

MESSAGE = raw.entry(b"a message")
OFFLINE = 101
STORAGE = 103
READ_ONLY_STATE = 1


def failing(start_broker: Callable[..., Broker], faults: str, **options: Any) -> Broker:
    """What leaves service stays out of it; ``test_returns`` is about the way back."""
    settings = {"recovery.retry.ms": "0"} | options.pop("settings", {})
    return start_broker(environment={"FASTLOG_FAULTS": faults}, settings=settings, **options)


@pytest.mark.slow
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_the_watermark_stays_below_what_was_lost(start_broker: Callable[..., Broker], topic: str, error: str) -> None:
    """I-5: no retry, not even by a new flusher; appends are refused, reads below go on, a new start recovers."""
    broker = failing(start_broker, f"flusher:fdatasync@3={error}")
    size = len(MESSAGE)
    with broker.connect() as client, broker.connect() as plain:
        assert client.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).error == 0
        assert client.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).error == 0
        assert client.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).error == OFFLINE
        assert client.produce_ack("other", 0, MESSAGE, raw.FLUSHED).error == 0, "another partition suffers"
        for _ in range(2):
            state = client.metadata([topic]).topics[topic].partitions[0]
            assert (state.state, state.high_watermark, state.log_end) == (READ_ONLY_STATE, 2 * size, 3 * size)
            assert client.produce_ack(topic, 0, MESSAGE).error == OFFLINE
            assert client.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).error == OFFLINE
            assert client.read_all(topic, 0) == 2 * MESSAGE
            assert client.offsets(topic, 0) == [2 * size, 0]
            assert client.held_fetch(topic, 0, 2 * size, max_wait_ms=20).messages == b""
            # the successor of the flusher knows of it, too
            broker.wait_replaced("flusher", broker.kill("flusher"))
        plain.produce(topic, 0, MESSAGE)
        assert plain.is_closed()
        if error == "EIO":
            broker.wait_log(rf"partition read-only: a flush failed \(Input/output error\) topic='{topic}'")
        assert client.produce_ack("other", 0, MESSAGE, raw.FLUSHED).error == 0
    broker.kill_all()
    broker.environment.clear()
    broker.start()
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).error == 0
        assert client.read_all(topic, 0) == broker.stored_bytes(topic, 0) == 4 * MESSAGE


@pytest.mark.slow
def test_what_was_acknowledged_before_a_failed_cut_is_shown(start_broker: Callable[..., Broker], topic: str) -> None:
    """I-5: no appends any more, but a flush that somebody waits for comes to its end, and a consumer
    and a new start find what was acknowledged, and nothing of the request that failed."""
    faults = "processor:pwrite@3=short,processor:pwrite@4=EIO,processor:ftruncate@1=EIO,flusher:fdatasync@1=slow:500"
    settings = {"log.default.flush.interval.ms": 60_000}
    broker = failing(start_broker, faults, processors=1, settings=settings)
    with broker.connect() as client, broker.connect() as waiting:
        assert client.produce_ack(topic, 0, MESSAGE).error == 0
        errors: list[int] = []
        waiter = threading.Thread(
            target=lambda: errors.append(waiting.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).error), daemon=True
        )
        waiter.start()
        wait_until("it is appended", lambda: len(broker.stored_bytes(topic, 0)) == 2 * len(MESSAGE))
        assert client.produce_ack(topic, 0, MESSAGE).error == STORAGE
        waiter.join(30)
        assert errors == [0]
        assert client.produce_ack(topic, 0, MESSAGE).error == OFFLINE
        state = client.metadata([topic]).topics[topic].partitions[0]
        end = 2 * len(MESSAGE)
        assert (state.state, state.high_watermark, state.log_end) == (READ_ONLY_STATE, end, end)
        assert client.read_all(topic, 0) == 2 * MESSAGE
        assert len(broker.stored_bytes(topic, 0)) > 2 * len(MESSAGE)
    assert broker.stop() == 0, "nothing is unflushed"
    broker.environment.clear()
    broker.start()
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).error == 0
        assert client.read_all(topic, 0) == broker.stored_bytes(topic, 0) == 3 * MESSAGE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "in_doubt"),
    [("", False), ("flusher:fdatasync@2=EIO", True), ("flusher:flush.before_sync@2-=slow:60000", True)],
    ids=["idle", "after a failed flush", "in a flush"],
)
def test_a_start_knows_whether_a_flush_may_have_failed(
    start_broker: Callable[..., Broker], topic: str, faults: str, in_doubt: bool
) -> None:
    """I-5, A2: the whole broker is killed; whether the last flush came to its end is known by the mark it left."""
    broker = failing(start_broker, faults)
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).error == 0
        marks = broker.log_dirs[0] / FLUSH_MARKS_NAME
        wait_until("the end of the first flush", lambda: not any(marks.read_bytes()))  # it answers before that
        if faults:
            client.produce(topic, 0, MESSAGE)
            wait_until("a second flush", lambda: any(marks.read_bytes()))
    broker.kill_all()
    broker.environment.pop("FASTLOG_FAULTS")
    broker.start()
    assert ("has an open end" in broker.log_text()) == in_doubt
    with broker.connect() as client:
        assert client.read_all(topic, 0) == MESSAGE * (2 if in_doubt else 1), "what was appended outlives the processes"
    broker.kill_all()
    broker.start()
    assert "has an open end" not in broker.log_text(), "the first start has settled it"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "reason"), [("ENOSPC", r"no room .*\.fastlog-flushing"), ("EMFILE", "no file descriptors")]
)
def test_a_flush_that_cannot_leave_its_mark_waits(
    start_broker: Callable[..., Broker], topic: str, error: str, reason: str
) -> None:
    """Nothing is tried without one; the log says so once, and the flush comes when there is room."""
    broker = failing(start_broker, f"flusher:mark@3-50={error}")
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).error == 0
        assert client.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).error == 0
        assert client.read_all(topic, 0) == MESSAGE * 2
    broker.wait_log(f"flushes do not wait any more: .*{reason}")
    assert broker.log_text().count("flushes wait and are tried again") == 1


@pytest.mark.slow
@pytest.mark.parametrize("call", ["flusher:fsync@1-=EIO", "flusher:open@1=EIO"])
def test_a_directory_that_cannot_be_synced(start_broker: Callable[..., Broker], topic: str, call: str) -> None:
    """I-8: what lies in a file whose name may be lost is not shown."""
    broker = failing(start_broker, call)
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).error == OFFLINE
        assert client.offsets(topic, 0)[0] == 0
        assert client.fetch_ok(topic, 0, 0) == b""


@pytest.mark.slow
def test_a_new_segment_that_cannot_be_synced(start_broker: Callable[..., Broker], topic: str) -> None:
    """I-8: the watermark does not pass the base of a segment whose directory entry may be lost."""
    broker = failing(start_broker, "flusher:fsync@3=EIO", settings={"log.file.size": 10})
    with broker.connect() as client:
        # the first flush syncs directory and parent, the roll's flush the directory again
        assert client.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).error == 0
        assert client.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).error == OFFLINE
        assert client.offsets(topic, 0)[0] == len(MESSAGE)
        assert len(broker.segments(topic, 0)) == 2
    broker.kill_all()
    broker.environment.clear()
    broker.start()
    with broker.connect() as client:
        assert client.read_all(topic, 0) == 2 * MESSAGE


@pytest.mark.slow
@pytest.mark.parametrize("point", ["flush.before_sync", "flush.after_sync"])
def test_a_flusher_that_dies_around_its_sync(start_broker: Callable[..., Broker], topic: str, point: str) -> None:
    """Nobody knows whether those bytes are on the disk: the successor writes them again, and the watermark goes on."""
    # each flusher dies in its second flush; a third fdatasync by any of them would only come after a rewrite
    broker = failing(start_broker, f"flusher:{point}@2=kill")
    with broker.connect() as client:
        for number in range(1, 6):
            answer = client.produce_ack(topic, 0, raw.entry(b"%d" % number), raw.FLUSHED)
            assert answer.error == 0
            assert client.offsets(topic, 0)[0] == answer.next_offset
        expected = b"".join(raw.entry(b"%d" % number) for number in range(1, 6))
        assert client.read_all(topic, 0) == broker.stored_bytes(topic, 0) == expected
    assert broker.log_text().count("started role=flusher") >= 4


@pytest.mark.slow
def test_bytes_that_changed_while_a_flush_was_lost(start_broker: Callable[..., Broker], topic: str) -> None:
    """What cannot be read back as it was written is not shown: the partition leaves service."""
    broker = failing(start_broker, "flusher:flush.before_sync@2=kill")
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, MESSAGE, raw.FLUSHED).error == 0
        flusher = broker.pause("flusher")
        assert client.produce_ack(topic, 0, MESSAGE).error == 0
        (path,) = broker.segments(topic, 0).values()
        with path.open("r+b") as file:
            file.seek(2 * len(MESSAGE) - 1)
            file.write(b"?")
        broker.resume("flusher")
        client.send_raw(raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body(topic, 0, MESSAGE, raw.FLUSHED)))
        broker.wait_replaced("flusher", flusher)
        assert client.recv_own()[1].error == OFFLINE
        assert client.offsets(topic, 0)[0] == len(MESSAGE)
        assert client.read_all(topic, 0) == MESSAGE


@pytest.mark.slow
def test_flushers_that_die_at_every_turn_under_load(tmp_path: Path) -> None:
    """I-1, I-3, I-5: every flusher dies in one of its first flushes, and flushed answers still come."""
    history = History()
    faults = "flusher:flush.before_sync@7=kill,flusher:flush.after_sync@5=kill"
    with Broker(tmp_path, environment={"FASTLOG_FAULTS": faults}) as broker:
        with Load(broker, [("a", 0), ("b", 0)], acks=raw.FLUSHED, seed=9, history=history) as load:
            wait_until("six flushers died", lambda: broker.log_text().count("started role=flusher") > 6)
            load.wait_acked(10)
        assert load.lost_connections == 0
        assert not load.errors
        broker.kill_all()
        assert history.check(stored(broker, history)) == []


@pytest.mark.slow
def test_a_failure_under_load(tmp_path: Path) -> None:
    """I-3, I-5: consumers and producers go on elsewhere; where the flush failed, nothing further is ever shown."""
    history = History()
    places = [("a", 0), ("b", 0)]
    # The flusher that replaces the killed one fails at its 60th as well: far behind the 20 answers that are waited for.
    with Broker(tmp_path, environment={"FASTLOG_FAULTS": "flusher:fdatasync@60=EIO"}) as broker:
        with Load(broker, places, acks=raw.FLUSHED, seed=4, history=history) as load:
            wait_until("the flush failed", lambda: load.errors[OFFLINE] > 0)
            with broker.connect() as client:
                metadata = client.metadata([topic for topic, _ in places])
                (broken,) = [place for place in places if metadata.topics[place[0]].partitions[0].state]
                history.stopped(broken, metadata.topics[broken[0]].partitions[0].high_watermark)
            load.wait_acked(20)
            broker.wait_replaced("flusher", broker.kill("flusher"))
            load.wait_acked(20)
        assert set(load.errors) == {OFFLINE}
        assert broker.stop() == 1
        assert f"not flushed: {broken[0]}-0 " in broker.log_text()
        history.restarted()
        broker.environment.clear()
        broker.start()
        with Load(broker, places, seed=5, history=history, name="q") as load:
            load.wait_acked(20)
        assert not load.errors
        broker.stop()
        assert history.check(stored(broker, history)) == []
