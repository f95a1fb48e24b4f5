"""What a process of the broker is started with: every setting at its place, and shares of what the machine allows."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastlog import acceptor, listening
from fastlog.config import BrokerConfig
from fastlog.log._arena import Arena
from fastlog.log._shared_memory import ACCEPTOR, COORDINATOR, FIRST_PROCESSOR, FLUSHER, KEEPER
from fastlog.workers import advertised, child, flusher, keeper, processor
from fastlog.workers.coordinator import process as coordinator
from tests.harness.shared_log import in_child

SETTINGS: dict[str, Any] = {
    "max_message_bytes": 1_000_001,
    "max_request_bytes": 2_000_002,
    "fetch_max_wait_ms": 3_003,
    "request_memory_bytes": 4_000_004,
    "trace_requests": True,
    "idle_ms": 5_005,
    "send_buffer_bytes": 6_006,
    "receive_buffer_bytes": 7_007,
    "max_connections": 8_008,
    "early_writeback_bytes": 9_009,
    "flush_min_interval_ms": 11,
}


class Started:
    """Stands for what a process runs: keeps what it was made with."""

    def __init__(self, *arguments: Any, turn_ms: int = child.TURN_MS, remote: Any = None, tracing: Any = None) -> None:
        assert turn_ms == child.TURN_MS
        self.arguments = arguments
        if remote is not None:
            Started.last_remote = remote

    def take_over(self) -> None:
        Started.taken_over = True

    def run(self, *arguments: Any) -> int:
        Started.last = (*self.arguments, *arguments)
        return 5

    slot_waits = "the engine's"
    last: tuple[Any, ...] = ()
    last_remote: Any = None
    taken_over = False


begin = child.begin


@pytest.fixture(autouse=True)
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays a function of this process."""
    monkeypatch.setattr(child, "begin", lambda _shared, _number: 77)
    monkeypatch.setattr(flusher, "make_flusher_loop", Started)
    names = "SegmentFiles Helper Services Engine Kafka07Control Kafka07 KafkaControl Kafka FirstRequest Forward Loop"
    for name in names.split():
        monkeypatch.setattr(processor, name, type(name, (Started,), {}))
    Started.last, Started.taken_over = (), False


def shared_by(
    directory: Path, descriptors: int = 4096, directories: int = 1, count: int = 1, **settings: Any
) -> child.Shared:
    roots = [directory / str(number) for number in range(directories)]
    for root in roots:
        root.mkdir()
    config = BrokerConfig(log_dirs=tuple(map(str, roots)), **(SETTINGS | settings))
    listeners = tuple(
        child.Listener(name, name, "127.0.0.1", 9092, "told", 9093, 31) for name in listening.PROTOCOLS[:count]
    )
    arena = Arena([str(root) for root in roots], FIRST_PROCESSOR + 2, 8, 8)
    ends: dict[str, Any] = {"forward_processor": (61, 62), "supervisor_pid": 99, "cluster_id": "me"}
    return child.Shared(config, arena, listeners, (41, 42), (51, 52), descriptors, **ends)


@pytest.mark.parametrize(("descriptors", "open_segments"), [(8, 16), (64, 16), (67, 16), (68, 17), (4096, 1024)])
def test_the_flusher_keeps_a_quarter_of_its_descriptors_for_segments(
    tmp_path: Path, descriptors: int, open_segments: int
) -> None:
    shared = shared_by(tmp_path, descriptors)
    assert flusher.run(shared, FLUSHER) == 5
    assert Started.last == (
        shared.arena,
        open_segments,
        shared.config.preallocate_bytes,
        9_009,
        11,
        -1,
        child.HEARTBEAT_MS,
        4,
        64,
        99,
    )


@pytest.mark.parametrize(
    ("directories", "threads", "most"),
    [(1, 4, 64), (2, 4, 64), (8, 4, 64), (9, 4, 56), (16, 4, 32), (17, 3, 30), (40, 1, 12), (70, 1, 7), (600, 1, 1)],
)
def test_the_flusher_has_threads_for_each_directory(tmp_path: Path, directories: int, threads: int, most: int) -> None:
    flusher.run(shared_by(tmp_path, directories=directories), FLUSHER)
    assert Started.last[-3:] == (threads, most, 99)


def test_the_flusher_reserves_and_keeps_what_is_set(tmp_path: Path) -> None:
    flusher.run(shared_by(tmp_path, preallocate=False, preallocate_bytes=5 << 20, cache_keep_bytes=0), FLUSHER)
    assert (Started.last[2], Started.last[5]) == (0, 0)
    shared = shared_by(tmp_path / "0", preallocate=True, preallocate_bytes=5 << 20, cache_keep_bytes=6 << 20)
    flusher.run(shared, FLUSHER)
    assert (Started.last[2], Started.last[5]) == (5 << 20, 6 << 20)


