"""Work on partitions by threads of each log directory: results in order, errors, and who waits for whom."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from fastlog.log.parallel import ITEMS_PER_THREAD, for_each

MANY = 10 * ITEMS_PER_THREAD
PATIENCE = 300.0


def test_results_come_in_the_order_of_the_items() -> None:
    items = [(number % 3, number) for number in range(MANY)]
    assert for_each(items, lambda number: number * 2) == [number * 2 for number in range(MANY)]
    assert for_each([], str) == []


@pytest.mark.parametrize("threads", [1, 8])
def test_few_items_of_one_directory_are_done_by_the_caller_one_after_the_other(threads: int) -> None:
    """So that it is known which call comes when."""
    seen: list[tuple[int, threading.Thread]] = []
    count = MANY if threads == 1 else ITEMS_PER_THREAD
    turns: list[int] = []
    for_each(
        [(7, number) for number in range(count)],
        lambda number: seen.append((number, threading.current_thread())),
        threads=threads,
        turn=lambda: turns.append(len(seen)),
    )
    assert seen == [(number, threading.current_thread()) for number in range(count)]
    assert turns == [*range(1, count + 1)]


def test_no_directory_has_more_threads_than_it_may_and_none_is_left() -> None:
    """Each thread is held until all have come."""
    together = threading.Barrier(2 * 3, timeout=PATIENCE)
    names: dict[str, Counter[str]] = {"a": Counter(), "b": Counter()}
    first = threading.local()

    def work(where: str) -> None:
        names[where][threading.current_thread().name] += 1
        if not hasattr(first, "done"):
            first.done = True
            together.wait()

    before = threading.active_count()
    for_each([(index % 2, "ab"[index % 2]) for index in range(MANY)], work, threads=3)
    assert threading.active_count() == before
    assert [len(found) for found in names.values()] == [3, 3]
    assert not set(names["a"]) & set(names["b"])


def test_a_directory_that_does_not_answer_keeps_no_other_waiting() -> None:
    rest = threading.Semaphore(0)

    def work(directory: int) -> None:
        if directory == 0:
            for _ in range(MANY):
                assert rest.acquire(timeout=PATIENCE)
        else:
            rest.release()

    for_each([(0, 0), *[(1, 1)] * MANY], work)


def test_the_first_error_is_raised_and_nothing_is_begun_after_it() -> None:
    begun = Counter[int]()

    def work(number: int) -> None:
        begun[number] += 1
        raise OSError(number, "broken")

    with pytest.raises(OSError, match="broken"):
        for_each([(0, number) for number in range(MANY)], work, threads=4)
    assert len(begun) <= 4


def test_turns_come_while_work_is_done() -> None:
    """Some that is done in a turn is told once."""
    turns: list[int] = []
    done: list[int] = []
    for_each([(0, number) for number in range(MANY)], done.append, threads=4, turn=lambda: turns.append(len(done)))
    assert 1 <= len(turns) <= MANY and turns[-1] == MANY


def test_an_error_of_a_turn_ends_the_work() -> None:
    gate = threading.Event()
    done: list[int] = []

    def work(number: int) -> None:
        done.append(number)
        if len(done) > 8:
            assert gate.wait(PATIENCE)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        for_each([(0, number) for number in range(MANY)], work, threads=4, turn=interrupted)
    gate.set()
    assert len(done) < MANY
