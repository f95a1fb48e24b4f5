"""A slot's life ends under a flusher and under processors: who waits is answered, who looks is waited for."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastlog.log import _files
from fastlog.log._shared_memory import FLUSHER
from fastlog.log.deletion import is_marked, marker_name
from fastlog.workers.kafka07 import answers
from tests.harness import raw_client as raw
from tests.harness.lives import ENTRY, WRONG_PARTITION, add, end, free
from tests.harness.shared_log import (
    DONE,
    SharedLog,
    start_flusher,
    stop,
    wait_until,
)
from tests.harness.stopped import stands_still, stopped_at
from tests.harness.workers import Workers, is_silent

pytestmark = pytest.mark.usefixtures("no_faults")


# -- the flusher -------------------------------------------------------------------------------------------------------


@pytest.fixture
def flusher(tmp_path: Path) -> Iterator[Callable[[SharedLog, str], int]]:
    """Starts a flusher that looks at partitions, with faults; it is gone at the end."""
    pids = []

    def begin(log: SharedLog, faults: str = "") -> int:
        log.files.close_unused()  # or it would inherit them
        log.arena.see(FLUSHER, log.arena.change_count)
        pids.append(start_flusher(log.arena, faults))
        return pids[-1]

    yield begin
    for pid in pids:
        stop(pid)


def open_in(pid: int, log: SharedLog) -> list[str]:
    """The segments of a log that a process has open."""
    links = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            links.append(str(link.readlink()))
    return [name for name in links if name.startswith(str(log.directory)) and ".kafka" in name]


@pytest.mark.parametrize("point", ["flush.begun", "flush.marked", "flush.before_sync", "flush.after_sync"])
def test_the_flusher_is_past_it_when_no_thread_flushes_it(
    point: str, flusher: Callable[[SharedLog, str], int], tmp_path: Path
) -> None:
    log = SharedLog(tmp_path)
    assert log.append(ENTRY) == DONE
    pid = flusher(log, f"{point}@1=stop")
    log.arena.demand_flush(0)
    wait_until(lambda: stands_still(pid))
    end(log)
    time.sleep(0.02)
    assert not log.arena.is_past(0)
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: log.arena.is_past(0))
    assert open_in(pid, log) == []


def test_a_slow_flush_is_waited_for(flusher: Callable[[SharedLog, str], int], tmp_path: Path) -> None:
    """The loop of the flusher turns meanwhile; it is one of its threads that is not past."""
    log = SharedLog(tmp_path)
    assert log.append(ENTRY) == DONE
    pid = flusher(log, "fdatasync@1=slow:600")
    log.arena.demand_flush(0)
    wait_until(lambda: open_in(pid, log) != [])
    end(log)
    assert wait_until(lambda: log.arena.is_past(0)) > 0.2
    assert open_in(pid, log) == []


def test_the_flusher_forgets_what_has_gone(flusher: Callable[[SharedLog, str], int], tmp_path: Path) -> None:
    """It keeps no file of it open, does not flush what is left, and flushes the next life."""
    log = SharedLog(tmp_path)
    pid = flusher(log, "")
    assert log.append(ENTRY) == DONE
    log.arena.demand_flush(0)
    wait_until(lambda: log.view().visible_offset == len(ENTRY))
    assert open_in(pid, log) == [str(log.path(0))]
    assert log.append(ENTRY) == DONE
    end(log)
    wait_until(lambda: log.arena.is_past(0))
    assert open_in(pid, log) == []
    log.folder(0).rename(tmp_path / "away")
    free(log)
    assert add(log.arena, "t") == 0
    assert log.append(ENTRY) == DONE
    log.arena.demand_flush(0)
    wait_until(lambda: log.view().visible_offset == len(ENTRY))
    assert open_in(pid, log) == [str(log.path(0))]


# -- processors --------------------------------------------------------------------------------------------------------


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Workers]:
    """A processor without a flusher, whose heartbeats are hours apart: what is not woken is never seen."""
    with Workers(tmp_path, flusher=False, partitions=2, flush_bytes=1 << 20) as workers:
        yield workers


def end_in(workers: Workers, slot: int = 0) -> None:
    end(SharedLog.over(workers.arena), slot)


def test_an_answer_that_is_owed_ends_with_the_life(one: Workers) -> None:
    """Its messages were appended and not flushed, which they never will be."""
    with one.connect() as client:
        client.send_raw(raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body("t", 0, raw.entry(b"x"), raw.FLUSHED)))
        wait_until(lambda: one.count("appends") == 1)
        one.wait_still()
        end_in(one)
        assert client.recv_own()[1].error == WRONG_PARTITION
        wait_until(lambda: one.arena.is_past(0))


def test_a_write_that_waits_for_room_ends_with_the_life(one: Workers) -> None:
    """Nothing of it gets into the next life."""
    big = raw.entry(b"x" * (700 << 10))
    with one.connect() as client:
        assert client.produce_ack("t", 0, big).error == 0
        client.send_raw(raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body("t", 0, big, raw.APPENDED)))
        wait_until(lambda: one.count("append_waits") >= 1)
        one.wait_still()
        end_in(one)
        assert client.recv_own()[1].error == WRONG_PARTITION
        wait_until(lambda: one.arena.is_past(0))
    assert (one.directory / "t-0" / f"{0:020}.kafka").stat().st_size == len(big)


def test_a_write_that_waits_for_a_lock_ends_with_the_life(one: Workers) -> None:
    """Another process held it, and was killed: nobody but the end of the life wakes who waits."""
    log = SharedLog.over(one.arena)
    with one.connect() as client:
        assert client.produce_ack("t", 0, ENTRY).error == 0
        with stopped_at("append.after_lock", lambda: log.append(ENTRY)) as writer:
            client.send_raw(raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body("t", 0, ENTRY, raw.APPENDED)))
            wait_until(lambda: one.count("lock_waits") >= 1)
            one.wait_still()
            writer.kill()
        end(log)
        assert client.recv_own()[1].error == WRONG_PARTITION
        wait_until(lambda: one.arena.is_past(0))
    assert log.stored() == ENTRY


def test_a_write_without_an_answer_goes_with_the_life(one: Workers) -> None:
    """As if it had come before the deletion; its connection lives on."""
    log = SharedLog.over(one.arena)
    with one.connect() as client:
        assert client.produce_ack("t", 0, ENTRY).error == 0
        with stopped_at("append.after_lock", lambda: log.append(ENTRY)) as writer:
            client.produce("t", 0, ENTRY)
            wait_until(lambda: one.count("lock_waits") >= 1)
            one.wait_still()
            writer.kill()
        end(log)
        wait_until(lambda: one.arena.is_past(0))
        assert client.metadata().topics == {}
    assert log.stored() == ENTRY


def test_a_processor_closes_what_has_gone(one: Workers) -> None:
    """Also where nobody asks it for anything."""
    log = SharedLog.over(one.arena)
    with one.connect() as client:
        for partition in (0, 1):
            assert client.produce_ack("t", partition, ENTRY).error == 0
        log.files.close_unused()
        one.wait_still()
        name = f"{0:020}.kafka"
        assert one.held()[f"t-0/{name}"] == one.held()[f"t-1/{name}"] == 1
        end(log, 0)
        wait_until(lambda: one.held()[f"t-0/{name}"] == 0)
        assert one.held()[f"t-1/{name}"] == 1


def test_a_processor_is_past_it_when_its_threads_are(one: Workers) -> None:
    """An answer that is being made may be about to use what it has found; the loop turns meanwhile."""
    with one.connect() as client, one.connect() as other:
        for topic in ("t", "u"):
            assert client.produce_ack(topic, 0, ENTRY).error == 0
        one.wait_still()
        _files.arm("delete.wanted@1=slow:600", "test")
        began = time.monotonic()
        client.send_raw(raw.own_frame(raw.DELETE_TOPIC, raw.text("u")))
        wait_until(lambda: is_marked("u", [one.directory]))
        end_in(one)
        assert other.fetch("t", 0, 0) == (0, b"")  # past it, but for the thread
        assert not one.arena.is_past(0)
        wait_until(lambda: one.arena.is_past(0))
        assert time.monotonic() - began > 0.5
        let_go(one, "u", slot=1)
        assert client.recv_own()[1].error == 0


def let_go(workers: Workers, topic: str, slot: int) -> None:
    """Do what the keeper does about a marker."""
    end_in(workers, slot)
    (workers.directory / f"{topic}-0").rename(workers.directory / f"away-{slot}")
    (workers.directory / marker_name(topic)).unlink()
    free(SharedLog.over(workers.arena), slot)


def test_a_deletion_is_answered_when_the_name_is_free(one: Workers) -> None:
    """Not when the partition has gone, whose directory still has its name."""
    log = SharedLog.over(one.arena)
    with one.connect() as client:
        assert client.produce_ack("t", 0, ENTRY).error == 0
        client.send_raw(raw.own_frame(raw.DELETE_TOPIC, raw.text("t")))
        wait_until(lambda: is_marked("t", [one.directory]))
        for step in (
            lambda: None,
            lambda: end(log),
            lambda: (one.directory / "t-0").rename(one.directory / "away"),
            lambda: (one.directory / marker_name("t")).unlink(),
        ):
            step()
            one.arena.wake_creators()
            one.wait_still()
            assert is_silent(client)
        free(log)
        assert client.recv_own()[1].error == 0


def wait_for_the_marker_alone(workers: Workers, client: raw.RawClient) -> None:
    """Have topic ``t`` made and its deletion asked for, until nothing but the marker is left of it."""
    log = SharedLog.over(workers.arena)
    assert client.produce_ack("t", 0, ENTRY).error == 0
    client.send_raw(raw.own_frame(raw.DELETE_TOPIC, raw.text("t")))
    wait_until(lambda: is_marked("t", [workers.directory]))
    end(log)
    (workers.directory / "t-0").rename(workers.directory / "away")
    free(log)
    workers.wait_still()


def test_a_deletion_is_not_answered_while_its_marker_stands(one: Workers) -> None:
    """Two asked for one topic, and the keeper had finished when the second one's marker was there: it would delete what
    is made after the answer.
    """
    with one.connect() as client:
        wait_for_the_marker_alone(one, client)
        assert is_silent(client)
        (one.directory / marker_name("t")).unlink()
        one.arena.wake_creators()
        assert client.recv_own()[1].error == 0


def test_a_deletion_that_ends_while_its_thread_looks_is_answered(one: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wake-up comes when the thread has looked for the last time, and has not said yet that it waits."""
    looks = []

    def look(topic: str, directories: list[Path]) -> bool:
        found = is_marked(topic, directories)
        looks.append(found)
        if looks == [True, True]:
            (one.directory / marker_name("t")).unlink()
            turned = one.turns()
            one.arena.wake_creators()
            wait_until(lambda: one.turns() > turned)
            one.wait_still()
        return found

    with one.connect() as client:
        wait_for_the_marker_alone(one, client)
        monkeypatch.setattr(answers, "is_marked", look)
        one.arena.wake_creators()
        assert client.recv_own()[1].error == 0
        assert looks[:2] == [True, True]