@pytest.mark.parametrize("mode", ["handoff", "direct"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_processor_has_its_settings(tmp_path: Path, number: int, mode: str) -> None:
    shared = shared_by(tmp_path, accept_mode=mode, count=3)
    assert processor.run(shared, FIRST_PROCESSOR + number) == 5
    arena, helper, files, waits, protocols, process, *rest = Started.last
    assert (arena, waits, process) == (shared.arena, "the engine's", FIRST_PROCESSOR + number)
    listeners = [31, 31, 31] if mode == "direct" else []
    limit = 4096 - 1024 - 64
    assert rest == [41 + number, 77, listeners, 5_005, limit, 6_006, 7_007, 4_000_004, 8_008, child.HEARTBEAT_MS, 99]
    assert Started.last_remote.arguments == (shared.arena, process, 61 + number)
    assert files.arguments == (shared.arena, 1024)
    assert helper.arguments == (shared.arena, files)
    first, old, today = protocols
    engine, control, *settings = old.arguments
    assert settings == [1_000_001, 2_000_002, 3_003]
    assert first.arguments == (engine, old, today)
    assert today.arguments[0] is engine and list(today.arguments[3:]) == [2_000_002]
    assert engine.arguments[:4] == (shared.arena, files, helper, process)
    services = engine.arguments[4]
    assert services.arguments == (shared.config, shared.arena, process)
    told = [("told", 9093)] * 3
    assert control.arguments == (shared.config, shared.arena, services, told)
    assert today.arguments[2].arguments == (shared.config, shared.arena, services, told, "me")
    assert Started.taken_over


@pytest.mark.parametrize(
    ("descriptors", "connections", "segments"),
    [(16, 8, 16), (64, 8, 16), (95, 8, 23), (96, 8, 24), (97, 9, 24), (100, 11, 25), (1024, 704, 256)],
)
def test_a_processor_shares_its_descriptors(tmp_path: Path, descriptors: int, connections: int, segments: int) -> None:
    """A quarter for segments, some for itself, the rest for connections; a few of each in any case."""
    shared = shared_by(tmp_path, descriptors)
    assert processor.connection_limit(shared) == connections
    processor.run(shared, FIRST_PROCESSOR)
    assert Started.last[2].arguments[1] == segments


@pytest.mark.parametrize("answers", [["wrong"] * 3, ["wrong", "wrong", None], ["wrong", None], [None]])
def test_an_address_that_leads_elsewhere_is_tried_again_after_a_second(
    tmp_path: Path, answers: list[str | None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that begins is not served at once by whatever stands before it; what it says at last, it says once."""
    shared = shared_by(tmp_path)
    left, pauses = list(answers), list[float]()
    monkeypatch.setattr(advertised, "problem_or_none", lambda *_: left.pop(0))
    monkeypatch.setattr(advertised, "time", SimpleNamespace(sleep=pauses.append))
    advertised._check(shared, shared.listeners[0])
    assert left == []
    assert pauses == [1.0] * (len(answers) - 1)
    assert caplog.text.count("ADVERTISED ADDRESS") == (answers[-1] is not None)


def test_a_child_whose_broker_ended_before_it_asked_to_end_with_it_leaves(tmp_path: Path) -> None:
    """The kernel ends it from then on; before it, nobody does. It touches nothing of the broker's."""
    shared = shared_by(tmp_path)
    assert in_child(lambda: begin(dataclasses.replace(shared, supervisor_pid=os.getpid()), FLUSHER)) == 0
    assert shared.arena.cell(FLUSHER)[0] == 0


@pytest.mark.parametrize(
    ("role", "number"),
    [
        (flusher, FLUSHER),
        (keeper, KEEPER),
        (acceptor, ACCEPTOR),
        (coordinator, COORDINATOR),
        (processor, FIRST_PROCESSOR),
    ],
    ids=["flusher", "keeper", "acceptor", "coordinator", "processor"],
)
def test_every_process_becomes_a_child_before_anything_else(
    role: Any, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would outlive its broker, and end at the terminal's signals."""
    begun: list[tuple[child.Shared, int]] = []

    class Begun(Exception):
        pass

    def begins(shared: child.Shared, number: int) -> int:
        begun.append((shared, number))
        raise Begun

    monkeypatch.setattr(child, "begin", begins)
    shared = shared_by(tmp_path)
    with pytest.raises(Begun):
        role.run(shared, number)
    assert begun == [(shared, number)]
