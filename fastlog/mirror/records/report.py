"""How far a mirror of record batches is: counts, rates and lag, as a line for people and as an object for programs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from fastlog.mirror.records.mirror import RecordMirror
from fastlog.mirror.report import extras, lag_of, line, short, waiting_text
from fastlog.mirror.totals import Totals


class RecordReport:
    """What a mirror did since the last report; for one thread."""

    def __init__(self, mirror: RecordMirror) -> None:
        self._mirror = mirror
        self._before: dict[str, tuple[float, Totals]] = {}
        self._began = time.monotonic()

    def objects(self, *, asks: bool = True) -> Iterator[dict[str, Any]]:
        """An object for each source. Nobody is asked for it: what is left is known from what was read."""
        for source in self._mirror.sources:
            now, totals = time.monotonic(), source.totals
            then, before = self._before.get(source.name, (self._began, Totals()))
            self._before[source.name] = now, totals
            seconds = max(1e-6, now - then)
            lag = source.lag if asks else {}
            yield {
                "source": source.name,
                "records": totals.entries,
                "bytes": totals.bytes,
                "records_per_second": round((totals.entries - before.entries) / seconds, 1),
                "bytes_per_second": round((totals.bytes - before.bytes) / seconds, 1),
                "partitions": len(lag),
                "lag_records": sum(value for value in lag.values() if value is not None) if asks else None,
                "lag_unknown": sum(value is None for value in lag.values()),
                "left_out": totals.left_out,
                "topics": {
                    topic: {
                        "records": counts.entries,
                        "bytes": counts.bytes,
                        "left_out": counts.left_out,
                        "lag_records": lag_of(topic, lag),
                    }
                    for topic, counts in sorted(totals.by_topic.items())
                },
                "waiting": {name: line(error) for name, error in sorted(source.waiting.items())},
                "state": source.state,
            }

    def lines(self) -> Iterator[str]:
        """The same as lines of text."""
        for found in self.objects():
            yield _text(found)

    def summary(self) -> Iterator[str]:
        """A line for each source with what was mirrored in all."""
        seconds = max(1e-6, time.monotonic() - self._began)
        for source in self._mirror.sources:
            totals = source.totals
            yield (
                f"{source.name}: mirrored {totals.entries} records, {totals.bytes} bytes in {seconds:.1f} s"
                f" ({short(totals.bytes / seconds)}B/s)" + extras(0, 0, totals.left_out)
            )


def _text(found: dict[str, Any]) -> str:
    if found["state"]:
        return f"{found['source']}: {found['state']}"
    unknown = f", {found['lag_unknown']} of which are looked up" if found["lag_unknown"] else ""
    return (
        f"{found['source']}: {found['records']} records, {short(found['bytes'])}B; now"
        f" {short(found['records_per_second'])}/s, {short(found['bytes_per_second'])}B/s;"
        f" lag {found['lag_records']} records in {found['partitions']} partitions{unknown}"
        + extras(0, 0, found["left_out"])
        + waiting_text(found["waiting"])
    )
