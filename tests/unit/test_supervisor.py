"""The supervisor in virtual time: who is started in which order, replaced after how long, asked, killed, left alone."""

from __future__ import annotations

import errno
import functools
import itertools
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fastlog import supervisor as supervisor_module
from fastlog.config import BrokerConfig
from fastlog.log._arena import Arena
from fastlog.log._shared_memory import ACCEPTOR, FIRST_PROCESSOR, FLUSHER, KEEPER, SUPERVISOR
from fastlog.supervisor import Supervisor
from fastlog.workers import child, flusher, keeper, stalls
from fastlog.workers.child import CANNOT_START, MAY_NOT_RUN, Shared
from fastlog.workers.stalls import Sighting
from tests.harness.shared_log import SharedLog, in_child, message, wait
from tests.harness.simulated_processes import Played, Processes, woken

TICK = 0.25
QUICK = 1.0
"""A process that lived for less was no use."""
SILENT, SILENT_WITH_A_LOCK = 10.0, 2.0
POLITE = 0.5


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Processes]]:
    opened: list[Processes] = []

    def made(**named: Any) -> Processes:
        opened.append(Processes(monkeypatch, tmp_path, **named))
        return opened[-1]

    yield made
    for each in opened:
        each.close()


# -- the start ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "roles"),
    [
        ({}, ["flusher", "keeper", "coordinator", "processor-0", "processor-1", "acceptor"]),
        ({"accept_mode": "direct"}, ["flusher", "keeper", "coordinator", "processor-0", "processor-1"]),
        (
            {"mirror_file": "x"},
            ["flusher", "keeper", "coordinator", "processor-0", "processor-1", "acceptor", "mirror"],
        ),
    ],
)
def test_who_lets_clients_in_is_started_last(
    settings: dict[str, Any], roles: list[str], make: Callable[..., Processes]
) -> None:
    machine = make(**settings)
    assert machine.stop_after(1.0).clean
    assert machine.started() == roles
    assert set(machine.handlers) == {
        signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, *range(signal.SIGRTMIN + 1, signal.SIGRTMIN + 7)
    }  # fmt: skip
    assert machine.arena.cell(SUPERVISOR)[0] == os.getpid()


@pytest.mark.parametrize(
    ("asked", "level", "requests"),
    [([], "info", False), ([1], "debug", False), ([2], "info", False), ([3], "warning", False), ([4], "error", False),
     ([5], "info", True), ([5, 4, 6], "error", False), ([1, 5, 3], "warning", True)],
)  # fmt: skip
def test_signals_say_what_is_logged(
    asked: list[int], level: str, requests: bool, make: Callable[..., Processes], caplog: pytest.LogCaptureFixture
) -> None:
    """The last one of a kind counts, and the log says what holds."""
    machine = make()
    caplog.set_level(logging.INFO)
    machine.at(0.5, lambda: [machine.handlers[signal.SIGRTMIN + number](signal.SIGRTMIN + number, None)
                             for number in asked])  # fmt: skip
    machine.stop_after(1.0)
    switches = machine.shared.switches
    assert (switches.level, switches.requests, bool(switches.tracing[0])) == (level, requests, requests)
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("logging level=")]
    assert said[-1:] == ([f"logging level={level} requests={'on' if requests else 'off'}"] if asked else [])
    assert len(said) == len(asked)


def test_what_is_there_before_the_first_fork_is_never_collected(make: Callable[..., Processes]) -> None:
    """A collection writes into every object it looks at, and the pages that the children share would be copied."""
    machine = make()
    seen: list[list[str]] = []
    machine.when_started["flusher"] = lambda _: seen.append(list(machine.collections))
    machine.stop_after(1.0)
    assert seen == [["collect", "freeze"]] == [machine.collections]


def test_the_supervisor_gives_signs_of_life(make: Callable[..., Processes]) -> None:
    """For whoever asks how the broker is."""
    machine = make()
    machine.at(0.5, lambda: machine.arena.clear_cell(SUPERVISOR, os.getpid(), 1))
    machine.stop_after(1.0)
    assert machine.arena.cell(SUPERVISOR)[1] > 1


def test_the_supervisor_turns_four_times_a_second_and_not_more(make: Callable[..., Processes]) -> None:
    machine = make()
    machine.stop_after(10.0)
    assert [each for each in machine.waits[:40] if each != TICK] == []
    assert len(machine.waits) < 70


