"""Single values of options: a text in, a checked value out, and an error that names the option. Knows no Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fastlog.errors import ConfigError
from fastlog.settings import parse_bytes, parse_duration

Parse = Callable[[str, str], Any]
"""Takes an option's name and its text. Raises ``ConfigError`` that begins with the name."""


def parse_json(name: str, text: str) -> Any:
    """Any JSON; no name twice in an object."""
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _unique(name, pairs))
    except ValueError as error:
        raise ConfigError(f"{name}: {text!r} is no JSON: {error}") from None


def _unique(name: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ConfigError(f"{name}: a topic or partition is named twice")
    return found


def number(name: str, text: str, low: int, high: int) -> int:
    """A whole number from ``low`` to ``high``."""
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(f"{name}: {text!r} is no whole number") from None
    if not low <= value <= high:
        raise ConfigError(f"{name}: {value} is not from {low} to {high}")
    return value


def counted(low: int, high: int) -> Parse:
    """Parses a whole number from ``low`` to ``high``."""
    return lambda name, text: number(name, text, low, high)


def sized(high: int) -> Parse:
    """Parses bytes, from 1 to ``high``, such as ``64MiB``."""

    def parse(name: str, text: str) -> int:
        try:
            value = parse_bytes(text)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
        if not 1 <= value <= high:
            raise ConfigError(f"{name}: {value} is not from 1 to {high}")
        return value

    return parse


def seconds(name: str, text: str) -> float:
    """A time above 0 in seconds, written in milliseconds or as ``5s``."""
    try:
        value = parse_duration(text, "ms") / 1000
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    if value <= 0:
        raise ConfigError(f"{name}: {text!r} is not above 0")
    return value


def truth(name: str, text: str) -> bool:
    """Parse ``true`` or ``false``. Raises ``ConfigError`` that begins with ``name`` for anything else."""
    if text.strip().lower() not in ("true", "false"):
        raise ConfigError(f"{name}: {text!r} is neither true nor false")
    return text.strip().lower() == "true"


def one_of(*words: str) -> Parse:
    """Parses one of these words, in any case."""

    def parse(name: str, text: str) -> str:
        if text.strip().lower() not in words:
            raise ConfigError(f"{name}: {text!r} is none of {', '.join(words)}")
        return text.strip().lower()

    return parse
