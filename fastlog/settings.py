"""The machinery of settings: fields that know their property name, unit, range and meaning; parsing and checking them.

A settings class is a frozen, keyword-only dataclass whose fields are made by ``prop``. The properties reader,
``--help`` and ``docs/settings.md`` are generated from the same fields, so none of them can say something else.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastlog.errors import ConfigError

if TYPE_CHECKING:
    from typing import Self

_NUMBER = re.compile(r"([+-]?)([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z]*)")
_BYTES = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_MILLISECONDS = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION_UNITS = {"ms": "ms", "seconds": "s", "minutes": "min", "hours": "h"}


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting, as ``--help`` and ``docs/settings.md`` show it."""

    name: str
    field: str
    kind: str
    default: str
    unit: str
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    doc: str

    @property
    def range(self) -> str:
        """The accepted values in words, empty when anything of the right kind is accepted."""
        if self.choices:
            return ", ".join(self.choices)
        if self.low is not None and self.high is not None:
            return f"{plain(self.low)} … {plain(self.high)}"
        if self.low is not None:
            return f"≥ {plain(self.low)}"
        return f"≤ {plain(self.high)}" if self.high is not None else ""


def prop(
    name: str,
    default: object,
    *,
    doc: str,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    default_text: str | None = None,
) -> Any:
    """Return a dataclass field for the property ``name``.

    ``default`` may be a function, called for each instance; ``default_text`` then says in words what it gives.
    ``low`` and ``high`` are inclusive and hold for each value of a map. The type comes from the field's annotation.
    """
    metadata = {
        "name": name,
        "doc": doc,
        "unit": unit,
        "low": low,
        "high": high,
        "choices": choices,
        "default_text": default_text,
    }
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


class Settings:
    """Base of the clients' settings classes: how one is made from properties, from a file, and from fields."""

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any], **fields: Any) -> Self:
        """Return the settings given by their 0.7 names; ``fields`` are set by the names they have here, and go first.

        Sizes may be written as ``64MiB``, durations as ``5s``. Values may be numbers as well as texts; None is an empty
        text, with which a setting that may have no value has none.

        Raises:
            ConfigError: an unknown name (with the nearest one), a malformed value, or values that contradict.
        """
        for name in properties:
            if not isinstance(name, str):
                raise ConfigError(f"{name!r} is no name of a setting, which is a text")
        texts = {
            name: value if isinstance(value, str) else "" if value is None else plain(value)
            for name, value in properties.items()
        }
        return cls.from_fields({**cls._read(texts, fields), **fields})

    @classmethod
    def from_file(cls, path: str | Path, **fields: Any) -> Self:
        """Return the settings of a properties file. Raises as ``from_properties`` and ``load_properties``."""
        return cls.from_properties(load_properties(path), **fields)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Return the settings given by the names they have here. Raises as ``from_properties``."""
        known = {field.name for field in _fields(cls)}
        for name in fields:
            if name not in known:
                raise ConfigError(unknown_name(name, _names(cls, by_field=True)))
        return cls(**fields)

    @classmethod
    def describe(cls) -> list[Setting]:
        """Every setting with its name, unit, range, default and meaning."""
        return describe(cls)

    @classmethod
    def _read(cls, texts: dict[str, str], fields: Mapping[str, Any]) -> dict[str, Any]:
        """Turn the texts of properties into values of fields; the place for what 0.7 wrote in ways of its own."""
        return read_properties(cls, texts, cls._refused)

    @staticmethod
    def _refused(name: str) -> str | None:
        """Why a name, although it is known somewhere, cannot be set."""
        return None


def plain(value: object) -> str:
    """A value the way a person would write it into a properties file."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.9f}".rstrip("0").rstrip(".")
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{plain(item)}" for key, item in value.items())
    if isinstance(value, tuple | list):
        return ",".join(plain(item) for item in value)
    return str(value)


def describe(cls: type) -> list[Setting]:
    """Every setting of a settings class, in the order of its fields."""
    found = []
    for field in _fields(cls):
        meta = field.metadata
        found.append(
            Setting(
                name=meta["name"],
                field=field.name,
                kind=str(field.type),
                default=_default_text(field),
                unit=meta["unit"],
                low=meta["low"],
                high=meta["high"],
                choices=meta["choices"],
                doc=meta["doc"],
            )
        )
    return found


def read_properties(
    cls: type, properties: Mapping[str, str], refused: Callable[[str], str | None] = lambda name: None
) -> dict[str, Any]:
    """Turn texts by property name into values by field name.

    ``refused(name)`` may return a line that says why a name, although it is known, cannot be set.

    Raises:
        ConfigError: an unknown name (with the nearest one), or a value that is malformed or out of range.
    """
    by_name = {field.metadata["name"]: field for field in _fields(cls)}
    values: dict[str, Any] = {}
    for name, text in properties.items():
        reason = refused(name)
        if reason is not None:
            raise ConfigError(reason)
        field = by_name.get(name)
        if field is None:
            raise ConfigError(unknown_name(name, _names(cls, by_field=False)))
        value = _parse(field, text)
        _check(field, value)
        values[field.name] = value
    return values


