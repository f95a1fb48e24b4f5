"""How fast ``fastlog mirror`` copies record batches from one broker to another: ``python -m perf.record_mirror``.

Records of 200 bytes in one partition, which lie in the source before the mirror starts; the time goes from the first
one in the target until the last one is flushed there. Beside it: the source read by a ``SimpleConsumer`` in lists.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from fastlog import testing
from fastlog.client.addresses import parse_brokers
from fastlog.client.records import LATEST, RecordBroker
from perf.command import Size, run
from perf.consuming import RECORDS, WAYS, filled

_PATIENCE = 120.0


def mirrored(source: str, messages: int, group: str, fetch_bytes: int) -> float:
    """Records a second into a broker of their own."""
    with testing.broker() as target, tempfile.TemporaryDirectory() as scratch:
        consumer, producer = Path(scratch) / "source.properties", Path(scratch) / "target.properties"
        consumer.write_text(f"bootstrap.servers={source}\ngroupid={group}\nfetch.size={fetch_bytes}\n")
        producer.write_text(f"bootstrap.servers={target.address}\n")
        command = [sys.executable, "-m", "fastlog", "mirror", "--whitelist", RECORDS]
        command += ["--consumer-config", str(consumer), "--producer-config", str(producer)]
        mirror = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            return _rate(target.address, messages)
        finally:
            mirror.terminate()
            mirror.wait()


def _rate(target: str, messages: int) -> float:
    deadline = time.monotonic() + _PATIENCE
    place, begun, first = (RECORDS, 0), 0.0, 0
    with RecordBroker(parse_brokers(target), timeout=30) as records:
        while time.monotonic() < deadline:
            is_there = bool(records.known_topics([RECORDS])[RECORDS].partitions)
            end = records.offsets([place], LATEST)[place] if is_there else 0
            if end and not begun:
                begun, first = time.perf_counter(), end
            if end >= messages:
                return (end - first) / (time.perf_counter() - begun)
            time.sleep(0.01)
    raise click.ClickException("the mirror did not bring everything in time")


@click.command()
@click.option("--messages", default=2_000_000, show_default=True, type=click.IntRange(100_000), help="In the source.")
@click.option(
    "--turns", default=5, show_default=True, type=click.IntRange(1, 100), help="How often both take their turn."
)
@click.option("--per-batch", default=500, show_default=True, type=click.IntRange(1, 5000), help="Records in a batch.")
@click.option("--fetch-bytes", default=1 << 20, show_default=True, type=Size(), help="fetch.size of the mirror.")
def main(messages: int, turns: int, per_batch: int, fetch_bytes: int) -> int:
    """A mirror of one topic, beside one consumer of it."""
    rates, ratios = [], []
    with filled(messages, per_batch, {}) as source:
        for turn in range(turns):
            rate = mirrored(source, messages, f"mirror-{turn}", fetch_bytes)
            begun = time.perf_counter()
            WAYS["SimpleConsumer.batches"](source, RECORDS, messages)
            rates.append(rate)
            ratios.append(rate * (time.perf_counter() - begun) / messages)
    middle, least, most = (choose(rates) for choose in (statistics.median, min, max))
    print(f"mirrored: {middle:,.0f} records a second ({least:,.0f} to {most:,.0f})")
    print(
        f"of what a consumer reads in lists: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    )
    return 0


if __name__ == "__main__":
    run(main, "python -m perf.record_mirror")