# -- replacing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "role", ["flusher", "keeper", "coordinator", "acceptor", "processor-0", "processor-1", "mirror"]
)
@pytest.mark.parametrize("status", [-9, 1, 0])
def test_whoever_dies_is_replaced_at_once(role: str, status: int, make: Callable[..., Processes]) -> None:
    machine = make(mirror_file="x")
    machine.plans[role] = [(3.3125, status)]
    assert machine.stop_after(5.0).clean
    assert machine.starts(role) == [0, 3.3125]
    assert len(machine.all) == 8
    (line,) = machine.lines("died")
    assert line == f"died role={role} exit={status} lived_s=3.3: replaced"
    restarts = {each.role: machine.shared.restarts.of(each.number) for each in machine.all}
    assert restarts == {each.role: int(each.role == role) for each in machine.all}


def test_all_that_died_are_replaced_in_the_same_turn(make: Callable[..., Processes]) -> None:
    machine = make()
    for role in ("flusher", "keeper", "coordinator", "acceptor", "processor-0", "processor-1"):
        machine.plans[role] = [(2.0, -9)]
    assert machine.stop_after(5.0).clean
    assert sorted(machine.started()[6:]) == sorted(machine.started()[:6])
    assert {each.started for each in machine.all[6:]} == {2.0}


@pytest.mark.parametrize(("lived", "pauses"), [(QUICK - 0.0625, True), (QUICK, False)])
def test_the_sixth_quick_death_in_a_row_has_a_pause_behind_it(
    lived: float, pauses: bool, make: Callable[..., Processes]
) -> None:
    machine = make()
    machine.plans["processor-1"] = [(lived, 1)] * 8
    machine.stop_after(12.0)
    starts = machine.starts("processor-1")
    between = [after - before - lived for before, after in itertools.pairwise(starts)]
    assert between[:5] == [0] * 5
    for pause in between[5:]:
        assert (0.25 <= pause <= 0.25 + TICK) if pauses else pause == 0
    assert len(between) == 8


def test_a_life_of_a_second_ends_the_row(make: Callable[..., Processes]) -> None:
    machine = make()
    machine.plans["keeper"] = [(0.5, 1)] * 5 + [(QUICK, 1)] + [(0.5, 1)] * 6
    machine.stop_after(20.0)
    starts = machine.starts("keeper")
    lives = [0.5] * 5 + [QUICK] + [0.5] * 6
    between = [after - before - life for before, after, life in zip(starts, starts[1:], lives, strict=False)]
    assert between[:11] == [0] * 11
    assert between[11] >= 0.25


def test_rows_of_one_role_say_nothing_of_another(make: Callable[..., Processes]) -> None:
    machine = make()
    machine.plans["processor-0"] = [(0.5, 1)] * 6
    machine.plans["processor-1"] = [(3.25, 1)]
    machine.stop_after(5.0)
    assert machine.starts("processor-1") == [0, 3.25]


@pytest.mark.parametrize(
    ("role", "lived", "stops"),
    [
        ("processor-0", 0.0625, True),
        ("processor-0", QUICK - 0.0625, True),
        ("processor-0", QUICK, False),
        ("mirror", QUICK, True),
        ("mirror", 14.9375, True),
        ("mirror", 15.0, False),
    ],
)
def test_one_that_could_never_begin_ends_the_broker(
    role: str, lived: float, stops: bool, make: Callable[..., Processes]
) -> None:
    """The next one would not begin either; but one of a role that has run before is replaced."""
    machine = make(mirror_file="x")
    machine.plans[role] = [(lived, CANNOT_START)]
    stop = machine.stop_after(20.0)
    problem = f"role={role} could not start: see the lines above; the broker stops"
    assert (stop.clean, stop.asked_for) == (not stops, True)
    assert stop.problems == ([problem] if stops else [])
    assert len(machine.starts(role)) == (1 if stops else 2)
    assert machine.lines("stopping") == [f"stopping reason={'a failed start' if stops else 'SIGTERM'}"]
    assert machine.times("stopping")[0] == (lived if stops else 20.0)
    assert machine.lines("role=") == ([problem] if stops else [])


def test_one_that_cannot_begin_any_more_is_tried_again(make: Callable[..., Processes]) -> None:
    """Descriptors or memory may be back in a moment: what has run before runs again."""
    machine = make()
    machine.plans["acceptor"] = [(2.0, -9), *[(0.125, CANNOT_START)] * 8]
    assert machine.stop_after(8.0).clean
    assert len(machine.starts("acceptor")) == 10


