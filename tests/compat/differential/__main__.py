"""Put the same requests to an Apache Kafka and to fastlog, and list each field of their answers that differs.

    python -m tests.compat.differential [--only NAME...] [--all] [--kafka PORT]

``scripts/compat differential`` brings the Apache Kafka. The exit code is 1 where something differs that is not in the
table of ``known``, or where something of that table no longer does.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.compat.differential import cases, recorded, run
from tests.compat.differential.known import KNOWN
from tests.compat.differential.target import Target
from tests.harness import real_kafka
from tests.harness.broker import Broker

SETTINGS = {"num.partitions": 1, "offsets.topic.num.partitions": 1, "group.initial.rebalance.delay.ms": 0}
KAFKAS = {**SETTINGS, "log.segment.bytes": 1 << 30, "transaction.state.log.replication.factor": 1}
KAFKAS |= {"transaction.state.log.min.isr": 1, "transaction.state.log.num.partitions": 1}
OURS = {**SETTINGS, "brokerid": 1}
RECORDED = "recorded"
"""The name of what clients have sent, beside those of requests."""


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.compat.differential", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[*run.API.values(), RECORDED], help="these alone")
    parser.add_argument("--all", action="store_true", help="list what is meant to differ too")
    parser.add_argument("--kafka", type=int, metavar="PORT", help="use an Apache Kafka that runs here, and its topics")
    options = parser.parse_args(arguments)
    kinds = options.only or [*run.API.values(), RECORDED]
    keys = {key for key, name in run.API.items() if name in kinds}
    began = time.monotonic()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fastlog-differential-")))
        port = options.kafka
        if port is None:
            port = stack.enter_context(real_kafka.Kafka(directory / "kafka", settings=KAFKAS)).port
        ours = stack.enter_context(Broker(directory / "fastlog", settings=OURS)).port
        pair = Target("Apache Kafka", port), Target("fastlog", ours)
        for target in pair:
            cases.prepare(target)
            run.warm(target)
            target.clear()
        found: run.Findings = {}
        if RECORDED in kinds:
            for name, events in recorded.sessions(functools.partial(_advertising, directory)):
                count, more = recorded.replay(name, events, *pair)
                print(f"{count} requests recorded of {name}, {time.monotonic() - began:.0f} s", flush=True)
                found |= more
        for target in pair:
            target.clear()
            cases.prepare(target)
        count, more = run.compare(pair, cases.generated(keys))
        print(f"{count} generated requests to both, {time.monotonic() - began:.0f} s", flush=True)
        found |= more
    return report(found, show_all=options.all, is_whole=options.only is None)


@contextmanager
def _advertising(directory: Path, port: int) -> Iterator[int]:
    """A new fastlog that clients reach by another port; its own."""
    settings = {**OURS, "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    with Broker(directory / f"recorded-{port}", settings=settings) as broker:
        yield broker.port


def report(found: run.Findings, *, show_all: bool, is_whole: bool) -> int:
    """Print what differs and is not known, and what is known and does not; the exit code."""
    used, unknown = set(), 0
    for one, versions in sorted(found.items()):
        fitting = [pattern for known in KNOWN for pattern in known.patterns if pattern.fits(*one)]
        used.update(fitting)
        unknown += not fitting
        if show_all or not fitting:
            print(f"{'known  ' if fitting else 'DIFFERS'} {one.request} {_ranges(versions)}, {one.case}: {one.field}")
            print(f"            Apache Kafka: {one.kafka}\n            fastlog:      {one.ours}")
    unused = [pattern for known in KNOWN for pattern in known.patterns if pattern not in used] if is_whole else []
    for pattern in unused:
        print(f"NO LONGER {pattern.request}, {pattern.case}: {pattern.field}")
    print(f"{len(found)} differences, {unknown} of them not known; {len(unused)} known ones that no longer are")
    return 1 if unknown or unused else 0


def _ranges(versions: list[int]) -> str:
    versions = sorted(versions)
    is_row = versions == list(range(versions[0], versions[-1] + 1))
    return f"{versions[0]}-{versions[-1]}" if is_row and len(versions) > 1 else ",".join(map(str, versions))


if __name__ == "__main__":
    sys.exit(main())