def test_a_thread_that_looks_at_no_partition_is_not_waited_for(one: Workers) -> None:
    """One that reads a file has it open, and knows no name."""
    log = SharedLog.over(one.arena)
    with one.connect() as client:
        assert client.produce_ack("t", 0, ENTRY).error == 0
        one.wait_still()
        end(log)
        wait_until(lambda: one.arena.is_past(0))
        assert client.fetch("t", 0, 0) == (0, b"")


def test_processors_follow_slots_from_one_topic_to_the_next(one: Workers) -> None:
    """More often than the ring is long: the names in their tables are those that there are."""
    log = SharedLog.over(one.arena)
    with one.connect() as client:
        for turn in range(300):
            topic = f"t{turn % 7}"
            if turn % 50 == 0:
                assert client.produce_ack("stays", 0, ENTRY).error == 0
            message_now = raw.entry(b"turn %d" % turn)
            assert client.produce_ack(topic, turn % 2, message_now).base_offset == 0
            slot = next(view.index for view in one.arena.views() if view.topic == topic)
            end(log, slot)
            wait_until(lambda slot=slot: one.arena.is_past(slot))  # type: ignore[misc]
            assert client.offsets(topic, turn % 2) == [0]
            (one.directory / f"{topic}-{turn % 2}").rename(one.directory / f"gone-{turn}")
            free(log, slot)
        assert sorted(client.metadata().topics) == ["stays"]
        assert one.arena.slot_count == 2


def test_of_a_topic_that_has_gone_no_partition_is_remembered(one: Workers) -> None:
    """It had more than the configured count; who writes to any of the new one's writes to one of these."""
    slots = [add(one.arena, "wide", partition) for partition in (4, 5)]
    with one.connect() as client:
        for partition, slot in zip((4, 5), slots, strict=True):
            assert client.produce_ack("wide", partition, ENTRY).error == 0
            end_in(one, slot)
            wait_until(lambda slot=slot: one.arena.is_past(slot))  # type: ignore[misc]
            (one.directory / f"wide-{partition}").rename(one.directory / f"gone-{partition}")
            free(SharedLog.over(one.arena), slot)
        told = [client.produce_ack("wide", -1, ENTRY) for _ in range(40)]
        assert {answer.error for answer in told} == {0}
        assert {answer.partition for answer in told} == {0, 1}
        assert client.produce_ack("wide", 5, ENTRY).error == WRONG_PARTITION
