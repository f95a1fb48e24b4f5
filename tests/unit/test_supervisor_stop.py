"""A stop in virtual time, also with something already wrong: the order, who is waited for how long, what is said."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fastlog.log._arena import Arena
from fastlog.log._shared_memory import ACCEPTOR, FIRST_PROCESSOR, STAGE_FLUSHER, STAGE_KEEPER
from fastlog.supervisor import Stop
from fastlog.workers import stalls
from fastlog.workers.child import CANNOT_START, role_name
from fastlog.workers.stalls import Sighting
from tests.harness.simulated_processes import Played, Processes, woken

BEGIN = 10.0
WHOLE = 4.6
KEEPER = 0.4
PROCESSORS = 3.0
MIRROR = 1.5
STALLED = 60.0
TURN = 0.125
STEP = 0.02


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Processes]]:
    opened: list[Processes] = []

    def made(**named: Any) -> Processes:
        opened.append(Processes(monkeypatch, tmp_path, **named))
        return opened[-1]

    yield made
    for each in opened:
        each.close()


def left(machine: Processes) -> list[tuple[str, int]]:
    """Who left because it was asked to, and at which stage, in order."""
    return [(role, stage) for _, role, stage in machine.stages]


def stop(machine: Processes, number: int = signal.SIGTERM) -> Stop:
    found = machine.stop_after(BEGIN, number)
    assert all(each.is_reaped or each.unkillable for each in machine.all)
    return found


def took(machine: Processes) -> float:
    return machine.passed - BEGIN


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_each_stage_waits_for_the_one_before(number: int, make: Callable[..., Processes]) -> None:
    machine = make(mirror_file="x")
    machine.leave_seconds = {"acceptor": 0.3, "processor-0": 1.0, "processor-1": 0.1, "flusher": 0.5, "mirror": 0.2}
    assert stop(machine, number) == Stop(clean=True, asked_for=True, problems=[])
    assert left(machine) == [
        ("mirror", 0), ("processor-1", 1), ("acceptor", 1), ("processor-0", 1), ("coordinator", 2), ("flusher", 3),
        ("keeper", 4),
    ]  # fmt: skip
    assert machine.arena.ending
    assert machine.lines("stopping") == [f"stopping reason={signal.Signals(number).name}"]
    assert took(machine) < 0.2 + 1.0 + 0.5 + 5 * (TURN + STEP)
    assert [name for _, _, name in machine.signals] == ["SIGTERM"]  # the mirror alone is told by a signal
    assert len(machine.all) == 7


def test_the_end_is_shown_before_anybody_is_asked_to_leave(make: Callable[..., Processes]) -> None:
    """``/ready`` says so while the mirror finishes, which may take a while."""
    machine = make(mirror_file="x")
    machine.leave_seconds = {"mirror": 1.0}
    seen: list[tuple[bool, int]] = []
    for moment in (BEGIN - 0.5, BEGIN + 0.5):
        machine.at(moment, lambda: seen.append((machine.arena.ending, machine.arena.stopping)))
    stop(machine)
    assert seen == [(False, 0), (True, 0)]


def test_a_mirror_that_does_not_finish_is_killed(make: Callable[..., Processes]) -> None:
    machine = make(mirror_file="x")
    machine.when_started["mirror"] = lambda process: setattr(process, "hangs", True)
    assert stop(machine) == Stop()
    assert [(name, role) for _, role, name in machine.signals] == [("SIGTERM", "mirror"), ("SIGKILL", "mirror")]
    assert machine.signals[1][0] - machine.signals[0][0] == pytest.approx(MIRROR, abs=2 * STEP)
    assert machine.lines("role=mirror") == ["role=mirror did not finish in 1.5 s: killed"]


def test_a_mirror_that_is_gone_is_not_waited_for(make: Callable[..., Processes]) -> None:
    machine = make(mirror_file="x")
    machine.plans["mirror"] = [(BEGIN + 1.0, -9)] + [(0.125, 1)] * 9
    machine.at(BEGIN - 0.0625, lambda: machine.die("mirror", 1))
    machine.at(BEGIN - 0.0625, lambda: machine.deliver(signal.SIGTERM))
    assert machine.stop_after(BEGIN).clean
    assert took(machine) < 1.0


# -- something is wrong already ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["acceptor", "processor-0", "processor-1", "coordinator"])
def test_one_that_hangs_is_killed_so_that_the_flusher_has_its_time(role: str, make: Callable[..., Processes]) -> None:
    """All is flushed; that it had to be killed is said, and there is no clean marker."""
    machine = make()
    machine.leave_seconds = {"flusher": 0.875}
    machine.at(BEGIN - 1.0, lambda: machine.change(role, hangs=True, beats=False))
    found = stop(machine)
    assert found == Stop(clean=False, problems=[f"role={role} did not finish in time"])
    assert left(machine)[-2:] == [("flusher", STAGE_FLUSHER), ("keeper", STAGE_KEEPER)]
    ((killed, who, name),) = machine.signals
    assert (who, name) == (role, "SIGKILL")
    late = killed - BEGIN - (0.5 if role == "coordinator" else PROCESSORS)
    assert 0 <= late < TURN + 2 * STEP if role == "coordinator" else late == pytest.approx(0, abs=2 * STEP)
    assert took(machine) < WHOLE


def test_all_that_can_hang_hang(make: Callable[..., Processes]) -> None:
    """The stop ends in its time, names each once, and leaves none."""
    machine = make()
    for role in ("flusher", "keeper", "coordinator", "acceptor", "processor-0", "processor-1"):
        machine.when_started[role] = lambda process: setattr(process, "hangs", True)
    found = stop(machine)
    names = ["acceptor", "processor-0", "processor-1", "coordinator", "flusher", "keeper"]
    assert found == Stop(clean=False, problems=[f"role={name} did not finish in time" for name in names])
    assert [role for _, role, name in machine.signals if name == "SIGKILL"] == names
    assert WHOLE <= took(machine) < WHOLE + 0.2


@pytest.mark.parametrize(
    ("needs", "clean"), [(WHOLE - KEEPER - 2 * TURN - 3 * STEP, True), (WHOLE - KEEPER + STEP, False)]
)
def test_the_flusher_has_all_the_time_but_that_of_the_keeper(
    needs: float, clean: bool, make: Callable[..., Processes]
) -> None:
    machine = make(accept_mode="direct", processors=1)
    machine.leave_seconds = {"flusher": needs - TURN if clean else needs, "keeper": 0.1}
    found = stop(machine)
    assert found.clean is clean
    assert found.problems == ([] if clean else ["role=flusher did not finish in time"])
    assert ("keeper", STAGE_KEEPER) in left(machine)


def test_a_keeper_behind_a_flusher_that_is_stuck_has_its_part(make: Callable[..., Processes]) -> None:
    machine = make()
    machine.when_started["flusher"] = lambda process: setattr(process, "hangs", True)
    machine.leave_seconds = {"keeper": KEEPER - TURN - 2 * STEP}
    found = stop(machine)
    assert found.problems == ["role=flusher did not finish in time"]
    assert left(machine)[-1] == ("keeper", STAGE_KEEPER)
    assert [role for _, role, _ in machine.signals] == ["flusher"]


@pytest.mark.parametrize("role", ["acceptor", "processor-0", "processor-1", "coordinator", "flusher"])
def test_one_that_died_a_moment_ago_is_started_for_the_stop(role: str, make: Callable[..., Processes]) -> None:
    """Connections may wait for it, and bytes to be flushed: it dies while the mirror finishes."""
    machine = make(mirror_file="x")
    machine.leave_seconds = {"mirror": 1.0}
    machine.at(BEGIN + 0.5, lambda: machine.die(role, -9))
    at_stages: list[tuple[int, int]] = []
    machine.when_started[role] = lambda process: at_stages.append((machine.arena.stopping, process.pid))
    assert stop(machine) == Stop()
    assert len(machine.all) == 8
    assert BEGIN + 1.0 <= machine.starts(role)[1] < BEGIN + 1.1
    assert at_stages[1][0] == 0, "it could have been missed by who waits for it"
    assert sorted(each for each, _ in left(machine)) == sorted(machine.started()[:7])
    assert machine.lines("started for") == [f"started for the stop role={role}"]


@pytest.mark.parametrize("role", ["acceptor", "processor-0", "flusher", "keeper"])
def test_one_that_dies_in_the_first_moment_of_the_stop(role: str, make: Callable[..., Processes]) -> None:
    """Between the last look of the loop and the first stage. A keeper is not started again: no client waits for it."""
    machine = make()
    machine.when_said["stopping"] = lambda: machine.die(role, -9)
    assert stop(machine) == Stop()
    assert len(machine.starts(role)) == (1 if role == "keeper" else 2)
    assert not machine.lines("died")


@pytest.mark.parametrize("role", ["acceptor", "processor-0", "flusher"])
def test_one_whose_last_threads_are_still_going_when_the_stop_begins(role: str, make: Callable[..., Processes]) -> None:
    """Its parent is told of it only then; as long as they take, it is no reason to give up what waits for it."""
    machine = make()
    machine.at(BEGIN - 0.01, lambda: machine.change(role, seen=Sighting("Z", False, 10), beats=False, hangs=True))
    machine.at(BEGIN + 0.125, lambda: machine.die(role, -9))
    assert stop(machine) == Stop()
    assert BEGIN + 0.125 <= machine.starts(role)[1] < BEGIN + 0.125 + 2 * STEP


def test_one_whose_last_threads_do_not_go_delays_a_stop_no_longer_than_any_that_was_killed(
    make: Callable[..., Processes],
) -> None:
    machine = make()
    machine.at(
        BEGIN - 0.01,
        lambda: machine.change("processor-0", seen=Sighting("Z", True, 10), hangs=True, beats=False, unkillable=True),
    )
    assert not stop(machine).clean
    assert [stage for role, stage in left(machine) if role == "flusher"] == [STAGE_FLUSHER]
    assert len(machine.starts("processor-0")) == 1


def test_one_that_pauses_after_quick_deaths_is_started_for_the_stop(make: Callable[..., Processes]) -> None:
    machine = make()
    machine.plans["acceptor"] = [(BEGIN - 4.0, 1), *[(0.5, 1)] * 8]
    machine.leave_seconds = {"processor-0": 0.25}
    assert stop(machine).clean
    assert machine.starts("acceptor")[-1] <= BEGIN + STEP


@pytest.mark.parametrize("at_once", [True, False])
def test_processors_see_that_an_acceptor_comes_before_they_may_leave(
    at_once: bool, make: Callable[..., Processes]
) -> None:
    """They leave when they hold no connection and there is no acceptor: its place is taken before they are asked.

    It may die in the same turn in which the stop is asked for, or later.
    """
    machine = make(mirror_file="x")
    machine.leave_seconds = {"acceptor": 0.5, "mirror": 0.5}
    machine.at(BEGIN + (0.0 if at_once else 0.25), lambda: machine.die("acceptor", -9))
    machine.at(BEGIN, lambda: machine.deliver(signal.SIGTERM))

    def late(process: Played) -> None:
        """It has not come to begin yet."""
        machine.arena.clear_cell(ACCEPTOR, 0, machine.monotonic_ns())
        process.beats = False

    machine.when_started["acceptor"] = lambda process: late(process) if process.started else None
    shown: list[tuple[int, bool]] = []
    machine.at(BEGIN + 0.75, lambda: shown.append((machine.arena.stopping, machine.arena.cell(ACCEPTOR)[0] != 0)))
    assert stop(machine).clean
    assert len(machine.starts("acceptor")) == 2
    assert shown == [(1, True)]


@pytest.mark.parametrize("when", [0.25, 0.75])
def test_a_flusher_that_dies_before_its_stage_is_started_for_it(when: float, make: Callable[..., Processes]) -> None:
    machine = make()
    machine.leave_seconds = {"processor-0": 1.0}
    machine.plans["flusher"] = [(BEGIN + when, -9)]
    assert stop(machine) == Stop()
    assert left(machine)[-2:] == [("flusher", STAGE_FLUSHER), ("keeper", STAGE_KEEPER)]
    assert len(machine.starts("flusher")) == 2
    assert machine.lines("started for") == ["started for the stop role=flusher"]


def test_one_that_ends_with_an_error_is_named_and_costs_nothing(make: Callable[..., Processes]) -> None:
    """Whether all is flushed is seen in the shared memory, not in exit codes."""
    machine = make()
    machine.leave_codes = {"processor-1": 1, "flusher": 3}
    machine.plans["keeper"] = [(BEGIN + 0.0625, -9)]
    assert stop(machine) == Stop()
    assert machine.lines("ended") == [
        "ended role=processor-1 exit=1", "ended role=flusher exit=3", "ended role=keeper exit=-9",
    ]  # fmt: skip


def test_after_a_failed_start_nobody_is_started_but_the_flusher(make: Callable[..., Processes]) -> None:
    machine = make()
    machine.plans["processor-1"] = [(0.25, CANNOT_START)] * 3
    machine.plans["flusher"] = [(0.25, -9)]
    found = machine.stop_after(BEGIN)
    assert not found.clean and len(found.problems) == 1
    assert len(machine.starts("processor-1")) == 1 and len(machine.starts("flusher")) == 2
    assert machine.passed < 1.0
    assert all(each.is_reaped for each in machine.all)


# -- signals -----------------------------------------------------------------------------------------------------------


def test_a_second_signal_changes_nothing_where_no_disk_stalls(make: Callable[..., Processes]) -> None:
    machine = make()
    machine.leave_seconds = {"processor-0": 1.0, "flusher": 1.0}
    for moment in (0.0, 0.1, 0.5, 1.5):
        machine.at(BEGIN + moment, lambda: machine.deliver(signal.SIGINT))
    assert stop(machine) == Stop()
    assert left(machine)[-2:] == [("flusher", STAGE_FLUSHER), ("keeper", STAGE_KEEPER)]
    assert took(machine) >= 2.0
    assert len(machine.lines("stopping")) == 1


def test_the_first_signal_is_the_one_that_is_named(make: Callable[..., Processes]) -> None:
    machine = make()
    machine.at(BEGIN, lambda: machine.deliver(signal.SIGHUP))
    machine.at(BEGIN, lambda: machine.deliver(signal.SIGINT))
    stop(machine)
    assert machine.lines("stopping") == ["stopping reason=SIGHUP"]


def test_a_signal_while_processes_are_started_is_not_lost(make: Callable[..., Processes]) -> None:
    machine = make()
    machine.when_started["flusher"] = lambda _: machine.deliver(signal.SIGTERM)
    machine.supervisor.start()
    assert machine.supervisor.run() == Stop()
    assert machine.passed < 1.0 and len(machine.all) == 6


# -- disks that stall --------------------------------------------------------------------------------------------------


def stalls_during_the_stop(machine: Processes, role: str, seconds: float | None) -> None:
    """From the beginning of the stop the process waits for a disk, so many seconds long, and then leaves."""
    machine.at(BEGIN, lambda: machine.change(role, hangs=True, beats=False, seen=Sighting("D", True, 1)))
    if seconds is not None:
        machine.at(BEGIN + seconds, lambda: machine.change(role, hangs=False, beats=True, seen=Sighting("S", False, 1)))


@pytest.mark.parametrize("role", ["processor-0", "flusher"])
@pytest.mark.parametrize("seconds", [8.0, 30.0, 59.0])
def test_a_disk_that_stalls_takes_nothing_of_the_time(
    role: str, seconds: float, make: Callable[..., Processes]
) -> None:
    machine = make()
    stalls_during_the_stop(machine, role, seconds)
    assert stop(machine) == Stop()
    assert seconds < took(machine) < seconds + 1.0
    (line,) = machine.lines("the stop waits for a disk")
    pid = machine.now_pid(role)
    assert line == (f"the stop waits for a disk role={role} pid={pid}: 60 s at most; a second signal ends that wait")


@pytest.mark.parametrize("role", ["processor-0", "flusher"])
def test_a_disk_that_never_comes_back_is_waited_for_a_minute(role: str, make: Callable[..., Processes]) -> None:
    machine = make()
    stalls_during_the_stop(machine, role, None)
    machine.at(BEGIN, lambda: machine.change(role, unkillable=True))
    found = stop(machine)
    (problem,) = found.problems
    assert problem.startswith(f"role={role} did not finish in time (it has been waiting for a disk for 6")
    assert problem.endswith(" s)")
    assert not found.clean
    whole = PROCESSORS if role == "processor-0" else WHOLE - KEEPER
    assert STALLED + whole - 1.5 < took(machine) < STALLED + WHOLE + 1.0
    assert ("keeper", STAGE_KEEPER) in left(machine)


def test_a_disk_is_waited_for_after_a_failed_start_as_well(make: Callable[..., Processes]) -> None:
    """Nobody sent a signal, so nobody was in a hurry: a mirror that cannot begin may fail long after the others did."""
    machine = make(mirror_file="x")
    machine.plans["mirror"] = [(BEGIN, CANNOT_START)]
    stalls_during_the_stop(machine, "flusher", 30.0)
    found = machine.stop_after(100.0)
    assert len(found.problems) == 1 and not found.clean
    assert 30.0 < took(machine) < 31.0
    assert ("flusher", STAGE_FLUSHER) in left(machine)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_second_signal_ends_the_wait_for_a_disk(second: int, make: Callable[..., Processes]) -> None:
    machine = make()
    stalls_during_the_stop(machine, "flusher", None)
    machine.at(BEGIN + 20.0, lambda: machine.deliver(second))
    found = stop(machine)
    assert found.problems[0].startswith("role=flusher did not finish in time (it has been waiting for a disk for ")
    assert 20.0 < took(machine) < 20.0 + WHOLE + 0.5


def test_what_a_disk_has_taken_before_the_stop_does_not_count(make: Callable[..., Processes]) -> None:
    """It may have stalled for ten minutes: the minute of the stop is whole, and no more than that."""
    machine = make()
    machine.at(1.0, lambda: machine.change("flusher", hangs=True, beats=False, seen=Sighting("D", True, 1)))
    machine.at(1.0, lambda: machine.change("flusher", unkillable=True))
    machine.at(600.0, lambda: machine.deliver(signal.SIGTERM))
    machine.supervisor.start()
    assert not machine.supervisor.run().clean
    assert STALLED < machine.passed - 600.0 < STALLED + WHOLE + 1.0


def test_who_has_left_and_the_mirror_are_not_asked_whether_they_wait_for_a_disk(
    make: Callable[..., Processes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one's number in the arena may be another program's by now, the other has none there."""
    machine = make(mirror_file="x")
    machine.leave_seconds = {"mirror": 1.0, "processor-0": 1.0, "flusher": 0.5}
    asked: set[str] = set()

    def disk_wait(_arena: Arena, number: int, _now_ns: int) -> float:
        asked.add(machine.now_running(role_name(number)).role)  # which raises when it has left
        return 0.0

    monkeypatch.setattr(stalls, "disk_wait", disk_wait)
    assert stop(machine).clean
    assert asked == {"acceptor", "processor-0", "processor-1", "coordinator", "flusher", "keeper"}


def test_two_stalls_share_the_minute(make: Callable[..., Processes]) -> None:
    """A processor that takes 40 s of it leaves 20 to the flusher."""
    machine = make()
    stalls_during_the_stop(machine, "processor-0", 40.0)
    stalls_during_the_stop(machine, "flusher", None)
    found = stop(machine)
    assert not found.clean
    assert len(machine.lines("the stop waits for a disk")) == 1
    assert STALLED < took(machine) < STALLED + WHOLE + 1.0


def test_whoever_stalls_moves_the_last_call_of_the_others(make: Callable[..., Processes]) -> None:
    """Processors wait for connections from the last sign of a stall on; each turn of the stop gives one."""
    machine = make()
    stalls_during_the_stop(machine, "processor-0", 5.0)
    seen: list[Any] = []
    machine.at(BEGIN + 3.0, lambda: woken(machine.arena))
    machine.at(BEGIN + 3.5, lambda: seen.append(FIRST_PROCESSOR in woken(machine.arena)))
    assert stop(machine).clean
