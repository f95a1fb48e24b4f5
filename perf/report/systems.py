"""How each system is named and drawn: a colour that colour-blind readers can tell apart, and a shape of its own."""

from __future__ import annotations

from dataclasses import dataclass

from perf.figures.results import SYSTEMS

PUBLISHED = "published"
"""Stands for figures that others printed; nothing of it was measured here."""


@dataclass(frozen=True)
class Look:
    """Name for readers, colours on white and on dark paper, matplotlib's name of the shape of its points."""

    name: str
    light: str
    dark: str
    marker: str


LOOKS = {
    "fastlog": Look("fastlog", "#0b5cad", "#6db5ff", "o"),
    "fastlog-broker": Look("fastlog broker, C load", "#2589a8", "#56c7dc", "X"),
    "ceiling": Look("ceiling", "#565d66", "#b4bcc5", "s"),
    "rabbitmq-classic": Look("RabbitMQ classic queue", "#c44e00", "#ff9159", "^"),
    "rabbitmq-stream": Look("RabbitMQ stream", "#a67200", "#f0b93a", "v"),
    "activemq": Look("ActiveMQ", "#007f5b", "#3fd0a0", "P"),
    "kafka": Look("Apache Kafka", "#a63d86", "#ef93d0", "*"),
    PUBLISHED: Look("published", "#14181d", "#f0f2f4", "D"),
}
_OTHERS = (("#6447c4", "#b5a4ff", "<"), ("#7d5a35", "#d8b184", ">"), ("#8b2635", "#f28b97", "p"))


def look_of(system: str) -> Look:
    """The look of a system; one that is not known here keeps its name and takes the colour its name falls on."""
    known = LOOKS.get(system)
    if known is not None:
        return known
    light, dark, marker = _OTHERS[_other(system)]
    return Look(system, light, dark, marker)


def variable_of(system: str) -> str:
    """The page's variable that holds the colour of what belongs to a system."""
    return f"s-{system}" if system in LOOKS else f"s-other-{_other(system)}"


def variables(*, dark: bool = False) -> dict[str, str]:
    """Each of these variables with its colour, on white paper or on dark."""
    found = {f"s-{system}": (look.light, look.dark) for system, look in LOOKS.items()}
    found |= {f"s-other-{number}": other[:2] for number, other in enumerate(_OTHERS)}
    return {name: pair[dark] for name, pair in found.items()}


def rank(system: str) -> int:
    """Where a system stands among others: as in the result file's list, unknown ones last, published figures after."""
    order = (*SYSTEMS, "", PUBLISHED)
    return order.index(system) if system in order else order.index("")


def _other(system: str) -> int:
    return sum(map(ord, system)) % len(_OTHERS)