@pytest.mark.parametrize("lived", [0.5, 60.0])
def test_a_broker_that_may_not_run_stops_in_order(lived: float, make: Callable[..., Processes]) -> None:
    machine = make()
    machine.plans["keeper"] = [(lived, MAY_NOT_RUN)]
    stop = machine.stop_after(100.0)
    assert (stop.clean, stop.asked_for) == (True, False)
    assert stop.problems == ["role=keeper found that this broker may not run: see the lines above; it stops"]
    assert machine.lines("stopping") == ["stopping reason=refused"]
    assert machine.times("stopping") == [lived]
    assert machine.starts("keeper") == [0]
    assert [role for _, role, _ in machine.stages][-1] == "flusher"


def test_a_stranger_that_ends_is_nobody(make: Callable[..., Processes]) -> None:
    """What an earlier program in this process left, or a child of a child: taken, and nothing follows from it."""
    machine = make()
    machine.at(1.0, lambda: (machine.strangers.append((77, 256)), machine.deliver(signal.SIGCHLD)))
    assert machine.stop_after(2.0).clean
    assert len(machine.all) == 6 and not machine.lines("died")


@pytest.mark.parametrize("role", ["acceptor", "processor-0", "coordinator", "flusher"])
def test_a_death_wakes_whoever_may_wait_for_the_dead(role: str, make: Callable[..., Processes]) -> None:
    """What it held is somebody else's to finish; processors of a broker that stops wait for the acceptor."""
    machine = make()
    seen: list[Any] = []
    machine.at(1.5, lambda: woken(machine.arena))
    machine.plans[role] = [(2.0, -9)]
    machine.when_started[role] = lambda process: (
        seen.append((woken(machine.arena), machine.arena.cell(ACCEPTOR)[0])) if process.started else None
    )
    machine.stop_after(3.0)
    ((woken_then, _acceptor),) = seen
    assert set(woken_then) >= {FLUSHER, KEEPER, ACCEPTOR, FIRST_PROCESSOR, FIRST_PROCESSOR + 1}


@pytest.mark.parametrize("role", ["processor-0", "coordinator", "flusher"])
def test_what_the_dead_had_begun_is_over(role: str, make: Callable[..., Processes]) -> None:
    """Nobody waits until it has seen a deletion, and what it sent or was sent is void, before its successor begins."""
    machine = make()
    number = Played(role, 0, 0.0).number
    machine.at(1.0, lambda: machine.arena.see(number, 0))
    machine.plans[role] = [(2.0, -9)]
    found: list[tuple[bool, int]] = []
    machine.when_started[role] = lambda _: found.append(
        (machine.arena.seen(number) > machine.arena.change_count, machine.arena.incarnation(number))
    )
    machine.stop_after(3.0)
    assert found == [(True, 0), (True, 1)]


def test_a_dead_acceptor_is_shown_as_gone_before_anybody_is_woken(
    make: Callable[..., Processes],
) -> None:
    """While a broker stops nobody replaces it, and processors leave when it is gone."""
    machine = make()
    machine.leave_seconds = {"acceptor": 1.3125, "processor-0": 2.0, "processor-1": 2.0}
    seen: list[tuple[int, bool]] = []
    machine.at(2.0, lambda: woken(machine.arena))
    machine.at(2.5, lambda: seen.append((machine.arena.cell(ACCEPTOR)[0], FIRST_PROCESSOR in woken(machine.arena))))
    machine.stop_after(1.0)
    assert machine.stages[0][1] == "acceptor" and 2.0 < machine.stages[0][0] < 2.5
    assert seen == [(0, True)]


# -- watching ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["flusher", "keeper", "coordinator", "acceptor", "processor-1"])
def test_one_that_is_silent_is_asked_then_killed_and_replaced(role: str, make: Callable[..., Processes]) -> None:
    machine = make()
    machine.at(2.0, lambda: machine.change(role, beats=False))  # its last sign was at 2.0 or just before
    assert machine.stop_after(20.0).clean
    (asked, name, first), (killed, _, second) = machine.signals
    assert (name, first, second) == (role, "SIGUSR1", "SIGKILL")
    assert 2.0 + SILENT - 0.125 <= asked <= 2.0 + SILENT + TICK
    assert asked + POLITE == killed
    assert machine.starts(role) == [0, killed]
    silent, killed_line = machine.lines("silent")
    pid = machine.all[machine.started().index(role)].pid
    assert silent.startswith(f"silent role={role} pid={pid} seconds=10.") and silent.endswith(": asked where it is")
    assert killed_line == f"silent role={role} pid={pid}: killed"


