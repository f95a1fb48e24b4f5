"""``python -m perf.replay.client KIND OPTIONS``: one client process of a scenario.

It prepares everything that is not to be timed, prints ``ready``, waits for a line, does its work, and prints its
figures as JSON. Times are of CLOCK_MONOTONIC, which all processes of a machine share. What runs without an end runs
until the next line, or the end of its input.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from fastlog.errors import FastlogError
from perf.replay import codec_alone, in_spark, mirroring, streams, throughput

Work = Callable[[], dict[str, Any]]
KINDS: Mapping[str, Callable[..., Work]] = {
    "produce": throughput.producing,
    "consume": throughput.consuming,
    "consume-again-and-again": streams.consuming_until_told,
    "produce-stamped": streams.producing_stamped,
    "produce-paced": streams.producing_paced,
    "mirror": mirroring.mirroring,
    "follow": streams.following,
    "compress": codec_alone.compressing,
    "spark-count": in_spark.counting,
    "spark-count-prebuilt": in_spark.counting_prebuilt,
    "spark-count-kafka": in_spark.counting_kafka,
    "spark-load": in_spark.loading,
    "spark-write": in_spark.writing,
}


def told() -> threading.Event:
    """An event that the next line of the input sets."""
    event = threading.Event()

    def wait() -> None:
        sys.stdin.readline()
        event.set()

    threading.Thread(target=wait, daemon=True).start()
    return event


def main() -> None:
    """Run one measured client, in a process of its own."""
    kind, options = sys.argv[1], json.loads(sys.argv[2])
    if kind == "consume-again-and-again":
        options["told"] = told
    work = KINDS[kind](**options)
    print("ready", flush=True)
    sys.stdin.readline()
    before = cpu_seconds()
    found = work()
    print(json.dumps({"client_cpu_seconds": cpu_seconds() - before, **found}), flush=True)


def cpu_seconds() -> float:
    """The processor time that this process has taken."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    try:
        main()
    except FastlogError as failure:
        sys.exit(" ".join(str(failure).split()))  # the replay shows the last line
