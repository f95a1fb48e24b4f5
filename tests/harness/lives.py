"""A slot's lives, ended and begun as the keeper and who creates do it."""

from __future__ import annotations

from pathlib import Path

from fastlog.log._append import end_life
from fastlog.log._arena import Arena
from fastlog.log.slots import SlotSpec
from tests.harness.shared_log import (
    LIMITS,
    SharedLog,
    message,
)

GONE = 5
WRONG_PARTITION = 3
ENTRY = message(20)
RING = 256


def add(arena: Arena, topic: str, partition: int = 0, directory: int = 0) -> int:
    """A partition with its files, in whichever slot the arena has for it."""
    folder = Path(arena.log_dirs[directory]) / f"{topic}-{partition}"
    folder.mkdir(exist_ok=True)
    (folder / f"{0:020}.kafka").touch()
    assert arena.create_lock()
    try:
        return add_slot(arena, topic, partition, directory)
    finally:
        arena.create_unlock()


def add_slot(arena: Arena, topic: str, partition: int = 0, directory: int = 0) -> int:
    """The same without files, for who holds the creation lock."""
    return arena.add(
        SlotSpec(
            topic=topic,
            partition=partition,
            directory=directory,
            format=0,
            created_ms=1,
            segments=[(0, 1, 0)],
            log_end=0,
            **LIMITS,  # type: ignore[arg-type]
        )
    )


def end(log: SharedLog, slot: int = 0, *, returns: bool = False) -> None:
    """End a life as the keeper does."""
    assert log.arena.create_lock()
    try:
        assert end_life(log.appender, slot, returns)
    finally:
        log.arena.create_unlock()


def free(log: SharedLog, slot: int = 0) -> None:
    """Say that its files have gone; whether all are past it is not looked at."""
    assert log.arena.create_lock()
    try:
        log.arena.free(slot)
    finally:
        log.arena.create_unlock()


def live_again(log: SharedLog, slot: int = 0, topic: str = "new") -> None:
    end(log, slot)
    free(log, slot)
    assert add(log.arena, topic) == slot