@pytest.mark.parametrize(("last_sign", "asked"), [(2.0, 12.0), (2.0625, 12.25)])
def test_silence_begins_to_count_when_it_is_as_long_as_allowed(
    last_sign: float, asked: float, make: Callable[..., Processes]
) -> None:
    machine = make()

    def fall_silent() -> None:
        process = machine.now_running("processor-0")
        process.beats = False
        machine.arena.clear_cell(process.number, process.pid, machine.monotonic_ns())

    machine.at(last_sign, fall_silent)
    machine.stop_after(12.5)
    assert [when for when, _, name in machine.signals if name == "SIGUSR1"] == [asked]


def test_with_an_append_lock_silence_is_shorter(make: Callable[..., Processes], tmp_path: Path) -> None:
    """Others wait for it. What died with the lock left a note, and its successor has the shorter time as well."""
    log = SharedLog(tmp_path / "log") if (tmp_path / "log").mkdir() is None else None
    assert log is not None
    assert in_child(lambda: log.append(message(12)), "append.after_lock@1=kill") == -9
    assert log.arena.cell(FIRST_PROCESSOR)[4] == 1
    machine = make(arena=log.arena)
    machine.at(2.0, lambda: machine.change("processor-0", beats=False))
    machine.at(2.0, lambda: machine.change("processor-1", beats=False))
    machine.stop_after(10.0)
    (asked, role, _), (killed, other, _) = machine.signals
    assert role == other == "processor-0"
    assert 2.0 + SILENT_WITH_A_LOCK - 0.125 <= asked <= 2.0 + SILENT_WITH_A_LOCK + TICK
    assert killed == asked + POLITE


def test_whoever_gives_a_sign_after_all_has_the_whole_time_again(make: Callable[..., Processes]) -> None:
    machine = make()
    machine.at(1.0, lambda: machine.change("keeper", beats=False))
    machine.at(11.375, lambda: machine.change("keeper", beats=True))
    machine.at(13.0, lambda: machine.change("keeper", beats=False))
    machine.stop_after(30.0)
    assert [name for _, _, name in machine.signals] == ["SIGUSR1", "SIGUSR1", "SIGKILL"]
    assert machine.signals[1][0] - machine.signals[0][0] > SILENT


@pytest.mark.parametrize(("turn", "asks"), [(3.75 + 5 * TICK, True), (3.75 + 5 * TICK + 0.0625, False)])
def test_a_supervisor_that_was_held_up_itself_waits_for_signs_first(
    turn: float, asks: bool, make: Callable[..., Processes]
) -> None:
    """On a suspended machine everybody is silent at first. The turn before was at 3.75 s."""
    machine = make()

    def sleep() -> None:
        for role in ("flusher", "keeper", "coordinator", "acceptor", "processor-0", "processor-1"):
            process = machine.now_running(role)
            process.beats = False
            at_ns = machine.monotonic_ns() - int((SILENT if role == "flusher" else 0.0) * 1e9)
            machine.arena.clear_cell(process.number, process.pid, at_ns)
            machine.at(turn + 0.125, functools.partial(setattr, process, "beats", True))
        machine.now = machine.begun + turn

    machine.at(3.9375, sleep)
    machine.stop_after(8.0)
    assert bool(machine.signals) is asks


def test_after_an_hour_of_suspension_nobody_is_harmed(make: Callable[..., Processes]) -> None:
    machine = make()
    machine.at(4.0, lambda: setattr(machine, "now", machine.now + 3600.0))
    assert machine.stop_after(3610.0).clean
    assert machine.signals == [] and len(machine.all) == 6


def test_the_mirror_has_no_heartbeat(make: Callable[..., Processes]) -> None:
    machine = make(mirror_file="x")
    assert machine.stop_after(60.0).clean
    assert [name for _, _, name in machine.signals] == ["SIGTERM"]


def test_one_that_waits_for_a_disk_is_named_every_ten_seconds(make: Callable[..., Processes]) -> None:
    machine = make()
    machine.at(1.0, lambda: machine.change("flusher", beats=False, seen=Sighting("S", True, 10)))
    machine.at(30.0, lambda: machine.change("flusher", beats=True, seen=Sighting("S", False, 10)))
    assert machine.stop_after(32.0).clean
    assert machine.signals == []
    named = machine.times("waits for a disk role=flusher pid=4000 seconds=")
    assert 2.875 <= named[0] <= 3.25
    assert [after - before for before, after in itertools.pairwise(named)] == [10.0, 10.0]
    assert machine.lines("waits")[0].endswith(": left alone")
    assert machine.lines("goes on") == ["goes on role=flusher pid=4000"]
    assert 30.0 <= machine.times("goes on")[0] <= 30.0 + 2 * TICK


