"""What a consumer of ``scripts/demo-cluster`` does, in a process of its own: lines into the database of its group.

The lines and the offsets behind them are one transaction, so that each counts once, whoever is killed whenever.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import fastlog
from fastlog.errors import ConsumerTimeout, OwnershipLostError

TOPIC = "access"
LINE_TABLE = (
    "CREATE TABLE line (number INTEGER, client TEXT, text BLOB, broker_partition TEXT, consumer TEXT, time REAL)"
)
BUSY_SECONDS = 20.0
POLL_SECONDS = 0.2
_TRY_SECONDS = 0.01
_PR_SET_PDEATHSIG = 1


def connect(path: str | Path) -> sqlite3.Connection:
    """A connection that survives kills of processes; a power cut is not what is shown here."""
    made = sqlite3.connect(path, timeout=BUSY_SECONDS, check_same_thread=False)
    made.execute("PRAGMA synchronous = OFF")
    return made


def numbered(number: int, line: bytes) -> bytes:
    """The payload that is sent for a line."""
    return b"%d\t%s" % (number, line)


def client_of(line: bytes) -> bytes:
    """The client's address: the first field of a line of an access log."""
    return line.split(b" ", 1)[0]


def consume(told: dict[str, Any]) -> None:
    """Consume in a group until SIGTERM."""
    is_over = False

    def leave(_number: int, _frame: object) -> None:
        nonlocal is_over
        is_over = True

    signal.signal(signal.SIGTERM, leave)
    path, group, name = told["database"], told["group"], told["name"]
    offsets = fastlog.DatabaseOffsets(lambda: connect(path))
    database = connect(path)
    once = offsets.exactly_once(database, group)
    with fastlog.Consumer(
        told["zookeeper"],
        group_id=group,
        consumer_id=name,
        auto_commit=False,
        store=offsets,
        zk_session_timeout_ms=told["session_ms"],
        zk_sync_time_ms=500,
        fetcher_backoff_ms=200,
        consumer_timeout_ms=int(POLL_SECONDS * 1000),
    ) as consumer:
        (stream,) = consumer.create_message_streams({TOPIC: 1})[TOPIC]
        batches = stream.batches(max_messages=200)
        while not is_over:
            with contextlib.suppress(ConsumerTimeout):
                _write(database, once, next(batches), name)


def _write(database: sqlite3.Connection, once: Any, batch: Any, name: str) -> None:
    while True:
        try:
            with contextlib.suppress(OwnershipLostError), once(batch) as fresh:
                rows = []
                for payload in fresh:
                    number, _, line = payload.partition(b"\t")
                    client = client_of(line).decode(errors="replace")
                    rows.append((int(number), client, line, str(batch.source.partition), name, time.monotonic()))
                database.executemany("INSERT INTO line VALUES (?, ?, ?, ?, ?, ?)", rows)
        except sqlite3.OperationalError:  # the others write, too
            time.sleep(_TRY_SECONDS)
        else:
            return


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # it goes with the demo
    consume(json.loads(sys.argv[1]))