def check_fields(config: object) -> None:
    """Raise ``ConfigError`` when a field of a settings object has the wrong type or is out of range."""
    for field in _fields(type(config)):
        _check(field, getattr(config, field.name))


def unknown_name(name: str, known: Iterable[str] | Mapping[str, str]) -> str:
    """The error line for an unknown setting, with the nearest known name when one is near.

    A mapping has other names of the known ones as well: ``batch.size`` is near to what ``batch_messages`` is called.
    """
    import difflib  # only for an error

    meant = {_bare(other): other for other in known}
    near = difflib.get_close_matches(_bare(name), meant, n=1, cutoff=0.6)
    if not near:
        return f"unknown setting {name!r}"
    other = meant[near[0]]
    found = known[other] if isinstance(known, Mapping) else other
    return f"unknown setting {name!r}; did you mean {found!r}?" + (f" {other!r} is called so" if other != found else "")


def _names(cls: type, *, by_field: bool) -> dict[str, str]:
    """What each setting may be called, and its name among fields or properties; these go first."""
    pairs = [
        (field.name, field.metadata["name"]) if by_field else (field.metadata["name"], field.name)
        for field in _fields(cls)
    ]
    return {**{own: own for own, _ in pairs}, **{other: own for own, other in pairs}}


def _bare(name: str) -> str:
    return re.sub(r"[._-]", "", name).lower()


