"""The mirror for a configuration: of Kafka 0.7's topics, or of record batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from fastlog.mirror.config import MirrorConfig
from fastlog.mirror.mirror import Mirror
from fastlog.mirror.records.mirror import RecordMirror
from fastlog.mirror.records.report import RecordReport
from fastlog.mirror.report import MirrorReport
from fastlog.mirror.totals import Totals


class AnySource(Protocol):
    """The part of a source that the commands use."""

    @property
    def totals(self) -> Totals:
        """Counts of what was mirrored since the start."""


class AnyMirror(Protocol):
    """The part of a mirror that the commands use; see ``Mirror``."""

    @property
    def config(self) -> MirrorConfig:
        """The settings that it was made with."""

    @property
    def sources(self) -> Sequence[AnySource]:
        """The clusters that it reads."""

    def start(self) -> None:
        """Start its threads; returns at once."""

    def wait(self, seconds: float) -> None:
        """Return after ``seconds``, or raise the error that ends the mirror."""

    def stop(self, seconds: float = 10.0) -> list[str]:
        """End it within about ``seconds``; a line for each source that left something undone."""


class AnyReport(Protocol):
    """The progress of a mirror, as JSON and as text; see ``MirrorReport``."""

    def objects(self, *, asks: bool = True) -> Iterator[dict[str, Any]]:
        """A JSON object for each source: totals, lag, and what waits."""

    def lines(self) -> Iterator[str]:
        """The same as lines of text."""

    def summary(self) -> Iterator[str]:
        """A line for each source with what was mirrored in all."""


def made(config: MirrorConfig) -> tuple[AnyMirror, AnyReport]:
    """The mirror that the configuration is for, not started yet, and what reports how far it is."""
    if config.is_of_records:
        of_records = RecordMirror(config)
        return of_records, RecordReport(of_records)
    mirror = Mirror(config)
    return mirror, MirrorReport(mirror)


def notes(config: MirrorConfig) -> list[str]:
    """What should be known before it begins: settings that mean nothing here."""
    found = [
        f"{source.name}: without effect in a mirror: {', '.join(source.without_effect)}"
        for source in config.sources
        if source.without_effect
    ]
    if config.without_effect_in_target:
        names = ", ".join(config.without_effect_in_target)
        found.append(f"target: without effect in a mirror, which forwards bytes as they are and at once: {names}")
    if config.without_effect:
        found.append(f"without effect on topics of record batches: {', '.join(config.without_effect)}")
    return found
