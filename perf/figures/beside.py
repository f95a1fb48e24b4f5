"""What ``python -m perf.beside_kafka`` and ``python -m perf.beside_kafka.cold`` print: fastlog beside Apache Kafka.

    messages, rounds    records of a row, and how often it took its turn
    rows                by row ("java, read, 12 partitions") and figure ("rate"): ``fastlog`` and ``kafka``, the
                        medians, and ``ratios``, of each round the one over the other
    brokers             by system: seconds from its start to its first answer, memory in the end

Of a cold read: ``gigabytes``, ``rounds``, and ``turns``, by system each turn's figures.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perf.figures import reading
from perf.figures.results import Better

COMPARED = ("fastlog", "kafka")
COLD = "read from a cold disk beside producers"
BROKERS = "each broker"
_UNITS = {
    "rate": "messages/s",
    "per_million": "s",
    "but_flushes": "s",
    "per_second": "MB/s",
    "seconds": "s",
    "bytes": "bytes",
    "us": "us",
    "ms": "ms",
}
_HIGHER = ("rate", "per_second", "share")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One quantity of one row: of each system its values (often one, the median), and each round's ratio."""

    row: str
    name: str
    values: Mapping[str, tuple[float, ...]]
    ratios: tuple[float, ...] = ()

    @property
    def unit(self) -> str:
        """Found by a word of its name; a share of something has none."""
        return next((unit for word, unit in _UNITS.items() if f"_{word}_" in f"_{self.name}_"), "ratio")

    @property
    def better(self) -> Better:
        """Whether a higher or a lower value is better."""
        words = f"_{self.name}_"
        return "higher" if any(f"_{word}_" in words for word in _HIGHER) else "lower"

    @property
    def ratio(self) -> float | None:
        """Median of the rounds' ratios, fastlog over Apache Kafka; None where there is none."""
        return statistics.median(self.ratios) if self.ratios else None


@dataclass(frozen=True, kw_only=True)
class Beside:
    """One file: what was done, the command that does it, and every figure in its order."""

    said: str
    command: str
    figures: tuple[Figure, ...]


def is_one(document: Any) -> bool:
    """Whether a file is of this kind rather than a result with series."""
    return isinstance(document, dict) and "schema" not in document and ("rows" in document or "turns" in document)


def read(document: Any) -> Beside:
    """Take a file's content.

    Raises:
        ResultsError: it is not what the two commands print; says where.
    """
    fields = reading.mapping(document, "the file")
    rounds = reading.number(reading.needed(fields, "rounds", ""), "rounds")
    return _cold(fields, rounds) if "turns" in fields else _rows(fields, rounds)


def _rows(fields: Mapping[str, Any], rounds: float) -> Beside:
    messages = reading.number(reading.needed(fields, "messages", ""), "messages")
    figures = []
    for row, found in reading.mapping(reading.needed(fields, "rows", ""), "rows").items():
        for name, figure in reading.mapping(found, f"rows.{row}").items():
            where = f"rows.{row}.{name}"
            medians = reading.mapping(figure, where)
            values = {
                system: (reading.number(reading.needed(medians, system, where), f"{where}.{system}"),)
                for system in COMPARED
            }
            ratios = reading.each(reading.needed(medians, "ratios", where), f"{where}.ratios", reading.number)
            figures.append(Figure(row=row, name=name, values=values, ratios=ratios))
    return Beside(
        said=f"{rounds:g} rounds of {messages:,.0f} records of 200 bytes, of Python's slower clients fewer; medians.",
        command="python -m perf.beside_kafka",
        figures=(*figures, *_by_turn(BROKERS, {s: [one] for s, one in _systems(fields, "brokers").items()}, "brokers")),
    )


def _cold(fields: Mapping[str, Any], rounds: float) -> Beside:
    size = reading.number(reading.needed(fields, "gigabytes", ""), "gigabytes")
    turns = {
        system: reading.each(every, f"turns.{system}", reading.mapping)
        for system, every in _systems(fields, "turns").items()
    }
    return Beside(
        said=f"{size:g} GB read from the disk while producers keep their pace, {rounds:g} rounds.",
        command="python -m perf.beside_kafka.cold",
        figures=_by_turn(COLD, turns, "turns"),
    )


def _systems(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = reading.mapping(reading.needed(fields, name, ""), name)
    return {system: found[system] for system in COMPARED if system in found}


def _by_turn(row: str, systems: Mapping[str, Any], where: str) -> tuple[Figure, ...]:
    """Figures of systems that were measured in turns; the ratios are those of the turns that both had."""
    values: dict[str, dict[str, list[float]]] = {}
    for system, turns in systems.items():
        for number, turn in enumerate(turns):
            for name, value in reading.mapping(turn, f"{where}.{system}").items():
                place = f"{where}.{system}[{number}].{name}"
                values.setdefault(name, {}).setdefault(system, []).append(reading.number(value, place))
    figures = []
    for name, of in values.items():
        pairs = zip(*(of.get(system, []) for system in COMPARED), strict=False)
        ratios = tuple(ours / theirs for ours, theirs in pairs if theirs)
        figures.append(Figure(row=row, name=name, values={s: tuple(v) for s, v in of.items()}, ratios=ratios))
    return tuple(figures)
