"""A page of ``/metrics`` as Prometheus reads it, and the tables of ``docs/metrics.md``."""

from __future__ import annotations

import re
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tests.harness.checkout import ROOT

_OF_CLIENTS = "## Of producers, consumers and auditors"


class Row(NamedTuple):
    """A family: its type, the sets of label names that its samples have, and what it means."""

    kind: str
    labels: frozenset[tuple[str, ...]]
    meaning: str


class MetricsPage:
    """One page, in Prometheus's text format."""

    def __init__(self, text: str) -> None:
        self.families = {}
        self.values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for family in text_string_to_metric_families(text):
            name = family.name + "_total" * (family.type == "counter")
            self.families[name] = Row(
                family.type,
                frozenset(tuple(sorted(sample.labels)) for sample in family.samples),
                family.documentation,
            )
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                assert key not in self.values, f"twice: {key}"
                self.values[key] = sample.value

    def value(self, name: str, **labels: str) -> float:
        """Of the sample that has these labels and no others."""
        return self.values[name, tuple(sorted(labels.items()))]

    def topics(self) -> set[str]:
        """All that are named."""
        return {value for _, labels in self.values for label, value in labels if label == "topic"}


def documented() -> tuple[dict[str, Row], dict[str, Row]]:
    """The rows of the page in the documents: those of every broker, and those of one with ZooKeeper."""
    text = _page().partition(_OF_CLIENTS)[0]
    every, _, with_zookeeper = text.partition("### With ZooKeeper")
    return _rows(every), _rows(with_zookeeper)


def documented_of_clients() -> dict[str, Row]:
    """The rows about producers and consumers."""
    return _rows(_page().partition(_OF_CLIENTS)[2])


def _page() -> str:
    return (ROOT / "docs" / "metrics.md").read_text()


def _rows(text: str) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for name, kind, labels, meaning in re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) ?\| (.*) \|$", text, re.M):
        assert name not in found, name
        sets = labels.split(" or ")
        found[name] = Row(kind, frozenset(tuple(sorted(re.findall(r"`(\w+)`", one))) for one in sets), meaning)
    return found