@pytest.mark.parametrize(("waits", "is_named"), [(1.999, False), (2.0, True), (2.001, True)])
def test_a_wait_for_a_disk_is_named_from_two_seconds_on(
    waits: float, is_named: bool, make: Callable[..., Processes], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = make()
    monkeypatch.setattr(stalls, "disk_wait", lambda _arena, number, _now_ns: waits if number == FLUSHER else 0.0)
    assert machine.stop_after(1.0).clean
    assert any(line.startswith("waits for a disk role=flusher") for line in machine.lines("waits")) == is_named


def test_one_that_gets_no_processor_time_is_named_and_left_alone(make: Callable[..., Processes]) -> None:
    machine = make()
    machine.at(1.0, lambda: machine.change("keeper", beats=False, seen=Sighting("R", False, 7)))
    machine.at(40.0, lambda: machine.change("keeper", beats=True))
    assert machine.stop_after(42.0).clean
    assert [name for _, _, name in machine.signals] == ["SIGUSR1"]
    named = machine.times("gets no processor time role=keeper pid=4001 seconds=")
    assert [after - before for before, after in itertools.pairwise(named)] == [10.0, 10.0]
    assert machine.lines("goes on") == ["goes on role=keeper pid=4001"]


def test_what_is_named_is_what_a_process_was_last_seen_at(make: Callable[..., Processes]) -> None:
    """A successor begins afresh: it was not named, and has nothing to go on from."""
    machine = make()
    machine.at(1.0, lambda: machine.change("flusher", beats=False, seen=Sighting("S", True, 10)))
    machine.at(5.0, lambda: machine.die("flusher", -9))
    machine.at(6.0, lambda: machine.change("flusher", beats=False, seen=Sighting("S", True, 10)))
    machine.at(9.0, lambda: machine.change("flusher", beats=True, seen=Sighting("S", False, 10)))
    assert machine.stop_after(10.0).clean
    assert len(machine.lines("waits for a disk")) == 2
    assert len(machine.lines("goes on")) == 1


# -- a start that fails half-way ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("unkillable", [False, True])
def test_a_start_that_fails_leaves_no_process(unkillable: bool, make: Callable[..., Processes]) -> None:
    """All are killed; one that stays, in a call to a disk, is waited for two seconds and not longer."""
    machine = make()

    def changed(process: Played) -> None:
        process.unkillable = unkillable

    machine.when_started["keeper"] = changed
    machine.supervisor.start()
    machine.supervisor.abandon()
    assert {role for _, role, name in machine.signals if name == "SIGKILL"} == set(machine.started())
    assert len(machine.all) == 6
    assert [each.role for each in machine.all if not each.is_reaped] == (["keeper"] if unkillable else [])
    assert machine.passed == pytest.approx(2.0, abs=0.06) if unkillable else machine.passed < 0.1


# -- real children -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "error", "expected"),
    [
        (0.0, OSError(errno.EMFILE, "no files"), CANNOT_START),
        (0.0, KeyboardInterrupt(), CANNOT_START),
        (QUICK, RuntimeError("just as quick"), CANNOT_START),
        (QUICK + 0.0625, RuntimeError("later"), 1),
        (QUICK + 0.0625, None, 7),
        (0.0, None, 7),
    ],
)
def test_how_a_child_ends(
    after: float,
    error: BaseException | None,
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By what its role returns; one that an error ends could not begin, unless it had run for a while. It never
    comes back into the code of its parent."""

    class Clock:
        def monotonic(self) -> float:
            return 100.0 if os.getpid() == parent else 100.0 + after

        monotonic_ns = staticmethod(time.monotonic_ns)

    parent = os.getpid()

    def work(_shared: Shared, number: int) -> int:
        assert number == FLUSHER
        if error is not None:
            raise error
        return 7

    pids: list[int] = []
    real_fork = os.fork

    def fork() -> int:
        if pids:
            raise OSError(errno.EAGAIN, "no more processes")
        pids.append(real_fork())
        return pids[0]

    monkeypatch.setattr(flusher, "run", work)
    monkeypatch.setattr(keeper, "run", work)
    monkeypatch.setattr(supervisor_module.os, "fork", fork)
    monkeypatch.setattr(supervisor_module, "time", Clock())
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, 8, 16)
    config = BrokerConfig(log_dirs=(str(tmp_path),), processors=1)
    made = Supervisor(Shared(config, arena, (), (), (), 64))
    handlers = {number: signal.getsignal(number) for number in (1, 2, 15, 17)}
    try:
        with pytest.raises(OSError, match="no more processes"):
            made.start()
        assert wait(pids[0]) == expected
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(made._signal_fd)
        os.close(made._signal_send)
    assert child.role_name(FLUSHER) == "flusher"
