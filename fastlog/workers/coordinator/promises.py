"""A value that comes later, for one thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Promise(Generic[T]):
    """Given once; whoever waits is called then, in the order of asking, or at once."""

    __slots__ = ("_acts", "_value")

    def __init__(self, value: T | None = None) -> None:
        """``value``: given from the beginning."""
        self._value = value
        self._acts: list[Callable[[T], object]] = []

    @property
    def value(self) -> T | None:
        """None as long as it has not been given."""
        return self._value

    def give(self, value: T) -> None:
        """Give the value, which is not None, and tell those that wait; what was given before stays."""
        if self._value is None:
            self._value = value
            acts, self._acts = self._acts, []
            for act in acts:
                act(value)

    def then(self, act: Callable[[T], object]) -> None:
        """Call ``act`` with the value, once it is there."""
        if self._value is None:
            self._acts.append(act)
        else:
            act(self._value)