def load_properties(path: str | Path) -> dict[str, str]:
    """Read a ``.properties`` file: comments (``#``, ``!``), ``=`` or ``:`` or blanks between name and value,
    continuation lines and backslash escapes as in Java; UTF-8; of a repeated name the last one counts.

    Raises:
        ConfigError: the file cannot be read, is not UTF-8, or holds a malformed ``\\u`` escape.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: byte {error.start}") from error
    properties: dict[str, str] = {}
    logical = ""
    for number, line in enumerate([*re.split(r"\r\n|\r|\n", text), ""], start=1):
        stripped = line.lstrip(" \t\f")
        if not logical and (not stripped or stripped[0] in "#!"):
            continue
        if (len(stripped) - len(stripped.rstrip("\\"))) % 2:
            logical += stripped[:-1]
            continue
        logical += stripped
        if logical:
            name, value = _split_property(logical)
            where = f"{path}, line {number}"
            properties[_unescape(name, where)] = _unescape(value, where).strip()
        logical = ""
    return properties


def parse_bytes(text: str) -> int:
    """``64MiB``, ``1GB``, ``1000`` as a number of bytes (KB, MB … are powers of 1000; KiB, MiB … of 1024).

    Raises:
        ConfigError: not a size, or not a whole number of bytes.
    """
    number, suffix = _number(text)
    factor = _BYTES.get(suffix.upper())
    if factor is None:
        raise ConfigError(f"{text!r} is no size: write for example 1000, 64MiB or 1GB")
    return _whole(number, factor, text, "bytes")


def parse_duration(text: str, unit: str) -> int | float:
    """``100ms``, ``5s``, ``2min``, ``1h``, ``7d`` or a plain number of ``unit``, in ``unit``
    (one of ms, seconds, minutes, hours); an int when it is whole.

    Raises:
        ConfigError: not a duration.
    """
    number, suffix = _number(text)
    own = _DURATION_UNITS[unit]
    if suffix not in _MILLISECONDS and suffix != "":
        raise ConfigError(f"{text!r} is no duration: write for example 100ms, 5s, 2min, 1h, 7d, or a number of {unit}")
    value = float(number) * _MILLISECONDS[suffix or own] / _MILLISECONDS[own]
    if re.fullmatch(r"[+-]?[0-9]+", number) and int(number) * _MILLISECONDS[suffix or own] % _MILLISECONDS[own] == 0:
        return int(number) * _MILLISECONDS[suffix or own] // _MILLISECONDS[own]
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _fields(cls: type) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(cls) if "name" in field.metadata]


def _default_text(field: dataclasses.Field[Any]) -> str:
    text = field.metadata["default_text"]
    return text if text is not None else plain(field.default)


def _number(text: str) -> tuple[str, str]:
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{text!r} is no number")
    return match[1] + match[2], match[3]


def _whole(number: str, factor: int, text: str, unit: str) -> int:
    if "." not in number:
        return int(number) * factor
    value = float(number) * factor
    if not value.is_integer():
        raise ConfigError(f"{text!r} is not a whole number of {unit}")
    return int(value)


def _parse(field: dataclasses.Field[Any], text: str) -> Any:
    name, kind = field.metadata["name"], str(field.type)
    stripped = text.strip()
    try:
        if kind.startswith("dict"):
            return _parse_map(field, stripped)
        if kind.startswith("tuple"):
            items = tuple(item.strip() for item in stripped.split(",") if item.strip())
            return None if kind.endswith(" | None") and not items else items
        return _parse_one(field, kind, stripped)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


def _parse_map(field: dataclasses.Field[Any], text: str) -> dict[str, Any]:
    value_kind = str(field.type).removeprefix("dict[str, ").removesuffix("]")
    found: dict[str, Any] = {}
    for item in text.split(",") if text else []:
        # From the right: a topic's name may hold a colon, a value cannot.
        key, colon, value = item.rpartition(":")
        key = key.strip()
        if not colon or not key or not value.strip():
            raise ConfigError(f"{item!r} is malformed: write topic:value,topic:value")
        if key in found:
            raise ConfigError(f"topic {key!r} is named twice")
        found[key] = _parse_one(field, value_kind, value.strip())
    return found


def _is_no_value(field: dataclasses.Field[Any], base: str, text: str) -> bool:
    """Whether a text stands for no value: an empty one, -1 for a number, and ``none`` where it cannot be a value.

    A text may have the value ``none`` (``acks``, the name of a server) unless that is what is shown as the default.
    """
    if text == "none":
        return base != "str" or _default_text(field).startswith("none")
    return not text or (text == "-1" and base in ("int", "float"))


def _parse_one(field: dataclasses.Field[Any], kind: str, text: str) -> Any:
    unit = field.metadata["unit"]
    base = kind.removesuffix(" | None")
    if base != kind and _is_no_value(field, base, text):
        return None
    if base == "str":
        return text
    if base == "bool":
        if text not in ("true", "false"):
            raise ConfigError(f"{text!r} is neither true nor false")
        return text == "true"
    value: int | float
    if unit == "bytes":
        value = parse_bytes(text)
    elif unit in _DURATION_UNITS:
        value = parse_duration(text, unit)
    else:
        number, suffix = _number(text)
        if suffix:
            raise ConfigError(f"{text!r} is no number")
        value = float(number) if "." in number else int(number)
    if base == "float":
        return float(value)
    if not isinstance(value, int):
        raise ConfigError(f"{text!r} is not a whole number" + (f" of {unit}" if unit else ""))
    return value


def _check(field: dataclasses.Field[Any], value: object) -> None:
    name, kind = field.metadata["name"], str(field.type)
    if isinstance(value, dict) and kind.startswith("dict"):
        item_kind = kind.removeprefix("dict[str, ").removesuffix("]")
        for key, item in value.items():
            _check_one(f"{name}: topic {key!r}", item_kind, field.metadata, item)
    elif isinstance(value, tuple) and kind.startswith("tuple"):
        if not value:
            raise ConfigError(f"{name}: at least one value is needed")
        for item in value:
            _check_one(name, "str", {**field.metadata, "low": None}, item)
    else:
        _check_one(name, kind, field.metadata, value)


def _is_no_text(value: str) -> bool:
    """Whether it has what no name, path or address can have: half a character, or a NUL."""
    return "\0" in value or (not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value))


def _check_one(name: str, kind: str, meta: Mapping[str, Any], value: object) -> None:
    if value is None and kind.endswith(" | None"):
        return
    types: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}
    base = kind.removesuffix(" | None")
    if not isinstance(value, types.get(base, ())) or (isinstance(value, bool) and base != "bool"):
        raise ConfigError(f"{name}: {value!r} is not of type {kind}")
    if isinstance(value, str) and _is_no_text(value):
        raise ConfigError(f"{name}: {value!r} has characters that are no text")
    if meta["choices"] and value not in meta["choices"]:
        raise ConfigError(f"{name}: {value!r} is none of {', '.join(meta['choices'])}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        unit = f" {meta['unit']}" if meta["unit"] else ""
        if not math.isfinite(value):
            raise ConfigError(f"{name}: {value!r} is no number")
        if meta["low"] is not None and value < meta["low"]:
            raise ConfigError(f"{name}: {plain(value)} is too small, the least is {plain(meta['low'])}{unit}")
        if meta["high"] is not None and value > meta["high"]:
            raise ConfigError(f"{name}: {plain(value)} is too large, the most is {plain(meta['high'])}{unit}")


def _split_property(line: str) -> tuple[str, str]:
    position = 0
    while position < len(line) and line[position] not in "=: \t\f":
        position += 2 if line[position] == "\\" else 1
    name = line[:position]
    rest = line[position:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:]
    return name, rest.lstrip(" \t\f")


def _unescape(text: str, where: str) -> str:
    def one(match: re.Match[str]) -> str:
        escape = match[1]
        if escape.startswith("u"):
            if len(escape) != 5:
                raise ConfigError(f"{where}: malformed \\u escape")
            return chr(int(escape[1:], 16))
        return {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(escape, escape)

    return re.sub(r"\\(u[0-9A-Fa-f]{4}|.)", one, text, flags=re.DOTALL)
