"""Parts of a JSON document, each read as what it has to be; errors name the place."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from fastlog.errors import FastlogError

_LARGEST = 1e300
"""No measurement comes near; sums and differences of what is beyond it are no numbers, and so no axis holds them."""

_T = TypeVar("_T")


class ResultsError(FastlogError):
    """The file is no result of a measurement that this version can read."""


def document(path: Path) -> Any:
    """What a file of JSON holds.

    Raises:
        ResultsError: it is none.
        OSError: it cannot be read.
    """
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:  # nested deeper than anything that was written here
        raise ResultsError(f"no JSON: {error}") from error


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Put the file's name before what is wrong with it."""
    try:
        yield
    except ResultsError as error:
        raise ResultsError(f"{path}: {error}") from error.__cause__


def each(value: Any, where: str, read: Callable[[Any, str], _T]) -> tuple[_T, ...]:
    """A list, each item read by ``read``."""
    if not isinstance(value, list | tuple):
        raise ResultsError(f"{where}: not a list")
    return tuple(read(item, f"{where}[{number}]") for number, item in enumerate(value))


def mapping(value: Any, where: str) -> dict[str, Any]:
    """An object, whose names JSON makes texts."""
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ResultsError(f"{where}: not an object")
    return value


def known(fields: Mapping[str, Any], kind: type, where: str) -> None:
    """Refuse names that are no fields of ``kind``: misspelled, they would be ignored."""
    unknown = sorted(set(fields) - {one.name for one in dataclasses.fields(kind)})
    if unknown:
        raise ResultsError(f"{where}: unknown: {', '.join(unknown)}")


def needed(fields: Mapping[str, Any], name: str, where: str) -> Any:
    """What stands under a name, which must be there."""
    if name not in fields:
        raise ResultsError(f"{place(where, name)}: missing")
    return fields[name]


def text(fields: Mapping[str, Any], name: str, where: str) -> str:
    """The text under a name. Raises ``ResultsError`` for anything else; ``where`` is what holds it."""
    return line(needed(fields, name, where), place(where, name))


def text_or_none(fields: Mapping[str, Any], name: str, where: str) -> str | None:
    """A text under a name; None where the name is not there, or null."""
    return None if fields.get(name) is None else line(fields[name], place(where, name))


def line(value: Any, where: str) -> str:
    """The value as text. Raises ``ResultsError`` for anything else, and for halves of characters."""
    if not isinstance(value, str):
        raise ResultsError(f"{where}: {value!r} is no text")
    if any("\ud800" <= letter <= "\udfff" for letter in value):  # JSON can escape half of a pair; nothing can print it
        raise ResultsError(f"{where}: {value!r} is no text of whole characters")
    return value


def one_of(fields: Mapping[str, Any], name: str, choices: Sequence[str], where: str) -> str:
    """A text under a name, one of those that are known."""
    value = text(fields, name, where)
    if value not in choices:
        raise ResultsError(f"{place(where, name)}: {value!r} is none of {', '.join(choices)}")
    return value


def number(value: Any, where: str) -> float:
    """A finite number that an axis holds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        raise ResultsError(f"{where}: {value!r} is no number")
    return value


def number_or_none(fields: Mapping[str, Any], name: str, where: str) -> float | None:
    """A number under a name; None where the name is not there, or null."""
    return None if fields.get(name) is None else number(fields[name], place(where, name))


def place(where: str, name: str) -> str:
    """How errors name what stands under a name."""
    return f"{where}.{name}" if where else name
