"""Checks of what a program gives to public calls, so that a wrong type is an error of ours that names the argument."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

from fastlog.errors import ArgumentError, ConfigError

INT32 = 2**31 - 1
INT64 = 2**63 - 1
"""The largest numbers of their kinds, which most settings may be at most."""


def whole(name: str, value: Any, low: int = -(2**31), high: int = INT32) -> int:
    """A whole number from ``low`` to ``high``; those of numpy count, True does not.

    Raises:
        ArgumentError: it is none.
        ConfigError: it is out of range.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise ArgumentError(f"{name}: {_shown(value)} is not a whole number")
    if not low <= number <= high:
        raise ConfigError(f"{name}: {number} is not from {low} to {high}")
    return number


def offset(name: str, value: Any) -> int:
    """A whole number of 64 bits. Raises as ``whole``."""
    return whole(name, value, -(2**63), INT64)


def text(name: str, value: Any) -> str:
    """A text that has a form in UTF-8. Raises ``ArgumentError``."""
    if not isinstance(value, str):
        raise ArgumentError(f"{name}: {_shown(value)} is not a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ArgumentError(f"{name}: {_shown(value)} has characters that are no text") from None
    return value


def seconds(name: str, value: Any) -> float:
    """A number of seconds; infinity is one, negative numbers are for the caller to judge. Raises ``ArgumentError``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ArgumentError(f"{name}: {_shown(value)} is not a number of seconds")
    return float(value) if value < INT64 else math.inf


def listed(name: str, value: Any) -> list[Any]:
    """The items of whatever has items, but for a text and bytes. Raises ``ArgumentError``."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ArgumentError(f"{name}: {_shown(value)} is no list")
    return list(value)


def _shown(value: Any) -> str:
    """A value as an error names it, however long it is."""
    found = ascii(value)
    return found if len(found) <= 60 else f"{found[:57]}..."
