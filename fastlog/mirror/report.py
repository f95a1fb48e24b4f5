"""How far a mirror is: counts, rates and lag, as a line for people and as an object for programs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from fastlog.client.kafka_fields import Place
from fastlog.consumer.partitions import TopicPartition
from fastlog.mirror.mirror import Mirror
from fastlog.mirror.source import MessageSource
from fastlog.mirror.totals import Totals

_LAG_SECONDS = 2.0
_SHOWN = 3
_PREFIXES = ("", "k", "M", "G", "T", "P")


class MirrorReport:
    """What a mirror did since the last report; for one thread."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._before: dict[str, tuple[float, Totals]] = {}
        self._began = time.monotonic()

    def objects(self, *, asks: bool = True) -> Iterator[dict[str, Any]]:
        """An object for each source; ``asks``: the brokers are asked how much is left."""
        for source in self._mirror.sources:
            now, totals = time.monotonic(), source.totals
            then, before = self._before.get(source.name, (self._began, Totals()))
            self._before[source.name] = now, totals
            seconds = max(1e-6, now - then)
            lag = source.lag(_LAG_SECONDS) if asks else {}
            yield {
                "source": source.name,
                "entries": totals.entries,
                "bytes": totals.bytes,
                "acknowledged": self._mirror.is_acknowledged,
                "entries_per_second": round((totals.entries - before.entries) / seconds, 1),
                "bytes_per_second": round((totals.bytes - before.bytes) / seconds, 1),
                "partitions": len(lag),
                "lag_bytes": sum(value for value in lag.values() if value is not None) if asks else None,
                "lag_unknown": sum(value is None for value in lag.values()),
                "repeated": totals.repeated,
                "possibly_repeated": totals.doubtful,
                "left_out": totals.left_out,
                "topics": {
                    topic: {
                        "entries": counts.entries,
                        "bytes": counts.bytes,
                        "left_out": counts.left_out,
                        "lag_bytes": lag_of(topic, lag),
                    }
                    for topic, counts in sorted(totals.by_topic.items())
                },
                "waiting": {str(name): line(error) for name, error in sorted(source.waiting.items())},
                "state": _state(source),
            }

    def lines(self) -> Iterator[str]:
        """The same as lines of text, and one for each broker of the target that is unavailable."""
        for found in self.objects():
            yield _text(found)
        for error in self._mirror.target_errors:
            yield f"target {error}"

    def summary(self) -> Iterator[str]:
        """A line for each source with what was mirrored in all."""
        seconds = max(1e-6, time.monotonic() - self._began)
        for source in self._mirror.sources:
            totals = source.totals
            verb = "mirrored" if self._mirror.is_acknowledged else "sent, not acknowledged:"
            yield (
                f"{source.name}: {verb} {totals.entries} entries, {totals.bytes} bytes in {seconds:.1f} s"
                f" ({short(totals.bytes / seconds)}B/s)" + extras(totals.repeated, totals.doubtful, totals.left_out)
            )


def _text(found: dict[str, Any]) -> str:
    if found["state"]:
        return f"{found['source']}: {found['state']}"
    unknown = f", {found['lag_unknown']} partitions do not tell" if found["lag_unknown"] else ""
    silent = "" if found["acknowledged"] else "sent, not acknowledged: "
    return (
        f"{found['source']}: {silent}{found['entries']} entries, {short(found['bytes'])}B; now"
        f" {short(found['entries_per_second'])}/s, {short(found['bytes_per_second'])}B/s;"
        f" lag {short(found['lag_bytes'])}B in {found['partitions']} partitions{unknown}"
        + extras(found["repeated"], found["possibly_repeated"], found["left_out"])
        + waiting_text(found["waiting"])
    )


def waiting_text(waiting: Mapping[str, str]) -> str:
    """What waits, each with the reason; not all where it is much."""
    text = "".join(f"; {name} waits: {why}" for name, why in list(waiting.items())[:_SHOWN])
    return text + (f"; {len(waiting) - _SHOWN} more wait" if len(waiting) > _SHOWN else "")


def extras(repeated: int, doubtful: int, left_out: int) -> str:
    """What happened besides, in words."""
    said = [
        f"{repeated} sent twice" if repeated else "",
        f"up to {doubtful} more stored twice" if doubtful else "",
        f"{left_out} left out" if left_out else "",
    ]
    return "".join(f"; {part}" for part in said if part)


def _state(source: MessageSource) -> str:
    if source.consumer is None:
        return f"has not begun: {line(source.error)}" if source.error is not None else "begins"
    return "" if source.is_checked else "waits until the brokers of both sides are known"


def lag_of(topic: str, lag: Mapping[TopicPartition, int | None] | Mapping[Place, int | None]) -> int | None:
    """The lag of a topic; None where that of a partition is not known, or there is none."""
    values = [value for place, value in lag.items() if place[0] == topic]
    return None if not values or None in values else sum(value or 0 for value in values)


def line(error: BaseException | None) -> str:
    """An error in one line."""
    return " ".join(str(error).split())


def short(value: float) -> str:
    """A number as text with one decimal and an SI prefix, as ``12.3 M``; below a thousand a whole number."""
    power = 0
    while value >= 1000 and power < len(_PREFIXES) - 1:
        value /= 1000
        power += 1
    return f"{value:.0f}" if not power else f"{value:.1f} {_PREFIXES[power]}"
