"""The program that sends more than anybody takes."""

from __future__ import annotations

import faulthandler
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from fastlog import Producer

QUEUE_BYTES = 4 * 2**20
MOST_GROWTH_BYTES = 48 * 2**20
"""The queue, as much on its way, copies of what is being sent, and what the allocator keeps."""
THREADS = 4
OVERLOAD = 10
BURST, BURSTS = 300, 20
HANG_SECONDS = 120.0


def resident_bytes() -> int:
    """Memory of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main(told: dict[str, Any]) -> dict[str, Any]:
    """Send for ``seconds``, from several threads, as fast as ``send`` returns; then deliver all of it."""
    violations: list[str] = []
    producer = Producer(
        f"127.0.0.1:{told['port']}",
        producer_type="async",
        queue_bytes=QUEUE_BYTES,
        queue_messages=20_000,
        in_flight_bytes=QUEUE_BYTES,
        batch_messages=100,
    )
    producer.send("t", b"overload")
    producer.flush()
    payload = b"overload" + bytes(500)
    bursts = []
    for _ in range(BURSTS):  # which find room
        started = time.perf_counter()
        for _ in range(BURST):
            producer.send("t", payload)
        bursts.append(time.perf_counter() - started)
    producer.flush()
    sent = [1 + BURSTS * BURST]
    most = before = resident_bytes()
    deadline = time.monotonic() + told["seconds"]

    def send() -> None:
        count = 0
        try:
            while time.monotonic() < deadline:
                producer.send("t", payload)
                count += 1
        except Exception as error:
            violations.append(f"send raised {error!r}")
        sent.append(count)

    threads = [threading.Thread(target=send) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        time.sleep(0.02)
        most = max(most, resident_bytes())
    producer.close(60)
    stats = producer.stats()
    if stats.failed or stats.dropped or stats.delivered != sum(sent):
        violations.append(f"{sum(sent)} were sent: {stats}")
    if most - before > MOST_GROWTH_BYTES:
        violations.append(f"memory grew by {(most - before) >> 20} MiB")
    possible, taken = BURST / min(bursts), sum(sent[1:]) / told["seconds"]
    if possible < OVERLOAD * taken:
        violations.append(f"no overload: {taken:.0f} messages a second were taken, {possible:.0f} are possible")
    return {"sent": sum(sent), "violations": violations, "grew": most - before}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
