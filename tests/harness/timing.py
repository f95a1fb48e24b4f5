"""Time in tests: how long they wait for what must come, and proof that something did not wait.

No test asserts speed. A machine may be ten times slower than usual, and stand still for a second now and then: what has
to happen is waited for up to ``PATIENCE``, and what must not be waited for is made to take as long.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import pytest

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds for what must come; it comes in milliseconds, so this is a limit of life and not of speed."""
SHORTEST_PROOF = 5.0


@contextlib.contextmanager
def sooner_than(seconds: float, what: str = "it waited for what it must not wait for") -> Iterator[None]:
    """Fail when the block takes ``seconds``, which is what it takes when it waits for what it must not wait for.

    At least ``SHORTEST_PROOF``: less than that is also what a burst of load takes.
    """
    assert seconds >= SHORTEST_PROOF, "a busy machine takes as long without any waiting"
    begun = time.monotonic()
    yield
    took = time.monotonic() - begun
    assert took < seconds, f"{took:.1f} s: {what}"


def undisturbed(seconds: float, attempt: Callable[[], T]) -> T:
    """What the first attempt gave that took less time than this: one that a burst of load stretched proves nothing."""
    deadline = time.monotonic() + PATIENCE
    while True:
        begun = time.monotonic()
        found = attempt()
        if time.monotonic() - begun < seconds:
            return found
        assert time.monotonic() < deadline, f"no attempt took less than {seconds} s"


def patch_time(monkeypatch: pytest.MonkeyPatch, module: ModuleType, **functions: Callable[..., object]) -> None:
    """Replace functions of ``time`` for one module: other threads of the process keep theirs, and are not counted."""
    monkeypatch.setattr(module, "time", SimpleNamespace(**vars(time) | functions))
