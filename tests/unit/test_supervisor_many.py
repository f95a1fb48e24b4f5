"""The stop of many partitions in virtual time: it lasts while one after the other is finished, and not longer."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastlog.log._arena import Arena
from fastlog.log._shared_memory import FIRST_PROCESSOR, FLUSHER
from fastlog.log.slots import SlotSpec
from fastlog.supervisor import Stop
from tests.harness.shared_log import LIMITS
from tests.harness.simulated_processes import Processes

PARTITIONS = 400
MOST = PARTITIONS * 0.1
"""What they may take in all, besides the time of every stop."""
BEGIN = 10.0
WHOLE, KEEPER = 4.6, 0.4
WORKING = 1.0
TURN, STEP = 0.125, 0.02


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Processes]:
    arena = Arena([str(tmp_path)], FIRST_PROCESSOR + 1, PARTITIONS, 4)
    for partition in range(PARTITIONS):
        arena.add(
            SlotSpec(
                topic="t",
                partition=partition,
                directory=0,
                format=0,
                created_ms=1,
                segments=[(0, 1, 0)],
                log_end=0,
                durable=True,
                **LIMITS,
            )
        )
    made = Processes(monkeypatch, tmp_path, processors=1, arena=arena)
    yield made
    made.close()


@pytest.fixture
def stop(machine: Processes) -> Callable[[], Stop]:
    def stopped() -> Stop:
        found = machine.stop_after(BEGIN)
        assert all(each.is_reaped for each in machine.all)
        return found

    return stopped


def flushes(machine: Processes, seconds: float, *, every: float = 0.5, counter: str = "flushes") -> None:
    """So long from the beginning of the stop on, the flusher finishes a partition every so often."""
    moment = every
    while moment <= seconds:
        machine.at(BEGIN + moment, lambda: machine.arena.count(FLUSHER, counter))
        moment += every


def took(machine: Processes) -> float:
    return machine.passed - BEGIN


@pytest.mark.parametrize("counter", ["flushes", "flush_failures"])
@pytest.mark.parametrize("every", [0.02, 0.5, WORKING - 2 * STEP])
def test_a_flusher_that_finishes_one_after_the_other_is_waited_for(
    every: float, counter: str, machine: Processes, stop: Callable[[], Stop]
) -> None:
    machine.leave_seconds = {"flusher": 30.0}
    flushes(machine, 30.0, every=every, counter=counter)
    assert stop() == Stop()
    assert 30.0 < took(machine) < 31.0
    (line,) = machine.lines("the stop goes on")
    assert line.startswith(f"the stop goes on role=flusher pid={machine.now_pid('flusher')}: ")
    assert BEGIN + WHOLE - KEEPER <= machine.times("the stop goes on")[0] < BEGIN + WHOLE


def test_a_keeper_that_writes_one_side_file_after_the_other_is_waited_for(
    machine: Processes, stop: Callable[[], Stop]
) -> None:
    machine.leave_seconds = {"keeper": 20.0}
    assert stop() == Stop()
    assert 20.0 < took(machine) < 21.0
    (line,) = machine.lines("the stop goes on")
    assert line.startswith(f"the stop goes on role=keeper pid={machine.now_pid('keeper')}: ")


def test_a_stop_in_time_says_nothing_of_it(machine: Processes, stop: Callable[[], Stop]) -> None:
    machine.leave_seconds = {"flusher": 3.0}
    flushes(machine, 3.0)
    assert stop() == Stop()
    assert took(machine) < 4.0
    assert not machine.lines("the stop goes on")


def test_one_that_comes_to_a_stand_is_not_waited_for(machine: Processes, stop: Callable[[], Stop]) -> None:
    """From its last partition on it has what every stop has."""
    machine.at(BEGIN - 1.0, lambda: machine.change("flusher", hangs=True))
    flushes(machine, 8.0)
    assert stop().problems == ["role=flusher did not finish in time"]
    assert 8.0 + WORKING < took(machine) < 8.0 + WORKING + WHOLE + 2 * TURN


def test_one_that_never_ends_is_ended(machine: Processes, stop: Callable[[], Stop]) -> None:
    machine.at(BEGIN - 1.0, lambda: machine.change("flusher", hangs=True))
    flushes(machine, 100.0)
    assert stop().problems == ["role=flusher did not finish in time"]
    assert MOST < took(machine) < MOST + WHOLE + 2 * TURN


def test_a_second_signal_ends_that_wait(machine: Processes, stop: Callable[[], Stop]) -> None:
    machine.at(BEGIN - 1.0, lambda: machine.change("flusher", hangs=True))
    flushes(machine, 100.0)
    machine.at(BEGIN + 15.0, lambda: machine.deliver(signal.SIGTERM))
    assert stop().problems == ["role=flusher did not finish in time"]
    assert 15.0 < took(machine) < 15.0 + WHOLE + 2 * TURN


def test_the_beats_of_the_keeper_are_nothing_that_the_flusher_does(
    machine: Processes, stop: Callable[[], Stop]
) -> None:
    machine.at(BEGIN - 1.0, lambda: machine.change("flusher", hangs=True))
    assert stop().problems == ["role=flusher did not finish in time"]
    assert took(machine) < WHOLE + 2 * TURN


def test_a_keeper_that_hangs_is_not_waited_for(machine: Processes, stop: Callable[[], Stop]) -> None:
    machine.at(BEGIN - 1.0, lambda: machine.change("keeper", hangs=True, beats=False))
    assert stop().problems == ["role=keeper did not finish in time"]
    assert took(machine) < WHOLE + 2 * TURN


def test_what_processors_do_is_no_such_work(machine: Processes, stop: Callable[[], Stop]) -> None:
    """The flusher goes on while they are waited for."""
    machine.at(BEGIN - 1.0, lambda: machine.change("processor-0", hangs=True, beats=False))
    machine.leave_seconds = {"flusher": 0.5}
    flushes(machine, 10.0)
    assert stop().problems == ["role=processor-0 did not finish in time"]
    assert took(machine) < WHOLE
